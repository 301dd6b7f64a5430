//! Steps and evaluations of embeddings.
//!
//! The loss compares all samples of a step. So the micro-batches of a step are embedded twice: first without a tape,
//! for the loss of the embeddings of all ranks and its gradients, then each with a tape, whose output gets these
//! gradients. The activations of one micro-batch are stored at a time, as for any other loss, and the result does not
//! depend on how samples are divided.
//!
//! Defines [`Contrastive`].
//!
//! Source: gradient caching, Gao et al. (2021).

use super::{Objective, ObjectiveLoss, Pass, StepPasses};
use crate::train::batches::Batches;
use crate::train::evaluate::{EvalContext, EvalResult, Evaluation};
use crate::train::step_runner::{StepShare, backward};
use crate::{Error, Result};
use bmtrain_core::ops;
use bmtrain_core::{Ctx, Device, Segment, Tensor, Var};
use bmtrain_dist::param::widen;
use model_center_base::batch::Batch;
use model_center_data::metrics::{RETRIEVAL_METRICS, Retrieval};
use model_center_models::PoolingMode;
use model_center_models::contrastive::{ContrastiveLoss, embeddings};
use std::time::Instant;

/// The loss of embeddings in a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Contrastive {
    pub(super) loss: ContrastiveLoss,
    pub(super) pooling: PoolingMode,
    /// Elements of an embedding, where these are not the hidden states'.
    pub(super) size: Option<usize>,
}

impl Objective for Contrastive {
    /// Of the samples of one micro-batch.
    fn loss(&self, pass: &Pass<'_>, cx: &mut Ctx) -> Result<ObjectiveLoss> {
        let texts = pass.batch.rows / pass.batch.samples.len().max(1);
        let embedded = embeddings(pass.model, pass.batch, self.pooling, cx)?; // [R, D]
        Ok(self.loss.of(&embedded, texts, cx)?.into())
    }

    /// Both passes of this rank's micro-batches.
    fn run(&self, step: &mut StepPasses<'_>) -> Result<()> {
        let texts = step.batches.labels().rows_per_sample();
        let waiting = Instant::now();
        let own: Vec<u64> = step.own_micro_batches().collect();
        let mut batches = Vec::with_capacity(own.len());
        for micro_batch in &own {
            batches.push(step.batches.batch(step.position(*micro_batch))?);
        }
        batches.iter().for_each(|batch: &Batch| step.local.count(batch));
        let mut samples = Vec::with_capacity(step.weights.len());
        for micro_batch in 0..step.count() {
            samples.push(step.batches.samples(step.position(micro_batch))?);
        }
        let loaded = Instant::now();
        step.local.phases.data += (loaded - waiting).as_secs_f64();
        let embedded = own.iter().zip(&batches).map(|(micro_batch, batch)| {
            // With the dropout of the second pass.
            let mut cx = Ctx::training(step.device, step.randomness(*micro_batch)).with_tape(None);
            Ok(embeddings(step.model, batch, self.pooling, &mut cx)?.into_value()) // [R, D]
        });
        let embedded = embedded.collect::<Result<Vec<Tensor>>>()?;
        let all = embeddings_of_step(step, &embedded, &samples, texts)?; // [samples · texts, D]
        let (loss, gradients) = self.loss_and_gradients(all, texts, step.device)?;
        let compared = Instant::now();
        step.local.phases.forward += (compared - loaded).as_secs_f64();
        for (micro_batch, batch) in own.iter().zip(&batches) {
            let _micro_batch = tracing::debug_span!("micro_batch", micro_batch).entered();
            let mut cx = step.context(*micro_batch);
            let embedded = embeddings(step.model, batch, self.pooling, &mut cx)?; // [R, D]
            let before: usize = samples.iter().take(*micro_batch as usize).sum();
            let (weight, gradient) = match batch.samples.len() {
                // Its rows stand for a batch without samples.
                0 => (0.0, embedded.value().clone()),
                count => (1.0, gradients.slice(before * texts..(before + count) * texts)?), // [R, D]
            };
            // Its gradient by the embeddings is the one of the step's loss.
            let product = ops::sum(&cx, &ops::mul(&cx, &embedded, &Var::constant(gradient))?)?; // [1]
            let share = StepShare { weight, is_last: step.is_last(*micro_batch) };
            backward(step.optim, &product, share, &mut cx)?;
            step.local.losses.push(loss.clone());
        }
        step.local.phases.backward += compared.elapsed().as_secs_f64();
        Ok(())
    }

