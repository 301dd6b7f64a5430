//! Several runs of elements in one launch: which blocks take which run, and the steps of optimizers over runs.
#![allow(unsafe_code)]

use super::driver::Grid;
use super::launch::{Launch, PACK, Typed, long, tag, whole};
use crate::dtype::DType;
use crate::error::Result;
use crate::view::{View, ViewMut};
use bytemuck::NoUninit;

/// `kStepThreads` of steps.cuh.
const STEP_THREADS: usize = 256;
/// `kStepRuns` of steps.cuh: they fit into a kernel's 4 KiB of arguments.
pub(super) const STEP_RUNS: usize = 32;
/// `kNormRuns` of reduce.cu.
pub(super) const NORM_RUNS: usize = 128;

/// The blocks that take a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RunBlocks {
    pub(super) first: i32,
    pub(super) count: i32,
}

impl RunBlocks {
    /// Blocks for runs of `items` pieces of work each, one after another: for each run at least one and no more than it
    /// has work, together about `most`, shared out by the work.
    pub(super) fn share(items: &[usize], most: u32) -> Vec<RunBlocks> {
        let total = items.iter().sum::<usize>().max(1) as u128;
        let mut first = 0;
        let of_run = |&items: &usize| {
            let share = (items as u128 * u128::from(most)).div_ceil(total);
            let count = share.clamp(1, items.max(1) as u128) as i32;
            let blocks = RunBlocks { first, count };
            first += count;
            blocks
        };
        items.iter().map(of_run).collect()
    }
}

/// Blocks of a launch for runs with these blocks.
pub(super) fn blocks_of(runs: &[RunBlocks]) -> u32 {
    runs.last().map_or(0, |last| (last.first + last.count).cast_unsigned())
}

/// The elements of a run of a step: ranges of one length. A state is there where the form of the step has it.
pub(super) struct StepElements<'a, N, const STATES: usize> {
    pub(super) parameter: ViewMut<'a>,
    pub(super) master: Option<ViewMut<'a>>,
    pub(super) states: [Option<ViewMut<'a>>; STATES],
    pub(super) grad: View<'a>,
    /// As laid out in the kernel's source, with the sign of the gradient for a factor.
    pub(super) numbers: N,
}

/// `StepRun` of steps.cuh.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct StepRun<N, const STATES: usize> {
    grad: u64,
    parameter: u64,
    master: u64,
    states: [u64; STATES],
    count: i64,
    first_block: i32,
    blocks: i32,
    whole: i32,
    numbers: N,
    unused: i32,
}

impl<N: NoUninit, const STATES: usize> StepRun<N, STATES> {
    const IS_FILLED: () = {
        let fields = (4 + STATES) * size_of::<u64>() + 4 * size_of::<i32>() + size_of::<N>();
        assert!(size_of::<Self>() == fields);
    };

    /// Filler of the places after the last run, which are not read.
    fn nothing(numbers: N) -> Self {
        const { Self::IS_FILLED };
        let states = [0; STATES];
        let (grad, parameter, master, count) = (0, 0, 0, 0);
        let (first_block, blocks, whole, unused) = (0, 0, 0, 0);
        StepRun { grad, parameter, master, states, count, first_block, blocks, whole, numbers, unused }
    }

    fn of(op: &'static str, elements: &StepElements<'_, N, STATES>, blocks: RunBlocks) -> Result<Self> {
        let StepElements { parameter, master, states, grad, numbers } = elements;
        let maybe = |view: &Option<ViewMut<'_>>| view.as_ref().map_or(0, ViewMut::address);
        let (grad, master, states) = (grad.address(), maybe(master), states.each_ref().map(maybe));
        let addresses = [grad, parameter.address(), master].into_iter().chain(states);
        Ok(StepRun {
            grad,
            parameter: parameter.address(),
            master,
            states,
            count: long(op, "elements", parameter.len())?,
            first_block: blocks.first,
            blocks: blocks.count,
            whole: whole(addresses, &[]),
            numbers: *numbers,
            unused: 0,
        })
    }
}

