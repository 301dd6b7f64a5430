//! Every key of the tables: refused with its reason, or in the recipe.

use super::{check_recipe, yaml};
use model_center::import::{self, ImportOptions, Role};

/// A value that a key of either table accepts, where most take a number.
fn sample(key: &str) -> Option<&'static str> {
    Some(match key {
        "bf16"
        | "bfloat16"
        | "fp16"
        | "float16"
        | "pure_bf16"
        | "sample_packing"
        | "train_on_inputs"
        | "packing"
        | "group_by_length"
        | "peft_use_rslora"
        | "peft_use_dora"
        | "lora_target_linear"
        | "merge_lora"
        | "gradient_checkpointing"
        | "neat_packing"
        | "train_on_prompt"
        | "mask_history"
        | "use_rslora"
        | "use_dora"
        | "use_muon"
        | "shuffle_merged_datasets"
        | "load_best_model_at_end"
        | "dataloader_drop_last"
        | "double_quantization"
        | "load_in_4bit"
        | "disable_gradient_checkpointing" => "true",
        "optimizer" | "optim" => "adamw_torch",
        "lr_scheduler" | "lr_scheduler_type" => "cosine",
        "eval_strategy" | "evaluation_strategy" | "save_strategy" => "epoch",
        "warmup_ratio"
        | "val_set_size"
        | "val_size"
        | "lora_dropout"
        | "label_smoothing_factor"
        | "cosine_min_lr_ratio"
        | "adam_beta1"
        | "adam_beta2"
        | "weight_decay"
        | "rl_beta"
        | "dpo_beta"
        | "pref_beta"
        | "dpo_label_smoothing"
        | "adam_epsilon" => "0.1",
        "stage" => "sft",
        "resume_from_checkpoint" => "runs/x/checkpoint-5",
        "pref_loss" => "sigmoid",
        "pref_ftx" => "0",
        "quantization_bit" => "4",
        "quantization_method" => "bnb",
        "quantization_type" => "nf4",
        "bnb_config_kwargs" => "{ bnb_4bit_quant_type: nf4 }",
        "freeze_trainable_modules" | "freeze_extra_modules" | "ref_model" => "m",
        // Chosen by the base; without it another one has no effect.
        "rl" | "reward_model" | "unfrozen_parameters" => return None,
        "finetuning_type" | "adapter" => "lora",
        "fsdp" => "[full_shard]",
        "fsdp_config" => "{ a: b }",
        "special_tokens" => "{ pad_token: a }",
        "lr_scheduler_kwargs" => "{}",
        "datasets" | "test_datasets" | "pretraining_dataset" => "[{ path: b.jsonl }]",
        "base_model"
        | "model_name_or_path"
        | "dataset"
        | "eval_dataset"
        | "dataset_dir"
        | "template"
        | "output_dir"
        | "run_name"
        | "tokenizer_config"
        | "revision_of_model"
        | "model_revision"
        | "chat_template"
        | "deepspeed"
        | "chat_template_jinja"
        | "lora_model_dir"
        | "adapter_name_or_path"
        | "lora_target_modules"
        | "lora_target"
        | "lora_modules_to_save"
        | "additional_target"
        | "mix_strategy" => "name",
        "interleave_probs" => return None,
        _ => "8",
    })
}

/// Configurations to which one key is added.
const BASES: [(&str, &str); 9] = [
    ("axolotl", "base_model: m\ndatasets: [{ path: a.jsonl }]\nlearning_rate: 1.0\nlora_target_linear: true\n"),
    (
        "axolotl",
        "base_model: m\ndatasets: [{ path: a.jsonl }]\nlearning_rate: 1.0\nlora_target_linear: true\nadapter: qlora\n\
         load_in_4bit: true\n",
    ),
    (
        "axolotl",
        "base_model: m\ndatasets: [{ path: a.jsonl, type: chatml.intel }]\nlearning_rate: 1.0\nrl: dpo\n\
         lora_target_linear: true\noptimizer: adafactor\n",
    ),
    (
        "axolotl",
        "base_model: m\ndatasets: [{ path: a.jsonl }]\nlearning_rate: 1.0\nrl: simpo\n\
         lora_target_linear: true\noptimizer: lion_8bit\n",
    ),
    (
        "axolotl",
        "base_model: m\ndatasets: [{ path: a.jsonl, type: bradley_terry.chat_template }]\nlearning_rate: 1.0\n\
         reward_model: true\nlora_target_linear: true\noptimizer: sgd\nlr_scheduler: constant\n",
    ),
    ("llama_factory", "model_name_or_path: m\ndataset: a\n"),
    ("llama_factory", "model_name_or_path: m\ndataset: a,b\nstage: dpo\nquantization_bit: 4\noptim: adafactor\n"),
    ("llama_factory", "model_name_or_path: m\ndataset: a\nstage: rm\nfinetuning_type: full\nuse_muon: true\n"),
    ("llama_factory", "model_name_or_path: m\ndataset: a\nstage: pt\nfinetuning_type: full\noptim: rmsprop\n"),
];

#[test]
fn every_key_of_the_tables_is_accounted_for_whatever_is_trained() {
    let none = ImportOptions::default();
    let mut mistakes = Vec::new();
    for (name, base) in BASES {
        let table = if name == "axolotl" { import::axolotl_keys() } else { import::llama_factory_keys() };
        assert!(table.len() > 100);
        for key in table {
            let Some(value) = sample(key.name) else { continue };
            let is_whole = !base.contains("qlora") && (name == "axolotl" || base.contains("full"));
            // A model in 4 bits needs updates, and data of pairs have a type.
            if is_whole && ["load_in_4bit", "quantization_bit"].contains(&key.name)
                || base.contains("reward") && ["datasets", "pretraining_dataset", "test_datasets"].contains(&key.name)
                || base.contains("rl:") && key.name == "pretraining_dataset"
            {
                continue;
            }
            let kept = base.lines().filter(|line| !line.starts_with(&format!("{}:", key.name)));
            let kept: String = kept.map(|line| format!("{line}\n")).collect();
            let text = format!("{kept}{}: {value}\n", key.name);
            let read = yaml(name, &text, &none);
            match key.role {
                Role::Refused(why) => {
                    let error = read.err().map_or_else(|| "it is accepted".to_owned(), |error| error.to_string());
                    if !(error.contains(key.name) && error.contains(why)) {
                        mistakes.push(format!("{text}: {error}"));
                    }
                }
                _ => match read {
                    Err(error) => mistakes.push(format!("{text}: {error}")),
                    Ok(sheet) if !sheet.to_toml().contains(key.name) => {
                        mistakes.push(format!("{text}: {} is not in\n{sheet}", key.name));
                    }
                    Ok(sheet) => check_recipe(&text, &sheet),
                },
            }
        }
        let mut names: Vec<&str> = table.iter().map(|key| key.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{name} lists a key twice");
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}
