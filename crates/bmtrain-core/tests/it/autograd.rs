//! Tests of the tape.

use bmtrain_core::autograd::{Backward, BackwardCtx, GradSink, Grads, Randomness, SinkTarget, Tape};
use bmtrain_core::kernel::{Activation, Dest, Fill, NormKind};
use bmtrain_core::wrap::Counting;
use bmtrain_core::{Ctx, DType, Device, Result, Segment, Storage, Tensor, Var, ops};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

fn cpu() -> Device {
    Device::cpu(1).unwrap()
}

fn tensor(device: &Device, values: &[f32]) -> Tensor {
    Tensor::from_slice_in(device, [values.len()], values, Segment::Activations).unwrap()
}

fn walk(cx: &Ctx, outputs: Vec<Var>, wanted: &[&Var]) -> Vec<Option<Vec<f32>>> {
    let seed = |var: Var| {
        let ones = Tensor::full_in(cx.device(), var.shape(), var.dtype(), 1.0, Segment::Activations).unwrap();
        (var, ones)
    };
    let seeds = outputs.into_iter().map(seed).collect();
    let grads = cx.tape().unwrap().backward(cx.device(), seeds, wanted).unwrap();
    grads.into_iter().map(|grad| grad.map(|grad| grad.to_vec().unwrap())).collect()
}

#[derive(Debug)]
struct Sink {
    storage: Storage,
    holds: Cell<bool>,
    asked: Cell<usize>,
}

impl Sink {
    fn new(device: &Device, len: usize) -> Rc<Self> {
        let storage = Storage::zeros(device, len, DType::F32, Segment::Gradients).unwrap();
        device.launch(Fill { value: f32::NAN, out: storage.view_mut(0..len).unwrap() }).unwrap();
        Rc::new(Sink { storage, holds: Cell::new(false), asked: Cell::new(0) })
    }

    fn values(&self) -> Vec<f32> {
        self.storage.tensor(0, [self.storage.len()]).unwrap().to_vec().unwrap()
    }
}

impl GradSink for Sink {
    fn target(&self) -> Result<SinkTarget> {
        self.asked.set(self.asked.get() + 1);
        Ok(SinkTarget {
            storage: self.storage.clone(),
            start: 0,
            len: self.storage.len(),
            add: self.holds.replace(true),
        })
    }
}

#[test]
fn gradients_of_a_shared_input_add_up() {
    let cx = Ctx::gradients(&cpu());
    let x = cx.tape().unwrap().input(tensor(cx.device(), &[1.0, -2.0, 3.0]));
    let doubled = ops::scale(&cx, &x, 2.0).unwrap();
    let squared = ops::mul(&cx, &x, &x).unwrap();
    let y = ops::add(&cx, &doubled, &squared).unwrap();
    let z = ops::add(&cx, &y, &x).unwrap();
    // d (2x + x^2 + x) = 3 + 2x
    assert_eq!(walk(&cx, vec![z], &[&x]), [Some(vec![5.0, -1.0, 9.0])]);
}

#[test]
fn a_leaf_used_twice_gets_both_gradients_and_is_overwritten_first() {
    let device = cpu();
    let cx = Ctx::gradients(&device);
    let sink = Sink::new(&device, 2);
    let weight = Var::leaf(tensor(&device, &[3.0, 4.0]), sink.clone());
    let x = Var::constant(tensor(&device, &[10.0, 20.0]));
    let (a, b) = (ops::mul(&cx, &weight, &x).unwrap(), ops::scale(&cx, &weight, 0.5).unwrap());
    let grads = walk(&cx, vec![a, b], &[&weight]);
    assert_eq!(sink.values(), [10.5, 20.5]);
    assert_eq!(sink.asked.get(), 2);
    assert_eq!(grads, [None], "the gradient of a leaf is in its sink, not in the result");
}

