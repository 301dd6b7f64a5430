//! Other formats of tokenised corpora: golden files of NumPy and of Python's pickle, round trips, damage.

use std::fs;
use std::path::{Path, PathBuf};

use model_center::corpus::formats::{
    BertRecord, BlockFiles, CorpusFormat, Example, Feature, ReadOptions, TfRecordReader, TfRecordWriter, WriteOptions,
    compact_blocks, mask_blocks, shuffle_blocks,
};
use model_center::corpus::{ConvertOptions, TokenType, convert, merge, verify, verify_documents};
use model_center::{Error, Result};
use tempfile::tempdir;

use super::{read, write};
use crate::mutants::{Random, replace};

type Documents = Vec<Vec<u32>>;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/corpus_formats").join(name)
}

fn documents() -> Documents {
    serde_json::from_str(&fs::read_to_string(golden("documents.json")).unwrap()).unwrap()
}

/// Converts without options.
fn converted(from: &Path, to: &Path, format: CorpusFormat, write: &WriteOptions) -> Result<u64> {
    let paths = [from.to_owned()];
    let options = ConvertOptions::default();
    Ok(convert(&paths, &ReadOptions::default(), (to, format), write, options, &mut |_, _| {})?.documents)
}

/// The documents of a corpus, by way of a token file; each is one sequence.
fn contents(path: &Path, read_as: &ReadOptions) -> Result<Documents> {
    let directory = tempdir().unwrap();
    let out = directory.path().join("c");
    let write = WriteOptions { token: TokenType::I32, ..Default::default() };
    let target = (&*out, CorpusFormat::Megatron);
    convert(&[path.to_owned()], read_as, target, &write, ConvertOptions::default(), &mut |_, _| {})?;
    let documents = read(&out)?;
    Ok(documents.into_iter().map(|document| document.concat()).collect())
}

#[test]
fn arrays_that_numpy_wrote_are_read() {
    let rows = [documents(), documents()[..2].to_vec(), vec![vec![1, 2, 3], vec![4, 5, 6]], vec![vec![9, 8]]];
    assert_eq!(contents(&golden("npy"), &ReadOptions::default()).unwrap(), rows.concat());
    for (name, expected) in ["arrays.npy", "lists.npy", "rows.npy", "one.npy"].iter().zip(rows) {
        assert_eq!(contents(&golden("npy").join(name), &ReadOptions::default()).unwrap(), expected, "{name}");
    }
    let report = verify_documents(&golden("npy"), &ReadOptions::default(), None, &mut |_, _| {}).unwrap();
    assert_eq!((report.documents, report.empty, report.largest_id), (10, 2, Some(65535)));
    let error = verify_documents(&golden("npy"), &ReadOptions::default(), Some(300), &mut |_, _| {}).unwrap_err();
    assert!(error.to_string().contains("the vocabulary has 300 tokens"), "{error}");
}

#[test]
fn block_files_that_python_pickled_are_read_without_masked_ones() {
    let expected: Documents = std::iter::repeat_n(documents(), 7).flatten().collect();
    assert_eq!(contents(&golden("blocks"), &ReadOptions::default()).unwrap(), expected);
    let files = BlockFiles::read(&golden("blocks")).unwrap().files;
    let names: Vec<_> = files.iter().map(|file| (&*file.name, file.is_masked)).collect();
    assert_eq!(names, [("first", false), ("hidden", true), ("second", false)]);
    let other = ReadOptions { key: "ids".into(), ..Default::default() };
    let error = contents(&golden("blocks"), &other).unwrap_err().to_string();
    assert!(error.contains("a dictionary without \"ids\"") && error.contains("--key"), "{error}");
}

