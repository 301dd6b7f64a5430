//! Norms of queries and keys, as an [`Attention`](super::Attention) has them between projection and rotation.

use super::AttentionConfig;
use bmtrain_dist::nn::norm::{Norm, NormOptions};
use bmtrain_dist::{Builder, Error, Result};

/// Norms of queries and of keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HeadNorm {
    /// Of each head; the size is H.
    EachHead(NormOptions),
    /// An RMS norm over the heads of a token together, `N H` elements of the queries and `K H` of the keys.
    WholeVector {
        /// Added to the mean square.
        epsilon: f32,
    },
}

impl HeadNorm {
    /// The norms of queries and of keys.
    ///
    /// # Errors
    /// A norm over all heads where tensor-parallel ranks have some of them each.
    pub(super) fn build(self, builder: &Builder, config: &AttentionConfig) -> Result<[Norm; 2]> {
        let build = |name: &str, heads: usize| match self {
            HeadNorm::EachHead(options) => Norm::of_heads(&builder.at(name), options),
            HeadNorm::WholeVector { epsilon } => {
                Norm::new(&builder.at(name), NormOptions::rms(heads * config.dim_head, epsilon))
            }
        };
        if matches!(self, HeadNorm::WholeVector { .. }) && builder.tensor_ranks().is_some_and(|ranks| ranks.size() > 1)
        {
            let reason = "its norms are over all heads of queries and of keys, and a tensor-parallel rank would \
                          have some of the heads: train it without tensor parallelism";
            return Err(Error::setting("attention", reason));
        }
        Ok([build("query_norm", config.num_heads)?, build("key_norm", config.num_heads_kv)?])
    }

    /// Elements that are normalized together, of a token's `heads` of `dim_head`.
    pub(super) fn width(self, heads: usize, dim_head: usize) -> usize {
        match self {
            HeadNorm::EachHead(_) => dim_head,
            HeadNorm::WholeVector { .. } => heads * dim_head,
        }
    }
}