#[test]
fn one_leaf_in_two_places_of_one_kernel_is_summed() {
    let device = cpu();
    let cx = Ctx::gradients(&device);
    let sink = Sink::new(&device, 4);
    let affine = Var::leaf(tensor(&device, &[1.0, 2.0, 3.0, 4.0]), sink.clone());
    let x = Tensor::from_slice_in(&device, [1, 4], &[1.0f32, 2.0, 3.0, 6.0], Segment::Activations).unwrap();
    let x = Var::constant(x);
    let y = ops::norm(&cx, ops::NormRule::new(NormKind::Layer, 0.0), &x, &affine, Some(&affine)).unwrap();
    walk(&cx, vec![y], &[]);
    let deviation = 3.5f32.sqrt();
    for (got, centred) in sink.values().iter().zip([-2.0, -1.0, 0.0, 3.0]) {
        // The scale gets the normalised value, the shift gets 1.
        assert!((got - (centred / deviation + 1.0)).abs() < 1e-5, "{got} for {centred}");
    }
}

#[test]
fn unused_results_cost_nothing() {
    let counting = Arc::new(Counting::new(1 << 20));
    let device = Device::new(counting.clone());
    let cx = Ctx::gradients(&device);
    let x = cx.tape().unwrap().input(tensor(&device, &[1.0; 8]));
    let used = ops::scale(&cx, &x, 2.0).unwrap();
    let unused = ops::softmax(&cx, &x).unwrap();
    ops::mul(&cx, &unused, &unused).unwrap();
    let seed = tensor(&device, &[1.0; 8]);
    counting.reset();
    cx.tape().unwrap().backward(&device, vec![(used, seed)], &[&x]).unwrap();
    let launched = counting.kernels();
    assert_eq!(launched.keys().collect::<Vec<_>>(), [&"add_scaled"]);
    assert_eq!(launched["add_scaled"].calls, 1);
}

#[test]
fn nothing_is_recorded_or_computed_when_no_gradient_is_wanted() {
    let counting = Arc::new(Counting::new(1 << 20));
    let device = Device::new(counting.clone());
    let cx = Ctx::gradients(&device);
    let x = Var::constant(Tensor::full_in(&device, [4, 8], DType::F32, 1.0, Segment::Activations).unwrap());
    let weight = Var::constant(Tensor::full_in(&device, [8, 8], DType::F32, 1.0, Segment::Parameters).unwrap());
    let y = ops::linear(&cx, &x, &weight, None, Some(Activation::Gelu)).unwrap();
    assert!(!y.needs_grad());
    assert_eq!(cx.tape().unwrap().saved_bytes(), 0);
    counting.reset();
    let seed = Tensor::full_in(&device, [4, 8], DType::F32, 1.0, Segment::Activations).unwrap();
    counting.reset();
    cx.tape().unwrap().backward(&device, vec![(y, seed)], &[&x]).unwrap();
    assert!(counting.kernels().is_empty(), "{:?}", counting.kernels());
}

#[test]
fn a_frozen_weight_costs_one_product_less() {
    let products = |frozen: bool| {
        let counting = Arc::new(Counting::new(1 << 20));
        let device = Device::new(counting.clone());
        let cx = Ctx::gradients(&device);
        let x =
            cx.tape().unwrap().input(Tensor::full_in(&device, [4, 8], DType::F32, 1.0, Segment::Activations).unwrap());
        let weight = Tensor::full_in(&device, [8, 8], DType::F32, 1.0, Segment::Parameters).unwrap();
        let weight = if frozen { Var::constant(weight) } else { Var::leaf(weight, Sink::new(&device, 64)) };
        let y = ops::linear(&cx, &x, &weight, None, None).unwrap();
        let seed = Tensor::full_in(&device, [4, 8], DType::F32, 1.0, Segment::Activations).unwrap();
        counting.reset();
        cx.tape().unwrap().backward(&device, vec![(y, seed)], &[&x]).unwrap();
        (counting.kernels()["gemm"].calls, cx.tape().unwrap().saved_bytes())
    };
    assert_eq!(products(false).0, 2);
    assert_eq!(products(true).0, 1);
}

