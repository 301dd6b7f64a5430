//! The CUDA backend on an emulated driver: memory, copies, order, one kernel, and errors.
//!
//! Everything here is emulated: the driver is a library that runs kernels on the processor, late and in random order.
//! It proves launch code, ordering and the logic of kernels, and nothing about speed or a real device.
#![cfg(feature = "cuda")]

use bmtrain_core::backend::Mark;
use bmtrain_core::cuda::{CudaBackend, CudaOptions};
use bmtrain_core::kernel::{Fill, NormForward, NormKind};
use bmtrain_core::{Backend, DType, Device, Error, Lane, Segment, Shape, Storage, Tensor};
use cuda_emulator::{Driver, with_driver};
use half::bf16;
use std::sync::Arc;

/// Each round gets another random order of the lanes from the emulated driver.
const ROUNDS: usize = 32;

fn open(ordinal: usize) -> bmtrain_core::Result<CudaBackend> {
    CudaBackend::open(
        ordinal,
        &CudaOptions { compiled: Some(cuda_emulator::compiled_kernels()), ..CudaOptions::default() },
    )
}

fn backend() -> CudaBackend {
    let backend = open(0).unwrap();
    assert!(backend.name().contains("emulated"), "{}", backend.name());
    backend
}

fn emulated() -> Device {
    Device::new(Arc::new(backend()))
}

/// Numbers that differ from element to element, between -2 and 2.
fn values(count: usize, salt: u32) -> Vec<f32> {
    let scramble = |i: usize| (i as u32).wrapping_add(salt).wrapping_mul(0x9e37_79b9) >> 8;
    (0..count).map(|i| scramble(i) as f32 / (1 << 22) as f32 - 2.0).collect()
}

/// Upload on the copy lane, let the compute lane wait for it, and overwrite the host's copy.
fn staged(device: &Device, shape: &[usize], mut host: Vec<f32>) -> Tensor {
    let storage = Storage::empty_on(device, host.len(), DType::F32, Segment::Data, Lane::Copy).unwrap();
    let to = storage.view_mut_on(0..host.len(), Lane::Copy).unwrap();
    let backend = device.backend();
    backend.upload(bytemuck::cast_slice(&host), to, Lane::Copy).unwrap();
    host.fill(f32::NAN);
    let mark = backend.mark(Lane::Copy).unwrap();
    backend.wait(Lane::Compute, mark).unwrap();
    storage.tensor(0, Shape::new(shape).unwrap()).unwrap()
}

struct Normalised {
    sum: Option<Vec<f32>>,
    y: Vec<f32>,
    mean: Vec<f32>,
    rstd: Vec<f32>,
}

fn layer_norm(device: &Device, rows: usize, columns: usize, residual: bool, bias: bool) -> Normalised {
    let empty = |shape: &[usize]| {
        let shape = Shape::new(shape).unwrap();
        Tensor::empty_in(device, shape, DType::F32, Segment::Activations).unwrap()
    };
    let x = staged(device, &[rows, columns], values(rows * columns, 1));
    let residual = residual.then(|| staged(device, &[rows, columns], values(rows * columns, 7)));
    let weight = staged(device, &[columns], values(columns, 11));
    let bias = bias.then(|| staged(device, &[columns], values(columns, 13)));
    let mut sum = residual.as_ref().map(|_| empty(&[rows, columns]));
    let (mut y, mut mean, mut rstd) = (empty(&[rows, columns]), empty(&[rows]), empty(&[rows]));
    let kernel = NormForward {
        weight_offset: 0.0,
        kind: NormKind::Layer,
        rows,
        columns,
        epsilon: 1e-5,
        x: x.view().unwrap(),
        dropout: None,
        residual: residual.as_ref().map(|residual| residual.view().unwrap()),
        sum: sum.as_mut().map(|sum| sum.view_mut().unwrap()),
        weight: weight.view().unwrap(),
        bias: bias.as_ref().map(|bias| bias.view().unwrap()),
        y: y.view_mut().unwrap(),
        mean: Some(mean.view_mut().unwrap()),
        rstd: rstd.view_mut().unwrap(),
    };
    device.launch(kernel).unwrap();
    Normalised {
        sum: sum.map(|sum| sum.to_vec().unwrap()),
        y: y.to_vec().unwrap(),
        mean: mean.to_vec().unwrap(),
        rstd: rstd.to_vec().unwrap(),
    }
}

