//! Language-modelling objectives of the finetune program: next-token prediction, and targets of an encoder-decoder.
//! As classifiers do, they learn, and compute the same bits however they are run.

use crate::fixture::{Fixture, Outcome};
use model_center::formats::{SafetensorsFile, TensorSource};
use model_center::run::{deterministic_part, without_overtaken};
use model_center::tokenizer::{HfTokenizer, Tokenizer};
use serde_json::{Value, json};

/// A task, its columns and the family that learns it.
struct Objective {
    task: &'static str,
    fixture: Fixture,
}

impl Objective {
    /// Completions of different lengths, which a tiny GPT-2 learns after prompts.
    fn language() -> Self {
        let fixture = Fixture::decoder();
        Objective::of("language", fixture, "prompt")
    }

    /// The same texts as the input of a tiny T5, with short targets.
    fn seq2seq() -> Self {
        let fixture = Fixture::seq2seq();
        Objective::of("seq2seq", fixture, "target")
    }

    fn both() -> [Self; 2] {
        [Objective::language(), Objective::seq2seq()]
    }

    fn of(task: &'static str, fixture: Fixture, other: &str) -> Self {
        let starts = ["the film was", "it is a", "the plot is very"];
        let line = |i: usize| {
            let (adjective, answer) = [("good", "the film is not bad"), ("bad", "poor .")][i % 2];
            let (long, short) = (format!("{} {adjective}", starts[i % 3]), answer);
            let (text, other_text) = if other == "prompt" { (short, long.as_str()) } else { (long.as_str(), short) };
            format!("{}\n", json!({"text": text, other: other_text}))
        };
        for (file, count) in [("train.jsonl", 16), ("eval.jsonl", 8)] {
            fixture.write(file, &(0..count).map(line).collect::<String>());
        }
        fixture.replace("recipe.toml", "\"classification\"", &format!("\"{task}\""));
        if other == "prompt" {
            fixture.replace("recipe.toml", "max_length = 16\n", "max_length = 16\ncolumns.prompt = \"prompt\"\n");
        } else {
            fixture.replace("recipe.toml", "max_length = 16\n", "max_length = 16\ntarget_length = 8\n");
        }
        Objective { task, fixture }
    }

    fn train(&self, dir: &str, further: &[&str], sets: &[&str]) -> Outcome {
        let dir = format!("output.dir={dir}");
        let sets = sets.iter().copied().chain([dir.as_str()]).flat_map(|set| ["--set", set]);
        self.fixture.finetune(&further.iter().copied().chain(sets).collect::<Vec<_>>())
    }

    fn records(&self, dir: &str, kind: &str) -> Vec<Value> {
        let text = self.fixture.read(&format!("{dir}/metrics.jsonl"));
        let all = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        all.filter(|record| record["kind"] == kind).collect()
    }

    fn losses(&self, dir: &str) -> Vec<f64> {
        self.records(dir, "step").iter().map(|record| record["loss"].as_f64().unwrap()).collect()
    }

    /// Weights, and all of the log that does not depend on clock, machine and interruptions.
    fn result(&self, dir: &str) -> (Vec<u8>, Vec<String>) {
        let log = self.fixture.read(&format!("{dir}/metrics.jsonl"));
        let log: Vec<String> = without_overtaken(&log).into_iter().map(deterministic_part).collect();
        assert!(log.last().unwrap().contains("\"optimizer\":"), "{log:?}");
        (self.fixture.bytes(&format!("{dir}/model/model.safetensors")), log)
    }
}

#[test]
fn language_models_learn_and_are_evaluated_by_loss_and_perplexity() {
    for objective in Objective::both() {
        let task = objective.task;
        let sets = ["train.steps=80", "train.lr=1e-2", "train.warmup=6"];
        let outcome = objective.train("run", &[], &sets).succeeded();
        assert!(outcome.stdout.contains("after:  perplexity "), "{}", outcome.stdout);
        let evals: Vec<Value> = objective.records("run", "eval").iter().map(|eval| eval["metrics"].clone()).collect();
        for eval in &evals {
            let [loss, perplexity] = ["loss", "perplexity"].map(|name| eval[name].as_f64().unwrap());
            assert!((perplexity - loss.exp()).abs() <= 1e-9 * perplexity, "{task}: {eval}");
        }
        let [first, last] = [evals.first(), evals.last()].map(|eval| eval.unwrap()["loss"].as_f64().unwrap());
        assert!(last < 0.5 * first, "{task}: loss went from {first} to {last}");
        let best = &objective.records("run", "end")[0]["best"];
        assert_eq!(best["metric"], "loss", "{best}");
        let (class, tag) = match task {
            "language" => ("GPT2LMHeadModel", "text-generation"),
            _ => ("T5ForConditionalGeneration", "text2text-generation"),
        };
        let config: Value = serde_json::from_str(&objective.fixture.read("run/model/config.json")).unwrap();
        assert_eq!(config["architectures"][0], class);
        assert!(objective.fixture.read("run/model/README.md").contains(&format!("pipeline_tag: \"{tag}\"\n")));
        // What was saved is what was judged.
        let arguments = ["model.path=run/model", "train.steps=1"];
        objective.train("next", &[], &arguments).succeeded();
        assert_eq!(objective.records("next", "eval")[0]["metrics"], *evals.last().unwrap());
    }
}

