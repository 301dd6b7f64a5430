//! What a run leaves behind and shows: output folders, metrics files, progress, stopping.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use indicatif::{ProgressDrawTarget, TermLike};
use model_center::metrics::Metric;
use model_center::recipe::{EarlyStopSettings, EvalMetric, Recipe, TrainSettings};
use model_center::run::{
    BestTracker, EndRecord, EvalRecord, MARKER, OutputFolder, Progress, ProgressMode, Record, StartRecord, Status,
    StepRecord, StopConditions, StopFlag, StopReason, Timing, deterministic_part,
};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const HASH: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const OTHER: &str = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210";

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn refusal(dir: &Path, hash: &str, overwrite: bool) -> String {
    let checked = OutputFolder::check(dir, hash, overwrite).unwrap_err().to_string();
    let created = OutputFolder::create(dir, hash, overwrite).unwrap_err().to_string();
    assert_eq!(checked, created);
    created
}

#[test]
fn a_new_folder_is_created_with_its_parents_and_marked() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("a/b");
    OutputFolder::check(&dir, HASH, false).unwrap();
    assert!(!temp.path().join("a").exists(), "check must not create anything");
    let mut folder = OutputFolder::create(&dir, HASH, false).unwrap();
    folder.write("recipe.toml", b"x = 1\n").unwrap();
    drop(folder);
    assert_eq!(names(&dir), ["recipe.toml", MARKER]);
    let marker =
        format!("{{\n  \"format\": 1,\n  \"recipe_hash\": \"{HASH}\",\n  \"names\": [\n    \"recipe.toml\"\n  ]\n}}\n");
    assert_eq!(std::fs::read_to_string(dir.join(MARKER)).unwrap(), marker);
}

#[test]
fn the_same_recipe_is_offered_overwrite_which_removes_only_the_run() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    let mut folder = OutputFolder::create(dir, HASH, false).unwrap();
    folder.write("recipe.toml", b"x").unwrap();
    drop(folder.metrics("metrics.jsonl").unwrap());
    let staged = folder.stage("best").unwrap();
    std::fs::write(staged.path().join("config.json"), "{}").unwrap();
    staged.commit().unwrap();
    drop(folder);
    std::fs::write(dir.join("notes.txt"), "mine").unwrap();
    let expected = format!(
        "error[recipe]: the output folder already holds a run of this recipe, 0123456789ab\n  --> {}\n  fix: add --overwrite \
         to replace it, or set output.dir to another folder",
        dir.display()
    );
    assert_eq!(refusal(dir, HASH, false), expected);
    assert_eq!(names(dir), ["best", "metrics.jsonl", "notes.txt", "recipe.toml", MARKER]);
    let folder = OutputFolder::create(dir, HASH, true).unwrap();
    drop(folder);
    assert_eq!(names(dir), ["notes.txt", MARKER]);
}

#[test]
fn the_run_of_another_recipe_is_never_replaced() {
    let temp = tempfile::tempdir().unwrap();
    drop(OutputFolder::create(temp.path(), HASH, false).unwrap());
    let expected = format!(
        "error[recipe]: the output folder holds the run of another recipe: 0123456789ab there, fedcba987654 here\n  --> {}\n  \
         fix: set output.dir to another folder, or remove this one yourself",
        temp.path().display()
    );
    assert_eq!(refusal(temp.path(), OTHER, false), expected);
    assert_eq!(refusal(temp.path(), OTHER, true), expected);
}

#[test]
fn a_folder_with_foreign_files_is_refused_and_untouched() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join("thesis.tex"), "years of work").unwrap();
    for overwrite in [false, true] {
        let text = refusal(temp.path(), HASH, overwrite);
        assert!(
            text.starts_with(
                "error[recipe]: the output folder is not empty and holds no run: \"thesis.tex\" is in it\n"
            ),
            "{text}"
        );
    }
    assert_eq!(names(temp.path()), ["thesis.tex"]);
}

#[test]
fn read_only_and_impossible_folders_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("ro");
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o555)).unwrap();
    for asked in [dir.clone(), dir.join("below")] {
        let expected = format!(
            "error[file]: cannot write to the output folder: permission denied\n  --> {}\n  fix: set output.dir to a folder you \
             may write to, on a disk with room",
            asked.display()
        );
        assert_eq!(refusal(&asked, HASH, false), expected);
    }
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(names(&dir).is_empty());
    let file = temp.path().join("file");
    std::fs::write(&file, "x").unwrap();
    assert!(refusal(&file, HASH, false).starts_with("error[recipe]: the output folder is a file\n"));
    assert!(refusal(&file.join("below"), HASH, false).starts_with("error[file]: cannot "));
}

