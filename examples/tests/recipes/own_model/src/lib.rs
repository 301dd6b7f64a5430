//! A family of models in a crate of its own: a small pre-norm encoder that sorts texts into classes.
//!
//! Defines [`Toy`], its configuration, its names in files, and [`FAMILIES`], the table that a
//! [`Registry`](model_center::model::Registry) takes. `training` holds a training step; `src/bin` has the finetune and
//! forward programs with this family in them; the tests open, train and save it.

pub mod training;

use bmtrain_core::kernel::Activation;
use bmtrain_core::{Ctx, Device, Segment, Tensor, Var, ops};
use bmtrain_dist::block::{BlockOptions, RunOptions};
use bmtrain_dist::nn::{Embedding, EmbeddingOptions, Linear, LinearOptions, Norm, NormOptions};
use bmtrain_dist::param::{BuilderOptions, Init};
use bmtrain_dist::{Block, Builder, Model, Module, Parameters, TransformerBlockList};
use model_center::config::{Config, Fields, HfHeader};
use model_center::formats::{Allow, DirectoryLayout, ModelDirectory, NameTable, Rule};
use model_center::layer::{Attention, AttentionConfig, AttentionContext, FeedForward, FeedForwardConfig};
use model_center::model::opening::{Fill, open_with};
use model_center::model::registry::{SaveOptions, param_shapes};
use model_center::model::text_model::Observe;
use model_center::model::{
    Batch, HeadInit, Labels, MODELS, ModelEntry, ModelInfo, ModelOutput, OpenOptions, OpenedModel, TextHead,
    TextModel,
};
use model_center::{Error, Result};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;

/// The family's line in a registry.
pub static FAMILIES: &[ModelEntry] =
    &[ModelEntry { model_type: "toy", doc: "A small encoder with a classification head", open }];

/// The families of `model-center` and this one: what a registry takes.
pub static TABLES: &[&[ModelEntry]] = &[MODELS, FAMILIES];

/// Sizes of the model.
#[derive(Debug, Clone, PartialEq)]
pub struct ToyConfig {
    pub vocab_size: usize,
    pub positions: usize,
    pub dim_model: usize,
    pub num_heads: usize,
    pub num_layers: usize,
    pub outputs: usize,
    /// Unknown fields, written back unchanged.
    pub extra: Map<String, Value>,
}

impl Config for ToyConfig {
    const MODEL_TYPE: &'static str = "toy";

    fn from_fields(mut fields: Fields) -> Result<Self> {
        let mut size = |name: &str| match fields.take_size(name)? {
            Some(size) => Ok(size),
            None => Err(fields.error(name, "the field is missing", "write it into the file")),
        };
        let mut config = ToyConfig {
            vocab_size: size("vocab_size")?,
            positions: size("max_position_embeddings")?,
            dim_model: size("hidden_size")?,
            num_heads: size("num_attention_heads")?,
            num_layers: size("num_hidden_layers")?,
            outputs: size("num_labels")?,
            extra: Map::new(),
        };
        if !config.dim_model.is_multiple_of(config.num_heads) {
            let reason = format!("{} heads do not divide hidden_size {}", config.num_heads, config.dim_model);
            return Err(fields.error("num_attention_heads", &reason, "use a divisor"));
        }
        config.extra = fields.into_rest();
        Ok(config)
    }

    fn to_dict(&self) -> Map<String, Value> {
        let mut map = self.extra.clone();
        for (name, value) in [
            ("vocab_size", self.vocab_size),
            ("max_position_embeddings", self.positions),
            ("hidden_size", self.dim_model),
            ("num_attention_heads", self.num_heads),
            ("num_hidden_layers", self.num_layers),
            ("num_labels", self.outputs),
        ] {
            map.insert(name.into(), json!(value));
        }
        map.insert("model_type".into(), json!(Self::MODEL_TYPE));
        map
    }

