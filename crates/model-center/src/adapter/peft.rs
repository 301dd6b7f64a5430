//! PEFT's directories: `adapter_config.json` and `adapter_model.safetensors`, read and written.
//!
//! Source: PEFT 0.17, `LoraConfig` and `get_peft_model_state_dict`. Tensors have the path of their module after
//! `base_model.model.`; `lora_A` is `[R, K]` and `lora_B` `[N, R]`, whichever way the weight is stored.

use super::modules::{LinearModule, names_module};
use super::plan::{AdapterPlan, LoraUpdate};
use super::{LoraConfig, weights_path};
use crate::config::json::{number, parse_object, to_text};
use crate::file::{printable, read_text, write_atomic};
use crate::formats::safetensors::{SafetensorsFile, SafetensorsWriter, TensorEntry, TensorSource, stored};
use crate::formats::{NameTable, TensorPart};
use crate::model::{Fill, TextHead};
use crate::{Error, Result};
use bmtrain_core::DType;
use bmtrain_dist::Parameters;
use bmtrain_dist::param::Param;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The configuration of a PEFT directory.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";
/// Its weights.
pub const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";

/// What precedes the path of a module.
const PREFIX: &str = "base_model.model.";
/// The largest configuration that is read. Real ones have about 1 KiB.
const CONFIG_LIMIT: u64 = 1 << 20;
/// Parts of LoRA that are not available, with the values that leave them out.
const NOT_AVAILABLE: [&str; 12] = [
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "lora_bias",
    "target_parameters",
    "trainable_token_indices",
    "layer_replication",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "velora_config",
];
const SAVE_AGAIN: &str = "use an adapter of this model that PEFT or this program saved";

/// What a PEFT directory states beside its updates.
#[derive(Debug, Clone, Copy)]
pub struct PeftDetails<'a> {
    /// The model that is updated: a path, or a name of the hub.
    pub base_model: &'a str,
    /// Its branch, tag or commit.
    pub revision: Option<&'a str>,
    /// Dtype of the written tensors.
    pub dtype: DType,
}

/// A PEFT directory whose configuration and header are read.
#[derive(Debug)]
pub(super) struct PeftDirectory {
    path: PathBuf,
    config: LoraConfig,
    base_model: Option<String>,
    /// Alphas of some modules, by names as in the targets.
    alphas: Vec<(String, f32)>,
    /// `lora_A`, `lora_B` and their shapes, by the path of the module.
    updates: BTreeMap<String, [TensorEntry; 2]>,
    /// Names of all tensors, without the prefix.
    names: BTreeSet<String>,
}

