//! Decoders in Hugging Face folders: opening one, writing one.

use super::{DecoderFamily, DecoderHead, DecoderModel};
use crate::error::Result;
use crate::hf::{Allow, ModelFolder};
use crate::model::labels::take_over;
use crate::model::opening::{open_with, save_as};
use crate::model::registry::{HeadValues, OpenOptions, OpenedModel, SaveOptions, architectures};
use crate::model::text::TextHead;
use bmtrain_dist::Model;
use bmtrain_dist::block::BlockOptions;
use std::path::Path;

/// The head that the classes of a folder's `config.json` carry.
pub fn default_head<C: DecoderFamily>(config: &C, architectures: &[String]) -> TextHead {
    match architectures.first() {
        Some(name) if name == C::CLASSES.words => TextHead::CausalLm,
        Some(name) if name == C::CLASSES.classifier => {
            TextHead::Classification { outputs: config.text().cls_head.unwrap_or(2) }
        }
        _ => TextHead::None,
    }
}

/// Open a folder. Everything that can be wrong with it is found before memory for a parameter is taken.
///
/// # Errors
/// A configuration, labels or weights that do not fit, see [`Plan::build`](crate::hf::Plan::build); no memory left.
pub fn open<C: DecoderFamily>(folder: &Path, options: &OpenOptions) -> Result<OpenedModel> {
    let (config, head) = configure::<C>(folder, options)?;
    let blocks = BlockOptions { recompute: options.recompute };
    let (names, allowed) = (config.names(head), allowed(head, options.head_values));
    open_with(folder, options, &names, &allowed, |device, builder| {
        DecoderModel::new(device, config.clone(), head, blocks, builder)
    })
}

/// The folder's configuration with what the options change, and the head.
fn configure<C: DecoderFamily>(folder: &Path, options: &OpenOptions) -> Result<(C, DecoderHead)> {
    let place = folder.join("config.json").display().to_string();
    let mut config = C::from_pretrained(folder)?;
    let own = default_head(&config, &architectures(folder)?);
    let text = config.text_mut();
    text.dropout_p = options.hidden_dropout.unwrap_or(text.dropout_p);
    text.embedding_dropout_p = options.hidden_dropout.unwrap_or(text.embedding_dropout_p);
    text.attention_dropout_p = options.attention_dropout.unwrap_or(text.attention_dropout_p);
    let head = options.head.unwrap_or(own);
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
    Ok((config, head))
}

/// What a folder may lack or have too much of for this head.
fn allowed(head: DecoderHead, values: HeadValues) -> Allow {
    let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let (own, unused): (&[&str], &[&str]) = match head {
        DecoderHead::None => (&[], &["lm_head.*", "score.*"]),
        DecoderHead::CausalLm { tied: true } => (&[], &["score.*"]),
        DecoderHead::CausalLm { tied: false } => (&["lm_head.*"], &["score.*"]),
        DecoderHead::Classifier { .. } => (&["cls_projection.*"], &["lm_head.*"]),
    };
    let (missing, fresh): (&[&str], &[&str]) = match values {
        HeadValues::Folder => (&[], &[]),
        HeadValues::FolderOrDrawn => (own, &[]),
        HeadValues::Drawn => (&[], own),
    };
    Allow { missing: texts(missing), unused: texts(unused), fresh: texts(fresh) }
}

/// Write a complete folder.
///
/// # Errors
/// The disk refuses; a failing device.
pub fn save<C: DecoderFamily>(model: &DecoderModel<C>, folder: &Path, options: &SaveOptions<'_>) -> Result<()> {
    save_as(&written(model, options), Model::parameters(model), folder)
}

/// What [`save`] writes.
pub(super) fn written<'a, C: DecoderFamily>(
    model: &'a DecoderModel<C>,
    options: &SaveOptions<'a>,
) -> ModelFolder<'a, C> {
    let class = match model.head_kind() {
        DecoderHead::None => C::CLASSES.base,
        DecoderHead::CausalLm { .. } => C::CLASSES.words,
        DecoderHead::Classifier { .. } => C::CLASSES.classifier,
    };
    let names = crate::model::text::TextModel::names(model);
    let mut written = ModelFolder::new(model.config(), names, class);
    written.header.dtype = options.dtype;
    written.companions = options.companions;
    written
}
