//! Tensor parallelism against one rank, for every family: losses, gradients, norm and logits of the same tiny model
//! with the same initial values and the same dropout masks.

pub mod activations;
mod checkpoints;
mod directories;
mod dtypes;
pub mod ranks;
mod runs;

use crate::goldens::directories::{logits, open, opened};
use crate::goldens::{directory, inputs};
use bmtrain_core::comm::host::{HostGroup, HostOptions, HostRank};
use bmtrain_core::comm::{Communicator, CountingRank};
use bmtrain_core::{DType, Device, Segment};
use bmtrain_dist::Mesh;
use bmtrain_dist::param::{BuilderOptions, InitMode, Split, TensorGroup};
use bmtrain_dist::shard::ZeroLevel;
use model_center::config::{
    AlbertConfig, BartConfig, BertConfig, BloomConfig, Config, Cpm1Config, Cpm2Config, CpmT5Config, CwmConfig,
    DistilBertConfig, ElectraConfig, Gemma2Config, Gemma3Config, Glm4Config, Gpt2Config, GptNeoxConfig, GptjConfig,
    GraniteConfig, LlamaConfig, MarianConfig, MegatronBertConfig, MinistralConfig, MistralConfig, ModernBertConfig,
    MpnetConfig, Olmo2Config, OptConfig, Phi3Config, Qwen2Config, Qwen3Config, RobertaConfig, SeedOssConfig,
    SmolLm3Config, T5Config,
};
use model_center::model::{
    Head, OpenOptions, albert, bart, bert, bloom, cpm_t5, cpm1, cpm2, cwm, distilbert, electra, gemma2, gemma3, glm4,
    gpt_neox, gpt2, gptj, granite, llama, marian, megatron_bert, ministral, mistral, modernbert, mpnet, olmo2, opt,
    phi3, qwen2, qwen3, roberta, seed_oss, smollm3, t5,
};
use runs::{Job, check_parity, on_mesh};
use serde_json::json;
use std::sync::Arc;

const TIED: Head = Head::CausalLm { tied: true };
const UNTIED: Head = Head::CausalLm { tied: false };
const CLASSES: Head = Head::Classifier { outputs: 3 };

/// Declares how a family's model is built from the text of its configuration.
macro_rules! family {
    ($model:ty, $config:ty) => {
        family!($model, $config, text)
    };
    ($model:ty, $config:ty, $($common:ident).+) => {
        |text, dropout, recompute, device, head, builder| {
            let mut config = <$config as Config>::from_json(text, "config.json").map_err(|error| error.to_string())?;
            let text = &mut config.$($common).+;
            (text.dropout_p, text.embedding_dropout_p, text.attention_dropout_p) = (dropout, dropout, dropout);
            let blocks = bmtrain_dist::block::BlockOptions::from(recompute);
            let model = <$model>::new(device, config, head, blocks, builder).map_err(|error| error.to_string())?;
            Ok(Box::new(model) as Box<dyn model_center::model::TextModel>)
        }
    };
}

/// One test for each family: the golden configuration with fields changed, its heads, and numbers of tensor ranks.
macro_rules! parity_tests {
    ($($name:ident: ($($family:tt)+), $golden:literal, $fields:tt, $cases:expr;)*) => {
        $(
            #[test]
            fn $name() {
                for (head, inputs, tensor) in $cases {
                    let (golden, fields) = (($golden, inputs), json!($fields));
                    let job = Job { golden, fields, head, build: family!($($family)+), ..Job::default() };
                    check_parity(&job, tensor);
                }
            }
        )*
    };
}

