//! Lanes of the CUDA backend that several threads use, or that fail one beside another: on an emulated driver.
#![cfg(feature = "cuda")]

use bmtrain_core::cuda::{CudaBackend, CudaOptions};
use bmtrain_core::kernel::{Arguments, ColumnSum, Dest, EmbeddingForward, Kernel, NormBackward, NormKind};
use bmtrain_core::{Backend, DType, Device, Error, Kernels, Lane, Segment, Storage, Tensor};
use cuda_emulator::{Driver, with_driver};
use cudarc::driver::sys::culib;
use std::sync::Arc;

fn open(ordinal: usize) -> bmtrain_core::Result<CudaBackend> {
    CudaBackend::open(
        ordinal,
        &CudaOptions { compiled: Some(cuda_emulator::compiled_kernels()), ..CudaOptions::default() },
    )
}

#[test]
fn threads_that_launch_on_one_lane_do_not_use_each_others_scratch_memory() {
    const ROWS: usize = 64;
    const COLUMNS: usize = 16;
    const LAUNCHES: usize = 100;
    let test = "threads_that_launch_on_one_lane_do_not_use_each_others_scratch_memory";
    with_driver(test, Driver::Emulated, &[("EMULATED_CUDA_DAWDLE", "50")], || {
        let backend: Arc<dyn Backend> = Arc::new(open(0).unwrap());
        let sums = |value: f32| {
            let device = Device::new(Arc::clone(&backend));
            let x = Tensor::full_in(&device, [ROWS, COLUMNS], DType::F32, value, Segment::Data).unwrap();
            let launch = |_| {
                let mut out = Tensor::empty_in(&device, [COLUMNS], DType::F32, Segment::Data).unwrap();
                let dest = Dest { view: out.view_mut().unwrap(), add: false };
                device.launch(ColumnSum { rows: ROWS, columns: COLUMNS, x: x.view().unwrap(), out: dest }).unwrap();
                out
            };
            let outs: Vec<Tensor> = (0..LAUNCHES).map(launch).collect();
            outs.iter().map(|out| out.to_vec::<f32>().unwrap()).collect::<Vec<_>>()
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = [1.0f32, 2.0, 3.0, 4.0].map(|value| (value, scope.spawn(move || sums(value)))).into();
            for (value, thread) in threads {
                let wrong =
                    thread.join().unwrap().iter().filter(|sums| **sums != [ROWS as f32 * value; COLUMNS]).count();
                assert_eq!(wrong, 0, "of {LAUNCHES} sums of {value}");
            }
        });
    });
}

#[test]
fn norms_of_several_lanes_at_once_count_their_own_blocks() {
    // 50 groups of rows in 4 clusters; then one cluster, whose sums are the result.
    const ROWS: [usize; 2] = [200, 13];
    const COLUMNS: usize = 40;
    let test = "norms_of_several_lanes_at_once_count_their_own_blocks";
    with_driver(test, Driver::Emulated, &[("EMULATED_CUDA_DAWDLE", "50")], || {
        let backend = Arc::new(open(0).unwrap());
        let gradients = |lane: Lane, value: f32| {
            let device = Device::new(backend.clone());
            let filled = |len: usize, value: f32| {
                let storage = Storage::empty_on(&device, len, DType::F32, Segment::Data, lane).unwrap();
                let values: Vec<u8> = (0..len).flat_map(|_| value.to_ne_bytes()).collect();
                backend.upload(&values, storage.view_mut_on(0..len, lane).unwrap(), lane).unwrap();
                storage
            };
            let [x, dy] = [2.0, value].map(|value| filled(ROWS[0] * COLUMNS, value));
            let (rstd, weight) = (filled(ROWS[0], 1.0), filled(COLUMNS, 1.0));
            let sums = ROWS.repeat(4).into_iter().map(|rows| {
                let dweight = filled(COLUMNS, 0.0);
                let norm = NormBackward {
                    weight_offset: 0.0,
                    kind: NormKind::Rms,
                    rows,
                    columns: COLUMNS,
                    x: x.view_on(0..rows * COLUMNS, lane).unwrap(),
                    mean: None,
                    rstd: rstd.view_on(0..rows, lane).unwrap(),
                    weight: weight.view_on(0..COLUMNS, lane).unwrap(),
                    dy: dy.view_on(0..rows * COLUMNS, lane).unwrap(),
                    dx: None,
                    branch: None,
                    dweight: Some(Dest { view: dweight.view_mut_on(0..COLUMNS, lane).unwrap(), add: false }),
                    dbias: None,
                };
                backend.launch(Kernel::NormBackward(norm), lane).unwrap();
                (rows, dweight)
            });
            for (rows, dweight) in sums.collect::<Vec<_>>() {
                let mut bytes = [0; 4 * COLUMNS];
                backend.download(dweight.view_on(0..COLUMNS, lane).unwrap(), &mut bytes, lane).unwrap();
                let sums: Vec<f32> = bytes.chunks(4).map(|word| f32::from_ne_bytes(word.try_into().unwrap())).collect();
                assert_eq!(sums, [2.0 * value * rows as f32; COLUMNS], "{lane:?}, {rows} rows");
            }
        };
        std::thread::scope(|scope| {
            for (lane, value) in [(Lane::Compute, 1.0), (Lane::Zero, 3.0), (Lane::Copy, 5.0)] {
                let gradients = &gradients;
                scope.spawn(move || gradients(lane, value));
            }
        });
    });
}

