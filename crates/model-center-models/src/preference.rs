//! Losses of pairs of completions, a preferred one and another, and of unpaired completions, each good or bad.
//!
//! Defines [`log_probs`], the log-probabilities of sequences, and [`PreferenceLoss`] over them. A loss needs their sums
//! alone, so that its gradient is a weight for each sequence, with which the gradients of the tokens' losses are
//! multiplied.
//!
//! Source: DPO, Rafailov et al. (2023), with the label smoothing of conservative DPO (Mitchell, 2023); IPO, Azar et al.
//! (2023), of means over tokens, as in TRL's DPOTrainer; SimPO, Meng et al. (2024), as in TRL's CPOTrainer; ORPO, Hong
//! et al. (2024), as in TRL's ORPOTrainer with the likelihood of the completion alone; KTO, Ethayarajh et al. (2024),
//! as in TRL's KTOTrainer.

use crate::Result;
use crate::model::{HiddenOutputs, TextModel};
use bmtrain_core::kernel::Activation;
use bmtrain_core::ops::{self, CrossEntropy};
use bmtrain_core::{Ctx, DType, Segment, Shape, Tensor, Var};
use model_center_base::batch::{Batch, IGNORED, Labels};
use model_center_base::error::Error;

/// The log-probability of each sequence, f32 `[R]`: of the tokens that have a label, given the ones before them. Logits
/// are not stored.
///
/// # Errors
/// As [`TextModel::hidden`]; a model without a language-modelling head, a batch without labels.
pub fn log_probs(model: &dyn TextModel, batch: &Batch, cx: &mut Ctx) -> Result<Var> {
    let losses = model.hidden(batch, HiddenOutputs::LmOperands, cx)?.token_losses(cx)?; // [R, L]
    let [rows, length] = losses.dims("losses of sequences")?;
    let ones = Tensor::full_in(cx.device(), [1, length], DType::F32, 1.0, Segment::Activations)?; // [1, L]
    let sums = ops::linear(cx, &losses, &Var::constant(ones), None, None)?; // [R, 1]
    Ok(ops::scale(cx, &sums.reshape([rows])?, -1.0)?) // [R]
}

/// Which loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreferenceKind {
    /// `-log sigmoid` of the difference of the rewards `beta (log p - log p of the reference)`.
    Dpo,
    /// The squared distance of the difference of log-ratios, means over tokens, from `1 / (2 beta)`. Rewards are DPO's.
    Ipo,
    /// `-log sigmoid` of the difference of the rewards `beta log p / tokens`, less `gamma`. It has no reference.
    Simpo,
    /// Minus the mean log-probability of the preferred completion's tokens, plus `beta` times `-log sigmoid` of the
    /// difference of the log-odds of both means. It has no reference. Rewards are `beta log p / tokens`.
    Orpo,
    /// Loss of completions that are rated one by one: 1 less the sigmoid of how far the reward, DPO's, is above `beta`
    /// times the divergence from the reference, or below for a bad one. See [`PreferenceLoss::of_unpaired`].
    Kto,
}

