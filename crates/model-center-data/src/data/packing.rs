//! Batches without padding: the sequences of a batch one after the other in one sequence, as documents that attend to
//! themselves alone.
//!
//! Called by [`Loader`](super::Loader) after a batch is collated, so that a packed batch has the samples of the padded
//! one, in the same order and with the same weights.

use model_center_base::batch::{Batch, IGNORED, Labels};

/// Joins the sequences of a batch for next-token prediction. Their tokens are what the attention mask keeps; a length
/// that is not a multiple of `multiple` is padded with `pad_id`, as a document of its own.
pub(super) fn packed(batch: Batch, pad_id: u32, multiple: usize) -> Batch {
    let is_token = |at: usize| batch.attention_mask.as_ref().is_none_or(|mask| mask.get(at) == Some(&1));
    let kept: Vec<usize> = (0..batch.input_ids.len()).filter(|at| is_token(*at)).collect();
    let length = kept.len().checked_next_multiple_of(multiple).unwrap_or(kept.len());
    let joined = |values: &[i64], padding: i64| {
        let tokens = kept.iter().filter_map(|at| values.get(*at)).copied();
        tokens.chain(std::iter::repeat(padding)).take(length).collect::<Vec<_>>()
    };
    let (mut starts, mut row) = (Vec::with_capacity(length), None);
    for at in &kept {
        let own = at / batch.length.max(1);
        let start = match (row, starts.last()) {
            (Some(before), Some(start)) if before == own => *start,
            _ => starts.len() as u32,
        };
        starts.push(start);
        row = Some(own);
    }
    starts.resize(length, kept.len() as u32);
    let has_padding = length > kept.len();
    let mask = |length: usize| (0..length).map(|at| u8::from(at < kept.len())).collect();
    Batch {
        rows: 1,
        length,
        input_ids: joined(&batch.input_ids, i64::from(pad_id)),
        attention_mask: has_padding.then(|| mask(length)),
        token_type_ids: batch.token_type_ids.as_ref().map(|types| joined(types, 0)),
        labels: batch.labels.as_ref().map(|labels| match labels {
            Labels::NextTokens(labels) => Labels::NextTokens(joined(labels, IGNORED)),
            other => other.clone(),
        }),
        document_starts: Some(starts),
        choices: 1,
        ..batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_joined_without_their_padding() {
        let mask = Some(vec![1, 1, 0, 1, 1, 1, 1, 0, 0]);
        let padded = Batch {
            token_type_ids: Some(vec![0, 1, 0, 0, 0, 1, 0, 0, 0]),
            ..Batch::next_tokens(3, vec![11, 12, 0, 21, 22, 23, 31, 0, 0], mask)
        };
        let joined = packed(padded.clone(), 9, 1);
        assert_eq!((joined.rows, joined.length, joined.attention_mask), (1, 6, None));
        assert_eq!(joined.input_ids, [11, 12, 21, 22, 23, 31]);
        assert_eq!(joined.document_starts, Some(vec![0, 0, 2, 2, 2, 5]));
        assert_eq!(joined.token_type_ids, Some(vec![0, 1, 0, 0, 1, 0]));
        assert_eq!(joined.labels, Some(Labels::NextTokens(vec![11, 12, 21, 22, 23, 31])));
        assert_eq!(padded.tokens(), packed(padded.clone(), 9, 1).tokens());
        let rounded = packed(padded, 9, 4);
        assert_eq!((rounded.length, rounded.attention_mask), (8, Some(vec![1, 1, 1, 1, 1, 1, 0, 0])));
        assert_eq!(rounded.input_ids, [11, 12, 21, 22, 23, 31, 9, 9]);
        assert_eq!(rounded.document_starts, Some(vec![0, 0, 2, 2, 2, 5, 6, 6]));
        assert_eq!(rounded.labels, Some(Labels::NextTokens(vec![11, 12, 21, 22, 23, 31, IGNORED, IGNORED])));
    }
}
