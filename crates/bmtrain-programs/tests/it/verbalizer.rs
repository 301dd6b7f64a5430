//! Prompt-based classification with verbalizers in the finetune program: custom prompts on a decoder, a
//! CPM-1 and a T5, which learn, compute the same bits however they are run, and take the memory that is planned; and
//! what is refused.

use crate::fixture::{Fixture, Outcome, golden};
use model_center::run::deterministic_part;
use serde_json::Value;

const WORDS: &str = "[PAD] [UNK] [CLS] [SEP] [MASK] <extra_id_0> <extra_id_1> it is was good bad fine poor the a \
    film plot very not and all in end so . ? yes no";

/// A prompt, its label words and its labels, on files where a single adjective determines the label.
fn fixture(model: &str) -> Fixture {
    let fixture = Fixture::new();
    for file in ["config.json", "model.safetensors"] {
        fixture.write_bytes(&format!("model/{file}"), &std::fs::read(golden(model, "lm").join(file)).unwrap());
    }
    let config: Value = serde_json::from_str(&fixture.read("model/config.json")).unwrap();
    let size = config["vocab_size"].as_u64().unwrap() as usize;
    let words = WORDS.split_whitespace().map(str::to_owned).chain((0..).map(|at| format!("[unused{at}]")));
    fixture.write("model/vocab.txt", &words.take(size).map(|word| word + "\n").collect::<String>());
    fixture.replace(
        "recipe.toml",
        "max_length = 16\n",
        "max_length = 16\nobjective = \"verbalizer\"\ntemplate = \"{text} . so it was {answer} .\"\n\
         labels = [\"negative\", \"positive\"]\nwords = [\" poor\", \" fine\"]\n",
    );
    fixture
}

fn train(fixture: &Fixture, dir: &str, further: &[&str], sets: &[&str]) -> Outcome {
    let dir = format!("output.dir={dir}");
    let sets = sets.iter().copied().chain([dir.as_str()]).flat_map(|set| ["--set", set]);
    fixture.finetune(&further.iter().copied().chain(sets).collect::<Vec<_>>())
}

fn records(fixture: &Fixture, dir: &str, kind: &str) -> Vec<Value> {
    let text = fixture.read(&format!("{dir}/metrics.jsonl"));
    let all = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|record| record["kind"] == kind).collect()
}

const MODELS: [&str; 3] = ["gpt2_a", "cpm1_a", "t5_a"];

#[test]
fn labels_are_learnt_as_label_words_and_the_saved_model_predicts_them() {
    for model in MODELS {
        let fixture = fixture(model);
        let sets = ["train.steps=60", "train.lr=1e-2", "train.warmup=6", "save.which=last"];
        train(&fixture, "run", &[], &sets).succeeded();
        let evals = records(&fixture, "run", "eval");
        let last = &evals.last().unwrap()["metrics"];
        assert_eq!(last["accuracy"], 1.0, "{model}: {last}");
        let (config, own) = (fixture.read("run/model/config.json"), fixture.read("model/config.json"));
        let class = |config: &str| serde_json::from_str::<Value>(config).unwrap()["architectures"].clone();
        assert_eq!(class(&config), class(&own), "{model}: the language-modelling head is kept");
        let tag = if model == "t5_a" { "text2text-generation" } else { "text-generation" };
        assert!(fixture.read("run/model/README.md").contains(&format!("pipeline_tag: \"{tag}\"\n")), "{model}");
        // What was saved is what was judged.
        train(&fixture, "next", &[], &["model.path=run/model", "train.steps=1"]).succeeded();
        assert_eq!(records(&fixture, "next", "eval")[0]["metrics"], *last, "{model}");
    }
}

#[test]
fn ranks_threads_and_recomputation_leave_the_bits_alone() {
    for model in MODELS {
        let fixture = fixture(model);
        let prompt_loss = if model == "gpt2_a" { "train.prompt_loss=0.5" } else { "train.prompt_loss=0" };
        let elastic = ["train.gradient_sum=elastic", "train.micro_batch_size=1", "eval.batch_size=3", prompt_loss];
        let result = |dir: &str, further: &[&str], sets: &[&str]| {
            train(&fixture, dir, further, &[&elastic[..], sets].concat()).succeeded();
            let log = fixture.read(&format!("{dir}/metrics.jsonl"));
            // Where and how it is carried out is none of a recipe's hash, but what is recomputed is.
            let log: Vec<String> = log.lines().skip(1).map(deterministic_part).collect();
            (fixture.bytes(&format!("{dir}/model/model.safetensors")), log)
        };
        let whole = result("whole", &[], &[]);
        assert!(result("threads", &[], &["device.threads=2"]) == whole, "{model}: two threads");
        assert!(result("kept", &[], &["train.recompute=blocks"]) == whole, "{model}: recomputed blocks");
        for (ranks, zero) in [("2", "3"), ("4", "2")] {
            let zero = format!("parallel.zero={zero}");
            assert!(result(ranks, &["--ranks", ranks], &[&zero]) == whole, "{model}: {ranks} ranks");
        }
    }
}

