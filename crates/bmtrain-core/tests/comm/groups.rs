//! Ranks of one machine: groups within groups, several lanes, and the pace of links.

use crate::ranks::{Op, Rank, options, threads, values};
use bmtrain_core::comm::host::{HostOptions, Link};
use bmtrain_core::comm::{Collective, Communicator, Reduction};
use bmtrain_core::{DType, Device, Lane, Segment, Storage};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

#[test]
fn calls_from_several_lanes_run_in_the_order_they_were_launched() {
    // Were each lane to run as it likes, ranks would meet in different calls.
    threads(2, options(), |rank| {
        let device = Device::cpu(1).unwrap();
        let lanes = [Lane::Zero, Lane::Tensor, Lane::Compute, Lane::Pipe];
        let storages: Vec<(Storage, Lane)> = (0..40)
            .map(|step: usize| {
                let lane = lanes[step % 4];
                let values = vec![(step + rank.rank()) as f32; step + 1];
                let storage = Storage::empty_on(&device, step + 1, DType::F32, Segment::Data, lane).unwrap();
                let to = storage.view_mut_on(0..step + 1, lane).unwrap();
                device.backend().upload(bytemuck::cast_slice(&values), to, lane).unwrap();
                let data = storage.view_mut_on(0..step + 1, lane).unwrap();
                rank.launch(device.backend(), Collective::AllReduce { data, by: Reduction::Sum }, lane).unwrap();
                (storage, lane)
            })
            .collect();
        for (step, (storage, lane)) in storages.iter().enumerate() {
            let mut got = vec![0f32; step + 1];
            let view = storage.view_on(0..step + 1, *lane).unwrap();
            device.backend().download(view, bytemuck::cast_slice_mut(&mut got), *lane).unwrap();
            assert_eq!(got, vec![(2 * step + 1) as f32; step + 1]);
        }
    });
}

#[test]
fn groups_split_by_colour_and_are_ordered_by_key() {
    threads(4, options(), |rank| {
        let own = rank.rank();
        // Even and odd ranks, the higher ones first.
        let half = rank.subgroup(own % 2, 10 - own).unwrap();
        assert_eq!((half.size(), half.rank()), (2, usize::from(own < 2)));
        // Everybody with everybody, by equal keys.
        let all = half.split(0, 0).unwrap();
        assert_eq!((all.size(), all.rank()), (2, half.rank()));
        let alone = rank.split(own, 0).unwrap();
        assert_eq!((alone.size(), alone.rank()), (1, 0));
        let (world, half) = (Rank::new(rank), Rank::new(half));
        for step in 0..20 {
            let partner = (own + 2) % 4;
            assert_eq!(half.sum(&[own as f32; 2000]).unwrap(), [(own + partner) as f32; 2000], "step {step}");
            assert_eq!(world.sum(&[own as f32]).unwrap(), [6.0]);
            half.rank.barrier().unwrap();
        }
    });
}

#[test]
fn barriers_and_splits_continue_while_collectives_are_under_way() {
    let link = Link { latency: Duration::from_millis(150), bytes_per_second: 1e9 };
    threads(2, HostOptions { link: Some(link), ..options() }, |rank| {
        let rank = Rank::new(rank);
        let begin = Instant::now();
        let under_way =
            [1.0f32, 2.0].map(|x| rank.launch(Op::AllReduce(Reduction::Sum), DType::F32, &x.to_ne_bytes()).unwrap());
        for key in 0..10 {
            rank.rank.barrier().unwrap();
            assert_eq!(rank.rank.split(0, key).unwrap().size(), 2);
        }
        let meetings = begin.elapsed();
        let sums = under_way.map(|storage| rank.bytes(&storage).unwrap());
        assert_eq!(sums, [2.0f32, 4.0].map(|sum| sum.to_ne_bytes().to_vec()));
        // Both collectives take 300 ms; the meetings did not wait for them.
        assert!(begin.elapsed() >= Duration::from_millis(300) && meetings < Duration::from_millis(290), "{meetings:?}");
    });
}

#[test]
fn a_link_takes_its_time_on_the_lane_and_not_on_the_rank() {
    // Long beside what a launch takes on a machine that is busy with other tests.
    let link = Link { latency: Duration::from_millis(150), bytes_per_second: 1e6 };
    assert_eq!(link.time(50_000), Duration::from_millis(200));
    let sent_at = OnceLock::new();
    threads(2, HostOptions { link: Some(link), ..options() }, |rank| {
        let rank = Rank::new(rank);
        let (own, other) = (rank.rank.rank(), 1 - rank.rank.rank());
        let data = values(DType::U8, 50_000, own, 0);
        for op in [Op::AllReduce(Reduction::Sum), Op::AllGather, Op::Broadcast(0)] {
            rank.rank.barrier().unwrap();
            let begin = Instant::now();
            let storage = rank.launch(op, DType::U8, &data).unwrap();
            let launched = begin.elapsed();
            rank.bytes(&storage).unwrap();
            let (whole, least) = (begin.elapsed(), link.time(50_000));
            assert!(whole >= least && launched < least, "{op:?}: {launched:?} of {whole:?}");
        }
        // A message takes as long for him who waits for it.
        rank.rank.barrier().unwrap();
        let op = if own == 0 { Op::Send(other) } else { Op::Recv(other, 3000) };
        if own == 0 {
            sent_at.set(Instant::now()).unwrap();
        }
        rank.call(op, DType::U8, &data[..3000]).unwrap();
        let took = sent_at.get().unwrap().elapsed();
        assert!(took >= Duration::from_millis(153), "{op:?}: {took:?}");
    });
}
