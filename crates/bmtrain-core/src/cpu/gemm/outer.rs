//! Products of a few terms (`dW = x·dyᵀ` for a handful of tokens): row by row, since nearly all there is to do is to
//! write C, and memory is written fastest in runs. B is read again for each row of C, from caches. Where C or B has 16
//! bits, B is widened first, some columns at a time, and rows of C are rounded from f32.
//!
//! The bits equal a tile's: one stretch, its terms in ascending order.
#![allow(unsafe_code)]

use std::ops::Range;

use super::job::GemmJob;
use super::operand::{Matrix, Source};
use crate::simd::vectorised;

/// Most terms of a sum where C is f32. With more of them, the arithmetic of tiles counts more than how C is written.
const TERMS_OF_F32: usize = 4;

/// Most terms of a sum.
const TERMS: usize = 7;

/// Shortest row of C that repays a call.
const SHORTEST: usize = 64;

/// Sums that are kept in registers.
const RUN: usize = 64;

/// Columns of C that are computed at a time where B or C has 16 bits.
const COLUMNS: usize = 1024;

/// The operands of such a product. None is f16, and C is not either.
pub(super) struct Outer<'a> {
    a: Matrix<'a>,
    b: Matrix<'a>,
    /// B from its first element on, if it can be read and C written as they are.
    in_place: Option<&'a [f32]>,
}

impl<'a> Outer<'a> {
    pub(super) fn of(job: &GemmJob<'a>) -> Option<Self> {
        let is_f16 = |matrix: &Matrix<'_>| matches!(matrix.data, Source::F16(_));
        let most = if job.c.is_f32() { TERMS_OF_F32 } else { TERMS };
        let fits = (1..=most).contains(&job.k)
            && job.n >= SHORTEST
            && job.b.col_stride == 1
            && !(is_f16(&job.a) || is_f16(&job.b) || job.c.is_f16())
            && !job.has_epilogue();
        let in_place = match job.b.data {
            Source::F32(b) if job.c.is_f32() => Some(&b[job.b.start..]),
            _ => None,
        };
        fits.then_some(Outer { a: job.a, b: job.b, in_place })
    }

    /// Compute some rows of C, which are the caller's own.
    pub(super) fn rows(&self, job: &GemmJob<'_>, rows: Range<usize>) {
        match self.in_place {
            Some(b) => {
                for i in rows {
                    // SAFETY: the task owns these rows.
                    let c = unsafe { job.c.part(job.c_start + i * job.ldc, job.n) };
                    row(&self.terms(i, job.k)[..job.k], (b, self.b.row_stride), (job.alpha, job.beta), c);
                }
            }
            None => {
                (0..job.n).step_by(COLUMNS).for_each(|j| self.widened(job, rows.clone(), j..job.n.min(j + COLUMNS)))
            }
        }
    }

    /// Some columns of these rows, by way of f32.
    fn widened(&self, job: &GemmJob<'_>, rows: Range<usize>, columns: Range<usize>) {
        let width = columns.len();
        let mut b = [0.0; TERMS * COLUMNS];
        for (p, b) in b.chunks_exact_mut(width).take(job.k).enumerate() {
            self.b.data.widen(self.b.start + p * self.b.row_stride + columns.start, b);
        }
        let mut sums = [0.0; COLUMNS];
        let sums = &mut sums[..width];
        for i in rows {
            let at = job.c_start + i * job.ldc + columns.start;
            if job.beta != 0.0 {
                // SAFETY: the task owns these rows.
                unsafe { job.c.read(at, sums) };
            }
            row(&self.terms(i, job.k)[..job.k], (&b, width), (job.alpha, job.beta), sums);
            // SAFETY: as above.
            unsafe { job.c.write(at, sums) };
        }
    }

    /// The terms of row `i` of A.
    fn terms(&self, i: usize, k: usize) -> [f32; TERMS] {
        let at = |p: usize| self.a.start + i * self.a.row_stride + p * self.a.col_stride;
        std::array::from_fn(|p| match self.a.data {
            _ if p >= k => 0.0,
            Source::F32(a) => a[at(p)],
            Source::F16(a) => a[at(p)].to_f32(),
            Source::Bf16(a) => a[at(p)].to_f32(),
        })
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
