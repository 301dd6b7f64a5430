//! Parameters trained beside frozen ones, as options of a builder, and the linear layers that take them.

use super::{NamePatterns, SplitPart};
use bmtrain_core::kernel::Activation;
use std::collections::HashMap;
use std::ops::Range;

/// Trained parameters of a model that is otherwise frozen.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Adapters {
    /// Updates by the full name of a linear layer; several of one layer are added.
    pub low_rank: HashMap<String, Vec<LowRankOptions>>,
    /// Learned factors by the full name of a linear layer, of outputs or inputs that do not overlap.
    pub scaling: HashMap<String, Vec<ScalingOptions>>,
    /// Bottlenecks by the full name of a linear layer.
    pub bottlenecks: HashMap<String, BottleneckOptions>,
    /// Virtual tokens, for a model that has them.
    pub prompt: Option<PromptOptions>,
    /// Trained keys and values before every sequence, for a model that has them.
    pub prefix: Option<PrefixOptions>,
    /// Full names of parameters of the model that are trained, too.
    pub trained: NamePatterns,
}

/// Virtual tokens before every sequence, whose embeddings are trained: prompt tuning. A model that has them reads them
/// from its builder's options and declares their tables below [`Builder::adapter`](super::Builder::adapter).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptOptions {
    /// Their number, before a sequence.
    pub tokens: usize,
    /// Whether the decoder of an encoder-decoder has as many of its own, beside the encoder's.
    pub decoder: bool,
}

/// Virtual tokens before every sequence that are keys and values alone, trained for each self-attention: prefix tuning.
/// A model that has them reads them from its builder's options and declares the values below
/// [`Builder::adapter`](super::Builder::adapter).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixOptions {
    /// Their number, before a sequence.
    pub tokens: usize,
}

/// One low-rank update of a linear layer: `y[.., rows] += scale · dropout(x) a^T b^T`.
///
/// With a magnitude m it is DoRA (Liu et al., 2024): these outputs are multiplied by `m / ‖W + scale · b a‖`, the
/// lengths of the rows of the updated weight, before the bias is added. No gradient flows through the lengths.
#[derive(Debug, Clone, PartialEq)]
pub struct LowRankOptions {
    /// Its name among the updates of the layer: the matrices are `<layer>.lora.<name>.a` and `<layer>.lora.<name>.b`.
    pub name: String,
    /// Rows of the weight that are updated: all of them, or whole parts of a fused layer.
    pub rows: Range<usize>,
    /// R, rows of `a` and columns of `b`.
    pub rank: usize,
    /// Factor of the update: alpha / R, or alpha / sqrt(R) for rank-stabilised LoRA.
    pub scale: f32,
    /// Probability with which an element of the update's input is dropped.
    pub dropout: f32,
    /// Whether the lengths of the rows of the updated weight are trained, as `<layer>.lora.<name>.magnitude`. It is an
    /// f32 parameter, whatever the model's dtype, and begins with the lengths of the rows of the weight.
    pub magnitude: bool,
}

/// A linear layer as it was declared, for those who choose [`Adapters`].
#[derive(Debug, Clone, PartialEq)]
pub struct LinearLayer {
    /// Full name; its weight is `<name>.weight`.
    pub name: String,
    /// Length of the input.
    pub inputs: usize,
    /// Parts of the output.
    pub outputs: Vec<SplitPart>,
    /// Split of the weight over tensor-parallel ranks.
    pub split: TensorSplit,
    /// Whether it is in a block, not in embedding or head.
    pub is_in_block: bool,
}

/// Factors of a linear layer, `<layer>.ia3.<name>`: an f32 parameter, whatever the model's dtype, that begins with
/// ones.
/// Source: Liu et al., 2022.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScalingOptions {
    /// Its name among the factors of the layer.
    pub name: String,
    /// Side that is multiplied.
    pub side: ScaledSide,
}

/// Factor's side of a linear layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScaledSide {
    /// These outputs, with their bias: all of them, or whole parts of a fused layer.
    Outputs(Range<usize>),
    /// All inputs.
    Inputs,
}

/// A bottleneck after a linear layer: its outputs `y` become `y + up(activation(down(y)))`, both maps with a bias. The
/// parameters are `<layer>.bottleneck.down.weight` `[R, N]`, `.down.bias`, `.up.weight` `[N, R]` and `.up.bias`; `up`
/// begins with zeros, so that the model begins as it is. Tensor-parallel ranks have all of them.
///
/// Source: Houlsby et al., 2019; Pfeiffer et al., 2021.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BottleneckOptions {
    /// R, length in between.
    pub size: usize,
    /// Function in between.
    pub activation: Activation,
}

/// Side of a weight that is split over tensor-parallel ranks (Shoeybi et al., 2019).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorSplit {
    /// Not at all.
    None,
    /// Column-parallel: every rank computes some of the outputs. The bias is split too.
    Columns,
    /// Row-parallel: every rank computes a term of all outputs. The bias is replicated.
    Rows,
    /// Column-parallel over token ids: each rank has the same number of them, with padding after the last id
    /// ([`Split::Vocabulary`](super::Split::Vocabulary)). The outputs of all ranks are gathered; a loss needs no
    /// gathered outputs, see
    /// [`Linear::cross_entropy`](crate::nn::Linear::cross_entropy).
    Vocabulary,
}
