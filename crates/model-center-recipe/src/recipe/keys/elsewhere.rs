//! Names of other trainers: settings with another name here, and settings that are not available here.
//!
//! Defines [`NAMES`], which answers unknown keys, and [`other_task`], which answers values of `data.task`. A name that
//! is here is answered by what is available, never by the nearest spelling.

use crate::recipe::engine::unknown::ForeignNames;
use model_center_base::file::printable;

/// Names of settings.
pub(crate) const NAMES: ForeignNames = ForeignNames { key: setting, missing: missing_setting };

/// Names of settings in Hugging Face transformers, with the key here, and the value where the name alone means one.
const TRANSFORMERS: &[(&str, &str)] = &[
    ("learning_rate", "train.lr"),
    ("optim", "train.optimizer"),
    ("lr_scheduler_type", "train.schedule"),
    ("lr_scheduler_kwargs", "train.final_lr_ratio"),
    ("min_lr", "train.final_lr_ratio"),
    ("min_lr_rate", "train.final_lr_ratio"),
    ("cosine_min_lr_ratio", "train.final_lr_ratio"),
    ("warmup_ratio", "train.warmup"),
    ("warmup_steps", "train.warmup"),
    ("num_train_epochs", "train.epochs"),
    ("max_steps", "train.steps"),
    ("per_device_train_batch_size", "train.micro_batch_size"),
    ("per_device_eval_batch_size", "eval.batch_size"),
    ("gradient_accumulation_steps", "train.accumulation"),
    ("max_grad_norm", "train.clip_norm"),
    ("adam_epsilon", "train.eps"),
    ("adam_beta1", "train.betas"),
    ("adam_beta2", "train.betas"),
    ("label_smoothing_factor", "train.label_smoothing"),
    ("gradient_checkpointing", "train.recompute = \"blocks\""),
    ("early_stopping_patience", "train.early_stop.patience"),
    ("data_seed", "train.seed"),
    ("doc_stride", "data.stride"),
    ("max_answer_length", "data.answer_length"),
    ("max_seq_length", "data.max_length"),
    ("max_source_length", "data.max_length"),
    ("max_target_length", "data.target_length"),
    ("model_max_length", "data.max_length"),
    ("group_by_length", "data.length_grouped"),
    ("packing", "data.packing"),
    ("padding_free", "data.packing"),
    ("assistant_only_loss", "data.loss_on = \"assistant\""),
    ("completion_only_loss", "data.loss_on = \"assistant\""),
    ("truncation_mode", "data.truncate"),
    ("dataset_text_field", "data.columns.text"),
    ("max_eval_samples", "data.eval_limit"),
    ("dataset_name", "data.task"),
    ("train_file", "data.train"),
    ("validation_file", "data.eval"),
    ("text_column", "data.columns.text"),
    ("text_column_name", "data.columns.text"),
    ("label_column", "data.columns.label"),
    ("label_column_name", "data.columns.label"),
    ("model_name_or_path", "model.path"),
    ("model_revision", "model.revision"),
    ("model_type", "model.family"),
    ("bf16", "model.dtype = \"bf16\""),
    ("fp16", "model.dtype = \"f16\""),
    ("torch_dtype", "model.dtype"),
    ("ignore_mismatched_sizes", "model.head = \"new\""),
    ("hidden_dropout_prob", "model.hidden_dropout"),
    ("attention_probs_dropout_prob", "model.attention_dropout"),
    ("eval_steps", "eval.every"),
    ("eval_strategy", "eval.every"),
    ("evaluation_strategy", "eval.every"),
    ("metric_for_best_model", "eval.metric"),
    ("load_best_model_at_end", "save.which = \"best\""),
    ("save_steps", "checkpoint.every"),
    ("save_strategy", "checkpoint.every"),
    ("save_total_limit", "checkpoint.keep"),
    ("logging_steps", "log.every"),
    ("disable_tqdm", "log.quiet"),
    ("run_name", "run.name"),
    ("output_dir", "output.dir"),
    ("overwrite_output_dir", "the option --overwrite"),
    ("resume_from_checkpoint", "the option --resume"),
    ("use_cpu", "device.name = \"cpu\""),
    ("no_cuda", "device.name = \"cpu\""),
    ("deepspeed", "parallel.zero"),
    ("fsdp", "parallel.zero"),
];

