//! Use of each field of PEFT's configurations, and the refusal of unknown fields.
//!
//! Defines [`FieldUse`] and [`of_method`]. Source: PEFT 0.21.2, the dataclasses of its methods; the claim
//! `peft-directories` compares the lists with the fields of the installed package.

use crate::{Error, Result};
use model_center_formats::account::Account;
use serde_json::{Map, Value};

use super::SAVE_AGAIN;

/// Use of a field of a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldUse {
    /// It is read.
    Read,
    /// It has no effect on what an adapter computes, for this reason.
    WithoutEffect(&'static str),
    /// It has to be off, that is null, false or empty, for this reason.
    Off(&'static str),
}

use FieldUse::{Off, Read, WithoutEffect};

/// Fields of every method.
const COMMON: [(&str, FieldUse); 8] = [
    ("auto_mapping", WithoutEffect("the Python class to open the base model with")),
    ("base_model_name_or_path", Read),
    ("inference_mode", WithoutEffect("whether PEFT freezes the adapter when it is opened")),
    ("modules_to_save", Read),
    ("peft_type", Read),
    ("peft_version", WithoutEffect("the version that wrote the directory")),
    ("revision", Read),
    ("task_type", Read),
];

const TENSORS_TELL: &str = "the tensors tell which modules have updates";
const VARIANT: &str = "another form of update, which is not available";

const LORA: [(&str, FieldUse); 36] = [
    ("alora_invocation_tokens", Off("updates that begin at a token of a sequence are not available")),
    ("alpha_pattern", Read),
    ("arrow_config", Off(VARIANT)),
    ("bias", Read),
    ("corda_config", Off("the base model is changed by statistics of the data that it was made from")),
    ("ensure_weight_tying", Read),
    ("eva_config", WithoutEffect("how the matrices began, before they were trained")),
    ("exclude_modules", WithoutEffect(TENSORS_TELL)),
    ("fan_in_fan_out", WithoutEffect("how a weight is stored, which the base model tells")),
    ("init_lora_weights", Read),
    ("kasa_config", Off(VARIANT)),
    ("layer_replication", Off("layers that are repeated are not available")),
    ("layers_pattern", WithoutEffect(TENSORS_TELL)),
    ("layers_to_transform", WithoutEffect(TENSORS_TELL)),
    ("loftq_config", WithoutEffect("it acts with init_lora_weights = \"loftq\", which is refused")),
    ("lora_alpha", Read),
    ("lora_bias", Read),
    ("lora_dropout", Read),
    ("lora_ga_config", WithoutEffect("it acts with init_lora_weights = \"lora_ga\", which is refused")),
    ("megatron_config", Off("layers of Megatron's own classes are not available")),
    ("megatron_core", WithoutEffect("it acts with megatron_config, which has to be off")),
    ("monteclora_config", Off(VARIANT)),
    ("qalora_group_size", WithoutEffect("it acts with use_qalora, which has to be off")),
    ("r", Read),
    ("rank_pattern", Read),
    ("target_modules", Read),
    ("target_parameters", Off("updates of parameters that are no linear layers are not available")),
    ("trainable_token_indices", Read),
    ("use_bdlora", Off(VARIANT)),
    ("use_dora", Read),
    ("use_qalora", Off(VARIANT)),
    ("use_rslora", Read),
    ("velora_config", Off(VARIANT)),
    ("runtime_config", WithoutEffect("where PEFT computes on opening")),
    // Fields of the first versions.
    ("enable_lora", Off("updates of some parts of a fused layer are not available")),
    ("merge_weights", WithoutEffect("whether the first versions of PEFT merged on opening")),
];

const IA3: [(&str, FieldUse); 5] = [
    ("exclude_modules", WithoutEffect(TENSORS_TELL)),
    ("fan_in_fan_out", WithoutEffect("how a weight is stored, which the base model tells")),
    ("feedforward_modules", Read),
    ("init_ia3_weights", WithoutEffect("how the factors began, before they were trained")),
    ("target_modules", Read),
];

/// Fields of all methods with virtual tokens.
const VIRTUAL: [(&str, FieldUse); 5] = [
    ("num_attention_heads", WithoutEffect("the shape of the tensor is compared with the model's")),
    ("num_layers", WithoutEffect("the shape of the tensor is compared with the model's")),
    ("num_transformer_submodules", WithoutEffect("PEFT computes the first stack's virtual tokens alone")),
    ("num_virtual_tokens", Read),
    ("token_dim", WithoutEffect("the shape of the tensor is compared with the model's")),
];

const PROMPT: [(&str, FieldUse); 5] = [
    ("decoder_prompt", Read),
    ("prompt_tuning_init", WithoutEffect("how the embeddings began, before they were trained")),
    ("prompt_tuning_init_text", Read),
    ("tokenizer_kwargs", WithoutEffect("how the embeddings began, before they were trained")),
    ("tokenizer_name_or_path", WithoutEffect("how the embeddings began, before they were trained")),
];

const COMPUTED: &str = "the tensor has what the projection computed";

const PREFIX: [(&str, FieldUse); 3] = [
    ("encoder_hidden_size", WithoutEffect(COMPUTED)),
    ("init_weights", WithoutEffect("how keys and values began, before they were trained")),
    ("prefix_projection", WithoutEffect(COMPUTED)),
];

const P_TUNING: [(&str, FieldUse); 4] = [
    ("encoder_dropout", WithoutEffect(COMPUTED)),
    ("encoder_hidden_size", WithoutEffect(COMPUTED)),
    ("encoder_num_layers", WithoutEffect(COMPUTED)),
    ("encoder_reparameterization_type", WithoutEffect(COMPUTED)),
];

const BOTTLENECK: [(&str, FieldUse); 3] =
    [("activation", Read), ("bottleneck_size", Read), ("target_modules", WithoutEffect(TENSORS_TELL))];

/// The methods that are read, by PEFT's names.
pub const METHODS: [&str; 6] = ["LORA", "IA3", "PROMPT_TUNING", "PREFIX_TUNING", "P_TUNING", super::BOTTLENECK];

/// The fields of a method's configuration with what they do; `None` of a method that is not read.
pub fn of_method(method: &str) -> Option<Vec<(&'static str, FieldUse)>> {
    let own: &[&[(&'static str, FieldUse)]] = match method {
        "LORA" => &[&LORA],
        "IA3" => &[&IA3],
        "PROMPT_TUNING" => &[&VIRTUAL, &PROMPT],
        "PREFIX_TUNING" => &[&VIRTUAL, &PREFIX],
        "P_TUNING" => &[&VIRTUAL, &P_TUNING],
        super::BOTTLENECK => &[&BOTTLENECK],
        _ => return None,
    };
    Some(COMMON.iter().chain(own.iter().copied().flatten()).copied().collect())
}

/// Refuse what a configuration asks for and is not available. Fields that are off ask for nothing, whatever their name.
pub(super) fn check(fields: &Map<String, Value>, method: &str, place: &str) -> Result<()> {
    let known = of_method(method).unwrap_or_default();
    let asks = fields.iter().filter(|(_, value)| !is_off(value)).map(|(name, _)| name.clone());
    let mut account = Account::open(place, "field", asks);
    for (name, used) in known {
        match used {
            Read | WithoutEffect(_) => {
                account.settle(name);
            }
            Off(reason) if account.settle(name) => {
                account.give_up();
                return Err(Error::model(format!("{place}, field {name}"), reason, "use an adapter without it"));
            }
            Off(_) => {}
        }
    }
    account.close("PEFT 0.21 has no such field, and what it asks for is not known", SAVE_AGAIN)
}

/// Whether a value leaves a part of PEFT out.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Number(_) | Value::Bool(true) => false,
    }
}
