//! The program `bmtrain`: its subcommands, links to it, and what it answers to a wrong name.

use crate::fixture::program;
use std::process::{Command, Output};

/// The names that programs had before they were subcommands.
const FORMER: [&str; 21] = [
    "bench",
    "ckpt",
    "convert",
    "corpus",
    "data",
    "decode_bench",
    "doctor",
    "evaluate",
    "fetch",
    "finetune",
    "forward",
    "generate",
    "import",
    "init",
    "plan",
    "predict",
    "pretrain",
    "runs",
    "serve",
    "simulate",
    "tokenizer",
];

fn bmtrain(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bmtrain")).args(arguments).output().unwrap()
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn every_former_program_is_a_subcommand_and_a_link() {
    for name in FORMER {
        let help = printed(&bmtrain(&[name, "--help"]));
        assert!(help.contains(&format!("Usage: bmtrain {name}")), "{name}: {help}");
        assert_eq!(printed(&bmtrain(&["help", name])), help, "{name}");
        let linked = printed(&Command::new(program(name)).arg("--help").output().unwrap());
        assert!(linked.contains(&format!("Usage: {name}")), "{name}: {linked}");
    }
}

#[test]
fn the_help_lists_every_subcommand_in_a_line() {
    let help = printed(&bmtrain(&["--help"]));
    assert_eq!(printed(&bmtrain(&["help"])), help);
    for name in FORMER.map(|name| name.replace('_', "-")).iter().map(String::as_str).chain(["chat"]) {
        let names = |line: &&str| line.trim_start().strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', ',']));
        let line = help.lines().find(names);
        assert!(line.is_some_and(|line| line.len() > 25), "{name}: {help}");
    }
    let usage = bmtrain(&[]);
    assert_eq!((usage.status.code(), usage.stderr), (Some(2), help.into_bytes()));
}

#[test]
fn a_wrong_name_is_answered_with_the_near_one() {
    let refused = bmtrain(&["finetun", "--recipe", "r.toml"]);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(error.contains("there is no such subcommand") && error.contains("bmtrain finetune"), "{error}");
}

#[test]
fn other_names_and_what_is_for_the_shell() {
    let own = |help: String| help.lines().skip(3).map(str::to_owned).collect::<Vec<_>>();
    assert!(printed(&bmtrain(&["train", "--help"])).contains("Usage: bmtrain train"));
    assert!(own(printed(&bmtrain(&["chat", "--help"]))).iter().any(|line| line.contains("--chat")));
    assert!(printed(&bmtrain(&["--version"])).starts_with("bmtrain "));
    let completions = printed(&bmtrain(&["--completions", "bash"]));
    assert!(FORMER.iter().all(|name| completions.contains(name)));
    let manual = printed(&bmtrain(&["--man"]));
    assert!(manual.contains("bmtrain finetune") && manual.contains("bmtrain serve"));
}

#[test]
fn what_is_for_the_shell_is_the_subcommands_too() {
    for name in ["chat", "finetune", "corpus"] {
        assert!(printed(&bmtrain(&[name, "--completions", "fish"])).contains("complete"), "{name}");
        assert!(printed(&bmtrain(&[name, "--man"])).contains(".SH"), "{name}");
    }
}
