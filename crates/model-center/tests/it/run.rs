//! What a run writes and shows: metrics files, progress, stopping.

use bmtrain_dist::optim::Fingerprint;
use indicatif::{ProgressDrawTarget, TermLike};
use model_center::metrics::Metric;
use model_center::recipe::{EarlyStopSettings, EvalMetric, Recipe, TrainSettings};
use model_center::run::{
    EndRecord, EvalRecord, IfThere, Machine, OutputDirectory, Phases, Progress, ProgressMode, Record, ResumeRecord,
    StartRecord, Status, StepRecord, StopFlag, StopReason, Timing, deterministic_part, layout_error, without_overtaken,
};
use model_center::train::{BestTracker, StopConditions};
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const HASH: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn timing(seconds: f64) -> Timing {
    let phases = Phases { step: 0.5, data: 0.125, forward: 0.1000000004, ..Phases::default() };
    Timing {
        seconds,
        tokens_per_s: 1000.5,
        peak_share: Some(0.7),
        data_share: None,
        rss_bytes: 10,
        peak_rss_bytes: 20,
        phases,
    }
}

fn step(seconds: f64) -> StepRecord {
    StepRecord {
        values: Vec::new(),
        step: 10,
        epoch: 0.1,
        loss: 0.1,
        grad_norm: f32::INFINITY,
        lr: 3e-4,
        samples: 320,
        tokens: 9000,
        batch: 0xab,
        skipped: false,
        time: timing(seconds),
    }
}

#[test]
fn the_metrics_file_has_exactly_these_bytes() {
    let temp = tempfile::tempdir().unwrap();
    let mut directory = OutputDirectory::create(&temp.path().join("out"), HASH, IfThere::Refuse).unwrap();
    let mut log = directory.metrics("metrics.jsonl").unwrap();
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
        ranks: 3,
        machine: Machine {
            processor: Some("A \"chip\"".into()),
            instruction_set: "avx2".into(),
            cores: 4,
            memory_bytes: Some(1024),
            cuda: None,
        },
        commit: Some("0a".into()),
    };
    log.write(&start).unwrap();
    log.write(&step(2.5)).unwrap();
    log.write(&ResumeRecord {
        step: 5,
        checkpoint: "step-5-00000000".into(),
        passed_over: 1,
        changed: vec!["train.lr: 1.0 -> 2.0".into()],
        fresh_optimizer: true,
        kept_schedule: false,
        unix_seconds: 2.5,
        ranks: 4,
        instruction_set: None,
    })
    .unwrap();
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
        state: Some(Fingerprint { weights: "ab".into(), optimizer: "cd".into() }),
        skipped_at_end: 2,
        samples: 320,
        tokens: 9,
        ..EndRecord::default()
    })
    .unwrap();
    log.sync().unwrap();
    let expected = concat!(
        r#"{"kind":"start","version":"0.1.0 \"x\"","recipe_hash":"ab","parameters":22,"trainable":21,"#,
        r#""train_samples":9,"train_fingerprint":"t","eval_samples":1,"eval_fingerprint":"e","#,
        r#""steps_per_epoch":284,"time":{"unix_seconds":1.5,"threads":2,"ranks":3,"processor":"A \"chip\"","#,
        r#""instruction_set":"avx2","commit":"0a","cores":4,"memory_bytes":1024}}"#,
        "\n",
        r#"{"kind":"step","step":10,"epoch":0.1,"loss":0.1,"grad_norm":"Infinity","lr":0.0003,"#,
        r#""samples":320,"tokens":9000,"batch":"0000000000ab","time":{"seconds":2.5,"tokens_per_s":1000.5,"#,
        r#""peak_share":0.7,"rss_bytes":10,"peak_rss_bytes":20,"step_seconds":0.5,"data_seconds":0.125,"#,
        r#""forward_seconds":0.1}}"#,
        "\n",
        r#"{"kind":"resume","step":5,"checkpoint":"step-5-00000000","passed_over":1,"#,
        r#""changed":"train.lr: 1.0 -> 2.0","fresh_optimizer":true,"time":{"unix_seconds":2.5,"ranks":4}}"#,
        "\n",
        r#"{"kind":"step","step":10,"epoch":0.1,"loss":"NaN","grad_norm":1e-7,"lr":0.0003,"samples":320,"#,
        r#""tokens":9000,"batch":"0000000000ab","skipped":true,"time":{"seconds":0.0,"tokens_per_s":0.0,"#,
        r#""rss_bytes":0,"peak_rss_bytes":0}}"#,
        "\n",
        r#"{"kind":"eval","step":10,"epoch":1.0,"samples":5,"metrics":{"loss":0.3,"#,
        r#""accuracy":0.30000000000000004},"best":true,"time":{"seconds":3.0,"eval_seconds":0.5}}"#,
        "\n",
        r#"{"kind":"end","step":10,"epoch":1.0,"reason":"epochs","best":{"metric":"accuracy","value":0.86,"#,
        r#""step":10},"state":{"weights":"ab","optimizer":"cd"},"skipped_at_end":2,"samples":320,"tokens":9,"#,
        r#""time":{"seconds":0.0,"train_seconds":0.0,"eval_seconds":0.0,"save_seconds":0.0,"#,
        r#""peak_rss_bytes":0}}"#,
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
    let expected = concat!(
        r#"{"kind":"step","step":10,"epoch":0.1,"loss":0.1,"grad_norm":"Infinity","lr":0.0003,"#,
        r#""samples":320,"tokens":9000,"batch":"0000000000ab"}"#,
    );
    assert_eq!(deterministic_part(&one), expected);
    let other = StepRecord { loss: f32::from_bits(0.1f32.to_bits() + 1), ..step(1.0) }.to_json();
    assert_ne!(deterministic_part(&one), deterministic_part(&other), "one bit of the loss must show");
    assert_eq!(deterministic_part("{\"a\":1}\n"), "{\"a\":1}");
}

