//! Conversations of records: which turns are learned, nulls, keys, prompts as turns, texts that are rendered already.

mod exclusions;

use super::sft::{chat, set, task, try_read, write};
use model_center::Result;
use model_center::data::{Dataset, LossOn, PairLabels, ReadOptions, RecordForm, SftTask, TaskModel};
use model_center::tokenizer::{ChatMessage, ChatRequest, HfTokenizer, TextSpecials, Tokenizer};
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;

fn read(lines: &str, change: &dyn Fn(&mut SftTask)) -> Result<Dataset> {
    read_file("a.jsonl", lines, change)
}

fn read_file(name: &str, content: &str, change: &dyn Fn(&mut SftTask)) -> Result<Dataset> {
    let (directory, (tokenizer, template)) = (TempDir::new().unwrap(), chat());
    let mut task = task(vec![set(write(&directory, name, content))]);
    change(&mut task);
    try_read(
        &task,
        &ReadOptions::new(&tokenizer, 500),
        TaskModel { chat: Some(&template), generates_targets: false, place: None },
    )
}

/// The whole text of each sample, and its learned parts.
fn shown(dataset: &Dataset) -> Vec<(String, Vec<String>)> {
    let tokenizer = chat().0;
    let text = |ids: &[u32]| tokenizer.decode(ids, false).unwrap();
    let sample = |sample: usize| {
        let ids = dataset.inputs(sample).next().unwrap().input_ids.to_vec();
        let marked: Vec<(u32, u8)> = ids.iter().copied().zip(dataset.learned(sample).iter().copied()).collect();
        let runs = marked.chunk_by(|(_, a), (_, b)| a == b).filter(|run| run[0].1 == 1);
        (text(&ids), runs.map(|run| text(&run.iter().map(|(id, _)| *id).collect::<Vec<_>>())).collect())
    };
    (0..dataset.len()).map(sample).collect()
}

/// The text of one record, and its learned parts.
fn of(record: &Value, change: &dyn Fn(&mut SftTask)) -> (String, Vec<String>) {
    shown(&read(&record.to_string(), change).unwrap()).remove(0)
}

fn turns(turns: &[(&str, &str)]) -> String {
    turns.iter().map(|(role, text)| format!("<|im_start|>{role}\n{text}<|im_end|>\n")).collect()
}

fn refused(record: &Value, change: &dyn Fn(&mut SftTask)) -> String {
    read(&record.to_string(), change).unwrap_err().to_string()
}

const AS_CHAT: &dyn Fn(&mut SftTask) = &|task| task.as_chat = true;
const SAME: &dyn Fn(&mut SftTask) = &|_| {};

/// As LLaMA-Factory's AlpacaDatasetConverter: "\n".join of prompt and query, history before it, every answer learned.
#[test]
fn an_instruction_is_a_turn_with_its_input_after_the_system_text_and_earlier_turns() {
    let record = json!({"instruction": "Translate.", "input": "chat", "output": "cat", "system": "Be brief.",
        "history": [["Hi", "Hello"]]});
    let expected = [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", "Hello"),
        ("user", "Translate.\nchat"),
        ("assistant", "cat"),
    ];
    let (text, learned) = of(&record, AS_CHAT);
    assert_eq!(text, turns(&expected));
    assert_eq!(learned, ["Hello<|im_end|>", "cat<|im_end|>"]);
    let last = |task: &mut SftTask| (task.as_chat, task.loss_on) = (true, LossOn::Last);
    assert_eq!(of(&record, &last).1, ["cat<|im_end|>"]);
    // Nothing where there is no value: null, an empty text, no key. Texts of JSON are read, too.
    let plain = turns(&[("user", "Translate."), ("assistant", "cat")]);
    for more in [
        json!({}),
        json!({"input": null, "system": null, "history": null, "tools": null}),
        json!({"input": "", "system": "", "history": [], "tools": []}),
        json!({"history": "[]", "tools": "[]"}),
    ] {
        let mut record = json!({"instruction": "Translate.", "output": "cat"});
        record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        assert_eq!(of(&record, AS_CHAT).0, plain, "{record}");
    }
    // The same of CSV, whose cells are texts.
    let csv =
        "instruction,input,output,system,history\nTranslate.,chat,cat,Be brief.,\"[[\"\"Hi\"\", \"\"Hello\"\"]]\"\n";
    assert_eq!(shown(&read_file("a.csv", csv, AS_CHAT).unwrap())[0].0, turns(&expected));
    for (key, value, reason) in [
        ("history", json!([["Hi"]]), "\"history\" is not a list of earlier turns"),
        ("tools", json!("none"), "\"tools\" is not a list of JSON"),
    ] {
        let error = refused(&json!({"instruction": "a", "output": "b", key: value}), AS_CHAT);
        assert!(error.contains(reason) && error.contains("a.jsonl:1"), "{error}");
    }
}

