//! Starts and ranks that fail on one of two hosts.

use super::{ALONE, MAX_TIME, SETS, ends, libraries, start, start_program, two_hosts};
use crate::fixture::{Fixture, program};
use std::process::Child;
use std::time::{Duration, Instant};

#[test]
fn a_rank_that_is_killed_on_another_host_is_named_with_its_host_on_every_rank() {
    let test = "a_rank_that_is_killed_on_another_host_is_named_with_its_host_on_every_rank";
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (Some(libraries), Some(hosts)) = (libraries(test), two_hosts(test)) else { return };
    let fixture = Fixture::new();
    let arguments: Vec<&str> =
        SETS.into_iter().map(|set| if set == "train.steps=2" { "train.steps=100000" } else { set }).collect();
    let mut ranks: Vec<Child> = (0..4).map(|rank| start(&fixture, libraries, &hosts, rank, &arguments)).collect();
    let begin = Instant::now();
    while !fixture.path("run/metrics.jsonl").exists() {
        assert!(begin.elapsed() < MAX_TIME && ranks.iter_mut().all(|rank| rank.try_wait().unwrap().is_none()));
        std::thread::sleep(Duration::from_millis(50));
    }
    let begin = Instant::now();
    ranks[3].kill().unwrap();
    let ended = ends(ranks);
    // Within seconds, not at a deadline.
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    for outcome in &ended[..3] {
        assert_eq!(outcome.code, 6, "{}", outcome.stderr);
        assert!(outcome.stderr.contains("the process of rank 3 on node-b has ended"), "{}", outcome.stderr);
    }
}

#[test]
fn starts_on_two_hosts_that_cannot_succeed_end_on_all_ranks_with_the_reason() {
    let test = "starts_on_two_hosts_that_cannot_succeed_end_on_all_ranks_with_the_reason";
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (Some(libraries), Some(hosts)) = (libraries(test), two_hosts(test)) else { return };
    let fixture = Fixture::new();
    fixture.write("broken.jsonl", "{");
    let cases: [(&str, &[&str], i32, &str); 3] = [
        ("one rank's data", &["data.train=broken.jsonl"], 3, "the last line is cut off"),
        ("one rank's command line", &["--no-such-option"], 2, "unexpected argument '--no-such-option'"),
        ("processors", &["--device", "cpu"], 2, "the ranks compute on processors"),
    ];
    for (what, arguments, code, reason) in cases {
        let of = |rank: usize| {
            let wrong = rank == 2 || what == "processors";
            let arguments = if wrong { [&SETS[2..], arguments].concat() } else { SETS.to_vec() };
            start(&fixture, libraries, &hosts, rank, &arguments)
        };
        let begin = Instant::now();
        let ended = ends((0..4).map(of).collect());
        assert!(begin.elapsed() < Duration::from_secs(40), "{what}: {:?}", begin.elapsed());
        for outcome in ended {
            assert_eq!(outcome.code, code, "{what}: {}", outcome.stderr);
            assert!(outcome.stderr.contains(reason), "{what}: {}", outcome.stderr);
        }
    }
}

/// A wrong token, a peer of another run, another recipe: named on all ranks, those that were not wrong included.
#[test]
fn a_rank_that_does_not_belong_to_the_run_is_named_on_all_ranks_within_the_deadline() {
    let test = "a_rank_that_does_not_belong_to_the_run_is_named_on_all_ranks_within_the_deadline";
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (Some(libraries), Some(hosts)) = (libraries(test), two_hosts(test)) else { return };
    let fixture = Fixture::new();
    // Ordinarily the ranks wait 30 seconds for one that was refused.
    const PATIENCE: &str = "BMTRAIN_TEST_PATIENCE=3";
    let token = ["env", "BMTRAIN_TOKEN=another"];
    let run = ["env", "TORCHELASTIC_RUN_ID=an-earlier-run"];
    let recipe = ["env"];
    let refused = "rank 3 on node-b was refused, because the token differs";
    let differs = "error[recipe]: it has other settings than rank 0\n  --> rank 3\n";
    let cases = [
        (&token[..], &[][..], 6, refused, "the token differs"),
        (&run, &[], 6, refused, "the token differs"),
        (&recipe, &["train.lr=0.5"], 2, differs, differs),
        // Another layout, which divides the ranks into other groups.
        (&recipe, &["parallel.tensor=2"], 2, differs, differs),
    ];
    for (variables, settings, code, reason, own) in cases {
        let of = |rank: usize| {
            let finetune = [program("finetune"), "--recipe", "recipe.toml"];
            let (before, after): (&[&str], &[&str]) = if rank == 3 { (variables, settings) } else { (&["env"], &[]) };
            let program = [before, &[PATIENCE], &finetune, &SETS, after].concat();
            start_program(&fixture, libraries, &hosts, rank, &program)
        };
        let begin = Instant::now();
        let ended = ends((0..4).map(of).collect());
        // Nothing waits for the deadline of the rendezvous.
        assert!(begin.elapsed() < Duration::from_secs(60), "{variables:?}: {:?}", begin.elapsed());
        for (rank, outcome) in ended.iter().enumerate() {
            let reason = if rank == 3 { own } else { reason };
            assert_eq!(outcome.code, code, "{variables:?}: {}", outcome.stderr);
            assert!(outcome.stderr.contains(reason), "{variables:?}, rank {rank}: {}", outcome.stderr);
        }
        for host in &hosts {
            assert!(!host.is_able_to(&["sh", "-c", "ls /dev/shm | grep -q ."]), "shared memory is left");
        }
    }
}
