//! Steps and evaluations of embeddings.
//!
//! The loss compares all samples of a step. So the micro-batches of a step are embedded twice: first without a tape,
//! for the loss of the embeddings of all ranks and its gradients, then each with a tape, whose output gets these
//! gradients. The activations of one micro-batch are stored at a time, as for any other loss, and the result does not
//! depend on how samples are divided.
//!
//! Defines [`Contrastive`], which the trainer and evaluations ask.
//!
//! Source: gradient caching, Gao et al. (2021).

use super::batches::Batches;
use super::evaluate::{EvalContext, EvalResult};
use super::setup::Setup;
use super::step_runner::backward;
use super::trainer::{LocalMetrics, Trainer};
use crate::{Error, Result};
use bmtrain_core::autograd::Observer;
use bmtrain_core::ops;
use bmtrain_core::{Ctx, Segment, Tensor, Var};
use bmtrain_dist::inspect::TensorInspector;
use bmtrain_dist::param::widen;
use model_center_base::batch::Batch;
use model_center_data::metrics::{RETRIEVAL_METRICS, Retrieval};
use model_center_models::contrastive::ContrastiveLoss;
use model_center_models::{Pooling, PoolingMode};
use model_center_recipe::Resolved;
use std::rc::Rc;
use std::time::Instant;

/// The loss of embeddings in a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Contrastive {
    loss: ContrastiveLoss,
    pooling: PoolingMode,
}

impl Contrastive {
    /// The loss of a run; `None` where no embeddings are trained.
    pub(super) fn of(resolved: &Resolved, setup: &Setup) -> Option<Self> {
        let pooling = setup.pooling.unwrap_or(Pooling::MEAN).mode;
        resolved.contrastive.map(|loss| Contrastive { loss, pooling })
    }
}

impl Trainer {
    /// Both passes of this rank's micro-batches.
    pub(super) fn run_contrastive(
        &mut self,
        contrastive: Contrastive,
        inspector: Option<&Rc<TensorInspector>>,
        local: &mut LocalMetrics,
    ) -> Result<()> {
        let texts = self.batches.labels().rows_per_sample();
        let waiting = Instant::now();
        let own: Vec<u64> = self.own_micro_batches().collect();
        let batches = own.iter().map(|micro_batch| self.batches.batch(self.position(*micro_batch)));
        let batches = batches.collect::<Result<Vec<Batch>>>()?;
        batches.iter().for_each(|batch| local.count(batch));
        let samples = self.samples_of_step()?;
        let loaded = Instant::now();
        local.phases.data += (loaded - waiting).as_secs_f64();
        let embedded = own.iter().zip(&batches).map(|(micro_batch, batch)| {
            // With the dropout of the second pass.
            let mut cx = self.training_context(*micro_batch).with_tape(None);
            Ok(self.model.embeddings(batch, contrastive.pooling, &mut cx)?.into_value()) // [R, D]
        });
        let embedded = embedded.collect::<Result<Vec<Tensor>>>()?;
        let all = self.embeddings_of_step(&embedded, &samples, texts)?; // [samples · texts, D]
        let (loss, gradients) = self.loss_and_gradients(contrastive.loss, all, texts)?;
        let compared = Instant::now();
        local.phases.forward += (compared - loaded).as_secs_f64();
        for (micro_batch, batch) in own.iter().zip(&batches) {
            let _micro_batch = tracing::debug_span!("micro_batch", micro_batch).entered();
            let mut cx = self.training_context(*micro_batch);
            if let Some(inspector) = inspector {
                cx.set_observer(Rc::clone(inspector) as Rc<dyn Observer>);
            }
            let embeddings = self.model.embeddings(batch, contrastive.pooling, &mut cx)?; // [R, D]
            let before: usize = samples.iter().take(*micro_batch as usize).sum();
            let (weight, gradient) = match batch.samples.len() {
                // Its rows stand for a batch without samples.
                0 => (0.0, embeddings.value().clone()),
                count => (1.0, gradients.slice(before * texts..(before + count) * texts)?), // [R, D]
            };
            // Its gradient by the embeddings is the one of the step's loss.
            let product = ops::sum(&cx, &ops::mul(&cx, &embeddings, &Var::constant(gradient))?)?; // [1]
            backward(&self.optim, &product, (weight, self.is_last(*micro_batch)), &mut cx)?;
            local.losses.push(loss.clone());
        }
        local.phases.backward += compared.elapsed().as_secs_f64();
        Ok(())
    }

