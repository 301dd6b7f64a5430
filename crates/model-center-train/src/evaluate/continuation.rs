//! The tokens of a text and its continuation.
//!
//! Defines [`TextSplitter`] and [`SplitText`], used by LAMBADA and by log-likelihoods of continuations.

use super::{ScoredSequence, ScoredTarget};
use crate::{Error, Result};
use model_center_formats::tokenizer::Tokenizer;

/// Token ids of a context and of what continues it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitText {
    /// Where the two are from, for messages.
    pub place: String,
    /// The context, at least one token.
    pub context: Vec<u32>,
    /// The continuation, at least one token.
    pub continuation: Vec<u32>,
}

impl SplitText {
    /// The sequence whose targets are the continuation, of at most `length` inputs: of a long context the end stays.
    ///
    /// # Errors
    /// [`Error::Data`] for a continuation that is longer, whose likelihood no such sequence has.
    pub fn sequence(&self, length: usize) -> Result<ScoredSequence> {
        let scored = self.continuation.len();
        if scored > length {
            let reason = format!("the continuation has {scored} tokens, more than the {length} of a sequence");
            let fix = "raise --length up to the model's positions, score it in parts with the text before each as the \
                       prompt, or ask `bmtrain evaluate perplexity` for a whole text";
            return Err(Error::data(self.place.as_str(), reason, fix));
        }
        let all = [self.context.as_slice(), &self.continuation].concat();
        let inputs = all.len() - 1;
        let start = inputs.saturating_sub(length);
        let targets =
            (self.context.len() - 1..inputs).map(|at| ScoredTarget { position: at - start, token: all[at + 1] });
        Ok(ScoredSequence { input: all[start..inputs].to_vec(), targets: targets.collect() })
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
        Ok(SplitText { place: place.to_owned(), context, continuation })
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
    #![allow(clippy::unwrap_used)]
    use super::SplitText;
    use crate::evaluate::ScoredTarget;

    #[test]
    fn the_continuation_is_predicted_and_long_contexts_lose_their_start() {
        let split = SplitText { place: "line 1".into(), context: vec![1, 2, 3], continuation: vec![4, 5] };
        let target = |position, token| ScoredTarget { position, token };
        let whole = split.sequence(8).unwrap();
        assert_eq!((whole.input, whole.targets), (vec![1, 2, 3, 4], vec![target(2, 4), target(3, 5)]));
        let cut = split.sequence(2).unwrap();
        assert_eq!((cut.input, cut.targets), (vec![3, 4], vec![target(0, 4), target(1, 5)]));
        let error = split.sequence(1).unwrap_err().to_string();
        assert!(error.contains("line 1: the continuation has 2 tokens, more than the 1"), "{error}");
    }
}
