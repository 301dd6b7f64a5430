//! The task that shows pretraining samples as a model reads them.

use crate::cli::places::model_places;
use crate::cli::terminal;
use clap::Args;
use model_center_base::{Error, Result};
use model_center_data::{Batch, IGNORED, Labels};
use model_center_formats::tokenizer::Tokenizer;
use model_center_models::Registry;
use model_center_recipe::{ModelStart, Recipe};
use model_center_train::{RunData, prepare};
use serde_json::{Map, Value, json};
use std::path::PathBuf;

/// Which samples are shown.
#[derive(Debug, Args)]
pub struct SampleArguments {
    /// A recipe of task pretrain.
    #[arg(long, value_name = "FILE")]
    pub recipe: PathBuf,
    /// A setting that replaces the recipe's.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Number of the first sample: step k begins with k times the batch size.
    #[arg(long, value_name = "I", default_value_t = 0)]
    pub first: u64,
    /// Number of samples.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub count: u64,
}

/// Print samples of the training part: texts, or with JSON one object of the ids for each.
pub(super) fn run(arguments: &SampleArguments, as_json: bool) -> Result<()> {
    let SampleArguments { recipe, sets, first, count } = arguments;
    let resolved = Recipe::load(Some(recipe), sets)?;
    let tokenizer = ModelStart::of(&resolved, &model_places())?.open_tokenizer()?;
    let setup = prepare(&resolved, Registry::default(), &model_places()).map_err(of_own_family)?;
    let RunData::Pretraining { samples, .. } = &setup.train else {
        let reason = format!("the task is {}, whose samples are records", resolved.data.source.task().name());
        return Err(Error::recipe(resolved.place("data.task"), reason, "set data.task = \"pretrain\""));
    };
    for number in *first..first.saturating_add(*count) {
        let batch = samples.batch(&[number])?;
        let text = match as_json {
            true => record(number, &batch).to_string(),
            false => describe(number, &batch, &*tokenizer)?,
        };
        terminal::print(&text)?;
    }
    Ok(())
}

/// This program is not built with families of other crates: what to do about a recipe of one.
fn of_own_family(error: Error) -> Error {
    match error {
        Error::Model { place, reason, fix } if reason.starts_with("unknown model family") => {
            let fix = format!(
                "for a family of your own, take the samples from model_center_train::prepare with its registry, as \
                 docs/add-a-model.md shows; else {fix}"
            );
            Error::model(place, reason, fix)
        }
        other => other,
    }
}

/// All that a batch of one sample states.
fn record(number: u64, batch: &Batch) -> Value {
    let mut fields =
        Map::from_iter([("sample".to_owned(), json!(number)), ("input_ids".into(), json!(batch.input_ids))]);
    let mut add = |name: &str, value: Option<Value>| value.map(|value| fields.insert(name.to_owned(), value));
    add("attention_mask", batch.attention_mask.as_ref().map(|mask| json!(mask)));
    add("token_type_ids", batch.token_type_ids.as_ref().map(|types| json!(types)));
    add("context", batch.context.as_ref().map(|context| json!(context)));
    add("span", batch.span.as_ref().map(|span| json!(span)));
    add("document_starts", batch.document_starts.as_ref().map(|starts| json!(starts)));
    add("decoder_input_ids", batch.decoder_input_ids.as_ref().map(|ids| json!(ids)));
    add("labels", batch.labels.as_ref().and_then(Labels::ids).map(|ids| json!(ids)));
    add("next_sentence", batch.next_sentence.as_ref().map(|labels| json!(labels)));
    Value::Object(fields)
}

/// The text of the input, and what is predicted.
fn describe(number: u64, batch: &Batch, tokenizer: &dyn Tokenizer) -> Result<String> {
    let decode = |ids: &[i64]| {
        let ids: Vec<u32> = ids.iter().filter_map(|id| u32::try_from(*id).ok()).collect();
        tokenizer.decode(&ids, false)
    };
    let labels = batch.labels.as_ref().and_then(Labels::ids).unwrap_or_default();
    let predicted: Vec<i64> = labels.iter().copied().filter(|id| *id != IGNORED).collect();
    let mut text = format!(
        "sample {number}: {} tokens, {} predicted\n  input      {}\n  predicted  {}",
        batch.tokens(),
        predicted.len(),
        decode(&batch.input_ids)?,
        decode(&predicted)?
    );
    if let Some(label) = batch.next_sentence.as_ref().and_then(|labels| labels.first()) {
        text += &format!("\n  second segment: {label}");
    }
    Ok(text)
}
