//! The files of a directory of sentence-transformers.
//!
//! Defines [`read`]. `modules.json` lists the modules, each with a `config.json` of its own;
//! `sentence_bert_config.json` has the settings of the first one, `config_sentence_transformers.json` the prompts, and
//! `tokenizer_config.json` the length.

use super::dense::{Dense, class_of};
use super::meaning::{ARGUMENTS, NEUTRAL, NEUTRAL_OF_PROMPTS};
use super::{SentenceEncoder, Step};
use crate::model::head::pooling::{MODULES_FILE, PoolingMode, TRANSFORMER_FILE};
use crate::{Error, Result};
use model_center_base::file::{is_inside, printable, read_text};
use model_center_formats::config::{Fields, fields_of};
use model_center_formats::tokenizer::KeepSide;
use serde_json::{Map, Value};
use std::path::Path;

pub(in crate::model) const PROMPTS_FILE: &str = "config_sentence_transformers.json";
const MAX_BYTES: u64 = 1 << 20;
/// Names of the transformer's settings; the first file that is there counts.
const TRANSFORMER_FILES: [&str; 7] = [
    TRANSFORMER_FILE,
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];
/// Lengths that tokenizers state where there is none.
const NO_LENGTH: f64 = 1e9;

/// Arguments of model classes without effect on embeddings, in `model_args` and its like.
const NEUTRAL_ARGUMENTS: [&str; 6] =
    ["trust_remote_code", "attn_implementation", "torch_dtype", "dtype", "add_pooling_layer", "low_cpu_mem_usage"];
/// Names of embeddings between modules.
const SENTENCE: &str = "sentence_embedding";

pub(super) fn read(directory: &Path) -> Result<SentenceEncoder> {
    let mut encoder = SentenceEncoder {
        size: None,
        max_length: None,
        truncates: false,
        keep: KeepSide::Start,
        is_lower_case: false,
        prompts: Map::new(),
        default_prompt: None,
        modes: vec![PoolingMode::Mean],
        steps: vec![Step::Normalize],
        drops: false,
    };
    if !is_inside(directory, MODULES_FILE)? {
        return Ok(encoder);
    }
    encoder.steps.clear();
    encoder.truncates = true;
    encoder.prompts = usual_prompts();
    modules(directory, &mut encoder)?;
    let settings = transformer_settings(directory, &SENTENCE_ENCODER)?;
    encoder.max_length = settings.max_length;
    (encoder.keep, encoder.is_lower_case) = (settings.keep, settings.is_lower_case);
    prompts(directory, &mut encoder)?;
    Ok(encoder)
}

/// The files that [`read`] reads, as far as the list of modules names them.
pub(super) fn files(directory: &Path) -> Result<Vec<String>> {
    // A GGUF file has none beside it.
    if !directory.is_dir() || !is_inside(directory, MODULES_FILE)? {
        return Ok(Vec::new());
    }
    let text = read_text(&directory.join(MODULES_FILE), MAX_BYTES)?;
    let modules: Value = serde_json::from_str(&text).unwrap_or_default();
    let paths = modules.as_array().into_iter().flatten().filter_map(|module| module.get("path")?.as_str());
    let inside = |path: &&str| !path.is_empty() && is_inside(directory, path).unwrap_or(false);
    let of_modules = paths.filter(inside).flat_map(|path| {
        ["config.json", "model.safetensors", "pytorch_model.bin"].map(|file| format!("{path}/{file}"))
    });
    let named = [MODULES_FILE, PROMPTS_FILE].into_iter().chain(TRANSFORMER_FILES).map(str::to_owned);
    Ok(named.chain(of_modules).collect())
}