#[test]
fn a_damaged_or_hostile_marker_is_refused_and_removes_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let victim = temp.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    let dir = temp.path().join("out");
    std::fs::create_dir(&dir).unwrap();
    let with_name = |name: &str| format!("{{\"format\":1,\"recipe_hash\":\"{HASH}\",\"names\":[{name:?}]}}");
    let cases = [
        String::new(),
        "{".into(),
        "[".repeat(100_000),
        "{\"format\":2,\"recipe_hash\":\"\",\"names\":[]}".into(),
        with_name("../victim"),
        with_name(".."),
        with_name(victim.to_str().unwrap()),
        with_name(MARKER),
    ];
    for text in cases {
        std::fs::write(dir.join(MARKER), &text).unwrap();
        let refused = refusal(&dir, HASH, true);
        assert!(refused.starts_with("error[recipe]: the mark of an earlier run cannot be read: "), "{refused}");
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
    }
}

#[test]
fn overwriting_removes_a_link_and_not_what_it_leads_to() {
    let temp = tempfile::tempdir().unwrap();
    let target = temp.path().join("target");
    std::fs::create_dir(&target).unwrap();
    std::fs::write(target.join("kept"), "x").unwrap();
    let dir = temp.path().join("out");
    let mut folder = OutputFolder::create(&dir, HASH, false).unwrap();
    folder.stage("best").unwrap().commit().unwrap();
    drop(folder);
    std::fs::remove_dir(dir.join("best")).unwrap();
    std::os::unix::fs::symlink(&target, dir.join("best")).unwrap();
    drop(OutputFolder::create(&dir, HASH, true).unwrap());
    assert_eq!(names(&dir), [MARKER]);
    assert_eq!(names(&target), ["kept"]);
}

#[test]
fn two_processes_cannot_share_a_folder() {
    let temp = tempfile::tempdir().unwrap();
    let folder = OutputFolder::create(temp.path(), HASH, false).unwrap();
    let text = OutputFolder::create(temp.path(), HASH, true).unwrap_err().to_string();
    assert!(text.starts_with("error[recipe]: the output folder is in use by another process\n"), "{text}");
    drop(folder);
    OutputFolder::create(temp.path(), HASH, true).unwrap();
}

#[test]
fn leftovers_of_a_killed_process_do_not_stand_in_the_way() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join(".lock"), "").unwrap();
    std::fs::write(temp.path().join(".run.json.tmp-99999"), "{\"form").unwrap();
    std::fs::create_dir(temp.path().join(".best.tmp-99999")).unwrap();
    drop(OutputFolder::create(temp.path(), HASH, false).unwrap());
    assert_eq!(names(temp.path()), [MARKER]);
}

#[test]
fn a_staged_folder_appears_whole_or_not_at_all() {
    let temp = tempfile::tempdir().unwrap();
    let mut folder = OutputFolder::create(temp.path(), HASH, false).unwrap();
    let fill = |path: &Path, text: &str| std::fs::write(path.join("weights"), text).unwrap();
    let staged = folder.stage("best").unwrap();
    fill(staged.path(), "one");
    assert!(!temp.path().join("best").exists());
    assert_eq!(staged.commit().unwrap(), temp.path().join("best"));
    let staged = folder.stage("best").unwrap();
    fill(staged.path(), "half");
    drop(staged);
    assert_eq!(std::fs::read_to_string(temp.path().join("best/weights")).unwrap(), "one");
    let staged = folder.stage("best").unwrap();
    fill(staged.path(), "two");
    staged.commit().unwrap();
    assert_eq!(std::fs::read_to_string(temp.path().join("best/weights")).unwrap(), "two");
    drop(folder);
    assert_eq!(names(temp.path()), ["best", MARKER]);
}

#[test]
fn output_names_cannot_leave_the_folder() {
    let temp = tempfile::tempdir().unwrap();
    let mut folder = OutputFolder::create(&temp.path().join("out"), HASH, false).unwrap();
    for name in ["../x", "/tmp/x", "", ".", "..", "a/b", MARKER, ".lock", ".x.tmp-1"] {
        assert!(folder.write(name, b"").is_err(), "{name:?}");
        assert!(folder.stage(name).is_err(), "{name:?}");
    }
    assert_eq!(names(temp.path()), ["out"]);
}

