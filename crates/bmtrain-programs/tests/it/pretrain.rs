//! The pretrain program: from initialized parameters and token files to a model directory, on any layout, interrupted
//! or not.

use crate::fixture::program;
use crate::fixture::{Fixture, Outcome, split_header};
use model_center::run::{deterministic_part, without_overtaken};
use serde_json::Value;

/// A GPT-2 of two blocks on token files; no directory has weights.
const RECIPE: &str = r#"[model]
init = "random"
family = "gpt2"
tokenizer = "tokenizer"
layers = 2
hidden = 16
heads = 2
positions = 32
vocabulary = 101

[data]
task = "pretrain"
corpora = ["books"]
split = "8,1,1"
sequence_length = 16

[train]
steps = 6
batch_size = 8
micro_batch_size = 2
gradient_sum = "elastic"
lr = 1e-2

[eval]
every = "3 steps"
iterations = 2

[log]
every = 1

[output]
dir = "run"

[device]
threads = 1
"#;

/// A fixture with a tokenizer, the token files `books` and `web`, and the recipe.
pub fn fixture() -> Fixture {
    let fixture = Fixture::new();
    fixture.write_bytes("tokenizer/vocab.txt", &fixture.bytes("model/vocab.txt"));
    for (name, text) in [("books", "the film was good ."), ("web", "it is a bad plot and the end is poor")] {
        let line =
            |number: usize| format!("{}\n", serde_json::json!({"text": format!("{text} ").repeat(number % 7 + 1)}));
        fixture.write("texts.jsonl", &(0..60).map(line).collect::<String>());
        let build =
            ["build", "texts.jsonl", "--tokenizer", "tokenizer", "--eod-token", "[SEP]", "--out", name, "--quiet"];
        fixture.run(program("corpus"), &build).succeeded();
    }
    fixture.write("recipe.toml", RECIPE);
    fixture
}

