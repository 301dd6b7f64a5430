//! Looking at runs: directories of runs that were finished, stopped, cut off and tampered with.

use bmtrain_programs::runs::{
    ExportFormat, INDEX_FILE, Index, LineReader, Report, Repository, Run, RunDirectory, RunState, export, write_csv,
};
use model_center::run::{EventLog, IfThere, OutputDirectory, TENSORBOARD_DIRECTORY};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

const HASH: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const HOSTILE: &str = "<img src=x onerror=alert(1)>|*`</script>";

fn start() -> String {
    "{\"kind\":\"start\",\"version\":\"0.1.0\",\"recipe_hash\":\"ab\",\"parameters\":22,\"train_samples\":9,\
     \"steps_per_epoch\":10,\"time\":{\"unix_seconds\":1000.0,\"threads\":2,\"ranks\":1}}\n"
        .to_owned()
}

fn step(step: u64, loss: &str, seconds: f64) -> String {
    format!(
        "{{\"kind\":\"step\",\"step\":{step},\"epoch\":0.1,\"loss\":{loss},\"grad_norm\":1.0,\"lr\":0.1,\
         \"samples\":{step},\"tokens\":{},\"batch\":\"00\",\"time\":{{\"seconds\":{seconds:?},\"tokens_per_s\":5.0,\
         \"step_seconds\":0.5,\"forward_seconds\":0.25,\"rss_bytes\":7,\"peak_rss_bytes\":8}}}}\n",
        10 * step
    )
}

fn resume(step: u64) -> String {
    format!(
        "{{\"kind\":\"resume\",\"step\":{step},\"checkpoint\":\"step-{step}\",\"passed_over\":0,\"changed\":\"\",\
         \"time\":{{\"unix_seconds\":2000.0,\"ranks\":1}}}}\n"
    )
}

fn end(step: u64, reason: &str) -> String {
    format!("{{\"kind\":\"end\",\"step\":{step},\"reason\":\"{reason}\",\"time\":{{\"seconds\":9.0}}}}\n")
}

/// A run's directory with these metrics.
fn run(root: &Path, id: &str, metrics: &str) -> PathBuf {
    let path = root.join(id);
    let mut output = OutputDirectory::create(&path, HASH, IfThere::Refuse).unwrap();
    output
        .write("recipe.toml", b"[train]\nlr = 0.1\nsteps = 4\n\n[run]\nname = \"a name\"\ntags = [\"x\", \"y\"]\n")
        .unwrap();
    drop(output.metrics("metrics.jsonl").unwrap());
    fs::write(path.join("metrics.jsonl"), metrics).unwrap();
    path
}

fn append(path: &Path, text: &str) {
    let mut file = fs::OpenOptions::new().append(true).open(path.join("metrics.jsonl")).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

fn index(path: &Path) -> Index {
    Index::update(&RunDirectory::open(path).unwrap()).unwrap()
}

fn steps_of(path: &Path) -> Vec<u64> {
    let mut reader = LineReader::open(&path.join("metrics.jsonl")).unwrap();
    let mut steps = Vec::new();
    while let Some(record) = reader.advance().unwrap() {
        steps.extend(record["step"].as_u64().filter(|_| record["kind"] == "step"));
    }
    steps
}

#[test]
fn runs_are_found_with_their_names_tags_and_states() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path();
    run(root, "a/finished", &(start() + &step(4, "0.5", 1.0) + &end(4, "steps")));
    run(root, "a/stopped", &(start() + &end(2, "request")));
    run(root, "b/diverged", &(start() + &end(2, "diverged")));
    run(root, "b/killed", &(start() + &step(1, "0.5", 1.0)));
    fs::create_dir_all(root.join("b/other/.hidden")).unwrap();
    // Only metrics, as after a copy; what is below a run is not another one.
    fs::create_dir_all(root.join("copied/below")).unwrap();
    fs::write(root.join("copied/metrics.jsonl"), start()).unwrap();
    fs::write(root.join("copied/below/metrics.jsonl"), start()).unwrap();
    std::os::unix::fs::symlink(root.join("a"), root.join("link")).unwrap();
    let holder = OutputDirectory::create(&root.join("b/running"), HASH, IfThere::Refuse).unwrap();
    let mut runs = Repository::new(root);
    assert_eq!(runs.refresh().unwrap(), 5, "with metrics");
    let found: Vec<(&str, RunState, &str)> =
        runs.runs().iter().map(|run| (run.directory.id.as_str(), run.state, run.reason.as_str())).collect();
    let expected = [
        ("a/finished", RunState::Finished, "steps"),
        ("a/stopped", RunState::Stopped, "request"),
        ("b/diverged", RunState::Crashed, "diverged"),
        ("b/killed", RunState::Crashed, "its end is not recorded"),
        ("b/running", RunState::Running, ""),
        ("copied", RunState::Crashed, "its end is not recorded"),
    ];
    assert_eq!(found, expected);
    let first = runs.get("a/finished").unwrap();
    assert_eq!((first.recipe.name.as_str(), first.recipe.tags.len()), ("a name", 2));
    assert_eq!(first.recipe.values["train.lr"], "0.1");
    assert_eq!((first.summary.step, first.summary.loss), (4, Some(0.5)));
    assert_eq!(runs.get("copied").unwrap().recipe.name, "copied");
    assert!(runs.get("../a").is_none() && runs.get("a/../a/finished").is_none());
    assert_eq!(runs.refresh().unwrap(), 0, "nothing is new");
    drop(holder);
}

