//! The predecessor's tasks, from files in their real format to metrics: BERT with classifiers, GPT-2, T5 and the CPMs
//! with verbalizers. Every sample is judged once, whatever the number of ranks, and the figures are
//! the same.

use crate::fixture::{Fixture, golden};
use model_center::data::{PROMPTS, SQUAD_METRICS, SUPERGLUE, Split, Squad, Task};
use model_center::run::deterministic_part;
use model_center::tokenizer::CpmKind;
use serde_json::{Value, json};

/// Odd, so that no batch and no number of ranks divides them.
const TRAIN: usize = 7;
const VALIDATION: usize = 5;

/// The tiny vocabularies.
const WORDS: &str = "[PAD] [UNK] [CLS] [SEP] [MASK] <extra_id_0> <extra_id_1> no yes maybe 1 2 有 无 关 ? . : sentence \
    the answer question is does choice ann bob won it red blue";

/// A vocabulary of CPM-1 for LCQMC, and one of CPM-2 in which `<s>` is the decoder start token of the tiny
/// model.
const CPM1_WORDS: &str = "<unk> <s> </s> <pad> <eod> </_> </n> 有 无 关 与 的 关系 是 : 。 \"";
const CPM2_WORDS: &str = "<pad> <unk> <eod> ▂ ▃ <s> <s_0> <s_1> 有 无 关 与 “ ” 是否 是 否 ？";

fn record(task: &str, at: usize) -> Value {
    let (color, truth) = (["red", "blue"][at % 2], at.is_multiple_of(2));
    match task {
        "BoolQ" => json!({"question": "is it red", "passage": format!("it is {color}"), "idx": at, "label": truth}),
        "CB" => {
            let label = ["contradiction", "entailment", "neutral"][at % 3];
            json!({"premise": format!("it is {color}"), "hypothesis": "it won", "label": label, "idx": at})
        }
        "COPA" => {
            json!({"premise": "it won", "choice1": color, "choice2": "bob", "question": "cause", "idx": at,
                "label": at % 2})
        }
        "RTE" => {
            let label = ["entailment", "not_entailment"][at % 2];
            json!({"premise": format!("ann is {color}"), "hypothesis": "it is red", "label": label, "idx": at})
        }
        "WiC" => json!({
            "word": "it", "sentence1": format!("it is {color}"), "sentence2": "it won", "idx": at, "label": truth,
            "start1": 0, "start2": 0, "end1": 2, "end2": 2, "version": 1.1,
        }),
        "WSC" => json!({
            "text": format!("ann won ? bob is {color}"), "label": truth, "idx": at,
            "target": {"span1_index": 0, "span1_text": "ann", "span2_index": 3, "span2_text": color},
        }),
        "MultiRC" => {
            let answers = |count: usize| -> Vec<Value> {
                (0..count)
                    .map(|idx| json!({"text": (["red", "blue"][idx % 2]), "idx": idx, "label": (idx + at) % 2}))
                    .collect()
            };
            let questions =
                [1, 1 + at % 3].map(|count| json!({"question": "is it", "answers": answers(count), "idx": count}));
            json!({"idx": at, "version": 1.1, "passage": {"text": format!("it is {color}"), "questions": questions}})
        }
        "ReCoRD" => json!({
            "source": "x", "idx": at,
            "passage": {
                "text": format!("Ann won\n@highlight\nBob is {color}"),
                "entities": [{"start": 0, "end": 2}, {"start": 19, "end": 21}],
            },
            "qas": [{
                "query": "@placeholder won", "idx": at,
                "answers": [{"start": 0, "end": 2, "text": if truth { "Ann" } else { "the Bob" }}],
            }],
        }),
        other => panic!("{other}"),
    }
}

/// The number of evaluation samples of this number of records.
fn samples(task: &str, by_words: bool, records: usize) -> u64 {
    match task {
        // One answer to the first question of each record, and one to three to the second.
        "MultiRC" if by_words => (0..records).map(|at| 2 + at as u64 % 3).sum(),
        "ReCoRD" => 2 * records as u64,
        _ => records as u64,
    }
}

/// Writes both splits of a task as it ships them.
fn write_task(fixture: &Fixture, task: &str) {
    for (split, count) in [(Split::Train, TRAIN), (Split::Validation, VALIDATION)] {
        match task {
            "SQuAD" => {
                let questions: Vec<Value> = (0..count)
                    .map(|at| {
                        let first = ["red", "blue ann"][at % 2];
                        let answers = json!([{"text": first, "answer_start": 6}, {"text": "it", "answer_start": 0}]);
                        json!({"id": format!("{at}"), "question": "is it ?", "answers": answers})
                    })
                    .collect();
                let paragraph = json!({"context": "it is red", "qas": questions});
                let file = json!({"version": "1.1", "data": [{"title": "it", "paragraphs": [paragraph]}]});
                fixture.write(&format!("tasks/{}", Squad.file(split).unwrap()), &file.to_string());
            }
            "LCQMC" => {
                let lines = (0..count).map(|at| format!("有关\t{}\t{}\n", ["有", "无"][at % 2], at % 2));
                let text = format!("text_a\ttext_b\tlabel\n{}", lines.collect::<String>());
                let file = ["train.tsv", "dev.tsv"][usize::from(split == Split::Validation)];
                fixture.write(&format!("tasks/LCQMC/{file}"), &text);
            }
            _ => {
                let lines: String = (0..count).map(|at| format!("{}\n", record(task, at))).collect();
                fixture.write(&format!("tasks/{task}/{}.jsonl", split.file_stem()), &lines);
            }
        }
    }
}

