//! Log-probabilities of the reference model: kept, computed again, read in another directory.

use super::{BETA, fixture, pair};
use crate::fixture::{Fixture, Outcome, into_outcome};
use crate::tensor::{SHORT, course, records};
use bmtrain_dist::checkpoint::ContentHash;
use std::time::{Duration, Instant};

#[test]
fn a_damaged_reference_is_computed_again_and_one_of_other_samples_is_refused() {
    let fixture = fixture();
    let sets = ["checkpoint.every=2 steps", "train.steps=12"];
    let stop = |steps: &str| run_with(&fixture, "run", &["--exit-after-steps", steps], &sets);
    assert_eq!(stop("1").code, 75);
    let reference = fixture.read("run/reference.txt");
    let lines: Vec<&str> = reference.lines().collect();
    assert_eq!(lines.len(), 1 + 2 + 16 + 6);
    let [swapped, other] = [[3, 2], [1, 1]].map(|[a, b]| {
        let mut lines = lines.clone();
        if a == b {
            lines[a] = "samples 00"
        } else {
            lines.swap(a, b)
        }
        lines.join("\n")
    });
    let hashed = |text: String| {
        let (_, body) = text.split_once('\n').unwrap();
        format!("blake3 {}\n{body}", ContentHash::of(body.as_bytes()))
    };
    // A digit, an order, a number that is none, an end, the hash itself: computed again, with the same bits.
    let (_, unhashed) = reference.split_once('\n').unwrap();
    for (damaged, what) in [
        (reference.replacen("\n-", "\n-9", 3), "its hash differs"),
        (swapped, "its hash differs"),
        (hashed(reference.replacen("\n-", "\nNaN -", 2)), "a line is not two finite numbers"),
        (lines[..20].join("\n"), "its hash differs"),
        (unhashed.to_owned(), "it has no hash"),
    ] {
        fixture.write("run/reference.txt", &damaged);
        let again = stop("1");
        assert_eq!(again.code, 75, "{}", again.stderr);
        assert!(again.stderr.contains(&format!("run/reference.txt is damaged: {what}")), "{}", again.stderr);
        assert_eq!(fixture.read("run/reference.txt"), reference, "{what}");
    }
    fixture.write("run/reference.txt", &hashed(other));
    let error = run_with(&fixture, "run", &[], &sets).refused();
    assert!(error.contains("it is not of the samples of this run"), "{error}");
    // Without the file it is what the model, as training begins, gives again; another model is not taken for it.
    std::fs::remove_file(fixture.path("run/reference.txt")).unwrap();
    let weights = fixture.bytes("model/model.safetensors");
    fixture.set_value("model/model.safetensors", "transformer.wte.weight", 5, 0.5);
    let error = run_with(&fixture, "run", &[], &sets).refused();
    assert!(error.contains("model/model.safetensors") && error.contains("BLAKE3"), "{error}");
    fixture.write_bytes("model/model.safetensors", &weights);
    run_with(&fixture, "run", &[], &sets).succeeded();
    assert_eq!(fixture.read("run/reference.txt"), reference);
}

/// Arguments of a run: its settings, and these.
fn arguments_with(dir: &str, arguments: &[&str], sets: &[&str]) -> Vec<String> {
    let out = format!("output.dir={dir}");
    let sets = SHORT.iter().chain([&BETA]).chain(sets).copied().chain([out.as_str()]).flat_map(|set| ["--set", set]);
    arguments.iter().copied().chain(sets).map(str::to_owned).collect()
}

fn run_with(fixture: &Fixture, dir: &str, arguments: &[&str], sets: &[&str]) -> Outcome {
    let arguments = arguments_with(dir, arguments, sets);
    fixture.finetune(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The same, asked to stop as soon as it has a directory.
fn run_stopped(fixture: &Fixture, dir: &str, arguments: &[&str], sets: &[&str]) -> Outcome {
    let arguments = arguments_with(dir, arguments, sets);
    let child = fixture.start_finetune(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let begin = Instant::now();
    while !fixture.path(dir).join(model_center::run::MARKER).exists() {
        assert!(begin.elapsed() < Duration::from_secs(60), "the run does not begin");
        std::thread::sleep(Duration::from_millis(1));
    }
    fixture.write(&format!("{dir}/stop"), "");
    into_outcome(child.wait_with_output().unwrap())
}

#[test]
fn a_run_that_stops_before_its_reference_is_known_resumes_with_the_same_bits() {
    let fixture = fixture();
    // Enough pairs for their log-probabilities to take a while.
    fixture.write("train.jsonl", &(0..4000).map(|at| format!("{}\n", pair(at))).collect::<String>());
    for (name, sets) in [
        ("full", &["checkpoint.every=2 steps", "log.every=1"][..]),
        ("lora", &["checkpoint.every=2 steps", "log.every=1", "adapter.method=lora", "adapter.rank=2"]),
    ] {
        let [first, whole, cut] = ["first", "whole", "cut"].map(|part| format!("{name}_{part}"));
        run_with(&fixture, &first, &[], sets).succeeded();
        run_with(&fixture, &whole, &["--init-from", &first], sets).succeeded();
        let stopped = run_stopped(&fixture, &cut, &["--init-from", &first], sets);
        assert!(stopped.code == 75 && stopped.stdout.contains("stopped after step 0"), "{}", stopped.stderr);
        assert!(!fixture.path(&format!("{cut}/reference.txt")).exists());
        // The checkpoint has the weights, and knows that they are not the model's own.
        let again = run_with(&fixture, &cut, &[], sets).succeeded();
        assert!(again.stderr.contains("cut/reference.txt is missing"), "{}", again.stderr);
        assert_eq!(course(&fixture, &cut), course(&fixture, &whole), "{name}");
        let [expected, found] = [&whole, &cut].map(|dir| fixture.read(&format!("{dir}/reference.txt")));
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn a_reference_of_another_directory_is_read_there_or_missed() {
    let (fixture, sets) = (fixture(), ["checkpoint.every=2 steps", "log.every=1"]);
    run_with(&fixture, "first", &[], &sets).succeeded();
    let begun = run_with(&fixture, "begun", &["--init-from", "first", "--exit-after-steps", "2"], &sets);
    assert_eq!(begun.code, 75, "{}", begun.stderr);
    let own = run_with(&fixture, "own", &["--resume", "begun"], &sets).succeeded();
    let note = "log-probabilities of the reference model from begun/reference.txt";
    assert!(own.stderr.contains(note), "{}", own.stderr);
    assert_eq!(fixture.read("own/reference.txt"), fixture.read("begun/reference.txt"));
    run_with(&fixture, "begun", &["--init-from", "first"], &sets).succeeded();
    assert_eq!(records(&fixture, "own", "step").last().unwrap()["loss"], records(&fixture, "begun", "step")[5]["loss"]);
    std::fs::remove_file(fixture.path("begun/reference.txt")).unwrap();
    let error = run_with(&fixture, "again", &["--resume", "begun@4"], &sets).refused();
    assert!(error.contains("the file is missing, and the run began with the weights of another one"), "{error}");
    // Of a run that began with the model's own weights it is computed again, and a line states that.
    std::fs::remove_file(fixture.path("first/reference.txt")).unwrap();
    let again = run_with(&fixture, "again", &["--resume", "first@4"], &sets).succeeded();
    assert!(again.stderr.contains("first/reference.txt is missing"), "{}", again.stderr);
}
