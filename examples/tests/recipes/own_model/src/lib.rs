//! A family of models in a crate of its own: a small decoder whose block multiplies what attention and feed-forward add
//! by a factor. [`TABLES`] is what a [`Registry`](model_center::model::Registry) takes; `src/bin` has the programs.

use bmtrain_dist::nn::Norm;
use bmtrain_dist::prelude::{Block, Builder, Ctx, Result, Var, ops};
use model_center::config::LlamaConfig;
use model_center::layer::{Attention, BlockCache, FeedForward, Shared};
use model_center::model::MODELS;
use model_center::model::prelude::*;

/// The families of `model-center` and this one: what a registry takes.
pub static TABLES: &[&[ModelEntry]] = &[
    MODELS,
    &[ModelEntry {
        model_type: "toy",
        doc: "A small decoder with heads for the next token and for classification",
        open: Toy::open,
        facts: Toy::FACTS,
    }],
];

/// A toy with its head.
pub type Toy = Transformer<ToyConfig, ToyBlock>;

model_config! {
    /// Sizes and options.
    pub struct ToyConfig {
        /// The common fields.
        text: TextConfig::default();
        /// Factor of what attention and feed-forward add.
        factor: f32 = 0.0, Number(required "residual_multiplier" =>);
    }
}

impl RowConfig for ToyConfig {
    const DIALECT: Dialect = Dialect {
        title: "Toy",
        model_type: "toy",
        ff_factor: Some(4),
        dim_head: &[],
        norm_eps: &["layer_norm_eps"],
        gated: Some(false),
        ..LlamaConfig::DIALECT
    };
}

/// One block: `y = x + factor * attention(norm(x))`, `z = y + factor * ffn(norm(y))`.
#[derive(Debug)]
pub struct ToyBlock {
    attention_norm: Norm,
    attention: Attention,
    ffn_norm: Norm,
    ffn: FeedForward,
    factor: f32,
}

impl FamilyBlock<ToyConfig> for ToyBlock {
    fn build(builder: &Builder, config: &ToyConfig, place: BlockPlace) -> Result<Self> {
        let BlockConfig { attention, ffn, norm, .. } = config.block(place);
        Ok(ToyBlock {
            attention_norm: Norm::new(&builder.at("attention_norm"), norm)?,
            attention: Attention::new(&builder.at("attention"), attention)?,
            ffn_norm: Norm::new(&builder.at("ffn_norm"), norm)?,
            ffn: FeedForward::new(&builder.at("ffn"), ffn)?,
            factor: config.factor,
        })
    }
}

impl Block for ToyBlock {
    type Carry = Var;
    type Shared = Shared;
    type Cache = BlockCache;

    fn forward(&self, x: Var, shared: &Shared, cache: Option<&mut BlockCache>, cx: &mut Ctx) -> Result<Var> {
        let cache = cache.map(|cache| &mut cache.own);
        let normed = self.attention_norm.forward(&x, cx)?; // [B, L, D]
        let attended = self.attention.forward(&normed, &shared.context, cache, cx)?; // [B, L, D]
        let y = ops::add(cx, &x, &ops::scale(cx, &attended, self.factor)?)?; // [B, L, D]
        let normed = self.ffn_norm.forward(&y, cx)?; // [B, L, D]
        let widened = self.ffn.forward(&normed, shared.tokens(), cx)?; // [B, L, D]
        Ok(ops::add(cx, &y, &ops::scale(cx, &widened, self.factor)?)?) // [B, L, D]
    }
}

impl ModelFamily for ToyConfig {
    const ARCHITECTURE: Architecture = Architecture::Decoder;

    fn classes(&self) -> Classes {
        Classes::decoder("Toy")
    }

    fn spec(&self) -> Spec {
        let norm = NormOptions::layer(self.text.dim_model, self.text.norm_eps);
        let stack = StackSpec::decoder(&self.text, PositionsConfig::None, norm);
        Spec::decoder(self, stack.adding(Added::Learned(PositionTable::PLACES), &self.text))
    }

    fn names(&self, _head: Head) -> NameTable {
        let rules = |end| MODULES.map(|(ours, file)| Rule::owned(format!("{ours}.{end}"), format!("{file}.{end}")));
        let rules = [rules("weight"), rules("bias")].concat();
        NameTable { base_prefix: "toy.", rules: rules.into(), ..NameTable::default() }
    }
}

/// Modules and their names in files; `{i}` is the number of a block.
const MODULES: [(&str, &str); 11] = [
    ("input_embedding", "toy.word_embeddings"),
    ("position_embedding", "toy.position_embeddings"),
    ("decoder.layers.{i}.attention_norm", "toy.layer.{i}.norm_1"),
    ("decoder.layers.{i}.attention.project_qkv", "toy.layer.{i}.{query|key|value}"),
    ("decoder.layers.{i}.attention.attention_out", "toy.layer.{i}.out"),
    ("decoder.layers.{i}.ffn_norm", "toy.layer.{i}.norm_2"),
    ("decoder.layers.{i}.ffn.w_in", "toy.layer.{i}.up"),
    ("decoder.layers.{i}.ffn.w_out", "toy.layer.{i}.down"),
    ("decoder.output_norm", "toy.norm"),
    ("lm_head", "lm_head"),
    ("cls_projection", "score"),
];
