//! The finetune program from beginning to end on a tiny BERT: what it writes, what it shows, that it learns, and that
//! it computes the same bits however it is run.

mod batches;
mod best;
mod dry_run;
mod families;
use crate::fixture;
mod limits;
mod own_objective;
mod own_task;
mod superglue;

use fixture::{Fixture, Outcome, RECIPE, sentences};
use model_center::formats::SafetensorsFile;
use model_center::run::deterministic_part;
use serde_json::Value;

/// Runs the recipe into `dir` with some settings changed.
fn train(fixture: &Fixture, dir: &str, sets: &[&str]) -> Outcome {
    let dir = format!("output.dir={dir}");
    let arguments: Vec<&str> = sets.iter().copied().chain([dir.as_str()]).flat_map(|set| ["--set", set]).collect();
    fixture.finetune(&arguments).succeeded()
}

/// The records of one kind.
fn records(fixture: &Fixture, dir: &str, kind: &str) -> Vec<Value> {
    let text = fixture.read(&format!("{dir}/metrics.jsonl"));
    let all = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|record| record["kind"] == kind).collect()
}

fn losses(fixture: &Fixture, dir: &str) -> Vec<f64> {
    records(fixture, dir, "step").iter().map(|record| record["loss"].as_f64().unwrap()).collect()
}

/// All of `metrics.jsonl` that does not depend on the clock.
fn metrics(fixture: &Fixture, dir: &str) -> String {
    let text = fixture.read(&format!("{dir}/metrics.jsonl"));
    text.lines().map(|line| deterministic_part(line) + "\n").collect()
}

fn weights(fixture: &Fixture, dir: &str) -> Vec<u8> {
    fixture.bytes(&format!("{dir}/model/model.safetensors"))
}

/// The complete directory of a finished run.
fn check_directory(fixture: &Fixture, dir: &str) {
    for file in ["recipe.toml", "metrics.jsonl", "run.json", "model/README.md", "model/config.json", "model/vocab.txt"]
    {
        assert!(!fixture.read(&format!("{dir}/{file}")).is_empty(), "{dir}/{file} is empty");
    }
    let model = SafetensorsFile::open(&fixture.path(dir).join("model/model.safetensors")).unwrap();
    assert!(model.entry("classifier.weight").is_some());
    let mut names: Vec<String> = std::fs::read_dir(fixture.path(dir))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["log.txt", "metrics.jsonl", "model", "recipe.toml", "run.json", "tensorboard"], "{dir}");
    let kinds: Vec<usize> = ["start", "end"].iter().map(|kind| records(fixture, dir, kind).len()).collect();
    assert_eq!(kinds, [1, 1], "{dir}");
}

#[test]
fn a_classifier_learns_and_its_directory_is_complete() {
    let fixture = Fixture::new();
    let outcome = train(&fixture, "run", &["train.steps=60", "train.lr=3e-3", "train.warmup=6"]);
    let losses = losses(&fixture, "run");
    assert_eq!(losses.len(), 60);
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    let (first, last) = (mean(&losses[..10]), mean(&losses[50..]));
    assert!(last < 0.5 * first, "loss went from {first} to {last}");
    let evals = records(&fixture, "run", "eval");
    assert_eq!(evals[0]["step"], 0, "judged before training");
    let best = records(&fixture, "run", "end")[0]["best"]["value"].as_f64().unwrap();
    assert_eq!(best, 1.0, "a single adjective determines the label");
    check_directory(&fixture, "run");
    let card = fixture.read("run/model/README.md");
    assert!(card.contains("accuracy") && card.contains("lr = 0.003"), "{card}");
    assert!(card.contains("\n# bert-classification\n") && !card.contains("base_model"), "{card}");
    let config: Value = serde_json::from_str(&fixture.read("run/model/config.json")).unwrap();
    assert_eq!(config["architectures"][0], "BertForSequenceClassification");
    assert_eq!(config["id2label"]["1"], "positive");
    assert!(outcome.stdout.contains("before: accuracy") && outcome.stdout.contains("after:  accuracy"));
    assert!(outcome.stdout.contains("run/model"), "{}", outcome.stdout);
}

