//! Choices that must not change a bit of a result.

use super::*;

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
    // Up to 64 rows are tiles of each height beside B in place, 97 are cut into phases.
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
            for m in (1..=17).chain([21, 50, 63, 64]) {
                assert!(rows(m) == all[..m * n], "{set}: {m} of 97 rows, {n} columns, sums of {k}");
            }
        }
    });
}

#[test]
fn sums_of_few_terms_have_the_bits_of_a_tile() {
    for_each_set(|set| {
        let shapes = (1..=5).map(|k| (13, 131, k)).chain([23, 24, 40, 64, 65].map(|k| (201, 848, k)));
        for ((m, n, k), (alpha, beta)) in
            shapes.flat_map(|shape| [(1.0, 0.0), (0.7, 0.0), (0.7, 0.3)].map(|factors| (shape, factors)))
        {
            let (a, b, zeros) = (numbers(k * m, 5), numbers(k * n, 6), vec![0.0; n]);
            // A bias is for tiles of panels to add.
            let [plain, tiles] = [None, Some(Source::F32(&zeros))].map(|bias| {
                let mut c = numbers(m * n, 7);
                let (a, b) = (Operand::transposed(Source::F32(&a), m), Operand::rows(Source::F32(&b), n));
                let epilogue = Epilogue { bias, ..Epilogue::default() };
                let c_target = Target::F32(&mut c);
                product(Threads::Calling, Product { m, n, k, alpha, a, b, beta, c: c_target, ldc: n, epilogue })
                    .unwrap();
                c
            });
            assert!(plain == tiles, "{set}: {k} terms, {alpha} and {beta}");
        }
    });
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
fn a_pool_computes_with_its_own_instruction_set_on_the_calling_thread_too() {
    let (best, one) = (InstructionSet::best(), pool(1));
    for set in InstructionSet::available() {
        let other = set.within(|| pool(1));
        // Few rows of long sums, which the calling thread adds itself.
        for b_transposed in [false, true] {
            let trial = Trial::new(Case::plain((4, 300, 900), false, b_transposed));
            let own = set.within(|| trial.run(Threads::Calling));
            assert!(trial.run(Threads::Pool(&other)).c.bits() == own.c.bits(), "{set}");
            let outside = best.within(|| trial.run(Threads::Calling));
            assert!(trial.run(Threads::Pool(&one)).c.bits() == outside.c.bits(), "{set}");
        }
    }
}
