//! LAMBADA: the last word of a passage.
//!
//! Defines [`read_lambada`] and [`LambadaTotals`]. Source: both rules of Megatron-LM: the last token alone, as its
//! first version counted, and strict, all tokens of the last word.

use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value};

use super::{SplitText, TextSplitter, TokenScore};
use crate::{Error, Result};
use model_center_data::metrics::OrderedSum;
use model_center_formats::io::json_lines::read_json_lines;
use model_center_formats::tokenizer::Tokenizer;

/// The published file has 2 MB.
const MAX_BYTES: u64 = 1 << 30;

/// Reads passages from JSON lines with a text under `key`, split before their last word.
///
/// # Errors
/// [`Error::Data`] with the line of a passage without a text or of a single word.
pub fn read_lambada(path: &Path, key: &str, tokenizer: &dyn Tokenizer) -> Result<Vec<SplitText>> {
    let like = format!("{{\"{key}\": \"...\"}}");
    let lines = read_json_lines::<Map<String, Value>>(path, MAX_BYTES, &like)?;
    let splitter = TextSplitter::new(tokenizer);
    let split = |(place, line): (String, Map<String, Value>)| {
        let Some(text) = line.get(key).and_then(Value::as_str) else {
            let reason = format!("there is no text under {key:?}");
            return Err(Error::data(place, reason, "name the key of the passages, or correct the line"));
        };
        let text = text.trim();
        let Some((start, space)) = text.char_indices().rfind(|(_, letter)| letter.is_whitespace()) else {
            return Err(Error::data(
                place,
                "the passage has one word, and the last one is predicted",
                "remove the line",
            ));
        };
        let (context, word) = (text[..start].trim_end(), &text[start + space.len_utf8()..]);
        splitter.split(&place, context, &format!(" {word}"))
    };
    lines.into_iter().map(split).collect()
}

/// Counts over passages, in any order.
#[derive(Debug, Clone, Default)]
pub struct LambadaTotals {
    passages: u64,
    tokens_right: u64,
    words_right: u64,
    losses: OrderedSum,
}

/// The result over all passages.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LambadaResult {
    /// Passages.
    pub passages: u64,
    /// Share of passages whose last token is predicted by greedy decoding.
    pub last_token_accuracy: f64,
    /// Share of passages whose last word is predicted by greedy decoding, token by token.
    pub strict_accuracy: f64,
    /// exp of the mean negative log-likelihood of the last word.
    pub word_perplexity: f64,
}

impl LambadaTotals {
    /// Adds the scores of a passage's last word.
    pub fn add(&mut self, passage: u64, scores: &[TokenScore]) {
        self.passages += 1;
        self.tokens_right += u64::from(scores.last().is_some_and(|score| score.is_greedy));
        self.words_right += u64::from(scores.iter().all(|score| score.is_greedy));
        self.losses.add(passage, -scores.iter().map(|score| score.log_prob).sum::<f64>(), 1.0);
    }

    /// The result.
    pub fn result(&self) -> LambadaResult {
        let share = |count: u64| count as f64 / self.passages.max(1) as f64;
        LambadaResult {
            passages: self.passages,
            last_token_accuracy: share(self.tokens_right),
            strict_accuracy: share(self.words_right),
            word_perplexity: self.losses.mean().exp(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LambadaTotals, TokenScore};

    #[test]
    fn strict_needs_every_token_of_the_word() {
        let score = |probability: f64, is_greedy| TokenScore { log_prob: probability.ln(), is_greedy };
        let mut totals = LambadaTotals::default();
        totals.add(1, &[score(0.5, false), score(0.5, true)]);
        totals.add(0, &[score(0.25, true)]);
        totals.add(2, &[score(0.5, true), score(0.5, false)]);
        let result = totals.result();
        assert_eq!((result.passages, result.last_token_accuracy), (3, 2.0 / 3.0));
        assert_eq!(result.strict_accuracy, 1.0 / 3.0);
        assert!((result.word_perplexity - 4.0).abs() < 1e-12);
    }
}
