//! Supervised fine-tuning: forms of records, what is learned, truncation, several data sets.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use model_center::Result;
use model_center::data::{
    ClassSource, DATA_CLASSES, DataClass, DataSet, Dataset, IGNORED, Labels, Loader, LoaderOptions, LossOn,
    OnBadRecord, Order, Position, ReadOptions, RecordForm, Sample, SampleSink, SftColumns, SftTask, Split, Task,
    TaskModel, TextFormats, TooLong,
};
use model_center::tokenizer::{ChatTemplate, HfTokenizer, KeepSide, Tokenizer};
use serde_json::{Map, json};
use tempfile::TempDir;

use crate::data::words::Words;

pub(super) fn set(path: impl Into<PathBuf>) -> DataSet {
    DataSet {
        path: path.into(),
        eval: None,
        class: None,
        config: Map::new(),
        proportion: 1.0,
        form: None,
        formats: TextFormats::default(),
        max_input_tokens: None,
        max_output_tokens: None,
    }
}

pub(super) fn task(sets: Vec<DataSet>) -> SftTask {
    SftTask {
        pairs: None,
        sets,
        columns: SftColumns::default(),
        format: None,
        loss_on: LossOn::Assistant,
        keep: KeepSide::Start,
        as_chat: false,
    }
}

pub(super) fn write(directory: &TempDir, name: &str, content: &str) -> PathBuf {
    let path = directory.path().join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, content).unwrap();
    path
}

pub(super) const DECODER: TaskModel<'static> = TaskModel { chat: None, generates_targets: false, place: None };

pub(super) fn try_read(task: &SftTask, options: &ReadOptions<'_>, model: TaskModel<'_>) -> Result<Dataset> {
    task.read(Split::Train, options, model).map(Option::unwrap)
}

/// Each sample as text, its learned tokens in brackets.
fn shown(dataset: &Dataset, tokenizer: &dyn Tokenizer) -> Vec<String> {
    let text = |ids: &[u32]| tokenizer.decode(ids, false).unwrap();
    let sample = |sample: usize| match dataset.target(sample) {
        Some(target) => {
            format!("{} -> {}", text(dataset.inputs(sample).next().unwrap().input_ids), text(target.input_ids))
        }
        None => {
            let ids = dataset.inputs(sample).next().unwrap().input_ids;
            let tokens = ids.iter().zip(dataset.learned(sample)).map(|(id, learned)| match learned {
                1 => format!("[{}]", text(&[*id])),
                _ => text(&[*id]),
            });
            tokens.collect::<Vec<_>>().join(" ")
        }
    };
    (0..dataset.len()).map(sample).collect()
}

/// The samples of one file for a decoder that reads whole words: 1 BOS, 2 EOS.
fn of_lines(content: &str, change: &dyn Fn(&mut SftTask)) -> Vec<String> {
    let (directory, words) = (TempDir::new().unwrap(), Words::new());
    let mut task = task(vec![set(write(&directory, "a.jsonl", content))]);
    change(&mut task);
    shown(&try_read(&task, &ReadOptions::new(&words, 100), DECODER).unwrap(), &words)
}