/// A rate that drives every weight to the edge of what a float can hold.
const TOO_FAST: &str = "train.lr=1e20";

#[test]
fn a_diverging_run_reports_where_and_its_log_how_it_ended() {
    for (sets, place) in [
        (["train.steps=40", "eval.every=end"], "--> step "),
        (["train.steps=4", "eval.every=2 steps"], "--> evaluation, sample "),
    ] {
        let fixture = Fixture::new();
        let arguments = ["--set", TOO_FAST, "--set", sets[0], "--set", sets[1], "--set", "train.warmup=0"];
        let outcome = fixture.finetune(&arguments);
        assert_eq!(outcome.code, 7, "{}", outcome.stderr);
        for part in ["error[diverged]: ", place, "fix: ", "exit 7: diverged"] {
            assert!(outcome.stderr.contains(part), "no {part:?} in {}", outcome.stderr);
        }
        if place == "--> step " {
            assert!(outcome.stderr.contains(", gradient of "), "{}", outcome.stderr);
        }
        let end = records(&fixture, "run", "end");
        assert_eq!(end[0]["reason"], "diverged");
        assert_eq!(end.len(), 1);
        assert!(fixture.read("run/metrics.jsonl").trim_end().lines().last().unwrap().contains("\"end\""));
        assert!(!fixture.path("run/model").exists(), "there is nothing worth keeping");
    }
}

#[test]
fn a_run_that_ends_in_skipped_steps_reports_them_and_saves_no_weights_that_are_not_finite() {
    // Without evaluation data nothing but saving looks at the weights.
    let fixture = Fixture::new();
    fixture.replace("recipe.toml", "eval = \"eval.jsonl\"\n", "");
    let run = |dir: &str, sets: &[&str]| {
        let dir = format!("output.dir={dir}");
        let sets = sets.iter().copied().chain([dir.as_str(), "train.warmup=0"]);
        fixture.finetune(&sets.flat_map(|set| ["--set", set]).collect::<Vec<_>>())
    };
    let outcome = run("fast", &["train.lr=1e300", "train.steps=4"]);
    assert_eq!(outcome.code, 7, "{}", outcome.stderr);
    for part in ["--> step 4, ", "are infinite or not numbers, and are not saved", "fix: lower train.lr"] {
        assert!(outcome.stderr.contains(part), "no {part:?} in {}", outcome.stderr);
    }
    assert!(!fixture.path("fast/model").exists(), "there is nothing worth keeping");
    let end = &records(&fixture, "fast", "end")[0];
    assert_eq!((&end["reason"], &end["skipped_at_end"]), (&"diverged".into(), &3.into()), "{end}");
    // Checkpoints are as the model.
    let outcome = run("saved", &["train.lr=1e300", "train.steps=4", "checkpoint.every=2 steps"]);
    assert_eq!(outcome.code, 7, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("--> step 2, "), "{}", outcome.stderr);
    // Skipped steps change nothing: these weights are the first ones.
    let scale = ["model.dtype=f16", "train.loss_scale=static", "train.loss_scale_start=4294967296", "train.steps=3"];
    let outcome = run("half", &scale).succeeded();
    assert!(outcome.stderr.contains("warning: the last 3 of 3 steps were skipped"), "{}", outcome.stderr);
    assert_eq!(records(&fixture, "half", "end")[0]["skipped_at_end"], 3);
    assert!(fixture.path("half/model").exists());
}

#[test]
fn large_data_are_noted_with_their_bytes_before_they_are_read() {
    let fixture = Fixture::decoder();
    // Refused at its first byte, so that the test does not wait.
    std::fs::File::create(fixture.path("large.txt")).unwrap().set_len(30_000_000).unwrap();
    fixture.write("small.txt", "the film was good");
    let sets = ["data.task=language", "data.train=large.txt", "data.eval=small.txt"];
    let sets: Vec<&str> = sets.into_iter().flat_map(|set| ["--set", set]).collect();
    let outcome = fixture.finetune(&[&sets[..], &["--dry-run"]].concat());
    assert_eq!(outcome.code, 3, "{}", outcome.stderr);
    let (note, error) = outcome.stderr.split_once('\n').unwrap();
    assert_eq!(note, "reading large.txt: 30 MB");
    assert!(error.starts_with("error[data]: a zero byte is not text"), "{error}");
}

