//! Incremental decoding with a KV cache: from further tokens to the logits of the next one.
//!
//! Defines [`Decoding`], created by [`Decode::decoding`](crate::model::Decode::decoding), and [`Past`], the state
//! of the sequences without the cached values. Called by [`crate::generate`], which chooses the tokens.

use crate::model::architecture::position_table::{Count, PositionTable};
use bmtrain_core::{Ctx, Device, Segment, Tensor, Var, ops};
use model_center_base::batch::Batch;
use model_center_base::error::{Error, Result};

/// Options of incremental decoding.
#[derive(Debug, Clone, Copy, Default)]
pub struct DecodingOptions<'a> {
    /// Input of the encoder of an encoder-decoder, one sequence per text. Labels and decoder inputs are ignored.
    pub source: Option<&'a Batch>,
    /// Expected length of a sequence, with prompt and padding, for which the KV cache is allocated.
    pub expected: usize,
}

/// Sequences in incremental decoding.
pub trait Decoding {
    /// Appends tokens to each sequence and returns the logits of the next token, `[R, V]`. A batch has ids and, if some
    /// are padding, a mask; the last token of a sequence must not be padding. The first batch may also have a
    /// context, for a model that supports contexts.
    ///
    /// Numerics: as one forward pass over the whole sequence, up to the summation order of matrix products of another
    /// height. Left padding changes nothing, with one exception: where rotary angles depend on the length (dynamic
    /// scaling) and sequences exceed the trained length, the longest sequence determines them, as in transformers.
    ///
    /// # Errors
    /// Another number of sequences than before; ids out of range; sequences that become too long; a tape.
    fn extend(&mut self, tokens: &Batch, cx: &mut Ctx) -> Result<Tensor>;

    /// Lets sequence `i` continue sequence `from[i]`; the number of sequences may change.
    fn reorder(&mut self, from: &[usize], cx: &Ctx) -> Result<()>;

    /// The cached tokens.
    fn past(&self) -> &Past;
}

/// Masks and positions of the cached tokens.
#[derive(Debug, Clone, Default)]
pub struct Past {
    rows: usize,
    length: usize,
    /// `R x S`, 1 for tokens; `None` if nothing is padded.
    mask: Option<Vec<u8>>,
}

impl Past {
    /// Empty sequences.
    pub(in crate::model) fn of_rows(rows: usize) -> Self {
        Past { rows, length: 0, mask: None }
    }

    /// The sequences that begin after this number of virtual tokens.
    pub(in crate::model) fn after(prefix: usize) -> Self {
        Past { rows: 0, length: prefix, mask: None }
    }

    /// R.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// S, length of a sequence, padding and virtual tokens included.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Tokens of the longest sequence, without padding.
    pub fn longest(&self) -> usize {
        match &self.mask {
            None => self.length,
            Some(mask) => {
                let rows = mask.chunks(self.length.max(1));
                rows.map(|row| row.iter().filter(|&&token| token == 1).count()).max().unwrap_or(0)
            }
        }
    }

    /// The same sequences followed by the tokens of a batch.
    ///
    /// # Errors
    /// Another number of sequences; a mask of another length or with other values; a sequence that ends in padding.
    pub(in crate::model) fn with(&self, batch: &Batch) -> Result<Self> {
        let Batch { rows, length, attention_mask: mask, .. } = batch;
        let (rows, length) = (*rows, *length);
        if self.rows > 0 && rows != self.rows {
            let reason = format!("{rows} sequences after the {} so far", self.rows);
            return Err(Error::data("batch", reason, "give each sequence its next tokens"));
        }
        if let Some(mask) = mask {
            check_mask(batch)?;
            if let Some(row) = mask.chunks(length.max(1)).position(|row| row.last() == Some(&0)) {
                let reason = "it ends in padding, and the next token follows the last one";
                return Err(Error::data(format!("attention_mask, row {row}"), reason, "pad the row on the left"));
            }
        }
        let is_padded = |mask: &[u8]| mask.contains(&0);
        if self.mask.is_none() && !mask.as_deref().is_some_and(is_padded) {
            return Ok(Past { rows, length: self.length + length, mask: None });
        }
        let tokens = |length: usize| vec![1; rows * length];
        let before = self.mask.clone().unwrap_or_else(|| tokens(self.length));
        let now = mask.clone().unwrap_or_else(|| tokens(length));
        let mask = Some(join(&before, self.length, &now, length));
        Ok(Past { rows, length: self.length + length, mask })
    }

