//! Layer norm: the launch of `norm_forward.cu`.
#![allow(unsafe_code)]

use super::driver::{Arguments, Module, Stream};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Arguments as _, NormForward, NormKind};

const NAME: &str = NormForward::NAME;

/// Whether the kernel covers these arguments; otherwise what it lacks.
pub(super) fn uncovered(a: &NormForward<'_>) -> Option<String> {
    if a.kind != NormKind::Layer {
        return Some(" for RMS norm".into());
    }
    if a.dropout.is_some() {
        return Some(" with dropout".into());
    }
    let inputs = [Some(a.x), a.residual, Some(a.weight), a.bias];
    let outputs = [a.sum.as_ref(), Some(&a.y)];
    let types =
        inputs.iter().flatten().map(|view| view.dtype()).chain(outputs.into_iter().flatten().map(|view| view.dtype()));
    let other = types.into_iter().find(|dtype| *dtype != DType::F32)?;
    Some(format!(" for {other}"))
}

/// Queue the kernel, whose arguments have been checked and are covered.
pub(super) fn forward(module: &Module, stream: &Stream, a: NormForward<'_>) -> Result<()> {
    if a.rows == 0 {
        return Ok(());
    }
    let too_large = |what: &str, got: usize| Error::shape(NAME, what, format!("at most {}", i32::MAX), got);
    let rows =
        u32::try_from(a.rows).ok().filter(|rows| *rows <= i32::MAX as u32).ok_or_else(|| too_large("rows", a.rows))?;
    let columns = i32::try_from(a.columns).map_err(|_| too_large("columns", a.columns))?;
    let function = module.function(c"norm_forward_f32")?;
    let mut arguments = Arguments::default()
        .address(a.x.address())
        .address(a.residual.map_or(0, |view| view.address()))
        .address(a.sum.map_or(0, |view| view.address()))
        .address(a.weight.address())
        .address(a.bias.map_or(0, |view| view.address()))
        .address(a.y.address())
        .address(a.mean.map_or(0, |view| view.address()))
        .address(a.rstd.address())
        .int(columns)
        .float(a.epsilon);
    // SAFETY: the order is that of the kernel's signature. `check` saw that x, residual, sum and y hold rows x columns
    // elements, weight and bias `columns`, mean and rstd `rows`, that sum comes with the residual and mean with layer norm,
    // and that nothing written overlaps anything; `uncovered`, that all are f32. The memory stays valid until the stream
    // has run the kernel, because the pool gives it out again in lane order.
    unsafe { stream.launch(&function, rows, block_threads(a.columns), &mut arguments) }
}

/// Threads of a block: about four elements of a row for each, in whole warps.
fn block_threads(columns: usize) -> u32 {
    const WARP: usize = 32;
    const MOST: usize = 1024;
    columns.div_ceil(4).clamp(1, MOST).next_multiple_of(WARP) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_whole_warps_within_the_limit_of_the_device() {
        for columns in [1, 31, 32, 127, 128, 129, 768, 4095, 4096, 4097, 1 << 20] {
            let threads = block_threads(columns);
            assert!((32..=1024).contains(&threads) && threads.is_multiple_of(32), "{columns} columns: {threads}");
        }
        assert_eq!(block_threads(768), 192);
    }
}
