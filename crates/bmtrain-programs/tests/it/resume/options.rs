//! What a resumed run takes of its checkpoint: optimizer state and schedule; and a run that ends at a time of day.

use super::{Fixture, checkpoints, result, train, without_overtaken};
use crate::fixture::program;
use serde_json::Value;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn records(fixture: &Fixture, dir: &str, kind: &str) -> Vec<Value> {
    let log = fixture.read(&format!("{dir}/metrics.jsonl"));
    let lines = if kind == "resume" { log.lines().collect() } else { without_overtaken(&log) };
    let records = lines.into_iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
    records.filter(|record| record["kind"] == kind).collect()
}

/// Bytes of the tensors of the newest checkpoint.
fn bytes(fixture: &Fixture, dir: &str) -> u64 {
    let step = |name: &String| name.split('-').nth(1).unwrap().parse::<u64>().unwrap();
    let newest = checkpoints(fixture, dir).into_iter().max_by_key(step).unwrap();
    let entries = std::fs::read_dir(fixture.path(dir).join("checkpoints").join(newest)).unwrap();
    let files =
        entries.map(Result::unwrap).filter(|entry| entry.path().extension().is_some_and(|e| e == "safetensors"));
    files.map(|entry| entry.metadata().unwrap().len()).sum()
}

#[test]
fn without_optimizer_state_a_checkpoint_is_smaller_and_resumed_on_request_alone() {
    let fixture = Fixture::new();
    let lean = ["checkpoint.optimizer_state=false"];
    let stopped = train(&fixture, "lean", &["--exit-after-steps", "5"], &lean);
    assert_eq!(stopped.code, 75, "{}", stopped.stderr);
    let text = "stopped after step 5; the same command with --fresh-optimizer goes on from there";
    assert!(stopped.stdout.contains(text), "{}", stopped.stdout);
    assert_eq!(train(&fixture, "complete", &["--exit-after-steps", "5"], &[]).code, 75);
    assert!(5 * bytes(&fixture, "lean") < 2 * bytes(&fixture, "complete"));
    // The default is the exact resume, which the checkpoint does not allow.
    let refused = train(&fixture, "lean", &[], &lean).refused();
    for part in ["it was saved without optimizer state", "checkpoints/step-5-", "add --fresh-optimizer"] {
        assert!(refused.contains(part), "{refused}");
    }
    // Both go on to the same weights: with the schedule and the samples of the checkpoint, without its moments.
    for (dir, sets, why) in [("lean", &lean[..], "the checkpoint has none"), ("complete", &[], "--fresh-optimizer")] {
        let resumed = train(&fixture, dir, &["--fresh-optimizer"], sets).succeeded();
        let line = format!("the optimizer begins with fresh state: {why}\n");
        assert_eq!(resumed.stderr.matches(&line).count(), 1, "{}", resumed.stderr);
        assert_eq!(records(&fixture, dir, "resume")[0]["fresh_optimizer"], true);
    }
    train(&fixture, "whole", &[], &[]).succeeded();
    let [lean, complete] = ["lean", "complete"].map(|dir| result(&fixture, dir));
    assert!(lean.0 == complete.0, "the moments of the complete checkpoint counted");
    let losses = |dir: &str| records(&fixture, dir, "step").iter().map(|step| step["loss"].clone()).collect::<Vec<_>>();
    assert!(losses("lean") == losses("complete") && losses("lean") != losses("whole"), "{:?}", losses("lean"));
    for key in ["lr", "batch", "samples"] {
        let of = |dir: &str| records(&fixture, dir, "step").iter().map(|step| step[key].clone()).collect::<Vec<_>>();
        assert_eq!(of("lean"), of("whole"), "{key}");
    }
    // Its last checkpoint is a model all the same.
    fixture.run(program("ckpt"), &["verify", "lean"]).succeeded();
    fixture.run(program("ckpt"), &["export", "lean", "exported"]).succeeded();
}

/// The learning rates of all steps.
fn rates(fixture: &Fixture, dir: &str) -> Vec<f64> {
    records(fixture, dir, "step").iter().map(|step| step["lr"].as_f64().unwrap()).collect()
}

