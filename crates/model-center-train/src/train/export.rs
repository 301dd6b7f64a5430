//! A checkpoint of a run as a model directory, without the run: `bmtrain ckpt export`.
//!
//! Defines [`SavedModel`], the model of a run as its checkpoints record it, and [`export()`].

use super::beside::{BesideChange, changes_of_export};
use super::finetune::RunConfig;
use super::model_options::{save_options, whole_options};
use crate::{Error, Result};
use bmtrain_core::limits::make_room;
use bmtrain_core::offload::widen;
use bmtrain_core::{DType, Device};
use bmtrain_dist::checkpoint::{Checkpoint, Kind};
use bmtrain_dist::optim::average::AVERAGE;
use model_center_base::file::{StagedDirectory, printable};
use model_center_data::{TextFormats, write_formats};
use model_center_formats::config::{ConfigSource, ProblemType, TextHead};
use model_center_formats::directory::{CONFIG_FILE, DirectoryLayout, copy_companions};
use model_center_formats::{names::ParamShape, shortened};
use model_center_models::adapter::{ADAPTER_CONFIG, Adapter, AdapterPlan, PeftDetails};
use model_center_models::load::registry::param_shapes;
use model_center_models::{HeadInit, OpenMode, OpenOptions, OpenedModel, Pooling, Registry, SaveOptions};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The member of a manifest's layout that holds the model of the run.
pub(super) const MODEL: &str = "model";

/// Facts from which a directory of a run is made a model: which directory, which head, which labels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedModel {
    directory: PathBuf,
    family: Option<String>,
    leave: Vec<String>,
    /// Outputs of the classifier; without them the head is for tokens.
    outputs: Option<usize>,
    /// Which head, where it is neither a classifier of sequences nor for tokens of the vocabulary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    head: Option<SavedHead>,
    head_values: SavedHeadInit,
    labels: Vec<String>,
    problem: Option<String>,
    hidden_dropout: Option<f32>,
    attention_dropout: Option<f32>,
    /// Trained part of it, where that is not all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    adapter: Option<Adapter>,
    /// The configuration of a run that began without weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    config: Option<ConfigSource>,
    /// Formats of inputs and outputs; `None` for those that the directory keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    formats: Option<Vec<TextFormats>>,
    /// How hidden states become embeddings, where these were trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pooling: Option<Pooling>,
    /// Dtype of the weights that the run writes.
    dtype: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SavedHead {
    TokenClassification,
    QuestionAnswering,
    /// Hidden states alone.
    Base,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SavedHeadInit {
    Directory,
    DirectoryOrRandom,
    Random,
}

/// How a checkpoint is exported.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExportOptions<'a> {
    /// The directory of the model that the run began with; `None` where it was then. The configuration and the
    /// tokenizer come from it.
    pub model: Option<&'a Path>,
    /// Dtype of the weights; `None` for the one of the run (`save.dtype`).
    pub dtype: Option<DType>,
    /// Whose names and files are written.
    pub layout: DirectoryLayout,
}

/// Directory that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// The directory.
    pub directory: PathBuf,
    /// Parameters.
    pub parameters: usize,
    /// Their values.
    pub values: usize,
    /// Dtype of the weights.
    pub dtype: DType,
    /// Fields of the configuration that the written layout cannot hold.
    pub left_out: Vec<String>,
}

