//! The part of a product that the library does not compute: the launch of `gemm.cu`.
#![allow(unsafe_code)]

use super::super::driver::Grid;
use super::super::elementwise::activation_number;
use super::super::launch::{In, Launch, Out, PACK, Typed, arguments, long, typed, whole};
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::{Activation, Arguments as _, Batch, Gemm};

/// `kGemmThreads`.
const THREADS: usize = 256;

const EPILOGUE: Typed = typed!("gemm", "gemm_epilogue");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Numbers {
    pub(super) address: u64,
    pub(super) dtype: DType,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Matrices {
    pub(super) numbers: Numbers,
    /// Elements from one row to the next.
    pub(super) ld: usize,
    /// Elements from one entry to the next, outer and inner.
    pub(super) batch: [usize; 2],
}

/// `c = activation(x + beta c + bias)`, or times a derivative, for all entries of a batch.
#[derive(Debug)]
pub(super) struct Finish {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) batch: Batch,
    /// None for zeros. May be `c`.
    pub(super) x: Option<Matrices>,
    pub(super) c: Matrices,
    pub(super) beta: f32,
    pub(super) bias: Option<Numbers>,
    /// Receives the activation's input, without gaps.
    pub(super) copy: Option<Numbers>,
    pub(super) activation: Option<Activation>,
    /// The result is multiplied by the derivative of this at these points, without gaps. Not together with an
    /// activation.
    pub(super) derivative: Option<(Activation, Numbers)>,
}

/// `Distances`.
#[derive(Debug, Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct Distances {
    row: i64,
    inner: i64,
    outer: i64,
}

impl Finish {
    /// A copy of matrices, into another dtype or without gaps.
    pub(super) fn copying(rows: usize, columns: usize, batch: Batch, from: Matrices, to: Matrices) -> Self {
        let (x, c) = (Some(from), to);
        Finish { rows, columns, batch, x, c, beta: 0.0, bias: None, copy: None, activation: None, derivative: None }
    }

    /// A copy of one row.
    pub(super) fn copying_row(columns: usize, from: Numbers, to: Numbers) -> Self {
        let row = |numbers| Matrices { numbers, ld: columns, batch: [0, 0] };
        Finish::copying(1, columns, Batch::ONE, row(from), row(to))
    }

    /// Queue it.
    ///
    /// # Safety
    /// The addresses are of this device, valid until the lane has run the kernel, and as large as the sizes declare;
    /// `c` and the copy overlap nothing, but `x` may be `c` itself.
    pub(super) unsafe fn queue(&self, launch: &Launch<'_>) -> Result<()> {
        const NAME: &str = Gemm::NAME;
        let Batch { outer, inner } = self.batch;
        let entries = outer * inner;
        let distances = |matrices: &Matrices| -> Result<Distances> {
            let [outer, inner] = matrices.batch;
            let of = |distance| long(NAME, "a distance", distance);
            Ok(Distances { row: of(matrices.ld)?, inner: of(inner)?, outer: of(outer)? })
        };
        let matrices = [self.x, Some(self.c)];
        let strides: Vec<usize> =
            matrices.iter().flatten().flat_map(|m| [m.ld, m.batch[0], m.batch[1]]).chain([self.columns]).collect();
        let points = self.derivative.map(|(_, points)| points);
        let large = [self.x.map(|x| x.numbers), Some(self.c.numbers), self.copy, points];
        let addresses = large.iter().chain([&self.bias]).flatten().map(|numbers| numbers.address);
        let reading = |numbers: Option<Numbers>| numbers.map_or(In::NONE, |n| In::at(n.address, n.dtype));
        let x = self.x.unwrap_or(self.c);
        let function = self.activation.or(self.derivative.map(|(function, _)| function));
        let arguments = arguments!(GemmEpilogueArguments {
            x: In = reading(large[0]),
            c: Out = Out::at(self.c.numbers.address, self.c.numbers.dtype),
            bias: In = reading(self.bias),
            copy: Out = self.copy.map_or(Out::NONE, |copy| Out::at(copy.address, copy.dtype)),
            points: In = reading(points),
            x_apart: Distances = distances(&x)?,
            c_apart: Distances = distances(&self.c)?,
            rows: i64 = long(NAME, "rows", self.rows)?,
            columns: i64 = long(NAME, "columns", self.columns)?,
            inner: i64 = long(NAME, "batch", inner)?,
            entries: i64 = long(NAME, "batch", entries)?,
            beta: f32 = self.beta,
            activation: i32 = function.map_or(-1, activation_number),
            whole: i32 = whole(addresses, &strides),
            unused: i32 = 0,
        });
        let packs = self.columns.div_ceil(PACK) * self.rows * entries;
        let grid = Grid::line(launch.blocks(packs.div_ceil(THREADS)), THREADS as u32);
        let name = EPILOGUE.of(large.iter().flatten().map(|numbers| numbers.dtype));
        // SAFETY: laid out as in gemm.cu; the rest is promised by the caller.
        unsafe { launch.run(name, grid, arguments) }
    }
}
