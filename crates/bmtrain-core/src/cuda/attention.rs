//! Streaming attention: the launches of `attention.cu` and, where types, sizes and addresses allow, of
//! `attention_mma.cu` and `attention_wgmma.cu`.
#![allow(unsafe_code)]

use super::CudaOptions;
use super::attention_mma::{HEAD_SIZES, Kernels};
use super::attention_wgmma;
use super::driver::{Grid, Pattern};
use super::launch::{In, Launch, Mask as Dropped, PACK, arguments, block_each, long, tag};
use super::modules::Name;
use super::scratch::Taken;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{
    Arguments as _, AttentionBackward, AttentionForward, AttentionInputs, AttentionShape, Bias, Dest, Mask,
};
use crate::kernel::{Heads, HeadsMut};
use crate::view::View;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// `kTile` of attention.cu.
const TILE: usize = 64;

/// `kAttentionThreads`.
const THREADS: u32 = 256;

/// `Heads` of attention.cuh.
#[derive(Debug, Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct HeadsOf {
    data: u64,
    dtype: i32,
    add: i32,
    batch_stride: i64,
    row_stride: i64,
}

impl HeadsOf {
    const NONE: HeadsOf = HeadsOf { data: 0, dtype: 0, add: 0, batch_stride: 0, row_stride: 0 };

    fn read(heads: &Heads<'_>) -> Self {
        HeadsOf {
            data: heads.view.address(),
            dtype: tag(heads.view.dtype()),
            add: 0,
            batch_stride: heads.batch_stride as i64,
            row_stride: heads.row_stride as i64,
        }
    }

    fn written(heads: &HeadsMut<'_>) -> Self {
        HeadsOf {
            data: heads.view.address(),
            dtype: tag(heads.view.dtype()),
            add: i32::from(heads.add),
            batch_stride: heads.batch_stride as i64,
            row_stride: heads.row_stride as i64,
        }
    }

    /// Whether every row of every head is aligned to 16 bytes, if heads are multiples of [`PACK`].
    fn is_whole(&self) -> bool {
        let pack = PACK as i64;
        self.data.is_multiple_of(16) && self.batch_stride % pack == 0 && self.row_stride % pack == 0
    }
}

/// `AttentionArguments`.
#[derive(Debug, Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
pub(super) struct Arguments {
    q: HeadsOf,
    k: HeadsOf,
    v: HeadsOf,
    out: HeadsOf,
    dout: HeadsOf,
    dq: HeadsOf,
    dk: HeadsOf,
    dv: HeadsOf,
    lse: u64,
    delta: u64,
    mask: u64,
    documents: u64,
    bias: In,
    bias_strides: [i64; 3],
    dbias: u64,
    dropout: Dropped,
    batch: i32,
    heads: i32,
    kv_heads: i32,
    queries: i32,
    keys: i32,
    head_size: i32,
    mask_kind: i32,
    ahead: i32,
    window_shift: i32,
    whole: i32,
    in_turn: i32,
    scale: f32,
    soft_cap: f32,
    unused: i32,
}

impl AttentionInputs<'_> {
    /// Distances of sequences, heads and queries of the bias, whose elements can be counted.
    fn bias_strides(&self) -> [i64; 3] {
        let AttentionShape { heads, queries, keys, .. } = self.shape;
        let Some(Bias { per_sequence, per_query, .. }) = self.bias else { return [0; 3] };
        let head = if per_query { queries * keys } else { keys };
        [if per_sequence { heads * head } else { 0 }, head, if per_query { keys } else { 0 }]
            .map(|stride| stride as i64)
    }

    /// Keys after its own that a query sees; -1 where it sees all of them.
    fn ahead(&self) -> i32 {
        // More than there are queries hides no key.
        let ahead = self.keys_ahead().filter(|ahead| *ahead < self.shape.queries.max(1));
        ahead.and_then(|ahead| i32::try_from(ahead).ok()).unwrap_or(-1)
    }

    /// Distance from a query to the first key in its sliding window.
    fn window_shift(&self) -> i32 {
        let AttentionShape { queries, keys, .. } = self.shape;
        let own = keys as i64 + 1 - queries as i64;
        // Past all keys where it does not fit.
        self.window.and_then(|window| i32::try_from(own.checked_sub_unsigned(window as u64)?).ok()).unwrap_or(i32::MIN)
    }
}