impl SavedModel {
    /// The model of this run.
    pub(super) fn of(config: &RunConfig) -> Self {
        let (setup, resolved) = (&config.setup, &config.resolved);
        let nowhere = Device::new(Arc::new(bmtrain_core::wrap::Counting::new(0)));
        let options = whole_options(resolved, setup.train.labels(), &nowhere);
        let outputs = match options.head {
            Some(TextHead::Classification { outputs } | TextHead::TokenClassification { outputs }) => Some(outputs),
            _ => None,
        };
        let head = match options.head {
            Some(TextHead::TokenClassification { .. }) => Some(SavedHead::TokenClassification),
            Some(TextHead::QuestionAnswering) => Some(SavedHead::QuestionAnswering),
            Some(TextHead::None) => Some(SavedHead::Base),
            _ => None,
        };
        let head_values = match options.head_values {
            HeadInit::Directory => SavedHeadInit::Directory,
            HeadInit::DirectoryOrRandom => SavedHeadInit::DirectoryOrRandom,
            HeadInit::Random => SavedHeadInit::Random,
        };
        SavedModel {
            // From wherever it is exported.
            directory: setup.start.directory.canonicalize().unwrap_or_else(|_| setup.start.directory.clone()),
            family: options.family,
            leave: options.ignored,
            outputs,
            head,
            head_values,
            labels: options.labels,
            problem: options.problem.map(|problem| problem.name().to_owned()),
            hidden_dropout: options.hidden_dropout,
            attention_dropout: options.attention_dropout,
            adapter: options.adapter.map(from_anywhere),
            config: setup.start.config.as_deref().cloned(),
            formats: resolved.data.source.task().text_formats(),
            pooling: setup.pooling.clone(),
            dtype: save_options(resolved, &setup.start.directory).dtype.name().to_owned(),
        }
    }

    /// As a manifest's layout holds it.
    pub(super) fn to_value(&self) -> Value {
        serde_json::to_value(self).unwrap_or(Value::Null)
    }

    /// The model that a checkpoint in `place` records.
    fn from_layout(layout: &Map<String, Value>, place: &str) -> Result<Self> {
        let Some(value) = layout.get(MODEL) else {
            let reason = "the checkpoint does not record its model: an earlier version, or another program, saved it";
            let fix = "resume the run from it with this version; its next checkpoint records the model";
            return Err(Error::model(place, reason, fix));
        };
        serde_json::from_value(value.clone()).map_err(|error| {
            let reason = format!("the model that the checkpoint records is malformed: {error}");
            Error::model(place, printable(&reason, 300), "use a checkpoint that this program saved")
        })
    }

    fn options(&self, device: &Device, place: &str) -> Result<OpenOptions> {
        let unknown = |name: &String| {
            let reason = format!("unknown problem type \"{}\"", printable(name, 60));
            Error::model(place, reason, "use a checkpoint that this program saved")
        };
        let problem = self.problem.as_ref().map(|name| ProblemType::from_name(name).ok_or_else(|| unknown(name)));
        let head = match (self.head, self.outputs) {
            (Some(SavedHead::QuestionAnswering), _) => TextHead::QuestionAnswering,
            (Some(SavedHead::Base), _) => TextHead::None,
            (Some(SavedHead::TokenClassification), outputs) => {
                TextHead::TokenClassification { outputs: outputs.unwrap_or(0) }
            }
            (None, Some(outputs)) => TextHead::Classification { outputs },
            (None, None) => TextHead::CausalLm,
        };
        Ok(OpenOptions {
            family: self.family.clone(),
            ignored: self.leave.clone(),
            head: Some(head),
            head_values: match self.head_values {
                SavedHeadInit::Directory => HeadInit::Directory,
                SavedHeadInit::DirectoryOrRandom => HeadInit::DirectoryOrRandom,
                SavedHeadInit::Random => HeadInit::Random,
            },
            labels: self.labels.clone(),
            sentence_modules: self.pooling.is_some(),
            problem: problem.transpose()?,
            hidden_dropout: self.hidden_dropout,
            attention_dropout: self.attention_dropout,
            adapter: self.adapter.clone(),
            mode: OpenMode::Check,
            from_config: self.config.is_some(),
            config: self.config.clone().map(Arc::new),
            ..OpenOptions::new(device)
        })
    }
}

