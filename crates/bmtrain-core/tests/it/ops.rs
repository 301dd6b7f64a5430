//! Promises of ops besides their arithmetic: readable errors, what they save, what they take.

use bmtrain_core::autograd::{GradSink, SinkTarget};
use bmtrain_core::kernel::{Activation, NormKind, RotaryLayout};
use bmtrain_core::ops::{self, AttentionMask, AttentionOptions, CrossEntropy, KeyValues, Rotary};
use bmtrain_core::{Ctx, DType, Device, Result, Segment, Storage, Tensor, Var};
use std::rc::Rc;

fn constant<const N: usize>(device: &Device, shape: [usize; N]) -> Var {
    Var::constant(Tensor::full_in(device, shape, DType::F32, 0.5, Segment::Activations).unwrap())
}

/// A leaf whose gradient is never walked to.
#[derive(Debug)]
struct Unused(Storage);

impl GradSink for Unused {
    fn target(&self) -> Result<SinkTarget> {
        Ok(SinkTarget { storage: self.0.clone(), start: 0, len: self.0.len(), add: false })
    }
}

fn leaf<const N: usize>(device: &Device, shape: [usize; N]) -> Var {
    let value = Tensor::full_in(device, shape, DType::F32, 0.5, Segment::Parameters).unwrap();
    let storage = Storage::zeros(device, value.elements(), DType::F32, Segment::Gradients).unwrap();
    Var::leaf(value, Rc::new(Unused(storage)))
}

fn ids(device: &Device, values: &[i64]) -> Tensor {
    Tensor::from_slice_in(device, [values.len()], values, Segment::Data).unwrap()
}

