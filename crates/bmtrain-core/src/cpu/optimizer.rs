//! The optimizer step and the clipping factor. The step serves the kernel and, through [`step`], `crate::offload`.

use super::access::{read, write};
use super::floats::{Floats, FloatsMut, Spare, tiles};
use super::reduce::squares;
use super::simd::vectorised;
use super::threads::Threads;
use crate::error::Result;
use crate::exact::Sum;
use crate::kernel::{Adam, AdamNumbers, AdamSettings, ClipFactor, NORM_CHUNK, NormOrder};
use std::sync::{Mutex, PoisonError};

/// Elements of a piece of work.
const PIECE: usize = 1 << 15;

pub(super) fn clip_factor(a: ClipFactor<'_>) -> Result<()> {
    const NAME: &str = "clip_factor";
    let accumulated = read::<i64>(NAME, a.accumulated)?;
    let (norm, factor) = (write::<f32>(NAME, a.norm)?, write::<f32>(NAME, a.factor)?);
    let root = match a.order {
        NormOrder::Two => Sum::from_words(std::array::from_fn(|i| accumulated[i])).to_f64().sqrt(),
        NormOrder::Infinity => f64::from(f32::from_bits(accumulated[0] as u32)),
    };
    norm[0] = (root / f64::from(a.scale)) as f32;
    factor[0] = if norm[0].is_finite() { (a.max_norm / (norm[0] + 1e-6)).min(1.0) / a.scale } else { f32::NAN };
    Ok(())
}

pub(super) fn adam(threads: &Threads, a: Adam<'_>) -> Result<()> {
    const NAME: &str = "adam";
    let factor = read::<f32>(NAME, a.factor)?[0];
    let master = a.master.map(|master| write::<f32>(NAME, master)).transpose()?;
    let (m, v) = (write::<f32>(NAME, a.m)?, write::<f32>(NAME, a.v)?);
    let (parameter, grad) = (FloatsMut::of(NAME, a.parameter)?, Floats::of(NAME, a.grad)?);
    step(threads, &a.settings, factor, Elements { parameter, master, m, v, grad }, None);
    Ok(())
}

/// What a step works on: ranges of one length.
pub(super) struct Elements<'a> {
    pub(super) parameter: FloatsMut<'a>,
    pub(super) master: Option<&'a mut [f32]>,
    pub(super) m: &'a mut [f32],
    pub(super) v: &'a mut [f32],
    pub(super) grad: Floats<'a>,
}

/// One step, or none if `factor` is not finite. With `moved` the squares of what each f32 value changed by are added
/// there, in the pieces of a [`GradNorm`](crate::kernel::GradNorm), so that the sum has its bits.
pub(super) fn step(
    threads: &Threads,
    settings: &AdamSettings,
    factor: f32,
    elements: Elements<'_>,
    moved: Option<&Mutex<Sum>>,
) {
    if !factor.is_finite() {
        return;
    }
    let Elements { parameter, master, m, v, grad } = elements;
    let (step, len) = (settings.numbers(factor), parameter.len());
    threads.for_each_part((parameter.rows(1), master, m, v), len, PIECE, |first, len, (parameter, master, m, v)| {
        let grad = grad.part(first, len);
        let elements = Elements { parameter: parameter.data, master, m, v, grad };
        match moved {
            None => piece(step, elements),
            Some(moved) => {
                let sum = piece_measured(step, elements);
                moved.lock().unwrap_or_else(PoisonError::into_inner).merge(sum);
            }
        }
    });
}

fn piece(step: AdamNumbers, elements: Elements<'_>) {
    let Elements { mut parameter, mut master, m, v, grad } = elements;
    if let (FloatsMut::F32(parameter), None, Floats::F32(grad)) = (&mut parameter, &master, grad) {
        // Nothing to widen: one loop, and no room on the stack that would have to be cleared.
        return update(step, grad, parameter, m, v);
    }
    let mut spares = [const { Spare::new() }; 2];
    let [grad_spare, spare] = &mut spares;
    for (start, len) in tiles(m.len()) {
        let grad = grad.tile(start, len, grad_spare);
        let (m, v) = (&mut m[start..start + len], &mut v[start..start + len]);
        match &mut master {
            Some(master) => {
                let master = &mut master[start..start + len];
                update(step, grad, master, m, v);
                parameter.narrow(start, master);
            }
            None => parameter.update(start, len, true, spare, |parameter| update(step, grad, parameter, m, v)),
        }
    }
}

