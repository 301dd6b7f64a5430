//! Cross-entropy over divided classes against that over whole rows, and a head in chunks against its two ops.

use crate::ranks::{options, threads};
use bmtrain_core::comm::{Communicator, Solo};
use bmtrain_core::ops::{self, CrossEntropy, LinearCrossEntropy, Reduction, VocabularyShard};
use bmtrain_core::{Ctx, DType, Device, Error, Float, Result, Segment, Tensor, Var};
use half::bf16;
use std::sync::Arc;

const IGNORED: i64 = -100;
/// Not divisible by 2 or 4.
const CLASSES: usize = 11;
const ROWS: usize = 21;
const DEPTH: usize = 5;

/// A number between -1 and 1 for each place.
fn noise(salt: usize, len: usize) -> Vec<f32> {
    let word = |index: usize| ((index + 977 * salt) as u32).wrapping_mul(0x9e37_79b9) >> 8;
    (0..len).map(|index| word(index) as f32 / (1 << 23) as f32 - 1.0).collect()
}

fn tensor<const N: usize>(device: &Device, shape: [usize; N], values: &[f32], dtype: DType) -> Tensor {
    if dtype == DType::BF16 {
        let values: Vec<bf16> = values.iter().map(|value| bf16::from_f32(*value)).collect();
        return Tensor::from_slice_in(device, shape, &values, Segment::Activations).unwrap();
    }
    Tensor::from_slice_in(device, shape, values, Segment::Activations).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f32> {
    match tensor.dtype() {
        DType::BF16 => tensor.to_vec::<bf16>().unwrap().into_iter().map(Float::to_f32).collect(),
        _ => tensor.to_vec().unwrap(),
    }
}

fn targets(device: &Device) -> Tensor {
    let targets: Vec<i64> = (0..ROWS as i64).map(|row| if row % 4 == 1 { IGNORED } else { row * 7 % 11 }).collect();
    Tensor::from_slice_in(device, [ROWS], &targets, Segment::Activations).unwrap()
}

/// Sum, mean, one loss for each row; with and without smoothing and weights.
fn criteria(device: &Device) -> Vec<CrossEntropy> {
    let weights: Vec<f32> = noise(9, CLASSES).iter().map(|x| x.abs() + 0.2).collect();
    let weights = tensor(device, [CLASSES], &weights, DType::F32);
    let mut criteria = Vec::new();
    for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
        for (label_smoothing, weighted) in [(0.0, false), (0.1, false), (0.0, true), (0.2, true)] {
            let class_weights = weighted.then(|| weights.clone());
            criteria.push(CrossEntropy { reduction, label_smoothing, class_weights, ..CrossEntropy::default() });
        }
    }
    criteria
}

/// The loss of `forward`, and the gradients of its inputs for one seed.
fn walk(device: &Device, inputs: Vec<Tensor>, forward: impl FnOnce(&Ctx, &[Var]) -> Result<Var>) -> Vec<Vec<f32>> {
    let cx = Ctx::gradients(device);
    let tape = cx.tape().unwrap().clone();
    let inputs: Vec<Var> = inputs.into_iter().map(|input| tape.input(input)).collect();
    let loss = forward(&cx, &inputs).unwrap();
    let seed: Vec<f32> = noise(5, loss.shape().elements()).iter().map(|x| x + 1.5).collect();
    let seed = Tensor::from_slice_in(device, loss.shape(), &seed, Segment::Activations).unwrap();
    let mut results = vec![values(loss.value())];
    let grads = tape.backward(device, vec![(loss, seed)], &inputs.iter().collect::<Vec<_>>()).unwrap();
    results.extend(grads.iter().map(|grad| values(grad.as_ref().unwrap())));
    results
}

#[track_caller]
fn assert_close(what: &str, got: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!((got - expected).abs() <= tolerance * (1e-3 + largest), "{what}: element {i}: {got}, not {expected}");
    }
}

/// Half a unit in the last place of a value, with some for sums in another order.
fn tolerance(dtype: DType) -> f32 {
    if dtype == DType::BF16 { 1.0 / 128.0 } else { 2e-6 }
}

/// Columns `first..first + count` of rows of `columns`.
fn cut(rows: &[f32], columns: usize, first: usize, count: usize) -> Vec<f32> {
    rows.chunks(columns.max(1)).flat_map(|row| row[first..first + count].to_vec()).collect()
}