    /// The rank of each anchor's positive among all texts of the set. The data-parallel ranks embed batches in turn.
    fn evaluate(&self, evaluation: &mut Evaluation, context: EvalContext<'_>) -> Result<Option<EvalResult>> {
        let EvalContext { model, device, .. } = context;
        let Some(batches) = evaluation.first_set() else { return Ok(None) };
        let samples = batches.records().map_or(0, |records| records.len());
        let texts = batches.labels().rows_per_sample();
        let dim = self.size.unwrap_or(model.info().hidden_size);
        let mut retrieval = Retrieval::new(samples, texts);
        let compute = |batches: &[Batch]| {
            let embed = |batch| embeddings(model, batch, self.pooling, &mut Ctx::inference(device)); // [R, D]
            batches.iter().map(|batch| Ok(widen(embed(batch)?.value())?)).collect()
        };
        let take = |_: &Batches, batch: &Batch, numbers: &[f32]| {
            for (sample, embeddings) in batch.samples.iter().zip(numbers.chunks((texts * dim).max(1))) {
                retrieval.add(*sample, embeddings);
            }
            Ok(())
        };
        if !context.each_batch(("evaluation", batches), |batch| batch.rows * dim, compute, take)? {
            return Ok(None);
        }
        let scores = retrieval.scores(self.loss.temperature);
        let metrics = RETRIEVAL_METRICS.iter().filter_map(|metric| Some((*metric, scores.value(*metric)?))).collect();
        Ok(Some(EvalResult { samples: samples as u64, loss: scores.loss, metrics, sets: Vec::new() }))
    }
}

impl Contrastive {
    /// The loss `[1]` of embeddings, and its gradient by them.
    fn loss_and_gradients(&self, embeddings: Tensor, texts: usize, device: &Device) -> Result<(Var, Tensor)> {
        let missing = || Error::argument("embeddings", "their loss has no gradient", "report this");
        let mut cx = Ctx::gradients(device);
        let embeddings = cx.tape().ok_or_else(missing)?.input(embeddings);
        let value = self.loss.of(&embeddings, texts, &cx)?; // [1]
        let tape = cx.take_tape().ok_or_else(missing)?;
        let one = Tensor::full_in(device, [1], value.dtype(), 1.0, Segment::Activations)?;
        let gradients = tape.backward(device, vec![(value.clone(), one)], &[&embeddings])?;
        let gradient = gradients.into_iter().flatten().next().ok_or_else(missing)?;
        Ok((value.detach(), gradient))
    }
}

/// The embeddings of all samples of a step, `[samples · texts, D]` in the order of its micro-batches, on every
/// rank. `embedded` are this rank's, `[R, D]` each.
fn embeddings_of_step(step: &StepPasses<'_>, embedded: &[Tensor], samples: &[usize], texts: usize) -> Result<Tensor> {
    let (device, ranks) = (step.device, step.ranks);
    let dim = embedded.first().map_or(0, |tensor| tensor.shape().last());
    // All ranks send the same number of values for each micro-batch.
    let most = samples.iter().copied().max().unwrap_or(0).max(1) * texts * dim;
    let mut own = Vec::with_capacity(2 * embedded.len());
    for tensor in embedded {
        own.push(tensor.clone());
        let padding = most.saturating_sub(tensor.elements());
        if padding > 0 {
            own.push(Tensor::full_in(device, [padding], tensor.dtype(), 0.0, Segment::Activations)?);
        }
    }
    let all = ranks.gather_later(&own.iter().collect::<Vec<_>>())?; // [ranks, micro-batches · most]
    let of_ranks = all.reshape([ranks.size() * embedded.len(), most])?; // one row for each micro-batch
    let rows: Vec<usize> = (0..ranks.size() * embedded.len()).collect();
    let by_rank: Vec<&[usize]> = rows.chunks(embedded.len().max(1)).collect();
    let by_rank: Vec<&[usize]> = ranks.of_data_ranks(&by_rank).copied().collect();
    let missing = || Error::argument("embeddings", "a rank has no micro-batch", "report this");
    let mut parts = Vec::with_capacity(samples.len());
    for (micro_batch, count) in samples.iter().enumerate().filter(|(_, count)| **count > 0) {
        let rows = by_rank.get(micro_batch % by_rank.len().max(1)).copied().unwrap_or_default();
        let row = *rows.get(micro_batch / by_rank.len().max(1)).ok_or_else(missing)?;
        let values = of_ranks.slice(row..row + 1)?.reshape([most])?;
        parts.push(Var::constant(values.slice(0..count * texts * dim)?));
    }
    let joined = ops::concat_last(&Ctx::inference(device), &parts.iter().collect::<Vec<_>>())?.into_value();
    Ok(joined.reshape([joined.elements() / dim.max(1), dim])?)
}