#[test]
fn errors_name_the_op_the_place_and_the_shapes() {
    let device = Device::cpu(1).unwrap();
    let cx = Ctx::inference(&device);
    let c2 = |shape: [usize; 2]| constant(&device, shape);
    let (x, weight) = (c2([3, 4]), c2([5, 4]));
    let q = constant(&device, [2, 3, 8]);
    let mask = Tensor::full_in(&device, [2, 4], DType::U8, 1.0, Segment::Data).unwrap();
    let (epsilon, kind) = (1e-5, NormKind::Layer);
    let with_mask = AttentionOptions { mask: AttentionMask::Padding(&mask), ..AttentionOptions::new(2, 4) };
    let with_window = AttentionOptions { window: Some(0), ..AttentionOptions::new(2, 4) };
    let tall = constant(&device, [1, 2, 2, 3]);
    let with_bias = AttentionOptions { bias: Some(&tall), ..AttentionOptions::new(2, 4) };
    let angles = Tensor::full_in(&device, [2, 4], DType::F32, 1.0, Segment::Data).unwrap();
    let turned = |dims: usize, at: Option<&Tensor>| {
        let layout = RotaryLayout::Halves;
        let options = Rotary { heads: 2, head_size: 4, dims, layout, table: &angles, positions: at };
        ops::rotary(&cx, q.clone(), &options).map(drop)
    };
    let places = ids(&device, &[0, 1, 0, 1, 2, 0]).reshape([2, 3]).unwrap();
    let uneven = AttentionOptions { kv_heads: 2, ..AttentionOptions::new(3, 4) };
    let loss = |logits: &Var, targets: &[i64], smoothing: f32| {
        let options = CrossEntropy { label_smoothing: smoothing, ..CrossEntropy::default() };
        ops::cross_entropy(&cx, logits, &ids(&device, targets), &options).map(drop)
    };
    let capped = |cap: f32| {
        let options = CrossEntropy { soft_cap: Some(cap), ..CrossEntropy::default() };
        ops::cross_entropy(&cx, &x, &ids(&device, &[0, 1, 2]), &options).map(drop)
    };
    let linear = |x: &Var, w: &Var, b: Option<&Var>| ops::linear(&cx, x, w, b, None).map(drop);
    let table = |at: &[i64], padding| ops::embedding(&cx, &ids(&device, at), &x, padding).map(drop);
    let expected = [
        (linear(&c2([3, 5]), &weight, None), "linear: innermost axis of x: expected 4 for a weight [5, 4], got [3, 5]"),
        (linear(&x, &weight, Some(&c2([1, 4]))), "linear: bias: expected 5 elements, got [1, 4]"),
        (linear(&x, &q, None), "linear: rank: expected 2 dimensions, got [2, 3, 8]"),
        (
            ops::feed_forward(&cx, &x, &weight, None, Activation::Gelu, &weight, None).map(drop),
            "feed_forward: innermost axis of x: expected 4 for a weight [5, 4], got [3, 5]",
        ),
        (
            ops::gated_feed_forward(&cx, &x, &weight, None, Activation::Silu, &weight, None).map(drop),
            "gated_feed_forward: rows of w_in: expected an even number: gate and factor, got [5, 4]",
        ),
        (
            ops::matmul(&cx, &x, &weight, false, false).map(drop),
            "matmul: summed axis of b: expected 4 as in a [3, 4], got 5 of [5, 4]",
        ),
        (
            ops::matmul(&cx, &q, &constant(&device, [3, 8, 2]), false, false).map(drop),
            "matmul: leading axes of b: expected as in a [2, 3, 8], or none, got [3, 8, 2]",
        ),
        (ops::add(&cx, &x, &weight).map(drop), "add: b: expected [3, 4], got [5, 4]"),
        (ops::mul(&cx, &x, &weight).map(drop), "mul: b: expected [3, 4], got [5, 4]"),
        (
            ops::gated(&cx, &c2([2, 5]), Activation::Silu).map(drop),
            "gated: innermost axis of x: expected an even number: gate and factor, got [2, 5]",
        ),
        (
            ops::norm(&cx, ops::NormRule::new(kind, epsilon), &x, &c2([1, 3]), None).map(drop),
            "norm: weight: expected 4 elements, got [1, 3]",
        ),
        (
            ops::norm(&cx, ops::NormRule::new(kind, f32::NAN), &x, &c2([1, 4]), None).map(drop),
            "norm: epsilon NaN is not a small positive number",
        ),
        (
            ops::residual_norm(&cx, ops::NormRule::new(kind, epsilon), &x, &weight, None, &c2([1, 4]), None).map(drop),
            "residual_norm: residual: expected [3, 4], got [5, 4]",
        ),
        (ops::attention(&cx, &q, &q, &q, &with_mask).map(drop), "attention: padding mask: expected [2, 3], got [2, 4]"),
        (
            ops::attention(&cx, &q, &q, &q, &uneven).map(drop),
            "attention: heads: expected a multiple of the kv heads, none of them 0, got 3 heads of 4 over 2",
        ),
        (
            ops::attention_fused(&cx, &q, &AttentionOptions::new(2, 4)).map(drop),
            "attention_fused: qkv: expected [2, 3, 24], got [2, 3, 8]",
        ),
        (
            ops::attention_cross(&cx, &q, &q, &AttentionOptions::new(2, 4)).map(drop),
            "attention_cross: kv: expected [2, 3, 16], got [2, 3, 8]",
        ),
        (
            ops::attention(&cx, &q, &q, &q, &with_window).map(drop),
            "attention_forward: a window of 0 keys: a query sees its own at least",
        ),
        (
            ops::attention(&cx, &q, &q, &q, &with_bias).map(drop),
            "attention: bias: expected [1, 2, 1, 3], got [1, 2, 2, 3]",
        ),
        (turned(2, None), "rotary: table: expected [2, 2], got [2, 4]"),
        (turned(4, None), "rotary: rows of a sequence: expected 1 to 2 as the table, got 3"),
        (turned(4, Some(&places)), "rotary: index 2 at position 4 is outside 0..2"),
        (ops::permute(&cx, &x, &[0, 0]).map(drop), "permute: axes: expected each of 0..2 once, got [0, 0]"),
        (ops::slice_last(&cx, &x, 2..5).map(drop), "slice_last: range: expected inside 0..4 of [3, 4], got 2..5"),
        (ops::select_row(&cx, &q, 3).map(drop), "select_row: index: expected inside 0..3 of [2, 3, 8], got 3"),
        (
            ops::concat_last(&cx, &[&x, &weight]).map(drop),
            "concat_last: leading axes of a part: expected [3, 1], got [5, 1]",
        ),
        (ops::concat_last(&cx, &[]).map(drop), "concat_last: nothing to join"),
        (table(&[0, 3], None), "embedding_forward: index 3 at position 1 is outside 0..3"),
        (table(&[0, -1], None), "embedding_forward: index -1 at position 1 is outside 0..3"),
        (table(&[0], Some(3)), "embedding: padding index 3 is outside the table of 3 rows"),
        (loss(&x, &[0, 1], 0.0), "cross_entropy: targets: expected 3 elements, got [2]"),
        (loss(&x, &[0, 1, 4], 0.0), "cross_entropy_forward: index 4 at position 2 is outside 0..4"),
        (loss(&x, &[0, 1, 2], 1.0), "cross_entropy_forward: label smoothing 1 is outside [0, 1)"),
        (ops::soft_cap(&cx, &x, Some(0.0)).map(drop), "soft_cap: soft cap 0 is not a number above 0"),
        (capped(-2.0), "cross_entropy_forward: soft cap -2 is not a number above 0"),
        (ops::mean(&cx, &c2([0, 4])).map(drop), "mean: x: expected at least one element, got [0, 4]"),
    ];
    for (result, message) in expected {
        assert_eq!(result.unwrap_err().to_string(), message);
    }
}

