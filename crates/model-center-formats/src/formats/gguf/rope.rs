//! The rotary embedding's base and scaling, from keys and from the factors that Llama 3 keeps as a tensor.

use serde_json::{Value, json};

use super::keys::Keys;
use super::{Family, GgufFile, tensor_place};
use crate::formats::{TensorSource, safetensors::TensorEntry};
use crate::rotary::{RotaryConfig, RotaryScaling};
use crate::rotary::{long_magnitude, yarn_magnitude};
use crate::{Error, Result};
use model_center_base::json::number;

/// The default: the value of the first Llama models, which the format and `transformers` use, too.
const BASE: f32 = 10_000.0;
/// The tensor of factors by which frequencies are divided.
pub(crate) const FACTORS: &str = "rope_freqs.weight";
/// The tensors of LongRoPE's divisors: in texts up to the trained length, and in longer ones.
pub(crate) const LONG: [&str; 2] = ["rope_factors_short.weight", "rope_factors_long.weight"];
/// The key of LongRoPE's factor of cosines and sines.
const LONG_MAGNITUDE: &str = "rope.scaling.attn_factor";
/// The key of YaRN's.
const YARN_MAGNITUDE: &str = "rope.scaling.yarn_attn_factor";
/// Keys of scaling that change the result and have no counterpart in `config.json`.
const UNKNOWN: &[&str] = &["rope.scaling.yarn_ext_factor", "rope.scale_linear"];
/// Constants of all Llama 3 models with scaling: low and high frequency factor, and the length of their first training.
const LLAMA3: (f64, f64, usize) = (1.0, 4.0, 8192);
/// Factors went through single precision: a frequency, a wavelength and the factor itself were rounded.
const TOLERANCE: f64 = 1e-5;

/// The base and the `rope_scaling` of `config.json` for this number of rotated elements of a head, and of positions.
pub(super) fn read(file: &GgufFile, keys: &Keys<'_>, dims: usize, positions: usize) -> Result<(f32, Option<Value>)> {
    let base = keys.real("rope.freq_base")?.unwrap_or(BASE);
    if base <= 1.0 {
        return Err(keys.unfit("rope.freq_base", format!("{base} is not a base of frequencies, it must be above 1")));
    }
    for name in UNKNOWN {
        if keys.metadata.get(&keys.key(name)).is_some() {
            return Err(keys.unfit(name, "this part of the rotary scaling has no counterpart in config.json"));
        }
    }
    if keys.family == Family::Phi3
        && let Some(scaling) = long(file, keys, dims, positions)?
    {
        return Ok((base, Some(scaling)));
    }
    if keys.real(LONG_MAGNITUDE)?.is_some_and(|factor| factor != 1.0) {
        return Err(keys.unfit(LONG_MAGNITUDE, "this part of the rotary scaling has no counterpart in config.json"));
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
    let factors = divisors(file, FACTORS, dims)?;
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
        let silent = yarn_magnitude(f64::from(factor.unwrap_or(1.0)));
        if let Some(magnitude) = other_than(keys, YARN_MAGNITUDE, silent)? {
            scaling.insert("attention_factor".into(), magnitude);
        }
    }
    Ok(Some(Value::Object(scaling)))
}

/// A divisor for each pair of this number of elements of a head.
fn divisors(file: &GgufFile, name: &str, dims: usize) -> Result<Vec<f32>> {
    let count = file.entry(name).and_then(TensorEntry::elements);
    if count != Some(dims / 2) {
        let reason = format!("these are {} factors, of {} angles", count.unwrap_or(0), dims / 2);
        return Err(Error::model(tensor_place(file.place(), name), reason, "convert the model to GGUF again"));
    }
    let mut divisors = vec![0.0; dims / 2];
    file.read_f32(name, &mut divisors)?;
    Ok(divisors)
}

/// A factor of cosines and sines, unless it is this one: that went through single precision, and a configuration
/// without it has it in full.
fn other_than(keys: &Keys<'_>, name: &str, silent: f64) -> Result<Option<Value>> {
    match keys.real(name)? {
        Some(factor) if factor <= 0.0 => Err(keys.unfit(name, format!("{factor} is not a factor above 0"))),
        Some(factor) if (f64::from(factor) - silent).abs() <= TOLERANCE * silent => Ok(None),
        other => Ok(other.map(number)),
    }
}

/// LongRoPE's scaling, if the file has its divisors.
fn long(file: &GgufFile, keys: &Keys<'_>, dims: usize, positions: usize) -> Result<Option<Value>> {
    const TYPE: &str = "rope.scaling.type";
    const TRAINED: &str = "rope.scaling.original_context_length";
    if LONG.iter().all(|name| file.entry(name).is_none()) {
        return Ok(None);
    }
    match keys.metadata.text(&keys.key(TYPE))? {
        None | Some("longrope") => {}
        Some(_) => return Err(keys.unfit(TYPE, "the file has LongRoPE's divisors beside scaling of another type")),
    }
    if keys.real("rope.scaling.factor")?.is_some_and(|factor| factor != 0.0 && factor != 1.0) {
        return Err(keys.unfit("rope.scaling.factor", "the file has LongRoPE's divisors beside another factor"));
    }
    let mut scaling = serde_json::Map::new();
    scaling.insert("rope_type".into(), json!("longrope"));
    for (name, theirs) in LONG.into_iter().zip(["short_factor", "long_factor"]) {
        let divisors = divisors(file, name, dims)?;
        if !divisors.iter().all(|divisor| divisor.is_finite() && *divisor > 0.0) {
            let (reason, fix) = ("a divisor is not a number above 0", "convert the model to GGUF again");
            return Err(Error::model(tensor_place(file.place(), name), reason, fix));
        }
        scaling.insert(theirs.into(), divisors.into_iter().map(number).collect());
    }
    let trained = keys.size(TRAINED)?;
    if trained == 1 {
        return Err(keys.unfit(TRAINED, "a model was not trained on texts of one token"));
    }
    scaling.insert("original_max_position_embeddings".into(), json!(trained));
    let magnitude = match keys.has(LONG_MAGNITUDE) {
        true => other_than(keys, LONG_MAGNITUDE, long_magnitude(positions as f64 / trained as f64, trained))?,
        false => Some(json!(1.0)),
    };
    scaling.extend(magnitude.map(|magnitude| ("attention_factor".to_string(), magnitude)));
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
