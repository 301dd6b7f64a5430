//! Edge cases of the CUDA kernels of elements, rows and losses: values outside of tables, nothing to do, numbers that
//! are none. On an emulated driver.
#![cfg(feature = "cuda")]

use bmtrain_core::cuda::{CudaBackend, CudaOptions};
use bmtrain_core::kernel::{
    Activation, ActivationInPlace, AddScaled, Arguments, Criterion, CrossEntropyBackward, CrossEntropyForward, Dest,
    EmbeddingBackward, EmbeddingForward, Fill, Permute, RotaryApply, RotaryLayout, RowCopy, ShardClasses,
    SquaredErrorForward,
};
use bmtrain_core::{DType, Device, Error, Segment, Tensor};
use cuda_emulator::{Driver, with_driver};
use std::sync::Arc;

fn emulated() -> Device {
    let options = CudaOptions { compiled: Some(cuda_emulator::compiled_kernels()), ..CudaOptions::default() };
    Device::new(Arc::new(CudaBackend::open(0, &options).unwrap()))
}

fn floats(device: &Device, values: &[f32]) -> Tensor {
    Tensor::from_slice_in(device, [values.len()], values, Segment::Activations).unwrap()
}

fn integers(device: &Device, values: &[i64]) -> Tensor {
    Tensor::from_slice_in(device, [values.len()], values, Segment::Activations).unwrap()
}

fn filled(device: &Device, len: usize, value: f32) -> Tensor {
    Tensor::full_in(device, [len], DType::F32, value, Segment::Activations).unwrap()
}

fn replaced(x: &mut Tensor) -> Dest<'_> {
    Dest { view: x.view_mut().unwrap(), add: false }
}

/// The next wait reports one of `outside`, by position and value, and the one after it nothing.
fn expect_report(device: &Device, name: &str, outside: &[(usize, i64)], within: usize) {
    match device.sync() {
        Err(Error::Index { op, position, index, bound }) => {
            assert!(op == name && bound == within && outside.contains(&(position, index)), "{op} {position} {index}");
        }
        other => panic!("{name}: {other:?}"),
    }
    device.sync().unwrap();
}

#[test]
fn ids_outside_of_a_table_are_reported_and_count_as_zeros() {
    with_driver("ids_outside_of_a_table_are_reported_and_count_as_zeros", Driver::Emulated, &[], || {
        let device = emulated();
        let (entries, columns) = (4, 3);
        let table = floats(&device, &(1..=12).map(|x| x as f32).collect::<Vec<_>>());
        let ids = integers(&device, &[1, 4, i64::MIN, 3]);
        let outside = [(1, 4), (2, i64::MIN)];
        let mut out = filled(&device, 12, 9.0);
        let dest = replaced(&mut out);
        let (table, ids) = (table.view().unwrap(), ids.view().unwrap());
        device.launch(EmbeddingForward { entries, columns, table, ids, out: dest }).unwrap();
        expect_report(&device, EmbeddingForward::NAME, &outside, 4);
        let expected = [4.0, 5.0, 6.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 10.0, 11.0, 12.0];
        assert_eq!(out.to_vec::<f32>().unwrap(), expected);

        let mut dtable = filled(&device, 12, 9.0);
        let dest = replaced(&mut dtable);
        let (padding_index, dy) = (Some(3), table);
        device.launch(EmbeddingBackward { entries, columns, ids, padding_index, dy, dtable: dest }).unwrap();
        expect_report(&device, EmbeddingBackward::NAME, &outside, 4);
        let mut expected = [0.0; 12];
        expected[3..6].copy_from_slice(&[1.0, 2.0, 3.0]);
        assert_eq!(dtable.to_vec::<f32>().unwrap(), expected);
    });
}