    /// As [`Decoding::reorder`].
    pub(in crate::model) fn reorder(&mut self, from: &[usize]) -> Result<()> {
        if let Some(row) = from.iter().find(|row| **row >= self.rows) {
            let reason = format!("row {row} of {}", self.rows);
            return Err(Error::data("rows to go on from", reason, "count them from 0"));
        }
        self.mask = self.mask.as_ref().map(|mask| gathered(mask, self.length, from));
        self.rows = from.len();
        Ok(())
    }

    /// u8 `[R, S]`, 1 for tokens; `None` if nothing is padded.
    pub(in crate::model) fn padding(&self, device: &Device) -> Result<Option<Tensor>> {
        let upload = |mask: &Vec<u8>| Tensor::from_slice_in(device, [self.rows, self.length], mask, Segment::Data);
        Ok(self.mask.as_ref().map(upload).transpose()?)
    }

    /// i64 `[R, S]`: the index of each token in its sequence; `None` if nothing is padded.
    pub(in crate::model) fn numbers(&self, device: &Device) -> Result<Option<Tensor>> {
        let Some(mask) = &self.mask else { return Ok(None) };
        let by_token = PositionTable { first: 0, count: Count::Tokens };
        let numbers = by_token.rows_of([self.rows, self.length], Some(mask), None);
        Ok(Some(Tensor::from_slice_in(device, [self.rows, self.length], &numbers, Segment::Data)?))
    }

    /// i64 `[R, L]`: rows of the position table for the last L tokens of each sequence. They count tokens even in
    /// models that count all positions: padding must not change a sequence.
    ///
    /// Source: transformers numbers tokens the same way during generation.
    pub(in crate::model) fn position_ids(
        &self,
        table: PositionTable,
        length: usize,
        device: &Device,
    ) -> Result<Tensor> {
        let by_token = PositionTable { count: Count::Tokens, ..table };
        let ids = match &self.mask {
            None => {
                let first = (table.first + self.length - length) as i64;
                (0..self.rows).flat_map(|_| first..first + length as i64).collect()
            }
            Some(mask) => {
                last_columns(&by_token.rows_of([self.rows, self.length], Some(mask), None), self.length, length)
            }
        };
        Ok(Tensor::from_slice_in(device, [self.rows, length], &ids, Segment::Data)?)
    }
}

/// Whether the mask of a batch is valid.
pub(in crate::model) fn check_mask(batch: &Batch) -> Result<()> {
    let Batch { rows, length, attention_mask: Some(mask), .. } = batch else { return Ok(()) };
    if mask.len() == rows * length && mask.iter().all(|&token| token <= 1) {
        return Ok(());
    }
    let reason = format!("it is not {rows} rows of {length} numbers that are 0 or 1");
    Err(Error::data("attention_mask", reason, "write 1 for tokens and 0 for padding"))
}

/// The last `columns` of each row of a matrix with rows of this length.
pub(in crate::model) fn last_columns(values: &[i64], length: usize, columns: usize) -> Vec<i64> {
    values.chunks(length.max(1)).flat_map(|row| row[length - columns..].iter().copied()).collect()
}

/// Two matrices with the same number of rows, concatenated along the columns.
pub(in crate::model) fn join<T: Copy>(left: &[T], left_length: usize, right: &[T], right_length: usize) -> Vec<T> {
    if left_length == 0 {
        return right.to_vec();
    }
    let rows = left.chunks(left_length).zip(right.chunks(right_length.max(1)));
    rows.flat_map(|(left, right)| left.iter().chain(right).copied()).collect()
}

/// Rows of a matrix by index.
pub(in crate::model) fn gathered<T: Copy>(values: &[T], length: usize, from: &[usize]) -> Vec<T> {
    from.iter().flat_map(|&row| values[row * length..(row + 1) * length].iter().copied()).collect()
}

