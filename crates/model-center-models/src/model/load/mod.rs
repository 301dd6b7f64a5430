//! Opens a directory as a [`Transformer`]: its configuration, its head, its weights.
//!
//! Defines [`Transformer::open`], which a family's registry entry has.

mod adapter_save;
mod class_families;
pub mod division;
pub(in crate::model) mod family_names;
pub mod infer;
pub(in crate::model) mod open_options;
pub mod opening;
pub mod registry;
pub mod timed_partition;

use crate::adapter::{Adapter, BaseNeeds, TOKENS, trained_head};
use crate::model::architecture::{Added, Architecture, FamilyBlock, ModelFamily, heads};
use crate::model::head::Head;
use crate::model::head::sentence_encoder::SentenceEncoder;
use crate::model::head::sentence_encoder::dense_layer::{DenseFile, named};
use crate::model::transformer::Transformer;
use crate::model::transformer::shared_layers::on_stages;
use crate::model::transformer::sinusoids::Sinusoids;
use bmtrain_core::DType;
use bmtrain_dist::block::{BlockOptions, InputStore};
use infer::FoundHeads;
use model_center_base::error::{Error, Result};
use model_center_base::file::printable;
use model_center_formats::config::{Config, ProblemType, TextHead, are_default};
use model_center_formats::{Allow, NameTable, Weights};
use open_options::{HeadInit, OpenOptions};
use opening::{FileNames, open_with};
use registry::{OpenedModel, architectures_of, is_named_by_model_center, unknown_class};
use std::borrow::Cow;
use std::path::Path;

impl<C: ModelFamily, B: FamilyBlock<C>> Transformer<C, B> {
    /// Opens a directory; the family's registry entry is this function. All errors in the directory are found before
    /// memory for a parameter is allocated.
    ///
    /// # Errors
    /// A configuration, labels or weights that do not fit, see
    /// [`LoadPlan::build`](model_center_formats::LoadPlan::build).
    pub fn open(directory: &Path, options: &OpenOptions) -> Result<OpenedModel> {
        let options = &*in_dtype::<C>(options);
        let (mut config, mut head, notes) = configure::<C>(directory, options)?;
        // An adapter is of the head that there is, asked for or the directory's own: a classifier is trained with it.
        let with_head =
            options.adapter.is_some().then(|| OpenOptions { head: Some(head.requested()), ..options.clone() });
        let spec = config.spec();
        if !options.from_config && spec.stacks.iter().any(|stack| stack.added == Added::Sinusoids) {
            // The values of such tensors are computed here.
            Sinusoids::check(&Weights::open(directory)?, [config.text().position_size, spec.dim_model])?;
        }
        let (model_center, torchtitan) = (config.names_of_model_center(head), config.names_of_torchtitan(head));
        let names = config.names(head);
        let copies = adapt((&mut config, &mut head), &names, (directory, options))?;
        let dense = dense_files(head, (directory, options))?;
        let hugging_face = named(config.names(head), !dense.is_empty());
        let settings: Vec<_> = dense.iter().map(|file| file.settings).collect();
        let tables = FileNames { hugging_face, model_center, torchtitan, dense };
        let is_own = options.is_named_by_model_center(directory)?;
        let allowed = Allow { copies, ..heads::allowed(&config, head, options.head_values, is_own) };
        let options = with_head.as_ref().unwrap_or(options);
        let mut opened = open_with(directory, options, &tables, &allowed, |device, builder| {
            // The sketch is on one rank, whatever the model is on.
            let inputs = match options.recompute_inputs {
                InputStore::Sharded if builder.tensor.ranks.size() == 1 => InputStore::Device,
                inputs => inputs,
            };
            let blocks = BlockOptions { recompute: options.recompute, inputs, zero: None };
            Self::with_dense(device, config.clone(), (head, &settings), blocks.into(), builder)
        })?;
        opened.notes.extend(notes);
        Ok(opened)
    }
}

/// The modules `Dense` that the model has.
///
/// # Errors
/// As [`SentenceEncoder::from_directory`].
fn dense_files(head: Head, (directory, options): (&Path, &OpenOptions)) -> Result<Vec<DenseFile>> {
    if !options.sentence_modules || head != Head::None || !directory.is_dir() {
        return Ok(Vec::new());
    }
    Ok(SentenceEncoder::from_directory(directory)?.dense_files().cloned().collect())
}

