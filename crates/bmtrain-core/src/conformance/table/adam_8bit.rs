//! Rows of Adam with moments in 8 bits.

use super::*;
use crate::quantised::{SIGNED, UNSIGNED};

const PLAIN: AdamSettings = AdamSettings {
    lr: 0.01,
    beta1: 0.9,
    beta2: 0.95,
    epsilon: 1e-6,
    decay: 0.1,
    decoupled: true,
    maximize: false,
    step: 3,
};

pub(super) fn rows(cases: &mut Vec<Case>) {
    let mut row = |name: &str, factor: f32, n: usize, settings| cases.push(adam(name, factor, n, settings));
    row("one block", 0.5, 256, PLAIN);
    row("a short block", 0.5, 600, AdamSettings { step: 100, ..PLAIN });
    row("coupled decay", 0.5, 77, AdamSettings { decoupled: false, ..PLAIN });
    row("climbing", 0.5, 77, AdamSettings { maximize: true, ..PLAIN });
    row("factor that is not a number", f32::NAN, 77, PLAIN);
    row("70001", 0.5, 70_001, PLAIN);
}

fn adam(name: &str, factor: f32, n: usize, settings: AdamSettings) -> Case {
    let blocks = n.div_ceil(STATE_BLOCK);
    let case = Case::kernel(format!("adam_8bit/{name}"), move |device, t| {
        let codes = |from: &Tensor| -> Result<Tensor> {
            let codes: Vec<u8> = from.to_vec::<f32>()?.into_iter().map(|code| code as u8).collect();
            Tensor::from_slice_in(device, [codes.len()], &codes, Segment::Activations)
        };
        let (mut master, mut m, mut v) = (copy(&t[0])?, codes(&t[1])?, codes(&t[2])?);
        let [mut m_scale, mut v_scale] = [copy(&t[3])?, copy(&t[4])?];
        let mut parameter = zeros(device, &[n], t[5].dtype())?;
        device.launch(Cast { x: master.view()?, out: parameter.dest(false)? })?;
        let factor = Tensor::full_in(device, [1], DType::F32, factor, Segment::Workspace)?;
        let wide = parameter.dtype() == DType::F32;
        device.launch(Adam8bit {
            parameter: parameter.view_mut()?,
            master: if wide { None } else { Some(master.view_mut()?) },
            m: m.view_mut()?,
            v: v.view_mut()?,
            m_scale: m_scale.view_mut()?,
            v_scale: v_scale.view_mut()?,
            grad: t[5].view()?,
            factor: factor.view()?,
            settings,
        })?;
        Ok(vec![if wide { copy(&parameter)? } else { master }, parameter, m, v, m_scale, v_scale])
    })
    .constant("master", [n])
    .of(DType::F32)
    .constant("m", [n])
    .of(DType::F32)
    .holding(Values::Uniform(0.0, 256.0))
    .constant("v", [n])
    .of(DType::F32)
    .holding(Values::Uniform(0.0, 256.0))
    .constant("m_scale", [blocks])
    .of(DType::F32)
    .holding(Values::Uniform(0.5, 1.0))
    .constant("v_scale", [blocks])
    .of(DType::F32)
    .holding(Values::Uniform(0.5, 1.0))
    .constant("grad", [n]);
    // Of many values one is so close to the middle of two codes that f32 and f64 round it to different ones.
    if n > 1000 { case } else { case.expecting(move |t| host_adam(factor, settings, t)) }
}

/// Widened, the formulas of [`Adam`] in f64, and coded by a search through all codes.
fn host_adam(factor: f32, settings: AdamSettings, t: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let codes = |codes: &[f64]| codes.iter().map(|code| code.floor().min(255.0)).collect::<Vec<f64>>();
    let (m, v) = (codes(&t[1]), codes(&t[2]));
    if factor.is_nan() {
        return vec![t[0].clone(), t[0].clone(), m, v, t[3].clone(), t[4].clone()];
    }
    let wide = |codes: &[f64], scales: &[f64], values: &[f32; 256]| -> Vec<f64> {
        let value = |(i, code): (usize, &f64)| f64::from(values[*code as usize]) * scales[i / STATE_BLOCK];
        codes.iter().enumerate().map(value).collect()
    };
    let [m, v] = [wide(&m, &t[3], &SIGNED.values), wide(&v, &t[4], &UNSIGNED.values)];
    let mut results = super::optimizer::host_adam(factor, settings, &[t[0].clone(), m, v, t[5].clone()]);
    let moments = results.split_off(2);
    let (mut coded, mut scales) = (Vec::new(), Vec::new());
    for (moment, values) in moments.iter().zip([&SIGNED.values, &UNSIGNED.values]) {
        let blocks = moment.chunks(STATE_BLOCK).map(|block| block.iter().fold(0.0, |most, x| f64::max(most, x.abs())));
        let scale: Vec<f64> = blocks.collect();
        let nearest = |(i, x): (usize, &f64)| {
            let distance = |code: usize| (f64::from(values[code]) - x / scale[i / STATE_BLOCK]).abs();
            (0..256).min_by(|a, b| distance(*a).total_cmp(&distance(*b))).unwrap_or(0) as f64
        };
        coded.push(moment.iter().enumerate().map(nearest).collect());
        scales.push(scale);
    }
    [results, coded, scales].concat()
}
