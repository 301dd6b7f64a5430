//! The settings of generation in a request.

use super::ApiError;
use super::fields::{Fields, is_empty, texts};
use crate::serve::Shared;
use crate::serve::options::ServedDecoder;
use model_center_models::generate::{GenerateOptions, GenerationOverrides, GenerationSettings, Method};
use serde_json::Value;

/// The most stop strings.
const MAX_STOPS: usize = 16;
/// The most tokens with a bias.
const MAX_BIASES: usize = 4096;
/// The range of penalties in OpenAI's API.
const PENALTIES: (f32, f32) = (-2.0, 2.0);

/// The options of generation, the request's over the directory's, and whether the request has stop strings.
pub(super) fn settings(
    fields: &mut Fields,
    tokens: Option<usize>,
    (shared, decoder): (&Shared, &ServedDecoder),
) -> Result<(GenerateOptions, bool), ApiError> {
    let (temperature, top_p, min_p) = (fields.number("temperature")?, fields.number("top_p")?, fields.number("min_p")?);
    let (top_k, seed) = (top_k(fields)?, fields.take("seed"));
    let (min_tokens, ignores_ends) = (fields.count("min_tokens", u32::MAX as usize)?, fields.flag("ignore_eos")?);
    let repetition_penalty = fields.number("repetition_penalty")?;
    let max = tokens.unwrap_or(shared.options.new_tokens);
    if let Some(min) = min_tokens.filter(|min| *min > max) {
        return Err(ApiError::field("min_tokens", format!("\"min_tokens\" is {min}, and at most {max} are generated")));
    }
    let stop_strings = match fields.take("stop") {
        Some(value) if !is_empty(&value) => texts("stop", value, MAX_STOPS)?,
        _ => Vec::new(),
    };
    let has_stops = !stop_strings.is_empty();
    // Greedy decoding is the limit of low temperatures and shares, and filters have no effect on it.
    let is_greedy = temperature == Some(0.0) || top_p == Some(0.0);
    let overrides = GenerationOverrides {
        origin: "the request",
        max_new_tokens: tokens.or(min_tokens).map(|tokens| tokens.max(1)),
        repetition_penalty,
        greedy: is_greedy,
        temperature: temperature.filter(|_| !is_greedy),
        top_p: top_p.filter(|_| !is_greedy),
        top_k: top_k.filter(|_| !is_greedy),
        min_p: min_p.filter(|_| !is_greedy),
        stop_strings,
        ..GenerationOverrides::default()
    };
    let tokenizer = decoder.setup.tokenizer.as_deref();
    let resolved = GenerationSettings::resolve(&overrides, &decoder.config, tokenizer, false);
    let mut options = resolved.map_err(|error| ApiError::of_input(&error, "temperature"))?.options;
    if ignores_ends {
        options.end_tokens.clear();
        options.min_new_tokens = 0;
    }
    // Without a token that ends texts all have this number.
    if let Some(min) = min_tokens.filter(|_| !options.end_tokens.is_empty()) {
        options.min_new_tokens = min;
    }
    options.presence_penalty = fields.number_within("presence_penalty", PENALTIES)?.unwrap_or(0.0);
    options.frequency_penalty = fields.number_within("frequency_penalty", PENALTIES)?.unwrap_or(0.0);
    options.logit_bias = logit_bias(fields)?;
    let checked = options.validate_for(&decoder.setup.info, tokenizer.is_some());
    checked.map_err(|error| ApiError::of_input(&error, "temperature"))?;
    let seed = match seed {
        None => shared.next_seed(),
        // Negative seeds are numbers too.
        Some(seed) => match (seed.as_u64(), seed.as_i64()) {
            (Some(seed), _) => seed,
            (None, Some(seed)) => seed as u64,
            (None, None) => return Err(ApiError::field("seed", "\"seed\" is not an integer")),
        },
    };
    if let Method::Sampling { seed: own, .. } = &mut options.method {
        *own = seed;
    }
    Ok((options, has_stops))
}

/// The number of most probable tokens; vLLM's -1 and 0 for all.
fn top_k(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    match fields.take("top_k") {
        Some(value) if value.as_i64() == Some(-1) => Ok(Some(0)),
        Some(value) => {
            let count = value.as_u64().and_then(|count| u32::try_from(count).ok());
            count
                .map(|count| Some(count as usize))
                .ok_or_else(|| ApiError::field("top_k", "\"top_k\" is not a count, or -1 for all tokens"))
        }
        None => Ok(None),
    }
}

/// Bias of the logits of tokens, by their ids in texts.
fn logit_bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>, ApiError> {
    let wrong = || {
        let form = format!("an object of at most {MAX_BIASES} numbers from -100 to 100 by token ids");
        ApiError::field("logit_bias", format!("\"logit_bias\" is not {form}"))
    };
    let Some(value) = fields.take("logit_bias") else { return Ok(Vec::new()) };
    let biases = value.as_object().filter(|biases| biases.len() <= MAX_BIASES).ok_or_else(wrong)?;
    let bias = |(token, bias): (&String, &Value)| {
        let bias = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias))?;
        Some((token.parse().ok()?, bias as f32))
    };
    biases.iter().map(|entry| bias(entry).ok_or_else(wrong)).collect()
}

/// Whether a stream's last event has the numbers of tokens.
pub(super) fn has_usage(fields: &mut Fields, streams: bool) -> Result<bool, ApiError> {
    let wrong = |reason: &str| ApiError::field("stream_options", format!("\"stream_options\" {reason}"));
    let Some(options) = fields.take("stream_options") else { return Ok(false) };
    let Value::Object(options) = options else { return Err(wrong("is not an object")) };
    if !streams {
        return Err(wrong("has no effect without \"stream\""));
    }
    // Padding against those who watch the sizes of events is not needed on networks with TLS before the server.
    let is_known = |name: &str| ["include_usage", "include_obfuscation"].contains(&name);
    let is_off = |value: &Value| value.is_null() || *value == false;
    if let Some((name, _)) = options.iter().find(|(name, value)| !is_known(name) && !is_off(value)) {
        return Err(ApiError::unsupported(&format!("stream_options.{name}")));
    }
    match options.get("include_usage") {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(has_usage)) => Ok(*has_usage),
        Some(_) => Err(wrong("has an \"include_usage\" that is not true or false")),
    }
}
