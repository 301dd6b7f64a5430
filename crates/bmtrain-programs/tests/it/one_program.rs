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

/// Other names of dtypes are answered by the name here, as in a recipe, whatever command has the option.
#[test]
fn other_names_of_dtypes_are_answered_by_the_names_here() {
    let weights = ["generate", "predict", "serve", "evaluate perplexity", "forward", "convert", "ckpt export"];
    let names = [("bfloat16", "bf16"), ("BFLOAT16", "bf16"), ("float16", "f16"), ("fp16", "f16"), ("half", "f16")];
    let names = [&names[..], &[("float32", "f32"), ("fp32", "f32"), ("float", "f32"), ("bf61", "bf16")]].concat();
    let ids = [("u16", "uint16"), ("i32", "int32"), ("unit16", "uint16")];
    let cases = weights.into_iter().chain(["decode-bench"]).map(|command| (command, &names[..]));
    let cases = cases.chain(["corpus build", "corpus convert"].map(|command| (command, &ids[..])));
    for (command, names) in cases.chain([("bench collectives", &names[..1])]) {
        for (given, meant) in names {
            let words: Vec<&str> = command.split(' ').chain(["--dtype", given]).collect();
            let refused = bmtrain(&words);
            let error = String::from_utf8(refused.stderr).unwrap();
            assert_eq!(refused.status.code(), Some(2), "{words:?}: {error}");
            let tip = format!("tip: a similar value exists: '{meant}'");
            assert!(error.contains("--dtype") && error.contains(&tip), "{words:?}: {error}");
        }
    }
    // Nothing is suggested for a word that stands for none.
    let error = String::from_utf8(bmtrain(&["generate", "--dtype", "quick"]).stderr).unwrap();
    assert!(error.contains("possible values: f32, f16, bf16") && !error.contains("tip:"), "{error}");
}

#[test]
fn a_misspelt_instruction_set_is_answered_with_the_right_one() {
    let doctor = |set: &str| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_bmtrain")).arg("doctor").env("BMTRAIN_CPU", set).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for set in ["PORTABLE", "portabel"] {
        let (code, error) = doctor(set);
        assert_eq!(code, Some(2), "{error}");
        let place = format!("  --> device cpu with BMTRAIN_CPU={set}\n  fix: did you mean BMTRAIN_CPU=portable?\n");
        assert!(error.contains(&place) && error.contains("there are portable, neon, neon_bf16"), "{error}");
    }
    let (code, error) = doctor("fastest");
    assert!(code == Some(2) && error.contains("fix: set BMTRAIN_CPU to one of portable, "), "{error}");
}

/// What the sources read of the environment is in the help, apart from switches of kernels and what tests set.
#[test]
fn the_help_names_every_variable_of_bmtrain() {
    let help = printed(&bmtrain(&["doctor", "--help"]));
    let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let (mut read, mut left) = (std::collections::BTreeSet::new(), Vec::new());
    left.extend(["bmtrain-core", "bmtrain-dist", "bmtrain-programs"].map(|name| crates.join(name).join("src")));
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        for rest in text.split("\"BMTRAIN_").skip(1) {
            let name: String = rest.chars().take_while(|c| c.is_ascii_uppercase() || *c == '_').collect();
            if rest[name.len()..].starts_with('"') {
                read.insert(format!("BMTRAIN_{name}"));
            }
        }
    }
    assert!(read.len() >= 8, "{read:?}");
    for name in ["GRAPHS", "KERNEL_EPILOGUES", "TIMED_PRODUCTS", "WARPGROUP_ATTENTION", "WIDE_KEYS", "WIDE_QUERIES"] {
        assert!(read.remove(&format!("BMTRAIN_CUDA_{name}")), "{name}");
    }
    read.retain(|name| !name.starts_with("BMTRAIN_TEST_"));
    let missing: Vec<&String> = read.iter().filter(|name| !help.contains(&format!("  {name} "))).collect();
    assert!(missing.is_empty(), "{missing:?} in {help}");
    // Long help of a command and of one below it; the short one has options alone.
    for words in
        [&["generate", "--help"][..], &["evaluate", "perplexity", "--help"], &["bench", "collectives", "--help"]]
    {
        let help = printed(&bmtrain(words));
        assert!(help.contains("Environment variables:") && help.contains("BMTRAIN_CPU"), "{words:?}: {help}");
    }
    assert!(!printed(&bmtrain(&["generate", "-h"])).contains("BMTRAIN_CPU"));
    assert!(printed(&bmtrain(&["--man"])).contains("BMTRAIN_CPU"));
}
