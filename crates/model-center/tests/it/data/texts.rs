//! Language modelling and targets: which tokens are predicted, lengths, batches.

use std::sync::Arc;

use model_center::batch::IGNORED;
use model_center::data::{
    Dataset, Labels, LanguageModelingColumns, LanguageModelingTask, Loader, LoaderOptions, OnBadRecord, Order,
    Position, ReadOptions, TooLong,
};

use crate::data::words::{Words, file, options, rows};

fn language(prompt: Option<&str>) -> LanguageModelingTask {
    let columns = LanguageModelingColumns::Language { text: "text".into(), prompt: prompt.map(str::to_owned) };
    LanguageModelingTask { columns, format: None }
}

fn seq2seq() -> LanguageModelingTask {
    let columns = LanguageModelingColumns::Target { text: "text".into(), target: "target".into() };
    LanguageModelingTask { columns, format: None }
}

fn read(task: &LanguageModelingTask, content: &str, options: &ReadOptions<'_>) -> Dataset {
    let (_directory, path) = file("a.tsv", content);
    task.read(&path, options).unwrap()
}

#[test]
fn records_of_a_program_give_the_dataset_of_a_file() {
    let words = Words::new();
    let rows = vec![serde_json::from_str(r#"{"text": "a b", "target": "c"}"#).unwrap()];
    let given = seq2seq().read_rows("records", rows, &options(&words)).unwrap();
    let of_file = read(&seq2seq(), "text\ttarget\na b\tc\n", &options(&words));
    assert_eq!(given.fingerprint(), of_file.fingerprint());
}

fn refused(task: &LanguageModelingTask, content: &str, options: &ReadOptions<'_>) -> String {
    let (_directory, path) = file("a.tsv", content);
    task.read(&path, options).unwrap_err().to_string()
}

fn texts(words: &Words, dataset: &Dataset) -> Vec<String> {
    rows(words, dataset).into_iter().map(|(text, _)| text).collect()
}

/// The whole dataset in one batch, in its order.
fn batch(dataset: Dataset) -> model_center::data::Batch {
    let options = LoaderOptions { order: Order::Sequential, ..LoaderOptions::evaluation(dataset.len()) };
    Loader::new(Arc::new(dataset), options).unwrap().batch(Position::default()).unwrap()
}

const PROMPTS: &str = "prompt\ttext\na b\tc d\ne\tf\n";

#[test]
fn all_tokens_of_a_text_count_and_after_a_prompt_only_the_completions() {
    let words = Words::new();
    let plain = read(&language(None), PROMPTS, &options(&words));
    assert_eq!(texts(&words, &plain), ["[CLS] c d [SEP]", "[CLS] f [SEP]"]);
    // The first token is never predicted.
    assert_eq!([plain.weight(0), plain.weight(1)], [3, 2]);
    let prompted = read(&language(Some("prompt")), PROMPTS, &options(&words));
    assert_eq!(texts(&words, &prompted), ["[CLS] a b c d [SEP]", "[CLS] e f [SEP]"]);
    assert_eq!([prompted.weight(0), prompted.weight(1)], [3, 2]);
    assert_ne!(plain.fingerprint(), prompted.fingerprint());
    let id = |word: &str| i64::from(words.tokenize_one(word));
    let batch = batch(prompted);
    assert_eq!((batch.rows, batch.length, batch.tokens(), batch.padded_tokens()), (2, 6, 10, 12));
    let (c, d, f) = (id("c"), id("d"), id("f"));
    let counted = [[IGNORED, IGNORED, IGNORED, c, d, 2], [IGNORED, IGNORED, f, 2, IGNORED, IGNORED]].concat();
    assert_eq!(batch.labels, Some(Labels::NextTokens(counted)));
    assert_eq!(batch.input_ids[6..], [1, id("e"), f, 2, 0, 0]);
}

#[test]
fn a_text_that_is_cut_has_no_end_and_a_prompt_gives_way_to_its_text() {
    let words = Words::new();
    let within = |max_length| ReadOptions { max_length, ..options(&words) };
    let content = "prompt\ttext\na b c\td e f\n";
    let prompted = |max_length| {
        let dataset = read(&language(Some("prompt")), content, &within(max_length));
        (texts(&words, &dataset).remove(0), dataset.weight(0), dataset.report().removed_tokens)
    };
    assert_eq!(prompted(8), ("[CLS] a b c d e f [SEP]".into(), 4, 0));
    assert_eq!(prompted(7), ("[CLS] b c d e f [SEP]".into(), 4, 1));
    assert_eq!(prompted(5), ("[CLS] d e f [SEP]".into(), 4, 3));
    assert_eq!(prompted(4), ("[CLS] d e f".into(), 3, 4));
    assert_eq!(prompted(3), ("[CLS] d e".into(), 2, 5));
    let plain = read(&language(None), content, &within(4));
    assert_eq!(texts(&words, &plain), ["[CLS] d e f"]);
    let error = refused(&language(None), content, &ReadOptions { too_long: TooLong::Error, ..within(4) });
    assert!(error.contains("a.tsv:2:1") && error.contains("data.max_length = 4"), "{error}");
}

#[test]
fn a_target_is_a_row_of_its_own_with_a_limit_of_its_own() {
    let words = Words::new();
    let content = "text\ttarget\na b c d\te f g\na\te\n";
    let limits = ReadOptions { target_length: 4, ..options(&words) };
    let dataset = read(&seq2seq(), content, &limits);
    assert_eq!(texts(&words, &dataset), ["[CLS] a b c d [SEP]", "[CLS] e f [SEP]", "[CLS] a [SEP]", "[CLS] e [SEP]"]);
    assert_eq!((dataset.len(), dataset.weight(0), dataset.weight(1), dataset.report().truncated), (2, 4, 3, 1));
    let longest = dataset.of_longest(2);
    let id = |word: &str| i64::from(words.tokenize_one(word));
    let (e, f) = (id("e"), id("f"));
    let read_batch = batch(dataset);
    assert_eq!((read_batch.rows, read_batch.length, read_batch.tokens(), read_batch.padded_tokens()), (2, 6, 16, 20));
    assert_eq!(read_batch.attention_mask.as_ref().unwrap()[6..], [1, 1, 1, 0, 0, 0]);
    assert_eq!(read_batch.labels, Some(Labels::Target(vec![1, e, f, 2, 1, e, 2, IGNORED])));
    let (longer, shorter) = (batch(longest.with_lengths(9, 7)), batch(longest.with_lengths(2, 1)));
    assert_eq!((longer.rows, longer.length, longer.padded_tokens()), (2, 9, 2 * (9 + 7)));
    assert_eq!(longer.labels.as_ref().unwrap().len(), 2 * 7);
    assert_eq!(
        (shorter.length, shorter.padded_tokens(), &shorter.labels),
        (2, 2 * 3, &Some(Labels::Target(vec![2; 2])))
    );
    // What is cut ends as it did.
    assert_eq!(shorter.input_ids, [1, 2, 1, 2]);
    assert_eq!(batch(longest).padded_tokens(), 20);
    let error = refused(&seq2seq(), content, &ReadOptions { too_long: TooLong::Error, ..limits });
    assert!(error.contains("a.tsv:2:1") && error.contains("data.target_length = 4"), "{error}");
}

#[test]
fn the_longest_pair_has_the_longest_text_and_the_longest_target() {
    let words = Words::new();
    let dataset = read(&seq2seq(), "text\ttarget\na b c d\te\na\te f g\n", &options(&words));
    let longest = batch(dataset.of_longest(3));
    assert_eq!((longest.rows, longest.length, longest.padded_tokens()), (3, 6, 3 * (6 + 5)));
}

#[test]
fn batches_are_weighted_by_their_tokens_in_a_mean() {
    let words = Words::new();
    let content = "text\na\na b\na b c\na b c d\n";
    let order = LoaderOptions { order: Order::Sequential, ..LoaderOptions::training(1, 0) };
    let mut loader = Loader::new(Arc::new(read(&language(None), content, &options(&words))), order).unwrap();
    // Of [CLS] a [SEP] two tokens are predicted, and one more of each next.
    assert_eq!(loader.shares(Position::default(), 4).unwrap(), [2.0 / 14.0, 3.0 / 14.0, 4.0 / 14.0, 5.0 / 14.0]);
    assert_eq!(loader.shares(Position { epoch: 3, index: 2 }, 2).unwrap(), [4.0 / 9.0, 5.0 / 9.0]);
    assert!(loader.shares(Position { epoch: 0, index: 3 }, 2).is_err());
}

#[test]
fn records_with_nothing_to_learn_are_refused_with_their_place() {
    let words = Words::new();
    for (task, content) in [
        (language(None), "prompt\ttext\na\tb\na\t \n"),
        (language(Some("prompt")), "prompt\ttext\na\tb\na\t\n"),
        (seq2seq(), "text\ttarget\na\tb\na\t \n"),
        (seq2seq(), "text\ttarget\na\tb\n\tb\n"),
    ] {
        let error = refused(&task, content, &options(&words));
        assert!(error.contains("a.tsv:3:") && error.contains("is empty"), "{error}");
    }
    let skipping = ReadOptions { on_bad_record: OnBadRecord::Skip { max_share: 0.5 }, ..options(&words) };
    let dataset = read(&seq2seq(), "text\ttarget\na\tb\na\t \n", &skipping);
    assert_eq!((dataset.len(), dataset.report().skipped), (1, 1));
}

#[test]
fn texts_without_any_token_left_are_flaws_like_others() {
    let words = Words::new();
    let skipping = ReadOptions { on_bad_record: OnBadRecord::Skip { max_share: 0.7 }, ..options(&words) };
    let content = "text\ttarget\nd\tmute\nmute\td\na b\tc\ne\tf g\n";
    let dataset = read(&seq2seq(), content, &skipping);
    let kept = ["[CLS] a b [SEP]", "[CLS] c [SEP]", "[CLS] e [SEP]", "[CLS] f g [SEP]"];
    assert_eq!(
        (texts(&words, &dataset), dataset.len(), dataset.report().rows),
        (kept.map(String::from).to_vec(), 2, 4)
    );
    let report = dataset.report();
    assert_eq!((report.records, report.skipped, report.tokens), (4, 2, 14));
    assert!(report.first_skipped[0].contains("a.tsv:2:1") && report.first_skipped[1].contains("a.tsv:3:1"));
    // They make room for others.
    assert_eq!(read(&seq2seq(), content, &ReadOptions { limit: Some(1), ..skipping }).len(), 1);
    let prompted = read(&language(Some("target")), content, &skipping);
    assert_eq!((prompted.len(), prompted.report().skipped), (3, 1));
    let error = refused(&seq2seq(), content, &options(&words));
    assert!(error.contains("a.tsv:2:1") && error.contains("no token to predict"), "{error}");
}