#[test]
fn every_result_may_be_seeded_with_a_gradient_of_its_own() {
    let cx = Ctx::gradients(&cpu());
    let x = cx.tape().unwrap().input(tensor(cx.device(), &[1.0, 2.0]));
    let y = ops::scale(&cx, &x, 3.0).unwrap();
    let z = ops::mul(&cx, &y, &y).unwrap();
    let seeds = vec![
        (z, tensor(cx.device(), &[1.0, 10.0])),
        (y.clone(), tensor(cx.device(), &[100.0, 0.0])),
        (x.clone(), tensor(cx.device(), &[0.5, 0.25])),
    ];
    let grads = cx.tape().unwrap().backward(cx.device(), seeds, &[&x, &y]).unwrap();
    // dz/dx = 18 x
    assert_eq!(grads[0].as_ref().unwrap().to_vec::<f32>().unwrap(), [18.0 + 300.0 + 0.5, 360.0 + 0.25]);
    assert!(grads[1].is_none(), "the gradient of an inner result was consumed by its op");
}

#[test]
fn a_seed_of_another_size_is_refused() {
    let cx = Ctx::gradients(&cpu());
    let x = cx.tape().unwrap().input(tensor(cx.device(), &[1.0, 2.0]));
    let y = ops::scale(&cx, &x, 3.0).unwrap();
    let error = cx.tape().unwrap().backward(cx.device(), vec![(y, tensor(cx.device(), &[1.0]))], &[&x]).unwrap_err();
    assert!(error.to_string().contains("gradient of a result"), "{error}");
}

#[test]
fn a_variable_of_another_tape_is_refused() {
    let device = cpu();
    let (ours, theirs) = (Ctx::gradients(&device), Ctx::gradients(&device));
    let foreign = theirs.tape().unwrap().input(tensor(&device, &[1.0]));
    let y = ops::scale(&ours, &foreign, 2.0).unwrap();
    let error = ours.tape().unwrap().backward(&device, vec![(y, tensor(&device, &[1.0]))], &[]).unwrap_err();
    assert!(error.to_string().contains("another tape"), "{error}");
    let error =
        ours.tape().unwrap().backward(&device, vec![(foreign.clone(), tensor(&device, &[1.0]))], &[]).unwrap_err();
    assert!(error.to_string().contains("another tape"), "{error}");
    let error = ours.tape().unwrap().backward(&device, Vec::new(), &[&foreign]).unwrap_err();
    assert!(error.to_string().contains("another tape"), "{error}");
}

#[test]
fn reshaped_views_of_a_result_share_its_gradient() {
    let cx = Ctx::gradients(&cpu());
    let x = cx.tape().unwrap().input(tensor(cx.device(), &[1.0, 2.0, 3.0, 4.0]));
    let square = ops::mul(&cx, &x, &x).unwrap();
    let wide = ops::scale(&cx, &square.reshape([2, 2]).unwrap(), 10.0).unwrap();
    let tall = ops::scale(&cx, &square.reshape([4, 1]).unwrap(), 1.0).unwrap();
    assert_eq!(walk(&cx, vec![wide, tall], &[&x]), [Some(vec![22.0, 44.0, 66.0, 88.0])]);
}

/// An op that notes how many bytes of activations are in use when its turn comes.
#[derive(Debug)]
struct Probe(Rc<Cell<usize>>);

impl Backward for Probe {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        self.0.set(cx.device().memory().total.now);
        cx.give(0, dy.into_iter().flatten().next().unwrap())
    }
}

