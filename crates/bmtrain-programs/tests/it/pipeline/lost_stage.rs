//! A stage that is killed while its step runs: the ranks of all other stages end with one error that names it.

use super::RUN;
use super::models::LLAMA;
use crate::fixture::into_outcome;
use std::time::{Duration, Instant};

/// Far below the time that ranks wait for silent ones without a sign of their end.
const MAX_TIME: Duration = Duration::from_secs(60);

#[test]
fn a_killed_stage_ends_the_others_with_its_name() {
    let fixture = LLAMA.fixture();
    let layout = ["parallel.pipeline=4", "train.steps=1000000"];
    // The first, an inner and the last stage.
    for victim in [0, 2, 3] {
        let port = (30_000 + (std::process::id() as usize * 8 + victim) % 20_000).to_string();
        let dir = format!("output.dir=victim{victim}");
        let sets: Vec<&str> = RUN.iter().chain(&layout).copied().chain([dir.as_str()]).collect();
        let arguments = |_| sets.iter().flat_map(|set| ["--set", set]).map(str::to_owned).collect();
        let mut children = fixture.start_processes(4, &port, &arguments);
        let log = fixture.path(&format!("victim{victim}/metrics.jsonl"));
        let begin = Instant::now();
        let has_stepped = || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("\"step\":1,"));
        while !has_stepped() {
            assert!(begin.elapsed() < MAX_TIME, "no step");
            std::thread::sleep(Duration::from_millis(2));
        }
        // Steps follow each other without a pause: the stage is in one.
        children[victim].kill().unwrap();
        let begin = Instant::now();
        for (rank, child) in children.into_iter().enumerate() {
            let outcome = into_outcome(child.wait_with_output().unwrap());
            if rank == victim {
                assert_eq!(outcome.code, -1, "{}", outcome.stderr);
                continue;
            }
            assert_eq!(outcome.code, 6, "rank {rank}: {}", outcome.stderr);
            assert_eq!(outcome.stderr.matches("error[").count(), 1, "rank {rank}: {}", outcome.stderr);
            assert!(outcome.stderr.contains(&format!("rank {victim}")), "rank {rank}: {}", outcome.stderr);
        }
        assert!(begin.elapsed() < MAX_TIME, "{:?}", begin.elapsed());
    }
}
