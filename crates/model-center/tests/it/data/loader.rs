//! Batches: every sample once, resumable from two integers, little padding.

use std::collections::BTreeSet;
use std::sync::Arc;

use model_center::data::{
    ColumnTask, Dataset, LabelSpec, Labels, Loader, LoaderOptions, Order, Position, ReadOptions, SUPERGLUE, Split,
    Task, TaskModel, find_task,
};

use crate::data::words::{Words, file};

/// A dataset whose sample `i` has 3 + (i × 7 mod 40) tokens and the label `i`.
fn dataset(samples: usize) -> Arc<Dataset> {
    let content: String = (0..samples).map(|at| format!("{}\t{at}\n", "w ".repeat(1 + at * 7 % 40))).collect();
    let (_directory, path) = file("a.tsv", format!("text\tlabel\n{content}"));
    let words = Words::new();
    let task = ColumnTask { labels: LabelSpec::Value, ..ColumnTask::default() };
    Arc::new(task.read(&path, &ReadOptions::new(&words, 64)).unwrap())
}

fn options(order: Order, batch_size: usize, drop_last: bool) -> LoaderOptions {
    LoaderOptions { batch_size, order, drop_last, round_epoch_to: 1, pad_to_multiple_of: 1, packing: false, seed: 5 }
}

const ORDERS: [Order; 4] =
    [Order::Sequential, Order::Shuffled, Order::LengthGrouped { window: 3 }, Order::SortedByLength];

fn visited(loader: &mut Loader, epoch: u64) -> Vec<u32> {
    loader.epoch(epoch).flat_map(|batch| batch.unwrap().samples).collect()
}

#[test]
fn every_sample_is_visited_exactly_once() {
    for samples in [1, 2, 7, 16, 64, 101] {
        let dataset = dataset(samples);
        for order in ORDERS {
            for batch_size in [1, 3, 8, 200] {
                let mut loader = Loader::new(dataset.clone(), options(order, batch_size, false)).unwrap();
                assert_eq!(loader.batches_per_epoch() as usize, samples.div_ceil(batch_size));
                for epoch in 0..2 {
                    let mut seen = visited(&mut loader, epoch);
                    seen.sort_unstable();
                    assert!(seen.iter().copied().eq(0..samples as u32), "{order:?} {samples} by {batch_size}");
                }
            }
        }
    }
}

#[test]
fn a_rounded_epoch_ends_in_batches_without_samples_and_weight() {
    let dataset = dataset(9);
    for order in ORDERS {
        let options = LoaderOptions { round_epoch_to: 4, ..options(order, 2, false) };
        let mut loader = Loader::new(dataset.clone(), options).unwrap();
        assert_eq!(loader.batches_per_epoch(), 8);
        let at = |index| Position { epoch: 1, index };
        let sizes = [2, 2, 2, 2, 1, 0, 0, 0];
        let mut seen = Vec::new();
        for (index, size) in sizes.into_iter().enumerate() {
            let batch = loader.batch(at(index as u64)).unwrap();
            // Without samples it has a row all the same, so that it can be computed.
            assert_eq!((batch.samples.len(), batch.rows), (size, size.max(1)), "{order:?} {index}");
            assert_eq!(batch.labels.as_ref().unwrap().len(), size.max(1));
            seen.extend(batch.samples);
        }
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..9), "{order:?}");
        // By samples, not by batches.
        assert_eq!(loader.shares(at(0), 4).unwrap(), [0.25; 4]);
        assert_eq!(loader.shares(at(4), 4).unwrap(), [1.0, 0.0, 0.0, 0.0]);
        assert_eq!(loader.shares(at(3), 2).unwrap(), [2.0 / 3.0, 1.0 / 3.0]);
        assert!(loader.batch(at(8)).is_err());
    }
}

