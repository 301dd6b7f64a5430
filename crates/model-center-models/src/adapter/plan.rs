//! Which layers of a model are updated, and what else is trained of it.

use super::bottleneck::{self, BottleneckLayer};
use super::lora::{self, LoraUpdate};
use super::modules::{LinearModule, linear_modules, names_ancestor, target_modules};
use super::peft::{
    PeftDirectory,
    changes::{BaseChange, Change},
    settings::{Bias, InitialUpdate},
};
use super::scaling::{self, LearnedFactors};
use super::virtual_tokens::TokenTables;
use super::{Adapter, AdapterConfig, BottleneckConfig, PrefixConfig, PromptConfig};
use crate::{Error, Result};
use bmtrain_dist::Parameters;
use bmtrain_dist::nn::{Adapters, BottleneckOptions, LowRankOptions, PrefixOptions, PromptOptions, ScalingOptions};
use bmtrain_dist::param::NamePatterns;
use model_center_formats::config::TextHead;
use model_center_formats::{NameTable, TensorPart, names::ParamShape};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The modules that transformers' classes with a new head have and PEFT trains with the updates.
pub(super) const HEADS: [&str; 4] = ["classifier", "score", "classification_head", "qa_outputs"];

/// Our name of the token embedding.
pub(crate) const TOKENS: &str = "input_embedding.weight";

/// A parameter of the model that is trained as a whole, with Hugging Face's tensors of it.
#[derive(Debug, Clone)]
pub(super) struct TrainedParam {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) parts: Vec<TensorPart>,
    /// Which of the plan's directories has it.
    pub(super) source: usize,
}

/// An [`Adapter`] of a model.
#[derive(Debug, Clone)]
pub struct AdapterPlan {
    pub(super) config: AdapterConfig,
    pub(super) updates: Vec<LoraUpdate>,
    pub(super) factors: Vec<LearnedFactors>,
    pub(super) bottlenecks: Vec<BottleneckLayer>,
    pub(super) trained: Vec<TrainedParam>,
    pub(super) virtual_tokens: Option<TokenTables>,
    /// PEFT's `target_modules` for the same layers.
    pub(super) target_modules: Vec<String>,
    /// PEFT's `feedforward_modules` for the same layers.
    pub(super) feed_forward_modules: Vec<String>,
    /// PEFT's `modules_to_save`.
    pub(super) modules_to_save: Vec<String>,
    /// Changes of the base model's weights when the directories are opened.
    pub(super) changes: Vec<BaseChange>,
    /// Parameters that a directory has as a whole and that are not trained, with their number of values.
    pub(super) stored: Vec<(String, usize)>,
    /// Tensors of a directory, by its number, that the model has as one and that have to be equal.
    pub(super) equal: Vec<(usize, String, String)>,
    /// Second names of matrices that are trained as a whole, each with the first: a tied output projection.
    pub(super) ties: Vec<(String, String)>,
    /// Whether PEFT has to tie what it would untie.
    pub(super) ensures_tying: bool,
    pub(super) initial: InitialUpdate,
    pub(super) bias: Bias,
    pub(super) base_prefix: &'static str,
    pub(super) head: Option<TextHead>,
    /// Whether it is an encoder-decoder with a language-modelling head.
    pub(super) generates_targets: bool,
    /// The directories that it is of; none for new updates.
    pub(super) saved: Vec<Arc<PeftDirectory>>,
    /// Description of each of several directories.
    pub(super) described: Vec<String>,
}

impl AdapterPlan {
    /// The updates of the model with these parameters; `names` is its family's table of Hugging Face's names. `head` is
    /// the head that it is opened with, `generates_targets` whether it generates from an encoder's input.
    ///
    /// # Errors
    /// Names of no module or of one that has no update; tensors of a PEFT directory that are of another model.
    pub fn new(
        adapter: &Adapter,
        parameters: &Parameters,
        names: &NameTable,
        (head, generates_targets): (Option<TextHead>, bool),
    ) -> Result<AdapterPlan> {
        let (config, saved) = match adapter {
            Adapter::New(config) => (config.clone(), Vec::new()),
            Adapter::Saved(directory) => {
                let saved = Arc::new(PeftDirectory::open(directory)?);
                (saved.config().clone(), vec![saved])
            }
            Adapter::Several(adapters) => {
                return AdapterPlan::combined(adapters, parameters, names, (head, generates_targets));
            }
        };
        let mut plan = AdapterPlan {
            updates: Vec::new(),
            factors: Vec::new(),
            bottlenecks: Vec::new(),
            trained: Vec::new(),
            virtual_tokens: None,
            target_modules: Vec::new(),
            feed_forward_modules: Vec::new(),
            modules_to_save: Vec::new(),
            changes: Vec::new(),
            stored: Vec::new(),
            equal: Vec::new(),
            ties: Vec::new(),
            ensures_tying: false,
            initial: InitialUpdate::None,
            bias: Bias::None,
            base_prefix: names.base_prefix,
            head,
            generates_targets,
            saved,
            described: Vec::new(),
            config,
        };
        match &plan.config {
            AdapterConfig::Prompt(config) => {
                plan.virtual_tokens = Some(TokenTables::of_prompt(config, parameters, (head, generates_targets))?);
            }
            AdapterConfig::Prefix(config) => {
                plan.virtual_tokens = Some(TokenTables::of_prefix(config, parameters, (head, generates_targets))?);
            }
            AdapterConfig::Lora(_) | AdapterConfig::Ia3(_) | AdapterConfig::Bottleneck(_) => {}
        }
        match plan.saved.first().cloned() {
            Some(saved) => saved.resolve(&mut plan, parameters, names)?,
            None => plan.begin(parameters, names)?,
        }
        plan.find_ties(names);
        Ok(plan)
    }

