//! The forward pass. Defines [`run`], called by `mod.rs`.
#![allow(unsafe_code)]

use super::operand::{ReadHeads, WriteHeads};
use super::score::Rules;
use crate::cpu::access;
use crate::cpu::threads::Threads;
use crate::error::Result;
use crate::kernel::{Arguments, AttentionForward};

/// See [`AttentionForward`].
///
/// # Errors
/// Views of a wrong type.
pub(super) fn run(threads: &Threads, a: AttentionForward<'_>) -> Result<()> {
    let op = AttentionForward::NAME;
    let shape = a.shape;
    let rules = Rules::new(op, shape, (a.scale, a.causal), a.mask, a.bias, a.dropout)?;
    let (q, k, v) = (
        ReadHeads::new(op, a.q, shape.head_size)?,
        ReadHeads::new(op, a.k, shape.head_size)?,
        ReadHeads::new(op, a.v, shape.head_size)?,
    );
    let out = WriteHeads::new(op, a.out, shape.head_size)?;
    let lse = access::write::<f32>(op, a.lse)?;
    let group = shape.heads / shape.kv_heads;
    threads.for_each_piece(lse, shape.queries, |piece, lse| {
        let (b, n) = (piece / shape.heads, piece % shape.heads);
        let h = shape.head_size;
        let (mut query, mut key, mut sum) = (vec![0.0; h], vec![0.0; h], vec![0.0; h]);
        let (mut scores, mut space) = (vec![0.0; shape.keys], vec![0.0; shape.keys]);
        for (l, lse) in lse.iter_mut().enumerate() {
            q.row(b, n, l, &mut query);
            for (s, score) in scores.iter_mut().enumerate() {
                k.row(b, n / group, s, &mut key);
                *score = rules.scale * query.iter().zip(&key).map(|(x, y)| x * y).sum::<f32>();
            }
            rules.apply((b, n, l), &mut scores, &mut space);
            let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let largest = if largest == f32::NEG_INFINITY { 0.0 } else { largest };
            scores.iter_mut().for_each(|score| *score = (*score - largest).exp());
            let total: f32 = scores.iter().sum();
            *lse = largest + total.ln();
            rules.multipliers((b, n, l), &mut space);
            sum.fill(0.0);
            for (s, (score, factor)) in scores.iter().zip(&space).enumerate() {
                v.row(b, n / group, s, &mut key);
                sum.iter_mut().zip(&key).for_each(|(sum, v)| *sum += score * factor * v);
            }
            let inverse = if total == 0.0 { 0.0 } else { 1.0 / total };
            // SAFETY: every (b, n) is one piece.
            unsafe { out.row(b, n, l, &sum, inverse) };
        }
    });
    Ok(())
}