#[test]
fn classes_of_all_ranks_are_all_classes_in_their_order() {
    for (ranks, total, room) in [(1, 11, 11), (2, 11, 6), (4, 11, 3), (4, 11, 8), (4, 2, 1), (3, 0, 0)] {
        let classes = threads(ranks, options(), |rank| {
            VocabularyShard::new(Arc::new(rank), total).with_room(room).unwrap().classes()
        });
        let mut next = 0;
        for (rank, classes) in classes.iter().enumerate() {
            assert_eq!((classes.first, classes.total), ((rank * room).min(total), total));
            assert_eq!(classes.first, next);
            next += classes.count;
        }
        assert_eq!(next, total);
    }
    assert!(VocabularyShard::new(Arc::new(Solo), 7).with_room(6).is_err());
}

#[test]
fn divided_logits_give_the_loss_and_the_gradient_of_whole_rows() {
    for dtype in [DType::F32, DType::BF16] {
        let device = Device::cpu(1).unwrap();
        let logits: Vec<f32> = noise(1, ROWS * CLASSES).iter().map(|x| 6.0 * x).collect();
        for (number, criterion) in criteria(&device).iter().enumerate() {
            let whole = walk(&device, vec![tensor(&device, [ROWS, CLASSES], &logits, dtype)], |cx, v| {
                ops::cross_entropy(cx, &v[0], &targets(cx.device()), criterion)
            });
            for (size, room, filling) in [(1, 11, 0), (2, 6, 0), (4, 3, 2), (4, 5, 0)] {
                let parts = threads(size, options(), |rank| {
                    let (group, device): (Arc<dyn Communicator>, _) = (Arc::new(rank), Device::cpu(1).unwrap());
                    let shard = VocabularyShard::new(group, CLASSES).with_room(room).unwrap();
                    let (classes, criterion) = (shard.classes(), &criteria(&device)[number]);
                    let columns = classes.count + filling;
                    // The content of the padding makes no difference.
                    let mut own = vec![f32::NAN; ROWS * columns];
                    let columns_of = cut(&logits, CLASSES, classes.first, classes.count);
                    for (own, row) in own.chunks_mut(columns.max(1)).zip(columns_of.chunks(classes.count.max(1))) {
                        own[..classes.count].copy_from_slice(&row[..classes.count]);
                    }
                    let own = tensor(&device, [ROWS, columns], &own, dtype);
                    let results = walk(&device, vec![own], |cx, v| {
                        ops::vocabulary_cross_entropy(cx, &v[0], &targets(cx.device()), &shard, criterion)
                    });
                    (classes, columns, results)
                });
                for (classes, columns, part) in &parts {
                    let what = format!("{dtype} {criterion:?} {classes:?} of {size}");
                    assert_close(&what, &part[0], &whole[0], tolerance(DType::F32));
                    assert_eq!(part[0], parts[0].2[0], "{what}: ranks differ");
                    let expected = cut(&whole[1], CLASSES, classes.first, classes.count);
                    assert_close(&what, &cut(&part[1], *columns, 0, classes.count), &expected, tolerance(dtype));
                    let filled = cut(&part[1], *columns, classes.count, filling);
                    assert!(filled.iter().all(|x| *x == 0.0), "{what}: {filled:?}");
                }
            }
        }
    }
}

/// Hidden rows, weight and bias of a head.
fn operands(device: &Device, dtype: DType) -> Vec<Tensor> {
    vec![
        tensor(device, [ROWS, DEPTH], &noise(2, ROWS * DEPTH), dtype),
        tensor(device, [CLASSES, DEPTH], &noise(3, CLASSES * DEPTH), dtype),
        tensor(device, [CLASSES], &noise(4, CLASSES), dtype),
    ]
}

fn two_ops(cx: &Ctx, v: &[Var], criterion: &CrossEntropy) -> Result<Var> {
    let logits = ops::linear(cx, &v[0], &v[1], Some(&v[2]), None)?;
    ops::cross_entropy(cx, &logits, &targets(cx.device()), criterion)
}

