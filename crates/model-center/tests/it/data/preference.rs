//! Pairs of completions: forms of records, what is compared, batches.

use std::sync::Arc;

use model_center::data::{
    Dataset, IGNORED, LabelSpace, Labels, Loader, LoaderOptions, PairLabels, Position, ReadOptions, SftColumns,
    SftTask, TaskModel,
};
use model_center::tokenizer::Tokenizer;
use serde_json::json;
use tempfile::TempDir;

use super::sft::{DECODER, chat, set, task, try_read, write};
use crate::data::words::Words;

fn of_pairs(directory: &TempDir, content: &str) -> SftTask {
    SftTask { pairs: Some(PairLabels::LogProbs), ..task(vec![set(write(directory, "a.jsonl", content))]) }
}

/// Both sequences of a sample as text, learned tokens in brackets.
fn shown(dataset: &Dataset, tokenizer: &dyn Tokenizer, sample: usize) -> [String; 2] {
    let text = |id: u32| tokenizer.decode(&[id], false).unwrap();
    let mut learned = dataset.learned(sample).iter();
    let rows = dataset.rows(sample).unwrap().map(|row| {
        let tokens = row.input_ids.iter().zip(learned.by_ref()).map(|(id, learned)| match learned {
            1 => format!("[{}]", text(*id)),
            _ => text(*id),
        });
        tokens.collect::<Vec<_>>().join(" ")
    });
    rows.collect::<Vec<_>>().try_into().unwrap()
}

/// The pairs of one file for a decoder that reads whole words.
fn words_of(content: &str, change: &dyn Fn(&mut SftTask)) -> [String; 2] {
    let (directory, words) = (TempDir::new().unwrap(), Words::new());
    let mut task = of_pairs(&directory, content);
    change(&mut task);
    let dataset = try_read(&task, &ReadOptions::new(&words, 100), DECODER).unwrap();
    assert_eq!((dataset.labels(), dataset.weight(0)), (&LabelSpace::Pairs, 1));
    shown(&dataset, &words, 0)
}

