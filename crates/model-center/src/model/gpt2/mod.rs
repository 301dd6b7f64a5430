//! GPT-2 (Radford et al., 2019): learned positions, a causal pre-norm decoder, and a head for the next word or for classes.
//!
//! [`names`] is how it lies in Hugging Face folders; blocks and heads are those of [`super::decoder`].

pub mod names;

use super::decoder::{Decoder, DecoderBatch, DecoderFacts, DecoderHead, DecoderHeads, DecoderOutput, DecoderStack};
use super::flow::TextFlow;
use super::registry::{SaveOptions, param_shapes};
use super::text::{Observe, Scores, TextBatch, TextModel};
use crate::config::Gpt2Config;
use crate::error::Result;
use crate::hf::NameTable;
use crate::layer::{AttentionConfig, FeedForwardConfig, PreNormConfig};
use bmtrain_core::{Ctx, Device, Var, ops};
use bmtrain_dist::block::BlockOptions;
use bmtrain_dist::nn::embedding::{Embedding, EmbeddingOptions};
use bmtrain_dist::nn::norm::NormOptions;
use bmtrain_dist::param::{BuilderOptions, Init};
use bmtrain_dist::{Builder, Model, Parameters, Section};
use std::path::Path;

/// A GPT-2 with its head.
///
/// From a folder it comes through the [`Registry`](super::Registry); this is one from a configuration alone, and a step of
/// its training:
///
/// ```
/// use bmtrain_dist::bmtrain_core::{Ctx, Device, autograd::Randomness, kernel::NormOrder};
/// use bmtrain_dist::optim::{Adam, AdamOptions, Clip, ParamGroup};
/// use bmtrain_dist::{OptimManager, block::BlockOptions, param::BuilderOptions};
/// use model_center::config::Gpt2Config;
/// use model_center::model::{TextBatch, TextModel, decoder::DecoderHead, gpt2::Gpt2};
///
/// let device = Device::cpu(1)?;
/// let config = Gpt2Config { vocab_size: 50, dim_model: 24, num_heads: 2, dim_head: 12, num_layers: 2, ..Gpt2Config::default() };
/// let head = DecoderHead::CausalLm { tied: true };
/// let model = Gpt2::new(&device, config, head, BlockOptions::default(), BuilderOptions::default())?;
/// let adam = Adam::new(ParamGroup::by_decay(TextModel::parameters(&model), 0.01), AdamOptions::default())?;
/// let mut optim = OptimManager::new(&device, Clip { order: NormOrder::Two, max_norm: 1.0 })?;
/// optim.add(Box::new(adam), 1e-3);
/// // Two rows of four tokens; labels are the tokens themselves.
/// let batch = TextBatch::next_words(4, vec![3, 1, 4, 1, 5, 9, 2, 6], None);
/// let mut cx = Ctx::training(&device, Randomness { seed: 7, step: 0, micro_batch: 0 });
/// if let Some(loss) = model.loss(&batch, &mut cx)? {
///     optim.backward(&loss, 1.0, &mut cx)?;
///     optim.step()?;
///     // As many words are equally likely.
///     assert!((loss.value().item()? - 50f32.ln()).abs() < 0.1);
/// }
/// # Ok::<(), model_center::Error>(())
/// ```
#[derive(Debug)]
pub struct Gpt2 {
    config: Gpt2Config,
    input_embedding: Embedding,
    position_embedding: Embedding,
    decoder: DecoderStack,
    heads: DecoderHeads,
    parameters: Parameters,
}

impl Gpt2 {
    /// Build the model on a device; what happens to the values at birth is the builder's option.
    ///
    /// # Errors
    /// Sizes that do not fit together; no memory left.
    pub fn new(
        device: &Device,
        config: Gpt2Config,
        head: DecoderHead,
        blocks: BlockOptions,
        options: BuilderOptions,
    ) -> Result<Self> {
        let builder = Builder::new(device, options);
        let init = Init::normal(config.init_std);
        let table = |name: &str, entries: usize| {
            let options = EmbeddingOptions { entries, size: config.dim_model, init, padding_index: None };
            Embedding::new(&builder.at(name), options)
        };
        let input_embedding = table("input_embedding", config.vocab_size)?;
        let position_embedding = table("position_embedding", config.position_size)?;
        let norm = NormOptions::layer(config.dim_model, config.norm_eps);
        let decoder = DecoderStack::new(&builder.at("decoder"), config.num_layers, norm, blocks, |layer| {
            block(&config, norm, layer)
        })?;
        let heads = DecoderHeads::new(&builder, head, (config.dim_model, config.vocab_size), init)?;
        let parameters = builder.finish();
        Ok(Gpt2 { config, input_embedding, position_embedding, decoder, heads, parameters })
    }

