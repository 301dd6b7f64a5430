//! Plain loops for every kernel that has no fast version yet.

use super::access::{read, write};
use super::threads::Threads;
use crate::buffer::{View, ViewMut};
use crate::dtype::{DType, Float};
use crate::error::{Error, Result};
use crate::kernel::*;
use crate::philox;
use half::{bf16, f16};

fn load(v: View<'_>) -> Result<Vec<f32>> {
    Ok(match v.dtype() {
        DType::F16 => read::<f16>("load", v)?.iter().map(|x| Float::to_f32(*x)).collect(),
        DType::BF16 => read::<bf16>("load", v)?.iter().map(|x| Float::to_f32(*x)).collect(),
        DType::I64 => read::<i64>("load", v)?.iter().map(|x| *x as f32).collect(),
        DType::I32 => read::<i32>("load", v)?.iter().map(|x| *x as f32).collect(),
        DType::U8 => read::<u8>("load", v)?.iter().map(|x| *x as f32).collect(),
        DType::F32 => read::<f32>("load", v)?.to_vec(),
    })
}

fn store(v: ViewMut<'_>, f: impl Fn(usize, f32) -> f32) -> Result<()> {
    match v.dtype() {
        DType::F16 => write::<f16>("store", v)?.iter_mut().enumerate().for_each(|(i, x)| *x = Float::from_f32(f(i, Float::to_f32(*x)))),
        DType::BF16 => write::<bf16>("store", v)?.iter_mut().enumerate().for_each(|(i, x)| *x = Float::from_f32(f(i, Float::to_f32(*x)))),
        DType::I64 => write::<i64>("store", v)?.iter_mut().enumerate().for_each(|(i, x)| *x = f(i, *x as f32) as i64),
        DType::I32 => write::<i32>("store", v)?.iter_mut().enumerate().for_each(|(i, x)| *x = f(i, *x as f32) as i32),
        DType::U8 => write::<u8>("store", v)?.iter_mut().enumerate().for_each(|(i, x)| *x = f(i, *x as f32) as u8),
        DType::F32 => write::<f32>("store", v)?.iter_mut().enumerate().for_each(|(i, x)| *x = f(i, *x)),
    }
    Ok(())
}

fn put(d: Dest<'_>, new: &[f32]) -> Result<()> {
    let add = d.add;
    store(d.view, |i, old| if add { old + new[i] } else { new[i] })
}

