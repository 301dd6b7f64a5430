//! The finetune program over pipeline stages: every bit of the losses, norms and weights of one stage, alone and beside
//! tensor-parallel and data-parallel ranks.

mod exported;
mod inspected;
mod lost_stage;
mod models;
mod planned;
mod timed;

use crate::fixture::Fixture;
use crate::tensor::{records, train};
use model_center::run::deterministic_part;
use models::{BERT, Deep, GPT2, LLAMA, T5};

/// Four micro-batches in a step, with dropout; nothing is saved.
const RUN: [&str; 8] = [
    "save.which=none",
    "checkpoint.minutes=0",
    "train.steps=20",
    "train.batch_size=8",
    "train.micro_batch_size=2",
    "train.clip_norm=0.5",
    "model.hidden_dropout=0.1",
    "model.attention_dropout=0.1",
];

/// Schedules over stages, with the number of these.
const SCHEDULES: [(usize, &str); 7] =
    [(2, "gpipe"), (2, "1f1b"), (2, "interleaved"), (2, "zb-1p"), (2, "zb-v"), (3, "1f1b"), (4, "zb-1p")];

fn on_stages(stages: usize, schedule: &str) -> [String; 2] {
    [format!("parallel.pipeline={stages}"), format!("parallel.schedule={schedule}")]
}

/// A run on these ranks; returns what its log has in common with every run of the recipe: losses and norms of all
/// steps, and the digests of weights and optimizer state at the end.
fn course(fixture: &Fixture, dir: &str, ranks: usize, sets: &[&str]) -> String {
    let outcome = train(fixture, dir, ranks, sets).succeeded();
    assert_eq!(outcome.stdout.matches("trained ").count(), 1, "one rank speaks: {}", outcome.stdout);
    let log = fixture.read(&format!("{dir}/metrics.jsonl"));
    let log: String = log.lines().map(|line| deterministic_part(line) + "\n").collect();
    assert!(log.contains("\"optimizer\":") && log.contains("\"grad_norm\":"), "{log}");
    log
}

/// A run over pipeline stages against one over none.
fn assert_same(fixture: &Fixture, (alone, of): (&str, &[&str]), dir: &str, ranks: usize, layout: &[&str]) {
    let staged = course(fixture, dir, ranks, &[of, layout].concat());
    assert!(staged == alone, "{dir}: {layout:?}\n{staged}\n{alone}");
}

/// Every schedule.
fn check_schedules(model: &Deep) {
    let fixture = model.fixture();
    let alone = course(&fixture, "alone", 1, &RUN);
    for (stages, schedule) in SCHEDULES {
        let layout = on_stages(stages, schedule);
        let layout = layout.each_ref().map(String::as_str);
        assert_same(&fixture, (&alone, &RUN), &format!("{stages}{schedule}"), stages, &layout);
    }
}

#[test]
fn a_tied_decoder_over_stages_is_one_stage_bit_for_bit() {
    check_schedules(&GPT2);
}

#[test]
fn an_untied_decoder_over_stages_is_one_stage_bit_for_bit() {
    check_schedules(&LLAMA);
}

#[test]
fn an_encoder_decoder_over_stages_is_one_stage_bit_for_bit() {
    check_schedules(&T5);
}

#[test]
fn a_classifier_over_stages_is_one_stage_bit_for_bit() {
    check_schedules(&BERT);
}

/// Tensor-parallel ranks send parts of what crosses an edge, or have parts of it where they shard tokens.
#[test]
fn stages_of_tensor_parallel_ranks_are_tensor_parallel_ranks_alone_bit_for_bit() {
    for model in [&GPT2, &BERT] {
        let fixture = model.fixture();
        for sequence in ["parallel.sequence=false", "parallel.sequence=true"] {
            let sets = [&RUN[..], &["train.steps=6", "parallel.tensor=2", "parallel.zero=1", sequence]].concat();
            let alone = course(&fixture, &format!("alone{sequence}"), 2, &sets);
            for schedule in ["1f1b", "zb-v"] {
                let (dir, layout) = (format!("{schedule}{sequence}"), on_stages(2, schedule));
                assert_same(&fixture, (&alone, &sets), &dir, 4, &layout.each_ref().map(String::as_str));
            }
        }
    }
}

