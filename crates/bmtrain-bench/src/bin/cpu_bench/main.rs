//! Times parts of the CPU backend: a subcommand for each. `BMTRAIN_CPU` names the instruction set: portable, neon,
//! neon_bf16, avx2, avx512, avx512_bf16, amx.

mod attention;
mod gemm;
mod nf4;
mod optimizer;

use anyhow::Result;
use clap::Parser;

/// Time parts of the CPU backend.
///
/// Example: cpu_bench gemm "bert up" --threads 2
#[derive(Debug, Parser)]
enum Part {
    /// Matrix products for the shapes of BERT-base and MiniLM, beside the multiply-add peak.
    Gemm(gemm::Options),
    /// Attention, beside the multiply-add peak.
    Attention(attention::Options),
    /// A step of Adam, with its state on the device or on the host.
    Optimizer(optimizer::Options),
    /// Quantise a matrix to NF4, for comparisons with other programs.
    Nf4(nf4::Options),
}

fn main() -> Result<()> {
    match Part::parse() {
        Part::Gemm(options) => gemm::run(&options),
        Part::Attention(options) => attention::run(&options),
        Part::Optimizer(options) => optimizer::run(&options),
        Part::Nf4(options) => nf4::run(&options),
    }
}
