//! The scratch memory of a product.

use super::candidates::{Candidate, Destination};
use super::epilogue::Matrices;
use super::{Factor, Work, fp8, is_vector};
use crate::dtype::DType;

/// Parts start at multiples of this.
const ALIGNMENT: usize = 256;

/// Offsets in scratch memory of what a candidate needs there.
#[derive(Debug, Default)]
pub(super) struct ScratchLayout {
    pub(super) bytes: usize,
    pub(super) factors: Option<[usize; 2]>,
    pub(super) scales: Option<usize>,
    pub(super) product: Option<usize>,
    pub(super) bias: Option<usize>,
    pub(super) sums: Option<usize>,
}

impl ScratchLayout {
    pub(super) fn of(work: &Work, candidate: Candidate, c: &Matrices) -> Self {
        let mut layout = ScratchLayout::default();
        if candidate.factors.are_widened() {
            let bytes = |factor: Factor| factor.widened(work.batch).1 * DType::F32.size();
            layout.factors = Some([work.a, work.b].map(|factor| layout.add(bytes(factor))));
        } else if candidate.factors.are_rounded() {
            layout.factors = Some(candidate.factors(work).map(|codes| layout.add(codes.rows * codes.columns)));
        }
        if candidate.factors.are_rounded() {
            layout.scales = Some(layout.add(fp8::SCALE_BYTES));
        }
        if candidate.into == Destination::Scratch {
            let elements = work.batch.outer * work.batch.inner * work.m * work.n;
            layout.product = Some(layout.add(elements * DType::F32.size()));
        }
        let (dtype, fused) = (c.numbers.dtype, candidate.fused);
        if work.bias.is_some_and(|bias| fused.bias && !is_vector(bias, dtype)) {
            layout.bias = Some(layout.add(work.n * dtype.size()));
        }
        if work.sums.is_some_and(|sums| fused.sums && !sums.is_direct(dtype)) {
            layout.sums = Some(layout.add(work.m * dtype.size()));
        }
        layout
    }

    pub(super) fn add(&mut self, bytes: usize) -> usize {
        let offset = self.bytes;
        self.bytes += bytes.next_multiple_of(ALIGNMENT);
        offset
    }
}
