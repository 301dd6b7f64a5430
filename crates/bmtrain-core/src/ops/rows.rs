//! Ops that move elements without changing them: [`permute`], [`slice_last`], [`select_row`], [`concat_last`].

use super::*;
use crate::kernel::{Fill, Permute, RowCopy};
use crate::shape::MAX_RANK;
use std::ops::Range;

/// Another order of the axes: axis `i` of the result is axis `axes[i]` of x.
///
/// # Errors
/// Axes that are not each of `0..rank` once.
pub fn permute(cx: &Ctx, x: &Var, axes: &[usize]) -> Result<Var> {
    let (order, shape) = Order::new(x.shape(), axes)?;
    let mut y = empty(cx, shape, x.dtype())?;
    order.launch(x.value(), y.dest(false)?)?;
    let dtype = x.dtype();
    Ok(cx.record(y, &[x], || Box::new(PermuteBackward { order, dtype })))
}

#[derive(Debug, Clone, Copy)]
struct Order {
    shape: Shape,
    axes: [usize; MAX_RANK],
}

impl Order {
    fn new(shape: Shape, axes: &[usize]) -> Result<(Order, Shape)> {
        let rank = shape.rank();
        if axes.len() != rank || !(0..rank).all(|axis| axes.contains(&axis)) {
            return Err(Error::shape("permute", "axes", format!("each of 0..{rank} once"), format!("{axes:?}")));
        }
        let mut order = Order { shape, axes: [0; MAX_RANK] };
        order.axes[..rank].copy_from_slice(axes);
        let dims: Vec<usize> = axes.iter().map(|&axis| shape.dims()[axis]).collect();
        Ok((order, Shape::new(&dims)?))
    }

    fn inverse(&self) -> Result<Order> {
        let rank = self.shape.rank();
        let mut axes = [0; MAX_RANK];
        self.axes[..rank].iter().enumerate().for_each(|(to, &from)| axes[from] = to);
        let dims: Vec<usize> = self.axes[..rank].iter().map(|&axis| self.shape.dims()[axis]).collect();
        Ok(Order { shape: Shape::new(&dims)?, axes })
    }

    fn launch(&self, x: &Tensor, out: Dest<'_>) -> Result<()> {
        let rank = self.shape.rank();
        let mut dims = [1; MAX_RANK];
        dims[..rank].copy_from_slice(self.shape.dims());
        x.device().launch(Permute { dims, axes: self.axes, rank, x: x.view()?, out })
    }
}

#[derive(Debug)]
struct PermuteBackward {
    order: Order,
    dtype: DType,
}

impl Backward for PermuteBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let PermuteBackward { order, dtype } = *self;
        let dy = only("permute", dy)?;
        let inverse = order.inverse()?;
        cx.write(0, order.shape, dtype, |_, out| inverse.launch(&in_dtype(dy, out.view.dtype())?, out))
    }
}

/// Columns of every row: `y = x[.., range]`.
pub fn slice_last(cx: &Ctx, x: &Var, range: Range<usize>) -> Result<Var> {
    let wide = x.shape().last();
    if x.shape().rank() == 0 || range.start > range.end || range.end > wide {
        let expected = format!("inside 0..{wide} of {}", x.shape());
        return Err(Error::shape("slice_last", "range", expected, format!("{range:?}")));
    }
    let place = RowSlice { rows: x.shape().rows(), columns: range.len(), start: range.start, stride: wide };
    take(cx, x, place, x.shape().with_last(range.len())?)
}

/// One row of every sequence, such as the row of the first token.
///
/// Shapes: x `[B, L, D]` → `[B, D]`.
pub fn select_row(cx: &Ctx, x: &Var, index: usize) -> Result<Var> {
    let [batch, length, columns] = x.dims("select_row")?;
    if index >= length {
        return Err(Error::shape("select_row", "index", format!("inside 0..{length} of {}", x.shape()), index));
    }
    let place = RowSlice { rows: batch, columns, start: index * columns, stride: length * columns };
    take(cx, x, place, Shape::from([batch, columns]))
}

/// Rows of `columns` elements inside a larger tensor: the first at `start`, `stride` apart.
#[derive(Debug, Clone, Copy)]
struct RowSlice {
    rows: usize,
    columns: usize,
    start: usize,
    stride: usize,
}

impl RowSlice {
    /// Start and length of the range from the first element to the last.
    fn span(&self) -> (usize, usize) {
        match self.rows {
            0 => (0, 0),
            rows => (self.start, (rows - 1) * self.stride + self.columns),
        }
    }

    /// From this place of `x` to rows without gaps.
    fn gather(&self, x: &Tensor, out: Dest<'_>) -> Result<()> {
        let (start, len) = self.span();
        let (rows, columns) = (self.rows, self.columns);
        let x_view = x.view()?.part(start, len)?;
        x.device().launch(RowCopy { rows, columns, x_ld: self.stride, x: x_view, out_ld: columns, out })
    }

