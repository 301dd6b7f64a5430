//! Best weights that were written long before the run was cut off: damaged, they are restored or named, and never the
//! result.

use super::fixture::{Fixture, Outcome};
use super::{arguments, checkpoints, into_outcome, result, start, train, wait_for};
use std::path::Path;

/// A learning rate so small that no evaluation is better than the first one, of step 3.
const BEST_IS_EARLY: [&str; 4] = ["train.lr=1e-9", "eval.metric=accuracy", "eval.every=3 steps", "train.steps=16"];
/// With these, there is a checkpoint of step 3; without them there is none. The fifth save is at step 15, or there is
/// none.
const HELD: &str = "checkpoint.every=3 steps";
const NOT_HELD: &str = "checkpoint.every=4 steps";

/// What a layout adds to the command, and its settings.
type LayoutOptions = (&'static [&'static str], &'static [&'static str]);
const LAYOUTS: [LayoutOptions; 3] = [
    (&[], &["model.dtype=bf16"]),
    (&["--ranks", "2"], &["parallel.zero=1"]),
    (&["--ranks", "2"], &["parallel.zero=3"]),
];

/// Each damage with the file that has to be named.
type Harm = fn(&Path);
const DAMAGES: [(&str, Harm); 7] = [
    ("model.safetensors", |model| change(&model.join("model.safetensors"), |bytes| *bytes.last_mut().unwrap() ^= 1)),
    ("model.safetensors", |model| change(&model.join("model.safetensors"), |bytes| bytes.truncate(bytes.len() / 2))),
    ("model.safetensors", |model| std::fs::remove_file(model.join("model.safetensors")).unwrap()),
    ("model.safetensors", |model| {
        change(&model.join("model.safetensors"), |bytes| {
            let at = bytes.len() - 4;
            bytes[at..].copy_from_slice(&f32::NAN.to_le_bytes());
        });
    }),
    ("config.json", |model| change(&model.join("config.json"), |bytes| bytes.push(b'\n'))),
    ("merges.txt", |model| change(&model.join("merges.txt"), |bytes| bytes[0] ^= 1)),
    ("model", |model| std::fs::remove_dir_all(model).unwrap()),
];

fn change(path: &Path, how: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    how(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

/// A fixture whose model has one more tokenizer file, which is copied as it is.
fn fixture() -> Fixture {
    let fixture = Fixture::new();
    fixture.write("model/merges.txt", "#version: 0.2\n");
    fixture
}

pub(super) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// The settings of a run whose best weights are early; further ones replace settings of the same key.
fn early<'a>(further: &[&'a str]) -> Vec<&'a str> {
    let key = |set: &&'a str| set.split('=').next().map(str::to_owned);
    let others = BEST_IS_EARLY.iter().filter(|set| further.iter().all(|other| key(set) != key(other)));
    others.chain(further).copied().collect()
}

/// A run that is cut off long after its best weights.
fn cut_off(fixture: &Fixture, dir: &str, further: &[&str], sets: &[&str], point: &str) {
    let died = train(fixture, dir, &[&["--fail-points", point], further].concat(), sets);
    assert_eq!(died.code, -1, "{}", died.stderr);
    assert!(fixture.read(&format!("{dir}/run.json")).contains("\"best_step\": 3,"));
}

fn assert_names(outcome: &Outcome, dir: &str, file: &str) {
    assert_eq!(outcome.code, 4, "{file}: {}", outcome.stderr);
    let place = if file == "model" { format!("{dir}/model") } else { format!("{dir}/model/{file}") };
    let is_named = |line: &str| line.starts_with("  --> ") && line.ends_with(&place);
    assert!(outcome.stderr.lines().any(is_named), "{file}: {}", outcome.stderr);
    assert!(!outcome.stdout.contains("trained"), "{}", outcome.stdout);
}