#[test]
fn another_schedule_is_refused_replaced_or_kept_out_by_the_checkpoints() {
    let fixture = Fixture::new();
    assert_eq!(train(&fixture, "begun", &["--exit-after-steps", "4"], &["train.lr=1e-3"]).code, 75);
    let other = ["train.lr=5e-4", "train.steps=10"];
    let from = |flags: &[&str], dir: &str, sets: &[&str]| {
        train(&fixture, dir, &[&["--resume", "begun"], flags].concat(), sets)
    };
    let refused = from(&[], "run", &other).refused();
    assert!(refused.contains("the checkpoint was saved by a run of another recipe"), "{refused}");
    let both = train(&fixture, "begun", &["--keep-schedule", "--accept-change"], &other).refused();
    assert!(both.contains("cannot be used with"), "{both}");
    // More than the schedule: in the directory of the run by name, from elsewhere by hash.
    let more = [&other[..], &["train.weight_decay=0.02"]].concat();
    let refused = train(&fixture, "begun", &["--keep-schedule"], &more).refused();
    assert!(refused.contains("other settings differ: train.weight_decay: 0.01 -> 0.02"), "{refused}");
    let refused = from(&["--keep-schedule"], "run", &more).refused();
    assert!(refused.contains("differs in more than schedule and length"), "{refused}");

    let linear = |lr: f64, end: f64, steps: std::ops::Range<u64>| {
        steps.map(|n| (lr * (end - n as f64) / end).max(0.0)).collect::<Vec<_>>()
    };
    let replaced = from(&["--accept-change"], "replaced", &other).succeeded();
    assert!(!replaced.stderr.contains("stays in force"), "{}", replaced.stderr);
    assert_eq!(rates(&fixture, "replaced"), linear(5e-4, 10.0, 4..10));
    let kept = train(&fixture, "begun", &["--keep-schedule", "--exit-after-steps", "2"], &other);
    assert_eq!(kept.code, 75, "{}", kept.stderr);
    let line = "the checkpoint's schedule stays in force: linear from 1e-3 over 8 steps, 0 of warm-up\n";
    assert_eq!(kept.stderr.matches(line).count(), 1, "{}", kept.stderr);
    // From now on the recipe is the run's, and its schedule is not: it neither jumps nor needs another decision made
    // again in silence.
    let refused = train(&fixture, "begun", &[], &other).refused();
    let reason = "the run follows a schedule that was kept, linear from 1e-3 over 8 steps, 0 of warm-up, and the \
                  recipe has another, linear from 5e-4 over 10 steps";
    assert!(refused.contains(reason) && refused.contains("add --keep-schedule to follow it further"), "{refused}");
    train(&fixture, "begun", &["--keep-schedule"], &other).succeeded();
    assert_eq!(rates(&fixture, "begun"), linear(1e-3, 8.0, 0..10));
    let resumed = records(&fixture, "begun", "resume");
    assert!(resumed.len() == 2 && resumed.iter().all(|record| record["kept_schedule"] == true), "{resumed:?}");
    assert!(resumed[0]["changed"].as_str().unwrap().contains("train.lr: 0.001 -> 0.0005"), "{resumed:?}");
    assert_eq!(resumed[1]["changed"], "");
    // Where nothing differs the option changes nothing.
    train(&fixture, "whole", &[], &[]).succeeded();
    assert_eq!(train(&fixture, "same", &["--exit-after-steps", "3"], &[]).code, 75);
    let same = train(&fixture, "same", &["--keep-schedule"], &[]).succeeded();
    assert!(!same.stderr.contains("stays in force"), "{}", same.stderr);
    assert!(result(&fixture, "same") == result(&fixture, "whole"));
}

/// A time in UTC as ISO 8601 writes it, by the days of the years since 1970.
fn iso(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap().as_secs();
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut days, mut year, mut month) = (seconds / 86400, 1970, 0);
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year}-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", month + 1, days + 1)
}

#[test]
fn a_run_ends_at_a_time_of_day_with_a_checkpoint() {
    assert_eq!(iso(UNIX_EPOCH + Duration::from_secs(1_709_210_096)), "2024-02-29T12:34:56Z");
    let fixture = Fixture::new();
    for (time, reason) in [
        ("2001-01-01T00:00:00Z", "2001-01-01T00:00:00Z has passed: give a later time"),
        ("2101-01-01T00:00:00", "is not a time with an offset"),
        ("25:00", "is not a time with an offset"),
        ("\u{1b}[2Jsoon", "HH:MM"),
    ] {
        let refused = train(&fixture, "run", &["--exit-at", time], &[]).refused();
        assert!(refused.contains(reason), "{refused}");
    }
    assert!(!fixture.path("run").exists());
    let sets = ["train.steps=1000000", "checkpoint.every=never", "eval.every=end"];
    let begin = SystemTime::now();
    let until = begin + Duration::from_secs(6);
    let stopped = train(&fixture, "run", &["--ranks", "2", "--exit-at", &iso(until)], &sets);
    assert_eq!(stopped.code, 75, "{}", stopped.stderr);
    // In whole seconds.
    assert!(begin.elapsed().unwrap() >= Duration::from_secs(5));
    assert!(
        stopped.stdout.contains("the same command with a later --exit-at goes on from there"),
        "{}",
        stopped.stdout
    );
    assert_eq!(checkpoints(&fixture, "run").len(), 1);
    let refused = train(&fixture, "run", &["--exit-at", &iso(until)], &sets).refused();
    assert!(refused.contains("has passed"), "{refused}");
    // A time that does not come: another limit is reached before.
    let later = iso(SystemTime::now() + Duration::from_secs(1000));
    let again = train(&fixture, "run", &["--exit-at", &later, "--exit-after-steps", "1"], &sets);
    assert!(again.code == 75 && again.stdout.contains("the same command goes on from there"), "{}", again.stderr);
}
