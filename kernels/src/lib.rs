//! The CUDA C++ sources of BMTrain, carried as strings so that every crate can be packaged alone.
//!
//! Nothing is compiled here: `bmtrain-core` hands a text to the run-time compiler of the device it runs on, and its
//! tests compile the same text for the processor. Each [`Source`] is one `.cu` file beside this crate's manifest, named
//! after the stem of its kernels in `bmtrain-core`; a [`Unit`] is what is compiled at once: a source, with values for
//! the macros it leaves undefined.
#![forbid(unsafe_code)]

/// A file that precedes sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Name of the file, the one that compilers report.
    pub file: &'static str,
    /// Its text.
    pub code: &'static str,
}

/// The headers of every source, in this order, without includes.
pub const HEADERS: &[Header] = &[
    Header { file: "prelude.cuh", code: include_str!("../prelude.cuh") },
    Header { file: "numbers.cuh", code: include_str!("../numbers.cuh") },
    Header { file: "philox.cuh", code: include_str!("../philox.cuh") },
];

/// Activations and their derivatives.
const ACTIVATIONS: Header = Header { file: "activations.cuh", code: include_str!("../activations.cuh") };

/// Numbers of 8 bits.
const FP8_WORDS: Header = Header { file: "fp8.cuh", code: include_str!("../fp8.cuh") };

/// Loops over packs.
const PACKS: Header = Header { file: "packs.cuh", code: include_str!("../packs.cuh") };

/// Loops over rows in units of one size.
const UNITS_OF_ROWS: Header = Header { file: "units.cuh", code: include_str!("../units.cuh") };

/// Sums that are exact.
const EXACT: Header = Header { file: "exact.cuh", code: include_str!("../exact.cuh") };

/// Several runs of elements in one launch.
const RUNS: Header = Header { file: "runs.cuh", code: include_str!("../runs.cuh") };

/// What the sources of optimizers have in common.
const STEPS: Header = Header { file: "steps.cuh", code: include_str!("../steps.cuh") };

/// What the sources of attention have in common.
const ATTENTION_WORDS: Header = Header { file: "attention.cuh", code: include_str!("../attention.cuh") };

/// What the kernels of cross-entropy have in common.
const CROSS_ENTROPY_WORDS: Header = Header { file: "cross_entropy.cuh", code: include_str!("../cross_entropy.cuh") };

/// Fragments, their products and asynchronous copies.
const TENSOR_CORE_WORDS: Header = Header { file: "mma.cuh", code: include_str!("../mma.cuh") };

/// Tiles of attention on tensor cores.
const ATTENTION_TILES: Header = Header { file: "attention_tiles.cuh", code: include_str!("../attention_tiles.cuh") };

/// Scores of attention on tensor cores, and their softmax.
const ATTENTION_SCORES: Header = Header { file: "attention_scores.cuh", code: include_str!("../attention_scores.cuh") };

/// Products of a warpgroup, copies of boxes of tensors.
const WARPGROUP_WORDS: Header = Header { file: "wgmma.cuh", code: include_str!("../wgmma.cuh") };

/// Adam with moments in 8 bits.
pub const ADAM_8BIT: Source =
    Source { file: "adam_8bit.cu", headers: &[RUNS, STEPS], code: include_str!("../adam_8bit.cu") };

/// Attention for every head size and dtype.
pub const ATTENTION: Source =
    Source { file: "attention.cu", headers: &[ATTENTION_WORDS], code: include_str!("../attention.cu") };

/// Attention on tensor cores, for one head size and one 16-bit type.
pub const ATTENTION_MMA: Source = Source {
    file: "attention_mma.cu",
    headers: &[ATTENTION_WORDS, TENSOR_CORE_WORDS, ATTENTION_TILES, ATTENTION_SCORES],
    code: include_str!("../attention_mma.cu"),
};

/// Attention on products of warpgroups, for one head size and one 16-bit type.
pub const ATTENTION_WGMMA: Source = Source {
    file: "attention_wgmma.cu",
    headers: &[ATTENTION_WORDS, TENSOR_CORE_WORDS, ATTENTION_TILES, ATTENTION_SCORES, WARPGROUP_WORDS],
    code: include_str!("../attention_wgmma.cu"),
};

