//! Attention on tensor cores: which kernels of `attention_mma.cu` there are, and what they are launched with.

use super::driver::Grid;
use super::launch::block_each;
use super::modules::Name;
use crate::dtype::DType;
use crate::error::Result;

/// `kMmaThreads`.
const THREADS: u32 = 128;

#[derive(Debug, Clone, Copy)]
struct Pair {
    plain: Name,
    general: Name,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Kernels {
    head_size: usize,
    forward: Pair,
    /// The gradients of queries, and of the bias.
    pub(super) queries: Gradients,
    /// The gradients of keys and values.
    pub(super) keys: Gradients,
}

/// The kernels of one part of the backward pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gradients {
    ordinary: Pair,
    /// Kernel of the plain kind, with two bands a warp.
    wide: Option<Name>,
}

/// One of the passes of a head size, as `Plan` in attention_mma.cu.
#[derive(Debug, Clone, Copy)]
struct PassShape {
    rows: usize,
    /// Rows in shared memory: the block's own, and the tile that is streamed.
    shared: usize,
}

impl PassShape {
    /// A block's rows in bands of 16 for each of four warps, in `own` tiles; two tiles of `others` rows in two buffers.
    const fn new(bands: usize, own: usize, others: usize) -> Self {
        let rows = 64 * bands;
        PassShape { rows, shared: own * rows + 4 * others }
    }
}

/// Head sizes that there are kernels for.
pub(super) const HEAD_SIZES: [usize; 5] = [32, 64, 80, 96, 128];

impl Kernels {
    /// The kernels for heads that all have this size and dtype.
    pub(super) fn of(head_size: usize, dtype: DType) -> Option<&'static Kernels> {
        let known = match dtype {
            DType::F16 => &F16,
            DType::BF16 => &BF16,
            _ => return None,
        };
        known.iter().find(|kernels| kernels.head_size == head_size)
    }

    /// The forward pass, for `heads` heads with `rows` queries each.
    pub(super) fn forward(&self, op: &'static str, plain: bool, rows: usize, heads: usize) -> Result<(Name, Grid)> {
        let keys = if self.head_size <= 80 { 64 } else { 32 };
        self.launch(op, self.forward.of(plain), PassShape::new(2, 1, keys), (rows, heads))
    }

    /// The gradients of `rows` queries, or keys and values, of each of `heads` heads; by wide kernels if they are there
    /// and wanted.
    pub(super) fn backward(
        &self,
        op: &'static str,
        Gradients { ordinary, wide }: Gradients,
        (plain, wants_wide): (bool, bool),
        (rows, heads): (usize, usize),
    ) -> Result<(Name, Grid)> {
        let wide = wide.filter(|_| plain && wants_wide);
        // `kBackwardBands`.
        let bands = if self.head_size <= 32 || wide.is_some() { 2 } else { 1 };
        self.launch(op, wide.unwrap_or(ordinary.of(plain)), PassShape::new(bands, 2, 32), (rows, heads))
    }

    fn launch(
        &self,
        op: &'static str,
        name: Name,
        plan: PassShape,
        (rows, heads): (usize, usize),
    ) -> Result<(Name, Grid)> {
        let blocks = rows.div_ceil(plan.rows).saturating_mul(heads);
        // `kRow` elements of 16 bits.
        let shared = plan.shared * (self.head_size + 8) * 2;
        let grid = Grid { shared: shared as u32, ..Grid::line(block_each(op, "tiles", blocks)?, THREADS) };
        Ok((name, grid))
    }
}

impl Pair {
    fn of(self, plain: bool) -> Name {
        if plain { self.plain } else { self.general }
    }
}

/// The kernels of some head sizes in one dtype, with wide ones besides for those that are marked.
macro_rules! kernels {
    ($number:literal: $($head:literal $($wide:ident)?),+) => { [$(kernels!(@head $head, $number $(, $wide)?)),+] };
    (@head $head:literal, $number:literal $(, $wide:ident)?) => {
        Kernels {
            head_size: $head,
            forward: kernels!(@pair "forward", $head, $number),
            queries: Gradients {
                ordinary: kernels!(@pair "backward_queries", $head, $number),
                wide: kernels!(@wide "queries_plain", $head, $number $(, $wide)?),
            },
            keys: Gradients {
                ordinary: kernels!(@pair "backward_keys", $head, $number),
                wide: kernels!(@wide "keys_plain", $head, $number $(, $wide)?),
            },
        }
    };
    (@pair $stem:literal, $head:literal, $number:literal) => {
        Pair {
            plain: kernels!(@name "attention_mma_", concat!($stem, "_plain"), $head, $number),
            general: kernels!(@name "attention_mma_", concat!($stem, "_general"), $head, $number),
        }
    };
    (@wide $stem:literal, $head:literal, $number:literal) => { None };
    (@wide $stem:literal, $head:literal, $number:literal, wide) => {
        Some(kernels!(@name "attention_mma_wide_", $stem, $head, $number))
    };
    (@name $unit:literal, $stem:expr, $head:literal, $number:literal) => {
        Name::new(concat!($unit, $head, "_", $number), concat!($unit, $stem, "_", $head, "_", $number, "\0"))
    };
}

static F16: [Kernels; 5] = kernels!("f16": 32, 64 wide, 80, 96, 128);
static BF16: [Kernels; 5] = kernels!("bf16": 32, 64 wide, 80, 96, 128);

#[cfg(test)]
mod tests {
    use super::*;
    use bmtrain_kernels::Unit;

    #[test]
    fn every_pair_of_head_size_and_type_has_a_unit() {
        for dtype in [DType::F16, DType::BF16] {
            for head_size in HEAD_SIZES {
                let kernels = Kernels::of(head_size, dtype).unwrap();
                let backward = [kernels.queries, kernels.keys];
                let pairs = backward.iter().map(|gradients| gradients.ordinary).chain([kernels.forward]);
                let names = pairs.flat_map(|pair| [pair.plain, pair.general]);
                for name in names.chain(backward.iter().filter_map(|gradients| gradients.wide)) {
                    assert!(Unit::named(name.unit).is_some(), "{name:?}");
                }
            }
            assert!(Kernels::of(48, dtype).is_none());
        }
        assert!(Kernels::of(64, DType::F32).is_none());
    }

    #[test]
    fn shared_memory_is_what_every_device_with_these_instructions_has() {
        /// The least of compute capabilities 8.0 to 12.0, less what kernels have besides.
        const LEAST: u32 = (99 << 10) - 1024;
        for kernels in &BF16 {
            let kinds = [(true, false), (true, true)];
            let backward =
                kinds.map(|kind| [kernels.queries, kernels.keys].map(|of| kernels.backward("", of, kind, (1, 1))));
            for launch in backward.into_iter().flatten().chain([kernels.forward("", true, 1, 1)]) {
                let (name, grid) = launch.unwrap();
                assert!(grid.shared <= LEAST, "{name:?}: {}", grid.shared);
            }
        }
    }
}
