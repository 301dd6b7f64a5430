//! The rotary embedding's base and scaling, from keys and from the factors that Llama 3 keeps as a tensor.

use serde_json::{Value, json};

use super::decoder::Keys;
use super::{GgufFile, tensor_place};
use crate::formats::TensorSource;
use crate::rotary::{RotaryConfig, RotaryScaling};
use crate::{Error, Result};
use model_center_base::json::number;

/// The default: the value of the first Llama models, which the format and `transformers` use, too.
const BASE: f32 = 10_000.0;
/// The tensor of factors by which frequencies are divided.
pub(crate) const FACTORS: &str = "rope_freqs.weight";
/// Keys of scaling that change the result and have no counterpart in `config.json`.
const UNKNOWN: &[&str] =
    &["rope.scaling.attn_factor", "rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor", "rope.scale_linear"];
/// Constants of all Llama 3 models with scaling: low and high frequency factor, and the length of their first training.
const LLAMA3: (f64, f64, usize) = (1.0, 4.0, 8192);
/// Factors went through single precision: a frequency, a wavelength and the factor itself were rounded.
const TOLERANCE: f64 = 1e-5;

/// The base and the `rope_scaling` of `config.json`.
pub(super) fn read(file: &GgufFile, keys: &Keys<'_>, dim_head: usize) -> Result<(f32, Option<Value>)> {
    let base = keys.real("rope.freq_base")?.unwrap_or(BASE);
    if base <= 1.0 {
        return Err(keys.unfit("rope.freq_base", format!("{base} is not a base of frequencies, it must be above 1")));
    }
    for name in UNKNOWN {
        if keys.metadata.get(&keys.key(name)).is_some() {
            return Err(keys.unfit(name, "this part of the rotary scaling has no counterpart in config.json"));
        }
    }
    let stated = stated(keys)?;
    if file.entry(FACTORS).is_none() {
        return Ok((base, stated));
    }
    let place = tensor_place(file.place(), FACTORS);
    let refuse = |reason: String| Error::model(&place, reason, "use a file of the model in another format");
    if stated.is_some() {
        return Err(refuse("the file has factors of frequencies beside another scaling".into()));
    }
    let mut factors = vec![0.0; dim_head / 2];
    file.read_f32(FACTORS, &mut factors)?;
    if factors.iter().all(|factor| *factor == 1.0) {
        return Ok((base, None));
    }
    match llama3(base, &factors) {
        Some(scaling) => Ok((base, Some(scaling))),
        None => Err(refuse("the frequency factors are not a Llama 3 model's, the only ones supported".into())),
    }
}

fn stated(keys: &Keys<'_>) -> Result<Option<Value>> {
    const TYPE: &str = "rope.scaling.type";
    let kind = keys.metadata.text(&keys.key(TYPE))?;
    let factor = keys.real("rope.scaling.factor")?.filter(|factor| *factor != 0.0 && *factor != 1.0);
    let mut scaling = serde_json::Map::new();
    match (kind, factor) {
        (None | Some("none"), None) => return Ok(None),
        // A factor of 1 changes nothing.
        (Some("linear"), None) => return Ok(None),
        (Some(kind @ ("linear" | "yarn")), Some(factor)) if factor > 0.0 => {
            scaling.insert("rope_type".into(), json!(kind));
            scaling.insert("factor".into(), number(factor));
        }
        (_, Some(factor)) => {
            let reason = format!("a factor of {factor} for scaling \"{}\" is unknown", kind.unwrap_or("none"));
            return Err(keys.unfit("rope.scaling.factor", reason));
        }
        (Some(_), None) => return Err(keys.unfit(TYPE, "scaling of this type is not read; linear and yarn are")),
    }
    if kind == Some("yarn") {
        if let Some(length) = keys.optional("rope.scaling.original_context_length")? {
            scaling.insert("original_max_position_embeddings".into(), json!(length));
        }
        for (name, theirs) in
            [("rope.scaling.yarn_beta_fast", "beta_fast"), ("rope.scaling.yarn_beta_slow", "beta_slow")]
        {
            if let Some(value) = keys.real(name)? {
                scaling.insert(theirs.into(), number(value));
            }
        }
    }
    Ok(Some(Value::Object(scaling)))
}

/// The scaling whose factors these are: the largest one is the scaling's own, the others follow from it.
fn llama3(base: f32, factors: &[f32]) -> Option<Value> {
    let (low, high, length) = LLAMA3;
    let largest = factors.iter().copied().filter(|factor| factor.is_finite()).fold(1.0, f32::max);
    let angles = |scaling| RotaryConfig { dims: 2 * factors.len(), base: f64::from(base), scaling }.frequencies(length);
    let plain = angles(RotaryScaling::None);
    let scaled = angles(RotaryScaling::Llama3 { factor: f64::from(largest), low, high, trained: length });
    let fits = factors.iter().zip(plain.iter().zip(&scaled)).all(|(factor, (plain, scaled))| {
        let expected = plain / scaled;
        (f64::from(*factor) - expected).abs() <= TOLERANCE * expected
    });
    (fits && largest > 1.0).then(|| {
        json!({
            "rope_type": "llama3",
            "factor": number(largest),
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": length,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The formula of Llama 3, in the three cases it is usually written in.
    fn factors(base: f64, dim_head: usize, factor: f64) -> Vec<f32> {
        let cases = |i: usize| {
            let wavelength = std::f64::consts::TAU * base.powf(2.0 * i as f64 / dim_head as f64);
            if wavelength < 8192.0 / 4.0 {
                1.0
            } else if wavelength > 8192.0 {
                factor
            } else {
                let smooth = (8192.0 / wavelength - 1.0) / 3.0;
                1.0 / ((1.0 - smooth) / factor + smooth)
            }
        };
        (0..dim_head / 2).map(|i| cases(i) as f32).collect()
    }

    #[test]
    fn factors_of_llama_3_are_recognised_and_others_are_not() {
        for (dim_head, factor) in [(128, 8.0), (64, 32.0)] {
            let ours = factors(500_000.0, dim_head, factor);
            assert_eq!(llama3(500_000.0, &ours).unwrap()["factor"], json!(factor));
            // Another base, a factor a little off, one that is not a number.
            assert_eq!(llama3(10_000.0, &ours), None);
            for (at, value) in [(0, 1.001), (dim_head / 2 - 1, factor as f32 * 0.99), (3, f32::NAN), (5, f32::INFINITY)]
            {
                let mut other = ours.clone();
                other[at] = value;
                assert_eq!(llama3(500_000.0, &other), None, "{at}");
            }
        }
    }
}
