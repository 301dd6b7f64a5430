//! Predictions of token heads for rows of text, in words: entities, and answers to questions.

use std::ops::Range;

use super::{ForwardInputs, NamedTensor};
use crate::Result;
use model_center_data::metrics::{SpanSearch, argmax, entities};
use model_center_formats::tokenizer::{Tokenizer, begins_after_space, continues_word};

/// The most tokens of an answer.
const LONGEST_ANSWER: usize = 30;

/// A line for each row of text: the entities that a token classifier with these names of classes predicts, or the
/// answer to a question. Nothing for rows of ids and for other heads.
///
/// # Errors
/// A tokenizer that fails to decode its ids.
pub fn describe_texts(inputs: &ForwardInputs, outputs: &[NamedTensor], names: &[String]) -> Result<Vec<String>> {
    let Some(tokenizer) = &inputs.tokenizer else { return Ok(Vec::new()) };
    let find = |name: &str| outputs.iter().find(|output| output.entry.name == name);
    let (batch, mut lines) = (&inputs.batch, Vec::new());
    let row = |row: usize| &batch.input_ids[row * batch.length..(row + 1) * batch.length];
    if let (Some(starts), Some(ends)) = (find("start_logits"), find("end_logits")) {
        let rows = starts.values.chunks(batch.length).zip(ends.values.chunks(batch.length));
        for (number, (starts, ends)) in rows.enumerate() {
            let ids = row(number);
            let answer = SpanSearch { longest: LONGEST_ANSWER }.best(starts, ends, passage(ids, &**tokenizer));
            let text = answer.map(|span| decode(&ids[span.start..=span.end], &**tokenizer)).transpose()?;
            lines.push(format!("row {number}: {:?}", text.unwrap_or_default()));
        }
    }
    let Some(logits) = find("logits")
        .filter(|logits| logits.entry.shape == [batch.rows, batch.length, names.len()] && !names.is_empty())
    else {
        return Ok(lines);
    };
    for (number, logits) in logits.values.chunks(batch.length * names.len()).enumerate() {
        let (ids, words) = (row(number), words(row(number), &**tokenizer));
        // The class of a word is that of its first token.
        let tag = |word: &Range<usize>| {
            let class = argmax(&logits[word.start * names.len()..(word.start + 1) * names.len()]);
            class.and_then(|class| names.get(class)).map_or("O", String::as_str)
        };
        let found = entities(words.iter().map(tag)).into_iter().map(|entity| {
            let (first, last) = (words[entity.tags.start].start, words[entity.tags.end - 1].end);
            Ok(format!("{} {:?}", entity.kind, decode(&ids[first..last], &**tokenizer)?))
        });
        let found = found.collect::<Result<Vec<_>>>()?;
        lines.push(format!(
            "row {number}: {}",
            if found.is_empty() { "no entity".to_owned() } else { found.join(", ") }
        ));
    }
    Ok(lines)
}

fn decode(ids: &[i64], tokenizer: &dyn Tokenizer) -> Result<String> {
    let ids: Vec<u32> = ids.iter().filter_map(|id| u32::try_from(*id).ok()).collect();
    Ok(tokenizer.decode(&ids, true)?.trim().to_owned())
}

fn is_special(id: i64, tokenizer: &dyn Tokenizer) -> bool {
    let special = tokenizer.special_ids();
    [special.pad, special.cls, special.sep, special.bos, special.eos]
        .into_iter()
        .flatten()
        .any(|own| i64::from(own) == id)
}

/// Where the second text of a pair is: between its special tokens; the first text where there is no second.
fn passage(ids: &[i64], tokenizer: &dyn Tokenizer) -> Range<usize> {
    let is_text = |at: &usize| !is_special(ids[*at], tokenizer);
    let end = (0..ids.len()).rfind(is_text).map_or(0, |last| last + 1);
    let start = (0..end).rfind(|at| !is_text(at)).map_or(0, |before| before + 1);
    start..end
}

/// The tokens of each word, special tokens left out.
fn words(ids: &[i64], tokenizer: &dyn Tokenizer) -> Vec<Range<usize>> {
    let token = |id: &i64| u32::try_from(*id).ok().and_then(|id| tokenizer.token(id)).unwrap_or_default();
    let marks_spaces = ids.iter().any(|id| begins_after_space(&token(id)));
    let mut words: Vec<Range<usize>> = Vec::new();
    for (at, id) in ids.iter().enumerate().filter(|(_, id)| !is_special(**id, tokenizer)) {
        let token = token(id);
        let continues = continues_word(&token) || (marks_spaces && !begins_after_space(&token));
        match words.last_mut().filter(|word| continues && word.end == at) {
            Some(word) => word.end = at + 1,
            None => words.push(at..at + 1),
        }
    }
    words
}
