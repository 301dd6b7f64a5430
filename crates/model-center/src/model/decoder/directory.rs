//! Decoders in directories: opening one, writing one.

use super::{Classes, DecoderFamily, DecoderHead, DecoderModel};
use crate::config::model_center::no_model_center;
use crate::error::Result;
use crate::formats::{Allow, DirectoryLayout, NameTable};
use crate::model::infer::Heads;
use crate::model::labels::take_over;
use crate::model::opening::{allow, open_with};
use crate::model::registry::{
    HeadValues, OpenOptions, OpenedModel, architectures, is_named_by_model_center, unknown_class,
};
use crate::model::text_model::{PretrainedModel, TextHead};
use bmtrain_dist::block::BlockOptions;
use std::borrow::Cow;
use std::path::Path;

/// The heads whose tensors a directory has.
fn heads<C: DecoderFamily>(config: &C, directory: &Path) -> Result<Heads> {
    let words = config.names(DecoderHead::CausalLm { tied: false });
    let classes = config.names(DecoderHead::Classifier { outputs: 1 });
    Heads::of(directory, ("lm_head.weight", &words), None, ("cls_projection.weight", &classes))
}

/// The head of the class that `config.json` names; without one the head that the weights have, or of several the one
/// that is asked for. What is inferred is added to `notes`.
fn own_head<C: DecoderFamily>(
    config: &C,
    directory: &Path,
    place: &str,
    asked: Option<TextHead>,
    notes: &mut Vec<String>,
) -> Result<TextHead> {
    let Classes { base, words, classifier } = C::CLASSES;
    let outputs = config.text().cls_head;
    let Some(class) = architectures(directory)?.into_iter().next() else {
        // ModelCenter's files name no class: its models predict words unless they have a head for classes.
        return match (is_named_by_model_center(directory)?, outputs) {
            (false, _) => {
                // A tied head for words has no tensor of its own.
                let without = if config.text().tied { TextHead::CausalLm } else { TextHead::None };
                heads(config, directory)?.only(place, asked, (without, TextHead::CausalLm), notes)
            }
            (true, Some(outputs)) => Ok(TextHead::Classification { outputs }),
            (true, None) => Ok(TextHead::CausalLm),
        };
    };
    // The first files of Llama wrote its name in capitals.
    let is = |name: &str| class.eq_ignore_ascii_case(name);
    match () {
        () if is(words) => Ok(TextHead::CausalLm),
        () if is(classifier) => {
            Ok(TextHead::Classification { outputs: heads(config, directory)?.outputs(directory, outputs, notes)? })
        }
        () if is(base) => Ok(TextHead::None),
        () => Err(unknown_class(place, &class, &[base, words, classifier])),
    }
}

/// Open a directory. Everything that can be wrong with it is found before memory for a parameter is taken.
///
/// # Errors
/// A configuration, labels or weights that do not fit, see [`LoadPlan::build`](crate::formats::LoadPlan::build); no memory left.
pub fn open<C: DecoderFamily>(directory: &Path, options: &OpenOptions) -> Result<OpenedModel> {
    let (config, head, notes) = configure::<C>(directory, options)?;
    let blocks = BlockOptions { recompute: options.recompute };
    let (names, own, allowed) =
        (config.names(head), config.names_of_model_center(), allowed::<C>(head, options.head_values));
    let tables: Vec<_> = std::iter::once(&names).chain(&own).collect();
    let mut opened = open_with(directory, options, &tables, &allowed, |device, builder| {
        DecoderModel::new(device, config.clone(), head, blocks, builder)
    })?;
    opened.notes.extend(notes);
    Ok(opened)
}

/// The directory's configuration with what the options change, the head, and notes on what was inferred of it.
fn configure<C: DecoderFamily>(directory: &Path, options: &OpenOptions) -> Result<(C, DecoderHead, Vec<String>)> {
    let place = directory.join("config.json").display().to_string();
    let mut config = C::from_pretrained_as(directory, options.family.as_deref())?;
    // Where the head is asked for, the file's own need not be one of ours.
    let mut notes = Vec::new();
    let own = match (own_head(&config, directory, &place, options.head, &mut notes), options.head) {
        (Err(_), Some(_)) => TextHead::None,
        (own, _) => own?,
    };
    let text = config.text_mut();
    if let Some(rate) = options.hidden_dropout {
        text.set_hidden_dropout(rate, C::DROPS_EMBEDDINGS);
    }
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
        let labels = (&mut text.labels, &mut text.problem_type);
        take_over(labels, &place, (trained, outputs), options)?;
        text.cls_head = Some(outputs);
    }
    let head = DecoderHead::of(head, text.tied, C::TITLE)?;
    // The options have changed what reading the file had approved of.
    text.validate(&place)?;
    Ok((config, head, notes))
}

/// What a directory may lack or have too much of for this head.
fn allowed<C: DecoderFamily>(head: DecoderHead, values: HeadValues) -> Allow {
    // ModelCenter has two heads, each under one name in all families.
    let of_model_center = ["output_projection.*", "cls_projection.*"];
    let (own, here): (&[&str], &[&str]) = match head {
        DecoderHead::None => (&[], &[]),
        DecoderHead::CausalLm { tied: true } => (&[], &["lm_head.*", "output_projection.*"]),
        DecoderHead::CausalLm { tied: false } => (&["lm_head.*"], &["lm_head.*", "output_projection.*"]),
        DecoderHead::Classifier { .. } => (&["cls_projection.*"], &["score.*", "cls_projection.*"]),
    };
    let others = C::OTHER_HEADS.iter().copied().chain(of_model_center);
    allow(values, own, &others.filter(|names| !here.contains(names)).collect::<Vec<_>>())
}

/// The names of a model's parameters in a directory of this layout.
///
/// # Errors
/// A layout that the family does not have.
pub(super) fn names<C: DecoderFamily>(model: &DecoderModel<C>, layout: DirectoryLayout) -> Result<Cow<'_, NameTable>> {
    let own = match layout {
        DirectoryLayout::HuggingFace => return Ok(Cow::Borrowed(PretrainedModel::names(model))),
        DirectoryLayout::ModelCenter => model.config().names_of_model_center(),
    };
    own.map(Cow::Owned).ok_or_else(|| no_model_center(C::TITLE))
}
