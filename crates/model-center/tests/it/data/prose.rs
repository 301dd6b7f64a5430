//! Plain text: how it is packed into sequences, what is not text, directories.

use std::path::Path;
use std::sync::Arc;

use model_center::data::{
    Dataset, Format, LanguageModelingColumns, LanguageModelingTask, Loader, LoaderOptions, OnBadRecord, Order,
    Position, ReadOptions,
};
use model_center::error::Error;
use tempfile::TempDir;

use crate::data::words::{Words, file, options, rows};

fn task(format: Option<Format>) -> LanguageModelingTask {
    LanguageModelingTask { columns: LanguageModelingColumns::Language { text: "text".into(), prompt: None }, format }
}

fn rows_of(words: &Words, max_length: usize) -> ReadOptions<'_> {
    ReadOptions { max_length, ..options(words) }
}

fn texts(words: &Words, dataset: &Dataset) -> Vec<String> {
    rows(words, dataset).into_iter().map(|(text, _)| text).collect()
}

fn read(content: impl AsRef<[u8]>, options: &ReadOptions<'_>) -> Result<Dataset, Error> {
    let (_directory, path) = file("novel.txt", content);
    task(None).read(&path, options)
}

fn refused(content: impl AsRef<[u8]>) -> String {
    read(content, &options(&Words::new())).unwrap_err().to_string()
}

fn directory(files: &[(&str, &[u8])]) -> TempDir {
    let directory = TempDir::new().unwrap();
    for (name, content) in files {
        std::fs::write(directory.path().join(name), content).unwrap();
    }
    directory
}

fn read_directory(path: &Path, options: &ReadOptions<'_>) -> Result<Dataset, Error> {
    task(Some(Format::Text)).read(path, options)
}

#[test]
fn a_text_is_cut_into_rows_of_one_length_and_nothing_is_lost_or_repeated() {
    let words = Words::new();
    // With what the tokenizer puts around a text: 9 tokens.
    let dataset = read("a b c\n\nd e\r\nf g", &rows_of(&words, 4)).unwrap();
    assert_eq!(
        texts(&words, &dataset),
        ["[CLS] a b c", "d e f", "g [SEP]"],
        "the row before gives a token to the last"
    );
    assert_eq!([0, 1, 2].map(|row| dataset.weight(row)), [3, 2, 1]);
    let report = dataset.report();
    assert_eq!((report.records, report.rows, report.tokens, report.longest), (1, 3, 9, 4));
    assert_eq!((report.truncated, report.removed_tokens), (0, 0));
    assert_eq!(texts(&words, &read("a b c d e f", &rows_of(&words, 4)).unwrap()), ["[CLS] a b c", "d e f [SEP]"]);
    assert_eq!(texts(&words, &read("a b c d", &rows_of(&words, 4)).unwrap()), ["[CLS] a b c", "d [SEP]"]);
    assert_eq!(texts(&words, &read("a", &rows_of(&words, 64)).unwrap()), ["[CLS] a [SEP]"]);
}

#[test]
fn every_token_of_an_epoch_comes_once_whatever_the_order() {
    let words = Words::new();
    let text: String = (0..1000).map(|at| format!("w{at} ")).collect();
    let dataset = Arc::new(read(text, &rows_of(&words, 7)).unwrap());
    for order in [Order::Sequential, Order::Shuffled] {
        let options = LoaderOptions { order, drop_last: false, ..LoaderOptions::training(4, 9) };
        let mut loader = Loader::new(Arc::clone(&dataset), options).unwrap();
        let mut seen: Vec<i64> = Vec::new();
        for batch in loader.epoch(1) {
            let batch = batch.unwrap();
            seen.extend(
                batch
                    .input_ids
                    .iter()
                    .zip(batch.attention_mask.as_ref().unwrap())
                    .filter(|(_, mask)| **mask == 1)
                    .map(|(id, _)| id),
            );
        }
        assert_eq!(seen.len(), 1002);
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 1002, "{order:?}");
        let again = loader.batch(Position { epoch: 1, index: 3 }).unwrap();
        assert_eq!(again, Loader::new(Arc::clone(&dataset), options).unwrap().batch(again.position).unwrap());
    }
}

