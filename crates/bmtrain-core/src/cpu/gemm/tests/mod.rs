//! Products against sums in f64, for every table of routines this machine can run.

mod agreement;
mod batches;
mod bits;
mod tiles;

use half::{bf16, f16};

use super::cut::Limits;
use super::job::{Batch, GemmJob};
use super::*;
use crate::error::Error;
use crate::simd::for_each_set;
use crate::threads::CpuOptions;

/// Reproducible numbers in -1..1 (a linear congruential generator: quality does not matter here).
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32) / ((1u64 << 23) as f32) - 1.0
    };
    (0..count).map(|_| next()).collect()
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    F32,
    F16,
    Bf16,
}

/// A stored matrix of one of the three types, with its exact values.
enum Store {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Store {
    fn new(kind: Kind, values: &[f32]) -> Self {
        match kind {
            Kind::F32 => Store::F32(values.to_vec()),
            Kind::F16 => Store::F16(values.iter().map(|x| f16::from_f32(*x)).collect()),
            Kind::Bf16 => Store::Bf16(values.iter().map(|x| bf16::from_f32(*x)).collect()),
        }
    }

    fn source(&self) -> Source<'_> {
        match self {
            Store::F32(v) => Source::F32(v),
            Store::F16(v) => Source::F16(v),
            Store::Bf16(v) => Source::Bf16(v),
        }
    }

    fn target(&mut self) -> Target<'_> {
        match self {
            Store::F32(v) => Target::F32(v),
            Store::F16(v) => Target::F16(v),
            Store::Bf16(v) => Target::Bf16(v),
        }
    }

    fn values(&self) -> Vec<f64> {
        match self {
            Store::F32(v) => v.iter().map(|x| f64::from(*x)).collect(),
            Store::F16(v) => v.iter().map(|x| x.to_f64()).collect(),
            Store::Bf16(v) => v.iter().map(|x| x.to_f64()).collect(),
        }
    }

    fn bits(&self) -> Vec<u32> {
        match self {
            Store::F32(v) => v.iter().map(|x| x.to_bits()).collect(),
            Store::F16(v) => v.iter().map(|x| u32::from(x.to_bits())).collect(),
            Store::Bf16(v) => v.iter().map(|x| u32::from(x.to_bits())).collect(),
        }
    }
}

/// One product to try: shape, transposes, types, factors, padding of the leading dimensions, epilogue.
#[derive(Debug, Clone, Copy)]
struct Case {
    shape: (usize, usize, usize),
    a_transposed: bool,
    b_transposed: bool,
    kinds: (Kind, Kind, Kind),
    alpha: f32,
    beta: f32,
    pad: usize,
    epilogue: bool,
}

impl Case {
    fn plain(shape: (usize, usize, usize), a_transposed: bool, b_transposed: bool) -> Self {
        let kinds = (Kind::F32, Kind::F32, Kind::F32);
        Case { shape, a_transposed, b_transposed, kinds, alpha: 1.0, beta: 0.0, pad: 0, epilogue: false }
    }
}

/// Not a common activation, so that a missed or doubled call shows.
fn activation(x: f64) -> f64 {
    0.5 * x * x - x
}

fn activate(run: &mut [f32]) {
    assert!(run.len().is_multiple_of(8) && run.len() <= 512);
    run.iter_mut().for_each(|x| *x = 0.5 * *x * *x - *x);
}

fn slope(run: &mut [f32], saved: &[f32]) {
    assert_eq!(run.len(), saved.len());
    run.iter_mut().zip(saved).for_each(|(x, s)| *x *= 2.0 * s + 1.0);
}

struct Outcome {
    c: Store,
    pre: Store,
}

struct Trial {
    case: Case,
    a: Store,
    b: Store,
    /// C before the run; NaN where it must not be read.
    old: Vec<f32>,
    bias: Store,
    saved: Store,
}

impl Trial {
    fn new(case: Case) -> Self {
        let Case { shape: (m, n, k), a_transposed, b_transposed, kinds, beta, pad, .. } = case;
        let size = |transposed: bool, rows: usize, cols: usize| {
            if transposed { cols * (rows + pad) } else { rows * (cols + pad) }
        };
        let c = m * (n + pad);
        Trial {
            case,
            a: Store::new(kinds.0, &numbers(size(a_transposed, m, k), 1)),
            b: Store::new(kinds.1, &numbers(size(b_transposed, k, n), 2)),
            old: if beta == 0.0 { vec![f32::NAN; c] } else { numbers(c, 3) },
            bias: Store::new(kinds.1, &numbers(n, 4)),
            saved: Store::new(kinds.0, &numbers(c, 5)),
        }
    }

    fn run(&self, threads: Threads<'_>) -> Outcome {
        self.run_within(threads, &Limits::of_this_machine())
    }

