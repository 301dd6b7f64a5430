//! Encoders in Hugging Face directories: opening one, writing one.

use super::{EncoderFamily, EncoderHead, EncoderModel};
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
use bmtrain_core::kernel::Activation;
use bmtrain_dist::block::BlockOptions;
use std::borrow::Cow;
use std::path::Path;

/// What the class of a model with this head has behind the family's prefix.
pub(super) fn class_suffix(head: EncoderHead) -> &'static str {
    match head {
        EncoderHead::None { .. } => "Model",
        EncoderHead::Classifier { .. } => "ForSequenceClassification",
        EncoderHead::MaskedLm => "ForMaskedLM",
        EncoderHead::NextSentence => "ForNextSentencePrediction",
        EncoderHead::Pretraining => "ForPreTraining",
    }
}

/// The heads whose tensors a directory has.
fn heads<C: EncoderFamily>(config: &C, directory: &Path) -> Result<Heads> {
    let names = config.names();
    let sentences = C::HAS_SENTENCES.then_some(("nsp_projection.weight", &names));
    Heads::of(directory, ("lm_head.dense.weight", &names), sentences, ("cls_projection.weight", &names))
}

/// The head of the class that `config.json` names; without one the head that the weights have, or of several the one
/// that is asked for. What is inferred is added to `notes`.
fn own_head<C: EncoderFamily>(
    config: &C,
    directory: &Path,
    place: &str,
    asked: Option<TextHead>,
    notes: &mut Vec<String>,
) -> Result<TextHead> {
    if is_named_by_model_center(directory)? {
        // Its files name no class, and its classes have all heads at once.
        let has_words = Weights::open(directory)?.entries().iter().any(|entry| entry.name == "lm_head.dense.weight");
        return Ok(if has_words { TextHead::MaskedLm } else { TextHead::None });
    }
    let Some(class) = architectures(directory)?.into_iter().next() else {
        return heads(config, directory)?.only(place, asked, (TextHead::None, TextHead::MaskedLm), notes);
    };
    let prefix = config.class_prefix();
    match class.strip_prefix(prefix) {
        Some("Model") => Ok(TextHead::None),
        Some("ForSequenceClassification") => {
            let outputs = heads(config, directory)?.outputs(directory, config.layout().cls_head, notes)?;
            Ok(TextHead::Classification { outputs })
        }
        Some("ForMaskedLM") => Ok(TextHead::MaskedLm),
        Some("ForNextSentencePrediction") => Ok(TextHead::NextSentence),
        Some("ForPreTraining") => Ok(TextHead::Pretraining),
        _ => {
            let known = ["Model", "ForMaskedLM", "ForSequenceClassification"].map(|kind| format!("{prefix}{kind}"));
            Err(unknown_class(place, &class, &known.each_ref().map(String::as_str)))
        }
    }
}

/// Open a directory. Everything that can be wrong with it is found before memory for a parameter is taken.
///
/// # Errors
/// A configuration, labels or weights that do not fit, see [`LoadPlan::build`](crate::formats::LoadPlan::build); no memory left.
pub fn open<C: EncoderFamily>(directory: &Path, options: &OpenOptions) -> Result<OpenedModel> {
    let (config, head, notes) = configure::<C>(directory, options)?;
    let blocks = BlockOptions { recompute: options.recompute };
    let (names, own, mut allowed) =
        (config.names(), config.names_of_model_center(head), allowed::<C>(head, options.head_values));
    if is_named_by_model_center(directory)? {
        // Its classes have all heads at once.
        let heads = [
            ("cls_projection.*", false),
            ("lm_head.*", head.has_words()),
            ("pooler.*", head.has_pooler(C::CLASSIFIER)),
        ];
        allowed.unused = heads.iter().filter(|(_, is_here)| !is_here).map(|(names, _)| (*names).to_owned()).collect();
    }
    let tables: Vec<_> = std::iter::once(&names).chain(&own).collect();
    let mut opened = open_with(directory, options, &tables, &allowed, |device, builder| {
        EncoderModel::new(device, config.clone(), head, blocks, builder)
    })?;
    opened.notes.extend(notes);
    Ok(opened)
}

