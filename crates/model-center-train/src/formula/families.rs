//! The sizes of a model from its `config.json` alone, for the families of one stack.

use super::sizes::TransformerSizes;
use crate::{Error, Result};
use model_center_base::file::printable;
use model_center_formats::config::{ConfigOverrides, ConfigSource};
use model_center_models::architecture::{Added, BlockPlace, ModelFamily};
use model_center_models::family::configs::{
    BertConfig, BloomConfig, Cpm1Config, CwmConfig, DistilBertConfig, Gemma2Config, Gemma3Config, Glm4Config,
    Gpt2Config, GptNeoxConfig, GptjConfig, GraniteConfig, LlamaConfig, MegatronBertConfig, MinistralConfig,
    MistralConfig, ModernBertConfig, Olmo2Config, Olmo3Config, OptConfig, Phi3Config, Qwen2Config, Qwen3Config,
    RobertaConfig, SeedOssConfig, SmolLm3Config,
};
use std::path::Path;

type Read = fn(&ConfigSource) -> Result<TransformerSizes>;

/// The families by their name in `model_type`.
const FAMILIES: [(&str, Read); 28] = [
    ("gpt2", sizes::<Gpt2Config>),
    ("opt", sizes::<OptConfig>),
    ("gptj", sizes::<GptjConfig>),
    ("bloom", sizes::<BloomConfig>),
    ("cpm1", sizes::<Cpm1Config>),
    ("llama", sizes::<LlamaConfig>),
    ("mistral", sizes::<MistralConfig>),
    ("qwen2", sizes::<Qwen2Config>),
    ("qwen3", sizes::<Qwen3Config>),
    ("gemma2", sizes::<Gemma2Config>),
    ("gemma3_text", sizes::<Gemma3Config>),
    ("olmo3", sizes::<Olmo3Config>),
    ("gpt_neox", sizes::<GptNeoxConfig>),
    ("glm4", sizes::<Glm4Config>),
    ("phi3", sizes::<Phi3Config>),
    ("smollm3", sizes::<SmolLm3Config>),
    ("olmo2", sizes::<Olmo2Config>),
    ("granite", sizes::<GraniteConfig>),
    ("ministral", sizes::<MinistralConfig>),
    ("cwm", sizes::<CwmConfig>),
    ("seed_oss", sizes::<SeedOssConfig>),
    ("bert", sizes::<BertConfig>),
    ("roberta", sizes::<RobertaConfig>),
    ("xlm-roberta", sizes::<RobertaConfig>),
    ("camembert", sizes::<RobertaConfig>),
    ("megatron-bert", sizes::<MegatronBertConfig>),
    ("distilbert", sizes::<DistilBertConfig>),
    ("modernbert", sizes::<ModernBertConfig>),
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

fn sizes<C: ModelFamily>(config: &ConfigSource) -> Result<TransformerSizes> {
    let config = config.read::<C>(None)?;
    let (text, block) = (config.text(), config.block(BlockPlace::FIRST));
    let has_positions = config.spec().stacks.iter().any(|stack| stack.added != Added::None);
    Ok(TransformerSizes {
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
    })
}
