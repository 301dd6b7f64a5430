//! Quantises a matrix to NF4, for comparisons with other programs.
//!
//!     nf4 VALUES OUT
//!
//! VALUES has single-precision numbers, little endian, a multiple of 64 of them. OUT gets, one after the other, the
//! parts of [`Nf4`] (codes, scale codes, scales and offset) and the dequantised values. Called by
//! `scripts/claims/qlora.py`.

use bmtrain_core::BlockFormat;
use bmtrain_core::quantised::{Nf4, dequantise};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [values, out] = arguments.as_slice() else {
        eprintln!("error: nf4\n  reason: it takes two files\n  fix: nf4 VALUES OUT");
        return ExitCode::from(2);
    };
    match quantise(values, out) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {values}\n  reason: {error}\n  fix: give two files that can be read and written");
            ExitCode::FAILURE
        }
    }
}

fn quantise(values: &str, out: &str) -> std::io::Result<()> {
    let bytes = std::fs::read(values)?;
    let values: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let quantised = Nf4::quantise(&values);
    let mut numbers = quantised.scales.clone();
    numbers.push(quantised.offset);
    let first = numbers.len();
    numbers.resize(first + values.len(), 0.0);
    dequantise(BlockFormat::NF4, &quantised.blocks(), &mut numbers[first..]);
    let numbers: Vec<u8> = numbers.iter().flat_map(|value| value.to_le_bytes()).collect();
    std::fs::write(out, [quantised.codes, quantised.scale_codes, numbers].concat())
}
