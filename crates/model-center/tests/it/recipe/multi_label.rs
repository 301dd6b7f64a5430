//! The keys of task `multi-label-classification`.

use super::*;
use model_center::data::{LabelColumns, MultiLabelTask};

fn of_task() -> String {
    LEAST.replace("classification", "multi-label-classification")
}

#[test]
fn labels_are_a_list_or_columns() {
    let resolved = load(&of_task(), &[]);
    assert_eq!(resolved.data.source.task().name(), "multi-label-classification");
    assert_eq!((resolved.eval.metric, resolved.eval.threshold), (EvalMetric::Metric(Metric::F1Micro), 0.5));
    let task: &MultiLabelTask = resolved.data.source.task_as().unwrap();
    assert_eq!((&task.columns, &task.labels), (&LabelColumns::List("label".into()), &LabelSpec::Discover));
    let lists = ["data.columns.label=tags", "data.labels=[\"a\", \"b\"]", "eval.threshold=0.3", "eval.metric=f1_macro"];
    let lists = load(&of_task(), &lists);
    let task: &MultiLabelTask = lists.data.source.task_as().unwrap();
    assert_eq!(task.columns, LabelColumns::List("tags".into()));
    assert_eq!(task.labels, LabelSpec::Names(vec!["a".into(), "b".into()]));
    assert_eq!((lists.eval.metric, lists.eval.threshold), (EvalMetric::Metric(Metric::F1Macro), 0.3));
    assert_eq!(*load(&lists.to_toml(), &[]), *lists);
    let flags = load(&of_task(), &["data.columns.labels=[\"rude\", \"threat\"]", "data.columns.text_pair=b"]);
    let task: &MultiLabelTask = flags.data.source.task_as().unwrap();
    assert_eq!(task.columns, LabelColumns::Flags(vec!["rude".into(), "threat".into()]));
    assert_eq!(*load(&flags.to_toml(), &[]), *flags);
}

#[test]
fn contradictions_and_settings_without_effect_are_named() {
    let several = of_task();
    let columns = "data.columns.labels=[\"rude\", \"threat\"]";
    for (text, sets, expected) in [
        (LEAST, &["eval.threshold=0.3"][..], "it is for task multi-label-classification"),
        (LEAST, &[columns], "it is for task multi-label-classification"),
        (&several, &["eval.threshold=1"], "eval.threshold"),
        (&several, &[columns, "data.columns.label=tags"], "its columns have and name the labels"),
        (&several, &[columns, "data.labels=[\"a\", \"b\"]"], "its columns have and name the labels"),
        (&several, &["data.columns.labels=[\"text\", \"b\"]"], "both name the column \"text\""),
        (&several, &["data.columns.labels=[\"rude\"]"], "`data.columns.labels` names 1 label, and"),
        (&several, &["data.columns.labels=[\"a\", \"a\"]"], "1 mistake"),
        (&several, &["data.columns.labels=[\"a\", \"a\"]"], "`data.columns.labels` names \"a\" twice"),
        (&several, &["train.label_smoothing=0.1"], "a loss of its own"),
        (&several, &["data.class_weights=balanced"], "it is for tasks with classes"),
        (&several, &["data.objective=verbalizer"], "it is for tasks with classes"),
        (&several, &["eval.metric=matthews"], "use \"f1_micro\" or \"loss\""),
        (LEAST, &["data.task=multilabel"], "data.task = \"multi-label-classification\""),
        (LEAST, &["train.pos_weight=2"], "where all labels weigh the same"),
    ] {
        let found = list(&mistakes(text, sets));
        assert!(found.contains(expected), "{sets:?}: {found}");
    }
}