#[test]
fn records_of_bert_give_the_tokens_before_masking() {
    let restored = |number: u32| vec![101, 7, 8, 1000, 102, 9 + number, 2000 + number, 102];
    let path = golden("records/bert.tfrecord");
    assert_eq!(contents(&path, &ReadOptions::default()).unwrap(), (0..3).map(restored).collect::<Vec<_>>());
    assert_eq!(contents(&golden("records/plain.tfrecord.gz"), &ReadOptions::default()).unwrap(), documents());
    // Numbers one by one are read, and packed when they are written: every record has the form of the first two.
    let mut reader = TfRecordReader::open(&path).unwrap();
    let mut number = 0;
    while let Some(record) = reader.advance().unwrap() {
        let example = Example::read(record).unwrap();
        let bert = BertRecord::read(&example).unwrap();
        assert_eq!((bert.next_sentence_label, bert.input_ids.len()), (number % 2, 16));
        assert_eq!(bert.example(), example);
        assert_eq!(example.write() == record, number < 2);
        number += 1;
    }
    assert_eq!(number, 3);
}

#[test]
fn every_format_gives_back_what_was_written() {
    let directory = tempdir().unwrap();
    let mut random = Random(3);
    let document = |random: &mut Random| (0..random.below(60)).map(|_| random.next() as u32 % 65_536).collect();
    let written: Documents = (0..200).map(|_| document(&mut random)).collect();
    let source = directory.path().join("source");
    write(&source, TokenType::U16, &written.iter().map(|document| vec![document.clone()]).collect::<Vec<_>>());
    for (name, format) in [
        ("c", CorpusFormat::Megatron),
        ("npy", CorpusFormat::Npy),
        ("blocks", CorpusFormat::Blocks),
        ("c.tfrecord", CorpusFormat::Tfrecord),
        ("c.tfrecord.gz", CorpusFormat::Tfrecord),
    ] {
        let out = directory.path().join(name);
        let options = WriteOptions { shard_documents: 33, block_bytes: 1000, ..Default::default() };
        assert_eq!(converted(&source, &out, format, &options).unwrap(), 200);
        assert_eq!(CorpusFormat::detect(&out).unwrap(), format);
        assert_eq!(contents(&out, &ReadOptions::default()).unwrap(), written, "{name}");
        let error = converted(&source, &out, format, &options).unwrap_err().to_string();
        assert!(error.contains("is there already"), "{error}");
    }
    assert!(directory.path().join("npy/Data16-6.npy").exists() && !directory.path().join("npy/Data16-7.npy").exists());
    let hidden = |path: &Path| {
        fs::read_dir(path).unwrap().any(|entry| entry.unwrap().file_name().as_encoded_bytes().starts_with(b"."))
    };
    assert!(!["", "npy", "blocks"].iter().any(|name| hidden(&directory.path().join(name))));
}

#[test]
fn documents_are_cut_off_and_sequences_become_documents() {
    let directory = tempdir().unwrap();
    let (source, out) = (directory.path().join("source"), directory.path().join("out"));
    write(&source, TokenType::I32, &[vec![vec![1, 2, 3], vec![4]], vec![vec![70_000, 6, 7, 8]]]);
    let convert_with = |by_sequence, max_tokens, token| {
        let options = ConvertOptions { by_sequence, max_tokens };
        let write = WriteOptions { token, ..Default::default() };
        let target = (&*out, CorpusFormat::Npy);
        let report =
            convert(std::slice::from_ref(&source), &ReadOptions::default(), target, &write, options, &mut |_, _| {})?;
        let read = contents(&out, &ReadOptions::default())?;
        fs::remove_dir_all(&out).unwrap();
        Ok::<_, Error>((report.cut, read))
    };
    assert_eq!(convert_with(false, 0, TokenType::I32).unwrap(), (0, vec![vec![1, 2, 3, 4], vec![70_000, 6, 7, 8]]));
    assert_eq!(convert_with(false, 3, TokenType::I32).unwrap(), (2, vec![vec![1, 2, 3], vec![70_000, 6, 7]]));
    let sequences = vec![vec![1, 2], vec![4], vec![70_000, 6]];
    assert_eq!(convert_with(true, 2, TokenType::I32).unwrap(), (3, sequences));
    let error = convert_with(false, 0, TokenType::U16).unwrap_err().to_string();
    assert!(error.contains("token id 70000 does not fit uint16"), "{error}");
    // What was written of it is not taken for a corpus.
    assert!(CorpusFormat::detect(&out).is_err());
}