#[test]
fn batches_share_in_a_mean_as_their_classes_weigh() {
    let (_directory, path) = file("a.tsv", "text\tlabel\na\tx\nb\tx\nc\ty\nd\ty\ne\tx\nf\ty\n");
    let words = Words::new();
    let data = Arc::new(ColumnTask::default().read(&path, &ReadOptions::new(&words, 16)).unwrap());
    let loader = || Loader::new(data.clone(), options(Order::Sequential, 2, true)).unwrap();
    // Of three micro-batches with samples xx, yy and xy.
    let shares = |weights: Option<Vec<f32>>| loader().weighing(weights).shares(Position::default(), 3).unwrap();
    assert_eq!(shares(None), [1.0 / 3.0; 3]);
    assert_eq!(shares(Some(vec![1.0, 3.0])), [2.0 / 12.0, 6.0 / 12.0, 4.0 / 12.0]);
    assert!(loader().weighing(Some(vec![1.0, 3.0])).shares(Position { epoch: 0, index: 2 }, 2).is_err());
}

#[test]
fn dropping_the_last_batch_keeps_all_batches_full() {
    let dataset = dataset(101);
    for order in ORDERS {
        let mut loader = Loader::new(dataset.clone(), options(order, 8, true)).unwrap();
        assert_eq!(loader.batches_per_epoch(), 12);
        assert!(loader.epoch(0).all(|batch| batch.unwrap().samples.len() == 8));
        assert_eq!(visited(&mut loader, 0).into_iter().collect::<BTreeSet<_>>().len(), 96);
    }
}

#[test]
fn length_grouping_drops_samples_at_random_not_the_longest() {
    let dataset = dataset(103);
    let order = Order::LengthGrouped { window: 50 };
    let mut loader = Loader::new(dataset.clone(), options(order, 8, true)).unwrap();
    let mut dropped = Vec::new();
    for epoch in 0..40 {
        let seen: BTreeSet<u32> = visited(&mut loader, epoch).into_iter().collect();
        dropped.extend((0..103).filter(|sample| !seen.contains(sample)));
    }
    assert_eq!(dropped.len(), 40 * 7);
    let mean = dropped.iter().map(|sample| dataset.length(*sample as usize)).sum::<usize>() as f64 / 280.0;
    // Lengths are uniform over 3..43 with mean 22.5; the mean of 280 samples deviates by 0.7, three times that is
    // allowed.
    assert!((mean - 22.5).abs() < 2.1, "{mean}");
    assert!(dropped.iter().collect::<BTreeSet<_>>().len() > 80, "nearly every sample is dropped once");
}

#[test]
fn any_batch_can_be_asked_for_in_any_order() {
    let dataset = dataset(64);
    for order in ORDERS {
        let forward: Vec<_> = {
            let mut loader = Loader::new(dataset.clone(), options(order, 4, true)).unwrap();
            (0..2).flat_map(|epoch| loader.epoch(epoch).map(Result::unwrap).collect::<Vec<_>>()).collect()
        };
        let mut loader = Loader::new(dataset.clone(), options(order, 4, true)).unwrap();
        for batch in forward.iter().rev() {
            assert_eq!(loader.batch(batch.position).unwrap(), *batch, "{order:?}");
        }
    }
}

#[test]
fn ranks_taking_every_other_index_see_each_sample_once() {
    let dataset = dataset(50);
    let options = options(Order::LengthGrouped { window: 4 }, 3, false);
    let mut seen = Vec::new();
    for rank in 0..4 {
        let mut loader = Loader::new(dataset.clone(), options).unwrap();
        for index in (rank..loader.batches_per_epoch()).step_by(4) {
            seen.extend(loader.samples(Position { epoch: 1, index }).unwrap());
        }
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..50));
}

#[test]
fn epochs_and_seeds_shuffle_differently() {
    let dataset = dataset(64);
    for order in [Order::Shuffled, Order::LengthGrouped { window: 3 }] {
        let mut loader = Loader::new(dataset.clone(), options(order, 4, true)).unwrap();
        let base = visited(&mut loader, 0);
        assert_ne!(base, visited(&mut loader, 1));
        assert_ne!(base, (0..64).collect::<Vec<_>>());
        let other = LoaderOptions { seed: 6, ..options(order, 4, true) };
        assert_ne!(base, visited(&mut Loader::new(dataset.clone(), other).unwrap(), 0));
    }
}

