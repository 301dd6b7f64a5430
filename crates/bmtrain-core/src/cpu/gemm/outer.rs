//! Products of a few terms (`dW = x·dyᵀ` for a handful of tokens): row by row, since nearly all there is to do is to
//! write C, and memory is written fastest in runs. B is read again for each row of C, from caches.
//!
//! The bits equal a tile's: one stretch, its terms in ascending order.
#![allow(unsafe_code)]

use std::ops::Range;

use super::job::GemmJob;
use super::operand::Source;
use crate::simd::vectorised;

/// Most terms of a sum. With more of them, the arithmetic of tiles counts more than how C is written.
const TERMS: usize = 4;

/// Shortest row of C that repays a call.
const SHORTEST: usize = 64;

/// Sums that are kept in registers.
const RUN: usize = 64;

/// The operands of such a product: all of A and B are f32, and C too.
pub(super) struct Outer<'a> {
    /// From the first element on.
    a: &'a [f32],
    b: &'a [f32],
}

impl<'a> Outer<'a> {
    pub(super) fn of(job: &GemmJob<'a>) -> Option<Self> {
        let (Source::F32(a), Source::F32(b)) = (job.a.data, job.b.data) else { return None };
        let fits = (1..=TERMS).contains(&job.k)
            && job.n >= SHORTEST
            && job.b.col_stride == 1
            && job.c.is_f32()
            && !job.has_epilogue();
        fits.then(|| Outer { a: &a[job.a.start..], b: &b[job.b.start..] })
    }

    /// Compute some rows of C, which are the caller's own.
    pub(super) fn rows(&self, job: &GemmJob<'_>, rows: Range<usize>) {
        let mut terms = [0.0; TERMS];
        let terms = &mut terms[..job.k];
        for i in rows {
            for (p, x) in terms.iter_mut().enumerate() {
                *x = self.a[i * job.a.row_stride + p * job.a.col_stride];
            }
            // SAFETY: the task owns these rows.
            let c = unsafe { job.c.part(job.c_start + i * job.ldc, job.n) };
            row(terms, (self.b, job.b.row_stride), (job.alpha, job.beta), c);
        }
    }
}

vectorised! {
    /// One row of C; the rows of B are `b.1` apart.
    fn row<I>(terms: &[f32], b: (&[f32], usize), factors: (f32, f32), c: &mut [f32]) {
        let ((b, stride), (alpha, beta)) = (b, factors);
        let finish = |sum: f32, c: &mut f32| {
            *c = if beta == 0.0 { alpha * sum } else { I::mul_add(beta, *c, alpha * sum) };
        };
        let whole = c.len() / RUN * RUN;
        let (runs, rest) = c.split_at_mut(whole);
        for (index, run) in runs.chunks_exact_mut(RUN).enumerate() {
            let mut sums = [0.0_f32; RUN];
            for (p, x) in terms.iter().enumerate() {
                let b = &b[p * stride + index * RUN..][..RUN];
                for (sum, y) in sums.iter_mut().zip(b) {
                    *sum = I::mul_add(*x, *y, *sum);
                }
            }
            for (c, sum) in run.iter_mut().zip(&sums) {
                finish(*sum, c);
            }
        }
        for (j, c) in rest.iter_mut().enumerate() {
            let mut sum = 0.0;
            for (p, x) in terms.iter().enumerate() {
                sum = I::mul_add(*x, b[p * stride + whole + j], sum);
            }
            finish(sum, c);
        }
    }
}
