//! Tasks and metrics that a program adds: what their recipes accept and refuse.

use super::*;
use model_center::data::{
    Dataset, PromptEntry, ReadOptions, Split, SplitSource, TaskEntry, TaskFiles, TaskLabels, TaskModel,
};
use model_center::metrics::{LabelKind, OwnMetric};
use model_center::recipe::Mistake;
use model_center::tokenizer::KeepSide;

const ENTRY: TaskEntry = TaskEntry {
    name: "own",
    doc: "",
    labels: TaskLabels::Classes(&["no", "yes"]),
    metrics: &[],
    oversample_train: false,
    keep: KeepSide::Start,
    parse: |_, _| Ok(()),
};

/// A recipe of task `own`, which `task` is.
fn draft(task: &'static [&'static dyn Task], sets: &[&str]) -> Result<Resolved, Vec<Mistake>> {
    let usual = ["model.path=m", "data.task=own", "train.steps=1", "output.dir=o"];
    let sets: Vec<String> = usual.iter().chain(sets).map(|set| (*set).to_owned()).collect();
    Recipe::draft(None, &sets, task)?.resolved()
}

fn refused(task: &'static [&'static dyn Task], sets: &[&str]) -> String {
    list(&draft(task, sets).unwrap_err())
}

#[test]
fn a_task_with_label_words_is_accepted() {
    static PROMPTED: &[&dyn Task] = &[&PromptEntry {
        name: "own",
        doc: "",
        files: TaskFiles::Jsonl,
        labels: &["no", "yes"],
        words: &[" No", " Yes"],
        metrics: &[Metric::Accuracy],
        parse: |_, _, _| Ok(()),
    }];
    let resolved = draft(PROMPTED, &["data.path=d"]).unwrap();
    assert!(resolved.data.source.task().uses_label_words());
    draft(PROMPTED, &["data.path=d", "data.objective=verbalizer"]).unwrap();
    let found = refused(PROMPTED, &["data.path=d", "data.objective=classifier"]);
    assert!(found.contains("task own has prompts, and no form for classifiers"), "{found}");
    static CLASSES: &[&dyn Task] = &[&ENTRY];
    let found = refused(CLASSES, &["data.path=d", "data.objective=verbalizer"]);
    assert!(found.contains("task own has no prompts"), "{found}");
}

#[test]
fn next_tokens_are_packed_rendered_and_taught_whatever_the_task_is_called() {
    static TOKENS: &[&dyn Task] = &[&TaskEntry { labels: TaskLabels::NextTokens, ..ENTRY }];
    let sets = ["data.path=d", "data.packing=true", "data.parse_special=true"];
    assert!(draft(TOKENS, &sets).unwrap().data.packing);
    draft(TOKENS, &["data.path=d", "distill.teacher=large"]).unwrap();
    static CLASSES: &[&dyn Task] = &[&ENTRY];
    for set in &sets[1..] {
        assert!(refused(CLASSES, &["data.path=d", set]).contains("has no effect"), "{set}");
    }
    draft(CLASSES, &["data.path=d", "distill.teacher=large"]).unwrap();
    static TARGETS: &[&dyn Task] = &[&TaskEntry { labels: TaskLabels::Target, ..ENTRY }];
    static CHOICES: &[&dyn Task] = &[&TaskEntry { labels: TaskLabels::Choices(2), ..ENTRY }];
    static VALUES: &[&dyn Task] = &[&TaskEntry { labels: TaskLabels::Value, ..ENTRY }];
    for task in [TARGETS, CHOICES, VALUES] {
        let found = refused(task, &["data.path=d", "distill.teacher=large"]);
        assert!(found.contains("this task has other labels"), "{task:?}: {found}");
    }
}

/// Names its training file alone.
#[derive(Debug, Clone, PartialEq)]
struct TrainingOnly;

impl Task for TrainingOnly {
    fn name(&self) -> &'static str {
        "own"
    }

    fn label_kind(&self) -> LabelKind {
        LabelKind::Values
    }

    fn file(&self, split: Split) -> Option<String> {
        (split == Split::Train).then(|| "train.csv".to_owned())
    }

    fn read_split(&self, _: &SplitSource<'_>) -> model_center::Result<Dataset> {
        unreachable!("no file is read")
    }
}

#[test]
fn a_task_that_names_its_training_file_alone_trains_without_evaluation() {
    static TASK: &[&dyn Task] = &[&TrainingOnly];
    let resolved = draft(TASK, &["data.path=d"]).unwrap();
    assert!(!resolved.data.source.has_eval());
    let words = crate::data::words::Words::new();
    let options = ReadOptions::new(&words, 8);
    let model = TaskModel::default();
    assert!(resolved.data.source.read(Split::Validation, &options, model, None).unwrap().is_none());
    let below = TrainingOnly.read_below(Path::new("d"), Split::Validation, model, &options);
    assert!(below.unwrap_err().to_string().contains("task own has no file for this split"));
    let found = refused(TASK, &["data.path=d", "eval.every=1 epoch"]);
    assert!(found.contains("`eval.every` has no effect: task own names no file to evaluate on"), "{found}");
}

const fn metric(name: &'static str) -> OwnMetric {
    OwnMetric { name, kind: LabelKind::Classes, larger_is_better: true, value: |_| None }
}

#[test]
fn metrics_with_a_name_of_another_one_are_refused() {
    static LOSS: OwnMetric = metric("loss");
    static ACCURACY: OwnMetric = metric("accuracy");
    static ONE: OwnMetric = metric("one");
    static OTHER: OwnMetric = metric("one");
    static OF_LOSS: &[&dyn Task] = &[&TaskEntry { metrics: &[Metric::Own(&LOSS)], ..ENTRY }];
    static OF_LIBRARY: &[&dyn Task] = &[&TaskEntry { metrics: &[Metric::Own(&ACCURACY)], ..ENTRY }];
    static TWICE: &[&dyn Task] = &[&TaskEntry { metrics: &[Metric::Own(&ONE), Metric::Own(&OTHER)], ..ENTRY }];
    for (tasks, expected) in [
        (OF_LOSS, "metric loss of task own has the name of the loss"),
        (OF_LIBRARY, "metric accuracy of task own has the name of a metric of the library"),
        (TWICE, "metric one of task own has the name of another metric of this program"),
    ] {
        let found = refused(tasks, &["data.path=d"]);
        assert!(found.contains(expected), "{found}");
    }
    // Two tasks may have one metric.
    const SHARED: TaskEntry = TaskEntry { metrics: &[Metric::Own(&ONE)], ..ENTRY };
    static BOTH: &[&dyn Task] = &[&SHARED, &TaskEntry { name: "further", ..SHARED }];
    assert_eq!(draft(BOTH, &["data.path=d", "eval.metric=one"]).unwrap().eval.metric.name(), "one");
}
