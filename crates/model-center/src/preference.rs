//! Losses of pairs of completions, a preferred one and another.
//!
//! Defines [`PreferenceLoss`] over the log-probabilities of sequences
//! ([`TextModel::log_probs`](crate::model::TextModel::log_probs)). A loss needs their sums alone, so that its gradient
//! is a weight for each sequence, with which the gradients of the tokens' losses are multiplied.
//!
//! Source: DPO, Rafailov et al. (2023), with the label smoothing of conservative DPO (Mitchell, 2023); IPO, Azar et al.
//! (2023), of means over tokens, as in TRL's DPOTrainer; SimPO, Meng et al. (2024), as in TRL's CPOTrainer.

use crate::Result;
use crate::data::{Batch, IGNORED};
use crate::error::Error;
use bmtrain_core::ops::{self, CrossEntropy};
use bmtrain_core::{Ctx, Segment, Tensor, Var};

/// Which loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreferenceKind {
    /// `-log sigmoid` of the difference of the rewards `beta (log p - log p of the reference)`.
    Dpo,
    /// The squared distance of the difference of log-ratios, means over tokens, from `1 / (2 beta)`. Rewards are DPO's.
    Ipo,
    /// `-log sigmoid` of the difference of the rewards `beta log p / tokens`, less `gamma`. It has no reference.
    Simpo,
}

impl PreferenceKind {
    /// Each with its name in recipes.
    pub const ALL: [(&'static str, PreferenceKind); 3] =
        [("dpo", PreferenceKind::Dpo), ("ipo", PreferenceKind::Ipo), ("simpo", PreferenceKind::Simpo)];

    /// Whether log-probabilities are compared with a reference model's.
    pub fn has_reference(self) -> bool {
        self != PreferenceKind::Simpo
    }

    /// Whether log-probabilities are divided by the number of tokens.
    fn is_by_token(self) -> bool {
        self != PreferenceKind::Dpo
    }
}

/// A loss of pairs.
///
/// ```
/// use bmtrain_core::{Ctx, Device, Segment, Tensor, Var};
/// use model_center::preference::{PairedSequences, PreferenceKind, PreferenceLoss};
///
/// # fn main() -> model_center::Result<()> {
/// let device = Device::cpu(1)?;
/// let tensor = |values: &[f32]| Tensor::from_slice_in(&device, [values.len()], values, Segment::Activations);
/// // One pair: the better completion has become likelier than under the reference, the worse one has not.
/// let log_probs = Var::constant(tensor(&[-20.0, -30.0])?);
/// let reference = tensor(&[-25.0, -30.0])?;
/// let loss = PreferenceLoss { kind: PreferenceKind::Dpo, beta: 0.1, gamma: 0.0, label_smoothing: 0.0 };
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
    /// Factor of log-ratios in rewards; above 0.
    pub beta: f32,
    /// SimPO's margin between the rewards of a pair.
    pub gamma: f32,
    /// Probability that a preference is the other way round, below 0.5; not of IPO.
    pub label_smoothing: f32,
}

/// What is known of the sequences of pairs beside their log-probabilities: chosen and rejected ones in turn.
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
}

impl PreferenceLoss {
    /// The loss of B pairs whose sequences have the log-probabilities `[2 B]`, chosen and rejected ones in turn.
    ///
    /// # Errors
    /// An odd number of sequences, numbers of tokens or a reference for another number of them; a kind with a reference
    /// and none given.
    pub fn of(&self, log_probs: &Var, pairs: PairedSequences<'_>, cx: &Ctx) -> Result<PreferenceOutcome> {
        let PreferenceLoss { kind, beta, gamma, label_smoothing } = *self;
        let [sequences] = log_probs.dims("log-probabilities of pairs")?;
        let wrong = |reason: String| Error::argument("pairs", reason, "give two sequences for each pair");
        if !sequences.is_multiple_of(2) || pairs.tokens.len() != sequences {
            let reason = format!("{sequences} log-probabilities, of sequences of {} lengths", pairs.tokens.len());
            return Err(wrong(reason));
        }
        let count = sequences / 2;
        let constant = |values: &[f32], shape: [usize; 2]| {
            Ok::<_, Error>(Var::constant(Tensor::from_slice_in(cx.device(), shape, values, Segment::Data)?))
        };
        let mut scores = log_probs.clone(); // [2 B]
        if kind.has_reference() {
            let reference = pairs.reference.ok_or_else(|| wrong("there is no reference".to_owned()))?;
            let opposite = ops::scale(cx, &Var::constant(reference.clone()), -1.0)?;
            scores = ops::add(cx, &scores, &opposite)?; // [2 B]
        }
        // IPO's rewards are DPO's, its loss is of means over tokens.
        let of_sums = scores.clone();
        if kind.is_by_token() {
            let shares: Vec<f32> = pairs.tokens.iter().map(|tokens| 1.0 / (*tokens).max(1) as f32).collect();
            let shares = constant(&shares, [1, sequences])?.reshape([sequences])?;
            scores = ops::mul(cx, &scores, &shares)?; // [2 B]
        }
        let rewarded = if kind == PreferenceKind::Ipo { &of_sums } else { &scores };
        let rewards = ops::scale(cx, rewarded, beta)?; // [2 B]
        let loss = match kind {
            PreferenceKind::Dpo => two_way_loss(&rewards.reshape([count, 2])?, label_smoothing, cx)?,
            PreferenceKind::Simpo => {
                let margin = constant(&[-gamma, 0.0].repeat(count), [count, 2])?;
                two_way_loss(&ops::add(cx, &rewards.reshape([count, 2])?, &margin)?, label_smoothing, cx)?
            }
            PreferenceKind::Ipo => {
                let difference = constant(&[1.0, -1.0], [1, 2])?;
                let differences = ops::linear(cx, &scores.reshape([count, 2])?, &difference, None, None)?; // [B, 1]
                let target = constant(&vec![0.5 / beta; count], [count, 1])?;
                ops::squared_error(cx, &differences, target.value())? // [1]
            }
        };
        Ok(PreferenceOutcome { loss, rewards, log_probs: log_probs.clone() })
    }
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
