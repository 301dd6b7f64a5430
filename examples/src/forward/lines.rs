//! Inputs of the forward program as lines of JSON: a row each, of ids or of text, padded on the right to one length.

use model_center::data::Format;
use model_center::file::{printable, read_text};
use model_center::model::labels::IGNORED;
use model_center::model::{TextBatch, TextLabels};
use model_center::tokenizer::{HfTokenizer, Tokenizer};
use model_center::{Error, Result};
use serde::Deserialize;
use std::path::Path;

/// Rows that one pass of a model is to take are a few kilobytes each.
const MAX_BYTES: u64 = 64 << 20;

/// Rows padded to the longest hold no more tokens than this, so that one long row among many short ones does not take the memory.
const MOST_TOKENS: usize = 1 << 26;

/// What a line may say. The names are those of tensors; texts stand for the ids that the folder's tokenizer makes of them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    text: Option<String>,
    text_pair: Option<String>,
    input_ids: Option<Vec<i64>>,
    attention_mask: Option<Vec<u8>>,
    token_type_ids: Option<Vec<i64>>,
    /// What a decoder behind an encoder is to write.
    target: Option<String>,
    decoder_input_ids: Option<Vec<i64>>,
    decoder_attention_mask: Option<Vec<u8>>,
    context: Option<Vec<u8>>,
    span: Option<Vec<i64>>,
    labels: Option<LineLabels>,
    next_sentence_label: Option<i64>,
}

/// Whole numbers are classes or words, others are to be predicted.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum LineLabels {
    Class(i64),
    Words(Vec<i64>),
    Value(f32),
    Values(Vec<f32>),
}

/// The lines of a file with the place of each.
struct Lines {
    lines: Vec<Line>,
    places: Vec<String>,
}

/// Whether a file is read as lines, by the ending of its name.
pub(super) fn is_for(path: &Path) -> bool {
    matches!(Format::of(path), Ok(Format::Jsonl))
}

/// Read a batch; `folder` is the model's, whose tokenizer texts go through. Gives that too, where there is a text.
///
/// # Errors
/// A line that is no row, rows that do not go together; text without a tokenizer.
pub(super) fn read(path: &Path, folder: &Path) -> Result<(TextBatch, Option<HfTokenizer>)> {
    let mut rows = Lines::parse(path)?;
    let tokenizer = rows.tokenize(folder)?;
    // Where ids are given, the mask hides padding.
    let pad = tokenizer.as_ref().and_then(|tokenizer| tokenizer.special_ids().pad).map_or(0, i64::from);
    let ids = rows.of("input_ids", |line| line.input_ids.as_ref())?;
    let Some(ids) = ids.filter(|rows| rows.iter().all(|row| !row.is_empty())) else {
        return Err(Error::data(
            rows.places[0].clone(),
            "a row without a token",
            "give text or input_ids in every line",
        ));
    };
    rows.check_size(&ids)?;
    let length = longest(&ids);
    let masks = rows.of("attention_mask", |line| line.attention_mask.as_ref())?;
    let types = rows.of("token_type_ids", |line| line.token_type_ids.as_ref())?;
    let contexts = rows.of("context", |line| line.context.as_ref())?;
    let spans = rows.of("span", |line| line.span.as_ref())?;
    rows.same_lengths(("attention_mask", masks.as_deref()), ("input_ids", &ids))?;
    rows.same_lengths(("token_type_ids", types.as_deref()), ("input_ids", &ids))?;
    rows.same_lengths(("context", contexts.as_deref()), ("input_ids", &ids))?;
    rows.same_lengths(("span", spans.as_deref()), ("input_ids", &ids))?;
    let targets = rows.of("decoder_input_ids", |line| line.decoder_input_ids.as_ref())?;
    let target_masks = rows.of("decoder_attention_mask", |line| line.decoder_attention_mask.as_ref())?;
    if let Some(targets) = &targets {
        rows.check_size(targets)?;
        rows.same_lengths(("decoder_attention_mask", target_masks.as_deref()), ("decoder_input_ids", targets))?;
    }
    let next_sentence = rows.of("next_sentence_label", |line| line.next_sentence_label.as_ref())?;
    let batch = TextBatch {
        rows: rows.lines.len(),
        length,
        input_ids: padded(&ids, length, pad),
        attention_mask: mask(masks.as_deref(), &ids),
        token_type_ids: types.map(|rows| padded(&rows, length, 0)),
        context: contexts.map(|rows| padded(&rows, length, 0)),
        span: spans.map(|rows| padded(&rows, length, 0)),
        decoder_attention_mask: targets.as_ref().and_then(|ids| mask(target_masks.as_deref(), ids)),
        labels: rows.labels(&ids, targets.as_deref())?,
        decoder_input_ids: targets.map(|rows| padded(&rows, longest(&rows), pad)),
        next_sentence: next_sentence.map(|labels| labels.into_iter().copied().collect()),
        choices: 1,
        label_smoothing: 0.0,
    };
    Ok((batch, tokenizer))
}

