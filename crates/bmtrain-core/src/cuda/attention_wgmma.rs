//! Attention on products of warpgroups: when the kernels of `attention_wgmma.cu` serve a call, and their launch.
#![allow(unsafe_code)]

use super::attention::Arguments;
use super::driver::{Grid, Tensor, TensorMap};
use super::launch::{Launch, block_each};
use super::modules::Name;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::{AttentionForward, AttentionShape, Heads};

/// `kWarpgroupBlock`.
const THREADS: u32 = 384;

/// `kTileRows`.
const ROWS: usize = 128;

/// `kOperandColumns`.
const COLUMNS: usize = 64;

const ARGUMENTS: usize = 3 * size_of::<TensorMap>() + size_of::<Arguments>();

/// Padding at the end, from the alignment of tensor maps.
const PADDING: usize = ARGUMENTS.next_multiple_of(align_of::<TensorMap>()) - ARGUMENTS;

/// `WarpgroupArguments`.
#[derive(Debug, Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct WarpgroupArguments {
    q: TensorMap,
    k: TensorMap,
    v: TensorMap,
    attention: Arguments,
    padding: [u8; PADDING],
}

/// The kernel for heads of this size and dtype.
fn kernel(head_size: usize, dtype: DType) -> Option<Name> {
    macro_rules! name {
        ($head:literal, $number:literal) => {{
            const NAME: Name = Name::new(
                concat!("attention_wgmma_", $head, "_", $number),
                concat!("attention_wgmma_forward_", $head, "_", $number, "\0"),
            );
            Some(NAME)
        }};
    }
    match (head_size, dtype) {
        (64, DType::F16) => name!("64", "f16"),
        (64, DType::BF16) => name!("64", "bf16"),
        (128, DType::F16) => name!("128", "f16"),
        (128, DType::BF16) => name!("128", "bf16"),
        _ => None,
    }
}

/// The kernel for a forward pass without masks, documents, bias and dropout whose operands are aligned to 16 bytes, if
/// they were asked for, the device and its driver have what it needs and there is something to read.
pub(super) fn chosen(launch: &Launch<'_>, shape: AttentionShape, dtype: DType) -> Option<Name> {
    let serves = launch.options.warpgroup_attention
        && launch.capability == (9, 0)
        && TensorMap::is_known(launch.modules.context());
    let AttentionShape { batch, heads, queries, keys, head_size, .. } = shape;
    if !serves || [batch, heads, queries, keys].contains(&0) {
        return None;
    }
    kernel(head_size, dtype).filter(|name| launch.modules.has(name.unit))
}

/// Tensor map of `rows` rows of `count` heads each, in tiles.
fn map(
    launch: &Launch<'_>,
    heads: &Heads<'_>,
    batch: usize,
    rows: usize,
    count: usize,
    head_size: usize,
) -> Result<TensorMap> {
    let head = 2 * head_size;
    // A dimension of one element may have any stride in memory; in a map it begins after the one before it.
    let row = if rows == 1 { head * count } else { 2 * heads.row_stride };
    let sequence = if batch == 1 { row * rows } else { 2 * heads.batch_stride };
    let tensor = Tensor {
        address: heads.view.address(),
        dtype: heads.view.dtype(),
        size: [head_size, count, rows, batch],
        stride: [head, row, sequence],
        block: [COLUMNS as u32, 1, ROWS as u32, 1],
    };
    TensorMap::of(launch.modules.context(), &tensor)
}

/// Queue the kernel that was chosen.
///
/// # Safety
/// As for [`Launch::run`], and `attention` is made of `a`.
pub(super) unsafe fn forward(
    launch: &Launch<'_>,
    name: Name,
    op: &'static str,
    a: &AttentionForward<'_>,
    attention: Arguments,
) -> Result<()> {
    let AttentionShape { batch, heads, kv_heads, queries, keys, head_size } = a.inputs.shape;
    let arguments = WarpgroupArguments {
        q: map(launch, &a.inputs.q, batch, queries, heads, head_size)?,
        k: map(launch, &a.inputs.k, batch, keys, kv_heads, head_size)?,
        v: map(launch, &a.inputs.v, batch, keys, kv_heads, head_size)?,
        attention,
        padding: [0; PADDING],
    };
    let blocks = queries.div_ceil(ROWS).saturating_mul(batch * heads);
    // Queries, two tiles of keys and two of values, and room to begin at a multiple of 1024.
    let shared = 5 * ROWS * head_size * 2 + 1024;
    let grid = Grid { shared: shared as u32, ..Grid::line(block_each(op, "tiles", blocks)?, THREADS) };
    // SAFETY: promised by the caller; the maps describe the same memory, and copies read inside of their tensors alone.
    unsafe { launch.run(name, grid, arguments) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bmtrain_kernels::Unit;

    #[test]
    fn every_kernel_has_a_unit_for_its_architecture() {
        for head_size in [64, 128] {
            for dtype in [DType::F16, DType::BF16] {
                let name = kernel(head_size, dtype).unwrap();
                assert_eq!(Unit::named(name.unit).unwrap().only, Some("sm_90a"), "{name:?}");
            }
            assert!(kernel(head_size, DType::F32).is_none());
        }
        assert!(kernel(96, DType::F16).is_none());
    }
}
