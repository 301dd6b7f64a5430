//! A product that is to be computed, from the kernel's arguments, and the problem that the library is asked to solve.
#![allow(unsafe_code)]

use super::candidates::{Candidate, Destination, Factors};
use super::epilogue::{Finish, Matrices, Numbers};
use super::folded::Folded;
use super::fp8::{self, Rounding, Scales};
use super::lt::Number;
use super::plan_cache::{FusedAddresses, Problem, Stored, alignment};
use super::scratch_layout::ScratchLayout;
use crate::cuda::launch::{Launch, Out};
use crate::dtype::DType;
use crate::error::Result;
use crate::fp8::Fp8Factors;
use crate::kernel::{Activation, Batch, Gemm, Matrix};
use crate::view::{View, ViewMut};

#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) alpha: f32,
    pub(super) beta: f32,
    pub(super) a: Factor,
    pub(super) b: Factor,
    pub(super) c: Matrices,
    pub(super) batch: Batch,
    pub(super) bias: Option<Numbers>,
    pub(super) activation: Option<Activation>,
    pub(super) copy: Option<Numbers>,
    pub(super) derivative: Option<(Activation, Numbers)>,
    pub(super) sums: Option<Sums>,
    /// Added in place of the old content; laid out as the result.
    pub(super) residual: Option<Numbers>,
    /// Formats of the rounded factors.
    pub(super) fp8: Option<Fp8Factors>,
}

/// Destination of the sums of the left factor's rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sums {
    pub(super) numbers: Numbers,
    /// The same, and whether they are added.
    pub(super) out: Out,
    pub(super) add: bool,
}

impl Sums {
    /// The library writes them there in this type.
    pub(super) fn is_direct(&self, dtype: DType) -> bool {
        is_vector(self.numbers, dtype) && !self.add
    }
}

/// Whether the library can read or write a vector beside a product where it is: of the result's type, and at a
/// multiple of what it moves at once. It checks neither when it chooses an algorithm, and a device that meets another
/// address is lost.
pub(super) fn is_vector(numbers: Numbers, dtype: DType) -> bool {
    const BYTES: u64 = 16;
    numbers.dtype == dtype && numbers.address.is_multiple_of(BYTES)
}

/// A factor: matrices as they are stored, and whether the product sees their transposes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Factor {
    pub(super) stored: Matrices,
    /// As they are stored.
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) transposed: bool,
}

impl Work {
    /// The problem to ask the library for.
    pub(super) fn problem(&self, candidate: Candidate, factors: &[Factor; 2], c: Matrices, folded: &Folded) -> Problem {
        let formats = self.fp8.filter(|_| candidate.factors == Factors::Rounded).map(|Fp8Factors { a, b }| [a, b]);
        let stored = |index: usize, matrices: Matrices, transposed| {
            let Matrices { numbers, ld, .. } = matrices;
            let size = numbers.dtype.size();
            let strides = [folded.stride[index] * size, folded.step[index] * size];
            Stored {
                number: match formats.as_ref().and_then(|formats| formats.get(index)) {
                    Some(format) => Number::Fp8(*format),
                    None => Number::Plain(numbers.dtype),
                },
                ld,
                transposed,
                stride: folded.stride[index],
                alignment: alignment(numbers.address, strides),
            }
        };
        let mut c = stored(2, c, false);
        if let Some(residual) = self.residual {
            c.alignment = c.alignment.min(alignment(residual.address, []));
        }
        Problem {
            m: self.m,
            n: self.n,
            k: if formats.is_some() { fp8::length(self.k) } else { self.k },
            a: stored(0, factors[0].stored, factors[0].transposed),
            b: stored(1, factors[1].stored, factors[1].transposed),
            c,
            count: folded.count,
            fused: candidate.fused,
        }
    }

    /// Queue the copies to scratch memory at `start`, and set the addresses of the operands there. Returns the address
    /// of the bias, or zero.
    pub(super) fn fill_scratch(
        &self,
        launch: &Launch<'_>,
        candidate: Candidate,
        layout: &ScratchLayout,
        start: u64,
        operands: &mut [Matrices; 3],
    ) -> Result<u64> {
        let at = |offset: usize| start + offset as u64;
        let scales = layout.scales.map(|offset| Scales::at(at(offset)));
        if let Some(scales) = scales {
            // SAFETY: scratch memory was taken for them.
            unsafe { scales.clear(launch) }?;
        }
        for (index, offset) in layout.factors.into_iter().flatten().enumerate() {
            operands[index].numbers.address = at(offset);
            let factor = [self.a, self.b][index];
            match scales.zip(self.fp8) {
                // SAFETY: scratch memory was taken for as many elements; the factor is as large as `check` saw.
                None => unsafe { factor.copy_to(launch, operands[index], self.batch) }?,
                Some((scales, Fp8Factors { a, b })) => {
                    let written = candidate.factors.written(index, factor.transposed);
                    let (format, to, to_ld) = ([a, b][index], at(offset), operands[index].ld);
                    // SAFETY: as above.
                    unsafe { factor.round_to(launch, Rounding { scales, index, format, written, to, to_ld }) }?;
                }
            }
        }
        let c = &mut operands[2].numbers;
        if let Some(offset) = layout.product {
            c.address = at(offset);
        }
        let (Some(bias), Some(offset)) = (self.bias, layout.bias) else {
            return Ok(self.bias.map_or(0, |bias| bias.address));
        };
        let cast = Numbers { address: at(offset), dtype: c.dtype };
        // SAFETY: scratch memory was taken for as many elements; the bias has one for each column.
        unsafe { Finish::copying_row(self.n, bias, cast).queue(launch)? };
        Ok(cast.address)
    }