/// Whether a batch has only fields that incremental decoding supports.
///
/// # Errors
/// No tokens; spans, or fields for training.
pub(in crate::model) fn check_tokens(batch: &Batch) -> Result<()> {
    let what = match () {
        () if batch.length == 0 || batch.rows == 0 => {
            return Err(Error::data("batch", "no token", "give at least one"));
        }
        () if batch.span.is_some() => "spans",
        () if batch.next_sentence.is_some() => "next_sentence_label",
        () if batch.decoder_input_ids.is_some() => "decoder_input_ids",
        () if batch.choices > 1 => "choices",
        () => return Ok(()),
    };
    Err(Error::data(what, "they are for whole rows, and these tokens are read piece by piece", "leave them out"))
}

/// The last position of each sequence of `hidden [R, L, D]`: `[R, 1, D]`.
pub(in crate::model) fn last_places(hidden: Var, cx: &Ctx) -> bmtrain_dist::Result<Var> {
    let [rows, length, width] = hidden.dims("last_places")?;
    if length == 1 {
        return Ok(hidden);
    }
    let last: Vec<i64> = (1..=rows).map(|row| (row * length) as i64 - 1).collect();
    let last = Tensor::from_slice_in(cx.device(), [rows], &last, Segment::Data)?;
    let places = hidden.reshape([rows * length, width])?; // [R L, D]
    Ok(ops::embedding(cx, &last, &places, None)?.reshape([rows, 1, width])?) // [R, 1, D]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn batch(length: usize, rows: usize, mask: Option<Vec<u8>>) -> Batch {
        Batch::next_tokens(length, vec![1; rows * length], mask)
    }

    fn ids(past: &Past, first: usize, length: usize) -> Vec<i64> {
        let device = Device::cpu(1).unwrap();
        let table = PositionTable { first, count: Count::Places };
        past.position_ids(table, length, &device).unwrap().to_vec().unwrap()
    }

    #[test]
    fn tokens_are_numbered_after_padding_and_after_cached_tokens() {
        let plain = Past::default().with(&batch(3, 2, None)).unwrap().with(&batch(1, 2, Some(vec![1, 1]))).unwrap();
        assert_eq!((plain.rows(), plain.length(), plain.longest(), &plain.mask), (2, 4, 4, &None));
        assert_eq!((ids(&plain, 0, 1), ids(&plain, 2, 2)), (vec![3, 3], vec![4, 5, 4, 5]));
        let padded = Past::default().with(&batch(3, 2, Some(vec![0, 0, 1, 1, 1, 1]))).unwrap();
        assert_eq!(ids(&padded, 2, 3), [1, 1, 2, 2, 3, 4]);
        let further = padded.with(&batch(2, 2, None)).unwrap();
        assert_eq!((ids(&further, 0, 2), further.longest()), (vec![1, 2, 3, 4], 5));
        // Padding within a sequence.
        let uneven = further.with(&batch(2, 2, Some(vec![1, 1, 0, 1]))).unwrap();
        assert_eq!((ids(&uneven, 0, 1), uneven.longest()), (vec![4, 5], 6));
    }

    #[test]
    fn rows_take_their_masks_with_them() {
        let mut past = Past::default().with(&batch(2, 3, Some(vec![0, 1, 1, 1, 1, 1]))).unwrap();
        past.reorder(&[2, 0, 0, 1]).unwrap();
        assert_eq!((past.rows(), past.mask.as_deref()), (4, Some(&[1, 1, 0, 1, 0, 1, 1, 1][..])));
        assert!(past.reorder(&[4]).unwrap_err().to_string().contains("row 4 of 4"));
        let error = past.with(&batch(1, 3, None)).unwrap_err().to_string();
        assert!(error.contains("3 sequences after the 4 so far"), "{error}");
    }

    #[test]
    fn a_row_ends_in_a_token() {
        let error = Past::default().with(&batch(2, 2, Some(vec![1, 1, 1, 0]))).unwrap_err().to_string();
        assert!(error.contains("row 1") && error.contains("left"), "{error}");
        for wrong in [vec![1, 1, 1], vec![1, 1, 2, 1]] {
            assert!(Past::default().with(&batch(2, 2, Some(wrong))).is_err());
        }
    }
}