/// The list of modules: a transformer, a pooling, and what follows.
fn modules(directory: &Path, encoder: &mut SentenceEncoder) -> Result<()> {
    let path = directory.join(MODULES_FILE);
    let wrong = |reason: String, fix: &str| Error::model(path.display().to_string(), reason, fix);
    let like = "use a model of a transformer, a pooling and perhaps Dense and Normalize";
    let text = read_text(&path, MAX_BYTES)?;
    let modules: Value =
        serde_json::from_str(&text).map_err(|error| wrong(format!("it is not JSON: {error}"), like))?;
    let modules = modules.as_array().ok_or_else(|| wrong("it is not a list".to_owned(), like))?;
    let mut is_pooled = false;
    for (number, module) in modules.iter().enumerate() {
        let (class, is_own) = class_of(module);
        let unsupported = || wrong(format!("the step {:?} is not supported", printable(&class, 60)), like);
        if !is_own {
            return Err(unsupported());
        }
        if module.get("kwargs").is_some_and(|kwargs| !is_empty(kwargs)) {
            let reason = format!("the step {class:?} takes arguments of calls (kwargs), which there are none of");
            return Err(wrong(reason, "use a model without them"));
        }
        let own = module.get("path").and_then(Value::as_str).unwrap_or_default();
        match (class.as_str(), number == 0, is_pooled) {
            ("Transformer", true, _) if own.is_empty() => {}
            ("Transformer", true, _) => {
                let reason = format!("the transformer is in a directory of its own, {:?}", printable(own, 60));
                let fix = "move its files into the model's directory, and set its path to \"\"";
                return Err(wrong(reason, fix));
            }
            ("Pooling", false, false) => {
                is_pooled = true;
                pooling(directory, own, encoder)?;
            }
            ("Normalize", false, true) => {
                let name = format!("{own}/config.json");
                if !own.is_empty() && is_inside(directory, &name)? {
                    let mut fields = fields_of(directory, &name)?;
                    take_names(&mut fields)?;
                    refuse_rest(fields)?;
                }
                encoder.steps.push(Step::Normalize);
            }
            ("Dense", false, true) => {
                let number = encoder.dense_files().count();
                let dense = Dense::read(directory, (own, number), encoder.size)?;
                encoder.size = Some(dense.file.settings.outputs);
                encoder.steps.push(Step::Dense(dense));
            }
            // Of training alone.
            ("Dropout", false, true) => encoder.drops = true,
            _ => return Err(unsupported()),
        }
    }
    match is_pooled {
        true => Ok(()),
        false => Err(wrong("no step makes one embedding of hidden states".to_owned(), like)),
    }
}

/// Reads the pooling modes: the newer list of them, or a flag for each.
fn pooling(directory: &Path, path: &str, encoder: &mut SentenceEncoder) -> Result<()> {
    let name = format!("{path}/config.json");
    if !is_inside(directory, &name)? {
        let place = directory.join(MODULES_FILE).display().to_string();
        return Err(Error::model(place, format!("there is no {name:?}"), "copy the whole model directory"));
    }
    let mut fields = fields_of(directory, &name)?;
    let wrong = |fields: &Fields, reason: String| {
        let known = PoolingMode::ALL.map(|(mode, _)| mode.name()).join(", ");
        Error::model(fields.place().to_owned(), reason, format!("use {known}"))
    };
    let mut flagged = Vec::new();
    for (mode, flag) in PoolingMode::ALL {
        flagged.extend(fields.take_flag(flag)?.unwrap_or(false).then_some(mode));
    }
    let named = match fields.take("pooling_mode") {
        None => None,
        Some(Value::String(name)) => Some(vec![name]),
        Some(Value::Array(names)) => {
            let names: Option<Vec<String>> = names.iter().map(|name| name.as_str().map(str::to_owned)).collect();
            let names = names.filter(|names| !names.is_empty());
            Some(names.ok_or_else(|| wrong(&fields, "pooling_mode is not a list of names".to_owned()))?)
        }
        Some(_) => return Err(wrong(&fields, "pooling_mode is neither a name nor a list of names".to_owned())),
    };
    encoder.modes = match named {
        None if flagged.is_empty() => vec![PoolingMode::Mean],
        None => flagged,
        Some(names) => {
            let mode = |name: &String| {
                let found = PoolingMode::ALL.into_iter().find(|(mode, _)| mode.name() == name);
                found.map(|(mode, _)| mode).ok_or_else(|| wrong(&fields, format!("it asks for the pooling {name:?}")))
            };
            names.iter().map(mode).collect::<Result<_>>()?
        }
    };
    let width = fields.take_size("embedding_dimension")?.or(fields.take_size("word_embedding_dimension")?);
    fields.take("word_embedding_dimension");
    encoder.size = width.map(|width| width.saturating_mul(encoder.modes.len()));
    if !fields.take_flag("include_prompt")?.unwrap_or(true) {
        let has_prompt = |encoder: &SentenceEncoder| encoder.prompts.values().any(|prompt| prompt.as_str() != Some(""));
        prompts(directory, encoder)?;
        if has_prompt(encoder) {
            let reason = "its embeddings leave out the tokens of prompts (include_prompt), which is not supported";
            let fix = "this model is not available here: use one whose embeddings have the tokens of prompts";
            return Err(Error::model(fields.place().to_owned(), reason, fix));
        }
    }
    refuse_rest(fields)
}

