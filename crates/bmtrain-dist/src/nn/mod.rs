//! Layers: the smallest things that own parameters.

pub mod embedding;
pub mod linear;
pub mod low_rank;
pub mod norm;

pub use embedding::{Embedding, EmbeddingOptions};
pub use linear::{Linear, LinearOptions, TensorSplit};
pub use low_rank::{Adapters, LinearLayer, LowRank, LowRankOptions, PromptOptions};
pub use norm::{Norm, NormOptions};