impl Lines {
    fn parse(path: &Path) -> Result<Self> {
        let text = read_text(path, MAX_BYTES)?;
        let (mut lines, mut places) = (Vec::new(), Vec::new());
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let place = format!("{}:{}", path.display(), number + 1);
            let line = serde_json::from_str(line).map_err(|error| {
                let reason = printable(&error.to_string(), 200).to_string();
                Error::data(place.clone(), reason, "write one JSON object per line, such as {\"text\": \"...\"}")
            })?;
            lines.push(line);
            places.push(place);
        }
        match lines.is_empty() {
            false => Ok(Lines { lines, places }),
            true => Err(Error::data(path.display().to_string(), "there is no line", "write one row per line")),
        }
    }

    /// Put ids in the place of texts, if there are any; gives the tokenizer that made them.
    fn tokenize(&mut self, folder: &Path) -> Result<Option<HfTokenizer>> {
        if self.lines.iter().all(|line| line.text.is_none() && line.text_pair.is_none() && line.target.is_none()) {
            return Ok(None);
        }
        let tokenizer = HfTokenizer::from_folder(folder)?;
        for (line, place) in self.lines.iter_mut().zip(&self.places) {
            let refuse = |reason: &str, fix: &str| Err(Error::data(place.clone(), reason, fix));
            match (line.text.take(), line.text_pair.take()) {
                (None, Some(_)) => return refuse("text_pair without text", "give text"),
                (Some(_), _) if line.input_ids.is_some() => return refuse("text and input_ids", "give one of the two"),
                (Some(_), _) if line.attention_mask.is_some() || line.token_type_ids.is_some() => {
                    return refuse("a mask or types for tokens of a text", "give input_ids, or leave them out");
                }
                (Some(text), pair) => {
                    let row = tokenizer.encode(&text, pair.as_deref(), None)?;
                    line.input_ids = Some(row.input_ids.into_iter().map(i64::from).collect());
                    line.token_type_ids = Some(row.token_type_ids.into_iter().map(i64::from).collect());
                }
                (None, None) => {}
            }
            if let Some(target) = line.target.take() {
                if line.labels.is_some() {
                    return refuse("target and labels", "give one of the two");
                }
                let row = tokenizer.encode(&target, None, None)?;
                line.labels = Some(LineLabels::Words(row.input_ids.into_iter().map(i64::from).collect()));
            }
        }
        // Tokenizers say types for models that have none too.
        let has_types = |line: &Line| line.token_type_ids.as_ref().is_some_and(|types| types.iter().any(|t| *t != 0));
        if !self.lines.iter().any(has_types) {
            self.lines.iter_mut().for_each(|line| line.token_type_ids = None);
        }
        Ok(Some(tokenizer))
    }

    /// A field of every line, or of none.
    fn of<'a, T>(&'a self, name: &str, field: impl Fn(&'a Line) -> Option<&'a T>) -> Result<Option<Vec<&'a T>>> {
        let values: Vec<&T> = self.lines.iter().filter_map(&field).collect();
        if values.is_empty() {
            return Ok(None);
        }
        match self.lines.iter().position(|line| field(line).is_none()) {
            None => Ok(Some(values)),
            Some(at) => {
                let reason = format!("{name} is not given here, and it is in other lines");
                Err(Error::data(self.places[at].clone(), reason, "give it in every line or in none"))
            }
        }
    }

    /// Rows that can be padded to the longest of them.
    fn check_size(&self, rows: &[&Vec<i64>]) -> Result<()> {
        let (count, length) = (rows.len(), longest(rows));
        if count.saturating_mul(length) <= MOST_TOKENS {
            return Ok(());
        }
        let at = rows.iter().position(|row| row.len() == length).unwrap_or(0);
        let reason = format!("the row has {length} tokens, to which {count} rows would be padded");
        Err(Error::data(self.places[at].clone(), reason, "give fewer rows at a time"))
    }

    /// As many values in every row as another field has.
    fn same_lengths<T, U>(
        &self,
        (name, rows): (&str, Option<&[&Vec<T>]>),
        (other, others): (&str, &[&Vec<U>]),
    ) -> Result<()> {
        for ((row, of), place) in rows.unwrap_or_default().iter().zip(others).zip(&self.places) {
            if row.len() != of.len() {
                let reason = format!("{name} has {} values, {other} has {}", row.len(), of.len());
                return Err(Error::data(place.clone(), reason, "give one value for each token"));
            }
        }
        Ok(())
    }

    /// The labels in one vector; those of words are padded to the decoder's rows where there are such, else to the rows.
    fn labels(&self, ids: &[&Vec<i64>], targets: Option<&[&Vec<i64>]>) -> Result<Option<TextLabels>> {
        let Some(labels) = self.of("labels", |line| line.labels.as_ref())? else { return Ok(None) };
        let (mut classes, mut words, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for label in &labels {
            match label {
                LineLabels::Class(class) => classes.push(*class),
                LineLabels::Words(row) => words.push(row),
                LineLabels::Value(value) => values.push(std::slice::from_ref(value)),
                LineLabels::Values(row) => values.push(row),
            }
        }
        let outputs = values.first().map_or(0, |row| row.len());
        Ok(Some(match [classes.len(), words.len(), values.len()] {
            [_, 0, 0] => TextLabels::Classes(classes),
            [0, 0, _] if values.iter().all(|row| row.len() == outputs) => TextLabels::Values(values.concat()),
            [0, _, 0] => {
                self.check_size(&words)?;
                if let Some(targets) = targets {
                    self.same_lengths(("labels", Some(&words)), ("decoder_input_ids", targets))?;
                }
                let are_ids = targets.is_none() && words.iter().zip(ids).all(|(row, ids)| row.len() == ids.len());
                let length = if are_ids { longest(ids) } else { longest(&words) };
                TextLabels::Classes(padded(&words, length, IGNORED))
            }
            _ => {
                let reason = "labels are of different kinds in different lines";
                return Err(Error::data(self.places[0].clone(), reason, "give the same kind in every line"));
            }
        }))
    }
}

fn longest<T>(rows: &[&Vec<T>]) -> usize {
    rows.iter().map(|row| row.len()).max().unwrap_or(0)
}

fn padded<T: Copy>(rows: &[&Vec<T>], length: usize, pad: T) -> Vec<T> {
    let filled = |row: &&Vec<T>| row.iter().copied().chain(std::iter::repeat(pad)).take(length).collect::<Vec<_>>();
    rows.iter().flat_map(filled).collect()
}

/// What is given, or, where rows are padded, which tokens are not padding.
fn mask(given: Option<&[&Vec<u8>]>, ids: &[&Vec<i64>]) -> Option<Vec<u8>> {
    let length = longest(ids);
    if let Some(given) = given {
        return Some(padded(given, length, 0));
    }
    let ones: Vec<Vec<u8>> = ids.iter().map(|row| vec![1; row.len()]).collect();
    let is_padded = ids.iter().any(|row| row.len() < length);
    is_padded.then(|| padded(&ones.iter().collect::<Vec<_>>(), length, 0))
}
