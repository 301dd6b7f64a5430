//! The loss of embeddings whose texts belong together: other texts of the batch are what they are told apart from.
//!
//! Defines [`embeddings`] and [`ContrastiveLoss`] over them.
//!
//! Source: InfoNCE, van den Oord et al. (2018), with the negatives of a batch and cosines of embeddings, as
//! sentence-transformers' `MultipleNegativesRankingLoss`.

use crate::Result;
use crate::model::{HiddenOutputs, PoolingMode, TextModel, weighted_sum};
use bmtrain_core::kernel::NormKind;
use bmtrain_core::ops::{self, CrossEntropy};
use bmtrain_core::{Ctx, DType, Segment, Tensor, Var};
use model_center_base::batch::Batch;
use model_center_base::error::Error;

/// The embedding of each sequence, f32 `[R, E]`: the mean of the last hidden states of its tokens, or the first one,
/// after the modules `Dense` of the model, if it has some. It is not scaled to length one.
///
/// # Errors
/// As [`TextModel::hidden`]; [`PoolingMode::Max`], an encoder-decoder, virtual tokens.
pub fn embeddings(model: &dyn TextModel, batch: &Batch, pooling: PoolingMode, cx: &mut Ctx) -> Result<Var> {
    let refused = |reason: &str, fix: &str| Err(Error::argument("embeddings", reason, fix));
    if model.info().is_encoder_decoder {
        return refused("an encoder-decoder has no embeddings of texts", "use a model with one stack");
    }
    let weights = pooling.weights(batch, cx.device())?; // [R, 1, L]
    let hidden = model.hidden(batch, HiddenOutputs::States, cx)?;
    if hidden.virtual_tokens > 0 {
        return refused("virtual tokens are no part of a text", "set adapter.method = \"lora\"");
    }
    let pooled = weighted_sum(&hidden.states, weights, cx)?; // [R, D]
    model.sentence_embedding(pooled, cx) // [R, E]
}

/// Added to the mean square of an embedding before it is scaled to length one.
const EPSILON: f32 = 1e-12;

/// The cross-entropy of finding the positive of each anchor among all positives and negatives of a batch.
///
/// ```
/// use bmtrain_core::{Ctx, Device, Segment, Tensor, Var};
/// use model_center_models::contrastive::ContrastiveLoss;
///
/// # fn main() -> model_center_models::Result<()> {
/// let device = Device::cpu(1)?;
/// // Two samples of an anchor and a positive: each anchor is at a right angle to the other one's positive.
/// let embeddings = [1.0f32, 0.0, 2.0, 0.0, 0.0, 1.0, 0.0, 3.0];
/// let embeddings = Var::constant(Tensor::from_slice_in(&device, [4, 2], &embeddings, Segment::Activations)?);
/// let loss = ContrastiveLoss { temperature: 1.0 }.of(&embeddings, 2, &Ctx::inference(&device))?;
/// assert!((loss.value().item()? - (1.0 + (-1.0f32).exp()).ln()).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ContrastiveLoss {
    /// Temperature, by which cosines are divided; above 0. sentence-transformers has a factor, 20 by default, in its
    /// place.
    pub temperature: f32,
}

impl ContrastiveLoss {
    /// The loss of samples of `texts` texts each: an anchor, a text that belongs to it, and then ones that do not.
    ///
    /// Shapes: embeddings f32 `[samples · texts, D]`, the texts of a sample together → `[1]`, the mean over samples.
    ///
    /// # Errors
    /// Fewer than two texts, a number of embeddings that is not a multiple of them.
    pub fn of(&self, embeddings: &Var, texts: usize, cx: &Ctx) -> Result<Var> {
        let [rows, dim] = embeddings.dims("embeddings")?;
        if texts < 2 || rows == 0 || !rows.is_multiple_of(texts) {
            let reason = format!("{rows} embeddings of samples of {texts} texts");
            return Err(Error::argument("embeddings", reason, "give at least an anchor and a positive of each sample"));
        }
        let samples = rows / texts;
        let ones = Tensor::full_in(cx.device(), [dim], DType::F32, 1.0, Segment::Activations)?;
        // Of length sqrt(D) each.
        let rule = ops::NormRule::new(NormKind::Rms, EPSILON);
        let scaled = ops::norm(cx, rule, embeddings, &Var::constant(ones), None)?; // [rows, D]
        let of_samples = scaled.reshape([samples, texts * dim])?;
        let text = |at: usize| ops::slice_last(cx, &of_samples, at * dim..(at + 1) * dim); // [samples, D]
        let anchors = text(0)?;
        // All positives, then all first negatives, and so on.
        let others = (1..texts).map(|at| Ok(text(at)?.reshape([1, samples * dim])?)).collect::<Result<Vec<Var>>>()?;
        let others = ops::concat_last(cx, &others.iter().collect::<Vec<_>>())?; // [1, (texts - 1) samples D]
        let candidates = others.reshape([(texts - 1) * samples, dim])?;
        let products = ops::matmul(cx, &anchors, &candidates, false, true)?; // [samples, (texts - 1) samples]
        let logits = ops::scale(cx, &products, 1.0 / (dim as f32 * self.temperature))?;
        let own: Vec<i64> = (0..samples as i64).collect();
        let own = Tensor::from_slice_in(cx.device(), [samples], &own, Segment::Data)?;
        Ok(ops::cross_entropy(cx, &logits, &own, &CrossEntropy::default())?) // [1]
    }
}