    fn run_within(&self, threads: Threads<'_>, limits: &Limits) -> Outcome {
        let Case { shape: (m, n, k), a_transposed, b_transposed, kinds, alpha, beta, pad, epilogue } = self.case;
        let operand = if a_transposed { Operand::transposed } else { Operand::rows };
        let a = operand(self.a.source(), if a_transposed { m } else { k } + pad);
        let operand = if b_transposed { Operand::transposed } else { Operand::rows };
        let b = operand(self.b.source(), if b_transposed { k } else { n } + pad);
        let ldc = n + pad;
        let mut c = Store::new(kinds.2, &self.old);
        let mut pre = Store::new(kinds.2, &vec![7.0; self.old.len()]);
        let everything = Epilogue {
            bias: Some(self.bias.source()),
            pre_activation: Some((pre.target(), ldc)),
            activation: Some(&activate),
            combination: Some((self.saved.source(), ldc, &slope)),
        };
        let epilogue = if epilogue { everything } else { Epilogue::default() };
        let job = GemmJob::new(Product { m, n, k, alpha, a, b, beta, c: c.target(), ldc, epilogue }).unwrap();
        schedule::run_one(threads, limits, &job);
        Outcome { c, pre }
    }

    /// The exact sum for element (i, j), and the sum of the terms' magnitudes.
    fn sum(&self, a: &[f64], b: &[f64], i: usize, j: usize) -> (f64, f64) {
        let Case { shape: (m, n, k), a_transposed, b_transposed, pad, .. } = self.case;
        let term = |p: usize| {
            let x = a[if a_transposed { p * (m + pad) + i } else { i * (k + pad) + p }];
            let y = b[if b_transposed { j * (k + pad) + p } else { p * (n + pad) + j }];
            x * y
        };
        (0..k).map(term).fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()))
    }

    fn verify(&self, outcome: &Outcome, name: &str) {
        let Case { shape: (m, n, k), kinds, alpha, beta, pad, epilogue, .. } = self.case;
        let (alpha, beta) = (f64::from(alpha), f64::from(beta));
        let (a, b, bias, saved) = (self.a.values(), self.b.values(), self.bias.values(), self.saved.values());
        let old = Store::new(kinds.2, &self.old);
        let (old, old_bits) = (old.values(), old.bits());
        let (c, c_bits, pre) = (outcome.c.values(), outcome.c.bits(), outcome.pre.values());
        // Half a unit in the last place of 11 and 8 significant bits; f16 also has subnormals.
        let (rounding, smallest) = match kinds.2 {
            Kind::F32 => (0.0, 0.0),
            Kind::F16 => (2f64.powi(-11), 6e-8),
            Kind::Bf16 => (2f64.powi(-8), 0.0),
        };
        for (at, (i, j)) in (0..m).flat_map(|i| (0..n + pad).map(move |j| (i, j))).enumerate() {
            let place = || format!("{name}: {:?} at ({i}, {j})", self.case);
            if j >= n {
                assert_eq!(c_bits[at], old_bits[at], "{} wrote outside", place());
                continue;
            }
            let (sum, size) = self.sum(&a, &b, i, j);
            let mut want = alpha * sum + if beta == 0.0 { 0.0 } else { beta * old[at] };
            // The bound of a sum in any order is k·2⁻²⁴·Σ|aᵢbᵢ|, but errors are random and grow with √k.
            let mut bound = (alpha.abs() * size * (k as f64).sqrt() + want.abs() + 2.0) * 2f64.powi(-23);
            if epilogue {
                want += bias[j];
                let error = (pre[at] - want).abs();
                assert!(error <= bound + rounding * want.abs() + smallest, "{}: pre {} {want}", place(), pre[at]);
                let factor = 2.0 * saved[at] + 1.0;
                // The activation's slope is x - 1; the f32 rounding of its own four operations is in the second term.
                let own = (want * want + want.abs()) * 2f64.powi(-22);
                bound = (bound * (want.abs() + 1.0) + own) * (factor.abs() + 0.1);
                want = activation(want) * factor;
            }
            let error = (c[at] - want).abs();
            assert!(error <= bound + rounding * want.abs() + smallest, "{}: {} {want}", place(), c[at]);
        }
    }
}

fn check(threads: Threads<'_>, case: Case) -> Outcome {
    let trial = Trial::new(case);
    let outcome = trial.run(threads);
    trial.verify(&outcome, InstructionSet::current().name());
    outcome
}

/// Threads with the current instruction set.
fn pool(threads: usize) -> threads::Threads {
    let instruction_set = InstructionSet::current();
    threads::Threads::with(CpuOptions { instruction_set, ..CpuOptions::new(threads) }).unwrap()
}

const SHAPES: [(usize, usize, usize); 19] = [
    (1, 1, 1),
    (1, 7, 3),
    (3, 1, 70),
    (5, 17, 64),
    (6, 64, 16),
    (7, 65, 1),
    (9, 130, 3),
    (11, 203, 4),
    (13, 129, 33),
    (16, 48, 130),
    (17, 100, 515),
    (12, 64, 40),
    (97, 70, 65),
    (128, 128, 64),
    (100, 63, 1030),
    (1, 203, 2500),
    (2, 300, 2100),
    (193, 257, 31),
    (4, 5, 0),
];
