//! Host functions on lanes of the CPU: order after a busy lane, memory such a lane still uses, failures, wrappers.

use bmtrain_core::kernel::{
    AddScaled, Batch, ColumnSum, Dest, EmbeddingForward, Epilogue, Fill, Gemm, Matrix, MatrixMut,
};
use bmtrain_core::wrap::{Counting, Deferred};
use bmtrain_core::{Backend, DType, Device, Error, Lane, Result, Segment, Storage, cpu::CpuBackend};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

/// Holds a lane up until it is opened or dropped, so that a test that fails does not hang.
struct Gate(Sender<()>);

impl Gate {
    fn before(device: &Device, lane: Lane) -> Gate {
        let (open, held) = channel::<()>();
        let wait = move |_: &[u8], _: &mut [u8]| {
            let _ = held.recv();
            Ok(())
        };
        device.backend().on_host(None, None, Box::new(wait), lane).unwrap();
        Gate(open)
    }

    fn open(self) {}

    /// Opens when told to, or else after a time in which the caller would long have gone wrong.
    fn open_later(self) -> Sender<()> {
        let (now, told) = channel();
        thread::spawn(move || {
            let _ = told.recv_timeout(Duration::from_millis(60));
            drop(self.0);
        });
        now
    }
}

fn storage(device: &Device, len: usize, lane: Lane) -> Storage {
    Storage::empty_on(device, len, DType::F32, Segment::Activations, lane).unwrap()
}

fn fill(device: &Device, storage: &Storage, value: f32, lane: Lane) {
    let out = storage.view_mut_on(0..storage.len(), lane).unwrap();
    device.launch_on(Fill { value, out }, lane).unwrap();
}