    /// Plan of the updates of a new adapter.
    fn begin(&mut self, parameters: &Parameters, names: &NameTable) -> Result<()> {
        let modules = linear_modules(parameters, names)?;
        match self.config.clone() {
            AdapterConfig::Lora(config) => {
                let (rank, scale) = (config.rank, config.scale(config.rank));
                // PEFT has no updates of what is trained as a whole.
                let is_whole = |module: &&LinearModule| names_ancestor(&config.trained, &module.path);
                let chosen = lora::chosen(&config, &modules)?.into_iter().filter(|module| !is_whole(module));
                let chosen: Vec<&LinearModule> = chosen.collect();
                self.target_modules = target_modules(chosen.iter().copied(), &modules);
                let update = |module: &&LinearModule| LoraUpdate::new(module, rank, scale, config.dora);
                self.updates = chosen.iter().map(update).collect();
                self.add_trained(&config.trained, parameters, names)
            }
            AdapterConfig::Ia3(config) => {
                self.set_factors(&scaling::chosen(&config, &modules)?, &modules);
                self.add_trained(&config.trained, parameters, names)
            }
            AdapterConfig::Bottleneck(config) => {
                let chosen = bottleneck::chosen(&config, &modules)?;
                self.target_modules = target_modules(chosen.iter().copied(), &modules);
                self.bottlenecks = chosen.iter().map(|module| BottleneckLayer::new(module, config.size)).collect();
                self.add_trained(&config.trained, parameters, names)
            }
            AdapterConfig::Prompt(_) | AdapterConfig::Prefix(_) => Ok(()),
        }
    }

    /// The factors of these modules, each with whether they are of its inputs.
    pub(super) fn set_factors(&mut self, chosen: &[(&LinearModule, bool)], modules: &[LinearModule]) {
        let of_kind = |of_inputs: bool| {
            let some = chosen.iter().filter(move |(_, other)| *other == of_inputs);
            target_modules(some.map(|(module, _)| *module), modules)
        };
        self.feed_forward_modules = of_kind(true);
        self.target_modules = [of_kind(false), self.feed_forward_modules.clone()].concat();
        self.target_modules.sort();
        self.factors = chosen.iter().map(|(module, of_inputs)| LearnedFactors::new(module, *of_inputs)).collect();
    }

    /// The second names of what is trained as a whole: PEFT would train a copy of its own under one of them.
    fn find_ties(&mut self, names: &NameTable) {
        let parts = self.trained.iter().flat_map(|param| &param.parts);
        let ties = parts.flat_map(|part| names.aliases.iter().filter(move |alias| alias.of() == part.name));
        self.ties = ties.map(|alias| (alias.name().to_owned(), alias.of().to_owned())).collect();
        self.ensures_tying |= !self.ties.is_empty();
    }

    /// Refuse to train on an adapter with parts that are used and not trained here.
    ///
    /// # Errors
    /// Updates of embeddings and of the output projection, replaced rows, and tensors of the base model that the
    /// directory has and does not train; several adapters at once.
    pub fn check_training(&self) -> Result<()> {
        if self.saved.len() > 1 {
            let reason = "several adapters at once can be used but not trained on";
            let fix = "train one of them, or merge them (bmtrain convert --merge) and train a new adapter of the \
                       result";
            return Err(Error::argument("adapter", reason, fix));
        }
        let Some((what, name)) = self.unwritten() else { return Ok(()) };
        let reason = format!("the adapter has {what} ({name}), which can be used but not trained on");
        Err(Error::argument(
            "adapter.path",
            reason,
            "merge it (bmtrain convert --merge), and train a new adapter of the result",
        ))
    }