impl Arguments {
    /// The inputs; outputs and what only a backward pass has are left out.
    fn new(op: &'static str, inputs: &AttentionInputs<'_>) -> Result<Self> {
        let AttentionShape { batch, heads, kv_heads, queries, keys, head_size } = inputs.shape;
        // Some room, so that the kernels may add a tile to a position.
        const MAX_SIZE: usize = i32::MAX as usize - 1024;
        let int = |what: &str, size: usize| match i32::try_from(size) {
            Ok(int) if size <= MAX_SIZE => Ok(int),
            _ => Err(Error::shape(op, what, format!("at most {MAX_SIZE}"), size)),
        };
        let (mask_kind, mask) = match &inputs.mask {
            Mask::None => (0, 0),
            Mask::Padding(view) => (1, view.address()),
            Mask::Full(view) => (2, view.address()),
        };
        Ok(Arguments {
            q: HeadsOf::read(&inputs.q),
            k: HeadsOf::read(&inputs.k),
            v: HeadsOf::read(&inputs.v),
            out: HeadsOf::NONE,
            dout: HeadsOf::NONE,
            dq: HeadsOf::NONE,
            dk: HeadsOf::NONE,
            dv: HeadsOf::NONE,
            lse: 0,
            delta: 0,
            mask,
            documents: inputs.documents.as_ref().map_or(0, View::address),
            bias: inputs.bias.as_ref().map_or(In::NONE, |bias| In::of(&bias.view)),
            bias_strides: inputs.bias_strides(),
            dbias: 0,
            dropout: Dropped::of(inputs.dropout.as_ref(), keys),
            batch: int("batch", batch)?,
            heads: int("heads", heads)?,
            kv_heads: int("kv heads", kv_heads)?,
            queries: int("queries", queries)?,
            keys: int("keys", keys)?,
            head_size: int("head size", head_size)?,
            mask_kind,
            ahead: inputs.ahead(),
            window_shift: inputs.window_shift(),
            whole: 0,
            in_turn: 1,
            scale: inputs.scale,
            soft_cap: inputs.soft_cap.unwrap_or(0.0),
            unused: 0,
        })
    }

    /// Decide whether heads are moved by accesses of 16 bytes, once all operands are there.
    fn finish(mut self) -> Self {
        let operands = [self.q, self.k, self.v, self.out, self.dout, self.dq, self.dk, self.dv];
        let aligned = operands.iter().all(HeadsOf::is_whole);
        self.whole = i32::from(aligned && self.head_size % PACK as i32 == 0);
        self
    }
}

/// The kernels on tensor cores for a call whose large operands have these types, and whether its plain ones do.
fn on_tensor_cores(
    launch: &Launch<'_>,
    inputs: &AttentionInputs<'_>,
    arguments: &Arguments,
    dtypes: &[DType],
) -> Option<(&'static Kernels, bool)> {
    let same = dtypes.windows(2).all(|pair| pair[0] == pair[1]);
    if !same || launch.capability < (8, 0) {
        return None;
    }
    let (head_size, dtype) = (inputs.shape.head_size, *dtypes.first()?);
    let Some(kernels) = Kernels::of(head_size, dtype) else {
        if dtype != DType::F32 {
            warn_of_head_size(head_size);
        }
        return None;
    };
    if arguments.whole == 0 {
        return None;
    }
    // Where scores are only compared, a negative scale would turn their order, and 0 make minus infinity a NaN.
    let plain = matches!(inputs.mask, Mask::None)
        && inputs.documents.is_none()
        && inputs.bias.is_none()
        && inputs.soft_cap.is_none()
        && !arguments.dropout.drops()
        && inputs.scale > 0.0;
    Some((kernels, plain))
}

/// Report once that heads of this size are computed without tensor cores.
fn warn_of_head_size(head_size: usize) {
    static TOLD: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());
    if TOLD.lock().unwrap_or_else(PoisonError::into_inner).insert(head_size) {
        tracing::warn!(
            "attention with heads of {head_size} runs without tensor cores, which serve heads of {HEAD_SIZES:?}"
        );
    }
}

/// The two widths of results that a kernel is made for.
struct Widths {
    narrow: Name,
    wide: Name,
}

const fn simt(narrow: &'static std::ffi::CStr, wide: &'static std::ffi::CStr) -> Widths {
    Widths { narrow: Name { unit: "attention", kernel: narrow }, wide: Name { unit: "attention", kernel: wide } }
}

const FORWARD: Widths = simt(c"attention_forward_64", c"attention_forward_128");
const QUERIES: Widths = simt(c"attention_backward_queries_64", c"attention_backward_queries_128");
const KEYS: Widths = simt(c"attention_backward_keys_64", c"attention_backward_keys_128");
const BIAS_SUM: Name = Name { unit: "attention", kernel: c"attention_bias_sum" };

