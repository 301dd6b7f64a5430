//! Ranks of one machine that are processes: how they meet, and what happens when one is killed or stopped.
#![allow(missing_docs, clippy::unwrap_used)]

mod ranks;

use bmtrain_core::comm::host::{HostOptions, HostRank};
use bmtrain_core::{DType, Error};
use ranks::{
    Rank, SOON, SUM, afresh, failure, options, parts_of, place, program, said, short, start, started, threads,
};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

#[test]
fn processes_and_threads_give_the_same_bits_in_fifty_mixed_calls() {
    const TEST: &str = "processes_and_threads_give_the_same_bits_in_fifty_mixed_calls";
    if let Some((rank, place)) = started(TEST) {
        println!("fingerprint {:016x}", program(HostRank::join(place, rank, 3, options()).unwrap()));
        return;
    }
    let place = place();
    let children = [0, 1, 2].map(|rank| start(TEST, rank, &place));
    let theirs = children.map(|child| said(child, "fingerprint "));
    let ours: Vec<String> =
        threads(3, options(), program).into_iter().map(|fingerprint| format!("{fingerprint:016x}")).collect();
    assert_eq!(ours, theirs);
    assert!(!place.exists(), "the file keeps its name");
}

/// A process that is rank 1 of 3: it makes one call with the others and then sleeps until it is killed. Rank 2 waits.
fn as_process(test: &str, options: HostOptions) -> bool {
    let Some((own, place)) = started(test) else { return false };
    let rank = Rank::new(HostRank::join(place, own, 3, options).unwrap());
    rank.sum(&[1.0]).unwrap();
    if test.contains("middle") {
        // Until somebody is killed.
        while rank.call(SUM, DType::F32, &vec![0; 1 << 20]).is_ok() {}
    } else if own == 1 {
        std::thread::sleep(Duration::from_secs(60));
    }
    let (_, _, reason, ranks) = failure(&afresh(rank), SUM, 7).0;
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
fn a_process_killed_in_the_middle_of_its_calls_is_noticed_too() {
    const TEST: &str = "a_process_killed_in_the_middle_of_its_calls_is_noticed_too";
    if as_process(TEST, options()) {
        return;
    }
    let (rank, [mut first, second]) = with_processes(TEST, options());
    let mut killed = None;
    let error = loop {
        if let Err(error) = rank.call(SUM, DType::F32, &vec![0; 1 << 20]) {
            break error;
        }
        if killed.is_none() {
            first.kill().unwrap();
            killed = Some(Instant::now());
        }
    };
    assert!(killed.unwrap().elapsed() < SOON, "{:?}", killed.unwrap().elapsed());
    assert!(error.to_string().contains("the process of rank 1 has ended"), "{error}");
    first.wait().unwrap();
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
