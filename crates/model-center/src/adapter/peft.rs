//! PEFT's directories: `adapter_config.json` and `adapter_model.safetensors`, read and written.
//!
//! Source: PEFT 0.21, `get_peft_model_state_dict`. Tensors have the path of their module after `base_model.model.`;
//! `lora_A` is `[R, K]` and `lora_B` `[N, R]`, whichever way the weight is stored, DoRA's `lora_magnitude_vector`
//! `[N]`; IA³'s `ia3_l` is `[N, 1]` of outputs and `[1, K]` of inputs. What virtual tokens have is one
//! tensor, `prompt_embeddings`.

use super::bottleneck::{self, BottleneckLayer};
use super::lora::LoraUpdate;
use super::modules::{LinearModule, names_module};
use super::peft_config;
use super::plan::AdapterPlan;
use super::scaling::{has_own_inputs, shared_inputs};
use super::virtual_tokens::{PROMPT_EMBEDDINGS, TokenTables};
use super::{AdapterConfig, LoraConfig, weights_path};
use crate::config::json::{parse_object, to_text};
use crate::file::{printable, read_text, write_atomic};
use crate::formats::safetensors::{SafetensorsFile, SafetensorsWriter, TensorEntry, TensorSource, stored};
use crate::formats::{NameTable, TensorPart};
use crate::model::Fill;
use crate::{Error, Result};
use bmtrain_core::DType;
use bmtrain_dist::Parameters;
use bmtrain_dist::param::Param;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The configuration of a PEFT directory.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";
/// Its weights.
pub const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";

/// What follows the path of a module in the name of its lengths of rows.
const MAGNITUDE: &str = ".lora_magnitude_vector";
/// What follows it in the name of its learned factors.
const FACTORS: &str = ".ia3_l";
/// What precedes the path of a module.
const PREFIX: &str = "base_model.model.";
/// The largest configuration that is read. Real ones have about 1 KiB.
const CONFIG_LIMIT: u64 = 1 << 20;
pub(super) const SAVE_AGAIN: &str = "use an adapter of this model that PEFT or this program saved";

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
    config: AdapterConfig,
    base_model: Option<String>,
    /// Alphas of some modules, by names as in the targets.
    alphas: Vec<(String, f32)>,
    /// `lora_A`, `lora_B` and their shapes, by the path of the module.
    updates: BTreeMap<String, [TensorEntry; 2]>,
    /// `lora_magnitude_vector`, likewise.
    magnitudes: BTreeMap<String, TensorEntry>,
    /// `ia3_l`, likewise.
    factors: BTreeMap<String, TensorEntry>,
    /// How many of its four tensors the bottleneck after a module has, likewise.
    bottlenecks: BTreeMap<String, usize>,
    /// Names of all tensors, without the prefix.
    names: BTreeSet<String>,
}

impl PeftDirectory {
    pub(super) fn open(directory: &Path) -> Result<Self> {
        let path = directory.join(ADAPTER_CONFIG);
        let place = path.display().to_string();
        let fields = parse_object(&read_text(&path, CONFIG_LIMIT)?, &place)?;
        let (config, alphas) = peft_config::read(&fields, &place)?;
        let base_model = fields.get("base_model_name_or_path").and_then(Value::as_str).map(str::to_owned);
        let weights = SafetensorsFile::open(&weights_path(directory))?;
        let mut peft = PeftDirectory {
            path: directory.to_owned(),
            config,
            base_model,
            alphas,
            updates: BTreeMap::new(),
            magnitudes: BTreeMap::new(),
            factors: BTreeMap::new(),
            bottlenecks: BTreeMap::new(),
            names: BTreeSet::new(),
        };
        if let AdapterConfig::Prompt(_) | AdapterConfig::Prefix(_) = &peft.config {
            return Ok(peft);
        }
        let mut halves: BTreeMap<String, [Option<TensorEntry>; 2]> = BTreeMap::new();
        for entry in weights.tensors() {
            let refused = |reason: &str| Error::model(tensor(&weights, &entry.name), reason, SAVE_AGAIN);
            let Some(name) = entry.name.strip_prefix(PREFIX) else {
                return Err(refused(&format!("its name does not begin with \"{PREFIX}\"")));
            };
            let of = |end: &str| name.strip_suffix(end).map(str::to_owned);
            if let Some(module) = of(".lora_A.weight") {
                halves.entry(module).or_default()[0] = Some(entry.clone());
            } else if let Some(module) = of(".lora_B.weight") {
                halves.entry(module).or_default()[1] = Some(entry.clone());
            } else if let Some(module) = of(MAGNITUDE) {
                peft.magnitudes.insert(module, entry.clone());
            } else if let Some(module) = of(FACTORS) {
                peft.factors.insert(module, entry.clone());
            } else if let Some(module) = bottleneck::TENSORS.iter().find_map(|end| of(end)) {
                *peft.bottlenecks.entry(module).or_default() += 1;
            } else if name.contains(".lora_") {
                return Err(refused("only the matrices of LoRA and DoRA's magnitudes are read"));
            }
            peft.names.insert(name.to_owned());
        }
        for (module, halves) in halves {
            let [Some(a), Some(b)] = halves else {
                return Err(peft.misfit(&module, "one of lora_A and lora_B is missing".to_owned()));
            };
            match (a.shape.as_slice(), b.shape.as_slice()) {
                (&[rank, _], &[_, columns]) if rank == columns && rank > 0 => {}
                _ => {
                    let reason = format!("lora_A {:?} and lora_B {:?} do not fit", a.shape, b.shape);
                    return Err(peft.misfit(&module, reason));
                }
            }
            peft.updates.insert(module, [a, b]);
        }
        let missing = match &peft.config {
            AdapterConfig::Lora(_) => Some("lora_A").filter(|_| peft.updates.is_empty()),
            AdapterConfig::Ia3(_) => Some("ia3_l").filter(|_| peft.factors.is_empty()),
            AdapterConfig::Bottleneck(_) => Some("bottleneck").filter(|_| peft.bottlenecks.is_empty()),
            AdapterConfig::Prompt(_) | AdapterConfig::Prefix(_) => None,
        };
        if let Some(missing) = missing {
            return Err(Error::model(weights.place(), format!("there is no {missing} in it"), SAVE_AGAIN));
        }
        peft.check_magnitudes()?;
        Ok(peft)
    }

