//! Ranks of one machine when something goes wrong: every rank hears of it, in time, with names.
#![allow(missing_docs, clippy::unwrap_used)]

mod ranks;

use bmtrain_core::comm::host::{HostOptions, HostRank};
use bmtrain_core::comm::{Communicator, Reduction};
use bmtrain_core::{DType, Error};
use ranks::{Op, Rank, options, parts_of, place, start, started, threads};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

/// Within this time a failure of one rank reaches the others, whatever the deadline.
const SOON: Duration = Duration::from_secs(1);

const SUM: Op = Op::AllReduce(Reduction::Sum);

fn short(milliseconds: u64) -> HostOptions {
    HostOptions { deadline: Duration::from_millis(milliseconds), ..options() }
}

/// How a call fails, and how long that takes.
fn failure(rank: &Rank, op: Op, elements: usize) -> ((String, u64, String, Vec<usize>), Duration) {
    let begin = Instant::now();
    let error = rank.call(op, DType::F32, &vec![0; 4 * elements]).unwrap_err();
    (parts_of(error), begin.elapsed())
}

/// A device of its own: a lane that failed stays failed, and hides what the group says.
fn afresh(rank: Rank) -> Rank {
    Rank::new(rank.rank)
}

#[test]
fn other_calls_on_other_ranks_are_named_on_all_of_them() {
    for (first, second, names) in [
        ((SUM, 8), (Op::AllGather, 8), ["all_reduce of 8 x f32, Sum", "all_gather of 8 x f32"]),
        ((SUM, 8), (SUM, 9), ["all_reduce of 8 x f32", "all_reduce of 9 x f32"]),
        ((SUM, 8), (Op::AllReduce(Reduction::Max), 8), ["8 x f32, Sum", "8 x f32, Max"]),
        ((Op::Broadcast(0), 30_000), (Op::Broadcast(1), 30_000), ["root 0", "root 1"]),
    ] {
        let said = threads(3, options(), |rank| {
            let rank = Rank::new(rank);
            rank.sum(&[1.0]).unwrap();
            let (op, elements) = if rank.rank.rank() == 2 { second } else { first };
            failure(&rank, op, elements)
        });
        for ((operation, sequence, reason, ranks), time) in said {
            assert!(names.iter().all(|name| reason.contains(name)), "{reason}");
            assert!(ranks.contains(&2) && ranks.len() == 2 && reason.contains("rank 2"), "{ranks:?}: {reason}");
            assert_eq!(sequence, 1, "{operation}");
            assert!(time < SOON, "{time:?}");
        }
    }
}

#[test]
fn a_message_that_is_not_the_expected_one_is_named_on_both_sides() {
    let said = threads(2, options(), |rank| {
        let rank = Rank::new(rank);
        if rank.rank.rank() == 1 {
            return failure(&rank, Op::Recv(0, 9), 0).0.2;
        }
        // The sender has gone on; it learns at its next call.
        rank.call(Op::Send(1), DType::F32, &[0; 32]).unwrap();
        failure(&rank, SUM, 1).0.2
    });
    for reason in said {
        assert!(reason.contains("rank 0 sent send of 8 x f32"), "{reason}");
        assert!(reason.contains("rank 1 called recv of 9 x f32"), "{reason}");
    }
}

#[test]
fn a_barrier_that_meets_a_split_fails_on_both_sides() {
    let said = threads(2, options(), |rank| match rank.rank() {
        0 => rank.barrier().unwrap_err().to_string(),
        _ => rank.split(0, 0).unwrap_err().to_string(),
    });
    assert!(said.iter().all(|error| error.contains("called barrier") && error.contains("called split")), "{said:?}");
}

#[test]
fn a_deadline_names_the_call_its_number_and_the_missing_ranks() {
    let said = threads(4, short(300), |rank| {
        let rank = Rank::new(rank);
        rank.sum(&[1.0]).unwrap();
        let own = rank.rank.rank();
        if own % 2 == 1 {
            // Long enough for the others to give up, without leaving.
            std::thread::sleep(Duration::from_millis(1200));
        }
        let (said, time) = failure(&rank, SUM, 5);
        (own, said, time)
    });
    for (own, (operation, sequence, reason, ranks), time) in said {
        assert_eq!((operation.as_str(), sequence), ("all_reduce of 5 x f32, Sum", 1));
        assert_eq!(ranks, [1, 3], "rank {own}: {reason}");
        assert!(reason.contains("rank 1") && reason.contains("rank 3") && reason.contains("300.0ms"), "{reason}");
        assert!(reason.contains("last call was number 0"), "{reason}");
        assert!(time < SOON && (own % 2 == 1 || time >= Duration::from_millis(300)), "{time:?}");
    }
}