/// `StepArguments` of steps.cuh.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct StepArguments<N, const STATES: usize> {
    factor: u64,
    grad_type: i32,
    parameter_type: i32,
    count: i32,
    unused: i32,
    runs: [StepRun<N, STATES>; STEP_RUNS],
}

// SAFETY: `repr(C)`, of plain numbers, and the assertion sees that they fill it.
unsafe impl<N: NoUninit, const STATES: usize> NoUninit for StepRun<N, STATES> {}

// SAFETY: as above, by the assertion in `steps`.
unsafe impl<N: NoUninit, const STATES: usize> NoUninit for StepArguments<N, STATES> {}

/// Queue a step over runs that have parameters of one type and gradients of one type, [`STEP_RUNS`] in a launch.
///
/// # Safety
/// The kernel's source has numbers and states laid out as `N` and `STATES`. The ranges of a run have as many elements,
/// masters and states are f32 and a parameter without a master is; what is written overlaps nothing.
pub(super) unsafe fn steps<N: NoUninit, const STATES: usize>(
    launch: &Launch<'_>,
    (op, name): (&'static str, Typed),
    factor: &View<'_>,
    runs: &[StepElements<'_, N, STATES>],
) -> Result<()> {
    const {
        let fields = size_of::<u64>() + 4 * size_of::<i32>() + STEP_RUNS * size_of::<StepRun<N, STATES>>();
        assert!(size_of::<StepArguments<N, STATES>>() == fields);
    }
    for runs in runs.chunks(STEP_RUNS) {
        let Some(StepElements { parameter, grad, numbers, .. }) = runs.first() else { break };
        let types: [DType; 2] = [grad.dtype(), parameter.dtype()];
        let items: Vec<usize> = runs.iter().map(|run| run.parameter.len().div_ceil(PACK * STEP_THREADS)).collect();
        let blocks = RunBlocks::share(&items, launch.blocks(usize::MAX));
        let mut all = [StepRun::nothing(*numbers); STEP_RUNS];
        for ((place, run), blocks) in all.iter_mut().zip(runs).zip(&blocks) {
            *place = StepRun::of(op, run, *blocks)?;
        }
        let arguments = StepArguments {
            factor: factor.address(),
            grad_type: tag(types[0]),
            parameter_type: tag(types[1]),
            count: runs.len() as i32,
            unused: 0,
            runs: all,
        };
        // SAFETY: laid out as in steps.cuh. The rest is promised by the caller; the memory stays valid until the lane
        // has run the kernel, because the pool gives it out in lane order.
        unsafe { launch.run(name.of(types), Grid::line(blocks_of(&blocks), STEP_THREADS as u32), arguments) }?;
    }
    Ok(())
}

/// `NormRun` of reduce.cu.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(super) struct NormRun {
    pub(super) x: u64,
    pub(super) count: i64,
    pub(super) first_block: i32,
    pub(super) blocks: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_has_blocks_of_its_own_and_no_more_than_work() {
        for items in [vec![1], vec![0, 3], vec![1, 1, 5000, 2], vec![7; 128], vec![1 << 40, 1]] {
            let blocks = RunBlocks::share(&items, 100);
            let mut end = 0;
            for (blocks, items) in blocks.iter().zip(&items) {
                assert_eq!(blocks.first, end, "{items}: {blocks:?}");
                assert!((1..=(*items).max(1)).contains(&(blocks.count as usize)), "{items}: {blocks:?}");
                end += blocks.count;
            }
            assert_eq!(blocks_of(&blocks) as i32, end);
            assert!(end as usize <= 100 + items.len(), "{items:?}: {end}");
        }
        assert_eq!(blocks_of(&RunBlocks::share(&[], 100)), 0);
    }

    #[test]
    fn arguments_fit_into_those_of_a_kernel() {
        use crate::kernel::{AdamNumbers, UpdateNumbers};
        assert!(size_of::<StepArguments<AdamNumbers, 2>>() <= 4096);
        assert!(size_of::<StepArguments<UpdateNumbers, 3>>() <= 4096);
        assert!(16 + NORM_RUNS * size_of::<NormRun>() <= 4096);
    }
}