    /// Refuse to write an adapter as a PEFT directory where [`AdapterPlan::write`] would leave parts of it out.
    ///
    /// # Errors
    /// As [`AdapterPlan::check_training`].
    pub fn check_write(&self) -> Result<()> {
        let refuse = |reason: String| {
            let fix = "write the model with it merged: bmtrain convert --merge, or merged=True in Python";
            Err(Error::argument("adapter", reason, fix))
        };
        match self.unwritten() {
            _ if self.saved.len() > 1 => refuse("several adapters at once are not written as one".to_owned()),
            Some((what, name)) => refuse(format!("it has {what} ({name}), which is used and not written")),
            None => Ok(()),
        }
    }

    /// The change of the base model that is not written with the updates, if there is one: its kind and its name.
    fn unwritten(&self) -> Option<(&'static str, &str)> {
        let mut changes = self.changes.iter().map(|change| &change.change);
        changes.find(|change| !change.is_kept_in_training()).map(Change::describe)
    }

    /// Whether new updates of layers are all that is trained: without them the model is what training begins with.
    pub fn is_new_updates_alone(&self) -> bool {
        self.virtual_tokens.is_none() && self.trained.is_empty() && self.saved.is_empty()
    }

    /// The virtual tokens that are trained.
    pub fn virtual_tokens(&self) -> Option<&TokenTables> {
        self.virtual_tokens.as_ref()
    }

    /// Choose the parameters that are trained as a whole.
    fn add_trained(&mut self, trained: &[String], parameters: &Parameters, names: &NameTable) -> Result<()> {
        let has_new_head = matches!(
            self.head,
            Some(TextHead::Classification { .. } | TextHead::TokenClassification { .. } | TextHead::QuestionAnswering)
        );
        let heads = HEADS.iter().filter(|_| has_new_head).map(|name| (*name).to_owned());
        let wanted: Vec<String> = trained.iter().cloned().chain(heads).collect();
        let mut used = vec![false; wanted.len()];
        for param in parameters.declared() {
            let shape = param.spec().shape.dims().to_vec();
            let parts = names.pieces(param.name(), &shape, true)?;
            let path =
                |part: &TensorPart| part.name.rsplit_once('.').map_or(part.name.clone(), |(path, _)| path.to_owned());
            let mut is_trained = false;
            for (name, used) in wanted.iter().zip(&mut used) {
                let fits = parts.iter().any(|part| names_ancestor(std::slice::from_ref(name), &path(part)));
                (*used, is_trained) = (*used || fits, is_trained || fits);
            }
            if is_trained {
                self.trained.push(TrainedParam { name: param.name().to_owned(), shape, parts, source: 0 });
            }
        }
        if let Some((name, _)) = trained.iter().zip(&used).find(|(_, used)| !**used) {
            let module = |name: &str| name.strip_suffix(".weight").unwrap_or(name).to_owned();
            let tied = names.aliases.iter().find(|alias| module(alias.name()) == *name);
            if let Some(of) = tied.map(|alias| module(alias.of())) {
                let reason = format!("\"{name}\" is tied to {of}: the model has one matrix for both");
                return Err(Error::argument("adapter.trained", reason, format!("name \"{of}\", which trains both")));
            }
            let reason = format!("no module of the model is named \"{name}\"");
            return Err(Error::argument("adapter.trained", reason, "give the name of a module, such as \"lm_head\""));
        }
        let fitting = wanted.into_iter().zip(used).filter(|(_, used)| *used);
        self.modules_to_save = fitting.map(|(name, _)| name).collect();
        self.modules_to_save.dedup();
        Ok(())
    }

    /// The options of the builder that declares the updates.
    pub fn adapters(&self) -> Adapters {
        let mut low_rank: HashMap<String, Vec<LowRankOptions>> = HashMap::new();
        let (mut dropout, mut bottlenecks, mut prompt, mut prefix) = (0.0, HashMap::new(), None, None);
        match &self.config {
            AdapterConfig::Lora(config) => dropout = config.dropout,
            AdapterConfig::Ia3(_) => {}
            AdapterConfig::Bottleneck(BottleneckConfig { size, activation, .. }) => {
                let options = BottleneckOptions { size: *size, activation: *activation };
                bottlenecks = self.bottlenecks.iter().map(|one| (one.layer.clone(), options.clone())).collect();
            }
            AdapterConfig::Prompt(PromptConfig { tokens, decoder, .. }) => {
                prompt = Some(PromptOptions { tokens: *tokens, decoder: *decoder });
            }
            AdapterConfig::Prefix(PrefixConfig { tokens }) => prefix = Some(PrefixOptions { tokens: *tokens }),
        }
        for update in &self.updates {
            low_rank.entry(update.layer().to_owned()).or_default().push(LowRankOptions {
                name: update.place(),
                rows: update.part.rows.clone(),
                rank: update.rank,
                scale: update.scale,
                dropout,
                magnitude: update.magnitude.is_some(),
            });
        }
        let mut scaling: HashMap<String, Vec<ScalingOptions>> = HashMap::new();
        for factors in &self.factors {
            scaling.entry(factors.layer.clone()).or_default().push(factors.options());
        }
        let trained = NamePatterns::new(self.trained.iter().map(|param| param.name.as_str()));
        Adapters { low_rank, scaling, bottlenecks, prompt, prefix, trained }
    }