    /// From rows without gaps to this place of `out`.
    fn scatter(&self, x: &Tensor, out: Dest<'_>) -> Result<()> {
        let (start, len) = self.span();
        let (rows, columns) = (self.rows, self.columns);
        let out = Dest { view: out.view.part(start, len)?, add: out.add };
        x.device().launch(RowCopy { rows, columns, x_ld: columns, x: x.view()?, out_ld: self.stride, out })
    }
}

/// Columns of every row of a tensor, without a gradient; the tensor itself where these are all.
pub(super) fn columns_of(x: &Tensor, range: Range<usize>) -> Result<Tensor> {
    let (wide, columns) = (x.shape().last(), range.len());
    if columns == wide {
        return Ok(x.clone());
    }
    let mut y = Tensor::empty_in(x.device(), x.shape().with_last(columns)?, x.dtype(), Segment::Activations)?;
    RowSlice { rows: x.shape().rows(), columns, start: range.start, stride: wide }.gather(x, y.dest(false)?)?;
    Ok(y)
}

/// Parts of equal size, one after the other along the leading axis, side by side instead.
///
/// Shapes: x `[parts rows, C]` → `shape`, which is `[rows, parts C]` or has the same elements.
pub(super) fn side_by_side(x: &Tensor, parts: usize, shape: Shape) -> Result<Tensor> {
    let (rows, columns) = (x.shape().rows() / parts.max(1), x.shape().last());
    let mut y = Tensor::empty_in(x.device(), shape, x.dtype(), Segment::Activations)?;
    for part in 0..parts {
        let place = RowSlice { rows, columns, start: part * columns, stride: parts * columns };
        place.scatter(&x.slice(part * rows..(part + 1) * rows)?, y.dest(false)?)?;
    }
    Ok(y)
}

fn take(cx: &Ctx, x: &Var, place: RowSlice, shape: Shape) -> Result<Var> {
    let mut y = empty(cx, shape, x.dtype())?;
    place.gather(x.value(), y.dest(false)?)?;
    let (x_shape, dtype) = (x.shape(), x.dtype());
    Ok(cx.record(y, &[x], || Box::new(TakeBackward { place, x_shape, dtype })))
}

#[derive(Debug)]
struct TakeBackward {
    place: RowSlice,
    x_shape: Shape,
    dtype: DType,
}

impl Backward for TakeBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let TakeBackward { place, x_shape, dtype } = *self;
        let dy = only("slice", dy)?;
        cx.write(0, x_shape, dtype, |device, mut dx| {
            if !dx.add {
                device.launch(Fill { value: 0.0, out: dx.view.reborrow() })?;
            }
            place.scatter(&in_dtype(dy, dx.view.dtype())?, dx)
        })
    }
}

/// Columns of several tensors side by side.
///
/// Shapes: `[.., D_i]`, alike but for the innermost axis → `[.., sum of D_i]`.
///
/// # Errors
/// Nothing to join, leading axes or dtypes that differ.
pub fn concat_last(cx: &Ctx, parts: &[&Var]) -> Result<Var> {
    let Some(first) = parts.first() else {
        return Err(Error::argument("concat_last", "nothing to join"));
    };
    let outer = |var: &Var| var.shape().with_last(1);
    for part in parts {
        super::expect_shape("concat_last", "leading axes of a part", outer(first)?, outer(part)?)?;
        if part.dtype() != first.dtype() {
            let expected = first.dtype().name().into();
            return Err(Error::DType { op: "concat_last", what: "part".into(), expected, got: part.dtype() });
        }
    }
    let stride = parts.iter().map(|part| part.shape().last()).sum();
    let mut y = empty(cx, first.shape().with_last(stride)?, first.dtype())?; // [.., sum of D_i]
    let mut start = 0;
    let mut places = Vec::with_capacity(parts.len());
    for part in parts {
        let place = RowSlice { rows: part.shape().rows(), columns: part.shape().last(), start, stride };
        place.scatter(part.value(), y.dest(false)?)?;
        places.push((place, part.shape()));
        start += place.columns;
    }
    let dtype = first.dtype();
    Ok(cx.record(y, parts, || Box::new(ConcatBackward { places, dtype })))
}

#[derive(Debug)]
struct ConcatBackward {
    places: Vec<(RowSlice, Shape)>,
    dtype: DType,
}

impl Backward for ConcatBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let ConcatBackward { places, dtype } = *self;
        let dy = in_dtype(only("concat_last", dy)?, dtype)?;
        for (index, (place, shape)) in places.into_iter().enumerate() {
            cx.write(index, shape, dtype, |_, dx| match dx.view.dtype() {
                to if to == dtype => place.gather(&dy, dx),
                to => place.gather(&in_dtype(dy.clone(), to)?, dx),
            })?;
        }
        Ok(())
    }
}
