//! Products against sums in f64, for every table of routines this machine can run.

use half::{bf16, f16};

use super::cut::Limits;
use super::job::{Batch, GemmJob};
use super::*;
use crate::cpu::CpuOptions;
use crate::cpu::instruction_set::for_each_set;
use crate::error::Error;

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
            gradient: Some((self.saved.source(), ldc, &slope)),
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
fn pool(threads: usize) -> cpu::threads::Threads {
    let instruction_set = InstructionSet::current();
    cpu::threads::Threads::with(CpuOptions { instruction_set, ..CpuOptions::new(threads) }).unwrap()
}

const SHAPES: [(usize, usize, usize); 16] = [
    (1, 1, 1),
    (1, 7, 3),
    (3, 1, 70),
    (5, 17, 64),
    (6, 64, 16),
    (7, 65, 1),
    (13, 129, 33),
    (16, 48, 130),
    (17, 100, 515),
    (12, 64, 40),
    (97, 70, 65),
    (128, 128, 64),
    (100, 63, 1030),
    (2, 300, 2100),
    (193, 257, 31),
    (4, 5, 0),
];

#[test]
fn every_transpose_and_shape_agrees_with_f64() {
    for_each_set(|_| {
        let pool = pool(2);
        for shape in SHAPES {
            for transposes in 0..4 {
                for (alpha, beta, pad) in [(1.0, 0.0, 0), (0.5, 1.0, 3), (-1.5, 0.5, 1)] {
                    let case = Case::plain(shape, transposes & 1 == 1, transposes & 2 == 2);
                    check(Threads::Pool(&pool), Case { alpha, beta, pad, ..case });
                }
            }
        }
    });
}

#[test]
fn every_type_and_the_epilogue_agree_with_f64() {
    let kinds = [Kind::F32, Kind::F16, Kind::Bf16];
    for_each_set(|_| {
        for (shape, a) in SHAPES.into_iter().flat_map(|s| kinds.map(|a| (s, a))) {
            for (b, c) in kinds.into_iter().flat_map(|b| kinds.map(|c| (b, c))) {
                let transposed = (shape.0 + shape.1) % 2 == 0;
                for (beta, epilogue) in [(0.0, true), (0.5, false), (1.0, true)] {
                    let case = Case::plain(shape, transposed, a == b);
                    let case = Case { kinds: (a, b, c), beta, pad: 2, epilogue, ..case };
                    check(Threads::Calling, case);
                }
            }
        }
    });
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    // The last is shared out for its bytes, not for its work.
    let shapes = [
        (130, 200, 600),
        (96, 384, 700),
        (1, 3072, 768),
        (16, 3000, 768),
        (11, 2000, 300),
        (400, 70, 550),
        (1, 960, 577),
    ];
    for_each_set(|set| {
        let (two, three) = (pool(2), pool(3));
        for shape in shapes {
            for transposes in 0..4 {
                for (beta, c, epilogue) in [(0.0, Kind::F32, true), (1.0, Kind::F32, false), (0.5, Kind::Bf16, true)] {
                    let case = Case::plain(shape, transposes & 1 == 1, transposes & 2 == 2);
                    let case = Case { beta, epilogue, kinds: (Kind::F32, Kind::F32, c), ..case };
                    let trial = Trial::new(case);
                    let alone = trial.run(Threads::Calling);
                    for pool in [&two, &three] {
                        let together = trial.run(Threads::Pool(pool));
                        assert!(alone.c.bits() == together.c.bits(), "{set}: {case:?}");
                        assert!(alone.pre.bits() == together.pre.bits(), "{set}: {case:?}");
                    }
                }
            }
        }
    });
}

#[test]
fn how_a_product_is_cut_changes_no_bit() {
    // Phases of one panel and one stretch, and tasks of one step.
    let small = Limits { panels: 1, depth: 1, left: 1, tallest: 1, narrow: 0, rows_of_sums: 50 };
    let wider = Limits { panels: 400_000, depth: 800, ..small };
    for_each_set(|set| {
        let pool = pool(3);
        for shape in [(130, 200, 600), (61, 300, 2000), (25, 70, 1700), (20, 65, 900), (12, 128, 1600)] {
            for (transposes, c) in (0..4).flat_map(|t| [Kind::F32, Kind::Bf16].map(|c| (t, c))) {
                let case = Case::plain(shape, transposes & 1 == 1, transposes & 2 == 2);
                let trial = Trial::new(Case { beta: 0.5, epilogue: true, kinds: (Kind::F32, Kind::F32, c), ..case });
                let whole = trial.run(Threads::Calling);
                for (limits, threads) in
                    [(small, Threads::Calling), (small, Threads::Pool(&pool)), (wider, Threads::Pool(&pool))]
                {
                    let cut = trial.run_within(threads, &limits);
                    assert!(whole.c.bits() == cut.c.bits(), "{set}: {limits:?} {case:?}");
                    assert!(whole.pre.bits() == cut.pre.bits(), "{set}: {limits:?} {case:?}");
                }
            }
        }
    });
}

