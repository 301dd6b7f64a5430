//! `/v1/predict`: what a fine-tuned model predicts of inputs; `/classify`: classes of texts in the form of vLLM.

use super::ApiError;
use super::fields::{Fields, texts};
use super::generation::{MAX_INPUTS, model};
use super::reply::{Ended, Reply};
use crate::http::Response;
use crate::serve::{
    Shared,
    job::{Job, RowsJob},
};
use model_center_data::Record;
use model_center_formats::tokenizer::Encoding;
use model_center_train::predict::{
    PredictColumns, PredictInput, PredictedValue, Prediction, PredictionKind, Predictor, RecordFields,
};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::sync::mpsc::channel;

/// Outputs of the model for rows, on its thread.
pub(super) fn outputs(shared: &Shared, rows: Vec<Encoding>, reply: &mut Reply<'_>) -> Result<Vec<Vec<f32>>, Ended> {
    let (result, received) = channel();
    let ticket = Some(shared.enter()?);
    shared.submit(Job::Rows(RowsJob { rows, result, cancelled: reply.cancelled(), ticket }))?;
    Ok(reply.wait(&received)??)
}

fn predictor(shared: &Shared) -> Result<&Predictor, ApiError> {
    let served = shared.predictor();
    let served = served.ok_or_else(|| ApiError::not_found("this model generates texts: ask /v1/completions"))?;
    Ok(&served.predictor)
}

/// Answers `/v1/predict`: `inputs` is a text, an object with the fields that records of the program `predict` have, or
/// a list of these.
pub(in crate::serve) fn predict(shared: &Shared, body: &[u8], reply: &mut Reply<'_>) -> Result<(), Ended> {
    let mut fields = Fields::parse(body)?;
    model(&mut fields, shared)?;
    let predictor = predictor(shared)?;
    let inputs = match fields.required("inputs")? {
        Value::Array(items) => items,
        one => vec![one],
    };
    fields.finish()?;
    if inputs.is_empty() || inputs.len() > MAX_INPUTS {
        return Err(ApiError::field("inputs", format!("{} inputs, not 1 to {MAX_INPUTS}", inputs.len())).into());
    }
    let columns = PredictColumns { without_labels: true, ..PredictColumns::default() };
    let mut reader =
        RecordFields::new(predictor.kind(), &columns).map_err(|error| ApiError::of_input(&error, "inputs"))?;
    let input = |(number, value): (usize, Value)| {
        let name = format!("inputs[{number}]");
        let record: Map<String, Value> = match value {
            Value::String(text) => Map::from_iter([("text".to_owned(), Value::String(text))]),
            Value::Object(fields) => fields,
            _ => return Err(ApiError::field(&name, "it is neither a text nor an object")),
        };
        let known = RecordFields::names(predictor.kind());
        if let Some(other) = record.keys().find(|field| !known.contains(&field.as_str())) {
            let reason = format!("the field {other:?} is not read; fields: {}", known.join(", "));
            return Err(ApiError::field(&name, reason));
        }
        let path = Path::new(&name);
        let (input, _) =
            reader.read(&Record::of_object(path, 1, &record)).map_err(|error| ApiError::of_input(&error, &name))?;
        Ok(input)
    };
    let inputs = inputs.into_iter().enumerate().map(input).collect::<Result<Vec<_>, _>>()?;
    let (predictions, tokens) = predictions(shared, predictor, &inputs, reply)?;
    let names = predictor.kind().names();
    let data = predictions.iter().enumerate().map(|(index, prediction)| {
        let mut object = Map::from_iter([("index".to_owned(), json!(index))]);
        object.extend(prediction.fields(names));
        Value::Object(object)
    });
    let object = json!({
        "object": "list", "data": data.collect::<Vec<_>>(), "model": shared.model.name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    });
    reply.send(&Response::new("application/json", object.to_string()))
}

/// Answers `/classify` with the probabilities of all classes of each text; of a model with one output, with its number.
pub(in crate::serve) fn classify(shared: &Shared, body: &[u8], reply: &mut Reply<'_>) -> Result<(), Ended> {
    let mut fields = Fields::parse(body)?;
    model(&mut fields, shared)?;
    let predictor = predictor(shared)?;
    let texts = texts("input", fields.required("input")?, MAX_INPUTS)?;
    fields.finish()?;
    let classes = match predictor.kind() {
        PredictionKind::Class(names) | PredictionKind::Labels(names) => names.len(),
        PredictionKind::Numbers(outputs) => *outputs,
        PredictionKind::Words(_) | PredictionKind::Answer | PredictionKind::Embedding(_) => {
            return Err(ApiError::not_found("this model has no classes of texts: ask /v1/predict").into());
        }
    };
    let inputs: Vec<PredictInput> = texts.into_iter().map(|text| PredictInput::Text { text, pair: None }).collect();
    let (predictions, tokens) = predictions(shared, predictor, &inputs, reply)?;
    let data = predictions.iter().enumerate().map(|(index, prediction)| {
        let fields = prediction.fields(predictor.kind().names());
        let (label, probs) = match &prediction.value {
            PredictedValue::Numbers(numbers) => (Value::Null, numbers.clone()),
            PredictedValue::Class(class) => (json!(class), prediction.probabilities.clone()),
            _ => (fields.get("prediction").cloned().unwrap_or_default(), prediction.probabilities.clone()),
        };
        json!({"index": index, "label": label, "probs": probs, "num_classes": classes})
    });
    let object = json!({
        "id": shared.next_id("classify"), "object": "list", "created": shared.now(), "model": shared.model.name,
        "data": data.collect::<Vec<_>>(), "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    });
    reply.send(&Response::new("application/json", object.to_string()))
}

/// Predictions of inputs, and the number of their tokens.
pub(super) fn predictions(
    shared: &Shared,
    predictor: &Predictor,
    inputs: &[PredictInput],
    reply: &mut Reply<'_>,
) -> Result<(Vec<Prediction>, usize), Ended> {
    let prepare = |(number, input): (usize, &PredictInput)| {
        predictor.prepare(input).map_err(|error| ApiError::of_input(&error, &format!("inputs[{number}]")))
    };
    let prepared = inputs.iter().enumerate().map(prepare).collect::<Result<Vec<_>, _>>()?;
    let rows: Vec<Encoding> = prepared.iter().flat_map(|input| input.rows().iter().cloned()).collect();
    let tokens = rows.iter().map(|row| row.input_ids.len()).sum();
    let outputs = outputs(shared, rows, reply)?;
    let (mut rest, mut predictions) = (outputs.as_slice(), Vec::new());
    for input in &prepared {
        let (own, later) = rest.split_at(input.rows().len().min(rest.len()));
        rest = later;
        let prediction = predictor.finish(input, own);
        predictions.push(prediction.map_err(|error| ApiError::internal(error.to_string()))?);
    }
    Ok((predictions, tokens))
}