#[test]
fn a_finished_model_opens_as_the_next_one() {
    let fixture = Fixture::new();
    train(&fixture, "run", &[]);
    let outcome = train(&fixture, "next", &["model.path=run/model"]);
    assert!(!outcome.stderr.contains("new, not in the directory"), "{}", outcome.stderr);
    let after = records(&fixture, "run", "eval").last().unwrap()["metrics"]["loss"].clone();
    assert_eq!(records(&fixture, "next", "eval")[0]["metrics"]["loss"], after, "weights survive the directory");
}

#[test]
fn the_resolved_recipe_runs_again_to_the_same_weights() {
    let fixture = Fixture::new();
    train(&fixture, "run", &["train.weight_decay=0.1"]);
    let first = weights(&fixture, "run");
    std::fs::copy(fixture.path("run/recipe.toml"), fixture.path("recipe.toml")).unwrap();
    train(&fixture, "again", &[]);
    assert_eq!(weights(&fixture, "again"), first);
}

#[test]
fn numbers_can_be_learnt_too() {
    let fixture = Fixture::new();
    let lines = |count: usize| -> String {
        (0..count)
            .map(|i| format!("the film was {}\t{}\n", ["good", "bad"][i % 2], [1.5, -1.5][i % 2]))
            .fold("text\tlabel\n".to_owned(), |text, line| text + &line)
    };
    fixture.write("train.tsv", &lines(8));
    fixture.write("eval.tsv", &lines(4));
    let sets =
        ["data.task=regression", "data.train=train.tsv", "data.eval=eval.tsv", "train.steps=40", "train.lr=3e-3"];
    train(&fixture, "run", &sets);
    let losses = losses(&fixture, "run");
    assert!(losses[39] < 0.5 * losses[0], "{losses:?}");
    check_directory(&fixture, "run");
    let config: Value = serde_json::from_str(&fixture.read("run/model/config.json")).unwrap();
    assert_eq!(config["problem_type"], "regression");
}

#[test]
fn documents_of_queries_are_ranked_by_what_was_learnt() {
    let fixture = Fixture::new();
    let record = |at: usize| {
        let (document, label) = [("very good", 1.0), ("very poor", 0.0), ("fine", 0.5)][at % 3];
        serde_json::json!({"query": "the film was", "document": document, "label": label})
    };
    let lines = |count: usize| (0..count).map(|at| format!("{}\n", record(at))).collect::<String>();
    fixture.write("ranked.jsonl", &lines(12));
    fixture.write("ranked_eval.jsonl", &lines(6));
    let columns = ["data.columns.text=query", "data.columns.text_pair=document"];
    let sets = ["data.task=rerank", "data.train=ranked.jsonl", "data.eval=ranked_eval.jsonl", "train.lr=3e-3"];
    let steps = ["train.steps=40", "eval.metric=spearman"];
    train(&fixture, "run", &[&sets[..], &columns, &steps].concat());
    let losses = losses(&fixture, "run");
    // Of predictions that are all right it is ln 2 for the labels of 0.5.
    assert!(losses[39] < 0.8 * losses[0], "{losses:?}");
    let config: Value = serde_json::from_str(&fixture.read("run/model/config.json")).unwrap();
    assert_eq!(config["architectures"], serde_json::json!(["BertForSequenceClassification"]));
    let path = fixture.path("run/model");
    let encoder = model_center::model::CrossEncoder::from_directory(&path).unwrap();
    assert_eq!(encoder.activation, model_center::model::DenseActivation::Sigmoid);
    fixture.write("ranked.jsonl", &lines(2).replace("0.0", "2.0"));
    let dry = |sets: &[&str]| -> String {
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        fixture.finetune(&[&["--dry-run"], &sets[..]].concat()).refused()
    };
    let error = dry(&[&sets[..], &columns, &["output.dir=beyond"]].concat());
    assert!(error.contains("ranked.jsonl:2") && error.contains("is not a number from 0 to 1"), "{error}");
    let error = dry(&[&sets[..], &["output.dir=single"]].concat());
    assert!(error.contains("data.columns.text_pair") && error.contains("a query and a document"), "{error}");
}