impl Widths {
    /// The kernel for a head, with a block for each tile of `rows` of each of `heads` and each piece of the head.
    fn pick(&self, op: &'static str, rows: usize, heads: usize, head_size: usize) -> Result<(Name, Grid)> {
        let (name, width) = if head_size <= 64 { (self.narrow, 64) } else { (self.wide, 128) };
        let tiles = rows.div_ceil(TILE);
        let blocks = tiles.checked_mul(head_size.div_ceil(width)).and_then(|blocks| blocks.checked_mul(heads));
        Ok((name, Grid::line(block_each(op, "tiles", blocks.unwrap_or(usize::MAX))?, THREADS)))
    }
}

pub(super) fn forward(launch: &Launch<'_>, a: AttentionForward<'_>) -> Result<()> {
    let (op, shape) = (AttentionForward::NAME, a.inputs.shape);
    let arguments =
        Arguments { out: HeadsOf::written(&a.out), lse: a.lse.address(), ..Arguments::new(op, &a.inputs)? }.finish();
    let dtypes = [a.inputs.q.view.dtype(), a.inputs.k.view.dtype(), a.inputs.v.view.dtype(), a.out.view.dtype()];
    let (rows, heads) = (shape.queries, shape.batch * shape.heads);
    let (name, grid) = match on_tensor_cores(launch, &a.inputs, &arguments, &dtypes) {
        Some((kernels, plain)) => {
            if plain && let Some(name) = attention_wgmma::chosen(launch, shape, dtypes[0]) {
                // SAFETY: as below.
                return unsafe { attention_wgmma::forward(launch, name, op, &a, arguments) };
            }
            kernels.forward(op, plain, rows, heads)?
        }
        None => FORWARD.pick(op, rows, heads, shape.head_size)?,
    };
    // SAFETY: laid out as in attention.cuh. `check` saw that heads, mask, documents, bias and lse are as large as the
    // shape and strides make them, and that nothing written overlaps anything. The memory stays valid until the lane
    // has run the kernel, because the pool gives it out in lane order.
    unsafe { launch.run(name, grid, arguments) }
}

/// Division of the sequences that share the gradient of a bias: by the sizes alone, so that every device adds in the
/// same order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BiasGroups {
    /// Sequences of a group, which one block takes in turn.
    in_turn: usize,
    groups: usize,
    len: usize,
}

impl BiasGroups {
    /// A group for each sequence where each has a gradient of its own or there is none.
    fn new(shape: AttentionShape, shared: bool) -> Self {
        /// Most groups of sequences that share a gradient.
        const MAX_GROUPS: usize = 4;
        /// Blocks that keep a large device busy.
        const BLOCKS: usize = 512;
        /// Most bytes of sums of groups.
        const BYTES: usize = 64 << 20;
        let AttentionShape { batch, heads, queries, keys, .. } = shape;
        if !shared {
            return BiasGroups { in_turn: 1, groups: batch, len: 0 };
        }
        let len = heads * queries * keys;
        let few_blocks = BLOCKS / (heads * queries.div_ceil(TILE)).max(1);
        let that_fit = BYTES / (len * size_of::<f32>()).max(1);
        let in_turn = batch.div_ceil(few_blocks.min(that_fit).clamp(1, MAX_GROUPS)).max(1);
        BiasGroups { in_turn, groups: batch.div_ceil(in_turn), len }
    }
}

/// Sums of the gradient of the bias by the kernels for queries, cleared where they have to be.
struct BiasSums<'l, 'a> {
    groups: BiasGroups,
    address: u64,
    /// Sums of several groups, and the destination of their total.
    several: Option<(Taken<'l>, Dest<'a>)>,
}

impl<'l, 'a> BiasSums<'l, 'a> {
    fn new(launch: &Launch<'l>, shape: AttentionShape, shared: bool, dbias: Option<Dest<'a>>) -> Result<Self> {
        let groups = BiasGroups::new(shape, shared && dbias.is_some());
        let Some(dest) = dbias else {
            return Ok(BiasSums { groups, address: 0, several: None });
        };
        if shared && groups.groups > 1 {
            let count = groups.groups * groups.len;
            let sums = launch.scratch.take(count * size_of::<f32>())?;
            let address = sums.address();
            if count > 0 {
                // SAFETY: scratch memory of that length, which no other launch of this lane uses before these have run.
                unsafe { launch.stream.fill(address, Pattern::Word(0), count) }?;
            }
            return Ok(BiasSums { groups, address, several: Some((sums, dest)) });
        }
        let address = dest.view.address();
        if !dest.add && !dest.view.is_empty() {
            // SAFETY: f32 memory of the view's length, valid until the lane has run the fill, because the pool gives it
            // out in lane order.
            unsafe { launch.stream.fill(address, Pattern::Word(0), dest.view.len()) }?;
        }
        Ok(BiasSums { groups, address, several: None })
    }

