//! The ckpt program: its reports on sound and on damaged checkpoints, and checkpoints as model directories.

use crate::fixture::program;
use crate::fixture::{Fixture, Outcome};

fn ckpt(fixture: &Fixture, arguments: &[&str]) -> Outcome {
    fixture.run(program("ckpt"), arguments)
}

/// A run on two ranks with checkpoints of steps 2 and 3.
fn trained() -> Fixture {
    let fixture = Fixture::new();
    let sets = ["checkpoint.every=1 steps", "train.micro_batch_size=2", "parallel.zero=3"];
    let arguments: Vec<&str> = ["--ranks", "2"].into_iter().chain(sets.iter().flat_map(|set| ["--set", set])).collect();
    fixture.finetune(&arguments).succeeded();
    fixture
}

fn name(fixture: &Fixture, step: u64) -> String {
    let listed = ckpt(fixture, &["ls", "run"]).succeeded().stdout;
    let line = listed.lines().find(|line| line.starts_with(&format!("step-{step}-"))).unwrap();
    line.split_whitespace().next().unwrap().to_owned()
}

#[test]
fn checkpoints_are_listed_newest_first_from_any_of_their_directories() {
    let fixture = trained();
    let listed = ckpt(&fixture, &["ls", "run"]).succeeded().stdout;
    let steps: Vec<&str> = listed.lines().map(|line| &line[..7]).collect();
    assert_eq!(steps, ["step-3-", "step-2-"], "{listed}");
    assert!(listed.contains("manifest verified: 2 files, "), "{listed}");
    assert_eq!(ckpt(&fixture, &["ls", "run/checkpoints"]).succeeded().stdout, listed);
    let one = format!("run/checkpoints/{}", name(&fixture, 2));
    assert_eq!(ckpt(&fixture, &["ls", &one]).succeeded().stdout, listed.lines().nth(1).unwrap().to_owned() + "\n");
    let json: serde_json::Value =
        serde_json::from_str(&ckpt(&fixture, &["--json", "ls", "run@3"]).succeeded().stdout).unwrap();
    assert_eq!((&json[0]["step"], &json[0]["files"], json.as_array().unwrap().len()), (&3.into(), &2.into(), 1));
}

#[test]
fn verify_names_what_is_damaged_and_exits_with_4() {
    let fixture = trained();
    let sound = ckpt(&fixture, &["verify", "run"]).succeeded().stdout;
    assert_eq!(sound.matches("every byte verified").count(), 2, "{sound}");
    let file = format!("run/checkpoints/{}/rank-1.safetensors", name(&fixture, 3));
    let mut bytes = fixture.bytes(&file);
    let last = bytes.len() - 5;
    bytes[last] ^= 1;
    fixture.write_bytes(&file, &bytes);
    assert_eq!(ckpt(&fixture, &["ls", "run"]).code, 0, "a list does not read everything");
    let outcome = ckpt(&fixture, &["verify", "run"]);
    assert_eq!(outcome.code, 4, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("rank-1.safetensors") && outcome.stderr.contains("its hash differs"));
    assert!(outcome.stdout.contains("every byte verified") && outcome.stdout.contains("not usable"));
    assert_eq!(ckpt(&fixture, &["verify", "run@2"]).code, 0);
    assert_eq!(ckpt(&fixture, &["digest", "run@3"]).code, 4);
    // What takes an older one warns of it. What a killed call was preparing goes.
    fixture.write("out/.result.tmp-4194305-0/model.safetensors", "half");
    fixture.write("new/step-2.tmp-reshard-4194305/rank-0.safetensors", "half");
    for arguments in [&["digest", "run"][..], &["export", "run", "out"], &["reshard", "run", "new", "--ranks", "1"]] {
        let taken = ckpt(&fixture, arguments).succeeded();
        let warning = format!("warning: a damaged checkpoint was passed over: {}: ", name(&fixture, 3));
        assert!(taken.stderr.contains(&warning) && taken.stderr.contains("rank-1.safetensors"), "{}", taken.stderr);
        assert!(taken.stdout.contains("step-2-"), "{}", taken.stdout);
    }
    for left in ["out/.result.tmp-4194305-0", "new/step-2.tmp-reshard-4194305"] {
        assert!(!fixture.path(left).exists(), "{left}");
    }
}

#[test]
fn a_digest_does_not_depend_on_the_number_of_files() {
    let fixture = trained();
    let digest = |dir: &str| {
        let text = ckpt(&fixture, &["digest", dir]).succeeded().stdout;
        text.split_whitespace().next().unwrap().to_owned()
    };
    let first = digest("run");
    assert_eq!(first.len(), 64);
    for ranks in ["1", "3"] {
        let to = format!("again{ranks}");
        let message = ckpt(&fixture, &["reshard", "run", &to, "--ranks", ranks]).succeeded().stdout;
        assert!(message.contains(&format!("{ranks} files")), "{message}");
        assert_eq!(digest(&to), first);
    }
    assert_ne!(digest("run@2"), first);
    // Training goes on from it.
    let sets = ["--set", "checkpoint.every=1 steps", "--set", "train.micro_batch_size=2", "--set", "output.dir=on"];
    fixture.finetune(&[&["--resume", "again3"], &sets[..]].concat()).succeeded();
}