#[test]
fn who_waits_for_a_missing_rank_is_not_missing_itself() {
    let said = threads(3, short(300), |rank| {
        let rank = Rank::new(rank);
        // Rank 0 waits for rank 1, rank 1 for rank 2, and rank 2 does nothing.
        match rank.rank.rank() {
            2 => std::thread::sleep(Duration::from_millis(1000)),
            own => return Some(failure(&rank, Op::Recv(own + 1, 1), 0).0),
        }
        None
    });
    for (_, _, reason, ranks) in said.into_iter().flatten() {
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
    let ranks = bmtrain_core::comm::host::HostGroup::threads(3, options()).unwrap();
    let mut said = Vec::new();
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
        said.extend(threads.into_iter().filter_map(|thread| thread.join().ok().flatten()));
    });
    assert_eq!(said.len(), 2);
    assert!(said.iter().all(|(_, _, _, ranks)| *ranks == [1]), "{said:?}");
    said
}

#[test]
fn a_panic_on_one_rank_ends_the_calls_of_the_others() {
    let said = while_others_wait(|_rank| panic!("on purpose"));
    assert!(said.iter().all(|(_, _, reason, _)| reason.contains("rank 1 gave up: its thread panicked")), "{said:?}");
}

#[test]
fn a_rank_that_gives_up_is_named_with_its_reason() {
    let said = while_others_wait(|rank| {
        rank.abort("the loss is not a number");
        // It fails itself as well.
        let error = failure(&Rank::new(rank), SUM, 1).0;
        assert!(error.2.contains("the loss is not a number"), "{error:?}");
    });
    let reason = "rank 1 gave up: the loss is not a number";
    assert!(said.iter().all(|(_, _, said, _)| said.contains(reason)), "{said:?}");
}

#[test]
fn a_rank_that_leaves_while_others_wait_for_it_is_named() {
    let said = while_others_wait(drop);
    assert!(said.iter().all(|(_, _, reason, _)| reason.contains("rank 1 has left the group")), "{said:?}");
}

#[test]
fn a_rank_may_leave_when_nobody_needs_it_any_more() {
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
            // A whole group that has nothing to do with rank 3: it waits for a rank that waits for nobody.
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
    let said = threads(2, short(300), |rank| {
        let rank = Rank::new(rank);
        let other = 1 - rank.rank.rank();
        failure(&rank, Op::Recv(other, 1), 0)
    });
    for ((operation, _, reason, _), time) in said {
        assert!(operation.starts_with("recv of 1 x f32") && reason.contains("nothing from rank"), "{reason}");
        assert!(time < SOON + Duration::from_millis(300), "{time:?}");
    }
}

/// A process that is rank 1 of 3: it makes one call with the others and then sleeps until it is killed. Rank 2 waits.
fn as_process(test: &str, options: HostOptions) -> bool {
    let Some((own, place)) = started(test) else { return false };
    let rank = Rank::new(HostRank::join(place, own, 3, options).unwrap());
    rank.sum(&[1.0]).unwrap();
    if own == 1 {
        std::thread::sleep(Duration::from_secs(60));
    }
    let (_, _, reason, ranks) = failure(&rank, SUM, 7).0;
    assert_eq!(ranks, [1], "{reason}");
    true
}

/// Rank 0 of three processes, after the first call.
fn with_processes(test: &str, options: HostOptions) -> (Rank, [Child; 2]) {
    let place = place();
    let children = [1, 2].map(|rank| start(test, rank, &place));
    let rank = Rank::new(HostRank::join(place.as_path(), 0, 3, options).unwrap());
    assert!(!place.exists());
    assert_eq!(rank.sum(&[1.0]).unwrap(), [3.0]);
    (rank, children)
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id().try_into().unwrap()).unwrap(), signal).unwrap();
}

