//! Sequence sharding: a computation whose tokens are divided over ranks against the same computation on one rank.

use crate::ranks::{options, threads};
use bmtrain_core::comm::host::HostRank;
use bmtrain_core::comm::{Communicator, CountingRank};
use bmtrain_core::kernel::{Activation, DropoutApply, NormKind};
use bmtrain_core::ops::{self, ProductInput, ProductWeight, TokenShard, VocabularyShard};
use bmtrain_core::{Ctx, Device, Error, Result, Segment, Tensor, Var};
use std::sync::Arc;

pub type Group = Arc<dyn Communicator>;

/// Six tokens: 3 each on two ranks; 2, 2, 2 and none on four.
pub const SHAPE: [usize; 2] = [2, 3];
pub const TOKENS: usize = 6;
pub const WIDTH: usize = 4;
/// Divisible by 1, 2 and 4.
pub const HIDDEN: usize = 8;

/// A whole number between -8 and 8 for each place: sums and products of a few are exact in f32 and bf16, so that every
/// order of a sum gives the same bits.
pub fn whole(salt: usize, len: usize) -> Vec<f32> {
    let word = |index: usize| ((index + 977 * salt) as u32).wrapping_mul(0x9e37_79b9) >> 28;
    (0..len).map(|index| word(index) as f32 - 8.0).collect()
}

pub fn noise(salt: usize, len: usize) -> Vec<f32> {
    let word = |index: usize| ((index + 977 * salt) as u32).wrapping_mul(0x9e37_79b9) >> 8;
    (0..len).map(|index| word(index) as f32 / (1 << 23) as f32 - 1.0).collect()
}

pub fn tensor<const N: usize>(device: &Device, shape: [usize; N], values: &[f32]) -> Tensor {
    Tensor::from_slice_in(device, shape, values, Segment::Activations).unwrap()
}

/// Result of `forward` and the gradients of its inputs, for a seed that depends on the element alone.
pub fn walk(device: &Device, inputs: Vec<Tensor>, forward: impl FnOnce(&Ctx, &[Var]) -> Result<Var>) -> Vec<Vec<f32>> {
    let cx = Ctx::gradients(device);
    let tape = cx.tape().unwrap().clone();
    let inputs: Vec<Var> = inputs.into_iter().map(|input| tape.input(input)).collect();
    let y = forward(&cx, &inputs).unwrap();
    let seed = tensor(device, [y.shape().elements()], &whole(50, y.shape().elements())).reshape(y.shape()).unwrap();
    let mut results = vec![y.value().to_vec().unwrap()];
    let grads = tape.backward(device, vec![(y, seed)], &inputs.iter().collect::<Vec<_>>()).unwrap();
    results.extend(grads.iter().map(|grad| grad.as_ref().unwrap().to_vec::<f32>().unwrap()));
    results
}

pub fn start(rank: HostRank) -> (usize, TokenShard, Device) {
    let own = rank.rank();
    (own, TokenShard::new(Arc::new(rank), SHAPE), Device::cpu(1).unwrap())
}

/// The rows of `columns` elements of this rank's tokens.
pub fn own_rows(all: &[f32], tokens: &TokenShard, columns: usize) -> Vec<f32> {
    all[tokens.own().start * columns..tokens.own().end * columns].to_vec()
}

/// Columns of rank `rank` of `size`, of rows of `columns`.
fn cut(rows: &[f32], columns: usize, rank: usize, size: usize) -> Vec<f32> {
    let each = columns / size;
    rows.chunks(columns).flat_map(|row| row[rank * each..(rank + 1) * each].to_vec()).collect()
}

#[test]
fn a_column_and_a_row_parallel_product_of_sharded_tokens_are_the_two_products_of_one_rank_bit_for_bit() {
    let (x, up, down) = (whole(1, TOKENS * WIDTH), whole(2, HIDDEN * WIDTH), whole(3, WIDTH * HIDDEN));
    let bias = whole(4, WIDTH);
    let device = Device::cpu(1).unwrap();
    let inputs = |device: &Device, x: &[f32], up: &[f32], down: &[f32]| {
        let (rows, each) = (x.len() / WIDTH, up.len() / WIDTH);
        let (x, bias) = (tensor(device, [rows, WIDTH], x), tensor(device, [WIDTH], &bias));
        vec![x, tensor(device, [each, WIDTH], up), tensor(device, [WIDTH, each], down), bias]
    };
    let [y, dx, dup, ddown, dbias]: [Vec<f32>; 5] = walk(&device, inputs(&device, &x, &up, &down), |cx, v| {
        let hidden = ops::linear(cx, &v[0], &v[1], None, None)?;
        ops::linear(cx, &hidden, &v[2], Some(&v[3]), None)
    })
    .try_into()
    .unwrap();
    for size in [1, 2, 4] {
        let found = threads(size, options(), |rank| {
            let (own, tokens, device) = start(rank);
            let each = HIDDEN / size;
            let own_up = &up[own * each * WIDTH..(own + 1) * each * WIDTH];
            let inputs = inputs(&device, &own_rows(&x, &tokens, WIDTH), own_up, &cut(&down, HIDDEN, own, size));
            let found = walk(&device, inputs, |cx, v| {
                let hidden = ops::linear(cx, ProductInput::gathered(&v[0], &tokens), &v[1], None, None)?;
                let part = ops::linear(cx, &hidden, ProductWeight::scattered(&v[2], &tokens), Some(&v[3]), None)?;
                assert_eq!(part.shape().dims(), [tokens.own().len(), WIDTH]);
                ops::gather_tokens(cx, &tokens, &part)
            });
            (own_rows(&dx, &tokens, WIDTH), found)
        });
        let mut bias_sum = vec![0.0; WIDTH];
        for (rank, (own_dx, found)) in found.into_iter().enumerate() {
            let each = HIDDEN / size * WIDTH;
            let own_dup = dup[rank * each..(rank + 1) * each].to_vec();
            let expected = [y.clone(), own_dx, own_dup, cut(&ddown, HIDDEN, rank, size)];
            assert_eq!(found[..4], expected, "rank {rank} of {size}");
            bias_sum.iter_mut().zip(&found[4]).for_each(|(sum, term)| *sum += term);
        }
        // Each rank has the term of its tokens.
        assert_eq!(bias_sum, dbias, "{size} ranks");
    }
}