#[test]
fn a_row_has_the_same_bits_however_many_there_are_beside_a_row_major_right_side() {
    // 8 rows are streamed, 9 are packed, 97 are cut into phases.
    for_each_set(|set| {
        let pool = pool(3);
        for (n, k) in [(128, 70), (300, 2000), (515, 900)] {
            let (a, b) = (numbers(97 * k, 3), numbers(k * n, 4));
            let rows = |m: usize| {
                let mut c = vec![0.5; m * n];
                let a = Operand::rows(Source::F32(&a), k);
                let b = Operand::rows(Source::F32(&b), n);
                let epilogue = Epilogue::default();
                let c_target = Target::F32(&mut c);
                let whole = Product { m, n, k, alpha: 0.7, a, b, beta: 0.3, c: c_target, ldc: n, epilogue };
                product(Threads::Pool(&pool), whole).unwrap();
                c.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            let all = rows(97);
            for m in [1, 8, 9] {
                assert!(rows(m) == all[..m * n], "{set}: {m} of 97 rows, {n} columns, sums of {k}");
            }
        }
    });
}

#[test]
fn nan_and_infinity_are_not_skipped() {
    for_each_set(|set| {
        for (m, b_transposed) in [(3, true), (3, false), (40, true), (40, false)] {
            let (n, k) = (70, 80);
            let mut a = vec![0.0f32; m * k];
            a[k + 5] = f32::INFINITY;
            let mut b = vec![0.0f32; k * n];
            b[7] = f32::NAN;
            let mut c = vec![0.0f32; m * n];
            let ldb = if b_transposed { k } else { n };
            let right = if b_transposed { Operand::transposed } else { Operand::rows };
            let whole = Product {
                m,
                n,
                k,
                alpha: 1.0,
                a: Operand::rows(Source::F32(&a), k),
                b: right(Source::F32(&b), ldb),
                beta: 0.0,
                c: Target::F32(&mut c),
                ldc: n,
                epilogue: Epilogue::default(),
            };
            product(Threads::Calling, whole).unwrap();
            let poisoned = if b_transposed { 0 } else { 7 };
            for (at, x) in c.iter().enumerate() {
                let bad = at / n == 1 || at % n == poisoned;
                assert_eq!(x.is_nan(), bad, "{set}: {m} {b_transposed} at {at}: {x}");
            }
        }
    });
}

/// The plain product that the error tests bend.
fn small<'a>(a: &'a [f32], b: &'a [f32], c: &'a mut [f32]) -> Product<'a> {
    Product {
        m: 4,
        n: 5,
        k: 3,
        alpha: 1.0,
        a: Operand::rows(Source::F32(a), 3),
        b: Operand::rows(Source::F32(b), 5),
        beta: 0.0,
        c: Target::F32(c),
        ldc: 5,
        epilogue: Epilogue::default(),
    }
}

