//! The bench program: what it prints for threads, processes and a launcher's ranks, and what it refuses.

use crate::fixture::program;
use std::process::{Command, Output, Stdio};

fn bench() -> Command {
    let mut command = Command::new(program("bench"));
    command.args(["collectives", "--size", "4KiB,64KiB", "--repeat", "3", "--warm-up", "1"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn printed(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_operation_and_size_has_a_line() {
    for kind in [&["--ranks", "3"][..], &["--ranks", "2", "--processes"]] {
        let text = printed(bench().args(kind).output().unwrap());
        let lines: Vec<Vec<&str>> = text.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines.len(), 12, "{text}");
        for line in &lines {
            let figures: Vec<f64> = line[3..].iter().map(|figure| figure.parse().unwrap()).collect();
            let [_, bus, median, min, max] = figures[..] else { panic!("{text}") };
            assert!(bus >= 0.0 && 0.0 < min && min <= median && median <= max, "{text}");
        }
        for name in ["all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all", "send/recv"] {
            assert_eq!(lines.iter().filter(|line| line[0] == name).count(), 2, "{text}");
        }
    }
}

#[test]
fn groups_of_ranks_are_measured_and_have_to_divide_them() {
    let only = ["--ranks", "4", "--only", "all_reduce", "--json", "--group"];
    let text = printed(bench().args(only).arg("2").output().unwrap());
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() == 2 && lines.iter().all(|line| line["ranks"] == 2), "{text}");
    // 4 ranks as 2 stages of 2 tensor-parallel ranks, or 2 x 2 data-parallel ones.
    let mesh = |group: &str, more: &[&str]| bench().args(only).arg(group).args(more).output().unwrap();
    for (group, more) in [
        ("tensor", &["--tensor", "2", "--pipeline", "2"][..]),
        ("pipeline", &["--tensor", "2", "--pipeline", "2"]),
        ("data", &["--tensor", "2"]),
    ] {
        let text = printed(mesh(group, more));
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(lines.len() == 2 && lines.iter().all(|line| line["ranks"] == 2), "{text}");
    }
    for (group, more, reason) in [
        ("pipeline", &[][..], "this group has one rank"),
        ("data", &["--tensor", "3"], "4 ranks cannot be divided by 1 pipeline x 3 tensor ranks"),
        ("2", &["--tensor", "2"], "--tensor and --pipeline are for groups of a mesh"),
        ("experts", &[], "tensor, data or pipeline"),
    ] {
        let output = mesh(group, more);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains(reason), "{message}");
    }
    for size in ["1", "3", "8"] {
        let output = bench().args(only).arg(size).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains(&format!("4 ranks cannot be divided into groups of {size}")), "{message}");
    }
}

#[test]
fn json_has_a_line_for_each_figure_and_only_chooses() {
    let text =
        printed(bench().args(["--ranks", "2", "--only", "all_reduce", "--dtype", "bf16", "--json"]).output().unwrap());
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.iter().map(|line| line["bytes"].as_u64().unwrap()).collect::<Vec<_>>(), [4096, 65536]);
    for line in lines {
        assert_eq!((line["operation"].as_str(), line["ranks"].as_u64()), (Some("all_reduce"), Some(2)));
        let seconds = |name: &str| line[name].as_f64().unwrap();
        assert!(seconds("min_s") <= seconds("median_s") && seconds("median_s") <= seconds("max_s"));
        let algorithm = line["bytes"].as_f64().unwrap() / seconds("median_s");
        assert!((seconds("algorithm_bytes_per_s") / algorithm - 1.0).abs() < 1e-9);
    }
}

#[test]
fn processes_of_a_launcher_are_the_ranks() {
    let job = format!("bench-test-{}", std::process::id());
    let start = |rank: &str| {
        let variables = [("RANK", rank), ("WORLD_SIZE", "2"), ("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", "2")];
        bench().envs(variables).env("BMTRAIN_JOB", &job).args(["--only", "broadcast"]).spawn().unwrap()
    };
    let messages: Vec<String> =
        ["0", "1"].map(start).into_iter().map(|child| printed(child.wait_with_output().unwrap())).collect();
    assert!(messages[0].starts_with("2 processes") && messages[0].lines().count() == 4, "{}", messages[0]);
    assert_eq!(messages[1], "", "one rank speaks");
}

#[test]
fn mistakes_on_the_command_line_are_refused_with_a_reason() {
    for (arguments, reason) in [
        (&["--ranks", "1"][..], "a collective needs at least two ranks"),
        (&["--ranks", "2", "--size", "big"], "expected bytes"),
        (&["--ranks", "2", "--chunk", "5"], "multiple of 4096"),
        (
            &["--ranks", "2", "--only", "all_sum"],
            "all_gather, reduce_scatter, all_reduce, broadcast, all_to_all, send/recv",
        ),
        (&["--ranks", "2", "--repeat", "0"], "1..=1000000"),
        (&["--ranks", "2", "--repeat", "18446744073709551615"], "1..=1000000"),
        (&["--ranks", "2", "--warm-up", "18446744073709551615"], "0..=1000000"),
        (&["--ranks", "2", "--comm", "mpi"], "MPI"),
        (&["--ranks", "2", "--processes", "--comm", "mpi"], "share memory"),
    ] {
        let output = Command::new(program("bench")).arg("collectives").args(arguments).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(reason), "{error}");
        assert!(!error.contains("panicked") && output.stdout.is_empty(), "{error}");
    }
}

#[test]
fn ranks_on_several_hosts_are_told_what_they_need() {
    let variables = [("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")];
    let output =
        bench().envs(variables).envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29555")]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("2 ranks on 2 hosts") && error.contains("mpirun"), "{error}");
}
