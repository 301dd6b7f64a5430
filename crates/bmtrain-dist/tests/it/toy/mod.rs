//! A small encoder–decoder with cross attention and a position bias that all blocks share: everything that can flow
//! between blocks and stages, in one model.

use bmtrain_core::kernel::Activation;
use bmtrain_core::ops::{self, AttentionMask, AttentionOptions};
use bmtrain_core::{Ctx, DType, Device, Tensor, Var};
use bmtrain_dist::block::{BlockOptions, Recompute, RunOptions};
use bmtrain_dist::nn::{Embedding, EmbeddingOptions, Linear, LinearOptions, Norm, NormOptions};
use bmtrain_dist::param::{BuilderOptions, Init, Param, Split};
use bmtrain_dist::pipeline::{Edge, ModelPart};
use bmtrain_dist::{Block, Builder, Bundle, Model, Module, Parameters, Result, TransformerBlockList};
use std::ops::Range;

pub const VOCABULARY: usize = 11;
pub const SIZE: usize = 8;
pub const HEADS: usize = 2;
pub const LENGTH: usize = 5;
pub const BATCH: usize = 2;

#[derive(Debug, Clone)]
pub struct Flow {
    pub encoder: Var,
    pub decoder: Var,
    pub bias: Var,
}

impl Bundle for Flow {
    fn vars(&self) -> Vec<Var> {
        vec![self.encoder.clone(), self.decoder.clone(), self.bias.clone()]
    }

    fn rebuild(&self, vars: &mut dyn Iterator<Item = Var>) -> Self {
        Flow { encoder: self.encoder.rebuild(vars), decoder: self.decoder.rebuild(vars), bias: self.bias.rebuild(vars) }
    }
}

pub struct ToyBatch {
    pub source: Tensor,
    pub target: Tensor,
    pub labels: Tensor,
}

/// Ids of one of a batch's tensors, others for every salt.
pub fn ids(salt: usize) -> Vec<i64> {
    (0..BATCH * LENGTH).map(|i| ((i * 7 + salt) % VOCABULARY) as i64).collect()
}

/// Self-attention, cross attention if it is a decoder's, feed-forward; all pre-norm.
struct ToyBlock {
    norm: Norm,
    qkv: Linear,
    out: Linear,
    cross: Option<(Norm, Linear, Linear, Linear)>,
    ffn_norm: Norm,
    w_in: Linear,
    w_out: Linear,
    causal: bool,
}

impl ToyBlock {
    fn new(b: &Builder, decoder: bool, attends_to_encoder: bool) -> Result<Self> {
        let linear = |name: &str, inputs, outputs| {
            Linear::new(&b.at(name), LinearOptions::new(inputs, outputs, true, Init::normal(0.4)))
        };
        let norm = |name: &str| Norm::new(&b.at(name), NormOptions::layer(SIZE, 1e-5));
        let cross = match attends_to_encoder {
            true => Some((
                norm("cross_norm")?,
                linear("cross_q", SIZE, SIZE)?,
                linear("cross_kv", SIZE, 2 * SIZE)?,
                linear("cross_out", SIZE, SIZE)?,
            )),
            false => None,
        };
        Ok(ToyBlock {
            norm: norm("norm")?,
            qkv: linear("qkv", SIZE, 3 * SIZE)?,
            out: linear("out", SIZE, SIZE)?,
            cross,
            ffn_norm: norm("ffn_norm")?,
            w_in: linear("w_in", SIZE, 12)?,
            w_out: linear("w_out", 12, SIZE)?,
            causal: decoder,
        })
    }

    fn options<'a>(&self, bias: Option<&'a Var>, causal: bool, cx: &Ctx, name: &str) -> Result<AttentionOptions<'a>> {
        Ok(AttentionOptions {
            heads: HEADS,
            kv_heads: HEADS,
            head_size: SIZE / HEADS,
            scale: 0.5,
            soft_cap: None,
            window: None,
            causal,
            mask: AttentionMask::None,
            documents: None,
            bias,
            dropout: cx.dropout(name, 0.1)?,
            shard: None,
        })
    }
}

impl Block for ToyBlock {
    type Carry = Var;
    /// Position bias; the encoder's output for decoder blocks.
    type Shared = (Var, Option<Var>);
    type Cache = ();

    fn forward(&self, x: Var, shared: &(Var, Option<Var>), _: Option<&mut ()>, cx: &mut Ctx) -> Result<Var> {
        let normed = self.norm.forward(&x, cx)?;
        let qkv = self.qkv.forward(&normed, cx)?;
        let context = ops::attention_fused(cx, &qkv, &self.options(Some(&shared.0), self.causal, cx, "self")?)?;
        let mut x = ops::add(cx, &x, &self.out.forward(&context, cx)?)?;
        if let (Some((norm, q, kv, out)), Some(encoder)) = (&self.cross, &shared.1) {
            let q = q.forward(&norm.forward(&x, cx)?, cx)?;
            let kv = kv.forward(encoder, cx)?;
            let (k, v) = (ops::slice_last(cx, &kv, 0..SIZE)?, ops::slice_last(cx, &kv, SIZE..2 * SIZE)?);
            let context = ops::attention(cx, &q, &k, &v, &self.options(None, false, cx, "cross")?)?;
            x = ops::add(cx, &x, &out.forward(&context, cx)?)?;
        }
        let inner = self.w_in.forward_activated(&self.ffn_norm.forward(&x, cx)?, Activation::Gelu, cx)?;
        let dropout = cx.dropout("ffn", 0.1)?;
        let inner = ops::dropout(cx, &inner, dropout)?;
        Ok(ops::add(cx, &x, &self.w_out.forward(&inner, cx)?)?)
    }
}

