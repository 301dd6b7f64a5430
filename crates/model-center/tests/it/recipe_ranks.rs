//! How a recipe divides ranks and batch: the keys of `[parallel]`, and `train.batch_size` as the product of
//! micro-batch, accumulation and data ranks.

use crate::recipes::{LEAST, load, mistakes};
use bmtrain_dist::pipeline::{PartitionRule, ScheduleKind};
use model_center::recipe::{Origin, SaveWhich, StagePartition, list};

/// The three numbers of a batch on ranks: batch, micro-batch, micro-batches of a data rank in a step.
fn batch(sets: &[&str], ranks: usize) -> [usize; 3] {
    let resolved = load(LEAST, sets).on_ranks(ranks, None);
    assert_eq!(resolved.mismatches(ranks), [], "{sets:?}");
    let data_ranks = resolved.parallel.data_ranks(ranks);
    let (batch, micro) = (resolved.train.batch_size, resolved.micro_batch_on(data_ranks));
    [batch, micro, batch / micro / data_ranks]
}

/// What does not divide: keys, reasons and fixes.
fn mismatches(sets: &[&str], ranks: usize) -> Vec<(&'static str, String, String)> {
    let found = load(LEAST, sets).on_ranks(ranks, None).mismatches(ranks);
    found.into_iter().map(|mismatch| (mismatch.key, mismatch.reason, mismatch.fix)).collect()
}

#[test]
fn any_one_of_batch_micro_batch_and_accumulation_may_be_left_out() {
    let (b, m, a) = ("train.batch_size=48", "train.micro_batch_size=4", "train.accumulation=6");
    for sets in [&[b, m][..], &[b, a], &[m, a], &[b, m, a]] {
        assert_eq!(batch(sets, 2), [48, 4, 6], "{sets:?}");
    }
    // Tensor-parallel ranks see the same samples: four ranks are two data ranks.
    for sets in [&[b, m][..], &[b, a], &[m, a], &[b, m, a]] {
        assert_eq!(batch(&[sets, &["parallel.tensor=2"]].concat(), 4), [48, 4, 6], "{sets:?}");
    }
    assert_eq!(batch(&["train.accumulation=8"], 2), [32, 2, 8]);
    assert_eq!(batch(&["parallel.tensor=4"], 4), [32, 32, 1]);
    assert_eq!(batch(&["parallel.tensor=2"], 4), [32, 16, 1]);
}

#[test]
fn recipes_without_an_accumulation_have_the_hash_and_batch_that_they_had() {
    let plain = load(LEAST, &[]);
    assert!(!plain.to_toml().contains("accumulation"), "{}", plain.to_toml());
    for set in ["train.accumulation=1", "train.inspect_every=3", "parallel.tensor=2"] {
        assert_eq!(load(LEAST, &[set]).recipe_hash(), plain.recipe_hash(), "{set}");
    }
    // The printed recipe states where a number came from, and loads again.
    let solved = load(LEAST, &["train.micro_batch_size=4", "train.accumulation=2"]).on_ranks(4, None);
    assert_eq!(solved.origin("train.batch_size"), Some(&Origin::Solved { data_ranks: 4 }));
    let shown = solved.print_config();
    assert!(shown.contains("batch_size = 32"), "{shown}");
    assert!(shown.contains("default: follows train.accumulation, on 4 data ranks"), "{shown}");
    assert_eq!(load(&solved.to_toml(), &[]).recipe_hash(), solved.recipe_hash());
}