/// Keys of Megatron, DeepSpeed and others.
const OTHERS: &[(&str, &str)] = &[
    ("lora", "adapter.method = \"lora\""),
    ("peft", "adapter.method = \"lora\""),
    ("adapters", "adapter.method = \"lora\""),
    ("use_lora", "adapter.method = \"lora\""),
    ("use_peft", "adapter.method = \"lora\""),
    ("lora_config", "adapter.method = \"lora\""),
    ("peft_config", "adapter.method = \"lora\""),
    ("lora_r", "adapter.rank"),
    ("lora_rank", "adapter.rank"),
    ("lora_alpha", "adapter.alpha"),
    ("lora_dropout", "adapter.dropout"),
    ("use_dora", "adapter.dora"),
    ("peft_use_dora", "adapter.dora"),
    ("feedforward_modules", "adapter.feed_forward"),
    ("use_rslora", "adapter.rank_stabilized"),
    ("target_modules", "adapter.targets"),
    ("lora_target", "adapter.targets"),
    ("lora_target_modules", "adapter.targets"),
    ("modules_to_save", "adapter.trained"),
    ("qlora", "adapter.quantize = \"nf4\""),
    ("load_in_4bit", "adapter.quantize = \"nf4\""),
    ("bnb_4bit_quant_type", "adapter.quantize"),
    ("bnb_4bit_use_double_quant", "adapter.quantize"),
    ("bnb_4bit_compute_dtype", "model.dtype"),
    ("quantization", "adapter.quantize"),
    ("quantization_config", "adapter.quantize"),
    ("quantization_bit", "adapter.quantize"),
    ("quantization_method", "adapter.quantize"),
    ("num_virtual_tokens", "adapter.virtual_tokens"),
    ("prompt_tuning_init_text", "adapter.prompt_text"),
    ("optimizer_type", "train.optimizer"),
    ("learning_rate_scheduler", "train.schedule"),
    ("lr_decay_style", "train.schedule"),
    ("lr_scheduler", "train.schedule"),
    ("lr_decay_iters", "train.decay_steps"),
    ("rampup_batch_size", "train.batch_ramp.start"),
    ("hysteresis", "train.loss_scale_hysteresis"),
    ("loss_scale_window", "train.loss_scale_window"),
    ("min_scale", "train.loss_scale_floor"),
    ("warmup_iters", "train.warmup"),
    ("num_epochs", "train.epochs"),
    ("train_iters", "train.steps"),
    ("global_batch_size", "train.batch_size"),
    ("train_micro_batch_size_per_gpu", "train.micro_batch_size"),
    ("clip_grad", "train.clip_norm"),
    ("gradient_clip", "train.clip_norm"),
    ("gradient_clipping", "train.clip_norm"),
    ("epsilon", "train.eps"),
    ("adam_betas", "train.betas"),
    ("alpha", "train.rho"),
    ("checkpointing", "train.recompute = \"blocks\""),
    ("activation_checkpointing", "train.recompute = \"blocks\""),
    ("patience", "train.early_stop.patience"),
    ("max_seq_len", "data.max_length"),
    ("seq_length", "data.sequence_length"),
    ("max_encoder_length", "data.max_length"),
    ("class_weight", "data.class_weights"),
    ("dataset", "data.task"),
    ("dev", "data.eval"),
    ("datasets", "data.sets"),
    ("messages", "data.columns.messages"),
    ("conversations", "data.columns.messages"),
    ("field_messages", "data.columns.messages"),
    ("train_on_inputs", "data.loss_on"),
    ("train_on_prompt", "data.loss_on"),
    ("apply_chat_template", "data.as_chat"),
    ("loss_type", "preference.loss"),
    ("pref_loss", "preference.loss"),
    ("dpo_beta", "preference.beta"),
    ("pref_beta", "preference.beta"),
    ("simpo_gamma", "preference.gamma"),
    ("orpo_alpha", "preference.beta"),
    ("desirable_weight", "preference.good_weight"),
    ("undesirable_weight", "preference.bad_weight"),
    ("kto_desirable_weight", "preference.good_weight"),
    ("kto_undesirable_weight", "preference.bad_weight"),
    ("data_sampling_proportion", "data.sets"),
    ("data_class", "data.sets"),
    ("model_config", "model.path"),
    ("num_layers", "model.layers"),
    ("hidden_size", "model.hidden"),
    ("num_attention_heads", "model.heads"),
    ("num_query_groups", "model.kv_heads"),
    ("kv_channels", "model.head_size"),
    ("ffn_hidden_size", "model.feed_forward"),
    ("max_position_embeddings", "model.positions"),
    ("init_method_std", "model.init_std"),
    ("hidden_bias", "model.hidden_bias"),
    ("kv_hidden_size", "model.head_size"),
    ("ff_hidden_size", "model.feed_forward"),
    ("deep_init", "model.scale_init_by_depth"),
    ("num_unique_layers", "model.unique_layers"),
    ("param_sharing_style", "model.sharing_style"),
    ("data_path", "data.corpora"),
    ("split", "data.split"),
    ("data_impl", "data.corpora"),
    ("eval_iters", "eval.iterations"),
    ("eval_interval", "eval.every"),
    ("num_workers", "data.loading_threads"),
    ("tokenizer_model", "model.tokenizer"),
    ("tokenizer_path", "model.tokenizer"),
    ("load", "model.path"),
    ("precision", "model.dtype"),
    ("fp32_embedding", "model.f32_parameters = [\"embeddings\"]"),
    ("fp32_layernorm", "model.f32_parameters = [\"norms\"]"),
    ("fp32_tokentypes", "model.f32_parameters = [\"token-types\"]"),
    ("zero_stage", "parallel.zero"),
    ("zero_optimization", "parallel.zero"),
    ("cpu_offload", "train.offload"),
    ("offload_optimizer", "train.offload"),
    ("save", "save.which"),
    ("accumulate_grad_batches", "train.accumulation"),
    ("tensor_model_parallel_size", "parallel.tensor"),
    ("tensor_parallel_size", "parallel.tensor"),
    ("tp_size", "parallel.tensor"),
    ("sequence_parallel", "parallel.sequence"),
    ("pipeline_model_parallel_size", "parallel.pipeline"),
    ("pipeline_parallel_size", "parallel.pipeline"),
    ("pp_size", "parallel.pipeline"),
    ("virtual_pipeline_model_parallel_size", "parallel.virtual_stages"),
    ("partition_method", "parallel.partition"),
];