#[test]
fn the_loss_covers_the_tokens_that_count() {
    for objective in Objective::both() {
        let fixture = &objective.fixture;
        let line = fixture.read("eval.jsonl").lines().next().unwrap().to_owned();
        fixture.write("eval.jsonl", &format!("{line}\n"));
        objective.train("run", &[], &["train.steps=1"]).succeeded();
        let loss = objective.records("run", "eval")[0]["metrics"]["loss"].as_f64().unwrap();
        // By hand, through the forward program.
        let record: Value = serde_json::from_str(&line).unwrap();
        let tokenizer = HfTokenizer::from_directory(fixture.path("model")).unwrap();
        let ids = |name: &str| tokenizer.tokenize(&[record[name].as_str().unwrap()]).unwrap().remove(0);
        let special = |token: &str| tokenizer.id(token).unwrap();
        let row = match objective.task {
            "language" => {
                let (prompt, text) = (ids("prompt"), ids("text"));
                let end = special("[SEP]");
                let input_ids = [vec![special("[CLS]")], prompt.clone(), text.clone(), vec![end]].concat();
                let counted = text.iter().chain([&end]).map(|id| i64::from(*id));
                let labels: Vec<i64> = std::iter::repeat_n(-100, 1 + prompt.len()).chain(counted).collect();
                json!({"input_ids": input_ids, "labels": labels})
            }
            _ => record.clone(),
        };
        fixture.write("in.jsonl", &format!("{row}\n"));
        fixture.forward(&["--model", "model", "--inputs", "in.jsonl", "--out", "out"]).succeeded();
        let mut expected = [0.0];
        SafetensorsFile::open(&fixture.path("out")).unwrap().read_f32("loss", &mut expected).unwrap();
        let expected = f64::from(expected[0]);
        // The two add up the tokens in different orders.
        assert!((loss - expected).abs() <= 1e-6 * expected, "{}: {loss} for {expected}", objective.task);
    }
}

#[test]
fn accumulated_gradients_are_those_of_the_whole_batch_though_rows_are_of_different_lengths() {
    for objective in Objective::both() {
        objective.train("whole", &[], &["train.steps=8"]).succeeded();
        for micro in ["1", "2"] {
            objective.train(micro, &[], &["train.steps=8", &format!("train.micro_batch_size={micro}")]).succeeded();
            for (step, (whole, parts)) in objective.losses("whole").iter().zip(objective.losses(micro)).enumerate() {
                // f32 sums in another order; Adam's division by small roots lets the difference grow over the steps.
                let task = objective.task;
                assert!((whole - parts).abs() <= 1e-4 * whole, "{task} step {step} by {micro}: {parts} for {whole}");
            }
        }
    }
}

/// Two epochs of four steps with four micro-batches each, saved after every second step.
const ELASTIC: [&str; 6] = [
    "train.gradient_sum=elastic",
    "train.micro_batch_size=1",
    "train.steps=8",
    "checkpoint.every=2 steps",
    "eval.every=3 steps",
    "eval.batch_size=3",
];

#[test]
fn ranks_threads_and_interruptions_leave_the_bits_alone() {
    for objective in Objective::both() {
        let task = objective.task;
        let sets = [&ELASTIC[..], &["model.hidden_dropout=0.1", "model.attention_dropout=0.1"]].concat();
        objective.train("whole", &[], &sets).succeeded();
        let whole = objective.result("whole");
        objective.train("threads", &[], &[&sets[..], &["device.threads=2"]].concat()).succeeded();
        assert!(objective.result("threads") == whole, "{task}: other bits on two threads");
        for (ranks, zero) in [("2", "3"), ("2", "0"), ("4", "2")] {
            let dir = format!("ranks{ranks}zero{zero}");
            let zero = format!("parallel.zero={zero}");
            objective.train(&dir, &["--ranks", ranks], &[&sets[..], &[&zero]].concat()).succeeded();
            assert!(objective.result(&dir) == whole, "{task}: other bits in {dir}");
        }
        // Killed twice, and each time resumed with another number of ranks.
        for (ranks, point) in [("2", "save.after_commit=kill@1"), ("4", "save.mid_shard=kill@2")] {
            let died = objective.train("died", &["--ranks", ranks, "--fail-points", point], &sets);
            assert_eq!(died.code, -1, "{task}: {}", died.stderr);
        }
        let last = objective.train("died", &[], &sets).succeeded();
        assert!(last.stderr.contains("going on after step"), "{}", last.stderr);
        assert!(objective.result("died") == whole, "{task}: other bits after interruptions");
    }
}