#[test]
fn a_metrics_file_is_never_begun_twice() {
    let temp = tempfile::tempdir().unwrap();
    let mut directory = OutputDirectory::create(temp.path(), HASH, IfThere::Refuse).unwrap();
    drop(directory.metrics("metrics.jsonl").unwrap());
    let error = layout_error(&directory.metrics("metrics.jsonl").unwrap_err());
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
        pairs: None,
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
fn slow_steps_have_a_line_although_no_log_step_is_due() {
    let kept = Kept::default();
    let mut progress = Progress::on_writer(Box::new(kept.clone()));
    progress.step(&status(1), false);
    assert_eq!(kept.text(), "", "a quick step is not due");
    // Each step is slower than this.
    progress.set_max_silence(Duration::ZERO);
    for step in 2..=4 {
        std::thread::sleep(Duration::from_millis(1));
        progress.step(&status(step), false);
    }
    assert_eq!(kept.text().lines().count(), 3, "{}", kept.text());
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
fn a_display_ends_once_and_still_takes_notes() {
    let kept = Kept::default();
    let target = ProgressDrawTarget::term_like_with_hz(Box::new(kept.clone()), 200);
    let mut progress = Progress::on_terminal(target, false, Some(40));
    progress.step(&status(20), false);
    progress.finish();
    let text = kept.text();
    progress.note("after step 20: accuracy 0.5");
    progress.finish();
    progress.step(&status(21), false);
    progress.finish();
    let further = kept.text()[text.len()..].to_owned();
    assert!(further.contains("after step 20: accuracy 0.5"), "{further:?}");
    assert!(!further.contains("loss"), "the status was printed again: {further:?}");
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
fn what_was_done_again_after_a_resume_is_left_out() {
    let record = |kind: &str, step: u64| format!("{{\"kind\":\"{kind}\",\"step\":{step},\"time\":{{}}}}");
    let log = [
        "{\"kind\":\"start\",\"steps_per_epoch\":3,\"time\":{}}".to_owned(),
        record("eval", 0),
        record("step", 1),
        record("step", 2),
        record("eval", 2),
        record("step", 3),
        record("end", 3),
        record("resume", 2),
        record("step", 3),
        record("resume", 1),
        record("step", 2),
        record("end", 2),
    ];
    let text = log.join("\n");
    let whole = without_overtaken(&text);
    let expected = [&log[0], &log[1], &log[2], &log[10], &log[11]];
    assert_eq!(whole, expected);
    assert_eq!(without_overtaken(&log[..7].join("\n")), log[..7]);
}

#[test]
fn a_file_asks_a_run_to_stop_and_is_gone_when_it_was_heard() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("stop");
    let stop = StopConditions::new(&train(&["train.steps=5"]), 7, StopFlag::default()).or_file(file.clone());
    assert_eq!(stop.check(1, Duration::ZERO), None);
    std::fs::write(&file, "").unwrap();
    assert_eq!(stop.check(1, Duration::ZERO), Some(StopReason::Request));
    assert!(!file.exists());
    assert_eq!(stop.check(2, Duration::ZERO), Some(StopReason::Request), "a request persists");
    assert_eq!(stop.check(5, Duration::ZERO), Some(StopReason::Steps), "the end of the run goes first");
}