/// The options with f32 in place of f16 as the dtype of stored weights, for a family that does not compute in it.
fn in_dtype<C: ModelFamily>(options: &OpenOptions) -> Cow<'_, OpenOptions> {
    match C::LEAVES_F16 && options.dtype == DType::F16 && options.keep_dtype {
        true => Cow::Owned(OpenOptions { dtype: DType::F32, ..options.clone() }),
        false => Cow::Borrowed(options),
    }
}

/// Changes that options and weights make in the configuration before it is used.
///
/// # Errors
/// A dtype that the family does not compute in; weights that cannot be opened.
fn prepare<C: ModelFamily>(config: &mut C, directory: &Path, options: &OpenOptions) -> Result<()> {
    if C::LEAVES_F16 && options.dtype == DType::F16 {
        let reason = format!("the hidden states of {} leave the range of f16", C::DIALECT.title);
        let place = directory.join("config.json").display().to_string();
        return Err(Error::model(place, reason, "use bf16, or f32"));
    }
    if config.weights_tell_the_head() && !options.from_config && !is_named_by_model_center(directory)? {
        config.text_mut().tied = !heads::has_tensor(directory, "lm_head.weight")?;
    }
    if let Some(rate) = options.hidden_dropout {
        config.set_hidden_dropout(rate);
    }
    let text = config.text_mut();
    text.attention_dropout_p = options.attention_dropout.unwrap_or(text.attention_dropout_p);
    Ok(())
}

/// Change configuration and head as the adapter needs them; returns Hugging Face's tensors of an output projection that
/// it unties, each with the one that has its values where the file lacks it.
fn adapt<C: ModelFamily>(
    (config, head): (&mut C, &mut Head),
    names: &NameTable,
    (directory, options): (&Path, &OpenOptions),
) -> Result<Vec<(String, String)>> {
    let Some(adapter) = &options.adapter else { return Ok(Vec::new()) };
    let text = config.text();
    let tokens = names.pieces(TOKENS, &[text.vocab_size, text.dim_model], true).unwrap_or_default();
    let [tokens] = tokens.as_slice() else { return Ok(Vec::new()) };
    let needs = BaseNeeds::of(adapter, names, &tokens.name)?;
    let mut copies = Vec::new();
    if needs.is_untied && *head == (Head::CausalLm { tied: true }) {
        *head = Head::CausalLm { tied: false };
        config.text_mut().tied = false;
        let of_head = names.aliases.iter().filter(|alias| alias.of() == tokens.name);
        copies = of_head.map(|alias| (alias.name().to_owned(), alias.of().to_owned())).collect();
    }
    if let Some(vocabulary) = needs.vocabulary {
        config.text_mut().vocab_size = vocabulary;
    }
    config.validate(&directory.join("config.json").display().to_string())?;
    Ok(copies)
}

/// The head of the class that `config.json` names; without a class the weights' head, or, of several, the requested
/// one. What is inferred is added to `notes`.
fn own_head<C: ModelFamily>(
    config: &C,
    (directory, place): (&Path, &str),
    options: &OpenOptions,
    notes: &mut Vec<String>,
) -> Result<TextHead> {
    let found = || match options.from_config {
        true => Ok(FoundHeads::default()),
        false => heads::of_tensors(config, directory),
    };
    let is_own = options.is_named_by_model_center(directory)?;
    // ModelCenter's encoder files have all heads at once, but may name a class nevertheless.
    let ignores_class = is_own && C::ARCHITECTURE == Architecture::Encoder;
    let class = architectures_of(&options.fields(directory)?).into_iter().next().filter(|_| !ignores_class);
    let Some(class) = class else {
        if is_own {
            return heads::of_model_center(config, directory);
        }
        return found()?.only(place, options.head, heads::defaults(config), notes);
    };
    match config.classes().head_of(&class) {
        Some(TextHead::Classification { .. }) => {
            let stated = config.text().cls_head;
            let outputs = found()?.outputs(directory, stated, notes)?;
            Ok(TextHead::Classification { outputs })
        }
        Some(TextHead::TokenClassification { .. }) => {
            // Two is what transformers assumes, too.
            Ok(TextHead::TokenClassification { outputs: config.text().cls_head.unwrap_or(2) })
        }
        Some(head) => Ok(head),
        None => {
            let known = config.classes().known();
            Err(unknown_class(place, &class, &known.iter().map(String::as_str).collect::<Vec<_>>()))
        }
    }
}