/// The order of a seed is part of what resuming reproduces, so it may never change.
#[test]
fn the_shuffled_order_is_frozen() {
    let mut loader = Loader::new(dataset(12), options(Order::Shuffled, 4, true)).unwrap();
    assert_eq!(visited(&mut loader, 1), FROZEN_SHUFFLED);
    let grouped = options(Order::LengthGrouped { window: 2 }, 2, true);
    let mut loader = Loader::new(dataset(12), grouped).unwrap();
    assert_eq!(visited(&mut loader, 1), FROZEN_GROUPED);
}
const FROZEN_SHUFFLED: [u32; 12] = [6, 3, 9, 0, 7, 11, 4, 1, 10, 2, 8, 5];
const FROZEN_GROUPED: [u32; 12] = [3, 9, 0, 6, 1, 7, 4, 11, 10, 5, 2, 8];

#[test]
fn grouping_by_length_pads_less_than_shuffling() {
    let dataset = dataset(800);
    let padding = |order| {
        let mut loader = Loader::new(dataset.clone(), options(order, 8, true)).unwrap();
        let (mut cells, mut tokens) = (0, 0);
        for batch in loader.epoch(0) {
            let batch = batch.unwrap();
            cells += batch.rows * batch.length;
            tokens += batch.tokens();
        }
        1.0 - tokens as f64 / cells as f64
    };
    let (shuffled, grouped) = (padding(Order::Shuffled), padding(Order::LengthGrouped { window: 50 }));
    assert!(shuffled > 0.35 && grouped < 0.05, "{shuffled} {grouped}");
    assert!(padding(Order::SortedByLength) < 0.05);
}

#[test]
fn grouped_batches_do_not_come_in_order_of_length() {
    let mut loader = Loader::new(dataset(800), options(Order::LengthGrouped { window: 50 }, 8, true)).unwrap();
    let lengths: Vec<usize> = loader.epoch(0).map(|batch| batch.unwrap().length).collect();
    let rising = lengths.windows(2).filter(|pair| pair[0] < pair[1]).count();
    assert!((30..70).contains(&rising), "{rising} of 99 steps rise; sorted batches would all rise");
}