    /// Queue what the library has not done of the epilogue, from the product in `c`.
    pub(super) fn queue_finish(&self, launch: &Launch<'_>, candidate: Candidate, c: Matrices) -> Result<()> {
        if !candidate.finishes(self) {
            return Ok(());
        }
        let old = if candidate.into == Destination::Result { 0.0 } else { self.beta };
        let mut finish = self.finish(Some(c), old, !candidate.fused.bias);
        if matches!(candidate.into, Destination::Copy(_)) {
            // The copy is the destination of the product.
            finish.copy = None;
        }
        // SAFETY: as for the product.
        unsafe { finish.queue(launch) }
    }

    pub(super) fn of(a: &Gemm<'_>) -> Self {
        let read = |view: View<'_>| Numbers { address: view.address(), dtype: view.dtype() };
        let factor = |matrix: &Matrix<'_>, rows, columns| {
            let numbers = read(matrix.view);
            let stored = Matrices { numbers, ld: matrix.ld, batch: matrix.batch };
            let (rows, columns) = if matrix.transposed { (columns, rows) } else { (rows, columns) };
            Factor { stored, rows, columns, transposed: matrix.transposed }
        };
        let written = |view: &ViewMut<'_>| Numbers { address: view.address(), dtype: view.dtype() };
        Work {
            m: a.m,
            n: a.n,
            k: a.k,
            alpha: a.alpha,
            beta: a.beta,
            a: factor(&a.a, a.m, a.k),
            b: factor(&a.b, a.k, a.n),
            c: Matrices { numbers: written(&a.c.view), ld: a.c.ld, batch: a.c.batch },
            batch: a.batch,
            bias: a.epilogue.bias.map(read),
            activation: a.epilogue.activation,
            copy: a.epilogue.pre_activation.as_ref().map(written),
            derivative: a.epilogue.derivative.map(|(activation, points)| (activation, read(points))),
            sums: a.epilogue.sums_of_a.as_ref().map(|sums| Sums {
                numbers: written(&sums.view),
                out: Out::into(sums),
                add: sums.add,
            }),
            residual: a.epilogue.residual.map(read),
            fp8: a.fp8,
        }
    }

    /// The product alone, in f32 without gaps; its address is not known yet.
    pub(super) fn in_scratch(&self) -> Matrices {
        let numbers = Numbers { address: 0, dtype: DType::F32 };
        let entry = self.m * self.n;
        Matrices { numbers, ld: self.n, batch: [entry * self.batch.inner, entry] }
    }

    /// Addresses of a product besides its matrices: its bias, or sums at their place in scratch memory or at their own;
    /// the points of a derivative, or a copy.
    pub(super) fn fused_addresses(
        &self,
        candidate: Candidate,
        bias: u64,
        sums_in_scratch: Option<u64>,
    ) -> FusedAddresses {
        let sums = self.sums.filter(|_| candidate.fused.sums);
        let vector = sums.map_or(bias, |sums| sums_in_scratch.unwrap_or(sums.numbers.address));
        let matrix = self.derivative.map(|(_, points)| points).or(self.copy);
        FusedAddresses { vector, matrix: matrix.map_or(0, |numbers| numbers.address) }
    }

    pub(super) fn finish(&self, x: Option<Matrices>, beta: f32, bias: bool) -> Finish {
        Finish {
            rows: self.m,
            columns: self.n,
            batch: self.batch,
            x,
            c: self.c,
            beta,
            bias: self.bias.filter(|_| bias),
            copy: self.copy,
            activation: self.activation,
            derivative: self.derivative,
        }
    }
}

impl Factor {
    /// The matrix in f32 without gaps, at an address that is not known yet, and its number of elements. Entries of the
    /// batch that are one and the same stay so.
    pub(super) fn widened(&self, batch: Batch) -> (Factor, usize) {
        let Batch { outer, inner } = self.entries(batch);
        let entry = self.rows * self.columns;
        let stride = |count, stride| if count > 1 { stride } else { 0 };
        let batch = [stride(outer, inner * entry), stride(inner, entry)];
        let stored = Matrices { numbers: Numbers { address: 0, dtype: DType::F32 }, ld: self.columns, batch };
        (Factor { stored, ..*self }, outer * inner * entry)
    }

    pub(super) fn entries(&self, batch: Batch) -> Batch {
        let of = |count, stride| if stride == 0 { 1 } else { count };
        let [outer, inner] = self.stored.batch;
        Batch { outer: of(batch.outer, outer), inner: of(batch.inner, inner) }
    }

    /// Queue a copy to `to`.
    ///
    /// # Safety
    /// As [`Finish::queue`].
    pub(super) unsafe fn copy_to(&self, launch: &Launch<'_>, to: Matrices, batch: Batch) -> Result<()> {
        let Factor { rows, columns, stored, .. } = *self;
        let batch = self.entries(batch);
        // SAFETY: promised by the caller.
        unsafe { Finish::copying(rows, columns, batch, stored, to).queue(launch) }
    }
}
