//! Casts between dtypes.

use super::{PIECE, each};
use crate::cpu::access::read;
use crate::cpu::floats::{Floats, FloatsMut, Spare, not_a_float, tiles};
use crate::dtype::{DType, Element};
use crate::error::Result;
use crate::kernel::Cast;
use crate::simd::vectorised;
use crate::threads::Threads;

const NAME: &str = "cast";

pub(in crate::cpu) fn cast(threads: &Threads, a: Cast<'_>) -> Result<()> {
    let (add, out) = (a.out.add, FloatsMut::of(NAME, a.out.view)?);
    match a.x.dtype() {
        DType::F32 | DType::F16 | DType::BF16 => {
            let x = Floats::of(NAME, a.x)?;
            each(threads, [x], out, add, |[x], out| if add { added(x, out) } else { out.copy_from_slice(x) });
        }
        DType::I64 => integers::<i64>(threads, read(NAME, a.x)?, out, add, |x| x),
        DType::I32 => integers::<i32>(threads, read(NAME, a.x)?, out, add, i64::from),
        DType::U8 => integers::<u8>(threads, read(NAME, a.x)?, out, add, i64::from),
        got @ DType::Blocks(_) => return Err(not_a_float(NAME, got)),
    }
    Ok(())
}

vectorised! {
    fn added<I>(x: &[f32], out: &mut [f32]) {
        for (out, x) in out.iter_mut().zip(x) {
            *out += x;
        }
    }
}

fn integers<T: Element>(
    threads: &Threads,
    x: &[T],
    out: FloatsMut<'_>,
    add: bool,
    widen: impl Fn(T) -> i64 + Send + Sync,
) {
    let (len, narrow) = (out.len(), !matches!(out, FloatsMut::F32(_)));
    threads.for_each_part(out.rows(1), len, PIECE, |first, len, mut out| {
        let mut spare = Spare::new();
        for (start, len) in tiles(len) {
            let x = &x[first + start..first + start + len];
            out.data.update(start, len, add, &mut spare, |out| {
                for (out, x) in out.iter_mut().zip(x) {
                    let x = widen(*x);
                    let value = if narrow { to_odd(x) } else { x as f32 };
                    *out = if add { *out + value } else { value };
                }
            });
        }
    });
}

/// An integer as f32, rounded so that a second rounding to a 16-bit type gives what one rounding would: bits that are
/// lost leave their trace in the last bit that is kept.
fn to_odd(x: i64) -> f32 {
    let size = x.unsigned_abs();
    let lost = (64 - size.leading_zeros()).saturating_sub(24);
    let trace = u64::from(size & ((1 << lost) - 1) != 0);
    let kept = (((size >> lost) | trace) << lost) as f32;
    if x < 0 { -kept } else { kept }
}
