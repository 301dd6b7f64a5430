//! Limits of the process: where one is reached, a program ends with exit code 5 and the limit's name, never by a
//! signal.

use super::fixture::{Fixture, Outcome};
use crate::fixture::program;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};

const TRAIN: &[&str] =
    &["--recipe", "recipe.toml", "--overwrite", "--set", "device.name=cpu", "--set", "train.micro_batch_size=2"];

/// A program under a limit of the shell, such as `-f 0`.
fn under(fixture: &Fixture, limit: &str, program: &str, arguments: &[&str]) -> Outcome {
    let script = format!("ulimit {limit} && exec \"$0\" \"$@\"");
    fixture.run("sh", &[&["-c", &script, program], arguments].concat())
}

/// Whether a program ended because of a limit; else it has to be done.
fn is_refused(outcome: &Outcome, limit: &str, name: &str) -> bool {
    let Outcome { code, stderr, .. } = outcome;
    assert!(*code == 0 || (*code == 5 && stderr.contains(name)), "{limit}: {code}: {stderr}");
    assert!(!stderr.contains("panicked") && !stderr.contains("defect"), "{limit}: {stderr}");
    *code == 5
}

#[test]
fn a_limit_on_the_size_of_files_is_named() {
    let fixture = Fixture::new();
    for (blocks, ranks) in [("0", "1"), ("0", "2"), ("2", "1"), ("20", "1"), ("120", "2")] {
        let limit = format!("-f {blocks}");
        let outcome = under(&fixture, &limit, program("finetune"), &[TRAIN, &["--ranks", ranks]].concat());
        assert!(is_refused(&outcome, &limit, "RLIMIT_FSIZE"), "{limit}: a model of more bytes was written");
    }
    // Without the limit the last of them is continued.
    let arguments: Vec<&str> = TRAIN.iter().copied().filter(|argument| *argument != "--overwrite").collect();
    fixture.run(program("finetune"), &arguments).succeeded();
}

#[test]
fn a_log_that_may_not_grow_is_no_panic() {
    let fixture = Fixture::new();
    let script = "ulimit -f 0 && exec \"$0\" \"$@\" 2> log";
    // The output directory cannot be written either, which the exit code states.
    let outcome = fixture.run("sh", &[&["-c", script, program("finetune")], TRAIN].concat());
    assert_eq!((outcome.code, fixture.read("log").as_str()), (5, ""));
    let outcome = fixture.run("sh", &["-c", "ulimit -f 0 && exec \"$0\" --help > help", program("finetune")]);
    assert!(outcome.code >= 0, "a signal: {outcome:?}");
}

#[test]
fn a_model_that_is_converted_in_part_is_removed() {
    let fixture = Fixture::new();
    for limit in ["-f 0", "-f 2", "-f 20"] {
        let outcome = under(&fixture, limit, program("convert"), &["model", "out", "--dtype", "f32"]);
        assert!(is_refused(&outcome, limit, "RLIMIT_FSIZE"), "{limit}: a model of more bytes was written");
        assert!(!fixture.path("out").exists(), "{limit}: a part is left");
    }
}