#[test]
fn prompts_of_other_forms_have_a_system_text_too() {
    let expected = turns(&[("system", "Be brief."), ("user", "p"), ("assistant", "c")]);
    for (prompt, completion) in [("prompt", "completion"), ("input", "output")] {
        let record = json!({prompt: "p", completion: "c", "system": "Be brief."});
        assert_eq!(of(&record, AS_CHAT), (expected.clone(), vec!["c<|im_end|>".to_owned()]), "{record}");
        // Without turns there is no place for it.
        let error = refused(&record, SAME);
        assert!(error.contains("\"system\" has a value") && error.contains("data.as_chat = true"), "{error}");
    }
    let named = |task: &mut SftTask| (task.as_chat, task.columns.system) = (true, Some("persona".into()));
    let record = json!({"prompt": "p", "completion": "c", "persona": "Be brief."});
    assert_eq!(of(&record, &named).0, expected);
    let error = refused(&json!({"prompt": "p", "completion": "c"}), &named);
    assert!(error.contains("no column \"persona\""), "{error}");
}

#[test]
fn pairs_and_unpaired_completions_of_texts_have_the_same_turns() {
    let before =
        json!({"instruction": "Translate.", "input": "chat", "system": "Be brief.", "history": [["Hi", "Hello"]]});
    let with = |more: Value| {
        let mut record = before.clone();
        record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        record
    };
    let shared = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"), ("user", "Translate.\nchat")];
    let expected = |completion: &str| turns(&[&shared[..], &[("assistant", completion)]].concat());
    let rows = |dataset: &Dataset| -> Vec<(String, String)> {
        let (tokenizer, mut learned) = (chat().0, dataset.learned(0).iter());
        let rows = dataset.rows(0).unwrap().map(|row| {
            let own: Vec<u32> = row
                .input_ids
                .iter()
                .copied()
                .zip(learned.by_ref())
                .filter(|(_, l)| **l == 1)
                .map(|(id, _)| id)
                .collect();
            (tokenizer.decode(row.input_ids, false).unwrap(), tokenizer.decode(&own, false).unwrap())
        });
        rows.collect()
    };
    let pairs = |labels: PairLabels| {
        move |task: &mut SftTask| {
            (task.as_chat, task.pairs) = (true, Some(labels));
            (task.columns.prompt, task.columns.completion) = (Some("instruction".into()), Some("output".into()));
        }
    };
    let preferred = read(&with(json!({"chosen": "cat", "rejected": "dog"})).to_string(), &pairs(PairLabels::LogProbs));
    let answers = |texts: [&str; 2]| texts.map(|text| (expected(text), format!("{text}<|im_end|>"))).to_vec();
    // Earlier turns are part of the prompt.
    assert_eq!(rows(&preferred.unwrap()), answers(["cat", "dog"]));
    let unpaired = [with(json!({"output": "cat", "label": true})), with(json!({"output": "dog", "label": false}))];
    let lines: String = unpaired.iter().map(|record| format!("{record}\n")).collect();
    assert_eq!(rows(&read(&lines, &pairs(PairLabels::Unpaired)).unwrap()), answers(["cat", "dog"]));
    // Texts without turns have no place for an input beside the prompt.
    let plain = |task: &mut SftTask| {
        task.pairs = Some(PairLabels::LogProbs);
        task.columns.prompt = Some("instruction".into());
    };
    let error = refused(&json!({"instruction": "a", "input": "b", "chosen": "c", "rejected": "d"}), &plain);
    assert!(error.contains("a text in \"input\" beside its prompt"), "{error}");
}