fn arguments<'a>(dir: &'a str, further: &[&'a str]) -> Vec<&'a str> {
    [&["--recipe", "recipe.toml", dir], further].concat()
}

/// Runs into a directory, `output.dir=…`, with further arguments.
pub fn pretrain(fixture: &Fixture, dir: &str, further: &[&str]) -> Outcome {
    fixture.run(program("pretrain"), &arguments(dir, further))
}

fn records(fixture: &Fixture, dir: &str, kind: &str) -> Vec<Value> {
    let log = fixture.read(&format!("{dir}/metrics.jsonl"));
    let records = without_overtaken(&log).into_iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
    records.filter(|record| record["kind"] == kind).collect()
}

fn losses(fixture: &Fixture, dir: &str) -> Vec<f64> {
    records(fixture, dir, "step").iter().map(|record| record["loss"].as_f64().unwrap()).collect()
}

/// Weights, and the log without clock, machine and interruptions.
fn result(fixture: &Fixture, dir: &str) -> (Vec<u8>, Vec<String>) {
    let log = fixture.read(&format!("{dir}/metrics.jsonl"));
    let log = without_overtaken(&log).into_iter().map(deterministic_part).collect();
    (fixture.bytes(&format!("{dir}/model/model.safetensors")), log)
}

#[test]
fn a_model_begins_without_weights_learns_and_is_a_complete_directory() {
    let fixture = fixture();
    let outcome = pretrain(&fixture, "output.dir=run", &["train.steps=30"]).succeeded();
    // 12 L D^2 + 13 L D + (V + S) D + 2 D
    let parameters = 12 * 2 * 16 * 16 + 13 * 2 * 16 + (101 + 32) * 16 + 2 * 16;
    let summary = format!("{}{}", outcome.stdout, outcome.stderr);
    assert!(summary.contains(&format!("model: {parameters} parameters from model.family = \"gpt2\"")), "{summary}");
    assert!(summary.contains(&format!("12 L D^2 + 13 L D + (V + S) D + 2 D: {parameters}\n")), "{summary}");
    let padded = parameters + 27 * 16;
    assert!(summary.contains(&format!("padded to 128, a multiple of 128 x 1 tensor-parallel ranks: {padded}\n")));
    let losses = losses(&fixture, "run");
    // From the uniform distribution over 101 tokens.
    assert!((losses[0] - 101_f64.ln()).abs() < 0.1 && losses[29] < 2.0, "{losses:?}");
    let config: Value = serde_json::from_str(&fixture.read("run/model/config.json")).unwrap();
    let names = ["model_type", "n_layer", "n_embd", "n_head", "n_positions", "vocab_size", "architectures"];
    let sizes = names.map(|name| config[name].to_string()).join(" ");
    assert_eq!(sizes, r#""gpt2" 2 16 2 32 101 ["GPT2LMHeadModel"]"#);
    assert_eq!(fixture.bytes("run/model/vocab.txt"), fixture.bytes("tokenizer/vocab.txt"));
    let generate = ["run/model", "--threads", "1", "--prompt", "the film", "--max-new-tokens", "3"];
    let generated = fixture.run(program("generate"), &generate);
    assert_eq!(generated.code, 0, "{}", generated.stderr);
    let tests = records(&fixture, "run", "test");
    assert_eq!(tests.len(), 1);
    let metrics = &tests[0]["metrics"];
    let [loss, perplexity, bounded] =
        ["loss", "perplexity", "perplexity_bounded"].map(|name| metrics[name].as_f64().unwrap());
    assert!((perplexity - loss.exp()).abs() < 1e-9 && bounded == perplexity, "{metrics}");
}

/// The values of saved weights. What begins at zero counts as zero after one update at the smallest rate.
fn values(fixture: &Fixture, dir: &str) -> Vec<f32> {
    let (_, data) = split_header(&fixture.bytes(&format!("{dir}/model/model.safetensors")));
    let values = data.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
    values.map(|value| if value.abs() < 1e-20 { 0.0 } else { value }).collect()
}

#[test]
fn the_random_start_is_the_same_on_every_layout() {
    let fixture = fixture();
    // A rate at which f32 weights keep their initial values.
    let still = ["train.lr=1e-30", "train.weight_decay=0.0", "train.steps=1", "save.which=last"];
    pretrain(&fixture, "output.dir=alone", &still).succeeded();
    let alone = values(&fixture, "alone");
    assert!(alone.iter().filter(|value| **value != 0.0).count() > 4000);
    for (dir, sets) in [
        ("output.dir=zero", &["--ranks", "2", "parallel.zero=3"][..]),
        ("output.dir=tensor", &["--ranks", "2", "parallel.tensor=2"]),
        ("output.dir=stages", &["--ranks", "2", "parallel.pipeline=2", "train.gradient_sum=fast"]),
    ] {
        pretrain(&fixture, dir, &[&still[..], sets].concat()).succeeded();
        let dir = dir.trim_start_matches("output.dir=");
        assert!(values(&fixture, dir) == alone, "{dir}");
        let first = |dir: &str| losses(&fixture, dir)[0];
        assert!((first(dir) - first("alone")).abs() < 1e-5, "{dir}");
    }
    pretrain(&fixture, "output.dir=other", &[&still[..], &["train.seed=7"]].concat()).succeeded();
    assert!(values(&fixture, "other") != alone, "the seed changes nothing");
}

#[test]
fn ranks_threads_and_prefetching_leave_the_bits_alone() {
    let fixture = fixture();
    pretrain(&fixture, "output.dir=alone", &[]).succeeded();
    let alone = result(&fixture, "alone");
    for (dir, sets) in [
        ("output.dir=threads", &["data.loading_threads=3"][..]),
        ("output.dir=ranks", &["--ranks", "2", "parallel.zero=3"]),
    ] {
        pretrain(&fixture, dir, sets).succeeded();
        let dir = dir.trim_start_matches("output.dir=");
        let found = result(&fixture, dir);
        // The recipe, and with it its hash, differs in the number of threads.
        assert!(found.0 == alone.0 && losses(&fixture, dir) == losses(&fixture, "alone"), "{dir}");
    }
    let waited = records(&fixture, "alone", "step");
    assert!(waited.iter().all(|record| record["time"]["data_share"].is_number()), "{waited:?}");
}

#[test]
fn a_killed_run_continues_with_the_same_samples_to_the_same_bits() {
    let fixture = fixture();
    // Batches that grow, so that steps have different numbers of samples.
    let ramp = ["train.batch_ramp.start=4", "train.batch_ramp.increment=4", "train.batch_ramp.samples=30"];
    let sets = [&["train.steps=12", "checkpoint.every=2 steps", "eval.every=5 steps"][..], &ramp].concat();
    pretrain(&fixture, "output.dir=whole", &sets).succeeded();
    let killed = [&sets[..], &["--fail-points", "save.after_commit=kill@2"]].concat();
    assert_eq!(pretrain(&fixture, "output.dir=killed", &killed).code, -1);
    let stopped = pretrain(&fixture, "output.dir=killed", &[&sets[..], &["--exit-after-steps", "3"]].concat());
    assert_eq!(stopped.code, 75, "{}", stopped.stderr);
    assert!(stopped.stdout.contains("stopped after step "), "{}", stopped.stdout);
    // On other ranks, as sums are elastic.
    pretrain(&fixture, "output.dir=killed", &[&sets[..], &["--ranks", "2"]].concat()).succeeded();
    assert_eq!(fixture.read("killed/metrics.jsonl").matches("\"kind\":\"resume\"").count(), 2);
    let samples = |dir: &str| -> Vec<(Value, Value)> {
        let steps = records(&fixture, dir, "step").into_iter();
        steps.map(|record| (record["batch"].clone(), record["samples"].clone())).collect()
    };
    assert_eq!(samples("killed"), samples("whole"));
    let counts: Vec<u64> = samples("whole").iter().map(|(_, samples)| samples.as_u64().unwrap()).collect();
    assert_eq!(counts, [4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64]);
    assert!(fixture.bytes("killed/model/model.safetensors") == fixture.bytes("whole/model/model.safetensors"));
    // Its last checkpoint is a model directory, too, without the run.
    fixture.run(program("ckpt"), &["export", "killed", "exported"]).succeeded();
    assert_eq!(fixture.read("exported/config.json"), fixture.read("killed/model/config.json"));
}

/// Four layers that share the parameters of two: a resumed run has them once, and what is written has all four.
#[test]
fn layers_that_share_their_parameters_are_resumed_as_they_are_and_written_whole() {
    let fixture = fixture();
    let order = "model.sharing_style=spaced";
    let sets = ["model.layers=4", "model.unique_layers=2", order, "save.which=last", "checkpoint.every=2 steps"];
    let outcome = pretrain(&fixture, "output.dir=whole", &sets).succeeded();
    let parameters = 12 * 2 * 16 * 16 + 13 * 2 * 16 + (101 + 32) * 16 + 2 * 16;
    let summary = format!("{}{}", outcome.stdout, outcome.stderr);
    assert!(summary.contains(&format!("model: {parameters} parameters")), "{summary}");
    assert!(summary.contains("sizes: L 2 at 4 places, D 16"), "{summary}");
    assert!(summary.contains(&format!("+ 2 D: {parameters}\n")), "{summary}");
    let stopped = pretrain(&fixture, "output.dir=stopped", &[&sets[..], &["--exit-after-steps", "3"]].concat());
    assert_eq!(stopped.code, 75, "{}", stopped.stderr);
    pretrain(&fixture, "output.dir=stopped", &sets).succeeded();
    let weights = |dir: &str| fixture.bytes(&format!("{dir}/model.safetensors"));
    assert!(weights("stopped/model") == weights("whole/model"));
    fixture.run(program("ckpt"), &["export", "stopped", "exported"]).succeeded();
    assert!(weights("exported") == weights("whole/model"));
    let config: Value = serde_json::from_str(&fixture.read("whole/model/config.json")).unwrap();
    assert_eq!(config["n_layer"], 4);
    let (header, data) = split_header(&weights("whole/model"));
    let header: Value = serde_json::from_str(&header).unwrap();
    let layer = |number: usize| {
        let range = &header[format!("transformer.h.{number}.mlp.c_fc.weight")]["data_offsets"];
        let at = |end: usize| range[end].as_u64().unwrap() as usize;
        data[at(0)..at(1)].to_vec()
    };
    assert!(layer(0) == layer(1) && layer(2) == layer(3) && layer(1) != layer(2));
    // Another order is another model, and the checkpoint is of this one.
    let other = ["model.layers=4", "model.unique_layers=2", "model.sharing_style=grouped", "save.which=last"];
    assert_ne!(pretrain(&fixture, "output.dir=stopped", &other).code, 0);
}

/// With a tied head, f32 tables and norms beside f16: resumed at another ZeRO level on other ranks.
#[test]
fn parameters_in_f32_are_resumed_bit_for_bit_and_written_in_one_dtype() {
    let fixture = fixture();
    let sets = [
        "model.dtype=f16",
        "model.f32_parameters=[\"embeddings\", \"norms\"]",
        "train.loss_scale=static",
        "train.loss_scale_start=1024",
        "checkpoint.every=2 steps",
        "save.which=last",
    ];
    pretrain(&fixture, "output.dir=whole", &sets).succeeded();
    let stopped = pretrain(&fixture, "output.dir=stopped", &[&sets[..], &["--exit-after-steps", "3"]].concat());
    assert_eq!(stopped.code, 75, "{}", stopped.stderr);
    let ranks = ["--ranks", "2", "parallel.zero=3"];
    pretrain(&fixture, "output.dir=stopped", &[&sets[..], &ranks].concat()).succeeded();
    assert_eq!(losses(&fixture, "stopped"), losses(&fixture, "whole"));
    let weights = |dir: &str| fixture.bytes(&format!("{dir}/model.safetensors"));
    assert!(weights("stopped/model") == weights("whole/model"));
    fixture.run(program("ckpt"), &["export", "stopped", "exported"]).succeeded();
    assert!(weights("exported") == weights("whole/model"));
    let (header, _) = split_header(&weights("whole/model"));
    let header: serde_json::Map<String, Value> = serde_json::from_str(&header).unwrap();
    let dtypes: Vec<&Value> = header.values().filter_map(|tensor| tensor.get("dtype")).collect();
    assert!(dtypes.len() > 10 && dtypes.iter().all(|dtype| **dtype == "F16"), "{header:?}");
    // Without them the run is another, and its checkpoint is not taken.
    let others = [sets[0], sets[2], sets[3], "save.which=last"];
    let refused = pretrain(&fixture, "output.dir=stopped", &others);
    assert!(refused.code != 0 && refused.stderr.contains("model.f32_parameters"), "{}", refused.stderr);
    let types = "model.f32_parameters=[\"token-types\"]";
    let refused = pretrain(&fixture, "output.dir=types", &[sets[0], types, "--dry-run"]).refused();
    assert!(refused.contains("GPT-2 has no token types"), "{refused}");
}

#[test]
fn masked_sentence_pairs_train_a_bert_alike_on_every_layout() {
    let fixture = fixture();
    let document = serde_json::json!({"text": "the film was good .\nit is a bad plot\nthe end is poor"});
    fixture.write("sentences.jsonl", &format!("{document}\n").repeat(60));
    let build = ["build", "sentences.jsonl", "--tokenizer", "tokenizer", "--split-lines", "--out", "pairs", "--quiet"];
    fixture.run(program("corpus"), &build).succeeded();
    let masked = ["model.family=bert", "data.objective=masked", "data.corpora=pairs", "data.masking.share=0.3"];
    pretrain(&fixture, "output.dir=alone", &masked).succeeded();
    let alone = losses(&fixture, "alone");
    // Of 101 tokens, and of two classes.
    assert!((alone[0] - 101_f64.ln() - 2_f64.ln()).abs() < 0.3, "{alone:?}");
    for (dir, sets) in [
        ("output.dir=ranks", &["--ranks", "2", "parallel.zero=3"][..]),
        ("output.dir=tensor", &["--ranks", "2", "parallel.tensor=2"]),
        ("output.dir=stages", &["--ranks", "2", "parallel.pipeline=2", "train.gradient_sum=fast"]),
    ] {
        pretrain(&fixture, dir, &[&masked, sets].concat()).succeeded();
        let found = losses(&fixture, dir.trim_start_matches("output.dir="));
        let apart = found.iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(apart < 1e-4 && found.len() == alone.len(), "{dir}: {found:?} for {alone:?}");
    }
    let shown = fixture.run(
        program("corpus"),
        &[&["samples", "--recipe", "recipe.toml"][..], &masked.map(|set| ["--set", set]).concat()].concat(),
    );
    let shown = shown.succeeded().stdout;
    assert!(shown.starts_with("sample 0: ") && shown.contains("[MASK]"), "{shown}");
}

#[test]
fn a_course_that_diverges_ends_the_run_and_a_range_test_shows_where() {
    let fixture = fixture();
    let high =
        ["train.lr=30", "train.steps=60", "train.clip_kind=none", "train.divergence.patience=5", "eval.every=end"];
    let diverged = pretrain(&fixture, "output.dir=high", &high);
    assert_eq!(diverged.code, 7, "{}{}", diverged.stdout, diverged.stderr);
    assert!(diverged.stderr.contains("the loss was too high for 5 steps in a row"), "{}", diverged.stderr);
    let range =
        ["train.schedule=range-test", "train.lr=1e-5", "train.range_test_lr=10", "train.steps=40", "save.which=none"];
    let found = pretrain(&fixture, "output.dir=range", &range).succeeded();
    assert!(found.stderr.contains("lr_range.svg: the lowest loss was at "), "{}", found.stderr);
    let svg = fixture.read("range/lr_range.svg");
    assert!(svg.contains(">1.0e-5<") && svg.contains(">1.0e1<"), "{svg}");
}

#[test]
fn corpora_are_mixed_and_several_validation_sets_are_told_apart() {
    let fixture = fixture();
    let sets = [
        "data.corpora=[{ path = \"books\", weight = 0.25 }, { path = \"web\", weight = 0.75 }]",
        "data.valid=[\"books\", \"web\"]",
        "data.test=web",
        "train.steps=2",
    ];
    pretrain(&fixture, "output.dir=run", &sets).succeeded();
    let evals = records(&fixture, "run", "eval");
    let metrics = &evals.last().unwrap()["metrics"];
    let [both, books, web] = ["loss", "loss books", "loss web"].map(|name| metrics[name].as_f64().unwrap());
    assert!((both - (books + web) / 2.0).abs() < 1e-9 && books != web, "{metrics}");
    assert_eq!(evals[0]["samples"], 32);
    assert_eq!(records(&fixture, "run", "test")[0]["samples"], 16);
}

#[test]
fn plan_counts_a_run_without_weights_and_dry_runs_check_it() {
    let fixture = fixture();
    let plan = ["--recipe", "recipe.toml", "--ranks", "2", "--json"];
    let plan: Value = serde_json::from_str(&fixture.run(program("plan"), &plan).succeeded().stdout).unwrap();
    assert!(plan.to_string().contains("8720"), "{plan}");
    let layout = ["--recipe", "recipe.toml", "--layout", "2x1x1"];
    fixture.run(program("plan"), &layout).succeeded();
    let before = fixture.snapshot();
    let dry = pretrain(&fixture, "output.dir=run", &["--dry-run"]).succeeded();
    assert!(dry.stdout.contains("train: 48 samples of 16 tokens"), "{}", dry.stdout);
    assert!(dry.stdout.contains("nothing is wrong"), "{}", dry.stdout);
    assert!(!fixture.path("run").exists());
    let new: Vec<_> = fixture.snapshot().into_keys().filter(|path| !before.contains_key(path)).collect();
    assert!(new.iter().all(|path| path.to_string_lossy().contains("_indexmap_")), "{new:?}");
}

/// The published sizes: their formula counts what the model has.
#[test]
fn published_sizes_have_their_published_parameters() {
    let fixture = fixture();
    for (layers, hidden, heads, positions, vocabulary, parameters) in [
        (24, 1024, 16, 1024, 50_304, 354_871_296_u64),
        (72, 3072, 32, 1024, 51_200, 8_317_040_640),
        (40, 3072, 24, 2048, 54_272, 4_704_466_944),
    ] {
        let sets = [
            format!("model.layers={layers}"),
            format!("model.hidden={hidden}"),
            format!("model.heads={heads}"),
            format!("model.positions={positions}"),
            format!("model.vocabulary={vocabulary}"),
        ];
        let sets: Vec<&str> = sets.iter().map(String::as_str).chain(["--dry-run"]).collect();
        let summary = pretrain(&fixture, "output.dir=run", &sets).succeeded().stdout;
        assert!(summary.contains(&format!("model: {parameters} parameters")), "{summary}");
        assert!(summary.contains(&format!("+ 2 D: {parameters}\n")), "{summary}");
    }
}

#[test]
fn recipes_that_cannot_be_pretrained_are_refused() {
    let fixture = fixture();
    let refused = |sets: &[&str]| pretrain(&fixture, "output.dir=run", &[sets, &["--dry-run"]].concat()).refused();
    for (sets, reason) in [
        (&["data.task=language", "data.train=t.jsonl"][..], "has no effect: it is for task pretrain"),
        (&["model.init=weights"], "`model.path` is missing"),
        (
            &["model.init=weights", "model.path=model"],
            "`model.layers` has no effect: it is for model.init = \"random\"",
        ),
        (&["model.kv_heads=2"], "models of this family have no such size of their own"),
        (&["model.heads=3"], "`model.heads` = 3 does not divide `model.hidden` = 16"),
        (&["model.vocabulary=50"], "50"),
        (&["data.sequence_length=64"], "data.sequence_length is 64, the model has 32 positions"),
        (&["data.corpora=nothing"], "cannot open nothing.bin"),
        (&["data.corpora=[{ path = \"books\", weight = 1 }, \"web\"]"], "1 of 2 corpora have a weight"),
        (&["data.split=x"], "`data.split` must be"),
        (&["data.split=0,1,0"], "no documents"),
        (&["data.max_length=16"], "`data.max_length` has no effect: task pretrain reads token files"),
        (&["eval.every=1 epoch"], "`eval.every` counts epochs, and task pretrain has one"),
        (&["model.family=poetry"], "unknown model family \"poetry\""),
        (&["model.scale_init_by_depth=7"], "must be true or false"),
        (&["model.layers=4", "model.unique_layers=3"], "`model.unique_layers` = 3 does not divide `model.layers` = 4"),
        (&["model.sharing_style=spaced"], "`model.sharing_style` has no effect: it is for model.unique_layers"),
        (&["model.unique_layers=1", "parallel.pipeline=2"], "are on one pipeline stage"),
    ] {
        let message = refused(sets);
        assert!(message.contains(reason), "{sets:?}: {message}");
    }
    // The samples of other families are taken by a program that has them.
    let samples = ["samples", "--recipe", "recipe.toml", "--set", "model.family=poetry"];
    let message = fixture.run(program("corpus"), &samples).refused();
    assert!(message.contains("unknown model family") && message.contains("docs/add-a-model.md"), "{message}");
    // A recipe of another task is for the other program.
    fixture.write("recipe.toml", crate::fixture::RECIPE);
    let message = pretrain(&fixture, "output.dir=run", &["--dry-run"]).refused();
    assert!(message.contains("this program is for task pretrain"), "{message}");
}