/// Cross-entropy over a whole vocabulary and over shards of its classes.
pub const CROSS_ENTROPY: Source =
    Source { file: "cross_entropy.cu", headers: &[CROSS_ENTROPY_WORDS], code: include_str!("../cross_entropy.cu") };

/// Activations, gated activations, sums, products, casts, fills.
pub const ELEMENTWISE: Source =
    Source { file: "elementwise.cu", headers: &[ACTIVATIONS, PACKS], code: include_str!("../elementwise.cu") };

/// Rows of tables by their ids, and the gradients of tables.
pub const EMBEDDING: Source =
    Source { file: "embedding.cu", headers: &[UNITS_OF_ROWS], code: include_str!("../embedding.cu") };

/// Factors of matrix products in 8 bits.
pub const FP8: Source =
    Source { file: "fp8.cu", headers: &[UNITS_OF_ROWS, FP8_WORDS], code: include_str!("../fp8.cu") };

/// What is done to matrix products beside the product itself.
pub const GEMM: Source = Source { file: "gemm.cu", headers: &[ACTIVATIONS], code: include_str!("../gemm.cu") };

/// Totals of losses, scaling of gradients and squared error.
pub const LOSS: Source = Source { file: "loss.cu", headers: &[PACKS], code: include_str!("../loss.cu") };

/// Layer norm and RMS norm after dropout and residual, and their gradients.
pub const NORM: Source = Source { file: "norm.cu", headers: &[], code: include_str!("../norm.cu") };

/// Clipping and Adam.
pub const OPTIMIZER: Source =
    Source { file: "optimizer.cu", headers: &[EXACT, RUNS, STEPS], code: include_str!("../optimizer.cu") };

/// Instructions of inline assembly by themselves.
pub const PROBE: Source =
    Source { file: "probe.cu", headers: &[TENSOR_CORE_WORDS, FP8_WORDS], code: include_str!("../probe.cu") };

/// Dropout and initial values.
pub const RANDOM: Source = Source { file: "random.cu", headers: &[], code: include_str!("../random.cu") };

/// Sums over rows, softmax, norms of gradients.
pub const REDUCE: Source = Source { file: "reduce.cu", headers: &[EXACT, RUNS], code: include_str!("../reduce.cu") };

/// Permutations, rows from one place to another.
pub const ROWS: Source = Source { file: "rows.cu", headers: &[UNITS_OF_ROWS], code: include_str!("../rows.cu") };

/// Rotary positions.
pub const ROTARY: Source = Source { file: "rotary.cu", headers: &[UNITS_OF_ROWS], code: include_str!("../rotary.cu") };

/// Optimizers that update each element by itself, Adam apart.
pub const UPDATE: Source = Source { file: "update.cu", headers: &[RUNS, STEPS], code: include_str!("../update.cu") };

/// A source of attention for a head size and a dtype.
macro_rules! attention {
    (mma $head:literal, $number:literal) => {
        attention!("attention_mma_", ATTENTION_MMA, None, $head, $number)
    };
    (mma_wide $head:literal, $number:literal) => {
        attention!("attention_mma_wide_", ATTENTION_MMA, None, $head, $number, ("ATTENTION_WIDE", "1"))
    };
    (wgmma $head:literal, $number:literal) => {
        attention!("attention_wgmma_", ATTENTION_WGMMA, Some("sm_90a"), $head, $number)
    };
    ($stem:literal, $source:ident, $only:expr, $head:literal, $number:literal $(, $define:expr)?) => {
        Unit {
            name: concat!($stem, $head, "_", $number),
            source: &$source,
            defines: &[("ATTENTION_HEAD", $head), ("ATTENTION_NUMBER", $number) $(, $define)?],
            only: $only,
        }
    };
}

