//! `adapter_config.json` of a PEFT directory, read and written.
//!
//! Source: PEFT 0.21, `LoraConfig`, `IA3Config`, `PromptTuningConfig`, `PrefixTuningConfig`.

use super::lora::LoraUpdate;
use super::peft::{PeftDetails, SAVE_AGAIN};
use super::plan::AdapterPlan;
use super::{AdapterConfig, BottleneckConfig, BottleneckPlacement, Ia3Config, LoraConfig, PrefixConfig, PromptConfig};
use crate::config::activations;
use crate::config::json::number;
use crate::file::printable;
use crate::model::TextHead;
use crate::{Error, Result};
use serde_json::{Map, Value, json};

/// Parts of LoRA that are not available, with the values that leave them out.
const NOT_AVAILABLE: [&str; 11] = [
    "use_qalora",
    "use_bdlora",
    "lora_bias",
    "target_parameters",
    "trainable_token_indices",
    "layer_replication",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "velora_config",
];

/// The method of bottleneck adapters, which PEFT does not have.
const BOTTLENECK: &str = "BOTTLENECK";

/// The settings of a configuration, and alphas of some modules by names as in its targets.
///
/// # Errors
/// Another method than LoRA, DoRA, IA³, prompt tuning, prefix tuning and bottlenecks, or a part of LoRA that is not
/// available; malformed values.
pub(super) fn read(fields: &Map<String, Value>, place: &str) -> Result<(AdapterConfig, Vec<(String, f32)>)> {
    match fields.get("peft_type").and_then(Value::as_str).unwrap_or_default() {
        "PROMPT_TUNING" => Ok((AdapterConfig::Prompt(read_prompt(fields, place)?), Vec::new())),
        // With a projection the tensor has what it computed.
        "PREFIX_TUNING" => {
            Ok((AdapterConfig::Prefix(PrefixConfig { tokens: read_tokens(fields, place)? }), Vec::new()))
        }
        "LORA" => {
            let (config, alphas) = read_lora(fields, place)?;
            Ok((AdapterConfig::Lora(config), alphas))
        }
        BOTTLENECK => Ok((AdapterConfig::Bottleneck(read_bottleneck(fields, place)?), Vec::new())),
        "IA3" => {
            let [targets, feed_forward, trained] =
                ["target_modules", "feedforward_modules", "modules_to_save"].map(|field| texts(fields, field));
            Ok((AdapterConfig::Ia3(Ia3Config { targets, feed_forward, trained }), Vec::new()))
        }
        method => {
            let reason = format!("the method \"{}\" is not read", printable(method, 60));
            let place = format!("{place}, field peft_type");
            Err(Error::model(place, reason, "use an adapter of LoRA, of IA3, or of prompt or prefix tuning"))
        }
    }
}

/// The settings of prompt tuning.
fn read_prompt(fields: &Map<String, Value>, place: &str) -> Result<PromptConfig> {
    let tokens = read_tokens(fields, place)?;
    // The tensor of PEFT's directories may have room for the decoder's, which PEFT does not read.
    let decoder = fields.get("decoder_prompt").and_then(Value::as_bool).unwrap_or(false);
    let text = fields.get("prompt_tuning_init_text").and_then(Value::as_str).map(str::to_owned);
    Ok(PromptConfig { tokens, text, decoder })
}

/// The number of virtual tokens.
fn read_tokens(fields: &Map<String, Value>, place: &str) -> Result<usize> {
    let field = "num_virtual_tokens";
    let tokens = fields.get(field).and_then(Value::as_u64).filter(|tokens| (1..=1 << 20).contains(tokens));
    let wrong = || Error::model(format!("{place}, field {field}"), "it is not a number of tokens", SAVE_AGAIN);
    tokens.map(|tokens| tokens as usize).ok_or_else(wrong)
}

/// The settings of bottleneck adapters.
fn read_bottleneck(fields: &Map<String, Value>, place: &str) -> Result<BottleneckConfig> {
    let wrong = |field: &str, reason: &str| Error::model(format!("{place}, field {field}"), reason, SAVE_AGAIN);
    let size = fields.get("bottleneck_size").and_then(Value::as_u64).filter(|size| (1..=1 << 20).contains(size));
    let size = size.ok_or_else(|| wrong("bottleneck_size", "it is not a number of values"))? as usize;
    let name = fields.get("activation").and_then(Value::as_str).unwrap_or_default();
    let activation = activations::parse(name).filter(|between| !between.gated);
    let activation = activation.ok_or_else(|| wrong("activation", "it is not the name of an activation"))?.activation;
    let [targets, trained] = ["target_modules", "modules_to_save"].map(|field| texts(fields, field));
    // The tensors state the layers.
    Ok(BottleneckConfig { size, activation, placement: BottleneckPlacement::Both, targets, trained })
}

