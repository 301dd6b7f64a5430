//! The ckpt program: its reports on sound and on damaged checkpoints.

use crate::fixture::{Fixture, Outcome};

fn ckpt(fixture: &Fixture, arguments: &[&str]) -> Outcome {
    fixture.run(env!("CARGO_BIN_EXE_ckpt"), arguments)
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
