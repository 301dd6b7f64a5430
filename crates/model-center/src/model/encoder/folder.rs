//! Encoders in Hugging Face folders: opening one, writing one.

use super::{EncoderFamily, EncoderHead, EncoderModel};
use crate::error::{Error, Result};
use crate::hf::{Allow, ModelFolder};
use crate::model::labels::take_over;
use crate::model::opening::open_with;
use crate::model::registry::{HeadValues, OpenOptions, OpenedModel, SaveOptions, architectures, unknown_class};
use crate::model::text::TextHead;
use bmtrain_dist::block::BlockOptions;
use std::path::Path;

/// What the class of a model with this head has behind the family's prefix.
fn class_suffix(head: EncoderHead) -> &'static str {
    match head {
        EncoderHead::None { .. } => "Model",
        EncoderHead::Classifier { .. } => "ForSequenceClassification",
        EncoderHead::MaskedLm => "ForMaskedLM",
        EncoderHead::NextSentence => "ForNextSentencePrediction",
        EncoderHead::Pretraining => "ForPreTraining",
    }
}

/// The head that the class of a folder's `config.json` carries.
fn own_head<C: EncoderFamily>(config: &C, folder: &Path, place: &str) -> Result<TextHead> {
    let Some(class) = architectures(folder)?.into_iter().next() else { return Ok(TextHead::None) };
    let prefix = config.class_prefix();
    match class.strip_prefix(prefix) {
        Some("Model") => Ok(TextHead::None),
        Some("ForSequenceClassification") => {
            Ok(TextHead::Classification { outputs: config.layout().cls_head.unwrap_or(2) })
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

/// Open a folder. Everything that can be wrong with it is found before memory for a parameter is taken.
///
/// # Errors
/// A configuration, labels or weights that do not fit, see [`Plan::build`](crate::hf::Plan::build); no memory left.
pub fn open<C: EncoderFamily>(folder: &Path, options: &OpenOptions) -> Result<OpenedModel> {
    let (config, head) = configure::<C>(folder, options)?;
    let blocks = BlockOptions { recompute: options.recompute };
    let (names, allowed) = (config.names(), allowed::<C>(head, options.head_values));
    open_with(folder, options, &[&names], &allowed, |device, builder| {
        EncoderModel::new(device, config.clone(), head, blocks, builder)
    })
}

/// The folder's configuration with what the options change, and the head.
fn configure<C: EncoderFamily>(folder: &Path, options: &OpenOptions) -> Result<(C, EncoderHead)> {
    let place = folder.join("config.json").display().to_string();
    let mut config = C::from_pretrained(folder)?;
    config.set_dropout(options.hidden_dropout, options.attention_dropout);
    // Where the head is asked for, the file's own need not be one of ours.
    let own = match (own_head(&config, folder, &place), options.head) {
        (Err(_), Some(_)) => TextHead::None,
        (own, _) => own?,
    };
    let head = options.head.unwrap_or(own);
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
        return Err(Error::model(folder.display().to_string(), reason, "use a model with tied embeddings"));
    }
    // The options have changed what reading the file had approved of.
    config.validate(&place)?;
    Ok((config, head))
}

/// What a folder may lack or have too much of for this head.
fn allowed<C: EncoderFamily>(head: EncoderHead, values: HeadValues) -> Allow {
    let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let own: &[&str] = match head {
        EncoderHead::None { .. } => &[],
        EncoderHead::Classifier { .. } => &["cls_*"],
        EncoderHead::MaskedLm => &["lm_head.*"],
        EncoderHead::NextSentence => &["nsp_projection.*"],
        EncoderHead::Pretraining => &["lm_head.*", "nsp_projection.*"],
    };
    // The pooler belongs to the base model: it is kept where there is one.
    let is_bare = matches!(head, EncoderHead::None { .. });
    let pooler: &[&str] = match head.has_pooler(C::CLASSIFIER) && (is_bare || values != HeadValues::Folder) {
        true => &["pooler.dense.*"],
        false => &[],
    };
    let (missing, fresh): (&[&str], &[&str]) = match values {
        HeadValues::Folder => (&[], &[]),
        HeadValues::FolderOrDrawn => (own, &[]),
        HeadValues::Drawn => (&[], own),
    };
    let missing = [texts(missing), texts(pooler)].concat();
    Allow { missing, unused: texts(C::unused(head)), fresh: texts(fresh) }
}

/// What is written.
///
/// # Errors
/// A layout other than Hugging Face's.
pub(super) fn written<'a, C: EncoderFamily>(
    model: &'a EncoderModel<C>,
    options: &SaveOptions<'a>,
) -> Result<ModelFolder<'a, C>> {
    let class = format!("{}{}", model.config().class_prefix(), class_suffix(model.head_kind()));
    ModelFolder::new(model.config(), model.name_table(), &class).with(options).of_hugging_face(model.config().title())
}
