//! Attention against plain f64 arithmetic, against itself cut and divided differently, and at its edges.

mod case;
mod reference;

use super::tiles::{Scheme, Settings};
use crate::simd::{InstructionSet, for_each_set};
use case::{Case, Data, Masking, Results, run};
use reference::reference;

fn settings() -> Settings {
    Settings::default()
}

/// Largest difference relative to the largest magnitude of what was expected. Gradients that cancel are differences of
/// numbers of order one, so their roundings are not measured against less than a tenth.
fn distance(got: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let size = expected.iter().fold(0.1f64, |most, x| most.max(x.abs()));
    got.iter().zip(expected).fold(0.0f64, |most, (x, y)| {
        assert!(x.is_finite(), "{x} instead of {y}");
        most.max((f64::from(*x) - y).abs())
    }) / size
}

fn check(case: &Case, settings: Settings) {
    let data = Data::new(case);
    let got = run(case, &data, 1, settings);
    let expected = reference(case, &data);
    // A few roundings of f32 per term, which partly cancel; 16-bit results are rounded once more, and the gradients see
    // the rounded result of the forward pass.
    let tolerance = match case.dtype {
        crate::DType::F32 => 2e-5,
        crate::DType::F16 => 4e-3,
        _ => 3e-2,
    };
    for (name, got, expected) in got.pairs(&expected) {
        let distance = distance(got, expected);
        assert!(distance < tolerance, "{name} is {distance:e} off in {case:?} with {settings:?}");
    }
}

#[test]
fn odd_sizes_equal_f64_arithmetic() {
    let sizes = [
        (1, 1, 1),
        (1, 7, 3),
        (5, 1, 32),
        (3, 17, 64),
        (16, 16, 16),
        (33, 65, 80),
        (70, 130, 128),
        (130, 129, 64),
        (7, 300, 32),
    ];
    for (queries, keys, head_size) in sizes {
        check(&Case { queries, keys, head_size, ..Case::default() }, settings());
        check(&Case { queries, keys, head_size, causal: true, dropout: 0.2, ..Case::default() }, settings());
    }
}

#[test]
fn windows_and_biases_for_all_queries_equal_f64_arithmetic() {
    for (queries, keys) in [(1, 1), (21, 21), (19, 37), (37, 19), (130, 130), (70, 333), (1, 333)] {
        for window in [1, 2, 16, 17, 64, 400] {
            let mask = if window == 17 { Masking::Padding } else { Masking::None };
            let bias = (window < 64).then_some(window == 2);
            let case = Case { queries, keys, causal: true, window: Some(window), mask, ..Case::default() };
            let case = Case { bias, per_query: window == 1, dropout: 0.2, ..case };
            check(&case, settings());
            check(&case, Settings { sizes: Some((8, 16)), scheme: Scheme::Whole });
            check(&case, Settings { sizes: Some((8, 16)), scheme: Scheme::Split });
        }
    }
}

#[test]
fn windows_to_both_sides_and_soft_caps_equal_f64_arithmetic() {
    for (queries, keys) in [(21, 21), (19, 37), (37, 19), (130, 130), (1, 70)] {
        for (window, soft_cap) in [(1, None), (2, Some(0.8)), (17, None), (64, Some(3.0)), (400, None)] {
            let mask = if window == 17 { Masking::Padding } else { Masking::None };
            let case = Case { queries, keys, window: Some(window), soft_cap, mask, dropout: 0.2, ..Case::default() };
            // Where a query sees a key or two, gradients are differences of nearly equal numbers that bf16 rounds.
            let dtype = if window < 10 { crate::DType::F32 } else { crate::DType::BF16 };
            let sixteen = Case { dtype, head_size: 32, ..case };
            for case in [case, sixteen, Case { causal: true, ..case }, Case { packed: queries == keys, ..case }] {
                check(&case, settings());
                if window == 17 {
                    check(&case, Settings { sizes: Some((8, 16)), scheme: Scheme::Whole });
                    check(&case, Settings { sizes: Some((8, 16)), scheme: Scheme::Split });
                }
            }
        }
    }
}