impl PreferenceKind {
    /// Each with its name in recipes.
    pub const ALL: [(&'static str, PreferenceKind); 5] = [
        ("dpo", PreferenceKind::Dpo),
        ("ipo", PreferenceKind::Ipo),
        ("simpo", PreferenceKind::Simpo),
        ("orpo", PreferenceKind::Orpo),
        ("kto", PreferenceKind::Kto),
    ];

    /// Whether log-probabilities are compared with a reference model's.
    pub fn has_reference(self) -> bool {
        !matches!(self, PreferenceKind::Simpo | PreferenceKind::Orpo)
    }

    /// Whether log-probabilities are divided by the number of tokens.
    fn is_by_token(self) -> bool {
        matches!(self, PreferenceKind::Ipo | PreferenceKind::Simpo | PreferenceKind::Orpo)
    }
}

/// A loss of completions that are compared.
///
/// ```
/// use bmtrain_core::{Ctx, Device, Segment, Tensor, Var};
/// use model_center_models::preference::{PairedSequences, PreferenceKind, PreferenceLoss};
///
/// # fn main() -> model_center_models::Result<()> {
/// let device = Device::cpu(1)?;
/// let tensor = |values: &[f32]| Tensor::from_slice_in(&device, [values.len()], values, Segment::Activations);
/// // One pair: the better completion has become likelier than under the reference, the worse one has not.
/// let log_probs = Var::constant(tensor(&[-20.0, -30.0])?);
/// let reference = tensor(&[-25.0, -30.0])?;
/// let loss = PreferenceLoss { beta: 0.1, ..PreferenceLoss::new(PreferenceKind::Dpo) };
/// let pairs = PairedSequences { tokens: &[12, 9], reference: Some(&reference) };
/// let outcome = loss.of(&log_probs, pairs, &Ctx::inference(&device))?;
/// // The difference of rewards is 0.5.
/// assert!((outcome.loss.value().item()? - (1.0 + (-0.5f32).exp()).ln()).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PreferenceLoss {
    /// Which.
    pub kind: PreferenceKind,
    /// Factor of log-ratios in rewards, of ORPO of the term that compares; above 0.
    pub beta: f32,
    /// SimPO's margin between the rewards of a pair.
    pub gamma: f32,
    /// Probability that a preference is the other way round, below 0.5; of DPO and SimPO.
    pub label_smoothing: f32,
    /// KTO's weights of the losses of good and of bad completions.
    pub label_weights: [f32; 2],
}

/// Sequences of pairs, besides their log-probabilities: chosen and rejected ones in turn.
#[derive(Debug, Clone, Copy)]
pub struct PairedSequences<'a> {
    /// Tokens of each that are in its log-probability.
    pub tokens: &'a [usize],
    /// f32 `[2 B]`, their log-probabilities under the reference model.
    pub reference: Option<&'a Tensor>,
}

/// The loss of pairs, with what it is computed from; sequences as in [`PairedSequences`].
#[derive(Debug, Clone)]
pub struct PreferenceOutcome {
    /// The mean over pairs, f32 `[1]`.
    pub loss: Var,
    /// The implicit reward of each sequence, f32 `[2 B]`.
    pub rewards: Var,
    /// The log-probability of each sequence, f32 `[2 B]`.
    pub log_probs: Var,
    /// Outcome of unpaired completions, whose rewards and log-probabilities are `[B]`.
    pub unpaired: Option<UnpairedOutcome>,
}

/// Unpaired completions, each good or bad.
#[derive(Debug, Clone, Copy)]
pub struct UnpairedSequences<'a> {
    /// Whether each of the B completions is good.
    pub is_good: &'a [bool],
    /// f32 `[B]`, their log-probabilities under the reference model.
    pub reference: &'a Tensor,
    /// f32 `[B]`, the log-probabilities of the same prompts with other completions, under the model and under the
    /// reference.
    pub mismatch: [&'a Tensor; 2],
}

/// Reported numbers of unpaired completions besides their rewards.
#[derive(Debug, Clone)]
pub struct UnpairedOutcome {
    /// The log-ratios of prompts with other completions, f32 `[B]`.
    pub mismatch_ratios: Var,
    /// 1 for good completions and 0 for bad ones, f32 `[B]`.
    pub is_good: Tensor,
}

impl PreferenceLoss {
    /// The loss of a kind with the usual settings, which are TRL's.
    pub const fn new(kind: PreferenceKind) -> Self {
        let beta = if matches!(kind, PreferenceKind::Simpo) { 2.0 } else { 0.1 };
        PreferenceLoss { kind, beta, gamma: 0.5, label_smoothing: 0.0, label_weights: [1.0, 1.0] }
    }