    /// Each update has a magnitude if the configuration states DoRA, and none has one if not; nothing else has one.
    fn check_magnitudes(&self) -> Result<()> {
        let has_magnitudes = matches!(&self.config, AdapterConfig::Lora(config) if config.dora);
        if let Some(module) = self.magnitudes.keys().find(|module| !self.updates.contains_key(*module)) {
            return Err(self.misfit(module, "there is a lora_magnitude_vector without lora_A and lora_B".to_owned()));
        }
        for (module, [_, b]) in &self.updates {
            let shape = self.magnitudes.get(module).map(|entry| entry.shape.as_slice());
            let reason = match (has_magnitudes, shape) {
                (true, Some(shape)) if Some(shape) == b.shape.get(..1) => continue,
                (false, None) => continue,
                (true, Some(shape)) => format!("lora_magnitude_vector {shape:?} does not fit lora_B {:?}", b.shape),
                (true, None) => "lora_magnitude_vector is missing, and use_dora is set".to_owned(),
                (false, Some(_)) => "there is a lora_magnitude_vector, and use_dora is not set".to_owned(),
            };
            return Err(self.misfit(module, reason));
        }
        Ok(())
    }

    /// That what the directory has of a module cannot be used.
    fn misfit(&self, module: &str, reason: String) -> Error {
        let place = format!("{}, module {}", weights_path(&self.path).display(), printable(module, 120));
        Error::model(place, reason, SAVE_AGAIN)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn config(&self) -> &AdapterConfig {
        &self.config
    }

    pub(super) fn base_model(&self) -> Option<&str> {
        self.base_model.as_deref()
    }

    /// The model's modules that are updated, each with its rank and the factor of its update, in the model's order.
    pub(super) fn chosen<'m>(
        &self,
        config: &LoraConfig,
        modules: &'m [LinearModule],
        names: &NameTable,
    ) -> Result<Vec<(&'m LinearModule, usize, f32)>> {
        let mut chosen = Vec::new();
        for module in modules {
            let Some((path, [a, b])) = of_module(&self.updates, &module.path, names.base_prefix) else { continue };
            let wrong = |reason: String| self.misfit(path, reason);
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
            let alpha = alpha.map_or(config.alpha, |(_, alpha)| *alpha);
            let config = LoraConfig { alpha, ..config.clone() };
            chosen.push((module, rank, config.scale(rank)));
        }
        self.check_used(chosen.len(), self.updates.keys(), modules, names)?;
        Ok(chosen)
    }