#[test]
fn what_an_op_saved_is_free_as_soon_as_its_gradient_is_made() {
    let device = cpu();
    let cx = Ctx::gradients(&device);
    let n = 1 << 16;
    let bytes = 4 * n;
    let probe = Rc::new(Cell::new(0));
    let x = cx.tape().unwrap().input(Tensor::full_in(&device, [n], DType::F32, 0.5, Segment::Activations).unwrap());
    let value = x.value().clone();
    let first = cx.record(value, &[&x], || Box::new(Probe(probe.clone())));
    let mut y = ops::softmax(&cx, &first).unwrap();
    for _ in 0..6 {
        y = ops::softmax(&cx, &y).unwrap();
    }
    drop(first);
    assert_eq!(cx.tape().unwrap().saved_bytes(), 7 * bytes);
    let before = device.memory().total.now;
    // x and the seven results that the softmaxes saved.
    assert_eq!(before, 8 * bytes);
    let seed = Tensor::full_in(&device, [n], DType::F32, 1.0, Segment::Activations).unwrap();
    device.reset_peaks();
    let grads = cx.tape().unwrap().backward(&device, vec![(y, seed)], &[&x]).unwrap();
    assert_eq!(probe.get(), 2 * bytes, "only x and its gradient are left at the first op");
    // The most at once: everything, the seed, and the first gradient.
    assert_eq!(device.memory().total.peak, 10 * bytes);
    assert_eq!(cx.tape().unwrap().saved_bytes(), 0);
    drop((grads, x, cx));
    assert_eq!(device.memory().total.now, 0);
}

#[test]
fn an_op_whose_gradient_is_not_reached_is_freed_too() {
    let device = cpu();
    let cx = Ctx::gradients(&device);
    let x = cx.tape().unwrap().input(tensor(&device, &[1.0; 64]));
    ops::softmax(&cx, &x).unwrap();
    assert!(cx.tape().unwrap().saved_bytes() > 0);
    cx.tape().unwrap().backward(&device, Vec::new(), &[&x]).unwrap();
    assert_eq!(cx.tape().unwrap().saved_bytes(), 0);
    drop((x, cx));
    assert_eq!(device.memory().total.now, 0);
}

#[test]
fn a_consumed_variable_is_written_in_place_only_when_it_is_alone() {
    let device = cpu();
    let cx = Ctx::inference(&device);
    let ids = Tensor::from_slice_in(&device, [2], &[1i64, 0], Segment::Data).unwrap();
    let table = Tensor::from_slice_in(&device, [2, 2], &[1.0f32, 2.0, 3.0, 4.0], Segment::Parameters).unwrap();
    let table = Var::constant(table);
    let x = Var::constant(Tensor::from_slice_in(&device, [2, 2], &[10.0f32; 4], Segment::Activations).unwrap());
    let kept = x.clone();
    let y = ops::add_embedding(&cx, x, &ids, &table, None).unwrap();
    assert_eq!(kept.value().to_vec::<f32>().unwrap(), [10.0; 4], "a shared tensor was written");
    assert_eq!(y.value().to_vec::<f32>().unwrap(), [13.0, 14.0, 11.0, 12.0]);
    drop(kept);
    device.reset_peaks();
    let before = device.memory().total.now;
    let z = ops::add_embedding(&cx, y, &ids, &table, None).unwrap();
    assert_eq!(z.value().to_vec::<f32>().unwrap(), [16.0, 18.0, 12.0, 14.0]);
    assert_eq!(device.memory().total.peak, before, "a tensor that is alone was copied");
}

