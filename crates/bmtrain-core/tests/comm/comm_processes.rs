//! Ranks of one machine that are processes: how they meet, and what happens when one is killed or stopped.

use crate::ranks;

use bmtrain_core::comm::Communicator;
use bmtrain_core::comm::host::{HostOptions, HostRank, Meeting};
use bmtrain_core::{DType, Error};
use ranks::{
    Rank, SOON, SUM, afresh, failure, options, parts_of, place, printed, program, short, start, started, threads,
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
    let theirs = children.map(|child| printed(child, "fingerprint "));
    let ours: Vec<String> =
        threads(3, options(), program).into_iter().map(|fingerprint| format!("{fingerprint:016x}")).collect();
    assert_eq!(ours, theirs);
    assert_eq!(left_of(&place), NOTHING);
}

/// A process that is rank 1 of 3: it makes one call with the others and then sleeps until it is killed. Rank 2 waits.
fn as_process(test: &str, options: HostOptions) -> bool {
    let Some((own, place)) = started(test) else { return false };
    let rank = Rank::new(HostRank::join(place, own, 3, options).unwrap());
    rank.sum(&[1.0]).unwrap();
    if test.contains("middle") {
        // Until a process is killed.
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
    assert_eq!(left_of(&place), [".", "@0", "@1", "@2"], "the memory keeps its name");
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

/// Files left of a place: `.` for the file of its name, and the suffixes of further files.
fn left_of(place: &Path) -> Vec<String> {
    let name = place.file_name().unwrap().to_str().unwrap();
    let files = std::fs::read_dir(place.parent().unwrap()).unwrap().map(|file| file.unwrap().file_name());
    let names = files.filter_map(|file| file.into_string().ok()?.strip_prefix(name).map(str::to_owned));
    let of_place = names.filter(|rest| rest.is_empty() || rest.starts_with('@'));
    let mut left: Vec<String> =
        of_place.map(|rest| if rest.is_empty() { ".".to_owned() } else { rest.to_owned() }).collect();
    left.sort();
    left
}

const NOTHING: [&str; 0] = [];

/// The first rank of two begins to join, then the second one does something.
fn join_both<T: Send>(place: &Path, second: impl FnOnce() -> T + Send) -> (Result<HostRank, Error>, T) {
    std::thread::scope(|scope| {
        let first = scope.spawn(|| HostRank::join(place, 0, 2, options()));
        wait_for(place, "@memory");
        let second = second();
        (first.join().unwrap(), second)
    })
}

/// Wait until a rank has come so far that a file of the place is there.
fn wait_for(place: &Path, file: &str) {
    let begin = Instant::now();
    while !left_of(place).iter().any(|name| name == file) {
        assert!(begin.elapsed() < options().deadline, "no {file} of {place:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Both errors report the wrong launch with the same text; returns it.
fn wrong_launch(errors: [Error; 2]) -> String {
    let [first, second] = errors.map(|error| error.to_string());
    assert_eq!(first, second);
    assert!(first.starts_with("launch: "), "{first}");
    first
}

#[test]
fn a_rank_that_comes_twice_or_with_other_options_ends_all_at_once() {
    let own = std::process::id();
    let begin = Instant::now();
    let joined = |rank: usize, size: usize, options: HostOptions| {
        let place = place();
        let (first, second) = join_both(&place, || HostRank::join(place.as_path(), rank, size, options));
        let reason = wrong_launch([first.unwrap_err(), second.unwrap_err()]);
        // A rank that has not come yet learns of it as well, and is the last one.
        let late = (rank == 0).then(|| HostRank::join(place.as_path(), 1, 2, options));
        assert!(late.is_none_or(|late| late.unwrap_err().to_string() == reason));
        assert_eq!(left_of(&place), NOTHING, "{reason}");
        reason
    };
    let twice = joined(0, 2, options());
    assert!(twice.contains(&format!("processes {own} and {own} are both rank 0")), "{twice}");
    let size = joined(1, 3, options());
    assert!(size.contains(&format!("rank 1 has world size 3, rank 0 (process {own}) has 2")), "{size}");
    let chunk = joined(1, 2, HostOptions { chunk: 8192, ..options() });
    assert!(chunk.contains("chunks of 8192 bytes, another rank has 2 and 4096"), "{chunk}");
    assert!(begin.elapsed() < 4 * SOON, "{:?}", begin.elapsed());
}

#[test]
fn a_process_that_comes_to_a_running_job_is_told_so_and_the_job_continues() {
    let place = place();
    let (first, second) = join_both(&place, || HostRank::join(place.as_path(), 1, 2, options()));
    let ranks = [first.unwrap(), second.unwrap()];
    for (rank, size) in [(1, 2), (1, 4)] {
        let error = HostRank::join(place.as_path(), rank, size, options()).unwrap_err().to_string();
        assert!(error.starts_with("launch: ") && error.contains("this job is running with 2 ranks"), "{error}");
    }
    let sums = std::thread::scope(|scope| {
        ranks.map(|rank| scope.spawn(move || Rank::new(rank).sum(&[1.5]).unwrap())).map(|thread| thread.join().unwrap())
    });
    assert_eq!(sums, [[3.0], [3.0]]);
    assert_eq!(left_of(&place), NOTHING);
}

/// Kill the processes of ranks, once each has come as far as it can.
fn killed(test: &str, ranks: &[usize], place: &Path) {
    let mut children: Vec<Child> = ranks.iter().map(|rank| start(test, *rank, place)).collect();
    for rank in ranks {
        wait_for(place, &format!("@{rank}"));
    }
    wait_for(place, "@memory");
    children.iter_mut().for_each(|child| child.kill().unwrap());
    for child in &mut children {
        child.wait().unwrap();
    }
}

#[test]
fn files_of_killed_processes_are_taken_over() {
    const TEST: &str = "files_of_killed_processes_are_taken_over";
    if let Some((rank, place)) = started(TEST) {
        println!("joined {}", HostRank::join(place, rank, 3, options()).unwrap().size());
        return;
    }
    for ranks in [&[0][..], &[1], &[0, 2]] {
        let place = place();
        killed(TEST, ranks, &place);
        assert!(left_of(&place).len() >= 3, "{:?}", left_of(&place));
        let children = [0, 1, 2].map(|rank| start(TEST, rank, &place));
        assert_eq!(children.map(|child| printed(child, "joined ")), ["3", "3", "3"]);
        assert_eq!(left_of(&place), NOTHING, "{ranks:?}");
    }
}

#[test]
fn a_process_killed_before_all_have_joined_ends_the_others_soon() {
    const TEST: &str = "a_process_killed_before_all_have_joined_ends_the_others_soon";
    if let Some((rank, place)) = started(TEST) {
        // One that joins, and one that still prepares its work.
        let meeting = Meeting::enter(place, rank, 4).unwrap();
        if rank == 1 {
            let _ = HostRank::join(meeting, rank, 4, options());
        }
        std::thread::sleep(Duration::from_secs(60));
        return;
    }
    // A process is told apart from a later start by ticks of 10 ms: this one was started in an earlier one than its
    // children.
    std::thread::sleep(Duration::from_millis(20));
    for lost in [1, 2] {
        let place = place();
        let mut child = start(TEST, lost, &place);
        wait_for(&place, if lost == 1 { "@memory" } else { "@2" });
        let (error, time) = std::thread::scope(|scope| {
            let first = scope.spawn(|| HostRank::join(place.as_path(), 0, 4, options()).unwrap_err());
            wait_for(&place, "@0");
            std::thread::sleep(Duration::from_millis(60));
            child.kill().unwrap();
            let killed = Instant::now();
            (first.join().unwrap(), killed.elapsed())
        });
        child.wait().unwrap();
        let (operation, _, reason, ranks) = parts_of(error);
        assert!(operation == "join" && ranks == [lost] && reason.contains("ended before all ranks"), "{reason}");
        assert!(time < SOON, "{time:?}");
        // Those that come later end at once as well, and nothing is left after the last of them.
        for rank in [1, 2, 3].into_iter().filter(|rank| *rank != lost) {
            let (operation, _, reason, ranks) = parts_of(Meeting::enter(&place, rank, 4).unwrap_err());
            assert!(operation == "join" && ranks == [lost], "{reason}");
        }
        assert_eq!(left_of(&place), NOTHING);
    }
}

#[test]
fn a_process_killed_before_the_others_come_ends_them_too() {
    const TEST: &str = "a_process_killed_before_the_others_come_ends_them_too";
    if let Some((rank, place)) = started(TEST) {
        let _meeting = Meeting::enter(place, rank, 3).unwrap();
        std::thread::sleep(Duration::from_secs(60));
        return;
    }
    let place = place();
    // Ticks have 10 ms: this process was started in an earlier one than that in which the other one comes.
    std::thread::sleep(Duration::from_millis(20));
    let mut child = start(TEST, 1, &place);
    wait_for(&place, "@1");
    child.kill().unwrap();
    child.wait().unwrap();
    // This process was started before that one came, so it is one of the same start.
    for rank in [0, 2] {
        let (operation, _, reason, ranks) = parts_of(Meeting::enter(&place, rank, 3).unwrap_err());
        assert!(operation == "join" && ranks == [1] && reason.contains("the process of rank 1"), "{reason}");
    }
    assert_eq!(left_of(&place), NOTHING);
}

#[test]
fn a_rank_that_ends_before_it_joins_passes_its_exit_code_on_and_a_later_start_is_free() {
    const TEST: &str = "a_rank_that_ends_before_it_joins_passes_its_exit_code_on_and_a_later_start_is_free";
    if let Some((rank, place)) = started(TEST) {
        let rank = Rank::new(HostRank::join(place, rank, 3, options()).unwrap());
        println!("sum {}", rank.sum(&[0.5]).unwrap()[0]);
        return;
    }
    let code = |error: Error| match error {
        Error::RankEnded { rank: 1, code, reason } if reason.contains("a label is missing") => code,
        other => panic!("another error: {other}"),
    };
    let place = place();
    let fail = || Meeting::enter(&place, 1, 3).unwrap().abandon(3, "a label is missing");
    // One that waits, while a third has not come.
    let first = std::thread::scope(|scope| {
        let first = scope.spawn(|| HostRank::join(place.as_path(), 0, 3, options()));
        wait_for(&place, "@memory");
        fail();
        first.join().unwrap()
    });
    assert_eq!(code(first.unwrap_err()), 3);
    assert_eq!(left_of(&place), [".", "@0", "@1"], "kept for the third");
    // Processes that are started now are another start, which takes the place over.
    let children = [0, 1, 2].map(|rank| start(TEST, rank, &place));
    assert_eq!(children.map(|child| printed(child, "sum ")), ["1.5", "1.5", "1.5"]);
    assert_eq!(left_of(&place), NOTHING);
    // The failure comes before the others; once all know of it, it is gone.
    fail();
    for rank in [2, 0] {
        assert_eq!(code(Meeting::enter(&place, rank, 3).unwrap_err()), 3);
    }
    assert_eq!(left_of(&place), NOTHING);
}

#[test]
fn an_interrupted_table_and_memory_without_a_table_are_taken_over() {
    let place = place();
    let memory = place.with_file_name(format!("{}@memory", place.file_name().unwrap().to_str().unwrap()));
    for table in [Some(&[0xa5; 1024][..]), None] {
        table.iter().for_each(|table| std::fs::write(&place, table).unwrap());
        std::fs::write(&memory, [0xa5; 8192]).unwrap();
        assert_eq!(Rank::new(HostRank::join(place.as_path(), 0, 1, options()).unwrap()).sum(&[2.5]).unwrap(), [2.5]);
        assert_eq!(left_of(&place), NOTHING);
    }
}

#[test]
fn a_rank_that_panics_before_it_joins_ends_the_others_with_the_code_of_a_defect() {
    let place = place();
    let panics = || {
        let _meeting = Meeting::enter(&place, 1, 2).unwrap();
        panic!("on purpose");
    };
    std::thread::scope(|scope| assert!(scope.spawn(panics).join().is_err()));
    let error = Meeting::enter(&place, 0, 2).unwrap_err();
    assert!(matches!(&error, Error::RankEnded { rank: 1, code: 1, reason } if reason.contains("panicked")), "{error}");
    assert_eq!(left_of(&place), NOTHING);
}

#[test]
fn a_directory_that_lets_no_user_make_files_is_named() {
    // Not writable for any user.
    let error = HostRank::join(Path::new("/sys/ranks"), 0, 1, options()).unwrap_err();
    assert!(matches!(&error, Error::Launch { fix, .. } if fix == "make /sys writable for this user"), "{error}");
}

#[test]
fn a_rank_that_fails_while_it_joins_passes_its_exit_code_on() {
    let place = place();
    let meeting = Meeting::enter(&place, 0, 2).unwrap();
    assert!(HostRank::join(meeting.clone(), 0, 2, short(100)).is_err());
    meeting.abandon(5, "no memory");
    let error = Meeting::enter(&place, 1, 2).unwrap_err();
    assert!(matches!(&error, Error::RankEnded { rank: 0, code: 5, .. }), "{error}");
    drop(meeting);
    assert_eq!(left_of(&place), NOTHING);
}

#[test]
fn a_file_of_something_else_is_turned_away_and_an_open_one_is_welcome() {
    let place = place();
    std::fs::write(&place, [0xa5; 5000]).unwrap();
    let error = HostRank::join(place.as_path(), 0, 1, options()).unwrap_err().to_string();
    assert!(error.contains("remove the file"), "{error}");
    std::fs::remove_file(&place).unwrap();
    // A directory stands for what belongs to another user: neither is a defect of the program.
    std::fs::create_dir(&place).unwrap();
    let error = HostRank::join(place.as_path(), 0, 1, options()).unwrap_err();
    assert!(matches!(error, Error::Launch { .. }), "{error}");
    std::fs::remove_dir(&place).unwrap();
    let error = HostRank::join(Path::new("/no/such/directory"), 0, 1, options()).unwrap_err().to_string();
    assert!(error.contains("/no/such/directory"), "{error}");

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