#[test]
fn the_form_is_that_of_the_first_record() {
    let same = |_: &mut SftTask| {};
    for (record, expected) in [
        (r#"{"prompt": "a b", "completion": "c"}"#, "[CLS] a b [c] [[SEP]]"),
        (r#"{"input": "a b", "output": "c d", "id": 7}"#, "[CLS] a b [c] [d] [[SEP]]"),
        (r#"{"text": "a b"}"#, "[[CLS]] [a] [b] [[SEP]]"),
    ] {
        assert_eq!(of_lines(record, &same), [expected], "{record}");
    }
    let alpaca = of_lines(r#"{"instruction": "Add {input}", "input": "1 2", "output": "3"}"#, &same);
    assert!(alpaca[0].starts_with("[CLS] Below is an instruction") && alpaca[0].contains("### Input: 1 2 ###"));
    assert!(alpaca[0].contains("### Instruction: Add {input} ###") && alpaca[0].ends_with("Response: [3] [[SEP]]"));
    let alpaca = of_lines(r#"{"instruction": "Add", "input": "", "output": "3"}"#, &same);
    assert!(!alpaca[0].contains("Input:"), "{alpaca:?}");
    // Columns of other names, and a form that is not the first that fits.
    let renamed = |task: &mut SftTask| {
        task.columns = SftColumns { prompt: Some("q".into()), completion: Some("a".into()), ..SftColumns::default() };
    };
    assert_eq!(of_lines(r#"{"q": "x", "a": "y", "text": "z"}"#, &renamed), ["[CLS] x [y] [[SEP]]"]);
    let text = |task: &mut SftTask| task.sets[0].form = Some(RecordForm::Text);
    assert_eq!(of_lines(r#"{"prompt": "x", "completion": "y", "text": "z"}"#, &text), ["[[CLS]] [z] [[SEP]]"]);
}

#[test]
fn a_list_of_objects_and_a_directory_are_read_as_files_of_lines() {
    let (directory, words) = (TempDir::new().unwrap(), Words::new());
    write(&directory, "set/train/b.jsonl", "{\"input\": \"c\", \"output\": \"d\"}\n");
    write(&directory, "set/train/a.json", "[{\"prompt\": \"a\", \"completion\": \"b\"}]");
    write(&directory, "set/val/x.jsonl", "{\"input\": \"e\", \"output\": \"f\"}\n");
    let task = task(vec![set(directory.path().join("set"))]);
    let options = ReadOptions::new(&words, 100);
    assert_eq!(
        shown(&try_read(&task, &options, DECODER).unwrap(), &words),
        ["[CLS] a [b] [[SEP]]", "[CLS] c [d] [[SEP]]"]
    );
    assert!(task.has_split(Split::Validation));
    let eval = task.read(Split::Validation, &options, DECODER).unwrap().unwrap();
    assert_eq!(shown(&eval, &words), ["[CLS] e [f] [[SEP]]"]);
}

#[test]
fn formats_surround_texts_and_limits_shorten_them() {
    let change = |task: &mut SftTask| {
        task.sets[0].formats =
            TextFormats { input_format: "Q: __input__ A:".into(), output_format: "__output__ !".into() };
        task.sets[0].max_input_tokens = Some(3);
        task.sets[0].max_output_tokens = Some(3);
    };
    // EOS is one of the output's tokens, and a shortened output has it.
    let record = r#"{"input": "a b c", "output": "d e f"}"#;
    assert_eq!(of_lines(record, &change), ["[CLS] Q: a b [d] [e] [[SEP]]"]);
    let all = |task: &mut SftTask| task.loss_on = LossOn::All;
    assert_eq!(of_lines(record, &all), ["[[CLS]] [a] [b] [c] [d] [e] [f] [[SEP]]"]);
}

#[test]
fn a_long_sample_is_cut_on_the_chosen_side_and_left_out_if_nothing_is_learned_then() {
    let (directory, words) = (TempDir::new().unwrap(), Words::new());
    let lines = "{\"prompt\": \"a b c d\", \"completion\": \"e f\"}\n{\"prompt\": \"a\", \"completion\": \"b\"}\n";
    let mut task = task(vec![set(write(&directory, "a.jsonl", lines))]);
    let skip = OnBadRecord::Skip { max_share: 0.5 };
    let options = ReadOptions { on_bad_record: skip, ..ReadOptions::new(&words, 5) };
    let dataset = try_read(&task, &options, DECODER).unwrap();
    assert_eq!(shown(&dataset, &words), ["[CLS] a [b] [[SEP]]"]);
    assert_eq!((dataset.report().records, dataset.report().skipped), (2, 1));
    let error = try_read(&task, &ReadOptions::new(&words, 5), DECODER).unwrap_err().to_string();
    assert!(error.contains("a.jsonl:1:1") && error.contains("no token that is learned is left"), "{error}");
    task.keep = KeepSide::End;
    let dataset = try_read(&task, &options, DECODER).unwrap();
    assert_eq!(shown(&dataset, &words)[0], "c d [e] [f] [[SEP]]");
    assert_eq!((dataset.report().truncated, dataset.report().removed_tokens, dataset.weight(0)), (1, 3, 3));
    let strict = ReadOptions { too_long: TooLong::Error, ..options };
    let error = try_read(&task, &ReadOptions { on_bad_record: OnBadRecord::Error, ..strict }, DECODER).unwrap_err();
    assert!(error.to_string().contains("8 tokens, more than data.max_length = 5"), "{error}");
}

const CHATML: &str = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}\
    {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

pub(super) fn chat() -> (HfTokenizer, ChatTemplate) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/chat");
    (HfTokenizer::from_directory(directory).unwrap(), ChatTemplate::from_source("t", CHATML, Map::new()).unwrap())
}

/// The learned texts of conversations, the runs of a sample joined by `|`.
fn answers(content: &str, change: &dyn Fn(&mut SftTask)) -> Result<Vec<String>> {
    let (directory, (tokenizer, template)) = (TempDir::new().unwrap(), chat());
    let mut task = task(vec![set(write(&directory, "a.jsonl", content))]);
    change(&mut task);
    let model = TaskModel { chat: Some(&template), generates_targets: false, place: None };
    let dataset = try_read(&task, &ReadOptions::new(&tokenizer, 500), model)?;
    let sample = |sample: usize| {
        let row = dataset.inputs(sample).next().unwrap();
        let mut text = String::new();
        let mut is_open = false;
        for (id, learned) in row.input_ids.iter().zip(dataset.learned(sample)) {
            if *learned == 1 {
                text += if is_open || text.is_empty() { "" } else { "|" };
                text += &tokenizer.decode(&[*id], false).unwrap();
            }
            is_open = *learned == 1;
        }
        text
    };
    Ok((0..dataset.len()).map(sample).collect())
}

#[test]
fn conversations_of_either_spelling_learn_what_the_assistant_wrote() {
    let openai = json!({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "No"}, {"role": "assistant", "content": "Well."}]});
    let sharegpt = json!({"system": "Be kind.", "conversations": [{"from": "human", "value": "Hi"},
        {"from": "gpt", "value": "Yes."}, {"from": "human", "value": "No"}, {"from": "gpt", "value": "Well."}]});
    for record in [openai.to_string(), sharegpt.to_string()] {
        assert_eq!(answers(&record, &|_| {}).unwrap(), ["Yes.<|im_end|>|Well.<|im_end|>"]);
        assert_eq!(answers(&record, &|task| task.loss_on = LossOn::Last).unwrap(), ["Well.<|im_end|>"]);
        let all = answers(&record, &|task| task.loss_on = LossOn::All).unwrap();
        assert!(all[0].starts_with("<|im_start|>") && all[0].contains("user\nHi<|im_end|>"), "{all:?}");
    }
    let prompted = json!({"prompt": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "No"}], "completion": [{"role": "assistant", "content": "Well."}]});
    assert_eq!(answers(&prompted.to_string(), &|_| {}).unwrap(), ["Well.<|im_end|>"]);
    let pair = json!({"prompt": "Hi", "completion": "Yes."}).to_string();
    assert_eq!(answers(&pair, &|task| task.as_chat = true).unwrap(), ["Yes.<|im_end|>"]);
}

#[test]
fn conversations_that_cannot_be_learned_are_named_with_their_reason() {
    let refused = |record: &str| answers(record, &|_| {}).unwrap_err().to_string();
    for (record, reason) in [
        (r#"{"messages": [{"role": "user", "content": "a"}]}"#, "has no message of the assistant"),
        (
            r#"{"messages": [{"role": "judge", "content": "a"}, {"role": "assistant", "content": "b"}]}"#,
            "role \"judge\"",
        ),
        (r#"{"messages": [{"content": "a"}]}"#, "message 1 of \"messages\" does not state who wrote it"),
        (r#"{"messages": [{"role": "user"}]}"#, "message 1 of \"messages\" has no text"),
        (r#"{"messages": []}"#, "has no message"),
        (r#"{"messages": "a"}"#, "is not a list of messages"),
        (r#"{"content": "a"}"#, "the columns content are of no known form"),
    ] {
        let error = refused(record);
        assert!(error.contains(reason) && error.contains("a.jsonl:1"), "{record}: {error}");
    }
    let (directory, words) = (TempDir::new().unwrap(), Words::new());
    let record = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;
    let task = task(vec![set(write(&directory, "a.jsonl", record))]);
    let error = try_read(&task, &ReadOptions::new(&words, 100), DECODER).unwrap_err().to_string();
    assert!(error.contains("the model has no chat template"), "{error}");
}

#[test]
fn an_encoder_reads_the_input_and_a_decoder_writes_the_output() {
    let (directory, words) = (TempDir::new().unwrap(), Words::new());
    let model = TaskModel { chat: None, generates_targets: true, place: None };
    let record = "{\"input\": \"a b c\", \"output\": \"d e f\"}\n";
    let mut task = task(vec![set(write(&directory, "a.jsonl", record))]);
    let options = ReadOptions { target_length: 4, ..ReadOptions::new(&words, 100) };
    let dataset = try_read(&task, &options, model).unwrap();
    assert_eq!(shown(&dataset, &words), ["[CLS] a b c [SEP] -> [CLS] d e [SEP]"]);
    task.keep = KeepSide::End;
    task.sets[0].max_input_tokens = Some(4);
    let dataset = try_read(&task, &options, model).unwrap();
    assert_eq!(shown(&dataset, &words), ["[CLS] b c [SEP] -> [CLS] e f [SEP]"]);
    let text = write(&directory, "t.jsonl", "{\"text\": \"a\"}");
    let error = try_read(&self::task(vec![set(text)]), &options, model).unwrap_err().to_string();
    assert!(error.contains("one text, and an encoder-decoder reads one and writes another"), "{error}");
}

#[test]
fn labels_of_a_batch_are_the_learned_tokens_padded_or_packed() {
    let (directory, words) = (TempDir::new().unwrap(), Words::new());
    let lines = "{\"prompt\": \"a b\", \"completion\": \"c\"}\n{\"prompt\": \"d\", \"completion\": \"e f g\"}\n";
    let task = task(vec![set(write(&directory, "a.jsonl", lines))]);
    let dataset = Arc::new(try_read(&task, &ReadOptions::new(&words, 100), DECODER).unwrap());
    let batch = |packing| {
        let options = LoaderOptions { order: Order::Sequential, packing, ..LoaderOptions::evaluation(2) };
        Loader::new(Arc::clone(&dataset), options).unwrap().batch(Position::default()).unwrap()
    };
    let id = |word: &str| i64::from(words.id(word).unwrap());
    let (padded, packed) = (batch(false), batch(true));
    let first = [IGNORED, IGNORED, IGNORED, id("c"), 2];
    let second = [IGNORED, IGNORED, id("e"), id("f"), id("g"), 2];
    assert_eq!(padded.labels, Some(Labels::NextTokens([&first[..], &[IGNORED], &second].concat())));
    assert_eq!(packed.labels, Some(Labels::NextTokens([&first[..], &second].concat())));
    assert_eq!(packed.document_starts, Some([[0; 5].as_slice(), &[5; 6]].concat()));
    assert_eq!([dataset.weight(0), dataset.weight(1)], [2, 4]);
    // Memory is counted with samples of any length.
    let counted = dataset.of_longest(3).with_lengths(9, 9);
    assert_eq!((counted.len(), counted.length(2), counted.weight(1)), (3, 9, 8));
}

static TWICE: DataClass = DataClass {
    name: "twice",
    doc: "Numbers, each in the input and the output.",
    has_split: |_, split| split == Split::Train,
    read: twice,
};

fn twice(source: &ClassSource<'_>, samples: &mut SampleSink<'_>) -> Result<()> {
    for at in 0..source.whole("count", 3)? {
        if !samples.push(format!("number {at}"), Ok(Sample::pair(format!("n{at}"), format!("n{at}"))))? {
            break;
        }
    }
    Ok(())
}

#[test]
fn sets_are_mixed_by_proportions_and_evaluated_once_each() {
    let (directory, words) = (TempDir::new().unwrap(), Words::new());
    let lines = |count: usize| {
        (0..count).map(|at| format!("{{\"input\": \"a{at}\", \"output\": \"b\"}}\n")).collect::<String>()
    };
    let mut files = set(write(&directory, "set/train/a.jsonl", &lines(12)).parent().unwrap().parent().unwrap());
    write(&directory, "set/val/a.jsonl", &lines(2));
    files.proportion = 3.0;
    let mut own = DataSet { class: Some(&TWICE), ..set("") };
    own.config.insert("count".into(), json!(8));
    let mut task = task(vec![files, own]);
    let options = ReadOptions::new(&words, 100);
    let dataset = try_read(&task, &options, DECODER).unwrap();
    assert_eq!((dataset.len(), dataset.mixture().unwrap().quotas()), (20, &[15, 5][..]));
    let fingerprint = dataset.fingerprint().to_owned();
    let mut loader = Loader::new(Arc::new(dataset), LoaderOptions::training(4, 1)).unwrap();
    let of = |loader: &mut Loader, epoch: u64| -> Vec<u32> {
        let batches: Vec<_> = loader.epoch(epoch).map(Result::unwrap).collect();
        batches.into_iter().flat_map(|batch| batch.samples).collect()
    };
    let (first, second) = (of(&mut loader, 0), of(&mut loader, 1));
    assert_eq!(first.iter().filter(|sample| **sample < 12).count(), 15);
    assert_ne!(first, second);
    // Any rank, and a run that is resumed, finds the same batch without those before it.
    let mut other = loader.clone();
    assert_eq!(other.samples(Position { epoch: 1, index: 3 }).unwrap(), second[12..16]);
    assert_eq!(other.samples(Position { epoch: 0, index: 0 }).unwrap(), first[..4]);
    let eval = task.read(Split::Validation, &options, DECODER).unwrap().unwrap();
    assert_eq!((eval.len(), eval.mixture()), (2, None));
    task.sets[0].proportion = 1.0;
    assert_ne!(try_read(&task, &options, DECODER).unwrap().fingerprint(), fingerprint);
    task.sets[1].config.insert("count".into(), json!("many"));
    let error = try_read(&task, &options, DECODER).unwrap_err().to_string();
    assert!(error.contains("config.count") && error.contains("not a whole number"), "{error}");
}

#[test]
fn the_predecessors_classes_read_their_files() {
    let (directory, words) = (TempDir::new().unwrap(), Words::new());
    let class = |name: &str| DATA_CLASSES.iter().find(|class| class.name == name).unwrap();
    let of = |name: &str, path: &str| DataSet { class: Some(class(name)), ..set(directory.path().join(path)) };
    let read =
        |set: DataSet| shown(&try_read(&task(vec![set]), &ReadOptions::new(&words, 200), DECODER).unwrap(), &words);
    write(&directory, "glue/train.tsv", "sentence\tlabel\na film\t1\na bore\t0\n");
    write(&directory, "glue/dev.tsv", "sentence\tlabel\na play\t1\n");
    assert_eq!(read(of("sst2", "glue")), ["[CLS] a film [positive] [[SEP]]", "[CLS] a bore [negative] [[SEP]]"]);
    assert!(
        task(vec![of("sst2", "glue")]).has_split(Split::Validation)
            && !task(vec![of("alpaca", "glue")]).has_split(Split::Validation)
    );
    write(&directory, "alpaca/alpaca_data.json", r#"[{"instruction": "Go", "input": "", "output": "Gone"}]"#);
    assert!(read(of("alpaca", "alpaca"))[0].ends_with("Response: [Gone] [[SEP]]"));
    let mut debug = DataSet { max_input_tokens: Some(2), max_output_tokens: Some(3), ..of("debug", "") };
    debug.config.insert("examples".into(), json!(2));
    assert_eq!(read(debug), ["[CLS] Hello Hello [Hello] [Hello] [[SEP]]"; 2]);
    let documents = json!({"doc_data": {"dmv": {"d1": {"doc_text": "one two three"}}}});
    let turns = json!([
        {"role": "user", "utterance": "hello", "references": [{"doc_id": "d1"}]},
        {"role": "agent", "utterance": "yes", "references": [{"doc_id": "d1"}]},
        {"role": "user", "utterance": "and", "references": []},
        {"role": "agent", "utterance": "so", "references": []},
    ]);
    write(&directory, "dial/multidoc2dial_doc.json", &documents.to_string());
    let dialogues = json!({"dial_data": {"dmv": [{"dial_id": "1", "turns": turns}]}});
    write(&directory, "dial/multidoc2dial_dial_train.json", &dialogues.to_string());
    let mut dial = DataSet { max_input_tokens: Some(8), ..of("chit-chat", "dial") };
    dial.config.insert("document_tokens".into(), json!(2));
    assert_eq!(read(dial.clone()), ["[CLS] one two user: hello agent: [yes] [[SEP]]"]);
    dial.config.insert("grounded_alone".into(), json!(false));
    assert_eq!(read(dial)[1], "[CLS] one two agent: yes user: and agent: [so] [[SEP]]");
}
