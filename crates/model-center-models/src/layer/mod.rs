//! Layers shared by the models: attention, feed-forward, the block they make, and the ways of telling positions. The
//! maths, with shapes in comments; a model puts them together.

pub mod attention;
pub mod block;
pub mod block_config;
pub mod cache;
pub mod feed_forward;
pub mod head_norm;
pub mod mask;
pub mod position;
pub(crate) mod prefix;
pub mod tokens;

pub use attention::{Attention, AttentionConfig, CrossAttention, RotaryHeads};
pub use block::TransformerBlock;
pub use block_config::{BlockConfig, Placement, Shared};
pub use cache::{BlockCache, OwnCache};
pub use feed_forward::{FeedForward, FeedForwardConfig};
pub use head_norm::HeadNorm;
pub use mask::{Angles, AttentionContext, Memory, Visible};
pub use position::{Positions, PositionsConfig};
pub use tokens::{TokensRead, token_dropout};
