//! Ranks of one machine when something goes wrong: every rank hears of it, in time, with names.

use crate::ranks::{Op, Rank, SOON, SUM, afresh, failure, options, short, threads};
use bmtrain_core::comm::host::{HostGroup, HostRank};
use bmtrain_core::comm::{Communicator, Reduction};
use bmtrain_core::{DType, Error};
use std::time::{Duration, Instant};

#[test]
fn other_calls_on_other_ranks_are_named_on_all_of_them() {
    for (first, second, names) in [
        ((SUM, 8), (Op::AllGather, 8), ["all_reduce of 8 x f32, Sum", "all_gather of 8 x f32"]),
        ((SUM, 8), (SUM, 9), ["all_reduce of 8 x f32", "all_reduce of 9 x f32"]),
        ((SUM, 8), (Op::AllReduce(Reduction::Max), 8), ["8 x f32, Sum", "8 x f32, Max"]),
        ((Op::Broadcast(0), 30_000), (Op::Broadcast(1), 30_000), ["root 0", "root 1"]),
    ] {
        let reported = threads(3, options(), |rank| {
            let rank = Rank::new(rank);
            rank.sum(&[1.0]).unwrap();
            let (op, elements) = if rank.rank.rank() == 2 { second } else { first };
            failure(&rank, op, elements)
        });
        for ((operation, sequence, reason, ranks), time) in reported {
            assert!(names.iter().all(|name| reason.contains(name)), "{reason}");
            assert!(ranks.contains(&2) && ranks.len() == 2 && reason.contains("rank 2"), "{ranks:?}: {reason}");
            assert_eq!(sequence, 1, "{operation}");
            assert!(time < SOON, "{time:?}");
        }
    }
}

#[test]
fn a_message_that_is_not_the_expected_one_is_named_on_both_sides() {
    let reported = threads(2, options(), |rank| {
        let rank = Rank::new(rank);
        if rank.rank.rank() == 1 {
            return failure(&rank, Op::Recv(0, 9), 0).0.2;
        }
        // The sender has gone on; it learns at its next call.
        rank.call(Op::Send(1), DType::F32, &[0; 32]).unwrap();
        failure(&rank, SUM, 1).0.2
    });
    for reason in reported {
        assert!(reason.contains("rank 0 sent send of 8 x f32"), "{reason}");
        assert!(reason.contains("rank 1 called recv of 9 x f32"), "{reason}");
    }
}

#[test]
fn a_barrier_that_meets_a_split_fails_on_both_sides() {
    let reported = threads(2, options(), |rank| match rank.rank() {
        0 => rank.barrier().unwrap_err().to_string(),
        _ => rank.split(0, 0).unwrap_err().to_string(),
    });
    assert!(
        reported.iter().all(|error| error.contains("called barrier") && error.contains("called split")),
        "{reported:?}"
    );
}

#[test]
fn a_deadline_names_the_call_its_number_and_the_missing_ranks() {
    let reported = threads(4, short(300), |rank| {
        let rank = Rank::new(rank);
        rank.sum(&[1.0]).unwrap();
        let own = rank.rank.rank();
        if own % 2 == 1 {
            // Long enough for the others to give up, without leaving.
            std::thread::sleep(Duration::from_millis(1200));
        }
        let (reported, time) = failure(&rank, SUM, 5);
        (own, reported, time)
    });
    for (own, (operation, sequence, reason, ranks), time) in reported {
        assert_eq!((operation.as_str(), sequence), ("all_reduce of 5 x f32, Sum", 1));
        assert_eq!(ranks, [1, 3], "rank {own}: {reason}");
        assert!(reason.contains("rank 1") && reason.contains("rank 3") && reason.contains("300.0ms"), "{reason}");
        assert!(reason.contains("last call was number 0"), "{reason}");
        assert!(time < SOON && (own % 2 == 1 || time >= Duration::from_millis(300)), "{time:?}");
    }
}

#[test]
fn who_waits_for_a_missing_rank_is_not_missing_itself() {
    let reported = threads(3, short(400), |rank| {
        let rank = Rank::new(rank);
        let own = rank.rank.rank();
        // Rank 0 waits for rank 1, rank 1 for rank 2 from a little later on, and rank 2 does nothing.
        std::thread::sleep(Duration::from_millis([0, 100, 1000][own]));
        (own < 2).then(|| failure(&rank, Op::Recv(own + 1, 1), 0).0)
    });
    for (_, _, reason, ranks) in reported.into_iter().flatten() {
        assert_eq!(ranks, [2], "{reason}");
    }
}

#[test]
fn after_a_failure_every_call_fails_at_once_with_the_first_reason() {
    threads(2, short(300), |rank| {
        let rank = Rank::new(rank);
        if rank.rank.rank() == 1 {
            std::thread::sleep(Duration::from_millis(800));
        }
        failure(&rank, Op::AllGather, 3);
        let mut rank = afresh(rank);
        for op in [SUM, Op::AllToAll, Op::Send(1 - rank.rank.rank()), Op::Recv(1 - rank.rank.rank(), 2)] {
            let ((operation, _, reason, ranks), time) = failure(&rank, op, 2);
            assert!(time < Duration::from_millis(200), "{time:?}");
            assert!(operation.ends_with("2 x f32") || !matches!(op, Op::AllToAll), "{operation}");
            assert!(reason.contains("all_gather of 3 x f32") && reason.contains("nothing from rank 1"), "{reason}");
            assert_eq!(ranks, [1]);
            rank = afresh(rank);
        }
        let begin = Instant::now();
        assert!(rank.rank.barrier().unwrap_err().to_string().contains("nothing from rank 1"));
        assert!(rank.rank.split(0, 0).is_err() && begin.elapsed() < Duration::from_millis(200));
    });
}