impl PeftDirectory {
    pub(super) fn open(directory: &Path) -> Result<Self> {
        let path = directory.join(ADAPTER_CONFIG);
        let place = path.display().to_string();
        let fields = parse_object(&read_text(&path, CONFIG_LIMIT)?, &place)?;
        let (config, alphas) = read_config(&fields, &place)?;
        let base_model = fields.get("base_model_name_or_path").and_then(Value::as_str).map(str::to_owned);
        let weights = SafetensorsFile::open(&weights_path(directory))?;
        let mut names = BTreeSet::new();
        let mut halves: BTreeMap<String, [Option<TensorEntry>; 2]> = BTreeMap::new();
        for entry in weights.tensors() {
            let refused = |reason: &str| Error::model(tensor(&weights, &entry.name), reason, SAVE_AGAIN);
            let Some(name) = entry.name.strip_prefix(PREFIX) else {
                return Err(refused(&format!("its name does not begin with \"{PREFIX}\"")));
            };
            let half = [".lora_A.weight", ".lora_B.weight"].iter().position(|end| name.ends_with(end));
            match half {
                Some(half) => {
                    let module = name[..name.len() - ".lora_A.weight".len()].to_owned();
                    halves.entry(module).or_default()[half] = Some(entry.clone());
                }
                None if name.contains(".lora_") => return Err(refused("only the matrices of LoRA itself are read")),
                None => {}
            }
            names.insert(name.to_owned());
        }
        let mut updates = BTreeMap::new();
        for (module, halves) in halves {
            let wrong =
                |reason: &str| Error::model(format!("{}, module {module}", weights.place()), reason, SAVE_AGAIN);
            let [Some(a), Some(b)] = halves else { return Err(wrong("one of lora_A and lora_B is missing")) };
            match (a.shape.as_slice(), b.shape.as_slice()) {
                (&[rank, _], &[_, columns]) if rank == columns && rank > 0 => {}
                _ => return Err(wrong(&format!("lora_A {:?} and lora_B {:?} do not fit", a.shape, b.shape))),
            }
            updates.insert(module, [a, b]);
        }
        if updates.is_empty() {
            return Err(Error::model(weights.place(), "there is no lora_A in it", SAVE_AGAIN));
        }
        Ok(PeftDirectory { path: directory.to_owned(), config, base_model, alphas, updates, names })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn config(&self) -> &LoraConfig {
        &self.config
    }

    pub(super) fn base_model(&self) -> Option<&str> {
        self.base_model.as_deref()
    }

    /// The model's modules that are updated, each with its rank and the factor of its update, in the model's order.
    pub(super) fn chosen<'m>(
        &self,
        modules: &'m [LinearModule],
        names: &NameTable,
    ) -> Result<Vec<(&'m LinearModule, usize, f32)>> {
        let mut chosen = Vec::new();
        for module in modules {
            let Some((path, [a, b])) = self.update_of(&module.path, names.base_prefix) else { continue };
            let wrong = |reason: String| {
                Error::model(format!("{}, module {path}", weights_path(&self.path).display()), reason, SAVE_AGAIN)
            };
            if module.is_vocabulary() {
                return Err(wrong("the output projection has no low-rank update here".to_owned()));
            }
            let (rows, inputs) = (module.part.rows.len(), module.layer.inputs);
            if a.shape.get(1) != Some(&inputs) || b.shape.first() != Some(&rows) {
                let got = format!("lora_A {:?} and lora_B {:?}", a.shape, b.shape);
                return Err(wrong(format!("{got} are not for a weight of {rows} rows and {inputs} columns")));
            }
            let rank = a.shape.first().copied().unwrap_or(1);
            let alpha = self.alphas.iter().find(|(name, _)| names_module(std::slice::from_ref(name), path));
            let config =
                LoraConfig { alpha: alpha.map_or(self.config.alpha, |(_, alpha)| *alpha), ..self.config.clone() };
            chosen.push((module, rank, config.scale(rank)));
        }
        if chosen.len() != self.updates.len() {
            let known = |path: &&String| {
                modules
                    .iter()
                    .any(|module| module.path == **path || module.path.strip_prefix(names.base_prefix) == Some(path))
            };
            let unknown = self.updates.keys().find(|path| !known(path)).map_or("", String::as_str);
            let reason = format!("the model has no linear layer {}", printable(unknown, 120));
            return Err(Error::model(weights_path(&self.path).display().to_string(), reason, SAVE_AGAIN));
        }
        Ok(chosen)
    }

    /// The update of a module, under its path with the base model's prefix or without.
    fn update_of(&self, path: &str, base_prefix: &str) -> Option<(&String, &[TensorEntry; 2])> {
        let bare = path.strip_prefix(base_prefix);
        [Some(path), bare].into_iter().flatten().find_map(|path| self.updates.get_key_value(path))
    }

    /// The name that the file has for this tensor: with the base model's prefix or without.
    fn find(&self, name: &str, base_prefix: &str) -> Option<String> {
        let name = name.strip_prefix(PREFIX)?;
        let bare = name.strip_prefix(base_prefix);
        let found = [Some(name), bare].into_iter().flatten().find(|name| self.names.contains(*name));
        found.map(|name| format!("{PREFIX}{name}"))
    }
}

fn read_config(fields: &Map<String, Value>, place: &str) -> Result<(LoraConfig, Vec<(String, f32)>)> {
    let wrong = |field: &str, reason: &str, fix: &str| Error::model(format!("{place}, field {field}"), reason, fix);
    let method = fields.get("peft_type").and_then(Value::as_str).unwrap_or_default();
    if method != "LORA" {
        let reason = format!("the method \"{}\" is not read", printable(method, 60));
        return Err(wrong("peft_type", &reason, "use an adapter of LoRA"));
    }
    let is_off = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(items) => items.is_empty(),
        _ => false,
    };
    if let Some(field) = NOT_AVAILABLE.iter().find(|field| !fields.get(**field).is_none_or(is_off)) {
        return Err(wrong(field, "this part of PEFT's LoRA is not available", "use an adapter without it"));
    }
    let number = |field: &str, default: f32| match fields.get(field) {
        None | Some(Value::Null) => Ok(default),
        Some(value) => match value.as_f64().filter(|value| value.is_finite()) {
            Some(value) => Ok(value as f32),
            None => Err(wrong(field, "it is not a number", SAVE_AGAIN)),
        },
    };
    let rank = fields.get("r").and_then(Value::as_u64).and_then(|rank| usize::try_from(rank).ok()).unwrap_or(8);
    let alphas = match fields.get("alpha_pattern") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Object(patterns)) => patterns
            .iter()
            .map(|(name, alpha)| {
                let alpha = alpha.as_f64().filter(|alpha| alpha.is_finite());
                let is_plain = name.chars().all(|letter| letter.is_alphanumeric() || "._".contains(letter));
                match alpha {
                    Some(alpha) if is_plain => Ok((name.clone(), alpha as f32)),
                    Some(_) => Err(wrong("alpha_pattern", "regular expressions are not read", "name the modules")),
                    None => Err(wrong("alpha_pattern", "a value is not a number", SAVE_AGAIN)),
                }
            })
            .collect::<Result<_>>()?,
        Some(_) => return Err(wrong("alpha_pattern", "it is not an object", SAVE_AGAIN)),
    };
    let texts = |field: &str| match fields.get(field) {
        Some(Value::Array(names)) => names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect(),
        Some(Value::String(name)) => vec![name.clone()],
        _ => Vec::new(),
    };
    let config = LoraConfig {
        rank,
        alpha: number("lora_alpha", 8.0)?,
        rank_stabilized: fields.get("use_rslora").and_then(Value::as_bool).unwrap_or(false),
        dropout: number("lora_dropout", 0.0)?,
        targets: texts("target_modules"),
        trained: texts("modules_to_save"),
    };
    if !(0.0..1.0).contains(&config.dropout) {
        return Err(wrong("lora_dropout", "it is not in [0, 1)", SAVE_AGAIN));
    }
    Ok((config, alphas))
}

