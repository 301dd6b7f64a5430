//! Rows of the optimizer step and of clipping.

use super::*;

const PLAIN: AdamSettings = AdamSettings {
    lr: 0.01,
    beta1: 0.9,
    beta2: 0.95,
    epsilon: 1e-6,
    decay: 0.0,
    decoupled: true,
    maximize: false,
    step: 1,
};

pub(super) fn rows(cases: &mut Vec<Case>) {
    let mut row = |name: &str, factor: f32, n: usize, settings| cases.push(adam(name, factor, n, settings));
    row("plain", 0.5, 77, PLAIN);
    row("decoupled decay", 0.5, 77, AdamSettings { decay: 0.1, step: 10, ..PLAIN });
    row("coupled decay", 0.5, 77, AdamSettings { decay: 0.1, decoupled: false, step: 1000, ..PLAIN });
    row("climbing", 0.5, 77, AdamSettings { maximize: true, decay: 0.1, step: 3, ..PLAIN });
    row("factor that is not a number", f32::NAN, 77, AdamSettings { decay: 0.1, step: 3, ..PLAIN });
    row("70001", 0.5, 70_001, AdamSettings { decay: 0.01, step: 7, ..PLAIN });
    for (order, name) in [(NormOrder::Two, "two"), (NormOrder::Infinity, "infinity")] {
        for (max_norm, scale) in [(1.0, 1.0), (1e6, 8.0), (f32::INFINITY, 2.0)] {
            cases.push(clip(order, name, max_norm, scale));
        }
    }
}

fn adam(name: &str, factor: f32, n: usize, settings: AdamSettings) -> Case {
    Case::kernel(format!("adam/{name}"), move |device, t| {
        let [mut master, mut m, mut v] = [copy(&t[0])?, copy(&t[1])?, copy(&t[2])?];
        let mut parameter = zeros(device, &[n], t[3].dtype())?;
        device.launch(Cast { x: master.view()?, out: parameter.dest(false)? })?;
        let factor = Tensor::full_in(device, [1], DType::F32, factor, Segment::Workspace)?;
        let wide = parameter.dtype() == DType::F32;
        device.launch(Adam {
            runs: vec![AdamRun {
                parameter: parameter.view_mut()?,
                master: if wide { None } else { Some(master.view_mut()?) },
                m: m.view_mut()?,
                v: v.view_mut()?,
                grad: t[3].view()?,
                settings,
            }],
            factor: factor.view()?,
        })?;
        Ok(vec![if wide { copy(&parameter)? } else { master }, parameter, m, v])
    })
    .constant("master", [n])
    .of(DType::F32)
    .constant("m", [n])
    .of(DType::F32)
    .constant("v", [n])
    .of(DType::F32)
    .holding(Values::Uniform(0.0, 1.0))
    .constant("grad", [n])
    .expecting(move |t| host_adam(factor, settings, t))
}

/// The formulas of the kernel's documentation in f64.
pub(super) fn host_adam(factor: f32, step: AdamSettings, t: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let (mut p, mut m, mut v) = (t[0].clone(), t[1].clone(), t[2].clone());
    if factor.is_nan() {
        return vec![p.clone(), p, m, v];
    }
    let [lr, beta1, beta2, epsilon, decay] = [step.lr, step.beta1, step.beta2, step.epsilon, step.decay].map(f64::from);
    for i in 0..p.len() {
        let mut g = f64::from(factor) * t[3][i] * if step.maximize { -1.0 } else { 1.0 };
        if !step.decoupled {
            g += decay * p[i];
        }
        m[i] = beta1 * m[i] + (1.0 - beta1) * g;
        v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
        let number = step.step as i32;
        let (first, second) = (m[i] / (1.0 - beta1.powi(number)), v[i] / (1.0 - beta2.powi(number)));
        let shrink = if step.decoupled { lr * decay * p[i] } else { 0.0 };
        p[i] -= lr * first / (second.sqrt() + epsilon) + shrink;
    }
    vec![p.clone(), p, m, v]
}

fn clip(order: NormOrder, name: &str, max_norm: f32, scale: f32) -> Case {
    Case::kernel(format!("clip_factor/{name}/{max_norm} under {scale}"), move |device, t| {
        let (mut norm, mut factor) = (zeros(device, &[1], DType::F32)?, zeros(device, &[1], DType::F32)?);
        let mut words = Tensor::full_in(device, [WORDS], DType::I64, 0.0, Segment::Workspace)?;
        device.launch(GradNorm { order, xs: vec![t[0].view()?], out: words.dest(false)? })?;
        device.launch(ClipFactor {
            order,
            max_norm,
            scale,
            accumulated: words.view()?,
            norm: norm.view_mut()?,
            factor: factor.view_mut()?,
        })?;
        Ok(vec![norm, factor])
    })
    .constant("x", [40])
    .holding(Values::Uniform(50.0, 100.0))
    .dtypes(&[DType::F32])
    .expecting(move |t| {
        let root = match order {
            NormOrder::Two => t[0].iter().map(|x| x * x).sum::<f64>().sqrt(),
            NormOrder::Infinity => t[0].iter().fold(0.0, |most, x| f64::max(most, x.abs())),
        };
        let norm = root / f64::from(scale);
        vec![vec![norm], vec![(f64::from(max_norm) / (norm + 1e-6)).min(1.0) / f64::from(scale)]]
    })
}