    /// The number of samples of each micro-batch of the step.
    fn samples_of_step(&mut self) -> Result<Vec<usize>> {
        (0..self.micro_batches()).map(|micro_batch| self.batches.samples(self.position(micro_batch))).collect()
    }

    /// The embeddings of all samples of a step, `[samples · texts, D]` in the order of its micro-batches, on every
    /// rank. `embedded` are this rank's, `[R, D]` each.
    fn embeddings_of_step(&self, embedded: &[Tensor], samples: &[usize], texts: usize) -> Result<Tensor> {
        let dim = embedded.first().map_or(0, |tensor| tensor.shape().last());
        // All ranks send the same number of values for each micro-batch.
        let most = samples.iter().copied().max().unwrap_or(0).max(1) * texts * dim;
        let mut own = Vec::with_capacity(2 * embedded.len());
        for tensor in embedded {
            own.push(tensor.clone());
            let padding = most.saturating_sub(tensor.elements());
            if padding > 0 {
                own.push(Tensor::full_in(&self.device, [padding], tensor.dtype(), 0.0, Segment::Activations)?);
            }
        }
        let all = self.team.gather_later(&own.iter().collect::<Vec<_>>())?; // [ranks, micro-batches · most]
        let of_ranks = all.reshape([self.team.size() * embedded.len(), most])?; // one row for each micro-batch
        let rows: Vec<usize> = (0..self.team.size() * embedded.len()).collect();
        let by_rank: Vec<&[usize]> = rows.chunks(embedded.len().max(1)).collect();
        let by_rank: Vec<&[usize]> = self.team.of_data_ranks(&by_rank).copied().collect();
        let missing = || Error::argument("embeddings", "a rank has no micro-batch", "report this");
        let mut parts = Vec::with_capacity(samples.len());
        for (micro_batch, count) in samples.iter().enumerate().filter(|(_, count)| **count > 0) {
            let rows = by_rank.get(micro_batch % by_rank.len().max(1)).copied().unwrap_or_default();
            let row = *rows.get(micro_batch / by_rank.len().max(1)).ok_or_else(missing)?;
            let values = of_ranks.slice(row..row + 1)?.reshape([most])?;
            parts.push(Var::constant(values.slice(0..count * texts * dim)?));
        }
        let joined = ops::concat_last(&Ctx::inference(&self.device), &parts.iter().collect::<Vec<_>>())?.into_value();
        Ok(joined.reshape([joined.elements() / dim.max(1), dim])?)
    }

    /// The loss `[1]` of embeddings, and its gradient by them.
    fn loss_and_gradients(&self, loss: ContrastiveLoss, embeddings: Tensor, texts: usize) -> Result<(Var, Tensor)> {
        let missing = || Error::argument("embeddings", "their loss has no gradient", "report this");
        let mut cx = Ctx::gradients(&self.device);
        let embeddings = cx.tape().ok_or_else(missing)?.input(embeddings);
        let value = loss.of(&embeddings, texts, &cx)?; // [1]
        let tape = cx.take_tape().ok_or_else(missing)?;
        let one = Tensor::full_in(&self.device, [1], value.dtype(), 1.0, Segment::Activations)?;
        let gradients = tape.backward(&self.device, vec![(value.clone(), one)], &[&embeddings])?;
        let gradient = gradients.into_iter().flatten().next().ok_or_else(missing)?;
        Ok((value.detach(), gradient))
    }
}

/// Evaluates the embeddings of every sample of a set: the rank of each anchor's positive among all texts of the set.
/// The data-parallel ranks embed batches in turn. `None` where a rank is asked to stop.
pub(super) fn evaluate(
    batches: &mut Batches,
    contrastive: Contrastive,
    context: EvalContext<'_>,
) -> Result<Option<EvalResult>> {
    let EvalContext { model, device, .. } = context;
    let samples = batches.records().map_or(0, |records| records.len());
    let (texts, dim) = (batches.labels().rows_per_sample(), model.info().hidden_size);
    let mut retrieval = Retrieval::new(samples, texts);
    let compute = |batches: &[Batch]| {
        let embed = |batch| model.embeddings(batch, contrastive.pooling, &mut Ctx::inference(device)); // [R, D]
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
    let scores = retrieval.scores(contrastive.loss.temperature);
    let metrics = RETRIEVAL_METRICS.iter().filter_map(|metric| Some((*metric, scores.value(*metric)?))).collect();
    Ok(Some(EvalResult { samples: samples as u64, loss: scores.loss, metrics, sets: Vec::new() }))
}