/// Every unit, in the order of their names.
pub const UNITS: &[Unit] = &[
    Unit::plain("adam_8bit", &ADAM_8BIT),
    Unit::plain("attention", &ATTENTION),
    attention!(mma "128", "bf16"),
    attention!(mma "128", "f16"),
    attention!(mma "32", "bf16"),
    attention!(mma "32", "f16"),
    attention!(mma "64", "bf16"),
    attention!(mma "64", "f16"),
    attention!(mma "80", "bf16"),
    attention!(mma "80", "f16"),
    attention!(mma "96", "bf16"),
    attention!(mma "96", "f16"),
    attention!(mma_wide "64", "bf16"),
    attention!(mma_wide "64", "f16"),
    attention!(wgmma "128", "bf16"),
    attention!(wgmma "128", "f16"),
    attention!(wgmma "64", "bf16"),
    attention!(wgmma "64", "f16"),
    Unit::plain("cross_entropy", &CROSS_ENTROPY),
    Unit::plain("elementwise", &ELEMENTWISE),
    Unit::plain("embedding", &EMBEDDING),
    Unit::plain("fp8", &FP8),
    Unit::plain("gemm", &GEMM),
    Unit::plain("loss", &LOSS),
    Unit::plain("norm", &NORM),
    Unit::plain("optimizer", &OPTIMIZER),
    Unit::plain("probe", &PROBE),
    Unit::plain("random", &RANDOM),
    Unit::plain("reduce", &REDUCE),
    Unit::plain("rotary", &ROTARY),
    Unit::plain("rows", &ROWS),
    Unit::plain("update", &UPDATE),
];

/// One file of CUDA C++.
#[derive(Debug, PartialEq, Eq)]
pub struct Source {
    /// Name of the file, the one that compilers report.
    pub file: &'static str,
    /// What it needs besides [`HEADERS`], in order.
    pub headers: &'static [Header],
    /// Its text.
    pub code: &'static str,
}

/// What is compiled at once, to one module of kernels.
#[derive(Debug, Clone, Copy)]
pub struct Unit {
    /// Unique; the name of compiled files.
    pub name: &'static str,
    /// The source.
    pub source: &'static Source,
    /// Macros that the source leaves undefined, and their values.
    pub defines: &'static [(&'static str, &'static str)],
    /// The architecture whose instructions it needs, as compilers call it; none where every one has them that the
    /// kernels are written for.
    pub only: Option<&'static str>,
}

impl Unit {
    /// A source without undefined macros.
    const fn plain(name: &'static str, source: &'static Source) -> Self {
        Unit { name, source, defines: &[], only: None }
    }

    /// The unit of a name.
    pub fn named(name: &str) -> Option<&'static Unit> {
        UNITS.iter().find(|unit| unit.name == name)
    }

    /// The whole text for a compiler: a comment with the architecture that it is for alone, if there is one, what is
    /// defined, the headers, then the code, with lines counted as in their files.
    pub fn text(&self) -> String {
        let mut text = self.only.map(|only| format!("// for {only} alone\n")).unwrap_or_default();
        text.extend(self.defines.iter().map(|(name, value)| format!("#define {name} {value}\n")));
        for header in HEADERS.iter().chain(self.source.headers) {
            text += &format!("#line 1 \"{}\"\n{}\n", header.file, header.code);
        }
        text + &format!("#line 1 \"{}\"\n{}", self.source.file, self.source.code)
    }
}

/// The example of the README is compiled and run with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_includes_a_header() {
        // The run-time compiler is given no directory to look in.
        for unit in UNITS {
            assert!(!unit.text().contains("#include"), "{}", unit.name);
        }
    }

    #[test]
    fn names_are_unique_and_sorted() {
        assert!(UNITS.windows(2).all(|pair| pair[0].name < pair[1].name));
    }

    #[test]
    fn every_source_makes_its_kernels_known_to_the_emulator() {
        for unit in UNITS {
            let code = unit.source.code;
            assert!(code.contains("BMTRAIN_KERNEL(") || code.contains("TYPED_KERNEL("), "{}", unit.name);
        }
    }

    #[test]
    fn the_text_keeps_the_lines_of_the_file() {
        let text = UNITS[0].text();
        let (_, code) = text.split_once(&format!("#line 1 \"{}\"\n", UNITS[0].source.file)).unwrap();
        assert_eq!(code, UNITS[0].source.code);
    }
}
