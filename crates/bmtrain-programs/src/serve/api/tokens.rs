//! The text of a token, and log probabilities as the two objects of the API.

use crate::serve::job::ScoredToken;
use model_center_formats::tokenizer::Tokenizer;
use model_center_formats::tokenizer::pieces::SPACE;
use model_center_models::generate::BROKEN;
use serde_json::{Map, Value, json};

/// Text of a token by itself.
struct Shown {
    /// Its characters, or its name in the vocabulary where it has none or not whole ones.
    text: String,
    /// Whether it is the name.
    is_name: bool,
}

fn shown(tokenizer: Option<&dyn Tokenizer>, id: u32) -> Shown {
    let numbered = || format!("token_id:{id}");
    let Some(tokenizer) = tokenizer else { return Shown { text: numbered(), is_name: true } };
    let name = tokenizer.token(id).unwrap_or_else(numbered);
    match tokenizer.decode(&[id], false) {
        // Some decoders drop the space of a first token.
        Ok(text) if name.starts_with(SPACE) && !text.starts_with(' ') => {
            Shown { text: format!(" {text}"), is_name: false }
        }
        Ok(text) if !text.is_empty() && !text.contains(BROKEN) => Shown { text, is_name: false },
        _ => Shown { text: name, is_name: true },
    }
}

/// Whether texts do not have a token: a special one, such as the first one of a prompt.
fn is_special(tokenizer: Option<&dyn Tokenizer>, id: u32) -> bool {
    tokenizer.is_some_and(|tokenizer| tokenizer.decode(&[id], true).is_ok_and(|text| text.is_empty()))
}

/// `logprobs` of a completion: parallel lists. Offsets count characters of the tokens' texts from `offset`, without
/// special tokens.
pub(super) fn completion_scores(
    tokenizer: Option<&dyn Tokenizer>,
    tokens: &[ScoredToken],
    (offset, has_top): (&mut usize, bool),
) -> Value {
    let (mut texts, mut scores, mut top, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for token in tokens {
        let Shown { text, .. } = shown(tokenizer, token.token);
        offsets.push(*offset);
        *offset += if is_special(tokenizer, token.token) { 0 } else { text.chars().count() };
        let best = token.score.as_ref().map(|score| {
            let mut best = Map::new();
            for (id, log_prob) in &score.top {
                // Of tokens with the same text the most probable one.
                best.entry(shown(tokenizer, *id).text).or_insert((*log_prob).into());
            }
            best.entry(text.clone()).or_insert(score.log_prob.into());
            best
        });
        scores.push(token.score.as_ref().map(|score| score.log_prob));
        top.push(best);
        texts.push(text);
    }
    let top = if has_top { json!(top) } else { Value::Null };
    json!({"tokens": texts, "token_logprobs": scores, "top_logprobs": top, "text_offset": offsets})
}

/// `logprobs` of a chat: an object for each token.
pub(super) fn chat_scores(tokenizer: Option<&dyn Tokenizer>, tokens: &[ScoredToken], top: usize) -> Value {
    let object = |id: u32, log_prob: f64| {
        let Shown { text, is_name } = shown(tokenizer, id);
        // A part of a character has no text, and its name's bytes are others.
        let bytes = if is_name { Value::Null } else { json!(text.as_bytes()) };
        json!({"bytes": bytes, "token": text, "logprob": log_prob})
    };
    let content = tokens.iter().filter_map(|token| {
        let score = token.score.as_ref()?;
        let mut own = object(token.token, score.log_prob);
        let best: Vec<Value> = score.top.iter().take(top).map(|(id, log_prob)| object(*id, *log_prob)).collect();
        own["top_logprobs"] = best.into();
        Some(own)
    });
    json!({"content": content.collect::<Vec<_>>()})
}