#[test]
fn a_head_over_several_ranks_gives_the_gradients_of_one_with_all_classes() {
    let device = Device::cpu(1).unwrap();
    for (number, criterion) in criteria(&device).iter().enumerate() {
        let whole = walk(&device, operands(&device, DType::F32), |cx, v| two_ops(cx, v, criterion));
        // Chunks of one row, and logits that are kept.
        for (size, chunk_bytes) in [(1, 1), (2, 1), (4, 1), (2, 1 << 20), (4, 1 << 20)] {
            let parts = threads(size, options(), |rank| {
                let (group, device): (Arc<dyn Communicator>, _) = (Arc::new(rank), Device::cpu(1).unwrap());
                let shard = VocabularyShard::new(group, CLASSES);
                let classes = shard.classes();
                let rows = classes.first..classes.first + classes.count;
                let mut own = operands(&device, DType::F32);
                own[1..].iter_mut().for_each(|operand| *operand = operand.slice(rows.clone()).unwrap());
                let loss = criteria(&device).swap_remove(number);
                let options = LinearCrossEntropy { loss, chunk_bytes, shard: Some(shard) };
                let results = walk(&device, own, |cx, v| {
                    ops::linear_cross_entropy(cx, &v[0], &v[1], Some(&v[2]), &targets(cx.device()), &options)
                });
                (rows, results)
            });
            for (rows, part) in &parts {
                let what = format!("{criterion:?} {rows:?} of {size}, {chunk_bytes} bytes");
                assert_close(&what, &part[0], &whole[0], 2e-6);
                assert_close(&what, &part[1], &whole[1], 4e-6);
                assert_eq!(part[..2], parts[0].1[..2], "{what}: ranks differ");
                assert_close(&what, &part[2], &whole[2][rows.start * DEPTH..rows.end * DEPTH], 4e-6);
                assert_close(&what, &part[3], &whole[3][rows.clone()], 4e-6);
            }
        }
    }
}

#[test]
fn a_head_in_chunks_differs_from_its_two_ops_by_roundings() {
    let device = Device::cpu(2).unwrap();
    for dtype in [DType::F32, DType::BF16] {
        for criterion in criteria(&device) {
            let whole = walk(&device, operands(&device, dtype), |cx, v| two_ops(cx, v, &criterion));
            for chunk_bytes in [1, 100, 1 << 20] {
                let options = LinearCrossEntropy { loss: criterion.clone(), chunk_bytes, shard: None };
                let head = |cx: &Ctx, v: &[Var]| {
                    ops::linear_cross_entropy(cx, &v[0], &v[1], Some(&v[2]), &targets(cx.device()), &options)
                };
                let got = walk(&device, operands(&device, dtype), head);
                for (part, (got, whole)) in got.iter().zip(&whole).enumerate() {
                    let what = format!("{dtype} {criterion:?}, {chunk_bytes} bytes, result {part}");
                    assert_close(&what, got, whole, 3.0 * tolerance(dtype));
                }
                let constants: Vec<Var> = operands(&device, dtype).into_iter().map(Var::constant).collect();
                let evaluated = head(&Ctx::inference(&device), &constants).unwrap();
                assert_close("evaluation", &values(evaluated.value()), &whole[0], 3.0 * tolerance(dtype));
            }
        }
    }
}

#[test]
fn a_batch_without_targets_has_no_gradient() {
    let device = Device::cpu(1).unwrap();
    for chunk_bytes in [1, 1 << 20] {
        let options = LinearCrossEntropy { chunk_bytes, ..LinearCrossEntropy::default() };
        let results = walk(&device, operands(&device, DType::F32), |cx, v| {
            let none = Tensor::from_slice_in(cx.device(), [ROWS], &[IGNORED; ROWS], Segment::Activations)?;
            ops::linear_cross_entropy(cx, &v[0], &v[1], Some(&v[2]), &none, &options)
        });
        assert!(results[0][0].is_nan());
        assert!(results[1..].iter().flatten().all(|x| *x == 0.0), "{chunk_bytes}: {results:?}");
    }
}