    /// The model's modules that have factors, each with whether these are of its inputs, in the model's order.
    pub(super) fn chosen_factors<'m>(
        &self,
        modules: &'m [LinearModule],
        names: &NameTable,
    ) -> Result<Vec<(&'m LinearModule, bool)>> {
        let mut chosen = Vec::new();
        for module in modules {
            let Some((path, entry)) = of_module(&self.factors, &module.path, names.base_prefix) else { continue };
            let wrong = |reason: String| self.misfit(path, reason);
            if module.is_vocabulary() {
                return Err(wrong("the output projection has no learned factors here".to_owned()));
            }
            let (rows, inputs) = (module.part.rows.len(), module.layer.inputs);
            match entry.shape.as_slice() {
                &[outputs, 1] if outputs == rows => chosen.push((module, false)),
                &[1, columns] if columns == inputs && !has_own_inputs(module) => {
                    return Err(wrong(shared_inputs(module)));
                }
                &[1, columns] if columns == inputs => chosen.push((module, true)),
                shape => {
                    let reason = format!("ia3_l {shape:?} is not for a weight of {rows} rows and {inputs} columns");
                    return Err(wrong(reason));
                }
            }
        }
        self.check_used(chosen.len(), self.factors.keys(), modules, names)?;
        Ok(chosen)
    }

    /// The model's modules that have bottlenecks, in the model's order.
    pub(super) fn chosen_bottlenecks<'m>(
        &self,
        modules: &'m [LinearModule],
        names: &NameTable,
    ) -> Result<Vec<&'m LinearModule>> {
        let mut chosen = Vec::new();
        for module in modules {
            let Some((path, count)) = of_module(&self.bottlenecks, &module.path, names.base_prefix) else { continue };
            if *count < bottleneck::TENSORS.len() {
                return Err(self.misfit(path, "weights and biases of down and up are not all there".to_owned()));
            }
            if !bottleneck::may_have_one(module) {
                return Err(self.misfit(path, "it does not end an attention or a feed-forward".to_owned()));
            }
            chosen.push(module);
        }
        self.check_used(chosen.len(), self.bottlenecks.keys(), modules, names)?;
        Ok(chosen)
    }

    /// Refuse a directory that has `paths` of modules beyond the `used` ones.
    fn check_used<'p>(
        &self,
        used: usize,
        mut paths: impl ExactSizeIterator<Item = &'p String>,
        modules: &[LinearModule],
        names: &NameTable,
    ) -> Result<()> {
        if used != paths.len() {
            let known = |path: &&String| {
                modules
                    .iter()
                    .any(|module| module.path == **path || module.path.strip_prefix(names.base_prefix) == Some(path))
            };
            let unknown = paths.find(|path| !known(path)).map_or("", String::as_str);
            let reason = format!("the model has no linear layer {}", printable(unknown, 120));
            return Err(Error::model(weights_path(&self.path).display().to_string(), reason, SAVE_AGAIN));
        }
        Ok(())
    }

    /// The name that the file has for this tensor: with the base model's prefix or without.
    fn find(&self, name: &str, base_prefix: &str) -> Option<String> {
        let name = name.strip_prefix(PREFIX)?;
        let bare = name.strip_prefix(base_prefix);
        let found = [Some(name), bare].into_iter().flatten().find(|name| self.names.contains(*name));
        found.map(|name| format!("{PREFIX}{name}"))
    }
}

/// What a directory has of a module, under its path with the base model's prefix or without.
fn of_module<'t, T>(all: &'t BTreeMap<String, T>, path: &str, base_prefix: &str) -> Option<(&'t String, &'t T)> {
    let bare = path.strip_prefix(base_prefix);
    [Some(path), bare].into_iter().flatten().find_map(|path| all.get_key_value(path))
}

fn tensor(weights: &SafetensorsFile, name: &str) -> String {
    format!("{}, tensor {}", weights.place(), printable(name, 200))
}

/// The values of a PEFT directory under our names.
#[derive(Debug)]
pub struct SavedValues<'p> {
    plan: &'p AdapterPlan,
    /// Directories with their weights.
    sources: Vec<(&'p PeftDirectory, SafetensorsFile)>,
}

