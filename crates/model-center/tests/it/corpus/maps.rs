//! Index maps: equal to NumPy's, independent of threads, checked when they are opened, and what samples they give.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use model_center::corpus::{DocumentSet, SampleOptions, SampleOrder, Samples, TokenFile, TokenType, map_names};
use serde_json::Value;
use tempfile::tempdir;

use super::{golden, read, write};
use crate::mutants::Random;

fn options(cache: &Path, samples: u64, length: u64, order: SampleOrder) -> SampleOptions {
    SampleOptions {
        sequence_length: length,
        samples,
        seed: 3,
        order,
        part: "train".into(),
        cache: Some(cache.to_owned()),
        threads: 2,
    }
}

fn all(samples: &Samples) -> Vec<Vec<u32>> {
    let mut ids = Vec::new();
    (0..samples.len())
        .map(|index| {
            samples.read(index, &mut ids).unwrap();
            ids.clone()
        })
        .collect()
}

#[test]
fn maps_equal_those_of_numpy_byte_for_byte() {
    let cases: Value = serde_json::from_str(&fs::read_to_string(golden("maps.json")).unwrap()).unwrap();
    let file = Arc::new(TokenFile::open(golden("mapped")).unwrap());
    for case in cases.as_array().unwrap() {
        let number = |name: &str| case[name].as_u64().unwrap();
        let order = match case["order"].as_str().unwrap() {
            "megatron" => SampleOrder::Megatron,
            _ => SampleOrder::MegatronV1,
        };
        let directory = tempdir().unwrap();
        let part = case["part"].as_str().unwrap();
        let options = SampleOptions {
            seed: number("seed"),
            part: part.into(),
            ..options(directory.path(), number("samples"), number("length"), order)
        };
        let documents =
            DocumentSet::range(case["documents"][0].as_u64().unwrap()..case["documents"][1].as_u64().unwrap());
        let samples = Samples::open(Arc::clone(&file), &documents, &options).unwrap();
        assert_eq!(samples.epochs(), number("epochs"));
        let name = case["name"].as_str().unwrap();
        for map in map_names("mapped", part, options.samples, options.sequence_length, options.seed, order) {
            let made = fs::read(directory.path().join(&map)).unwrap();
            assert!(made == fs::read(golden(name).join(&map)).unwrap(), "{name}: {map}");
        }
        let read = all(&samples);
        assert_eq!(serde_json::json!(read.first().unwrap()), case["first"], "{name}");
        assert_eq!(serde_json::json!(read.last().unwrap()), case["last"], "{name}");
    }
}

/// A corpus whose tokens all differ.
fn numbered(prefix: &Path, documents: usize, longest: usize) -> u64 {
    let mut random = Random(2);
    let mut next = 0;
    let documents: Vec<Vec<Vec<u32>>> = (0..documents)
        .map(|_| {
            let length = random.below(longest) as u32;
            next += length;
            vec![(next - length..next).collect()]
        })
        .collect();
    write(prefix, TokenType::I32, &documents);
    u64::from(next)
}

#[test]
fn samples_of_an_epoch_have_every_token_once_and_neighbours_share_one() {
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    let tokens = numbered(&prefix, 300, 30);
    let documents: HashMap<u32, Vec<u32>> =
        read(&prefix).unwrap().concat().into_iter().filter_map(|ids| Some((*ids.first()?, ids))).collect();
    let file = Arc::new(TokenFile::open(&prefix).unwrap());
    for length in [1, 7, 64, 5000] {
        let wanted = tokens.saturating_sub(1) / length;
        let options = options(directory.path(), wanted.max(1), length, SampleOrder::Addressed);
        let samples = Samples::open(Arc::clone(&file), &DocumentSet::range(0..300), &options).unwrap();
        if wanted > 0 {
            assert_eq!((samples.epochs(), samples.len(), samples.tokens_per_epoch()), (1, wanted, tokens));
        }
        // Each sample goes through documents in their order, from one's end to another's beginning.
        let mut inputs = Vec::new();
        for ids in all(&samples) {
            assert_eq!(ids.len() as u64, length + 1);
            for pair in ids.windows(2) {
                let is_next = pair[1] == pair[0] + 1;
                assert!(is_next || documents.contains_key(&pair[1]), "{pair:?}");
            }
            inputs.extend_from_slice(&ids[..length as usize]);
        }
        let count = inputs.len();
        inputs.sort_unstable();
        inputs.dedup();
        assert!(samples.epochs() > 1 || inputs.len() == count, "{length}: a token is in two samples of one epoch");
    }
}