/// Layer norm of two rows of four, with nothing around it.
fn plain_norm<'a>(
    x: &'a Tensor,
    weight: &'a Tensor,
    y: &'a mut Tensor,
    mean: &'a mut Tensor,
    rstd: &'a mut Tensor,
) -> NormForward<'a> {
    NormForward {
        weight_offset: 0.0,
        kind: NormKind::Layer,
        rows: 2,
        columns: 4,
        epsilon: 1e-5,
        x: x.view().unwrap(),
        dropout: None,
        residual: None,
        sum: None,
        weight: weight.view().unwrap(),
        bias: None,
        y: y.view_mut().unwrap(),
        mean: Some(mean.view_mut().unwrap()),
        rstd: rstd.view_mut().unwrap(),
    }
}

fn assert_close(what: &str, got: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        let apart = (got - expected).abs();
        assert!(apart <= tolerance * expected.abs().max(1.0), "{what}[{i}]: {got} instead of {expected}");
    }
}

#[test]
fn layer_norm_on_an_emulated_device_equals_the_cpu() {
    with_driver("layer_norm_on_an_emulated_device_equals_the_cpu", Driver::Emulated, &[], || {
        let (here, there) = (Device::cpu(1).unwrap(), emulated());
        // Less than a warp, whole warps, more than a block's threads, more than four elements for each thread.
        for (rows, columns) in [(1, 2), (3, 31), (5, 128), (4, 768), (2, 1030), (2, 4500)] {
            for (residual, bias) in [(false, true), (true, true), (false, false), (true, false)] {
                let expected = layer_norm(&here, rows, columns, residual, bias);
                let got = layer_norm(&there, rows, columns, residual, bias);
                let case = format!("{rows} x {columns}, residual {residual}, bias {bias}");
                // One addition, rounded once on both sides.
                assert_eq!(got.sum, expected.sum, "{case}");
                // Sums are added up in another order. With n terms between -4 and 4 an order changes the mean by a few
                // roundings of the largest partial sum over n, and the rest likewise: some 1e-7. Two columns may be
                // so close to each other that their deviation magnifies that; 4e-6 leaves room for it.
                assert_close(&format!("mean, {case}"), &got.mean, &expected.mean, 4e-6);
                assert_close(&format!("rstd, {case}"), &got.rstd, &expected.rstd, 4e-6);
                assert_close(&format!("y, {case}"), &got.y, &expected.y, 4e-6);
            }
        }
    });
}

#[test]
fn the_same_layer_norm_gives_the_same_bits_in_every_order_of_lanes_and_threads() {
    with_driver(
        "the_same_layer_norm_gives_the_same_bits_in_every_order_of_lanes_and_threads",
        Driver::Emulated,
        &[("EMULATED_CUDA_SEED", "5")],
        || {
            let device = emulated();
            let first = layer_norm(&device, 3, 200, true, true);
            for round in 0..ROUNDS {
                let again = layer_norm(&device, 3, 200, true, true);
                assert_eq!((again.y, again.rstd), (first.y.clone(), first.rstd.clone()), "round {round}");
            }
        },
    );
}

#[test]
fn a_forgotten_wait_gives_other_numbers_in_some_order() {
    with_driver("a_forgotten_wait_gives_other_numbers_in_some_order", Driver::Emulated, &[], || {
        let device = emulated();
        let wrong = (0..ROUNDS).filter(|round| {
            // Another value each time: the memory still holds the last one.
            let values = [*round as f32; 4];
            let storage = Storage::empty_on(&device, 4, DType::F32, Segment::Data, Lane::Copy).unwrap();
            let backend = device.backend();
            let to = storage.view_mut_on(0..4, Lane::Copy).unwrap();
            backend.upload(bytemuck::cast_slice(&values), to, Lane::Copy).unwrap();
            // The read on the compute lane does not wait for the copy lane.
            let seen = storage.tensor(0, [4]).unwrap().to_vec::<f32>().unwrap();
            device.sync().unwrap();
            seen != values
        });
        assert!(wrong.count() > 0, "the emulated driver never ran the lanes in a harmful order");
    });
}

