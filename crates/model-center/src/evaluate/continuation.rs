//! The tokens of a text and its continuation.
//!
//! Defines [`TextSplitter`] and [`SplitText`], used by LAMBADA and by log-likelihoods of continuations.

use super::{ScoredSequence, ScoredTarget};
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};

/// Token ids of a context and of what continues it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitText {
    /// The context, at least one token.
    pub context: Vec<u32>,
    /// The continuation, at least one token.
    pub continuation: Vec<u32>,
}

impl SplitText {
    /// The sequence whose targets are the continuation. Of a long one the last `length` inputs stay, and of a
    /// continuation that is longer still its last tokens.
    pub fn sequence(&self, length: usize) -> ScoredSequence {
        let all = [self.context.as_slice(), &self.continuation].concat();
        let inputs = all.len() - 1;
        let start = inputs.saturating_sub(length);
        let first = (self.context.len() - 1).max(start);
        let targets = (first..inputs).map(|at| ScoredTarget { position: at - start, token: all[at + 1] });
        ScoredSequence { input: all[start..inputs].to_vec(), targets: targets.collect() }
    }
}

/// Splits texts by tokens.
#[derive(Debug)]
pub struct TextSplitter<'a> {
    tokenizer: &'a dyn Tokenizer,
    front: Vec<u32>,
}

impl<'a> TextSplitter<'a> {
    /// Texts of this tokenizer, with the special tokens that it writes before a text.
    pub fn new(tokenizer: &'a dyn Tokenizer) -> Self {
        TextSplitter { tokenizer, front: tokenizer.template(false).around_first().0 }
    }

    /// The special tokens before a text.
    pub fn front(&self) -> &[u32] {
        &self.front
    }

    /// The tokens of a context and its continuation: the joined text's tokens without the first n, where n is the
    /// number of tokens of the context alone. White space at the end of the context belongs to the continuation, as
    /// most tokenizers put it before a word. An empty context is the tokenizer's first special token, BOS or EOS.
    ///
    /// Source: the harness of EleutherAI, whose rule this is.
    ///
    /// # Errors
    /// [`Error::Data`] for a continuation without tokens, [`Error::Model`] for a tokenizer without a token that can
    /// precede an empty context.
    pub fn split(&self, place: &str, context: &str, continuation: &str) -> Result<SplitText> {
        let trimmed = context.trim_end();
        let joined = format!("{context}{continuation}");
        let ids = self.tokenizer.tokenize(&[trimmed, &joined])?;
        let (Some(context), Some(joined)) = (ids.first(), ids.get(1)) else {
            return Err(Error::model(self.tokenizer.place(), "it returned no tokens", "report this"));
        };
        let context = if trimmed.is_empty() { &[][..] } else { context };
        let continuation = joined.get(context.len().min(joined.len())..).unwrap_or_default().to_vec();
        if continuation.is_empty() {
            return Err(Error::data(place, "the continuation has no token", "give a text that is not empty"));
        }
        // The tokens that the joined text begins with, should they differ from the context's own.
        let context = self.front.iter().chain(joined.iter().take(joined.len() - continuation.len())).copied();
        let mut context: Vec<u32> = context.collect();
        if context.is_empty() {
            context.push(self.first()?);
        }
        Ok(SplitText { context, continuation })
    }

    /// The token before a text without context.
    pub fn first(&self) -> Result<u32> {
        let special = self.tokenizer.special_ids();
        special.bos.or(special.eos).ok_or_else(|| {
            let reason = "it has neither BOS nor EOS, which an empty context would consist of";
            Error::model(self.tokenizer.place(), reason, "give a context")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::SplitText;
    use crate::evaluate::ScoredTarget;

    #[test]
    fn the_continuation_is_predicted_and_long_contexts_lose_their_start() {
        let split = SplitText { context: vec![1, 2, 3], continuation: vec![4, 5] };
        let target = |position, token| ScoredTarget { position, token };
        let whole = split.sequence(8);
        assert_eq!((whole.input, whole.targets), (vec![1, 2, 3, 4], vec![target(2, 4), target(3, 5)]));
        let cut = split.sequence(2);
        assert_eq!((cut.input, cut.targets), (vec![3, 4], vec![target(0, 4), target(1, 5)]));
        let shorter = split.sequence(1);
        assert_eq!((shorter.input, shorter.targets), (vec![4], vec![target(0, 5)]));
    }
}
