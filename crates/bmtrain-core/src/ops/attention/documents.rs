//! Documents that are packed into sequences.

use crate::ops::*;

/// Extents of documents in sequences that are packed with them. Tokens of one attend to each other alone.
#[derive(Debug, Clone)]
pub struct Documents {
    bounds: Tensor,
}

impl Documents {
    /// From the index in its sequence of the first token of each token's document: `rows * length` of them.
    ///
    /// # Errors
    /// Another number of them; starts that do not divide every sequence into documents; a sequence of more than
    /// 2^31 - 1 tokens; a failing device.
    pub fn new(device: &Device, [rows, length]: [usize; 2], starts: &[u32]) -> Result<Self> {
        const OP: &str = "documents";
        if rows.checked_mul(length) != Some(starts.len()) {
            let expected = format!("{rows} rows of {length}");
            return Err(Error::shape(OP, "starts", expected, starts.len()));
        }
        if i32::try_from(length).is_err() {
            return Err(Error::shape(OP, "length", format!("at most {}", i32::MAX), length));
        }
        let mut bounds = Vec::with_capacity(2 * starts.len());
        for (row, starts) in starts.chunks_exact(length.max(1)).enumerate() {
            let mut before = 0;
            for (at, &start) in starts.iter().enumerate() {
                if start as usize != at && (at == 0 || start != before) {
                    let own = if at == 0 { "0".into() } else { format!("{before} or {at}") };
                    let reason = format!("token {at} of sequence {row} belongs to a document that starts at {start}");
                    return Err(Error::argument(OP, format!("{reason}: its document starts at {own}")));
                }
                before = start;
            }
            bounds.extend(starts.iter().map(|&start| start as i32));
            let first = bounds.len();
            bounds.resize(first + length, 0);
            let mut end = length;
            for at in (0..length).rev() {
                bounds[first + at] = end as i32;
                if starts[at] as usize == at {
                    end = at;
                }
            }
        }
        let bounds = Tensor::from_slice_in(device, [rows, 2, length], &bounds, Segment::Data)?;
        Ok(Documents { bounds })
    }

    /// i32 `[B, 2, L]`: of each token the first token of its document, then the end of its document.
    pub fn bounds(&self) -> &Tensor {
        &self.bounds
    }
}