#[test]
fn freed_memory_is_used_again_in_the_order_of_lanes() {
    with_driver("freed_memory_is_used_again_in_the_order_of_lanes", Driver::Emulated, &[], || {
        let device = emulated();
        for round in 0..ROUNDS {
            let backend = device.backend();
            let full = |value| Tensor::full_in(&device, [256], DType::F32, value, Segment::Activations).unwrap();
            // Dropped while the copy lane still reads it; the next tensor of this size gets the same memory.
            let source = full(7.0);
            let freed = source.view().unwrap().address();
            let copy = Storage::empty_on(&device, 256, DType::F32, Segment::Parameters, Lane::Copy).unwrap();
            backend.wait(Lane::Copy, backend.mark(Lane::Compute).unwrap()).unwrap();
            let to = copy.view_mut_on(0..256, Lane::Copy).unwrap();
            backend.copy(source.view_on(Lane::Copy).unwrap(), to, Lane::Copy).unwrap();
            drop(source);
            let next = full(-1.0);
            assert_eq!(next.view().unwrap().address(), freed, "the memory was not used again");
            backend.wait(Lane::Compute, backend.mark(Lane::Copy).unwrap()).unwrap();
            assert_eq!(copy.tensor(0, [256]).unwrap().to_vec::<f32>().unwrap(), [7.0; 256], "round {round}");
            assert_eq!(next.to_vec::<f32>().unwrap(), [-1.0; 256], "round {round}");
        }
        assert_eq!(device.memory().total.now, 0);
    });
}

#[test]
fn a_mark_can_be_waited_for_long_after_it_was_made() {
    with_driver("a_mark_can_be_waited_for_long_after_it_was_made", Driver::Emulated, &[], || {
        let device = emulated();
        let backend = device.backend();
        let storage = Storage::zeros(&device, 8, DType::F32, Segment::Data).unwrap();
        let early = backend.mark(Lane::Compute).unwrap();
        assert_eq!(backend.mark(Lane::Compute).unwrap(), early, "nothing was given in between");
        let mut latest = early;
        for value in 0..ROUNDS {
            let out = storage.view_mut(0..8).unwrap();
            device.launch(Fill { value: value as f32, out }).unwrap();
            let mark = backend.mark(Lane::Compute).unwrap();
            assert!(mark.ticket > latest.ticket, "tickets of a lane grow");
            latest = mark;
            if value % 8 == 7 {
                // From here on the events of the marks so far serve others.
                device.sync().unwrap();
            }
        }
        for lane in Lane::ALL {
            backend.wait(lane, early).unwrap();
            backend.wait(lane, latest).unwrap();
        }
        device.sync().unwrap();
        let never = Mark { ticket: latest.ticket + 1, ..latest };
        assert!(backend.wait(Lane::Zero, never).is_err(), "a mark that was never made");
    });
}

#[test]
fn an_upload_larger_than_the_staging_blocks_arrives_whole() {
    with_driver("an_upload_larger_than_the_staging_blocks_arrives_whole", Driver::Emulated, &[], || {
        let device = emulated();
        // Nine blocks of a ring of four, the last one not full.
        let expected = values((9 << 18) - 5, 3);
        let uploaded = staged(&device, &[expected.len()], expected.clone());
        assert!(uploaded.to_vec::<f32>().unwrap() == expected);
        assert_eq!(device.backend().scratch()[0], ("page-locked staging", 4 << 20));
    });
}

#[test]
fn every_number_type_can_be_zeroed_and_the_floats_filled() {
    with_driver("every_number_type_can_be_zeroed_and_the_floats_filled", Driver::Emulated, &[], || {
        let device = emulated();
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::I64, DType::I32, DType::U8] {
            let storage = Storage::zeros(&device, 33, dtype, Segment::Parameters).unwrap();
            let mut bytes = vec![0xff; 33 * dtype.size()];
            device.backend().download(storage.view(0..33).unwrap(), &mut bytes, Lane::Compute).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0), "{dtype}");
        }
        let halves = Tensor::full_in(&device, [5], DType::BF16, -1.5, Segment::Data).unwrap();
        assert_eq!(halves.to_vec::<bf16>().unwrap(), [bf16::from_f32(-1.5); 5]);
        let wide = Tensor::full_in(&device, [5], DType::I64, 3.0, Segment::Data).unwrap();
        assert_eq!(wide.to_vec::<i64>().unwrap(), [3; 5]);
    });
}

#[test]
fn a_directory_without_the_kernels_is_named() {
    with_driver("a_directory_without_the_kernels_is_named", Driver::Emulated, &[], || {
        let options = CudaOptions { compiled: Some("nowhere".into()), ..CudaOptions::default() };
        let device = Device::new(Arc::new(CudaBackend::open(0, &options).unwrap()));
        let [x, weight] = [8, 4].map(|len| Tensor::empty_in(&device, [len], DType::F32, Segment::Data).unwrap());
        let empty = |len: usize| Tensor::empty_in(&device, [len], DType::F32, Segment::Data).unwrap();
        let (mut y, mut mean, mut rstd) = (empty(8), empty(2), empty(2));
        let kernel = plain_norm(&x, &weight, &mut y, &mut mean, &mut rstd);
        let error = device.launch(kernel).unwrap_err().to_string();
        assert!(error.contains("nowhere/norm.cubin"), "{error}");
    });
}

