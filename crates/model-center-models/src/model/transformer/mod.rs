//! The transformer of all families: the modules that a configuration describes, with the family's files.
//!
//! Defines [`Transformer`], which `build` constructs. What it computes is in [`modules`] and [`passes`];
//! here is what depends on the family: names of tensors and classes in files.

mod build;
mod inputs;
pub(in crate::model) mod modules;
mod passes;
pub(in crate::model) mod prefix;
pub(in crate::model) mod prompt;
pub(in crate::model) mod shared_layers;
pub(in crate::model) mod sinusoids;
mod stack;
mod staged_stack;

use crate::layer::TransformerBlock;
use crate::model::SaveOptions;
use crate::model::architecture::{Architecture, FamilyBlock, ModelFamily, heads};
use crate::model::batch::DeviceBatch;
use crate::model::decode::decoding::{Decoding, DecodingOptions};
use crate::model::decode::packed::PackedDecoding;
use crate::model::head::Head;
use crate::model::text_model::{
    Decode, ForwardOptions, ForwardOutputs, Hidden, HiddenOutputs, LoadMicroBatch, ModelInfo, ModelOutput, SaveModel,
    Staged, TextModel,
};
use bmtrain_core::{Ctx, Device, Tensor, Var};
use bmtrain_dist::pipeline::{BlockCosts, Edge, Pipeline};
use bmtrain_dist::{Model, Module, OptimManager, Parameters};
use model_center_base::batch::{Batch, VerbalizerPosition};
use model_center_base::error::{Error, Result};
use model_center_formats::config::model_center::no_model_center;
use model_center_formats::directory::{DirectoryLayout, ModelDirectory};
use model_center_formats::{Fill, NameTable};
pub use modules::HiddenStates;
use modules::Modules;
use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;

/// A transformer with its head: a family's configuration, and blocks of the family's own where it has some.
///
/// The [`Registry`](crate::model::Registry) opens one from a directory; the example at the root of `model-center`
/// builds one from a configuration and trains it.
#[derive(Debug)]
pub struct Transformer<C: ModelFamily, B: FamilyBlock<C> = TransformerBlock> {
    config: C,
    names: NameTable,
    modules: Modules<B>,
}

impl<C: ModelFamily, B: FamilyBlock<C>> Transformer<C, B> {
    /// The directory that the model is written to.
    fn directory<'a>(&'a self, names: &'a NameTable, options: &SaveOptions<'a>) -> ModelDirectory<'a, C> {
        let head = self.modules.heads.kind();
        let directory = ModelDirectory::new(&self.config, names, &self.config.classes().of(head));
        let prefixed = match C::ARCHITECTURE {
            // A class with a head need not have a suffix that a bare model's lacks: there is `MarianMTModel`.
            Architecture::EncoderDecoder => head != Head::None,
            Architecture::Encoder | Architecture::Decoder => directory.prefixed,
        };
        ModelDirectory { prefixed, ..directory }.with(options)
    }
}

impl<C: ModelFamily, B: FamilyBlock<C>> Module for Transformer<C, B> {
    fn parameters(&self) -> &Parameters {
        &self.modules.parameters
    }
}

impl<C: ModelFamily, B: FamilyBlock<C>> Model for Transformer<C, B> {
    type Batch = DeviceBatch;
    type Flow = HiddenStates;
    type Output = ModelOutput;

    fn forward(&self, batch: &DeviceBatch, cx: &mut Ctx) -> bmtrain_dist::Result<ModelOutput> {
        Model::forward(&self.modules, batch, cx)
    }

    fn embed(&self, batch: &DeviceBatch, cx: &mut Ctx) -> bmtrain_dist::Result<HiddenStates> {
        self.modules.embed(batch, cx)
    }

    fn stacks(&self) -> Vec<usize> {
        Model::stacks(&self.modules)
    }

    fn run_stack(
        &self,
        stack: usize,
        range: Range<usize>,
        flow: HiddenStates,
        batch: &DeviceBatch,
        cx: &mut Ctx,
    ) -> bmtrain_dist::Result<HiddenStates> {
        self.modules.run_stack(stack, range, flow, batch, cx)
    }

    fn head(&self, flow: HiddenStates, batch: &DeviceBatch, cx: &mut Ctx) -> bmtrain_dist::Result<ModelOutput> {
        self.modules.head(flow, batch, cx)
    }

    fn receive(&self, block: usize, batch: &DeviceBatch, edge: &mut Edge<'_>) -> bmtrain_dist::Result<HiddenStates> {
        self.modules.receive(block, batch, edge)
    }
}