impl SavedValues<'_> {
    /// The full values of a parameter; `None` of one that the directory does not have.
    ///
    /// # Errors
    /// A tensor of another shape than the parameter's; what the disk refuses.
    pub fn get(&self, name: &str) -> Result<Option<Vec<f32>>> {
        let SavedValues { plan, sources } = self;
        let Some((saved, weights)) = sources.get(plan.source_of(name)) else { return Ok(None) };
        if let Some(tables) = &plan.virtual_tokens {
            let TokenTables { names, tokens, size, kv_heads } = tables;
            let Some(number) = names.iter().position(|other| other == name) else { return Ok(None) };
            let shape = tables.shape();
            // PEFT keeps rows for a decoder that it does not read.
            let has_rows_of_decoder = |entry: &TensorEntry| kv_heads.is_none() && entry.shape == [2 * tokens, *size];
            let fits = |entry: &&TensorEntry| entry.shape == shape || has_rows_of_decoder(entry);
            let entry = weights.entry(PROMPT_EMBEDDINGS).filter(fits).ok_or_else(|| {
                let reason = format!("it is missing, or not of shape {shape:?}, as the model has it");
                Error::model(tensor(weights, PROMPT_EMBEDDINGS), reason, SAVE_AGAIN)
            })?;
            let (mut values, mut first) = (vec![0.0; tokens * size], 0);
            for range in tables.ranges(number) {
                let end = first + range.len();
                if let Some(row) = values.get_mut(first..end) {
                    weights.read_f32_at(&entry.name, range.start, row)?;
                }
                first = end;
            }
            return Ok(Some(values));
        }
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
        if self.saved.is_empty() {
            return Ok(None);
        }
        let opened = |saved: &'_ Arc<PeftDirectory>| SafetensorsFile::open(&weights_path(saved.path()));
        let sources = self.saved.iter().map(|saved| Ok((&**saved, opened(saved)?)));
        Ok(Some(SavedValues { plan: self, sources: sources.collect::<Result<_>>()? }))
    }

    /// Which of the directories has this parameter.
    fn source_of(&self, name: &str) -> usize {
        let of_update = self.updates.iter().find(|update| update.parameters().any(|other| other == name));
        let of_trained = || self.trained.iter().find(|param| param.name == name).map(|param| param.source);
        of_update.map(|update| update.source).or_else(of_trained).unwrap_or(0)
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
        let updates = self.updates.iter().flat_map(LoraUpdate::parameters);
        let updates = updates.chain(self.factors.iter().map(|factors| factors.factors.as_str()));
        let bottlenecks = self.bottlenecks.iter().flat_map(|layer| layer.parameters.iter().map(String::as_str));
        let updates = updates.chain(bottlenecks);
        let whole = self.trained.iter().map(|param| param.name.as_str());
        let tables = self.virtual_tokens.iter().flat_map(|tables| tables.names.iter().map(String::as_str));
        updates.chain(whole).chain(tables)
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
            if Some(name) == update.magnitude.as_deref() {
                let (name, shape) = (format!("{PREFIX}{}{MAGNITUDE}", update.module), vec![update.part.rows.len()]);
                return vec![TensorPart { name, shape, ..update.part.with_columns(1) }];
            }
        }
        let prefixed = |part: &TensorPart| TensorPart { name: format!("{PREFIX}{}", part.name), ..part.clone() };
        if let Some(factors) = self.factors.iter().find(|factors| factors.factors == name) {
            return vec![prefixed(&factors.tensor())];
        }
        if let Some(part) = self.bottlenecks.iter().find_map(|layer| BottleneckLayer::tensor(layer, name)) {
            return vec![prefixed(&part)];
        }
        let trained = self.trained.iter().find(|param| param.name == name);
        trained.into_iter().flat_map(|param| param.parts.iter().map(prefixed)).collect()
    }

    /// Write a PEFT directory, which exists. `fill` puts the values of the named parameter into a vector; it is called
    /// once for each of [`AdapterPlan::written`], in order.
    ///
    /// # Errors
    /// Values that the dtype cannot hold; what the disk refuses; errors of `fill`.
    pub fn write(&self, directory: &Path, details: &PeftDetails<'_>, fill: Fill<'_>) -> Result<()> {
        if self.saved.len() > 1 {
            let reason = "several adapters at once are not written as one";
            return Err(Error::argument("adapter", reason, "merge them into the model: convert --merge"));
        }
        let dtype = stored(details.dtype)?;
        let parts: Vec<(&str, Vec<TensorPart>)> = self.written().map(|name| (name, self.parts(name))).collect();
        let entry = |part: &TensorPart| TensorEntry::new(part.name.clone(), dtype, part.shape.clone());
        let mut entries: Vec<TensorEntry> = parts.iter().flat_map(|(_, parts)| parts.iter().map(entry)).collect();
        if let Some(tables) = &self.virtual_tokens {
            entries.push(TensorEntry::new(PROMPT_EMBEDDINGS, dtype, tables.shape()));
        }
        let mut writer = SafetensorsWriter::create(&weights_path(directory), &entries)?;
        let mut values = Vec::new();
        for (name, parts) in parts.iter().filter(|(_, parts)| !parts.is_empty()) {
            values.clear();
            fill(name, &mut values)?;
            for part in parts {
                writer.write_f32(&part.name, &part.of(&values)?)?;
            }
        }
        if let Some(tables) = &self.virtual_tokens {
            writer.write_f32(PROMPT_EMBEDDINGS, &tables.tensor(fill)?)?;
        }
        writer.finish()?;
        write_atomic(&directory.join(ADAPTER_CONFIG), to_text(&self.config_fields(details)).as_bytes())
    }
}

fn read(weights: &SafetensorsFile, entry: &TensorEntry) -> Result<Vec<f32>> {
    let mut values = vec![0.0; entry.elements().unwrap_or(0)];
    weights.read_f32(&entry.name, &mut values)?;
    Ok(values)
}

/// Set the values of a parameter from the full ones.
pub(super) fn load(param: &Param, values: &[f32]) -> Result<()> {
    param.load_part(&mut |first, out: &mut [f32]| {
        out.copy_from_slice(&values[first..first + out.len()]);
        Ok::<_, Error>(())
    })
}