/// The directory's configuration as changed by the options, the head, and notes on what was inferred.
fn configure<C: ModelFamily>(directory: &Path, options: &OpenOptions) -> Result<(C, Head, Vec<String>)> {
    let (mut config, place) = match &options.config {
        Some(source) => (source.read::<C>(options.family.as_deref())?, source.place().to_owned()),
        None => {
            let place = directory.join("config.json").display().to_string();
            (C::from_pretrained_as(directory, options.family.as_deref())?, place)
        }
    };
    prepare(&mut config, directory, options)?;
    // If a head is requested, the file's own may be an unknown one.
    let mut notes = Vec::new();
    // An adapter may have trained a head of its own.
    let of_adapter = match options.adapter.as_ref().map(Adapter::directories).as_deref() {
        Some([directory]) => trained_head(directory)?,
        _ => None,
    };
    let asked = options.head.or(of_adapter);
    let own = match (own_head(&config, (directory, &place), options, &mut notes), asked) {
        (Err(_), Some(_)) => TextHead::None,
        (own, _) => own?,
    };
    let kind = asked.unwrap_or(own);
    if asked.is_some_and(|asked| asked != own || options.head_values == HeadInit::Random) {
        // Notes on another head, or on a classifier that is replaced, are irrelevant.
        notes.clear();
    }
    if options.is_named_by_model_center(directory)? {
        heads::check_read(&config, &place, kind, options.head_values)?;
    }
    if let TextHead::Classification { outputs } | TextHead::TokenClassification { outputs } = kind {
        let trained = match (kind, own) {
            (TextHead::Classification { .. }, TextHead::Classification { outputs })
            | (TextHead::TokenClassification { .. }, TextHead::TokenClassification { outputs }) => Some(outputs),
            _ => None,
        };
        let text = config.text_mut();
        take_over((&mut text.labels, &mut text.problem_type), &place, (trained, outputs), options)?;
        text.cls_head = Some(outputs);
    }
    let head = heads::requested(&config, kind, directory)?;
    // The options may have made a valid configuration invalid.
    config.validate(&place)?;
    if config.text().scale_init_by_depth.is_some() && config.spec().is_encoder_decoder() {
        let reason = "initial values scaled by depth are for models of one stack";
        return Err(Error::model(place, reason, "remove model.scale_init_by_depth"));
    }
    let spec = config.spec();
    if config.text().sharing.is_some() && spec.files_share {
        let reason = format!("the configuration of {} states which layers share their parameters", spec.title);
        return Err(Error::argument("model.unique_layers", reason, "remove it, and state them in config.json"));
    }
    if spec.sharing.is_some() && options.stages.as_ref().is_some_and(|stages| stages.ranks.size() > 1) {
        return Err(on_stages());
    }
    Ok((config, head, notes))
}

/// The labels of a classifier opened with this number of outputs: the labels of the directory's own classifier, with
/// `trained` outputs, if it is reused, and otherwise the labels of the options. A reused classifier keeps the order of
/// its outputs; a caller whose labels are in another order reads the names, see [`ModelInfo::label_names`].
///
/// # Errors
/// The classifier's labels or outputs do not match.
///
/// [`ModelInfo::label_names`]: crate::model::ModelInfo::label_names
fn take_over(
    (names, problem): (&mut Vec<String>, &mut Option<ProblemType>),
    place: &str,
    (trained, outputs): (Option<usize>, usize),
    options: &OpenOptions,
) -> Result<()> {
    let Some(trained) = trained.filter(|_| options.head_values != HeadInit::Random) else {
        // Labels in the file, if any, belong to another classifier.
        names.clone_from(&options.labels);
        *problem = options.problem;
        return Ok(());
    };
    let fix = "use data with the same labels, or begin with a new classifier: model.head = \"new\"";
    let refuse = |reason: String| Err(Error::model(place, reason, fix));
    if trained != outputs {
        return refuse(format!("the directory is a classifier with {trained} outputs, and the data need {outputs}"));
    }
    if let (Some(theirs), Some(ours)) = (*problem, options.problem)
        && theirs != ours
    {
        let (theirs, ours) = (theirs.name(), ours.name());
        return refuse(format!("the directory's classifier is for {theirs}, and the data are for {ours}"));
    }
    *problem = options.problem.or(*problem);
    if are_default(names) {
        if !options.labels.is_empty() {
            names.clone_from(&options.labels);
        } else if names.len() != trained {
            names.clear();
        }
    }
    let sorted = |names: &[String]| {
        let mut names = names.to_vec();
        names.sort();
        names
    };
    if !options.labels.is_empty() && sorted(names) != sorted(&options.labels) {
        let list = |names: &[String]| printable(&names.join(", "), 120);
        let (theirs, ours) = (list(names), list(&options.labels));
        return refuse(format!("the directory's classifier is for the labels {theirs}, and the data have {ours}"));
    }
    Ok(())
}
