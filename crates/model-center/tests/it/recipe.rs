//! What people meet when they write recipes: precedence, origins, printing, hashing, unreadable files.

mod distill;
mod embedding;
mod files;
mod hash;
mod multi_label;
mod objectives;
mod own_tasks;
mod preference;
mod printing;
mod sft;
mod training;

use crate::recipes;
use model_center::data::{ColumnTask, LabelSpec, OnBadRecord, SUPERGLUE, Task, TooLong, find_task};
use model_center::formats::ModelCaches;
use model_center::metrics::Metric;
use model_center::recipe::{
    DataFiles, DataSource, EvalMetric, Interval, Origin, OwnData, Recipe, Resolved, SaveWhich, Threads, list, preflight,
};
use recipes::{LEAST, load, mistakes, with_train};
use std::path::{Path, PathBuf};

#[test]
fn defaults_hold_where_nothing_is_written() {
    let r = load(LEAST, &[]);
    assert_eq!(r.train.batch_size, 32);
    assert_eq!(r.train.micro_batch_size, 32);
    assert_eq!(r.train.epochs, Some(3.0));
    assert_eq!((r.train.steps, r.train.minutes), (None, None));
    assert_eq!(r.data.max_length, 512);
    assert_eq!(r.data.too_long, TooLong::Truncate);
    assert_eq!(r.data.on_bad_record, OnBadRecord::Error);
    assert_eq!(r.eval.metric, EvalMetric::Metric(Metric::Accuracy));
    assert_eq!(r.eval.every, Interval::Epochs(1.0));
    assert_eq!(r.save.which, SaveWhich::Best);
    assert_eq!(r.model.init_seed, r.train.seed);
    assert!(!r.train.decay_norms_and_biases);
    assert!(!r.train.offload);
    assert_eq!(r.model.hidden_dropout, None);
}

/// A task that knows its files, below the directory of the tests.
fn of_directory(task: &dyn Task) -> DataSource {
    DataSource::new(task.shared(), DataFiles::Directory("sg".into()))
}

#[test]
fn the_command_line_beats_the_file_and_the_file_the_default() {
    let text = with_train("lr = 1e-4\nbatch_size = 16");
    let r = load(&text, &["train.lr=3e-4", "output.dir=2024-01-01", "data.labels=[\"a\", \"b\"]", "device.threads=2"]);
    assert_eq!(r.train.lr, 3e-4);
    assert_eq!(r.train.batch_size, 16);
    assert_eq!(r.output.dir, PathBuf::from("2024-01-01"));
    assert_eq!(r.device.threads, Threads::Count(2));
    let columns: &ColumnTask = r.data.source.task_as().unwrap();
    assert_eq!(columns.labels, LabelSpec::Names(vec!["a".into(), "b".into()]));
    assert_eq!(r.origin("train.lr").unwrap().to_string(), "--set train.lr=3e-4");
    assert_eq!(r.origin("train.batch_size").unwrap().to_string(), "r.toml:10");
    assert_eq!(r.place("train.batch_size"), "r.toml:10:14");
    assert_eq!(r.origin("train.micro_batch_size"), Some(&Origin::Follows("train.batch_size")));
    assert_eq!(r.origin("train.seed"), Some(&Origin::Default));
}

#[test]
fn a_recipe_can_be_written_on_the_command_line_alone() {
    let sets = ["model.path=m", "data.task=RTE", "data.path=sg", "train.steps=10", "output.dir=o"].map(String::from);
    let r = Recipe::load(None, &sets).unwrap();
    assert_eq!(r.data.source, of_directory(find_task("RTE", &[SUPERGLUE]).unwrap()));
    let found = Recipe::read(None, &[]).unwrap_err();
    assert_eq!(found[0].place, "command line");
    assert_eq!(
        found[0].reason,
        "`model.path` is missing: it must be the path of a Hugging Face model directory, or the hub's name of a \
            model that is in its cache"
    );
}
