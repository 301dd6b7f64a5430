//! A program with an objective of its own: runs of recipes train for it, report its metric, and go on only with it.

use crate::fixture::Fixture;
use bmtrain_core::kernel::Activation;
use bmtrain_core::{Ctx, Device, Segment, Tensor, Var, ops};
use model_center::Result;
use model_center::model::Registry;
use model_center::recipe::{Recipe, Resolved, list};
use model_center::run::ExitStatus;
use model_center::train::{FinetuneOptions, Objective, ObjectiveLoss, OwnObjective, Pass, finetune};
use serde_json::Value;

/// The part of the loss of the labels above a margin.
#[derive(Debug)]
struct Margin {
    margin: f32,
    samples: u64,
}

impl Objective for Margin {
    fn loss(&self, pass: &Pass<'_>, cx: &mut Ctx) -> Result<ObjectiveLoss> {
        assert!(pass.batch.samples.iter().all(|sample| u64::from(*sample) < self.samples), "numbers of the data");
        let of_labels = pass.model.loss(pass.batch, cx)?.expect("labels");
        let below = Tensor::full_in(cx.device(), [1], of_labels.dtype(), -self.margin, Segment::Activations)?;
        let above = ops::add(cx, &of_labels, &Var::constant(below))?;
        let loss = ops::activation(cx, &above, Activation::Relu)?;
        Ok(ObjectiveLoss { loss, numbers: vec![of_labels.into_value()] })
    }

    fn metrics(&self) -> &[&'static str] {
        &["of_labels"]
    }
}

/// The recipe of 12 steps in `run`, with further settings.
fn recipe(fixture: &Fixture, further: &[&str]) -> Resolved {
    let path = |name: &str| fixture.path(name).display().to_string();
    let paths = [("model.path", "model"), ("data.train", "train.jsonl"), ("output.dir", "run")];
    let usual = ["data.task=classification", "data.max_length=12", "train.steps=12", "train.batch_size=4"];
    let usual = usual.into_iter().chain(["train.lr=1e-2", "log.every=1"]).map(str::to_owned);
    let paths = paths.map(|(key, name)| format!("{key}={}", path(name))).into_iter();
    let sets: Vec<String> = paths.chain(usual).chain(further.iter().map(ToString::to_string)).collect();
    Recipe::read(None, &sets).unwrap_or_else(|found| panic!("{}", list(&found)))
}

/// Trains for the margin, if there is one; at most this many steps at once.
fn train(fixture: &Fixture, margin: Option<f32>, exit_after_steps: Option<u64>) -> Result<ExitStatus> {
    let objective = margin.map(|margin| {
        OwnObjective::new(format!("margin {margin}"), move |setup, _| {
            let samples = setup.train.len();
            Ok(Box::new(Margin { margin, samples }))
        })
    });
    let options = FinetuneOptions { objective, exit_after_steps, ..FinetuneOptions::default() };
    finetune(recipe(fixture, &[]), &options, Registry::default())
}

fn steps(fixture: &Fixture) -> Vec<Value> {
    let log = fixture.read("run/metrics.jsonl");
    let records = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    records.filter(|record| record["kind"] == "step").collect()
}

fn data(fixture: &Fixture) {
    let line = |at: usize| {
        let (verdict, label) = [("bad", "no"), ("good", "yes")][at % 2];
        format!("{{\"text\": \"the film was {verdict}\", \"label\": \"{label}\"}}\n")
    };
    fixture.write("train.jsonl", &(0..8).map(line).collect::<String>());
}

#[test]
fn a_run_trains_for_it_reports_its_metric_and_resumes_only_with_it() {
    let fixture = Fixture::new();
    data(&fixture);
    assert_eq!(train(&fixture, Some(0.5), Some(2)).unwrap(), ExitStatus::Stopped);
    for other in [Some(0.25), None] {
        let error = train(&fixture, other, None).unwrap_err().to_string();
        assert!(error.contains("objective of the program"), "{error}");
    }
    assert_eq!(train(&fixture, Some(0.5), None).unwrap(), ExitStatus::Done);
    let steps = steps(&fixture);
    assert_eq!(steps.len(), 12);
    for step in &steps {
        let (loss, of_labels) = (step["loss"].as_f64().unwrap(), step["of_labels"].as_f64().unwrap());
        // A rounding of the subtraction in f32.
        assert!((loss - (of_labels - 0.5).max(0.0)).abs() < 1e-6, "{step}");
    }
    assert!(steps[11]["of_labels"].as_f64() < steps[0]["of_labels"].as_f64(), "it learns");
}

