//! How well a text answers a question that has known answers.
//!
//! Defines [`exact_match`], [`token_f1`] and [`AnswerScores`], which collects them over samples. Used by the tasks
//! whose answers are texts: ReCoRD's candidates are rated as they are read; of what a decoder writes for SQuAD the
//! texts go to [`AnswerScores::add`] with [`Dataset::references`](crate::data::Dataset::references).
//!
//! Source: the evaluation of SQuAD 1.1 (Rajpurkar et al., 2016). Deliberate difference: if no word is left of either
//! text the F1 is 1, like their exact match.

use std::collections::HashMap;

use super::{Metric, OrderedSum};

/// Words that a comparison ignores.
const ARTICLES: [&str; 3] = ["a", "an", "the"];

/// The words of a text as answers are compared: in lower case, without ASCII punctuation and without English articles.
pub fn answer_words(text: &str) -> Vec<String> {
    let plain: String = text.to_lowercase().chars().filter(|letter| !letter.is_ascii_punctuation()).collect();
    let (mut kept, mut word) = (String::new(), String::new());
    // An article is one between any two letters that are of no word, not only between spaces.
    for letter in plain.chars().chain([' ']) {
        if letter.is_alphanumeric() {
            word.push(letter);
            continue;
        }
        if !ARTICLES.contains(&word.as_str()) {
            kept.push_str(&word);
        } else {
            kept.push(' ');
        }
        word.clear();
        kept.push(letter);
    }
    kept.split_whitespace().map(str::to_owned).collect()
}

/// 1 if a text is one of the answers, but for case, punctuation, articles and spaces, else 0.
pub fn exact_match(text: &str, answers: &[impl AsRef<str>]) -> f64 {
    let words = answer_words(text);
    f64::from(u8::from(answers.iter().any(|answer| answer_words(answer.as_ref()) == words)))
}

/// The harmonic mean of precision and recall of a text's words, compared as by [`exact_match`], against the answer that
/// fits best; 0 without answers.
pub fn token_f1(text: &str, answers: &[impl AsRef<str>]) -> f64 {
    let words = answer_words(text);
    let one = |answer: &str| {
        let answer = answer_words(answer);
        if words.is_empty() || answer.is_empty() {
            return f64::from(u8::from(words == answer));
        }
        let mut left: HashMap<&str, usize> = HashMap::new();
        answer.iter().for_each(|word| *left.entry(word).or_default() += 1);
        let mut shared = 0;
        for word in &words {
            if let Some(count) = left.get_mut(word.as_str()).filter(|count| **count > 0) {
                *count -= 1;
                shared += 1;
            }
        }
        f64::from(2 * shared) / (words.len() + answer.len()) as f64
    };
    answers.iter().map(|answer| one(answer.as_ref())).fold(0.0, f64::max)
}

/// Exact match and F1 of texts that answer samples, as means over the samples.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AnswerScores {
    exact: OrderedSum,
    f1: OrderedSum,
    count: u64,
}

impl AnswerScores {
    /// Adds the text that was written for a sample.
    pub fn add(&mut self, sample: u32, text: &str, answers: &[impl AsRef<str>]) {
        self.add_rated(sample, exact_match(text, answers), token_f1(text, answers));
    }

    /// Adds a sample whose text was rated elsewhere, by [`exact_match`] and [`token_f1`].
    pub fn add_rated(&mut self, sample: u32, exact: f64, f1: f64) {
        self.exact.add(u64::from(sample), exact, 1.0);
        self.f1.add(u64::from(sample), f1, 1.0);
        self.count += 1;
    }

    /// Adds another rank's, of other samples.
    pub fn merge(&mut self, other: &AnswerScores) {
        self.exact.merge(&other.exact);
        self.f1.merge(&other.f1);
        self.count += other.count;
    }

    /// Number of samples.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Share of samples whose text is one of the answers; 0 without any.
    pub fn exact_match(&self) -> f64 {
        self.exact.mean()
    }

    /// Mean of the F1 of the samples' texts; 0 without any.
    pub fn token_f1(&self) -> f64 {
        self.f1.mean()
    }

    /// The value of a metric that compares texts.
    pub fn value(&self, metric: Metric) -> Option<f64> {
        match metric {
            Metric::ExactMatch => Some(self.exact_match()),
            Metric::TokenF1 => Some(self.token_f1()),
            _ => None,
        }
    }
}
