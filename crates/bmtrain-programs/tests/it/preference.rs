//! Tasks `preference` and `reward` in the programs: pairs of completions and judged ones, on any layout of ranks,
//! resumed, previewed.

use crate::fixture::program;
use crate::fixture::{Fixture, Outcome, into_outcome};
use crate::tensor::{SHORT, course, has_the_bits_of_one_rank, numbers, records, train};
use bmtrain_dist::checkpoint::ContentHash;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const WORDS: [&str; 11] = ["good", "the", "film", "bad", "plot", "is", "a", "very", "end", "cast", "of"];

fn text(first: usize, count: usize) -> String {
    (0..count).map(|at| WORDS[(first + at * at) % WORDS.len()]).collect::<Vec<_>>().join(" ")
}

/// A completion is preferred if it begins with "good".
fn pair(at: usize) -> Value {
    let completion = |first: &str, further: usize| format!(" {first} {}", text(at + further, 1 + (at + further) % 3));
    json!({"prompt": text(at, 2 + at % 2), "chosen": completion("good", 2), "rejected": completion("bad", 5)})
}

fn fixture() -> Fixture {
    let fixture = Fixture::decoder();
    let lines = |count: usize| (0..count).map(|at| format!("{}\n", pair(at))).collect::<String>();
    fixture.write("train.jsonl", &lines(16));
    fixture.write("eval.jsonl", &lines(6));
    fixture.replace("recipe.toml", "\"classification\"", "\"preference\"");
    fixture
}

const BETA: &str = "preference.beta=0.5";

/// With dropout, as a pair's sequences are in one batch on any number of ranks.
fn run(fixture: &Fixture, dir: &str, ranks: usize, sets: &[&str]) -> Outcome {
    train(fixture, dir, ranks, &[&SHORT[..], &[BETA], sets].concat())
}

#[test]
fn the_loss_of_pairs_falls_and_rewards_part_for_every_kind_of_loss() {
    let fixture = fixture();
    for kind in ["dpo", "ipo", "simpo", "orpo"] {
        let set = format!("preference.loss={kind}");
        let outcome = run(&fixture, kind, 1, &[&set, "train.steps=12", "log.every=1"]).succeeded();
        let steps = records(&fixture, kind, "step");
        let losses = numbers(&steps, "loss");
        assert!(losses[11] < 0.9 * losses[0], "{kind}: {losses:?}");
        if matches!(kind, "dpo" | "ipo") {
            // The model begins as its own reference; dropout alone moves it.
            assert!(
                outcome.stderr.contains("log-probabilities of the reference model: 22 pairs"),
                "{}",
                outcome.stderr
            );
        }
        let [margin, chosen, rejected] =
            ["reward_margin", "reward_chosen", "reward_rejected"].map(|name| numbers(&steps, name));
        assert!((margin[3] - (chosen[3] - rejected[3])).abs() < 1e-6, "{kind}");
        assert!(numbers(&steps, "log_prob_chosen").iter().all(|value| *value < 0.0));
        let evals = records(&fixture, kind, "eval");
        let metric = |record: &Value, name: &str| record["metrics"][name].as_f64().unwrap();
        let last = evals.last().unwrap();
        assert_eq!(last["samples"], 6);
        assert!(metric(last, "reward_accuracy") >= 5.0 / 6.0, "{kind}: {last}");
        assert!(metric(last, "loss") < metric(&evals[0], "loss"), "{kind}: {last}");
    }
    // Without dropout in an evaluation, DPO begins where no reward differs.
    let first = &records(&fixture, "dpo", "eval")[0]["metrics"];
    assert!((first["loss"].as_f64().unwrap() - 2f64.ln()).abs() < 1e-6 && first["reward_margin"] == 0.0, "{first}");
}

/// The same completions, each judged by itself.
fn judged_fixture() -> Fixture {
    let fixture = fixture();
    let lines = |pairs: usize| -> String {
        let records = (0..2 * pairs).map(|at| {
            let (pair, is_good) = (pair(at / 2), at % 2 == 0);
            let completion = if is_good { &pair["chosen"] } else { &pair["rejected"] };
            format!("{}\n", json!({"prompt": pair["prompt"], "completion": completion, "label": is_good}))
        });
        records.collect()
    };
    fixture.write("train.jsonl", &lines(8));
    fixture.write("eval.jsonl", &lines(3));
    fixture
}

