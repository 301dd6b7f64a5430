//! Models with two stacks in Hugging Face directories: opening one, writing one.

use super::{Added, Seq2SeqFamily, Seq2SeqHead, Seq2SeqModel, Sinusoids};
use crate::config::model_center::no_model_center;
use crate::error::{Error, Result};
use crate::formats::{Allow, DirectoryLayout, NameTable, TensorSource, Weights};
use crate::model::infer::Heads;
use crate::model::labels::take_over;
use crate::model::opening::{allow, open_with};
use crate::model::registry::{
    HeadValues, OpenOptions, OpenedModel, architectures, is_named_by_model_center, unknown_class,
};
use crate::model::text_model::{PretrainedModel, TextHead};
use bmtrain_core::DType;
use bmtrain_dist::block::BlockOptions;
use std::borrow::Cow;
use std::path::Path;

/// Open a directory. Everything that can be wrong with it is found before memory for a parameter is taken.
///
/// # Errors
/// A configuration or weights that do not fit, see [`LoadPlan::build`](crate::formats::LoadPlan::build); no memory left.
pub fn open<C: Seq2SeqFamily>(directory: &Path, options: &OpenOptions) -> Result<OpenedModel> {
    let wide = OpenOptions { dtype: DType::F32, ..options.clone() };
    let options = if C::LEAVES_F16 && options.dtype == DType::F16 && options.keep_dtype { &wide } else { options };
    let (config, head, notes) = configure::<C>(directory, options)?;
    let layout = config.layout();
    if [layout.encoder, layout.decoder].iter().any(|around| around.added == Added::Sinusoids) {
        let text = config.text();
        Sinusoids::check(&Weights::open(directory)?, [text.position_size, text.dim_model])?;
    }
    let blocks = BlockOptions { recompute: options.recompute };
    let (names, own, allowed) =
        (config.names(head), config.names_of_model_center(), allowed::<C>(head, options.head_values));
    let tables: Vec<_> = std::iter::once(&names).chain(&own).collect();
    let mut opened = open_with(directory, options, &tables, &allowed, |device, builder| {
        Seq2SeqModel::new(device, config.clone(), head, blocks, builder)
    })?;
    opened.notes.extend(notes);
    Ok(opened)
}

/// The heads whose tensors a directory has.
fn heads<C: Seq2SeqFamily>(config: &C, directory: &Path) -> Result<Heads> {
    let words = config.names(Seq2SeqHead::Words { tied: false });
    let classes = config.names(Seq2SeqHead::Classifier { outputs: 1 });
    Heads::of(directory, ("lm_head.weight", &words), None, ("cls_projection.weight", &classes))
}

/// The head of the class that `config.json` names; without one the head that the weights have, or of several the one
/// that is asked for. What is inferred is added to `notes`.
fn own_head<C: Seq2SeqFamily>(
    config: &C,
    directory: &Path,
    place: &str,
    asked: Option<TextHead>,
    notes: &mut Vec<String>,
) -> Result<TextHead> {
    let classes = config.classes();
    match architectures(directory)?.first().map(String::as_str) {
        // The first files of T5 have a name that was given up.
        Some(name) if name == classes.words || name.ends_with("WithLMHeadModel") => Ok(TextHead::CausalLm),
        Some(name) if classes.classifier == Some(name) => {
            let outputs = heads(config, directory)?.outputs(directory, config.text().cls_head, notes)?;
            Ok(TextHead::Classification { outputs })
        }
        Some(name) if name != classes.base => {
            let mut known = vec![classes.base, classes.words];
            known.extend(classes.classifier);
            Err(unknown_class(place, name, &known))
        }
        Some(_) => Ok(TextHead::None),
        // ModelCenter's files name no class: its models predict words.
        None if is_named_by_model_center(directory)? => Ok(TextHead::CausalLm),
        None => {
            // A tied head for words has no tensor of its own.
            let without = if config.text().tied { TextHead::CausalLm } else { TextHead::None };
            heads(config, directory)?.only(place, asked, (without, TextHead::CausalLm), notes)
        }
    }
}

