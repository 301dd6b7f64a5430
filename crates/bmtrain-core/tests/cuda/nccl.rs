//! Ranks that communicate by NCCL: processes with an emulated device each and an emulated NCCL between them.
//!
//! Everything here is emulated. It proves the order, the arguments and the failures of our calls, and nothing about
//! NCCL or a device.
#![cfg(feature = "cuda")]

mod drains;

use crate::ranks;

use bmtrain_core::comm::host::{HostOptions, HostRank};
use bmtrain_core::comm::nccl::{Library, NcclOptions, NcclRank};
use bmtrain_core::comm::{Collective, Communicator, Reduction};
use bmtrain_core::cuda::{CudaBackend, CudaOptions, nccl_paths};
use bmtrain_core::{Backend, DType, Device, Error, Lane, Result, Segment, Storage, Tensor};
use cuda_emulator::{Driver, with_driver};
use ranks::{
    DTYPES, Op, REDUCTIONS, Rank, SUM, expected, options, parts_of, place, program, program_on, started, threads,
};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// No test takes so long on a busy machine unless it hangs.
const MAX_TIME: Duration = Duration::from_secs(150);

/// A rank of a test, in a process of its own.
struct Start {
    rank: usize,
    size: usize,
    place: PathBuf,
}

/// Run `body` as `size` processes. The exit codes of ranks in `may_fail` are not checked.
fn processes(test: &str, size: usize, settings: &[(&str, &str)], may_fail: &[usize], body: impl Fn(Start)) {
    with_driver(test, Driver::Emulated, settings, || {
        if let Some((number, place)) = started(test) {
            // Size and rank in one number: a test may run with several sizes.
            return body(Start { rank: number % 100, size: number / 100, place });
        }
        let place = place();
        let children: Vec<Child> = (0..size).map(|rank| start(test, 100 * size + rank, &place)).collect();
        let begin = Instant::now();
        let ended: Vec<(bool, String)> = children.into_iter().map(|child| end(child, begin)).collect();
        for (rank, (success, text)) in ended.iter().enumerate() {
            assert!(*success || may_fail.contains(&rank), "rank {rank} of {size}:\n{text}");
        }
    });
}