/// The same, and the sum of the squares of the changes.
fn piece_measured(step: AdamNumbers, elements: Elements<'_>) -> Sum {
    let Elements { mut parameter, mut master, m, v, grad } = elements;
    let (mut sum, mut before) = (Sum::ZERO, Spare::new());
    for (start, len) in tiles(m.len()) {
        let place = |values: &[f32], before: &mut Spare| before.0[..len].copy_from_slice(&values[start..start + len]);
        match (&master, &parameter) {
            (Some(master), _) => place(master, &mut before),
            (None, FloatsMut::F32(parameter)) => place(parameter, &mut before),
            (None, _) => parameter.read().widen(start, &mut before.0[..len]),
        }
        let (m, v) = (&mut m[start..start + len], &mut v[start..start + len]);
        let master_tile = master.as_mut().map(|master| &mut master[start..start + len]);
        let elements =
            Elements { parameter: parameter.part(start, len), master: master_tile, m, v, grad: grad.part(start, len) };
        piece(step, elements);
        let mut spare = Spare::new();
        let after: &[f32] = match &master {
            Some(master) => &master[start..start + len],
            None => parameter.read().tile(start, len, &mut spare),
        };
        for (before, after) in before.0.iter_mut().zip(after) {
            *before = after - *before;
        }
        before.0[..len].chunks(NORM_CHUNK).for_each(|chunk| sum.add(squares(chunk)));
    }
    sum
}

