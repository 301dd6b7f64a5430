//! `/v1/rerank`: the scores of documents for a query, in the form of vLLM, Jina and Cohere.

use super::ApiError;
use super::fields::{Fields, is_empty};
use super::generation::{MAX_INPUTS, model};
use super::predictions::predictions;
use super::reply::{Ended, Reply};
use crate::http::Response;
use crate::serve::Shared;
use model_center_train::predict::{PredictInput, PredictedValue, Prediction};
use serde_json::{Value, json};

/// Answers a request: documents in the order of their scores, of equals in the order of the request.
pub(in crate::serve) fn rerank(shared: &Shared, body: &[u8], reply: &mut Reply<'_>) -> Result<(), Ended> {
    let mut fields = Fields::parse(body)?;
    model(&mut fields, shared)?;
    let served = shared.predictor();
    let served = served.ok_or_else(|| ApiError::not_found("this model generates texts: ask /v1/completions"))?;
    let reranker = match &served.reranker {
        Some(Ok(reranker)) => reranker,
        Some(Err(reason)) => return Err(ApiError::not_found(format!("this model ranks no documents: {reason}")).into()),
        None => {
            let reason = "this model ranks no documents, it has not one output: ask /v1/predict or /v1/embeddings";
            return Err(ApiError::not_found(reason).into());
        }
    };
    let query = fields.required("query")?;
    let query = query.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let query = query.ok_or_else(|| ApiError::field("query", "\"query\" is not a text with at least a character"))?;
    let documents = documents(fields.required("documents")?)?;
    let most = fields.count("top_n", usize::MAX)?.unwrap_or(documents.len());
    if most == 0 {
        return Err(ApiError::field("top_n", "\"top_n\" is 0, and results are asked for: use 1 or more").into());
    }
    let has_documents = fields.flag_or("return_documents", true)?;
    fields.neutral("instruction", is_empty)?;
    fields.finish()?;
    let pair = |document: &String| PredictInput::Text { text: query.clone(), pair: Some(document.clone()) };
    let inputs: Vec<PredictInput> = documents.iter().map(pair).collect();
    let (predictions, tokens) = predictions(shared, &reranker.predictor, &inputs, reply)?;
    let score = |prediction: &Prediction| match &prediction.value {
        PredictedValue::Numbers(numbers) => numbers.first().map(|logit| reranker.encoder.score(*logit)),
        _ => None,
    };
    let scores = predictions.iter().map(score).collect::<Option<Vec<f32>>>();
    let scores = scores.ok_or_else(|| ApiError::internal("a pair has no score".to_owned()))?;
    let result = |(index, score): (usize, f32)| match documents.get(index).filter(|_| has_documents) {
        Some(text) => json!({"index": index, "relevance_score": score, "document": {"text": text}}),
        None => json!({"index": index, "relevance_score": score}),
    };
    let results: Vec<Value> = ranked(&scores, most).into_iter().map(result).collect();
    let object = json!({
        "id": shared.next_id("rerank"), "object": "list", "model": shared.model.name, "results": results,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    });
    reply.send(&Response::new("application/json", object.to_string()))
}

/// The documents: texts, or objects with a `text`.
fn documents(value: Value) -> Result<Vec<String>, ApiError> {
    let wrong = || {
        let reason = format!(
            "\"documents\" is not a list of 1 to {MAX_INPUTS} texts, or of objects with the field \"text\" alone"
        );
        ApiError::field("documents", reason)
    };
    let Value::Array(items) = value else { return Err(wrong()) };
    if !(1..=MAX_INPUTS).contains(&items.len()) {
        return Err(wrong());
    }
    let text = |item: &Value| match item {
        Value::String(text) => Some(text.clone()),
        Value::Object(fields) if fields.len() == 1 => Some(fields.get("text")?.as_str()?.to_owned()),
        _ => None,
    };
    items.iter().map(|item| text(item).ok_or_else(wrong)).collect()
}

/// The largest scores with their places, at most this number of them, the largest first.
fn ranked(scores: &[f32], most: usize) -> Vec<(usize, f32)> {
    let mut ranked: Vec<(usize, f32)> = scores.iter().copied().enumerate().collect();
    // Equals stay in their order.
    ranked.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    ranked.truncate(most);
    ranked
}

#[cfg(test)]
mod tests {
    use super::{documents, ranked};
    use serde_json::json;

    #[test]
    fn documents_are_ranked_by_their_scores_and_equals_keep_their_order() {
        assert_eq!(ranked(&[0.1, 0.7, 0.7, -2.0], 3), [(1, 0.7), (2, 0.7), (0, 0.1)]);
        assert_eq!(ranked(&[0.1, 0.7], 9), [(1, 0.7), (0, 0.1)]);
    }

    #[test]
    fn documents_are_texts_or_objects_with_one() {
        assert_eq!(documents(json!(["a", {"text": "b"}])).unwrap(), ["a", "b"]);
        for wrong in [json!([]), json!("a"), json!([3]), json!([{"text": 3}]), json!([{"text": "a", "title": "b"}])] {
            let error = documents(wrong.clone()).unwrap_err();
            assert_eq!(error.status, 400, "{wrong}");
        }
    }
}