fn tensor(weights: &SafetensorsFile, name: &str) -> String {
    format!("{}, tensor {}", weights.place(), printable(name, 200))
}

/// The values of a PEFT directory under our names.
#[derive(Debug)]
pub struct SavedValues<'p> {
    plan: &'p AdapterPlan,
    saved: &'p PeftDirectory,
    weights: SafetensorsFile,
}

impl SavedValues<'_> {
    /// The full values of a parameter; `None` of one that the directory does not have.
    ///
    /// # Errors
    /// A tensor of another shape than the parameter's; what the disk refuses.
    pub fn get(&self, name: &str) -> Result<Option<Vec<f32>>> {
        let SavedValues { plan, saved, weights } = self;
        let parts = plan.parts(name);
        let found = parts.iter().map(|part| saved.find(&part.name, plan.base_prefix));
        let Some(found) = found.collect::<Option<Vec<String>>>().filter(|found| !found.is_empty()) else {
            return Ok(None);
        };
        let mut values = vec![0.0; parts.iter().map(|part| part.elements().len()).sum()];
        for (part, theirs) in parts.iter().zip(&found) {
            let entry = weights.entry(theirs).filter(|entry| entry.shape == part.shape).ok_or_else(|| {
                let reason = format!("it is not of shape {:?}, as the model has it", part.shape);
                Error::model(tensor(weights, theirs), reason, SAVE_AGAIN)
            })?;
            part.arrange(&read(weights, entry)?, &mut values[part.elements()]);
        }
        Ok(Some(values))
    }
}