#[test]
fn any_number_of_threads_and_of_samples_gives_the_same_samples() {
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    // More than one window of the builder with one thread.
    let tokens = numbered(&prefix, 300_000, 3);
    let file = Arc::new(TokenFile::open(&prefix).unwrap());
    let documents = DocumentSet::range(0..300_000);
    for order in [SampleOrder::Addressed, SampleOrder::Megatron] {
        let maps = |threads: usize| {
            let cache = tempdir().unwrap();
            let options = SampleOptions { threads, ..options(cache.path(), tokens / 50, 32, order) };
            let samples = Samples::open(Arc::clone(&file), &documents, &options).unwrap();
            assert_eq!(samples.epochs(), 1);
            let names = map_names("c", "train", options.samples, 32, 3, order);
            names.iter().map(|name| fs::read(cache.path().join(name)).unwrap()).collect::<Vec<_>>()
        };
        let one = maps(1);
        assert!(one == maps(2) && one == maps(7), "{order:?}");
    }
    let open = |samples| {
        let options = options(directory.path(), samples, 32, SampleOrder::Addressed);
        Samples::open(Arc::clone(&file), &documents, &options).unwrap()
    };
    let (short, long) = (open(10), open(tokens / 10));
    assert_eq!((short.epochs(), long.epochs()), (1, 4));
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for index in (0..short.len()).step_by(97) {
        short.read(index, &mut a).unwrap();
        long.read(index, &mut b).unwrap();
        assert_eq!(a, b, "more epochs change no earlier sample");
    }
}

#[test]
fn documents_of_a_random_split_give_samples_of_their_own() {
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    numbered(&prefix, 400, 20);
    let file = Arc::new(TokenFile::open(&prefix).unwrap());
    let mut seen: HashMap<u32, &str> = HashMap::new();
    for (part, range) in [("train", 0..300), ("valid", 300..400)] {
        let documents = DocumentSet::permuted(range, 400, 5);
        let options = SampleOptions { part: part.into(), ..options(directory.path(), 20, 16, SampleOrder::Addressed) };
        let samples = Samples::open(Arc::clone(&file), &documents, &options).unwrap();
        for id in all(&samples).concat() {
            assert_eq!(*seen.entry(id).or_insert(part), part);
        }
    }
}

#[test]
fn maps_are_reused_when_whole_and_computed_again_otherwise() {
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    numbered(&prefix, 100, 20);
    let options = options(directory.path(), 20, 16, SampleOrder::Megatron);
    let open = || {
        let file = Arc::new(TokenFile::open(&prefix).unwrap());
        Samples::open(file, &DocumentSet::range(0..90), &options)
    };
    let expected = all(&open().unwrap());
    let names = map_names("c", "train", 20, 16, 3, SampleOrder::Megatron);
    let modified = || {
        names.iter().map(|n| fs::metadata(directory.path().join(n)).unwrap().modified().unwrap()).collect::<Vec<_>>()
    };
    let before = modified();
    assert_eq!(all(&open().unwrap()), expected);
    assert_eq!(modified(), before, "whole maps are not written again");
    for name in &names {
        let path = directory.path().join(name);
        let whole = fs::read(&path).unwrap();
        let mut damaged = whole.clone();
        let last = damaged.len() - 5;
        damaged[last] ^= 1;
        for bytes in [&damaged[..], &whole[..whole.len() - 4], b""] {
            fs::write(&path, bytes).unwrap();
            assert_eq!(all(&open().unwrap()), expected);
            assert!(fs::read(&path).unwrap() == whole);
        }
    }
    let record = directory.path().join("c_train_indexmap_20ns_16sl_3s.json");
    for text in ["", "{}", "[1]", &fs::read_to_string(&record).unwrap().replace("\"epochs\": 1", "\"epochs\": 0")] {
        fs::write(&record, text).unwrap();
        match open() {
            Ok(samples) => assert_eq!(all(&samples), expected),
            Err(error) => assert!(error.to_string().contains("remove the index maps"), "{error}"),
        }
    }
    // Another corpus under the same prefix.
    fs::remove_file(&record).unwrap();
    open().unwrap();
    for ending in ["bin", "idx"] {
        fs::remove_file(prefix.with_extension(ending)).unwrap();
    }
    write(&prefix, TokenType::I32, &vec![vec![vec![1; 30]]; 90]);
    assert!(all(&open().unwrap()).concat().iter().all(|id| *id == 1));
}

#[test]
fn requests_that_cannot_be_satisfied_are_refused() {
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    write(&prefix, TokenType::U8, &[vec![vec![]], vec![vec![1, 2, 3]]]);
    let file = Arc::new(TokenFile::open(&prefix).unwrap());
    let good = options(directory.path(), 2, 2, SampleOrder::Addressed);
    let refused = |documents: std::ops::Range<u64>, options: &SampleOptions| {
        Samples::open(Arc::clone(&file), &DocumentSet::range(documents), options).unwrap_err().to_string()
    };
    assert!(refused(0..1, &good).contains("they have no tokens"));
    assert!(refused(0..3, &good).contains("the file has 2 sequences"));
    assert!(refused(0..2, &SampleOptions { sequence_length: 0, ..good.clone() }).contains("samples of 0 tokens"));
    assert!(refused(0..2, &SampleOptions { samples: u64::MAX, ..good.clone() }).contains("beyond 2^62"));
    assert!(refused(0..2, &SampleOptions { part: "../a".into(), ..good.clone() }).contains("not a name of a part"));
    let megatron = SampleOptions { seed: 1 << 32, order: SampleOrder::Megatron, ..good.clone() };
    assert!(refused(0..2, &megatron).contains("above 2^32 - 1"));
    let samples = Samples::open(file, &DocumentSet::range(0..2), &good).unwrap();
    let error = samples.read(samples.len(), &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("numbered from 0"), "{error}");
}
