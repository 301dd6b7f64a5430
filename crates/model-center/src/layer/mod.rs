//! Layers shared by the models: attention and feed-forward. The maths, with shapes in comments; a model puts them together.

pub mod attention;
pub mod feed_forward;

pub use attention::{Attention, AttentionArgs, AttentionConfig, Padding};
pub use feed_forward::{FeedForward, FeedForwardConfig};
