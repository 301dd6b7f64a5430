//! Layers shared by the models: attention, feed-forward and the block that decoders make of them. The maths, with shapes
//! in comments; a model puts them together.

pub mod attention;
pub mod feed_forward;
pub mod pre_norm;

pub use attention::{Attention, AttentionArgs, AttentionConfig, Padding};
pub use feed_forward::{FeedForward, FeedForwardConfig};
pub use pre_norm::{PreNormBlock, PreNormConfig};