/// Names of tasks, with the one here.
const TASKS: &[(&str, &str)] = &[
    ("text_classification", "classification"),
    ("sequence_classification", "classification"),
    ("sentiment_analysis", "classification"),
    ("sentiment", "classification"),
    ("single_label_classification", "classification"),
    ("multi_label", "multi-label-classification"),
    ("multi_label_classification", "multi-label-classification"),
    ("multilabel", "multi-label-classification"),
    ("multilabel_classification", "multi-label-classification"),
    ("text_generation", "language"),
    ("causal_lm", "language"),
    ("clm", "language"),
    ("lm", "language"),
    ("language_modeling", "language"),
    ("language_modelling", "language"),
    ("pretraining", "pretrain"),
    ("summarization", "seq2seq"),
    ("translation", "seq2seq"),
    ("text2text_generation", "seq2seq"),
    ("seq2seq_lm", "seq2seq"),
    ("ner", "token-classification"),
    ("token_classification", "token-classification"),
    ("named_entity_recognition", "token-classification"),
    ("pos", "token-classification"),
    ("pos_tagging", "token-classification"),
    ("tagging", "token-classification"),
    ("chunking", "token-classification"),
    ("qa", "question-answering"),
    ("question_answering", "question-answering"),
    ("extractive_qa", "question-answering"),
    ("squad_v2", "question-answering"),
    ("squad2", "question-answering"),
    ("chat", "sft"),
    ("conversation", "sft"),
    ("conversations", "sft"),
    ("conversational", "sft"),
    ("messages", "sft"),
    ("instruction_tuning", "sft"),
    ("supervised_fine_tuning", "sft"),
    ("dpo", "preference"),
    ("ipo", "preference"),
    ("simpo", "preference"),
    ("orpo", "preference"),
    ("kto", "preference"),
    ("preference_optimization", "preference"),
    ("reward_modeling", "reward"),
    ("embeddings", "embedding"),
    ("sentence_embedding", "embedding"),
    ("sentence_similarity", "embedding"),
    ("contrastive", "embedding"),
    ("feature_extraction", "embedding"),
    ("rm", "reward"),
    ("reranker", "rerank"),
    ("reranking", "rerank"),
    ("cross_encoder", "rerank"),
    ("text_ranking", "rerank"),
];

/// Something that other trainers do and this one does not.
#[derive(Debug)]
struct Missing {
    /// Its description, in a sentence before "not available".
    what: &'static str,
    /// The available alternative.
    instead: &'static str,
    tasks: &'static [&'static str],
    keys: &'static [&'static str],
}

