//! The sizes of a model from its `config.json` alone, for the families of one stack.

use super::sizes::TransformerSizes;
use crate::{Error, Result};
use model_center_base::file::printable;
use model_center_formats::config::{Config, ConfigOverrides, ConfigSource};
use model_center_models::family::configs::{
    BertConfig, BloomConfig, Cpm1Config, Gpt2Config, GptjConfig, LlamaConfig, MegatronBertConfig, MistralConfig,
    OptConfig, Qwen2Config, Qwen3Config, RobertaConfig,
};
use model_center_models::layer::BlockConfig;
use model_center_models::{decoder::DecoderFamily, encoder::EncoderFamily};
use std::path::Path;

type Read = fn(&ConfigSource) -> Result<TransformerSizes>;

/// The families by their name in `model_type`.
const FAMILIES: [(&str, Read); 14] = [
    ("gpt2", decoder::<Gpt2Config>),
    ("opt", decoder::<OptConfig>),
    ("gptj", decoder::<GptjConfig>),
    ("bloom", decoder::<BloomConfig>),
    ("cpm1", decoder::<Cpm1Config>),
    ("llama", decoder::<LlamaConfig>),
    ("mistral", decoder::<MistralConfig>),
    ("qwen2", decoder::<Qwen2Config>),
    ("qwen3", decoder::<Qwen3Config>),
    ("bert", encoder::<BertConfig>),
    ("roberta", encoder::<RobertaConfig>),
    ("xlm-roberta", encoder::<RobertaConfig>),
    ("camembert", encoder::<RobertaConfig>),
    ("megatron-bert", encoder::<MegatronBertConfig>),
];

/// The sizes that a directory's `config.json` states. No weights are needed.
///
/// # Errors
/// A malformed configuration; one that names no family, or an encoder-decoder.
pub fn sizes_of(directory: &Path) -> Result<TransformerSizes> {
    sizes_of_config(&ConfigSource::open(directory, ConfigOverrides::default())?)
}

/// The sizes of a model that begins without weights.
///
/// # Errors
/// As [`sizes_of`].
pub fn sizes_of_config(config: &ConfigSource) -> Result<TransformerSizes> {
    let (fields, place) = (config.fields(), config.place().to_owned());
    let name = fields.peek_text("model_type")?.unwrap_or_default().to_owned();
    let Some((_, read)) = FAMILIES.iter().find(|(family, _)| *family == name) else {
        let known = FAMILIES.map(|(family, _)| family).join(", ");
        let reason = format!("sizing by formula does not know the family \"{}\"", printable(&name, 80));
        return Err(Error::model(place, reason, format!("use a model of one of {known}")));
    };
    let sizes = read(config)?;
    sizes.validate(&place)?;
    Ok(sizes)
}

fn decoder<C: DecoderFamily>(config: &ConfigSource) -> Result<TransformerSizes> {
    let config = config.read::<C>(None)?;
    let has_positions = config.layout().table.is_some();
    Ok(sizes(&config, config.block(0), has_positions))
}

fn encoder<C: EncoderFamily>(config: &ConfigSource) -> Result<TransformerSizes> {
    let config = config.read::<C>(None)?;
    let block = config.block();
    Ok(sizes(&config, block, true))
}

fn sizes<C: Config>(config: &C, block: BlockConfig, has_positions: bool) -> TransformerSizes {
    let text = config.text();
    TransformerSizes {
        layers: text.num_layers,
        width: text.dim_model,
        heads: block.attention.num_heads,
        kv_heads: block.attention.num_heads_kv,
        head_size: block.attention.dim_head,
        feed_forward: block.ffn.dim_ff,
        gated: block.ffn.gated,
        vocabulary: text.vocab_size,
        positions: if has_positions { text.position_size } else { 0 },
        tied: text.tied,
    }
}
