//! Products of bf16 in tiles: by a model on every machine, and by the processor with the bits of its model.

use super::*;
use crate::cpu::tiles::Unit;

/// Edges of tiles and steps, one stretch and several, one task and several.
const SHAPES: [(usize, usize, usize); 11] = [
    (16, 4, 8),
    (21, 17, 9),
    (32, 32, 32),
    (33, 47, 33),
    (64, 96, 64),
    (40, 300, 97),
    (130, 65, 200),
    (97, 70, 1100),
    (257, 33, 40),
    (48, 64, 2050),
    (100, 129, 515),
];

fn cases() -> impl Iterator<Item = Case> {
    let layouts = SHAPES.into_iter().flat_map(|shape| (0..4).map(move |transposes| (shape, transposes)));
    layouts.flat_map(|(shape, transposes)| {
        let case = Case::plain(shape, transposes & 1 == 1, transposes & 2 == 2);
        let kinds = [Kind::F32, Kind::Bf16, Kind::F16];
        kinds.into_iter().enumerate().flat_map(move |(index, c)| {
            [(1.0, 0.0, false), (0.5, 0.0, true), (1.0, 1.0, false), (-1.5, 0.5, true)].map(
                move |(alpha, beta, epilogue)| {
                    let kinds = (Kind::Bf16, Kind::Bf16, c);
                    Case { kinds, alpha, beta, epilogue, pad: (index + transposes) % 3, ..case }
                },
            )
        })
    })
}

/// The sets whose products are in tiles, the model among them.
fn sets() -> impl Iterator<Item = InstructionSet> {
    let all = InstructionSet::available().chain([InstructionSet::AmxModel]);
    all.filter(|set| Unit::of(*set).is_some())
}

#[test]
fn every_layout_edge_and_epilogue_agrees_with_f64() {
    for set in sets() {
        set.within(|| cases().for_each(|case| drop(check(Threads::Calling, case))));
    }
}

