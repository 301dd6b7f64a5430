//! The backward pass. Defines [`run`], called by `mod.rs`.
#![allow(unsafe_code)]

use super::operand::{ReadHeads, WriteHeads};
use super::score::Rules;
use crate::cpu::access::{self, Rows};
use crate::cpu::threads::Threads;
use crate::error::Result;
use crate::kernel::{Arguments, AttentionBackward};

/// See [`AttentionBackward`].
///
/// # Errors
/// Views of a wrong type.
pub(super) fn run(threads: &Threads, a: AttentionBackward<'_>) -> Result<()> {
    let op = AttentionBackward::NAME;
    let shape = a.shape;
    let h = shape.head_size;
    let rules = Rules::new(op, shape, (a.scale, a.causal), a.mask, a.bias, a.dropout)?;
    let (q, k, v) = (ReadHeads::new(op, a.q, h)?, ReadHeads::new(op, a.k, h)?, ReadHeads::new(op, a.v, h)?);
    let (out, dout) = (ReadHeads::new(op, a.out, h)?, ReadHeads::new(op, a.dout, h)?);
    let (dq, dk, dv) = (WriteHeads::new(op, a.dq, h)?, WriteHeads::new(op, a.dk, h)?, WriteHeads::new(op, a.dv, h)?);
    let lse = access::read::<f32>(op, a.lse)?;
    let shared = a.bias.as_ref().is_some_and(|bias| !bias.per_sequence);
    let add = a.dbias.as_ref().is_some_and(|dest| dest.add);
    let dbias: Option<Rows<'_, f32>> = match a.dbias {
        Some(dest) => Some(access::write_rows(op, dest.view)?),
        None => None,
    };
    let group = shape.heads / shape.kv_heads;
    let work = |b: usize, kv: usize| {
        let (mut query, mut key, mut row, mut drow) = (vec![0.0; h], vec![0.0; h], vec![0.0; h], vec![0.0; h]);
        let (mut scores, mut space) = (vec![0.0; shape.keys], vec![0.0; shape.keys]);
        let (mut sum_dk, mut sum_dv) = (vec![0.0; shape.keys * h], vec![0.0; shape.keys * h]);
        for n in kv * group..(kv + 1) * group {
            for l in 0..shape.queries {
                q.row(b, n, l, &mut query);
                out.row(b, n, l, &mut row);
                dout.row(b, n, l, &mut drow);
                let delta: f32 = row.iter().zip(&drow).map(|(x, y)| x * y).sum();
                for (s, score) in scores.iter_mut().enumerate() {
                    k.row(b, kv, s, &mut key);
                    *score = rules.scale * query.iter().zip(&key).map(|(x, y)| x * y).sum::<f32>();
                }
                rules.apply((b, n, l), &mut scores, &mut space);
                let shift = lse[rules.row(b, n, l)];
                let shift = if shift == f32::NEG_INFINITY { f32::INFINITY } else { shift };
                rules.multipliers((b, n, l), &mut space);
                row.fill(0.0);
                for (s, (score, factor)) in scores.iter_mut().zip(&space).enumerate() {
                    let p = (*score - shift).exp();
                    v.row(b, kv, s, &mut key);
                    let dp = factor * key.iter().zip(&drow).map(|(x, y)| x * y).sum::<f32>();
                    *score = p * (dp - delta);
                    let (sum_dk, sum_dv) = (&mut sum_dk[s * h..][..h], &mut sum_dv[s * h..][..h]);
                    sum_dv.iter_mut().zip(&drow).for_each(|(to, from)| *to += p * factor * from);
                    sum_dk.iter_mut().zip(&query).for_each(|(to, from)| *to += *score * from);
                    k.row(b, kv, s, &mut key);
                    row.iter_mut().zip(&key).for_each(|(to, from)| *to += *score * from);
                }
                // SAFETY: every (b, kv) is done by one thread, in turn over b where sequences share the bias.
                unsafe {
                    dq.row(b, n, l, &row, rules.scale);
                    if let (Some(dbias), Some(start)) = (&dbias, rules.bias_row(b, n, l)) {
                        let to = dbias.part(start, shape.keys);
                        if add || (shared && b > 0) {
                            to.iter_mut().zip(&scores).for_each(|(to, from)| *to += from);
                        } else {
                            to.copy_from_slice(&scores);
                        }
                    }
                }
            }
        }
        for s in 0..shape.keys {
            // SAFETY: as above.
            unsafe {
                dk.row(b, kv, s, &sum_dk[s * h..][..h], rules.scale);
                dv.row(b, kv, s, &sum_dv[s * h..][..h], 1.0);
            }
        }
    };
    if shared {
        threads.for_each(shape.kv_heads, |kv| (0..shape.batch).for_each(|b| work(b, kv)));
    } else {
        threads.for_each(shape.batch * shape.kv_heads, |piece| work(piece / shape.kv_heads, piece % shape.kv_heads));
    }
    Ok(())
}