#[test]
fn what_a_resume_overtook_is_left_out_however_the_file_is_read() {
    let temp = tempfile::tempdir().unwrap();
    let parts = [
        start() + &step(1, "4.0", 1.0) + &step(2, "3.0", 2.0) + &step(3, "9.0", 3.0) + &end(3, "request"),
        resume(2) + &step(3, "2.5", 1.0) + &step(4, "2.0", 2.0),
        resume(1) + &step(2, "2.75", 0.5),
        step(3, "\"NaN\"", 1.5) + &end(3, "steps"),
    ];
    let path = run(temp.path(), "run", "");
    for part in &parts {
        append(&path, part);
        index(&path);
    }
    assert_eq!(steps_of(&path), [1, 2, 3]);
    let followed = index(&path);
    fs::remove_file(path.join(INDEX_FILE)).unwrap();
    let anew = index(&path);
    assert_eq!(followed, anew);
    let summary = anew.records();
    assert_eq!((summary.step, summary.resumes, summary.end_reason.as_deref()), (3, 2, Some("steps")));
    // One second up to step 1; the process of the second resume took 9 in all.
    assert_eq!(summary.seconds, 1.0 + 9.0);
    let (stream, series) = anew.curves.series("train/loss").unwrap();
    assert_eq!(stream.step, [1, 2, 3]);
    assert_eq!(series.last, [Some(4.0), Some(2.75), None]);
    assert_eq!(summary.phases["forward"], 0.75);
}

#[test]
fn an_index_is_made_anew_where_it_is_damaged_stale_or_another_runs() {
    let temp = tempfile::tempdir().unwrap();
    let path = run(temp.path(), "run", &(start() + &step(1, "4.0", 1.0)));
    let sound = index(&path);
    let file = path.join(INDEX_FILE);
    let text = fs::read(&file).unwrap();
    let flipped: Vec<u8> = text.iter().map(|byte| if *byte == b'4' { b'5' } else { *byte }).collect();
    for damaged in [b"".as_slice(), b"{}\n{}\n", text.get(..text.len() / 2).unwrap(), &flipped] {
        fs::write(&file, damaged).unwrap();
        assert_eq!(index(&path), sound);
    }
    // Another run took the directory, whose metrics are longer.
    fs::write(
        path.join("metrics.jsonl"),
        start().replace("1000.0", "7000.0") + &step(1, "1.0", 1.0) + &step(2, "1.0", 2.0),
    )
    .unwrap();
    assert_eq!(index(&path).curves.series("train/loss").unwrap().1.last, [Some(1.0), Some(1.0)]);
    // A line that is being written counts once it is whole; other lines are counted.
    append(&path, "nonsense\n{\"kind\":\"step\",\"step\":3,");
    let partial = index(&path);
    assert_eq!((partial.records().step, partial.damaged_lines()), (2, 1));
    append(&path, "\"loss\":0.5}\n");
    assert_eq!(index(&path).records().loss, Some(0.5));
}

#[test]
fn a_run_is_deleted_with_what_it_wrote_and_nothing_else() {
    let temp = tempfile::tempdir().unwrap();
    let path = run(temp.path(), "run", &(start() + &end(1, "steps")));
    let mut output = OutputDirectory::create(&path, HASH, IfThere::Continue { accept_change: false }).unwrap();
    let events = output.subdirectory(TENSORBOARD_DIRECTORY).unwrap();
    EventLog::create(&events, 1.0, &[], "").unwrap();
    output.text_log().unwrap().write("a line");
    index(&path);
    let directory = RunDirectory::open(&path).unwrap();
    let refused = directory.delete().unwrap_err().to_string();
    assert!(refused.contains("a process is writing this run"), "{refused}");
    drop(output);
    fs::write(path.join("notes.txt"), "mine").unwrap();
    directory.delete().unwrap();
    let left: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["notes.txt"]);
    let other = run(temp.path(), "other", &start());
    RunDirectory::open(&other).unwrap().delete().unwrap();
    assert!(!other.exists());
    // Names in a marker that was edited lead nowhere else.
    let edited = run(temp.path(), "edited", &start());
    let marker = fs::read_to_string(edited.join("run.json")).unwrap().replace("metrics.jsonl", "../other");
    fs::write(edited.join("run.json"), marker).unwrap();
    assert!(RunDirectory::open(&edited).unwrap().delete().is_err());
    assert!(edited.join("metrics.jsonl").exists());
}

