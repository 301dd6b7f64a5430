//! Ranks of an MPI job: the bits of ranks of one machine, and every way to lose a rank. Each test starts `mpirun`,
//! which runs that test again in every rank.
#![allow(missing_docs, clippy::unwrap_used)]

mod ranks;

use bmtrain_core::comm::mpi::{MpiOptions, MpiRank};
use bmtrain_core::comm::{Communicator, Reduction};
use bmtrain_core::{DType, Lane};
use ranks::{
    DTYPES, Op, REDUCTIONS, Rank, SUM, afresh, expected, failure, options, program, program_of, threads, values,
};
use rustix::process::{Signal, getpid, kill_process};
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

/// Names, in a rank, the test it was started for.
const MARKER: &str = "BMTRAIN_MPI_TEST";
/// Exit code of ranks after a failure.
const CODE: u8 = 7;

/// In a rank of `test`: the rank.
fn rank_of(test: &str, deadline: u64) -> Option<MpiRank> {
    let marked = std::env::var(MARKER).is_ok_and(|name| name == test);
    let options = MpiOptions { deadline: Duration::from_millis(deadline), chunk: 4096 };
    marked.then(|| MpiRank::join(options).unwrap())
}

/// A job that has ended.
struct Job {
    code: Option<i32>,
    text: String,
    time: Duration,
}

impl Job {
    /// Output of each rank, by rank.
    fn printed(&self) -> Vec<(usize, &str)> {
        let mut printed: Vec<(usize, &str)> = self
            .text
            .lines()
            .filter_map(|line| line.split_once("printed ")?.1.split_once(": "))
            .filter_map(|(rank, text)| Some((rank.parse().ok()?, text)))
            .collect();
        printed.sort_unstable();
        printed
    }
}

/// Run `test` on `ranks` ranks; nothing where there is no `mpirun`.
fn mpirun(test: &str, ranks: usize, arguments: &[&str]) -> Option<Job> {
    if Command::new("mpirun").arg("--version").output().is_err() {
        // Past the test harness, which hides what passing tests print.
        std::io::stderr().write_all(b"\nSKIPPED tests of MPI: there is no mpirun\n").unwrap();
        return None;
    }
    // Each job has a session directory of its own: two that begin at once would both make the one of this user.
    let sessions = tempfile::tempdir().unwrap();
    let begin = Instant::now();
    // When a rank is lost, mpirun ends the others: a gentle signal first, which these ignore, and a deadly one a second
    // later.
    let program = ["sh", "-c", "trap '' TERM; exec \"$0\" \"$@\""];
    let output = Command::new("mpirun")
        .args(["--allow-run-as-root", "--oversubscribe", "--mca", "orte_tmpdir_base"])
        .arg(sessions.path())
        .args(arguments)
        .args(["-n", &ranks.to_string()])
        .args(program)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(MARKER, test)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    Some(Job { code: output.status.code(), text, time: begin.elapsed() })
}

/// Tell the test what happened, in one write: lines of several ranks come together.
fn say(rank: &MpiRank, text: &str) {
    print!("\nprinted {}: {text}\n", rank.rank());
}

/// Print how a call failed and end the job, as a program does.
fn fail(rank: Rank<MpiRank>, op: Op, elements: usize) -> ! {
    let ((operation, sequence, reason, ranks), time) = failure(&rank, op, elements);
    say(&rank.rank, &format!("{ranks:?} {operation} #{sequence} after {} ms: {reason}", time.as_millis()));
    rank.rank.end_job(CODE)
}