/// The directory's configuration with what the options change, the head, and notes on what was inferred of it.
fn configure<C: EncoderFamily>(directory: &Path, options: &OpenOptions) -> Result<(C, EncoderHead, Vec<String>)> {
    let place = directory.join("config.json").display().to_string();
    let mut config = C::from_pretrained_as(directory, options.family.as_deref())?;
    config.set_dropout(options.hidden_dropout, options.attention_dropout);
    // Where the head is asked for, the file's own need not be one of ours.
    let mut notes = Vec::new();
    let own = match (own_head(&config, directory, &place, options.head, &mut notes), options.head) {
        (Err(_), Some(_)) => TextHead::None,
        (own, _) => own?,
    };
    let head = options.head.unwrap_or(own);
    if options.head.is_some_and(|asked| asked != own || options.head_values == HeadValues::Drawn) {
        // What was inferred of another head, or of a classifier that is replaced, does not matter.
        notes.clear();
    }
    if is_named_by_model_center(directory)? {
        check_own_head(&config, head, options.head_values, &place)?;
    }
    if let TextHead::Classification { outputs } = head {
        let trained = match own {
            TextHead::Classification { outputs } => Some(outputs),
            _ => None,
        };
        let (cls_head, labels, problem_type) = config.labels_mut();
        take_over((labels, problem_type), &place, (trained, outputs), options)?;
        *cls_head = Some(outputs);
    }
    let head = EncoderHead::of::<C>(head, config.title())?;
    if head.has_words() && !config.layout().tied {
        let reason = "tie_word_embeddings is false: a masked-word head with a matrix of its own";
        return Err(Error::model(directory.display().to_string(), reason, "use a model with tied embeddings"));
    }
    // The options have changed what reading the file had approved of.
    config.validate(&place)?;
    Ok((config, head, notes))
}

/// Errors for heads of ModelCenter's files that are another computation than those here.
fn check_own_head<C: EncoderFamily>(config: &C, head: TextHead, values: HeadValues, place: &str) -> Result<()> {
    let layout = config.layout();
    match head {
        TextHead::Classification { .. } if layout.cls_head.is_some() && values != HeadValues::Drawn => {
            let reason =
                "the head for classes of ModelCenter's encoders reads hidden states, not what a pooler makes of them";
            let fix = "draw a new head, or take another";
            Err(Error::model(format!("{place}, field cls_head"), reason, fix))
        }
        TextHead::MaskedLm | TextHead::Pretraining => check_own_words(layout.word_activation, config.title()),
        _ => Ok(()),
    }
}

/// ModelCenter's heads for masked words have one function, whatever that of the blocks is.
fn check_own_words(function: Activation, title: &str) -> Result<()> {
    match function {
        Activation::Gelu => Ok(()),
        _ => Err(Error::model(
            format!("{title} in ModelCenter's layout"),
            "its head for masked words has gelu, and this model's another function",
            "take the model without this head",
        )),
    }
}

/// The names of a model's parameters in a directory of this layout.
///
/// # Errors
/// A layout or a head that the family does not have there.
pub(super) fn names<C: EncoderFamily>(model: &EncoderModel<C>, layout: DirectoryLayout) -> Result<Cow<'_, NameTable>> {
    let (config, head) = (model.config(), model.head_kind());
    let own = match layout {
        DirectoryLayout::HuggingFace => return Ok(Cow::Borrowed(PretrainedModel::names(model))),
        DirectoryLayout::ModelCenter => config.names_of_model_center(head),
    };
    let own = own.ok_or_else(|| no_model_center(config.title()))?;
    let missing = match head {
        EncoderHead::None { .. } => return Ok(Cow::Owned(own)),
        EncoderHead::MaskedLm => {
            return check_own_words(config.layout().word_activation, config.title()).map(|()| Cow::Owned(own));
        }
        EncoderHead::Classifier { .. } => "for classes that reads what a pooler or a map of its own yields",
        EncoderHead::NextSentence | EncoderHead::Pretraining => "for the next sentence",
    };
    let reason = format!("it has no head {missing}");
    let fix = "name a class with another head in config.json, or write the model as a Hugging Face directory";
    Err(Error::model(format!("{} in ModelCenter's layout", config.title()), reason, fix))
}

/// What a directory may lack or have too much of for this head.
fn allowed<C: EncoderFamily>(head: EncoderHead, values: HeadValues) -> Allow {
    let own: &[&str] = match head {
        EncoderHead::None { .. } => &[],
        EncoderHead::Classifier { .. } => &["cls_*"],
        EncoderHead::MaskedLm => &["lm_head.*"],
        EncoderHead::NextSentence => &["nsp_projection.*"],
        EncoderHead::Pretraining => &["lm_head.*", "nsp_projection.*"],
    };
    // The pooler belongs to the base model: it is kept where there is one.
    let is_bare = matches!(head, EncoderHead::None { .. });
    let may_lack_pooler = head.has_pooler(C::CLASSIFIER) && (is_bare || values != HeadValues::Directory);
    let mut allowed = allow(values, own, C::unused(head));
    allowed.missing.extend(may_lack_pooler.then(|| "pooler.dense.*".to_owned()));
    allowed
}
