//! The runs program: lists, reports, exports and the local page of runs that finetune wrote.

use crate::fixture::{Fixture, Outcome, into_outcome, program};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn runs(fixture: &Fixture, arguments: &[&str]) -> Outcome {
    fixture.run(program("runs"), arguments)
}

fn train(fixture: &Fixture, sets: &[&str]) {
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    fixture.finetune(&sets).succeeded();
}

/// A fixture with the finished runs `all/one` and `all/two`.
fn trained() -> Fixture {
    let fixture = Fixture::new();
    std::fs::create_dir(fixture.path("all")).unwrap();
    let base = ["train.steps=4", "log.every=1"];
    train(&fixture, &[&base[..], &["output.dir=all/one", "run.name=first", "run.tags=[\"a\", \"b\"]"]].concat());
    train(&fixture, &[&base[..], &["output.dir=all/two", "train.lr=0.01"]].concat());
    fixture
}

#[test]
fn runs_are_listed_reported_exported_and_followed() {
    let fixture = trained();
    let listed = runs(&fixture, &["list", "--repo", "all"]).succeeded().stdout;
    let lines: Vec<&str> = listed.lines().collect();
    assert_eq!(lines.len(), 3, "{listed}");
    assert!(lines[1].starts_with("one  first  finished  4 ") && lines[1].ends_with("  a, b"), "{listed}");
    let objects = runs(&fixture, &["list", "--repo", "all", "--json"]).succeeded().stdout;
    let first: Value = serde_json::from_str(objects.lines().next().unwrap()).unwrap();
    assert_eq!((&first["name"], &first["step"]), (&Value::from("first"), &Value::from(4)));

    let printed = runs(&fixture, &["report", "all/one", "all/two", "--output", "out.html"]).succeeded().stdout;
    assert_eq!(printed, "out.html\nout.md\nout.json\n");
    let markdown = fixture.read("out.md");
    assert!(markdown.contains("--set output.dir=all/one"), "the command is in the report: {markdown}");
    for phase in ["| forward |", "| backward |", "| optimizer |", "| evaluation |"] {
        assert!(markdown.contains(phase), "{phase}: {markdown}");
    }
    assert!(fixture.read("out.html").contains("<h2>Checkpoints</h2>"));

    let csv = runs(&fixture, &["export", "all/one", "--format", "csv"]).succeeded().stdout;
    assert_eq!(csv.lines().filter(|line| line.starts_with("step,")).count(), 4, "{csv}");
    runs(&fixture, &["export", "all/one", "--format", "tensorboard", "--output", "events"]).succeeded();
    assert!(fixture.path("events/tensorboard").is_dir());
    assert!(runs(&fixture, &["export", "all/one", "--format", "tensorboard"]).refused().contains("--output"));

    let watched = runs(&fixture, &["watch", "all/one", "--last", "2"]).succeeded().stdout;
    assert!(watched.ends_with("finished (steps)\n") && watched.lines().count() == 3, "{watched}");
    assert!(runs(&fixture, &["watch", "model"]).refused().contains("neither run.json nor metrics.jsonl"));
}

#[test]
fn a_note_that_the_device_does_not_multiply_as_asked_is_in_the_log_and_the_dry_run() {
    let fixture = Fixture::new();
    for (products, note) in [
        ("bf16", "changes nothing here: portable does not multiply bf16"),
        ("fp8", "train.products = \"fp8\" is slower here than \"full\": a CPU does not multiply 8-bit numbers"),
    ] {
        let run = |further: &[&str]| {
            let sets = [format!("output.dir={products}"), format!("train.products={products}")];
            let sets = sets.each_ref().map(String::as_str);
            let child =
                fixture.start_launched("BMTRAIN_CPU=portable", &[&sets[..], &["--device=cpu"], further].concat());
            into_outcome(child.wait_with_output().unwrap()).succeeded()
        };
        assert!(run(&["--dry-run"]).stderr.contains(note));
        let outcome = run(&[]);
        assert_eq!(outcome.stderr.matches(note).count(), 1, "{}", outcome.stderr);
        assert!(fixture.read(&format!("{products}/log.txt")).contains(note));
    }
}

