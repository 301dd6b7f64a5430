//! The finetune program on ranks of MPI: what becomes of the bits, and who is told when one rank fails.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fixture;

use fixture::{Fixture, Outcome, program};
use model_center::run::deterministic_part;
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

const SETS: [&str; 5] =
    ["train.gradient_sum=elastic", "train.micro_batch_size=1", "train.steps=4", "eval.batch_size=3", "parallel.zero=3"];

/// The launcher of two ranks. Each job has a session directory of its own: two that begin at once would both make the
/// one of this host and user, and one of them would fail.
fn mpirun(fixture: &Fixture) -> Vec<String> {
    let sessions = fixture.path("").display().to_string();
    ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "orte_tmpdir_base", &sessions, "-n", "2"]
        .map(str::to_owned)
        .into()
}

/// Runs on two ranks with a launcher's arguments before the program; nothing where there is no `mpirun`.
fn train(fixture: &Fixture, before: &[&str], arguments: &[&str]) -> Option<Outcome> {
    let launcher = mpirun(fixture);
    let launcher: Vec<&str> = launcher.iter().map(String::as_str).chain(before.iter().copied()).collect();
    let outcome = fixture.finetune_under(&launcher, &[&SETS[..], arguments].concat());
    if outcome.is_none() {
        skipped();
    }
    outcome
}

/// Reports the skip past the test harness, which hides what passing tests print.
fn skipped() {
    std::io::stderr().write_all(b"\nSKIPPED tests of MPI: there is no mpirun\n").unwrap();
}

/// Weights and all of the log that does not depend on clock and machine.
fn result(fixture: &Fixture, dir: &str) -> (Vec<u8>, String) {
    let log = fixture.read(&format!("{dir}/metrics.jsonl"));
    (
        fixture.bytes(&format!("{dir}/model/model.safetensors")),
        log.lines().map(|line| deterministic_part(line) + "\n").collect(),
    )
}

#[test]
fn ranks_of_mpi_give_the_bytes_of_one_rank() {
    let fixture = Fixture::new();
    fixture.finetune(&[&SETS[..], &["output.dir=alone"]].concat()).succeeded();
    let Some(asked) = train(&fixture, &[], &["output.dir=asked", "--comm", "mpi"]) else { return };
    asked.succeeded();
    // Each rank is told that it is the only one of its host, so that MPI is what fits.
    let hosts = ["env", "OMPI_COMM_WORLD_LOCAL_SIZE=1", "OMPI_COMM_WORLD_LOCAL_RANK=0"];
    train(&fixture, &hosts, &["output.dir=fits"]).unwrap().succeeded();
    train(&fixture, &[], &["output.dir=shared"]).unwrap().succeeded();
    let alone = result(&fixture, "alone");
    for dir in ["asked", "fits", "shared"] {
        assert!(result(&fixture, dir) == alone, "{dir} differs from one rank");
    }
}

#[test]
fn tensor_parallel_ranks_of_mpi_give_the_bytes_of_threads() {
    let fixture = Fixture::new();
    for sequence in ["parallel.sequence=false", "parallel.sequence=true"] {
        let layout = ["parallel.tensor=2", sequence];
        let threads = [&["--ranks", "2", "output.dir=threads"], &SETS[..], &layout].concat();
        fixture.finetune(&threads).succeeded();
        let Some(mpi) = train(&fixture, &[], &[&layout[..], &["output.dir=mpi", "--comm", "mpi"]].concat()) else {
            return;
        };
        mpi.succeeded();
        assert!(result(&fixture, "mpi") == result(&fixture, "threads"), "{sequence}");
        for dir in ["threads", "mpi"] {
            std::fs::remove_dir_all(fixture.path(dir)).unwrap();
        }
    }
}

#[test]
fn communication_between_mpi_ranks_is_measured() {
    let fixture = Fixture::new();
    let bench = [program("bench"), "collectives", "--comm", "mpi", "--size", "64KiB", "--repeat", "3"];
    let launcher = mpirun(&fixture);
    let mut command = Command::new(&launcher[0]);
    let Ok(output) = command.args(&launcher[1..]).args(bench).current_dir(fixture.path("")).output() else { return };
    let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{error}");
    assert!(text.starts_with("2 processes of MPI, ") && text.lines().count() == 8, "{text}");
}

#[test]
fn ranks_that_cannot_continue_end_with_a_message_and_a_status() {
    let fixture = Fixture::new();
    // The weights turn out to be damaged when every rank reads them.
    let mut bytes = fixture.bytes("model/model.safetensors");
    bytes.truncate(bytes.len() - 1000);
    fixture.write_bytes("model/model.safetensors", &bytes);
    let Some(outcome) = train(&fixture, &[], &["--comm", "mpi"]) else { return };
    assert_ne!(outcome.code, 0, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("error[") && outcome.stderr.contains("model.safetensors"), "{}", outcome.stderr);
    assert!(!fixture.path("run").join("model").exists());
}

#[test]
fn a_rank_of_mpi_that_fails_by_itself_gives_the_job_its_exit_code() {
    let fixture = Fixture::new();
    let bytes = fixture.bytes("model/model.safetensors");
    for file in ["config.json", "vocab.txt"] {
        fixture.write_bytes(&format!("damaged/{file}"), &fixture.bytes(&format!("model/{file}")));
    }
    fixture.write_bytes("damaged/model.safetensors", &bytes[..bytes.len() - 1000]);
    // A mistake in the recipe, before the ranks come together, and weights that turn out to be damaged after that.
    for (set, code) in [("train.lr=fast", 2), ("model.path=damaged", 3)] {
        let script = format!("[ $OMPI_COMM_WORLD_RANK = 0 ] || set -- \"$@\" {set}; exec \"$0\" \"$@\"");
        let begin = Instant::now();
        let Some(outcome) = train(&fixture, &["sh", "-c", &script], &["--comm", "mpi"]) else { return };
        assert_eq!(outcome.code, code, "{set}: {}", outcome.stderr);
        assert!(begin.elapsed() < Duration::from_secs(15), "{set}: {:?}", begin.elapsed());
    }
}

#[test]
fn mpi_without_its_launcher_is_refused_with_a_fix() {
    let fixture = Fixture::new();
    let outcome = fixture.finetune(&["--comm", "mpi", "--ranks", "2", "train.micro_batch_size=2"]);
    assert_eq!(outcome.code, 2, "{}", outcome.stderr);
    for part in ["error[launch]: --ranks does not start processes of MPI\n", "fix: start the program with mpirun\n"] {
        assert!(outcome.stderr.contains(part), "{}", outcome.stderr);
    }
}