#[test]
fn packed_documents_equal_f64_arithmetic() {
    for (mask, causal, window) in [
        (Masking::None, false, None),
        (Masking::Padding, true, None),
        (Masking::Full, false, None),
        (Masking::Padding, true, Some(9)),
    ] {
        for bias in [None, Some(false), Some(true)] {
            let case = Case { queries: 150, keys: 150, packed: true, mask, causal, window, bias, ..Case::default() };
            let case = Case { heads: 4, per_query: !causal, dropout: 0.2, fused: causal, add: !causal, ..case };
            check(&case, settings());
            check(&case, Settings { sizes: Some((8, 16)), scheme: Scheme::Whole });
            check(&case, Settings { sizes: Some((8, 16)), scheme: Scheme::Split });
        }
    }
}

#[test]
fn a_packed_document_has_the_bits_of_a_sequence_of_its_own() {
    compare_documents(false, crate::DType::F32);
    compare_documents(true, crate::DType::F32);
    compare_documents(true, crate::DType::BF16);
    InstructionSet::AmxModel.within(|| compare_documents(true, crate::DType::BF16));
}

fn compare_documents(causal: bool, dtype: crate::DType) {
    let packed = Case { batch: 1, queries: 150, keys: 150, packed: true, causal, dtype, ..Case::default() };
    let data = Data::new(&packed);
    let together = run(&packed, &data, 2, settings());
    let starts = packed.starts();
    let width = packed.heads * packed.head_size;
    for document in starts.chunk_by(|a, b| a == b) {
        let (start, length) = (document[0] as usize, document.len());
        let alone = Case { queries: length, keys: length, packed: false, ..packed };
        let cut = |x: &[f32]| x[start * width..(start + length) * width].to_vec();
        let own = Data { q: cut(&data.q), k: cut(&data.k), v: cut(&data.v), dout: cut(&data.dout), ..data.clone() };
        let alone = run(&alone, &own, 2, settings());
        for (name, together, alone) in [
            ("out", &together.out, &alone.out),
            ("dq", &together.dq, &alone.dq),
            ("dk", &together.dk, &alone.dk),
            ("dv", &together.dv, &alone.dv),
        ] {
            assert_eq!(cut(together), *alone, "{name} of the document at {start}");
        }
    }
}

#[test]
fn one_document_for_each_sequence_changes_no_bit() {
    // A sequence of the four tokens of its first document.
    let case = Case { batch: 1, queries: 4, keys: 4, mask: Masking::Padding, bias: Some(false), ..Case::default() };
    let data = Data::new(&case);
    let (without, with) = (run(&case, &data, 1, settings()), run(&Case { packed: true, ..case }, &data, 1, settings()));
    for ((name, x), (_, y)) in without.all().into_iter().zip(with.all()) {
        assert_eq!(x, y, "{name}");
    }
}

#[test]
fn bounds_that_do_not_divide_a_sequence_are_refused() {
    let device = crate::Device::cpu(1).unwrap();
    for (bounds, refused) in [
        ([0, 0, 2, 2, 2, 3], None),
        ([0, 0, 2, 2, 2, 4], Some(2)),
        ([0, 0, 1, 2, 2, 3], Some(2)),
        ([-1, 0, 2, 2, 2, 3], Some(0)),
        ([0, 0, 2, 0, 2, 3], Some(0)),
    ] {
        let bounds = crate::Tensor::from_slice_in(&device, [1, 2, 3], &bounds, crate::Segment::Data).unwrap();
        let q = crate::Tensor::full_in(&device, [1, 3, 4], crate::DType::F32, 1.0, crate::Segment::Data).unwrap();
        let heads = || crate::kernel::Heads { view: q.view().unwrap(), batch_stride: 12, row_stride: 4 };
        let inputs = crate::kernel::AttentionInputs {
            shape: Case { batch: 1, heads: 1, kv_heads: 1, queries: 3, keys: 3, head_size: 4, ..Case::default() }
                .shape(),
            scale: 1.0,
            soft_cap: None,
            causal: false,
            window: None,
            mask: crate::kernel::Mask::None,
            documents: Some(bounds.view().unwrap()),
            bias: None,
            dropout: None,
            q: heads(),
            k: heads(),
            v: heads(),
        };
        let extents = super::extent::Extents::new("attention_forward", &inputs);
        let expected = refused.map(|token| format!("no document has its bounds at token {token} of sequence 0"));
        let error = extents.err().map(|error| error.to_string());
        assert_eq!(error.is_some(), refused.is_some());
        assert!(error.zip(expected).is_none_or(|(error, expected)| error.contains(&expected)));
    }
}