    /// Queue the sum over the groups, after the kernels that made them.
    fn finish(self, launch: &Launch<'_>) -> Result<()> {
        let Some((sums, dest)) = self.several else {
            return Ok(());
        };
        let BiasGroups { groups, len, .. } = self.groups;
        let arguments = arguments!(BiasSumArguments {
            partials: u64 = sums.address(),
            dbias: u64 = dest.view.address(),
            count: i64 = long(AttentionBackward::NAME, "bias", len)?,
            groups: i32 = groups as i32,
            add: i32 = i32::from(dest.add),
        });
        let grid = Grid::line(launch.blocks(len.div_ceil(THREADS as usize)), THREADS);
        // SAFETY: laid out as in attention.cu. The scratch memory holds `groups` times `len` sums, and `check` saw that
        // the gradient of a shared bias holds `len`. The memory stays valid until the lane has run the kernel.
        unsafe { launch.run(BIAS_SUM, grid, arguments) }
    }
}

pub(super) fn backward(launch: &Launch<'_>, a: AttentionBackward<'_>) -> Result<()> {
    let (op, shape) = (AttentionBackward::NAME, a.inputs.shape);
    let shared = a.inputs.bias.as_ref().is_some_and(|bias| !bias.per_sequence);
    let sums = BiasSums::new(launch, shape, shared, a.dbias)?;
    let arguments = Arguments {
        out: HeadsOf::read(&a.out),
        dout: HeadsOf::read(&a.dout),
        dq: HeadsOf::written(&a.dq),
        dk: HeadsOf::written(&a.dk),
        dv: HeadsOf::written(&a.dv),
        lse: a.lse.address(),
        delta: a.delta.address(),
        dbias: sums.address,
        in_turn: sums.groups.in_turn as i32,
        ..Arguments::new(op, &a.inputs)?
    }
    .finish();
    let AttentionShape { batch, heads, kv_heads, queries, keys, head_size } = shape;
    let groups = sums.groups.groups;
    let read = [&a.inputs.q, &a.inputs.k, &a.inputs.v, &a.out, &a.dout].map(|heads| heads.view.dtype());
    let written = [&a.dq, &a.dk, &a.dv].map(|heads| heads.view.dtype());
    let dtypes: Vec<DType> = read.into_iter().chain(written).collect();
    let (for_queries, for_keys) = match on_tensor_cores(launch, &a.inputs, &arguments, &dtypes) {
        Some((kernels, plain)) => {
            let CudaOptions { wide_queries, wide_keys, .. } = *launch.options;
            (
                kernels.backward(op, kernels.queries, (plain, wide_queries), (queries, groups * heads))?,
                kernels.backward(op, kernels.keys, (plain, wide_keys), (keys, batch * kv_heads))?,
            )
        }
        None => {
            (QUERIES.pick(op, queries, groups * heads, head_size)?, KEYS.pick(op, keys, batch * kv_heads, head_size)?)
        }
    };
    // SAFETY: laid out as in attention.cuh. `check` saw that heads, mask, documents, bias, dbias, lse and delta are as
    // large as the shape and strides make them, and that nothing written overlaps anything. The memory stays valid
    // until the lane has run the kernels, because the pool gives it out in lane order; the lane runs them in this
    // order, and so the kernel for keys finds the deltas that the one for queries makes.
    unsafe { launch.run(for_queries.0, for_queries.1, arguments) }?;
    sums.finish(launch)?;
    // SAFETY: as above.
    unsafe { launch.run(for_keys.0, for_keys.1, arguments) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_that_share_a_gradient_are_divided_by_sizes_that_fit() {
        let of = |batch, heads, queries, keys| {
            let shape = AttentionShape { batch, heads, kv_heads: heads, queries, keys, head_size: 64 };
            let BiasGroups { in_turn, groups, .. } = BiasGroups::new(shape, true);
            assert!(in_turn * groups >= batch && in_turn * groups.saturating_sub(1) < batch.max(1));
            (in_turn, groups)
        };
        assert_eq!(of(8, 12, 512, 512), (2, 4));
        assert_eq!(of(5, 12, 512, 512), (2, 3));
        // Blocks enough.
        assert_eq!(of(8, 32, 1024, 128), (8, 1));
        // Sums too large.
        assert_eq!(of(8, 16, 1000, 2048), (8, 1));
        assert_eq!([of(0, 12, 512, 512), of(1, 12, 512, 512), of(3, 0, 0, 0)], [(1, 0), (1, 1), (1, 3)]);
        let shape = AttentionShape { batch: 8, heads: 1, kv_heads: 1, queries: 5, keys: 7, head_size: 64 };
        assert_eq!(BiasGroups::new(shape, false), BiasGroups { in_turn: 1, groups: 8, len: 0 });
    }
}