/// All that a rank gets from every collective: types, reductions, lengths around the edges of chunks, every root.
fn everything<C: Communicator>(rank: &Rank<C>, compare: bool) -> Vec<Vec<u8>> {
    let (own, size) = (rank.rank.rank(), rank.rank.size());
    let mut got = Vec::new();
    let mut call = |op, dtype: DType, len: usize| {
        let parts: Vec<Vec<u8>> = (0..size).map(|rank| values(dtype, len, rank, len)).collect();
        let bytes = rank.call(op, dtype, &parts[own]).unwrap();
        assert!(!compare || bytes == expected(op, dtype, &parts, own), "{op:?} of {len} x {dtype} on {own} of {size}");
        got.push(bytes);
    };
    for dtype in DTYPES {
        let chunk = 4096 / dtype.size();
        for len in [0, 1, 5, chunk - 1, chunk, chunk + 1, 5 * chunk + 3, 20 * chunk + 1] {
            for by in REDUCTIONS.into_iter().filter(|by| dtype.is_float() || *by != Reduction::Average) {
                call(Op::AllReduce(by), dtype, len);
                call(Op::ReduceScatter(by), dtype, len * size);
                call(Op::Reduce(by, len % size), dtype, len);
            }
            call(Op::AllGather, dtype, len);
            call(Op::AllToAll, dtype, len * size);
            (0..size).for_each(|root| call(Op::Broadcast(root), dtype, len));
        }
    }
    got
}

#[test]
fn every_collective_has_the_bits_of_ranks_of_one_machine() {
    const TEST: &str = "every_collective_has_the_bits_of_ranks_of_one_machine";
    if let Some(rank) = rank_of(TEST, 60_000) {
        let rank = Rank::new(rank);
        let (own, size) = (rank.rank.rank(), rank.rank.size());
        assert!(rank.rank.is_ordered());
        let ours = everything(&rank, true);
        let theirs = threads(size, options(), |rank| everything(&Rank::new(rank), false)).swap_remove(own);
        assert!(ours == theirs, "rank {own} of {size}");
        let fingerprint = if size == 3 { program_of(rank.rank, |rank, c, k| rank.subgroup(c, k).unwrap()) } else { 0 };
        if size == 3 {
            assert_eq!(fingerprint, threads(3, options(), program)[own]);
        }
        print!("\nprinted {own}: {} results\n", ours.len());
        return;
    }
    for size in 1..=4 {
        let Some(job) = mpirun(TEST, size, &[]) else { return };
        assert_eq!((job.code, job.printed().len()), (Some(0), size), "{}", job.text);
        assert!(job.printed().iter().all(|(_, printed)| printed.ends_with("results")), "{}", job.text);
    }
}

#[test]
fn messages_groups_barriers_and_lanes_work_as_on_one_machine() {
    const TEST: &str = "messages_groups_barriers_and_lanes_work_as_on_one_machine";
    if let Some(rank) = rank_of(TEST, 60_000) {
        let own = rank.rank();
        // Even and odd ranks, the higher ones first.
        let half = rank.subgroup(own % 2, 10 - own).unwrap();
        assert_eq!((half.size(), half.rank()), (2, usize::from(own < 2)));
        assert_eq!(half.split(0, 0).unwrap().rank(), half.rank());
        assert_eq!(rank.split(own, 0).unwrap().size(), 1);
        let (world, half) = (Rank::new(rank), Rank { lane: Lane::Tensor, ..Rank::new(half) });
        for step in 0..10 {
            // Both are under way at a time, on lanes of their own.
            let one = world.launch(SUM, DType::F32, &(own as f32).to_ne_bytes()).unwrap();
            let both = [own, (own + 2) % 4].map(|rank| rank as f32);
            assert_eq!(half.sum(&[own as f32; 3000]).unwrap(), [both[0] + both[1]; 3000], "step {step}");
            world.rank.barrier().unwrap();
            assert_eq!(world.bytes(&one).unwrap(), 6f32.to_ne_bytes());
        }
        // Everybody sends to its neighbour first: no one could go on if a send waited. Four chunks fit between two.
        let (next, before) = ((own + 1) % 4, (own + 3) % 4);
        for salt in 0..4 {
            world.call(Op::Send(next), DType::U8, &values(DType::U8, 4096, own, salt)).unwrap();
        }
        world.rank.barrier().unwrap();
        for salt in 0..4 {
            let got = world.call(Op::Recv(before, 4096), DType::U8, &[]).unwrap();
            assert_eq!(got, values(DType::U8, 4096, before, salt));
        }
        // Much longer than what fits, and nothing at all.
        for len in [0, 50_001] {
            let (send, receive) = (Op::Send(own ^ 1), Op::Recv(own ^ 1, len));
            for op in if own % 2 == 0 { [send, receive] } else { [receive, send] } {
                let got = world.call(op, DType::U8, &values(DType::U8, len, own, 1)).unwrap();
                assert!(op == send || got == values(DType::U8, len, own ^ 1, 1));
            }
        }
        // Some leave while others still work.
        if own < 2 {
            drop(world);
            drop(half);
            return print!("\nprinted {own}: done\n");
        }
        std::thread::sleep(Duration::from_millis(300));
        let op = if own == 2 { Op::Send(3) } else { Op::Recv(2, 9) };
        world.call(op, DType::U8, &[1; 9]).unwrap();
        return print!("\nprinted {own}: done\n");
    }
    let Some(job) = mpirun(TEST, 4, &[]) else { return };
    assert_eq!((job.code, job.printed().len()), (Some(0), 4), "{}", job.text);
}