#[test]
fn mistakes_are_errors_that_name_them() {
    let device = Device::cpu(1).unwrap();
    let cx = Ctx::inference(&device);
    let v: Vec<Var> = operands(&device, DType::F32).into_iter().map(Var::constant).collect();
    let mut wrong = vec![3i64; ROWS];
    wrong[4] = CLASSES as i64;
    let outside = Tensor::from_slice_in(&device, [ROWS], &wrong, Segment::Activations).unwrap();
    let options = LinearCrossEntropy::default();
    let error = ops::linear_cross_entropy(&cx, &v[0], &v[1], None, &outside, &options).unwrap_err();
    let expected = Error::Index { op: "cross_entropy_statistics", position: 4, index: 11, bound: CLASSES };
    assert_eq!(error, expected);
    let text = |result: Result<Var>| result.unwrap_err().to_string();
    let few = targets(&device).slice(0..3).unwrap();
    assert_eq!(
        text(ops::linear_cross_entropy(&cx, &v[0], &v[1], None, &few, &options)),
        "linear_cross_entropy: targets: expected 21 elements, got [3]"
    );
    let shard = Some(VocabularyShard::new(Arc::new(Solo), CLASSES + 1));
    let more = LinearCrossEntropy { shard, ..LinearCrossEntropy::default() };
    assert_eq!(
        text(ops::linear_cross_entropy(&cx, &v[0], &v[1], None, &targets(&device), &more)),
        "linear_cross_entropy: weight: expected a row for each of at least 12 classes, got [11, 5]"
    );
    let smoothing = CrossEntropy { label_smoothing: 1.0, ..CrossEntropy::default() };
    let options = LinearCrossEntropy { loss: smoothing, ..LinearCrossEntropy::default() };
    let message = text(ops::linear_cross_entropy(&cx, &v[0], &v[1], None, &targets(&device), &options));
    assert!(message.contains("label smoothing 1 is outside [0, 1)"), "{message}");
}

/// The most bytes that `work` has in use at once, beyond what was there.
fn peak(device: &Device, work: impl FnOnce()) -> usize {
    device.reset_peaks();
    let before = device.memory().total.now;
    work();
    device.memory().total.peak - before
}

#[test]
fn the_logits_of_all_rows_never_exist_at_once() {
    const R: usize = 512;
    const V: usize = 5000;
    const D: usize = 64;
    const CHUNK: usize = 1 << 20;
    // Losses, log-sum-exps, statistics, and what rounding up to whole chunks of the pool takes.
    const SMALL: usize = 64 << 10;
    let device = Device::cpu(2).unwrap();
    let hidden = tensor(&device, [R, D], &noise(1, R * D), DType::F32);
    let weight = tensor(&device, [V, D], &noise(2, V * D), DType::F32);
    let bias = tensor(&device, [V], &noise(3, V), DType::F32);
    let ids: Vec<i64> = (0..R).map(|row| (row * 37 % V) as i64).collect();
    let ids = Tensor::from_slice_in(&device, [R], &ids, Segment::Activations).unwrap();
    let options = LinearCrossEntropy { chunk_bytes: CHUNK, ..LinearCrossEntropy::default() };
    let inputs = || vec![hidden.clone(), weight.clone(), bias.clone()];

    let training = peak(&device, || {
        walk(&device, inputs(), |cx, v| ops::linear_cross_entropy(cx, &v[0], &v[1], Some(&v[2]), &ids, &options));
    });
    assert!(training <= CHUNK + 4 * (R * D + V * D + V) + SMALL, "training: {training} bytes");
    let frozen = peak(&device, || {
        let table = Var::constant(weight.clone());
        walk(&device, vec![hidden.clone()], |cx, v| ops::linear_cross_entropy(cx, &v[0], &table, None, &ids, &options));
    });
    assert!(frozen <= CHUNK + 4 * R * D + SMALL, "frozen weight: {frozen} bytes");
    let evaluation = peak(&device, || {
        let v: Vec<Var> = inputs().into_iter().map(Var::constant).collect();
        let cx = Ctx::inference(&device);
        ops::linear_cross_entropy(&cx, &v[0], &v[1], Some(&v[2]), &ids, &options).unwrap();
    });
    assert!(evaluation <= CHUNK + SMALL, "evaluation: {evaluation} bytes");
    // A loss of each row: the chunk, and the same gradients, which the backward pass makes.
    let each = CrossEntropy { reduction: Reduction::None, ..CrossEntropy::default() };
    let of_rows = LinearCrossEntropy { loss: each, ..options.clone() };
    let by_row = peak(&device, || {
        walk(&device, inputs(), |cx, v| ops::linear_cross_entropy(cx, &v[0], &v[1], Some(&v[2]), &ids, &of_rows));
    });
    assert!(by_row <= CHUNK + 4 * (R * D + V * D + V) + SMALL, "losses of rows: {by_row} bytes");
    // What it is compared with.
    let logits = peak(&device, || {
        walk(&device, inputs(), |cx, v| {
            let logits = ops::linear(cx, &v[0], &v[1], Some(&v[2]), None)?;
            ops::cross_entropy(cx, &logits, &ids, &CrossEntropy::default())
        });
    });
    assert!(logits >= 4 * R * V, "two ops: {logits} bytes");
}

