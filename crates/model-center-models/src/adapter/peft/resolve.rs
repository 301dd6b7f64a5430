//! Place of each tensor of a PEFT directory in the model that it is opened with. A tensor that is of nothing is
//! refused.

use super::changes::{BaseChange, Change};
use super::settings::InitialUpdate;
use super::tensors::{UpdateTensors, of_module};
use super::{PeftDirectory, SAVE_AGAIN};
use crate::adapter::bottleneck::{self, BottleneckLayer};
use crate::adapter::lora::LoraUpdate;
use crate::adapter::modules::{LinearModule, linear_modules, target_modules};
use crate::adapter::plan::{AdapterPlan, TOKENS};
use crate::adapter::scaling::{has_own_inputs, shared_inputs};
use crate::adapter::{AdapterConfig, LoraConfig, PROMPT_EMBEDDINGS};
use crate::{Error, Result};
use bmtrain_dist::Parameters;
use model_center_base::file::printable;
use model_center_formats::account::Account;
use model_center_formats::safetensors::TensorEntry;
use model_center_formats::{NameTable, TensorPart};
use std::collections::BTreeMap;

pub(super) const MERGE_IN_PEFT: &str = "merge it in PEFT (merge_and_unload)";

/// The parameters of a model by Hugging Face's names of their parts.
pub(super) struct ModelParts<'m> {
    pub(super) names: &'m NameTable,
    pub(super) params: Vec<(String, Vec<usize>, Vec<TensorPart>)>,
    /// The parameter and the part.
    places: BTreeMap<String, (usize, usize)>,
}

impl<'m> ModelParts<'m> {
    fn of(parameters: &Parameters, names: &'m NameTable) -> Result<Self> {
        let mut model = ModelParts { names, params: Vec::new(), places: BTreeMap::new() };
        for param in parameters.declared() {
            let shape = param.spec().shape.dims().to_vec();
            let parts = names.pieces(param.name(), &shape, true)?;
            let number = model.params.len();
            model.places.extend(parts.iter().enumerate().map(|(at, part)| (part.name.clone(), (number, at))));
            model.params.push((param.name().to_owned(), shape, parts));
        }
        Ok(model)
    }

    /// The parameter and the part of one of Hugging Face's tensors, under its name with the base model's prefix or
    /// without.
    pub(super) fn find(&self, name: &str) -> Option<(&str, &TensorPart)> {
        let (number, at) = *self.places.get(name).or_else(|| {
            let prefixed = format!("{}{name}", self.names.base_prefix);
            self.places.get(&prefixed)
        })?;
        let (param, _, parts) = self.params.get(number)?;
        Some((param, parts.get(at)?))
    }

    /// The tensor that this one is a second name of.
    pub(super) fn alias_of(&self, name: &str) -> Option<&str> {
        self.names.aliases.iter().find(|alias| alias.name() == name).map(|alias| alias.of())
    }

    /// Whether the model has the part that a module is in: the head for masked tokens, of a tied output projection.
    pub(super) fn has_module_around(&self, name: &str) -> bool {
        module_of(name).rsplit_once('.').is_none_or(|(around, _)| {
            self.places.keys().any(|name| name.strip_prefix(around).is_some_and(|rest| rest.starts_with('.')))
        })
    }

    /// Whether the model has this tensor under a second name too.
    fn is_tied(&self, name: &str) -> bool {
        self.names.aliases.iter().any(|alias| alias.of() == name && self.has_module_around(alias.name()))
    }
}

/// The path of a tensor's module.
pub(super) fn module_of(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(module, _)| module)
}

/// A directory beside the model that it is opened with.
pub(super) struct Resolver<'r> {
    pub(super) saved: &'r PeftDirectory,
    pub(super) model: &'r ModelParts<'r>,
    pub(super) account: &'r mut Account,
    pub(super) plan: &'r mut AdapterPlan,
}

impl PeftDirectory {
    /// Put what the directory has of the model into the plan.
    ///
    /// # Errors
    /// Tensors that are of another model, that have another shape, or that nothing of the model takes.
    pub(in crate::adapter) fn resolve(
        &self,
        plan: &mut AdapterPlan,
        parameters: &Parameters,
        names: &NameTable,
    ) -> Result<()> {
        let model = ModelParts::of(parameters, names)?;
        let modules = linear_modules(parameters, names)?;
        let mut account = Account::open(self.place(), "tensor", self.tensors.names.iter().cloned());
        let resolved = Resolver { saved: self, model: &model, account: &mut account, plan }.all(&modules);
        if let Err(error) = resolved {
            account.give_up();
            return Err(error);
        }
        let fix = "open the adapter with the model and the head that it is of; a tensor that PEFT does not read either \
                   can be removed from the file";
        account.close("no part of the model, as it is opened, takes it", fix)
    }
}