#[test]
fn a_kernel_that_fails_late_is_reported_at_the_next_wait() {
    let settings = [("EMULATED_CUDA_FAILING_KERNEL", "norm_forward_f32")];
    with_driver("a_kernel_that_fails_late_is_reported_at_the_next_wait", Driver::Emulated, &settings, || {
        let device = emulated();
        let full = |len: usize| Tensor::full_in(&device, [len], DType::F32, 1.0, Segment::Data).unwrap();
        let (x, weight) = (full(8), full(4));
        let (mut y, mut mean, mut rstd) = (full(8), full(2), full(2));
        let kernel = plain_norm(&x, &weight, &mut y, &mut mean, &mut rstd);
        device.launch(kernel).unwrap();
        let error = y.to_vec::<f32>().unwrap_err().to_string();
        assert!(error.contains("CUDA_ERROR_LAUNCH_FAILED"), "{error}");
        assert!(device.sync().is_err(), "the device stays unusable");
    });
}

#[test]
fn transfers_of_another_length_lane_device_or_onto_themselves_are_refused() {
    with_driver(
        "transfers_of_another_length_lane_device_or_onto_themselves_are_refused",
        Driver::Emulated,
        &[],
        || {
            let (device, other) = (emulated(), emulated());
            let backend = device.backend();
            let storage = Storage::zeros(&device, 8, DType::F32, Segment::Data).unwrap();
            let foreign = Storage::zeros(&other, 8, DType::F32, Segment::Data).unwrap();
            let mut host = [0u8; 32];

            let to = || storage.view_mut(0..8).unwrap();
            assert!(matches!(backend.upload(&host[1..], to(), Lane::Compute), Err(Error::Shape { .. })));
            assert!(backend.upload(&host, to(), Lane::Copy).unwrap_err().to_string().contains("lane"));
            let elsewhere = foreign.view_mut(0..8).unwrap();
            assert!(matches!(backend.upload(&host, elsewhere, Lane::Compute), Err(Error::WrongDevice { .. })));

            let from = || storage.view(0..8).unwrap();
            assert!(matches!(backend.download(from(), &mut host[1..], Lane::Compute), Err(Error::Shape { .. })));
            assert!(backend.download(from(), &mut host, Lane::Copy).is_err());

            let error = backend.copy(storage.view(0..4).unwrap(), storage.view_mut(2..6).unwrap(), Lane::Compute);
            assert!(error.unwrap_err().to_string().contains("overlap"));
            assert!(matches!(
                backend.copy(from(), foreign.view_mut(0..8).unwrap(), Lane::Compute),
                Err(Error::WrongDevice { .. })
            ));
        },
    );
}

#[test]
fn work_of_the_host_runs_in_the_order_of_its_lane_and_fails_at_the_next_wait() {
    with_driver(
        "work_of_the_host_runs_in_the_order_of_its_lane_and_fails_at_the_next_wait",
        Driver::Emulated,
        &[],
        || {
            let device = emulated();
            let backend = device.backend();
            let [from, to] = [2.0, 3.0].map(|value| {
                let storage = Storage::zeros(&device, 100, DType::F32, Segment::Data).unwrap();
                device.launch(Fill { value, out: storage.view_mut(0..100).unwrap() }).unwrap();
                storage
            });
            for round in 0..ROUNDS {
                let add = |read: &[u8], write: &mut [u8]| {
                    let (read, write): (&[f32], &mut [f32]) =
                        (bytemuck::cast_slice(read), bytemuck::cast_slice_mut(write));
                    write.iter_mut().zip(read).for_each(|(write, read)| *write += read);
                    Ok(())
                };
                let lane = if round % 2 == 0 { Lane::Compute } else { Lane::Zero };
                backend.wait(Lane::Zero, backend.mark(Lane::Compute).unwrap()).unwrap();
                let (read, write) = (from.view_on(0..100, lane).unwrap(), to.view_mut_on(0..100, lane).unwrap());
                backend.on_host(Some(read), Some(write), Box::new(add), lane).unwrap();
                backend.wait(Lane::Compute, backend.mark(Lane::Zero).unwrap()).unwrap();
            }
            let sum = to.tensor(0, [100]).unwrap().to_vec::<f32>().unwrap();
            assert_eq!(sum, [3.0 + 2.0 * ROUNDS as f32; 100]);
            let mark = backend.mark(Lane::Compute).unwrap();
            device.sync().unwrap();
            assert_eq!(backend.has_reached(mark), Some(true));

            let failing = |_: &[u8], _: &mut [u8]| Err(Error::argument("all_reduce", "no partner"));
            backend.on_host(None, None, Box::new(failing), Lane::Zero).unwrap();
            let error = backend.sync(Lane::Zero).unwrap_err().to_string();
            assert!(error.contains("no partner"), "{error}");
            device.sync().unwrap();

            let panicking = |_: &[u8], _: &mut [u8]| panic!("on purpose");
            backend.on_host(None, None, Box::new(panicking), Lane::Copy).unwrap();
            let error = backend.sync(Lane::Copy).unwrap_err().to_string();
            assert!(error.contains("panicked"), "{error}");
            // The lane and its thread go on.
            let fine = |_: &[u8], _: &mut [u8]| Ok(());
            backend.on_host(None, None, Box::new(fine), Lane::Copy).unwrap();
            backend.sync(Lane::Copy).unwrap();
        },
    );
}