fn start(test: &str, number: usize, place: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &crate::ranks::full_name(test), "--nocapture", "--test-threads=1"])
        .env("BMTRAIN_RANK_OF_TEST", format!("{test} {number} {}", place.display()))
        // Streams in another random order on each rank.
        .env("EMULATED_CUDA_SEED", (7 * number).to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Whether a process ended well, and what it printed. One that hangs is killed.
fn end(mut child: Child, begin: Instant) -> (bool, String) {
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > MAX_TIME {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.success(), format!("{} after {:.1?}\n{text}", output.status, begin.elapsed()))
}

impl Start {
    fn backend(&self) -> Arc<CudaBackend> {
        let options = CudaOptions { compiled: Some(cuda_emulator::compiled_kernels()), ..CudaOptions::default() };
        Arc::new(CudaBackend::open(0, &options).unwrap())
    }

    fn control(&self, deadline: Duration) -> Arc<dyn Communicator> {
        let options = HostOptions { deadline, ..options() };
        Arc::new(HostRank::join(self.place.as_path(), self.rank, self.size, options).unwrap())
    }

    fn join_with(&self, control: Duration, options: NcclOptions) -> Result<Rank<NcclRank>> {
        let backend = self.backend();
        let rank = NcclRank::join(Arc::clone(&backend), self.control(control), options)?;
        Ok(Rank { rank, device: Device::new(backend), lane: Lane::Zero })
    }

    fn join(&self) -> Rank<NcclRank> {
        self.join_with(Duration::from_secs(60), patient()).unwrap()
    }

    /// With a deadline that some calls are meant to reach.
    fn join_briefly(&self) -> Rank<NcclRank> {
        let options = NcclOptions { deadline: Duration::from_secs(3), ..patient() };
        self.join_with(Duration::from_secs(10), options).unwrap()
    }
}

/// A deadline that no busy machine reaches by itself.
fn patient() -> NcclOptions {
    NcclOptions { deadline: Duration::from_secs(60), ..NcclOptions::default() }
}

fn every_op(size: usize) -> Vec<Op> {
    let reductions = REDUCTIONS.into_iter();
    let reduced = reductions.flat_map(|by| [Op::AllReduce(by), Op::ReduceScatter(by), Op::Reduce(by, size - 1)]);
    reduced.chain([Op::AllGather, Op::AllToAll, Op::Broadcast(0), Op::Broadcast(size - 1)]).collect()
}

/// Every collective in every dtype, against plain arithmetic in the order of the ranks, which the host's ranks keep.
fn every_collective(start: &Start) {
    let rank = start.join();
    assert_eq!((rank.rank.rank(), rank.rank.size()), (start.rank, start.size));
    for (seed, op) in every_op(start.size).into_iter().enumerate() {
        for dtype in DTYPES {
            let averages =
                matches!(op, Op::AllReduce(by) | Op::ReduceScatter(by) | Op::Reduce(by, _) if by == Reduction::Average);
            if averages && !dtype.is_float() {
                assert!(rank.call(op, dtype, &vec![0; 8 * start.size]).is_err(), "{op:?} of {dtype}");
                continue;
            }
            for len in [0, 1, 7, 1500] {
                let parts: Vec<Vec<u8>> =
                    (0..start.size).map(|own| ranks::values(dtype, len * start.size, own, seed)).collect();
                let got = rank.call(op, dtype, &parts[start.rank]).unwrap();
                assert!(got == expected(op, dtype, &parts, start.rank), "{op:?} of {len} x {dtype} on {}", start.rank);
            }
        }
    }
    assert!(rank.rank.failure().is_none());
}

macro_rules! sizes {
    ($($name:ident: $size:literal;)*) => {
        $(#[test]
        fn $name() {
            processes(stringify!($name), $size, &[], &[], |start| every_collective(&start));
        })*
    };
}

sizes! {
    one_rank_exchanges_with_itself: 1;
    two_ranks_get_what_ranks_of_the_host_get: 2;
    three_ranks_get_what_ranks_of_the_host_get: 3;
    four_ranks_get_what_ranks_of_the_host_get: 4;
}

#[test]
fn fifty_mixed_calls_on_groups_and_messages_have_the_bits_of_the_host() {
    const TEST: &str = "fifty_mixed_calls_on_groups_and_messages_have_the_bits_of_the_host";
    processes(TEST, 3, &[], &[], |start| {
        let (rank, expected) = (start.rank, threads(3, options(), program));
        let backend = start.backend();
        let device = || Device::new(Arc::clone(&backend) as Arc<dyn Backend>);
        let ranks = NcclRank::join(Arc::clone(&backend), start.control(Duration::from_secs(60)), patient()).unwrap();
        let split = |ranks: &NcclRank, colour, key| ranks.subgroup(colour, key).unwrap();
        assert_eq!(program_on(ranks, split, device), expected[rank]);
    });
}

#[test]
fn lanes_and_groups_at_once_keep_apart_and_behind_their_marks() {
    const TEST: &str = "lanes_and_groups_at_once_keep_apart_and_behind_their_marks";
    processes(TEST, 4, &[], &[], |start| {
        let rank = start.join();
        let halves = rank.rank.split(start.rank % 2, start.rank).unwrap();
        let (device, backend) = (&rank.device, rank.device.backend());
        for round in 0..20 {
            let value = (start.rank + round) as f32;
            let filled = |value| Tensor::full_in(device, [1000], DType::F32, value, Segment::Activations).unwrap();
            let mut whole = filled(value);
            let half = Storage::empty_on(device, 1000, DType::F32, Segment::Activations, Lane::Tensor).unwrap();
            let bytes: Vec<u8> = [value; 1000].iter().flat_map(|value| value.to_ne_bytes()).collect();
            backend.upload(&bytes, half.view_mut_on(0..1000, Lane::Tensor).unwrap(), Lane::Tensor).unwrap();
            // One group over two lanes, and another one between them; the lanes run in an order of their own.
            backend.wait(Lane::Zero, backend.mark(Lane::Compute).unwrap()).unwrap();
            let sum = Reduction::Sum;
            let data = whole.view_mut_on(Lane::Zero).unwrap();
            rank.rank.launch(backend, Collective::AllReduce { data, by: sum }, Lane::Zero).unwrap();
            let data = half.view_mut_on(0..1000, Lane::Tensor).unwrap();
            halves.launch(backend, Collective::AllReduce { data, by: sum }, Lane::Tensor).unwrap();
            let mut other = filled(1.0);
            let data = other.view_mut().unwrap();
            rank.rank.launch(backend, Collective::AllReduce { data, by: sum }, Lane::Compute).unwrap();
            backend.wait(Lane::Compute, backend.mark(Lane::Zero).unwrap()).unwrap();
            backend.wait(Lane::Compute, backend.mark(Lane::Tensor).unwrap()).unwrap();
            assert_eq!(other.to_vec::<f32>().unwrap(), [4.0; 1000]);
            assert_eq!(whole.to_vec::<f32>().unwrap(), [(6 + 4 * round) as f32; 1000]);
            let of_half = (2 * (start.rank % 2) + 2 + 2 * round) as f32;
            assert_eq!(half.tensor(0, [1000]).unwrap().to_vec::<f32>().unwrap(), [of_half; 1000]);
        }
        // Handles go in another order on each rank.
        if start.rank % 2 == 0 {
            drop(halves);
        }
    });
}

#[test]
fn several_calls_given_as_one_and_messages_to_each_other_do_not_wait_in_a_circle() {
    const TEST: &str = "several_calls_given_as_one_and_messages_to_each_other_do_not_wait_in_a_circle";
    processes(TEST, 3, &[], &[], |start| {
        let (rank, own, size) = (start.join(), start.rank, start.size);
        let (device, backend) = (&rank.device, rank.device.backend());
        let filled = |value: usize| Tensor::full_in(device, [5000], DType::F32, value as f32, Segment::Data).unwrap();
        for _ in 0..3 {
            let mut sums = [filled(own), filled(10 * own)];
            let sent: Vec<Tensor> = (0..size).map(|to| filled(100 * own + to)).collect();
            let mut received: Vec<Tensor> = (0..size).map(|_| filled(0)).collect();
            let mut all = Vec::new();
            for ((to, sent), received) in sent.iter().enumerate().zip(&mut received) {
                if to != own {
                    all.push(Collective::Send { data: sent.view().unwrap(), to });
                    all.push(Collective::Recv { data: received.view_mut().unwrap(), from: to });
                }
            }
            for sum in &mut sums {
                all.push(Collective::AllReduce { data: sum.view_mut().unwrap(), by: Reduction::Sum });
            }
            rank.rank.launch_all(backend, all, Lane::Compute).unwrap();
            assert_eq!(sums[0].to_vec::<f32>().unwrap(), [3.0; 5000]);
            assert_eq!(sums[1].to_vec::<f32>().unwrap(), [30.0; 5000]);
            for (from, tensor) in received.iter().enumerate().filter(|(from, _)| *from != own) {
                assert_eq!(tensor.to_vec::<f32>().unwrap(), [(100 * from + own) as f32; 5000]);
            }
            // One by one, around: each sends before it receives, on a lane of its own.
            let (next, last) = ((own + 1) % size, (own + size - 1) % size);
            bmtrain_core::comm::tensors::send(&rank.rank, &sent[next], next).unwrap();
            let came = bmtrain_core::comm::tensors::recv(&rank.rank, device, [5000], DType::F32, last).unwrap();
            assert_eq!(came.to_vec::<f32>().unwrap(), [(100 * last + own) as f32; 5000]);
        }
    });
}

#[test]
fn groups_without_messages_get_them_later_between_collectives_and_without_waiting_for_them() {
    const TEST: &str = "groups_without_messages_get_them_later_between_collectives_and_without_waiting_for_them";
    processes(TEST, 3, &[], &[], |start| {
        let options = NcclOptions { messages: false, ..patient() };
        let all = start.join_with(Duration::from_secs(60), options).unwrap();
        let group = all.rank.subgroup(0, start.size - start.rank).unwrap();
        let (own, device) = (group.rank(), &all.device);
        assert_eq!(own, start.size - 1 - start.rank);
        assert_eq!(all.sum(&[1.0]).unwrap(), [3.0]);
        group.connect_messages().unwrap();
        // Again does nothing.
        group.connect_messages().unwrap();
        let filled = |value: usize| Tensor::full_in(device, [3000], DType::F32, value as f32, Segment::Data).unwrap();
        for round in 0..3 {
            // Along the ranks and back, with a collective of the group between.
            if own > 0 {
                let came = bmtrain_core::comm::tensors::recv(&group, device, [3000], DType::F32, own - 1).unwrap();
                assert_eq!(came.to_vec::<f32>().unwrap(), [(10 * round + own) as f32; 3000]);
            }
            if own + 1 < start.size {
                let sent = filled(10 * round + own + 1);
                bmtrain_core::comm::tensors::send(&group, &sent, own + 1).unwrap();
                let sum = bmtrain_core::comm::tensors::all_reduce(&all.rank, filled(1), Reduction::Sum).unwrap();
                assert_eq!(sum.to_vec::<f32>().unwrap(), [3.0; 3000]);
                let back = bmtrain_core::comm::tensors::recv(&group, device, [3000], DType::F32, own + 1).unwrap();
                assert_eq!(back.to_vec::<f32>().unwrap(), [(own + 1) as f32; 3000]);
            } else {
                let sum = bmtrain_core::comm::tensors::all_reduce(&all.rank, filled(1), Reduction::Sum).unwrap();
                assert_eq!(sum.to_vec::<f32>().unwrap(), [3.0; 3000]);
            }
            if own > 0 {
                bmtrain_core::comm::tensors::send(&group, &filled(own), own - 1).unwrap();
            }
        }
        // The other group has none.
        let storage = Storage::empty_on(device, 4, DType::F32, Segment::Data, Lane::Zero).unwrap();
        let data = storage.view_on(0..4, Lane::Zero).unwrap();
        let send = Collective::Send { data, to: (start.rank + 1) % 3 };
        let error = all.rank.launch(device.backend(), send, Lane::Zero).unwrap_err().to_string();
        assert!(error.contains("connect_messages"), "{error}");
    });
}

#[test]
fn calls_that_do_not_fit_together_are_told_on_all_ranks_when_the_library_notices() {
    const TEST: &str = "calls_that_do_not_fit_together_are_told_on_all_ranks_when_the_library_notices";
    processes(TEST, 3, &[], &[], |start| {
        let rank = start.join();
        rank.sum(&[1.0]).unwrap();
        let error = rank.sum(&vec![1.0; if start.rank == 2 { 6 } else { 5 }]).unwrap_err().to_string();
        assert!(error.contains("all_reduce of 5") && error.contains("all_reduce of 6"), "{error}");
        // And so does every later call.
        assert!(rank.sum(&[1.0]).is_err() && rank.rank.failure().is_some());
    });
}

#[test]
fn calls_that_do_not_fit_together_are_told_at_the_deadline_when_the_library_says_nothing() {
    const TEST: &str = "calls_that_do_not_fit_together_are_told_at_the_deadline_when_the_library_says_nothing";
    processes(TEST, 3, &[("EMULATED_NCCL_SILENT", "1")], &[], |start| {
        let rank = start.join_briefly();
        rank.sum(&[1.0]).unwrap();
        let op = if start.rank == 1 { Op::Broadcast(0) } else { SUM };
        let error = rank.call(op, DType::F32, &[0; 20]).unwrap_err().to_string();
        assert!(error.contains("rank 0 waits in all_reduce of 5 x f32, Sum (number 1)"), "{error}");
        assert!(error.contains("rank 1 waits in broadcast of 5 x f32, root 0 (number 1)"), "{error}");
    });
}

#[test]
fn a_rank_that_does_not_call_is_named_at_the_deadline() {
    const TEST: &str = "a_rank_that_does_not_call_is_named_at_the_deadline";
    processes(TEST, 3, &[], &[1], |start| {
        let rank =
            start.join_with(Duration::from_secs(3), NcclOptions { deadline: Duration::from_secs(3), ..patient() });
        let rank = rank.unwrap();
        rank.sum(&[1.0]).unwrap();
        if start.rank == 1 {
            return std::thread::sleep(Duration::from_secs(15));
        }
        let begin = Instant::now();
        let error = rank.sum(&[1.0]).unwrap_err();
        assert!(begin.elapsed() < Duration::from_secs(12), "{:?}", begin.elapsed());
        let text = error.to_string();
        let (_, sequence, reason, ranks) = parts_of(error);
        assert!(sequence == 1 && ranks == [1] && reason.contains("rank 1"), "{text}");
        assert!(reason.contains("3.0s"), "{text}");
    });
}

#[test]
fn a_killed_rank_is_named_long_before_the_deadline() {
    const TEST: &str = "a_killed_rank_is_named_long_before_the_deadline";
    processes(TEST, 3, &[], &[1], |start| {
        let rank = start.join();
        rank.sum(&[1.0]).unwrap();
        rank.rank.barrier().unwrap();
        if start.rank == 1 {
            std::process::abort();
        }
        let begin = Instant::now();
        let error = rank.sum(&[1.0]).unwrap_err();
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
        let text = error.to_string();
        let (_, sequence, reason, ranks) = parts_of(error);
        assert!(sequence == 1 && ranks == [1] && reason.contains("the process of rank 1 has ended"), "{text}");
        // Work of other lanes goes on, and waits for it tell the same.
        assert!(rank.device.sync().unwrap_err().to_string().contains("rank 1 has ended"));
        let begin = Instant::now();
        drop(rank);
        assert!(begin.elapsed() < Duration::from_secs(10), "leaving took {:?}", begin.elapsed());
    });
}

#[test]
fn a_rank_that_gives_up_or_panics_is_named_with_its_reason() {
    const TEST: &str = "a_rank_that_gives_up_or_panics_is_named_with_its_reason";
    processes(TEST, 3, &[], &[1], |start| {
        let rank = start.join();
        let half = rank.rank.split(0, start.rank).unwrap();
        if start.rank == 1 {
            rank.sum(&[1.0]).unwrap();
            rank.rank.abort("no more data");
            assert!(rank.sum(&[1.0]).unwrap_err().to_string().contains("no more data"));
            return;
        }
        // It may give up before this rank has seen the first sum to its end.
        let error = rank.sum(&[1.0]).and_then(|_| rank.sum(&[1.0])).unwrap_err().to_string();
        assert!(error.contains("rank 1 gave up: no more data"), "{error}");
        // In the other group it is the same.
        let mut data = Tensor::empty_in(&rank.device, [4], DType::F32, Segment::Data).unwrap();
        let sum = Collective::AllReduce { data: data.view_mut().unwrap(), by: Reduction::Sum };
        let error = half.launch(rank.device.backend(), sum, Lane::Compute).unwrap_err().to_string();
        assert!(error.contains("no more data"), "{error}");
    });
}

#[test]
fn arguments_that_do_not_fit_are_refused_and_nothing_is_broken() {
    const TEST: &str = "arguments_that_do_not_fit_are_refused_and_nothing_is_broken";
    processes(TEST, 2, &[], &[], |start| {
        let options = NcclOptions { messages: false, ..patient() };
        let rank = start.join_with(Duration::from_secs(60), options).unwrap();
        let backend = rank.device.backend();
        let storage = Storage::empty_on(&rank.device, 12, DType::F32, Segment::Data, Lane::Zero).unwrap();
        let part = |from: usize, to: usize| storage.view_mut_on(from..to, Lane::Zero).unwrap();
        let launch = |collective, lane| rank.rank.launch(backend, collective, lane).unwrap_err().to_string();
        let (send, recv) = (storage.view_on(0..6, Lane::Zero).unwrap(), part(0, 12));
        assert!(launch(Collective::AllGather { send, recv }, Lane::Zero).contains("overlap"));
        let (send, recv) = (storage.view_on(0..4, Lane::Zero).unwrap(), part(6, 12));
        assert!(launch(Collective::AllGather { send, recv }, Lane::Zero).contains("recv"));
        let by = Reduction::Sum;
        assert!(launch(Collective::AllReduce { data: part(0, 4), by }, Lane::Compute).contains("lane"));
        assert!(launch(Collective::Broadcast { data: part(0, 4), root: 2 }, Lane::Zero).contains("root 2"));
        let data = storage.view_on(0..4, Lane::Zero).unwrap();
        assert!(launch(Collective::Send { data, to: 1 - start.rank }, Lane::Zero).contains("connect_messages"));
        let cpu = Device::cpu(1).unwrap();
        let error = rank.rank.launch(cpu.backend(), Collective::AllReduce { data: part(0, 4), by }, Lane::Zero);
        assert!(matches!(error, Err(Error::WrongDevice { .. })));
        assert_eq!(rank.sum(&[1.0]).unwrap(), [2.0]);
    });
}

#[test]
fn a_rank_without_the_library_says_so_and_the_others_do_not_wait_for_it() {
    const TEST: &str = "a_rank_without_the_library_says_so_and_the_others_do_not_wait_for_it";
    processes(TEST, 2, &[], &[], |start| {
        let libraries =
            if start.rank == 1 { vec!["/no/such/libnccl.so.2".into()] } else { nccl_paths(&CudaOptions::default()) };
        let begin = Instant::now();
        let joined = start.join_with(Duration::from_secs(60), NcclOptions { libraries, ..patient() });
        let error = joined.map(|_| ()).unwrap_err().to_string();
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
        let text = if start.rank == 1 { "/no/such/libnccl.so.2" } else { "rank 1 cannot use NCCL" };
        assert!(error.contains(text), "{error}");
    });
}

#[test]
fn a_library_that_is_too_old_is_refused_with_its_version() {
    const TEST: &str = "a_library_that_is_too_old_is_refused_with_its_version";
    with_driver(TEST, Driver::Emulated, &[("EMULATED_NCCL_VERSION", "21602")], || {
        let error = Library::open(&nccl_paths(&CudaOptions::default())).unwrap_err().to_string();
        assert!(error.contains("NCCL 2.16.2") && error.contains("2.18.0 is the oldest"), "{error}");
    });
}