/// The settings of LoRA, and alphas of some modules.
fn read_lora(fields: &Map<String, Value>, place: &str) -> Result<(LoraConfig, Vec<(String, f32)>)> {
    let wrong = |field: &str, reason: &str, fix: &str| Error::model(format!("{place}, field {field}"), reason, fix);
    let is_off = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(items) => items.is_empty(),
        _ => false,
    };
    if let Some(field) = NOT_AVAILABLE.iter().find(|field| !fields.get(**field).is_none_or(is_off)) {
        return Err(wrong(field, "this part of PEFT's LoRA is not available", "use an adapter without it"));
    }
    let number = |field: &str, default: f32| match fields.get(field) {
        None | Some(Value::Null) => Ok(default),
        Some(value) => match value.as_f64().filter(|value| value.is_finite()) {
            Some(value) => Ok(value as f32),
            None => Err(wrong(field, "it is not a number", SAVE_AGAIN)),
        },
    };
    let rank = fields.get("r").and_then(Value::as_u64).and_then(|rank| usize::try_from(rank).ok()).unwrap_or(8);
    let alphas = match fields.get("alpha_pattern") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Object(patterns)) => patterns
            .iter()
            .map(|(name, alpha)| {
                let alpha = alpha.as_f64().filter(|alpha| alpha.is_finite());
                let is_plain = name.chars().all(|letter| letter.is_alphanumeric() || "._".contains(letter));
                match alpha {
                    Some(alpha) if is_plain => Ok((name.clone(), alpha as f32)),
                    Some(_) => Err(wrong("alpha_pattern", "regular expressions are not read", "name the modules")),
                    None => Err(wrong("alpha_pattern", "a value is not a number", SAVE_AGAIN)),
                }
            })
            .collect::<Result<_>>()?,
        Some(_) => return Err(wrong("alpha_pattern", "it is not an object", SAVE_AGAIN)),
    };
    let config = LoraConfig {
        rank,
        alpha: number("lora_alpha", 8.0)?,
        rank_stabilized: fields.get("use_rslora").and_then(Value::as_bool).unwrap_or(false),
        dora: fields.get("use_dora").and_then(Value::as_bool).unwrap_or(false),
        dropout: number("lora_dropout", 0.0)?,
        targets: texts(fields, "target_modules"),
        trained: texts(fields, "modules_to_save"),
    };
    if !(0.0..1.0).contains(&config.dropout) {
        return Err(wrong("lora_dropout", "it is not in [0, 1)", SAVE_AGAIN));
    }
    Ok((config, alphas))
}

/// A list of names, or one.
fn texts(fields: &Map<String, Value>, field: &str) -> Vec<String> {
    match fields.get(field) {
        Some(Value::Array(names)) => names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect(),
        Some(Value::String(name)) => vec![name.clone()],
        _ => Vec::new(),
    }
}

impl AdapterPlan {
    /// The fields of the configuration.
    pub(super) fn config_fields(&self, details: &PeftDetails<'_>) -> Map<String, Value> {
        let own = match &self.config {
            AdapterConfig::Lora(config) => self.lora_fields(config),
            AdapterConfig::Ia3(_) => self.ia3_fields(),
            AdapterConfig::Prompt(config) => self.prompt_fields(config, details),
            AdapterConfig::Prefix(config) => self.prefix_fields(config),
            AdapterConfig::Bottleneck(config) => self.bottleneck_fields(config),
        };
        let common = json!({
            "task_type": self.head.and_then(|head| task_type(head, self.generates_targets)),
            "base_model_name_or_path": details.base_model,
            "revision": details.revision,
            "auto_mapping": null,
            "inference_mode": true,
        });
        [own, common].into_iter().filter_map(|fields| fields.as_object().cloned()).flatten().collect()
    }