#[test]
fn a_request_beyond_the_device_is_out_of_memory_and_leaves_it_usable() {
    with_driver("a_request_beyond_the_device_is_out_of_memory_and_leaves_it_usable", Driver::Emulated, &[], || {
        let device = emulated();
        // The emulated device has 1 GiB.
        let error = Storage::zeros(&device, 1 << 30, DType::F32, Segment::Parameters).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { segment: "parameters", .. }), "{error}");
        let small = Tensor::full_in(&device, [3], DType::F32, 2.0, Segment::Data).unwrap();
        assert_eq!(small.to_vec::<f32>().unwrap(), [2.0; 3]);
        // What is free in the pool goes back to the device where another length needs the room.
        let bytes = |count| Tensor::empty_in(&device, [count], DType::U8, Segment::Activations);
        drop(bytes(500 << 20).unwrap());
        assert!(device.memory().system_bytes >= 500 << 20);
        drop(bytes(600 << 20).unwrap());
        assert!(device.memory().system_bytes < 800 << 20);
    });
}

#[test]
fn a_device_that_does_not_exist_is_an_error_with_or_without_a_driver() {
    let error = CudaBackend::open(usize::MAX, &CudaOptions::default()).unwrap_err();
    let Error::Device { backend, reason, .. } = &error else { panic!("{error}") };
    assert_eq!(backend, "cuda");
    // Without a driver the first, with one and no device the second, with one and a device the third.
    let known = ["libcuda.so.1", "CUDA_ERROR_", "no device has the number"];
    assert!(known.iter().any(|words| reason.contains(words)), "{error}");
}

#[test]
fn the_number_of_devices_is_in_the_error_for_a_wrong_one() {
    let settings = [("EMULATED_CUDA_DEVICES", "2")];
    with_driver("the_number_of_devices_is_in_the_error_for_a_wrong_one", Driver::Emulated, &settings, || {
        let error = open(2).unwrap_err().to_string();
        assert!(error.contains("no device has the number 2; there are 2"), "{error}");
        assert_eq!(open(1).unwrap().name(), "cuda:1 (emulated device)");
    });
}

#[test]
fn a_driver_without_devices_is_the_drivers_error() {
    let settings = [("EMULATED_CUDA_DEVICES", "0")];
    with_driver("a_driver_without_devices_is_the_drivers_error", Driver::Emulated, &settings, || {
        let error = open(0).unwrap_err().to_string();
        assert_eq!(error, "cuda: cuInit failed: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected");
    });
}

#[test]
fn a_driver_that_lacks_a_function_is_refused_by_the_functions_name() {
    with_driver("a_driver_that_lacks_a_function_is_refused_by_the_functions_name", Driver::Incomplete, &[], || {
        let error = open(0).unwrap_err().to_string();
        assert!(error.contains("no function cuCtxGetCurrent"), "{error}");
    });
}

#[test]
fn instructions_of_inline_assembly_are_compared_with_the_host() {
    with_driver("instructions_of_inline_assembly_are_compared_with_the_host", Driver::Emulated, &[], || {
        let probed = Arc::new(backend()).probe().unwrap();
        let wrong: Vec<_> = probed.iter().filter(|one| one.wrong.is_some()).collect();
        assert!(probed.len() == 14 && wrong.is_empty(), "{wrong:?}");
    });
}