#[test]
fn rows_at_positions_outside_of_the_table_are_reported_and_not_turned() {
    with_driver("rows_at_positions_outside_of_the_table_are_reported_and_not_turned", Driver::Emulated, &[], || {
        let device = emulated();
        let table = floats(&device, &[1.0, 0.0, 0.0, 1.0]);
        let positions = integers(&device, &[1, 2, i64::MIN, 0]);
        let x = floats(&device, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        let mut y = filled(&device, 8, 9.0);
        let turn = |x: Option<&Tensor>, y: &mut Tensor| {
            let launched = RotaryApply {
                rows: 4,
                length: 2,
                columns: 2,
                heads: 1,
                head_size: 2,
                dims: 2,
                layout: RotaryLayout::Halves,
                inverse: false,
                entries: 2,
                table: table.view().unwrap(),
                positions: Some(positions.view().unwrap()),
                x: x.map(|x| x.view().unwrap()),
                y: replaced(y),
            };
            device.launch(launched).unwrap();
            expect_report(&device, RotaryApply::NAME, &[(1, 2), (2, i64::MIN)], 2);
            y.to_vec::<f32>().unwrap()
        };
        let once = turn(Some(&x), &mut y);
        assert_eq!(once, [-2.0, 1.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        assert_eq!(turn(None, &mut y), [-1.0, -2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    });
}

/// The gradient of a table in the kernel's order: rows sorted by id, rows of one id in their order; sums over
/// pieces of 32 rows, then over the pieces.
fn gradient_in_order(ids: &[i64], dy: &[f32], entries: usize) -> Vec<f32> {
    let mut order: Vec<usize> = (0..ids.len()).collect();
    order.sort_by_key(|row| ids[*row]);
    let mut sums: Vec<Vec<f32>> = vec![Vec::new(); entries];
    for piece in order.chunks(32) {
        for run in piece.chunk_by(|a, b| ids[*a] == ids[*b]) {
            sums[ids[run[0]] as usize].push(run.iter().map(|row| dy[*row]).reduce(|a, b| a + b).unwrap());
        }
    }
    sums.into_iter().map(|sums| sums.into_iter().reduce(|a, b| a + b).unwrap_or(0.0)).collect()
}

#[test]
fn gradients_of_a_table_are_sums_in_the_order_of_the_rows() {
    with_driver("gradients_of_a_table_are_sums_in_the_order_of_the_rows", Driver::Emulated, &[], || {
        let device = emulated();
        for (rows, entries) in [(5000, 300), (5000, 2), (2049, 70_000), (31, 3)] {
            let scramble = |i: usize, salt: u32| (i as u32).wrapping_add(salt).wrapping_mul(0x9e37_79b9) >> 7;
            let ids: Vec<i64> = (0..rows).map(|i| i64::from(scramble(i, 1)) % entries as i64).collect();
            // Numbers of very different sizes: another order gives other bits.
            let size = |i: usize| 2.0f32.powi(scramble(i, 3) as i32 % 24);
            let dy: Vec<f32> = (0..rows).map(|i| size(i) * (scramble(i, 2) as f32 - 1.6e7)).collect();
            let (ids_there, dy_there) = (integers(&device, &ids), floats(&device, &dy));
            let mut dtable = filled(&device, entries, 9.0);
            let launched = EmbeddingBackward {
                entries,
                columns: 1,
                ids: ids_there.view().unwrap(),
                padding_index: None,
                dy: dy_there.view().unwrap(),
                dtable: replaced(&mut dtable),
            };
            device.launch(launched).unwrap();
            let expected = gradient_in_order(&ids, &dy, entries);
            assert!(dtable.to_vec::<f32>().unwrap() == expected, "{rows} rows of {entries}");
        }
    });
}

struct Losses {
    losses: Vec<f32>,
    lse: Vec<f32>,
    totals: Vec<f32>,
    dlogits: Vec<f32>,
}

/// Losses and the gradient of their sum; `waits` hears what is reported in between.
fn losses(device: &Device, logits: &[f32], targets: &[i64], classes: usize, waits: impl Fn(&'static str)) -> Losses {
    let rows = targets.len();
    let (logits, targets) = (floats(device, logits), integers(device, targets));
    let (mut losses, mut lse, mut totals) =
        (filled(device, rows, 9.0), filled(device, rows, 9.0), filled(device, 3, 9.0));
    let (mut dlogits, dloss) = (filled(device, rows * classes, 9.0), filled(device, 1, 1.0));
    let (logits, targets) = (logits.view().unwrap(), targets.view().unwrap());
    let all = ShardClasses::all(classes);
    let criterion =
        Criterion { classes: all, targets, ignore_index: -100, smoothing: 0.0, weights: None, soft_cap: None };
    let [losses_view, lse_view, totals_view] = [&mut losses, &mut lse, &mut totals].map(|x| x.view_mut().unwrap());
    let forward = CrossEntropyForward {
        rows,
        columns: classes,
        logits,
        criterion,
        losses: losses_view,
        lse: lse_view,
        totals: totals_view,
    };
    device.launch(forward).unwrap();
    waits(CrossEntropyForward::NAME);
    let backward = CrossEntropyBackward {
        rows,
        columns: classes,
        logits: Some(logits),
        criterion,
        lse: lse.view().unwrap(),
        dloss: dloss.view().unwrap(),
        divisor: None,
        fused: true,
        dlogits: dlogits.view_mut().unwrap(),
    };
    device.launch(backward).unwrap();
    waits(CrossEntropyBackward::NAME);
    let [losses, lse, totals, dlogits] = [losses, lse, totals, dlogits].map(|x| x.to_vec::<f32>().unwrap());
    Losses { losses, lse, totals, dlogits }
}

#[test]
fn targets_outside_of_the_classes_are_reported_and_count_as_ignored() {
    with_driver("targets_outside_of_the_classes_are_reported_and_count_as_ignored", Driver::Emulated, &[], || {
        let device = emulated();
        let logits = [0.0; 20];
        let report = |name| expect_report(&device, name, &[(1, 5), (3, -1)], 5);
        let got = losses(&device, &logits, &[0, 5, -100, -1], 5, report);
        assert!((got.losses[0] - 5.0f32.ln()).abs() < 1e-6, "{:?}", got.losses);
        assert_eq!((&got.losses[1..], &got.lse[1..]), (&[0.0; 3][..], &[0.0; 3][..]));
        assert_eq!(got.totals, [got.losses[0], 1.0, got.losses[0]]);
        assert!((got.dlogits[0] + 0.8).abs() < 1e-6 && (got.dlogits[4] - 0.2).abs() < 1e-6, "{:?}", got.dlogits);
        assert_eq!(got.dlogits[5..], [0.0; 15]);
    });
}

/// Close, or the same infinity, or both not numbers.
fn alike(a: &[f32], b: &[f32]) -> bool {
    let pair = |(a, b): (&f32, &f32)| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-6 * (1.0 + a.abs());
    a.len() == b.len() && a.iter().zip(b).all(pair)
}

#[test]
fn losses_of_infinite_logits_are_those_of_the_cpu() {
    with_driver("losses_of_infinite_logits_are_those_of_the_cpu", Driver::Emulated, &[], || {
        let (low, high, none) = (f32::NEG_INFINITY, f32::INFINITY, f32::NAN);
        let mut logits = vec![low; 5];
        logits.extend([1.0, low, 2.0, low, 0.5]);
        logits.extend([low, low, low, 3.0, low]);
        logits.extend([1.0, high, 2.0, 0.0, 0.0]);
        logits.extend([1.0, 1.0, none, 0.0, 0.0]);
        logits.extend([1e30, -1e30, 0.0, 1e30, 3e38]);
        let targets = [0, 1, 3, 1, 0, 4];
        let expected = losses(&Device::cpu(1).unwrap(), &logits, &targets, 5, |_| ());
        let got = losses(&emulated(), &logits, &targets, 5, |_| ());
        assert!(alike(&expected.losses, &got.losses), "{:?} {:?}", expected.losses, got.losses);
        assert!(alike(&expected.lse, &got.lse), "{:?} {:?}", expected.lse, got.lse);
        assert!(alike(&expected.dlogits, &got.dlogits), "{:?} {:?}", expected.dlogits, got.dlogits);
    });
}

#[test]
fn activations_of_extreme_numbers_are_those_of_the_cpu() {
    with_driver("activations_of_extreme_numbers_are_those_of_the_cpu", Driver::Emulated, &[], || {
        let mut values = vec![f32::NEG_INFINITY, f32::INFINITY, f32::NAN, 0.0, -0.0, 1e30, -1e30, 1e-40, -1e-40];
        values.extend([88.0, -88.0, 89.0, -89.0, 104.0, -104.0, f32::MAX, f32::MIN, 13.0, -13.0, 5.5, -5.5]);
        let (cpu, cuda) = (Device::cpu(1).unwrap(), emulated());
        for activation in Activation::ALL {
            let [expected, got] = [&cpu, &cuda].map(|device| {
                let (mut x, mut dy) = (floats(device, &values), filled(device, values.len(), 9.0));
                let (of_x, of_dy) = (x.view_mut().unwrap(), dy.view_mut().unwrap());
                device.launch(ActivationInPlace { activation, x: of_x, dy: of_dy }).unwrap();
                [x, dy].map(|x| x.to_vec::<f32>().unwrap())
            });
            for (what, (expected, got)) in ["value", "gradient"].iter().zip(expected.iter().zip(&got)) {
                for ((x, expected), got) in values.iter().zip(expected).zip(got) {
                    assert!(alike(&[*expected], &[*got]), "{activation:?} {what} at {x}: {got}, not {expected}");
                }
            }
        }
    });
}

#[test]
fn nothing_to_do_is_done() {
    with_driver("nothing_to_do_is_done", Driver::Emulated, &[], || {
        let device = emulated();
        let (empty, no_ids) = (filled(&device, 0, 0.0), integers(&device, &[]));
        let mut out = filled(&device, 0, 0.0);
        let a = empty.view().unwrap();
        device.launch(AddScaled { alpha: 1.0, a, beta: 1.0, b: None, out: out.view_mut().unwrap() }).unwrap();
        device.launch(Fill { value: 1.0, out: out.view_mut().unwrap() }).unwrap();
        device.launch(RowCopy { rows: 0, columns: 7, x_ld: 7, x: a, out_ld: 9, out: replaced(&mut out) }).unwrap();
        let (dims, axes) = ([3, 0, 2, 1, 1, 1], [1, 0, 2, 3, 4, 5]);
        device.launch(Permute { dims, axes, rank: 3, x: a, out: replaced(&mut out) }).unwrap();
        let table = filled(&device, 6, 1.0);
        let (ids, view) = (no_ids.view().unwrap(), table.view().unwrap());
        device.launch(EmbeddingForward { entries: 2, columns: 3, table: view, ids, out: replaced(&mut out) }).unwrap();
        let mut dtable = filled(&device, 6, 9.0);
        let dest = replaced(&mut dtable);
        let (dy, padding_index) = (a, None);
        device.launch(EmbeddingBackward { entries: 2, columns: 3, ids, padding_index, dy, dtable: dest }).unwrap();
        assert_eq!(dtable.to_vec::<f32>().unwrap(), [0.0; 6]);
        let got = losses(&device, &[], &[], 5, |_| ());
        assert!(got.totals[0] == 0.0 && got.totals[1] == 0.0 && got.totals[2].is_nan(), "{:?}", got.totals);
        let mut loss = filled(&device, 1, 9.0);
        device.launch(SquaredErrorForward { x: a, targets: a, loss: loss.view_mut().unwrap() }).unwrap();
        assert!(loss.item().unwrap().is_nan(), "a mean of nothing");
    });
}
