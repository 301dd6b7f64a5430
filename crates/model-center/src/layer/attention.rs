//! Multi-head self-attention with a fused projection of queries, keys and values.

use bmtrain_core::ops::{self, AttentionMask, AttentionOptions};
use bmtrain_core::{Ctx, Tensor, Var};
use bmtrain_dist::Builder;
use bmtrain_dist::Result;
use bmtrain_dist::block::Bundle;
use bmtrain_dist::nn::linear::{Cut, Linear, LinearOptions};
use bmtrain_dist::param::{Init, Part};

/// What an [`Attention`] is made of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionConfig {
    /// D, length of the input and of the output.
    pub dim_model: usize,
    /// N, query heads.
    pub num_heads: usize,
    /// K, key and value heads; a divisor of `num_heads`.
    pub num_heads_kv: usize,
    /// H, length of a head.
    pub dim_head: usize,
    /// Whether the projections have a bias.
    pub bias: bool,
    /// Factor of the scores, commonly `1 / sqrt(H)`.
    pub scale: f32,
    /// A query sees earlier keys and its own only.
    pub causal: bool,
    /// Probability with which an attention probability is dropped.
    pub dropout: f32,
    /// Initial weights of the fused projection.
    pub init: Init,
    /// Initial weights of the projection behind, whose outputs are added up along the depth of the model.
    pub out_init: Init,
}

/// The mask, which every block of a list sees: u8 `[B, L]`, 1 for tokens and 0 for padding; `None` when nothing is padded.
#[derive(Debug, Clone)]
pub struct Padding(pub Option<Tensor>);

impl Bundle for Padding {
    fn vars(&self) -> Vec<Var> {
        Vec::new()
    }

    fn rebuild(&self, _vars: &mut dyn Iterator<Item = Var>) -> Self {
        self.clone()
    }
}

/// What one call sees besides its input.
#[derive(Debug, Clone, Copy, Default)]
pub struct AttentionArgs<'a> {
    /// u8 `[B, L]`, 1 for positions that may be seen.
    pub padding: Option<&'a Tensor>,
    /// Added to the scores, `[1 or B, N, L, L]`.
    pub bias: Option<&'a Var>,
}

/// Self-attention: `attention_out(attention(project_qkv(x)))`.
#[derive(Debug, Clone)]
pub struct Attention {
    config: AttentionConfig,
    project_qkv: Linear,
    attention_out: Linear,
}

impl Attention {
    /// Declare the projections under the builder's name.
    ///
    /// # Errors
    /// Heads that cannot be cut over the tensor-parallel ranks; no memory left.
    pub fn new(builder: &Builder, config: AttentionConfig) -> Result<Self> {
        let AttentionConfig { dim_model, num_heads, num_heads_kv, dim_head, bias, init, out_init, .. } = config;
        let parts = vec![
            Part::units(num_heads, dim_head),
            Part::units(num_heads_kv, dim_head),
            Part::units(num_heads_kv, dim_head),
        ];
        let qkv = LinearOptions { inputs: dim_model, outputs: parts, bias, init, cut: Cut::Columns };
        let out = LinearOptions::new(num_heads * dim_head, dim_model, bias, out_init).cut(Cut::Rows);
        Ok(Attention {
            config,
            project_qkv: Linear::new(&builder.at("project_qkv"), qkv)?,
            attention_out: Linear::new(&builder.at("attention_out"), out)?,
        })
    }

    /// The fused projection, `[(N + 2 K) H, D]`.
    pub fn project_qkv(&self) -> &Linear {
        &self.project_qkv
    }

    /// `x [B, L, D]` to `[B, L, D]`.
    ///
    /// # Errors
    /// Shapes that do not fit; a failing device.
    pub fn forward(&self, x: &Var, args: AttentionArgs<'_>, cx: &mut Ctx) -> Result<Var> {
        let AttentionConfig { num_heads, num_heads_kv, dim_head, scale, causal, dropout, .. } = self.config;
        let options = AttentionOptions {
            heads: num_heads,
            kv_heads: num_heads_kv,
            head_size: dim_head,
            scale,
            causal,
            mask: args.padding.map_or(AttentionMask::None, AttentionMask::Padding),
            bias: args.bias,
            dropout: cx.dropout("attention_probabilities", dropout)?,
        };
        let qkv = self.project_qkv.forward(x, cx)?; // [B, L, (N + 2 K) H]
        let context = ops::attention_fused(cx, &qkv, &options)?; // [B, L, N H]
        drop(qkv);
        self.attention_out.forward(&context, cx) // [B, L, D]
    }
}