#[test]
fn every_combination_of_rules_equals_f64_arithmetic() {
    for mask in [Masking::None, Masking::Padding, Masking::Full] {
        for causal in [false, true] {
            for bias in [None, Some(false), Some(true)] {
                for dropout in [0.0, 0.3] {
                    for (heads, kv_heads) in [(2, 2), (4, 2), (3, 1)] {
                        let (queries, keys) = if kv_heads == 2 { (19, 37) } else { (21, 21) };
                        let case =
                            Case { queries, keys, heads, kv_heads, mask, causal, bias, dropout, ..Case::default() };
                        check(&case, settings());
                        check(&case, Settings { sizes: Some((8, 16)), scheme: Scheme::Split });
                    }
                }
            }
        }
    }
}

#[test]
fn sixteen_bit_numbers_fused_strides_and_added_gradients_equal_f64_arithmetic() {
    for dtype in [crate::DType::F32, crate::DType::F16, crate::DType::BF16] {
        for fused in [false, true] {
            for add in [false, true] {
                let case = Case { queries: 21, keys: 21, heads: 4, kv_heads: 2, dtype, fused, add, ..Case::default() };
                check(&Case { bias: Some(false), mask: Masking::Padding, ..case }, settings());
                check(&Case { bias: Some(true), causal: true, dropout: 0.1, head_size: 20, ..case }, settings());
            }
        }
    }
}

#[test]
fn every_instruction_set_equals_f64_arithmetic() {
    for_each_set(|_| {
        for head_size in [3, 32, 64, 80] {
            let case = Case { queries: 67, keys: 75, head_size, dropout: 0.1, bias: Some(false), ..Case::default() };
            check(&case, settings());
            let case = Case { dtype: crate::DType::BF16, heads: 4, causal: head_size == 32, ..case };
            check(&case, settings());
            check(&Case { fused: true, add: true, keys: 67, window: Some(20), causal: true, ..case }, settings());
            check(
                &Case { head_size: head_size + 5, ..case },
                Settings { sizes: Some((24, 48)), scheme: Scheme::Split },
            );
        }
    });
}

#[test]
fn the_cut_into_tiles_shows_only_in_rounding() {
    let case = Case {
        queries: 150,
        keys: 170,
        dropout: 0.1,
        mask: Masking::Padding,
        bias: Some(false),
        causal: true,
        ..Case::default()
    };
    let data = Data::new(&case);
    let large = run(&case, &data, 1, settings());
    let tiny = run(&case, &data, 1, Settings { sizes: Some((7, 16)), ..settings() });
    let wide: Vec<Vec<f64>> = large.all().iter().map(|(_, x)| x.iter().map(|x| f64::from(*x)).collect()).collect();
    for ((name, tiny), large) in tiny.all().iter().zip(&wide) {
        // The running maximum rescales sums, which rounds; nothing else differs. Rows without a key have no finite
        // `lse`.
        let seen = |x: &f64| x.is_finite();
        let kept: Vec<f32> = tiny.iter().zip(large).filter(|(_, large)| seen(large)).map(|(tiny, _)| *tiny).collect();
        let large: Vec<f64> = large.iter().copied().filter(seen).collect();
        assert!(distance(&kept, &large) < 2e-6, "{name}");
    }
}

