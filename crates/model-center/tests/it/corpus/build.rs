//! Token files from raw text: the same bytes however they are built, and what interrupts a build.

use std::fs;
use std::path::{Path, PathBuf};

use model_center::corpus::build::{BuildOptions, BuildReport, build};
use model_center::corpus::text::TextSource;
use model_center::corpus::{TokenFile, TokenType, index_path, token_path, verify};
use model_center::data::OnBadRecord;
use model_center::run::StopFlag;
use model_center::tokenizer::{HfTokenizer, Tokenizer, TrainOptions, VocabularyKind, train};
use model_center::{Error, data::TextLayout};
use tempfile::{TempDir, tempdir};

use super::read;
use crate::mutants::Random;

struct Fixture {
    directory: TempDir,
    tokenizer: HfTokenizer,
}

impl Fixture {
    /// Some thousand documents of several batches, and a tokenizer trained on them.
    fn new() -> Fixture {
        let directory = tempdir().unwrap();
        let mut random = Random(1);
        let vocabulary = ["state", "union", "people", "of", "the", "congress", "year", "caf\u{E9}", "12", ".", "\n"];
        let mut lines = String::new();
        for _ in 0..6000 {
            let text: Vec<&str> = (0..random.below(200)).map(|_| random.pick(&vocabulary)).collect();
            lines += &format!("{}\n", serde_json::json!({"text": text.join(" ")}));
        }
        fs::write(directory.path().join("a.jsonl"), lines).unwrap();
        let texts = TextLayout::Column("text".into());
        let options = TrainOptions::new(VocabularyKind::ByteBpe, 320);
        let trained = train(&[directory.path().join("a.jsonl")], &texts, &options).unwrap();
        trained.save(directory.path().join("tokenizer")).unwrap();
        let tokenizer = HfTokenizer::from_directory(directory.path().join("tokenizer")).unwrap();
        Fixture { directory, tokenizer }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn source(&self) -> TextSource {
        TextSource::new(vec![self.path("a.jsonl")])
    }

    fn options(&self, name: &str, threads: usize) -> BuildOptions {
        BuildOptions {
            prefix: self.path(name),
            token: None,
            end_of_document: Some(7),
            split_lines: false,
            newline: None,
            on_bad_record: OnBadRecord::Error,
            threads,
        }
    }

    fn build(&self, options: &BuildOptions) -> Result<BuildReport, Error> {
        build(vec![self.source()], &self.tokenizer, options, &StopFlag::default(), &mut |_| {})
    }
}

fn bytes(prefix: &Path) -> [Vec<u8>; 2] {
    [token_path(prefix), index_path(prefix)].map(|path| fs::read(path).unwrap())
}

#[test]
fn any_number_of_threads_and_of_interruptions_gives_the_same_bytes() {
    let fixture = Fixture::new();
    let report = fixture.build(&fixture.options("one", 1)).unwrap();
    assert!(!report.stopped && report.resumed == 0 && report.token == TokenType::U16);
    let whole = bytes(&fixture.path("one"));
    fixture.build(&fixture.options("many", 5)).unwrap();
    assert!(bytes(&fixture.path("many")) == whole);
    // Stopped after each batch, and started again until it is done.
    let options = fixture.options("parts", 1);
    let (mut calls, mut resumed) = (0, 0);
    loop {
        let stop = StopFlag::default();
        let mut shown = 0;
        let report = build(vec![fixture.source()], &fixture.tokenizer, &options, &stop, &mut |progress| {
            shown += 1;
            assert!(progress.read_bytes <= progress.total_bytes);
            stop.request();
        });
        let report = report.unwrap();
        assert!(report.resumed >= resumed);
        (calls, resumed) = (calls + 1, report.resumed);
        if !report.stopped {
            break;
        }
        assert!(!index_path(&options.prefix).exists() && !token_path(&options.prefix).exists());
    }
    assert!(calls > 1 && resumed > 0, "{calls} calls, {resumed} documents");
    assert!(bytes(&options.prefix) == whole);
    let hidden = fs::read_dir(fixture.path(""))
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().as_encoded_bytes().starts_with(b"."));
    assert_eq!(hidden.count(), 0);
}

#[test]
fn the_ids_are_the_tokenizers_with_the_end_of_document() {
    let fixture = Fixture::new();
    let report = fixture.build(&fixture.options("c", 2)).unwrap();
    let expected: Vec<Vec<Vec<u32>>> = fs::read_to_string(fixture.path("a.jsonl"))
        .unwrap()
        .lines()
        .filter_map(|line| {
            let record: serde_json::Value = serde_json::from_str(line).unwrap();
            let text = record["text"].as_str().unwrap();
            let ids = fixture.tokenizer.tokenize(&[text]).unwrap().remove(0);
            (!text.trim().is_empty()).then(|| vec![[&ids[..], &[7]].concat()])
        })
        .collect();
    assert_eq!(read(&fixture.path("c")).unwrap(), expected);
    let written = report.progress.written;
    assert_eq!((written.documents, written.sequences), (expected.len() as u64, expected.len() as u64));
    let found = verify(&fixture.path("c"), Some(fixture.tokenizer.vocab_size() as u64)).unwrap();
    assert_eq!((found.documents, found.tokens, found.empty), (written.documents, written.tokens, 0));
}

