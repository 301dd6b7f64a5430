//! Table rows by id: [`embedding`], and [`add_embedding`] for the second and third table of a sum.

use super::gemm::matrix_dims;
use super::*;
use crate::kernel::{EmbeddingBackward, EmbeddingForward, QuantisedRows};

/// `y[..] = table[ids[..]]`.
///
/// Shapes: ids i64 `[..]`, table `[V, D]` → `[.., D]`. Rows whose id is the padding index give the table no gradient. A
/// table in quantised blocks is `[V, bytes of a row]`; its rows are dequantised to f32.
///
/// # Errors
/// An id outside the table, a table that is not a matrix.
pub fn embedding(cx: &Ctx, ids: &Tensor, table: &Var, padding_index: Option<i64>) -> Result<Var> {
    const OP: &str = "embedding";
    of_entries(OP, cx, ids, table, matrix_dims(OP, table.value())?[0], padding_index)
}

/// As [`embedding`], where the rows of the table after the first `entries` are padding.
pub(super) fn of_entries(
    op: &'static str,
    cx: &Ctx,
    ids: &Tensor,
    table: &Var,
    entries: usize,
    padding_index: Option<i64>,
) -> Result<Var> {
    let [_, columns] = matrix_dims(op, table.value())?;
    check(op, ids, entries, padding_index)?;
    let shape = Shape::new(&[ids.shape().dims(), &[columns]].concat())?;
    let dtype = if let DType::Blocks(_) = table.dtype() { DType::F32 } else { table.dtype() };
    let mut y = empty(cx, shape, dtype)?; // [.., D]
    look_up(cx, ids, table, [entries, columns], y.dest(false)?)?;
    Ok(cx.record(y, &[table], || Box::new(EmbeddingNode { rows: Rows::new(ids, table, padding_index) })))
}

/// `x + table[ids]`, in place when x owns its memory alone.
///
/// Shapes: x `[.., D]`, ids i64 `[..]`, table `[V, D]` → `[.., D]`.
pub fn add_embedding(cx: &Ctx, x: Var, ids: &Tensor, table: &Var, padding_index: Option<i64>) -> Result<Var> {
    let [entries, columns] = matrix_dims("add_embedding", table.value())?;
    check("add_embedding", ids, entries, padding_index)?;
    expect_elements("add_embedding", "x", ids.elements() * columns, x.shape())?;
    if x.shape().last() != columns {
        return Err(Error::shape("add_embedding", "innermost axis of x", columns, x.shape()));
    }
    let (value, source) = x.into_parts();
    let mut y = value.owned()?; // [.., D]
    look_up(cx, ids, table, [entries, columns], y.dest(true)?)?;
    let x = Var::from_parts(y.clone(), source);
    Ok(cx.record(y, &[&x, table], || Box::new(AddEmbeddingNode { rows: Rows::new(ids, table, padding_index) })))
}

/// `out (+)= table[ids]`.
fn look_up(cx: &Ctx, ids: &Tensor, table: &Var, [entries, columns]: [usize; 2], out: Dest<'_>) -> Result<()> {
    let (ids, row) = (ids.view()?, table.shape().last());
    let table = table.value().view()?.part(0, entries * row)?;
    match table.dtype() {
        DType::Blocks(_) => cx.device().launch(QuantisedRows { entries, columns, table, ids, out }),
        _ => cx.device().launch(EmbeddingForward { entries, columns, table, ids, out }),
    }
}

pub(super) fn check(op: &'static str, ids: &Tensor, entries: usize, padding_index: Option<i64>) -> Result<()> {
    if ids.dtype() != DType::I64 {
        return Err(Error::DType { op, what: "ids".into(), expected: "i64".into(), got: ids.dtype() });
    }
    match padding_index {
        Some(index) if usize::try_from(index).map_or(true, |index| index >= entries) => {
            Err(Error::argument(op, format!("padding index {index} is outside the table of {entries} rows")))
        }
        _ => Ok(()),
    }
}

#[derive(Debug)]
struct Rows {
    ids: Tensor,
    table_shape: Shape,
    table_dtype: DType,
    padding_index: Option<i64>,
}

impl Rows {
    fn new(ids: &Tensor, table: &Var, padding_index: Option<i64>) -> Self {
        Rows { ids: ids.clone(), table_shape: table.shape(), table_dtype: table.dtype(), padding_index }
    }

    fn gradient(&self, cx: &mut BackwardCtx<'_>, index: usize, dy: &Tensor) -> Result<()> {
        let (entries, columns) = (self.table_shape.rows(), self.table_shape.last());
        cx.write(index, self.table_shape, self.table_dtype, |device, dtable| {
            device.launch(EmbeddingBackward {
                entries,
                columns,
                ids: self.ids.view()?,
                padding_index: self.padding_index,
                dy: dy.view()?,
                dtable,
            })
        })
    }
}

#[derive(Debug)]
struct EmbeddingNode {
    rows: Rows,
}

impl Backward for EmbeddingNode {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        self.rows.gradient(cx, 0, &only("embedding", dy)?)
    }

    fn saved_bytes(&self) -> usize {
        self.rows.ids.bytes()
    }
}

#[derive(Debug)]
struct AddEmbeddingNode {
    rows: Rows,
}

impl Backward for AddEmbeddingNode {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let dy = only("add_embedding", dy)?;
        self.rows.gradient(cx, 1, &dy)?;
        cx.give(0, dy)
    }

    fn saved_bytes(&self) -> usize {
        self.rows.ids.bytes()
    }
}
