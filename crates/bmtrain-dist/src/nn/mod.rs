//! Layers: the smallest things that own parameters.

pub mod bottleneck;
pub mod embedding;
pub mod linear;
pub mod low_rank;
mod magnitude;
pub mod norm;
pub mod scaling;

pub use bottleneck::BottleneckOptions;
pub use embedding::{Embedding, EmbeddingOptions};
pub use linear::{Linear, LinearOptions, TensorSplit};
pub use low_rank::{Adapters, LinearLayer, LowRank, LowRankOptions, PrefixOptions, PromptOptions};
pub(crate) use magnitude::Magnitude;
pub use norm::{Norm, NormOptions};
pub use scaling::{ScaledSide, ScalingOptions};