vectorised! {
    fn update<I>(step: AdamNumbers, grad: &[f32], parameter: &mut [f32], m: &mut [f32], v: &mut [f32]) {
        let (rest1, rest2) = (1.0 - step.beta1, 1.0 - step.beta2);
        for (((p, g), m), v) in parameter.iter_mut().zip(grad).zip(m).zip(v) {
            let g = I::mul_add(step.coupled, *p, step.factor * g);
            *m = I::mul_add(step.beta1, *m, rest1 * g);
            *v = I::mul_add(step.beta2, *v, rest2 * g * g);
            let change = *m / ((*v * step.correction).sqrt() + step.epsilon);
            *p = I::mul_add(-step.rate, change, *p * step.keep);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::cpu::testing::{
        FLOATS, assert_close, device, filled, numbers, rounding, sampled, tensor, values, with_any_threads,
    };
    use crate::device::Device;
    use crate::dtype::DType;
    use crate::error::Result;
    use crate::exact::{Sum, WORDS};
    use crate::kernel::*;
    use crate::pool::Segment;
    use crate::tensor::Tensor;

    #[derive(Clone, Copy)]
    struct Setting {
        parameter: DType,
        grad: DType,
        factor: f32,
        decoupled: bool,
        maximize: bool,
        step: u64,
    }

    fn settings() -> Vec<Setting> {
        let mut settings = Vec::new();
        for (parameter, grad) in FLOATS.into_iter().flat_map(|parameter| FLOATS.map(|grad| (parameter, grad))) {
            for (decoupled, maximize, step) in [(true, false, 1), (false, true, 7), (true, true, 100_000)] {
                settings.push(Setting { parameter, grad, factor: 0.25, decoupled, maximize, step });
            }
        }
        settings
    }

    /// Parameter, master, moments and gradient, before and after a step.
    fn step(device: &Device, len: usize, s: Setting) -> Result<[Tensor; 10]> {
        let positive: Vec<f32> = values(len, 4).iter().map(|x| x.abs() * 0.1).collect();
        let new = || {
            let (parameter, master) = (sampled(device, s.parameter, len, 1), sampled(device, DType::F32, len, 1));
            let (m, v) = (sampled(device, DType::F32, len, 3), tensor(device, DType::F32, &positive));
            [parameter, master, m, v, sampled(device, s.grad, len, 2)]
        };
        let [mut parameter, mut master, mut m, mut v, grad] = new();
        let factor = filled(device, DType::F32, 1, s.factor);
        let Setting { decoupled, maximize, step, .. } = s;
        device.launch(Adam {
            parameter: parameter.view_mut()?,
            master: (s.parameter != DType::F32).then(|| master.view_mut()).transpose()?,
            m: m.view_mut()?,
            v: v.view_mut()?,
            grad: grad.view()?,
            factor: factor.view()?,
            settings: AdamSettings {
                lr: 0.01,
                beta1: 0.9,
                beta2: 0.999,
                epsilon: 1e-8,
                decay: 0.1,
                decoupled,
                maximize,
                step,
            },
        })?;
        let [p, w, m_old, v_old, g] = new();
        Ok([p, w, m_old, v_old, g, parameter, master, m, v, grad])
    }

    #[test]
    fn a_step_agrees_with_doubles_for_every_type() {
        for setting in settings() {
            for len in [1, 31, 1025, 70_000] {
                let results = with_any_threads(|device| step(device, len, setting));
                let (before, after) = results.split_at(5);
                let source = usize::from(setting.parameter != DType::F32);
                let (mut parameters, mut first, mut second) = (Vec::new(), Vec::new(), Vec::new());
                let [lr, beta1, beta2, decay] = [0.01f32, 0.9, 0.999, 0.1].map(f64::from);
                let sign = if setting.maximize { -1.0 } else { 1.0 };
                for (i, p) in before[source].iter().enumerate() {
                    let coupled = if setting.decoupled { 0.0 } else { decay * p };
                    let g = sign * 0.25 * before[4][i] + coupled;
                    let (m, v) =
                        (beta1 * before[2][i] + (1.0 - beta1) * g, beta2 * before[3][i] + (1.0 - beta2) * g * g);
                    let t = setting.step as f64;
                    let change = m / (1.0 - beta1.powf(t)) / ((v / (1.0 - beta2.powf(t))).sqrt() + 1e-8);
                    let decay = if setting.decoupled { lr * decay * p } else { 0.0 };
                    parameters.push(p - lr * change - decay);
                    first.push(m);
                    second.push(v);
                }
                assert_close("first moment", &after[2], &first, 1e-6);
                assert_close("second moment", &after[3], &second, 1e-6);
                assert_close("parameter", &after[source], &parameters, 2e-6);
                if source == 1 {
                    let rounded: Vec<f32> = after[1].iter().map(|x| *x as f32).collect();
                    let rounded = numbers(&tensor(&device(1), setting.parameter, &rounded));
                    assert_eq!(after[0], rounded, "rounded write-back");
                    assert_close("parameter", &after[0], &parameters, rounding(setting.parameter));
                }
            }
        }
    }

    #[test]
    fn a_factor_that_is_not_finite_changes_nothing() {
        for factor in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for parameter in FLOATS {
                let setting =
                    Setting { parameter, grad: DType::F32, factor, decoupled: true, maximize: false, step: 3 };
                let results = step(&device(2), 40_000, setting).unwrap().map(|tensor| numbers(&tensor));
                assert_eq!(results[..5], results[5..]);
            }
        }
    }

    fn clip(order: NormOrder, max_norm: f32, scale: f32, accumulated: f32) -> [f32; 2] {
        let device = device(1);
        let [mut norm, mut factor] = [0.0, 0.0].map(|x| tensor(&device, DType::F32, &[x]));
        let words = match order {
            NormOrder::Two => {
                let mut sum = Sum::ZERO;
                sum.add(f64::from(accumulated));
                sum.words()
            }
            NormOrder::Infinity => std::array::from_fn(|i| if i == 0 { i64::from(accumulated.to_bits()) } else { 0 }),
        };
        let words = Tensor::from_slice_in(&device, [WORDS], &words, Segment::Data).unwrap();
        let accumulated = words.view().unwrap();
        let (norm_view, factor_view) = (norm.view_mut().unwrap(), factor.view_mut().unwrap());
        let clip = ClipFactor { order, max_norm, scale, accumulated, norm: norm_view, factor: factor_view };
        device.launch(clip).unwrap();
        [norm, factor].map(|x| x.item().unwrap())
    }

    #[test]
    fn the_clipping_factor_is_that_of_the_true_norm() {
        assert_eq!(clip(NormOrder::Two, f32::INFINITY, 1.0, 16.0), [4.0, 1.0]);
        assert_eq!(clip(NormOrder::Two, 10.0, 2.0, 16.0), [2.0, 0.5]);
        assert_eq!(clip(NormOrder::Two, 1.0, 2.0, 16.0), [2.0, 1.0 / (2.0 + 1e-6) / 2.0]);
        assert_eq!(clip(NormOrder::Infinity, 1.0, 2.0, 16.0), [8.0, 1.0 / (8.0 + 1e-6) / 2.0]);
        for bad in [f32::NAN, f32::INFINITY] {
            let [norm, factor] = clip(NormOrder::Two, 1.0, 1.0, bad);
            assert!(!norm.is_finite() && factor.is_nan());
        }
    }
}