#[test]
fn files_of_a_directory_are_documents_in_the_order_of_their_names() {
    let words = Words::new();
    let files: [(&str, &[u8]); 5] =
        [("b.txt", b"c d"), ("a.TXT", b"a b"), ("notes.md", b"x"), (".hidden.txt", b"\xFF"), ("c.txt", b"e")];
    let texts_of = directory(&files);
    std::fs::create_dir(texts_of.path().join("directory.txt")).unwrap();
    let dataset = read_directory(texts_of.path(), &rows_of(&words, 6)).unwrap();
    assert_eq!(texts(&words, &dataset), ["[CLS] a b [SEP] [CLS] c", "d [SEP] [CLS] e [SEP]"]);
    assert_eq!(dataset.report().records, 3);
    // A limit counts sequences, and text beyond it is not read.
    let first = ReadOptions { limit: Some(1), ..rows_of(&words, 4) };
    let broken = directory(&[("a.txt", b"a b c d e"), ("b.txt", b"\xFF")]);
    assert_eq!(texts(&words, &read_directory(broken.path(), &first).unwrap()), ["[CLS] a b c"]);
    let none = directory(&[("notes.md", b"x")]);
    let error = read_directory(none.path(), &options(&words)).unwrap_err().to_string();
    assert!(error.contains("no file whose name ends in .txt"), "{error}");
}

#[test]
fn what_is_no_text_is_an_error_with_its_place_or_left_out() {
    let error = refused(b"first\nsecond \xE9\n");
    assert!(error.contains("novel.txt:2:8") && error.contains("0xE9 is not UTF-8"), "{error}");
    let error = refused(b"first\nbin\0ary");
    assert!(error.contains("novel.txt:2:4") && error.contains("zero byte"), "{error}");
    for nothing in ["", "\n \n", "mute"] {
        assert!(refused(nothing).contains("no token to predict"), "{nothing:?}");
    }
    assert!(refused("very unspeakable").contains("the tokenizer fails on this text"));
    assert!(refused(b"\xFF\xFEa\0").contains("UTF-16"));

    let words = Words::new();
    let files: [(&str, &[u8]); 3] = [("a.txt", b"a b"), ("b.txt", b"c\xFF"), ("c.txt", b"d")];
    let mixed = directory(&files);
    assert!(read_directory(mixed.path(), &options(&words)).unwrap_err().to_string().contains("b.txt:1:2"));
    let skipping = |max_share| ReadOptions { on_bad_record: OnBadRecord::Skip { max_share }, ..options(&words) };
    let dataset = read_directory(mixed.path(), &skipping(0.5)).unwrap();
    assert_eq!(texts(&words, &dataset), ["[CLS] a b [SEP] [CLS] d [SEP]"]);
    assert_eq!((dataset.report().records, dataset.report().skipped), (3, 1));
    assert!(dataset.report().first_skipped[0].contains("b.txt:1:2"));
    let error = read_directory(mixed.path(), &skipping(0.1)).unwrap_err().to_string();
    assert!(error.contains("1 of 3 records are unusable"), "{error}");
}

#[test]
fn one_line_of_many_mebibytes_is_read_completely() {
    let words = Words::new();
    let count = 400_000;
    let text = "abcdefg ".repeat(count);
    let dataset = read(&text, &rows_of(&words, 1000)).unwrap();
    assert_eq!(dataset.report().tokens, count as u64 + 2);
    assert!(dataset.report().longest == 1000 && dataset.len() == count.div_ceil(1000) + 1);
}

#[test]
fn plain_text_is_refused_where_records_are_wanted() {
    let words = Words::new();
    let (_directory, path) = file("a.txt", "a b");
    let prompted = LanguageModelingColumns::Language { text: "text".into(), prompt: Some("prompt".into()) };
    let target = LanguageModelingColumns::Target { text: "text".into(), target: "target".into() };
    for columns in [prompted, target] {
        let error =
            LanguageModelingTask { columns, format: None }.read(&path, &options(&words)).unwrap_err().to_string();
        assert!(error.contains("plain text has no columns"), "{error}");
    }
    let error = read("a b c", &rows_of(&words, 2)).unwrap_err().to_string();
    assert!(error.contains("data.max_length"), "{error}");
}