impl AdapterPlan {
    /// The values of the PEFT directory; `None` of new updates.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn saved_values(&self) -> Result<Option<SavedValues<'_>>> {
        let Some(saved) = self.saved.as_deref() else { return Ok(None) };
        let weights = SafetensorsFile::open(&weights_path(saved.path()))?;
        Ok(Some(SavedValues { plan: self, saved, weights }))
    }

    /// Load the values of the PEFT directory, if there is one, into the model's parameters that this rank holds. New
    /// updates and modules that the directory does not have are left as they are.
    ///
    /// # Errors
    /// As [`SavedValues::get`].
    pub fn load(&self, parameters: &Parameters) -> Result<()> {
        let Some(saved) = self.saved_values()? else { return Ok(()) };
        for param in self.written().filter_map(|name| parameters.get(name)) {
            if let Some(values) = saved.get(param.name())? {
                load(param, &values)?;
            }
        }
        Ok(())
    }

    /// Our names of the written parameters, in the order in which [`AdapterPlan::write`] asks for their values.
    pub fn written(&self) -> impl Iterator<Item = &str> {
        let updates = self.updates.iter().flat_map(|update| [update.a.as_str(), update.b.as_str()]);
        updates.chain(self.trained.iter().map(|param| param.name.as_str()))
    }

    /// PEFT's tensors that make up one of the written parameters, with their full names; none of any other.
    pub(crate) fn parts(&self, name: &str) -> Vec<TensorPart> {
        let of_module = |update: &LoraUpdate, half: &str| format!("{PREFIX}{}.{half}.weight", update.module);
        for update in &self.updates {
            if name == update.a {
                let (shape, rows) = (vec![update.rank, update.part.columns()], 0..update.rank);
                let name = of_module(update, "lora_A");
                return vec![TensorPart { name, shape, rows, transposed: false, interleaved: None }];
            }
            if name == update.b {
                // Its rows are in the order of the module's.
                return vec![TensorPart { name: of_module(update, "lora_B"), ..update.part.with_columns(update.rank) }];
            }
        }
        let trained = self.trained.iter().find(|param| param.name == name);
        let prefixed = |part: &TensorPart| TensorPart { name: format!("{PREFIX}{}", part.name), ..part.clone() };
        trained.into_iter().flat_map(|param| param.parts.iter().map(prefixed)).collect()
    }

    /// Write a PEFT directory, which exists. `fill` puts the values of the named parameter into a vector; it is called
    /// once for each of [`AdapterPlan::written`], in order.
    ///
    /// # Errors
    /// Values that the dtype cannot hold; what the disk refuses; errors of `fill`.
    pub fn write(&self, directory: &Path, details: &PeftDetails<'_>, fill: Fill<'_>) -> Result<()> {
        let dtype = stored(details.dtype)?;
        let parts: Vec<(&str, Vec<TensorPart>)> = self.written().map(|name| (name, self.parts(name))).collect();
        let entry = |part: &TensorPart| TensorEntry::new(part.name.clone(), dtype, part.shape.clone());
        let entries: Vec<TensorEntry> = parts.iter().flat_map(|(_, parts)| parts.iter().map(entry)).collect();
        let mut writer = SafetensorsWriter::create(&weights_path(directory), &entries)?;
        let mut values = Vec::new();
        for (name, parts) in &parts {
            values.clear();
            fill(name, &mut values)?;
            for part in parts {
                writer.write_f32(&part.name, &part.of(&values)?)?;
            }
        }
        writer.finish()?;
        write_atomic(&directory.join(ADAPTER_CONFIG), to_text(&self.config_fields(details)).as_bytes())
    }

    fn config_fields(&self, details: &PeftDetails<'_>) -> Map<String, Value> {
        let LoraConfig { rank, alpha, rank_stabilized, dropout, .. } = self.config;
        let ranks = self.updates.iter().filter(|update| update.rank != rank);
        let rank_pattern: Map<String, Value> =
            ranks.map(|update| (update.module.clone(), json!(update.rank))).collect();
        // Factors, from which PEFT's alphas follow.
        let alpha_of =
            |update: &LoraUpdate| update.scale / LoraConfig { alpha: 1.0, ..self.config.clone() }.scale(update.rank);
        let alphas = self.updates.iter().map(|update| (update, alpha_of(update)));
        let alphas = alphas.filter(|(update, _)| update.scale != self.config.scale(update.rank));
        let alpha_pattern: Map<String, Value> =
            alphas.map(|(update, alpha)| (update.module.clone(), number(alpha))).collect();
        let modules = Some(&self.modules_to_save).filter(|modules| !modules.is_empty());
        let fields = json!({
            "peft_type": "LORA",
            "task_type": self.head.and_then(|head| task_type(head, self.generates_targets)),
            "base_model_name_or_path": details.base_model,
            "revision": details.revision,
            "auto_mapping": null,
            "inference_mode": true,
            "r": rank,
            "lora_alpha": number(alpha),
            "lora_dropout": number(dropout),
            "use_rslora": rank_stabilized,
            "use_dora": false,
            "lora_bias": false,
            "bias": "none",
            // Their linear layer of GPT-2 stores [in, out].
            "fan_in_fan_out": self.updates.iter().all(|update| update.part.transposed),
            "target_modules": self.target_modules,
            "exclude_modules": null,
            "modules_to_save": modules,
            "init_lora_weights": true,
            "layers_to_transform": null,
            "layers_pattern": null,
            "rank_pattern": rank_pattern,
            "alpha_pattern": alpha_pattern,
            "megatron_config": null,
            "megatron_core": "megatron.core",
        });
        match fields {
            Value::Object(fields) => fields,
            _ => Map::new(),
        }
    }
}

fn read(weights: &SafetensorsFile, entry: &TensorEntry) -> Result<Vec<f32>> {
    let mut values = vec![0.0; entry.elements().unwrap_or(0)];
    weights.read_f32(&entry.name, &mut values)?;
    Ok(values)
}

fn load(param: &Param, values: &[f32]) -> Result<()> {
    param.load_part(&mut |first, out: &mut [f32]| {
        out.copy_from_slice(&values[first..first + out.len()]);
        Ok::<_, Error>(())
    })
}

/// PEFT's name for what a model with this head does.
fn task_type(head: TextHead, generates_targets: bool) -> Option<&'static str> {
    match head {
        TextHead::Classification { .. } => Some("SEQ_CLS"),
        TextHead::TokenClassification { .. } => Some("TOKEN_CLS"),
        TextHead::QuestionAnswering => Some("QUESTION_ANS"),
        TextHead::CausalLm if generates_targets => Some("SEQ_2_SEQ_LM"),
        TextHead::CausalLm => Some("CAUSAL_LM"),
        TextHead::None | TextHead::MaskedLm | TextHead::NextSentence | TextHead::Pretraining => None,
    }
}