#[test]
fn a_killed_process_is_noticed_long_before_the_deadline() {
    const TEST: &str = "a_killed_process_is_noticed_long_before_the_deadline";
    if as_process(TEST, options()) {
        return;
    }
    let (rank, [mut first, second]) = with_processes(TEST, options());
    first.kill().unwrap();
    let ((_, sequence, reason, ranks), time) = failure(&rank, SUM, 7);
    assert!(time < SOON, "{time:?}");
    assert!(ranks == [1] && sequence == 1 && reason.contains("the process of rank 1 has ended"), "{reason}");
    first.wait().unwrap();
    // Rank 2 heard the same, or its process would have failed.
    assert!(second.wait_with_output().unwrap().status.success());
}

#[test]
fn a_stopped_process_is_named_at_the_deadline() {
    const TEST: &str = "a_stopped_process_is_named_at_the_deadline";
    // Time enough for three processes to start and meet on a busy machine.
    let options = short(2500);
    if as_process(TEST, options) {
        return;
    }
    let (rank, [mut first, second]) = with_processes(TEST, options);
    signal(&first, Signal::STOP);
    let ((_, _, reason, ranks), time) = failure(&rank, SUM, 7);
    assert!(time >= Duration::from_millis(2000) && time < Duration::from_millis(2500) + SOON, "{time:?}");
    assert!(ranks == [1] && reason.contains("nothing from rank 1"), "{reason}");
    assert!(second.wait_with_output().unwrap().status.success());
    first.kill().unwrap();
    first.wait().unwrap();
}

#[test]
fn ranks_that_do_not_come_to_the_meeting_are_named_and_the_file_goes() {
    let place = place();
    let join = |rank| HostRank::join(place.as_path(), rank, 4, short(300)).map(|_| ()).unwrap_err();
    let errors: Vec<Error> = std::thread::scope(|scope| {
        [0, 2].map(|rank| scope.spawn(move || join(rank))).map(|thread| thread.join().unwrap()).into()
    });
    for error in errors {
        let (operation, _, reason, ranks) = parts_of(error);
        assert!(operation == "join" && ranks == [1, 3], "{reason}");
    }
    assert!(!place.exists());
}

fn join_both(place: &Path, second: impl FnOnce() -> Result<HostRank, Error> + Send) -> [Result<HostRank, Error>; 2] {
    std::thread::scope(|scope| {
        let first = scope.spawn(|| HostRank::join(place, 0, 2, short(400)));
        std::thread::sleep(Duration::from_millis(100));
        let second = second();
        [first.join().unwrap(), second]
    })
}

#[test]
fn a_rank_that_comes_twice_or_with_other_options_is_turned_away() {
    let place = place();
    let [_, twice] = join_both(&place, || HostRank::join(place.as_path(), 0, 2, short(400)));
    assert!(twice.unwrap_err().to_string().contains("is rank 0 already"));
    let [_, other] =
        join_both(&place, || HostRank::join(place.as_path(), 1, 2, HostOptions { chunk: 8192, ..short(400) }));
    let error = other.unwrap_err().to_string();
    assert!(error.contains("chunks of 8192 bytes") && error.contains("with 2 and 4096"), "{error}");
    let [_, other] = join_both(&place, || HostRank::join(place.as_path(), 1, 3, short(400)));
    assert!(other.unwrap_err().to_string().contains("3 ranks"));
    // After all this the place is as good as new.
    let both = join_both(&place, || HostRank::join(place.as_path(), 1, 2, short(400)));
    assert!(both.iter().all(Result::is_ok), "{both:?}");
}

#[test]
fn a_file_of_something_else_is_turned_away_and_an_open_one_is_welcome() {
    let place = place();
    std::fs::write(&place, [0xa5; 5000]).unwrap();
    let error = HostRank::join(place.as_path(), 0, 1, options()).unwrap_err().to_string();
    assert!(error.contains("remove the file"), "{error}");
    std::fs::remove_file(&place).unwrap();
    let error = HostRank::join(Path::new("/no/such/folder"), 0, 1, options()).unwrap_err().to_string();
    assert!(error.contains("/no/such/folder"), "{error}");

    let file = rustix::fs::memfd_create("ranks", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let ranks = std::thread::scope(|scope| {
        [0, 1]
            .map(|rank| {
                let file = file.try_clone().unwrap();
                scope.spawn(move || Rank::new(HostRank::join(file, rank, 2, options()).unwrap()).sum(&[2.5]).unwrap())
            })
            .map(|thread| thread.join().unwrap())
    });
    assert_eq!(ranks, [[5.0], [5.0]]);
}
