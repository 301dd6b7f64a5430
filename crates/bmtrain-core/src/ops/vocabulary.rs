//! Tables whose rows are sharded over tensor-parallel ranks: [`vocabulary_embedding`], rows by id, and
//! [`gather_logits`], logits over all rows. Their loss is
//! [`vocabulary_cross_entropy`](super::vocabulary_cross_entropy) or
//! [`linear_cross_entropy`](super::linear_cross_entropy) with a shard.

use super::embedding::check;
use super::gemm::matrix_dims;
use super::*;
use crate::comm::{Reduction, tensors};
use crate::kernel::{EmbeddingBackward, EmbeddingForward, ShardClasses};

/// `y[..] = table[ids[..]]`, where each rank has the rows of its [`VocabularyShard::classes`]: the other rows are zeros
/// on this rank, and the sum over the ranks is what one rank with all rows would have. The gradient of the result,
/// which all ranks have alike, goes to the rows that this rank has.
///
/// Shapes: ids i64 `[..]`, equal on all ranks, table `[C, D]`, padded after the rank's classes → `[.., D]`. With
/// [`TokenShard`] ids `[B, L]` → `[own, D]`, the rows of this rank's tokens, whose gradient differs between the ranks.
/// Rows whose id is the padding index give the table no gradient.
/// Numerics: each row is added to zeros, which leaves its value as it is.
///
/// The ids are read on the host, which waits for the compute lane; kernels get the ids of this rank alone. On one rank,
/// whose table is only padded, it is [`embedding`](super::embedding()) without a wait.
///
/// # Errors
/// An id outside of all rows; a table that is not a matrix or has too few rows; a failing rank.
pub fn vocabulary_embedding(
    cx: &Ctx,
    ids: &Tensor,
    table: &Var,
    shard: &VocabularyShard,
    padding_index: Option<i64>,
    tokens: Option<&TokenShard>,
) -> Result<Var> {
    const OP: &str = "vocabulary_embedding";
    let ([rows, columns], classes) = (matrix_dims(OP, table.value())?, shard.classes());
    check(OP, ids, classes.total, padding_index)?;
    if rows < classes.count {
        return Err(Error::shape(OP, "rows of the table", format!("at least {}", classes.count), rows));
    }
    if shard.is_alone() {
        return super::embedding::of_entries(OP, cx, ids, table, classes.count, padding_index); // [.., D]
    }
    let own = OwnIds::new(OP, ids, classes, padding_index)?;
    let shape = Shape::new(&[ids.shape().dims(), &[columns]].concat())?;
    let device = cx.device();
    let mut found = empty(cx, [own.rows.elements(), columns], table.dtype())?; // [own, D]
    device.launch(EmbeddingForward {
        entries: rows,
        columns,
        table: table.value().view()?,
        ids: own.rows.view()?,
        out: found.dest(false)?,
    })?;
    let mut y = empty(cx, shape, table.dtype())?; // [.., D]
    device.launch(EmbeddingBackward {
        entries: ids.elements(),
        columns,
        ids: own.positions.view()?,
        padding_index: None,
        dy: found.view()?,
        dtable: y.dest(false)?,
    })?;
    let y = match tokens {
        None => tensors::all_reduce(&**shard.ranks(), y, Reduction::Sum)?, // [.., D]
        Some(tokens) => {
            expect_shape(OP, "ids of all ranks", tokens.full_shape(columns), shape)?;
            tokens.scattered(&y)? // [own, D]
        }
    };
    let (table_shape, dtype, positions) = (table.shape(), table.dtype(), ids.elements());
    let tokens = tokens.cloned();
    Ok(cx.record(y, &[table], || Box::new(EmbeddingNode { own, table_shape, dtype, positions, tokens })))
}

/// The ids that are rows of this rank.
#[derive(Debug)]
struct OwnIds {
    /// i64 `[own]`: rows of this rank's table.
    rows: Tensor,
    /// i64 `[own]`: where they are among all ids.
    positions: Tensor,
    /// The row of the padding index, if this rank has it.
    padding: Option<i64>,
}

impl OwnIds {
    fn new(op: &'static str, ids: &Tensor, classes: ShardClasses, padding_index: Option<i64>) -> Result<Self> {
        let (device, all) = (ids.device(), ids.to_vec::<i64>()?);
        let bound = classes.total;
        if let Some(position) = all.iter().position(|id| usize::try_from(*id).map_or(true, |id| id >= bound)) {
            return Err(Error::Index { op, position, index: all[position], bound });
        }
        let row_of = |id: i64| {
            let row = usize::try_from(id).ok()?.checked_sub(classes.first)?;
            (row < classes.count).then_some(row as i64)
        };
        let own = all.iter().enumerate().filter_map(|(at, id)| Some((row_of(*id)?, at as i64)));
        let (rows, positions): (Vec<i64>, Vec<i64>) = own.unzip();
        let upload = |ids: &[i64]| Tensor::from_slice_in(device, [ids.len()], ids, Segment::Data);
        Ok(OwnIds { rows: upload(&rows)?, positions: upload(&positions)?, padding: padding_index.and_then(row_of) })
    }
}

#[derive(Debug)]
struct EmbeddingNode {
    own: OwnIds,
    table_shape: Shape,
    dtype: DType,
    /// Number of all ids.
    positions: usize,
    /// The tokens that this rank has of the result.
    tokens: Option<TokenShard>,
}

impl Backward for EmbeddingNode {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let EmbeddingNode { own, table_shape, dtype, positions, tokens } = *self;
        let dy = only("vocabulary_embedding", dy)?;
        let (entries, columns) = (table_shape.rows(), table_shape.last());
        let dy = match tokens {
            None => dy,
            Some(tokens) => tokens.gathered(&dy.reshape(tokens.own_shape(columns))?)?, // [B, L, D]
        };
        cx.write(0, table_shape, dtype, |device, dtable| {
            let shape = [own.rows.elements(), columns];
            let mut of_own = Tensor::empty_in(device, shape, dy.dtype(), Segment::Activations)?; // [own, D]
            device.launch(EmbeddingForward {
                entries: positions,
                columns,
                table: dy.view()?,
                ids: own.positions.view()?,
                out: of_own.dest(false)?,
            })?;
            let (ids, dy) = (own.rows.view()?, of_own.view()?);
            device.launch(EmbeddingBackward { entries, columns, ids, padding_index: own.padding, dy, dtable })
        })
    }

    fn saved_bytes(&self) -> usize {
        bytes_of([&self.own.rows, &self.own.positions])
    }
}

/// Logits over all classes, on every rank, where each rank has the rows of its [`VocabularyShard::classes`]. For
/// evaluation and generation: a loss needs no logits of other ranks.
///
/// Shapes: logits `[.., C]` of this rank, its padding included → `[.., V]`.
pub fn gather_logits(cx: &Ctx, logits: &Var, shard: &VocabularyShard) -> Result<Var> {
    expect_room("gather_logits", logits, shard)?;
    // Every rank but the last ones is full, so that padding comes after all classes.
    let without_padding = |all: &Var| super::slice_last(cx, all, 0..shard.classes().total); // [.., V]
    if shard.is_alone() {
        return without_padding(logits);
    }
    without_padding(&super::gather_last(cx, shard.ranks(), logits)?) // of [.., T C]
}

fn expect_room(op: &'static str, logits: &Var, shard: &VocabularyShard) -> Result<()> {
    match logits.shape().rank() > 0 && logits.shape().last() == shard.each() {
        true => Ok(()),
        false => Err(Error::shape(op, "logits", format!("{} columns", shard.each()), logits.shape())),
    }
}