    /// The configuration.
    pub fn config(&self) -> &Gpt2Config {
        &self.config
    }

    /// Which head it carries.
    pub fn head_kind(&self) -> DecoderHead {
        self.heads.kind()
    }
}

/// What block `layer` is made of.
fn block(config: &Gpt2Config, norm: NormOptions, layer: usize) -> PreNormConfig {
    let (init, out_init) = (Init::normal(config.init_std), Init::normal(config.residual_std()));
    PreNormConfig {
        attention: AttentionConfig {
            dim_model: config.dim_model,
            num_heads: config.num_heads,
            num_heads_kv: config.num_heads,
            dim_head: config.dim_head,
            bias: true,
            scale: config.score_factor(layer),
            causal: true,
            dropout: config.attention_dropout_p,
            init,
            out_init,
        },
        ffn: FeedForwardConfig {
            dim_model: config.dim_model,
            dim_ff: config.dim_ff,
            activation: config.ffn_activate_fn,
            bias: true,
            init,
            out_init,
        },
        norm,
        dropout: config.dropout_p,
    }
}

impl Model for Gpt2 {
    type Batch = DecoderBatch;
    type Flow = TextFlow;
    type Output = DecoderOutput;

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn embed(&self, batch: &DecoderBatch, cx: &mut Ctx) -> bmtrain_dist::Result<TextFlow> {
        let words = self.input_embedding.forward(&batch.input_ids, cx)?; // [B, L, D]
        let placed = self.position_embedding.add_to(words, &batch.position_ids, cx)?; // [B, L, D]
        let dropout = cx.dropout("embedding", self.config.embedding_dropout_p)?;
        let hidden = ops::dropout(cx, &placed, dropout)?; // [B, L, D]
        Ok(TextFlow { hidden, padding: batch.padding.clone() })
    }

    fn sections(&self) -> Vec<&dyn Section<Self>> {
        vec![&self.decoder]
    }

    fn head(&self, flow: TextFlow, batch: &DecoderBatch, cx: &mut Ctx) -> bmtrain_dist::Result<DecoderOutput> {
        self.heads.forward(flow.hidden, batch, &self.input_embedding, cx)
    }
}

impl Decoder for Gpt2 {
    fn facts(&self) -> DecoderFacts {
        DecoderFacts {
            vocab_size: self.config.vocab_size,
            max_length: self.config.position_size,
            pad_token_id: self.config.pad_token_id,
            problem_type: self.config.problem_type,
            head: self.head_kind(),
        }
    }
}

impl TextModel for Gpt2 {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn vocab_size(&self) -> usize {
        self.config.vocab_size
    }

    fn max_length(&self) -> usize {
        self.config.position_size
    }

    fn names(&self) -> &NameTable {
        names::table(self.head_kind())
    }

    fn label_names(&self) -> &[String] {
        &self.config.labels
    }

    fn has_token_types(&self) -> bool {
        false
    }

    fn multiplied_values(&self) -> usize {
        let is_multiplied = matches!(self.head_kind(), DecoderHead::CausalLm { tied: true });
        let words = (!is_multiplied).then_some(&self.input_embedding);
        let tables = words.into_iter().chain([&self.position_embedding]);
        let looked_up: usize = tables.map(|table| table.weight().spec().shape.elements()).sum();
        self.parameters.count() - looked_up
    }

    fn check_save(&self, options: &SaveOptions<'_>) -> Result<()> {
        names::written(self, options).check(&param_shapes(&self.parameters))
    }

    fn save(&self, folder: &Path, options: &SaveOptions<'_>) -> Result<()> {
        names::save(self, folder, options)
    }

    fn score(&self, batch: &TextBatch, observe: Option<Observe<'_>>, cx: &mut Ctx) -> Result<Scores> {
        Decoder::score(self, batch, observe, cx)
    }

    fn loss(&self, batch: &TextBatch, cx: &mut Ctx) -> Result<Option<Var>> {
        Decoder::loss(self, batch, cx)
    }
}