#[test]
fn all_that_does_not_divide_is_named_with_the_nearest_values() {
    let of = |sets: &[&str], ranks| mismatches(sets, ranks);
    let (key, reason, fix) = of(&["parallel.tensor=4"], 6).remove(0);
    assert_eq!(
        (key, &*reason, &*fix),
        (
            "parallel.tensor",
            "6 ranks cannot be divided by 4 tensor-parallel ranks",
            "start 4 or 8 ranks, or change parallel.tensor"
        )
    );
    let (_, reason, fix) = of(&["parallel.tensor=4"], 1).remove(0);
    assert_eq!(reason, "1 rank cannot be divided by 4 tensor-parallel ranks");
    assert!(fix.starts_with("start 4 ranks"), "{fix}");
    let (key, reason, fix) = of(&["train.batch_size=50", "train.accumulation=4"], 3).remove(0);
    assert_eq!((key, &*fix), ("train.accumulation", "set train.batch_size = 48 or 60"));
    assert_eq!(reason, "`train.batch_size` = 50 cannot be divided by train.accumulation 4 x 3 data ranks");
    let all = ["train.batch_size=50", "train.micro_batch_size=5", "train.accumulation=4"];
    let (key, reason, fix) = of(&all, 2).remove(0);
    assert_eq!((key, &*fix), ("train.batch_size", "set train.batch_size = 40, or leave one of the three out"));
    assert_eq!(reason, "`train.batch_size` = 50 is not train.micro_batch_size 5 x train.accumulation 4 x 2 data ranks");
    let (_, reason, fix) = of(&["train.batch_size=31", "parallel.tensor=2"], 4).remove(0);
    assert_eq!(reason, "1 micro-batch of 31 cannot be shared evenly among 2 data ranks");
    assert!(fix.contains("a multiple of 2 (30 or 32)"), "{fix}");
}

#[test]
fn the_keys_of_parallel_have_types_and_suggestions() {
    let plain = load(LEAST, &[]).parallel.clone();
    assert_eq!((plain.tensor, plain.pipeline, plain.virtual_stages, plain.sequence), (1, 1, 1, false));
    assert_eq!(
        (plain.schedule, &plain.partition),
        (ScheduleKind::OneForwardOneBackward, &StagePartition::Rule(PartitionRule::Parameters))
    );
    assert_eq!(load(LEAST, &["parallel.tensor=8"]).parallel.data_ranks(16), 2);
    let only = |sets: &[&str]| {
        let found = mistakes(LEAST, sets);
        assert_eq!(found.len(), 1, "{}", list(&found));
        found[0].to_string()
    };
    for (set, part) in [
        ("parallel.tensor=0", "`parallel.tensor` must be a whole number from 1 to 65536"),
        ("parallel.tensor=two", "got the string \"two\""),
        ("parallel.schedule=1f1", "did you mean \"1f1b\"?"),
        ("parallel.partition=block", "did you mean \"blocks\"?"),
        ("parallel.partition=[2, 0]", "a list of the number of blocks"),
        ("parallel.tenser=2", "did you mean `parallel.tensor`?"),
        ("train.tensor_model_parallel_size=2", "here it is parallel.tensor"),
        ("train.gradient_accumulation_steps=2", "here it is train.accumulation"),
        ("parallel.sequence=true", "`parallel.sequence` has no effect: parallel.tensor is 1"),
        ("parallel.virtual_stages=2", "`parallel.virtual_stages` has no effect: parallel.pipeline is 1"),
        ("parallel.schedule=zb-v", "`parallel.schedule` has no effect: parallel.pipeline is 1"),
        ("parallel.partition=blocks", "`parallel.partition` has no effect: parallel.pipeline is 1"),
        ("train.accumulation=0", "must be a whole number from 1"),
        ("save.dtype=bf16&save.which=none", "`save.dtype` has no effect: save.which = \"none\" saves no model"),
    ] {
        let text = only(&set.split('&').collect::<Vec<_>>());
        assert!(text.contains(part), "{set}: {text}");
    }
    assert_eq!(load(LEAST, &["save.which=none"]).save.which, SaveWhich::None);
}

