//! The walk through a training step in `docs/training-step.md` holds in the sources: every function of the table is in
//! its file and calls the next one.

use std::path::Path;

/// A function of the walk.
struct Stop {
    row: usize,
    file: String,
    function: String,
}

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The rows `| N | `file`: `function`, .. | .. |`.
fn walk() -> Vec<Stop> {
    let mut stops = Vec::new();
    for line in read("docs/training-step.md").lines() {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let Some(Ok(row)) = cells.next().map(str::parse::<usize>) else { continue };
        let mut names = cells.next().unwrap().split('`').skip(1).step_by(2);
        let file = names.next().expect("a file").to_owned();
        stops.extend(names.map(|name| Stop { row, file: file.clone(), function: name.to_owned() }));
    }
    stops
}

/// The bodies of all functions of this name in a source, which rustfmt has indented.
fn bodies(source: &str, function: &str) -> Vec<String> {
    let lines: Vec<&str> = source.lines().collect();
    let is_definition = |line: &str| {
        let rest = line.trim_start().split("fn ").nth(1).unwrap_or_default();
        !line.trim_start().starts_with("//")
            && rest.strip_prefix(function).is_some_and(|rest| rest.starts_with(['(', '<']))
    };
    let body = |start: usize| {
        let indent = lines[start].len() - lines[start].trim_start().len();
        let end = (start..lines.len()).find(|at| {
            let line = lines[*at];
            line.len() - line.trim_start().len() == indent && line.trim_start().starts_with('}')
        });
        lines[start + 1..=end.unwrap_or(start)].join("\n")
    };
    (0..lines.len()).filter(|at| is_definition(lines[*at]) && !lines[*at].ends_with(';')).map(body).collect()
}

/// Whether a body names a function as one that is called or passed on: `name(`, `.name(`, `name,` or `name)`.
fn calls(body: &str, function: &str) -> bool {
    body.match_indices(function).any(|(at, _)| {
        let before = body[..at].chars().next_back();
        let after = body[at + function.len()..].chars().next();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_') && after.is_some_and(|c| "(,)".contains(c))
    })
}

#[test]
fn every_function_of_the_walk_calls_the_next_one() {
    let stops = walk();
    assert_eq!(stops.first().map(|stop| stop.function.as_str()), Some("finetune"));
    assert_eq!(stops.last().map(|stop| stop.function.as_str()), Some("gemm"));
    for pair in stops.windows(2) {
        let (here, next) = (&pair[0], &pair[1]);
        assert!(next.row == here.row || next.row == here.row + 1, "row {} follows row {}", next.row, here.row);
        let bodies = bodies(&read(&here.file), &here.function);
        assert!(!bodies.is_empty(), "{} has no function {}", here.file, here.function);
        assert!(
            bodies.iter().any(|body| calls(body, &next.function)),
            "{} in {} does not call {} of {}",
            here.function,
            here.file,
            next.function,
            next.file
        );
    }
    let last = stops.last().unwrap();
    assert!(!bodies(&read(&last.file), &last.function).is_empty(), "{} has no function {}", last.file, last.function);
    // Read by the claim `step-path`.
    let mut files: Vec<&str> = stops.iter().map(|stop| stop.file.as_str()).collect();
    files.dedup();
    let gemm = files.iter().position(|file| *file == "crates/bmtrain-core/src/ops/gemm.rs").expect("the GEMM");
    assert!(gemm < 9, "{} files to the GEMM", gemm + 1);
    println!("figure: {} files to the GEMM, {} to the kernel of the CPU", gemm + 1, files.len());
}

#[test]
fn a_call_that_is_not_there_is_noticed() {
    let source = "fn a(x: u8) {\n    b(x);\n    other_b(x);\n}\n\nfn b() {\n    // c is next\n}\n";
    assert!(calls(&bodies(source, "a")[0], "b"));
    assert!(!calls(&bodies(source, "a")[0], "c"));
    assert!(!calls(&bodies(source, "b")[0], "c"));
    assert!(bodies(source, "c").is_empty());
}