/// Options of a toy.
#[derive(Debug, Clone)]
pub struct ToyOptions {
    pub recompute: Recompute,
    /// Numbers of blocks of encoder and decoder. Without an encoder the decoder is alone.
    pub blocks: [usize; 2],
    /// Whether the embedding table is the output matrix too.
    pub tied: bool,
    pub builder: BuilderOptions,
}

impl Default for ToyOptions {
    fn default() -> Self {
        let builder = BuilderOptions { seed: 5, ..BuilderOptions::default() };
        ToyOptions { recompute: Recompute::Keep, blocks: [2, 2], tied: true, builder }
    }
}

pub struct Toy {
    table: Embedding,
    head: Option<Linear>,
    bias: Param,
    encoder: TransformerBlockList<ToyBlock>,
    decoder: TransformerBlockList<ToyBlock>,
    parameters: Parameters,
}

impl Toy {
    pub fn new(device: &Device, blocks: BlockOptions) -> Result<Self> {
        Toy::with(device, ToyOptions { recompute: blocks.recompute, ..ToyOptions::default() })
    }

    pub fn with(device: &Device, options: ToyOptions) -> Result<Self> {
        let ToyOptions { recompute, blocks: [encoder, decoder], tied, builder } = options;
        let (b, blocks) = (Builder::new(device, builder), BlockOptions::from(recompute));
        let part = if tied { ModelPart::Tied } else { ModelPart::Embed };
        let table = EmbeddingOptions { entries: VOCABULARY, size: SIZE, init: Init::normal(1.0), padding_index: None };
        let table = Embedding::new(&b.part(part).at("table"), table)?;
        let shape = [1, HEADS, LENGTH, LENGTH];
        let bias = b.param("position_bias", shape, Init::normal(0.5), Split::Replicated, false)?;
        let encoder =
            TransformerBlockList::build(&b.at("encoder"), encoder, blocks, |_, b| ToyBlock::new(b, false, false))?;
        let block = |_, b: &Builder| ToyBlock::new(b, true, !encoder.is_empty());
        let decoder = TransformerBlockList::build(&b.at("decoder"), decoder, blocks, block)?;
        let head = LinearOptions::new(SIZE, VOCABULARY, false, Init::normal(0.4));
        let head = (!tied).then(|| Linear::new(&b.part(ModelPart::Head).at("head"), head)).transpose()?;
        Ok(Toy { table, head, bias, encoder, decoder, parameters: b.finish() })
    }
}

impl Module for Toy {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }
}

impl Model for Toy {
    type Batch = ToyBatch;
    type Flow = Flow;
    type Output = Var;

    fn embed(&self, batch: &ToyBatch, cx: &mut Ctx) -> Result<Flow> {
        Ok(Flow {
            encoder: self.table.forward(&batch.source, cx)?,
            decoder: self.table.forward(&batch.target, cx)?,
            // Not the parameter itself, whose gradient would be summed over the blocks of all micro-batches.
            bias: ops::scale(cx, &self.bias.var(cx)?, 1.0)?,
        })
    }

    fn stacks(&self) -> Vec<usize> {
        vec![self.encoder.len(), self.decoder.len()]
    }

    fn run_stack(&self, stack: usize, range: Range<usize>, flow: Flow, _: &ToyBatch, cx: &mut Ctx) -> Result<Flow> {
        let options = RunOptions { range, caches: None, return_hidden: false };
        let (bias, encoder) = (flow.bias.clone(), flow.encoder.clone());
        if stack == 0 {
            let encoder = cx.at("encoder", |cx| self.encoder.run(encoder, &(bias, None), options, cx))?.carry;
            return Ok(Flow { encoder, ..flow });
        }
        let (decoder, shared) = (flow.decoder.clone(), (bias, Some(encoder)));
        let decoder = cx.at("decoder", |cx| self.decoder.run(decoder, &shared, options, cx))?.carry;
        Ok(Flow { decoder, ..flow })
    }

    fn receive(&self, block: usize, _: &ToyBatch, edge: &mut Edge<'_>) -> Result<Flow> {
        let (dtype, shape) = (self.bias.spec().dtype, [BATCH, LENGTH, SIZE]);
        // After the last block nothing attends to the encoder and to the bias.
        let is_used = block < self.blocks();
        let states = |edge: &mut Edge<'_>, name: &str, is_used: bool| match is_used {
            true => edge.var(name, shape, dtype),
            false => edge.constant(name, shape, dtype),
        };
        Ok(Flow {
            encoder: states(edge, "encoder states", is_used && !self.encoder.is_empty())?,
            decoder: states(edge, "decoder states", true)?,
            bias: {
                let (name, shape) = ("position bias", [1, HEADS, LENGTH, LENGTH]);
                match is_used {
                    true => edge.var_with_gradient(name, shape, dtype, DType::F32)?,
                    false => edge.constant(name, shape, dtype)?,
                }
            },
        })
    }

    fn forward(&self, batch: &ToyBatch, cx: &mut Ctx) -> Result<Var> {
        let mut flow = self.embed(batch, cx)?;
        for (stack, blocks) in self.stacks().into_iter().enumerate().filter(|(_, blocks)| *blocks > 0) {
            flow = self.run_stack(stack, 0..blocks, flow, batch, cx)?;
        }
        let loss = self.head(flow, batch, cx)?;
        self.release(cx);
        Ok(loss)
    }

    fn head(&self, flow: Flow, batch: &ToyBatch, cx: &mut Ctx) -> Result<Var> {
        let logits = match &self.head {
            Some(head) => head.forward(&flow.decoder, cx)?,
            None => self.table.project(&flow.decoder, None, cx)?,
        };
        Ok(ops::cross_entropy(cx, &logits, &batch.labels, &ops::CrossEntropy::default())?)
    }
}