/// Central differences of a loss that every rank computes, by each element of every rank's inputs.
#[test]
fn gradients_of_sharded_tokens_are_finite_differences() {
    const STEP: f32 = 1.0 / 64.0;
    for size in [2, 4] {
        threads(size, options(), |rank| {
            let (own, tokens, device) = start(rank);
            let each = HIDDEN / size;
            let rows = tokens.own().len();
            let values = [
                own_rows(&noise(1, TOKENS * WIDTH), &tokens, WIDTH),
                noise(2 + own, each * WIDTH),
                noise(20 + own, each),
                noise(30 + own, WIDTH * each),
            ];
            let forward = |cx: &Ctx, v: &[Var]| {
                let x = ProductInput::gathered(&v[0], &tokens);
                let term = ops::feed_forward(cx, x, &v[1], Some(&v[2]), Activation::Gelu, &v[3], None)?;
                ops::gather_tokens(cx, &tokens, &ops::scatter_tokens(cx, &tokens, &term, None)?)
            };
            let inputs = |values: &[Vec<f32>; 4]| {
                let [x, up, bias, down] = values;
                let (x, up) = (tensor(&device, [rows, WIDTH], x), tensor(&device, [each, WIDTH], up));
                vec![x, up, tensor(&device, [each], bias), tensor(&device, [WIDTH, each], down)]
            };
            let loss = |values: &[Vec<f32>; 4]| {
                let v: Vec<Var> = inputs(values).into_iter().map(Var::constant).collect();
                let y = forward(&Ctx::inference(&device), &v).unwrap().value().to_vec::<f32>().unwrap();
                y.iter().zip(whole(50, y.len())).map(|(y, seed)| f64::from(*y) * f64::from(seed)).sum::<f64>()
            };
            let gradients = walk(&device, inputs(&values), forward);
            // Longer than any rank's inputs: all ranks take part in the loss of every element of every rank.
            for (which, owner, at) in
                (0..4).flat_map(|w| (0..size).flat_map(move |owner| (0..32).map(move |at| (w, owner, at))))
            {
                let is_moved = owner == own && at < values[which].len();
                let moved = |by: f32| {
                    let mut values = values.clone();
                    if is_moved {
                        values[which][at] += by;
                    }
                    loss(&values)
                };
                let slope = (moved(STEP) - moved(-STEP)) / f64::from(2.0 * STEP);
                if is_moved {
                    let gradient = f64::from(gradients[1 + which][at]);
                    // Third derivatives of the activation times the square of the step, and f32 rounding over it.
                    assert!((slope - gradient).abs() <= 5e-3 * slope.abs().max(1.0), "{slope} and {gradient}");
                }
            }
        });
    }
}

#[test]
fn a_norm_of_sharded_tokens_has_a_term_of_its_gradient_on_each_rank_and_zeros_without_tokens() {
    let (x, weight, bias) = (noise(1, TOKENS * WIDTH), noise(2, WIDTH), noise(3, WIDTH));
    let inputs = |device: &Device, x: &[f32]| {
        let x = tensor(device, [x.len() / WIDTH, WIDTH], x);
        vec![x, tensor(device, [WIDTH], &weight), tensor(device, [WIDTH], &bias)]
    };
    let norm =
        |cx: &Ctx, v: &[Var]| ops::norm(cx, ops::NormRule::new(NormKind::Layer, 1e-5), &v[0], &v[1], Some(&v[2]));
    let device = Device::cpu(1).unwrap();
    let alone = walk(&device, inputs(&device, &x), norm);
    for size in [2, 4] {
        let found = threads(size, options(), |rank| {
            let (_, tokens, device) = start(rank);
            let found = walk(&device, inputs(&device, &own_rows(&x, &tokens, WIDTH)), |cx, v| {
                ops::gather_tokens(cx, &tokens, &norm(cx, v)?)
            });
            assert_eq!(found[1], own_rows(&alone[1], &tokens, WIDTH));
            assert!(!tokens.own().is_empty() || found[2..].iter().flatten().all(|value| *value == 0.0));
            found
        });
        for parameter in [2, 3] {
            for (at, expected) in alone[parameter].iter().enumerate() {
                let sum: f32 = found.iter().map(|found| found[parameter][at]).sum();
                // Six terms in another order.
                assert!((sum - expected).abs() <= 1e-5, "{sum}, on one rank {expected}");
            }
        }
    }
}

