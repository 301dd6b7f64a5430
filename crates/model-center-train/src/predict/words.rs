//! Classes of words, and the entities that they make.
//!
//! The class of a word is that of its first token, as in training. A sentence that a row has no room for is read in
//! windows; a word has the outputs of the window in which it is furthest from both ends.
//!
//! Source: the pipeline `token-classification` of transformers with the aggregation `first`: what is a word, and the
//! score of an entity as the mean of its words' scores.

use super::pass::softmax;
use super::prediction::{EntityMention, PredictedValue, Prediction};
use super::prepare::{Form, PreparedInput, no_token};
use super::{PredictionKind, Predictor};
use crate::{Error, Result};
use model_center_data::metrics::{argmax, entities};
use model_center_data::{WordTokenizer, windows};
use model_center_formats::tokenizer::{TokenSpan, Tokenizer, begins_after_space, continues_word};
use std::ops::Range;
use std::sync::Arc;

/// Whether tokens of a vocabulary have the space before a word in them.
///
/// # Errors
/// What the tokenizer refuses.
pub(super) fn marks_spaces(tokenizer: &dyn Tokenizer) -> Result<bool> {
    let ids = tokenizer.tokenize(&["a a"])?.concat();
    Ok(ids.into_iter().filter_map(|id| tokenizer.token(id)).any(|token| begins_after_space(&token)))
}
/// The windows of a sentence, and its words.
#[derive(Debug, Clone)]
pub(super) struct WordRows {
    words: Vec<Word>,
    /// The text, where words are places in one.
    text: Option<Arc<str>>,
    /// Tokens of the sentence in each row.
    windows: Vec<Range<usize>>,
    /// The position of a window's first token in its row.
    first: usize,
}

/// A word of a sentence.
#[derive(Debug, Clone)]
struct Word {
    /// Its first token in the sentence; `None` of a word without tokens.
    token: Option<usize>,
    /// Its bytes in the text, or its number among the words.
    place: Range<usize>,
}

impl Predictor {
    /// The windows of a text.
    pub(super) fn words_of_text(&self, text: &str) -> Result<PreparedInput> {
        let tokens = self.tokenizer.tokenize_with_spans(text)?;
        let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        self.windows_of(ids, self.words_of(text, &tokens), Some(text.into()))
    }

    /// The windows of given words.
    pub(super) fn words(&self, words: &[String]) -> Result<PreparedInput> {
        let (mut ids, mut found) = (Vec::new(), Vec::new());
        for (number, tokens) in WordTokenizer::new(self.tokenizer())?.tokenize(words)?.into_iter().enumerate() {
            let token = (!tokens.is_empty()).then_some(ids.len());
            found.push(Word { token, place: number..number + 1 });
            ids.extend(tokens);
        }
        self.windows_of(ids, found, None)
    }

    fn windows_of(&self, ids: Vec<u32>, words: Vec<Word>, text: Option<Arc<str>>) -> Result<PreparedInput> {
        if ids.is_empty() {
            return Err(no_token());
        }
        let template = self.tokenizer.template(false);
        let room = self.max_length.saturating_sub(template.special_tokens());
        let windows: Vec<Range<usize>> = windows(ids.len(), room, self.options.stride).collect();
        let rows = windows.iter().map(|window| template.assemble(&ids[window.clone()], &[], None));
        let rows = rows.collect::<Result<Vec<_>>>()?;
        let (front, _) = template.around_first();
        Ok(PreparedInput::new(rows, Form::Words(WordRows { words, text, windows, first: front.len() })))
    }

    /// The words of a text, each with its first token. White space ends a word, and in vocabularies of BERT punctuation
    /// too.
    fn words_of(&self, text: &str, tokens: &[TokenSpan]) -> Vec<Word> {
        let spelled: Vec<String> =
            tokens.iter().map(|token| self.tokenizer.token(token.id).unwrap_or_default()).collect();
        let unknown = self.tokenizer.special_ids().unk;
        let mut words: Vec<Word> = Vec::new();
        for (number, (token, spelled)) in tokens.iter().zip(&spelled).enumerate() {
            let place = token.trimmed(text);
            if place.is_empty() {
                continue;
            }
            let follows_space = text[..place.start].chars().next_back().is_none_or(char::is_whitespace);
            let continues = match self.marks_spaces {
                true => !follows_space && Some(token.id) != unknown,
                false => continues_word(spelled),
            };
            match words.last_mut().filter(|_| continues) {
                Some(word) => word.place.end = place.end,
                None => words.push(Word { token: Some(number), place }),
            }
        }
        words
    }

    /// The classes of words with the outputs of their rows.
    pub(super) fn classes_of_words(&self, rows: &WordRows, outputs: &[Vec<f32>]) -> Result<Prediction> {
        let PredictionKind::Words(names) = &self.kind else { return Err(no_classes()) };
        let (mut tags, mut scores): (Vec<&str>, Vec<f32>) = (Vec::new(), Vec::new());
        for word in &rows.words {
            let logits = word.token.and_then(|token| rows.logits(token, outputs, names.len()));
            let probabilities = logits.map(softmax).unwrap_or_default();
            let class = argmax(&probabilities);
            tags.push(class.and_then(|class| names.get(class)).map_or("O", String::as_str));
            scores.push(class.and_then(|class| probabilities.get(class)).copied().unwrap_or(0.0));
        }
        let found = entities(tags.iter().copied()).into_iter().map(|entity| {
            let scores = scores.get(entity.tags.clone()).unwrap_or_default();
            let score = scores.iter().map(|score| f64::from(*score)).sum::<f64>() / scores.len().max(1) as f64;
            let place = |at: usize| rows.words.get(at).map_or(0..0, |word| word.place.clone());
            let bytes = place(entity.tags.start).start..place(entity.tags.end - 1).end;
            let (text, place) = match &rows.text {
                Some(text) => (Some(text.get(bytes.clone()).unwrap_or_default().to_owned()), characters(text, &bytes)),
                None => (None, bytes),
            };
            EntityMention { kind: entity.kind, text, place, score: score as f32 }
        });
        let entities = found.collect();
        // Of a text the words are this library's; of given words their classes belong to the result.
        let tags = rows.text.is_none().then(|| tags.into_iter().map(str::to_owned).collect());
        Ok(Prediction { value: PredictedValue::Entities { entities, tags }, score: None, probabilities: Vec::new() })
    }
}

impl WordRows {
    /// The logits of a token, of the window in which it is furthest from both ends.
    fn logits<'o>(&self, token: usize, outputs: &'o [Vec<f32>], classes: usize) -> Option<&'o [f32]> {
        let inside = self.windows.iter().zip(outputs).filter(|(window, _)| window.contains(&token));
        let margin = |window: &Range<usize>| (token - window.start).min(window.end - 1 - token);
        // Of equals the first.
        let (window, outputs) = inside.rev().max_by_key(|(window, _)| margin(window))?;
        let at = self.first + token - window.start;
        outputs.get(at * classes..(at + 1) * classes)
    }
}

fn no_classes() -> Error {
    Error::model("the model", "it has no classes of words", "open a token classifier")
}

/// Bytes of a text as characters.
pub(super) fn characters(text: &str, bytes: &Range<usize>) -> Range<usize> {
    let before = text.get(..bytes.start).map_or(0, |text| text.chars().count());
    before..before + text.get(bytes.clone()).map_or(0, |text| text.chars().count())
}
