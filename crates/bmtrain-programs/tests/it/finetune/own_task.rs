//! A program that adds a task to the recipes: a registry line with the file layout, the labels and the inputs of a
//! record.

use crate::fixture::Fixture;
use model_center::Error;
use model_center::data::{Dataset, Example, Label, Split, SplitSource, Task, TaskEntry, TaskLabels};
use model_center::metrics::{LabelKind, Metric};
use model_center::model::Registry;
use model_center::recipe::{Mistake, Recipe, Resolved};
use model_center::run::ExitStatus;
use model_center::tokenizer::KeepSide;
use model_center::train::{FinetuneOptions, finetune};
use serde_json::Value;

const ANSWERS: &[&str] = &["no", "yes"];

const APPROVED: TaskEntry = TaskEntry {
    name: "Approved",
    doc: "Is the report approved?",
    labels: TaskLabels::Classes(ANSWERS),
    metrics: &[Metric::F1, Metric::Accuracy],
    oversample_train: false,
    keep: KeepSide::Start,
    parse: |record, examples| {
        let label = Label::Class(record.choice("approved", ANSWERS)?);
        examples.push(Example { first: record.text("report")?.to_owned(), second: None, label });
        Ok(())
    },
};

static TASKS: &[&dyn Task] = &[&APPROVED];

/// The recipe of a run on a task in `tasks`.
fn recipe(fixture: &Fixture, task: &str, tasks: &'static [&'static dyn Task]) -> Result<Resolved, Vec<Mistake>> {
    let path = |name: &str| fixture.path(name).display().to_string();
    let mut sets = vec![format!("data.task={task}")];
    sets.extend(["model.path=model", "data.path=tasks", "output.dir=run"].map(|set| {
        let (key, name) = set.split_once('=').unwrap();
        format!("{key}={}", path(name))
    }));
    sets.extend(["train.steps=4", "train.batch_size=4", "train.lr=1e-2", "data.max_length=12"].map(String::from));
    Recipe::draft(None, &sets, tasks)?.resolved()
}

#[test]
fn a_task_that_a_program_adds_trains_and_is_judged_by_its_own_metrics() {
    let fixture = Fixture::new();
    let line = |at: usize| {
        format!("{{\"report\": \"the film was {}\", \"approved\": \"{}\"}}\n", ["bad", "good"][at % 2], ANSWERS[at % 2])
    };
    for split in ["train", "val"] {
        fixture.write(&format!("tasks/Approved/{split}.jsonl"), &(0..8).map(line).collect::<String>());
    }
    let resolved = recipe(&fixture, "Approved", TASKS).unwrap();
    let registry = Registry::default().with_tasks(TASKS);
    assert_eq!(finetune(resolved, &FinetuneOptions::default(), registry).unwrap(), ExitStatus::Done);
    let log = fixture.read("run/metrics.jsonl");
    let records: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let evals: Vec<&Value> = records.iter().filter(|record| record["kind"] == "eval").collect();
    let names: Vec<&String> = evals.last().unwrap()["metrics"].as_object().unwrap().keys().collect();
    assert_eq!(names, ["f1", "accuracy", "loss"]);
    assert_eq!(evals.last().unwrap()["samples"], 8);
    let config: Value = serde_json::from_str(&fixture.read("run/model/config.json")).unwrap();
    assert_eq!(config["id2label"], serde_json::json!({"0": "no", "1": "yes"}));
}

#[test]
fn an_unknown_task_is_refused_with_all_names_and_a_name_of_two_tasks_too() {
    let fixture = Fixture::new();
    let unknown = &recipe(&fixture, "approved?", TASKS).unwrap_err()[0];
    assert!(unknown.to_string().contains("\"Approved\""), "{unknown}");
    static TWICE: &[&dyn Task] = &[&TaskEntry { name: "RTE", ..APPROVED }];
    let twice = &recipe(&fixture, "RTE", TWICE).unwrap_err()[0];
    assert!(twice.to_string().contains("two tasks of this program have the name RTE"), "{twice}");
}

/// States other labels than it reads.
#[derive(Debug, Clone, PartialEq)]
struct Misstated;

impl Task for Misstated {
    fn name(&self) -> &'static str {
        "misstated"
    }

    fn label_kind(&self) -> LabelKind {
        LabelKind::Values
    }

    fn file(&self, split: Split) -> Option<String> {
        APPROVED.file(split)
    }

    fn read_split(&self, source: &SplitSource<'_>) -> Result<Dataset, Error> {
        APPROVED.read_split(source)
    }
}

#[test]
fn a_task_that_reads_other_labels_than_it_states_is_refused() {
    static MISSTATED: &[&dyn Task] = &[&Misstated];
    let fixture = Fixture::new();
    for split in ["train", "val"] {
        let lines = "{\"report\": \"good\", \"approved\": \"yes\"}\n".repeat(4);
        fixture.write(&format!("tasks/Approved/{split}.jsonl"), &lines);
    }
    let resolved = recipe(&fixture, "misstated", MISSTATED).unwrap();
    let registry = Registry::default().with_tasks(MISSTATED);
    let error = finetune(resolved, &FinetuneOptions::default(), registry).unwrap_err().to_string();
    let expected = "task misstated: label_kind is Values, and read_split gave labels of the kind Classes";
    assert!(error.contains(expected), "{error}");
}
