//! Ranks of one machine: what every collective gives, in which order, and at what pace.

use crate::ranks::{DTYPES, Op, REDUCTIONS, Rank, expected, options, place, threads, values};
use bmtrain_core::comm::host::{HostGroup, HostOptions, HostRank, Link};
use bmtrain_core::comm::{Collective, Communicator, Reduction};
use bmtrain_core::wrap::Deferred;
use bmtrain_core::{DType, Device, Error, Lane, Segment, Storage, cpu::CpuBackend};
use std::sync::Arc;
use std::time::Duration;

/// Lengths in elements around the edges of chunks of 4096 bytes.
fn lengths(dtype: DType) -> [usize; 7] {
    let chunk = 4096 / dtype.size();
    [0, 1, 5, chunk - 1, chunk, chunk + 1, 5 * chunk + 3]
}

fn check(rank: &Rank, op: Op, dtype: DType, len: usize) {
    let (own, size) = (rank.rank.rank(), rank.rank.size());
    let parts: Vec<Vec<u8>> = (0..size).map(|rank| values(dtype, len, rank, len)).collect();
    let got = rank.call(op, dtype, &parts[own]).unwrap();
    assert!(got == expected(op, dtype, &parts, own), "{op:?} of {len} x {dtype} on rank {own} of {size}");
}

#[test]
fn reductions_equal_plain_arithmetic_to_the_last_bit() {
    for size in 1..=4 {
        threads(size, options(), |rank| {
            let rank = Rank::new(rank);
            for dtype in DTYPES {
                for by in REDUCTIONS.into_iter().filter(|by| dtype.is_float() || *by != Reduction::Average) {
                    for len in lengths(dtype) {
                        check(&rank, Op::AllReduce(by), dtype, len);
                        check(&rank, Op::ReduceScatter(by), dtype, len * size);
                    }
                    check(&rank, Op::Reduce(by, size - 1), dtype, 4096 / dtype.size() + 1);
                }
            }
        });
    }
}

#[test]
fn gathers_broadcasts_and_exchanges_put_every_part_in_its_place() {
    for size in 1..=4 {
        threads(size, options(), |rank| {
            let rank = Rank::new(rank);
            for dtype in DTYPES {
                for len in lengths(dtype) {
                    check(&rank, Op::AllGather, dtype, len);
                    check(&rank, Op::AllToAll, dtype, len * size);
                    for root in 0..size {
                        check(&rank, Op::Broadcast(root), dtype, len);
                    }
                }
            }
        });
    }
}

#[test]
fn messages_of_every_length_arrive_in_order_between_every_two_ranks() {
    threads(3, options(), |rank| {
        let rank = Rank::new(rank);
        let own = rank.rank.rank();
        for dtype in DTYPES {
            for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 1)] {
                for len in lengths(dtype) {
                    let message = values(dtype, len, from, to);
                    if own == from {
                        rank.call(Op::Send(to), dtype, &message).unwrap();
                    } else if own == to {
                        assert!(rank.call(Op::Recv(from, len), dtype, &[]).unwrap() == message, "{len} x {dtype}");
                    }
                }
            }
        }
    });
}

#[test]
fn a_message_up_to_a_chunk_does_not_wait_for_its_receiver() {
    threads(2, options(), |rank| {
        let rank = Rank::new(rank);
        let other = 1 - rank.rank.rank();
        // Both send first: no one could go on if a send waited. Four chunks fit between two ranks.
        for salt in 0..4 {
            rank.call(Op::Send(other), DType::U8, &values(DType::U8, 4096, rank.rank.rank(), salt)).unwrap();
        }
        rank.rank.barrier().unwrap();
        for salt in 0..4 {
            let got = rank.call(Op::Recv(other, 4096), DType::U8, &[]).unwrap();
            assert_eq!(got, values(DType::U8, 4096, other, salt));
        }
    });
}

#[test]
fn chunks_and_ranks_of_a_larger_size_give_the_same_bits() {
    let with = |chunk| {
        threads(3, HostOptions { chunk, ..options() }, |rank| {
            let rank = Rank::new(rank);
            let own = values(DType::F32, 50_000, rank.rank.rank(), 1);
            rank.call(Op::AllReduce(Reduction::Sum), DType::F32, &own).unwrap()
        })
    };
    let first = with(4096);
    assert!(first.windows(2).all(|two| two[0] == two[1]), "ranks differ");
    for chunk in [8192, 12 << 10, 256 << 10] {
        assert!(with(chunk) == first, "chunks of {chunk}");
    }
}

#[test]
fn a_late_backend_gives_the_same_numbers() {
    let sums = |late: bool| {
        threads(2, options(), |rank| {
            let cpu = Arc::new(CpuBackend::new(1).unwrap());
            let device = if late { Device::new(Arc::new(Deferred::new(cpu, 3))) } else { Device::new(cpu) };
            let rank = Rank { rank, device, lane: Lane::Zero };
            let launched: Vec<Storage> = (0..5)
                .map(|salt| {
                    let own = values(DType::BF16, 3000, rank.rank.rank(), salt);
                    rank.launch(Op::AllReduce(Reduction::Average), DType::BF16, &own).unwrap()
                })
                .collect();
            launched.iter().map(|storage| rank.bytes(storage).unwrap()).collect::<Vec<_>>()
        })
    };
    assert!(sums(true) == sums(false));
}

