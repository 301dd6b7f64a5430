//! Gradients against finite differences.
//!
//! The loss is a random projection of all outputs, summed in f64 on the host. Along random directions of one input at a
//! time, `(8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h` is compared with the scalar product of gradient and direction.

use super::Check;
use super::case::{Case, Role};
use super::execute::{Bound, Gradients, Run, present, projection};
use super::values::{self, Host};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};

/// Directions tried for each input.
const DIRECTIONS: usize = 2;

/// Allowed error relative to the norm of the gradient: the slope along a unit normal direction is of that size. The
/// stencil's own error, the rounding of the perturbed inputs (6e-8 / 1e-2) and the rounding of sums with a present
/// gradient are around 1e-4 at worst; a gradient that is wrong in one of a thousand elements is off by 3e-2.
const TOLERANCE: f64 = 4e-4;

/// Allowed rounding noise: each output carries a few f32 rounding errors, which the stencil turns into `noise / step`.
const NOISE: f64 = 8.0 * f32::EPSILON as f64;

/// Check all gradients of a case in f32: written into fresh destinations and added to present ones. It also checks
/// that recording changes no result. Rows without gradient pass trivially.
pub fn run_finite_differences(device: &Device, case: &Case) -> Result<Check> {
    if !case.is_differentiable() {
        return Ok(Check { part: "nothing to differentiate".into(), error: 0.0, tolerance: 0.0 });
    }
    let hosts = values::inputs(case, DType::F32);
    let bound = Bound::new(device, case, DType::F32, &hosts)?;
    let (fresh, added) = (bound.run(Gradients::Fresh)?, bound.run(Gradients::Accumulated)?);
    let inferred = bound.run(Gradients::None)?;
    let mut worst = Check::none();
    for (recorded, inferred) in fresh.outputs.iter().zip(&inferred.outputs) {
        let same = recorded.values.iter().zip(&inferred.values).all(|(a, b)| a.to_bits() == b.to_bits());
        let part = format!("{} recorded", recorded.name);
        worst = worst.worst(Check { part, error: if same { 0.0 } else { f64::INFINITY }, tolerance: 0.0 });
    }
    let noise = NOISE * project(case, &inferred).1 / f64::from(case.step);
    for (index, input) in case.inputs.iter().enumerate().filter(|(_, input)| input.role != Role::Constant) {
        let of = |run: &Run| run.gradients[index].as_ref().map(|part| part.values.clone());
        let present = present(case, index, DType::F32);
        let (Some(fresh), Some(added)) = (of(&fresh), of(&added)) else {
            return Err(Error::argument("finite differences", format!("{}: no gradient of {}", case.name, input.name)));
        };
        let added: Vec<f32> = added.iter().zip(&present).map(|(sum, before)| sum - before).collect();
        for number in 0..DIRECTIONS {
            let direction =
                values::normals(&case.name, &format!("direction {number} of {index}"), fresh.len(), DType::F32);
            let slope = slope(device, case, &hosts, index, &direction)?;
            for (way, gradient) in [("", &fresh), (" added", &added)] {
                let norm = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
                let scale = norm + noise / TOLERANCE;
                let error = (slope - dot(gradient, &direction)).abs() / scale.max(f64::MIN_POSITIVE);
                worst = worst.worst(Check { part: format!("d{}{way}", input.name), error, tolerance: TOLERANCE });
            }
        }
    }
    Ok(worst)
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// The loss, and the root of the sum of its squared terms.
fn project(case: &Case, run: &Run) -> (f64, f64) {
    let (mut loss, mut squares) = (0.0, 0.0);
    for (index, (output, dtype)) in run.outputs.iter().zip(&run.dtypes).enumerate() {
        let weights = projection(case, index, output.values.len(), *dtype);
        for (&value, &weight) in output.values.iter().zip(&weights) {
            let term = f64::from(value) * f64::from(weight);
            loss += term;
            squares += term * term;
        }
    }
    (loss, squares.sqrt())
}

/// The derivative of the loss along a direction of one input.
fn slope(device: &Device, case: &Case, hosts: &[Host], index: usize, direction: &[f32]) -> Result<f64> {
    let mut moved = hosts.to_vec();
    let mut loss_at = |steps: f32| {
        if let Some(values) = hosts[index].floats() {
            let step = steps * case.step;
            moved[index] = Host::Floats(values.iter().zip(direction).map(|(value, d)| value + step * d).collect());
        }
        let run = Bound::new(device, case, DType::F32, &moved)?.run(Gradients::None)?;
        Ok::<_, Error>(project(case, &run).0)
    };
    let near = loss_at(1.0)? - loss_at(-1.0)?;
    let far = loss_at(2.0)? - loss_at(-2.0)?;
    Ok((8.0 * near - far) / (12.0 * f64::from(case.step)))
}