    fn to_hf_json(&self, header: &HfHeader) -> Result<Map<String, Value>> {
        let mut map = self.to_dict();
        map.insert("architectures".into(), json!([header.architecture]));
        map.insert("torch_dtype".into(), json!(header.torch_dtype()?));
        Ok(map)
    }
}

/// One block: `y = x + attention(norm(x))`, `z = y + ffn(norm(y))`.
#[derive(Debug)]
pub struct ToyBlock {
    attention_norm: Norm,
    attention: Attention,
    ffn_norm: Norm,
    ffn: FeedForward,
}

impl ToyBlock {
    fn new(builder: &Builder, config: &ToyConfig) -> bmtrain_dist::Result<Self> {
        let ToyConfig { dim_model, num_heads, .. } = *config;
        let (norm, init) = (NormOptions::layer(dim_model, 1e-5), Init::normal(0.1));
        let dim_head = dim_model / num_heads;
        let attention = AttentionConfig { dropout: 0.1, ..AttentionConfig::new(dim_model, num_heads, dim_head, init) };
        let ffn = FeedForwardConfig::new(dim_model, 4 * dim_model, Activation::Gelu, init);
        Ok(ToyBlock {
            attention_norm: Norm::new(&builder.at("attention_norm"), norm)?,
            attention: Attention::new(&builder.at("attention"), attention)?,
            ffn_norm: Norm::new(&builder.at("ffn_norm"), norm)?,
            ffn: FeedForward::new(&builder.at("ffn"), ffn)?,
        })
    }
}

impl Block for ToyBlock {
    type Carry = Var;
    /// Which keys are seen: all but padding.
    type Shared = AttentionContext;
    type Cache = ();

    fn forward(&self, x: Var, scope: &AttentionContext, _: Option<&mut ()>, cx: &mut Ctx) -> bmtrain_dist::Result<Var> {
        let normed = self.attention_norm.forward(&x, cx)?; // [B, L, D]
        let attended = self.attention.forward(&normed, scope, None, cx)?; // [B, L, D]
        let y = ops::add(cx, &x, &attended)?; // [B, L, D]
        let normed = self.ffn_norm.forward(&y, cx)?; // [B, L, D]
        let widened = self.ffn.forward(&normed, cx)?; // [B, L, D]
        Ok(ops::add(cx, &y, &widened)?) // [B, L, D]
    }
}

/// A batch on the device.
pub struct ToyBatch {
    ids: Tensor,
    positions: Tensor,
    scope: AttentionContext,
    labels: Option<Tensor>,
}

/// The model.
#[derive(Debug)]
pub struct Toy {
    config: ToyConfig,
    info: ModelInfo,
    words: Embedding,
    places: Embedding,
    blocks: TransformerBlockList<ToyBlock>,
    head: Linear,
    parameters: Parameters,
}

impl Toy {
    /// Build the model on a device.
    pub fn new(device: &Device, config: ToyConfig, blocks: BlockOptions, options: BuilderOptions) -> Result<Self> {
        let builder = Builder::new(device, options);
        let table = |name: &str, entries| {
            let options =
                EmbeddingOptions { entries, size: config.dim_model, init: Init::normal(0.5), padding_index: None };
            Embedding::new(&builder.at(name), options)
        };
        let (words, places) = (table("words", config.vocab_size)?, table("places", config.positions)?);
        let blocks = TransformerBlockList::build(&builder.at("blocks"), config.num_layers, blocks, |_, builder| {
            ToyBlock::new(builder, &config)
        })?;
        let head = LinearOptions::new(config.dim_model, config.outputs, true, Init::normal(0.1));
        let head = Linear::new(&builder.at("head"), head)?;
        let parameters = builder.finish();
        let info = ModelInfo { has_token_types: true, ..ModelInfo::new(config.vocab_size, config.positions) };
        Ok(Toy { config, info, words, places, blocks, head, parameters })
    }
}

impl Module for Toy {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }
}

impl Model for Toy {
    type Batch = ToyBatch;
    type Flow = Var;
    type Output = ModelOutput;

