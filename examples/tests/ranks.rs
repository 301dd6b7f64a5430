//! The finetune program on several ranks: threads and processes, and what becomes of the bits.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fixture;

use fixture::{Fixture, Outcome, sentences};
use model_center::run::deterministic_part;

/// Eight samples for evaluation are three batches: one rank of two has none in the last round.
const ELASTIC: [&str; 4] =
    ["train.gradient_sum=elastic", "train.micro_batch_size=1", "train.steps=4", "eval.batch_size=3"];

/// Runs into `dir` with further arguments, which may be settings.
fn train(fixture: &Fixture, dir: &str, arguments: &[&str], sets: &[&str]) -> Outcome {
    let dir = format!("output.dir={dir}");
    let sets = sets.iter().copied().chain([dir.as_str()]).flat_map(|set| ["--set", set]);
    fixture.finetune(&arguments.iter().copied().chain(sets).collect::<Vec<_>>())
}

/// Weights and all of the log that does not depend on clock and machine; its last record has the optimizer's hash.
fn result(fixture: &Fixture, dir: &str) -> (Vec<u8>, String) {
    let log = fixture.read(&format!("{dir}/metrics.jsonl"));
    let log: String = log.lines().map(|line| deterministic_part(line) + "\n").collect();
    assert!(log.contains("\"optimizer\":"), "{log}");
    (fixture.bytes(&format!("{dir}/model/model.safetensors")), log)
}

#[test]
fn elastic_sums_give_the_bytes_of_one_rank_on_any_number_at_any_level() {
    let fixture = Fixture::new();
    train(&fixture, "alone", &[], &ELASTIC).succeeded();
    let alone = result(&fixture, "alone");
    for (ranks, zero) in [(2, 0), (2, 1), (2, 2), (2, 3), (4, 3)] {
        let (dir, ranks, zero) = (format!("r{ranks}z{zero}"), ranks.to_string(), format!("parallel.zero={zero}"));
        let outcome =
            train(&fixture, &dir, &["--ranks", &ranks], &[&ELASTIC[..], &[zero.as_str()]].concat()).succeeded();
        assert!(result(&fixture, &dir) == alone, "{dir} differs from one rank");
        assert_eq!(outcome.stdout.matches("trained 4 steps").count(), 1, "one rank speaks: {}", outcome.stdout);
    }
}

#[test]
fn every_sample_is_judged_once_whatever_their_number_and_that_of_the_ranks() {
    let fixture = Fixture::new();
    let sets = ["train.gradient_sum=elastic", "train.batch_size=6", "train.micro_batch_size=1", "train.steps=1"];
    for samples in [1, 3, 4, 7] {
        fixture.write("eval.jsonl", &sentences(samples));
        let judged = |ranks: usize| {
            let dir = format!("{samples}on{ranks}");
            let sets = [&sets[..], &["eval.batch_size=2", "eval.metric=loss"]].concat();
            train(&fixture, &dir, &["--ranks", &ranks.to_string()], &sets).succeeded();
            let log = fixture.read(&format!("{dir}/metrics.jsonl"));
            log.lines().filter(|line| line.contains("\"kind\":\"eval\"")).map(deterministic_part).collect::<Vec<_>>()
        };
        let alone = judged(1);
        assert_eq!(alone.len(), 2);
        assert!(alone.iter().all(|eval| eval.contains(&format!("\"samples\":{samples},"))), "{alone:?}");
        assert_eq!([judged(2), judged(3)], [alone.clone(), alone], "{samples} samples");
    }
}

#[test]
fn optimizer_state_on_the_host_leaves_the_bytes_of_the_run_alone() {
    let fixture = Fixture::new();
    train(&fixture, "device", &[], &ELASTIC).succeeded();
    let host = [&ELASTIC[..], &["train.offload=true", "parallel.zero=3"]].concat();
    train(&fixture, "host", &["--ranks", "2"], &host).succeeded();
    assert!(result(&fixture, "host") == result(&fixture, "device"));
}

