//! The instructions that the kernels write as inline assembly, compared with the host's arithmetic: the launches of
//! `probe.cu`.
//!
//! The emulator has functions in place of these instructions, so only a device shows that what is written does what is
//! meant. The order of sums in a tensor core is not specified: the fragments hold small integers, whose sums are exact.
#![allow(unsafe_code)]

use super::CudaBackend;
use super::driver::Grid;
use super::launch::{WARP, arguments};
use super::modules::Name;
use crate::backend::Backend;
use crate::device::Device;
use crate::error::Result;
use crate::fp8::Fp8Format;
use crate::lane::Lane;
use crate::pool::Segment;
use crate::tensor::Tensor;
use half::{bf16, f16};
use std::sync::Arc;

const FRAGMENTS_F16: Name = Name { unit: "probe", kernel: c"probe_fragments_f16" };
const FRAGMENTS_BF16: Name = Name { unit: "probe", kernel: c"probe_fragments_bf16" };
const TILE: Name = Name { unit: "probe", kernel: c"probe_tile" };
const NUMBERS: Name = Name { unit: "probe", kernel: c"probe_numbers" };

/// An instruction, and whether it does what the kernels mean by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probed {
    /// The instruction in PTX.
    pub instruction: &'static str,
    /// The first result that differs from the host's; none where all agree.
    pub wrong: Option<String>,
}

impl Probed {
    /// Every register of `got` against the host's, and which one it is: `at(index)`.
    fn new(instruction: &'static str, got: &[u32], expected: &[u32], at: impl Fn(usize) -> String) -> Self {
        let differs = (0..expected.len()).find(|i| got.get(*i) != Some(&expected[*i]));
        let wrong = differs.map(|i| {
            let found = got.get(i).map_or_else(|| "nothing".into(), |bits| format!("{bits:#010x}"));
            format!("{}: {found}, not {:#010x}", at(i), expected[i])
        });
        Probed { instruction, wrong }
    }
}

impl CudaBackend {
    /// Compare each instruction with the host's arithmetic, some registers of a warp each.
    ///
    /// # Errors
    /// The kernels cannot be compiled or launched, or the device fails. An instruction that computes something else is
    /// no error, but in the result.
    pub fn probe(self: &Arc<Self>) -> Result<Vec<Probed>> {
        let device = Device::new(Arc::clone(self) as Arc<dyn Backend>);
        let mut probed = vec![
            self.fragments(&device, ("mma.m16n8k16 of f16", FRAGMENTS_F16), |x| f16::from_f32(x).to_bits())?,
            self.fragments(&device, ("mma.m16n8k16 of bf16", FRAGMENTS_BF16), |x| bf16::from_f32(x).to_bits())?,
        ];
        probed.extend(self.tile(&device)?);
        probed.extend(self.numbers(&device)?);
        Ok(probed)
    }

    /// Launch one warp.
    ///
    /// # Safety
    /// As for a launch.
    unsafe fn warp<A: bytemuck::NoUninit>(&self, name: Name, arguments: A) -> Result<()> {
        // SAFETY: promised by the caller.
        self.run(Lane::Compute, |launch| unsafe { launch.run(name, Grid::line(1, WARP as u32), arguments) })
    }

