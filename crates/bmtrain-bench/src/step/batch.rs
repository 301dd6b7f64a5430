//! Batches of random tokens.

use super::{Family, Shape};
use bmtrain_core::philox::{self, Key};
use model_center_models::{Batch, Labels};
use std::ops::Range;

/// Sizes of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Rows.
    pub rows: usize,
    /// Tokens of a row.
    pub length: usize,
    /// Tokens of its target; only for a model that has a decoder after an encoder.
    pub target: usize,
    /// Whether rows end anywhere in their second half and are padded.
    pub is_padded: bool,
    /// Tokens of the documents that rows are packed with.
    pub document: Option<usize>,
}

impl Extent {
    /// Tokens of all rows and their targets.
    pub fn tokens(self, family: Family) -> usize {
        self.rows * (self.length + if family == Family::T5 { self.target } else { 0 })
    }
}

/// Random ids and labels.
pub fn random_batch(shape: Shape, extent: Extent, step: u32) -> Batch {
    let Extent { rows, length, target, is_padded, document } = extent;
    let key = Key::new(0, "ids");
    let random = |index: usize, bound: usize| philox::block(key, [index as u32, step, 0, 0])[0] as usize % bound;
    let tokens = rows * length;
    let ends: Vec<usize> = (0..rows).map(|row| length - random(tokens + row, length / 2 + 1)).collect();
    let mask = || (0..tokens).map(|index| u8::from(index % length < ends[index / length])).collect();
    let input_ids = (0..tokens).map(|index| random(index, shape.vocab_size) as i64).collect();
    let words = Batch::next_tokens(length, input_ids, is_padded.then(mask));
    let starts = |document: usize| (0..tokens).map(|index| (index % length / document * document) as u32).collect();
    let words = Batch { document_starts: document.map(starts), ..words };
    // After the indices of ids and ends.
    let labels =
        |count: usize, bound: usize| (0..count).map(|index| random(2 * tokens + index, bound) as i64).collect();
    match shape.family {
        Family::Gpt2 | Family::Llama => words,
        Family::Bert => Batch { labels: Some(Labels::Classes(labels(rows, 2))), ..words },
        Family::T5 => Batch { labels: Some(Labels::Classes(labels(rows * target, shape.vocab_size))), ..words },
    }
}

/// Part `part` of `parts` equal parts of a batch: a rank's share, or a micro-batch.
pub fn rows_of(batch: Batch, part: usize, parts: usize) -> Batch {
    let rows = batch.rows / parts;
    let share = rows * part..rows * (part + 1);
    let tokens = share.start * batch.length..share.end * batch.length;
    // As many of each row: what is the decoder's has another length.
    fn cut<T: Clone>(values: &[T], share: &Range<usize>, rows: usize) -> Vec<T> {
        let each = values.len() / rows;
        values[share.start * each..share.end * each].to_vec()
    }
    let labels = match batch.labels {
        Some(Labels::Classes(classes)) => Some(Labels::Classes(cut(&classes, &share, batch.rows))),
        Some(Labels::NextTokens(ids)) => Some(Labels::NextTokens(cut(&ids, &share, batch.rows))),
        other => other,
    };
    Batch {
        rows,
        input_ids: batch.input_ids[tokens.clone()].to_vec(),
        attention_mask: batch.attention_mask.map(|mask| mask[tokens].to_vec()),
        decoder_input_ids: batch.decoder_input_ids.map(|ids| cut(&ids, &share, batch.rows)),
        decoder_attention_mask: batch.decoder_attention_mask.map(|mask| cut(&mask, &share, batch.rows)),
        context: batch.context.map(|context| cut(&context, &share, batch.rows)),
        span: batch.span.map(|span| cut(&span, &share, batch.rows)),
        document_starts: batch.document_starts.map(|starts| cut(&starts, &share, batch.rows)),
        labels,
        ..batch
    }
}
