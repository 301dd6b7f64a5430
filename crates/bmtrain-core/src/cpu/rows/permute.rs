//! Another order of the axes: runs of memory where the last axis stays last, blocks of a transposition where it moves.

use super::{PIECE, Strided, not_elements};
use crate::cpu::access::{read, write};
use crate::dtype::{DType, Element, Float};
use crate::error::Result;
use crate::kernel::Permute;
use crate::shape::MAX_RANK;
use crate::threads::Threads;
use half::{bf16, f16};

pub(in crate::cpu) fn permute(threads: &Threads, a: Permute<'_>) -> Result<()> {
    match a.x.dtype() {
        DType::F32 => floats::<f32>(threads, a),
        DType::F16 => floats::<f16>(threads, a),
        DType::BF16 => floats::<bf16>(threads, a),
        DType::I64 => run::<i64>(threads, a, |_, x| x),
        DType::I32 => run::<i32>(threads, a, |_, x| x),
        DType::U8 => run::<u8>(threads, a, |_, x| x),
        got @ DType::Blocks(_) => Err(not_elements("permute", got)),
    }
}

fn floats<T: Float>(threads: &Threads, a: Permute<'_>) -> Result<()> {
    if a.out.add {
        run::<T>(threads, a, |old, x| T::from_f32(old.to_f32() + x.to_f32()))
    } else {
        run::<T>(threads, a, |_, x| x)
    }
}

/// The axes of the result, outermost first: axes of length 1 are left out, and neighbours that are neighbours in the
/// input as well are joined.
#[derive(Clone, Copy)]
struct StridedAxes {
    len: [usize; MAX_RANK],
    /// Elements of the input from one index of the axis to the next.
    stride: [usize; MAX_RANK],
    rank: usize,
}

impl StridedAxes {
    fn new(dims: &[usize], axes: &[usize]) -> Self {
        let mut plan = StridedAxes { len: [1; MAX_RANK], stride: [1; MAX_RANK], rank: 0 };
        for &axis in axes.iter().filter(|axis| dims[**axis] != 1) {
            let (len, stride) = (dims[axis], dims[axis + 1..].iter().product::<usize>());
            let last = plan.rank.saturating_sub(1);
            if plan.rank > 0 && plan.stride[last] == len * stride {
                (plan.len[last], plan.stride[last]) = (plan.len[last] * len, stride);
            } else {
                (plan.len[plan.rank], plan.stride[plan.rank]) = (len, stride);
                plan.rank += 1;
            }
        }
        plan.rank = plan.rank.max(1);
        plan
    }

    fn contiguous(&self) -> usize {
        self.stride[..self.rank].iter().position(|stride| *stride == 1).unwrap_or(self.rank - 1)
    }

    /// Elements of the output from one index of an axis to the next.
    fn out_stride(&self, axis: usize) -> usize {
        self.len[axis + 1..self.rank].iter().product()
    }
}

fn run<T: Element>(threads: &Threads, a: Permute<'_>, store: impl Fn(T, T) -> T + Send + Sync) -> Result<()> {
    const NAME: &str = "permute";
    let plan = StridedAxes::new(&a.dims[..a.rank], &a.axes[..a.rank]);
    let (x, data) = (read::<T>(NAME, a.x)?, write::<T>(NAME, a.out.view)?);
    if x.is_empty() {
        return Ok(());
    }
    let stride = plan.out_stride(0);
    let moved = plan.contiguous();
    // Pieces along the outermost axis; at least a block's width of it if it is one of the two transposed axes.
    let least = if moved == 0 || plan.rank == 1 { BLOCK } else { 1 };
    let at_once = least.max(PIECE / stride);
    threads.for_each_part(Strided { data, stride }, plan.len[0], at_once, |first, count, out| {
        let mut part = plan;
        part.len[0] = count;
        let x = &x[first * plan.stride[0]..];
        if moved == plan.rank - 1 {
            part.copy_runs(x, out.data, &store)
        } else {
            part.transpose(moved, x, out.data, &store)
        }
    });
    Ok(())
}

/// Side of a block of a transposition: a cache line of f32 in both directions.
const BLOCK: usize = 16;

impl StridedAxes {
    /// The last axis is contiguous in the input too.
    fn copy_runs<T: Copy>(&self, x: &[T], out: &mut [T], store: &impl Fn(T, T) -> T) {
        let run = self.len[self.rank - 1];
        self.for_each_index(self.rank - 1, self.rank, |from, to| {
            for (out, x) in out[to..to + run].iter_mut().zip(&x[from..from + run]) {
                *out = store(*out, *x);
            }
        });
    }

    /// Axis `moved` is contiguous in the input, the last one in the output: blocks of both.
    ///
    /// A block passes through a copy of its own. Rows of a large matrix are often a multiple of 4 KiB apart, where
    /// their lines displace each other from the cache, so that each is touched once on either side.
    fn transpose<T: Element>(&self, moved: usize, x: &[T], out: &mut [T], store: &impl Fn(T, T) -> T) {
        let last = self.rank - 1;
        let (rows, columns) = (self.len[moved], self.len[last]);
        let (row_stride, column_stride) = (self.out_stride(moved), self.stride[last]);
        let mut block = [[T::zeroed(); BLOCK]; BLOCK];
        self.for_each_index(moved, last, |from, to| {
            for row in (0..rows).step_by(BLOCK) {
                let height = BLOCK.min(rows - row);
                for column in (0..columns).step_by(BLOCK) {
                    let width = BLOCK.min(columns - column);
                    for (c, line) in block[..width].iter_mut().enumerate() {
                        let start = from + row + (column + c) * column_stride;
                        line[..height].copy_from_slice(&x[start..start + height]);
                    }
                    for r in 0..height {
                        let start = to + (row + r) * row_stride + column;
                        for (out, line) in out[start..start + width].iter_mut().zip(&block) {
                            *out = store(*out, line[r]);
                        }
                    }
                }
            }
        });
    }

    /// Run `work(input offset, output offset)` for every index of all axes but two.
    fn for_each_index(&self, skipped: usize, also_skipped: usize, mut work: impl FnMut(usize, usize)) {
        let mut index = [0; MAX_RANK];
        let (mut from, mut to) = (0, 0);
        'all: loop {
            work(from, to);
            for axis in (0..self.rank).rev().filter(|axis| *axis != skipped && *axis != also_skipped) {
                index[axis] += 1;
                from += self.stride[axis];
                to += self.out_stride(axis);
                if index[axis] < self.len[axis] {
                    continue 'all;
                }
                from -= self.stride[axis] * self.len[axis];
                to -= self.out_stride(axis) * self.len[axis];
                index[axis] = 0;
            }
            return;
        }
    }
}
