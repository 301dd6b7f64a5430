//! The families of models whose files are read.
//!
//! Defines [`Family`]; called by [`super::decoder`] and [`super::names`].

use super::Metadata;
use crate::Result;
use crate::file::printable;

/// A kind of model, by what the format calls its architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// `llama`: Llama, and Mistral, whose arithmetic is the same but for a window that these files do not record.
    Llama,
    /// `qwen2`: biases at queries, keys and values.
    Qwen2,
    /// `qwen3`: norms of queries and keys.
    Qwen3,
}

impl Family {
    const ALL: [Self; 3] = [Self::Llama, Self::Qwen2, Self::Qwen3];

    /// The name in `general.architecture` of the format and in `model_type` of Hugging Face, which are equal.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }

    /// The class of the model in `transformers`.
    pub fn architecture(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    /// Whether rows of queries and keys are stored in another order than Hugging Face's.
    pub fn interleaves_heads(self) -> bool {
        self == Self::Llama
    }

    pub(super) fn read(metadata: &Metadata) -> Result<Self> {
        const KEY: &str = "general.architecture";
        let name = metadata.text(KEY)?.ok_or_else(|| metadata.lacking(KEY))?;
        Self::ALL.into_iter().find(|family| family.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            let reason = format!("the architecture is {}; supported are {known}", printable(name, 60));
            metadata.unfit(KEY, reason, "use a model of one of these families (Mistral is llama here)")
        })
    }
}