#[test]
fn what_was_sent_is_counted_by_name_of_operation() {
    threads(2, options(), |rank| {
        let rank = Rank::new(rank);
        let own = rank.rank.rank();
        for _ in 0..3 {
            rank.sum(&[1.0; 100]).unwrap();
        }
        rank.call(Op::AllGather, DType::F16, &[0; 64]).unwrap();
        let op = if own == 0 { Op::Send(1) } else { Op::Recv(0, 10) };
        rank.call(op, DType::U8, &[7; 10]).unwrap();
        rank.rank.barrier().unwrap();
        let traffic = rank.rank.traffic();
        let counts: Vec<_> = traffic.iter().map(|(name, traffic)| (*name, traffic.calls, traffic.bytes)).collect();
        let message = if own == 0 { ("send", 1, 10) } else { ("recv", 1, 0) };
        assert_eq!(counts, [("all_gather", 1, 64), ("all_reduce", 3, 1200), message, ("barrier", 1, 0)]);
        assert!(traffic.iter().all(|(_, traffic)| traffic.seconds > 0.0));
        // Groups count for themselves.
        assert!(rank.rank.subgroup(0, 0).unwrap().traffic().is_empty());
    });
}

#[test]
fn averages_of_integers_and_ranks_that_do_not_exist_are_refused_before_anything_moves() {
    threads(2, options(), |rank| {
        let rank = Rank::new(rank);
        let error = rank.call(Op::AllReduce(Reduction::Average), DType::I32, &[0; 8]).unwrap_err();
        assert!(matches!(error, Error::DType { got: DType::I32, .. }), "{error}");
        assert!(matches!(rank.call(Op::Broadcast(2), DType::I32, &[0; 8]), Err(Error::Argument { .. })));
        assert!(matches!(rank.call(Op::Send(rank.rank.rank()), DType::I32, &[0; 8]), Err(Error::Argument { .. })));
        assert!(matches!(rank.call(Op::AllToAll, DType::U8, &[0; 3]), Err(Error::Shape { .. })));
        // Views of another lane: refused by the backend, and the number of the call is free again.
        let device = Device::cpu(1).unwrap();
        let storage = Storage::zeros(&device, 4, DType::F32, Segment::Data).unwrap();
        let data = storage.view_mut(0..4).unwrap();
        let wrong = Collective::AllReduce { data, by: Reduction::Sum };
        assert!(rank.rank.launch(device.backend(), wrong, Lane::Zero).is_err());
        assert_eq!(rank.sum(&[1.5]).unwrap(), [3.0]);
    });
}

#[test]
fn a_handle_may_be_dropped_while_its_work_is_under_way() {
    threads(2, options(), |rank| {
        let mut rank = Some(rank);
        let device = Device::cpu(1).unwrap();
        let storage = Storage::zeros(&device, 20_000, DType::F32, Segment::Data).unwrap();
        let data = storage.view_mut_on(0..20_000, Lane::Zero).unwrap();
        let own = rank.as_ref().unwrap().rank();
        if own == 1 {
            std::thread::sleep(Duration::from_millis(50));
        }
        let handle = rank.take().unwrap();
        handle.launch(device.backend(), Collective::AllReduce { data, by: Reduction::Sum }, Lane::Zero).unwrap();
        drop(handle);
        device.sync().unwrap();
    });
}

#[test]
fn options_outside_their_ranges_are_refused() {
    let refused = |size, options| HostGroup::threads(size, options).unwrap_err().to_string();
    assert!(refused(0, options()).contains("0 ranks"));
    assert!(refused(65, options()).contains("1 to 64"));
    assert!(refused(2, HostOptions { chunk: 5000, ..options() }).contains("multiple of 4096"));
    assert!(refused(2, HostOptions { deadline: Duration::ZERO, ..options() }).contains("deadline"));
    let link = Some(Link { latency: Duration::ZERO, bytes_per_second: 0.0 });
    assert!(refused(2, HostOptions { link, ..options() }).contains("bytes per second"));
    assert!(HostRank::join(place(), 2, 2, options()).unwrap_err().to_string().contains("rank 2 of 2"));
    // Not a defect of the program.
    assert!(matches!(HostGroup::threads(65, options()), Err(Error::Launch { .. })));
}

#[test]
fn names_of_jobs_have_places_of_their_own() {
    let places = ["a.b", "a_b", "a-b", "ab"].map(HostGroup::place);
    for (index, place) in places.iter().enumerate() {
        assert!(!places[..index].contains(place), "{places:?}");
    }
    // Jobs in the same place have names of their own.
    assert_eq!(HostGroup::place("a@0"), HostGroup::place("a_0"));
    assert_eq!(HostGroup::place("../a").parent(), HostGroup::place("a").parent());
}