#[test]
fn a_divided_table_gives_the_rows_and_the_gradient_of_the_whole_one_bit_for_bit() {
    let (table, device) = (noise(11, CLASSES * DEPTH), Device::cpu(1).unwrap());
    let ids: Vec<i64> = (0..ROWS as i64).map(|row| row * row % CLASSES as i64).collect();
    let ids = |device: &Device| Tensor::from_slice_in(device, [3, ROWS / 3], &ids, Segment::Data).unwrap();
    for padding in [None, Some(4)] {
        let whole = walk(&device, vec![tensor(&device, [CLASSES, DEPTH], &table, DType::F32)], |cx, v| {
            ops::embedding(cx, &ids(cx.device()), &v[0], padding)
        });
        // The last rank of four has padding alone where there is room for eight.
        for (size, room) in [(1, 11), (2, 6), (4, 3), (4, 8)] {
            let parts = threads(size, options(), |rank| {
                let (group, device): (Arc<dyn Communicator>, _) = (Arc::new(rank), Device::cpu(1).unwrap());
                let shard = VocabularyShard::new(group, CLASSES).with_room(room).unwrap();
                let classes = shard.classes();
                let mut own = table[classes.first * DEPTH..(classes.first + classes.count) * DEPTH].to_vec();
                own.resize(room * DEPTH, 0.0);
                let own = tensor(&device, [room, DEPTH], &own, DType::F32);
                let found = walk(&device, vec![own], |cx, v| {
                    ops::vocabulary_embedding(cx, &ids(cx.device()), &v[0], &shard, padding, None)
                });
                (classes, found)
            });
            for (classes, found) in parts {
                assert_eq!(found[0], whole[0], "{size} ranks");
                let (own, padding) = found[1].split_at(classes.count * DEPTH);
                assert_eq!(own, &whole[1][classes.first * DEPTH..][..classes.count * DEPTH], "{size} ranks");
                assert!(padding.iter().all(|value| *value == 0.0));
            }
        }
    }
}

#[test]
fn gathered_logits_are_those_of_all_classes_without_padding() {
    let whole = noise(12, ROWS * CLASSES);
    for (size, room) in [(2, 6), (4, 3), (4, 8)] {
        let found = threads(size, options(), |rank| {
            let (group, device): (Arc<dyn Communicator>, _) = (Arc::new(rank), Device::cpu(1).unwrap());
            let shard = VocabularyShard::new(group, CLASSES).with_room(room).unwrap();
            let classes = shard.classes();
            let rows = whole.chunks(CLASSES).flat_map(|row| {
                let mut own = row[classes.first..classes.first + classes.count].to_vec();
                own.resize(room, f32::NAN);
                own
            });
            let own = tensor(&device, [ROWS, room], &rows.collect::<Vec<f32>>(), DType::F32);
            let cx = Ctx::inference(&device);
            values(ops::gather_logits(&cx, &Var::constant(own), &shard).unwrap().value())
        });
        assert!(found.iter().all(|found| *found == whole), "{size} ranks with room for {room}");
    }
}

#[test]
fn an_id_outside_of_all_classes_is_an_error_on_every_rank() {
    let found = threads(2, options(), |rank| {
        let (group, device): (Arc<dyn Communicator>, _) = (Arc::new(rank), Device::cpu(1).unwrap());
        let shard = VocabularyShard::new(group, CLASSES).with_room(8).unwrap();
        let table = Var::constant(tensor(&device, [8, DEPTH], &noise(1, 8 * DEPTH), DType::F32));
        let ids = Tensor::from_slice_in(&device, [2], &[3i64, CLASSES as i64], Segment::Data).unwrap();
        ops::vocabulary_embedding(&Ctx::inference(&device), &ids, &table, &shard, None, None).map(|_| ())
    });
    for error in found {
        assert!(matches!(error, Err(Error::Index { position: 1, index: 11, bound: 11, .. })), "{error:?}");
    }
}
