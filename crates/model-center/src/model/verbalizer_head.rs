//! A head for words that is asked for a few of them at one place of each row: no other logits are made.
//!
//! Called by the heads of [`super::decoder`] and [`super::seq2seq`].

use super::labels::VerbalizerTensors;
use bmtrain_core::{Ctx, Var, ops};
use bmtrain_dist::Result;

/// Logits `[B, K]` of K words at one place of each of B rows, from states `[B, L, D]`, the rows of the head
/// `weight [V, D]` and its bias `[V]`.
///
/// # Errors
/// A word or a place out of range, shapes that do not fit, a failing device.
pub(super) fn verbalizer_logits(
    hidden: &Var,
    verbalizer: &VerbalizerTensors,
    (weight, bias): (&Var, Option<&Var>),
    cx: &Ctx,
) -> Result<Var> {
    let [rows, length, dim] = hidden.dims("verbalizer_logits")?;
    let tokens = hidden.reshape([rows * length, dim])?; // [B L, D]
    let states = ops::embedding(cx, &verbalizer.positions, &tokens, None)?; // [B, D]
    let words = ops::embedding(cx, &verbalizer.label_words, weight, None)?; // [K, D]
    let bias = match bias {
        Some(bias) => {
            let column = bias.reshape([bias.value().elements(), 1])?; // [V, 1]
            let of_words = ops::embedding(cx, &verbalizer.label_words, &column, None)?; // [K, 1]
            Some(of_words.reshape([verbalizer.label_words.elements()])?) // [K]
        }
        None => None,
    };
    Ok(ops::linear(cx, &states, &words, bias.as_ref(), None)?) // [B, K]
}