const MISSING: &[Missing] = &[
    Missing {
        what: "quantisation to 8 bits is",
        instead: "adapter.quantize = \"nf4\" quantises a frozen model to 4 bits, and \"as-stored\" keeps a GGUF file's \
                  blocks, of 8 bits too",
        tasks: &[],
        keys: &["load_in_8bit"],
    },
    Missing {
        what: "reinforcement learning (PPO, GRPO) is",
        instead: "data.task = \"preference\" learns from completions that were compared or judged before, with \
                  preference.loss; its reference is the model that training begins with",
        tasks: &["rlhf", "ppo", "grpo"],
        keys: &["rlhf", "ppo", "grpo", "reward_model", "ref_model"],
    },
    Missing {
        what: "a weight for each of several labels of a text is",
        instead: "data.task = \"multi-label-classification\", where all labels weigh the same",
        tasks: &[],
        keys: &["pos_weight"],
    },
    Missing {
        what: "masked language modelling is",
        instead: "data.task = \"language\" trains decoders on the next token; encoders are fine-tuned on \
              \"classification\" or \
                  \"regression\"",
        tasks: &["mlm", "masked_lm", "fill_mask", "masked_language_modeling"],
        keys: &["mlm", "mlm_probability"],
    },
    Missing {
        what: "reporting to a tracker is",
        instead: "every record of a run is in the file log.metrics of its output directory, and TensorBoard reads \
                  tensorboard/ there",
        tasks: &[],
        keys: &["report_to", "wandb", "wandb_project", "tensorboard_dir", "mlflow", "logging_dir"],
    },
    Missing {
        what: "upload of models is",
        instead: "the directory `model` of a run opens in transformers and can be uploaded with the hub's own program",
        tasks: &[],
        keys: &["push_to_hub", "hub_model_id", "hub_token", "hub_strategy"],
    },
    Missing {
        what: "running code that a model brings is",
        instead: "the families of models that `bmtrain finetune --help` lists",
        tasks: &[],
        keys: &["trust_remote_code"],
    },
];

/// The name as it is in the tables.
fn folded(name: &str) -> String {
    name.to_lowercase().replace(['-', ' '], "_")
}

/// Key of another trainer's setting, and that trainer's name.
fn setting(name: &str) -> Option<(&'static str, &'static str)> {
    let name = folded(name);
    let find = |table: &'static [(&str, &str)]| table.iter().find(|(theirs, _)| *theirs == name).map(|(_, ours)| *ours);
    find(TRANSFORMERS)
        .map(|ours| ("transformers' name", ours))
        .or_else(|| find(OTHERS).map(|ours| ("another trainer's name", ours)))
}

/// Name of another trainer's task.
fn task(name: &str) -> Option<&'static str> {
    let name = folded(name);
    TASKS.iter().find(|(theirs, _)| *theirs == name).map(|(_, ours)| *ours)
}

/// The mistake in another trainer's name of a task: that it is not available, or its name here.
pub(super) fn other_task(name: &str) -> Option<(String, String)> {
    if let Some(missing) = missing_task(name) {
        let reason = format!("`data.task` = \"{}\": {} not available", printable(name, 40), missing.what);
        return Some((reason, format!("available instead: {}", missing.instead)));
    }
    let ours = task(name)?;
    let reason = format!("`data.task` = \"{}\" has another name here", printable(name, 40));
    Some((reason, format!("write data.task = \"{ours}\"")))
}

/// A task that is not available.
fn missing_task(name: &str) -> Option<&'static Missing> {
    let name = folded(name);
    MISSING.iter().find(|missing| missing.tasks.contains(&name.as_str()))
}

/// A setting of something that is not available, and what is: any part of its path is the name of it.
fn missing_setting(path: &str) -> Option<(&'static str, &'static str)> {
    let parts: Vec<String> = path.split('.').map(folded).collect();
    let found = MISSING.iter().find(|missing| parts.iter().any(|part| missing.keys.contains(&part.as_str())));
    found.map(|missing| (missing.what, missing.instead))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Recipe;

    #[test]
    fn every_name_leads_to_a_key_or_task_that_is_there_and_none_is_one_itself() {
        let sets = ["model.path=m", "data.task=language", "data.train=t.jsonl", "train.steps=1", "output.dir=o"]
            .map(String::from);
        let known: Vec<&str> = Recipe::read(None, &sets).unwrap().keys().collect();
        for (theirs, ours) in TRANSFORMERS.iter().chain(OTHERS) {
            let key = ours.split([' ', ',']).next().unwrap();
            assert!(known.contains(&key) || ours.starts_with("the option --"), "{theirs}: {ours}");
            assert!(missing_setting(theirs).is_none(), "{theirs} is in both tables");
        }
        for missing in MISSING {
            for key in missing.keys {
                assert!(known.iter().all(|known| known.split('.').all(|part| part != *key)), "{key} is a setting");
            }
            for task in missing.tasks {
                let sets = [&sets[..], &[format!("data.task={task}")]].concat();
                let found = Recipe::read(None, &sets).unwrap_err();
                assert!(found[0].reason.ends_with("not available"), "{}", found[0]);
            }
        }
        for (theirs, ours) in TASKS {
            let sets = [&sets[..], &[format!("data.task={theirs}")]].concat();
            let found = Recipe::read(None, &sets).unwrap_err();
            assert!(found[0].fix.ends_with(&format!("data.task = \"{ours}\"")), "{}", found[0]);
        }
    }
}
