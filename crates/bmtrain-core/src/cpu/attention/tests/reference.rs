//! Attention and its gradients as the textbook writes them, in f64.

use super::case::{Case, Data, Masking, Results};
use crate::philox;

pub(super) fn reference(case: &Case, data: &Data) -> Results<f64> {
    let old = if case.add { f64::from(data.old) } else { 0.0 };
    let mut results = Results {
        out: vec![0.0; data.q.len()],
        lse: vec![0.0; case.batch * case.heads * case.queries],
        dq: vec![old; data.q.len()],
        dk: vec![old; data.k.len()],
        dv: vec![old; data.v.len()],
        dbias: vec![old; case.dbias_len()],
    };
    for b in 0..case.batch {
        for n in 0..case.heads {
            for l in 0..case.queries {
                row(case, data, (b, n, l), &mut results);
            }
        }
    }
    results
}

fn row(case: &Case, data: &Data, (b, n, l): (usize, usize, usize), results: &mut Results<f64>) {
    let (h, scale) = (case.head_size, f64::from(case.scale()));
    let kv = n / (case.heads / case.kv_heads);
    let of_query = ((b * case.queries + l) * case.heads + n) * h;
    let of_key = |s: usize| ((b * case.keys + s) * case.kv_heads + kv) * h;
    let row = (b * case.heads + n) * case.queries + l;
    let head = if case.bias == Some(false) { n } else { b * case.heads + n };
    let bias_row = if case.per_query { head * case.queries + l } else { head } * case.keys;
    let dbias_row = (head * case.queries + l) * case.keys;
    let dot = |x: &[f32], y: &[f32]| -> f64 { x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum() };
    let (q, dout) = (&data.q[of_query..][..h], &data.dout[of_query..][..h]);
    let starts = case.starts();
    let document = |row: usize| starts[b * case.queries + row];
    let seen = |s: usize| {
        let allowed = match case.mask {
            Masking::None => true,
            Masking::Padding | Masking::Nothing => data.mask[b * case.keys + s] != 0,
            Masking::Full | Masking::NothingFull => data.mask[(b * case.queries + l) * case.keys + s] != 0,
        };
        let near = case.window.is_none_or(|window| {
            l + case.keys < s + case.queries + window && s + case.queries < l + case.keys + window
        });
        let together = !case.packed || document(l) == document(s);
        allowed && together && near && (!case.causal || s + case.queries <= l + case.keys)
    };
    let cap = case.soft_cap.map(f64::from);
    let capped = |score: f64| cap.map_or(score, |cap| cap * (score / cap).tanh());
    let scores: Vec<f64> = (0..case.keys)
        .map(|s| {
            let bias = data.bias.get(bias_row + s).map_or(0.0, |x| f64::from(*x));
            if seen(s) { capped(scale * dot(q, &data.k[of_key(s)..][..h])) + bias } else { f64::NEG_INFINITY }
        })
        .collect();
    let sum: f64 = scores.iter().map(|x| x.exp()).sum();
    results.lse[row] = sum.ln();
    if sum == 0.0 {
        return;
    }
    let dropout = case.dropout();
    let factor = |s: usize| {
        let Some(dropout) = dropout else { return 1.0 };
        let element = (row * case.keys + s) as u64;
        let counter = [(element / 4) as u32, ((element / 4) >> 32) as u32, dropout.step, dropout.micro_batch];
        let word = philox::block(dropout.key, counter)[(element % 4) as usize];
        if word < dropout.threshold { 0.0 } else { f64::from(dropout.scale) }
    };
    let p: Vec<f64> = scores.iter().map(|x| x.exp() / sum).collect();
    let dp: Vec<f64> = (0..case.keys).map(|s| factor(s) * dot(dout, &data.v[of_key(s)..][..h])).collect();
    let delta: f64 = p.iter().zip(&dp).map(|(p, dp)| p * dp).sum();
    for s in 0..case.keys {
        let slope = cap.filter(|_| p[s] > 0.0).map_or(1.0, |cap| 1.0 - (scores[s] / cap).powi(2));
        let ds = p[s] * (dp[s] - delta) * slope;
        if case.bias.is_some() {
            results.dbias[dbias_row + s] += ds;
        }
        for i in 0..h {
            let at = of_key(s) + i;
            results.out[of_query + i] += p[s] * factor(s) * f64::from(data.v[at]);
            results.dv[at] += p[s] * factor(s) * f64::from(dout[i]);
            results.dk[at] += scale * ds * f64::from(q[i]);
            results.dq[of_query + i] += scale * ds * f64::from(data.k[at]);
        }
    }
}
