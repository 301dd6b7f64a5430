//! Memory and order: the pool, lane-ordered frees, late execution, counting.

use bmtrain_core::kernel::{AddScaled, Dest, EmbeddingForward, Fill, Multiply};
use bmtrain_core::wrap::{Counting, Deferred, Profiled};
use bmtrain_core::{Backend, DType, Device, Error, Lane, Segment, Storage, Tensor, cpu::CpuBackend};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn cpu() -> Arc<CpuBackend> {
    Arc::new(CpuBackend::new(1).unwrap())
}

fn late(seed: u64) -> Device {
    Device::new(Arc::new(Deferred::new(cpu(), seed)))
}

fn filled(device: &Device, len: usize, value: f32) -> Tensor {
    Tensor::full_in(device, [len], DType::F32, value, Segment::Activations).unwrap()
}

#[test]
fn freed_memory_is_merged_and_used_again_without_asking_the_system() {
    let device = Device::new(cpu());
    let parts: Vec<Tensor> = (0..8).map(|value| filled(&device, 1000, value as f32)).collect();
    let asked = device.memory().system_requests;
    drop(parts);
    assert_eq!(device.memory().total.now, 0);
    // As large as the eight together: only fits if their memory was merged.
    let whole = filled(&device, 8000, 1.0);
    assert_eq!(device.memory().system_requests, asked);
    assert_eq!(whole.to_vec::<f32>().unwrap(), vec![1.0; 8000]);
}

#[test]
fn the_report_names_what_memory_is_for_and_keeps_high_water_marks() {
    let device = Device::new(cpu());
    let kept = Storage::zeros(&device, 128, DType::F32, Segment::Parameters).unwrap();
    drop(filled(&device, 1024, 0.0));
    let report = device.memory();
    let usage = |segment| report.segments.iter().find(|(known, _)| *known == segment).unwrap().1;
    assert_eq!((usage(Segment::Parameters).now, usage(Segment::Parameters).peak), (512, 512));
    assert_eq!((usage(Segment::Activations).now, usage(Segment::Activations).peak), (0, 4096));
    assert_eq!(report.total.peak, 4608);
    device.reset_peaks();
    assert_eq!(device.memory().total.peak, 512);
    drop(kept);
}

#[test]
fn long_lived_storages_return_to_the_system_when_they_are_dropped() {
    let device = Device::new(cpu());
    let storage = Storage::zeros(&device, 1 << 20, DType::F32, Segment::Optimizer).unwrap();
    assert_eq!(device.memory().system_bytes, 4 << 20);
    drop(storage);
    assert_eq!(device.memory().system_bytes, 0);
}

#[test]
fn memory_that_a_message_is_sent_from_is_not_waited_for() {
    let device = Device::new(cpu());
    let (go, may_go) = std::sync::mpsc::channel::<()>();
    let sent = Storage::empty_on(&device, 1 << 20, DType::F32, Segment::Activations, Lane::Pipe).unwrap();
    let asked = device.memory().system_requests;
    let slow = Box::new(move |_: &[u8], _: &mut [u8]| {
        let _ = may_go.recv();
        Ok(())
    });
    device.backend().on_host(Some(sent.view_on(0..1 << 20, Lane::Pipe).unwrap()), None, slow, Lane::Pipe).unwrap();
    drop(sent);
    // Were this the same memory, it would wait for the message, which waits for this thread.
    let other = filled(&device, 1 << 20, 2.0);
    assert_eq!(device.memory().total.now, 8 << 20, "both are in use");
    go.send(()).unwrap();
    device.sync().unwrap();
    drop(other);
    let asked_meanwhile = device.memory().system_requests;
    assert!(asked_meanwhile <= asked + 1);
    let both = [filled(&device, 1 << 20, 1.0), filled(&device, 1 << 20, 1.0)];
    assert_eq!(device.memory().system_requests, asked_meanwhile, "now it is free");
    assert_eq!(device.memory().total.now, 8 << 20);
    drop(both);
}