impl Resolver<'_> {
    fn all(&mut self, modules: &[LinearModule]) -> Result<()> {
        let settings = &self.saved.settings;
        (self.plan.initial, self.plan.bias) = (settings.initial, settings.bias);
        match settings.config.clone() {
            AdapterConfig::Lora(config) => {
                self.updates(&config, modules)?;
                self.embeddings(&config)?;
                self.rows()?;
            }
            AdapterConfig::Ia3(_) => self.factors(modules)?,
            AdapterConfig::Bottleneck(config) => self.bottlenecks(config.size, modules)?,
            AdapterConfig::Prompt(_) | AdapterConfig::Prefix(_) => {
                if !self.account.settle(PROMPT_EMBEDDINGS) {
                    return Err(self.lacks("prompt_embeddings"));
                }
            }
        }
        self.base()
    }

    /// That the file lacks what a directory of its method has.
    pub(super) fn lacks(&self, what: &str) -> Error {
        Error::model(self.saved.place(), format!("there is no {what} in it"), SAVE_AGAIN)
    }

    fn change(&mut self, param: String, change: Change) {
        self.plan.changes.push(BaseChange { param, source: 0, change });
    }

    /// That the linear layer of some path is none of the model's.
    fn unknown<'p>(&self, mut paths: impl Iterator<Item = &'p String>, modules: &[LinearModule]) -> Result<()> {
        let prefix = self.model.names.base_prefix;
        let is_known = |path: &String| {
            modules.iter().any(|module| module.path == *path || module.path.strip_prefix(prefix) == Some(path))
        };
        let Some(path) = paths.find(|path| !is_known(path)) else { return Ok(()) };
        let reason = format!("the model has no linear layer {}", printable(path, 120));
        Err(Error::model(self.saved.place(), reason, SAVE_AGAIN))
    }

    /// Low-rank updates of linear layers.
    fn updates(&mut self, config: &LoraConfig, modules: &[LinearModule]) -> Result<()> {
        let saved = self.saved;
        self.unknown(saved.tensors.updates.keys(), modules)?;
        let mut chosen = Vec::new();
        for module in modules {
            let found = of_module(&saved.tensors.updates, &module.path, self.model.names.base_prefix);
            let Some((path, tensors)) = found else { continue };
            for name in tensors.names() {
                self.account.settle(name);
            }
            let wrong = |reason: String| saved.misfit(path, reason);
            let (rows, inputs) = (module.part.rows.len(), module.layer.inputs);
            let rank = saved.rank_of(path, tensors, config, [rows, inputs])?;
            if !saved.settings.targets.names(path) {
                return Err(wrong("target_modules does not name it, and PEFT would leave its update out".to_owned()));
            }
            let alpha = saved.settings.alphas.of(path).unwrap_or(config.alpha);
            let scale = LoraConfig { alpha, ..config.clone() }.scale(rank);
            let (param, part) = (module.layer.weight(), module.part.clone());
            let kind = saved.settings.initial;
            if kind == InitialUpdate::Olora && part.transposed {
                return Err(wrong(format!(
                    "its weight is stored transposed, which olora does not allow for; {MERGE_IN_PEFT}"
                )));
            }
            if kind != InitialUpdate::None {
                self.change(param.clone(), Change::Initial { part: part.clone(), kind, rank, scale });
            }
            if let Some(bias) = &tensors.bias {
                self.bias(path, bias, scale)?;
            }
            match (&tensors.a, &tensors.b) {
                (Some(a), Some(b)) if module.is_vocabulary() => {
                    if config.dora {
                        return Err(wrong("the output projection has no DoRA here".to_owned()));
                    }
                    let (a, b) = (a.name.clone(), b.name.clone());
                    self.change(param, Change::Update { part, a, b, rank, scale, of_embedding: false });
                }
                _ => chosen.push((module, rank, scale)),
            }
        }
        let is_empty = chosen.is_empty() && self.saved.tensors.embeddings.is_empty() && self.plan.changes.is_empty();
        if is_empty && self.saved.tensors.rows.is_empty() {
            return Err(self.lacks("lora_A"));
        }
        let plan = &mut *self.plan;
        plan.target_modules = target_modules(chosen.iter().map(|(module, ..)| *module), modules);
        let update = |&(module, rank, scale): &(&_, _, _)| LoraUpdate::new(module, rank, scale, config.dora);
        plan.updates = chosen.iter().map(update).collect();
        Ok(())
    }

    /// The bias of `lora_B`, which is added to the layer's.
    fn bias(&mut self, path: &str, tensor: &TensorEntry, scale: f32) -> Result<()> {
        let found = self.model.find(&format!("{path}.bias"));
        let Some((param, part)) = found else {
            let reason =
                format!("its layer has no bias that the update's (lora_bias) could be added to; {MERGE_IN_PEFT}");
            return Err(self.saved.misfit(path, reason));
        };
        if tensor.shape != part.shape {
            let reason = format!("the bias of lora_B {:?} is not of shape {:?}", tensor.shape, part.shape);
            return Err(self.saved.misfit(path, reason));
        }
        let (param, part, tensor) = (param.to_owned(), part.clone(), tensor.name.clone());
        self.change(param, Change::Bias { part, tensor, scale });
        Ok(())
    }

    /// Updates of embeddings.
    fn embeddings(&mut self, config: &LoraConfig) -> Result<()> {
        for (path, tensors) in &self.saved.tensors.embeddings {
            let wrong = |reason: &str| self.saved.misfit(path, reason);
            let name = format!("{path}.weight");
            let (param, part) =
                self.model.find(&name).ok_or_else(|| wrong("the model has no embedding of this name"))?;
            if self.model.is_tied(&part.name) {
                return Err(wrong("the embedding is tied to other matrices here, which PEFT would leave as they are"));
            }
            if config.dora || tensors.magnitude.is_some() || tensors.bias.is_some() {
                return Err(wrong("embeddings have no DoRA and no bias here"));
            }
            let (Some(a), Some(b)) = (&tensors.a, &tensors.b) else {
                return Err(wrong("one of lora_embedding_A and lora_embedding_B is missing"));
            };
            let rank = match (a.shape.as_slice(), b.shape.as_slice(), part.shape.as_slice()) {
                (&[rank, tokens], &[size, columns], &[rows, length])
                    if rank == columns && rank > 0 && tokens == rows && size == length =>
                {
                    rank
                }
                _ => {
                    let reason = format!(
                        "lora_embedding_A {:?} and lora_embedding_B {:?} are not for an embedding {:?}",
                        a.shape, b.shape, part.shape
                    );
                    return Err(wrong(&reason));
                }
            };
            self.saved.check_rank(path, rank, config)?;
            let alpha = self.saved.settings.alphas.of(path).unwrap_or(config.alpha);
            let scale = LoraConfig { alpha, ..config.clone() }.scale(rank);
            for tensor in [a, b] {
                self.account.settle(&tensor.name);
            }
            let (param, part) = (param.to_owned(), part.clone());
            let (a, b) = (a.name.clone(), b.name.clone());
            self.change(param, Change::Update { part, a, b, rank, scale, of_embedding: true });
        }
        Ok(())
    }

    /// Rows of embeddings that are replaced.
    fn rows(&mut self) -> Result<()> {
        let tokens = self.model.params.iter().find(|(name, ..)| name == TOKENS).and_then(|(.., parts)| parts.first());
        let tokens = tokens.map_or("", |part| module_of(&part.name));
        for (path, tensor) in &self.saved.tensors.rows {
            let wrong = |reason: String| self.saved.misfit(path, reason);
            let found = self.model.find(&format!("{path}.weight"));
            let (param, part) = found.ok_or_else(|| wrong("the model has no embedding of this name".to_owned()))?;
            let is_of = |name: &Option<String>| match name {
                Some(name) => super::pattern::ends_at_a_dot(path, name),
                None => super::pattern::ends_at_a_dot(tokens, path) || super::pattern::ends_at_a_dot(path, tokens),
            };
            let rows = self.saved.settings.token_rows.iter().find(|(name, _)| is_of(name)).map(|(_, rows)| rows);
            let rows = rows.ok_or_else(|| wrong("trainable_token_indices does not name it".to_owned()))?;
            let [count, columns] = [part.shape.first(), part.shape.get(1)].map(|size| size.copied().unwrap_or(0));
            if tensor.shape != [rows.len(), columns] || rows.iter().any(|row| *row >= count) {
                let reason =
                    format!("{} rows {:?} are not rows of an embedding {:?}", rows.len(), tensor.shape, part.shape);
                return Err(wrong(reason));
            }
            self.account.settle(&tensor.name);
            let (param, part, rows, tensor) = (param.to_owned(), part.clone(), rows.clone(), tensor.name.clone());
            self.change(param, Change::Rows { part, rows, tensor });
        }
        Ok(())
    }

    /// Learned factors.
    fn factors(&mut self, modules: &[LinearModule]) -> Result<()> {
        let saved = self.saved;
        self.unknown(saved.tensors.factors.keys(), modules)?;
        let mut chosen = Vec::new();
        for module in modules {
            let found = of_module(&saved.tensors.factors, &module.path, self.model.names.base_prefix);
            let Some((path, entry)) = found else { continue };
            self.account.settle(&entry.name);
            let wrong = |reason: String| saved.misfit(path, reason);
            if module.is_vocabulary() {
                return Err(wrong(format!("the output projection has no learned factors here; {MERGE_IN_PEFT}")));
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
        if chosen.is_empty() {
            return Err(self.lacks("ia3_l"));
        }
        self.plan.set_factors(&chosen, modules);
        Ok(())
    }

    fn bottlenecks(&mut self, size: usize, modules: &[LinearModule]) -> Result<()> {
        let saved = self.saved;
        self.unknown(saved.tensors.bottlenecks.keys(), modules)?;
        let mut chosen = Vec::new();
        for module in modules {
            let found = of_module(&saved.tensors.bottlenecks, &module.path, self.model.names.base_prefix);
            let Some((path, tensors)) = found else { continue };
            for name in tensors {
                self.account.settle(name);
            }
            if tensors.len() < bottleneck::TENSORS.len() {
                return Err(saved.misfit(path, "weights and biases of down and up are not all there"));
            }
            if !bottleneck::may_have_one(module) {
                return Err(saved.misfit(path, "it does not end an attention or a feed-forward"));
            }
            chosen.push(module);
        }
        if chosen.is_empty() {
            return Err(self.lacks("bottleneck"));
        }
        self.plan.target_modules = target_modules(chosen.iter().copied(), modules);
        self.plan.bottlenecks = chosen.iter().map(|module| BottleneckLayer::new(module, size)).collect();
        Ok(())
    }
}

impl PeftDirectory {
    /// The rank of an update of a weight with these rows and columns, whose tensors fit each other and it.
    fn rank_of(
        &self,
        path: &str,
        tensors: &UpdateTensors,
        config: &LoraConfig,
        [rows, inputs]: [usize; 2],
    ) -> Result<usize> {
        let wrong = |reason: String| self.misfit(path, reason);
        let (Some(a), Some(b)) = (&tensors.a, &tensors.b) else {
            let reason = match tensors.magnitude.is_some() && tensors.a.is_none() && tensors.b.is_none() {
                true => "there is a lora_magnitude_vector without lora_A and lora_B",
                false => "one of lora_A and lora_B is missing",
            };
            return Err(wrong(reason.to_owned()));
        };
        let rank = match (a.shape.as_slice(), b.shape.as_slice()) {
            (&[rank, columns], &[outputs, of_b]) if rank == of_b && rank > 0 => {
                if columns != inputs || outputs != rows {
                    let got = format!("lora_A {:?} and lora_B {:?}", a.shape, b.shape);
                    return Err(wrong(format!("{got} are not for a weight of {rows} rows and {inputs} columns")));
                }
                rank
            }
            _ => return Err(wrong(format!("lora_A {:?} and lora_B {:?} do not fit", a.shape, b.shape))),
        };
        let shape = tensors.magnitude.as_ref().map(|entry| entry.shape.as_slice());
        match (config.dora, shape) {
            (true, Some(shape)) if shape == [rows] => {}
            (false, None) => {}
            (true, Some(shape)) => {
                return Err(wrong(format!("lora_magnitude_vector {shape:?} does not fit lora_B {:?}", b.shape)));
            }
            (true, None) => return Err(wrong("lora_magnitude_vector is missing, and use_dora is set".to_owned())),
            (false, Some(_)) => {
                return Err(wrong("there is a lora_magnitude_vector, and use_dora is not set".to_owned()));
            }
        }
        self.check_rank(path, rank, config)?;
        Ok(rank)
    }

    /// Whether the configuration states the rank that the tensors have.
    fn check_rank(&self, path: &str, rank: usize, config: &LoraConfig) -> Result<()> {
        match self.settings.ranks.of(path).unwrap_or(config.rank) {
            stated if stated == rank => Ok(()),
            stated => {
                Err(self.misfit(path, format!("its tensors have rank {rank}, and the configuration states {stated}")))
            }
        }
    }
}