#[test]
fn logits_that_are_not_held_become_their_own_gradient() {
    let device = cpu();
    let (rows, classes) = (64, 512);
    let bytes = 4 * rows * classes;
    let peak = |hold: bool| {
        let cx = Ctx::gradients(&device);
        let x = cx
            .tape()
            .unwrap()
            .input(Tensor::full_in(&device, [rows, classes], DType::F32, 0.1, Segment::Activations).unwrap());
        let logits = ops::scale(&cx, &x, 2.0).unwrap();
        let targets = Tensor::from_slice_in(&device, [rows], &vec![3i64; rows], Segment::Data).unwrap();
        let loss = ops::cross_entropy(&cx, &logits, &targets, &ops::CrossEntropy::default()).unwrap();
        let held = hold.then(|| logits.clone());
        drop(logits);
        device.reset_peaks();
        let before = device.memory().total.now;
        let seed = tensor(&device, &[1.0]);
        cx.tape().unwrap().backward(&device, vec![(loss, seed)], &[&x]).unwrap();
        drop(held);
        device.memory().total.peak - before
    };
    // With the logits held: two gradients, of logits and x. Without: the gradient of x. The seed is a chunk of its own.
    assert!(peak(true) > bytes + bytes / 2);
    assert!(peak(false) < bytes + bytes / 2, "{}", peak(false));
}

#[test]
fn dropout_is_off_outside_training_and_repeats_under_one_address() {
    let device = cpu();
    assert!(Ctx::gradients(&device).dropout("x", 0.5).unwrap().is_none());
    assert!(Ctx::inference(&device).dropout("x", 0.5).unwrap().is_none());
    let dropped = |step: u32| {
        let cx = Ctx::training(&device, Randomness { seed: 1, step, micro_batch: 0 });
        let x = Var::constant(tensor(&device, &[1.0; 256]));
        let y = ops::dropout(&cx, &x, cx.dropout("x", 0.5).unwrap()).unwrap();
        y.value().to_vec::<f32>().unwrap()
    };
    assert_eq!(dropped(0), dropped(0));
    assert_ne!(dropped(0), dropped(1));
    assert!(dropped(0).iter().all(|&value| value == 0.0 || value == 2.0));
}

#[test]
fn destinations_tell_whether_they_add() {
    /// Writes 1 into two gradients at once and notes what it was told.
    #[derive(Debug)]
    struct Pair(Rc<Cell<[Option<bool>; 2]>>);
    impl Backward for Pair {
        fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
            let shape = dy[0].as_ref().unwrap().shape();
            assert_eq!(cx.accumulates(0), cx.needs(0));
            cx.write_many([(0, shape, DType::F32), (1, shape, DType::F32)], |device, dests| {
                self.0.set([0, 1].map(|i| dests[i].as_ref().map(|dest| dest.add)));
                for Dest { view, .. } in dests.into_iter().flatten() {
                    device.launch(Fill { value: 1.0, out: view })?;
                }
                Ok(())
            })
        }
    }
    let device = cpu();
    let cx = Ctx::gradients(&device);
    let tape: &Tape = cx.tape().unwrap();
    let (a, b) = (tape.input(tensor(&device, &[0.0; 2])), tape.input(tensor(&device, &[0.0; 2])));
    let told = Rc::new(Cell::new([None; 2]));
    let y = cx.record(tensor(&device, &[0.0; 2]), &[&a, &b], || Box::new(Pair(told.clone())));
    let seeds = vec![(y, tensor(&device, &[1.0; 2])), (a.clone(), tensor(&device, &[5.0; 2]))];
    let grads = tape.backward(&device, seeds, &[&a, &b]).unwrap();
    assert_eq!(told.get(), [Some(true), Some(false)]);
    assert_eq!(grads[1].as_ref().unwrap().to_vec::<f32>().unwrap(), [1.0; 2]);
}