#[test]
fn gradients_in_the_type_of_the_model_give_the_bytes_of_one_rank_too() {
    let fixture = Fixture::new();
    for dtype in ["model.dtype=bf16", "model.dtype=f16"] {
        let sets = [&ELASTIC[..], &[dtype, "train.gradient_dtype=model", "parallel.zero=2", "save.dtype=f32"]].concat();
        let (alone, shared) = (format!("{dtype}1"), format!("{dtype}2"));
        train(&fixture, &alone, &[], &sets).succeeded();
        train(&fixture, &shared, &["--ranks", "2"], &sets).succeeded();
        let alone = result(&fixture, &alone);
        assert!(result(&fixture, &shared) == alone, "{dtype}");
        let sets: Vec<&str> =
            sets.iter().map(|set| if set.ends_with("=model") { "train.gradient_dtype=f32" } else { set }).collect();
        let whole = format!("{dtype}3");
        train(&fixture, &whole, &[], &sets).succeeded();
        assert!(result(&fixture, &whole) != alone, "{dtype}: the setting changes nothing");
    }
}

#[test]
fn fast_sums_train_on_two_ranks() {
    let fixture = Fixture::new();
    let sets = ["train.micro_batch_size=2", "train.steps=60", "train.lr=3e-3", "train.warmup=6"];
    train(&fixture, "run", &["--ranks", "2"], &sets).succeeded();
    let (_, log) = result(&fixture, "run");
    assert!(log.lines().last().unwrap().contains("\"metric\":\"accuracy\",\"value\":1.0"), "{log}");
}

#[test]
fn processes_with_the_variables_of_a_launcher_give_the_bytes_of_one_rank() {
    let fixture = Fixture::new();
    train(&fixture, "alone", &[], &ELASTIC).succeeded();
    let sets: Vec<String> = ELASTIC.iter().map(|set| (*set).to_owned()).chain(["output.dir=shared".into()]).collect();
    let port = (20_000 + std::process::id() % 20_000).to_string();
    let outcomes = fixture.finetune_processes(2, &port, &sets);
    for outcome in &outcomes {
        assert_eq!(outcome.code, 0, "{}{}", outcome.stdout, outcome.stderr);
    }
    assert!(result(&fixture, "shared") == result(&fixture, "alone"));
    assert!(outcomes[1].stdout.is_empty(), "the second rank says nothing: {}", outcomes[1].stdout);
}

#[test]
fn micro_batches_that_cannot_be_shared_are_named_with_the_fix() {
    let fixture = Fixture::new();
    let refused = |ranks: &str, sets: &[&str], parts: &[&str]| {
        let outcome = train(&fixture, "run", &["--ranks", ranks], sets);
        assert_eq!(outcome.code, 2, "{}", outcome.stderr);
        for part in parts {
            assert!(outcome.stderr.contains(part), "no {part:?} in {}", outcome.stderr);
        }
        assert!(!fixture.path("run").exists());
    };
    let written = ["error[recipe]: 1 micro-batches of 4", "2 ranks", "set train.micro_batch_size = 2"];
    refused("2", &["train.micro_batch_size=4"], &written);
    refused("3", &[], &["error[recipe]: 1 micro-batches of 4", "a multiple of 3"]);
}