fn act(a: Activation, x: f32) -> (f32, f32) {
    let x = f64::from(x);
    let erf = |z: f64| {
        let t = 1.0 / (1.0 + 0.5 * z.abs());
        let p = [-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277];
        let s = p.iter().rev().fold(0.0, |s, c| s * t + c);
        let r = 1.0 - t * (-z * z + s).exp();
        if z < 0.0 { -r } else { r }
    };
    let (y, d) = match a {
        Activation::Relu => (x.max(0.0), if x > 0.0 { 1.0 } else { 0.0 }),
        Activation::Tanh => (x.tanh(), 1.0 - x.tanh().powi(2)),
        Activation::Silu => {
            let s = 1.0 / (1.0 + (-x).exp());
            (x * s, s * (1.0 + x * (1.0 - s)))
        }
        Activation::Gelu => {
            let phi = 0.5 * (1.0 + erf(x / std::f64::consts::SQRT_2));
            (x * phi, phi + x * (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt())
        }
        Activation::GeluTanh => {
            let c = (2.0 / std::f64::consts::PI).sqrt();
            let t = (c * (x + 0.044715 * x * x * x)).tanh();
            (0.5 * x * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * c * (1.0 + 3.0 * 0.044715 * x * x))
        }
    };
    (y as f32, d as f32)
}

fn multiplier(d: &Dropout, e: u64) -> f32 {
    let b = e / 4;
    let w = philox::block(d.key, [b as u32, (b >> 32) as u32, d.step, d.micro_batch])[(e % 4) as usize];
    if w < d.threshold { 0.0 } else { d.scale }
}

pub(super) fn gemm(_: &Threads, g: Gemm<'_>) -> Result<()> {
    let (a, b) = (load(g.a.view)?, load(g.b.view)?);
    let bias = g.epilogue.bias.map(load).transpose()?;
    let mut c = load(g.c.view.as_view())?;
    let mut pre = vec![0.0; g.m * g.n];
    let at = |m: &Matrix<'_>, base: usize, r: usize, c: usize| base + if m.transposed { c * m.ld + r } else { r * m.ld + c };
    for o in 0..g.batch.outer {
        for i in 0..g.batch.inner {
            let base = |s: [usize; 2]| o * s[0] + i * s[1];
            for r in 0..g.m {
                for col in 0..g.n {
                    let sum: f32 = (0..g.k).map(|k| a[at(&g.a, base(g.a.batch), r, k)] * b[at(&g.b, base(g.b.batch), k, col)]).sum();
                    let p = base(g.c.batch) + r * g.c.ld + col;
                    let mut v = g.alpha * sum + if g.beta == 0.0 { 0.0 } else { g.beta * c[p] };
                    v += bias.as_ref().map_or(0.0, |b| b[col]);
                    pre[r * g.n + col] = v;
                    c[p] = g.epilogue.activation.map_or(v, |f| act(f, v).0);
                }
            }
        }
    }
    store(g.c.view, |i, _| c[i])?;
    if let Some(p) = g.epilogue.pre_activation {
        store(p, |i, _| pre[i])?;
    }
    Ok(())
}

pub(super) fn norm_forward(_: &Threads, a: NormForward<'_>) -> Result<()> {
    let mut x = load(a.x)?;
    let n = a.columns;
    if let Some(d) = &a.dropout {
        x.iter_mut().enumerate().for_each(|(i, x)| *x *= multiplier(d, d.row((i / n) as u64, n as u64) + (i % n) as u64));
    }
    if let Some(r) = a.residual {
        x.iter_mut().zip(load(r)?).for_each(|(x, r)| *x += r);
    }
    if let Some(s) = a.sum {
        store(s, |i, _| x[i])?;
    }
    let (w, b) = (load(a.weight)?, a.bias.map(load).transpose()?);
    let stats: Vec<(f32, f32)> = x.chunks(n).map(|row| {
        let mean = if a.kind == NormKind::Layer { row.iter().map(|v| f64::from(*v)).sum::<f64>() / n as f64 } else { 0.0 };
        let var = row.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n as f64;
        (mean as f32, (1.0 / (var + f64::from(a.epsilon)).sqrt()) as f32)
    }).collect();
    store(a.y, |i, _| (x[i] - stats[i / n].0) * stats[i / n].1 * w[i % n] + b.as_ref().map_or(0.0, |b| b[i % n]))?;
    if let Some(m) = a.mean {
        store(m, |i, _| stats[i].0)?;
    }
    store(a.rstd, |i, _| stats[i].1)
}

pub(super) fn norm_backward(_: &Threads, a: NormBackward<'_>) -> Result<()> {
    let (x, dy, w, rstd) = (load(a.x)?, load(a.dy)?, load(a.weight)?, load(a.rstd)?);
    let mean = a.mean.map(load).transpose()?.unwrap_or(vec![0.0; a.rows]);
    let n = a.columns;
    let (mut dx, mut dw, mut db) = (vec![0.0; x.len()], vec![0.0; n], vec![0.0; n]);
    for r in 0..a.rows {
        let (mut s1, mut s2) = (0.0, 0.0);
        for c in 0..n {
            let i = r * n + c;
            let h = (x[i] - mean[r]) * rstd[r];
            dw[c] += dy[i] * h;
            db[c] += dy[i];
            s1 += dy[i] * w[c];
            s2 += dy[i] * w[c] * h;
        }
        if a.kind == NormKind::Rms {
            s1 = 0.0;
        }
        for c in 0..n {
            let i = r * n + c;
            let h = (x[i] - mean[r]) * rstd[r];
            dx[i] = rstd[r] * (dy[i] * w[c] - s1 / n as f32 - h * s2 / n as f32);
        }
    }
    if let Some((d, dest)) = a.branch {
        let b: Vec<f32> = dx.iter().enumerate().map(|(i, v)| v * multiplier(&d, d.row((i / n) as u64, n as u64) + (i % n) as u64)).collect();
        put(dest, &b)?;
    }
    for (dest, v) in [(a.dx, dx), (a.dweight, dw), (a.dbias, db)] {
        if let Some(dest) = dest {
            put(dest, &v)?;
        }
    }
    Ok(())
}

pub(super) fn add_scaled(_: &Threads, a: AddScaled<'_>) -> Result<()> {
    let x = load(a.a)?;
    let b = a.b.map(load).transpose()?;
    store(a.out, |i, old| a.alpha * x[i] + if a.beta == 0.0 { 0.0 } else { a.beta * b.as_ref().map_or(old, |b| b[i]) })
}
pub(super) fn multiply(_: &Threads, a: Multiply<'_>) -> Result<()> {
    let x = load(a.a)?;
    let b = a.b.map(load).transpose()?;
    let add = a.out.add;
    store(a.out.view, |i, old| x[i] * b.as_ref().map_or(old, |b| b[i]) + if add { old } else { 0.0 })
}
pub(super) fn fill(_: &Threads, a: Fill<'_>) -> Result<()> {
    store(a.out, |_, _| a.value)
}
pub(super) fn cast(_: &Threads, a: Cast<'_>) -> Result<()> {
    put(a.out, &load(a.x)?)
}
pub(super) fn activation_forward(_: &Threads, a: ActivationForward<'_>) -> Result<()> {
    let x = load(a.x)?;
    store(a.y, |i, _| act(a.activation, x[i]).0)
}
pub(super) fn activation_backward(_: &Threads, a: ActivationBackward<'_>) -> Result<()> {
    let (x, dy) = (load(a.x)?, load(a.dy)?);
    put(a.dx, &x.iter().zip(dy).map(|(x, dy)| dy * act(a.activation, *x).1).collect::<Vec<_>>())
}
pub(super) fn activation_split(_: &Threads, a: ActivationSplit<'_>) -> Result<()> {
    let x = load(a.x.as_view())?;
    store(a.y, |i, _| act(a.activation, x[i]).0)?;
    store(a.x, |i, _| act(a.activation, x[i]).1)
}
pub(super) fn gated_forward(_: &Threads, a: GatedForward<'_>) -> Result<()> {
    let (g, u) = (load(a.gate)?, load(a.up)?);
    store(a.y, |i, _| {
        let p = i / a.columns * a.ld + i % a.columns;
        act(a.activation, g[p]).0 * u[p]
    })
}
pub(super) fn gated_backward(_: &Threads, a: GatedBackward<'_>) -> Result<()> {
    let (x, dy, n) = (load(a.x)?, load(a.dy)?, a.columns);
    let mut dx = vec![0.0; x.len()];
    for i in 0..dy.len() {
        let (r, c) = (i / n, i % n);
        let (y, d) = act(a.activation, x[r * 2 * n + c]);
        dx[r * 2 * n + c] = dy[i] * d * x[r * 2 * n + n + c];
        dx[r * 2 * n + n + c] = dy[i] * y;
    }
    put(a.dx, &dx)
}

fn smooth(weights: Option<&[f32]>, c: usize) -> f32 {
    weights.map_or(1.0, |w| w[c])
}
fn target(op: &'static str, t: i64, r: usize, ignore: i64, classes: usize) -> Result<Option<usize>> {
    if t == ignore {
        return Ok(None);
    }
    match usize::try_from(t) {
        Ok(i) if i < classes => Ok(Some(i)),
        _ => Err(Error::Index { op, position: r, index: t, bound: classes }),
    }
}
pub(super) fn cross_entropy_forward(_: &Threads, a: CrossEntropyForward<'_>) -> Result<()> {
    let (x, t) = (load(a.logits)?, read::<i64>("cross_entropy", a.targets)?);
    let w = a.class_weights.map(load).transpose()?;
    let (mut losses, mut lses, mut total) = (vec![], vec![], [0f32; 2]);
    for r in 0..a.rows {
        let row = &x[r * a.classes..(r + 1) * a.classes];
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let lse = max + row.iter().map(|v| (v - max).exp()).sum::<f32>().ln();
        let mut loss = 0.0;
        if let Some(t) = target("cross_entropy", t[r], r, a.ignore_index, a.classes)? {
            let wt = smooth(w.as_deref(), t);
            loss = (1.0 - a.smoothing) * wt * (lse - row[t]);
            if a.smoothing > 0.0 {
                loss += a.smoothing / a.classes as f32 * (0..a.classes).map(|c| smooth(w.as_deref(), c) * (lse - row[c])).sum::<f32>();
            }
            total[1] += wt;
        }
        total[0] += loss;
        losses.push(loss);
        lses.push(lse);
    }
    store(a.losses, |i, _| losses[i])?;
    store(a.lse, |i, _| lses[i])?;
    store(a.totals, |i, _| [total[0], total[1], total[0] / total[1]][i])
}
pub(super) fn cross_entropy_backward(_: &Threads, a: CrossEntropyBackward<'_>) -> Result<()> {
    let x = match a.logits {
        Some(v) => load(v)?,
        None => load(a.dlogits.as_view())?,
    };
    let (t, lse, totals, dl) = (read::<i64>("cross_entropy", a.targets)?, load(a.lse)?, load(a.totals)?, load(a.dloss)?);
    let w = a.class_weights.map(load).transpose()?;
    let all: f32 = (0..a.classes).map(|c| smooth(w.as_deref(), c)).sum();
    let mut d = vec![0.0; x.len()];
    for r in 0..a.rows {
        let Some(t) = target("cross_entropy", t[r], r, a.ignore_index, a.classes)? else { continue };
        let f = dl[if dl.len() == 1 { 0 } else { r }] / if a.mean { totals[1] } else { 1.0 };
        let wt = smooth(w.as_deref(), t);
        for c in 0..a.classes {
            let p = (x[r * a.classes + c] - lse[r]).exp();
            let hard = wt * (p - if c == t { 1.0 } else { 0.0 });
            let soft = (p * all - smooth(w.as_deref(), c)) / a.classes as f32;
            d[r * a.classes + c] = f * ((1.0 - a.smoothing) * hard + a.smoothing * soft);
        }
    }
    store(a.dlogits, |i, _| d[i])
}
pub(super) fn squared_error_forward(_: &Threads, a: SquaredErrorForward<'_>) -> Result<()> {
    let (x, t) = (load(a.x)?, load(a.targets)?);
    let s: f32 = x.iter().zip(&t).map(|(x, t)| (x - t) * (x - t)).sum::<f32>() / x.len() as f32;
    store(a.loss, |_, _| s)
}
pub(super) fn squared_error_backward(_: &Threads, a: SquaredErrorBackward<'_>) -> Result<()> {
    let (x, t, d) = (load(a.x)?, load(a.targets)?, load(a.dloss)?);
    store(a.dx, |i, _| d[0] * 2.0 * (x[i] - t[i]) / x.len() as f32)
}
pub(super) fn adam(_: &Threads, a: Adam<'_>) -> Result<()> {
    let f = load(a.factor)?[0];
    if !f.is_finite() {
        return Ok(());
    }
    let (mut p, mut m, mut v, g) = (load(a.master.as_ref().unwrap_or(&a.parameter).as_view())?, load(a.m.as_view())?, load(a.v.as_view())?, load(a.grad)?);
    let (b1, b2) = (1.0 - f64::from(a.beta1).powf(a.step as f64), 1.0 - f64::from(a.beta2).powf(a.step as f64));
    for i in 0..p.len() {
        let mut g = f * g[i] * if a.maximize { -1.0 } else { 1.0 };
        if !a.decoupled {
            g += a.decay * p[i];
        }
        m[i] = a.beta1 * m[i] + (1.0 - a.beta1) * g;
        v[i] = a.beta2 * v[i] + (1.0 - a.beta2) * g * g;
        let step = a.lr * (m[i] / b1 as f32) / ((v[i] / b2 as f32).sqrt() + a.epsilon);
        p[i] -= step + if a.decoupled { a.lr * a.decay * p[i] } else { 0.0 };
    }
    store(a.parameter, |i, _| p[i])?;
    if let Some(master) = a.master {
        store(master, |i, _| p[i])?;
    }
    store(a.m, |i, _| m[i])?;
    store(a.v, |i, _| v[i])
}
pub(super) fn clip_factor(a: ClipFactor<'_>) -> Result<()> {
    let s = load(a.accumulated)?[0];
    let norm = if a.order == NormOrder::Two { s.sqrt() } else { s } / a.scale;
    let factor = if norm.is_finite() { (a.max_norm / (norm + 1e-6)).min(1.0) / a.scale } else { f32::NAN };
    store(a.norm, |_, _| norm)?;
    store(a.factor, |_, _| factor)
}
pub(super) fn dropout(_: &Threads, a: DropoutApply<'_>) -> Result<()> {
    let n = a.columns;
    let x = match a.x {
        Some(v) => load(v)?,
        None => load(a.y.view.as_view())?,
    };
    put(a.y, &x.iter().enumerate().map(|(i, v)| v * multiplier(&a.dropout, a.dropout.row((i / n) as u64, n as u64) + (i % n) as u64)).collect::<Vec<_>>())
}
pub(super) fn fill_random(_: &Threads, a: FillRandom<'_>) -> Result<()> {
    store(a.out, |i, _| {
        let e = a.offset + i as u64;
        let w = philox::block(a.key, [e as u32, (e >> 32) as u32, 0, 0]);
        let normal = (-2.0 * philox::unit(w[0]).ln()).sqrt() * (std::f32::consts::TAU * philox::unit(w[1])).cos();
        match a.distribution {
            Distribution::Normal(m, s) => m + s * normal,
            Distribution::TruncatedNormal(m, s) => m + s * normal.clamp(-2.0, 2.0),
            Distribution::Uniform(lo, hi) => lo + (hi - lo) * philox::unit(w[0]),
        }
    })
}
pub(super) fn softmax(_: &Threads, a: Softmax<'_>) -> Result<()> {
    let mut x = load(a.x)?;
    for row in x.chunks_mut(a.columns.max(1)) {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let lse = max + row.iter().map(|v| (v - max).exp()).sum::<f32>().ln();
        row.iter_mut().for_each(|v| *v = if a.log { *v - lse } else { (*v - lse).exp() });
    }
    store(a.y, |i, _| x[i])
}
pub(super) fn softmax_backward(_: &Threads, a: SoftmaxBackward<'_>) -> Result<()> {
    let (y, dy, n) = (load(a.y)?, load(a.dy)?, a.columns);
    let mut dx = vec![0.0; y.len()];
    for r in 0..a.rows {
        let s: f32 = (r * n..(r + 1) * n).map(|i| if a.log { dy[i] } else { y[i] * dy[i] }).sum();
        for i in r * n..(r + 1) * n {
            dx[i] = if a.log { dy[i] - y[i].exp() * s } else { y[i] * (dy[i] - s) };
        }
    }
    put(a.dx, &dx)
}
pub(super) fn column_sum(_: &Threads, a: ColumnSum<'_>) -> Result<()> {
    let x = load(a.x)?;
    let s: Vec<f32> = (0..a.columns).map(|c| (0..a.rows).map(|r| x[r * a.columns + c]).sum()).collect();
    put(a.out, &s)
}
pub(super) fn grad_norm(_: &Threads, a: GradNorm<'_>) -> Result<()> {
    let x = load(a.x)?;
    let max = |m: f32, v: f32| if m.is_nan() || v.is_nan() { f32::NAN } else { m.max(v) };
    let add = a.out.add;
    let s = match a.order {
        NormOrder::Two => x.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>() as f32,
        NormOrder::Infinity => x.iter().fold(0.0, |m, v| max(m, v.abs())),
    };
    store(a.out.view, |_, old| match (add, a.order) {
        (false, _) => s,
        (true, NormOrder::Two) => old + s,
        (true, NormOrder::Infinity) => max(old, s),
    })
}
pub(super) fn non_finite(_: &Threads, a: NonFinite<'_>) -> Result<()> {
    let bad = load(a.x)?.iter().any(|v| !v.is_finite());
    store(a.flag, |_, old| if bad { 1.0 } else { old })
}
pub(super) fn embedding_forward(_: &Threads, a: EmbeddingForward<'_>) -> Result<()> {
    let (t, ids) = (load(a.table)?, read::<i64>("embedding", a.ids)?);
    let mut out = vec![0.0; ids.len() * a.columns];
    for (r, &id) in ids.iter().enumerate() {
        let Some(id) = target("embedding", id, r, i64::MIN, a.entries)? else { continue };
        out[r * a.columns..(r + 1) * a.columns].copy_from_slice(&t[id * a.columns..(id + 1) * a.columns]);
    }
    put(a.out, &out)
}
pub(super) fn embedding_backward(_: &Threads, a: EmbeddingBackward<'_>) -> Result<()> {
    let (dy, ids) = (load(a.dy)?, read::<i64>("embedding", a.ids)?);
    let mut d = vec![0.0; a.entries * a.columns];
    for (r, &id) in ids.iter().enumerate() {
        let Some(i) = target("embedding", id, r, i64::MIN, a.entries)? else { continue };
        if Some(id) == a.padding_index {
            continue;
        }
        for c in 0..a.columns {
            d[i * a.columns + c] += dy[r * a.columns + c];
        }
    }
    put(a.dtable, &d)
}
pub(super) fn row_copy(_: &Threads, a: RowCopy<'_>) -> Result<()> {
    let x = load(a.x)?;
    let add = a.out.add;
    store(a.out.view, |i, old| {
        let (r, c) = (i / a.out_ld, i % a.out_ld);
        if c >= a.columns { old } else { x[r * a.x_ld + c] + if add { old } else { 0.0 } }
    })
}
pub(super) fn permute(_: &Threads, a: Permute<'_>) -> Result<()> {
    let x = load(a.x)?;
    let mut strides = vec![1; a.rank];
    for i in (0..a.rank.saturating_sub(1)).rev() {
        strides[i] = strides[i + 1] * a.dims[i + 1];
    }
    let y: Vec<f32> = (0..x.len()).map(|mut i| {
        let mut p = 0;
        for axis in (0..a.rank).rev() {
            let d = a.dims[a.axes[axis]];
            p += i % d * strides[a.axes[axis]];
            i /= d;
        }
        x[p]
    }).collect();
    put(a.out, &y)
}