#[test]
fn runs_thread_counts_and_pinning_give_the_same_bytes() {
    let fixture = Fixture::new();
    // Dropout is on: its randomness must not depend on threads either.
    let sets = ["train.steps=6", "train.warmup=2", "model.hidden_dropout=0.1", "model.attention_dropout=0.1"];
    train(&fixture, "first", &sets);
    train(&fixture, "second", &sets);
    train(&fixture, "threads", &[&sets[..], &["device.threads=2"]].concat());
    train(&fixture, "pinned", &[&sets[..], &["device.threads=2", "device.pin_threads=cores"]].concat());
    for other in ["second", "threads", "pinned"] {
        assert_eq!(weights(&fixture, other), weights(&fixture, "first"), "weights of {other}");
        assert_eq!(metrics(&fixture, other), metrics(&fixture, "first"), "metrics of {other}");
        for file in ["config.json", "README.md"] {
            let of = |dir: &str| fixture.read(&format!("{dir}/model/{file}"));
            assert_eq!(of(other), of("first"), "{file} of {other}");
        }
    }
    train(&fixture, "seed", &[&sets[..], &["train.seed=4321"]].concat());
    assert_ne!(weights(&fixture, "seed"), weights(&fixture, "first"), "the comparison sees a difference");
}

#[test]
fn recomputed_blocks_give_the_same_bytes() {
    let fixture = Fixture::new();
    let sets = ["model.hidden_dropout=0.1", "model.attention_dropout=0.1"];
    train(&fixture, "kept", &sets);
    train(&fixture, "recomputed", &[&sets[..], &["train.recompute=blocks"]].concat());
    assert_eq!(weights(&fixture, "recomputed"), weights(&fixture, "kept"));
    assert_eq!(losses(&fixture, "recomputed"), losses(&fixture, "kept"));
}

#[test]
fn accumulated_gradients_are_those_of_the_whole_batch() {
    let fixture = Fixture::new();
    train(&fixture, "whole", &["train.steps=8"]);
    for micro in ["1", "2"] {
        train(&fixture, micro, &["train.steps=8", &format!("train.micro_batch_size={micro}")]);
        for (step, (whole, parts)) in losses(&fixture, "whole").iter().zip(losses(&fixture, micro)).enumerate() {
            // f32 sums in another order; Adam's division by small roots lets the difference grow over the steps.
            assert!((whole - parts).abs() <= 1e-4 * whole, "step {step} in parts of {micro}: {parts} for {whole}");
        }
    }
}