#[test]
fn wrong_lengths_and_strides_are_errors_and_write_nothing() {
    type Bend = fn(&mut Product<'_>);
    static SHORT: [f32; 4] = [0.0; 4];
    let bends: [(&str, Bend); 9] = [
        ("length of A", |p| p.m = 5),
        ("length of B", |p| p.b.row_stride = 6),
        ("strides of A", |p| p.a.col_stride = 2),
        ("row distance of C", |p| p.ldc = 4),
        ("length of C", |p| p.ldc = 6),
        ("length of the bias", |p| p.epilogue.bias = Some(Source::F32(&SHORT))),
        ("length of the saved", |p| p.epilogue.gradient = Some((Source::F32(&SHORT), 5, &slope))),
        ("strides of A", |p| p.a.row_stride = usize::MAX),
        ("strides of B", |p| p.b.row_stride = usize::MAX),
    ];
    for (what, bend) in bends {
        let (a, b, mut c) = ([1.0; 12], [1.0; 15], [9.0; 20]);
        let mut bent = small(&a, &b, &mut c);
        bend(&mut bent);
        match product(Threads::Calling, bent) {
            Err(Error::Shape { what: found, .. }) => assert!(found.starts_with(what), "{found} instead of {what}"),
            other => panic!("{what}: {other:?}"),
        }
        assert_eq!(c, [9.0; 20]);
    }
}

#[test]
fn a_batch_equals_its_products_one_by_one() {
    // Heads inside [batch, length, 3, heads, size], two query heads sharing a key head.
    let (batch, length, heads, size) = (3, 20, 4, 8);
    let row = 3 * heads * size;
    let x = numbers(batch * length * row, 9);
    let pool = pool(2);
    for threads in [Threads::Calling, Threads::Pool(&pool)] {
        let mut scores = vec![f32::NAN; batch * heads * length * length];
        let first = Product {
            m: length,
            n: length,
            k: size,
            alpha: 0.25,
            a: Operand::rows(Source::F32(&x), row),
            b: Operand::transposed(Source::F32(&x[heads * size..]), row),
            beta: 0.0,
            c: Target::F32(&mut scores),
            ldc: length,
            epilogue: Epilogue::default(),
        };
        let square = length * length;
        let whole = BatchedProduct {
            first,
            count: [batch, heads / 2, 2],
            a_stride: [length * row, 2 * size, size],
            b_stride: [length * row, size, 0],
            c_stride: [heads * square, 2 * square, square],
        };
        product_batch(threads, whole).unwrap();
        for (at, got) in scores.iter().enumerate() {
            let (b, h, i, j) = (at / (heads * square), at / square % heads, at / length % length, at % length);
            let q = &x[(b * length + i) * row + h * size..][..size];
            let key = &x[(b * length + j) * row + heads * size + h / 2 * size..][..size];
            let want: f64 = q.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() * 0.25;
            // Eight products of numbers below 1.
            assert!((f64::from(*got) - want).abs() < 1e-6, "{at}: {got} {want}");
        }
    }
}

#[test]
fn a_batch_that_writes_an_element_twice_is_an_error() {
    let (a, b, mut c) = ([1.0; 12], [1.0; 15], [9.0; 60]);
    let first = small(&a, &b, &mut c);
    let batch = BatchedProduct { first, count: [1, 1, 3], a_stride: [0; 3], b_stride: [0; 3], c_stride: [0, 0, 19] };
    assert!(matches!(Batch::new(batch), Err(Error::Shape { .. })));
    let first = small(&a, &b, &mut c);
    let batch = BatchedProduct { first, count: [1, 2, 3], a_stride: [0; 3], b_stride: [0; 3], c_stride: [0, 21, 20] };
    assert!(Batch::new(batch).is_err());
    let first = small(&a, &b, &mut c);
    let batch = BatchedProduct { first, count: [1, 1, 3], a_stride: [0; 3], b_stride: [0; 3], c_stride: [0, 0, 20] };
    assert!(Batch::new(batch).is_ok());
}

#[test]
fn ranks_with_a_pool_each_compute_at_the_same_time() {
    let case = Case { epilogue: true, ..Case::plain((64, 200, 520), false, true) };
    let results: Vec<_> = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(move || {
                    let own = pool(1);
                    (0..4).map(|_| check(Threads::Pool(&own), case).c.bits()).collect::<Vec<_>>()
                })
            })
            .collect();
        ranks.into_iter().flat_map(|rank| rank.join().unwrap()).collect()
    });
    assert!(results.iter().all(|bits| *bits == results[0]));
}

#[test]
fn scratch_stays_small_and_stops_growing() {
    // On a thread of its own, whose scratch nothing else has used.
    std::thread::spawn(|| {
        // More than fits the panels of one phase.
        let largest =
            Case { kinds: (Kind::Bf16, Kind::Bf16, Kind::Bf16), ..Case::plain((200, 900, 3700), false, true) };
        check(Threads::Calling, largest);
        let held = scratch::with(|s| s.bytes());
        assert!(held > 0 && held <= 15 << 20, "{held} bytes");
        check(Threads::Calling, largest);
        assert_eq!(held, scratch::with(|s| s.bytes()));
        assert!(scratch_bytes() >= held);
    })
    .join()
    .unwrap();
}

#[test]
fn the_peak_is_a_plausible_rate() {
    let rate = measure_peak(1, InstructionSet::best());
    assert!((1e8..1e13).contains(&rate), "{rate}");
}
