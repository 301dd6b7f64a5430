//! Inputs as JSONL: a row of token ids or of text per line, padded on the right to one length.

use super::ForwardInputs;
use crate::{Error, Result};
use model_center_base::batch::IGNORED;
use model_center_formats::io::json_lines::read_json_lines;
use model_center_formats::tokenizer::{AutoTokenizer, Tokenizer};
use model_center_models::{Batch, Labels};
use serde::Deserialize;
use std::path::Path;
use std::sync::Arc;

/// The rows of one forward pass are a few kilobytes each.
const MAX_BYTES: u64 = 64 << 20;

/// The most tokens of the padded rows: one long row among many short ones would exhaust the memory.
const MAX_TOKENS: usize = 1 << 26;

/// The fields of a line. They are named as the tensors are; texts are encoded by the directory's tokenizer.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    pub text: Option<String>,
    text_pair: Option<String>,
    input_ids: Option<Vec<i64>>,
    attention_mask: Option<Vec<u8>>,
    token_type_ids: Option<Vec<i64>>,
    /// The target text of an encoder-decoder.
    target: Option<String>,
    decoder_input_ids: Option<Vec<i64>>,
    decoder_attention_mask: Option<Vec<u8>>,
    context: Option<Vec<u8>>,
    span: Option<Vec<i64>>,
    labels: Option<LineLabels>,
    next_sentence_label: Option<i64>,
    start_positions: Option<i64>,
    end_positions: Option<i64>,
}

/// Integers are classes or tokens, floating-point numbers the targets of a regression.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum LineLabels {
    Class(i64),
    Tokens(Vec<i64>),
    Value(f32),
    Values(Vec<f32>),
}

/// The lines of a file with the place of each.
struct Lines {
    lines: Vec<Line>,
    places: Vec<String>,
}