    fn fragments(
        self: &Arc<Self>,
        device: &Device,
        (instruction, name): (&'static str, Name),
        bits: fn(f32) -> u16,
    ) -> Result<Probed> {
        // Rows and columns of a fragment's register, by lane, as mma.cuh has them.
        let left = |register: usize, lane: usize| (lane / 4 + 8 * (register % 2), 2 * (lane % 4) + 8 * (register / 2));
        let right = |register: usize, lane: usize| (2 * (lane % 4) + 8 * register, lane / 4);
        let result = |register: usize, lane: usize| (lane / 4 + 8 * (register / 2), 2 * (lane % 4) + register % 2);
        let (a, b) =
            (|row: usize, k: usize| small(16 * row + k, 7), |k: usize, column: usize| small(8 * k + column, 9));
        let c = |row: usize, column: usize| small(8 * row + column, 11);
        let pair = |low: f32, high: f32| u32::from(bits(low)) | u32::from(bits(high)) << 16;
        let lanes = |registers: usize, of: &dyn Fn(usize, usize) -> u32| -> Vec<u32> {
            (0..registers * WARP).map(|i| of(i / WARP, i % WARP)).collect()
        };
        let left = lanes(4, &|register, lane| {
            let (row, k) = left(register, lane);
            pair(a(row, k), a(row, k + 1))
        });
        let right = lanes(2, &|register, lane| {
            let (k, column) = right(register, lane);
            pair(b(k, column), b(k + 1, column))
        });
        let before = lanes(4, &|register, lane| {
            let (row, column) = result(register, lane);
            c(row, column).to_bits()
        });
        let expected = lanes(4, &|register, lane| {
            let (row, column) = result(register, lane);
            (0..16).fold(c(row, column), |sum, k| sum + a(row, k) * b(k, column)).to_bits()
        });
        let [left, right, before] = [left, right, before].map(|registers| upload(device, &registers));
        let (left, right, before, mut sums) = (left?, right?, before?, upload(device, &[0; 4 * WARP])?);
        let arguments = arguments!(FragmentsArguments {
            a: u64 = left.view()?.address(),
            b: u64 = right.view()?.address(),
            c: u64 = before.view()?.address(),
            sums: u64 = sums.view_mut()?.address(),
        });
        // SAFETY: laid out as in probe.cu, with as many registers as one warp reads and writes.
        unsafe { self.warp(name, arguments) }?;
        Ok(Probed::new(instruction, &read(&sums)?, &expected, |i| {
            format!("register {} of lane {}", i / WARP, i % WARP)
        }))
    }

    fn tile(self: &Arc<Self>, device: &Device) -> Result<[Probed; 4]> {
        /// Numbers of 16 bits in a row of a matrix.
        const ROW: usize = 8;
        let number = |row: usize, column: usize| ((row * ROW + column) * 251 % 65_521) as u32;
        let pair = |low: u32, high: u32| low | high << 16;
        let rows: Vec<u32> =
            (0..4 * WARP).map(|i| (i / 4, 2 * (i % 4))).map(|(r, c)| pair(number(r, c), number(r, c + 1))).collect();
        let matrix = |i: usize| (i / WARP * ROW, i % WARP);
        let plain: Vec<u32> = (0..4 * WARP)
            .map(matrix)
            .map(|(first, lane)| {
                let (row, column) = (first + lane / 4, 2 * (lane % 4));
                pair(number(row, column), number(row, column + 1))
            })
            .collect();
        let turned: Vec<u32> = (0..4 * WARP)
            .map(matrix)
            .map(|(first, lane)| {
                let (row, column) = (first + 2 * (lane % 4), lane / 4);
                pair(number(row, column), number(row + 1, column))
            })
            .collect();
        let halved: Vec<u32> =
            rows.iter().enumerate().map(|(i, bits)| if i / 4 % 2 == 0 { *bits } else { 0 }).collect();
        let (source, mut written) = (upload(device, &rows)?, upload(device, &[0; 12 * WARP])?);
        let arguments = arguments!(TileArguments {
            rows: u64 = source.view()?.address(),
            registers: u64 = written.view_mut()?.address(),
        });
        // SAFETY: as in `fragments`.
        unsafe { self.warp(TILE, arguments) }?;
        let got = read(&written)?;
        let (got_plain, got_turned, got_tile) = (&got[..4 * WARP], &got[4 * WARP..8 * WARP], &got[8 * WARP..]);
        let fragment = |i: usize| format!("matrix {} in lane {}", i / WARP, i % WARP);
        let of_rows = |registers: &[u32], odd: usize| -> Vec<u32> {
            registers.iter().enumerate().filter(|(i, _)| i / 4 % 2 == odd).map(|(_, bits)| *bits).collect()
        };
        let place = |odd: usize| {
            move |i: usize| format!("bytes {} to {} of row {}", 4 * (i % 4), 4 * (i % 4) + 3, 2 * (i / 4) + odd)
        };
        Ok([
            Probed::new("ldmatrix.x4", got_plain, &plain, fragment),
            Probed::new("ldmatrix.x4.trans", got_turned, &turned, fragment),
            Probed::new("cp.async of 16 bytes, st.global.v4", &of_rows(got_tile, 0), &of_rows(&halved, 0), place(0)),
            Probed::new("cp.async of zeros", &of_rows(got_tile, 1), &of_rows(&halved, 1), place(1)),
        ])
    }

    fn numbers(self: &Arc<Self>, device: &Device) -> Result<Vec<Probed>> {
        /// Two units in the last place: what PTX promises of `ex2.approx`.
        const MAX_ERROR: f64 = 2.4e-7;
        let values = awkward();
        let (source, mut written) = (upload(device, &values.map(f32::to_bits))?, upload(device, &[0; 8 * WARP])?);
        let arguments = arguments!(NumbersArguments {
            values: u64 = source.view()?.address(),
            registers: u64 = written.view_mut()?.address(),
        });
        // SAFETY: as in `fragments`.
        unsafe { self.warp(NUMBERS, arguments) }?;
        let got = read(&written)?;
        let next = |lane: usize| values[(lane + 1) % WARP];
        let lanes = |of: &dyn Fn(usize) -> u32| (0..WARP).map(of).collect::<Vec<_>>();
        let half = |value: f32| u32::from(f16::from_f32(value).to_bits());
        let brain = |value: f32| u32::from(bf16::from_f32(value).to_bits());
        let exact = |instruction, row: usize, expected: &[u32]| {
            let got = &got[row * WARP..(row + 1) * WARP];
            Probed::new(instruction, got, expected, |lane| format!("of {:e} and {:e}", values[lane], next(lane)))
        };
        let codes = |format: Fp8Format| {
            lanes(&|lane| u32::from(format.encode(values[lane])) | u32::from(format.encode(next(lane))) << 8)
        };
        // A power within the bound is the host's.
        let powers = lanes(&|lane| {
            let (power, got) = (f64::from(values[lane]).exp2(), f32::from_bits(got[lane]));
            let rounded = if power < f64::from(f32::MIN_POSITIVE) { 0.0 } else { power as f32 };
            let near = (f64::from(got) - power).abs() <= MAX_ERROR * power && rounded != 0.0;
            if near { got.to_bits() } else { rounded.to_bits() }
        });
        Ok(vec![
            exact("ex2.approx.ftz.f32", 0, &powers),
            exact("cvt.rn.f16x2.f32", 1, &lanes(&|lane| half(values[lane]) | half(next(lane)) << 16)),
            exact("cvt.rn.bf16x2.f32", 2, &lanes(&|lane| brain(values[lane]) | brain(next(lane)) << 16)),
            exact("cvt.rn.f16.f32", 3, &lanes(&|lane| half(values[lane]))),
            exact("cvt.rn.bf16.f32", 4, &lanes(&|lane| brain(values[lane]))),
            exact("cvt.f32.f16", 5, &lanes(&|lane| f16::from_f32(values[lane]).to_f32().to_bits())),
            exact("cvt.rn.satfinite.e4m3x2.f32", 6, &codes(Fp8Format::E4M3)),
            exact("cvt.rn.satfinite.e5m2x2.f32", 7, &codes(Fp8Format::E5M2)),
        ])
    }
}

/// An integer from -4 to 4, which every type has exactly.
fn small(index: usize, seed: usize) -> f32 {
    ((index * seed + index / 5) % 9) as f32 - 4.0
}

/// Numbers around ties, the ends of the types' ranges and the smallest ones.
fn awkward() -> [f32; WARP] {
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        3.0,
        10.25,
        -20.75,
        1.000_488_3,
        1.001_464_8,
        1.003_906_3,
        1.011_718_8,
        -1.003_906_3,
        65_504.0,
        65_519.0,
        65_520.0,
        -65_520.0,
        1e30,
        -1e30,
        f32::INFINITY,
        f32::NEG_INFINITY,
        6.1e-5,
        5.96e-8,
        2.98e-8,
        2.99e-8,
        -4.5e-8,
        127.0,
        127.99,
        -125.5,
        -126.5,
        1.5e-40,
        f32::MAX,
    ]
}

fn upload(device: &Device, registers: &[u32]) -> Result<Tensor> {
    let registers: Vec<i32> = registers.iter().map(|bits| bits.cast_signed()).collect();
    Tensor::from_slice_in(device, [registers.len()], &registers, Segment::Data)
}

fn read(tensor: &Tensor) -> Result<Vec<u32>> {
    Ok(tensor.to_vec::<i32>()?.into_iter().map(i32::cast_unsigned).collect())
}