#[test]
fn a_recipe_without_a_micro_batch_trains_on_several_ranks_and_keeps_its_micro_batches_on_others() {
    let fixture = Fixture::new();
    let elastic = ["train.gradient_sum=elastic", "train.steps=4", "checkpoint.every=2 steps"];
    train(&fixture, "two", &["--ranks", "2"], &elastic).succeeded();
    assert!(
        fixture.read("two/recipe.toml").contains("\nmicro_batch_size = 2\n"),
        "{}",
        fixture.read("two/recipe.toml")
    );
    // Begun on two ranks and resumed on one: the same bytes, by the same command but for the ranks.
    let point = "save.after_commit=kill@1";
    assert_eq!(train(&fixture, "cut", &["--ranks", "2", "--fail-points", point], &elastic).code, -1);
    let resumed = train(&fixture, "cut", &[], &elastic).succeeded();
    assert!(resumed.stderr.contains("going on after step 2"), "{}", resumed.stderr);
    let model = |dir: &str| fixture.bytes(&format!("{dir}/model/model.safetensors"));
    assert!(model("cut") == model("two"));
    // From its checkpoint into a directory of its own.
    train(&fixture, "other", &["--resume", "two@2"], &elastic).succeeded();
    assert!(model("other") == model("two"));

    // Begun on one rank: its one micro-batch cannot be shared. Elastic sums keep their bits, so it is refused with the ways
    // out; fast sums promise none across ranks, so the run goes on, and its log says with what.
    let cut = |dir: &str, sets: &[&str]| {
        assert_eq!(train(&fixture, dir, &["--fail-points", point], sets).code, -1);
        train(&fixture, dir, &["--ranks", "2"], sets)
    };
    let refused = cut("one", &elastic);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    for part in ["1 micro-batches of 4", "the run was begun with", "train.micro_batch_size = 2", "--accept-change"] {
        assert!(refused.stderr.contains(part), "no {part:?} in {}", refused.stderr);
    }
    let fast = cut("fast", &elastic[1..]).succeeded();
    assert!(fast.stderr.contains("2 ranks share the batch in ones of 2"), "{}", fast.stderr);
    let log = fixture.read("fast/metrics.jsonl");
    assert!(log.contains("train.micro_batch_size: 4 -> 2 on 2 ranks"), "{log}");
    assert!(fixture.read("fast/recipe.toml").contains("\nmicro_batch_size = 4\n"));
}

/// A row of the embedding that no text uses, so that nothing but reading it tells.
fn with_damaged_weights() -> Fixture {
    let fixture = Fixture::new();
    fixture.set_value("model/model.safetensors", "bert.embeddings.word_embeddings.weight", 90 * 32, f32::NAN);
    fixture
}

const DAMAGED: [&str; 4] = [
    "error[model]: the weights of the model are damaged: 1 of ",
    "values is not finite: NaN at [90, 0]",
    "model/model.safetensors, tensor bert.embeddings.word_embeddings.weight",
    "fix: get the file again",
];

#[test]
fn weights_that_are_not_finite_are_refused_when_they_are_read() {
    let fixture = with_damaged_weights();
    let outcome = fixture.finetune(&[]);
    assert_eq!(outcome.code, 3, "{}", outcome.stderr);
    assert!(DAMAGED.iter().all(|part| outcome.stderr.contains(part)), "{}", outcome.stderr);
}

#[test]
fn ranks_that_read_other_parts_of_damaged_weights_end_with_the_same_code() {
    let fixture = with_damaged_weights();
    let sets = ["train.micro_batch_size=2", "parallel.zero=3"];
    let outcome = train(&fixture, "run", &["--ranks", "2"], &sets);
    assert_eq!(outcome.code, 3, "{}", outcome.stderr);
    assert_eq!(outcome.stderr.matches("error[").count(), 1, "{}", outcome.stderr);
    // Not the port of the other test with processes.
    let port = (40_000 + std::process::id() % 20_000).to_string();
    for outcome in fixture.finetune_processes(2, &port, &sets.map(str::to_owned)) {
        assert_eq!(outcome.code, 3, "{}", outcome.stderr);
        assert!(DAMAGED.iter().all(|part| outcome.stderr.contains(part)), "{}", outcome.stderr);
    }
}

#[test]
fn a_mistake_that_one_rank_finds_ends_all_with_one_message() {
    let fixture = Fixture::new();
    // The weights turn out to be damaged when every rank reads them.
    let mut bytes = fixture.bytes("model/model.safetensors");
    bytes.truncate(bytes.len() - 1000);
    fixture.write_bytes("model/model.safetensors", &bytes);
    let outcome = train(&fixture, "run", &["--ranks", "2"], &["train.micro_batch_size=2"]);
    assert_eq!(outcome.code, 3, "{}", outcome.stderr);
    assert_eq!(outcome.stderr.matches("error[").count(), 1, "{}", outcome.stderr);
}