#[test]
fn lines_can_be_sequences() {
    let fixture = Fixture::new();
    let options = BuildOptions { split_lines: true, token: Some(TokenType::I32), ..fixture.options("c", 2) };
    fs::write(fixture.path("a.jsonl"), "{\"text\": \"the union\\n\\n of people\"}\n{\"text\": \"year\"}\n").unwrap();
    fixture.build(&options).unwrap();
    let ids = |text: &str, end: &[u32]| [&fixture.tokenizer.tokenize(&[text]).unwrap()[0][..], end].concat();
    assert_eq!(
        read(&fixture.path("c")).unwrap(),
        [vec![ids("the union", &[]), ids(" of people", &[7])], vec![ids("year", &[7])]]
    );
    assert_eq!(TokenFile::open(fixture.path("c")).unwrap().token_type(), TokenType::I32);
}

#[test]
fn another_input_or_option_begins_anew() {
    let fixture = Fixture::new();
    let options = fixture.options("c", 1);
    let stopped = |options: &BuildOptions| {
        let stop = StopFlag::default();
        build(vec![fixture.source()], &fixture.tokenizer, options, &stop, &mut |_| stop.request()).unwrap()
    };
    assert!(stopped(&options).stopped);
    let other = BuildOptions { end_of_document: None, ..options.clone() };
    assert_eq!(stopped(&other).resumed, 0);
    let lines = fs::read_to_string(fixture.path("a.jsonl")).unwrap() + "{\"text\": \"more\"}\n";
    fs::write(fixture.path("a.jsonl"), lines).unwrap();
    assert_eq!(fixture.build(&other).unwrap().resumed, 0);
    let fresh = BuildOptions { prefix: fixture.path("fresh"), ..other.clone() };
    fixture.build(&fresh).unwrap();
    assert!(bytes(&other.prefix) == bytes(&fresh.prefix));
}

#[test]
fn what_cannot_be_built_leaves_no_corpus() {
    let fixture = Fixture::new();
    let options = fixture.options("c", 3);
    let narrow = BuildOptions { token: Some(TokenType::U8), ..options.clone() };
    let error = fixture.build(&narrow).unwrap_err().to_string();
    assert!(error.contains("tokens do not fit uint8"), "{error}");
    let lines = fs::read_to_string(fixture.path("a.jsonl")).unwrap();
    fs::write(fixture.path("a.jsonl"), format!("{lines}{{\"text\": 3}}\n")).unwrap();
    let error = fixture.build(&options).unwrap_err().to_string();
    assert!(error.contains("a.jsonl:6001:") && error.contains("not text"), "{error}");
    assert!(!index_path(&options.prefix).exists() && !token_path(&options.prefix).exists());
    let skip = BuildOptions { on_bad_record: OnBadRecord::Skip { max_share: 0.01 }, ..options.clone() };
    assert_eq!(fixture.build(&skip).unwrap().progress.counts.unusable, 1);
    let error = fixture.build(&skip).unwrap_err().to_string();
    assert!(error.contains("c.idx is there already"), "{error}");
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_gives_the_bytes_of_json_lines_however_often_it_is_interrupted() {
    use crate::parquet_files::write;
    let fixture = Fixture::new();
    fixture.build(&fixture.options("json", 2)).unwrap();
    let texts = fs::read_to_string(fixture.path("a.jsonl")).unwrap();
    let text =
        |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["text"].as_str().map(str::to_owned);
    let texts: Vec<Option<String>> = texts.lines().map(text).collect();
    let path = fixture.path("a.parquet");
    write(&path, &texts.chunks(700).collect::<Vec<_>>(), |properties| properties.set_data_page_row_count_limit(90));
    let options = fixture.options("parquet", 2);
    let mut resumed = Vec::new();
    loop {
        let stop = StopFlag::default();
        let source = TextSource::new(vec![path.clone()]);
        let report = build(vec![source], &fixture.tokenizer, &options, &stop, &mut |_| stop.request()).unwrap();
        resumed.push(report.resumed);
        if !report.stopped {
            break;
        }
    }
    assert!(resumed.is_sorted() && resumed.get(1).is_some_and(|documents| *documents > 0), "{resumed:?}");
    assert!(bytes(&fixture.path("json")) == bytes(&fixture.path("parquet")));
}