/// Ranks 0 and 2 are in a call that rank 1 does not come to, and rank 1 does something else.
fn while_others_wait(other: impl Fn(HostRank) + Sync) -> Vec<(String, u64, String, Vec<usize>)> {
    let ranks = HostGroup::threads(3, options()).unwrap();
    let mut reported = Vec::new();
    std::thread::scope(|scope| {
        let other = &other;
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|rank| {
                scope.spawn(move || {
                    if rank.rank() == 1 {
                        std::thread::sleep(Duration::from_millis(100));
                        other(rank);
                        return None;
                    }
                    let rank = Rank::new(rank);
                    let ((operation, sequence, reason, ranks), time) = failure(&rank, SUM, 1000);
                    assert!(time < Duration::from_millis(100) + SOON, "{time:?}");
                    let (again, time) = failure(&afresh(rank), SUM, 1);
                    assert!(again.2.contains(&reason) && time < SOON, "{again:?}");
                    Some((operation, sequence, reason, ranks))
                })
            })
            .collect();
        // The rank that panics on purpose is one of them.
        reported.extend(threads.into_iter().filter_map(|thread| thread.join().ok().flatten()));
    });
    assert_eq!(reported.len(), 2);
    assert!(reported.iter().all(|(_, _, _, ranks)| *ranks == [1]), "{reported:?}");
    reported
}

#[test]
fn a_panic_on_one_rank_ends_the_calls_of_the_others() {
    let ranks = HostGroup::threads(3, options()).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|rank| {
                scope.spawn(move || {
                    assert!(rank.rank() != 1, "on purpose");
                    rank.barrier().unwrap_err()
                })
            })
            .collect();
        let errors: Vec<Error> = threads.into_iter().filter_map(|thread| thread.join().ok()).collect();
        assert_eq!(errors.len(), 2);
        for error in errors {
            // The code of a defect, after which another start does not help.
            let Error::RankEnded { rank: 1, code: 1, reason } = &error else { panic!("another error: {error}") };
            assert!(reason.contains("rank 1 gave up: its thread panicked"), "{reason}");
        }
    });
}

#[test]
fn a_rank_that_gives_up_is_named_with_its_reason() {
    let reported = while_others_wait(|rank| {
        rank.abort("the loss is not a number");
        // It fails itself as well.
        let error = failure(&Rank::new(rank), SUM, 1).0;
        assert!(error.2.contains("the loss is not a number"), "{error:?}");
    });
    let reason = "rank 1 gave up: the loss is not a number";
    assert!(reported.iter().all(|(_, _, reported, _)| reported.contains(reason)), "{reported:?}");
}

#[test]
fn a_rank_that_leaves_while_others_wait_for_it_is_named() {
    let reported = while_others_wait(drop);
    assert!(reported.iter().all(|(_, _, reason, _)| reason.contains("rank 1 has left the group")), "{reported:?}");
}

#[test]
fn a_rank_may_leave_when_no_rank_needs_it_any_more() {
    let sums = threads(3, options(), |rank| {
        let rank = Rank::new(rank);
        let own = rank.rank.rank();
        if own == 0 {
            rank.call(Op::Send(1), DType::F32, &3f32.to_ne_bytes()).unwrap();
        }
        let sum = rank.sum(&[own as f32; 3000]).unwrap()[0];
        if own == 1 {
            std::thread::sleep(Duration::from_millis(150));
            assert_eq!(rank.call(Op::Recv(0, 1), DType::F32, &[]).unwrap(), 3f32.to_ne_bytes());
        }
        sum
    });
    assert_eq!(sums, [3.0; 3]);
}

#[test]
fn giving_up_in_the_group_of_all_ends_calls_in_smaller_groups() {
    threads(4, options(), |rank| {
        let own = rank.rank();
        let half = rank.subgroup(own / 2, 0).unwrap();
        if own == 3 {
            std::thread::sleep(Duration::from_millis(100));
            rank.abort("disk full");
            std::thread::sleep(Duration::from_millis(300));
            return;
        }
        if own < 2 {
            // A whole group that has nothing to do with rank 3: it waits for a rank that does not wait.
            if own == 1 {
                std::thread::sleep(SOON);
            }
        }
        let ((_, _, reason, ranks), time) = failure(&Rank::new(half), SUM, 4);
        assert!(reason.contains("rank 3 gave up: disk full") && time < SOON, "{time:?} {reason}");
        assert_eq!(ranks, if own == 2 { vec![1] } else { vec![] });
    });
}

#[test]
fn failures_in_a_smaller_group_name_ranks_in_both_numberings() {
    threads(4, short(300), |rank| {
        let own = rank.rank();
        let half = rank.subgroup(own / 2, 0).unwrap();
        if own == 3 {
            std::thread::sleep(Duration::from_millis(800));
        } else if own == 2 {
            let (_, _, reason, ranks) = failure(&Rank::new(half), SUM, 4).0;
            assert!(ranks == [1] && reason.contains("rank 1 (rank 3 of all)"), "{reason}");
        } else {
            // The other half does not notice.
            assert_eq!(Rank::new(half).sum(&[1.0]).unwrap(), [2.0]);
        }
    });
}

#[test]
fn a_circle_of_ranks_that_wait_for_each_other_ends_at_the_deadline() {
    let reported = threads(2, short(300), |rank| {
        let rank = Rank::new(rank);
        let other = 1 - rank.rank.rank();
        failure(&rank, Op::Recv(other, 1), 0)
    });
    for ((operation, _, reason, _), time) in reported {
        assert!(operation.starts_with("recv of 1 x f32") && reason.contains("nothing from rank"), "{reason}");
        assert!(time < SOON + Duration::from_millis(300), "{time:?}");
    }
}
