//! Products against f64 arithmetic, and what they keep in memory.

use super::*;

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