/// Labels of next-token prediction are the tokens themselves, and are shifted here. The decoder input of an
/// encoder-decoder is its labels shifted right if there are no `decoder_input_ids`, and for a classifier the encoder's
/// input shifted right.
/// The observed hidden states are the encoder's up to its last block, then the decoder's.
impl<C: ModelFamily, B: FamilyBlock<C>> TextModel for Transformer<C, B> {
    fn info(&self) -> &ModelInfo {
        &self.modules.info
    }

    fn forward_with(&self, batch: &Batch, options: ForwardOptions<'_>, cx: &mut Ctx) -> Result<ModelOutput> {
        self.modules.forward_with(batch, options, cx)
    }

    fn hidden(&self, batch: &Batch, outputs: HiddenOutputs, cx: &mut Ctx) -> Result<Hidden> {
        self.modules.hidden(batch, outputs, cx)
    }

    fn sentence_embedding(&self, pooled: Var, cx: &mut Ctx) -> Result<Var> {
        self.modules.sentence_embedding(pooled, cx)
    }

    fn check_targets(&self) -> Result<()> {
        self.modules.check_targets()
    }

    fn verbalizer_position(&self) -> Result<VerbalizerPosition> {
        self.modules.verbalizer_position()
    }
}

impl<C: ModelFamily, B: FamilyBlock<C>> Decode for Transformer<C, B> {
    fn decoding<'a>(&'a self, options: DecodingOptions<'_>, cx: &mut Ctx) -> Result<Box<dyn Decoding + 'a>> {
        self.modules.decoding(options, cx)
    }

    fn packed_decoding<'a>(&'a self) -> Result<Box<dyn PackedDecoding + 'a>> {
        self.modules.packed_decoding()
    }
}

impl<C: ModelFamily, B: FamilyBlock<C>> Staged for Transformer<C, B> {
    fn forward_backward(
        &self,
        pipeline: &Pipeline,
        optim: &OptimManager,
        load: LoadMicroBatch<'_, '_>,
    ) -> Result<Tensor> {
        self.modules.forward_backward(pipeline, optim, load)
    }

    fn forward_stages(
        &self,
        pipeline: &Pipeline,
        batches: &[Batch],
        outputs: ForwardOutputs,
    ) -> Result<Vec<ModelOutput>> {
        self.modules.forward_stages(pipeline, batches, outputs)
    }

    fn block_costs(&self, device: &Device, batch: &Batch) -> Result<BlockCosts> {
        self.modules.block_costs(device, batch)
    }
}

impl<C: ModelFamily, B: FamilyBlock<C>> SaveModel for Transformer<C, B> {
    fn names(&self) -> &NameTable {
        &self.names
    }

    fn names_in(&self, layout: DirectoryLayout) -> Result<Cow<'_, NameTable>> {
        if layout == DirectoryLayout::HuggingFace {
            return Ok(Cow::Borrowed(&self.names));
        }
        if !self.modules.dense.is_empty() {
            let reason = "it is a sentence encoder with modules Dense, which ModelCenter's layout does not hold";
            return Err(Error::argument("the model", reason, "write it in Hugging Face's layout"));
        }
        let names = self.config.names_of_model_center(self.modules.heads.kind());
        let names = names.ok_or_else(|| no_model_center(self.modules.spec.title))?;
        heads::check_written(&self.config, self.modules.heads.kind()).map(|()| Cow::Owned(names))
    }

    fn check_save(&self, options: &SaveOptions<'_>) -> Result<()> {
        let names = self.names_in(options.layout)?;
        self.directory(&names, options).check(self.modules.written().shapes())
    }

    fn left_out(&self, options: &SaveOptions<'_>) -> Result<Vec<String>> {
        self.directory(&self.names, options).left_out()
    }

    fn write(&self, to: &Path, options: &SaveOptions<'_>, fill: Fill<'_>) -> Result<()> {
        let (names, written) = (self.names_in(options.layout)?, self.modules.written());
        let mut fill = written.filled(fill);
        self.directory(&names, options).write(to, written.shapes(), |name, values| {
            fill(name, values)?;
            if let Some(rescaled) = self.config.rescaled_norm(options.layout)
                && name == "decoder.output_norm.weight"
            {
                values.iter_mut().for_each(|value| *value = rescaled(*value));
            }
            Ok(())
        })?;
        let files = self.modules.dense.iter().enumerate().map(|(number, layer)| layer.settings.written(number));
        files.into_iter().try_for_each(|file| file.write(to, options.dtype, &mut fill))
    }
}
