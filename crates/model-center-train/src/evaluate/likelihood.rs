//! Log-likelihoods of given continuations, as evaluation harnesses ask for them.
//!
//! Defines [`LikelihoodRequest`] and [`read_requests`].

use std::path::Path;

use serde_json::{Map, Value};

use super::{SplitText, TextSplitter, TokenScore};
use crate::{Error, Result};
use model_center_formats::io::json_lines::read_json_lines;
use model_center_formats::tokenizer::Tokenizer;

/// Harnesses write some hundred thousand requests of a kilobyte.
const MAX_BYTES: u64 = 1 << 30;

/// Names of the results in an output line.
const RESULTS: [&str; 5] = ["log_likelihood", "is_greedy", "tokens", "token_log_probs", "continuation_ids"];

/// A line of a file of requests.
#[derive(Debug, Clone)]
pub struct LikelihoodRequest {
    fields: Map<String, Value>,
    /// Text that is scored.
    pub split: SplitText,
}

/// Text or token ids under one of two names.
enum Given<'a> {
    Text(&'a str),
    Ids(Vec<u32>),
}

/// Reads requests from JSON lines: `prompt` with `continuation`, texts, or `prompt_ids` with `continuation_ids`, token
/// ids that are used as they are. Other fields are kept. Without a tokenizer, requests are token ids.
///
/// # Errors
/// [`Error::Data`] with the line of a request that has no continuation, both a text and ids, or a result's name.
pub fn read_requests(path: &Path, tokenizer: Option<&dyn Tokenizer>) -> Result<Vec<LikelihoodRequest>> {
    let like = r#"{"prompt": "...", "continuation": "..."}"#;
    let lines = read_json_lines::<Map<String, Value>>(path, MAX_BYTES, like)?;
    let splitter = tokenizer.map(TextSplitter::new);
    let request = |(place, fields): (String, Map<String, Value>)| {
        if let Some(name) = RESULTS.iter().find(|name| **name != "continuation_ids" && fields.contains_key(**name)) {
            return Err(Error::data(place, format!("the line has a field {name:?}, which is a result"), "rename it"));
        }
        let prompt = given(&place, &fields, ["prompt", "prompt_ids"])?.unwrap_or(Given::Text(""));
        let no_text = || {
            let reason = "the model directory has no tokenizer, which texts need";
            Error::data(place.clone(), reason, "give prompt_ids and continuation_ids")
        };
        let split = match (prompt, given(&place, &fields, ["continuation", "continuation_ids"])?) {
            (Given::Text(prompt), Some(Given::Text(continuation))) => {
                splitter.as_ref().ok_or_else(no_text)?.split(&place, prompt, continuation)?
            }
            (Given::Ids(context), Some(Given::Ids(continuation)))
                if !context.is_empty() && !continuation.is_empty() =>
            {
                SplitText { place, context, continuation }
            }
            (_, None) => {
                return Err(Error::data(place, "there is no continuation", "give continuation or continuation_ids"));
            }
            _ => {
                let reason = "prompt and continuation are not two texts or two lists of token ids with an id in each";
                return Err(Error::data(place, reason, "give both as texts, or both as ids"));
            }
        };
        Ok(LikelihoodRequest { fields, split })
    };
    lines.into_iter().map(request).collect()
}

/// The value of a text or of token ids.
fn given<'a>(place: &str, fields: &'a Map<String, Value>, [text, ids]: [&str; 2]) -> Result<Option<Given<'a>>> {
    let wrong = |reason: String| Err(Error::data(place, reason, "correct the line"));
    match (fields.get(text), fields.get(ids)) {
        (None, None) => Ok(None),
        (Some(Value::String(text)), None) => Ok(Some(Given::Text(text))),
        (None, Some(Value::Array(values))) => {
            let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
            match values.iter().map(id).collect() {
                Some(ids) => Ok(Some(Given::Ids(ids))),
                None => wrong(format!("{ids:?} has a value that is not a token id")),
            }
        }
        (Some(_), Some(_)) => wrong(format!("both {text:?} and {ids:?} are given")),
        (Some(_), None) => wrong(format!("{text:?} is not a text")),
        (None, Some(_)) => wrong(format!("{ids:?} is not a list of token ids")),
    }
}

impl LikelihoodRequest {
    /// The line with its results; `tokens` is the length of the continuation.
    pub fn result(&self, scores: &[TokenScore]) -> Map<String, Value> {
        let [log_likelihood, is_greedy, tokens, log_probs, ids] = RESULTS;
        let mut fields = self.fields.clone();
        fields.insert(log_likelihood.into(), scores.iter().map(|score| score.log_prob).sum::<f64>().into());
        fields.insert(is_greedy.into(), scores.iter().all(|score| score.is_greedy).into());
        fields.insert(tokens.into(), scores.len().into());
        fields.insert(log_probs.into(), scores.iter().map(|score| score.log_prob).collect());
        fields.insert(ids.into(), self.split.continuation.clone().into());
        fields
    }
}