#[test]
fn shuffled_blocks_have_every_record_once_in_an_order_of_the_seed() {
    let directory = tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let expected = contents(&golden("blocks"), &ReadOptions::default()).unwrap();
    let shuffled = |name: &str, seed, bucket_bytes| {
        assert_eq!(shuffle_blocks(&golden("blocks"), &path(name), seed, bucket_bytes).unwrap(), 35);
        contents(&path(name), &ReadOptions::default()).unwrap()
    };
    let first = shuffled("a", 1, 1 << 20);
    assert!(first != expected);
    assert_eq!(shuffled("b", 1, 100), first, "buckets change nothing");
    assert!(shuffled("c", 2, 100) != first);
    let sorted = |mut documents: Documents| {
        documents.sort_unstable();
        documents
    };
    assert_eq!(sorted(first), sorted(expected));
    assert!(shuffle_blocks(&golden("blocks"), &path("a"), 1, 100).is_err());
}

#[test]
fn block_files_are_masked_and_missing_ones_dropped() {
    let directory = tempdir().unwrap();
    let path = directory.path();
    for name in ["meta.bin", "first", "hidden", "second"] {
        fs::copy(golden("blocks").join(name), path.join(name)).unwrap();
    }
    mask_blocks(path, "first", true).unwrap();
    mask_blocks(path, "hidden", false).unwrap();
    assert_eq!(contents(path, &ReadOptions::default()).unwrap(), [vec![vec![1]], documents()].concat());
    let error = mask_blocks(path, "third", true).unwrap_err().to_string();
    assert!(error.contains("unknown file \"third\"") && error.contains("first, hidden, second"), "{error}");
    fs::remove_file(path.join("first")).unwrap();
    assert_eq!(compact_blocks(path).unwrap(), 1);
    let blocks: Vec<_> = BlockFiles::read(path).unwrap().files.into_iter().map(|file| file.blocks).collect();
    assert_eq!(blocks, [0..1, 1..2]);
    assert_eq!(contents(path, &ReadOptions::default()).unwrap(), [vec![vec![1]], documents()].concat());
}

#[test]
fn spans_of_cpm2_are_put_back() {
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    // The second document has spans that begin after 65,535, whose places uint16 holds modulo 65,536.
    let spans = |count: u32| (0..count).map(|k| [vec![1000 + k], vec![k; 999]].concat()).collect::<Vec<_>>();
    let target: Documents = vec![vec![1000, 50, 51, 1001, 52], spans(70).concat(), vec![]];
    let offsets: Documents =
        vec![vec![0, 3, 3, 2], (0..70).flat_map(|k| [(k * 1000) & 0xFFFF, 1000]).collect(), vec![]];
    let context: Documents = vec![vec![1, 1000, 2, 1001], (0..70).map(|k| 1000 + k).collect(), vec![4, 5]];
    let put = |suffix: &str, documents: &Documents| {
        let documents: Vec<_> = documents.iter().map(|document| vec![document.clone()]).collect();
        write(&directory.path().join(format!("c{suffix}")), TokenType::U16, &documents);
    };
    put("_context", &context);
    put("_target", &target);
    put("_target_offset", &offsets);
    let options = ReadOptions { first_placeholder: Some(1000), ..Default::default() };
    let long: Vec<u32> = spans(70).iter().flat_map(|span| span[1..].to_vec()).collect();
    assert_eq!(contents(&prefix, &options).unwrap(), [vec![1, 50, 51, 2, 52], long, vec![4, 5]]);
    let error = contents(&prefix, &ReadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("--first-placeholder"), "{error}");
    let error = contents(&prefix, &ReadOptions { first_placeholder: Some(999), ..options }).unwrap_err().to_string();
    assert!(error.contains("span 1 begins with 1001, not its placeholder 1000"), "{error}");
}

