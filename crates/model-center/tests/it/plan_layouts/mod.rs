//! Layouts in three dimensions, planned from `config.json` alone: every rank's pool against real runs on rank threads,
//! and against what sharding predicts.

mod runs;
mod sharding;

use crate::goldens::directory;
use bmtrain_core::pool::Report;
use bmtrain_core::{DType, Segment};
use bmtrain_dist::block::Recompute;
use bmtrain_dist::optim::ScalePolicy;
use bmtrain_dist::param::{F32Parameters, NamePatterns};
use bmtrain_dist::pipeline::{PartitionRule, ScheduleKind};
use bmtrain_dist::shard::{GradientSum, ZeroLevel};
use model_center::model::{Registry, TextHead};
use model_center::plan::layout::{LayoutRun, count_rank};
use model_center::recipe::{OptimizerSettings, Parallel, StagePartition};
use serde_json::{Value, json};
use std::path::Path;

const CLASSES: TextHead = TextHead::Classification { outputs: 2 };
const LM: TextHead = TextHead::CausalLm;

/// A golden configuration with fields changed, as a directory with `config.json` alone.
fn config_only(golden: (&str, &str), fields: &Value) -> tempfile::TempDir {
    let text = std::fs::read_to_string(directory(golden.0, golden.1).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    for (name, value) in fields.as_object().into_iter().flatten() {
        config[name] = value.clone();
    }
    let to = tempfile::tempdir().unwrap();
    std::fs::write(to.path().join("config.json"), config.to_string()).unwrap();
    to
}

fn model(family: &str) -> tempfile::TempDir {
    let (golden, fields) = match family {
        "gpt2" => (("gpt2_a", "lm"), json!({"n_embd": 64, "n_layer": 4, "n_positions": 64, "vocab_size": 500})),
        "gpt2-untied" => {
            (("gpt2_a", "untied"), json!({"n_embd": 64, "n_layer": 5, "n_positions": 64, "vocab_size": 500}))
        }
        "llama" => {
            let fields = json!({"hidden_size": 64, "head_dim": 16, "intermediate_size": 176, "num_hidden_layers": 4,
                "vocab_size": 400, "max_position_embeddings": 64});
            (("llama_a", "untied"), fields)
        }
        "qwen3" => {
            let fields = json!({"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "head_dim": 16,
                "num_attention_heads": 4, "num_key_value_heads": 1, "vocab_size": 300,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]});
            (("qwen3_a", "lm"), fields)
        }
        "bert" => {
            let fields = json!({"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 4,
                "max_position_embeddings": 64, "vocab_size": 300});
            (("bert_a", "mlm"), fields)
        }
        "megatron-bert" => {
            let fields = json!({"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 4,
                "max_position_embeddings": 64, "vocab_size": 300});
            (("megatron_bert_a", "mlm"), fields)
        }
        "opt" => {
            let fields = json!({"hidden_size": 64, "word_embed_proj_dim": 64, "ffn_dim": 256, "num_hidden_layers": 4,
                "max_position_embeddings": 64, "vocab_size": 300});
            (("opt_a", "lm"), fields)
        }
        "bloom" => (("bloom_a", "lm"), json!({"hidden_size": 64, "n_layer": 4, "vocab_size": 300})),
        "t5" => {
            let fields = json!({"d_model": 64, "d_ff": 128, "d_kv": 16, "num_layers": 2, "num_decoder_layers": 3,
                "vocab_size": 300});
            (("t5_a", "lm"), fields)
        }
        "bart" => {
            let fields = json!({"d_model": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
                "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "encoder_layers": 2, "decoder_layers": 2,
                "max_position_embeddings": 64, "vocab_size": 300});
            (("bart_a", "lm"), fields)
        }
        "cpm_t5" => {
            let fields = json!({"hidden_size": 64, "ff_hidden_size": 128, "kv_hidden_size": 16, "num_layers": 2,
                "num_decoder_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 64, "vocab_size": 300});
            (("cpm_t5_b", "lm"), fields)
        }
        other => panic!("no family {other}"),
    };
    config_only(golden, &fields)
}

const GPIPE: (ScheduleKind, usize) = (ScheduleKind::GPipe, 1);
const ONE: (ScheduleKind, usize) = (ScheduleKind::OneForwardOneBackward, 1);
const INTERLEAVED: (ScheduleKind, usize) = (ScheduleKind::Interleaved, 2);
const ZB_1P: (ScheduleKind, usize) = (ScheduleKind::ZeroBubble, 1);
const ZB_V: (ScheduleKind, usize) = (ScheduleKind::ZeroBubbleV, 2);

/// A run of 2 sequences of 32 tokens in each of 4 micro-batches.
fn layout([tensor, pipeline, data]: [usize; 3], (schedule, chunks): (ScheduleKind, usize), zero: u64) -> LayoutRun {
    LayoutRun {
        config: None,
        parallel: Parallel {
            zero: ZeroLevel::from_number(zero).unwrap(),
            prefetch: true,
            tensor,
            sequence: false,
            pipeline,
            virtual_stages: chunks,
            schedule,
            partition: StagePartition::Rule(PartitionRule::Parameters),
        },
        data,
        sum: GradientSum::Fast,
        family: None,
        head: LM,
        dtype: DType::F32,
        f32_parameters: F32Parameters::default(),
        frozen: NamePatterns::default(),
        trained: None,
        adapter: None,
        gradient_dtype: DType::F32,
        recompute: Recompute::Keep,
        dropout: [Some(0.1), Some(0.1)],
        optimizer: OptimizerSettings::default(),
        offload: false,
        scale: ScalePolicy::NONE,
        on_cuda: false,
        micro_batch: 2,
        micro_batches: 4,
        length: 32,
        target: 16,
    }
}

/// The same with tokens sharded over tensor ranks.
fn sequence(run: LayoutRun) -> LayoutRun {
    LayoutRun { parallel: Parallel { sequence: true, ..run.parallel }, ..run }
}

fn partition(run: LayoutRun, rule: PartitionRule) -> LayoutRun {
    let partition = StagePartition::Rule(rule);
    LayoutRun { parallel: Parallel { partition, ..run.parallel }, ..run }
}

/// Families, tensor, sequence, pipeline, schedule, data, ZeRO, recomputation and dtype.
fn configurations() -> Vec<(&'static str, LayoutRun)> {
    let recompute = |run: LayoutRun, recompute| LayoutRun { recompute, ..run };
    let half = |run: LayoutRun| LayoutRun { dtype: DType::BF16, ..run };
    let bf16 = |run: LayoutRun| LayoutRun { gradient_dtype: DType::BF16, ..half(run) };
    let mixed = |run: LayoutRun, token_types| {
        let f32_parameters = F32Parameters { embeddings: true, norms: true, token_types };
        LayoutRun { f32_parameters, ..half(run) }
    };
    let long = |run: LayoutRun| LayoutRun { length: 64, micro_batch: 3, ..run };
    let head = |run: LayoutRun, head| LayoutRun { head, ..run };
    let many = |run: LayoutRun| LayoutRun { micro_batches: 8, ..run };
    use Recompute::{Auto, Checkpoint};
    vec![
        ("gpt2", layout([1, 1, 1], ONE, 0)),
        ("gpt2", long(layout([2, 1, 1], ONE, 0))),
        ("gpt2", sequence(layout([2, 1, 2], ONE, 3))),
        ("gpt2", layout([1, 2, 1], GPIPE, 0)),
        ("gpt2", many(layout([1, 2, 2], ONE, 1))),
        ("gpt2", many(layout([1, 4, 1], ONE, 0))),
        ("gpt2", layout([2, 2, 2], ONE, 1)),
        ("gpt2-untied", layout([1, 2, 2], ONE, 3)),
        ("gpt2-untied", partition(layout([1, 2, 2], ONE, 2), PartitionRule::Given(vec![1, 4]))),
        ("gpt2", recompute(many(layout([1, 2, 1], INTERLEAVED, 0)), Checkpoint)),
        ("gpt2", many(layout([1, 2, 1], ZB_1P, 0))),
        ("gpt2", many(layout([1, 2, 2], ZB_V, 1))),
        ("llama", long(layout([2, 2, 1], ONE, 0))),
        ("llama", bf16(layout([2, 1, 2], ONE, 3))),
        ("llama", sequence(half(layout([2, 2, 2], INTERLEAVED, 1)))),
        ("llama", recompute(layout([4, 1, 1], ONE, 0), Checkpoint)),
        ("qwen3", layout([2, 2, 1], ZB_1P, 0)),
        ("qwen3", sequence(recompute(layout([4, 1, 2], ONE, 2), Checkpoint))),
        ("bert", head(layout([2, 2, 1], ONE, 0), TextHead::MaskedLm)),
        ("bert", head(layout([1, 2, 2], GPIPE, 1), CLASSES)),
        ("bert", head(long(layout([1, 1, 4], ONE, 3)), CLASSES)),
        ("megatron-bert", head(layout([2, 2, 1], ONE, 0), TextHead::MaskedLm)),
        ("megatron-bert", head(long(layout([1, 1, 2], ONE, 3)), CLASSES)),
        ("opt", recompute(layout([2, 2, 2], ONE, 0), Checkpoint)),
        ("opt", recompute(long(layout([1, 2, 1], ONE, 0)), Auto)),
        ("bloom", half(layout([2, 2, 1], ONE, 0))),
        ("bloom", partition(layout([2, 4, 1], ONE, 0), PartitionRule::Count)),
        ("t5", layout([1, 2, 1], ONE, 0)),
        ("t5", layout([2, 2, 1], ONE, 0)),
        ("t5", recompute(half(layout([2, 1, 2], ONE, 1)), Checkpoint)),
        ("cpm_t5", layout([2, 2, 1], ONE, 0)),
        ("cpm_t5", half(layout([1, 2, 2], ONE, 1))),
        ("bart", many(layout([1, 2, 2], ONE, 1))),
        ("bart", layout([2, 2, 1], ZB_1P, 0)),
        ("gpt2", mixed(layout([1, 2, 1], ONE, 0), false)),
        ("llama", mixed(sequence(layout([2, 1, 2], ONE, 3)), false)),
        ("bert", head(mixed(layout([1, 1, 2], ONE, 3), true), TextHead::MaskedLm)),
    ]
}

fn peak(report: &Report, segment: Segment) -> usize {
    report.segments.iter().find(|(known, _)| *known == segment).map_or(0, |(_, usage)| usage.peak)
}

/// By how much of the measured peak the planned one is larger, on the rank where it differs most either way.
fn check(directory: &Path, run: &LayoutRun) -> (f64, f64) {
    let (mut over, mut under) = (0.0f64, 0.0f64);
    for (rank, measured) in runs::measure(directory, run).into_iter().enumerate() {
        let planned = count_rank(directory, Registry::default(), run, rank).unwrap();
        for class in [Segment::Parameters, Segment::Optimizer, Segment::Gathered] {
            assert_eq!(peak(&planned.memory, class), peak(&measured, class), "rank {rank}, {class:?}: {run:?}");
        }
        let excess = planned.memory.total.peak as f64 / measured.total.peak as f64 - 1.0;
        if !(-0.02..=0.05).contains(&excess) {
            let classes = Segment::ALL.map(|class| (class, peak(&planned.memory, class), peak(&measured, class)));
            eprintln!("    rank {rank}: {:+.2} %, planned and measured: {classes:?}", 100.0 * excess);
        }
        (over, under) = (over.max(excess), under.min(excess));
    }
    (over, under)
}

/// Without sequence sharding the hidden states are the same on all tensor-parallel ranks, and with it each has a part.
#[test]
fn tensor_parallel_ranks_send_a_part_each_over_the_edges_of_stages() {
    // Without a tied embedding, whose gradients the first and the last stage add.
    let directory = model("gpt2-untied");
    let sent = |run: LayoutRun, rank| count_rank(directory.path(), Registry::default(), &run, rank).unwrap().sent;
    let alone = sent(layout([1, 2, 1], ONE, 0), 1).pipeline;
    // Gradients of 4 micro-batches of 2 x 32 x 64 values, and what stages send each other beside them.
    let flow = 4 * 2 * 32 * 64 * 4;
    assert!((flow..flow + 1024).contains(&alone), "{alone}");
    for (run, rank) in
        [(layout([2, 2, 1], ONE, 0), 2), (layout([2, 2, 1], ONE, 0), 3), (sequence(layout([2, 2, 1], ONE, 0)), 2)]
    {
        assert_eq!(sent(run, rank).pipeline, alone - flow / 2);
    }
    let four = LayoutRun {
        parallel: Parallel { tensor: 4, ..layout([1, 2, 1], ONE, 0).parallel },
        ..layout([1, 2, 1], ONE, 0)
    };
    assert_eq!(sent(four, 4).pipeline, alone - flow / 4 * 3);
}

#[test]
fn planned_peaks_of_every_rank_are_those_of_real_runs() {
    let all = configurations();
    assert_eq!(all.len(), 37);
    let (mut over, mut under) = (0.0f64, 0.0f64);
    for (family, run) in all {
        let directory = model(family);
        let (most, least) = check(directory.path(), &run);
        let (parallel, data) = (&run.parallel, run.data);
        eprintln!(
            "{family} {}x{}x{data} {} ZeRO-{} {:?} {}: planned {:+.2} % to {:+.2} % of measured",
            parallel.tensor,
            parallel.pipeline,
            parallel.schedule,
            parallel.zero.number(),
            run.recompute,
            run.dtype,
            100.0 * least,
            100.0 * most
        );
        (over, under) = (over.max(most), under.min(least));
    }
    println!("figure: +{:.2}%/{:.2}%", 100.0 * over, 100.0 * under);
    assert!(over <= 0.05 && under >= -0.02, "+{over}, {under} of the measured peaks");
}