#[test]
fn damaged_best_weights_are_restored_or_named_in_every_layout() {
    let fixture = fixture();
    let mut found = 0;
    for (further, sets) in LAYOUTS {
        let (held, not_held) = (early(&[&[HELD], sets].concat()), early(&[&[NOT_HELD], sets].concat()));
        cut_off(&fixture, "held", further, &held, "save.before_rename=kill@5");
        let names = checkpoints(&fixture, "held");
        assert!(names.iter().any(|name| name.starts_with("step-3-")), "{names:?}");
        cut_off(&fixture, "other", further, &not_held, "save.before_rename=kill@3");
        copy(&fixture.path("held"), &fixture.path("whole"));
        train(&fixture, "whole", further, &held).succeeded();
        let whole = result(&fixture, "whole");
        assert_eq!(whole.1.iter().filter(|line| line.contains("\"best\":true")).count(), 1);
        for (file, harm) in DAMAGES {
            copy(&fixture.path("other"), &fixture.path("run"));
            harm(&fixture.path("run/model"));
            assert_names(&train(&fixture, "run", further, &not_held), "run", file);
            std::fs::remove_dir_all(fixture.path("run")).unwrap();

            copy(&fixture.path("held"), &fixture.path("run"));
            harm(&fixture.path("run/model"));
            let again = train(&fixture, "run", further, &held).succeeded();
            for part in ["warning: the best weights are damaged", file, "were restored from step-3-"] {
                assert!(again.stderr.contains(part), "no {part:?} in {}", again.stderr);
            }
            assert!(result(&fixture, "run") == whole, "{file}: other bits");
            for name in ["config.json", "merges.txt", "README.md"] {
                let of = |dir: &str| fixture.bytes(&format!("{dir}/model/{name}"));
                assert!(of("run") == of("whole"), "{name} differs");
            }
            std::fs::remove_dir_all(fixture.path("run")).unwrap();
            found += 1;
        }
        for dir in ["held", "other", "whole"] {
            std::fs::remove_dir_all(fixture.path(dir)).unwrap();
        }
    }
    println!("figure: {found}/{}", LAYOUTS.len() * DAMAGES.len());
}

#[test]
fn a_finished_run_that_is_started_again_checks_its_models() {
    let fixture = fixture();
    let sets = early(&[HELD, "save.which=both"]);
    train(&fixture, "run", &[], &sets).succeeded();
    // The card may be edited.
    fixture.write("run/model/README.md", "mine");
    assert!(train(&fixture, "run", &[], &sets).succeeded().stderr.contains("is finished"));
    let whole = result(&fixture, "run");
    copy(&fixture.path("run"), &fixture.path("copy"));
    for dir in ["model", "model-last"] {
        for (file, harm) in DAMAGES {
            harm(&fixture.path("run").join(dir));
            let again = train(&fixture, "run", &[], &sets);
            let file = if file == "model" { dir.to_owned() } else { format!("{dir}/{file}") };
            assert_eq!(again.code, 4, "{}", again.stderr);
            assert!(again.stderr.contains(&format!("--> run/{file}\n")), "{}", again.stderr);
            assert!(again.stderr.contains("with --resume run, or train again with --overwrite"), "{}", again.stderr);
            std::fs::remove_dir_all(fixture.path("run")).unwrap();
            copy(&fixture.path("copy"), &fixture.path("run"));
        }
    }
    // As the message advises.
    for dir in ["run/model", "run/model-last"] {
        std::fs::remove_dir_all(fixture.path(dir)).unwrap();
    }
    train(&fixture, "run", &["--resume", "run"], &sets).succeeded();
    assert!(result(&fixture, "run").0 == whole.0);
    let last = |dir: &str| fixture.bytes(&format!("{dir}/model-last/model.safetensors"));
    assert!(last("run") == last("copy"));
    assert!(train(&fixture, "run", &[], &sets).succeeded().stderr.contains("is finished"));
}

#[test]
fn best_weights_that_are_damaged_while_the_run_lasts_are_found_before_its_end() {
    let fixture = fixture();
    let sets = early(&["train.steps=400", "eval.every=200 steps", "checkpoint.every=never"]);
    let child = start(&fixture, "run", &[], &sets);
    let marker = || std::fs::read_to_string(fixture.path("run/run.json")).unwrap_or_default();
    wait_for("a best evaluation", || marker().contains("\"best_step\": 200,"));
    std::fs::remove_file(fixture.path("run/model/config.json")).unwrap();
    let outcome = into_outcome(child.wait_with_output().unwrap());
    assert_names(&outcome, "run", "config.json");
    assert!(fixture.read("run/run.json").contains("\"finished\": false"));
}

