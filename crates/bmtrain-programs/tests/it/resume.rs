//! The finetune program cut off and started again by the same command: nothing that a run comes to may show it.

mod beside;
mod best;
mod changes;
mod options;
use crate::fixture;

use bmtrain_core::cpu::InstructionSet;
use fixture::{Fixture, Outcome, into_outcome};
use model_center::run::{deterministic_part, without_overtaken};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Two epochs of four steps with two micro-batches each, saved after every second step.
const SETS: [&str; 6] = [
    "train.gradient_sum=elastic",
    "train.micro_batch_size=2",
    "train.steps=8",
    "eval.every=3 steps",
    "checkpoint.every=2 steps",
    "eval.batch_size=3",
];

/// Settings of `sets` precede [`SETS`].
fn arguments(dir: &str, further: &[&str], sets: &[&str]) -> Vec<String> {
    let (dir, key) = (format!("output.dir={dir}"), |set: &str| set.split('=').next().map(str::to_owned));
    let others = SETS.iter().filter(|set| sets.iter().all(|other| key(set) != key(other)));
    let sets = others.chain(sets).copied().chain([dir.as_str()]).flat_map(|set| ["--set", set]);
    further.iter().copied().chain(sets).map(str::to_owned).collect()
}

fn train(fixture: &Fixture, dir: &str, further: &[&str], sets: &[&str]) -> Outcome {
    let arguments = arguments(dir, further, sets);
    fixture.finetune(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

fn start(fixture: &Fixture, dir: &str, further: &[&str], sets: &[&str]) -> Child {
    let arguments = arguments(dir, further, sets);
    fixture.start_finetune(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Weights, and all of the log that does not depend on clock, machine and interruptions.
fn result(fixture: &Fixture, dir: &str) -> (Vec<u8>, Vec<String>) {
    let log = fixture.read(&format!("{dir}/metrics.jsonl"));
    let log: Vec<String> = without_overtaken(&log).into_iter().map(deterministic_part).collect();
    assert!(log.last().unwrap().contains("\"optimizer\":"), "{log:?}");
    (fixture.bytes(&format!("{dir}/model/model.safetensors")), log)
}

fn checkpoints(fixture: &Fixture, dir: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(fixture.path(dir).join("checkpoints")) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

fn wait_for(what: &str, is_there: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_there() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what} did not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs until a step has been made, then until `end`, again and again until it is done. The times it was started.
fn until_done(mut run: impl FnMut() -> Outcome) -> usize {
    for times in 1..100 {
        let outcome = run();
        match outcome.code {
            0 => return times,
            // Killed, or asked to stop.
            -1 | 75 | 6 => {}
            _ => panic!("{}", outcome.stderr),
        }
    }
    panic!("no end in sight");
}

#[test]
fn a_run_that_dies_at_any_place_of_a_save_continues_with_the_same_bits() {
    let fixture = Fixture::new();
    train(&fixture, "whole", &[], &[]).succeeded();
    let whole = result(&fixture, "whole");
    let points = [
        "save.before_directory=kill@2",
        "save.mid_shard=kill@2",
        "save.after_shard=kill@3",
        "save.mid_manifest=kill@1",
        "save.before_rename=kill@2",
        "save.after_rename=kill@2",
        "save.after_commit=kill@3",
        "prune.before_rename=kill@1",
        "prune.after_rename=kill@1",
        "prune.mid=kill@1",
    ];
    for (number, point) in points.into_iter().enumerate() {
        let dir = format!("died{number}");
        let died = train(&fixture, &dir, &["--fail-points", point], &[]);
        assert_eq!(died.code, -1, "{point}: {}", died.stderr);
        let before = checkpoints(&fixture, &dir)
            .iter()
            .filter(|name| name.starts_with("step-") && !name.contains(".tmp"))
            .count();
        let again = train(&fixture, &dir, &[], &[]).succeeded();
        assert!(result(&fixture, &dir) == whole, "{point}: other bits");
        assert!(before == 0 || again.stderr.contains("going on after step"), "{point}: {}", again.stderr);
        // Complete checkpoints, up to the number that is kept, and nothing else.
        let left = checkpoints(&fixture, &dir);
        assert!(left.len() == 2 && left.iter().all(|name| !name.contains("tmp")), "{point}: {left:?}");
    }
}

#[test]
fn a_run_that_is_killed_at_random_continues_with_the_same_bits_in_every_number_type() {
    for (number, dtype) in ["f32", "bf16", "f16"].into_iter().enumerate() {
        let fixture = Fixture::new();
        let dtype = format!("model.dtype={dtype}");
        // Long enough to be hit; the first scales of f16 overflow, so steps are skipped.
        let sets = [dtype.as_str(), "train.steps=40", "checkpoint.every=3 steps", "eval.every=end", "save.dtype=f32"];
        let begin = Instant::now();
        train(&fixture, "whole", &[], &sets).succeeded();
        let duration = begin.elapsed();
        let mut kills = 0;
        until_done(|| {
            let mut child = start(&fixture, "run", &[], &sets);
            if kills < 4 {
                // Every fifth of the time it takes, so that some fall on the beginning and some on the end.
                std::thread::sleep(duration * (3 + 2 * kills + number as u32) / 14);
                kills += 1;
                child.kill().unwrap();
            }
            into_outcome(child.wait_with_output().unwrap())
        });
        assert!(result(&fixture, "run") == result(&fixture, "whole"), "{dtype}: other bits");
    }
}

#[test]
fn signals_and_a_file_save_and_stop_and_the_same_command_continues() {
    let fixture = Fixture::new();
    // Saved on request alone.
    let sets = ["train.steps=400", "checkpoint.every=never", "eval.every=100 steps"];
    train(&fixture, "whole", &[], &sets).succeeded();
    assert!(checkpoints(&fixture, "whole").is_empty() && !fixture.path("whole/checkpoints").exists());
    let mut ways = ["TERM", "INT", "USR2", "file"].into_iter();
    let mut stopped = Vec::new();
    until_done(|| {
        let before = std::fs::read_to_string(fixture.path("run/metrics.jsonl")).unwrap_or_default().len();
        let child = start(&fixture, "run", &[], &sets);
        if let Some(way) = ways.next() {
            wait_for("a step", || {
                let log = std::fs::read_to_string(fixture.path("run/metrics.jsonl")).unwrap_or_default();
                log.get(before..).is_some_and(|new| new.contains("\"kind\":\"step\""))
            });
            match way {
                "file" => fixture.write("run/stop", ""),
                signal_name => signal(&child, signal_name),
            }
            let outcome = into_outcome(child.wait_with_output().unwrap());
            assert_eq!(outcome.code, 75, "{way}: {}", outcome.stderr);
            assert!(outcome.stdout.contains("the same command goes on"), "{}", outcome.stdout);
            stopped.push(way);
            return outcome;
        }
        into_outcome(child.wait_with_output().unwrap())
    });
    assert_eq!(stopped.len(), 4);
    assert!(!fixture.path("run/stop").exists());
    assert!(result(&fixture, "run") == result(&fixture, "whole"));
}

#[test]
fn other_numbers_of_ranks_continue_with_the_same_bits() {
    let fixture = Fixture::new();
    let sets = ["train.micro_batch_size=1"];
    train(&fixture, "whole", &[], &sets).succeeded();
    for (ranks, point) in [("2", "save.after_commit=kill@1"), ("4", "save.after_commit=kill@2")] {
        assert_eq!(train(&fixture, "run", &["--ranks", ranks, "--fail-points", point], &sets).code, -1);
    }
    let last = train(&fixture, "run", &[], &sets).succeeded();
    assert!(last.stderr.contains("going on after step"), "{}", last.stderr);
    assert!(result(&fixture, "run") == result(&fixture, "whole"));
}

#[test]
fn a_rank_process_that_dies_ends_the_others_by_name_and_the_same_command_continues() {
    let fixture = Fixture::new();
    let sets = ["train.micro_batch_size=1"];
    train(&fixture, "whole", &[], &sets).succeeded();
    for (victim, point) in [(0, "save.mid_manifest=kill@1"), (1, "save.mid_shard=kill@2")] {
        let dir = format!("run{victim}");
        let port = (20_000 + (std::process::id() + victim as u32 + 1) % 20_000).to_string();
        let of_rank = |rank: usize| {
            let further: &[&str] = if rank == victim { &["--fail-points", point] } else { &[] };
            arguments(&dir, further, &sets)
        };
        let children = fixture.start_processes(2, &port, &of_rank);
        let outcomes: Vec<Outcome> =
            children.into_iter().map(|child| into_outcome(child.wait_with_output().unwrap())).collect();
        assert_eq!(outcomes[victim].code, -1);
        let survivor = &outcomes[1 - victim];
        assert_eq!(survivor.code, 6, "{}", survivor.stderr);
        assert!(
            survivor.stderr.contains(&format!("rank {victim}")) || survivor.stderr.contains(&format!("[{victim}]"))
        );
        let again = fixture.finetune_processes(2, &port, &arguments(&dir, &[], &sets));
        assert!(again.iter().all(|outcome| outcome.code == 0), "{}", again[0].stderr);
        assert!(result(&fixture, &dir) == result(&fixture, "whole"));
    }
}

#[test]
fn a_finished_run_is_left_alone_and_one_that_left_no_checkpoint_starts_again() {
    let fixture = Fixture::new();
    train(&fixture, "run", &[], &["checkpoint.every=never"]).succeeded();
    let weights = fixture.bytes("run/model/model.safetensors");
    let again = train(&fixture, "run", &[], &["checkpoint.every=never"]).succeeded();
    assert!(again.stderr.contains("is finished") && again.stderr.contains("--overwrite"), "{}", again.stderr);
    assert_eq!(fixture.bytes("run/model/model.safetensors"), weights);
    // It cannot go on with another setting, and with that setting cannot be replaced either.
    let sets = ["checkpoint.every=never", "train.lr=2e-3"];
    let changed = train(&fixture, "run", &["--accept-change"], &sets);
    let fix = "fix: set output.dir to another directory, or remove this one yourself";
    assert!(changed.stderr.contains("left no checkpoint") && changed.stderr.contains(fix), "{}", changed.stderr);
    assert!(!changed.stderr.contains("--overwrite"), "{}", changed.stderr);
    let replaced = train(&fixture, "run", &["--overwrite"], &sets);
    let reason = "a run is replaced by one with the same settings alone; --dry-run checks the changed settings";
    assert!(replaced.stderr.contains("train.lr: ") && replaced.stderr.contains(reason), "{}", replaced.stderr);
    let both = train(&fixture, "run", &["--overwrite", "--accept-change"], &sets);
    assert!(both.code == 2 && both.stderr.contains("cannot be used with"), "{}", both.stderr);
    assert_eq!(fixture.bytes("run/model/model.safetensors"), weights);
    let died = train(&fixture, "died", &["--fail-points", "save.before_directory=kill@1"], &[]);
    assert_eq!(died.code, -1);
    let must = train(&fixture, "died", &["--resume", "must"], &[]);
    assert_eq!(must.code, 2, "{}", must.stderr);
    assert!(must.stderr.contains("there is no checkpoint to go on from"), "{}", must.stderr);
    let never = train(&fixture, "died", &["--resume", "never"], &[]);
    assert!(never.code == 2 && never.stderr.contains("--overwrite"), "{}", never.stderr);
    train(&fixture, "died", &[], &[]).succeeded();
    assert_eq!(fixture.read("died/metrics.jsonl").matches("\"kind\":\"start\"").count(), 1);
}

#[test]
fn an_older_checkpoint_another_runs_and_its_weights_alone_are_taken_where_asked_for() {
    let fixture = Fixture::new();
    train(&fixture, "whole", &[], &["checkpoint.keep=9"]).succeeded();
    let whole = result(&fixture, "whole");
    // From its step 4, in a directory of its own. The best weights were from step 3 and are not there.
    let other = train(&fixture, "other", &["--resume", "whole@4"], &[]).succeeded();
    assert_eq!(result(&fixture, "other").1.last(), whole.1.last());
    let is_best_late =
        whole.1.iter().rev().find(|line| line.contains("\"best\":true")).unwrap().contains("\"step\":8,");
    assert_eq!(other.stderr.contains("the best weights"), !is_best_late, "{}", other.stderr);
    assert!(fixture.path("other/model/config.json").exists());
    let first = fixture.read("other/metrics.jsonl").lines().next().unwrap().to_owned();
    assert!(first.contains("\"kind\":\"resume\",\"step\":4"), "{first}");
    // Its own step 2: what came later is gone, and made again.
    train(&fixture, "whole", &["--resume", "whole@2"], &["checkpoint.keep=9"]).succeeded();
    assert!(result(&fixture, "whole") == whole);
    // Weights alone: a new optimizer, step 0.
    train(&fixture, "warm", &["--init-from", "whole"], &[]).succeeded();
    let log = fixture.read("warm/metrics.jsonl");
    assert!(log.starts_with("{\"kind\":\"start\"") && log.contains("\"kind\":\"step\",\"step\":1,"), "{log}");
    let loss = |log: &str| log.lines().find(|line| line.contains("\"kind\":\"eval\"")).unwrap().to_owned();
    assert_ne!(deterministic_part(&loss(&log)), deterministic_part(&loss(&fixture.read("whole/metrics.jsonl"))));
    let none = train(&fixture, "new", &["--resume", "whole@3"], &[]);
    assert!(none.code == 2 && none.stderr.contains("no checkpoint of step 3"), "{}", none.stderr);
}

#[test]
fn changed_settings_and_data_are_named_and_taken_only_where_that_is_accepted() {
    let fixture = Fixture::new();
    let died = train(&fixture, "run", &["--fail-points", "save.after_commit=kill@2"], &[]);
    assert_eq!(died.code, -1);
    let refused = train(&fixture, "run", &[], &["train.lr=5e-3"]);
    assert_eq!(refused.code, 2);
    for part in ["train.lr: 0.001 -> 0.005", "--accept-change", "another recipe"] {
        assert!(refused.stderr.contains(part), "no {part:?} in {}", refused.stderr);
    }
    fixture.write("train.jsonl", &fixture::sentences(17));
    let refused = train(&fixture, "run", &[], &[]);
    assert_eq!(refused.code, 3, "{}", refused.stderr);
    assert!(refused.stderr.contains("data.train are not those"), "{}", refused.stderr);
    train(&fixture, "run", &["--accept-change"], &["train.lr=5e-3"]).succeeded();
    let log = fixture.read("run/metrics.jsonl");
    assert!(log.contains("\"changed\":\"train.lr: 0.001 -> 0.005\""), "{log}");
}

#[test]
fn a_damaged_checkpoint_is_skipped_with_a_report_and_none_left_is_an_error() {
    let fixture = Fixture::new();
    train(&fixture, "whole", &[], &[]).succeeded();
    let died = train(&fixture, "run", &["--fail-points", "save.after_commit=kill@3"], &[]);
    assert_eq!(died.code, -1);
    let names: Vec<String> = checkpoints(&fixture, "run").into_iter().filter(|name| !name.contains(".tmp")).collect();
    let damage = |name: &str| {
        let file = format!("run/checkpoints/{name}/rank-0.safetensors");
        let mut bytes = fixture.bytes(&file);
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        fixture.write_bytes(&file, &bytes);
    };
    damage(names.iter().find(|name| name.starts_with("step-6-")).unwrap());
    let again = train(&fixture, "run", &["--fail-points", "save.before_directory=kill@1"], &[]);
    assert_eq!(again.code, -1, "{}", again.stderr);
    for part in ["warning: a damaged checkpoint was passed over: step-6-", "going on after step 4"] {
        assert!(again.stderr.contains(part), "no {part:?} in {}", again.stderr);
    }
    names.iter().filter(|name| !name.starts_with("step-6-")).for_each(|name| damage(name));
    let refused = train(&fixture, "run", &[], &[]);
    assert_eq!(refused.code, 4, "{}", refused.stderr);
    assert!(refused.stderr.contains("can be used") && refused.stderr.contains("--overwrite"), "{}", refused.stderr);
    train(&fixture, "run", &["--overwrite"], &[]).succeeded();
    assert!(result(&fixture, "run") == result(&fixture, "whole"));
}

#[test]
fn a_directory_in_the_place_of_a_shard_is_passed_over_and_left_in_place() {
    let fixture = Fixture::new();
    train(&fixture, "whole", &[], &[]).succeeded();
    assert_eq!(train(&fixture, "run", &["--fail-points", "save.after_commit=kill@3"], &[]).code, -1);
    let newest = checkpoints(&fixture, "run").into_iter().find(|name| name.starts_with("step-6-")).unwrap();
    let shard = format!("run/checkpoints/{newest}/rank-0.safetensors");
    std::fs::remove_file(fixture.path(&shard)).unwrap();
    fixture.write(&format!("{shard}/notes"), "mine");
    let further = ["--fail-points", "save.before_directory=kill@1"];
    for _ in 0..2 {
        let again = train(&fixture, "run", &further, &[]);
        assert_eq!(again.code, -1, "{}", again.stderr);
        assert!(again.stderr.contains("going on after step 4"), "{}", again.stderr);
    }
    let again = train(&fixture, "run", &[], &[]).succeeded();
    assert!(again.stderr.contains("it contains a directory, rank-0.safetensors"), "{}", again.stderr);
    assert!(result(&fixture, "run") == result(&fixture, "whole"));
    assert_eq!(fixture.read(&format!("run/checkpoints/.gone-{newest}/rank-0.safetensors/notes")), "mine");
}

#[test]
fn a_damaged_run_json_is_not_taken_for_another_recipe_and_removes_no_foreign_file() {
    let fixture = Fixture::new();
    train(&fixture, "run", &[], &["checkpoint.every=never"]).succeeded();
    let marker = fixture.read("run/run.json");
    let hash = marker.split('"').find(|part| part.len() == 64).unwrap().to_owned();
    let other = format!("{}{}", if hash.starts_with('0') { '1' } else { '0' }, &hash[1..]);
    fixture.write("run/run.json", &marker.replace(&hash, &other));
    let refused = train(&fixture, "run", &[], &["checkpoint.every=never"]);
    let expected = "the settings in recipe.toml there are the same: run.json is damaged, or another version";
    assert!(refused.code == 2 && refused.stderr.contains(expected), "{}", refused.stderr);
    fixture.write("run/run.json", &marker.replace("\"metrics.jsonl\"", "\"thesis.tex\""));
    fixture.write("run/thesis.tex", "years of work");
    let before = fixture.snapshot();
    let refused = train(&fixture, "run", &["--overwrite"], &["checkpoint.every=never"]);
    assert!(refused.code == 2 && refused.stderr.contains("not an output of a run"), "{}", refused.stderr);
    assert!(fixture.snapshot() == before);
    // A file that is not listed stays where the run would write it.
    std::fs::remove_file(fixture.path("run/thesis.tex")).unwrap();
    let refused = train(&fixture, "run", &["--overwrite"], &["checkpoint.every=never"]);
    assert!(refused.code == 2 && refused.stderr.contains("is there already"), "{}", refused.stderr);
    assert!(fixture.read("run/metrics.jsonl").contains("\"kind\":\"end\""));
}

#[test]
fn a_failed_save_is_reported_and_the_run_continues_or_stops_as_configured() {
    let fixture = Fixture::new();
    train(&fixture, "whole", &[], &[]).succeeded();
    let further = ["--fail-points", "save.mid_shard=error@2"];
    let outcome = train(&fixture, "run", &further, &[]).succeeded();
    assert!(outcome.stderr.contains("warning: the state of step 4 was not saved"), "{}", outcome.stderr);
    assert!(result(&fixture, "run") == result(&fixture, "whole"));
    let outcome = train(&fixture, "stops", &further, &["checkpoint.on_failure=stop"]);
    assert!(outcome.code == 1 && outcome.stderr.contains("an armed fail point"), "{}", outcome.stderr);
    assert!(checkpoints(&fixture, "stops").iter().any(|name| name.starts_with("step-2-")));
    train(&fixture, "stops", &[], &["checkpoint.on_failure=stop"]).succeeded();
    assert!(result(&fixture, "stops") == result(&fixture, "whole"));
}

#[test]
fn a_run_that_fails_again_and_again_at_the_same_place_is_not_tried_for_ever() {
    let fixture = Fixture::new();
    let fails = |point: &str| train(&fixture, "run", &["--fail-points", point], &["checkpoint.on_failure=stop"]).code;
    // It gets further once, so those failures do not count.
    assert_eq!([fails("save.mid_shard=error@1"), fails("save.mid_shard=error@2")], [1, 1]);
    assert_eq!([(); 3].map(|()| fails("save.mid_shard=error@1")), [1; 3]);
    let outcome = train(&fixture, "run", &[], &[]);
    assert_eq!(outcome.code, 93, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("failed again and again after it had gone on from step 2"), "{}", outcome.stderr);
    train(&fixture, "run", &["--accept-change"], &[]).succeeded();
}

#[test]
fn a_finished_run_is_never_removed_unasked() {
    let fixture = Fixture::new();
    let sets = ["checkpoint.every=never"];
    train(&fixture, "run", &[], &sets).succeeded();
    let before = fixture.snapshot();
    // A path that leads nowhere, and settings that need a checkpoint where there is none.
    assert_eq!(train(&fixture, "run", &["--resume", "nowhere"], &sets).code, 2);
    let more = ["checkpoint.every=never", "train.steps=12"];
    let refused = train(&fixture, "run", &["--accept-change"], &more);
    assert!(refused.code == 2 && refused.stderr.contains("left no checkpoint"), "{}", refused.stderr);
    assert_eq!(fixture.snapshot(), before);
    assert!(train(&fixture, "run", &[], &sets).succeeded().stderr.contains("is finished"));
    // With one, the run is made longer.
    train(&fixture, "long", &[], &[]).succeeded();
    let longer = train(&fixture, "long", &["--accept-change"], &["train.steps=12"]).succeeded();
    assert!(longer.stderr.contains("going on after step 8"), "{}", longer.stderr);
}

#[test]
fn a_refused_change_leaves_the_run_to_its_own_command() {
    let fixture = Fixture::new();
    assert_eq!(train(&fixture, "run", &["--fail-points", "save.after_commit=kill@2"], &[]).code, -1);
    let refused = train(&fixture, "run", &["--accept-change"], &["model.dtype=bf16"]);
    assert!(refused.code == 2 && refused.stderr.contains("wanted as bf16"), "{}", refused.stderr);
    assert!(train(&fixture, "run", &[], &[]).succeeded().stderr.contains("going on after step 4"));
}

#[test]
fn checkpoints_of_a_course_that_was_left_do_not_push_out_new_ones() {
    let fixture = Fixture::new();
    train(&fixture, "other", &[], &["checkpoint.keep=9"]).succeeded();
    assert_eq!(train(&fixture, "run", &["--fail-points", "save.after_commit=kill@4"], &[]).code, -1);
    let further = ["--resume", "other@2", "--fail-points", "save.after_commit=kill@2"];
    assert_eq!(train(&fixture, "run", &further, &[]).code, -1);
    let left: Vec<String> = checkpoints(&fixture, "run").iter().map(|name| name[..7].to_owned()).collect();
    // The step it went on from is its own now, and the next one.
    assert_eq!(left, ["step-2-", "step-4-"]);
    assert!(train(&fixture, "run", &[], &[]).succeeded().stderr.contains("going on after step 4"));
}

#[test]
fn ranks_that_were_started_with_other_settings_are_named() {
    let fixture = Fixture::new();
    let port = (20_000 + (std::process::id() + 77) % 20_000).to_string();
    let of_rank = |rank: usize| {
        let rate = if rank == 1 { "train.lr=5e-3" } else { "train.lr=1e-3" };
        arguments("run", &[], &["train.micro_batch_size=1", rate])
    };
    let children = fixture.start_processes(2, &port, &of_rank);
    for child in children {
        let outcome = into_outcome(child.wait_with_output().unwrap());
        assert_eq!(outcome.code, 2, "{}", outcome.stderr);
        assert!(outcome.stderr.contains("rank 1") && outcome.stderr.contains("other settings than rank 0"));
    }
}

#[test]
fn a_signal_to_one_rank_of_two_stops_both_within_a_step() {
    let fixture = Fixture::new();
    let sets = ["train.micro_batch_size=1", "train.steps=2000", "checkpoint.every=never", "eval.every=end"];
    let port = (20_000 + (std::process::id() + 78) % 20_000).to_string();
    let children = fixture.start_processes(2, &port, &|_| arguments("run", &[], &sets));
    let steps = || {
        let log = std::fs::read_to_string(fixture.path("run/metrics.jsonl")).unwrap_or_default();
        log.matches("\"kind\":\"step\"").count()
    };
    wait_for("a step", || steps() > 2);
    signal(&children[1], "TERM");
    for child in children {
        let outcome = into_outcome(child.wait_with_output().unwrap());
        assert_eq!(outcome.code, 75, "{}", outcome.stderr);
    }
    let names = checkpoints(&fixture, "run");
    assert!(names.len() == 1 && names[0].starts_with(&format!("step-{}-", steps())), "{names:?} after {}", steps());
    assert!(steps() < 2000);
}

#[test]
fn a_resume_with_another_instruction_set_is_reported_and_recorded() {
    let fixture = Fixture::new();
    let run = |set: &str, further: &[&str]| {
        let arguments = arguments("run", further, &[]);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let child = fixture.start_launched(&format!("BMTRAIN_CPU={set}"), &arguments);
        into_outcome(child.wait_with_output().unwrap())
    };
    // The run multiplies f32, which all sets of this processor that multiply bf16 do alike.
    let best = InstructionSet::best().of_products(false).name();
    assert_eq!(run("portable", &["--exit-after-steps", "4"]).code, 75);
    let again = run("", &["--exit-after-steps", "2"]);
    assert_eq!(again.code, 75, "{}", again.stderr);
    let warning = format!("was computed with portable, and this run computes with {best}");
    assert_eq!(again.stderr.contains(&warning), best != "portable", "{}", again.stderr);
    assert!(!run(best, &[]).succeeded().stderr.contains("was computed with"));
    let log = fixture.read("run/metrics.jsonl");
    let sets: Vec<bool> = log
        .lines()
        .filter(|line| line.contains("\"kind\":\"resume\""))
        .map(|line| line.contains(&format!("\"instruction_set\":\"{best}\"")))
        .collect();
    assert_eq!(sets, [true, true]);
}