/// The directory's configuration with what the options change, the head, and notes on what was inferred of it.
fn configure<C: Seq2SeqFamily>(directory: &Path, options: &OpenOptions) -> Result<(C, Seq2SeqHead, Vec<String>)> {
    let place = directory.join("config.json").display().to_string();
    let mut config = C::from_pretrained_as(directory, options.family.as_deref())?;
    if C::LEAVES_F16 && options.dtype == DType::F16 {
        let reason = format!("the hidden states of {} leave the range of f16", C::TITLE);
        return Err(Error::model(place, reason, "use bf16, or f32"));
    }
    if config.weights_tell_the_head() && !is_named_by_model_center(directory)? {
        let has_matrix = Weights::open(directory)?.entries().iter().any(|entry| entry.name == "lm_head.weight");
        config.text_mut().tied = !has_matrix;
    }
    // Where the head is asked for, the file's own need not be one of ours.
    let mut notes = Vec::new();
    let own = match (own_head(&config, directory, &place, options.head, &mut notes), options.head) {
        (Err(_), Some(_)) => TextHead::None,
        (own, _) => own?,
    };
    if let Some(rate) = options.hidden_dropout {
        config.set_hidden_dropout(rate);
    }
    let has_classifier = config.classes().classifier.is_some();
    let text = config.text_mut();
    text.attention_dropout_p = options.attention_dropout.unwrap_or(text.attention_dropout_p);
    let head = options.head.unwrap_or(own);
    if options.head.is_some_and(|asked| asked != own || options.head_values == HeadValues::Drawn) {
        // What was inferred of another head, or of a classifier that is replaced, does not matter.
        notes.clear();
    }
    if let TextHead::Classification { outputs } = head {
        let trained = match own {
            TextHead::Classification { outputs } => Some(outputs),
            _ => None,
        };
        take_over((&mut text.labels, &mut text.problem_type), &place, (trained, outputs), options)?;
        text.cls_head = Some(outputs);
    }
    // The options have changed what reading the file had approved of.
    text.validate(&place)?;
    let head = Seq2SeqHead::of(head, text.tied, C::TITLE, has_classifier)?;
    Ok((config, head, notes))
}

/// What a directory may lack or have too much of for this head.
fn allowed<C: Seq2SeqFamily>(head: Seq2SeqHead, values: HeadValues) -> Allow {
    let own: &[&str] = match head {
        Seq2SeqHead::Words { tied: false } => &["lm_head.*"],
        Seq2SeqHead::Classifier { .. } => &["cls_dense.*", "cls_projection.*"],
        Seq2SeqHead::None | Seq2SeqHead::Words { tied: true } => &[],
    };
    let here: &[&str] = match head {
        Seq2SeqHead::None => &[],
        Seq2SeqHead::Words { .. } => &["lm_head.*", "final_logits_bias", "output_projection.*"],
        Seq2SeqHead::Classifier { .. } => &["classification_head.*", "cls_projection.*"],
    };
    // ModelCenter's classes have a head for classes of their own beside that for words.
    let others = C::OTHER_HEADS.iter().copied().chain(["output_projection.*", "cls_projection.*"]);
    allow(values, own, &others.filter(|names| !here.contains(names)).collect::<Vec<_>>())
}

/// The names of a model's parameters in a directory of this layout.
///
/// # Errors
/// A layout that the family does not have.
pub(super) fn names<C: Seq2SeqFamily>(model: &Seq2SeqModel<C>, layout: DirectoryLayout) -> Result<Cow<'_, NameTable>> {
    let own = match layout {
        DirectoryLayout::HuggingFace => return Ok(Cow::Borrowed(PretrainedModel::names(model))),
        DirectoryLayout::ModelCenter => model.config().names_of_model_center(),
    };
    own.map(Cow::Owned).ok_or_else(|| no_model_center(C::TITLE))
}