/// The present content, whatever the other lanes do.
fn read(storage: &Storage) -> Vec<f32> {
    storage.tensor(0, [storage.len()]).unwrap().to_vec().unwrap()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// Work that fails.
fn failing(reason: &'static str) -> bmtrain_core::backend::HostWork {
    Box::new(move |_, _| Err(Error::argument("all_reduce", reason)))
}

#[test]
fn work_runs_on_the_calling_thread_on_the_compute_lane_and_beside_it_on_others() {
    let device = Device::cpu(1).unwrap();
    for lane in Lane::ALL {
        let (tell, told) = channel();
        let work = move |_: &[u8], _: &mut [u8]| {
            tell.send(thread::current().id()).unwrap();
            Ok(())
        };
        device.backend().on_host(None, None, Box::new(work), lane).unwrap();
        assert_eq!(told.recv().unwrap() == thread::current().id(), lane == Lane::Compute, "{lane:?}");
    }
}

/// `y = x w` twice over, by a kernel, a copy and a kernel on one lane.
fn chain(device: &Device, lane: Lane, gated: bool) -> Vec<u32> {
    const SIZE: usize = 70;
    let backend = device.backend();
    let values: Vec<f32> = (0..SIZE * SIZE).map(|i| (i as f32 * 0.37).sin()).collect();
    let [x, w, y, copy, z] = [0; 5].map(|_| storage(device, SIZE * SIZE, lane));
    for part in [&x, &w] {
        backend.upload(&bytes(&values), part.view_mut_on(0..SIZE * SIZE, lane).unwrap(), lane).unwrap();
    }
    fill(device, &z, 0.5, lane);
    let gate = gated.then(|| Gate::before(device, lane));
    let product = |from: &Storage, to: &Storage| {
        let gemm = Gemm {
            m: SIZE,
            n: SIZE,
            k: SIZE,
            alpha: 1.0,
            a: Matrix::plain(from.view_on(0..SIZE * SIZE, lane).unwrap(), SIZE),
            b: Matrix::transposed(w.view_on(0..SIZE * SIZE, lane).unwrap(), SIZE),
            beta: 0.0,
            c: MatrixMut { view: to.view_mut_on(0..SIZE * SIZE, lane).unwrap(), ld: SIZE, batch: [0, 0] },
            batch: Batch::ONE,
            epilogue: Epilogue::default(),
            fp8: None,
        };
        device.launch_on(gemm, lane).unwrap();
    };
    product(&x, &y);
    let to = copy.view_mut_on(0..SIZE * SIZE, lane).unwrap();
    backend.copy(y.view_on(0..SIZE * SIZE, lane).unwrap(), to, lane).unwrap();
    // After the copy, which must not see it.
    fill(device, &y, f32::NAN, lane);
    product(&copy, &z);
    if let Some(gate) = gate {
        assert_eq!(read(&z), vec![0.5; SIZE * SIZE], "it ran ahead of what is before it on its lane");
        gate.open();
    }
    backend.wait(Lane::Compute, backend.mark(lane).unwrap()).unwrap();
    read(&z).into_iter().map(f32::to_bits).collect()
}

#[test]
fn kernels_and_copies_behind_a_busy_lane_keep_their_order_and_their_bits() {
    let device = Device::cpu(2).unwrap();
    let expected = chain(&device, Lane::Compute, false);
    assert!(expected.iter().all(|bits| f32::from_bits(*bits).is_finite()));
    for lane in [Lane::Zero, Lane::Tensor, Lane::Pipe, Lane::Copy] {
        assert!(chain(&device, lane, true) == expected, "{lane:?}, busy");
        // Idle again: work runs at once.
        assert!(chain(&device, lane, false) == expected, "{lane:?}, idle");
    }
}

/// Products and column sums of one input, over and over on one lane; the results are for later.
fn labour(device: &Device, lane: Lane) -> [Storage; 2] {
    const ROWS: usize = 640;
    const COLUMNS: usize = 70;
    let values: Vec<f32> = (0..ROWS * COLUMNS).map(|i| (i as f32 * 0.59).cos()).collect();
    let [x, sums, y] = [ROWS * COLUMNS, COLUMNS, ROWS * COLUMNS].map(|len| storage(device, len, lane));
    device.backend().upload(&bytes(&values), x.view_mut_on(0..values.len(), lane).unwrap(), lane).unwrap();
    let gate = (lane != Lane::Compute).then(|| Gate::before(device, lane));
    for _ in 0..30 {
        let view = || x.view_on(0..ROWS * COLUMNS, lane).unwrap();
        let out = Dest { view: sums.view_mut_on(0..COLUMNS, lane).unwrap(), add: false };
        device.launch_on(ColumnSum { rows: ROWS, columns: COLUMNS, x: view(), out }, lane).unwrap();
        let gemm = Gemm {
            m: ROWS,
            n: COLUMNS,
            k: COLUMNS,
            alpha: 1.0,
            a: Matrix::plain(view(), COLUMNS),
            b: Matrix::plain(view().part(0, COLUMNS * COLUMNS).unwrap(), COLUMNS),
            beta: 0.0,
            c: MatrixMut { view: y.view_mut_on(0..ROWS * COLUMNS, lane).unwrap(), ld: COLUMNS, batch: [0, 0] },
            batch: Batch::ONE,
            epilogue: Epilogue::default(),
            fp8: None,
        };
        device.launch_on(gemm, lane).unwrap();
    }
    drop(gate);
    [sums, y]
}

#[test]
fn kernels_of_two_lanes_at_once_share_the_threads_and_keep_their_bits() {
    let bits =
        |storages: [Storage; 2]| storages.map(|one| read(&one).into_iter().map(f32::to_bits).collect::<Vec<_>>());
    let expected = bits(labour(&Device::cpu(1).unwrap(), Lane::Compute));
    let device = Device::cpu(2).unwrap();
    let beside = [Lane::Zero, Lane::Tensor].map(|lane| labour(&device, lane));
    assert!(bits(labour(&device, Lane::Compute)) == expected);
    device.sync().unwrap();
    for storages in beside {
        assert!(bits(storages) == expected);
    }
}

#[test]
fn an_upload_takes_its_turn_behind_what_its_lane_still_does() {
    let device = Device::cpu(1).unwrap();
    let place = storage(&device, 4, Lane::Zero);
    let gate = Gate::before(&device, Lane::Zero);
    fill(&device, &place, 1.0, Lane::Zero);
    let _now = gate.open_later();
    let to = place.view_mut_on(0..4, Lane::Zero).unwrap();
    device.backend().upload(&bytes(&[2.0; 4]), to, Lane::Zero).unwrap();
    device.sync().unwrap();
    assert_eq!(read(&place), [2.0; 4]);
}

#[test]
fn memory_freed_while_a_lane_is_busy_is_not_used_again_before_the_lane_is_done() {
    // The lane that wrote it first, and the lane that gets it next.
    for (first, next) in [
        (Lane::Zero, Lane::Compute),
        (Lane::Compute, Lane::Compute),
        (Lane::Zero, Lane::Copy),
        (Lane::Compute, Lane::Copy),
    ] {
        let device = Device::cpu(1).unwrap();
        let kept = Storage::zeros(&device, 256, DType::F32, Segment::Parameters).unwrap();
        let source = storage(&device, 256, first);
        fill(&device, &source, 7.0, first);
        let address = source.view_on(0..1, first).unwrap().address();
        let gate = Gate::before(&device, Lane::Zero);
        let (from, to) = (source.view_on(0..256, Lane::Zero), kept.view_mut_on(0..256, Lane::Zero));
        let work = |from: &[u8], to: &mut [u8]| {
            to.copy_from_slice(from);
            Ok(())
        };
        device.backend().on_host(Some(from.unwrap()), Some(to.unwrap()), Box::new(work), Lane::Zero).unwrap();
        drop(source);
        let now = gate.open_later();
        // Without a wait this is at once, and the fill comes before the gate opens.
        let again = storage(&device, 256, next);
        assert_eq!(again.view_on(0..1, next).unwrap().address(), address, "other memory: the test shows nothing");
        fill(&device, &again, -1.0, next);
        let _ = now.send(());
        device.sync().unwrap();
        assert_eq!(read(&kept), [7.0; 256], "{first:?}, {next:?}");
        assert_eq!(read(&again), [-1.0; 256], "{first:?}, {next:?}");
    }
}

#[test]
fn a_device_that_is_dropped_ends_the_work_that_is_under_way_first() {
    for segment in [Segment::Activations, Segment::Parameters] {
        let device = Device::cpu(1).unwrap();
        let source = Storage::empty_on(&device, 1 << 20, DType::F32, segment, Lane::Zero).unwrap();
        let gate = Gate::before(&device, Lane::Zero);
        fill(&device, &source, 3.0, Lane::Zero);
        let done = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&done);
        let work = move |from: &[u8], _: &mut [u8]| {
            told.store(floats(from).iter().all(|value| *value == 3.0), Ordering::SeqCst);
            Ok(())
        };
        let from = source.view_on(0..1 << 20, Lane::Zero).unwrap();
        device.backend().on_host(Some(from), None, Box::new(work), Lane::Zero).unwrap();
        let _now = gate.open_later();
        drop(source);
        drop(device);
        assert!(done.load(Ordering::SeqCst), "{segment:?}");
    }
}

