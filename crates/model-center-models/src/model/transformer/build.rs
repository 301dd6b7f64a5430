//! Construction of a [`Transformer`] from its configuration and the [`Spec`] that it describes.

use super::inputs::Inputs;
use super::modules::{Modules, StackBlock};
use super::prompt::Prompt;
use super::shared_layers::{self, AreAlike};
use super::stack::{Stack, StackParts};
use super::{Transformer, prefix};
use crate::model::architecture::{BlockPlace, FamilyBlock, ModelFamily, Spec, StackSpec};
use crate::model::head::sentence_encoder::DenseSettings;
use crate::model::head::sentence_encoder::dense_layer::{DenseLayer, named};
use crate::model::head::{Head, Heads};
use crate::model::text_model::ModelInfo;
use bmtrain_core::Device;
use bmtrain_dist::Builder;
use bmtrain_dist::block::{BlockOptions, BlockPolicy, Recompute};
use bmtrain_dist::nn::embedding::{Embedding, EmbeddingOptions};
use bmtrain_dist::param::{BuilderOptions, F32Parameters};
use bmtrain_dist::pipeline::ModelPart;
use model_center_base::error::{Error, Result};

impl<C: ModelFamily, B: FamilyBlock<C>> Transformer<C, B> {
    /// Builds the model on a device; the builder's options choose the initialization, `blocks` what each block of a
    /// stack keeps for its backward pass and how it is sharded.
    pub fn new(
        device: &Device,
        config: C,
        head: Head,
        blocks: impl Into<BlockPolicy>,
        options: BuilderOptions,
    ) -> Result<Self> {
        Self::with_dense(device, config, (head, &[]), blocks.into(), options)
    }

    /// The same with modules `Dense` after the pooling of a model without head.
    pub(in crate::model) fn with_dense(
        device: &Device,
        config: C,
        (head, dense): (Head, &[DenseSettings]),
        blocks: BlockPolicy,
        options: BuilderOptions,
    ) -> Result<Self> {
        let names = named(config.names(head), !dense.is_empty());
        let builder = Builder::new(device, BuilderOptions { fusion: names.fusion(), ..options });
        let are_alike = |stack: usize, blocks: [usize; 2]| {
            let [first, second] = blocks.map(|layer| config.block(BlockPlace { stack, layer }));
            first == second
        };
        let block = |place: BlockPlace, builder: &Builder| B::build(builder, &config, place);
        let modules = Modules::build(builder, config.spec(), (head, dense), blocks, &are_alike, &block)?;
        Ok(Transformer { config, names, modules })
    }
}

/// Declares the parameters of a block.
type BuildBlock<'a, B> = &'a dyn Fn(BlockPlace, &Builder) -> bmtrain_dist::Result<B>;