/// Look up an entry that is not there, on a lane.
fn look_up(device: &Device, backend: &CudaBackend, id: i64, lane: Lane) {
    let new = |len, dtype| Storage::empty_on(device, len, dtype, Segment::Data, lane).unwrap();
    let (ids, table, out) = (new(1, DType::I64), new(8, DType::F32), new(4, DType::F32));
    backend.upload(&id.to_ne_bytes(), ids.view_mut_on(0..1, lane).unwrap(), lane).unwrap();
    backend.upload(&[0; 32], table.view_mut_on(0..8, lane).unwrap(), lane).unwrap();
    let (ids, table) = (ids.view_on(0..1, lane).unwrap(), table.view_on(0..8, lane).unwrap());
    let out = Dest { view: out.view_mut_on(0..4, lane).unwrap(), add: false };
    let kernel = EmbeddingForward { entries: 2, columns: 4, table, ids, out };
    backend.launch(Kernel::EmbeddingForward(kernel), lane).unwrap();
}

#[test]
fn what_two_lanes_report_is_told_by_the_waits_for_both() {
    with_driver("what_two_lanes_report_is_told_by_the_waits_for_both", Driver::Emulated, &[], || {
        let backend = Arc::new(open(0).unwrap());
        let device = Device::new(backend.clone());
        let told = |lane| match backend.sync(lane) {
            Err(Error::Index { op, index, bound: 2, .. }) if op == EmbeddingForward::NAME => Some(index),
            Ok(()) => None,
            other => panic!("{other:?}"),
        };
        for round in 0..16 {
            look_up(&device, &backend, 100 + round, Lane::Zero);
            look_up(&device, &backend, 200 + round, Lane::Compute);
            // What another lane has reported may be told here, but never instead of a lane's own, and it stays for its
            // lane.
            assert_eq!(told(Lane::Compute), Some(200 + round));
            assert!([None, Some(100 + round)].contains(&told(Lane::Compute)));
            assert_eq!(told(Lane::Zero), Some(100 + round));
            assert_eq!([Lane::Zero, Lane::Compute, Lane::Copy].map(told), [None; 3], "round {round}");

            look_up(&device, &backend, 300 + round, Lane::Copy);
            backend.wait(Lane::Compute, backend.mark(Lane::Copy).unwrap()).unwrap();
            assert_eq!(told(Lane::Compute), Some(300 + round), "a failure of work that the lane waited for");
            assert!(device.sync().is_err());
            device.sync().unwrap();
        }
    });
}

#[test]
fn work_of_the_host_that_overwrites_its_range_is_not_given_what_was_there() {
    let test = "work_of_the_host_that_overwrites_its_range_is_not_given_what_was_there";
    with_driver(test, Driver::Emulated, &[], || {
        let backend = open(0).unwrap();
        let backend = Arc::new(backend);
        let device = Device::new(backend.clone());
        let old = Tensor::full_in(&device, [1000], DType::U8, 7.0, Segment::Data).unwrap();
        for (round, lane) in [Lane::Compute, Lane::Zero].into_iter().enumerate() {
            let storage = Storage::zeros(&device, 1000, DType::U8, Segment::Data).unwrap();
            backend.copy(old.view().unwrap(), storage.view_mut(0..1000).unwrap(), Lane::Compute).unwrap();
            backend.wait(lane, backend.mark(Lane::Compute).unwrap()).unwrap();
            let value = 10 + round as u8;
            let work = move |_: &[u8], write: &mut [u8]| {
                // Page-locked memory of a lane that has had no work yet is zeros.
                assert_eq!((write.len(), write.contains(&7)), (1000, false));
                write.fill(value);
                Ok(())
            };
            backend.fill_on_host(None, storage.view_mut_on(0..1000, lane).unwrap(), Box::new(work), lane).unwrap();
            backend.wait(Lane::Compute, backend.mark(lane).unwrap()).unwrap();
            assert_eq!(storage.tensor(0, [1000]).unwrap().to_vec::<u8>().unwrap(), [value; 1000]);
            device.sync().unwrap();
        }
    });
}

/// Contexts that the driver has given and not got back.
fn contexts() -> i32 {
    // SAFETY: the emulated driver has this function, of this type.
    unsafe { (*culib().get::<unsafe extern "C" fn() -> i32>(b"emulated_contexts\0").unwrap())() }
}

#[test]
fn a_context_is_given_back() {
    with_driver("a_context_is_given_back", Driver::Emulated, &[], || {
        let opened = open(0).unwrap();
        assert_eq!(contexts(), 1);
        drop(opened);
        assert_eq!(contexts(), 0);
    });
}

#[test]
fn a_device_that_does_not_tell_its_attributes_leaves_no_context() {
    let settings = [("EMULATED_CUDA_MUTE", "1")];
    let test = "a_device_that_does_not_tell_its_attributes_leaves_no_context";
    with_driver(test, Driver::Emulated, &settings, || {
        assert!(open(0).unwrap_err().to_string().contains("cuDeviceGetAttribute"));
        assert_eq!(contexts(), 0);
    });
}

#[test]
fn a_device_is_known_by_its_place_and_not_by_its_number() {
    let settings = [("EMULATED_CUDA_DEVICES", "2"), ("EMULATED_CUDA_FIRST", "3")];
    with_driver("a_device_is_known_by_its_place_and_not_by_its_number", Driver::Emulated, &settings, || {
        let places = [0, 1, 0].map(|number| open(number).unwrap().pci_bus_id().to_owned());
        assert_eq!(places, ["0000:1a:00.0", "0000:1b:00.0", "0000:1a:00.0"]);
    });
}