#[test]
fn judged_completions_part_in_reward_and_pairs_are_two_of_them() {
    let judged = judged_fixture();
    let sets = ["preference.loss=kto", "train.steps=12", "log.every=1", "train.micro_batch_size=4"];
    let outcome = run(&judged, "kto", 1, &sets).succeeded();
    assert!(outcome.stderr.contains("log-probabilities of the reference model: 22 pairs"), "{}", outcome.stderr);
    let steps = records(&judged, "kto", "step");
    let losses = numbers(&steps, "loss");
    assert!(losses[11] < 0.9 * losses[0], "{losses:?}");
    assert!(numbers(&steps, "kl").iter().all(|kl| *kl >= 0.0));
    let evals = records(&judged, "kto", "eval");
    // The model begins as its own reference, which was computed in batches of other sizes.
    let first = &evals[0]["metrics"];
    let [loss, kl] = ["loss", "kl"].map(|name| first[name].as_f64().unwrap());
    assert!((loss - 0.5).abs() < 1e-5 && kl < 1e-4, "{first}");
    let last = &evals.last().unwrap()["metrics"];
    assert!(last["reward_accuracy"].as_f64().unwrap() >= 8.0 / 9.0, "{last}");
    assert!(last["reward_margin"].as_f64().unwrap() > 0.0 && last["loss"].as_f64().unwrap() < 0.5, "{last}");
    let pairs = fixture();
    let outcome = run(&pairs, "kto", 1, &["preference.loss=kto", "train.steps=1"]).succeeded();
    assert!(outcome.stderr.contains("log-probabilities of the reference model: 44 pairs"), "{}", outcome.stderr);
}

#[test]
fn judged_completions_have_the_same_bits_on_two_ranks_and_after_a_resume() {
    let fixture = judged_fixture();
    check_ranks_and_resume(&fixture, "full", &["preference.loss=kto"]);
    check_ranks_and_resume(&fixture, "lora", &["preference.loss=kto", "adapter.method=lora", "adapter.dropout=0.1"]);
}

#[test]
fn updates_have_the_model_without_them_as_reference_and_no_file_of_it() {
    let fixture = fixture();
    let lora = ["adapter.method=lora", "adapter.rank=2", "train.lr=2e-2", "train.steps=12", "log.every=1"];
    run(&fixture, "lora", 1, &lora).succeeded();
    let losses = numbers(&records(&fixture, "lora", "step"), "loss");
    assert!(losses[11] < 0.9 * losses[0], "{losses:?}");
    assert!(
        !fixture.path("lora/reference.txt").exists() && fixture.path("lora/model/adapter_model.safetensors").exists()
    );
    let first = &records(&fixture, "lora", "eval")[0]["metrics"];
    assert!((first["loss"].as_f64().unwrap() - 2f64.ln()).abs() < 1e-6, "{first}");
    // What is trained as a whole has to be known from before: the log-probabilities are kept.
    run(&fixture, "table", 1, &[&lora[..], &["adapter.trained=[\"wte\"]", "train.steps=1"]].concat()).succeeded();
    assert!(fixture.path("table/reference.txt").exists());
}

fn check_ranks_and_resume(fixture: &Fixture, name: &str, sets: &[&str]) {
    has_the_bits_of_one_rank(fixture, name, &["3"], &[&[BETA], sets].concat());
}

#[test]
fn two_ranks_with_zero_3_and_a_resumed_run_have_the_bits_of_one_rank() {
    let fixture = fixture();
    check_ranks_and_resume(&fixture, "full", &[]);
    assert_eq!(fixture.read("full_cut/reference.txt"), fixture.read("full/reference.txt"));
    check_ranks_and_resume(&fixture, "lora", &["adapter.method=lora", "adapter.dropout=0.1"]);
}

#[test]
fn tensor_parallel_ranks_recomputation_and_large_micro_batches_change_roundings_alone() {
    let fixture = fixture();
    let sets = ["model.hidden_dropout=0", "model.attention_dropout=0", "log.every=1", "checkpoint.minutes=0"];
    run(&fixture, "alone", 1, &sets).succeeded();
    let expected = records(&fixture, "alone", "step");
    for (dir, ranks, more) in [
        ("tensor", 2, &["parallel.tensor=2", "train.gradient_sum=fast"][..]),
        ("blocks", 1, &["train.recompute=blocks"]),
        ("large", 1, &["train.micro_batch_size=8"]),
    ] {
        run(&fixture, dir, ranks, &[&sets[..], more].concat()).succeeded();
        let steps = records(&fixture, dir, "step");
        for name in ["loss", "grad_norm", "reward_margin", "log_prob_rejected"] {
            for (ours, expected) in numbers(&steps, name).iter().zip(numbers(&expected, name)) {
                assert!((ours - expected).abs() <= 1e-4 * expected.abs().max(1e-2), "{dir}: {name} {ours} {expected}");
            }
        }
    }
}