    /// The loss of B pairs whose sequences have the log-probabilities `[2 B]`, chosen and rejected ones in turn.
    ///
    /// # Errors
    /// An odd number of sequences, numbers of tokens or a reference for another number of them; a kind with a reference
    /// and none given; KTO, which has no pairs.
    pub fn of(&self, log_probs: &Var, pairs: PairedSequences<'_>, cx: &Ctx) -> Result<PreferenceOutcome> {
        let PreferenceLoss { kind, beta, gamma, label_smoothing, .. } = *self;
        let [sequences] = log_probs.dims("log-probabilities of pairs")?;
        let wrong = |reason: String| Error::argument("pairs", reason, "give two sequences for each pair");
        if !sequences.is_multiple_of(2) || pairs.tokens.len() != sequences {
            let reason = format!("{sequences} log-probabilities, of sequences of {} lengths", pairs.tokens.len());
            return Err(wrong(reason));
        }
        let count = sequences / 2;
        let mut scores = log_probs.clone(); // [2 B]
        if kind.has_reference() {
            let reference = pairs.reference.ok_or_else(|| wrong("there is no reference".to_owned()))?;
            scores = ratios(&scores, reference, cx)?; // [2 B]
        }
        // IPO's rewards are DPO's, its loss is of means over tokens.
        let of_sums = scores.clone();
        if kind.is_by_token() {
            let shares: Vec<f32> = pairs.tokens.iter().map(|tokens| 1.0 / (*tokens).max(1) as f32).collect();
            let shares = constant(&shares, [sequences], cx)?;
            scores = ops::mul(cx, &scores, &shares)?; // [2 B]
        }
        let rewarded = if kind == PreferenceKind::Ipo { &of_sums } else { &scores };
        let rewards = ops::scale(cx, rewarded, beta)?; // [2 B]
        let loss = match kind {
            PreferenceKind::Dpo => two_way_loss(&rewards.reshape([count, 2])?, label_smoothing, cx)?,
            PreferenceKind::Simpo => {
                let margin = constant(&[-gamma, 0.0].repeat(count), [count, 2], cx)?;
                two_way_loss(&ops::add(cx, &rewards.reshape([count, 2])?, &margin)?, label_smoothing, cx)?
            }
            PreferenceKind::Ipo => {
                let difference = constant(&[1.0, -1.0], [1, 2], cx)?;
                let differences = ops::linear(cx, &scores.reshape([count, 2])?, &difference, None, None)?; // [B, 1]
                let target = constant(&vec![0.5 / beta; count], [count, 1], cx)?;
                ops::squared_error(cx, &differences, target.value())? // [1]
            }
            PreferenceKind::Orpo => {
                let odds = ops::log_odds(cx, &scores)?; // [2 B]
                let compared = two_way_loss(&odds.reshape([count, 2])?, 0.0, cx)?; // [1]
                let chosen = [-1.0 / count.max(1) as f32, 0.0].repeat(count);
                let chosen = constant(&chosen, [1, sequences], cx)?;
                let likelihood = ops::linear(cx, &scores.reshape([1, sequences])?, &chosen, None, None)?; // [1, 1]
                ops::add(cx, &likelihood.reshape([1])?, &ops::scale(cx, &compared, beta)?)? // [1]
            }
            PreferenceKind::Kto => return Err(wrong("completions of this loss are judged one by one".to_owned())),
        };
        Ok(PreferenceOutcome { loss, rewards, log_probs: log_probs.clone(), unpaired: None })
    }

    /// KTO's loss of B completions with the log-probabilities `[B]`.
    ///
    /// The divergence from the reference is estimated as the mean log-ratio of prompts with other completions, at least
    /// 0, of these B samples; it has no gradient.
    ///
    /// # Errors
    /// Another kind; numbers that are not of B completions.
    pub fn of_unpaired(&self, log_probs: &Var, unpaired: UnpairedSequences<'_>, cx: &Ctx) -> Result<PreferenceOutcome> {
        let PreferenceLoss { kind, beta, label_weights: [good, bad], .. } = *self;
        let [count] = log_probs.dims("log-probabilities of completions")?;
        if kind != PreferenceKind::Kto || unpaired.is_good.len() != count || count == 0 {
            let reason = format!("{count} log-probabilities, of {} completions for {kind:?}", unpaired.is_good.len());
            return Err(Error::argument("judged", reason, "give a judgement for each completion, to KTO"));
        }
        let by_label = |[good, bad]: [f32; 2]| -> Vec<f32> {
            unpaired.is_good.iter().map(|is_good| if *is_good { good } else { bad }).collect()
        };
        let [policy, reference] = unpaired.mismatch;
        let mismatch_ratios = ratios(&Var::constant(policy.clone()), reference, cx)?; // [B]
        let divergence = ops::activation(cx, &ops::mean(cx, &mismatch_ratios)?, Activation::Relu)?; // [1]
        let level = constant(&vec![-beta; count], [count, 1], cx)?;
        let level = ops::linear(cx, &level, &divergence.reshape([1, 1])?, None, None)?; // [B, 1]
        let rewards = ops::scale(cx, &ratios(log_probs, unpaired.reference, cx)?, beta)?; // [B]
        // 1 - sigmoid(z) is (1 - tanh(z / 2)) / 2.
        let halves = constant(&by_label([0.5, -0.5]), [count], cx)?;
        let halves = ops::mul(cx, &ops::add(cx, &rewards, &level.reshape([count])?)?, &halves)?; // [B]
        let tangents = ops::activation(cx, &halves, Activation::Tanh)?.reshape([1, count])?;
        let weights = by_label([good, bad]).into_iter().map(|weight| -0.5 * weight / count as f32);
        let weights: Vec<f32> = weights.collect();
        let most = constant(&[-weights.iter().sum::<f32>()], [1], cx)?;
        let less = ops::linear(cx, &tangents, &constant(&weights, [1, count], cx)?, None, None)?; // [1, 1]
        let loss = ops::add(cx, &less.reshape([1])?, &most)?; // [1]
        let is_good = constant(&by_label([1.0, 0.0]), [count], cx)?.into_value();
        let unpaired = Some(UnpairedOutcome { mismatch_ratios, is_good });
        Ok(PreferenceOutcome { loss, rewards, log_probs: log_probs.clone(), unpaired })
    }
}

