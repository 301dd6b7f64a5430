//! Rotary positions: [`rotary`] turns heads where the projection wrote them.

use super::*;
use crate::kernel::{RotaryApply, RotaryLayout};

/// The heads to rotate, and the angles.
#[derive(Debug, Clone, Copy)]
pub struct Rotary<'a> {
    /// Number of heads to rotate, from the first: N + K of a fused projection of N + 2K.
    pub heads: usize,
    /// Length of a head.
    pub head_size: usize,
    /// Elements of a head that are turned, its first ones; an even number.
    pub dims: usize,
    /// Pairing of the elements that are rotated together.
    pub layout: RotaryLayout,
    /// f32 `[P, dims]`: of each position the cosines of its `dims / 2` angles, then the sines. Scaled angles and a
    /// factor of the attention are the table's.
    pub table: &'a Tensor,
    /// i64 `[B, L]`; without them row `l` of every sequence is at position `l`.
    pub positions: Option<&'a Tensor>,
}

/// Turn pairs of elements of the first heads of every row by the angles of the row's position, in place when x owns its
/// memory alone.
///
/// Shapes: x `[B, L, W]`, `heads * head_size <= W` → `[B, L, W]`.
/// Numerics: f32. The gradient is the gradient of the result turned back. Saves the positions.
/// Source: Su et al. (2021), equation 34.
///
/// # Errors
/// Shapes that do not fit, a table that is not f32, a position outside of the table.
pub fn rotary(cx: &Ctx, x: Var, options: &Rotary<'_>) -> Result<Var> {
    let turn = Turn::new(&x, options)?;
    let (value, source) = x.into_parts();
    let y = if value.may_be_overwritten() {
        turn.in_place(cx.device(), value, false)?
    } else {
        let mut y = empty(cx, value.shape(), value.dtype())?; // [B, L, W]
        turn.launch(cx.device(), Some(&value), y.dest(false)?, false)?;
        y
    };
    let x = Var::from_parts(y.clone(), source);
    Ok(cx.record(y, &[&x], || Box::new(turn)))
}

/// One call, checked.
#[derive(Debug)]
struct Turn {
    heads: usize,
    head_size: usize,
    dims: usize,
    layout: RotaryLayout,
    table: Tensor,
    positions: Option<Tensor>,
    shape: Shape,
    dtype: DType,
}

impl Turn {
    fn new(x: &Var, options: &Rotary<'_>) -> Result<Self> {
        let Rotary { heads, head_size, dims, layout, table, positions } = *options;
        let [batch, length, _] = x.dims("rotary")?;
        let [entries, _] = table.dims("rotary")?;
        expect_shape("rotary", "table", Shape::from([entries, dims]), table.shape())?;
        if let Some(positions) = positions {
            expect_shape("rotary", "positions", Shape::from([batch, length]), positions.shape())?;
        }
        let (table, positions) = (table.clone(), positions.cloned());
        Ok(Turn { heads, head_size, dims, layout, table, positions, shape: x.shape(), dtype: x.dtype() })
    }

    fn launch(&self, device: &Device, x: Option<&Tensor>, y: Dest<'_>, inverse: bool) -> Result<()> {
        let &[batch, length, columns] = self.shape.dims() else {
            return Err(Error::shape("rotary", "x", "3 axes", self.shape));
        };
        device.launch(RotaryApply {
            rows: batch * length,
            length,
            columns,
            heads: self.heads,
            head_size: self.head_size,
            dims: self.dims,
            layout: self.layout,
            inverse,
            entries: self.table.shape().rows(),
            table: self.table.view()?,
            positions: self.positions.as_ref().map(Tensor::view).transpose()?,
            x: x.map(Tensor::view).transpose()?,
            y,
        })
    }

    fn in_place(&self, device: &Device, mut x: Tensor, inverse: bool) -> Result<Tensor> {
        self.launch(device, None, x.dest(false)?, inverse)?;
        Ok(x)
    }
}

impl Backward for Turn {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let dy = only("rotary", dy)?;
        if dy.may_be_overwritten() && !cx.accumulates(0) {
            let dx = self.in_place(cx.device(), dy, true)?;
            return cx.give(0, dx);
        }
        cx.write(0, self.shape, self.dtype, |device, dx| self.launch(device, Some(&dy), dx, true))
    }

    // The table is everybody's.
    fn saved_bytes(&self) -> usize {
        self.positions.as_ref().map_or(0, Tensor::bytes)
    }
}
