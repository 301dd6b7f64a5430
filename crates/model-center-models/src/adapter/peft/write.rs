//! PEFT directories, written.
//!
//! Source: PEFT 0.21.2, `get_peft_model_state_dict`, `LoraConfig`, `IA3Config`, `PromptTuningConfig`,
//! `PrefixTuningConfig`.

use super::settings::InitialUpdate;
use super::{ADAPTER_CONFIG, ADAPTER_WEIGHTS, BOTTLENECK, MAGNITUDE, PREFIX, VIRTUAL_PREFIX};
use crate::Result;
use crate::adapter::{
    AdapterConfig, BottleneckConfig, LoraConfig, PROMPT_EMBEDDINGS, PrefixConfig, PromptConfig,
    bottleneck::BottleneckLayer, lora::LoraUpdate, plan::AdapterPlan,
};
use bmtrain_core::DType;
use model_center_base::file::write_atomic;
use model_center_base::json::{number, to_text};
use model_center_formats::config::{TextHead, activations};
use model_center_formats::{
    Fill, TensorPart,
    safetensors::{SafetensorsWriter, TensorEntry, stored},
};
use serde_json::{Map, Value, json};
use std::path::Path;

/// Details of a PEFT directory besides its updates.
#[derive(Debug, Clone, Copy)]
pub struct PeftDetails<'a> {
    /// The model that is updated: a path, or a name of the hub.
    pub base_model: &'a str,
    /// Its branch, tag or commit.
    pub revision: Option<&'a str>,
    /// Dtype of the written tensors.
    pub dtype: DType,
}

impl AdapterPlan {
    /// Our names of the written parameters, in the order in which [`AdapterPlan::write`] asks for their values.
    pub fn written(&self) -> impl Iterator<Item = &str> {
        let updates = self.updates.iter().flat_map(LoraUpdate::parameters);
        let updates = updates.chain(self.factors.iter().map(|factors| factors.factors.as_str()));
        let bottlenecks = self.bottlenecks.iter().flat_map(|layer| layer.parameters.iter().map(String::as_str));
        let updates = updates.chain(bottlenecks);
        let whole = self.trained.iter().map(|param| param.name.as_str());
        let tables = self.virtual_tokens.iter().flat_map(|tables| tables.names.iter().map(String::as_str));
        updates.chain(whole).chain(tables)
    }

    /// PEFT's tensors that make up one of the written parameters, with their full names; none of any other.
    pub fn parts(&self, name: &str) -> Vec<TensorPart> {
        let of_module = |update: &LoraUpdate, half: &str| format!("{PREFIX}{}.{half}.weight", update.module);
        for update in &self.updates {
            if name == update.a {
                let (shape, rows) = (vec![update.rank, update.part.columns()], 0..update.rank);
                let name = of_module(update, "lora_A");
                return vec![TensorPart { name, shape, rows, transposed: false, interleaved: None }];
            }
            if name == update.b {
                // Its rows are in the order of the module's.
                return vec![TensorPart { name: of_module(update, "lora_B"), ..update.part.with_columns(update.rank) }];
            }
            if Some(name) == update.magnitude.as_deref() {
                let (name, shape) = (format!("{PREFIX}{}{MAGNITUDE}", update.module), vec![update.part.rows.len()]);
                return vec![TensorPart { name, shape, ..update.part.with_columns(1) }];
            }
        }
        let prefix = if self.virtual_tokens.is_some() { VIRTUAL_PREFIX } else { PREFIX };
        let prefixed = |part: &TensorPart| TensorPart { name: format!("{prefix}{}", part.name), ..part.clone() };
        if let Some(factors) = self.factors.iter().find(|factors| factors.factors == name) {
            return vec![prefixed(&factors.tensor())];
        }
        if let Some(part) = self.bottlenecks.iter().find_map(|layer| BottleneckLayer::tensor(layer, name)) {
            return vec![prefixed(&part)];
        }
        let trained = self.trained.iter().find(|param| param.name == name);
        trained.into_iter().flat_map(|param| param.parts.iter().map(prefixed)).collect()
    }

    /// Write a PEFT directory, which exists. `fill` puts the values of the named parameter into a vector; it is called
    /// once for each of [`AdapterPlan::written`], in order.
    ///
    /// # Errors
    /// As [`AdapterPlan::check_write`]; values that the dtype cannot hold; what the disk refuses; errors of `fill`.
    pub fn write(&self, directory: &Path, details: &PeftDetails<'_>, fill: Fill<'_>) -> Result<()> {
        self.check_write()?;
        let dtype = stored(details.dtype)?;
        let with_ties = |name| (name, self.parts(name).into_iter().flat_map(|part| self.with_ties(part)).collect());
        let parts: Vec<(&str, Vec<TensorPart>)> = self.written().map(with_ties).collect();
        let entry = |part: &TensorPart| TensorEntry::new(part.name.clone(), dtype, part.shape.clone());
        let mut entries: Vec<TensorEntry> = parts.iter().flat_map(|(_, parts)| parts.iter().map(entry)).collect();
        if let Some(tables) = &self.virtual_tokens {
            entries.push(TensorEntry::new(PROMPT_EMBEDDINGS, dtype, tables.shape()));
        }
        let mut writer = SafetensorsWriter::create(&directory.join(ADAPTER_WEIGHTS), &entries)?;
        let mut values = Vec::new();
        for (name, parts) in parts.iter().filter(|(_, parts)| !parts.is_empty()) {
            values.clear();
            fill(name, &mut values)?;
            for part in parts {
                writer.write_f32(&part.name, &part.of(&values)?)?;
            }
        }
        if let Some(tables) = &self.virtual_tokens {
            writer.write_f32(PROMPT_EMBEDDINGS, &tables.tensor(fill)?)?;
        }
        writer.finish()?;
        write_atomic(&directory.join(ADAPTER_CONFIG), to_text(&self.config_fields(details)).as_bytes())
    }

    /// A tensor and, where the model has one matrix for several of PEFT's modules, the same values under their names:
    /// with `ensure_weight_tying` PEFT reads all of them.
    fn with_ties(&self, part: TensorPart) -> impl Iterator<Item = TensorPart> {
        let ties = self.ties.iter().filter(|(_, of)| part.name.strip_prefix(PREFIX) == Some(of));
        let ties: Vec<TensorPart> =
            ties.map(|(name, _)| TensorPart { name: format!("{PREFIX}{name}"), ..part.clone() }).collect();
        std::iter::once(part).chain(ties)
    }

    /// The fields of the configuration.
    fn config_fields(&self, details: &PeftDetails<'_>) -> Map<String, Value> {
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
            "modules_to_save": self.saved_modules(),
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
            "modules_to_save": self.saved_modules(),
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
        let initial = match self.initial {
            InitialUpdate::None => json!(true),
            InitialUpdate::Pissa => json!("pissa"),
            InitialUpdate::Olora => json!("olora"),
        };
        json!({
            "peft_type": "LORA",
            "r": rank,
            "lora_alpha": number(alpha),
            "lora_dropout": number(dropout),
            "use_rslora": rank_stabilized,
            "use_dora": dora,
            "lora_bias": false,
            "bias": self.bias.name(),
            // Their linear layer of GPT-2 stores [in, out].
            "fan_in_fan_out": self.updates.iter().all(|update| update.part.transposed),
            "target_modules": self.target_modules,
            "exclude_modules": null,
            "modules_to_save": self.saved_modules(),
            "init_lora_weights": initial,
            "ensure_weight_tying": self.ensures_tying,
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