    fn prompt_fields(&self, config: &PromptConfig, details: &PeftDetails<'_>) -> Value {
        json!({
            "peft_type": "PROMPT_TUNING",
            "num_virtual_tokens": config.tokens,
            "token_dim": self.virtual_tokens.as_ref().map(|tables| tables.size),
            "num_transformer_submodules": if config.decoder { 2 } else { 1 },
            "decoder_prompt": config.decoder,
            "num_attention_heads": null,
            "num_layers": null,
            "prompt_tuning_init": if config.text.is_some() { "TEXT" } else { "RANDOM" },
            "prompt_tuning_init_text": config.text,
            "tokenizer_name_or_path": config.text.as_ref().map(|_| details.base_model),
            "modules_to_save": null,
        })
    }

    fn prefix_fields(&self, config: &PrefixConfig) -> Value {
        let tables = self.virtual_tokens.as_ref();
        // Of keys alone.
        let size = tables.map(|tables| tables.size / 2);
        json!({
            "peft_type": "PREFIX_TUNING",
            "num_virtual_tokens": config.tokens,
            "token_dim": size,
            "num_transformer_submodules": 1,
            "num_attention_heads": tables.and_then(|tables| tables.kv_heads),
            "num_layers": tables.map(|tables| tables.names.len()),
            "encoder_hidden_size": size,
            "prefix_projection": false,
            "modules_to_save": null,
        })
    }

    fn bottleneck_fields(&self, config: &BottleneckConfig) -> Value {
        json!({
            "peft_type": BOTTLENECK,
            "bottleneck_size": config.size,
            "activation": activations::name(config.activation),
            "target_modules": self.target_modules,
            "modules_to_save": self.saved_modules(),
        })
    }

    fn ia3_fields(&self) -> Value {
        json!({
            "peft_type": "IA3",
            "target_modules": self.target_modules,
            "exclude_modules": null,
            "feedforward_modules": self.feed_forward_modules,
            // As in `lora_fields`.
            "fan_in_fan_out": self.factors.iter().all(|factors| factors.part.transposed),
            "modules_to_save": self.saved_modules(),
            "init_ia3_weights": true,
        })
    }

    /// `modules_to_save`, if there are any.
    fn saved_modules(&self) -> Option<&Vec<String>> {
        Some(&self.modules_to_save).filter(|modules| !modules.is_empty())
    }

    fn lora_fields(&self, config: &LoraConfig) -> Value {
        let LoraConfig { rank, alpha, rank_stabilized, dora, dropout, .. } = *config;
        let ranks = self.updates.iter().filter(|update| update.rank != rank);
        let rank_pattern: Map<String, Value> =
            ranks.map(|update| (update.module.clone(), json!(update.rank))).collect();
        // Factors, from which PEFT's alphas follow.
        let alpha_of =
            |update: &LoraUpdate| update.scale / LoraConfig { alpha: 1.0, ..config.clone() }.scale(update.rank);
        let alphas = self.updates.iter().map(|update| (update, alpha_of(update)));
        let alphas = alphas.filter(|(update, _)| update.scale != config.scale(update.rank));
        let alpha_pattern: Map<String, Value> =
            alphas.map(|(update, alpha)| (update.module.clone(), number(alpha))).collect();
        json!({
            "peft_type": "LORA",
            "r": rank,
            "lora_alpha": number(alpha),
            "lora_dropout": number(dropout),
            "use_rslora": rank_stabilized,
            "use_dora": dora,
            "lora_bias": false,
            "bias": "none",
            // Their linear layer of GPT-2 stores [in, out].
            "fan_in_fan_out": self.updates.iter().all(|update| update.part.transposed),
            "target_modules": self.target_modules,
            "exclude_modules": null,
            "modules_to_save": self.saved_modules(),
            "init_lora_weights": true,
            "layers_to_transform": null,
            "layers_pattern": null,
            "rank_pattern": rank_pattern,
            "alpha_pattern": alpha_pattern,
            "megatron_config": null,
            "megatron_core": "megatron.core",
        })
    }
}

/// PEFT's name for what a model with this head does.
fn task_type(head: TextHead, generates_targets: bool) -> Option<&'static str> {
    match head {
        TextHead::Classification { .. } => Some("SEQ_CLS"),
        TextHead::TokenClassification { .. } => Some("TOKEN_CLS"),
        TextHead::QuestionAnswering => Some("QUESTION_ANS"),
        TextHead::CausalLm if generates_targets => Some("SEQ_2_SEQ_LM"),
        TextHead::CausalLm => Some("CAUSAL_LM"),
        TextHead::None | TextHead::MaskedLm | TextHead::NextSentence | TextHead::Pretraining => None,
    }
}
