//! Collectives as values: what their check refuses, what ranks compare, and a group of one rank.

use bmtrain_core::buffer::{View, ViewMut};
use bmtrain_core::comm::{Collective, Communicator, Reduction, Solo};
use bmtrain_core::wrap::{Counting, Deferred};
use bmtrain_core::{Backend, DType, Device, Lane, Segment, Storage, Tensor, cpu::CpuBackend};
use std::sync::Arc;

/// A device without memory, where views may have any length.
fn nowhere() -> Device {
    Device::new(Arc::new(Counting::new(1 << 20)) as Arc<dyn Backend>)
}

/// Storages to send from and to receive in.
struct Places(Storage, Storage);

impl Places {
    fn new(device: &Device, send: (usize, DType), recv: (usize, DType)) -> Self {
        let storage = |(len, dtype)| Storage::zeros(device, len, dtype, Segment::Gradients).unwrap();
        Places(storage(send), storage(recv))
    }

    fn send(&self) -> View<'_> {
        self.0.view(0..self.0.len()).unwrap()
    }

    fn recv(&self) -> ViewMut<'_> {
        self.1.view_mut(0..self.1.len()).unwrap()
    }
}

/// Every collective over these places, with the first rank as root and the last as peer.
fn every<'a>(places: &'a Places, by: Reduction, root: usize, peer: usize) -> Vec<Collective<'a>> {
    let (send, recv) = (|| places.send(), || places.recv());
    vec![
        Collective::AllGather { send: send(), recv: recv() },
        Collective::ReduceScatter { send: send(), recv: recv(), by },
        Collective::AllReduce { data: recv(), by },
        Collective::Reduce { data: recv(), by, root },
        Collective::Broadcast { data: recv(), root },
        Collective::AllToAll { send: send(), recv: recv() },
        Collective::Send { data: send(), to: peer },
        Collective::Recv { data: recv(), from: peer },
    ]
}

/// The collectives that rank 1 of 4 is refused; every error begins with the name and states what was expected.
fn refused(collectives: Vec<Collective<'_>>, expected: &str) -> Vec<&'static str> {
    let check = |collective: &Collective<'_>| {
        let error = collective.check(1, 4).err()?.to_string();
        assert!(error.starts_with(collective.name()) && error.contains(expected), "{error} lacks {expected:?}");
        Some(collective.name())
    };
    collectives.iter().filter_map(check).collect()
}

#[test]
fn each_collective_takes_its_own_lengths_and_no_others() {
    let device = nowhere();
    let f32s = |send, recv| Places::new(&device, (send, DType::F32), (recv, DType::F32));
    let lengths = |send, recv| refused(every(&f32s(send, recv), Reduction::Sum, 0, 2), "expected");
    // Four ranks: a gather makes four of one, a scatter one of four, an all-to-all as much as there was.
    assert_eq!(lengths(3, 12), ["reduce_scatter", "all_to_all"]);
    assert_eq!(lengths(12, 3), ["all_gather", "all_to_all"]);
    assert_eq!(lengths(12, 12), ["all_gather", "reduce_scatter"]);
    // Parts that do not come out even, and lengths one beside.
    assert_eq!(lengths(6, 6), ["all_gather", "reduce_scatter", "all_to_all"]);
    assert_eq!(lengths(3, 11), ["all_gather", "reduce_scatter", "all_to_all"]);
    assert_eq!(lengths(13, 3), ["all_gather", "reduce_scatter", "all_to_all"]);
    // Nothing is a length too.
    assert_eq!(lengths(0, 0), [""; 0]);
    // Four times as much as there are addresses.
    let huge = f32s(1 << 40, 8);
    for collective in [
        Collective::AllGather { send: huge.send(), recv: huge.recv() },
        Collective::ReduceScatter { send: huge.send(), recv: huge.recv(), by: Reduction::Sum },
    ] {
        let error = collective.check(0, usize::MAX).unwrap_err().to_string();
        assert!(error.contains("a length that exists"), "{error}");
    }
}

#[test]
fn each_collective_is_between_equal_types_and_averages_are_of_floats() {
    let device = nowhere();
    for (send, recv) in [(DType::F32, DType::BF16), (DType::BF16, DType::F16), (DType::I32, DType::F32)] {
        let places = Places::new(&device, (4, send), (16, recv));
        let one_way = Collective::AllGather { send: places.send(), recv: places.recv() };
        let back = Places::new(&device, (16, send), (4, recv));
        let scatter = Collective::ReduceScatter { send: back.send(), recv: back.recv(), by: Reduction::Sum };
        let even = Places::new(&device, (16, send), (16, recv));
        let exchange = Collective::AllToAll { send: even.send(), recv: even.recv() };
        let names = refused(vec![one_way, scatter, exchange], &format!("expected {}", send.name()));
        assert_eq!(names, ["all_gather", "reduce_scatter", "all_to_all"]);
    }
    for dtype in [DType::I32, DType::I64, DType::U8] {
        let places = Places::new(&device, (16, dtype), (4, dtype));
        let average = every(&places, Reduction::Average, 0, 2).into_iter();
        let reducing: Vec<_> = average.filter(|one| one.signature().by.is_some()).collect();
        assert_eq!(refused(reducing, "floats to average"), ["reduce_scatter", "all_reduce", "reduce"]);
        for by in [Reduction::Sum, Reduction::Max, Reduction::Min, Reduction::Product] {
            assert_eq!(refused(every(&places, by, 0, 2), "expected"), ["all_gather", "all_to_all"]);
        }
    }
}