/// The files of a directory but the model card, which a run writes beside its model.
fn files(fixture: &Fixture, directory: &str) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(fixture.path(directory)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut files: Vec<_> = names
        .filter(|name| name != "README.md")
        .map(|name| (name.clone(), fixture.bytes(&format!("{directory}/{name}"))))
        .collect();
    files.sort();
    files
}

#[test]
fn an_exported_checkpoint_is_the_directory_that_its_run_would_have_written() {
    let fixture = Fixture::new();
    let sets = ["checkpoint.every=1 steps", "train.micro_batch_size=2", "parallel.zero=3", "save.which=last"];
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    fixture.finetune(&[&["--ranks", "2"], &sets[..]].concat()).succeeded();
    let text = ckpt(&fixture, &["export", "run", "out"]).succeeded().stdout;
    assert!(text.starts_with("out: ") && text.contains(" as f32, of step-3-"), "{text}");
    assert_eq!(files(&fixture, "out"), files(&fixture, "run/model"));
    // Of a step in the middle of the run, and from a resharded copy.
    let weights = |directory: &str| fixture.bytes(&format!("{directory}/model.safetensors"));
    ckpt(&fixture, &["reshard", "run@2", "copy", "--ranks", "3"]).succeeded();
    ckpt(&fixture, &["export", "copy", "copied"]).succeeded();
    let json = ckpt(&fixture, &["--json", "export", "run@2", "middle", "--dtype", "bf16"]).succeeded().stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["step"], &json["dtype"], &json["model"]), (&2.into(), &"bf16".into(), &"middle".into()));
    assert_ne!(weights("copied"), weights("out"));
    assert!(weights("middle").len() < weights("copied").len() * 6 / 10);
    // ModelCenter's BERT has no such classifier.
    let outcome = ckpt(&fixture, &["export", "run", "center", "--layout", "model-center"]);
    assert!(outcome.code == 3 && outcome.stderr.contains("BERT in ModelCenter's layout"), "{}", outcome.stderr);
    assert!(!fixture.path("center").exists());
}

#[test]
fn an_export_under_names_of_model_center_is_what_convert_makes_of_the_run() {
    let fixture = Fixture::decoder();
    fixture.finetune(&["--set", "checkpoint.every=1 steps", "--set", "save.which=last"]).succeeded();
    let layout = ["--layout", "model-center", "--dtype", "f32"];
    ckpt(&fixture, &[&["export", "run", "exported"], &layout[..]].concat()).succeeded();
    fixture.convert(&[&["run/model", "converted"], &layout[..]].concat()).succeeded();
    assert!(files(&fixture, "exported").iter().any(|(name, _)| name == "pytorch_model.pt"));
    assert_eq!(files(&fixture, "exported"), files(&fixture, "converted"));
}

#[test]
fn an_export_that_cannot_be_made_leaves_nothing() {
    let fixture = trained();
    fixture.write("full/notes", "mine");
    let refused = |arguments: &[&str], code: i32, text: &str| {
        let outcome = ckpt(&fixture, &[&["export"], arguments].concat());
        assert!(outcome.stderr.contains(text), "{arguments:?}: {}", outcome.stderr);
        assert_eq!(outcome.code, code, "{arguments:?}: {}", outcome.stderr);
    };
    refused(&["run", "full"], 2, "the directory is not empty");
    refused(&["run", "full/notes"], 2, "it is not a directory");
    refused(&["run", "."], 2, "the directory is not empty");
    refused(&["run", "nowhere/out"], 5, "nowhere");
    refused(&["run@77", "out"], 2, "there is no checkpoint here");
    refused(&["run", "out", "--model", "nowhere"], 3, "give its present place with --model");
    // A model that moved.
    std::fs::rename(fixture.path("model"), fixture.path("moved")).unwrap();
    refused(&["run", "out"], 3, "give its present place with --model");
    ckpt(&fixture, &["export", "run", "good", "--model", "moved"]).succeeded();
    // Damage that is found while the model is written.
    let file = format!("run/checkpoints/{}/rank-1.safetensors", name(&fixture, 3));
    let mut bytes = fixture.bytes(&file);
    let last = bytes.len() - 5;
    bytes.iter_mut().skip(last / 2).for_each(|byte| *byte ^= 1);
    fixture.write_bytes(&file, &bytes);
    refused(&["run@3", "out", "--model", "moved"], 4, "its hash differs");
    let left: Vec<_> = std::fs::read_dir(fixture.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("out")), "{left:?}");
}

#[test]
fn mistakes_are_reported_in_one_line() {
    let fixture = trained();
    for (arguments, code, text) in [
        (&["ls", "nowhere"][..], 2, "nowhere"),
        (&["ls", "model"], 2, "there is no checkpoint here"),
        (&["digest", "run@77"], 2, "there is no checkpoint here"),
        (&["reshard", "run", "to", "--ranks", "0"], 2, "cannot write 0 files"),
    ] {
        let outcome = ckpt(&fixture, arguments);
        assert!(outcome.stderr.contains(text), "{arguments:?}: {}", outcome.stderr);
        assert_eq!(outcome.code, code, "{arguments:?}: {}", outcome.stderr);
    }
}
