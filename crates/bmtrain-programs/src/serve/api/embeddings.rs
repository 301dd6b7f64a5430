//! `/v1/embeddings`: texts as vectors.

use super::ApiError;
use super::fields::{Fields, Inputs};
use super::generation::{MAX_INPUTS, model};
use super::predictions::outputs;
use super::reply::{Ended, Reply};
use crate::http::Response;
use crate::serve::Shared;
use crate::serve::options::ServedPredictor;
use model_center_formats::tokenizer::Encoding;
use model_center_models::SentenceEncoder;
use model_center_train::predict::PredictionKind;
use serde_json::{Value, json};

/// Format of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    Float,
    /// Base64 of f32 in little-endian order.
    Base64,
}

/// Answers a request.
pub(in crate::serve) fn embeddings(shared: &Shared, body: &[u8], reply: &mut Reply<'_>) -> Result<(), Ended> {
    let mut fields = Fields::parse(body)?;
    model(&mut fields, shared)?;
    let served = shared
        .predictor()
        .ok_or_else(|| ApiError::not_found("this model generates texts and embeds none: ask /v1/completions"))?;
    let PredictionKind::Embedding(sentences) = served.predictor.kind() else {
        return Err(ApiError::not_found("this model predicts and embeds no texts: ask /v1/predict").into());
    };
    let encoding = match fields.text("encoding_format")?.as_deref() {
        None | Some("float") => Written::Float,
        Some("base64") => Written::Base64,
        Some(_) => {
            return Err(ApiError::field("encoding_format", "it is neither \"float\" nor \"base64\"").into());
        }
    };
    let size = sentences.size;
    fields.neutral("dimensions", |dimensions| size.is_some() && dimensions.as_u64() == size.map(|size| size as u64))?;
    let prompt = fields.text("prompt_name")?;
    let inputs = Inputs::of("input", fields.required("input")?, MAX_INPUTS)?;
    let rows = encoded((served, sentences), inputs, prompt.as_deref(), shared.longest)?;
    fields.finish()?;
    let lengths: Vec<usize> = rows.iter().map(Vec::len).collect();
    let row = |ids: Vec<u32>| Encoding { token_type_ids: vec![0; ids.len()], input_ids: ids, removed: 0 };
    let hidden = outputs(shared, rows.into_iter().map(row).collect(), reply)?;
    let embeddings = hidden.iter().zip(&lengths).map(|(hidden, tokens)| sentences.embed(hidden, hidden.len() / tokens));
    let tokens: usize = lengths.iter().sum();
    let data = embeddings.enumerate().map(|(index, values)| {
        let values = match encoding {
            Written::Float => Value::from(values.as_slice()),
            Written::Base64 => base64(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>()).into(),
        };
        json!({"object": "embedding", "index": index, "embedding": values})
    });
    let object = json!({
        "object": "list", "data": data.collect::<Vec<_>>(), "model": shared.model.name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    });
    reply.send(&Response::new("application/json", object.to_string()))
}

/// The tokens of the inputs, `longest` at most each; texts have a prompt before them and special tokens around them,
/// token ids neither.
fn encoded(
    (served, sentences): (&ServedPredictor, &SentenceEncoder),
    inputs: Inputs,
    prompt: Option<&str>,
    longest: usize,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let beyond = || ApiError::beyond("input", longest);
    let rows = match inputs {
        Inputs::Tokens(_) if prompt.is_some() => {
            return Err(ApiError::field("prompt_name", "a prompt precedes texts, and the input is token ids"));
        }
        Inputs::Tokens(rows) => rows,
        Inputs::Texts(texts) => {
            let encode = |text: &String| {
                let encoded = sentences.encode_up_to(served.predictor.tokenizer(), text, prompt, longest);
                encoded.map_err(|error| ApiError::of_input(&error, "input"))?.ok_or_else(beyond)
            };
            texts.iter().map(encode).collect::<Result<_, _>>()?
        }
    };
    if rows.iter().any(|row| row.len() > longest) {
        return Err(beyond());
    }
    if rows.iter().any(Vec::is_empty) {
        return Err(ApiError::field("input", "an input has no token"));
    }
    let vocabulary = served.vocab_size;
    match rows.iter().flatten().find(|id| **id as usize >= vocabulary) {
        Some(id) => Err(ApiError::field("input", format!("token {id}, and the model has {vocabulary}"))),
        None => Ok(rows),
    }
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |bits: u32| char::from(ALPHABET.get((bits & 63) as usize).copied().unwrap_or(b'='));
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits = three.iter().chain([0, 0].iter()).take(3).fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        for place in 0..4_u32 {
            text.push(if place as usize <= three.len() { digit(bits >> (18 - 6 * place)) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("fooba", "Zm9vYmE=")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[255, 254, 253]), "//79");
    }
}