#[test]
fn the_time_a_storage_takes_does_not_grow_with_the_number_of_storages() {
    const COUNT: usize = 150_000;
    let device = Device::new(Arc::new(Counting::new(1 << 20)) as Arc<dyn Backend>);
    let storage = || Storage::empty(&device, 1, DType::F32, Segment::Parameters).unwrap();
    let start = Instant::now();
    let mut storages: Vec<Storage> = (0..COUNT).map(|_| storage()).collect();
    // Places that were given up are taken again, in whichever order.
    for index in (0..COUNT).step_by(2) {
        storages[index] = storage();
    }
    // Tenths of a second, or many seconds if each storage looks at all others.
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    let mut addresses: Vec<u64> = storages.iter().map(|one| one.view(0..1).unwrap().address()).collect();
    addresses.sort_unstable();
    assert!(addresses.windows(2).all(|pair| pair[0] < pair[1]), "no two share memory");
    assert_eq!(device.memory().system_bytes, COUNT * 512);
    drop(storages);
    assert_eq!(device.memory().system_bytes, 0);
}

#[test]
fn a_write_on_another_lane_is_seen_behind_its_mark_under_every_order() {
    for seed in 0..32 {
        let device = late(seed);
        let backend = device.backend();
        let staged = Storage::empty_on(&device, 4, DType::F32, Segment::Data, Lane::Copy).unwrap();
        let bytes: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|value| value.to_ne_bytes()).collect();
        backend.upload(&bytes, staged.view_mut_on(0..4, Lane::Copy).unwrap(), Lane::Copy).unwrap();
        backend.wait(Lane::Compute, backend.mark(Lane::Copy).unwrap()).unwrap();
        let mut doubled = Tensor::empty_in(&device, [4], DType::F32, Segment::Activations).unwrap();
        let (a, out) = (staged.view(0..4).unwrap(), doubled.view_mut().unwrap());
        device.launch(AddScaled { alpha: 2.0, a, beta: 0.0, b: None, out }).unwrap();
        assert_eq!(doubled.to_vec::<f32>().unwrap(), [2.0, 4.0, 6.0, 8.0], "seed {seed}");
    }
}

#[test]
fn a_forgotten_wait_is_caught_by_some_order() {
    let wrong = (0..32).filter(|&seed| {
        let device = late(seed);
        let mut staged = Tensor::full_in(&device, [4], DType::F32, 9.0, Segment::Data).unwrap();
        device.sync().unwrap();
        let bytes = [0u8; 16];
        device.backend().upload(&bytes, staged.view_mut_on(Lane::Copy).unwrap(), Lane::Copy).unwrap();
        // The read on the compute lane does not wait for the copy lane.
        staged.to_vec::<f32>().unwrap() != [0.0; 4]
    });
    assert!(wrong.count() > 0, "the late backend never ran the lanes in a harmful order");
}

#[test]
fn memory_used_on_two_lanes_is_not_reused_before_both_are_done() {
    for seed in 0..32 {
        let device = late(seed);
        let backend = device.backend();
        // Dropped while the copy lane still reads it; the next tensor of this size gets the same memory.
        let source = filled(&device, 256, 7.0);
        let copy = Storage::empty_on(&device, 256, DType::F32, Segment::Data, Lane::Copy).unwrap();
        backend.wait(Lane::Copy, backend.mark(Lane::Compute).unwrap()).unwrap();
        let to = copy.view_mut_on(0..256, Lane::Copy).unwrap();
        backend.copy(source.view_on(Lane::Copy).unwrap(), to, Lane::Copy).unwrap();
        drop(source);
        let next = filled(&device, 256, -1.0);
        backend.wait(Lane::Compute, backend.mark(Lane::Copy).unwrap()).unwrap();
        assert_eq!(copy.tensor(0, [256]).unwrap().to_vec::<f32>().unwrap(), [7.0; 256], "seed {seed}");
        assert_eq!(next.to_vec::<f32>().unwrap(), [-1.0; 256], "seed {seed}");
    }
}

