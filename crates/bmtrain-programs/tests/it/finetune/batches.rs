//! The batches of an epoch: their order, and what becomes of samples that do not fill the last one.

use super::{losses, records, train, weights};
use crate::fixture::{Fixture, sentences};
use serde_json::Value;

/// The digests of the samples of each step.
fn digests(fixture: &Fixture, dir: &str) -> Vec<Value> {
    records(fixture, dir, "step").iter().map(|record| record["batch"].clone()).collect()
}

#[test]
fn without_shuffling_every_epoch_has_the_order_of_the_file() {
    let fixture = Fixture::new();
    // Two epochs of four steps.
    train(&fixture, "file", &["data.shuffle=false", "train.steps=8"]);
    train(&fixture, "random", &["train.steps=8"]);
    let [file, random] = ["file", "random"].map(|dir| digests(&fixture, dir));
    assert_eq!(file[..4], file[4..]);
    assert!(random.iter().all(|digest| !file.contains(digest)) && random[..4] != random[4..]);
    // Neither the seed nor other samples after the first step's change that one.
    fixture.write("train.jsonl", &(sentences(4) + &sentences(30)));
    train(&fixture, "first", &["data.shuffle=false", "train.seed=7", "train.steps=1"]);
    assert_eq!(digests(&fixture, "first")[0], file[0]);
    let refused = fixture.finetune(&["--set", "data.shuffle=false", "--set", "data.length_grouped=true"]).refused();
    assert!(refused.contains("`data.length_grouped` has no effect: data.shuffle = false"), "{refused}");
}

/// 16 samples in batches of 6: the last of an epoch has 4.
const KEPT: [&str; 5] = [
    "data.last_batch=keep",
    "train.batch_size=6",
    "train.steps=6",
    "model.hidden_dropout=0",
    "model.attention_dropout=0",
];

#[test]
fn a_last_batch_that_is_kept_has_the_mean_of_its_samples_on_any_micro_batches_and_ranks() {
    let fixture = Fixture::new();
    let of = |dir: &str, further: &[&str]| {
        train(&fixture, dir, &[&KEPT[..], further].concat());
        let samples = records(&fixture, dir, "step").into_iter().map(|record| record["samples"].as_u64().unwrap());
        assert_eq!(samples.collect::<Vec<_>>(), [6, 12, 16, 22, 28, 32], "{dir}");
        losses(&fixture, dir)
    };
    let whole = of("whole", &[]);
    // Micro-batches with 3 and 1 samples; with 2, 2 and none; with one each and two of none.
    for (dir, micro_batch) in [("three", "3"), ("two", "2"), ("one", "1")] {
        let parts = of(dir, &[&format!("train.micro_batch_size={micro_batch}")]);
        // Sums of f32 in other orders. A mean over micro-batches would differ by the losses of single samples.
        assert!(whole.iter().zip(&parts).all(|(a, b)| (a - b).abs() < 2e-5), "{dir}: {whole:?} {parts:?}");
    }
    // The last batch was left out before.
    train(&fixture, "dropped", &[&KEPT[1..], &["data.last_batch=drop"]].concat());
    let dropped = records(&fixture, "dropped", "step");
    assert_eq!(dropped.last().unwrap()["samples"], 36);
    assert_eq!(dropped[1]["batch"], records(&fixture, "whole", "step")[1]["batch"]);
}

#[test]
fn a_last_batch_that_is_kept_has_the_same_bits_on_ranks_that_share_it_and_after_a_resume() {
    let fixture = Fixture::new();
    let elastic = [&KEPT[..3], &["train.gradient_sum=elastic", "train.micro_batch_size=1"]].concat();
    let run = |dir: &str, further: &[&str]| {
        let dir = format!("output.dir={dir}");
        let sets = elastic.iter().copied().chain([dir.as_str()]).flat_map(|set| ["--set", set]);
        fixture.finetune(&further.iter().copied().chain(sets).collect::<Vec<_>>())
    };
    run("alone", &[]).succeeded();
    for (ranks, further) in [("2", &[][..]), ("3", &["--set", "parallel.zero=3"]), ("6", &[])] {
        run(ranks, &[&["--ranks", ranks], further].concat()).succeeded();
        assert_eq!(losses(&fixture, ranks), losses(&fixture, "alone"), "{ranks} ranks");
        assert!(weights(&fixture, ranks) == weights(&fixture, "alone"), "{ranks} ranks");
    }
    // Cut off before the smaller batch.
    assert_eq!(run("resumed", &["--exit-after-steps", "2"]).code, 75);
    run("resumed", &[]).succeeded();
    assert!(weights(&fixture, "resumed") == weights(&fixture, "alone"));
    // Over pipeline stages, between which micro-batches have other numbers of rows.
    let sets = ["train.micro_batch_size=2", "parallel.pipeline=2"];
    let sets = KEPT.iter().chain(&sets).copied().chain(["output.dir=stages"]).flat_map(|set| ["--set", set]);
    fixture.finetune(&["--ranks", "2"].into_iter().chain(sets).collect::<Vec<_>>()).succeeded();
    train(&fixture, "one", &[&KEPT[..], &["train.micro_batch_size=2"]].concat());
    let [stages, one] = ["stages", "one"].map(|dir| losses(&fixture, dir));
    assert!(stages.iter().zip(&one).all(|(a, b)| (a - b).abs() < 1e-6), "{stages:?} {one:?}");
}

#[test]
fn fewer_samples_than_a_batch_are_an_epoch_of_one_step_where_the_last_batch_is_kept() {
    let fixture = Fixture::new();
    let sets = ["train.batch_size=32", "train.micro_batch_size=4", "train.epochs=2"];
    let refused = fixture.finetune(&sets.iter().flat_map(|set| ["--set", *set]).collect::<Vec<_>>()).refused();
    assert!(refused.contains("16 samples do not fill one batch of 32"), "{refused}");
    fixture.plan(&["--set", "data.last_batch=keep", "--set", "train.batch_size=32", "--ranks", "2"]).succeeded();
    train(&fixture, "run", &[&sets[..], &["data.last_batch=keep"]].concat());
    let samples: Vec<Value> = records(&fixture, "run", "step").iter().map(|record| record["samples"].clone()).collect();
    assert_eq!(samples, [16, 32]);
    let refused = fixture.finetune(&["--set", "data.last_batch=pad"]).refused();
    assert!(refused.contains("`data.last_batch` must be one of \"drop\", \"keep\""), "{refused}");
}