#[test]
fn threads_and_schemes_give_the_same_bits() {
    let base = Case { queries: 140, keys: 150, heads: 4, kv_heads: 2, dropout: 0.1, ..Case::default() };
    for case in [
        Case { mask: Masking::Padding, ..base },
        Case { bias: Some(false), causal: true, ..base },
        Case { bias: Some(true), mask: Masking::Full, dtype: crate::DType::BF16, ..base },
        Case { packed: true, keys: 140, mask: Masking::Padding, causal: true, ..base },
        Case { packed: true, keys: 140, bias: Some(false), ..base },
        Case { packed: true, keys: 140, mask: Masking::Padding, causal: true, dtype: crate::DType::BF16, ..base },
        Case { causal: true, head_size: 40, dtype: crate::DType::BF16, ..base },
    ] {
        compare_divisions(&case, &[1, 2, 3]);
    }
    let small = Case { queries: 70, keys: 75, causal: true, head_size: 24, dtype: crate::DType::BF16, ..base };
    InstructionSet::AmxModel.within(|| compare_divisions(&Case { batch: 1, ..small }, &[2]));
}

fn compare_divisions(case: &Case, threads: &[usize]) {
    let data = Data::new(case);
    let one = run(case, &data, 1, Settings { scheme: Scheme::Whole, ..settings() });
    for threads in threads.iter().copied() {
        for scheme in [Scheme::Best, Scheme::Whole, Scheme::Split] {
            let other = run(case, &data, threads, Settings { scheme, ..settings() });
            for ((name, x), (_, y)) in one.all().iter().zip(other.all()) {
                let same = x.iter().zip(y).all(|(x, y)| x.to_bits() == y.to_bits());
                assert!(same, "{name} of {case:?} with {threads} threads, {scheme:?}");
            }
        }
    }
}

#[test]
fn queries_that_see_no_key_get_zeros_and_give_no_gradient() {
    for (mask, causal) in [(Masking::Nothing, false), (Masking::NothingFull, false), (Masking::None, true)] {
        // Causal with more queries than keys: the first ones come before every key.
        let case = Case { queries: 30, keys: 20, mask, causal, bias: Some(true), dropout: 0.1, ..Case::default() };
        let data = Data::new(&case);
        for scheme in [Scheme::Whole, Scheme::Split] {
            let got = run(&case, &data, 1, Settings { scheme, ..settings() });
            for (name, values) in got.all() {
                assert!(name == "lse" || values.iter().all(|x| x.is_finite()), "{name}");
            }
            let hidden = if causal { 10 } else { 30 };
            let width = case.heads * case.head_size;
            for b in 0..case.batch {
                let rows = b * case.queries * width..(b * case.queries + hidden) * width;
                assert!(got.out[rows.clone()].iter().all(|x| *x == 0.0));
                assert!(got.dq[rows].iter().all(|x| *x == 0.0));
            }
            assert!(got.lse[..hidden].iter().all(|x| *x == f32::NEG_INFINITY));
            if !causal {
                assert!(got.dk.iter().chain(&got.dv).chain(&got.dbias).all(|x| *x == 0.0));
            }
        }
    }
}

#[test]
fn a_bias_of_minus_infinity_hides_a_key_like_a_mask() {
    let case = Case { bias: Some(true), ..Case::default() };
    let mut data = Data::new(&case);
    for row in data.bias.chunks_exact_mut(case.keys) {
        row[1..].fill(f32::NEG_INFINITY);
    }
    data.bias[..case.keys].fill(f32::NEG_INFINITY);
    let got = run(&case, &data, 1, settings());
    assert!(got.all().iter().all(|(name, x)| *name == "lse" || x.iter().all(|x| x.is_finite())));
    assert!(got.out[..case.head_size].iter().all(|x| *x == 0.0), "the query whose every score is minus infinity");
    let second = &got.out[case.heads * case.head_size..][..case.head_size];
    assert!(second.iter().zip(&data.v).all(|(x, y)| (x - y).abs() < 1e-6), "a query that sees the first key alone");
}