/// Bytes saved by one op over these inputs.
fn saved(device: &Device, op: impl FnOnce(&Ctx) -> Result<()>) -> usize {
    let cx = Ctx::gradients(device);
    op(&cx).unwrap();
    cx.tape().unwrap().saved_bytes()
}

#[test]
fn ops_save_what_their_documentation_says() {
    let device = Device::cpu(1).unwrap();
    let (m, d, f) = (6, 8, 32);
    let (x, frozen) = (leaf(&device, [m, d]), constant(&device, [m, d]));
    let (w_in, w_out) = (leaf(&device, [f, d]), leaf(&device, [d, f]));
    let gelu = Activation::Gelu;
    let linear = |x: &Var, w: &Var, a| saved(&device, |cx| ops::linear(cx, x, w, None, a).map(drop));
    assert_eq!(linear(&x, &w_in, None), 4 * m * d);
    assert_eq!(linear(&x, &w_in, Some(gelu)), 4 * m * (d + f));
    assert_eq!(linear(&x, &constant(&device, [f, d]), None), 0, "a frozen weight needs no input");
    assert_eq!(linear(&frozen, &constant(&device, [f, d]), Some(gelu)), 0);
    let both = saved(&device, |cx| ops::feed_forward(cx, &x, &w_in, None, gelu, &w_out, None).map(drop));
    let apart = saved(&device, |cx| {
        let hidden = ops::linear(cx, &x, &w_in, None, Some(gelu))?;
        ops::linear(cx, &hidden, &w_out, None, None).map(drop)
    });
    assert_eq!(both, 4 * m * (d + f));
    assert_eq!(apart - both, 4 * m * f, "one hidden activation less");
    let w_both = leaf(&device, [2 * f, d]);
    let gated = saved(&device, |cx| ops::gated_feed_forward(cx, &x, &w_both, None, gelu, &w_out, None).map(drop));
    assert_eq!(gated, 4 * m * (d + 2 * f), "nothing of what gate and factor make");
    let kept = saved(&device, |cx| {
        ops::norm(cx, ops::NormRule::new(NormKind::Layer, 1e-5), &x, &leaf(&device, [d]), None).map(drop)
    });
    assert_eq!(kept, 4 * (m * d + 2 * m));
    assert_eq!(saved(&device, |cx| ops::add(cx, &x, &frozen).map(drop)), 0);
}