/// What a transformer gives to the modules after it.
pub(in crate::model) struct TransformerOutput {
    /// `transformer_task`.
    task: &'static str,
    /// The model's output that it is.
    method_output: &'static str,
    /// Its name.
    name: &'static str,
}

/// Of sentence encoders.
const SENTENCE_ENCODER: TransformerOutput =
    TransformerOutput { task: "feature-extraction", method_output: "last_hidden_state", name: "token_embeddings" };
/// Of cross-encoders.
pub(in crate::model) const CROSS_ENCODER: TransformerOutput =
    TransformerOutput { task: "sequence-classification", method_output: "logits", name: "scores" };

/// Settings of the transformer.
pub(in crate::model) struct TransformerSettings {
    pub(in crate::model) max_length: Option<usize>,
    pub(in crate::model) keep: KeepSide,
    pub(in crate::model) is_lower_case: bool,
}

/// Refuses other modules than the transformer in the model's own directory, if there is a list of them.
///
/// # Errors
/// A list that cannot be read; another module, such as the one that compares two tokens of a decoder.
pub(in crate::model) fn only_transformer(directory: &Path) -> Result<()> {
    if !is_inside(directory, MODULES_FILE)? {
        return Ok(());
    }
    let path = directory.join(MODULES_FILE);
    let wrong = |reason: String| {
        let fix = "use a CrossEncoder of a sequence classifier alone";
        Err(Error::model(path.display().to_string(), reason, fix))
    };
    let modules: Value = match serde_json::from_str(&read_text(&path, MAX_BYTES)?) {
        Ok(modules) => modules,
        Err(error) => return wrong(format!("it is not JSON: {error}")),
    };
    let Some(modules) = modules.as_array() else { return wrong("it is not a list".to_owned()) };
    for (number, module) in modules.iter().enumerate() {
        let (class, is_own) = class_of(module);
        let path = module.get("path").and_then(Value::as_str).unwrap_or_default();
        if number > 0 || !is_own || class != "Transformer" || !path.is_empty() {
            return wrong(format!("the step {:?} is not supported in a cross-encoder", printable(&class, 60)));
        }
    }
    Ok(())
}

/// The settings of the transformer, and the length that its tokenizer states.
///
/// # Errors
/// Files that cannot be read; settings that are not supported, among them another output.
pub(in crate::model) fn transformer_settings(
    directory: &Path,
    output: &TransformerOutput,
) -> Result<TransformerSettings> {
    let mut settings = TransformerSettings { max_length: None, keep: KeepSide::Start, is_lower_case: false };
    if is_inside(directory, "tokenizer_config.json")? {
        let fields = fields_of(directory, "tokenizer_config.json")?;
        let length = fields.peek("model_max_length").and_then(Value::as_f64).filter(|length| *length < NO_LENGTH);
        settings.max_length = length.filter(|length| *length >= 1.0).map(|length| length as usize);
        if fields.peek("truncation_side").and_then(Value::as_str) == Some("left") {
            settings.keep = KeepSide::End;
        }
    }
    let mut found = None;
    for name in TRANSFORMER_FILES {
        found = found.or(is_inside(directory, name)?.then_some(name));
    }
    let Some(name) = found else { return Ok(settings) };
    let mut fields = fields_of(directory, name)?;
    settings.max_length = fields.take_size("max_seq_length")?.or(settings.max_length);
    settings.is_lower_case = fields.take_flag("do_lower_case")?.unwrap_or(false);
    NEUTRAL.iter().for_each(|name| drop(fields.take(name)));
    for name in ARGUMENTS {
        let mut arguments = match fields.take(name) {
            Some(Value::Object(arguments)) => arguments,
            Some(other) if !is_empty(&other) => return Err(unsupported(&fields, name, &other)),
            _ => continue,
        };
        arguments.retain(|name, value| !NEUTRAL_ARGUMENTS.contains(&name.as_str()) && !is_empty(value));
        if let Some((inner, value)) = arguments.iter().next() {
            return Err(unsupported(&fields, &format!("{name}.{inner}"), value));
        }
    }
    expect(&mut fields, "transformer_task", output.task)?;
    expect(&mut fields, "module_output_name", output.name)?;
    match fields.take("modality_config") {
        Some(Value::Object(modalities)) => {
            let text = modalities.get("text").and_then(Value::as_object);
            let has = |name: &str, value: &str| text.is_some_and(|text| text.get(name).is_some_and(|own| own == value));
            if !has("method", "forward") || !has("method_output_name", output.method_output) {
                return Err(unsupported(&fields, "modality_config", &modalities.into()));
            }
        }
        Some(other) if !is_empty(&other) => return Err(unsupported(&fields, "modality_config", &other)),
        _ => {}
    }
    refuse_rest(fields)?;
    Ok(settings)
}