#[test]
fn a_damaged_reference_is_computed_again_and_one_of_other_samples_is_refused() {
    let fixture = fixture();
    let sets = ["checkpoint.every=2 steps", "train.steps=12"];
    let stop = |steps: &str| run_with(&fixture, "run", &["--exit-after-steps", steps], &sets);
    assert_eq!(stop("1").code, 75);
    let reference = fixture.read("run/reference.txt");
    let lines: Vec<&str> = reference.lines().collect();
    assert_eq!(lines.len(), 1 + 2 + 16 + 6);
    let [swapped, other] = [[3, 2], [1, 1]].map(|[a, b]| {
        let mut lines = lines.clone();
        if a == b {
            lines[a] = "samples 00"
        } else {
            lines.swap(a, b)
        }
        lines.join("\n")
    });
    let hashed = |text: String| {
        let (_, body) = text.split_once('\n').unwrap();
        format!("blake3 {}\n{body}", ContentHash::of(body.as_bytes()))
    };
    // A digit, an order, a number that is none, an end, the hash itself: computed again, with the same bits.
    let (_, unhashed) = reference.split_once('\n').unwrap();
    for (damaged, what) in [
        (reference.replacen("\n-", "\n-9", 3), "its hash differs"),
        (swapped, "its hash differs"),
        (hashed(reference.replacen("\n-", "\nNaN -", 2)), "a line is not two finite numbers"),
        (lines[..20].join("\n"), "its hash differs"),
        (unhashed.to_owned(), "it has no hash"),
    ] {
        fixture.write("run/reference.txt", &damaged);
        let again = stop("1");
        assert_eq!(again.code, 75, "{}", again.stderr);
        assert!(again.stderr.contains(&format!("run/reference.txt is damaged: {what}")), "{}", again.stderr);
        assert_eq!(fixture.read("run/reference.txt"), reference, "{what}");
    }
    fixture.write("run/reference.txt", &hashed(other));
    let error = run_with(&fixture, "run", &[], &sets).refused();
    assert!(error.contains("it is not of the samples of this run"), "{error}");
    // Without the file it is what the model, as training begins, gives again; another model is not taken for it.
    std::fs::remove_file(fixture.path("run/reference.txt")).unwrap();
    let weights = fixture.bytes("model/model.safetensors");
    fixture.set_value("model/model.safetensors", "transformer.wte.weight", 5, 0.5);
    let error = run_with(&fixture, "run", &[], &sets).refused();
    assert!(error.contains("model/model.safetensors") && error.contains("BLAKE3"), "{error}");
    fixture.write_bytes("model/model.safetensors", &weights);
    run_with(&fixture, "run", &[], &sets).succeeded();
    assert_eq!(fixture.read("run/reference.txt"), reference);
}

/// Arguments of a run: its settings, and these.
fn arguments_with(dir: &str, arguments: &[&str], sets: &[&str]) -> Vec<String> {
    let out = format!("output.dir={dir}");
    let sets = SHORT.iter().chain([&BETA]).chain(sets).copied().chain([out.as_str()]).flat_map(|set| ["--set", set]);
    arguments.iter().copied().chain(sets).map(str::to_owned).collect()
}

