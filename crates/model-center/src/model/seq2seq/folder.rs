//! Models with two stacks in Hugging Face folders: opening one, writing one.

use super::{Seq2SeqFamily, Seq2SeqHead, Seq2SeqModel};
use crate::error::{Error, Result};
use crate::hf::folder::no_model_center;
use crate::hf::{Allow, FolderLayout, ModelFolder, NameTable, TensorSource, Weights};
use crate::model::opening::open_with;
use crate::model::registry::{
    HeadValues, OpenOptions, OpenedModel, SaveOptions, architectures, is_named_by_model_center, unknown_class,
};
use crate::model::text::TextHead;
use bmtrain_core::DType;
use bmtrain_dist::block::BlockOptions;
use std::borrow::Cow;
use std::path::Path;

/// Open a folder. Everything that can be wrong with it is found before memory for a parameter is taken.
///
/// # Errors
/// A configuration or weights that do not fit, see [`Plan::build`](crate::hf::Plan::build); no memory left.
pub fn open<C: Seq2SeqFamily>(folder: &Path, options: &OpenOptions) -> Result<OpenedModel> {
    let (config, head) = configure::<C>(folder, options)?;
    let blocks = BlockOptions { recompute: options.recompute };
    let (names, own, allowed) =
        (config.names(head), config.names_of_model_center(), allowed(head, options.head_values));
    let tables: Vec<_> = std::iter::once(&names).chain(&own).collect();
    open_with(folder, options, &tables, &allowed, |device, builder| {
        Seq2SeqModel::new(device, config.clone(), head, blocks, builder)
    })
}

/// The folder's configuration with what the options change, and the head.
fn configure<C: Seq2SeqFamily>(folder: &Path, options: &OpenOptions) -> Result<(C, Seq2SeqHead)> {
    let place = folder.join("config.json").display().to_string();
    let mut config = C::from_pretrained_as(folder, options.family.as_deref())?;
    let (classes, by_model_center) = (config.classes(), is_named_by_model_center(folder)?);
    let own = match architectures(folder)?.first().map(String::as_str) {
        // The first files of T5 have a name that was given up.
        Some(name) if name == classes.words || name.ends_with("WithLMHeadModel") => TextHead::CausalLm,
        Some(name) if name != classes.base && options.head.is_none() => {
            return Err(unknown_class(&place, name, &[classes.base, classes.words]));
        }
        // ModelCenter's files name no class: its models predict words.
        None if by_model_center => TextHead::CausalLm,
        _ => TextHead::None,
    };
    if options.dtype == DType::F16 {
        let reason = format!("the hidden states of {} leave the range of f16", C::TITLE);
        return Err(Error::model(place, reason, "use bf16, or f32"));
    }
    if config.weights_tell_the_head() && !by_model_center {
        let has_matrix = Weights::open(folder)?.entries().iter().any(|entry| entry.name == "lm_head.weight");
        config.text_mut().tied = !has_matrix;
    }
    let text = config.text_mut();
    text.dropout_p = options.hidden_dropout.unwrap_or(text.dropout_p);
    text.embedding_dropout_p = options.hidden_dropout.unwrap_or(text.embedding_dropout_p);
    text.attention_dropout_p = options.attention_dropout.unwrap_or(text.attention_dropout_p);
    // The options have changed what reading the file had approved of.
    text.validate(&place)?;
    let head = Seq2SeqHead::of(options.head.unwrap_or(own), text.tied, C::TITLE)?;
    Ok((config, head))
}

/// What a folder may lack or have too much of for this head.
fn allowed(head: Seq2SeqHead, values: HeadValues) -> Allow {
    let own = match head {
        Seq2SeqHead::Words { tied: false } => vec!["lm_head.*".to_owned()],
        Seq2SeqHead::None | Seq2SeqHead::Words { tied: true } => Vec::new(),
    };
    let unused = match head {
        Seq2SeqHead::None => ["lm_head.*", "output_projection.*"].map(str::to_owned).into(),
        Seq2SeqHead::Words { .. } => Vec::new(),
    };
    let (missing, fresh) = match values {
        HeadValues::Folder => (Vec::new(), Vec::new()),
        HeadValues::FolderOrDrawn => (own, Vec::new()),
        HeadValues::Drawn => (Vec::new(), own),
    };
    Allow { missing, unused, fresh }
}

/// The names of a model's parameters in a folder of this layout.
///
/// # Errors
/// A layout that the family does not have.
pub(super) fn names<C: Seq2SeqFamily>(model: &Seq2SeqModel<C>, layout: FolderLayout) -> Result<Cow<'_, NameTable>> {
    let own = match layout {
        FolderLayout::HuggingFace => return Ok(Cow::Borrowed(model.name_table())),
        FolderLayout::ModelCenter => model.config().names_of_model_center(),
    };
    own.map(Cow::Owned).ok_or_else(|| no_model_center(C::TITLE))
}

/// What is written.
pub(super) fn written<'a, C: Seq2SeqFamily>(
    model: &'a Seq2SeqModel<C>,
    names: &'a NameTable,
    options: &SaveOptions<'a>,
) -> ModelFolder<'a, C> {
    let classes = model.config().classes();
    let class = match model.head_kind() {
        Seq2SeqHead::None => classes.base,
        Seq2SeqHead::Words { .. } => classes.words,
    };
    ModelFolder::new(model.config(), names, class).with(options)
}
