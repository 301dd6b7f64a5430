//! Layers: the smallest things that own parameters.

pub mod bottleneck;
pub mod embedding;
pub mod linear;
pub mod low_rank;
mod magnitude;
pub mod norm;
pub mod scaling;

pub use crate::param::adapters::{
    Adapters, BottleneckOptions, LinearLayer, LowRankOptions, PrefixOptions, PromptOptions, ScaledSide, ScalingOptions,
    TensorSplit,
};
pub use embedding::{Embedding, EmbeddingOptions};
pub use linear::{Linear, LinearOptions};
pub use low_rank::LowRank;
pub use norm::{Norm, NormOptions};