#[test]
fn a_step_has_one_loss_of_prompts_whatever_its_micro_batches() {
    let fixture = fixture("gpt2_a");
    let losses = |dir: &str, sets: &[&str]| -> Vec<f64> {
        train(&fixture, dir, &[], &[&["train.steps=4"], sets].concat()).succeeded();
        records(&fixture, dir, "step").iter().map(|record| record["loss"].as_f64().unwrap()).collect()
    };
    let plain = losses("plain", &[]);
    let whole = losses("whole", &["train.prompt_loss=1"]);
    assert!(whole[0] > plain[0] + 1.0, "the prompt tokens do not count: {whole:?}, {plain:?}");
    for micro in ["1", "2"] {
        let parts = losses(micro, &["train.prompt_loss=1", &format!("train.micro_batch_size={micro}")]);
        // f32 sums in another order; Adam's division by small roots lets the difference grow over the steps.
        let close = whole.iter().zip(&parts).all(|(whole, parts)| (whole - parts).abs() <= 1e-4 * whole);
        assert!(close, "by {micro}: {parts:?} for {whole:?}");
    }
}

#[test]
fn a_plan_is_what_the_fullest_pool_then_held() {
    for model in MODELS {
        let fixture = fixture(model);
        // All alike, so that the largest batch is every batch.
        for file in ["train.jsonl", "eval.jsonl"] {
            let line = fixture.read(file).lines().next().unwrap().to_owned();
            fixture.write(file, &format!("{line}\n").repeat(8));
        }
        let prompt_loss = if model == "gpt2_a" { "train.prompt_loss=1" } else { "train.prompt_loss=0" };
        for (dir, ranks, micro) in [("one", "1", "train.micro_batch_size=4"), ("two", "2", "train.micro_batch_size=2")]
        {
            let arguments =
                ["--ranks", ranks, "--set", micro, "--set", prompt_loss, "--set", &format!("output.dir={dir}")];
            let plan = fixture.plan(&[&["--json"], &arguments[..]].concat()).succeeded().stdout;
            let plan: Value = serde_json::from_str(&plan).unwrap();
            fixture.finetune(&arguments).succeeded();
            let measured = &records(&fixture, dir, "end")[0]["time"]["pool_peak_bytes"];
            assert_eq!(plan["pool"]["peak_bytes"], *measured, "{model} {arguments:?}");
        }
    }
}

#[test]
fn models_and_settings_that_answer_no_prompts_are_refused_where_they_are_named() {
    let refused = |fixture: &Fixture, sets: &[&str], reasons: &[&str]| {
        let message = train(fixture, "run", &[], sets).refused();
        assert!(reasons.iter().all(|reason| message.contains(reason)), "{reasons:?}: {message}");
        assert!(!fixture.path("run").exists());
    };
    let gpt2 = fixture("gpt2_a");
    let bert = Fixture::new();
    let bert = format!("model.path={}", bert.path("model").display());
    refused(&gpt2, &[&bert], &["recipe.toml:9:13", "the head for the next token is for decoders", "data.objective"]);
    let bart = Fixture::bart();
    let bart = format!("model.path={}", bart.path("model").display());
    refused(&gpt2, &[&bart], &["data.words", "no sentinel for an answer", "<extra_id_0>"]);
    refused(&fixture("t5_a"), &["train.prompt_loss=1"], &["--set train.prompt_loss=1", "sees all of a prompt at once"]);
    refused(&gpt2, &["data.words=[\" fine\", \" fine\"]"], &["data.words", "are the same token for this tokenizer"]);
    refused(&gpt2, &["data.words=[\" splendid\", \" fine\"]"], &["\" splendid\" is not in the vocabulary"]);
    refused(
        &gpt2,
        &["data.template=\"{texts} it was\""],
        &["train.jsonl:1:1", "no column \"texts\"; columns: text, label"],
    );
    gpt2.write(
        "squad/train-v1.1.json",
        r#"{"data": [{"paragraphs": [{"context": "it", "qas": [{"question": "a", "answers": []}]}]}]}"#,
    );
    gpt2.write("squad/dev-v1.1.json", &gpt2.read("squad/train-v1.1.json"));
    gpt2.write(
        "recipe.toml",
        &gpt2
            .read("recipe.toml")
            .lines()
            .filter(|line| {
                !["train =", "eval =", "labels", "words", "template", "objective"]
                    .iter()
                    .any(|key| line.starts_with(key))
            })
            .map(|line| format!("{line}\n"))
            .collect::<String>(),
    );
    refused(&gpt2, &["data.task=SQuAD", "data.path=squad"], &["this model has one stack", "data.task"]);
}