fn timing(seconds: f64) -> Timing {
    Timing { seconds, tokens_per_s: 1000.5, peak_share: Some(0.7), rss_bytes: 10, peak_rss_bytes: 20 }
}

fn step(seconds: f64) -> StepRecord {
    StepRecord {
        step: 10,
        epoch: 0.1,
        loss: 0.1,
        grad_norm: f32::INFINITY,
        lr: 3e-4,
        samples: 320,
        tokens: 9000,
        skipped: false,
        time: timing(seconds),
    }
}

#[test]
fn the_metrics_file_has_exactly_these_bytes() {
    let temp = tempfile::tempdir().unwrap();
    let mut folder = OutputFolder::create(&temp.path().join("out"), HASH, false).unwrap();
    let mut log = folder.metrics("metrics.jsonl").unwrap();
    let start = StartRecord {
        recipe_hash: "ab".into(),
        version: "0.1.0 \"x\"".into(),
        parameters: 22,
        trainable: 21,
        train_samples: 9,
        train_fingerprint: "t".into(),
        eval_samples: 1,
        eval_fingerprint: "e".into(),
        steps_per_epoch: 284,
        unix_seconds: 1.5,
        threads: 2,
    };
    log.write(&start).unwrap();
    log.write(&step(2.5)).unwrap();
    log.write(&StepRecord { loss: f32::NAN, skipped: true, grad_norm: 1e-7, time: Timing::default(), ..step(0.0) })
        .unwrap();
    let values = vec![("loss".into(), 0.3), ("accuracy".into(), 0.1 + 0.2)];
    log.write(&EvalRecord { step: 10, epoch: 1.0, samples: 5, values, is_best: true, seconds: 3.0, eval_seconds: 0.5 })
        .unwrap();
    let best = Some(("accuracy".into(), 0.86, 10));
    log.write(&EndRecord {
        step: 10,
        epoch: 1.0,
        reason: "epochs".into(),
        best,
        samples: 320,
        tokens: 9,
        ..EndRecord::default()
    })
    .unwrap();
    log.sync().unwrap();
    let expected = concat!(
        r#"{"kind":"start","version":"0.1.0 \"x\"","recipe_hash":"ab","parameters":22,"trainable":21,"train_samples":9,"train_fingerprint":"t","eval_samples":1,"eval_fingerprint":"e","steps_per_epoch":284,"time":{"unix_seconds":1.5,"threads":2}}"#,
        "\n",
        r#"{"kind":"step","step":10,"epoch":0.1,"loss":0.1,"grad_norm":"Infinity","lr":0.0003,"samples":320,"tokens":9000,"time":{"seconds":2.5,"tokens_per_s":1000.5,"peak_share":0.7,"rss_bytes":10,"peak_rss_bytes":20}}"#,
        "\n",
        r#"{"kind":"step","step":10,"epoch":0.1,"loss":"NaN","grad_norm":1e-7,"lr":0.0003,"samples":320,"tokens":9000,"skipped":true,"time":{"seconds":0.0,"tokens_per_s":0.0,"rss_bytes":0,"peak_rss_bytes":0}}"#,
        "\n",
        r#"{"kind":"eval","step":10,"epoch":1.0,"samples":5,"metrics":{"loss":0.3,"accuracy":0.30000000000000004},"best":true,"time":{"seconds":3.0,"eval_seconds":0.5}}"#,
        "\n",
        r#"{"kind":"end","step":10,"epoch":1.0,"reason":"epochs","best":{"metric":"accuracy","value":0.86,"step":10},"samples":320,"tokens":9,"time":{"seconds":0.0,"train_seconds":0.0,"eval_seconds":0.0,"save_seconds":0.0,"peak_rss_bytes":0}}"#,
        "\n",
    );
    let text = std::fs::read_to_string(temp.path().join("out/metrics.jsonl")).unwrap();
    assert_eq!(text, expected);
    for line in text.lines() {
        let parsed: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(parsed.is_object());
    }
}

#[test]
fn numbers_in_the_metrics_file_read_back_as_themselves() {
    // Every 65,537th f32 bit pattern, all exponents and both signs among them.
    for bits in (0..=u32::MAX).step_by(65_537) {
        let loss = f32::from_bits(bits);
        let line = StepRecord { loss, ..step(0.0) }.to_json();
        let parsed: serde_json::Value = serde_json::from_str(&line).unwrap();
        if loss.is_finite() {
            let digits = parsed["loss"].to_string();
            assert_eq!(digits.parse::<f32>().unwrap().to_bits(), bits, "{digits}");
        } else {
            assert!(parsed["loss"].is_string(), "{line}");
        }
    }
}

