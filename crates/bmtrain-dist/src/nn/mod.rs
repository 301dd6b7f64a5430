//! Layers: the smallest things that own parameters.

pub mod embedding;
pub mod linear;
pub mod norm;

pub use embedding::{Embedding, EmbeddingOptions};
pub use linear::{Linear, LinearOptions, TensorSplit};
pub use norm::{Norm, NormOptions};
