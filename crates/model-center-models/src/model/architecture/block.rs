//! The default block of a family.

use crate::layer::{AttentionConfig, BlockConfig, FeedForwardConfig, Placement};
use bmtrain_dist::nn::norm::NormOptions;
use bmtrain_dist::param::Init;
use model_center_formats::config::TextConfig;

/// A block with layer norms, biases and bidirectional attention, without gated feed-forward.
pub(in crate::model) fn block(text: &TextConfig, placement: Placement) -> BlockConfig {
    let init = Init::normal(text.init_std);
    let out_init = Init::normal(text.init_std / text.residual_divisor(false));
    BlockConfig {
        placement,
        attention: AttentionConfig {
            dropout: text.attention_dropout_p,
            out_init,
            ..AttentionConfig::new(text.dim_model, text.num_heads, text.dim_head, init)
        },
        cross: None,
        ffn: FeedForwardConfig {
            out_init,
            ..FeedForwardConfig::new(text.dim_model, text.dim_ff, text.ffn_activate_fn, init)
        },
        norm: NormOptions::layer(text.dim_model, text.norm_eps),
        norms_attention: true,
        shares_norm: false,
        dropout: text.dropout_p,
        residual_factor: 1.0,
        ffn_dropout: text.dropout_p,
    }
}

/// A pre-norm block with RMS norms and without biases.
pub(in crate::model) fn block_without_biases(text: &TextConfig) -> BlockConfig {
    let block = block(text, Placement::Pre);
    BlockConfig {
        attention: AttentionConfig { bias: false, out_bias: false, ..block.attention },
        ffn: FeedForwardConfig { gated: text.ffn_gated, bias: false, ..block.ffn },
        norm: NormOptions::rms(text.dim_model, text.norm_eps),
        ..block
    }
}
