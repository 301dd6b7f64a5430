//! Values that go from rank to rank with their gradients coming back, and messages that cross.

use crate::ranks::{options, threads};
use bmtrain_core::comm::{Collective, Communicator, Reduction, Solo, tensors};
use bmtrain_core::kernel::{Activation, Fill};
use bmtrain_core::{Ctx, DType, Device, Lane, Result, Segment, Tensor, Var, ops};
use half::bf16;
use std::sync::Arc;
use std::time::Duration;

type Group = Arc<dyn Communicator>;

fn group(rank: bmtrain_core::comm::host::HostRank) -> (Group, Device) {
    (Arc::new(rank), Device::cpu(1).unwrap())
}

fn ramp(device: &Device, from: f32, len: usize) -> Tensor {
    let values: Vec<f32> = (0..len).map(|i| from + (i as f32 * 0.37).sin()).collect();
    Tensor::from_slice_in(device, [len], &values, Segment::Activations).unwrap()
}

/// One stage: `gelu(w x)`.
fn stage(cx: &Ctx, w: &Var, x: &Var) -> Result<Var> {
    ops::activation(cx, &ops::mul(cx, x, w)?, Activation::Gelu)
}

const LENGTHS: [usize; 3] = [5, 3, 5000];

/// The input's gradient of each micro-batch, and each stage's weight gradients, with all stages on one device.
fn on_one_device(stages: usize) -> Vec<Vec<Vec<f32>>> {
    let device = Device::cpu(1).unwrap();
    let of_batch = |batch: usize| {
        let cx = Ctx::gradients(&device);
        let tape = cx.tape().unwrap();
        let x = tape.input(ramp(&device, 0.5, LENGTHS[batch]));
        let weights: Vec<Var> =
            (0..stages).map(|stage| tape.input(ramp(&device, 1.0 + stage as f32, LENGTHS[batch]))).collect();
        let mut y = x.clone();
        for w in &weights {
            y = stage(&cx, w, &y).unwrap();
        }
        let seed = ramp(&device, batch as f32, LENGTHS[batch]);
        let wanted: Vec<&Var> = std::iter::once(&x).chain(&weights).collect();
        let grads = tape.backward(&device, vec![(y, seed)], &wanted).unwrap();
        grads.into_iter().map(|grad| grad.unwrap().to_vec().unwrap()).collect()
    };
    (0..LENGTHS.len()).map(of_batch).collect()
}

#[test]
fn stages_on_two_to_four_ranks_have_the_gradients_of_one_device_bit_for_bit() {
    for stages in 2..=4 {
        let expected = on_one_device(stages);
        // With a tape for each micro-batch, walked in whatever order, and with one tape for all, walked in reverse.
        for one_tape in [false, true] {
            threads(stages, options(), |rank| {
                let (group, device) = group(rank);
                let own = group.rank();
                let contexts: Vec<Ctx> = (0..LENGTHS.len()).map(|_| Ctx::gradients(&device)).collect();
                let cx_of = |batch: usize| &contexts[if one_tape { 0 } else { batch }];
                let (mut inputs, mut weights, mut outputs) = (vec![], vec![], vec![]);
                for (batch, &length) in LENGTHS.iter().enumerate() {
                    let cx = cx_of(batch);
                    let tape = cx.tape().unwrap();
                    let first = || tape.input(ramp(&device, 0.5, length));
                    let x = if own == 0 { first() } else { ops::recv(cx, &group, own - 1).unwrap() };
                    let w = tape.input(ramp(&device, 1.0 + own as f32, length));
                    let y = stage(cx, &w, &x).unwrap();
                    if own + 1 < stages {
                        ops::send(cx, &group, &y, own + 1).unwrap();
                    }
                    inputs.push(x);
                    weights.push(w);
                    outputs.push(y);
                }
                let is_last = own + 1 == stages;
                let seed = |batch: usize| (outputs[batch].clone(), ramp(&device, batch as f32, LENGTHS[batch]));
                let mut found: Vec<Vec<Option<Tensor>>> = vec![];
                if one_tape {
                    let seeds = if is_last { (0..LENGTHS.len()).map(seed).collect() } else { vec![] };
                    let wanted: Vec<&Var> = inputs.iter().chain(&weights).collect();
                    let mut grads = contexts[0].tape().unwrap().backward(&device, seeds, &wanted).unwrap();
                    let of_weights = grads.split_off(LENGTHS.len());
                    found.extend(grads.into_iter().zip(of_weights).map(|(x, w)| vec![x, w]));
                } else {
                    for batch in 0..LENGTHS.len() {
                        let seeds = if is_last { vec![seed(batch)] } else { vec![] };
                        let tape = contexts[batch].tape().unwrap();
                        found.push(tape.backward(&device, seeds, &[&inputs[batch], &weights[batch]]).unwrap());
                    }
                }
                for (batch, grads) in found.into_iter().enumerate() {
                    let values = |grad: &Option<Tensor>| grad.as_ref().map(|grad| grad.to_vec::<f32>().unwrap());
                    assert_eq!(values(&grads[1]).unwrap(), expected[batch][1 + own], "{stages} stages, weight {own}");
                    if own == 0 {
                        assert_eq!(values(&grads[0]).unwrap(), expected[batch][0], "{stages} stages, input");
                    }
                }
                // Nothing of the last messages is lost with the lane.
                device.sync().unwrap();
                group.barrier().unwrap();
            });
        }
    }
}