fn constant(values: &[f32], shape: impl Into<Shape>, cx: &Ctx) -> Result<Var> {
    Ok(Var::constant(Tensor::from_slice_in(cx.device(), shape, values, Segment::Data)?))
}

/// Log-probabilities less the reference's.
fn ratios(log_probs: &Var, reference: &Tensor, cx: &Ctx) -> Result<Var> {
    let opposite = ops::scale(cx, &Var::constant(reference.clone()), -1.0)?;
    Ok(ops::add(cx, log_probs, &opposite)?)
}

/// [`UnpairedSequences`] under its earlier name.
pub type JudgedSequences<'a> = UnpairedSequences<'a>;
/// [`UnpairedOutcome`] under its earlier name.
pub type JudgedOutcome = UnpairedOutcome;
#[doc(no_inline)]
pub use own_and_mismatched as judged_and_mismatched;

/// The completions of an unpaired batch, and their prompts with other completions: every second row.
pub fn own_and_mismatched(batch: &Batch) -> [Batch; 2] {
    [0, 1].map(|first| {
        let length = batch.length.max(1);
        fn rows<T: Copy>(values: &[T], length: usize, first: usize) -> Vec<T> {
            values.chunks(length).skip(first).step_by(2).flatten().copied().collect()
        }
        let labels = batch.labels.as_ref().and_then(Labels::ids);
        Batch {
            rows: batch.rows / 2,
            input_ids: rows(&batch.input_ids, length, first),
            attention_mask: batch.attention_mask.as_ref().map(|mask| rows(mask, length, first)),
            token_type_ids: batch.token_type_ids.as_ref().map(|types| rows(types, length, first)),
            labels: labels.map(|labels| Labels::NextTokens(rows(labels, length, first))),
            ..batch.clone()
        }
    })
}

/// `-log sigmoid` of the first minus the second of each row, and with `smoothing` of the opposite: the cross-entropy of
/// two classes.
fn two_way_loss(rewards: &Var, smoothing: f32, cx: &Ctx) -> Result<Var> {
    let [count, _] = rewards.dims("rewards of pairs")?;
    let first = Tensor::from_slice_in(cx.device(), [count], &vec![0i64; count], Segment::Data)?; // [B]
    // Smoothing is spread over both classes.
    let options = CrossEntropy { label_smoothing: 2.0 * smoothing, ..CrossEntropy::default() };
    Ok(ops::cross_entropy(cx, rewards, &first, &options)?) // [1]
}

/// Tokens of each sequence of a batch that are in its log-probability: those with a label, but for the first token,
/// which nothing predicts.
pub fn labelled_tokens(batch: &Batch) -> Vec<usize> {
    let labels = batch.labels.as_ref().and_then(|labels| labels.ids()).unwrap_or_default();
    let count = |row: &[i64]| row.iter().skip(1).filter(|label| **label != IGNORED).count();
    labels.chunks(batch.length.max(1)).map(count).collect()
}