#[test]
fn a_kernel_that_fails_late_is_reported_at_the_next_wait() {
    let device = late(1);
    let table = filled(&device, 8, 1.0);
    let ids = Tensor::from_slice_in(&device, [1], &[5i64], Segment::Data).unwrap();
    let mut out = Tensor::empty_in(&device, [4], DType::F32, Segment::Activations).unwrap();
    let kernel = EmbeddingForward {
        entries: 2,
        columns: 4,
        table: table.view().unwrap(),
        ids: ids.view().unwrap(),
        out: out.dest(false).unwrap(),
    };
    device.launch(kernel).unwrap();
    let error = out.to_vec::<f32>().unwrap_err();
    assert!(matches!(error, Error::Index { index: 5, bound: 2, .. }), "{error}");
}

#[test]
fn views_of_another_device_lane_or_range_are_refused() {
    let (here, there) = (Device::new(cpu()), Device::new(cpu()));
    let mine = Storage::zeros(&here, 8, DType::F32, Segment::Data).unwrap();
    let foreign = Storage::zeros(&there, 8, DType::F32, Segment::Data).unwrap();
    let fill = |out| Fill { value: 1.0, out };
    assert!(matches!(here.launch(fill(foreign.view_mut(0..8).unwrap())), Err(Error::WrongDevice { .. })));
    assert!(here.launch(fill(mine.view_mut_on(0..8, Lane::Copy).unwrap())).is_err());
    assert!(mine.view(4..9).is_err());
    let (a, b) = (mine.view(0..4).unwrap(), mine.view(0..4).unwrap());
    let out = Dest { view: mine.view_mut(2..6).unwrap(), add: false };
    let error = here.launch(Multiply { a, b: Some(b), out }).unwrap_err().to_string();
    assert!(error.contains("overlaps"), "{error}");
}

#[test]
fn a_shared_tensor_cannot_be_written() {
    let device = Device::new(cpu());
    let mut tensor = filled(&device, 4, 1.0);
    let alias = tensor.reshape([2, 2]).unwrap();
    assert!(tensor.view_mut().is_err());
    drop(alias);
    assert!(tensor.view_mut().is_ok());
}

#[test]
fn the_report_tells_what_was_held_at_the_peak_and_what_was_ever_touched() {
    let device = Device::new(Arc::new(Counting::new(1 << 20)));
    let held = |segment| device.memory().at_peak.iter().find(|(known, _)| *known == segment).unwrap().1;
    let kept = Storage::zeros(&device, 128, DType::F32, Segment::Parameters).unwrap();
    let large = Storage::zeros(&device, 1024, DType::F32, Segment::Activations).unwrap();
    drop(large);
    // More gradients than there were activations, but less in all: no new peak.
    let gradients = Storage::zeros(&device, 512, DType::F32, Segment::Gradients).unwrap();
    let report = device.memory();
    assert_eq!((held(Segment::Parameters), held(Segment::Activations), held(Segment::Gradients)), (512, 4096, 0));
    assert_eq!(report.at_peak.iter().map(|(_, bytes)| bytes).sum::<usize>(), report.total.peak);
    // The gradients are where the activations were; of the slab of a megabyte nothing else was handed out.
    assert_eq!((report.touched.now, report.touched.peak), (4608, 4608));
    drop((kept, gradients));
    assert_eq!((device.memory().touched.now, device.memory().touched.peak), (4096, 4608));
    device.reset_peaks();
    assert_eq!((held(Segment::Activations), device.memory().touched.peak), (0, 4096));
}

#[test]
fn the_counting_backend_counts_a_terabyte_without_taking_it() {
    let counting = Arc::new(Counting::new(1 << 20));
    let device = Device::new(Arc::clone(&counting) as Arc<dyn Backend>);
    let huge = Storage::zeros(&device, 1 << 38, DType::F32, Segment::Parameters).unwrap();
    assert_eq!(device.memory().total.now, 1 << 40);
    assert_eq!(counting.kernels()["fill"].cost.bytes, 1 << 40);
    drop(huge);
}

#[test]
fn the_profiling_backend_times_each_kernel_by_name() {
    let profiled = Arc::new(Profiled::new(cpu()));
    let device = Device::new(Arc::clone(&profiled) as Arc<dyn Backend>);
    let tensor = filled(&device, 1 << 16, 1.0);
    let times = profiled.times();
    assert_eq!(times["fill"].calls, 1);
    assert!(times["fill"].seconds > 0.0);
    drop(tensor);
}