/// The prompts that every encoder has, empty where the directory has no text for them.
fn usual_prompts() -> Map<String, Value> {
    ["query", "document"].map(|name| (name.to_owned(), Value::from(""))).into_iter().collect()
}

/// The prompts, and the one that texts have by default.
fn prompts(directory: &Path, encoder: &mut SentenceEncoder) -> Result<()> {
    if !is_inside(directory, PROMPTS_FILE)? {
        return Ok(());
    }
    let mut fields = fields_of(directory, PROMPTS_FILE)?;
    NEUTRAL_OF_PROMPTS.iter().for_each(|name| drop(fields.take(name)));
    expect(&mut fields, "model_type", "SentenceTransformer")?;
    let prompts = match fields.take("prompts") {
        Some(Value::Object(prompts)) => prompts,
        Some(other) if !is_empty(&other) => return Err(unsupported(&fields, "prompts", &other)),
        _ => Map::new(),
    };
    encoder.prompts = usual_prompts();
    encoder.prompts.extend(prompts.into_iter().map(|(name, prompt)| match prompt {
        Value::Null => (name, "".into()),
        prompt => (name, prompt),
    }));
    if let Some((name, other)) = encoder.prompts.iter().find(|(_, prompt)| !prompt.is_string()) {
        return Err(unsupported(&fields, &format!("prompts.{name}"), other));
    }
    encoder.default_prompt = fields.take_text("default_prompt_name")?;
    if let Some(name) = encoder.default_prompt.as_ref().filter(|name| !encoder.prompts.contains_key(*name)) {
        let reason = format!("default_prompt_name is {:?}, and no prompt has this name", printable(name, 60));
        return Err(Error::model(fields.place().to_owned(), reason, "add the prompt, or remove the name"));
    }
    refuse_rest(fields)
}

/// The prompts of a directory, with the name of the default one and how embeddings are compared, as a directory of a
/// model that is trained on has them again; `None` where it has no such file.
pub(in crate::model) fn kept_prompts(directory: &Path) -> Result<Option<Value>> {
    if !is_inside(directory, PROMPTS_FILE)? {
        return Ok(None);
    }
    let mut fields = fields_of(directory, PROMPTS_FILE)?;
    let kept = ["prompts", "default_prompt_name", "similarity_fn_name"];
    let kept = kept.into_iter().filter_map(|name| Some((name.to_owned(), fields.take(name)?)));
    Ok(Some(Value::Object(kept.collect())))
}

/// Takes the names of what a module reads and writes, which have to be the embedding.
pub(super) fn take_names(fields: &mut Fields) -> Result<()> {
    expect(fields, "module_input_name", SENTENCE)?;
    expect(fields, "module_output_name", SENTENCE)
}

/// Refuses fields that were not taken.
pub(super) fn refuse_rest(fields: Fields) -> Result<()> {
    let place = fields.place().to_owned();
    let rest = fields.into_rest();
    match rest.iter().find(|(_, value)| !is_empty(value)) {
        None => Ok(()),
        Some((name, value)) => Err(unsupported(&Fields::of_map(Map::new(), &place), name, value)),
    }
}

/// Takes a field that has one value if it is there.
fn expect(fields: &mut Fields, name: &str, expected: &str) -> Result<()> {
    match fields.take(name) {
        Some(value) if value != expected && !is_empty(&value) => Err(unsupported(fields, name, &value)),
        _ => Ok(()),
    }
}

fn unsupported(fields: &Fields, name: &str, value: &Value) -> Error {
    let (name, value) = (printable(name, 60), printable(&value.to_string(), 60));
    let reason = format!("{name} is {value}, which is not supported");
    Error::model(fields.place().to_owned(), reason, "use a model without it, or remove the field if it has no effect")
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}