#[test]
fn stages_chunks_and_partitions_have_to_agree() {
    let found = |sets: &[&str]| list(&mistakes(LEAST, &[&["parallel.pipeline=4"], sets].concat()));
    let text = found(&["parallel.schedule=interleaved", "parallel.virtual_stages=1"]);
    assert!(text.contains("`parallel.schedule` = \"interleaved\" runs at least 2 model chunks"), "{text}");
    assert!(text.contains("set parallel.virtual_stages = 2"), "{text}");
    let text = found(&["parallel.virtual_stages=3"]);
    assert!(text.contains("`parallel.schedule` = \"1f1b\" runs 1 model chunks of a stage, and not 3"), "{text}");
    let text = found(&["parallel.partition=[3, 3, 3]"]);
    assert!(text.contains("has 3 numbers for 4 stages x 1 model chunks"), "{text}");
    let stages = ["parallel.pipeline=4", "parallel.schedule=zb-v", "parallel.partition=[1, 1, 1, 1, 1, 1, 1, 1]"];
    assert_eq!(load(LEAST, &stages).parallel.partition, StagePartition::Rule(PartitionRule::Given(vec![1; 8])));
}

#[test]
fn a_batch_that_does_not_fill_a_pipeline_is_named_with_the_nearest_that_would() {
    fn stages<'a>(sets: &[&'a str]) -> Vec<&'a str> {
        [&["parallel.pipeline=4", "parallel.zero=1"], sets].concat()
    }
    // Without a size of its own, a micro-batch is as large as the schedule allows.
    for (sets, ranks, expected) in [
        (&[][..], 4, [32, 8, 4]),
        (&["parallel.schedule=zb-v"], 4, [32, 4, 8]),
        (&["parallel.schedule=interleaved"], 8, [32, 4, 4]),
        (&["train.accumulation=8"], 4, [32, 4, 8]),
    ] {
        assert_eq!(batch(&stages(sets), ranks), expected, "{sets:?}");
    }
    let shown = load(LEAST, &stages(&[])).on_ranks(8, None).print_config();
    assert!(shown.contains("default: train.batch_size / 2 data ranks / 4 micro-batches"), "{shown}");
    for (sets, key, reason, fix) in [
        (&["train.micro_batch_size=16"][..], "train.micro_batch_size", "at least 4 micro-batches", "= 8"),
        (&["train.accumulation=2"], "train.accumulation", "a step has 2", "set train.accumulation = 4"),
        (
            &["train.accumulation=6", "train.batch_size=48", "parallel.schedule=interleaved"],
            "train.accumulation",
            "a multiple of 4 micro-batches",
            "set train.accumulation = 4 or 8",
        ),
        (&["train.batch_size=3"], "train.batch_size", "a step has 1", "set train.batch_size = 4"),
        (&["parallel.schedule=zb-v", "train.micro_batch_size=8"], "train.micro_batch_size", "at least 8", "= 4"),
    ] {
        let found = mismatches(&stages(sets), 4);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!((found[0].0, found[0].1.contains(reason), found[0].2.contains(fix)) == (key, true, true), "{found:?}");
    }
}

#[test]
fn gradients_that_are_reduced_with_their_micro_batch_are_refused_where_those_of_weights_come_later() {
    let found =
        |sets: &[&str], ranks| mismatches(&[&["parallel.pipeline=2", "parallel.schedule=zb-1p"], sets].concat(), ranks);
    assert_eq!(found(&["parallel.zero=1"], 4), []);
    // One data rank shards nothing.
    assert_eq!(found(&["parallel.zero=3"], 2), []);
    let (key, reason, fix) = found(&["parallel.zero=2"], 4).remove(0);
    assert!(key == "parallel.schedule" && reason.contains("`parallel.zero` = 2 reduces them"), "{reason}");
    assert_eq!(fix, "set parallel.zero = 1, or parallel.schedule = \"1f1b\"");
    let (_, reason, fix) = found(&["train.gradient_sum=elastic"], 2).remove(0);
    assert!(reason.contains("`train.gradient_sum` = \"elastic\""), "{reason}");
    assert!(fix.contains("train.gradient_sum = \"fast\""), "{fix}");
}