/// Write the parameters of a checkpoint of a fine-tuning run as a complete model directory: what the run would write if
/// it ended there. Any number of ranks in any layout may have saved it. The directory appears complete or not at all.
///
/// Memory: the largest parameter, as f32 and as it is stored.
///
/// # Errors
/// A directory `to` that is not empty; a checkpoint that does not record its model, or is of another one; damage that
/// is found in the checkpoint; what the disk refuses.
pub fn export(
    checkpoint: &Checkpoint,
    to: &Path,
    options: ExportOptions<'_>,
    registry: Registry<'_>,
) -> Result<Exported> {
    let place = checkpoint.name().to_string();
    let saved = SavedModel::from_layout(&checkpoint.manifest().facts.layout, &place)?;
    StagedDirectory::require_free(to)?;
    let directory = options.model.unwrap_or(&saved.directory);
    if !directory.is_dir() {
        let reason = "the directory of the model that the run began with is not here";
        let fix = "give its present place with --model: the configuration and the tokenizer come from it";
        return Err(Error::model(directory.display().to_string(), reason, fix));
    }
    let device = Device::cpu(1)?;
    let adapter = saved.adapter.as_ref().and_then(|adapter| adapter.directories().into_iter().next());
    let changes = changes_of_export(&checkpoint.manifest().facts.layout, directory, adapter)?;
    let fix = "bring it back as it was, or give with --model a directory that has it";
    BesideChange::refusal(&changes, &place, fix).map_or(Ok(()), Err)?;
    let opened = registry.open(directory, &saved.options(&device, &place)?)?;
    check(checkpoint, &opened, &place)?;
    let values = opened.adapter.as_ref().map_or(opened.parameters, AdapterPlan::values);
    let dtype = match options.dtype {
        Some(dtype) => dtype,
        None => of_name(&saved.dtype, &place)?,
    };
    let save = SaveOptions { dtype, companions: Some(directory), layout: options.layout };
    opened.model.check_save(&save)?;
    let last = if opened.adapter.is_some() { ADAPTER_CONFIG } else { CONFIG_FILE };
    let staged = StagedDirectory::for_result(to, last)?;
    let mut fill = |name: &str, values: &mut Vec<f32>| read(checkpoint, name, values);
    let (parameters, left_out) = match &opened.adapter {
        Some(_) if options.layout != DirectoryLayout::HuggingFace => {
            let reason = "the checkpoint has an adapter, which ModelCenter's layout does not hold";
            return Err(Error::argument(place, reason, "export it in Hugging Face's layout, as a PEFT directory"));
        }
        Some(plan) => {
            let base_model = &directory.display().to_string();
            plan.write(staged.path(), &PeftDetails { base_model, revision: None, dtype }, &mut fill)?;
            copy_companions(directory, staged.path())?;
            if let Some(pooling) = &saved.pooling {
                pooling.write_frozen_dense(directory, staged.path(), dtype)?;
            }
            (plan.written().count(), Vec::new())
        }
        None => {
            opened.model.write(staged.path(), &save, &mut fill)?;
            (opened.model.parameters().iter().count(), opened.model.left_out(&save)?)
        }
    };
    if let Some(formats) = &saved.formats {
        write_formats(staged.path(), formats)?;
    }
    if let Some(pooling) = &saved.pooling {
        pooling.write(staged.path(), opened.model.info().hidden_size)?;
    }
    Ok(Exported { directory: staged.commit()?, parameters, values, dtype, left_out })
}

/// An adapter whose directory is found from wherever the program runs.
fn from_anywhere(adapter: Adapter) -> Adapter {
    adapter.map_paths(|directory| directory.canonicalize().unwrap_or(directory))
}