#[test]
fn shapes_and_number_types_travel_with_the_values() {
    threads(2, options(), |rank| {
        let (group, device) = group(rank);
        let cx = Ctx::gradients(&device);
        let halves: Vec<bf16> = (0..24).map(|i| bf16::from_f32(i as f32 * 0.25)).collect();
        let half = Tensor::from_slice_in(&device, [2, 3, 4], &halves, Segment::Data).unwrap();
        let ids = Tensor::from_slice_in(&device, [5, 1], &[1i64, -2, 3, -4, 5], Segment::Data).unwrap();
        let scalar = Tensor::from_slice_in(&device, [], &[0.5f32], Segment::Data).unwrap();
        let none = Tensor::from_slice_in::<f32>(&device, [0, 7], &[], Segment::Data).unwrap();
        for sent in [&half, &ids, &scalar, &none] {
            if group.rank() == 0 {
                ops::send(&cx, &group, &Var::constant(sent.clone()), 1).unwrap();
                continue;
            }
            let got = ops::recv(&cx, &group, 0).unwrap();
            assert_eq!((got.shape(), got.dtype()), (sent.shape(), sent.dtype()));
            assert!(!got.needs_grad(), "the sender wants no gradient");
            match sent.dtype() {
                DType::BF16 => assert_eq!(got.value().to_vec::<bf16>().unwrap(), halves),
                DType::I64 => assert_eq!(got.value().to_vec::<i64>().unwrap(), [1, -2, 3, -4, 5]),
                _ => assert_eq!(got.value().to_vec::<f32>().unwrap(), sent.to_vec::<f32>().unwrap()),
            }
        }
        group.barrier().unwrap();
    });
}

#[test]
fn a_value_that_the_receiver_does_not_use_has_a_gradient_of_zeros() {
    threads(2, options(), |rank| {
        let (group, device) = group(rank);
        let cx = Ctx::gradients(&device);
        let tape = cx.tape().unwrap();
        if group.rank() == 0 {
            let x = tape.input(ramp(&device, 1.0, 4));
            ops::send(&cx, &group, &x, 1).unwrap();
            let dx = tape.backward(&device, vec![], &[&x]).unwrap().pop().unwrap().unwrap();
            assert_eq!(dx.to_vec::<f32>().unwrap(), [0.0; 4]);
        } else {
            ops::recv(&cx, &group, 0).unwrap();
            tape.backward(&device, vec![], &[]).unwrap();
            device.sync().unwrap();
        }
        group.barrier().unwrap();
    });
}

