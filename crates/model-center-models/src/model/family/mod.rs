//! The families of models, one file and one line of [`MODELS`] each: configuration, blocks, names in files.

pub mod albert;
pub mod bart;
pub mod bert;
pub mod bloom;
pub mod cpm1;
pub mod cpm2;
pub mod cpm_t5;
pub mod cwm;
pub mod distilbert;
pub mod electra;
mod facts;
pub mod gemma2;
pub mod gemma3;
pub mod glm4;
pub mod gpt2;
pub mod gpt_neox;
pub mod gptj;
pub mod granite;
pub mod llama;
pub mod marian;
pub mod megatron_bert;
pub mod ministral;
pub mod mistral;
pub mod modernbert;
pub mod mpnet;
pub mod olmo2;
pub mod olmo3;
pub mod opt;
pub mod phi3;
pub mod qwen2;
pub mod qwen3;
pub mod roberta;
pub mod seed_oss;
pub mod smollm3;
pub mod t5;

pub use facts::{Description, FamilyFacts};

use super::load::family_names::Signature;
use super::{OpenOptions, OpenedModel};
use model_center_base::error::Result;
use model_center_formats::config::model_center::Class;
use std::path::Path;

/// One family of models.
#[derive(Debug, Clone, Copy)]
pub struct ModelEntry {
    /// Its name in `model_type` of `config.json`.
    pub model_type: &'static str,
    /// One line for listings.
    pub doc: &'static str,
    /// Opens a directory of this family.
    pub open: fn(&Path, &OpenOptions) -> Result<OpenedModel>,
    /// What is known of it without a model.
    pub facts: FamilyFacts,
}

/// The properties of a family of this crate. Each family states them in its own file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Family {
    /// Name, opening and facts.
    pub entry: ModelEntry,
    /// ModelCenter's configuration class, if it has the family.
    pub class: Option<Class>,
    /// Prefix of its classes in `transformers`.
    pub class_prefix: &'static str,
    /// Tensor names that identify it if `config.json` does not name it.
    pub signatures: &'static [Signature],
}

/// The configurations of the families.
pub mod configs {
    pub use super::{
        albert::AlbertConfig,
        bart::BartConfig,
        bert::BertConfig,
        bloom::BloomConfig,
        cpm_t5::CpmT5Config,
        cpm1::Cpm1Config,
        cpm2::Cpm2Config,
        cwm::CwmConfig,
        distilbert::DistilBertConfig,
        electra::ElectraConfig,
        gemma2::Gemma2Config,
        gemma3::Gemma3Config,
        glm4::Glm4Config,
        gpt_neox::GptNeoxConfig,
        gpt2::Gpt2Config,
        gptj::GptjConfig,
        granite::GraniteConfig,
        llama::LlamaConfig,
        marian::MarianConfig,
        megatron_bert::MegatronBertConfig,
        ministral::MinistralConfig,
        mistral::MistralConfig,
        modernbert::ModernBertConfig,
        mpnet::MpnetConfig,
        olmo2::Olmo2Config,
        olmo3::Olmo3Config,
        opt::OptConfig,
        phi3::Phi3Config,
        qwen2::Qwen2Config,
        qwen3::Qwen3Config,
        roberta::{RobertaConfig, RobertaName},
        seed_oss::SeedOssConfig,
        smollm3::SmolLm3Config,
        t5::{HeadScale, T5Config, T5Kind},
    };
}

const ALL: [Family; 37] = [
    bert::FAMILY,
    gpt2::FAMILY,
    opt::FAMILY,
    gptj::FAMILY,
    bloom::FAMILY,
    cpm1::FAMILY,
    llama::FAMILY,
    mistral::FAMILY,
    qwen2::FAMILY,
    qwen3::FAMILY,
    gemma2::FAMILY,
    gemma3::FAMILY,
    olmo3::FAMILY,
    gpt_neox::FAMILY,
    glm4::FAMILY,
    phi3::FAMILY,
    smollm3::FAMILY,
    olmo2::FAMILY,
    granite::FAMILY,
    ministral::FAMILY,
    cwm::FAMILY,
    seed_oss::FAMILY,
    t5::FAMILY,
    t5::MULTILINGUAL,
    bart::FAMILY,
    marian::FAMILY,
    cpm2::FAMILY,
    roberta::FAMILY,
    roberta::XLM,
    roberta::CAMEMBERT,
    megatron_bert::FAMILY,
    distilbert::FAMILY,
    electra::FAMILY,
    mpnet::FAMILY,
    modernbert::FAMILY,
    albert::FAMILY,
    cpm_t5::FAMILY,
];

/// The families of this crate with their properties.
pub(crate) static FAMILIES: &[Family] = &ALL;

/// The families of this crate.
pub static MODELS: &[ModelEntry] = &{
    let mut entries = [ALL[0].entry; ALL.len()];
    let mut i = 0;
    while i < ALL.len() {
        entries[i] = ALL[i].entry;
        i += 1;
    }
    entries
};