#[test]
fn a_text_log_has_command_steps_and_phases() {
    let fixture = trained();
    let log = fixture.read("all/one/log.txt");
    for part in [
        "Z command: ",
        "Z step 1/4 ",
        "Z before training: ",
        "Z time of the run: ",
        "Z   steps",
        "ended after step 4: steps",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
    train(&fixture, &["train.steps=2", "output.dir=plain", "log.tensorboard=false", "log.quiet=true"]);
    assert!(!fixture.path("plain/tensorboard").exists());
    assert!(fixture.read("plain/log.txt").contains("Z step 1/2 "), "a quiet run has a log too");
}

#[test]
fn a_resumed_run_has_a_second_event_file_and_overwriting_removes_all() {
    let fixture = Fixture::new();
    let sets = ["--set", "train.steps=4", "--set", "log.every=1", "--set", "output.dir=run"];
    let stopped = fixture.finetune(&[&sets[..], &["--exit-after-steps", "2"]].concat());
    assert_eq!(stopped.code, 75, "{stopped:?}");
    let listed = runs(&fixture, &["list", "--repo", "."]).succeeded().stdout;
    assert!(listed.contains("stopped"), "{listed}");
    fixture.finetune(&sets).succeeded();
    let files = || std::fs::read_dir(fixture.path("run/tensorboard")).unwrap().count();
    assert_eq!(files(), 2);
    fixture.finetune(&[&sets[..], &["--overwrite"]].concat()).succeeded();
    assert_eq!(files(), 1);
    assert_eq!(fixture.read("run/log.txt").matches("command: ").count(), 1);
}

/// `runs serve` on a free port, which ends with the test.
struct Page {
    process: Child,
    port: u16,
}

impl Page {
    fn of(root: &Path, arguments: &[&str]) -> Page {
        let mut process = Command::new(program("runs"))
            .args(["serve", "--port", "0", "--repo"])
            .arg(root)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim_end().trim_end_matches('/').rsplit(':').next().unwrap().parse().unwrap();
        Page { process, port }
    }

    /// Status line, headers and body of the response.
    fn ask(&self, request: &str, headers: &[&str]) -> (u16, String, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let lines: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        write!(stream, "{request} HTTP/1.1\r\n{lines}\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), head.to_owned(), body.to_owned())
    }

    fn get(&self, target: &str) -> (u16, String) {
        let (status, _, body) = self.ask(&format!("GET {target}"), &[&format!("Host: localhost:{}", self.port)]);
        (status, body)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn the_page_shows_runs_and_deletes_with_its_token_alone() {
    let fixture = trained();
    let page = Page::of(&fixture.path("all"), &[]);
    let (status, head, body) = page.ask("GET /", &["Host: 127.0.0.1"]);
    assert_eq!(status, 200);
    assert!(head.contains("Content-Security-Policy: default-src 'none'; script-src 'self'"), "{head}");
    let token = body.split_once("name=\"runs-token\" content=\"").unwrap().1.split('"').next().unwrap().to_owned();
    assert_eq!(token.len(), 32);
    let runs: Value = serde_json::from_str(&page.get("/api/runs").1).unwrap();
    assert_eq!(
        (&runs["runs"][0]["name"], &runs["runs"][0]["state"]),
        (&Value::from("first"), &Value::from("finished"))
    );
    let curves: Value = serde_json::from_str(&page.get("/api/curves?id=one&tags=train/loss").1).unwrap();
    assert_eq!(curves["streams"]["train"]["step"], serde_json::json!([1, 2, 3, 4]));
    assert!(page.get("/api/report?id=one&id=two").1.contains("<h2>Verdict</h2>"));
    assert!(page.get("/api/export?id=one").1.starts_with("kind,step,"));
    let details: Value = serde_json::from_str(&page.get("/api/run?id=two").1).unwrap();
    assert_eq!(details["settings"]["train.lr"], "0.01");

    // Paths that lead elsewhere, other hosts, other sites.
    for target in [
        "/api/run?id=../one",
        "/api/run?id=%2e%2e/all/one",
        "/api/run?id=/etc",
        "/../../etc/passwd",
        "/api/report?id=x",
    ] {
        assert_eq!(page.get(target).0, 404, "{target}");
    }
    assert_eq!(page.ask("GET /api/runs", &["Host: evil.example"]).0, 403);
    let host = format!("Host: localhost:{}", page.port);
    let with = |headers: &[&str]| page.ask("POST /api/delete?id=one", &[&[host.as_str()], headers].concat()).0;
    assert_eq!(with(&[]), 403);
    assert_eq!(with(&["X-Runs-Token: 00"]), 403);
    let own = format!("X-Runs-Token: {token}");
    assert_eq!(with(&[&own, "Origin: http://evil.example"]), 403);
    assert!(fixture.path("all/one/metrics.jsonl").exists());
    assert_eq!(with(&[&own]), 200);
    assert!(!fixture.path("all/one").exists());
    assert_eq!(with(&[&own]), 404);

    let read_only = Page::of(&fixture.path("all"), &["--read-only"]);
    let (_, _, body) = read_only.ask("GET /", &["Host: localhost"]);
    assert!(body.contains("name=\"runs-token\" content=\"\""));
    assert_eq!(read_only.ask("POST /api/delete?id=two", &["Host: localhost", "X-Runs-Token: "]).0, 403);
}