#[test]
fn roots_and_peers_are_ranks_of_the_group_and_peers_are_others() {
    let device = nowhere();
    let places = Places::new(&device, (8, DType::F32), (8, DType::F32));
    let alone = |root, peer| {
        let all = every(&places, Reduction::Sum, root, peer).into_iter();
        all.filter(|one| !matches!(one.name(), "all_gather" | "reduce_scatter" | "all_to_all")).collect::<Vec<_>>()
    };
    assert_eq!(refused(alone(3, 3), ""), [""; 0]);
    // The root may be this rank, a peer may not.
    assert_eq!(refused(alone(1, 1), "this rank"), ["send", "recv"]);
    assert_eq!(refused(alone(4, 0), "4 of 4 ranks"), ["reduce", "broadcast"]);
    assert_eq!(refused(alone(0, 4), "4 of 4 ranks"), ["send", "recv"]);
}

#[test]
fn signatures_tell_calls_apart_that_ranks_must_not_mix() {
    let device = nowhere();
    let places = Places::new(&device, (4, DType::F32), (16, DType::F32));
    let other = Places::new(&device, (5, DType::F32), (15, DType::F32));
    let of = |places, by, root| -> Vec<String> {
        every(places, by, root, 2).iter().map(|collective| collective.signature().to_string()).collect()
    };
    let sum = of(&places, Reduction::Sum, 0);
    assert_eq!(sum[0], "all_gather of 4 x f32");
    assert_eq!(sum[1], "reduce_scatter of 16 x f32, Sum");
    assert_eq!(sum[3], "reduce of 16 x f32, Sum, root 0");
    let differ = |other: Vec<String>| (0..8).filter(|&i| sum[i] != other[i]).collect::<Vec<_>>();
    assert_eq!(differ(of(&places, Reduction::Max, 0)), [1, 2, 3]);
    assert_eq!(differ(of(&places, Reduction::Sum, 1)), [3, 4]);
    assert_eq!(differ(of(&other, Reduction::Sum, 0)), [0, 1, 2, 3, 4, 5, 6, 7]);
    let given: Vec<usize> = every(&places, Reduction::Sum, 0, 2).iter().map(Collective::bytes).collect();
    assert_eq!(given, [16, 16, 64, 64, 64, 16, 16, 0]);
}

#[test]
fn the_only_rank_gets_what_it_sends() {
    let cpu = || Arc::new(CpuBackend::new(1).unwrap());
    for device in [Device::new(cpu()), Device::new(Arc::new(Deferred::new(cpu(), 3)))] {
        let backend = device.backend();
        let (rank, size, ordered) = (Solo.rank(), Solo.size(), Solo.is_ordered());
        assert_eq!((rank, size, ordered), (0, 1, true));
        let values = [1.5f32, -2.0, f32::MIN_POSITIVE, 1e30];
        let send = Tensor::from_slice_in(&device, [4], &values, Segment::Gradients).unwrap();
        for by in [Reduction::Sum, Reduction::Average, Reduction::Max, Reduction::Min, Reduction::Product] {
            for kind in 0..6 {
                // What changes in place starts from the values, what receives from something else.
                let in_place = (2..5).contains(&kind);
                let start = if in_place { values } else { [9.0; 4] };
                let mut recv = Tensor::from_slice_in(&device, [4], &start, Segment::Gradients).unwrap();
                backend.wait(Lane::Zero, backend.mark(Lane::Compute).unwrap()).unwrap();
                let (from, to) = (send.view_on(Lane::Zero).unwrap(), recv.view_mut_on(Lane::Zero).unwrap());
                let collective = match kind {
                    0 => Collective::AllGather { send: from, recv: to },
                    1 => Collective::ReduceScatter { send: from, recv: to, by },
                    2 => Collective::AllReduce { data: to, by },
                    3 => Collective::Reduce { data: to, by, root: 0 },
                    4 => Collective::Broadcast { data: to, root: 0 },
                    _ => Collective::AllToAll { send: from, recv: to },
                };
                let name = collective.name();
                Solo.launch_all(backend, vec![collective], Lane::Zero).unwrap();
                backend.wait(Lane::Compute, backend.mark(Lane::Zero).unwrap()).unwrap();
                assert_eq!(recv.to_vec::<f32>().unwrap(), values, "{name} {by:?}");
            }
        }
    }
}

#[test]
fn the_only_rank_has_no_rank_to_send_to_and_splits_into_itself() {
    let device = Device::cpu(1).unwrap();
    let places = Places::new(&device, (4, DType::F32), (8, DType::F32));
    let refused = |collective| Solo.launch(device.backend(), collective, Lane::Compute).unwrap_err().to_string();
    assert!(refused(Collective::Send { data: places.send(), to: 0 }).contains("this rank"));
    assert!(refused(Collective::Recv { data: places.recv(), from: 1 }).contains("1 of 1 ranks"));
    assert!(refused(Collective::Broadcast { data: places.recv(), root: 1 }).contains("1 of 1 ranks"));
    assert!(refused(Collective::AllGather { send: places.send(), recv: places.recv() }).contains("expected 4"));
    Solo.barrier().unwrap();
    let part = Solo.split(7, 1).unwrap();
    assert_eq!((part.rank(), part.size()), (0, 1));
    part.abort("a test");
    part.barrier().unwrap();
}