#[test]
fn nan_and_infinity_reach_the_rows_that_see_them_and_no_others() {
    for bad in [f32::NAN, f32::INFINITY] {
        let case = Case { queries: 20, keys: 20, ..Case::default() };
        let mut data = Data::new(&case);
        let width = case.heads * case.head_size;
        data.q[3 * width] = bad;
        let got = run(&case, &data, 1, settings());
        for (l, row) in got.out[..case.queries * width].chunks_exact(width).enumerate() {
            assert_eq!(row[..case.head_size].iter().any(|x| x.is_nan()), l == 3, "row {l} with {bad}");
            assert!(row[case.head_size..].iter().all(|x| x.is_finite()), "another head");
        }
        assert!(got.dk[0].is_nan() && got.dv[0].is_nan() && got.dq[3 * width].is_nan());
        let mut data = Data::new(&case);
        data.v[5 * width] = bad;
        let got = run(&case, &data, 1, settings());
        assert!(got.out[..case.queries * width].chunks_exact(width).all(|row| !row[0].is_finite()));
    }
}

#[test]
fn hidden_padding_may_hold_anything() {
    let case = Case { keys: 40, mask: Masking::Padding, ..Case::default() };
    let mut data = Data::new(&case);
    let before = run(&case, &data, 1, settings());
    let width = case.kv_heads * case.head_size;
    for b in 0..case.batch {
        // The last keys of a padded batch.
        let last = data.mask[b * case.keys..][..case.keys].iter().rposition(|x| *x != 0).unwrap_or(0);
        data.k[(b * case.keys + last + 1) * width..(b + 1) * case.keys * width].fill(f32::NAN);
        data.v[(b * case.keys + last + 1) * width..(b + 1) * case.keys * width].fill(f32::INFINITY);
    }
    let after = run(&case, &data, 1, settings());
    for ((name, x), (_, y)) in before.all().iter().zip(after.all()) {
        assert_eq!(
            x.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
            y.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
            "{name}"
        );
    }
}

#[test]
fn gradients_equal_finite_differences() {
    let case = Case {
        queries: 9,
        keys: 14,
        heads: 4,
        kv_heads: 2,
        mask: Masking::Full,
        bias: Some(false),
        dropout: 0.25,
        ..Case::default()
    };
    let data = Data::new(&case);
    let got = run(&case, &data, 1, settings());
    let value = |data: &Data| -> f64 {
        let Results { out, .. } = run(&case, data, 1, settings());
        out.iter().zip(&data.dout).map(|(x, y)| f64::from(x * y)).sum()
    };
    let gradients = [&got.dq, &got.dk, &got.dv, &got.dbias];
    for (which, gradient) in gradients.into_iter().enumerate() {
        let direction = case::numbers(gradient.len(), 99 + which as u32);
        let step = 1e-2f32;
        let moved = |sign: f32| {
            let mut data = data.clone();
            let target = [&mut data.q, &mut data.k, &mut data.v, &mut data.bias].into_iter().nth(which);
            for (x, u) in target.into_iter().flatten().zip(&direction) {
                *x += sign * step * u;
            }
            value(&data)
        };
        let slope = (moved(1.0) - moved(-1.0)) / (2.0 * f64::from(step));
        let expected: f64 = gradient.iter().zip(&direction).map(|(x, u)| f64::from(x * u)).sum();
        // The cut after the second-order term, 1e-4 of sums of order one.
        assert!((slope - expected).abs() < 2e-3 * expected.abs().max(1.0), "{which}: {slope} and {expected}");
    }
}

#[test]
fn empty_sides_leave_zeros() {
    let case = Case { keys: 0, ..Case::default() };
    let got = run(&case, &Data::new(&case), 2, settings());
    assert!(got.out.iter().chain(&got.dq).all(|x| *x == 0.0));
    let case = Case { queries: 0, ..Case::default() };
    let got = run(&case, &Data::new(&case), 2, settings());
    assert!(got.dk.iter().chain(&got.dv).all(|x| *x == 0.0));
}

#[test]
fn scratch_does_not_grow_with_the_lengths_of_later_batches() {
    let case = |length| Case { queries: length, keys: length, head_size: 64, ..Case::default() };
    let held = |length| {
        let case = case(length);
        run(&case, &Data::new(&case), 1, settings());
        super::scratch::with(|scratch| scratch.bytes())
    };
    let first = held(5);
    assert!(first > 0);
    assert_eq!(held(300), first);
}