/// What a recipe can add to a step.
#[test]
fn elastic_sums_16_bits_offload_and_recomputation_over_stages_are_one_stage_bit_for_bit() {
    let fixture = LLAMA.fixture();
    for (number, more) in [
        &["train.gradient_sum=elastic"][..],
        &["model.dtype=bf16"],
        &["train.offload=true", "train.recompute=blocks"],
        &["train.clip_kind=inf", "train.recompute=auto"],
    ]
    .into_iter()
    .enumerate()
    {
        let sets = [&RUN[..], more].concat();
        let alone = course(&fixture, &format!("alone{number}"), 1, &sets);
        let layout = ["parallel.pipeline=2", "parallel.partition=[3, 1]"];
        assert_same(&fixture, (&alone, &sets), &format!("staged{number}"), 2, &layout);
    }
}

/// The first steps overflow at the scale that a run begins with.
#[test]
fn all_stages_skip_the_steps_that_overflow_on_one() {
    let fixture = GPT2.fixture();
    let sets = [&RUN[..], &["model.dtype=f16", "train.lr=1e-2", "train.loss_scale=megatron"]].concat();
    let alone = course(&fixture, "alone", 1, &sets);
    assert!(alone.contains("\"skipped\":true"), "{alone}");
    for schedule in ["1f1b", "zb-v"] {
        let layout = on_stages(2, schedule);
        assert_same(&fixture, (&alone, &sets), schedule, 2, &layout.each_ref().map(String::as_str));
    }
}

#[test]
fn stages_with_data_parallel_ranks_are_data_parallel_ranks_alone() {
    let (tied, untied) = (GPT2.fixture(), LLAMA.fixture());
    for (fixture, level, schedule) in
        [(&tied, 0, "1f1b"), (&tied, 1, "zb-1p"), (&tied, 1, "zb-v"), (&untied, 2, "1f1b"), (&untied, 3, "interleaved")]
    {
        let (level, of) = (format!("parallel.zero={level}"), format!("{schedule}{level}"));
        let sets = [&RUN[..], &["train.micro_batch_size=1", &level]].concat();
        let alone = course(fixture, &format!("alone{of}"), 2, &sets);
        let layout = on_stages(2, schedule);
        assert_same(fixture, (&alone, &sets), &of, 4, &layout.each_ref().map(String::as_str));
    }
}

/// Sums in the elastic order depend on the batch alone, and a pipeline adds nothing to them.
#[test]
fn the_elastic_order_keeps_every_bit_on_any_data_parallel_ranks_and_stages() {
    let fixture = LLAMA.fixture();
    let sets = [&RUN[..], &["train.gradient_sum=elastic"]].concat();
    let alone = course(&fixture, "alone", 1, &sets);
    for (ranks, stages, level) in [(2, 1, 1), (2, 2, 1), (4, 2, 0), (4, 2, 1), (4, 2, 3), (4, 4, 1)] {
        let (stages, level) = (format!("parallel.pipeline={stages}"), format!("parallel.zero={level}"));
        assert_same(&fixture, (&alone, &sets), &format!("{ranks}{stages}{level}"), ranks, &[&stages, &level]);
    }
}

/// f32 sums over two tensor-parallel ranks have other terms than sums on one rank.
const TOLERANCE: f64 = 1e-5;

/// Tensor x pipeline x data ranks against one rank.
#[test]
fn three_dimensions_have_the_losses_of_one_rank() {
    let fixture = GPT2.fixture();
    let sets = [&RUN[..], &["train.steps=30"]].concat();
    train(&fixture, "alone", 1, &sets).succeeded();
    let losses = |dir: &str| -> Vec<f64> {
        records(&fixture, dir, "step").iter().map(|record| record["loss"].as_f64().unwrap()).collect()
    };
    let alone = losses("alone");
    assert_eq!(alone.len(), 30);
    for (dir, ranks, layout) in [
        ("2x2x2", 8, &["parallel.tensor=2", "parallel.pipeline=2", "parallel.zero=1"][..]),
        ("2x1x2", 4, &["parallel.tensor=2", "parallel.zero=3"]),
    ] {
        train(&fixture, dir, ranks, &[&sets[..], layout].concat()).succeeded();
        let found = losses(dir);
        assert_eq!(found.len(), 30);
        for (step, (ours, theirs)) in found.iter().zip(&alone).enumerate() {
            assert!((ours - theirs).abs() <= TOLERANCE * alone[0], "{dir}, step {step}: {ours} and {theirs}");
        }
    }
}