/// A job of three ranks that fails: each of these ranks printed all of these parts, and `mpirun` failed too, in time.
fn fails(test: &str, arguments: &[&str], ranks: &[usize], parts: &[&str]) {
    let Some(job) = mpirun(test, 3, arguments) else { return };
    for rank in ranks {
        let printed = job.printed().into_iter().find(|(by, _)| by == rank).map(|(_, printed)| printed);
        assert!(
            printed.is_some_and(|printed| parts.iter().all(|part| printed.contains(part))),
            "no {parts:?} in {}",
            job.text
        );
    }
    assert!(job.code.is_some_and(|code| code != 0), "{}", job.text);
    assert!(job.time < Duration::from_secs(20), "{:?}", job.time);
}

/// A program of three ranks that makes one call together, after which rank 1 does something else, and all make another.
fn with(test: &str, deadline: u64, other: impl FnOnce(&Rank<MpiRank>) -> (Op, usize)) -> bool {
    let Some(rank) = rank_of(test, deadline) else { return false };
    let rank = Rank::new(rank);
    first_call(&rank);
    let (op, elements) = if rank.rank.rank() == 1 { other(&rank) } else { (SUM, 8) };
    fail(rank, op, elements)
}

/// A first call of all ranks, and time for all of them to come out of it: news of a failure overtakes values.
fn first_call(rank: &Rank<MpiRank>) {
    rank.sum(&[1.0]).unwrap();
    std::thread::sleep(Duration::from_millis(200));
}

fn signal_oneself(signal: Signal) {
    kill_process(getpid(), signal).unwrap();
    // It may reach another thread first, and this one a moment later.
    std::thread::sleep(Duration::from_millis(500));
}

#[test]
fn another_size_on_one_rank_is_named_on_all() {
    const TEST: &str = "another_size_on_one_rank_is_named_on_all";
    if !with(TEST, 60_000, |_| (SUM, 9)) {
        let parts = [" #1 ", "called all_reduce of 8 x f32, Sum", "rank 1 called all_reduce of 9 x f32, Sum"];
        fails(TEST, &[], &[0, 1, 2], &parts);
    }
}

#[test]
fn another_operation_on_one_rank_is_named_on_all() {
    const TEST: &str = "another_operation_on_one_rank_is_named_on_all";
    // Long enough that values are on their way before the ranks know.
    if !with(TEST, 60_000, |_| (Op::Broadcast(1), 90_000)) {
        fails(TEST, &[], &[0, 1, 2], &["all_reduce of 8 x f32, Sum", "broadcast of 90000 x f32, root 1"]);
    }
}

#[test]
fn a_message_of_another_type_is_named_on_both_sides() {
    const TEST: &str = "a_message_of_another_type_is_named_on_both_sides";
    if let Some(rank) = rank_of(TEST, 60_000) {
        let rank = Rank::new(rank);
        match rank.rank.rank() {
            0 => {
                // The sender has gone on; it learns at its next call.
                rank.call(Op::Send(1), DType::I64, &[0; 64]).unwrap();
                fail(afresh(rank), SUM, 1)
            }
            1 => fail(rank, Op::Recv(0, 9), 0),
            _ => fail(rank, SUM, 1),
        }
    }
    fails(TEST, &[], &[0, 1, 2], &["rank 0 sent send of 8 x i64", "rank 1 called recv of 9 x f32"]);
}

