//! Compares results and gradients of one case between devices, between dtypes, and with plain host arithmetic.

use super::Check;
use super::case::Case;
use super::execute::{Bound, Gradients, NamedValues, Run};
use super::values;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;

/// Largest relative distance, in the 2-norm of each result and gradient, of two backends with the same inputs.
///
/// Half a unit in the last place is 6e-8 for f32, 4.9e-4 for f16 and 3.9e-3 for bf16. A backend may round what it saves
/// between forward and backward and may sum in another order: a few units for 16-bit types, and for f32 the root of the
/// length of the sums, some tens of units.
pub fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2e-3,
        DType::BF16 => 1.6e-2,
        _ => 1e-5,
    }
}

/// Compares results and gradients of `tested` with `reference`, in one dtype.
pub fn compare(reference: &Device, tested: &Device, case: &Case, dtype: DType) -> Result<Check> {
    let mut worst = Check::none();
    for gradients in [Gradients::Fresh, Gradients::Accumulated] {
        let expected = run(reference, case, dtype, dtype, gradients)?;
        let got = run(tested, case, dtype, dtype, gradients)?;
        worst = worst.worst(distance(case, &expected, &got, tolerance(dtype)));
    }
    Ok(worst)
}

/// Whether two devices give the same bits.
pub fn compare_bits(reference: &Device, tested: &Device, case: &Case, dtype: DType) -> Result<Check> {
    let mut worst = Check::none();
    for gradients in [Gradients::Fresh, Gradients::Accumulated] {
        let expected = run(reference, case, dtype, dtype, gradients)?;
        let got = run(tested, case, dtype, dtype, gradients)?;
        for (a, b) in expected.parts().zip(got.parts()) {
            let differing = a.values.iter().zip(&b.values).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
            let error = differing as f64 + (a.values.len() as f64 - b.values.len() as f64).abs();
            worst = worst.worst(Check { part: a.name.clone(), error, tolerance: 0.0 });
        }
    }
    Ok(worst)
}

/// A case in a 16-bit type against the same case in f32 on the same device, both from inputs that the type represents.
pub fn compare_precision(device: &Device, case: &Case, dtype: DType) -> Result<Check> {
    let expected = run(device, case, DType::F32, dtype, Gradients::Fresh)?;
    let got = run(device, case, dtype, dtype, Gradients::Fresh)?;
    Ok(distance(case, &expected, &got, tolerance(dtype)))
}

/// The results against plain host arithmetic, where the row has it; `None` where not.
pub fn against_host(device: &Device, case: &Case, dtype: DType) -> Result<Option<Check>> {
    let Some(host) = &case.host else { return Ok(None) };
    let inputs: Vec<Vec<f64>> = values::inputs(case, dtype).iter().map(values::Host::numbers).collect();
    let got = run(device, case, dtype, dtype, Gradients::None)?;
    let part = |(index, values): (usize, Vec<f64>)| NamedValues {
        name: format!("output {index}"),
        values: values.into_iter().map(|value| value as f32).collect(),
    };
    let outputs = host(&inputs).into_iter().enumerate().map(part).collect();
    let expected = Run { outputs, dtypes: Vec::new(), gradients: Vec::new() };
    Ok(Some(distance(case, &expected, &got, tolerance(dtype))))
}

/// Run in `dtype` from inputs that `representable` represents.
fn run(device: &Device, case: &Case, dtype: DType, representable: DType, gradients: Gradients) -> Result<Run> {
    Bound::new(device, case, dtype, &values::inputs(case, representable))?.run(gradients)
}

/// The part that is farthest off.
fn distance(case: &Case, expected: &Run, got: &Run, tolerance: f64) -> Check {
    let mut worst = Check::none();
    if expected.parts().count() != got.parts().count() {
        return Check { part: "number of results and gradients".into(), error: f64::INFINITY, tolerance };
    }
    let whole = norm(expected.parts().flat_map(|part| &part.values));
    for (a, b) in expected.parts().zip(got.parts()) {
        let vanishes = case.vanishing.iter().any(|input| a.name == format!("d{input}"));
        let measure = if vanishes { whole } else { norm(&a.values) };
        worst = worst.worst(Check { part: a.name.clone(), error: relative(&a.values, &b.values, measure), tolerance });
    }
    worst
}

/// 2-norm of the finite values.
fn norm<'v>(values: impl IntoIterator<Item = &'v f32>) -> f64 {
    values.into_iter().map(|v| f64::from(*v).powi(2)).filter(|v| v.is_finite()).sum::<f64>().sqrt()
}

/// `|a - b| / measure` in the 2-norm. Values that are not finite must be the same on both sides.
fn relative(a: &[f32], b: &[f32], measure: f64) -> f64 {
    if a.len() != b.len() {
        return f64::INFINITY;
    }
    let mut squares = 0.0;
    for (&a, &b) in a.iter().zip(b) {
        if a.is_finite() && b.is_finite() {
            squares += (f64::from(a) - f64::from(b)).powi(2);
        } else if !(a == b || (a.is_nan() && b.is_nan())) {
            return f64::INFINITY;
        }
    }
    if squares == 0.0 { 0.0 } else { squares.sqrt() / measure }
}
