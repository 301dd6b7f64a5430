//! Launches that repeat are replayed as graphs, on an emulated driver: the same numbers as without, whatever changes
//! from step to step. How much time it saves, only a device can show.
#![cfg(feature = "cuda")]

use bmtrain_core::cuda::{CudaBackend, CudaOptions, GraphCounts};
use bmtrain_core::kernel::{Activation, Dropout};
use bmtrain_core::philox::Key;
use bmtrain_core::{Backend, Ctx, DType, Device, Lane, Segment, Storage, Tensor, Var, ops};
use cuda_emulator::launches::launched_by;
use cuda_emulator::{Driver, with_driver};
use std::sync::Arc;

const SIDE: usize = 16;

fn open(graphs: bool) -> (Arc<CudaBackend>, Device) {
    let compiled = Some(cuda_emulator::compiled_kernels());
    let backend = Arc::new(CudaBackend::open(0, &CudaOptions { compiled, graphs, ..CudaOptions::default() }).unwrap());
    let device = Device::new(Arc::clone(&backend) as Arc<dyn Backend>);
    (backend, device)
}

fn var(device: &Device, first: f32) -> Var {
    let values: Vec<f32> = (0..SIDE * SIDE).map(|at| first + (at % 7) as f32 / 8.0).collect();
    Var::constant(Tensor::from_slice_in(device, [SIDE, SIDE], &values, Segment::Data).unwrap())
}

/// `layers` times a product, a mask that depends on the step, and a sum; what comes out, on the host.
fn step(device: &Device, (x, weight): (&Var, &Var), (step, layers): (u32, usize)) -> Vec<u32> {
    let cx = Ctx::inference(device);
    let mut x = x.clone();
    for layer in 0..layers {
        let y = ops::linear(&cx, &x, weight, None, Some(Activation::Relu)).unwrap();
        let dropout = Dropout::new(0.25, Key::new(1, "graphs"), step, layer as u32).unwrap();
        x = ops::add(&cx, &x, &ops::dropout(&cx, &y, dropout).unwrap()).unwrap();
    }
    x.value().to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

/// Results of steps with these numbers of layers, and counts of graphs.
fn run(graphs: bool, steps: &[usize]) -> (Vec<Vec<u32>>, Option<GraphCounts>) {
    let (backend, device) = open(graphs);
    let (x, weight) = (var(&device, 0.5), var(&device, -0.375));
    let done = steps.iter().enumerate().map(|(number, layers)| step(&device, (&x, &weight), (number as u32, *layers)));
    (done.collect(), backend.graphs())
}

#[test]
fn steps_with_other_masks_are_replayed() {
    with_driver("steps_with_other_masks_are_replayed", Driver::Emulated, &[], || {
        let (expected, none) = run(false, &[6; 8]);
        assert_eq!(none, None);
        assert_ne!(expected[6], expected[7], "each step drops something else");
        let (got, counts) = run(true, &[6; 8]);
        assert_eq!(got, expected);
        let counts = counts.unwrap();
        // Six layers of three launches, recorded and captured in the first steps, then replayed with six other masks.
        let steps = counts.replays;
        assert!(steps >= 4 && counts.captured == 1, "{counts:?}");
        assert_eq!((counts.replayed, counts.changed), (steps * 18, steps * 6));
    });
}

#[test]
fn steps_of_other_lengths_are_what_they_are_without_graphs() {
    with_driver("steps_of_other_lengths_are_what_they_are_without_graphs", Driver::Emulated, &[], || {
        let steps: Vec<usize> = (0..40).map(|number| [2, 6, 6, 3, 30][number * number % 5]).collect();
        let (got, counts) = run(true, &steps);
        assert_eq!(got, run(false, &steps).0);
        assert!(counts.unwrap().replays > 10, "{counts:?}");
    });
}

#[test]
fn the_device_is_given_the_same_launches() {
    with_driver("the_device_is_given_the_same_launches", Driver::Emulated, &[], || {
        let (_, plain) = launched_by(|| run(false, &[5; 5]));
        let (_, replayed) = launched_by(|| run(true, &[5; 5]));
        assert_eq!(replayed, plain);
    });
}

#[test]
fn a_driver_that_makes_no_graphs_is_given_launch_after_launch() {
    let settings = [("EMULATED_CUDA_NO_GRAPHS", "1")];
    with_driver("a_driver_that_makes_no_graphs_is_given_launch_after_launch", Driver::Emulated, &settings, || {
        let (got, counts) = run(true, &[6; 5]);
        assert_eq!(got, run(false, &[6; 5]).0);
        // And what a device is opened with.
        assert_eq!(counts, Some(GraphCounts { queued: 6 + 5 * 18, ..GraphCounts::default() }));
    });
}

/// Memory is returned to the driver after the work that was held back.
#[test]
fn memory_is_returned_after_what_is_held_back() {
    with_driver("memory_is_returned_after_what_is_held_back", Driver::Emulated, &[], || {
        let (_, device) = open(true);
        let weight = var(&device, -0.5);
        for _ in 0..5 {
            // A storage of its own, which goes back to the driver while the last products of it are held back.
            let x = Tensor::full_in(&device, [SIDE, SIDE], DType::F32, 1.5, Segment::Parameters).unwrap();
            let cx = Ctx::inference(&device);
            let (mut y, x) = (var(&device, 0.0), Var::constant(x));
            for _ in 0..6 {
                y = ops::add(&cx, &ops::linear(&cx, &x, &weight, None, None).unwrap(), &y).unwrap();
            }
            drop(x);
            assert!(y.value().to_vec::<f32>().unwrap().iter().all(|value| value.is_finite()));
        }
    });
}

/// A mark of the lane is after what is held back, so another lane that waits for it finds the results.
#[test]
fn another_lane_waits_for_what_is_held_back() {
    with_driver("another_lane_waits_for_what_is_held_back", Driver::Emulated, &[], || {
        let (backend, device) = open(true);
        let (x, y) = (var(&device, 0.5), var(&device, 0.25));
        for number in 0..6 {
            let cx = Ctx::inference(&device);
            let mut sum = ops::scale(&cx, &x, number as f32).unwrap();
            for _ in 0..4 {
                sum = ops::add(&cx, &sum, &y).unwrap();
            }
            backend.wait(Lane::Copy, backend.mark(Lane::Compute).unwrap()).unwrap();
            let copied = Storage::empty_on(&device, SIDE * SIDE, DType::F32, Segment::Data, Lane::Copy).unwrap();
            let to = copied.view_mut_on(0..SIDE * SIDE, Lane::Copy).unwrap();
            backend.copy(sum.value().view_on(Lane::Copy).unwrap(), to, Lane::Copy).unwrap();
            // More of the lane is held back while the other one copies.
            let other = ops::add(&cx, &x, &y).unwrap();
            let mut bytes = vec![0; SIDE * SIDE * 4];
            backend.download(copied.view_on(0..SIDE * SIDE, Lane::Copy).unwrap(), &mut bytes, Lane::Copy).unwrap();
            let [first, ..] = bytes.as_chunks::<4>().0 else { unreachable!() };
            assert_eq!(f32::from_ne_bytes(*first), 0.5 * number as f32 + 4.0 * 0.25, "step {number}");
            assert_eq!(other.value().to_vec::<f32>().unwrap()[0], 0.75);
        }
        assert!(backend.graphs().unwrap().replays > 2);
    });
}