/// A tiny model of a family with a `vocab.txt` of these tokens.
fn fixture(model: &str, head: &str, words: &str) -> Fixture {
    let fixture = Fixture::new();
    for file in ["config.json", "model.safetensors"] {
        fixture.write_bytes(&format!("model/{file}"), &std::fs::read(golden(model, head).join(file)).unwrap());
    }
    let config: Value = serde_json::from_str(&fixture.read("model/config.json")).unwrap();
    let size = config["vocab_size"].as_u64().unwrap() as usize;
    let words = words.split_whitespace().map(str::to_owned).chain((0..).map(|at| format!("[unused{at}]")));
    fixture.write("model/vocab.txt", &words.take(size).map(|word| word + "\n").collect::<String>());
    fixture
}

const STEPS: usize = 2;

/// Trains on a task with elastic sums, whose bits do not depend on the ranks; gives what of the log does not depend on
/// clock and machine, and its evaluations.
fn train(fixture: &Fixture, task: &str, objective: Option<&str>, ranks: usize) -> (Vec<String>, Vec<Value>) {
    let dir = format!("{task}{ranks}");
    let objective = objective.map_or(String::new(), |objective| format!("objective = \"{objective}\"\n"));
    let recipe = format!(
        "[model]\npath = \"model\"\n[data]\ntask = \"{task}\"\n{objective}path = \"tasks\"\nmax_length = 12\n\
         [train]\nsteps = {STEPS}\nbatch_size = 6\nmicro_batch_size = 1\nlr = 1e-2\ngradient_sum = \"elastic\"\n\
         [eval]\nbatch_size = 2\n[log]\nevery = 1\n[output]\ndir = \"{dir}\"\n[device]\nthreads = 1\n"
    );
    fixture.write("recipe.toml", &recipe);
    fixture.finetune(&["--ranks", &ranks.to_string()]).succeeded();
    let log = fixture.read(&format!("{dir}/metrics.jsonl"));
    let all = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let evals: Vec<Value> = all.filter(|record| record["kind"] == "eval").collect();
    (log.lines().map(|line| deterministic_part(line).replace(&dir, task)).collect(), evals)
}

/// A task on one, two and three ranks: the same log, and the task's own metrics of every sample.
fn check(fixture: &Fixture, task: &str, objective: Option<&str>, metrics: &[&str]) {
    write_task(fixture, task);
    let by_words = objective != Some("classifier");
    let (alone, evals) = train(fixture, task, objective, 1);
    assert!(evals.len() >= 2, "{task}: {alone:?}");
    for eval in &evals {
        assert_eq!(eval["samples"], samples(task, by_words, VALIDATION), "{task}: {eval}");
        let values = eval["metrics"].as_object().unwrap();
        let names: Vec<&str> = values.keys().map(String::as_str).collect();
        assert_eq!(names, [metrics, &["loss"]].concat(), "{task}");
        assert!(values.values().all(|value| value.as_f64().is_some_and(f64::is_finite)), "{task}: {eval}");
    }
    assert_ne!(evals[0]["metrics"]["loss"], evals.last().unwrap()["metrics"]["loss"], "{task} learns nothing");
    for ranks in [2, 3] {
        let (shared, _) = train(fixture, task, objective, ranks);
        assert_eq!(shared, alone, "{task} on {ranks} ranks");
    }
}

fn names(metrics: &[model_center::metrics::Metric]) -> Vec<&'static str> {
    metrics.iter().map(|metric| metric.name()).collect()
}

#[test]
fn bert_runs_every_task_of_its_registry_alike_on_any_number_of_ranks() {
    let fixture = fixture("bert_a", "nsp", WORDS);
    for entry in SUPERGLUE {
        check(&fixture, entry.name, Some("classifier"), &names(entry.metrics));
    }
}

#[test]
fn gpt2_answers_every_task_with_verbalizers_alike_on_any_number_of_ranks() {
    let fixture = fixture("gpt2_a", "lm", WORDS);
    for entry in PROMPTS {
        check(&fixture, entry.name, Some("verbalizer"), &names(entry.metrics));
    }
}

#[test]
fn t5_answers_every_task_with_verbalizers_and_generates_answers_alike_on_any_number_of_ranks() {
    let fixture = fixture("t5_a", "lm", WORDS);
    for entry in PROMPTS.iter().filter(|entry| entry.name != "LCQMC") {
        check(&fixture, entry.name, Some("verbalizer"), &names(entry.metrics));
    }
    check(&fixture, "SQuAD", None, &names(SQUAD_METRICS));
}

#[test]
fn both_cpms_answer_lcqmc_alike_on_any_number_of_ranks() {
    for (model, words, kind) in [("cpm1_a", CPM1_WORDS, CpmKind::Cpm1), ("cpm2_b", CPM2_WORDS, CpmKind::Cpm2)] {
        let fixture = fixture(model, "lm", words);
        assert_eq!(CpmKind::of_directory(fixture.path("model")).unwrap(), Some(kind));
        check(&fixture, "LCQMC", None, &["accuracy"]);
    }
}