impl<B: StackBlock> Modules<B> {
    /// Builds the modules of a specification; `are_alike` is whether two blocks of a stack have the same
    /// configuration.
    fn build(
        builder: Builder,
        spec: Spec,
        (head, dense): (Head, &[DenseSettings]),
        blocks: BlockPolicy,
        are_alike: AreAlike<'_>,
        block: BuildBlock<'_, B>,
    ) -> Result<Self> {
        let spec = Spec { prefix: prefix::tokens(&builder, &spec, head)?, ..spec };
        let (dtype, f32) = (builder.options().dtype, builder.options().f32_parameters);
        check_f32(f32, &spec)?;
        let orders = shared_layers::orders(are_alike, &spec, builder.options().mesh)?;
        let padding_index = spec.pad_token_id.filter(|_| !spec.padding_learns).map(|id| id as i64);
        let (entries, size, init) = (spec.vocab_size, spec.embedding_size, spec.table_init);
        let tokens = EmbeddingOptions { entries, size, init, padding_index };
        let part = if head.is_tied() { ModelPart::Tied } else { ModelPart::Embed };
        let place = builder.part(part).at("input_embedding").in_f32(f32.embeddings);
        let tokens = Embedding::of_vocabulary(&place, tokens)?;
        let parts = |stack: usize| {
            let first: usize = spec.stacks[..stack].iter().map(|stack| stack.layers).sum();
            StackParts { first, last: first + spec.stacks[stack].layers.saturating_sub(1) }
        };
        // What comes before the heads.
        let body = builder.on_token_shards();
        let blocks = match builder.token_ranks() {
            // A rank with fewer tokens would keep other tapes than the others, and miss their collectives.
            Some(_) => blocks.map(without_auto),
            None => blocks,
        };
        let mut inputs = Vec::with_capacity(spec.stacks.len());
        for (index, stack) in spec.stacks.iter().enumerate() {
            inputs.push(Inputs::new(&body, &spec, (stack, parts(index)), &inputs)?);
        }
        let stack = |(index, stack): (usize, &StackSpec)| {
            let order = orders.get(index).and_then(Option::as_deref);
            Stack::new(&body.at(stack.name), stack, parts(index), (blocks.clone(), order), |layer, builder| {
                block(BlockPlace { stack: index, layer }, builder)
            })
        };
        let stacks = spec.stacks.iter().enumerate().map(stack).collect::<bmtrain_dist::Result<_>>()?;
        let prompt = Prompt::new(&builder, &spec, head)?;
        let heads = Heads::new(&builder.part(ModelPart::Head), &spec.head, head, spec.vocab_size)?;
        let dense = DenseLayer::list(&builder.part(ModelPart::Head), dense)?;
        let parameters = builder.finish();
        let looked_up = (!head.is_tied()).then_some(&tokens).into_iter().chain(inputs.iter().flat_map(Inputs::tables));
        let embedding_parameters = looked_up.map(|table| table.weight().spec().shape.elements()).sum();
        let repeated_parameters = shared_layers::repeated(&spec, parameters.declared().iter());
        let info = ModelInfo { embedding_parameters, repeated_parameters, ..info(&spec, head) };
        // Virtual tokens take positions.
        let virtual_tokens = spec.prefix + prompt.as_ref().map_or(0, Prompt::tokens);
        let max_length = info.max_length.saturating_sub(virtual_tokens);
        let info = ModelInfo { max_length, ..info };
        let token_ranks = builder.token_ranks().cloned();
        Ok(Modules { spec, info, dtype, tokens, inputs, stacks, heads, dense, prompt, parameters, token_ranks })
    }
}

/// Refuses f32 token types of a model without token types.
fn check_f32(f32: F32Parameters, spec: &Spec) -> Result<()> {
    if !f32.token_types || spec.stacks.iter().any(|stack| stack.type_size.is_some()) {
        return Ok(());
    }
    let reason = format!("{} has no token types", spec.title);
    Err(Error::argument("model.f32_parameters", reason, "remove \"token-types\""))
}

fn without_auto(options: BlockOptions) -> BlockOptions {
    match options.recompute {
        Recompute::Auto => BlockOptions { recompute: Recompute::Checkpoint, ..options },
        _ => options,
    }
}

fn info(spec: &Spec, head: Head) -> ModelInfo {
    let is_encoder_decoder = spec.is_encoder_decoder();
    let is_classifier = matches!(head, Head::Classifier { .. } | Head::TokenClassifier { .. });
    let has_labels = is_classifier || !is_encoder_decoder;
    ModelInfo {
        vocab_size: spec.vocab_size,
        max_length: spec.max_length,
        hidden_size: spec.output_size(),
        head: head.requested(),
        problem: spec.problem_type,
        label_names: if has_labels { spec.label_names.clone() } else { Vec::new() },
        has_token_types: spec.stacks.iter().any(|stack| stack.type_size.is_some()),
        is_encoder_decoder,
        generates_targets: is_encoder_decoder && !is_classifier,
        decoder_start_token: spec.decoder_start_token.map(|token| token as i64),
        compares_choices: !is_encoder_decoder,
        ..ModelInfo::default()
    }
}