#[test]
fn classes_weigh_in_the_loss_whatever_the_micro_batches_and_ranks() {
    for fixture in [Fixture::new(), Fixture::decoder(), Fixture::bart()] {
        // One step has all samples, 12 of one class and 4 of the other.
        let line = |i: usize| {
            sentences(2).lines().nth(usize::from(i.is_multiple_of(4))).unwrap().replace("film", ["film", "cast"][i % 2])
                + "\n"
        };
        fixture.write("train.jsonl", &(0..16).map(line).collect::<String>());
        let sets = ["train.batch_size=16", "model.hidden_dropout=0", "model.attention_dropout=0", "train.steps=2"];
        let of = |dir: &str, weights: &str, further: &[&str]| {
            let sets = [&sets[..], &[weights], further].concat();
            train(&fixture, dir, &sets).succeeded();
            losses(&fixture, dir)
        };
        let weights =
            |negative: f64, positive: f64| format!("data.class_weights={{negative={negative}, positive={positive}}}");
        // torch's weighted mean: (a N + b P) / (4 a + 12 b), N and P being the sums of the classes' losses. Two runs
        // tell N and P, by which the others are known.
        let (plain, double) = (of("plain", "train.steps=2", &[])[0], of("double", &weights(1.0, 2.0), &[])[0]);
        let positive = double * 28.0 - plain * 16.0;
        let negative = plain * 16.0 - positive;
        let expected = |a: f64, b: f64| (a * negative + b * positive) / (4.0 * a + 12.0 * b);
        // Sums of f32 in other orders, and differences of them.
        let close = |a: f64, b: f64| (a - b).abs() < 2e-5;
        let third = of("third", &weights(3.0, 0.5), &[]);
        assert!(close(third[0], expected(3.0, 0.5)), "{} for {}", third[0], expected(3.0, 0.5));
        assert!(!close(third[0], plain), "the weights decide nothing");
        let balanced = of("balanced", "data.class_weights=balanced", &[])[0];
        assert!(close(balanced, expected(2.0, 2.0 / 3.0)), "{balanced}");
        // The second step shows the gradients of the first.
        let parts = of("parts", &weights(3.0, 0.5), &["train.micro_batch_size=2"]);
        assert!(third.iter().zip(&parts).all(|(a, b)| close(*a, *b)), "{third:?} {parts:?}");
    }
    let fixture = Fixture::new();
    let elastic =
        ["train.gradient_sum=elastic", "train.micro_batch_size=1", "data.class_weights={negative=3, positive=0.5}"];
    train(&fixture, "one", &elastic);
    let two = [
        &["--ranks", "2", "--set", "output.dir=two"][..],
        &elastic[..].iter().flat_map(|set| ["--set", *set]).collect::<Vec<_>>(),
    ];
    fixture.finetune(&two.concat()).succeeded();
    assert_eq!(losses(&fixture, "one"), losses(&fixture, "two"));
    assert!(weights(&fixture, "one") == weights(&fixture, "two"));
}

#[test]
fn parameters_in_bf16_learn() {
    let fixture = Fixture::new();
    train(&fixture, "run", &["model.dtype=bf16", "train.steps=60", "train.lr=3e-3"]);
    let losses = losses(&fixture, "run");
    assert!(losses[59] < 0.5 * losses[0], "{losses:?}");
    let model = SafetensorsFile::open(&fixture.path("run/model/model.safetensors")).unwrap();
    assert!(model.tensors().iter().all(|entry| format!("{:?}", entry.dtype) == "BF16"));
    train(&fixture, "threads", &["model.dtype=bf16", "train.steps=60", "train.lr=3e-3", "device.threads=2"]);
    assert_eq!(weights(&fixture, "threads"), weights(&fixture, "run"));
}

#[test]
fn whichever_limit_comes_first_ends_the_run() {
    let fixture = Fixture::new();
    let cases: [(&str, &[&str], &str, u64); 4] = [
        ("steps", &["train.steps=2", "train.epochs=5"], "steps", 2),
        ("epochs", &["train.steps=50", "train.epochs=1.5"], "epochs", 6),
        // The clock begins with the first step, so there is one.
        ("minutes", &["train.steps=100000", "train.minutes=1e-9"], "minutes", 1),
        // A rate that changes next to nothing brings no better loss by more than chance, and accuracy stays.
        (
            "patience",
            &["train.steps=50", "train.lr=1e-12", "eval.every=1 steps", "train.early_stop.patience=2"],
            "no_improvement",
            3,
        ),
    ];
    for (dir, sets, reason, steps) in cases {
        train(&fixture, dir, sets);
        let end = &records(&fixture, dir, "end")[0];
        assert_eq!(end["reason"], reason, "{dir}");
        assert_eq!(end["step"], steps, "{dir}");
        // Whatever ended the run, its last weights were judged once.
        let evaluated: Vec<u64> = records(&fixture, dir, "eval").iter().map(|e| e["step"].as_u64().unwrap()).collect();
        let mut once = evaluated.clone();
        once.dedup();
        assert_eq!((evaluated.last(), &evaluated), (Some(&steps), &once), "{dir}");
    }
}