/// Whether the checkpoint has exactly the parameters of the model.
fn check(checkpoint: &Checkpoint, opened: &OpenedModel, place: &str) -> Result<()> {
    let fix = "give the directory of the model that the run began with (--model)";
    let parameters = opened.model.parameters();
    let expected: Vec<ParamShape> = match &opened.adapter {
        Some(plan) => plan.shapes(),
        None => param_shapes(parameters),
    };
    let saved = || checkpoint.tensors().iter().filter(|tensor| tensor.kind == Kind::Parameter);
    let other: Vec<String> = saved()
        .map(|tensor| tensor.name.clone())
        .filter(|name| expected.iter().all(|param| param.name != *name))
        .collect();
    if !other.is_empty() {
        let reason = format!("parameters of the checkpoint that the model lacks: {}", shortened(&other));
        return Err(Error::model(place, reason, fix));
    }
    for ParamShape { name, shape } in expected {
        let sizes: Vec<u64> = shape.iter().map(|&size| size as u64).collect();
        let found = checkpoint.tensor(&name, &Kind::Parameter);
        if found.is_none_or(|found| found.shape != sizes || !found.dtype.is_float()) {
            let found = found.map_or("nothing".to_owned(), |found| format!("{} {:?}", found.dtype, found.shape));
            let reason = format!("parameter {name}: the model has shape {shape:?}, the checkpoint {found}");
            return Err(Error::model(place, reason, fix));
        }
    }
    Ok(())
}

/// The full values of a parameter, widened, or its average if the checkpoint has one.
fn read(checkpoint: &Checkpoint, name: &str, values: &mut Vec<f32>) -> Result<()> {
    let missing = || Error::model(format!("parameter {name}"), "it is not in the checkpoint", "report this");
    let average = Kind::Other(AVERAGE.to_owned());
    let kind = if checkpoint.tensor(name, &average).is_some() { average } else { Kind::Parameter };
    let tensor = checkpoint.tensor(name, &kind).ok_or_else(missing)?;
    let bytes = checkpoint.read_range(name, &kind, 0..tensor.elements)?;
    let elements = bytes.len() / tensor.dtype.size();
    values.clear();
    make_room(values, elements, format_args!("parameter {name}"))?;
    values.resize(elements, 0.0);
    Ok(widen(&bytes, tensor.dtype, values)?)
}

fn of_name(name: &str, place: &str) -> Result<DType> {
    let known = [DType::F32, DType::F16, DType::BF16].into_iter().find(|dtype| dtype.name() == name);
    known.ok_or_else(|| {
        let reason = format!("the checkpoint records weights of unknown dtype \"{}\"", printable(name, 60));
        Error::model(place, reason, "give --dtype")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn saved() -> SavedModel {
        SavedModel {
            directory: "/models/tiny".into(),
            family: None,
            leave: vec!["ner.*".into()],
            outputs: Some(3),
            head: None,
            head_values: SavedHeadInit::DirectoryOrRandom,
            labels: ["a", "b", "c"].map(str::to_owned).into(),
            problem: Some("single_label_classification".into()),
            hidden_dropout: Some(0.1),
            attention_dropout: None,
            adapter: None,
            config: None,
            formats: None,
            pooling: Some(Pooling::MEAN),
            dtype: "bf16".into(),
        }
    }

    #[test]
    fn the_model_comes_back_from_the_layout_of_a_manifest() {
        let layout = Map::from_iter([(MODEL.to_owned(), saved().to_value())]);
        assert_eq!(SavedModel::from_layout(&layout, "c").unwrap(), saved());
        let device = Device::cpu(1).unwrap();
        let options = saved().options(&device, "c").unwrap();
        assert_eq!(options.head, Some(TextHead::Classification { outputs: 3 }));
        assert_eq!((options.hidden_dropout, options.problem), (Some(0.1), Some(ProblemType::SingleLabel)));
        assert_eq!(of_name("bf16", "c").unwrap(), DType::BF16);
    }

    #[test]
    fn what_no_run_recorded_is_refused() {
        let error = |layout: Value| {
            let layout = layout.as_object().unwrap().clone();
            let device = Device::cpu(1).unwrap();
            let model = SavedModel::from_layout(&layout, "step-1");
            model.and_then(|model| model.options(&device, "step-1").map(drop)).unwrap_err().to_string()
        };
        assert!(error(json!({})).contains("does not record its model"));
        assert!(error(json!({"model": {}})).contains("malformed: missing field"));
        let mut other = saved().to_value();
        other["problem"] = "poetry".into();
        assert!(error(json!({"model": other})).contains("unknown problem type \"poetry\""));
        assert!(of_name("i64", "c").unwrap_err().to_string().contains("unknown dtype"));
    }
}