#[test]
fn merged_files_have_the_documents_of_all() {
    let directory = tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let parts = [vec![vec![vec![1, 2], vec![]], vec![]], vec![], vec![vec![vec![3]], vec![vec![4, 5]]]];
    for (number, part) in parts.iter().enumerate() {
        write(&path(&number.to_string()), TokenType::U16, part);
    }
    let names = ["0", "1", "2"].map(path);
    let written = merge(&names, &path("all"), &mut |read, all| assert!(read <= all)).unwrap();
    assert_eq!((written.documents, written.sequences, written.tokens), (4, 4, 5));
    assert_eq!(read(&path("all")).unwrap(), parts.concat());
    // The bytes of a file that was written in one go.
    write(&path("whole"), TokenType::U16, &parts.concat());
    for ending in ["bin", "idx"] {
        let bytes = |name: &str| fs::read(path(name).with_extension(ending)).unwrap();
        assert_eq!(bytes("all"), bytes("whole"));
    }
    assert_eq!(verify(&path("all"), None).unwrap().documents, 4);
    write(&path("wide"), TokenType::I32, &[]);
    let error = merge(&[path("0"), path("wide")], &path("none"), &mut |_, _| {}).unwrap_err().to_string();
    assert!(error.contains("0 has uint16 ids, and") && error.contains("--dtype"), "{error}");
    assert!(!path("none.idx").exists());
}

#[test]
fn what_is_wrong_with_a_corpus_is_named() {
    let directory = tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let error = |path: &Path| contents(path, &ReadOptions::default()).unwrap_err().to_string();
    assert!(error(&path("none")).contains("no file of records"));
    fs::create_dir(path("npy")).unwrap();
    fs::copy(golden("npy/one.npy"), path("npy/one.npy")).unwrap();
    for (sizes, expected) in [
        ("{\"one.npy\": 3}", "the file has 2 tokens, and sizes.txt states 3"),
        ("{\"one.npy\": -1}", "one.npy has -1, no number of tokens"),
        ("{\"two.npy\": 2}", "there is no such file"),
        ("{\"..\": 2}", "leads out of the directory"),
        ("[]", "sizes.txt"),
    ] {
        fs::write(path("npy/sizes.txt"), sizes).unwrap();
        let error = error(&path("npy"));
        assert!(error.contains(expected), "{expected}: {error}");
    }
    fs::write(path("npy/sizes.txt"), "{\"/data/shards/one.npy\": 2}").unwrap();
    assert_eq!(contents(&path("npy"), &ReadOptions::default()).unwrap(), [[9, 8]]);
    let record = Example { features: vec![("input_ids".into(), Feature::Integers(vec![1, -1]))] }.write();
    let mut writer = TfRecordWriter::create(&path("c.tfrecord")).unwrap();
    writer.add(&record).unwrap();
    writer.finish().unwrap();
    assert!(error(&path("c.tfrecord")).contains("record 1: -1 in the feature \"input_ids\" is not a token id"));
}

/// Reading a file with changed bytes ends in an error or in documents; never in a panic or in memory without bound.
#[test]
fn thousands_of_damaged_files_end_in_an_error_or_in_documents() {
    let directory = tempdir().unwrap();
    let (mut random, mut refused) = (Random(11), 0);
    for (name, files) in [
        ("npy", ["npy/arrays.npy", "npy/sizes.txt"]),
        ("blocks", ["blocks/meta.bin", "blocks/first"]),
        ("records", ["records/bert.tfrecord", "records/plain.tfrecord.gz"]),
    ] {
        for file in files {
            let whole = fs::read(golden(file)).unwrap();
            let place = directory.path().join(file.split_once('/').unwrap().1);
            let corpus = if name == "records" { place.clone() } else { directory.path().to_owned() };
            for entry in fs::read_dir(golden(name)).unwrap().map(|entry| entry.unwrap().path()) {
                fs::copy(&entry, directory.path().join(entry.file_name().unwrap())).unwrap();
            }
            for round in 0..300 {
                let mut bytes = whole.clone();
                for _ in 0..=random.below(3) {
                    let at = random.below(bytes.len());
                    bytes[at] = random.next() as u8;
                }
                if round % 3 == 0 {
                    bytes.truncate(random.below(bytes.len()));
                }
                replace(&place, &bytes);
                let result = verify_documents(&corpus, &ReadOptions::default(), None, &mut |_, _| {});
                refused += usize::from(result.is_err());
            }
            for entry in fs::read_dir(directory.path()).unwrap() {
                fs::remove_file(entry.unwrap().path()).unwrap();
            }
        }
    }
    assert!(refused > 900, "{refused}");
}
