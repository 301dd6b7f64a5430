//! The settings of adapters.

use bmtrain_core::kernel::Activation;
use serde::{Deserialize, Serialize};

/// Trained parameters beside a frozen model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AdapterConfig {
    /// Low-rank updates.
    Lora(LoraConfig),
    /// Learned factors.
    Ia3(Ia3Config),
    /// Virtual tokens.
    Prompt(PromptConfig),
    /// Virtual tokens that are keys and values alone.
    Prefix(PrefixConfig),
    /// Two maps after layers.
    Bottleneck(BottleneckConfig),
}

impl AdapterConfig {
    /// Its name in recipes, `adapter.method`.
    pub fn method(&self) -> &'static str {
        match self {
            AdapterConfig::Lora(_) => "lora",
            AdapterConfig::Ia3(_) => "ia3",
            AdapterConfig::Prompt(_) => "prompt",
            AdapterConfig::Prefix(_) => "prefix",
            AdapterConfig::Bottleneck(_) => "bottleneck",
        }
    }
}

/// Two maps with an activation in between after the outputs of layers, which are added to them: bottleneck adapters.
/// Source: Houlsby et al., 2019; Pfeiffer et al., 2021.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BottleneckConfig {
    /// Length in between.
    pub size: usize,
    /// Function in between.
    #[serde(with = "model_center_formats::config::activations::by_name")]
    pub activation: Activation,
    /// After which layers, where [`BottleneckConfig::targets`] names none.
    pub placement: BottleneckPlacement,
    /// After which layers, by names as in [`LoraConfig::targets`]; empty for [`BottleneckConfig::placement`].
    pub targets: Vec<String>,
    /// Modules that are trained as a whole, as in [`LoraConfig::trained`].
    pub trained: Vec<String>,
}

/// After which layers of a block bottlenecks are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BottleneckPlacement {
    /// Each attention and each feed-forward, as Houlsby et al. have them.
    Both,
    /// Each attention.
    Attention,
    /// Each feed-forward, as Pfeiffer et al. have them.
    FeedForward,
}

impl Default for BottleneckConfig {
    /// 64 values in between with GELU, after attention and feed-forward.
    fn default() -> Self {
        BottleneckConfig {
            size: 64,
            activation: Activation::Gelu,
            placement: BottleneckPlacement::Both,
            targets: Vec::new(),
            trained: Vec::new(),
        }
    }
}

/// Virtual tokens before every sequence whose keys and values are trained, for each layer its own. Source: Li and
/// Liang, 2021.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefixConfig {
    /// Their number.
    pub tokens: usize,
}

/// Virtual tokens before every sequence, whose embeddings are trained. Source: Lester et al., 2021.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptConfig {
    /// Their number.
    pub tokens: usize,
    /// The text whose tokens' embeddings they begin with, repeated or truncated to their number; `None` for samples of
    /// a normal distribution.
    pub text: Option<String>,
    /// Whether the decoder of an encoder-decoder has as many of its own.
    pub decoder: bool,
}

impl Default for PromptConfig {
    /// 20 tokens with random embeddings, before the encoder alone.
    fn default() -> Self {
        PromptConfig { tokens: 20, text: None, decoder: false }
    }
}

/// Learned factors of what layers compute, IA³: of the outputs of keys and values, and of what enters the second layer
/// of a feed-forward. Source: Liu et al., 2022.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ia3Config {
    /// Which layers, by names as in [`LoraConfig::targets`]; empty for keys, values and second layers of feed-forwards.
    pub targets: Vec<String>,
    /// The targets whose inputs are multiplied, by the same names; empty for second layers of feed-forwards.
    pub feed_forward: Vec<String>,
    /// Modules that are trained as a whole, as in [`LoraConfig::trained`].
    pub trained: Vec<String>,
}

/// Every linear layer of the blocks.
pub const ALL_LINEAR: &str = "all-linear";

/// Low-rank updates of linear layers. Source: Hu et al., 2021; Kalajdzievski, 2023 for
/// [`LoraConfig::rank_stabilized`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoraConfig {
    /// R, the rank of an update.
    pub rank: usize,
    /// An update is multiplied by `alpha / R`.
    pub alpha: f32,
    /// Multiply by `alpha / sqrt(R)` instead.
    pub rank_stabilized: bool,
    /// Whether the lengths of the rows of updated weights are trained too: DoRA. Source: Liu et al., 2024.
    #[serde(default)]
    pub dora: bool,
    /// Probability with which an element of the input of an update is dropped.
    pub dropout: f32,
    /// Which layers: `all-linear`, all of the blocks, or Hugging Face's names of modules, whole or from any dot on,
    /// such as `q_proj` or `self_attn.q_proj`; `*` stands for any text.
    pub targets: Vec<String>,
    /// Modules that are trained as a whole and saved with the updates, by their names as in `targets`, or by a name in
    /// their path. A new head is trained in any case.
    pub trained: Vec<String>,
}

impl Default for LoraConfig {
    /// Rank 16 and alpha 32 for all linear layers, without dropout.
    fn default() -> Self {
        LoraConfig {
            rank: 16,
            alpha: 32.0,
            rank_stabilized: false,
            dora: false,
            dropout: 0.0,
            targets: vec![ALL_LINEAR.to_owned()],
            trained: Vec::new(),
        }
    }
}

impl LoraConfig {
    /// The factor of an update of this rank.
    pub fn scale(&self, rank: usize) -> f32 {
        let rank = rank as f32;
        self.alpha / if self.rank_stabilized { rank.sqrt() } else { rank }
    }
}
