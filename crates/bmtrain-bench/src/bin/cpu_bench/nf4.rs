//! Quantises a matrix to NF4, for comparisons with other programs. Called by `scripts/claims/qlora.py`.

use anyhow::{Context, Result};
use bmtrain_core::BlockFormat;
use bmtrain_core::quantised::{Nf4, dequantise};
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Single-precision numbers, little endian, a multiple of 64 of them.
    values: PathBuf,
    /// Gets one after the other: codes, scale codes, scales and offset, and the dequantised values.
    out: PathBuf,
}

pub(super) fn run(options: &Options) -> Result<()> {
    let Options { values, out } = options;
    let bytes = std::fs::read(values).with_context(|| values.display().to_string())?;
    let values: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let quantised = Nf4::quantise(&values);
    let mut numbers = quantised.scales.clone();
    numbers.push(quantised.offset);
    let first = numbers.len();
    numbers.resize(first + values.len(), 0.0);
    dequantise(BlockFormat::NF4, &quantised.blocks(), &mut numbers[first..]);
    let numbers: Vec<u8> = numbers.iter().flat_map(|value| value.to_le_bytes()).collect();
    let parts = [quantised.codes, quantised.scale_codes, numbers].concat();
    std::fs::write(out, parts).with_context(|| out.display().to_string())
}