#[test]
fn failures_are_told_at_the_next_wait_and_stay() {
    let device = Device::cpu(1).unwrap();
    let backend = device.backend();
    let place = storage(&device, 4, Lane::Zero);
    let gate = Gate::before(&device, Lane::Zero);
    backend.on_host(None, None, failing("rank 3 is gone"), Lane::Zero).unwrap();
    let mark = backend.mark(Lane::Zero).unwrap();
    // A lane that waits for it fails with it; the others go on.
    backend.wait(Lane::Copy, mark).unwrap();
    gate.open();
    let told = |result: Result<()>| assert!(result.unwrap_err().to_string().contains("rank 3 is gone"));
    told(backend.wait(Lane::Compute, mark));
    told(backend.sync(Lane::Copy));
    let mut host = [0; 16];
    told(backend.download(place.view_on(0..4, Lane::Zero).unwrap(), &mut host, Lane::Zero));
    told(backend.upload(&host, place.view_mut_on(0..4, Lane::Zero).unwrap(), Lane::Zero));
    told(device.sync());
    told(device.sync());
    backend.sync(Lane::Compute).unwrap();
    backend.sync(Lane::Pipe).unwrap();
    // On the compute lane the next wait is the call itself.
    told(backend.on_host(None, None, failing("rank 3 is gone"), Lane::Compute));
}

#[test]
fn kernels_that_fail_and_work_that_panics_behind_a_busy_lane_are_failures_of_the_lane() {
    let device = Device::cpu(1).unwrap();
    let (table, out) = (storage(&device, 8, Lane::Zero), storage(&device, 4, Lane::Zero));
    fill(&device, &table, 1.0, Lane::Zero);
    let ids = Storage::empty_on(&device, 1, DType::I64, Segment::Data, Lane::Zero).unwrap();
    let to = ids.view_mut_on(0..1, Lane::Zero).unwrap();
    device.backend().upload(&5i64.to_ne_bytes(), to, Lane::Zero).unwrap();
    let gate = Gate::before(&device, Lane::Zero);
    let kernel = EmbeddingForward {
        entries: 2,
        columns: 4,
        table: table.view_on(0..8, Lane::Zero).unwrap(),
        ids: ids.view_on(0..1, Lane::Zero).unwrap(),
        out: Dest { view: out.view_mut_on(0..4, Lane::Zero).unwrap(), add: false },
    };
    device.launch_on(kernel, Lane::Zero).unwrap();
    gate.open();
    let error = device.sync().unwrap_err();
    assert!(matches!(error, Error::Index { index: 5, bound: 2, .. }), "{error}");

    let device = Device::cpu(1).unwrap();
    let work = |_: &[u8], _: &mut [u8]| panic!("a length of {}", 7);
    device.backend().on_host(None, None, Box::new(work), Lane::Pipe).unwrap();
    let error = device.sync().unwrap_err().to_string();
    assert!(error.contains("panicked") && error.contains("a length of 7"), "{error}");
}