#[test]
fn a_receiver_that_cannot_give_a_gradient_back_says_so() {
    threads(2, options(), |rank| {
        let (group, device) = group(rank);
        if group.rank() == 0 {
            let cx = Ctx::gradients(&device);
            let x = cx.tape().unwrap().input(ramp(&device, 1.0, 4));
            ops::send(&cx, &group, &x, 1).unwrap();
            // The other rank leaves, and this one does not wait for its gradient until the deadline.
            let error = cx.tape().unwrap().backward(&device, vec![], &[&x]).unwrap_err().to_string();
            assert!(error.contains("rank 1"), "{error}");
        } else {
            let error = ops::recv(&Ctx::inference(&device), &group, 0).unwrap_err().to_string();
            assert!(error.contains("rank 0 wants the gradient") && error.contains("nothing is recorded"), "{error}");
        }
    });
}

#[test]
fn a_message_that_is_no_value_is_told_from_one() {
    threads(2, options(), |rank| {
        let (group, device) = group(rank);
        if group.rank() == 0 {
            let words = Tensor::from_slice_in(&device, [10], &[7i64; 10], Segment::Data).unwrap();
            tensors::send(&*group, &words, 1).unwrap();
            device.sync().unwrap();
        } else {
            let error = ops::recv(&Ctx::inference(&device), &group, 0).unwrap_err().to_string();
            assert!(error.contains("rank 0 sent something else than a value"), "{error}");
        }
    });
    let device = Device::cpu(1).unwrap();
    let alone: Group = Arc::new(Solo);
    let error = ops::recv(&Ctx::inference(&device), &alone, 0).unwrap_err().to_string();
    assert!(error.contains("from rank 0, which is this rank"), "{error}");
}

#[test]
fn long_messages_that_cross_do_not_wait_for_each_other() {
    // Far more than fits between two ranks.
    const ELEMENTS: usize = 1 << 18;
    threads(3, options(), |rank| {
        let (group, device) = group(rank);
        let cx = Ctx::inference(&device);
        let (own, size) = (group.rank(), group.size());
        let x = Var::constant(ramp(&device, own as f32, ELEMENTS));
        let peers = || (0..size).filter(|peer| *peer != own);
        for peer in peers() {
            ops::send(&cx, &group, &x, peer).unwrap();
        }
        for peer in peers() {
            let got = ops::recv(&cx, &group, peer).unwrap().value().to_vec::<f32>().unwrap();
            assert_eq!(got, ramp(&device, peer as f32, ELEMENTS).to_vec::<f32>().unwrap());
        }
        device.sync().unwrap();
        group.barrier().unwrap();
    });
}

#[test]
fn a_group_of_messages_on_one_lane_ends_in_whatever_order_it_is_written() {
    const ELEMENTS: usize = 1 << 17;
    threads(4, options(), |rank| {
        let (group, device) = group(rank);
        let (own, size) = (group.rank(), group.size());
        let x = ramp(&device, own as f32, ELEMENTS);
        let mut got: Vec<Tensor> = (0..size).map(|_| ramp(&device, 0.0, ELEMENTS)).collect();
        let mut sum = ramp(&device, own as f32, 6);
        let mut all: Vec<Collective<'_>> = vec![];
        // Everybody sends to everybody first, and then receives.
        for to in (0..size).filter(|to| *to != own) {
            all.push(Collective::Send { data: x.view().unwrap(), to });
        }
        for (from, got) in got.iter_mut().enumerate().filter(|(from, _)| *from != own) {
            all.push(Collective::Recv { data: got.view_mut().unwrap(), from });
        }
        all.push(Collective::AllReduce { data: sum.view_mut().unwrap(), by: Reduction::Sum });
        group.launch_all(device.backend(), all, Lane::Compute).unwrap();
        for (from, got) in got.iter().enumerate().filter(|(from, _)| *from != own) {
            let expected = ramp(&device, from as f32, ELEMENTS).to_vec::<f32>().unwrap();
            assert_eq!(got.to_vec::<f32>().unwrap(), expected);
        }
        let first: f32 = (0..size).map(|rank| rank as f32).sum();
        assert_eq!(sum.to_vec::<f32>().unwrap()[0], first);
        group.barrier().unwrap();
    });
}