#[test]
fn a_run_of_a_version_without_hashes_resumes_and_is_checked_as_far_as_possible() {
    let fixture = fixture();
    let sets = early(&[NOT_HELD]);
    cut_off(&fixture, "run", &[], &sets, "save.before_rename=kill@3");
    let mut marker: serde_json::Value = serde_json::from_str(&fixture.read("run/run.json")).unwrap();
    assert!(marker.as_object_mut().unwrap().remove("models").is_some());
    fixture.write("run/run.json", &marker.to_string());
    copy(&fixture.path("run"), &fixture.path("cut"));
    change(&fixture.path("cut/model/model.safetensors"), |bytes| bytes.truncate(bytes.len() / 2));
    assert_names(&train(&fixture, "cut", &[], &sets), "cut", "model.safetensors");
    let again = train(&fixture, "run", &["--fail-points", "save.before_rename=kill@1"], &sets);
    assert_eq!(again.code, -1);
    assert!(again.stderr.contains("recorded no hashes of the best weights"), "{}", again.stderr);
    // From then on they are.
    let again = train(&fixture, "run", &[], &sets).succeeded();
    assert!(!again.stderr.contains("recorded no hashes"), "{}", again.stderr);
}

#[test]
fn best_weights_of_another_run_are_refused_although_its_record_vouches_for_them() {
    let fixture = fixture();
    let sets = early(&[NOT_HELD]);
    cut_off(&fixture, "run", &[], &sets, "save.before_rename=kill@3");
    // The same recipe on other weights; a full run reads them at its beginning alone.
    let weights = fixture.bytes("model/model.safetensors");
    fixture.set_value("model/model.safetensors", "bert.embeddings.word_embeddings.weight", 5, 0.5);
    cut_off(&fixture, "other", &[], &sets, "save.before_rename=kill@3");
    fixture.write_bytes("model/model.safetensors", &weights);
    std::fs::remove_dir_all(fixture.path("run/model")).unwrap();
    copy(&fixture.path("other/model"), &fixture.path("run/model"));
    fixture.write("run/run.json", &fixture.read("other/run.json"));
    let refused = train(&fixture, "run", &[], &sets);
    assert_names(&refused, "run", "model");
    assert!(refused.stderr.contains("are not those that the checkpoint is beside"), "{}", refused.stderr);
    let again = train(&fixture, "run", &["--accept-change"], &sets).succeeded();
    assert!(again.stderr.contains("they are given up"), "{}", again.stderr);
}

#[test]
fn best_weights_that_are_gone_can_be_given_up() {
    let fixture = fixture();
    let sets = early(&[NOT_HELD]);
    cut_off(&fixture, "run", &[], &sets, "save.before_rename=kill@3");
    std::fs::rename(fixture.path("run/model"), fixture.path("taken")).unwrap();
    let refused = train(&fixture, "run", &[], &sets);
    assert_names(&refused, "run", "model");
    assert!(refused.stderr.contains("--accept-change to go on without the best weights"), "{}", refused.stderr);
    let again = train(&fixture, "run", &["--accept-change"], &sets).succeeded();
    for part in ["the best weights are damaged and given up", "the best weights are not in the directory"] {
        assert!(again.stderr.contains(part), "no {part:?} in {}", again.stderr);
    }
    assert!(fixture.path("run/model/README.md").exists());
    assert_ne!(fixture.bytes("run/model/model.safetensors"), fixture.bytes("taken/model.safetensors"));
    assert!(train(&fixture, "run", &[], &sets).succeeded().stderr.contains("is finished"));
}

#[test]
fn damaged_best_weights_end_every_rank_process_with_the_same_error() {
    let fixture = fixture();
    let sets = early(&[NOT_HELD]);
    cut_off(&fixture, "run", &["--ranks", "2"], &sets, "save.before_rename=kill@3");
    std::fs::remove_file(fixture.path("run/model/merges.txt")).unwrap();
    let port = (20_000 + (std::process::id() + 79) % 20_000).to_string();
    for outcome in fixture.finetune_processes(2, &port, &arguments("run", &[], &sets)) {
        assert_names(&outcome, "run", "merges.txt");
    }
}
