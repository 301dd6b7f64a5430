//! Full disks and killed builds.

use super::{BUILD, corpus, with_texts};
use crate::fixture;
use crate::fixture::program;
use fixture::into_outcome;
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn a_full_disk_ends_cleaning_in_one_line_and_it_continues() {
    let fixture = with_texts();
    let clean = ["clean", "texts.jsonl", "--out", "clean"];
    // Files of at most half a kibibyte or one: the records do not fit.
    let script = "ulimit -f 1 && exec \"$0\" \"$@\"";
    let program = program("corpus");
    let outcome = fixture.run("sh", &[&["-c", script, program][..], &clean[..]].concat());
    assert_eq!(outcome.code, 5, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("cannot write") && outcome.stderr.contains("fix: "), "{}", outcome.stderr);
    assert!(!fixture.path("clean/documents.jsonl").exists());
    corpus(&fixture, &clean).succeeded();
    assert!(fixture.path("clean/documents.jsonl").exists() && !fixture.path("clean/.clean").exists());
}

#[test]
fn a_disk_that_fills_ends_a_build_and_the_same_command_builds_the_same_bytes() {
    let fixture = with_texts();
    corpus(&fixture, &["build", "texts.jsonl", "--tokenizer", "model", "--out", "whole"]).succeeded();
    let program = program("corpus");
    for blocks in ["0", "1", "4"] {
        let script = format!("ulimit -f {blocks} && exec \"$0\" \"$@\"");
        let outcome = fixture.run("sh", &[&["-c", &script, program], &BUILD[..]].concat());
        assert!(outcome.code == 5 && outcome.stderr.contains("RLIMIT_FSIZE"), "{blocks}: {outcome:?}");
        assert!(!fixture.path("c.idx").exists() && !fixture.path("c.bin").exists(), "{blocks}");
    }
    corpus(&fixture, &BUILD).succeeded();
    for ending in ["bin", "idx"] {
        assert_eq!(fixture.bytes(&format!("c.{ending}")), fixture.bytes(&format!("whole.{ending}")));
    }
    // A conversion that is refused its bytes leaves nothing that can be taken for a corpus.
    for (format, out) in [("npy", "npy"), ("blocks", "blocks"), ("tfrecord", "c.tfrecord")] {
        let script = "ulimit -f 1 && exec \"$0\" \"$@\"";
        let outcome = fixture.run("sh", &["-c", script, program, "convert", "c", out, "--to", format]);
        assert_eq!(outcome.code, 5, "{format}: {outcome:?}");
        assert!(!fixture.path(out).exists(), "{format}");
        assert_eq!(corpus(&fixture, &["info", out]).code, 3, "{format}");
        corpus(&fixture, &["convert", "c", out, "--to", format]).succeeded();
    }
}

#[test]
fn a_killed_build_that_is_repeated_gives_the_same_bytes() {
    let fixture = with_texts();
    let text = fixture.read("texts.jsonl").repeat(20);
    fixture.write("texts.jsonl", &text);
    corpus(&fixture, &["build", "texts.jsonl", "--tokenizer", "model", "--out", "whole"]).succeeded();
    for milliseconds in [0, 10, 25, 50] {
        let mut command = Command::new(program("corpus"));
        command.args(BUILD).current_dir(fixture.path("")).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(milliseconds));
        child.kill().unwrap();
        let outcome = into_outcome(child.wait_with_output().unwrap());
        // A fast machine may have been done.
        if outcome.code != 0 {
            assert!(!fixture.path("c.idx").exists(), "{milliseconds}");
            corpus(&fixture, &BUILD).succeeded();
        }
        for ending in ["bin", "idx"] {
            let path = fixture.path(&format!("c.{ending}"));
            assert!(std::fs::read(&path).unwrap() == fixture.bytes(&format!("whole.{ending}")), "{milliseconds}");
            std::fs::remove_file(path).unwrap();
        }
    }
}