#[test]
fn a_plan_is_what_the_fullest_pool_then_held() {
    for objective in Objective::both() {
        let fixture = &objective.fixture;
        // All alike, so that the largest batch is every batch.
        for (file, count) in [("train.jsonl", 16), ("eval.jsonl", 9)] {
            let line = fixture.read(file).lines().next().unwrap().to_owned();
            fixture.write(file, &format!("{line}\n").repeat(count));
        }
        for (number, (ranks, sets)) in
            [("1", "train.recompute=none"), ("2", "train.micro_batch_size=2"), ("2", "train.recompute=blocks")]
                .into_iter()
                .enumerate()
        {
            let dir = format!("output.dir=run{number}");
            let arguments = ["--ranks", ranks, "--set", sets, "--set", "train.batch_size=8", "--set", &dir];
            let sets_of_ranks: &[&str] =
                if sets == "train.recompute=blocks" { &["--set", "train.micro_batch_size=1"] } else { &[] };
            let arguments = [&arguments[..], sets_of_ranks].concat();
            let plan = fixture.plan(&[&["--json"], &arguments[..]].concat()).succeeded().stdout;
            let plan: Value = serde_json::from_str(&plan).unwrap();
            fixture.finetune(&arguments).succeeded();
            let measured = &objective.records(&format!("run{number}"), "end")[0]["time"]["pool_peak_bytes"];
            assert_eq!(plan["pool"]["peak_bytes"], *measured, "{} {arguments:?}", objective.task);
        }
        // What is read and what is written, each with its first and its last token.
        let (length, target, shown) = match objective.task {
            "language" => (11, None, "largest micro-batch: 2 rows of 11 tokens, "),
            _ => (6, Some(7), "largest micro-batch: 2 rows of 6 tokens, targets: 2 rows of 7, "),
        };
        let two = ["--set", "train.micro_batch_size=2"];
        let text = fixture.plan(&two).succeeded().stdout;
        assert!(text.contains(shown), "{text}");
        let plan: Value =
            serde_json::from_str(&fixture.plan(&[&["--json"], &two[..]].concat()).succeeded().stdout).unwrap();
        let sizes = ["rows", "length", "target_length"].map(|name| plan[name].clone());
        assert_eq!(sizes, [json!(2), json!(length), json!(target)]);
    }
}

#[test]
fn a_model_that_cannot_learn_a_task_is_refused_where_the_task_is_named() {
    let language = Objective::language();
    let refused = |objective: &Objective, sets: &[&str], reason: &str| {
        let message = objective.train("run", &[], sets).refused();
        assert!(message.contains(reason) && message.contains("recipe.toml:5:8"), "{message}");
        assert!(!objective.fixture.path("run").exists());
    };
    let seq2seq = Objective::seq2seq();
    let other = |objective: &Objective| objective.fixture.path("model").display().to_string();
    let (gpt2, t5) = (other(&language), other(&seq2seq));
    refused(&language, &[&format!("model.path={t5}")], "this encoder-decoder needs a target for each source text");
    refused(&seq2seq, &[&format!("model.path={gpt2}")], "this model has one stack");
    let bert = Fixture::new();
    let bert = bert.path("model").display().to_string();
    refused(&language, &[&format!("model.path={bert}")], "the head for the next token is for decoders");
    let classes = Fixture::new();
    let message = classes.finetune(&["--set", &format!("model.path={t5}")]).refused();
    assert!(message.contains("is opened with the head for the next token of its decoder"), "{message}");
    assert!(message.contains("choose a task for such a model, not classification"), "{message}");
}

#[test]
fn a_language_modelling_head_comes_from_the_directory_or_is_an_error() {
    let language = Objective::language();
    let config = language.fixture.read("model/config.json");
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["tie_word_embeddings"] = false.into();
    language.fixture.write("model/config.json", &config.to_string());
    let message = language.train("run", &[], &[]).refused();
    assert!(message.contains("lm_head.weight") && message.contains("model/"), "{message}");
    assert!(!language.fixture.path("run").exists());
}

#[test]
fn special_tokens_of_targets_are_checked_before_training() {
    let seq2seq = Objective::seq2seq();
    let config: Value = serde_json::from_str(&seq2seq.fixture.read("model/config.json")).unwrap();
    for field in ["decoder_start_token_id", "pad_token_id"] {
        let mut config = config.clone();
        config[field] = Value::Null;
        seq2seq.fixture.write("model/config.json", &config.to_string());
        for sets in [&[][..], &["--dry-run"]] {
            let message = seq2seq.train("run", sets, &[]).refused();
            assert!(message.contains(&format!("config.json, field {field}")), "{message}");
            assert!(message.contains("decoder inputs are made with it"), "{message}");
            assert!(!seq2seq.fixture.path("run").exists());
        }
    }
}