#[test]
fn a_run_limited_by_time_alone_may_warm_up_for_longer_than_an_epoch() {
    let fixture = Fixture::new();
    let timed = "minutes = 1e-9\nschedule = \"constant\"\nwarmup = 50\n";
    fixture.write("recipe.toml", &RECIPE.replace("steps = 3\n", timed));
    train(&fixture, "run", &[]);
    assert_eq!(records(&fixture, "run", "end")[0]["reason"], "minutes");
    assert_eq!(records(&fixture, "run", "step")[0]["lr"], 0.0, "a warm-up begins at 0");
}

#[test]
fn a_classifier_continues_with_its_own_order_of_labels() {
    let fixture = Fixture::new();
    train(&fixture, "run", &["train.steps=30", "train.lr=3e-3", "save.which=last"]);
    let after = records(&fixture, "run", "eval").last().unwrap()["metrics"].clone();
    train(&fixture, "next", &["model.path=run/model", "data.labels=[\"positive\", \"negative\"]", "train.lr=1e-12"]);
    assert_eq!(records(&fixture, "next", "eval")[0]["metrics"], after, "the same weights judge as before");
    let labels = |dir: &str| {
        let config: Value = serde_json::from_str(&fixture.read(&format!("{dir}/model/config.json"))).unwrap();
        config["id2label"].clone()
    };
    assert_eq!(labels("next"), labels("run"));
}

#[test]
fn without_evaluation_the_last_weights_are_saved() {
    let fixture = Fixture::new();
    fixture.replace("recipe.toml", "eval = \"eval.jsonl\"\n", "");
    train(&fixture, "run", &[]);
    check_directory(&fixture, "run");
    assert!(records(&fixture, "run", "eval").is_empty());
}

#[test]
fn a_dry_run_lists_every_mistake() {
    let fixture = Fixture::new();
    fixture.replace("recipe.toml", "batch_size = 4", "batch_size = \"four\"\nlearning_rate = 1");
    let before = fixture.snapshot();
    let outcome = fixture.finetune(&["--dry-run", "--set", "train.lr=-1"]);
    assert_eq!(outcome.code, 2, "{}", outcome.stderr);
    for text in ["recipe.toml:12:", "recipe.toml:13:", "train.lr=-1", "3 mistakes"] {
        assert!(outcome.stderr.contains(text), "{text} is not in: {}", outcome.stderr);
    }
    let outcome = fixture.finetune(&[]);
    assert!(outcome.stderr.contains("--dry-run lists all"), "{}", outcome.stderr);
    assert_eq!(fixture.snapshot(), before);
}

#[test]
fn a_dry_run_reports_what_would_be_trained() {
    let fixture = Fixture::new();
    let outcome = fixture.finetune(&["--dry-run"]).succeeded();
    for text in [
        "train: 16 samples",
        "classes of train: negative 8, positive 8\n",
        "eval: 8 samples",
        "classes of eval: negative 4",
        "new, not in the directory: cls_projection",
        "cls.seq_relationship",
    ] {
        assert!(outcome.stdout.contains(text), "{text} is not in: {}", outcome.stdout);
    }
    let weighted = fixture.finetune(&["--dry-run", "--set", "data.class_weights={positive=1, negative=2}"]).succeeded();
    let line = "classes of train: negative 8 (weight 2.0000), positive 8 (weight 1.0000)\n";
    assert!(weighted.stdout.contains(line), "{}", weighted.stdout);
}

#[test]
fn every_setting_is_printed_with_its_origin() {
    let fixture = Fixture::new();
    let outcome = fixture.finetune(&["--print-config", "--set", "train.lr=3e-5", "train.seed=7"]).succeeded();
    let line = |key: &str| {
        let start = format!("{key} = ");
        outcome
            .stdout
            .lines()
            .find(|line| line.starts_with(&start))
            .unwrap_or_else(|| panic!("{key}: {}", outcome.stdout))
    };
    assert!(line("lr").contains("3e-5") && line("lr").contains("--set"), "{}", line("lr"));
    assert!(line("seed").contains('7') && line("seed").contains("train.seed=7"), "{}", line("seed"));
    assert!(line("batch_size").contains("recipe.toml:12"), "{}", line("batch_size"));
    assert!(line("weight_decay").contains("default"), "{}", line("weight_decay"));
    let on_two = fixture.finetune(&["--print-config", "--ranks", "2"]).succeeded().stdout;
    assert!(
        on_two.lines().any(|line| line.starts_with("micro_batch_size = 2 ") && line.ends_with("/ 2 ranks")),
        "{on_two}"
    );
    assert!(!fixture.path("run").exists());
    // What is printed is a recipe.
    fixture.write("recipe.toml", &outcome.stdout);
    fixture.finetune(&["--dry-run"]).succeeded();
}

