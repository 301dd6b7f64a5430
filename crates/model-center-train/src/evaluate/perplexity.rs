//! Perplexity of a text by token, by word and by byte.
//!
//! Defines [`PerplexityResult`] and the published [`Reference`] counts by which a wrong vocabulary, tokeniser or
//! detokeniser is noticed.

use serde::Serialize;

use super::{TextCounts, capped_perplexity};
use model_center_data::metrics::OrderedSum;

/// Counts of a published test set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Reference {
    /// The text and the tokenizer.
    pub name: &'static str,
    /// Words of the raw file, separated by single spaces.
    pub words: u64,
    /// Tokens of the detokenised text.
    pub tokens: u64,
    #[serde(skip)]
    vocabulary: usize,
}

/// Source: the counts that Megatron-LM's evaluation prints for the test split of WikiText-103.
const REFERENCES: [Reference; 1] = [Reference {
    name: "WikiText-103 test with GPT-2's tokenizer",
    words: 245_566,
    tokens: 270_330,
    vocabulary: 50_257,
}];

impl Reference {
    /// The published counts of a text by its words, if its tokenizer has as many tokens as the published one.
    pub fn of(words: u64, vocabulary: usize) -> Option<Reference> {
        REFERENCES.into_iter().find(|known| known.words == words && known.vocabulary == vocabulary)
    }
}

/// The perplexity of a text.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PerplexityResult {
    /// Tokens of the text.
    pub tokens: u64,
    /// Tokens that were predicted.
    pub scored_tokens: u64,
    /// Mean negative log-likelihood of a token, in nats.
    pub loss: f64,
    /// exp(loss).
    pub perplexity: f64,
    /// exp(min(20, loss)), as Megatron-LM prints it.
    pub perplexity_capped: f64,
    /// Words before detokenisation.
    pub words: Option<u64>,
    /// Perplexity of a word: exp(loss x (tokens - 1) / (words - 1)), Megatron-LM's adjusted perplexity.
    pub word_perplexity: Option<f64>,
    /// The same with the exponent bounded by 20.
    pub word_perplexity_capped: Option<f64>,
    /// Negative log-likelihood of all tokens in bits, over the bytes of the text before detokenisation.
    pub bits_per_byte: Option<f64>,
    /// Published counts of this text, to compare `words` and `tokens` with.
    pub reference: Option<Reference>,
    /// Whether `tokens` is the published count.
    pub agrees_with_reference: Option<bool>,
}

impl PerplexityResult {
    /// The result of the losses of batches, weighted by their numbers of tokens. Words and bytes are used where every
    /// token but the first was scored.
    pub fn new(
        losses: &OrderedSum,
        (tokens, scored): (u64, u64),
        counts: Option<TextCounts>,
        vocabulary: usize,
    ) -> Self {
        let loss = losses.mean();
        let counts = counts.filter(|_| scored + 1 == tokens);
        let ratio = counts.filter(|counts| counts.words > 1).map(|counts| scored as f64 / (counts.words - 1) as f64);
        let bytes = counts.map(|counts| counts.bytes).filter(|bytes| *bytes > 0);
        let reference = counts.and_then(|counts| Reference::of(counts.words, vocabulary));
        PerplexityResult {
            tokens,
            scored_tokens: scored,
            loss,
            perplexity: loss.exp(),
            perplexity_capped: capped_perplexity(loss),
            words: counts.map(|counts| counts.words),
            word_perplexity: ratio.map(|ratio| (loss * ratio).exp()),
            word_perplexity_capped: ratio.map(|ratio| capped_perplexity(loss * ratio)),
            bits_per_byte: bytes.map(|bytes| loss * scored as f64 / std::f64::consts::LN_2 / bytes as f64),
            reference,
            agrees_with_reference: reference.map(|reference| reference.tokens == tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{PerplexityResult, Reference};
    use crate::evaluate::TextCounts;
    use model_center_data::metrics::OrderedSum;

    fn losses(loss: f64, tokens: f64) -> OrderedSum {
        let mut sum = OrderedSum::default();
        sum.add(0, loss * tokens, tokens);
        sum
    }

    #[test]
    fn words_and_bytes_rescale_the_loss_of_a_token() {
        let counts = TextCounts { documents: 1, words: 6, bytes: 40 };
        let result = PerplexityResult::new(&losses(2.0, 10.0), (11, 10), Some(counts), 100);
        assert_eq!(result.perplexity, 2.0_f64.exp());
        assert!((result.word_perplexity.unwrap() - 4.0_f64.exp()).abs() < 1e-9);
        assert!((result.bits_per_byte.unwrap() - 20.0 / 2.0_f64.ln() / 40.0).abs() < 1e-12);
        let part = PerplexityResult::new(&losses(2.0, 5.0), (11, 5), Some(counts), 100);
        assert_eq!((part.word_perplexity, part.bits_per_byte), (None, None));
    }

    #[test]
    fn large_losses_are_capped_in_one_of_two_figures() {
        let result = PerplexityResult::new(&losses(30.0, 1.0), (2, 1), None, 100);
        assert_eq!((result.perplexity, result.perplexity_capped), (30.0_f64.exp(), 20.0_f64.exp()));
    }

    #[test]
    fn published_counts_are_compared_for_their_text_and_vocabulary() {
        let counts = TextCounts { documents: 1, words: 245_566, bytes: 1_290_590 };
        let of = |tokens: u64, vocabulary| {
            let scored = tokens - 1;
            PerplexityResult::new(&losses(3.0, scored as f64), (tokens, scored), Some(counts), vocabulary)
        };
        assert_eq!(of(270_330, 50_257).agrees_with_reference, Some(true));
        assert_eq!(of(270_331, 50_257).agrees_with_reference, Some(false));
        assert_eq!(of(270_330, 32_000).agrees_with_reference, None);
        assert!(Reference::of(245_567, 50_257).is_none());
    }
}