#[test]
fn a_report_has_ten_parts_and_shows_hostile_names_as_text() {
    let temp = tempfile::tempdir().unwrap();
    let metrics = start() + &step(1, "4.0", 1.0) + &step(2, "\"NaN\"", 2.0);
    let path = run(temp.path(), "crashed", &metrics);
    let name = toml::Value::from(HOSTILE).to_string();
    fs::write(path.join("recipe.toml"), format!("[run]\nname = {name}\ntags = [{name}]\n\n[train]\nlr = 0.2\n"))
        .unwrap();
    let other = run(temp.path(), "other", &(start() + &step(1, "3.0", 1.0) + &end(1, "steps")));
    let empty = run(temp.path(), "empty", "");
    let found = [&path, &other, &empty].map(|path| RunDirectory::open(path).unwrap());
    let report = Report::of(&found).unwrap();
    let (html, markdown, json) = (report.html(), report.markdown(), report.json());
    let titles: Vec<&str> =
        json["parts"].as_array().unwrap().iter().map(|part| part["title"].as_str().unwrap()).collect();
    assert_eq!(
        titles,
        [
            "Verdict",
            "Curves",
            "Where time went",
            "Memory",
            "Data",
            "Events",
            "Quality",
            "Checkpoints",
            "Advice",
            "Reproduce"
        ]
    );
    for title in titles {
        assert!(html.contains(&format!("<h2>{title}</h2>")), "{title}");
        assert!(markdown.contains(&format!("\n## {title}\n")), "{title}");
    }
    assert!(!html.contains("<img") && html.matches("</script>").count() == 3, "a name became an element");
    assert!(html.contains("&lt;img src=x onerror=alert(1)&gt;"));
    assert!(!markdown.contains("<img") && markdown.contains("&lt;img"));
    assert_eq!(json["runs"][0]["name"], HOSTILE);
    // The namespace of SVG is a name, not an address.
    assert_eq!(
        html.matches("http:").count() + html.matches("https:").count(),
        html.matches("http://www.w3.org/2000/svg").count()
    );
    assert!(markdown.contains("crashed (its end is not recorded)"), "{markdown}");
    assert!(markdown.contains("| train.lr | 0.2 | 0.1 | 0.1 |"), "{markdown}");
    assert!(html.len() < 1 << 20);
}

#[test]
fn a_report_of_a_long_run_stays_small() {
    let temp = tempfile::tempdir().unwrap();
    let metrics: String = (1..=20_000).map(|at| step(at, &format!("{:?}", 1.0 / at as f64), at as f64)).collect();
    let path = run(temp.path(), "long", &(start() + &metrics));
    let found = [RunDirectory::open(&path).unwrap()];
    let (one, index) = (Report::of(&found).unwrap().html().len(), fs::metadata(path.join(INDEX_FILE)).unwrap().len());
    let many: Vec<RunDirectory> = (0..8).map(|_| found[0].clone()).collect();
    let eight = Report::of(&many).unwrap().html().len();
    assert!(one < 1 << 20 && eight < 1 << 20 && index < 1 << 20, "{one} {eight} {index}");
}

#[test]
fn exports_have_every_scalar_that_was_not_overtaken() {
    let temp = tempfile::tempdir().unwrap();
    let metrics = start() + &step(1, "4.0", 1.0) + &step(2, "9.0", 2.0) + &resume(1) + &step(2, "\"Infinity\"", 1.0);
    let path = run(temp.path(), "run", &metrics);
    let directory = RunDirectory::open(&path).unwrap();
    let mut csv = Vec::new();
    write_csv(&directory, &mut csv).unwrap().unwrap();
    let mut reader = csv::Reader::from_reader(csv.as_slice());
    let header = reader.headers().unwrap().clone();
    let column = header.iter().position(|name| name == "train/loss").unwrap();
    let rows: Vec<(String, String)> =
        reader.records().map(|row| row.unwrap()).map(|row| (row[1].to_owned(), row[column].to_owned())).collect();
    assert_eq!(rows, [("1".into(), "4.0".into()), ("2".into(), "inf".into())]);
    let output = temp.path().join("events");
    export(&directory, ExportFormat::Tensorboard, &output).unwrap();
    assert_eq!(fs::read_dir(output.join(TENSORBOARD_DIRECTORY)).unwrap().count(), 1);
    let again = export(&directory, ExportFormat::Csv, &output).unwrap_err().to_string();
    assert!(again.contains("exists, and nothing is overwritten"), "{again}");
    let parquet = export(&directory, ExportFormat::Parquet, &temp.path().join("run.parquet"));
    match cfg!(feature = "parquet") {
        true => assert!(fs::read(temp.path().join("run.parquet")).unwrap().ends_with(b"PAR1")),
        false => assert!(parquet.unwrap_err().to_string().contains("without the feature `parquet`")),
    }
}

#[test]
fn runs_that_cannot_be_written_to_are_read_all_the_same() {
    let temp = tempfile::tempdir().unwrap();
    let path = run(temp.path(), "run", &(start() + &step(1, "4.0", 1.0)));
    // A directory in the place of the index, which no rename replaces.
    fs::create_dir(path.join(INDEX_FILE)).unwrap();
    assert_eq!(Run::read(RunDirectory::open(&path).unwrap()).unwrap().summary.loss, Some(4.0));
    let names: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().contains("tmp")), "{names:?}");
}