    fn embed(&self, batch: &ToyBatch, cx: &mut Ctx) -> bmtrain_dist::Result<Var> {
        let words = self.words.forward(&batch.ids, cx)?; // [B, L, D]
        self.places.add_to(words, &batch.positions, cx) // [B, L, D]
    }

    fn stacks(&self) -> Vec<usize> {
        vec![self.blocks.len()]
    }

    fn run_stack(
        &self,
        _: usize,
        range: Range<usize>,
        hidden: Var,
        batch: &ToyBatch,
        cx: &mut Ctx,
    ) -> bmtrain_dist::Result<Var> {
        let options = RunOptions { range, caches: None, return_hidden: false };
        cx.at("blocks", |cx| self.blocks.run(hidden, &batch.scope, options, cx)).map(|out| out.carry)
    }

    fn forward(&self, batch: &ToyBatch, cx: &mut Ctx) -> bmtrain_dist::Result<ModelOutput> {
        let hidden = self.embed(batch, cx)?; // [B, L, D]
        let hidden = self.run_stack(0, 0..self.blocks.len(), hidden, batch, cx)?; // [B, L, D]
        let output = self.head(hidden, batch, cx)?;
        self.release(cx);
        Ok(output)
    }

    fn head(&self, flow: Var, batch: &ToyBatch, cx: &mut Ctx) -> bmtrain_dist::Result<ModelOutput> {
        let first = ops::select_row(cx, &flow, 0)?; // [B, D]
        let logits = self.head.forward(&first, cx)?; // [B, outputs]
        let loss = match &batch.labels {
            Some(labels) => Some(ops::cross_entropy(cx, &logits, labels, &ops::CrossEntropy::default())?), // [1]
            None => None,
        };
        Ok(ModelOutput { logits: Some(logits), extra: Vec::new(), loss })
    }
}

/// Which parameter is which tensor of a file.
pub static NAMES: NameTable = NameTable {
    base_prefix: "toy.",
    rules: Cow::Borrowed(&[
        Rule::new("words.weight", "toy.word_embeddings.weight"),
        Rule::new("places.weight", "toy.position_embeddings.weight"),
        Rule::new("blocks.{i}.attention_norm.weight", "toy.layer.{i}.norm_1.weight"),
        Rule::new("blocks.{i}.attention_norm.bias", "toy.layer.{i}.norm_1.bias"),
        Rule::new("blocks.{i}.attention.project_qkv.weight", "toy.layer.{i}.{query|key|value}.weight"),
        Rule::new("blocks.{i}.attention.project_qkv.bias", "toy.layer.{i}.{query|key|value}.bias"),
        Rule::new("blocks.{i}.attention.attention_out.weight", "toy.layer.{i}.out.weight"),
        Rule::new("blocks.{i}.attention.attention_out.bias", "toy.layer.{i}.out.bias"),
        Rule::new("blocks.{i}.ffn_norm.weight", "toy.layer.{i}.norm_2.weight"),
        Rule::new("blocks.{i}.ffn_norm.bias", "toy.layer.{i}.norm_2.bias"),
        Rule::new("blocks.{i}.ffn.w_in.weight", "toy.layer.{i}.up.weight"),
        Rule::new("blocks.{i}.ffn.w_in.bias", "toy.layer.{i}.up.bias"),
        Rule::new("blocks.{i}.ffn.w_out.weight", "toy.layer.{i}.down.weight"),
        Rule::new("blocks.{i}.ffn.w_out.bias", "toy.layer.{i}.down.bias"),
        Rule::new("head.weight", "classifier.weight"),
        Rule::new("head.bias", "classifier.bias"),
    ]),
    aliases: Cow::Borrowed(&[]),
    ignored: Cow::Borrowed(&[]),
    old_names: Cow::Borrowed(&[]),
};