#[test]
fn keys_without_a_value_are_as_if_they_were_not_there() {
    let messages = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": null,
        "name": null, "weight": null}]);
    let expected = turns(&[("user", "a"), ("assistant", "b")]);
    assert_eq!(of(&json!({"messages": messages, "tools": null, "system": null}), SAME).0, expected);
    // As datasets writes columns of JSON for other readers, and as CSV has them.
    assert_eq!(of(&json!({"messages": messages.to_string()}), SAME).0, expected);
    let csv = format!("messages\n\"{}\"\n", messages.to_string().replace('"', "\"\""));
    assert_eq!(shown(&read_file("a.csv", &csv, SAME).unwrap())[0].0, expected);
    // Columns of another form, which other files of a concatenated set have.
    assert_eq!(shown(&read(r#"{"messages": null, "text": "a"}"#, SAME).unwrap())[0].0, "a</s>");
    let pair = read(r#"{"prompt": "a", "completion": "b", "messages": null, "conversations": null}"#, AS_CHAT).unwrap();
    assert_eq!(shown(&pair)[0].0, expected);
    for message in [
        json!({"role": "assistant", "content": null, "tool_calls": null}),
        json!({"role": "assistant", "content": null, "tool_calls": []}),
        json!({"role": "assistant"}),
    ] {
        let error = refused(&json!({"messages": [{"role": "user", "content": "a"}, message]}), SAME);
        assert!(error.contains("message 2 of \"messages\" has no text"), "{error}");
    }
}

#[test]
fn every_key_of_a_record_is_used_known_or_refused() {
    let chat = |more: Value| {
        let mut record = json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]});
        record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        record
    };
    let known =
        chat(json!({"id": 7, "source": "x", "weight": 1, "images": [], "system": "", "score": 3, "prompt": "a"}));
    assert_eq!(read(&known.to_string(), SAME).unwrap().report().unused_columns, ["prompt", "score"]);
    // Fields of messages, but for those that the template reads.
    let own = json!({"messages": [{"role": "user", "content": "a", "name": "n", "mood": "good", "seen": null},
        {"role": "assistant", "content": "b", "stars": 5}]});
    assert_eq!(read(&own.to_string(), SAME).unwrap().report().unused_columns, ["messages: mood", "messages: stars"]);
    // A report has room for some names.
    let fields: String = (0..200).map(|at| format!(", \"field{at}\": 1")).collect();
    let many = format!(
        r#"{{"messages": [{{"role": "user", "content": "a"{fields}}}, {{"role": "assistant", "content": "b"}}]}}"#
    );
    assert_eq!(read(&many, SAME).unwrap().report().unused_columns.len(), 20);
    for (more, reason) in [
        (json!({"images": ["a.png"]}), "\"images\" changes what is learned: it has images"),
        (json!({"weight": 2.0}), "\"weight\" changes what is learned: it weighs the sample"),
        (json!({"functions": [{"name": "f"}]}), "write them as `tools`"),
        (json!({"system_prompt": "Be brief."}), "data.columns.system"),
        (json!({"history": [["a", "b"]]}), "\"history\" changes what is learned"),
        (json!({"mask": "User"}), "\"mask\" changes what is learned"),
    ] {
        let error = refused(&chat(more), SAME);
        assert!(error.contains(reason), "{error}");
    }
    for (messages, reason) in [
        (
            json!([{"role": "system", "content": "x"}, {"role": "assistant", "content": "b"}]),
            "the first message is another one",
        ),
        (
            json!([{"role": "user", "from": "gpt", "content": "a"}, {"role": "assistant", "content": "b"}]),
            "\"role\" and another one, \"from\"",
        ),
        (
            json!([{"role": "user", "content": [{"type": "image"}]}, {"role": "assistant", "content": "b"}]),
            "a part of the type \"image\"",
        ),
    ] {
        let error = refused(&json!({"system": "y", "messages": messages}), SAME);
        assert!(error.contains(reason), "{error}");
    }
    // A reward's margin is of reward models alone.
    let pair = json!({"prompt": "a", "chosen": "b", "rejected": "c", "margin": 2.0});
    let of_labels = |labels: PairLabels| move |task: &mut SftTask| task.pairs = Some(labels);
    assert!(read(&pair.to_string(), &of_labels(PairLabels::LogProbs)).is_ok());
    assert!(refused(&pair, &of_labels(PairLabels::Rewards)).contains("\"margin\" changes what is learned"));
    // A whole text is what its column has.
    let text = |task: &mut SftTask| task.sets[0].form = Some(RecordForm::Text);
    let rendered = json!({"text": "a", "system": "x", "images": ["a.png"], "id": 1});
    assert_eq!(read(&rendered.to_string(), &text).unwrap().report().unused_columns, ["images", "system"]);
}

