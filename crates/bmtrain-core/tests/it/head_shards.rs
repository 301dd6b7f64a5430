//! Attention of some of the heads, as a tensor-parallel rank computes it, against all heads: outputs, gradients and the
//! dropout of the probabilities, bit for bit.

use crate::cached_attention::values;
use bmtrain_core::kernel::Dropout;
use bmtrain_core::ops::{self, AttentionMask, AttentionOptions, HeadShard};
use bmtrain_core::philox::Key;
use bmtrain_core::{Ctx, Device, Error, Segment, Tensor, Var};

const BATCH: usize = 3;
const LENGTH: usize = 7;
const HEADS: usize = 4;
const SIZE: usize = 5;

/// Columns of the heads from `first` on, of rows of all heads.
fn columns(all: &[f32], first: usize, heads: usize) -> Vec<f32> {
    let range = first * SIZE..(first + heads) * SIZE;
    all.chunks(HEADS * SIZE).flat_map(|row| row[range.clone()].to_vec()).collect()
}

/// The heads from `first` on of a bias `[sequences, N, L, L]`.
fn heads_of(bias: &[f32], first: usize, heads: usize) -> Vec<f32> {
    let each = LENGTH * LENGTH;
    bias.chunks(HEADS * each).flat_map(|all| all[first * each..(first + heads) * each].to_vec()).collect()
}

/// The output, and the gradients of queries, keys, values and bias.
fn attend(
    (first, heads, shard): (usize, usize, Option<HeadShard>),
    sequences: usize,
    mask: &str,
    causal: bool,
) -> Vec<Vec<f32>> {
    let device = Device::cpu(1).unwrap();
    let cx = Ctx::gradients(&device);
    let tape = cx.tape().unwrap().clone();
    let tensor = |shape: &[usize], values: &[f32]| {
        let shape = bmtrain_core::Shape::new(shape).unwrap();
        Tensor::from_slice_in(&device, shape, values, Segment::Activations).unwrap()
    };
    let all = BATCH * LENGTH * HEADS * SIZE;
    let shape = [BATCH, LENGTH, heads * SIZE];
    let [q, k, v] = [1, 2, 3].map(|salt| tape.input(tensor(&shape, &columns(&values(all, salt), first, heads))));
    let bias = heads_of(&values(sequences * HEADS * LENGTH * LENGTH, 4), first, heads);
    let bias = tape.input(tensor(&[sequences, heads, LENGTH, LENGTH], &bias));
    let seen: Vec<u8> = (0..BATCH * LENGTH * LENGTH).map(|at| u8::from(at % 5 != 1 || at % LENGTH == 0)).collect();
    let full = Tensor::from_slice_in(&device, [BATCH, LENGTH, LENGTH], &seen, Segment::Data).unwrap();
    let seen: Vec<u8> = (0..BATCH * LENGTH).map(|at| u8::from(at % LENGTH < LENGTH - at / LENGTH)).collect();
    let padding = Tensor::from_slice_in(&device, [BATCH, LENGTH], &seen, Segment::Data).unwrap();
    let options = AttentionOptions {
        causal,
        mask: match mask {
            "full" => AttentionMask::Full(&full),
            "padding" => AttentionMask::Padding(&padding),
            _ => AttentionMask::None,
        },
        bias: Some(&bias),
        dropout: Dropout::new(0.3, Key::new(5, "attention"), 2, 1).unwrap(),
        shard,
        ..AttentionOptions::new(heads, SIZE)
    };
    let out = ops::attention(&cx, &q, &k, &v, &options).unwrap();
    let seed = tensor(&shape, &columns(&values(all, 6), first, heads));
    let mut results = vec![out.value().to_vec().unwrap()];
    let grads = tape.backward(&device, vec![(out, seed)], &[&q, &k, &v, &bias]).unwrap();
    results.extend(grads.iter().map(|grad| grad.as_ref().unwrap().to_vec::<f32>().unwrap()));
    results
}

#[test]
fn some_heads_with_dropout_equal_the_same_heads_among_all_bit_for_bit() {
    for (sequences, mask, causal) in [(1, "none", true), (BATCH, "padding", false), (1, "full", false)] {
        let all = attend((0, HEADS, None), sequences, mask, causal);
        for heads in [1, 2, 4] {
            for first in (0..HEADS).step_by(heads) {
                let some = attend((first, heads, Some(HeadShard { first, total: HEADS })), sequences, mask, causal);
                for (some, all) in some.iter().zip(&all).take(4) {
                    assert_eq!(*some, columns(all, first, heads), "{heads} from {first}, {mask}");
                }
                assert_eq!(some[4], heads_of(&all[4], first, heads), "bias of {heads} from {first}, {mask}");
            }
        }
        // A model that has these heads alone samples other masks.
        assert_ne!(attend((2, 2, None), sequences, mask, causal)[0], columns(&all[0], 2, 2));
    }
}

#[test]
fn heads_beyond_the_last_are_refused() {
    let device = Device::cpu(1).unwrap();
    let x = Tensor::full_in(&device, [1, 2, 8], bmtrain_core::DType::F32, 0.5, Segment::Activations).unwrap();
    let x = Var::constant(x);
    let shard = Some(HeadShard { first: 3, total: 4 });
    let options = AttentionOptions { shard, ..AttentionOptions::new(2, 4) };
    let error = ops::attention(&Ctx::inference(&device), &x, &x, &x, &options);
    assert!(matches!(error, Err(Error::Shape { .. })));
}
