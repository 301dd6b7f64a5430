//! Tasks `preference` and `reward` in the programs: pairs of completions and judged ones, on any layout of ranks,
//! resumed, previewed.

mod references;

use crate::fixture::{Fixture, Outcome, program};
use crate::tensor::{SHORT, has_the_bits_of_one_rank, numbers, records, train};
use serde_json::{Value, json};

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
fn unpaired_fixture() -> Fixture {
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
fn unpaired_completions_part_in_reward_and_pairs_are_two_of_them() {
    let unpaired = unpaired_fixture();
    let sets = ["preference.loss=kto", "train.steps=12", "log.every=1", "train.micro_batch_size=4"];
    let outcome = run(&unpaired, "kto", 1, &sets).succeeded();
    assert!(outcome.stderr.contains("log-probabilities of the reference model: 22 pairs"), "{}", outcome.stderr);
    let steps = records(&unpaired, "kto", "step");
    let losses = numbers(&steps, "loss");
    assert!(losses[11] < 0.9 * losses[0], "{losses:?}");
    assert!(numbers(&steps, "kl").iter().all(|kl| *kl >= 0.0));
    let evals = records(&unpaired, "kto", "eval");
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
fn unpaired_completions_have_the_same_bits_on_two_ranks_and_after_a_resume() {
    let fixture = unpaired_fixture();
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
fn the_preview_shows_an_unpaired_completion_and_its_mismatch() {
    let fixture = unpaired_fixture();
    let data = |arguments: &[&str]| fixture.run(program("data"), arguments).succeeded().stdout;
    let sets = ["--recipe", "recipe.toml", "--set", "preference.loss=kto"];
    let shown = data(&[&["preview", "2"][..], &sets].concat());
    assert!(shown.contains("sample 0, good: ") && shown.contains("sample 0, mismatch: "), "{shown}");
    assert!(shown.contains("sample 1, bad: "), "{shown}");
    let lines = data(&[&["preview", "1", "--json"][..], &sets].concat());
    let sides: Vec<Value> = lines.lines().take(2).map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&sides[0]["side"], &sides[1]["side"]), (&json!("good"), &json!("mismatch")));
}
