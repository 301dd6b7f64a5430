//! Rows of the kernels that read matrices in quantised blocks.

use super::*;
use crate::kernel::QuantisedInputGradient;
use crate::quantised::{BlockFormat, dequantise};

/// Rows and blocks in a row of the matrices.
const ROWS: usize = 29;
const BLOCKS: usize = 2;

pub(super) fn rows(cases: &mut Vec<Case>) {
    for format in BlockFormat::ALL {
        let columns = BLOCKS * format.elements();
        for m in [3, 20] {
            let case = Case::one(format!("quantised_linear/{format}/{m} rows"), move |cx, v| {
                let weight = Var::constant(matrix(cx.device(), format)?);
                ops::linear(cx, &v[0], &weight, Some(&v[1]), None)
            });
            // The gradient of x is the kernel `quantised_input_gradient`.
            cases.push(case.variable("x", [m, columns]).variable("bias", [ROWS]).expecting(move |t| {
                let weight = values(format);
                let sum = |i: usize, j: usize| {
                    (0..columns).map(|p| t[0][i * columns + p] * weight[j * columns + p]).sum::<f64>()
                };
                vec![(0..m * ROWS).map(|at| sum(at / ROWS, at % ROWS) + t[1][at % ROWS]).collect()]
            }));
        }
        cases.push(input_gradient(format));
        let case = Case::one(format!("quantised_row_norms/{format}"), move |cx, v| {
            let norms = ops::updated_row_norms(cx, &matrix(cx.device(), format)?, 1..ROWS, None)?;
            ops::divide_by_norms(cx, &v[0], &norms)
        });
        cases.push(case.constant("values", [ROWS - 1]).expecting(move |t| {
            let weight = values(format);
            let norms = weight.chunks(columns).map(|row| row.iter().map(|value| value * value).sum::<f64>().sqrt());
            vec![t[0].iter().zip(norms.skip(1)).map(|(value, norm)| value / norm).collect()]
        }));
        let case = Case::one(format!("quantised_rows/{format}"), move |cx, v| {
            ops::embedding(cx, v[0].value(), &Var::constant(matrix(cx.device(), format)?), None)
        });
        cases.push(case.ids("ids", [7], ROWS as i64, None).dtypes(&[DType::F32]).expecting(move |t| {
            let table = values(format);
            let row = |id: &f64| table[*id as usize * columns..][..columns].to_vec();
            vec![t[0].iter().flat_map(row).collect()]
        }));
    }
}

/// `dy weight`, twice, times the derivative of an activation.
fn input_gradient(format: BlockFormat) -> Case {
    let (m, n, k) = (5, ROWS, BLOCKS * format.elements());
    let case = Case::kernel(format!("quantised_input_gradient/{format}"), move |device, t| {
        let weight = matrix(device, format)?;
        let mut dx = Tensor::empty_in(device, [m, k], t[0].dtype(), Segment::Data)?;
        for add in [false, true] {
            let (dy, weight, points) = (t[0].view()?, weight.view()?, t[1].view()?);
            let derivative = add.then_some((Activation::Relu, points));
            device.launch(QuantisedInputGradient { m, n, k, dy, weight, dx: dx.dest(add)?, derivative })?;
        }
        Ok(vec![dx])
    });
    case.constant("dy", [m, n]).constant("points", [m, k]).expecting(move |t| {
        let weight = values(format);
        let sum = |i: usize, p: usize| (0..n).map(|j| t[0][i * n + j] * weight[j * k + p]).sum::<f64>();
        let at = |at: usize| if t[1][at] > 0.0 { 2.0 * sum(at / k, at % k) } else { 0.0 };
        vec![(0..m * k).map(at).collect()]
    })
}

/// Blocks with every pattern of bits, and scales between 2^-9 and 2^-7.
fn blocks(format: BlockFormat) -> Vec<u8> {
    let mut raw: Vec<u8> = (0..ROWS * BLOCKS * format.bytes()).map(|i| (i * i / 7 % 251) as u8).collect();
    for block in raw.chunks_exact_mut(format.bytes()) {
        let scales: &[usize] = match format {
            BlockFormat::Q4_0 | BlockFormat::Q5_0 | BlockFormat::Q8_0 => &[0],
            BlockFormat::Q4_1 | BlockFormat::Q5_1 | BlockFormat::Q4K | BlockFormat::Q5K => &[0, 2],
            BlockFormat::Q6K => &[208],
            BlockFormat::NF4 => {
                // A single-precision number between 2^-8 and 2^-7.
                (block[2], block[3]) = (block[2] | 0x80, 0x3b);
                continue;
            }
        };
        for at in scales {
            block[at + 1] = block[at + 1] & 0x8f | 0x18;
        }
    }
    raw
}

fn matrix(device: &Device, format: BlockFormat) -> Result<Tensor> {
    Tensor::from_blocks(device, format, BLOCKS * format.elements(), &blocks(format))
}

fn values(format: BlockFormat) -> Vec<f64> {
    let mut values = vec![0.0; ROWS * BLOCKS * format.elements()];
    dequantise(format, &blocks(format), &mut values);
    values.into_iter().map(f64::from).collect()
}
