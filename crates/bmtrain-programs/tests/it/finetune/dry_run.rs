//! Dry runs: the device is opened, and every mistake is reported beside what is wrong with the output directory.

use super::{Fixture, train};
use crate::fixture::program;

/// A device that no machine has, whether it has a driver or not.
const DEVICE: [&str; 2] = ["--device", "cuda:4096"];

#[test]
fn a_dry_run_opens_the_device_and_reports_it_as_the_run_does() {
    let fixture = Fixture::new();
    let run = fixture.finetune(&DEVICE).refused();
    let dry = fixture.finetune(&[&DEVICE[..], &["--dry-run"]].concat()).refused();
    assert!(dry.contains("error[device]: ") && dry.contains("device cuda:4096"), "{dry}");
    assert_eq!(dry, run);
    let tokens = crate::pretrain::fixture();
    let pretrain = |further: &[&str]| {
        let arguments = [&["--recipe", "recipe.toml"], &DEVICE[..], further].concat();
        tokens.run(program("pretrain"), &arguments).refused()
    };
    assert_eq!(pretrain(&["--dry-run"]), pretrain(&[]));
}

#[test]
fn a_dry_run_lists_what_does_not_fit_together_and_not_the_first_alone() {
    let fixture = Fixture::new();
    let sets = ["train.batch_size=64", "data.class_weights={unheard=2}", "data.max_length=200"];
    let arguments: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).chain(DEVICE).collect();
    let dry = fixture.finetune(&[&arguments[..], &["--dry-run"]].concat()).refused();
    for part in ["16 samples do not fill", "unheard", "data.max_length is 200", "error[device]", "4 mistakes"] {
        assert!(dry.contains(part), "no {part:?} in {dry}");
    }
    // Files that are missing are found before the rest.
    let dry = fixture.finetune(&[&["--dry-run", "--set", "data.train=none.jsonl"], &DEVICE[..]].concat()).refused();
    for part in ["cannot open none.jsonl", "error[device]", "2 mistakes"] {
        assert!(dry.contains(part), "no {part:?} in {dry}");
    }
}

#[test]
fn a_dry_run_beside_an_earlier_run_reports_the_mistakes_of_the_recipe_too() {
    let fixture = Fixture::new();
    train(&fixture, "run", &[]);
    let before = fixture.snapshot();
    let other_run = "the output directory holds the run of another recipe";
    for (set, mistake) in [
        ("data.columns.text=body", "body"),
        ("data.labels=[\"positive\", \"neutral\"]", "negative"),
        ("train.batch_size=64", "16 samples do not fill"),
        ("data.train=none.jsonl", "cannot open none.jsonl"),
    ] {
        let dry = fixture.finetune(&["--dry-run", "--set", set]).refused();
        for part in [mistake, other_run, "2 mistakes", "mend the other mistakes first"] {
            assert!(dry.contains(part), "{set}: no {part:?} in {dry}");
        }
        assert!(!dry.contains("--accept-change"), "{set}: {dry}");
    }
    // A setting without a mistake may be accepted.
    let dry = fixture.finetune(&["--dry-run", "--set", "train.lr=2e-3"]).refused();
    assert!(dry.contains(other_run) && dry.contains("--accept-change"), "{dry}");
    // The run itself looks at its directory first, and names the dry run.
    let run = fixture.finetune(&["--set", "data.columns.text=body"]).refused();
    assert!(run.contains(other_run) && run.contains("--dry-run checks the changed settings"), "{run}");
    // A finished run does not hide what is wrong.
    let dry = fixture.finetune(&[&["--dry-run"], &DEVICE[..]].concat()).refused();
    assert!(dry.contains("the run in this directory is finished") && dry.contains("error[device]"), "{dry}");
    assert_eq!(fixture.snapshot(), before);
}

#[test]
fn a_dry_run_refuses_what_the_run_would_and_in_the_same_words() {
    let fixture = Fixture::new();
    let adapter = ["adapter.method=ia3", "save.which=last", "train.steps=1"];
    train(&fixture, "tuned", &adapter);
    let saved = ["--set", "adapter.path=tuned/model", "--set", "adapter.method=lora"];
    for (arguments, mistake) in [
        (&["--set", "train.only=[\"hed.*\"]"][..], "no parameter of the model is called \"hed.*\""),
        (&["--set", "train.frozen=[\"*\"]"], "no parameter of the model is trained"),
        (&["--set", "train.groups=[{ params = [\"hed\"], lr_factor = 2.0 }]"], "no parameter of the model is called"),
        (&saved, "the directory of adapter.path has an adapter of method \"ia3\""),
        (&["--set", "model.path=tuned/model"], "is the PEFT directory of an adapter"),
        (&["--set", "model.path=tuned"], "this is the directory of a run"),
        (&["--set", "train.loss_scale_start=8"], "scales for model.dtype = \"f16\" alone"),
        // These runs leave their directories.
        (&["--resume", "must"], "there is no checkpoint to go on from"),
        (&["--init-from", "none"], "none"),
    ] {
        let run = fixture.finetune(arguments).refused();
        let dry = fixture.finetune(&[arguments, &["--dry-run"]].concat()).refused();
        assert!(dry.contains(mistake), "{arguments:?}: no {mistake:?} in {dry}");
        // A run reports its data before it looks for checkpoints.
        assert!(run.ends_with(&dry), "{arguments:?}: {dry} is not the end of {run}");
    }
    let dry = fixture.finetune(&["--dry-run", "--set", "train.only=[\"hed.*\"]"]).refused();
    assert!(dry.contains("--> --set train.only") && dry.contains("cls_projection"), "{dry}");
}