#[test]
fn processor_and_model_have_the_same_bits_for_any_threads_and_phases() {
    // Phases of one panel and one stretch and tasks of one step; then of some.
    let small = Limits { panels: 1, depth: 1, left: 1, tallest: 1, narrow: 0, rows_of_sums: 64 };
    let wider = Limits { panels: 40_000, depth: 300, ..small };
    for (index, case) in cases().enumerate() {
        let trial = Trial::new(case);
        for (processor, model) in InstructionSet::MODELS {
            // Models differ in the bits of a step alone: one is tested where no processor is compared with it.
            if !processor.is_available() && model != InstructionSet::AmxModel {
                continue;
            }
            let whole = model.within(|| trial.run(Threads::Calling));
            let same = |set: InstructionSet, outcome: &Outcome, how: &str| {
                assert!(whole.c.bits() == outcome.c.bits(), "{set}, {how}: {case:?}");
                assert!(whole.pre.bits() == outcome.pre.bits(), "{set}, {how}: {case:?}");
            };
            let slow = (model == InstructionSet::AmxModel).then_some(model);
            for set in slow.into_iter().chain(processor.is_available().then_some(processor)) {
                set.within(|| {
                    let pool = pool(3);
                    same(set, &trial.run(Threads::Calling), "one thread");
                    same(set, &trial.run(Threads::Pool(&pool)), "three threads");
                    // The model is slow: it computes every third product in phases.
                    if set == processor || index % 3 == 0 {
                        same(set, &trial.run_within(Threads::Pool(&pool), &small), "small phases");
                        same(set, &trial.run_within(Threads::Calling, &wider), "phases");
                    }
                });
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_however_many_rows_are_in_tiles() {
    let (n, k) = (96, 700);
    let values = |count, seed| -> Vec<bf16> { numbers(count, seed).into_iter().map(bf16::from_f32).collect() };
    let (a, b) = (values(160 * k, 3), values(n * k, 4));
    for set in sets() {
        set.within(|| {
            let rows = |m: usize| {
                let mut c = vec![0.0; m * n];
                let (a, b) = (Operand::rows(Source::Bf16(&a), k), Operand::transposed(Source::Bf16(&b), k));
                let (c_target, epilogue) = (Target::F32(&mut c), Epilogue::default());
                let whole = Product { m, n, k, alpha: 1.0, a, b, beta: 0.0, c: c_target, ldc: n, epilogue };
                product(Threads::Calling, whole).unwrap();
                c.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            let all = rows(160);
            for m in [32, 33, 48, 64, 100, 129] {
                assert!(rows(m) == all[..m * n], "{set}: {m} rows");
            }
        });
    }
}

#[test]
fn factors_in_f32_are_rounded_where_they_may_be() {
    for (m, n, k) in [(40, 300, 97), (97, 70, 1100)] {
        let wide = (numbers(m * k, 5), numbers(k * n, 6));
        let rounded = |values: &[f32]| -> Vec<bf16> { values.iter().copied().map(bf16::from_f32).collect() };
        let narrow = (rounded(&wide.0), rounded(&wide.1));
        let run = |set: InstructionSet, a: Source<'_>, b: Source<'_>, in_bf16: bool| {
            let mut c = vec![0.0; m * n];
            let (a, b) = (Operand::transposed(a, m).rounded(in_bf16), Operand::rows(b, n).rounded(in_bf16));
            let (c_target, epilogue) = (Target::F32(&mut c), Epilogue::default());
            let whole = Product { m, n, k, alpha: 1.0, a, b, beta: 0.0, c: c_target, ldc: n, epilogue };
            set.within(|| product(Threads::Calling, whole)).unwrap();
            c.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let (a, b) = (Source::F32(&wide.0), Source::F32(&wide.1));
        for set in sets() {
            let want = run(set, Source::Bf16(&narrow.0), Source::Bf16(&narrow.1), false);
            assert!(run(set, a, b, true) == want, "{set}: both");
            assert!(run(set, Source::Bf16(&narrow.0), b, true) == want, "{set}: the right one");
            assert!(run(set, a, b, false) != want, "{set}: neither may be");
        }
        for set in InstructionSet::available().filter(|set| Unit::of(*set).is_none()) {
            assert!(run(set, a, b, true) == run(set, a, b, false), "{set} has no tiles");
        }
    }
}

#[test]
fn nan_and_infinity_reach_their_rows_and_columns_alone() {
    let (m, n, k) = (40, 50, 45);
    for (set, transposes) in sets().flat_map(|set| (0..4).map(move |transposes| (set, transposes))) {
        let (mut a, mut b) = (vec![bf16::ONE; m * k], vec![bf16::ONE; k * n]);
        let (a_transposed, b_transposed) = (transposes & 1 == 1, transposes & 2 == 2);
        // Row 39 and column 49 are at edges, and so is term 44.
        a[if a_transposed { 44 * m + 39 } else { 39 * k + 44 }] = bf16::INFINITY;
        b[if b_transposed { 49 * k + 44 } else { 44 * n + 49 }] = bf16::NAN;
        let mut c = vec![0.0; m * n];
        let operand = |transposed| if transposed { Operand::transposed } else { Operand::rows };
        let a = operand(a_transposed)(Source::Bf16(&a), if a_transposed { m } else { k });
        let b = operand(b_transposed)(Source::Bf16(&b), if b_transposed { k } else { n });
        let (c_target, epilogue) = (Target::F32(&mut c), Epilogue::default());
        let whole = Product { m, n, k, alpha: 1.0, a, b, beta: 0.0, c: c_target, ldc: n, epilogue };
        set.within(|| product(Threads::Calling, whole)).unwrap();
        for (at, x) in c.iter().enumerate() {
            let want = match (at / n, at % n) {
                (_, 49) => f32::NAN,
                (39, _) => f32::INFINITY,
                _ => k as f32,
            };
            assert!(*x == want || x.is_nan() && want.is_nan(), "{set}, {transposes}: {x} at {at}");
        }
    }
}