#[test]
fn a_deadline_names_the_call_its_number_and_who_is_missing() {
    const TEST: &str = "a_deadline_names_the_call_its_number_and_who_is_missing";
    let sleeps = |_: &Rank<MpiRank>| {
        std::thread::sleep(Duration::from_millis(1900));
        (SUM, 8)
    };
    if !with(TEST, 1500, sleeps) {
        let nothing = "nothing from rank 1 (whose last call was number 0) for 1.5s";
        fails(TEST, &[], &[0, 1, 2], &["[1] all_reduce of 8 x f32, Sum #1 ", nothing]);
    }
}

#[test]
fn who_waits_for_a_missing_rank_is_not_missing_itself() {
    const TEST: &str = "who_waits_for_a_missing_rank_is_not_missing_itself";
    if let Some(rank) = rank_of(TEST, 2000) {
        let own = rank.rank();
        rank.barrier().unwrap();
        // Rank 0 waits for rank 1, rank 1 for rank 2 from a little later on, and rank 2 does nothing.
        std::thread::sleep(Duration::from_millis([0, 300, 2500][own]));
        fail(Rank::new(rank), Op::Recv((own + 1) % 3, 1), 0)
    }
    fails(TEST, &[], &[0, 1, 2], &["[2] ", "nothing from rank 2 for 2.0s"]);
}

#[test]
fn a_rank_that_gives_up_is_named_with_its_reason() {
    const TEST: &str = "a_rank_that_gives_up_is_named_with_its_reason";
    let gives_up = |rank: &Rank<MpiRank>| {
        rank.rank.abort("the loss is not a number");
        (SUM, 8)
    };
    if !with(TEST, 60_000, gives_up) {
        fails(TEST, &[], &[0, 1, 2], &["[1] ", "rank 1 gave up: the loss is not a number"]);
    }
}

#[test]
fn a_rank_that_panics_or_leaves_while_others_wait_is_named() {
    const TEST: &str = "a_rank_that_panics_or_leaves_while_others_wait_is_named";
    if let Some(rank) = rank_of(TEST, 60_000) {
        // The second half of the test gives the ranks an argument.
        let leaves = std::env::var("BMTRAIN_MPI_LEAVES").is_ok();
        let rank = Rank::new(rank);
        first_call(&rank);
        match rank.rank.rank() {
            1 if leaves => return,
            1 => panic!("on purpose"),
            _ => fail(rank, SUM, 8),
        }
    }
    fails(TEST, &[], &[0, 2], &["[1] exit code 1", "its thread panicked"]);
    fails(TEST, &["-x", "BMTRAIN_MPI_LEAVES=1"], &[0, 2], &["[1] ", "rank 1 has left the group"]);
}

#[test]
fn a_killed_process_is_named_at_once_and_the_job_ends() {
    const TEST: &str = "a_killed_process_is_named_at_once_and_the_job_ends";
    let killed = |_: &Rank<MpiRank>| {
        signal_oneself(Signal::KILL);
        (SUM, 8)
    };
    if !with(TEST, 60_000, killed) {
        fails(TEST, &[], &[0, 2], &["[1] ", "the process of rank 1 has ended"]);
    }
}

#[test]
fn a_stopped_process_is_named_at_the_deadline_and_the_job_ends() {
    const TEST: &str = "a_stopped_process_is_named_at_the_deadline_and_the_job_ends";
    let stopped = |_: &Rank<MpiRank>| {
        signal_oneself(Signal::STOP);
        (SUM, 8)
    };
    if !with(TEST, 2000, stopped) {
        let parts = ["[1] ", "nothing from rank 1 ", "whose process does not answer, for 2.0s"];
        fails(TEST, &[], &[0, 2], &parts);
    }
}