#[test]
fn a_dry_run_is_recommended_by_programs_that_have_one() {
    let fixture = Fixture::new();
    data(&fixture);
    assert_eq!(train(&fixture, None, Some(2)).unwrap(), ExitStatus::Stopped);
    let changed = |dry_run_option, dry_run| {
        let options = FinetuneOptions { dry_run_option, dry_run, ..FinetuneOptions::default() };
        finetune(recipe(&fixture, &["train.lr=2e-2"]), &options, Registry::default()).unwrap_err().to_string()
    };
    let own = changed(None, false);
    assert!(own.contains("train.lr") && own.contains("--accept-change") && !own.contains("dry"), "{own}");
    let with = changed(Some("--check"), false);
    assert!(with.contains("; --check checks the changed settings"), "{with}");
    // Not by the dry run itself.
    assert_eq!(changed(Some("--check"), true), own);
}

#[test]
fn settings_that_it_does_not_go_with_are_refused_before_the_model_is_read_and_by_a_dry_run() {
    let fixture = Fixture::new();
    data(&fixture);
    let never = || OwnObjective::new("own", |_, _| panic!("it is opened"));
    for (sets, place, reason) in [
        (&["train.label_smoothing=0.1"][..], "train.label_smoothing=0.1", "is of the loss of the labels"),
        (&["data.class_weights=balanced"], "data.class_weights=balanced", "is of the loss of the labels"),
        (&["distill.teacher=large"], "distill.teacher=large", "the recipe has an objective of its own"),
        (&["parallel.pipeline=2"], "parallel.pipeline=2", "own computes its loss on one pipeline stage"),
    ] {
        let resolved = recipe(&fixture, sets);
        let options = FinetuneOptions { objective: Some(never()), ..FinetuneOptions::default() };
        let error = finetune(resolved.clone(), &options, Registry::default()).unwrap_err().to_string();
        assert!(error.contains(place) && error.contains(reason), "{sets:?}: {error}");
        if *sets == ["train.label_smoothing=0.1"] {
            let dry = FinetuneOptions { dry_run: true, ..options };
            let error = finetune(resolved, &dry, Registry::default()).unwrap_err().to_string();
            assert!(error.contains(place) && error.contains(reason), "dry run: {error}");
        }
    }
}

/// The loss of the labels, and fewer numbers of evaluations than their rows have.
#[derive(Debug)]
struct Short;

impl Objective for Short {
    fn loss(&self, pass: &Pass<'_>, cx: &mut Ctx) -> Result<ObjectiveLoss> {
        Ok(pass.model.loss(pass.batch, cx)?.expect("labels").into())
    }

    fn evaluated(&self, pass: &Pass<'_>, _: &Device) -> Result<Option<Vec<f32>>> {
        Ok(Some(vec![0.0; pass.batch.rows]))
    }
}

#[test]
fn results_of_an_evaluation_of_another_length_are_refused() {
    let fixture = Fixture::new();
    data(&fixture);
    let eval = format!("data.eval={}", fixture.path("train.jsonl").display());
    let objective = Some(OwnObjective::new("short", |_, _| Ok(Box::new(Short))));
    let options = FinetuneOptions { objective, ..FinetuneOptions::default() };
    let error = finetune(recipe(&fixture, &[&eval]), &options, Registry::default()).unwrap_err().to_string();
    let expected = "objective Short: Objective::evaluated gave 4 numbers of a batch of 4 rows, and 9 are needed: the \
                    loss, and 2 for each row";
    assert!(error.contains(expected), "{error}");
}