#[test]
fn operators_record_on_the_tape_of_their_operands() {
    let device = Device::cpu(1).unwrap();
    let cx = Ctx::gradients(&device);
    let tape = cx.tape().unwrap();
    let x = tape.input(tensor(&device, &[1.0, 2.0, 3.0]));
    let c = Var::constant(tensor(&device, &[4.0, 5.0, 6.0]));
    // (x * c - x / 2 + c) * 3, whose gradient is 3 c - 1.5.
    let product = (&x * &c).unwrap();
    let half = (&x / 2.0).unwrap();
    let y = (&(&(&product - &half).unwrap() + &c).unwrap() * 3.0).unwrap();
    assert_eq!(y.value().to_vec::<f32>().unwrap(), [22.5, 42.0, 67.5]);
    let ones = tensor(&device, &[1.0; 3]);
    let grads = tape.backward(&device, vec![(y, ones)], &[&x]).unwrap();
    assert_eq!(grads[0].as_ref().unwrap().to_vec::<f32>().unwrap(), [10.5, 13.5, 16.5]);
    assert!(!(-&c).unwrap().needs_grad(), "constants alone are not recorded");
}

#[test]
fn operators_refuse_leaves_without_a_tape() {
    let device = Device::cpu(1).unwrap();
    let sink = Sink::new(&device, 64);
    let lone = Var::leaf(tensor(&device, &[1.0]), sink.clone());
    assert!((&lone * 2.0).unwrap_err().to_string().contains("operator *"));
    let cx = Ctx::gradients(&device);
    let bound = cx.leaf(tensor(&device, &[1.0]), sink.clone());
    assert!((&bound * 2.0).unwrap().needs_grad());
    drop(cx);
    assert!((&bound * 2.0).is_err(), "the tape is gone");
}

/// A feed-forward layer with a residual sum around it: gradients of its weights and of x.
fn residual(dtype: DType, waits: bool) -> Vec<Vec<u8>> {
    let device = cpu();
    let of = |shape: &[usize], salt: usize| {
        let shape = bmtrain_core::Shape::new(shape).unwrap();
        let values: Vec<f32> = (0..shape.elements()).map(|i| ((i * 7 + salt) % 13) as f32 / 6.0 - 1.0).collect();
        let values: Vec<half::f16> = values.into_iter().map(half::f16::from_f32).collect();
        let tensor = Tensor::from_slice_in(&device, shape, &values, Segment::Activations).unwrap();
        assert_eq!(tensor.dtype(), dtype);
        tensor
    };
    let cx = Ctx::gradients(&device);
    let tape = cx.tape().unwrap().clone();
    let x = tape.input(of(&[5, 8], 1));
    let sinks = [Sink::new(&device, 96), Sink::new(&device, 96)];
    let [w_in, w_out] = [([12, 8], 2), ([8, 12], 3)].map(|(shape, salt)| of(&shape, salt));
    let w_in = cx.leaf(w_in, Rc::clone(&sinks[0]) as Rc<dyn GradSink>);
    let w_out = cx.leaf(w_out, Rc::clone(&sinks[1]) as Rc<dyn GradSink>);
    let y = ops::feed_forward(&cx, &x, &w_in, None, Activation::Gelu, &w_out, None).unwrap();
    let y = ops::add(&cx, &x, &y).unwrap();
    let queue = bmtrain_core::autograd::WeightGradients::default();
    let seeds = vec![(y.key(), of(&[5, 8], 4))];
    let wanted = [x.key()];
    let grads = tape.backward_keys(&device, seeds, &wanted, waits.then_some(&queue)).unwrap();
    let asked: usize = sinks.iter().map(|sink| sink.asked.get()).sum();
    assert_eq!(asked, if waits { 0 } else { 2 }, "no weight has a gradient before the queue runs");
    queue.run(&device).unwrap();
    let dx = grads[0].as_ref().unwrap().to_vec::<half::f16>().unwrap();
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_bits().to_le_bytes()).collect();
    let mut all: Vec<Vec<u8>> = sinks.iter().map(|sink| bytes(&sink.values())).collect();
    all.push(dx.iter().flat_map(|value| value.to_bits().to_le_bytes()).collect());
    all
}

#[test]
fn weight_gradients_that_wait_have_the_bits_of_those_that_do_not() {
    assert_eq!(residual(DType::F16, true), residual(DType::F16, false));
}