#[test]
fn a_prompt_is_a_column_or_what_both_completions_begin_with() {
    let expected = ["[CLS] a b [c] [[SEP]]", "[CLS] a b [d] [e] [[SEP]]"];
    let same = |_: &mut SftTask| {};
    assert_eq!(words_of(r#"{"prompt": "a b", "chosen": " c", "rejected": " d e"}"#, &same), expected);
    assert_eq!(words_of(r#"{"chosen": "a b c", "rejected": "a b d e"}"#, &same), expected);
    let named = |task: &mut SftTask| {
        let [prompt, chosen, rejected] = ["question", "good", "bad"].map(|name| Some(name.to_owned()));
        task.columns = SftColumns { prompt, chosen, rejected, ..SftColumns::default() };
    };
    assert_eq!(words_of(r#"{"question": "a b", "good": " c", "bad": " d e"}"#, &named), expected);
}

#[test]
fn conversations_are_compared_by_what_the_assistant_wrote_after_their_common_beginning() {
    let (directory, (tokenizer, template)) = (TempDir::new().unwrap(), chat());
    let model = TaskModel { chat: Some(&template), generates_targets: false, place: None };
    let message = |role: &str, text: &str| json!({"role": role, "content": text});
    let (user, yes, no) = (message("user", "Hi"), message("assistant", "Yes."), message("assistant", "No"));
    let records = [
        json!({"prompt": [user], "chosen": [yes], "rejected": [no]}),
        json!({"chosen": [user, yes], "rejected": [user, no]}),
        // As UltraFeedback has it: the prompt repeats the first message.
        json!({"prompt": "Hi", "chosen": [user, yes], "rejected": [user, no]}),
    ];
    let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
    let dataset = try_read(&of_pairs(&directory, &lines), &ReadOptions::new(&tokenizer, 500), model).unwrap();
    assert_eq!(dataset.len(), 3);
    // What counts, whatever tokens it is divided into.
    let counted = |shown: &str| -> String {
        let parts = shown.split('[').skip(1).filter_map(|part| part.split_once(']'));
        parts.map(|(token, _)| token).collect()
    };
    for sample in 0..3 {
        let answers = shown(&dataset, &tokenizer, sample).map(|row| counted(&row));
        assert_eq!(answers, ["Yes.<|im_end|>", "No<|im_end|>"]);
        assert_eq!(
            dataset.rows(sample).unwrap().map(|row| row.input_ids.to_vec()).collect::<Vec<_>>(),
            dataset.rows(0).unwrap().map(|row| row.input_ids.to_vec()).collect::<Vec<_>>()
        );
    }
}

#[test]
fn both_sequences_of_a_pair_are_in_one_batch_and_count_as_one_sample() {
    let (directory, words) = (TempDir::new().unwrap(), Words::new());
    let lines = r#"{"prompt": "a", "chosen": " b", "rejected": " c d"}
{"prompt": "a b", "chosen": " c d e", "rejected": " f"}"#;
    let task = of_pairs(&directory, lines);
    let dataset = Arc::new(try_read(&task, &ReadOptions::new(&words, 100), DECODER).unwrap());
    let mut loader = Loader::new(Arc::clone(&dataset), LoaderOptions::evaluation(2)).unwrap();
    let batch = loader.batch(Position { epoch: 0, index: 0 }).unwrap();
    assert_eq!((batch.rows, batch.choices, batch.samples.len()), (4, 1, 2));
    let Some(Labels::NextTokens(labels)) = &batch.labels else { panic!("{:?}", batch.labels) };
    for (row, sample) in batch.samples.iter().flat_map(|sample| [(0, *sample), (1, *sample)]).enumerate() {
        let (side, sample) = sample;
        let ids = dataset.rows(sample as usize).unwrap().nth(side).unwrap().input_ids.to_vec();
        let prompt = if sample == 0 { 2 } else { 3 };
        let of_row = &labels[row * batch.length..][..batch.length];
        for (at, label) in of_row.iter().enumerate() {
            let expected = if (prompt..ids.len()).contains(&at) { i64::from(ids[at]) } else { IGNORED };
            assert_eq!(*label, expected, "row {row}, token {at}");
        }
    }
    // Steps are means over pairs, however long they are.
    assert_eq!(loader.shares(Position { epoch: 0, index: 0 }, 1).unwrap(), [1.0]);
    assert_eq!(dataset.weight_of(&[0, 1]), 2);
}

#[test]
fn sequences_for_a_reward_are_choices_of_which_the_first_is_right() {
    let (directory, words) = (TempDir::new().unwrap(), Words::new());
    let task = SftTask {
        pairs: Some(PairLabels::Rewards),
        ..of_pairs(&directory, r#"{"prompt": "a", "chosen": " b", "rejected": " c d"}"#)
    };
    let dataset = Arc::new(try_read(&task, &ReadOptions::new(&words, 100), DECODER).unwrap());
    assert_eq!(dataset.labels(), &LabelSpace::Choices(2));
    let mut loader = Loader::new(dataset, LoaderOptions::evaluation(1)).unwrap();
    let batch = loader.batch(Position { epoch: 0, index: 0 }).unwrap();
    assert_eq!((batch.rows, batch.choices, batch.labels), (2, 2, Some(Labels::Classes(vec![0]))));
}

#[test]
fn records_that_are_no_pairs_are_named_with_their_reason() {
    let (directory, words) = (TempDir::new().unwrap(), Words::new());
    let refused = |content: &str, model: TaskModel<'_>| {
        let task = of_pairs(&directory, content);
        try_read(&task, &ReadOptions::new(&words, 100), model).unwrap_err().to_string()
    };
    for (record, reason) in [
        (r#"{"prompt": "a", "chosen": "b"}"#, "rejected"),
        (r#"{"prompt": "a", "chosen": "b", "rejected": ""}"#, "\"rejected\" is empty"),
        (
            r#"{"prompt": "a", "chosen": [{"role": "user", "content": "b"}], "rejected": [{"role": "assistant",
            "content": "c"}]}"#,
            "has no message of the assistant",
        ),
        (
            r#"{"prompt": "a", "chosen": [{"role": "assistant", "content": "b"}], "rejected": [{"role": "assistant",
            "content": "c"}]}"#,
            "\"prompt\" is a text, and the completions are messages that do not begin with it",
        ),
    ] {
        let error = refused(&record.replace('\n', " "), DECODER);
        assert!(error.contains("a.jsonl:1") && error.contains(reason), "{error}");
    }
    let encoder_decoder = TaskModel { chat: None, generates_targets: true, place: None };
    let error = refused(r#"{"prompt": "a", "chosen": "b", "rejected": "c"}"#, encoder_decoder);
    assert!(error.contains("take a model with one stack"), "{error}");
}

fn of_unpaired(directory: &TempDir, content: &str) -> SftTask {
    SftTask { pairs: Some(PairLabels::Unpaired), ..of_pairs(directory, content) }
}

#[test]
fn unpaired_completions_are_beside_their_prompt_with_the_completion_of_the_next_record() {
    let (directory, words) = (TempDir::new().unwrap(), Words::new());
    // Judgements in each spelling, and a pair, which is two completions.
    let lines = r#"{"prompt": "a", "completion": " b", "label": true}
{"prompt": "c d", "completion": " e", "label": "False"}
{"prompt": "a b", "chosen": " c", "rejected": " d e"}
{"prompt": "f", "completion": " a b", "label": 1}"#;
    let dataset = Arc::new(try_read(&of_unpaired(&directory, lines), &ReadOptions::new(&words, 100), DECODER).unwrap());
    assert_eq!((dataset.labels(), dataset.len(), dataset.weight_of(&[0, 1, 2])), (&LabelSpace::Unpaired, 5, 3));
    let expected = [
        ["[CLS] a [b] [[SEP]]", "[CLS] a [e] [[SEP]]"],
        ["[CLS] c d [e] [[SEP]]", "[CLS] c d [c] [[SEP]]"],
        ["[CLS] a b [c] [[SEP]]", "[CLS] a b [d] [e] [[SEP]]"],
        ["[CLS] a b [d] [e] [[SEP]]", "[CLS] a b [a] [b] [[SEP]]"],
        ["[CLS] f [a] [b] [[SEP]]", "[CLS] f [b] [[SEP]]"],
    ];
    for (sample, expected) in expected.into_iter().enumerate() {
        assert_eq!(shown(&dataset, &words, sample), expected, "sample {sample}");
    }
    let mut loader = Loader::new(dataset, LoaderOptions::evaluation(5)).unwrap();
    let batch = loader.batch(Position { epoch: 0, index: 0 }).unwrap();
    assert_eq!((batch.rows, batch.choices), (10, 1));
    let labels: Vec<(u32, bool)> = batch.samples.iter().copied().zip(batch.judgements.unwrap()).collect();
    for (sample, is_good) in labels {
        assert_eq!(is_good, [true, false, true, false, true][sample as usize], "sample {sample}");
    }
}

#[test]
fn unpaired_conversations_keep_their_prompt_before_another_answer() {
    let (directory, (tokenizer, template)) = (TempDir::new().unwrap(), chat());
    let model = TaskModel { chat: Some(&template), generates_targets: false, place: None };
    let message = |role: &str, text: &str| json!({"role": role, "content": text});
    let record = |prompt: &str, answer: &str, label: bool| {
        let (prompt, completion) = ([message("user", prompt)], [message("assistant", answer)]);
        json!({"prompt": prompt, "completion": completion, "label": label})
    };
    let lines = format!("{}\n{}\n", record("Hi", "Yes.", true), record("Well", "No", false));
    let dataset = try_read(&of_unpaired(&directory, &lines), &ReadOptions::new(&tokenizer, 500), model).unwrap();
    let same = |a: (usize, usize), b: &str| {
        let ids = dataset.rows(a.0).unwrap().nth(a.1).unwrap().input_ids.to_vec();
        assert!(tokenizer.decode(&ids, false).unwrap().contains(b), "{a:?} {b}");
    };
    for (place, text) in [((0, 0), "Yes."), ((0, 1), "No"), ((1, 0), "No"), ((1, 1), "Yes.")] {
        same(place, text);
        same(place, if place.0 == 0 { "Hi" } else { "Well" });
    }
}

#[test]
fn records_without_a_judgement_are_named_with_their_reason() {
    let (directory, words) = (TempDir::new().unwrap(), Words::new());
    for (content, reason) in [
        (r#"{"prompt": "a", "completion": "b"}"#, "label"),
        (r#"{"prompt": "a", "completion": "b", "label": "good"}"#, "\"label\" is \"good\""),
        (r#"{"prompt": "a", "completion": "", "label": 1}"#, "\"completion\" is empty"),
    ] {
        let read = try_read(&of_unpaired(&directory, content), &ReadOptions::new(&words, 100), DECODER);
        let error = read.unwrap_err().to_string();
        assert!(error.contains("a.jsonl:1") && error.contains(reason), "{error}");
    }
    // Another loss wants pairs.
    let error = try_read(
        &of_pairs(&directory, r#"{"prompt": "a", "completion": "b", "label": true}"#),
        &ReadOptions::new(&words, 100),
        DECODER,
    );
    assert!(error.unwrap_err().to_string().contains("chosen"));
}
