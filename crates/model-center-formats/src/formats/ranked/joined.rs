//! Pieces of tensor-parallel ranks as one tensor.
//!
//! Defines [`JoinedTensor`] and its values.

use super::super::safetensors::{StoredDtype, TensorEntry};
use super::pieces::Pieces;
use crate::{Error, Result};
use model_center_base::file::printable;

/// Rule that makes a tensor from the ranks' pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Join {
    /// Every rank has the whole.
    Replicated,
    /// Rows after each other.
    Rows,
    /// Columns beside each other.
    Columns,
    /// Rows of queries, keys and values in the order of a version: this third of them, or all three.
    Third(usize),
    Thirds,
}

/// A tensor of the model, and what it is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinedTensor {
    /// The tensor that is written.
    pub entry: TensorEntry,
    /// Its name on every rank.
    pub theirs: String,
    /// Stored dtype.
    pub stored: StoredDtype,
    /// The shape of a rank's piece.
    pub piece: Vec<usize>,
    pub(crate) join: Join,
    pub(crate) is_transposed: bool,
}

impl JoinedTensor {
    /// Operation on the pieces, for the report.
    pub fn action(&self, ranks: usize) -> &'static str {
        match (self.join, self.is_transposed) {
            (Join::Third(_), _) => "split",
            (Join::Thirds, _) => "reordered",
            (Join::Rows | Join::Columns, _) if ranks > 1 => "merged",
            (_, true) => "transposed",
            _ => "copied",
        }
    }
}

/// The order of rows of queries, keys and values on a rank, by `checkpoint_version`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    /// 0: [3, heads, size]; 1: [heads, size, 3]; 2: [heads, 3, size].
    pub(crate) version: u8,
    /// Attention heads of all ranks.
    pub(crate) heads: usize,
}

impl Order {
    /// The row on a rank of `rows` rows that has row `at` of a third.
    fn row(self, rows: usize, heads: usize, third: usize, at: usize) -> usize {
        let size = rows / 3 / heads;
        let (head, within) = (at / size, at % size);
        match self.version {
            0 => (third * heads + head) * size + within,
            1 => (head * size + within) * 3 + third,
            _ => (head * 3 + third) * size + within,
        }
    }
}

/// Rows and columns of a matrix; a vector is a column.
fn matrix(shape: &[usize]) -> (usize, usize) {
    match shape {
        [] => (1, 1),
        [rows] => (*rows, 1),
        [rows, rest @ ..] => (*rows, rest.iter().product()),
    }
}

/// The values of a tensor, row-major in the shape of its entry.
pub(crate) fn values(pieces: &Pieces, tensor: &JoinedTensor, order: Order) -> Result<Vec<f32>> {
    let parts = pieces.ranks.iter().map(|rank| rank.read(&tensor.theirs)).collect::<Result<Vec<_>>>()?;
    let (rows, columns) = matrix(&tensor.piece);
    let joined = match tensor.join {
        Join::Replicated => replicated(tensor, parts)?,
        Join::Rows => parts.concat(),
        Join::Columns => {
            let mut out = Vec::with_capacity(parts.len() * rows * columns);
            for row in 0..rows {
                parts.iter().for_each(|part| out.extend_from_slice(&part[row * columns..(row + 1) * columns]));
            }
            out
        }
        Join::Third(third) => thirds(&parts, (rows, columns), order, &[third]),
        Join::Thirds => thirds(&parts, (rows, columns), order, &[0, 1, 2]),
    };
    let wanted = tensor.entry.elements().unwrap_or(0);
    let joined = match tensor.is_transposed {
        true => {
            let [out_rows, out_columns] = <[usize; 2]>::try_from(tensor.entry.shape.as_slice()).unwrap_or([0, 0]);
            let mut out = Vec::with_capacity(joined.len());
            for row in 0..out_rows {
                out.extend((0..out_columns).map(|column| joined[column * out_rows + row]));
            }
            out
        }
        false => joined,
    };
    // Rows of padding come last.
    Ok(if joined.len() > wanted { joined[..wanted].to_vec() } else { joined })
}

fn replicated(tensor: &JoinedTensor, parts: Vec<Vec<f32>>) -> Result<Vec<f32>> {
    let is_same = |part: &Vec<f32>| part.iter().map(|v| v.to_bits()).eq(parts[0].iter().map(|v| v.to_bits()));
    if let Some(rank) = parts.iter().position(|part| !is_same(part)) {
        let place = format!("tensor {}", printable(&tensor.theirs, 120));
        let reason = format!("tensor-parallel ranks 0 and {rank} have different values, and it is not split");
        return Err(Error::model(place, reason, "the files may belong to different checkpoints: copy them again"));
    }
    Ok(parts.into_iter().next().unwrap_or_default())
}

fn thirds(parts: &[Vec<f32>], (rows, columns): (usize, usize), order: Order, wanted: &[usize]) -> Vec<f32> {
    let heads = (order.heads / parts.len()).max(1);
    let mut out = Vec::with_capacity(parts.len() * rows / 3 * wanted.len() * columns);
    for third in wanted {
        for part in parts {
            for at in 0..rows / 3 {
                let row = order.row(rows, heads, *third, at);
                out.extend_from_slice(&part[row * columns..(row + 1) * columns]);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_has_its_order() {
        // 2 heads of 2 on a rank: rows are named by third, head and place.
        let names = |version| -> Vec<usize> {
            let order = Order { version, heads: 2 };
            (0..3).flat_map(|third| (0..4).map(move |at| order.row(12, 2, third, at))).collect()
        };
        assert_eq!(names(0), (0..12).collect::<Vec<_>>());
        assert_eq!(names(1), [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]);
        assert_eq!(names(2), [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]);
    }
}