/// Losses and accuracies of evaluations, checkpoints that either layout resumes, and the bytes of the model.
#[test]
fn what_is_evaluated_saved_and_resumed_over_stages_is_that_of_one_stage() {
    for (model, layout) in [
        (&BERT, &["parallel.pipeline=2", "parallel.schedule=zb-v"][..]),
        (&GPT2, &["parallel.pipeline=2"]),
        (&T5, &["parallel.pipeline=2", "parallel.schedule=zb-1p"]),
    ] {
        let fixture = model.evaluated();
        // The last model: the best one may be an earlier one, which a run in another directory does not have.
        let saves =
            ["save.which=last", "train.steps=4", "eval.every=2 steps", "eval.batch_size=3", "checkpoint.every=2 steps"];
        let sets = [&RUN[3..], &saves].concat();
        let weights = |dir: &str| fixture.bytes(&format!("{dir}/model/model.safetensors"));
        let alone = course(&fixture, "alone", 1, &sets);
        assert!(records(&fixture, "alone", "eval").len() > 2);
        assert_same(&fixture, (&alone, &sets), "staged", 2, layout);
        assert!(weights("staged") == weights("alone"), "{:?}", model.golden);
        for (dir, from, ranks, layout) in [("on1", "staged@2", "1", &[][..]), ("on2", "alone@2", "2", layout)] {
            let output = format!("output.dir={dir}");
            let settings = sets.iter().chain(layout).copied().chain([output.as_str()]).flat_map(|set| ["--set", set]);
            let arguments = ["--ranks", ranks, "--resume", from].into_iter().chain(settings).collect::<Vec<_>>();
            let outcome = fixture.finetune(&arguments).succeeded();
            assert!(outcome.stderr.contains("going on after step 2"), "{}", outcome.stderr);
            assert!(weights(dir) == weights("alone"), "{dir}: {:?}", model.golden);
        }
    }
}

#[test]
fn a_pipeline_without_a_micro_batch_size_has_the_fewest_micro_batches_that_fill_it() {
    let fixture = BERT.fixture();
    let unsaved = ["save.which=none", "checkpoint.minutes=0", "train.batch_size=8"];
    let sets = [&unsaved[..], &["parallel.pipeline=2"]].concat();
    let outcome = train(&fixture, "run", 2, &sets).succeeded();
    assert!(outcome.stdout.contains("trained 3 steps"), "{}", outcome.stdout);
    assert!(fixture.read("run/recipe.toml").contains("micro_batch_size = 4"));
    // Where the time went is of the first stage.
    let profiled = ["--ranks", "2", "--profile", "--overwrite"];
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    let outcome = fixture.finetune(&profiled.into_iter().chain(sets).collect::<Vec<_>>()).succeeded();
    assert!(outcome.stderr.contains("matrix products"), "{}", outcome.stderr);
}

#[test]
fn what_a_pipeline_cannot_divide_or_follow_is_named_at_once() {
    let tied = GPT2.fixture();
    let refused = |ranks: usize, sets: &[&str], parts: &[&str]| {
        let error = train(&tied, "run", ranks, &[&RUN[..], sets].concat()).refused();
        for part in parts {
            assert!(error.contains(part), "no {part:?} in {error}");
        }
        assert_eq!(error.matches("error[recipe]").count(), 1, "{error}");
        assert!(!tied.path("run").exists());
    };
    refused(
        16,
        &["parallel.pipeline=8", "parallel.zero=1"],
        &[
            "`parallel.schedule` = \"1f1b\" over 8 pipeline stages needs at least 8 micro-batches of a data rank, and \
             a step has 2",
            "4 blocks cannot be divided over 8 model chunks of a pipeline",
            "set parallel.pipeline = 4",
        ],
    );
    refused(
        4,
        &[
            "parallel.pipeline=2",
            "parallel.schedule=interleaved",
            "train.batch_size=12",
            "parallel.partition=[1, 1, 1, 2]",
        ],
        &[
            "needs a multiple of 2 micro-batches of a data rank, and a step has 3",
            "set train.micro_batch_size = 1",
            "`parallel.partition` divides 5 blocks",
            "the 4 blocks of the model, such as [1, 1, 1, 1]",
            "is on the first and on the last pipeline stage",
        ],
    );
    refused(
        4,
        &["parallel.pipeline=2", "parallel.schedule=zb-1p", "train.gradient_sum=elastic"],
        &[
            "`parallel.zero` = 3 with `train.gradient_sum` = \"elastic\" reduces them with it",
            "set parallel.zero = 1 and train.gradient_sum = \"fast\", or parallel.schedule = \"1f1b\"",
        ],
    );
    refused(4, &["parallel.pipeline=2"], &["is on the first and on the last pipeline stage", "set parallel.zero = 1"]);
    refused(3, &["parallel.pipeline=2"], &["3 ranks cannot be divided by 2 pipeline stages", "start 2 or 4 ranks"]);
}
