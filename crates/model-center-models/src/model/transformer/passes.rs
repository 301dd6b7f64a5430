//! Passes of a language model with its [`Modules`], see [`TextModel`](crate::model::TextModel): forward passes of a
//! batch, over one stage or several, and decoding.

use super::modules::{Modules, StackBlock};
use super::prompt::Prompt;
use crate::model::batch::decoder_inputs::check_targets;
use crate::model::batch::loss_settings::LossSettings;
use crate::model::batch::token_targets;
use crate::model::decode::decoding::{Decoding, DecodingOptions};
use crate::model::decode::incremental::Incremental;
use crate::model::decode::packed::{Packed, PackedDecoding};
use crate::model::head::Head;
use crate::model::text_model::{ForwardOutputs, Hidden, HiddenOutputs, LoadMicroBatch, ModelOutput};
use bmtrain_core::{Ctx, Device, Tensor, Var};
use bmtrain_dist::pipeline::{BlockCosts, MicroBatch, Pipeline};
use bmtrain_dist::{Model, OptimManager};
use model_center_base::batch::{Batch, VerbalizerPosition};
use model_center_base::error::{Error, Result};
use std::borrow::Cow;

impl<B: StackBlock> Modules<B> {
    pub(in crate::model) fn hidden(&self, batch: &Batch, outputs: HiddenOutputs, cx: &mut Ctx) -> Result<Hidden> {
        let host = self.prompted(batch)?;
        let batch = self.upload_prompted(&host, (true, LossSettings::default()), cx.device())?.with_all_states();
        let mut flow = self.run_stacks(&batch, cx)?.stacks;
        let last = flow.pop().ok_or_else(|| Error::argument("the model", "it has no hidden states", "report this"))?;
        let states = self.all_tokens(last, flow.len(), &batch, cx)?; // [B, L, output_size]
        let is_lm = self.heads.kind().is_lm();
        let lm = match outputs {
            HiddenOutputs::LmOperands => self.lm_operands(&states, cx)?,
            HiddenOutputs::States => None,
        };
        Model::release(self, cx);
        let targets = token_targets(&host, (&self.spec, self.heads.kind())).filter(|_| is_lm);
        let virtual_tokens = self.prompt.as_ref().filter(|prompt| prompt.table(flow.len()).is_some());
        Ok(Hidden {
            states,
            virtual_tokens: virtual_tokens.map_or(0, Prompt::tokens),
            targets: targets.map(Cow::into_owned).unwrap_or_default(),
            lm,
        })
    }

    /// The embeddings after the modules `Dense`, f32 `[R, E]`, of pooled hidden states f32 `[R, D]`.
    pub(in crate::model) fn sentence_embedding(&self, pooled: Var, cx: &mut Ctx) -> Result<Var> {
        let embedded = self.dense.iter().try_fold(pooled, |embedding, layer| layer.forward(&embedding, cx))?; // [R, E]
        Model::release(self, cx);
        Ok(embedded)
    }

    pub(in crate::model) fn forward_backward(
        &self,
        pipeline: &Pipeline,
        optim: &OptimManager,
        load: LoadMicroBatch<'_, '_>,
    ) -> Result<Tensor> {
        let load = |number: usize| {
            let (MicroBatch { batch, randomness, weight }, settings) = load(number)?;
            let batch = self.upload(&batch, (false, settings), pipeline.device())?;
            Ok::<_, Error>(MicroBatch { batch, randomness, weight })
        };
        pipeline.forward_backward(self, optim, load, loss_of)
    }

    pub(in crate::model) fn block_costs(&self, device: &Device, batch: &Batch) -> Result<BlockCosts> {
        let batch = self.upload(batch, (false, LossSettings::default()), device)?;
        Ok(BlockCosts::measure(device, self, &batch, loss_of)?)
    }

    pub(in crate::model) fn forward_stages(
        &self,
        pipeline: &Pipeline,
        batches: &[Batch],
        wants: ForwardOutputs,
    ) -> Result<Vec<ModelOutput>> {
        let outputs = (wants == ForwardOutputs::All, LossSettings::default());
        let load = |number: usize| {
            let missing = || Error::argument("pipeline", format!("there is no batch {number}"), "report this");
            let batch = batches.get(number).ok_or_else(missing)?;
            self.upload(batch, outputs, pipeline.device())
        };
        if batches.is_empty() {
            return Ok(Vec::new());
        }
        let outputs = pipeline.forward_outputs(self, batches.len(), load, |output| Ok(output.into_tensors(wants)))?;
        Ok(outputs.into_iter().map(ModelOutput::of_tensors).collect())
    }

    pub(in crate::model) fn decoding<'a>(
        &'a self,
        options: DecodingOptions<'_>,
        cx: &mut Ctx,
    ) -> Result<Box<dyn Decoding + 'a>> {
        self.check_generates()?;
        Ok(Box::new(Incremental::new(self, options, cx)?))
    }

    pub(in crate::model) fn packed_decoding<'a>(&'a self) -> Result<Box<dyn PackedDecoding + 'a>> {
        self.check_generates()?;
        Ok(Box::new(Packed::new(self)?))
    }

    /// Refuses what generates tokens one after another with a model whose tokens attend to later ones.
    fn check_generates(&self) -> Result<()> {
        if !self.spec.attends_ahead {
            return Ok(());
        }
        let reason = format!("this {} attends to later tokens too, and cannot generate text", self.spec.title);
        let fix =
            "use it for embeddings or classes; set use_bidirectional_attention to false if it is a language model";
        Err(Error::argument("generation", reason, fix))
    }

    pub(in crate::model) fn check_targets(&self) -> Result<()> {
        if self.spec.is_encoder_decoder() { check_targets(&self.spec) } else { Ok(()) }
    }

    pub(in crate::model) fn verbalizer_position(&self) -> Result<VerbalizerPosition> {
        if !matches!(self.heads.kind(), Head::CausalLm { .. }) {
            let reason = format!("{} answers no prompts with the head that it has", self.spec.title);
            let fix = "use a model with a language-modelling head";
            return Err(Error::argument("the head asked for", reason, fix));
        }
        if !self.spec.is_encoder_decoder() {
            return Ok(if self.spec.has_spans { VerbalizerPosition::Blank } else { VerbalizerPosition::Next });
        }
        if self.spec.starts_with_sentinel {
            return Ok(VerbalizerPosition::Sentinel { start: None });
        }
        check_targets(&self.spec)?;
        Ok(VerbalizerPosition::Sentinel { start: self.spec.decoder_start_token.map(|token| token as u32) })
    }
}

/// The loss of a stage's micro-batch.
fn loss_of(output: ModelOutput) -> bmtrain_dist::Result<Var> {
    let missing = || bmtrain_dist::Error::setting("pipeline", "the model has no head for the labels of the batch");
    output.loss.ok_or_else(missing)
}