/// Open a directory: a sketch that takes no memory is compared with the weights before any of them is read.
pub fn open(directory: &Path, options: &OpenOptions) -> Result<OpenedModel> {
    let mut config = ToyConfig::from_pretrained(directory)?;
    match options.head {
        None => {}
        Some(TextHead::Classification { outputs }) => config.outputs = outputs,
        Some(other) => {
            let reason = format!("the family has no head {other:?}");
            return Err(Error::model(directory.display().to_string(), reason, "ask for a classification head"));
        }
    }
    let head = vec!["head.*".to_owned()];
    let allow = match options.head_values {
        HeadInit::Directory => Allow::default(),
        HeadInit::DirectoryOrRandom => Allow { missing: head, ..Allow::default() },
        HeadInit::Random => Allow { fresh: head, ..Allow::default() },
    };
    let blocks = BlockOptions { recompute: options.recompute };
    open_with(directory, options, &[&NAMES], &allow, |device, builder| {
        Toy::new(device, config.clone(), blocks, builder)
    })
}

impl Toy {
    fn upload(&self, batch: &Batch, _wants_logits: bool, device: &Device) -> Result<ToyBatch> {
        let shape = [batch.rows, batch.length];
        if batch.length > self.config.positions {
            let reason = format!("{} tokens in a row, the model has {} positions", batch.length, self.config.positions);
            return Err(Error::data("batch", reason, "shorten the rows or set data.max_length"));
        }
        let positions: Vec<i64> = (0..batch.rows).flat_map(|_| 0..batch.length as i64).collect();
        let mask = |mask: &Vec<u8>| Tensor::from_slice_in(device, shape, mask, Segment::Data);
        let labels = match &batch.labels {
            None => None,
            Some(Labels::Classes(classes)) => {
                Some(Tensor::from_slice_in(device, [batch.rows], classes, Segment::Data)?)
            }
            Some(_) => {
                let reason = "the labels are no classes";
                return Err(Error::data("batch", reason, "give classes: this family has no other head"));
            }
        };
        Ok(ToyBatch {
            ids: Tensor::from_slice_in(device, shape, &batch.input_ids, Segment::Data)?,
            positions: Tensor::from_slice_in(device, shape, &positions, Segment::Data)?,
            scope: AttentionContext::but(batch.attention_mask.as_ref().map(mask).transpose()?.as_ref()),
            labels,
        })
    }

    fn directory<'a>(&'a self, options: &SaveOptions<'a>) -> Result<ModelDirectory<'a, ToyConfig>> {
        let layout = self.names_in(options.layout).map(drop);
        layout.map(|()| ModelDirectory::new(&self.config, &NAMES, "ToyForSequenceClassification").with(options))
    }
}

impl TextModel for Toy {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn names(&self) -> &NameTable {
        &NAMES
    }

    fn names_in(&self, layout: DirectoryLayout) -> Result<Cow<'_, NameTable>> {
        match layout {
            DirectoryLayout::HuggingFace => Ok(Cow::Borrowed(&NAMES)),
            DirectoryLayout::ModelCenter => {
                Err(Error::argument("the layout", "ModelCenter has no such family", "save it for transformers"))
            }
        }
    }

    fn forward(&self, batch: &Batch, observe: Option<Observe<'_>>, cx: &mut Ctx) -> Result<ModelOutput> {
        let batch = self.upload(batch, true, cx.device())?;
        Ok(match observe {
            None => Model::forward(self, &batch, cx)?,
            Some(observe) => {
                self.forward_observed(&batch, cx, &mut |blocks, hidden| observe(blocks, hidden.value()))?
            }
        })
    }

    fn check_save(&self, options: &SaveOptions<'_>) -> Result<()> {
        self.directory(options)?.check(&param_shapes(&self.parameters))
    }

    fn left_out(&self, options: &SaveOptions<'_>) -> Result<Vec<String>> {
        self.directory(options)?.left_out()
    }

    fn write(&self, directory: &Path, options: &SaveOptions<'_>, fill: Fill<'_>) -> Result<()> {
        self.directory(options)?.write(directory, &param_shapes(&self.parameters), fill)
    }
}