#[test]
fn attention_never_holds_a_score_for_every_pair() {
    let device = Device::cpu(1).unwrap();
    let (length, width) = (512, 64);
    let cx = Ctx::gradients(&device);
    let value = Tensor::full_in(&device, [1, length, 3 * width], DType::F32, 0.5, Segment::Activations).unwrap();
    let qkv = cx.tape().unwrap().input(value);
    let seed = Tensor::full_in(&device, [1, length, width], DType::F32, 1.0, Segment::Activations).unwrap();
    let before = device.memory().total.now;
    device.reset_peaks();
    let y = ops::attention_fused(&cx, &qkv, &AttentionOptions::new(8, 8)).unwrap();
    let pair_bytes = 8 * length * length * 4;
    let grads = cx.tape().unwrap().backward(&device, vec![(y, seed)], &[&qkv]).unwrap();
    assert!(grads[0].is_some());
    let most = device.memory().total.peak - before;
    // The result, one number per row and head twice, and the gradient.
    assert!(most <= 4 * length * (width + 2 * 8 + 3 * width), "{most} bytes");
    assert!(most < pair_bytes / 10, "{most} bytes, scores would be {pair_bytes}");
}

#[test]
fn rotary_works_in_place_on_memory_that_it_owns() {
    let device = Device::cpu(1).unwrap();
    let table = Tensor::from_slice_in(&device, [2, 2], &[1.0f32, 0.0, 0.0, 1.0], Segment::Data).unwrap();
    let options =
        Rotary { heads: 1, head_size: 2, dims: 2, layout: RotaryLayout::Pairs, table: &table, positions: None };
    let cx = Ctx::gradients(&device);
    let start = Tensor::from_slice_in(&device, [1, 2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], Segment::Data).unwrap();
    let start = cx.tape().unwrap().input(start);
    let x = ops::scale(&cx, &start, 1.0).unwrap();
    let address = x.value().view().unwrap().address();
    let y = ops::rotary(&cx, x.clone(), &options).unwrap();
    assert_eq!(y.value().to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, -5.0, 4.0, 6.0]);
    assert_eq!(x.value().to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "x is seen here");
    assert_ne!(y.value().view().unwrap().address(), address);
    drop(y);
    let y = ops::rotary(&cx, x, &options).unwrap();
    assert_eq!(y.value().to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, -5.0, 4.0, 6.0]);
    assert_eq!(y.value().view().unwrap().address(), address);
    let seed = Tensor::from_slice_in(&device, [1, 2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], Segment::Data).unwrap();
    let grads = cx.tape().unwrap().backward(&device, vec![(y, seed)], &[&start]).unwrap();
    assert_eq!(grads[0].as_ref().unwrap().to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 5.0, -4.0, 6.0]);
}

#[test]
fn empty_batches_pass_through() {
    let device = Device::cpu(2).unwrap();
    let cx = Ctx::gradients(&device);
    let x = cx.tape().unwrap().input(Tensor::full_in(&device, [0, 8], DType::F32, 0.0, Segment::Activations).unwrap());
    let weight =
        cx.tape().unwrap().input(Tensor::full_in(&device, [4, 8], DType::F32, 1.0, Segment::Parameters).unwrap());
    let y = ops::linear(&cx, &x, &weight, None, Some(Activation::Gelu)).unwrap();
    assert_eq!(y.shape().dims(), [0, 4]);
    let y = ops::gated(&cx, &y, Activation::Silu).unwrap();
    let seed = Tensor::full_in(&device, [0, 2], DType::F32, 1.0, Segment::Activations).unwrap();
    let grads = cx.tape().unwrap().backward(&device, vec![(y, seed)], &[&x, &weight]).unwrap();
    assert_eq!(grads[1].as_ref().unwrap().to_vec::<f32>().unwrap(), vec![0.0; 32]);
}

#[test]
fn attention_to_kept_tokens_refuses_what_is_to_be_differentiated() {
    let device = Device::cpu(1).unwrap();
    let (cx, mut cache, options) = (Ctx::inference(&device), KeyValues::default(), AttentionOptions::new(1, 2));
    let error = ops::attention_fused_cached(&cx, &leaf(&device, [1, 1, 6]), &mut cache, &options).unwrap_err();
    assert!(error.to_string().contains("no backward pass"), "{error}");
    let [q, k, v] = [constant(&device, [1, 1, 2]), constant(&device, [1, 1, 2]), leaf(&device, [1, 1, 2])];
    assert!(ops::attention_cached(&cx, [&q, &k, &v], &mut cache, &options).is_err() && cache.is_empty());
    ops::attention_fused_cached(&cx, &constant(&device, [1, 1, 6]), &mut cache, &options).unwrap();
    assert_eq!(cache.len(), 1);
}