    /// Names and full shapes of the written parameters, in the order of [`AdapterPlan::written`].
    pub fn shapes(&self) -> Vec<ParamShape> {
        let of_update = |update: &LoraUpdate| {
            let (columns, rows, rank) = (update.part.columns(), update.part.rows.len(), update.rank);
            let mut shapes = vec![
                ParamShape::new(update.a.clone(), [rank, columns]),
                ParamShape::new(update.b.clone(), [rows, rank]),
            ];
            shapes.extend(update.magnitude.as_ref().map(|name| ParamShape::new(name.clone(), [rows])));
            shapes
        };
        let factors = self.factors.iter().map(|factors| ParamShape::new(factors.factors.clone(), [factors.count()]));
        let whole = self.trained.iter().map(|param| ParamShape::new(param.name.clone(), param.shape.clone()));
        let tables = self.virtual_tokens.iter().flat_map(TokenTables::shapes);
        let bottlenecks = self.bottlenecks.iter().flat_map(BottleneckLayer::shapes);
        let of_layers = self.updates.iter().flat_map(of_update).chain(factors).chain(bottlenecks);
        of_layers.chain(whole).chain(tables).collect()
    }

    /// The text that new virtual tokens begin with.
    pub(crate) fn first_text(&self) -> Option<&str> {
        match &self.config {
            AdapterConfig::Prompt(config) if self.saved.is_empty() => config.text.as_deref(),
            _ => None,
        }
    }

    /// The settings.
    pub fn config(&self) -> &AdapterConfig {
        &self.config
    }

    /// The updates, in the order of the model's layers.
    pub fn updates(&self) -> &[LoraUpdate] {
        &self.updates
    }

    /// The learned factors, in the order of the model's layers.
    pub fn factors(&self) -> &[LearnedFactors] {
        &self.factors
    }

    /// The bottlenecks, in the order of the model's layers.
    pub fn bottlenecks(&self) -> &[BottleneckLayer] {
        &self.bottlenecks
    }

    /// Our names of the model's parameters that are trained as a whole.
    pub fn trained(&self) -> impl Iterator<Item = &str> {
        self.trained.iter().map(|param| param.name.as_str())
    }

    /// Values of the updates and of what is trained as a whole: what checkpoints and PEFT directories have.
    pub fn values(&self) -> usize {
        self.shapes().iter().map(|param| param.shape.iter().product::<usize>()).sum()
    }

    /// Updated layers and trained modules, in a line.
    pub fn describe(&self) -> String {
        if !self.described.is_empty() {
            return self.described.join("; ");
        }
        let method = match &self.config {
            AdapterConfig::Lora(config) => {
                format!("{} of rank {}", if config.dora { "DoRA" } else { "LoRA" }, config.rank)
            }
            AdapterConfig::Ia3(_) => "IA3".to_owned(),
            AdapterConfig::Bottleneck(BottleneckConfig { size, .. }) => format!("bottlenecks of {size} values"),
            AdapterConfig::Prompt(PromptConfig { tokens, decoder, .. }) => {
                let decoder = if *decoder { " and as many before the decoder's" } else { "" };
                return format!("{tokens} virtual tokens before a sequence{decoder}");
            }
            AdapterConfig::Prefix(PrefixConfig { tokens }) => {
                let layers = self.virtual_tokens.as_ref().map_or(0, |tables| tables.names.len());
                return format!("keys and values of {tokens} virtual tokens before a sequence, in {layers} layers");
            }
        };
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let names = self.updates.iter().map(LoraUpdate::name).chain(self.factors.iter().map(LearnedFactors::name));
        let names = names.chain(self.bottlenecks.iter().map(BottleneckLayer::name));
        names.for_each(|name| *counts.entry(name).or_default() += 1);
        let layers: Vec<String> = counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
        let trained = match self.modules_to_save.as_slice() {
            [] => String::new(),
            modules => format!("; trained as a whole: {}", modules.join(", ")),
        };
        format!("{method} on {}{trained}", layers.join(", "))
    }
}
