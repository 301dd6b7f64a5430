//! Products of one term (`dW = x·dyᵀ` for one token): row by row, since all there is to do is to write C, and memory is
//! written fastest in runs.
//!
//! The bits equal a tile's with one step.
#![allow(unsafe_code)]

use std::ops::Range;

use super::job::GemmJob;
use super::operand::Source;
use crate::cpu::simd::vectorised;

/// Shortest row of C that repays a call.
const SHORTEST: usize = 64;

/// The operands of such a product: all of A and B are f32, and C too.
pub(super) struct Outer<'a> {
    /// From the first element on.
    a: &'a [f32],
    b: &'a [f32],
}

impl<'a> Outer<'a> {
    pub(super) fn of(job: &GemmJob<'a>) -> Option<Self> {
        let (Source::F32(a), Source::F32(b)) = (job.a.data, job.b.data) else { return None };
        let fits = job.k == 1 && job.n >= SHORTEST && job.b.col_stride == 1 && job.c.is_f32() && !job.has_epilogue();
        fits.then(|| Outer { a: &a[job.a.start..], b: &b[job.b.start..][..job.n] })
    }

    /// Compute some rows of C, which are the caller's own.
    pub(super) fn rows(&self, job: &GemmJob<'_>, rows: Range<usize>) {
        for i in rows {
            // SAFETY: the task owns these rows.
            let c = unsafe { job.c.part(job.c_start + i * job.ldc, job.n) };
            scaled_row(self.a[i * job.a.row_stride], self.b, (job.alpha, job.beta), c);
        }
    }
}

vectorised! {
    fn scaled_row<I>(x: f32, b: &[f32], factors: (f32, f32), c: &mut [f32]) {
        let (alpha, beta) = factors;
        match beta == 0.0 {
            true => c.iter_mut().zip(b).for_each(|(c, b)| *c = alpha * I::mul_add(x, *b, 0.0)),
            false => {
                c.iter_mut().zip(b).for_each(|(c, b)| *c = I::mul_add(beta, *c, alpha * I::mul_add(x, *b, 0.0)));
            }
        }
    }
}