#[test]
fn control_tokens_of_rendered_texts_are_parsed_on_request() {
    let (tokenizer, template) = chat();
    let trusting = HfTokenizer::from_directory(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/chat"));
    let trusting = trusting.unwrap().with_text_specials(TextSpecials::AsTokens);
    let messages = [ChatMessage::new("user", "hello"), ChatMessage::new("assistant", "world")];
    let rendered = template.render(&messages, false).unwrap();
    let of_chat = template.encode(&tokenizer, &ChatRequest::new(&messages)).unwrap();
    let directory = TempDir::new().unwrap();
    let task = task(vec![set(write(&directory, "a.jsonl", &json!({"text": rendered}).to_string()))]);
    let model = TaskModel { chat: Some(&template), generates_targets: false, place: None };
    let options = ReadOptions { parse_special: true, ..ReadOptions::new(&trusting, 500) };
    let ids = |dataset: &Dataset| dataset.inputs(0).next().unwrap().input_ids.to_vec();
    let parsed = ids(&try_read(&task, &options, model).unwrap());
    // The tokenizer adds its own at the ends, unless they are there.
    let special = tokenizer.special_ids();
    let (before, after): (Vec<u32>, Vec<u32>) = (special.bos.into_iter().collect(), special.eos.into_iter().collect());
    let inner = parsed.strip_suffix(&after[..]).unwrap();
    assert_eq!(inner.strip_prefix(&before[..]).unwrap_or(inner), of_chat);
    let spelled = ids(&try_read(&task, &ReadOptions::new(&tokenizer, 500), model).unwrap());
    assert!(spelled.len() > parsed.len());
    let [eos] = after[..] else { panic!("{special:?}") };
    let ended = json!({"text": format!("{rendered}{}", tokenizer.token(eos).unwrap())}).to_string();
    let own = self::task(vec![set(write(&directory, "b.jsonl", &ended))]);
    assert_eq!(ids(&try_read(&own, &options, model).unwrap()), parsed);
    // Conversations are rendered here.
    let chat = json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]});
    let own = self::task(vec![set(write(&directory, "c.jsonl", &chat.to_string()))]);
    let error = try_read(&own, &options, model).unwrap_err().to_string();
    assert!(error.contains("data.parse_special is for texts that are rendered already"), "{error}");
}
