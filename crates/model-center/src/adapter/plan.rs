//! Which layers of a model are updated, and what else is trained of it.

use super::bottleneck::{self, BottleneckLayer};
use super::lora::{self, LoraUpdate};
use super::modules::{linear_modules, names_ancestor, target_modules};
use super::peft::PeftDirectory;
use super::scaling::{self, LearnedFactors};
use super::virtual_tokens::TokenTables;
use super::{Adapter, AdapterConfig, BottleneckConfig, PrefixConfig, PromptConfig};
use crate::formats::names::ParamShape;
use crate::formats::{NameTable, TensorPart};
use crate::model::TextHead;
use crate::{Error, Result};
use bmtrain_dist::Parameters;
use bmtrain_dist::nn::{Adapters, BottleneckOptions, LowRankOptions, PrefixOptions, PromptOptions, ScalingOptions};
use bmtrain_dist::param::NamePatterns;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The modules that transformers' classes with a new head have and PEFT trains with the updates.
const HEADS: [&str; 4] = ["classifier", "score", "classification_head", "qa_outputs"];

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
    /// What PEFT's `target_modules` has to be for the same layers.
    pub(super) target_modules: Vec<String>,
    /// What `feedforward_modules` has to be.
    pub(super) feed_forward_modules: Vec<String>,
    /// What `modules_to_save` has to be.
    pub(super) modules_to_save: Vec<String>,
    pub(super) base_prefix: &'static str,
    pub(super) head: Option<TextHead>,
    /// Whether it is an encoder-decoder with a language-modelling head.
    pub(super) generates_targets: bool,
    /// The directories that it is of; none for new updates.
    pub(super) saved: Vec<Arc<PeftDirectory>>,
    /// What each of several directories has.
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
            base_prefix: names.base_prefix,
            head,
            generates_targets,
            saved,
            described: Vec::new(),
            config,
        };
        match plan.config.clone() {
            AdapterConfig::Lora(config) => {
                let modules = linear_modules(parameters, names)?;
                let chosen = match plan.saved.first() {
                    Some(saved) => saved.chosen(&config, &modules, names)?,
                    None => {
                        let (rank, scale) = (config.rank, config.scale(config.rank));
                        lora::chosen(&config, &modules)?.into_iter().map(|module| (module, rank, scale)).collect()
                    }
                };
                plan.target_modules = target_modules(chosen.iter().map(|(module, ..)| *module), &modules);
                let update = |&(module, rank, scale): &(&_, _, _)| LoraUpdate::new(module, rank, scale, config.dora);
                plan.updates = chosen.iter().map(update).collect();
                plan.add_trained(&config.trained, parameters, names)?;
            }
            AdapterConfig::Ia3(config) => {
                let modules = linear_modules(parameters, names)?;
                let chosen = match plan.saved.first() {
                    Some(saved) => saved.chosen_factors(&modules, names)?,
                    None => scaling::chosen(&config, &modules)?,
                };
                let of_kind = |of_inputs: bool| {
                    let some = chosen.iter().filter(move |(_, other)| *other == of_inputs);
                    target_modules(some.map(|(module, _)| *module), &modules)
                };
                plan.feed_forward_modules = of_kind(true);
                plan.target_modules = [of_kind(false), plan.feed_forward_modules.clone()].concat();
                plan.target_modules.sort();
                plan.factors =
                    chosen.iter().map(|(module, of_inputs)| LearnedFactors::new(module, *of_inputs)).collect();
                plan.add_trained(&config.trained, parameters, names)?;
            }
            AdapterConfig::Bottleneck(config) => {
                let modules = linear_modules(parameters, names)?;
                let chosen = match plan.saved.first() {
                    Some(saved) => saved.chosen_bottlenecks(&modules, names)?,
                    None => bottleneck::chosen(&config, &modules)?,
                };
                plan.target_modules = target_modules(chosen.iter().copied(), &modules);
                plan.bottlenecks = chosen.iter().map(|module| BottleneckLayer::new(module, config.size)).collect();
                plan.add_trained(&config.trained, parameters, names)?;
            }
            AdapterConfig::Prompt(config) => {
                plan.virtual_tokens = Some(TokenTables::of_prompt(&config, parameters, (head, generates_targets))?);
            }
            AdapterConfig::Prefix(config) => {
                plan.virtual_tokens = Some(TokenTables::of_prefix(&config, parameters, (head, generates_targets))?);
            }
        }
        Ok(plan)
    }

    /// Whether new updates of layers are all that is trained: without them the model is what training begins with.
    pub(crate) fn is_new_updates_alone(&self) -> bool {
        self.virtual_tokens.is_none() && self.trained.is_empty() && self.saved.is_empty()
    }

    /// The virtual tokens that are trained.
    pub(crate) fn virtual_tokens(&self) -> Option<&TokenTables> {
        self.virtual_tokens.as_ref()
    }

    /// Choose the parameters that are trained as a whole.
    fn add_trained(&mut self, trained: &[String], parameters: &Parameters, names: &NameTable) -> Result<()> {
        let has_new_head = matches!(
            self.head,
            Some(TextHead::Classification { .. } | TextHead::TokenClassification { .. } | TextHead::QuestionAnswering)
        );
        // A PEFT directory names the modules of its head itself.
        let is_new = self.saved.is_empty();
        let heads = HEADS.iter().filter(|_| has_new_head && is_new).map(|name| (*name).to_owned());
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
        if let Some((name, _)) = trained.iter().zip(&used).find(|(_, used)| is_new && !**used) {
            let reason = format!("no module of the model is named \"{name}\"");
            return Err(Error::argument("adapter.trained", reason, "give the name of a module, such as \"lm_head\""));
        }
        // PEFT lists the names of all heads, such as `classifier` and `score`; a model has one of them.
        let fitting = wanted.into_iter().zip(used).filter(|(_, used)| *used || !is_new);
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
    pub(crate) fn shapes(&self) -> Vec<ParamShape> {
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

    /// Set virtual tokens to the embeddings of these tokens, repeated or truncated to their number. `table` is the full
    /// token embedding.
    ///
    /// # Errors
    /// A text without tokens; a token that the table has no row for.
    pub(crate) fn begin_with(&self, ids: &[u32], table: &[f32], parameters: &Parameters) -> Result<()> {
        let Some(TokenTables { names, tokens, size, .. }) = &self.virtual_tokens else { return Ok(()) };
        let wrong = |reason: &str| Error::argument("adapter.prompt_text", reason, "give another text");
        if ids.is_empty() {
            return Err(wrong("it has no tokens"));
        }
        let rows = ids.iter().cycle().take(names.len() * tokens);
        let mut values = Vec::with_capacity(names.len() * tokens * size);
        for id in rows {
            let start = *id as usize * size;
            let row = table.get(start..start + size);
            values.extend_from_slice(row.ok_or_else(|| wrong("the model has no embedding of one of its tokens"))?);
        }
        for (name, values) in names.iter().zip(values.chunks(tokens * size)) {
            if let Some(param) = parameters.get(name) {
                super::peft::load(param, values)?;
            }
        }
        Ok(())
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