#[test]
fn two_runs_differ_in_their_time_alone() {
    let (one, two) = (step(1.0).to_json(), step(9.25).to_json());
    assert_ne!(one, two);
    assert_eq!(deterministic_part(&one), deterministic_part(&two));
    let expected = r#"{"kind":"step","step":10,"epoch":0.1,"loss":0.1,"grad_norm":"Infinity","lr":0.0003,"samples":320,"tokens":9000}"#;
    assert_eq!(deterministic_part(&one), expected);
    let other = StepRecord { loss: f32::from_bits(0.1f32.to_bits() + 1), ..step(1.0) }.to_json();
    assert_ne!(deterministic_part(&one), deterministic_part(&other), "one bit of the loss must show");
    assert_eq!(deterministic_part("{\"a\":1}\n"), "{\"a\":1}");
}

#[test]
fn a_metrics_file_is_never_begun_twice() {
    let temp = tempfile::tempdir().unwrap();
    let mut folder = OutputFolder::create(temp.path(), HASH, false).unwrap();
    drop(folder.metrics("metrics.jsonl").unwrap());
    let error = folder.metrics("metrics.jsonl").unwrap_err().to_string();
    assert!(error.starts_with("error[file]: cannot create: File exists"), "{error}");
}

/// A writer that keeps what it is given.
#[derive(Debug, Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A terminal of 80 columns that keeps what it is given.
impl TermLike for Kept {
    fn width(&self) -> u16 {
        80
    }
    fn move_cursor_up(&self, _: usize) -> std::io::Result<()> {
        Ok(())
    }
    fn move_cursor_down(&self, _: usize) -> std::io::Result<()> {
        Ok(())
    }
    fn move_cursor_right(&self, _: usize) -> std::io::Result<()> {
        Ok(())
    }
    fn move_cursor_left(&self, _: usize) -> std::io::Result<()> {
        Ok(())
    }
    fn write_line(&self, line: &str) -> std::io::Result<()> {
        self.0.lock().unwrap().extend_from_slice(format!("{line}\n").as_bytes());
        Ok(())
    }
    fn write_str(&self, text: &str) -> std::io::Result<()> {
        self.0.lock().unwrap().extend_from_slice(text.as_bytes());
        Ok(())
    }
    fn clear_line(&self) -> std::io::Result<()> {
        Ok(())
    }
    fn flush(&self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Kept {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

fn status(step: u64) -> Status {
    Status {
        step,
        total: Some(40),
        loss: 0.5,
        grad_norm: 1.0,
        lr: 5e-5,
        scale: None,
        tokens_per_s: 2500.0,
        peak_share: None,
        memory: None,
        eta: Some(Duration::from_secs(90)),
    }
}

#[test]
fn a_pipe_gets_one_plain_line_per_log_step() {
    let kept = Kept::default();
    let mut progress = Progress::on_writer(Box::new(kept.clone()));
    progress.note("loading");
    for step in 1..=20 {
        progress.step(&status(step), step % 10 == 0);
    }
    progress.finish();
    let expected = "loading\n\
        step 10/40 25% | loss 0.5000 | gnorm 1.00 | lr 5.0e-5 | 2.5k tok/s | eta 1m\n\
        step 20/40 50% | loss 0.5000 | gnorm 1.00 | lr 5.0e-5 | 2.5k tok/s | eta 1m\n";
    assert_eq!(kept.text(), expected);
}

#[test]
fn a_terminal_gets_a_bar_and_the_status_and_keeps_the_last() {
    let kept = Kept::default();
    let target = ProgressDrawTarget::term_like_with_hz(Box::new(kept.clone()), 200);
    let mut progress = Progress::on_terminal(target, false, Some(40));
    for step in 1..=20 {
        progress.step(&status(step), false);
        std::thread::sleep(Duration::from_millis(10));
    }
    progress.finish();
    let text = kept.text();
    assert!(text.contains("━") && text.contains("50%") && text.contains("step 19/40 47% | loss 0.5000"), "{text}");
    assert!(!text.contains('\u{1b}'), "without colour there is nothing to escape: {text:?}");
    assert!(
        text.trim_end().ends_with("step 20/40 50% | loss 0.5000 | gnorm 1.00 | lr 5.0e-5 | 2.5k tok/s | eta 1m"),
        "{text:?}"
    );
}

#[test]
fn the_mode_follows_flags_and_surroundings() {
    assert_eq!(ProgressMode::choose(true, true, false), ProgressMode::Quiet);
    assert_eq!(ProgressMode::choose(false, true, false), ProgressMode::Bar { color: true });
    assert_eq!(ProgressMode::choose(false, true, true), ProgressMode::Bar { color: false });
    assert_eq!(ProgressMode::choose(false, false, false), ProgressMode::Lines);
}

fn train(sets: &[&str]) -> TrainSettings {
    let base = ["model.path=m", "data.task=RTE", "data.path=d", "output.dir=o", "train.schedule=constant"];
    let sets: Vec<String> = base.iter().chain(sets).map(ToString::to_string).collect();
    Recipe::load(None, &sets).unwrap().train.clone()
}

#[test]
fn a_run_ends_at_the_first_of_its_limits() {
    let minute = Duration::from_secs(60);
    let stop = |sets: &[&str]| StopConditions::new(&train(sets), 7, StopFlag::default());
    let both = stop(&["train.epochs=1.5", "train.steps=100", "train.minutes=2"]);
    assert_eq!(both.total_steps(), Some(11));
    assert_eq!(both.check(10, minute), None);
    assert_eq!(both.check(11, minute), Some(StopReason::Epochs));
    assert_eq!(both.check(5, minute * 2), Some(StopReason::Minutes));
    assert_eq!(stop(&["train.epochs=9", "train.steps=5"]).check(5, minute), Some(StopReason::Steps));
    assert_eq!(stop(&["train.epochs=0.001"]).total_steps(), Some(1));
    let timed = stop(&["train.minutes=2"]);
    assert_eq!(timed.total_steps(), None);
    assert_eq!(timed.eta(0, minute), Some(minute));
    assert_eq!(both.eta(1, minute), Some(minute), "time runs out before the steps are done");
    assert_eq!(stop(&["train.steps=3"]).eta(1, minute), Some(minute * 2));
    assert_eq!(stop(&["train.steps=3"]).eta(0, minute), None);
    assert_eq!(stop(&["train.minutes=1e300"]).check(1, minute), None);
}

#[test]
fn a_request_ends_a_run_after_the_step_in_hand() {
    let flag = StopFlag::default();
    let stop = StopConditions::new(&train(&["train.steps=5"]), 7, flag.clone());
    assert_eq!(stop.check(1, Duration::ZERO), None);
    std::thread::spawn(move || flag.request()).join().unwrap();
    assert_eq!(stop.check(1, Duration::ZERO), Some(StopReason::Request));
    assert_eq!(stop.check(5, Duration::ZERO), Some(StopReason::Steps), "a run that is done was not stopped");
}

#[test]
fn the_best_is_the_earliest_of_equals_and_patience_ends() {
    let accuracy = EvalMetric::Metric(Metric::Accuracy);
    let early = EarlyStopSettings { metric: EvalMetric::Loss, patience: 2 };
    let mut tracker = BestTracker::new(accuracy, Some(early));
    let mut seen = |step, value: f64, loss: f64| {
        let best = tracker.observe(step, |metric| if metric == EvalMetric::Loss { loss } else { value });
        (best, tracker.has_lost_patience(), tracker.best())
    };
    assert_eq!(seen(1, f64::NAN, 1.0), (false, false, None));
    assert_eq!(seen(2, 0.5, 0.9), (true, false, Some((0.5, 2))));
    assert_eq!(seen(3, 0.5, 0.9), (false, false, Some((0.5, 2))));
    assert_eq!(seen(4, 0.6, 0.8), (true, false, Some((0.6, 4))));
    assert_eq!(seen(5, 0.7, 0.8), (true, false, Some((0.7, 5))));
    assert_eq!(seen(6, 0.8, f64::NAN), (true, true, Some((0.8, 6))));
}

#[test]
fn output_paths_are_returned_as_they_are() {
    let temp = tempfile::tempdir().unwrap();
    let mut folder = OutputFolder::create(temp.path(), HASH, false).unwrap();
    assert_eq!(folder.path(), temp.path());
    let path: PathBuf = folder.write("a.txt", b"1").unwrap();
    assert_eq!(std::fs::read(path).unwrap(), b"1");
}