/// Read a batch; `directory` is the model's, whose tokenizer encodes texts.
pub(super) fn read(path: &Path, directory: &Path) -> Result<ForwardInputs> {
    let mut rows = Lines::parse(path)?;
    let tokenizer = rows.tokenize(directory)?;
    // With ids given, the attention mask hides the padding.
    let pad = tokenizer.as_ref().and_then(|tokenizer| tokenizer.special_ids().pad).map_or(0, i64::from);
    let ids = rows.of("input_ids", |line| line.input_ids.as_ref())?;
    let empty = ids.as_ref().map_or(Some(0), |rows| rows.iter().position(|row| row.is_empty()));
    let (Some(ids), None) = (ids, empty) else {
        let place = rows.places[empty.unwrap_or(0)].clone();
        return Err(Error::data(place, "a row without a token", "give text or input_ids in every line"));
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
    let tokens = rows.token_labels();
    // The decoder's input: without ids of its own the labels, shifted by one.
    let (name, read) = match (&targets, &tokens) {
        (Some(targets), _) => ("decoder_input_ids", Some(targets)),
        (None, tokens) => ("labels", tokens.as_ref()),
    };
    match read {
        Some(read) => {
            rows.check_size(read)?;
            rows.same_lengths(("decoder_attention_mask", target_masks.as_deref()), (name, read))?;
        }
        None if target_masks.is_some() => {
            let (reason, fix) = ("decoder_attention_mask has nothing to mask", "give decoder_input_ids or labels too");
            return Err(Error::data(rows.places[0].clone(), reason, fix));
        }
        None => {}
    }
    let target_mask = match (&targets, &target_masks) {
        // The padding of labels is ignored by the loss.
        (None, None) => None,
        _ => read.and_then(|read| mask(target_masks.as_deref(), read)),
    };
    let uneven_labels =
        tokens.as_ref().and_then(|tokens| rows.same_lengths(("labels", Some(tokens)), ("input_ids", &ids)).err());
    let next_sentence = rows.of("next_sentence_label", |line| line.next_sentence_label.as_ref())?;
    let batch = Batch {
        rows: rows.lines.len(),
        attention_mask: mask(masks.as_deref(), &ids),
        token_type_ids: types.map(|rows| padded(&rows, length, 0)),
        context: contexts.map(|rows| padded(&rows, length, 0)),
        span: spans.map(|rows| padded(&rows, length, 0)),
        decoder_attention_mask: target_mask,
        labels: match rows.labels(targets.as_deref())? {
            None => rows.spans()?,
            labels => labels,
        },
        decoder_input_ids: targets.map(|rows| padded(&rows, longest(&rows), pad)),
        next_sentence: next_sentence.map(|labels| labels.into_iter().copied().collect()),
        ..Batch::new(length, padded(&ids, length, pad))
    };
    Ok(ForwardInputs { place: path.display().to_string(), batch, tokenizer, uneven_labels })
}

impl Lines {
    fn parse(path: &Path) -> Result<Self> {
        let read = read_json_lines(path, MAX_BYTES, "{\"text\": \"...\"}")?;
        let (places, lines) = read.into_iter().unzip();
        Ok(Lines { lines, places })
    }

    /// Replace texts by their ids; returns the tokenizer if there are texts.
    fn tokenize(&mut self, directory: &Path) -> Result<Option<Arc<dyn Tokenizer>>> {
        if self.lines.iter().all(|line| line.text.is_none() && line.text_pair.is_none() && line.target.is_none()) {
            return Ok(None);
        }
        let tokenizer = AutoTokenizer::open(directory)?;
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
                line.labels = Some(LineLabels::Tokens(row.input_ids.into_iter().map(i64::from).collect()));
            }
        }
        // Tokenizers return token types for models without them, too.
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
        if count.saturating_mul(length) <= MAX_TOKENS {
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

    /// The token labels of every line, if all lines have them.
    fn token_labels(&self) -> Option<Vec<&Vec<i64>>> {
        let tokens = self.lines.iter().map(|line| match &line.labels {
            Some(LineLabels::Tokens(row)) => Some(row),
            _ => None,
        });
        tokens.collect()
    }

    /// First and last tokens of answers.
    fn spans(&self) -> Result<Option<Labels>> {
        let starts = self.of("start_positions", |line| line.start_positions.as_ref())?;
        let ends = self.of("end_positions", |line| line.end_positions.as_ref())?;
        match (starts, ends) {
            (None, None) => Ok(None),
            (Some(starts), Some(ends)) => {
                Ok(Some(Labels::Spans(starts.into_iter().zip(ends).map(|(start, end)| [*start, *end]).collect())))
            }
            _ => {
                let reason = "one of start_positions and end_positions is missing";
                Err(Error::data(self.places[0].clone(), reason, "give both, or leave both out"))
            }
        }
    }

    /// The labels in one vector; token labels are padded to the longest.
    fn labels(&self, targets: Option<&[&Vec<i64>]>) -> Result<Option<Labels>> {
        let Some(labels) = self.of("labels", |line| line.labels.as_ref())? else { return Ok(None) };
        if let Some(tokens) = self.token_labels() {
            if let Some(targets) = targets {
                self.same_lengths(("labels", Some(&tokens)), ("decoder_input_ids", targets))?;
            }
            return Ok(Some(Labels::Classes(padded(&tokens, longest(&tokens), IGNORED))));
        }
        let classes: Vec<i64> = labels.iter().filter_map(|label| label.class()).collect();
        if classes.len() == labels.len() {
            return Ok(Some(Labels::Classes(classes)));
        }
        let values: Vec<&[f32]> = labels.iter().filter_map(|label| label.values()).collect();
        let outputs = values.first().map_or(0, |row| row.len());
        if values.len() == labels.len() && values.iter().all(|row| row.len() == outputs) {
            return Ok(Some(Labels::Values(values.concat())));
        }
        let other = labels.iter().position(|label| !label.is_like(labels[0])).unwrap_or(0);
        let reason = "labels are of another kind here, or of another number, than in the first line";
        Err(Error::data(self.places[other].clone(), reason, "give the same kind in every line"))
    }
}

impl LineLabels {
    fn class(&self) -> Option<i64> {
        match self {
            LineLabels::Class(class) => Some(*class),
            _ => None,
        }
    }

    fn values(&self) -> Option<&[f32]> {
        match self {
            LineLabels::Value(value) => Some(std::slice::from_ref(value)),
            LineLabels::Values(values) => Some(values),
            _ => None,
        }
    }

    fn is_like(&self, other: &LineLabels) -> bool {
        match (self.values(), other.values()) {
            (Some(ours), Some(theirs)) => ours.len() == theirs.len(),
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

fn longest<T>(rows: &[&Vec<T>]) -> usize {
    rows.iter().map(|row| row.len()).max().unwrap_or(0)
}

fn padded<T: Copy>(rows: &[&Vec<T>], length: usize, pad: T) -> Vec<T> {
    let filled = |row: &&Vec<T>| row.iter().copied().chain(std::iter::repeat(pad)).take(length).collect::<Vec<_>>();
    rows.iter().flat_map(filled).collect()
}

/// The given attention mask, or, where rows are padded, one that hides the padding.
fn mask(given: Option<&[&Vec<u8>]>, ids: &[&Vec<i64>]) -> Option<Vec<u8>> {
    let length = longest(ids);
    if let Some(given) = given {
        return Some(padded(given, length, 0));
    }
    let ones: Vec<Vec<u8>> = ids.iter().map(|row| vec![1; row.len()]).collect();
    let is_padded = ids.iter().any(|row| row.len() < length);
    is_padded.then(|| padded(&ones.iter().collect::<Vec<_>>(), length, 0))
}
