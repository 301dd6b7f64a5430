//! A program with an objective of its own: runs of recipes train for it, report its metric, and go on only with it.

use crate::fixture::Fixture;
use bmtrain_core::kernel::Activation;
use bmtrain_core::{Ctx, Segment, Tensor, Var, ops};
use model_center::Result;
use model_center::model::Registry;
use model_center::recipe::Recipe;
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

/// Trains for 12 steps in `run`, for the margin, if there is one; at most this many steps at once.
fn train(fixture: &Fixture, margin: Option<f32>, exit_after_steps: Option<u64>) -> Result<ExitStatus> {
    let path = |name: &str| fixture.path(name).display().to_string();
    let paths = [("model.path", "model"), ("data.train", "train.jsonl"), ("output.dir", "run")];
    let usual = ["data.task=classification", "data.max_length=12", "train.steps=12", "train.batch_size=4"];
    let usual = usual.into_iter().chain(["train.lr=1e-2", "log.every=1"]).map(str::to_owned);
    let sets: Vec<String> = paths.map(|(key, name)| format!("{key}={}", path(name))).into_iter().chain(usual).collect();
    let resolved = Recipe::read(None, &sets).expect("a recipe");
    let objective = margin.map(|margin| {
        OwnObjective::new(format!("margin {margin}"), move |setup, _| {
            let samples = setup.train.len();
            Ok(Box::new(Margin { margin, samples }))
        })
    });
    let options = FinetuneOptions { objective, exit_after_steps, ..FinetuneOptions::default() };
    finetune(resolved, &options, Registry::default())
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