#[test]
fn rows_are_padded_to_their_own_longest() {
    let mut loader = Loader::new(dataset(3), options(Order::Sequential, 2, false)).unwrap();
    let batch = loader.batch(Position { epoch: 0, index: 0 }).unwrap();
    // Lengths 3 and 10: [CLS] w [SEP] and [CLS] eight times w [SEP].
    assert_eq!((batch.rows, batch.length, batch.tokens()), (2, 10, 13));
    assert_eq!(batch.input_ids[..10], [1, 3, 2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(batch.input_ids[10..], [1, 3, 3, 3, 3, 3, 3, 3, 3, 2]);
    assert_eq!(batch.attention_mask.as_ref().unwrap()[..10], [1, 1, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(batch.attention_mask.as_ref().unwrap()[10..], [1; 10]);
    assert_eq!(batch.token_type_ids.as_deref(), Some(&[0; 20][..]));
    assert_eq!(batch.labels, Some(Labels::Values(vec![0.0, 1.0])));
    let last = loader.batch(Position { epoch: 0, index: 1 }).unwrap();
    assert_eq!((last.rows, last.samples), (1, vec![2]));
}

#[test]
fn lengths_round_up_but_not_beyond_the_limit() {
    let dataset = dataset(64);
    let mut loader =
        Loader::new(dataset.clone(), LoaderOptions { pad_to_multiple_of: 8, ..options(Order::Shuffled, 4, true) })
            .unwrap();
    assert!(loader.epoch(0).all(|batch| batch.unwrap().length % 8 == 0));
    for pad_to_multiple_of in [100, usize::MAX] {
        let options = LoaderOptions { pad_to_multiple_of, ..options(Order::Shuffled, 4, true) };
        let mut loader = Loader::new(dataset.clone(), options).unwrap();
        assert!(loader.epoch(0).all(|batch| batch.unwrap().length <= 64));
    }
}

#[test]
fn choices_of_a_sample_stay_together() {
    let line = |at: usize| {
        format!(
            r#"{{"premise": "p{at}", "choice1": "{}", "choice2": "b", "question": "cause", "label": {}}}"#,
            "a ".repeat(at + 1),
            at % 2
        )
    };
    let lines: Vec<String> = (0..6).map(line).collect();
    let (directory, _) = file("COPA/train.jsonl", lines.join("\n"));
    let words = Words::new();
    let task = find_task("COPA", &[SUPERGLUE]).unwrap();
    let dataset =
        task.read_below(directory.path(), Split::Train, TaskModel::default(), &ReadOptions::new(&words, 64)).unwrap();
    let mut loader = Loader::new(Arc::new(dataset), options(Order::Shuffled, 3, true)).unwrap();
    let batch = loader.batch(Position::default()).unwrap();
    assert_eq!((batch.samples.len(), batch.rows, batch.labels.as_ref().unwrap().len()), (3, 6, 3));
    let Some(Labels::Classes(labels)) = &batch.labels else { panic!() };
    for (at, sample) in batch.samples.iter().enumerate() {
        assert_eq!(labels[at], i64::from(sample % 2));
        let row = |row: usize| &batch.input_ids[row * batch.length..(row + 1) * batch.length];
        let count = |row: &[i64]| row.iter().filter(|id| **id == i64::from(words.tokenize_one("a"))).count();
        assert_eq!(count(row(2 * at)), *sample as usize + 1);
        assert_eq!(count(row(2 * at + 1)), 0);
        assert!(row(2 * at + 1).contains(&i64::from(words.tokenize_one(&format!("\"p{sample}\"")))));
    }
}

#[test]
fn positions_are_kept_as_two_integers() {
    let position = Position { epoch: 2, index: 5 };
    let text = serde_json::to_string(&position).unwrap();
    assert_eq!(text, r#"{"epoch":2,"index":5}"#);
    assert_eq!(serde_json::from_str::<Position>(&text).unwrap(), position);
}

#[test]
fn impossible_settings_are_refused() {
    let dataset = dataset(5);
    let wrong = |options: LoaderOptions| Loader::new(dataset.clone(), options).unwrap_err().to_string();
    assert!(wrong(options(Order::Shuffled, 0, false)).contains("batch size"));
    assert!(wrong(options(Order::Shuffled, 6, true)).contains("5 samples do not fill one batch of 6"));
    assert!(wrong(options(Order::LengthGrouped { window: 0 }, 2, true)).contains("LoaderOptions::order"));
    let multiple = LoaderOptions { pad_to_multiple_of: 0, ..options(Order::Shuffled, 2, true) };
    assert!(wrong(multiple).contains("pad_to_multiple_of"));
    let mut loader = Loader::new(dataset.clone(), options(Order::Shuffled, 2, false)).unwrap();
    let error = loader.batch(Position { epoch: 0, index: 3 }).unwrap_err().to_string();
    assert!(error.contains("batch 3 of epoch 0") && error.contains("an epoch has 3 batches"), "{error}");
    assert!(
        Loader::new(dataset.clone(), options(Order::LengthGrouped { window: usize::MAX }, usize::MAX, false)).is_ok()
    );
}

#[test]
fn a_dataset_of_its_longest_sample_brings_the_largest_batch_every_time() {
    let dataset = dataset(40);
    let longest = (0..dataset.len()).map(|sample| dataset.length(sample)).max().unwrap();
    let all = Arc::new(dataset.of_longest(1000));
    assert_eq!((all.len(), all.labels()), (1000, dataset.labels()));
    let mut loader = Loader::new(Arc::clone(&all), options(Order::Shuffled, 8, true)).unwrap();
    assert!(loader.epoch(0).all(|batch| batch.unwrap().length == longest));
    assert!(all.bytes() < dataset.bytes() + 4000, "copies are stored once");
}
