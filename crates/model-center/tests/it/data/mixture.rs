//! Data sets mixed by proportions: the claim `proportions`.

use std::sync::Arc;

use model_center::data::{
    ClassSource, DataClass, DataSet, Dataset, EpochMixture, Loader, LoaderOptions, LossOn, Position, ReadOptions,
    Sample, SampleSink, SftColumns, SftTask, Split, TaskModel, TextFormats,
};
use model_center::tokenizer::KeepSide;
use model_center::{Error, Result};
use serde_json::{Map, json};

use crate::data::words::Words;

const SIZES: [u64; 4] = [40_000, 7_000, 300, 52_700];
const PROPORTIONS: [f64; 4] = [5.0, 3.0, 0.5, 1.5];
/// Of 100,000 samples each.
const EPOCHS: u64 = 10;

/// The set of a sample.
fn set_of(sample: u32) -> usize {
    let mut end = 0;
    SIZES
        .iter()
        .position(|size| {
            end += size;
            u64::from(sample) < end
        })
        .unwrap()
}

#[test]
fn a_million_samples_have_their_proportions_and_no_set_repeats_one_before_its_others() {
    let mixture = EpochMixture::new(&SIZES, &PROPORTIONS).unwrap();
    assert_eq!(mixture.len(), 100_000);
    let (mut seen, mut taken) = (vec![0_u32; 100_000], [0_u64; 4]);
    let (mut largest, mut orders) = (0.0_f64, Vec::new());
    for epoch in 0..EPOCHS {
        let order = mixture.epoch(17, epoch);
        let mut counts = [0_u64; 4];
        for (at, sample) in order.iter().enumerate() {
            let set = set_of(*sample);
            counts[set] += 1;
            // A sample comes again when every other one of its set has come as often.
            let round = taken[set] / SIZES[set];
            assert_eq!(u64::from(seen[*sample as usize]), round, "sample {sample} of set {set} in epoch {epoch}");
            seen[*sample as usize] += 1;
            taken[set] += 1;
            // Within an epoch the samples of a set are spread: a hypergeometric count with this standard deviation.
            if (at + 1) % 1_000 == 0 && at + 1 < order.len() {
                let (share, part) = (PROPORTIONS[set] / 10.0, (at + 1) as f64 / order.len() as f64);
                let deviation = ((at + 1) as f64 * share * (1.0 - share) * (1.0 - part)).sqrt();
                largest = largest.max((counts[set] as f64 - share * (at + 1) as f64).abs() / deviation);
            }
        }
        assert_eq!(counts, [50_000, 30_000, 5_000, 15_000], "epoch {epoch}");
        assert!(!orders.contains(&order[..100].to_vec()), "epoch {epoch}");
        orders.push(order[..100].to_vec());
    }
    // 4,000 values that are about normal: five standard deviations are exceeded once in a thousand runs.
    assert!(largest < 5.0, "{largest}");
    // Of the set that is seen least, most samples have come; of no set are there any that never come.
    assert!(seen[47_300..].iter().all(|count| *count >= 2));
    println!("figure: 1000000 samples, at most {largest:.2} standard deviations");
}

static NUMBERS: DataClass = DataClass {
    name: "numbers",
    doc: "Numbers from config.first on.",
    has_split: |_, split| split == Split::Train,
    read: numbers,
};

fn numbers(source: &ClassSource<'_>, samples: &mut SampleSink<'_>) -> Result<()> {
    let (first, count) = (source.whole("first", 0)?, source.whole("count", 0)?);
    for at in first..first + count {
        if !samples.push(format!("{at}"), Ok(Sample::pair("n", format!("n{at}"))))? {
            return Err(Error::argument("numbers", "no more are wanted", "read all"));
        }
    }
    Ok(())
}

fn dataset() -> Arc<Dataset> {
    let set = |first: u64, count: u64, proportion: f64| {
        let config = [("first".to_owned(), json!(first)), ("count".to_owned(), json!(count))];
        DataSet {
            path: "numbers".into(),
            eval: None,
            class: Some(&NUMBERS),
            config: Map::from_iter(config),
            proportion,
            form: None,
            formats: TextFormats::default(),
            max_input_tokens: None,
            max_output_tokens: None,
        }
    };
    let task = SftTask {
        pairs: None,
        sets: vec![set(0, 70, 2.0), set(70, 300, 1.0), set(370, 26, 1.0)],
        columns: SftColumns::default(),
        format: None,
        loss_on: LossOn::Assistant,
        keep: KeepSide::Start,
        as_chat: false,
    };
    let model = TaskModel { chat: None, generates_targets: false, place: None };
    let words = Words::new();
    Arc::new(task.read(Split::Train, &ReadOptions::new(&words, 16), model).unwrap().unwrap())
}

#[test]
fn any_number_of_ranks_and_a_resumed_run_have_the_same_order() {
    let dataset = dataset();
    let loader = || Loader::new(Arc::clone(&dataset), LoaderOptions::training(4, 9)).unwrap();
    let batches = loader().batches_per_epoch();
    assert_eq!(batches, 99);
    let mut alone = Vec::new();
    let mut one = loader();
    for epoch in 0..4 {
        alone.extend(one.epoch(epoch).map(|batch| batch.unwrap().samples));
    }
    let position = |number: u64| Position { epoch: number / batches, index: number % batches };
    for ranks in [2, 4] {
        // Each rank has a loader of its own, and takes the batches r, r + R, ...
        let mut loaders: Vec<Loader> = (0..ranks).map(|_| loader()).collect();
        for (number, expected) in alone.iter().enumerate() {
            let found = loaders[number % ranks].batch(position(number as u64)).unwrap().samples;
            assert_eq!(found, *expected, "batch {number} of {ranks} ranks");
        }
    }
    // From any place on, as a run that is resumed there.
    for start in [1, 98, 99, 250] {
        let mut resumed = loader();
        for (number, expected) in alone.iter().enumerate().skip(start) {
            assert_eq!(resumed.batch(position(number as u64)).unwrap().samples, *expected, "from {start}: {number}");
        }
    }
}
