//! Batches of random words.

use super::Shape;
use bmtrain_core::comm::Communicator;
use bmtrain_core::philox::{self, Key};
use model_center::model::{TextBatch, TextLabels};
use std::ops::Range;

/// Random ids and labels of so many rows. With `is_padded` rows end anywhere in the second half and are padded.
pub fn random_batch(shape: Shape, rows: usize, length: usize, is_padded: bool, step: u32) -> TextBatch {
    let key = Key::new(0, "ids");
    let draw = |index: usize, bound: usize| philox::block(key, [index as u32, step, 0, 0])[0] as usize % bound;
    let tokens = rows * length;
    let ends: Vec<usize> = (0..rows).map(|row| length - draw(tokens + row, length / 2 + 1)).collect();
    let mask = || (0..tokens).map(|index| u8::from(index % length < ends[index / length])).collect();
    let input_ids = (0..tokens).map(|index| draw(index, shape.vocab_size) as i64).collect();
    let words = TextBatch::next_words(length, input_ids, is_padded.then(mask));
    if shape.predicts_words {
        return words;
    }
    let classes = (0..rows).map(|row| draw(2 * tokens + row, 2) as i64).collect();
    TextBatch { labels: Some(TextLabels::Classes(classes)), ..words }
}

/// A rank's share of a batch.
pub fn own_rows(batch: TextBatch, ranks: &dyn Communicator) -> TextBatch {
    let rows = batch.rows / ranks.size();
    let share = rows * ranks.rank()..rows * (ranks.rank() + 1);
    let tokens = share.start * batch.length..share.end * batch.length;
    // As many of each row: what is the decoder's has another length.
    fn part<T: Clone>(values: &[T], share: &Range<usize>, rows: usize) -> Vec<T> {
        let each = values.len() / rows;
        values[share.start * each..share.end * each].to_vec()
    }
    let labels = match batch.labels {
        Some(TextLabels::Classes(classes)) => Some(TextLabels::Classes(part(&classes, &share, batch.rows))),
        other => other,
    };
    TextBatch {
        rows,
        input_ids: batch.input_ids[tokens.clone()].to_vec(),
        attention_mask: batch.attention_mask.map(|mask| mask[tokens].to_vec()),
        decoder_input_ids: batch.decoder_input_ids.map(|ids| part(&ids, &share, batch.rows)),
        decoder_attention_mask: batch.decoder_attention_mask.map(|mask| part(&mask, &share, batch.rows)),
        context: batch.context.map(|context| part(&context, &share, batch.rows)),
        span: batch.span.map(|span| part(&span, &share, batch.rows)),
        labels,
        ..batch
    }
}