#[test]
fn ranges_that_overlap_and_views_of_another_device_or_lane_are_refused() {
    let (here, there) = (Device::cpu(1).unwrap(), Device::cpu(1).unwrap());
    let (mine, foreign) = (storage(&here, 8, Lane::Zero), storage(&there, 8, Lane::Zero));
    let backend = here.backend();
    let nothing = || -> bmtrain_core::backend::HostWork { Box::new(|_, _| panic!("it ran")) };
    let overlapping = backend.on_host(
        Some(mine.view_on(0..4, Lane::Zero).unwrap()),
        Some(mine.view_mut_on(3..6, Lane::Zero).unwrap()),
        nothing(),
        Lane::Zero,
    );
    assert!(overlapping.unwrap_err().to_string().contains("overlap"));
    let view = foreign.view_on(0..4, Lane::Zero).unwrap();
    assert!(matches!(backend.on_host(Some(view), None, nothing(), Lane::Zero), Err(Error::WrongDevice { .. })));
    let view = mine.view_mut_on(0..4, Lane::Copy).unwrap();
    let error = backend.on_host(None, Some(view), nothing(), Lane::Zero).unwrap_err().to_string();
    assert!(error.contains("Copy") && error.contains("Zero"), "{error}");
    here.sync().unwrap();
}

/// 1 from the compute lane, doubled by the host on another lane, tripled on the compute lane.
fn exchange(device: &Device, wait: bool) -> Vec<f32> {
    let backend = device.backend();
    let (x, y) = (storage(device, 8, Lane::Compute), storage(device, 8, Lane::Compute));
    let out = storage(device, 8, Lane::Compute);
    fill(device, &x, 1.0, Lane::Compute);
    fill(device, &y, -1.0, Lane::Compute);
    backend.wait(Lane::Zero, backend.mark(Lane::Compute).unwrap()).unwrap();
    let double = |from: &[u8], to: &mut [u8]| {
        to.copy_from_slice(&bytes(&floats(from).iter().map(|value| 2.0 * value).collect::<Vec<_>>()));
        Ok(())
    };
    let (from, to) = (x.view_on(0..8, Lane::Zero).unwrap(), y.view_mut_on(0..8, Lane::Zero).unwrap());
    backend.on_host(Some(from), Some(to), Box::new(double), Lane::Zero).unwrap();
    if wait {
        backend.wait(Lane::Compute, backend.mark(Lane::Zero).unwrap()).unwrap();
    }
    let (a, to) = (y.view(0..8).unwrap(), out.view_mut(0..8).unwrap());
    device.launch(AddScaled { alpha: 3.0, a, beta: 0.0, b: None, out: to }).unwrap();
    read(&out)
}

#[test]
fn late_lanes_run_work_of_the_host_in_its_turn_and_a_missing_wait_shows() {
    let late = |seed| Device::new(Arc::new(Deferred::new(Arc::new(CpuBackend::new(1).unwrap()), seed)));
    for seed in 0..32 {
        assert_eq!(exchange(&late(seed), true), [6.0; 8], "seed {seed}");
    }
    assert!((0..32).any(|seed| exchange(&late(seed), false) != [6.0; 8]), "no order was harmful");
    assert_eq!(exchange(&Device::cpu(1).unwrap(), true), [6.0; 8]);
    let device = late(5);
    device.backend().on_host(None, None, failing("too late"), Lane::Tensor).unwrap();
    device.backend().sync(Lane::Compute).unwrap();
    assert!(device.backend().sync(Lane::Tensor).unwrap_err().to_string().contains("too late"));
}

#[test]
fn the_counting_backend_does_no_work_of_the_host() {
    let device = Device::new(Arc::new(Counting::new(1 << 20)) as Arc<dyn Backend>);
    let place = storage(&device, 1 << 40, Lane::Zero);
    let view = place.view_on(0..1 << 40, Lane::Zero).unwrap();
    let work = |_: &[u8], _: &mut [u8]| panic!("there is nothing to work on");
    device.backend().on_host(Some(view), None, Box::new(work), Lane::Zero).unwrap();
    device.sync().unwrap();
}