#[test]
fn rows_of_a_sharded_vocabulary_come_as_rows_of_the_own_tokens() {
    const CLASSES: usize = 7;
    let (table, ids) = (noise(1, CLASSES * WIDTH), [6i64, 0, 3, 3, 1, 6]);
    let ids = |device: &Device| Tensor::from_slice_in(device, SHAPE, &ids, Segment::Data).unwrap();
    let device = Device::cpu(1).unwrap();
    let alone = walk(&device, vec![tensor(&device, [CLASSES, WIDTH], &table)], |cx, v| {
        ops::embedding(cx, &ids(cx.device()), &v[0], Some(3))
    });
    for (size, room) in [(2, 4), (4, 2), (4, 8)] {
        threads(size, options(), |rank| {
            let (_, tokens, device) = start(rank);
            let shard = VocabularyShard::new(Arc::clone(tokens.ranks()), CLASSES).with_room(room).unwrap();
            let classes = shard.classes();
            let mut own = table[classes.first * WIDTH..(classes.first + classes.count) * WIDTH].to_vec();
            own.resize(room * WIDTH, 0.0);
            let found = walk(&device, vec![tensor(&device, [room, WIDTH], &own)], |cx, v| {
                let rows = ops::vocabulary_embedding(cx, &ids(cx.device()), &v[0], &shard, Some(3), Some(&tokens))?;
                assert_eq!(rows.shape().dims(), [tokens.own().len(), WIDTH]);
                ops::gather_tokens(cx, &tokens, &rows)
            });
            assert_eq!(found[0], alone[0]);
            let own = &alone[1][classes.first * WIDTH..][..classes.count * WIDTH];
            assert_eq!(&found[1][..own.len()], own);
        });
    }
}

#[test]
fn dropout_of_the_own_tokens_is_a_part_of_the_mask_of_all() {
    let device = Device::cpu(1).unwrap();
    let key = bmtrain_core::philox::Key::new(7, "layer");
    let dropout = bmtrain_core::kernel::Dropout::new(0.5, key, 3, 1).unwrap().unwrap();
    let mask = |dropout, rows: usize| {
        let mut y = tensor(&device, [rows, WIDTH], &vec![1.0; rows * WIDTH]);
        device.launch(DropoutApply { dropout, rows, columns: WIDTH, x: None, y: y.dest(false).unwrap() }).unwrap();
        y.to_vec::<f32>().unwrap()
    };
    let all = mask(dropout, TOKENS);
    assert!(all.contains(&0.0) && all.contains(&2.0));
    for rank in 0..4 {
        let tokens = TokenShard::new(Arc::new(CountingRank::new(rank, 4).unwrap()), SHAPE);
        assert_eq!(mask(tokens.dropout(dropout, WIDTH), tokens.own().len()), own_rows(&all, &tokens, WIDTH));
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused_before_anything_is_sent() {
    let device = Device::cpu(1).unwrap();
    let tokens = TokenShard::new(Arc::new(CountingRank::new(0, 2).unwrap()), SHAPE);
    let cx = Ctx::inference(&device);
    let x = Var::constant(tensor(&device, [2, WIDTH], &[1.0; 2 * WIDTH]));
    let weight = Var::constant(tensor(&device, [1, WIDTH], &[1.0; WIDTH]));
    assert!(matches!(ops::gather_tokens(&cx, &tokens, &x), Err(Error::Shape { .. })));
    let input = ProductInput::gathered(&x, &tokens);
    assert!(matches!(ops::linear(&cx, input, &weight, None, None), Err(Error::Shape { .. })));
    assert!(matches!(ops::scatter_tokens(&cx, &tokens, &x, None), Err(Error::Shape { .. })));
    let scattered = ProductWeight::scattered(&weight, &tokens);
    assert!(matches!(ops::linear(&cx, &x, scattered, None, None), Err(Error::Shape { .. })));
    let all = Var::constant(tensor(&device, [2, 3, WIDTH], &[1.0; TOKENS * WIDTH]));
    let activated = ProductWeight::summed(&weight, tokens.ranks());
    let error = ops::linear(&cx, &all, activated, None, Some(Activation::Relu)).unwrap_err();
    assert!(error.to_string().contains("an op of its own"), "{error}");
    let bias = Var::constant(tensor(&device, [1], &[1.0]));
    assert!(matches!(ops::scatter_tokens(&cx, &tokens, &all, Some(&bias)), Err(Error::Shape { .. })));
    assert!(tokens.slice(x.value()).is_err());
}