parity_tests! {
    bert_on_two_and_four_ranks_is_bert_on_one: (bert::Bert, BertConfig), "bert_a", {},
        [(Head::MaskedLm, "mlm", 2), (Head::MaskedLm, "mlm", 4), (Head::Pretraining, "pretraining", 4),
        (CLASSES, "cls", 2)];
    megatron_bert_on_two_and_four_ranks_is_megatron_bert_on_one: (megatron_bert::MegatronBert, MegatronBertConfig),
        "megatron_bert_a", {},
        [(Head::MaskedLm, "mlm", 2), (Head::MaskedLm, "mlm", 4), (Head::Pretraining, "pretraining", 4),
        (CLASSES, "cls", 2)];
    roberta_on_two_and_four_ranks_is_roberta_on_one: (roberta::Roberta, RobertaConfig), "roberta_a", {},
        [(Head::MaskedLm, "mlm", 2), (Head::MaskedLm, "mlm", 4), (CLASSES, "cls", 2)];
    distilbert_on_two_and_four_ranks_is_distilbert_on_one: (distilbert::DistilBert, DistilBertConfig), "distilbert_a",
        {"hidden_dim": 24}, [(Head::MaskedLm, "mlm", 2), (Head::MaskedLm, "mlm", 4), (CLASSES, "cls", 2)];
    electra_on_two_and_four_ranks_is_electra_on_one: (electra::Electra, ElectraConfig), "electra_a", {},
        [(Head::MaskedLm, "mlm", 2), (Head::MaskedLm, "mlm", 4), (CLASSES, "cls", 2)];
    mpnet_on_two_and_four_ranks_is_mpnet_on_one: (mpnet::Mpnet, MpnetConfig), "mpnet_a", {},
        [(Head::MaskedLm, "mlm", 2), (Head::MaskedLm, "mlm", 4), (CLASSES, "cls", 2)];
    albert_on_two_and_four_ranks_is_albert_on_one: (albert::Albert, AlbertConfig), "albert_a",
        {"intermediate_size": 24},
        [(Head::MaskedLm, "mlm", 2), (Head::Pretraining, "pretraining", 4), (CLASSES, "cls", 2)];
    modernbert_with_windows_and_gates_is_modernbert_on_one: (modernbert::ModernBert, ModernBertConfig), "modernbert_a",
        {"hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 24},
        [(Head::MaskedLm, "mlm", 2), (Head::MaskedLm, "mlm", 4), (CLASSES, "cls", 2)];
    modernbert_with_biases_is_modernbert_on_one: (modernbert::ModernBert, ModernBertConfig), "modernbert_b",
        {"hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 24}, [(Head::MaskedLm, "mlm", 2)];
    gpt2_on_two_and_four_ranks_is_gpt2_on_one: (gpt2::Gpt2, Gpt2Config), "gpt2_a", {},
        [(TIED, "lm", 2), (TIED, "lm", 4), (UNTIED, "untied", 4), (CLASSES, "cls", 2)];
    gptj_on_two_and_four_ranks_is_gptj_on_one: (gptj::Gptj, GptjConfig), "gptj_a", {},
        [(UNTIED, "lm", 2), (UNTIED, "lm", 4)];
    llama_with_fewer_kv_heads_than_ranks_is_llama_on_one: (llama::Llama, LlamaConfig), "llama_a",
        {"intermediate_size": 32}, [(TIED, "lm", 2), (TIED, "lm", 4), (UNTIED, "untied", 4)];
    mistral_with_one_kv_head_is_mistral_on_one: (mistral::Mistral, MistralConfig), "mistral_b",
        {"intermediate_size": 24, "num_attention_heads": 4}, [(TIED, "lm", 2), (TIED, "lm", 4), (UNTIED, "untied", 4)];
    mistral_with_windows_is_mistral_on_one: (mistral::Mistral, MistralConfig), "mistral_a",
        {"intermediate_size": 32, "num_attention_heads": 8}, [(TIED, "lm", 2), (TIED, "lm", 4)];
    qwen2_with_fewer_kv_heads_than_ranks_is_qwen2_on_one: (qwen2::Qwen2, Qwen2Config), "qwen2_a",
        {"intermediate_size": 28}, [(TIED, "lm", 2), (TIED, "lm", 4)];
    qwen3_with_norms_of_heads_is_qwen3_on_one: (qwen3::Qwen3, Qwen3Config), "qwen3_a", {"intermediate_size": 24},
        [(TIED, "lm", 2), (TIED, "lm", 4), (UNTIED, "untied", 4)];
    gemma2_with_a_soft_cap_of_sharded_logits_is_gemma2_on_one: (gemma2::Gemma2, Gemma2Config), "gemma2_a",
        {"intermediate_size": 24}, [(TIED, "lm", 2), (TIED, "lm", 4)];
    gemma3_with_four_norms_a_block_is_gemma3_on_one: (gemma3::Gemma3, Gemma3Config), "gemma3_a",
        {"intermediate_size": 24}, [(TIED, "lm", 2), (TIED, "lm", 4)];
    granite_with_factors_is_granite_on_one: (granite::Granite, GraniteConfig), "granite_a", {"intermediate_size": 28},
        [(TIED, "lm", 2), (TIED, "lm", 4)];
    glm4_with_norms_before_and_after_layers_is_glm4_on_one: (glm4::Glm4, Glm4Config), "glm4_a",
        {"intermediate_size": 28}, [(TIED, "lm", 2), (TIED, "lm", 4)];
    phi3_with_parts_of_heads_is_phi3_on_one: (phi3::Phi3, Phi3Config), "phi3_b",
        {"intermediate_size": 28, "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2},
        [(TIED, "lm", 2), (TIED, "lm", 4)];
    smollm3_with_layers_without_positions_is_smollm3_on_one: (smollm3::SmolLm3, SmolLm3Config), "smollm3_a",
        {"intermediate_size": 28}, [(TIED, "lm", 2), (TIED, "lm", 4)];
    ministral_with_windows_in_some_layers_is_ministral_on_one: (ministral::Ministral, MinistralConfig), "ministral_a",
        {"intermediate_size": 28}, [(TIED, "lm", 2), (TIED, "lm", 4)];
    seed_oss_with_biases_is_seed_oss_on_one: (seed_oss::SeedOss, SeedOssConfig), "seed_oss_a",
        {"intermediate_size": 28}, [(TIED, "lm", 2), (TIED, "lm", 4)];
    cwm_with_its_windows_is_cwm_on_one: (cwm::Cwm, CwmConfig), "cwm_a", {"intermediate_size": 28},
        [(TIED, "lm", 2), (TIED, "lm", 4)];
    gpt_neox_with_a_norm_for_each_of_two_layers_is_gpt_neox_on_one: (gpt_neox::GptNeox, GptNeoxConfig), "gpt_neox_a",
        {"intermediate_size": 28, "hidden_size": 32, "num_attention_heads": 4},
        [(TIED, "lm", 2), (UNTIED, "untied", 4)];
    opt_on_two_and_four_ranks_is_opt_on_one: (opt::Opt, OptConfig), "opt_a", {"ffn_dim": 32},
        [(TIED, "lm", 2), (TIED, "lm", 4), (UNTIED, "untied", 4)];
    bloom_with_slopes_of_all_heads_is_bloom_on_one: (bloom::Bloom, BloomConfig), "bloom_a", {},
        [(TIED, "lm", 2), (TIED, "lm", 4), (UNTIED, "untied", 4)];
    t5_on_two_and_four_ranks_is_t5_on_one: (t5::T5, T5Config), "t5_a", {"d_ff": 28}, [(TIED, "lm", 2), (TIED, "lm", 4)];
    mt5_on_two_and_four_ranks_is_mt5_on_one: (t5::T5, T5Config), "t5_mt5", {"num_heads": 4, "d_ff": 24},
        [(UNTIED, "lm", 2), (UNTIED, "lm", 4)];
    bart_on_two_and_four_ranks_is_bart_on_one: (bart::Bart, BartConfig, stacks.text), "bart_a",
        {"d_model": 20, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 28,
        "decoder_ffn_dim": 24, "activation_dropout": 0.1},
        [(TIED, "lm", 2), (TIED, "lm", 4)];
    marian_on_two_and_four_ranks_is_marian_on_one: (marian::Marian, MarianConfig, stacks.text), "marian_b",
        {"d_model": 24, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 20,
        "decoder_ffn_dim": 36, "activation_dropout": 0.1},
        [(TIED, "lm", 2), (TIED, "lm", 4)];
    cpm1_on_two_and_four_ranks_is_cpm1_on_one: (cpm1::Cpm1, Cpm1Config), "cpm1_b", {"dim_ff": 16, "length_scale": true},
        [(TIED, "lm", 2), (TIED, "lm", 4), (UNTIED, "untied", 4)];
    cpm2_on_two_and_four_ranks_is_cpm2_on_one: (cpm2::Cpm2, Cpm2Config), "cpm2_b", {"num_heads": 4, "dim_ff": 16},
        [(UNTIED, "lm", 2), (UNTIED, "lm", 4)];
    cpm_t5_with_biases_is_cpm_t5_on_one: (cpm_t5::CpmT5, CpmT5Config), "cpm_t5_b",
        {"num_attention_heads": 4, "ff_hidden_size": 16}, [(TIED, "lm", 2), (TIED, "lm", 4)];
    cpm_t5_with_the_norms_of_cpm_pretrain_is_cpm_t5_on_one: (cpm_t5::CpmT5, CpmT5Config), "cpm_t5_c",
        {"num_attention_heads": 2}, [(TIED, "lm", 2)];
}

fn gpt2_job() -> Job {
    Job { golden: ("gpt2_a", "lm"), head: TIED, build: family!(gpt2::Gpt2, Gpt2Config), ..Job::default() }
}

fn bert_job() -> Job {
    let build: runs::Build = family!(bert::Bert, BertConfig);
    Job { golden: ("bert_a", "mlm"), head: Head::MaskedLm, build, ..Job::default() }
}

/// Kv heads that ranks share, norms of heads, and a vocabulary of 43 tokens, none of them on the last of four ranks;
/// two micro-batches.
fn qwen3_job() -> Job {
    let fields = json!({"intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 1});
    let build: runs::Build = family!(qwen3::Qwen3, Qwen3Config);
    Job { golden: ("qwen3_a", "lm"), fields, head: TIED, build, micro_batches: 2, ..Job::default() }
}

#[test]
fn tensor_and_data_parallel_ranks_with_every_zero_level_are_one_rank() {
    let job = Job { micro_batches: 2, ..gpt2_job() };
    let alone = on_mesh(&job, 1, 1);
    for level in [ZeroLevel::Zero, ZeroLevel::One, ZeroLevel::Two, ZeroLevel::Three] {
        for sequence in [false, true] {
            on_mesh(&Job { level, sequence, ..job.clone() }, 4, 2).check_losses_and_norms(&alone);
        }
    }
    // Terms of shared kv heads and of norms of heads, in shards.
    let job = qwen3_job();
    let alone = on_mesh(&job, 1, 1);
    for (level, sequence) in [(ZeroLevel::One, false), (ZeroLevel::Three, false), (ZeroLevel::Three, true)] {
        on_mesh(&Job { level, sequence, ..job.clone() }, 4, 2).check_losses_and_norms(&alone);
    }
}

/// Kv heads that ranks share, fused projections with and without gates, attention to an encoder; dropout of the inputs
/// of updates.
#[test]
fn low_rank_updates_on_several_ranks_are_those_of_one() {
    let t5: runs::Build = family!(t5::T5, T5Config);
    let t5 = Job { golden: ("t5_a", "lm"), fields: json!({"d_ff": 28}), head: TIED, build: t5, ..Job::default() };
    for (job, tensor) in [(gpt2_job(), 2), (gpt2_job(), 4), (qwen3_job(), 4), (bert_job(), 2), (t5, 2)] {
        check_parity(&Job { low_rank: Some(2), ..job }, tensor);
    }
    let job = Job { low_rank: Some(3), ..qwen3_job() };
    let alone = on_mesh(&job, 1, 1);
    for level in [ZeroLevel::Zero, ZeroLevel::One, ZeroLevel::Two, ZeroLevel::Three] {
        for sequence in [false, true] {
            on_mesh(&Job { level, sequence, ..job.clone() }, 4, 2).check_losses_and_norms(&alone);
        }
    }
    let recompute = bmtrain_dist::block::Recompute::Checkpoint;
    on_mesh(&Job { recompute, level: ZeroLevel::Three, ..job.clone() }, 2, 1).check_losses_and_norms(&alone);
}

/// Lengths of rows that ranks have parts of, and factors of split and of replicated outputs and inputs.
#[test]
fn magnitudes_and_factors_on_several_ranks_are_those_of_one() {
    let t5: runs::Build = family!(t5::T5, T5Config);
    let t5 = Job { golden: ("t5_a", "lm"), fields: json!({"d_ff": 28}), head: TIED, build: t5, ..Job::default() };
    let of = |job: Job| [Job { low_rank: Some(2), magnitude: true, ..job.clone() }, Job { factors: true, ..job }];
    for (job, tensor) in [(gpt2_job(), 2), (qwen3_job(), 4), (bert_job(), 2), (t5, 2)] {
        of(job).iter().for_each(|job| check_parity(job, tensor));
    }
    for job in of(qwen3_job()) {
        let alone = on_mesh(&job, 1, 1);
        for (level, sequence) in [(ZeroLevel::Two, false), (ZeroLevel::Three, true)] {
            on_mesh(&Job { level, sequence, ..job.clone() }, 4, 2).check_losses_and_norms(&alone);
        }
        let recompute = bmtrain_dist::block::Recompute::Checkpoint;
        on_mesh(&Job { recompute, level: ZeroLevel::Three, ..job.clone() }, 2, 1).check_losses_and_norms(&alone);
    }
}

/// Keys and values of heads that ranks have, or share, before the tokens'; slopes of the ranks' heads.
#[test]
fn keys_and_values_of_virtual_tokens_on_several_ranks_are_those_of_one() {
    let bloom: runs::Build = family!(bloom::Bloom, BloomConfig);
    let bloom = Job { golden: ("bloom_a", "lm"), head: TIED, build: bloom, ..Job::default() };
    let mut qwen3 = qwen3_job();
    qwen3.fields["use_sliding_window"] = json!(false);
    qwen3.fields["layer_types"] = json!(["full_attention", "full_attention", "full_attention"]);
    for (job, tensor) in [(gpt2_job(), 2), (qwen3.clone(), 4), (bloom, 2)] {
        check_parity(&Job { prefix: Some(3), ..job }, tensor);
    }
    let job = Job { prefix: Some(2), ..qwen3 };
    let alone = on_mesh(&job, 1, 1);
    for (level, sequence) in [(ZeroLevel::Two, false), (ZeroLevel::Three, true)] {
        on_mesh(&Job { level, sequence, ..job.clone() }, 4, 2).check_losses_and_norms(&alone);
    }
    for recompute in [bmtrain_dist::block::Recompute::Checkpoint, bmtrain_dist::block::Recompute::Attention] {
        on_mesh(&Job { recompute, level: ZeroLevel::Three, ..job.clone() }, 2, 1).check_losses_and_norms(&alone);
    }
}

/// Maps that every rank has, after sums over the ranks, of all tokens or of a rank's.
#[test]
fn bottlenecks_on_several_ranks_are_those_of_one() {
    let t5: runs::Build = family!(t5::T5, T5Config);
    let t5 = Job { golden: ("t5_a", "lm"), fields: json!({"d_ff": 28}), head: TIED, build: t5, ..Job::default() };
    for (job, tensor) in [(gpt2_job(), 2), (qwen3_job(), 4), (bert_job(), 2), (t5, 2)] {
        check_parity(&Job { bottleneck: Some(3), ..job }, tensor);
    }
    let job = Job { bottleneck: Some(2), ..qwen3_job() };
    let alone = on_mesh(&job, 1, 1);
    for (level, sequence) in [(ZeroLevel::Two, false), (ZeroLevel::Three, true)] {
        on_mesh(&Job { level, sequence, ..job.clone() }, 4, 2).check_losses_and_norms(&alone);
    }
    let recompute = bmtrain_dist::block::Recompute::Checkpoint;
    on_mesh(&Job { recompute, level: ZeroLevel::Three, ..job.clone() }, 2, 1).check_losses_and_norms(&alone);
}

#[test]
fn logits_of_label_words_come_from_the_ranks_that_have_them() {
    // 97 tokens, 56 on the first of two ranks: tokens of both, and one twice.
    let job = Job { label_words: Some([3, 90, 3]), ..gpt2_job() };
    check_parity(&job, 2);
    // With a bias of the vocabulary.
    let build: runs::Build = family!(gptj::Gptj, GptjConfig);
    check_parity(&Job { golden: ("gptj_a", "lm"), head: UNTIED, build, label_words: Some([3, 50, 20]), ..job }, 4);
}

#[test]
fn blocks_that_are_recomputed_have_the_same_masks() {
    for recompute in [bmtrain_dist::block::Recompute::Checkpoint, bmtrain_dist::block::Recompute::Auto] {
        check_parity(&Job { recompute, ..gpt2_job() }, 2);
    }
}

#[test]
fn an_overflow_is_skipped_by_all_ranks_alike() {
    let run = on_mesh(&Job { weight: f32::INFINITY, steps: 1, ..gpt2_job() }, 2, 2);
    assert!(run.ranks.iter().all(|rank| rank.skipped == [true] && rank.broken.is_some()));
    assert_eq!(run.ranks[0].broken, run.ranks[1].broken);
}

/// A vocabulary with padding, kv heads that ranks share, and norms of heads: each value counts once.
#[test]
fn statistics_of_parameters_are_those_of_one_rank() {
    let fields = json!({"intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 1});
    let build: runs::Build = family!(qwen3::Qwen3, Qwen3Config);
    let qwen3 = Job { golden: ("qwen3_a", "lm"), fields, build, micro_batches: 2, steps: 1, ..gpt2_job() };
    for job in [qwen3, Job { micro_batches: 2, steps: 1, ..gpt2_job() }] {
        let alone = on_mesh(&job, 1, 1);
        for (level, world, tensor) in [(ZeroLevel::Zero, 2, 2), (ZeroLevel::Zero, 4, 2), (ZeroLevel::Two, 4, 2)] {
            on_mesh(&Job { level, ..job.clone() }, world, tensor).check_rows(&alone);
        }
        on_mesh(&Job { level: ZeroLevel::Three, ..job.clone() }, 4, 4).check_rows(&alone);
    }
}

#[test]
fn layers_that_ranks_do_not_divide_are_refused_by_name() {
    let error = |fields, tensor| {
        let job = Job { fields, ..gpt2_job() };
        let mesh = Mesh::new(0, tensor, 1, tensor).unwrap();
        let ranks = Arc::new(CountingRank::new(0, tensor).unwrap());
        let tensor = TensorGroup { ranks, ..TensorGroup::default() };
        let options = BuilderOptions { mesh, tensor, init: InitMode::Uninitialized, ..BuilderOptions::default() };
        job.model(&Device::cpu(1).unwrap(), options).err().unwrap()
    };
    let heads = error(json!({}), 8);
    assert!(heads.contains("4 attention heads") && heads.contains("8 tensor-parallel ranks"), "{heads}");
    let width = error(json!({"n_inner": 33}), 2);
    assert!(width.contains("ffn.w_in.weight") && width.contains("33"), "{width}");
    let job = gpt2_job();
    let mesh = Mesh::new(0, 2, 1, 2).unwrap();
    let options = BuilderOptions { mesh, ..BuilderOptions::default() };
    let alone = job.model(&Device::cpu(1).unwrap(), options).err().unwrap();
    assert!(alone.contains("tensor rank 0 of 2") && alone.contains("rank 0 of 1"), "{alone}");
}

#[test]
fn norms_over_all_heads_are_refused_on_several_ranks() {
    let build: runs::Build = family!(olmo2::Olmo2, Olmo2Config);
    let job = Job { golden: ("olmo2_a", "lm"), fields: json!({"intermediate_size": 24}), build, ..gpt2_job() };
    let mesh = Mesh::new(0, 2, 1, 2).unwrap();
    let tensor = TensorGroup { ranks: Arc::new(CountingRank::new(0, 2).unwrap()), ..TensorGroup::default() };
    let options = BuilderOptions { mesh, tensor, init: InitMode::Uninitialized, ..BuilderOptions::default() };
    let error = job.model(&Device::cpu(1).unwrap(), options).err().unwrap();
    assert!(error.contains("norms are over all heads") && error.contains("without tensor parallelism"), "{error}");
}

#[test]
fn each_rank_reads_its_ranges_of_a_directory() {
    let device = Device::cpu(1).unwrap();
    for (model, head) in [("gpt2_a", "lm"), ("gptj_a", "lm"), ("bert_a", "mlm"), ("bloom_a", "untied")] {
        let (golden, batch) = (directory(model, head), inputs(model, head));
        let expected = logits(&device, &*opened(&device, &golden), &batch);
        let ranks = HostGroup::threads(2, HostOptions::default()).unwrap();
        let read = |rank: HostRank| {
            let (mesh, device) = (Mesh::new(rank.rank(), 2, 1, 2).unwrap(), Device::cpu(1).unwrap());
            let tensor = TensorGroup { ranks: Arc::new(rank), vocabulary_multiple: 8, ..TensorGroup::default() };
            let opened = open(&golden, &OpenOptions { mesh, tensor, ..OpenOptions::new(&device) }).unwrap();
            logits(&device, &*opened.model, &batch)
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(|| read(rank))).collect();
            for thread in threads {
                runs::check_logits(Some(&thread.join().unwrap()), Some(&expected));
            }
        });
    }
}

/// The padding of the vocabulary, with the default of 128 tokens.
#[test]
fn padding_of_the_vocabulary_is_zero_and_stays_so() {
    let job = Job { vocabulary_multiple: 128, ..gpt2_job() };
    // 97 tokens: all of them on the first rank.
    check_parity(&job, 2);
    let run = on_mesh(&job, 2, 2);
    for rank in &run.ranks {
        let (padding, values) = &rank.padding;
        assert!(*padding > 0 && values.iter().all(|value| *value == 0.0));
    }
}

/// Padding of one rank changes no bit: products have columns and terms of zeros more.
#[test]
fn a_padded_vocabulary_of_one_rank_has_the_bits_of_none() {
    let marian: runs::Build = family!(marian::Marian, MarianConfig, stacks.text);
    let jobs = [
        gpt2_job(),
        Job { head: UNTIED, golden: ("gpt2_a", "untied"), ..gpt2_job() },
        Job { label_words: Some([5, 11, 7]), ..gpt2_job() },
        bert_job(),
        Job { golden: ("marian_b", "lm"), head: TIED, build: marian, ..Job::default() },
    ];
    for plain in jobs {
        let padded = Job { pads_one_rank: true, vocabulary_multiple: 64, ..plain.clone() };
        let [padded, plain] = [padded, plain].map(|job| on_mesh(&job, 1, 1));
        padded.check_same_bits(&plain);
        let (padding, values) = &padded.ranks[0].padding;
        assert!(*padding > 0 && values.iter().all(|value| *value == 0.0));
    }
}

/// Parameters, gradients and moments of a rank, in bytes, are what the splits of the parameters predict.
#[test]
fn memory_of_a_rank_is_what_the_split_predicts() {
    let fields = json!({"n_embd": 256, "n_head": 8, "n_layer": 4, "vocab_size": 50_257, "n_inner": 1024});
    let job = Job { fields, ..gpt2_job() };
    for tensor in [2usize, 4, 8] {
        let (mesh, device) = (Mesh::new(0, tensor, 1, tensor).unwrap(), Device::cpu(1).unwrap());
        let ranks = Arc::new(CountingRank::new(0, tensor).unwrap());
        let group = TensorGroup { ranks, ..TensorGroup::default() };
        let options =
            BuilderOptions { mesh, tensor: group, init: InitMode::Uninitialized, ..BuilderOptions::default() };
        let model = job.model(&device, options).unwrap();
        let each = |param: &bmtrain_dist::param::Param| {
            let all = param.spec().shape.elements() as f64;
            if param.spec().split == Split::Replicated { all } else { all / tensor as f64 }
        };
        let predicted: f64 = model.parameters().iter().map(each).sum::<f64>() * DType::F32.size() as f64;
        let report = device.memory();
        let held = report.segments.iter().find(|(segment, _)| *segment == Segment::Parameters).unwrap().1.now as f64;
        let state: usize = model.parameters().flats().iter().map(|flat| flat.state_len() * DType::F32.size()).sum();
        // Gradients and each moment are as long as the optimizer state of the storages.
        for (what, bytes) in [("parameters", held), ("gradients and moments", state as f64)] {
            assert!(bytes <= 1.03 * predicted && bytes >= predicted, "{what} on {tensor} ranks: {bytes}, {predicted}");
        }
        eprintln!("tensor {tensor}: {held} bytes of parameters, {:.4} of what the split predicts", held / predicted);
    }
}
