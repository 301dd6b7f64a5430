//! Layer norm and RMS norm after dropout and residual (`forward`), and their gradients (`backward`).

mod backward;
mod forward;
pub(super) use backward::backward;
pub(super) use forward::forward;

use super::floats::{Floats, Spare};

/// The scales of a norm.
#[derive(Clone, Copy)]
struct Scales<'a> {
    weight: Floats<'a>,
    offset: f32,
}

impl Scales<'_> {
    /// Scales of `len` columns from `start` on.
    fn tile<'t>(&'t self, start: usize, len: usize, spare: &'t mut Spare) -> &'t [f32] {
        if self.offset == 0.0 {
            return self.weight.tile(start, len, spare);
        }
        let scales = &mut spare.0[..len];
        self.weight.widen(start, scales);
        scales.iter_mut().for_each(|scale| *scale += self.offset);
        scales
    }
}

fn rows_at_once(columns: usize) -> usize {
    ((1 << 15) / columns.max(1)).max(1)
}