#[test]
fn calls_on_tensors_do_what_their_collectives_do() {
    threads(3, options(), |rank| {
        let (group, device) = group(rank);
        let (own, ranks) = (group.rank(), &*group);
        let of = |rank: usize| -> Vec<f32> { (0..6).map(|i| (10 * rank + i) as f32).collect() };
        let x = Tensor::from_slice_in(&device, [3, 2], &of(own), Segment::Data).unwrap();
        let plain = |tensor: &Tensor| (tensor.shape().dims().to_vec(), tensor.to_vec::<f32>().unwrap());
        let sum: Vec<f32> = (0..6).map(|i| (30 + 3 * i) as f32).collect();
        let all = [of(0), of(1), of(2)].concat();
        assert_eq!(plain(&tensors::all_gather(ranks, &x).unwrap()), (vec![9, 2], all));
        let scattered = tensors::reduce_scatter(ranks, &x, Reduction::Sum).unwrap();
        assert_eq!(plain(&scattered), (vec![1, 2], sum[2 * own..2 * own + 2].to_vec()));
        assert_eq!(plain(&tensors::all_reduce(ranks, x.clone(), Reduction::Sum).unwrap()), (vec![3, 2], sum.clone()));
        assert_eq!(plain(&x), (vec![3, 2], of(own)), "what is shared is copied");
        let reduced = tensors::reduce(ranks, x.clone(), Reduction::Sum, 1).unwrap();
        assert_eq!(reduced.map(|tensor| plain(&tensor)), (own == 1).then_some((vec![3, 2], sum)));
        assert_eq!(plain(&tensors::broadcast(ranks, x.clone(), 2).unwrap()), (vec![3, 2], of(2)));
        let exchanged: Vec<f32> = (0..3).flat_map(|rank| of(rank)[2 * own..2 * own + 2].to_vec()).collect();
        assert_eq!(plain(&tensors::all_to_all(ranks, &x).unwrap()), (vec![3, 2], exchanged));
        let scalar = Tensor::from_slice_in(&device, [], &[own as f32], Segment::Data).unwrap();
        assert_eq!(plain(&tensors::all_gather(ranks, &scalar).unwrap()), (vec![3], vec![0.0, 1.0, 2.0]));
        tensors::send(ranks, &x, (own + 1) % 3).unwrap();
        let before = (own + 2) % 3;
        let got = tensors::recv(ranks, &device, [6], DType::F32, before).unwrap();
        assert_eq!(plain(&got), (vec![6], of(before)));
        device.sync().unwrap();
        group.barrier().unwrap();
    });
}

#[test]
fn a_message_under_way_is_not_changed_by_what_follows_though_its_receiver_is_late() {
    // Far more than fits between two ranks, so that the message waits for its receiver.
    const ELEMENTS: usize = 1 << 16;
    let after: [fn(&dyn Communicator, &Device, Tensor); 4] = [
        |ranks, _, x| drop(tensors::all_reduce(ranks, x, Reduction::Sum).unwrap()),
        |ranks, _, x| drop(tensors::reduce(ranks, x, Reduction::Sum, 0).unwrap()),
        |ranks, _, x| drop(tensors::broadcast(ranks, x, 1).unwrap()),
        |ranks, device, mut x| {
            // The other rank takes the message only then: the view has to wait for it.
            ranks.barrier().unwrap();
            device.launch(Fill { value: 7.0, out: x.view_mut().unwrap() }).unwrap();
        },
    ];
    for (number, after) in after.into_iter().enumerate() {
        threads(2, options(), |rank| {
            let (group, device) = group(rank);
            if group.rank() == 0 {
                let x = ramp(&device, 1.0, ELEMENTS);
                tensors::send(&*group, &x, 1).unwrap();
                after(&*group, &device, x);
            } else {
                after(&*group, &device, ramp(&device, 2.0, ELEMENTS));
                std::thread::sleep(Duration::from_millis(30));
                let got = tensors::recv(&*group, &device, [ELEMENTS], DType::F32, 0).unwrap();
                let sent = ramp(&device, 1.0, ELEMENTS).to_vec::<f32>().unwrap();
                assert!(got.to_vec::<f32>().unwrap() == sent, "case {number}: the message was overwritten");
            }
            device.sync().unwrap();
            group.barrier().unwrap();
        });
    }
}