#[test]
fn a_partial_recipe_is_printed_with_what_is_missing() {
    let fixture = Fixture::new();
    fixture.write("recipe.toml", "[data]\ntask = \"classification\"\n");
    let outcome = fixture.finetune(&["--print-config"]).succeeded();
    for part in
        ["# Incomplete: 4 settings are missing", "task = \"classification\"", "# train ", "# missing: set data.train"]
    {
        assert!(outcome.stdout.contains(part), "no {part:?} in {}", outcome.stdout);
    }
    // A mistake is still an error, after the valid settings.
    let wrong = fixture.finetune(&["--print-config", "train.lr=fast"]);
    assert_eq!(wrong.code, 2, "{}", wrong.stderr);
    assert!(wrong.stdout.contains("# wrong at --set train.lr=fast: must be a number above 0"), "{}", wrong.stdout);
    assert!(wrong.stderr.starts_with("error[recipe]: `train.lr` must be a number above 0"), "{}", wrong.stderr);
    // Of two arguments for a setting the last one on the command line wins, with --set or without.
    for (arguments, lr) in
        [(["train.lr=1.0", "--set", "train.lr=2.0"], "2.0"), (["--set", "train.lr=2.0", "train.lr=1.0"], "1.0")]
    {
        let outcome = fixture.finetune(&[&["--print-config"], &arguments[..]].concat()).succeeded();
        assert!(outcome.stdout.contains(&format!("\nlr = {lr} ")), "{}", outcome.stdout);
    }
}

#[test]
fn piped_output_is_plain_lines() {
    let fixture = Fixture::new();
    fixture.write("train.jsonl", &sentences(40));
    let outcome = train(&fixture, "run", &["train.steps=7"]);
    for text in [&outcome.stdout, &outcome.stderr] {
        assert!(!text.contains(['\u{1b}', '\r', '\u{8}']), "{text:?}");
    }
    let steps = outcome.stderr.lines().filter(|line| line.starts_with("step ")).count();
    assert_eq!(steps, 7, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("step 7/7 100% | loss "), "{}", outcome.stderr);
}

#[test]
fn a_profile_names_the_kinds_of_work() {
    let fixture = Fixture::new();
    let outcome = fixture.finetune(&["--profile"]).succeeded();
    let kinds = ["matrix products", "attention", "elementwise", "norms", "embeddings and loss", "optimizer", "other"];
    for text in kinds.into_iter().chain(["outside kernels"]) {
        assert!(outcome.stderr.contains(text), "{text} is not in: {}", outcome.stderr);
    }
    let plain = weights(&fixture, "run");
    train(&fixture, "plain", &[]);
    assert_eq!(weights(&fixture, "plain"), plain);
}

#[test]
fn half_precision_trains_with_a_loss_scale_that_the_status_line_shows() {
    let fixture = Fixture::new();
    let outcome = train(&fixture, "run", &["model.dtype=f16", "train.steps=60", "train.lr=3e-3", "train.warmup=6"]);
    assert!(outcome.stderr.contains("| scale "), "{}", outcome.stderr);
    let best = records(&fixture, "run", "end")[0]["best"]["value"].as_f64().unwrap();
    assert_eq!(best, 1.0, "a single adjective determines the label");
    let losses = losses(&fixture, "run");
    assert!(losses[50..].iter().sum::<f64>() < 0.5 * losses[..10].iter().sum::<f64>(), "{losses:?}");
}