#[test]
fn what_is_written_in_part_has_no_name_and_the_same_command_continues() {
    let fixture = Fixture::decoder();
    let texts: String =
        (0..400).map(|at| format!("the film number {at} was very good and {} of it bad\n", at % 7)).collect();
    fixture.write("texts.txt", &texts);
    std::fs::create_dir(fixture.path("parts")).unwrap();
    let gguf = concat!(env!("CARGO_MANIFEST_DIR"), "/../model-center/tests/golden/gguf/llama.gguf");
    let train = ["train", "texts.txt", "--out", "new", "--vocab-size", "300", "--kind", "word-piece"];
    let split = ["split", "texts.txt", "--split", "8,1,1", "--out", "parts"];
    let commands: [(&str, &[&str], &str); 3] = [
        (program("tokenizer"), &train, "new"),
        (program("corpus"), &split, "parts"),
        (program("convert"), &[gguf, "llama", "--dtype", "f32"], "llama"),
    ];
    for (program, arguments, out) in commands {
        let names = || -> Vec<String> {
            let entries = std::fs::read_dir(fixture.path(out)).into_iter().flatten();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        };
        let mut refused = 0;
        // Some files fit, others do not.
        for blocks in ["0", "1", "4", "16"] {
            let limit = format!("-f {blocks}");
            if !is_refused(&under(&fixture, &limit, program, arguments), &limit, "RLIMIT_FSIZE") {
                break;
            }
            assert!(names().is_empty(), "{out}, {limit}: {:?}", names());
            refused += 1;
        }
        assert!(refused > 1, "{out}: {refused} limits were reached");
        if names().is_empty() {
            fixture.run(program, arguments).succeeded();
        }
        assert!(!names().is_empty(), "{out}");
    }
}

#[test]
fn a_limit_on_the_address_space_is_named_wherever_it_is_reached() {
    let fixture = Fixture::new();
    // Below it the dynamic loader or Rust's runtime fails before `main`, which is not the program's.
    let least = (32..512).find(|mebibytes| {
        let limit = format!("-v {}", mebibytes << 10);
        under(&fixture, &limit, program("finetune"), &["--help"]).code == 0
    });
    let least = least.expect("an address space that --help is printed in");
    let mut refused = 0;
    for more in [1, 2, 4, 8, 16, 24, 130, 260] {
        let limit = format!("-v {}", (least + more) << 10);
        let outcome = under(
            &fixture,
            &limit,
            program("finetune"),
            &[TRAIN, &["--ranks", "2", "--set", "device.threads=2"]].concat(),
        );
        refused += usize::from(is_refused(&outcome, &limit, "RLIMIT_AS"));
    }
    assert!((1..8).contains(&refused), "{refused} of 8 were refused");
}

#[test]
fn weights_beyond_a_limit_are_refused_before_they_are_read() {
    let fixture = Fixture::new();
    // 240 million values.
    fixture.hollow_model(1024, 19, 4096);
    let outcome = under(&fixture, "-v 716800", program("finetune"), TRAIN);
    assert!(is_refused(&outcome, "-v", "RLIMIT_AS"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("the weights alone take 9"), "{}", outcome.stderr);
}

#[test]
fn a_limit_on_processes_is_named_and_ends_all_ranks_at_once() {
    let fixture = Fixture::new();
    // Root is exempt, so the program runs as another user, who needs a program and a directory that are theirs to use.
    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    let open = |path: &str, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    std::fs::copy(program("finetune"), fixture.path("finetune")).unwrap();
    open(fixture.path("finetune").to_str().unwrap(), 0o755);
    open(fixture.path(".").to_str().unwrap(), 0o777);
    let user: &[&str] = if is_root { &["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups"] } else { &[] };
    let available = |program: &str| std::process::Command::new(program).arg("--version").output().is_ok();
    if !available("prlimit") || (is_root && !available("setpriv")) {
        println!("SKIPPED: prlimit or setpriv is missing");
        return;
    }
    // With one, no thread can be started; with two, the first rank waits for one that cannot. Another user's other
    // processes would count too, but then the limit is reached sooner.
    for most in ["1", "2", "3", "5"] {
        let limit = format!("--nproc={most}");
        let began = Instant::now();
        let arguments = [&[&limit[..]], user, &["./finetune"], TRAIN, &["--ranks", "2"]].concat();
        let outcome = fixture.run("prlimit", &arguments);
        assert!(is_refused(&outcome, &limit, "RLIMIT_NPROC"), "{most} threads were enough");
        // Ranks wait 30 seconds for each other.
        assert!(began.elapsed() < Duration::from_secs(20), "{most}: {:?}", began.elapsed());
    }
}