fn run_with(fixture: &Fixture, dir: &str, arguments: &[&str], sets: &[&str]) -> Outcome {
    let arguments = arguments_with(dir, arguments, sets);
    fixture.finetune(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The same, asked to stop as soon as it has a directory.
fn run_stopped(fixture: &Fixture, dir: &str, arguments: &[&str], sets: &[&str]) -> Outcome {
    let arguments = arguments_with(dir, arguments, sets);
    let child = fixture.start_finetune(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let begin = Instant::now();
    while !fixture.path(dir).join(model_center::run::MARKER).exists() {
        assert!(begin.elapsed() < Duration::from_secs(60), "the run does not begin");
        std::thread::sleep(Duration::from_millis(1));
    }
    fixture.write(&format!("{dir}/stop"), "");
    into_outcome(child.wait_with_output().unwrap())
}

#[test]
fn a_run_that_stops_before_its_reference_is_known_resumes_with_the_same_bits() {
    let fixture = fixture();
    // Enough pairs for their log-probabilities to take a while.
    fixture.write("train.jsonl", &(0..4000).map(|at| format!("{}\n", pair(at))).collect::<String>());
    for (name, sets) in [
        ("full", &["checkpoint.every=2 steps", "log.every=1"][..]),
        ("lora", &["checkpoint.every=2 steps", "log.every=1", "adapter.method=lora", "adapter.rank=2"]),
    ] {
        let [first, whole, cut] = ["first", "whole", "cut"].map(|part| format!("{name}_{part}"));
        run_with(&fixture, &first, &[], sets).succeeded();
        run_with(&fixture, &whole, &["--init-from", &first], sets).succeeded();
        let stopped = run_stopped(&fixture, &cut, &["--init-from", &first], sets);
        assert!(stopped.code == 75 && stopped.stdout.contains("stopped after step 0"), "{}", stopped.stderr);
        assert!(!fixture.path(&format!("{cut}/reference.txt")).exists());
        // The checkpoint has the weights, and knows that they are not the model's own.
        let again = run_with(&fixture, &cut, &[], sets).succeeded();
        assert!(again.stderr.contains("cut/reference.txt is missing"), "{}", again.stderr);
        assert_eq!(course(&fixture, &cut), course(&fixture, &whole), "{name}");
        let [expected, found] = [&whole, &cut].map(|dir| fixture.read(&format!("{dir}/reference.txt")));
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn a_reference_of_another_directory_is_read_there_or_missed() {
    let (fixture, sets) = (fixture(), ["checkpoint.every=2 steps", "log.every=1"]);
    run_with(&fixture, "first", &[], &sets).succeeded();
    let begun = run_with(&fixture, "begun", &["--init-from", "first", "--exit-after-steps", "2"], &sets);
    assert_eq!(begun.code, 75, "{}", begun.stderr);
    let own = run_with(&fixture, "own", &["--resume", "begun"], &sets).succeeded();
    let note = "log-probabilities of the reference model from begun/reference.txt";
    assert!(own.stderr.contains(note), "{}", own.stderr);
    assert_eq!(fixture.read("own/reference.txt"), fixture.read("begun/reference.txt"));
    run_with(&fixture, "begun", &["--init-from", "first"], &sets).succeeded();
    assert_eq!(records(&fixture, "own", "step").last().unwrap()["loss"], records(&fixture, "begun", "step")[5]["loss"]);
    std::fs::remove_file(fixture.path("begun/reference.txt")).unwrap();
    let error = run_with(&fixture, "again", &["--resume", "begun@4"], &sets).refused();
    assert!(error.contains("the file is missing, and the run began with the weights of another one"), "{error}");
    // Of a run that began with the model's own weights it is computed again, and a line states that.
    std::fs::remove_file(fixture.path("first/reference.txt")).unwrap();
    let again = run_with(&fixture, "again", &["--resume", "first@4"], &sets).succeeded();
    assert!(again.stderr.contains("first/reference.txt is missing"), "{}", again.stderr);
}

#[test]
fn a_reward_model_learns_which_of_two_sequences_is_better() {
    let fixture = fixture();
    fixture.replace("recipe.toml", "\"preference\"", "\"reward\"");
    let sets = ["train.steps=12", "train.lr=1e-2", "train.batch_size=8", "train.micro_batch_size=4", "log.every=1"];
    train(&fixture, "reward", 1, &[&sets[..], &["checkpoint.minutes=0"]].concat()).succeeded();
    let losses = numbers(&records(&fixture, "reward", "step"), "loss");
    assert!(losses[11] < 0.5 * losses[0], "{losses:?}");
    let evals = records(&fixture, "reward", "eval");
    assert_eq!(evals.last().unwrap()["metrics"]["accuracy"], 1.0);
    let config: Value = serde_json::from_str(&fixture.read("reward/model/config.json")).unwrap();
    assert_eq!(config["architectures"], json!(["GPT2ForSequenceClassification"]));
}

#[test]
fn the_preview_shows_both_sequences_of_a_pair() {
    let fixture = fixture();
    let data = |arguments: &[&str]| fixture.run(program("data"), arguments).succeeded().stdout;
    let shown = data(&["preview", "1", "--recipe", "recipe.toml"]);
    assert!(shown.contains("sample 0, chosen: ") && shown.contains("sample 0, rejected: "), "{shown}");
    assert!(shown.contains("[[good ") && shown.contains("[[bad "), "{shown}");
    let lines = data(&["preview", "1", "--recipe", "recipe.toml", "--json"]);
    let sides: Vec<Value> = lines.lines().take(2).map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&sides[0]["side"], &sides[1]["side"]), (&json!("chosen"), &json!("rejected")));
    assert_eq!(sides[0]["input_ids"].as_array().unwrap().len(), sides[0]["labels"].as_array().unwrap().len());
}

#[test]
fn the_preview_shows_a_judged_completion_and_its_mismatch() {
    let fixture = judged_fixture();
    let data = |arguments: &[&str]| fixture.run(program("data"), arguments).succeeded().stdout;
    let sets = ["--recipe", "recipe.toml", "--set", "preference.loss=kto"];
    let shown = data(&[&["preview", "2"][..], &sets].concat());
    assert!(shown.contains("sample 0, good: ") && shown.contains("sample 0, mismatch: "), "{shown}");
    assert!(shown.contains("sample 1, bad: "), "{shown}");
    let lines = data(&[&["preview", "1", "--json"][..], &sets].concat());
    let sides: Vec<Value> = lines.lines().take(2).map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&sides[0]["side"], &sides[1]["side"]), (&json!("good"), &json!("mismatch")));
}
