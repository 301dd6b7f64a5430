//! The heads that each [`Architecture`] has: which one is opened, and which tensors of a directory belong to it.
//!
//! Called by [`crate::model::load`], and by [`Transformer`](crate::model::Transformer) to write itself.

use super::{Architecture, ModelFamily};
use crate::model::HeadInit;
use crate::model::head::Head;
use crate::model::load::infer::FoundHeads;
use crate::model::load::opening::allow;
use bmtrain_core::kernel::Activation;
use model_center_base::error::{Error, Result};
use model_center_formats::config::TextHead;
use model_center_formats::{Allow, TensorSource, Weights};
use std::path::Path;

/// Tensors of heads for other tasks, [`ModelFamily::other_heads`] of most decoders and encoder-decoders.
pub(in crate::model) fn others(architecture: Architecture) -> &'static [&'static str] {
    match architecture {
        Architecture::Encoder => &[],
        Architecture::Decoder => &["lm_head.*", "score.*", "classifier.*", "qa_outputs.*", "v_head.*"],
        Architecture::EncoderDecoder => {
            &["lm_head.*", "final_logits_bias", "classification_head.*", "classifier.*", "qa_outputs.*", "v_head.*"]
        }
    }
}

/// The head for the one that the caller requests.
///
/// # Errors
/// A head that the family does not have.
pub(in crate::model) fn requested<C: ModelFamily>(config: &C, head: TextHead, directory: &Path) -> Result<Head> {
    let (family, tied) = (config.dialect().title, config.text().tied);
    let refuse = |reason: String, fix: &str| Err(Error::argument("the head asked for", reason, fix));
    if C::ARCHITECTURE == Architecture::Encoder {
        return requested_of_encoder(config, head, directory);
    }
    let has_classifier = config.classes().has_classifier();
    match (head, C::ARCHITECTURE) {
        (TextHead::None, _) => Ok(Head::None),
        (TextHead::CausalLm, _) => Ok(Head::CausalLm { tied }),
        (TextHead::Classification { outputs }, _) if has_classifier => Ok(Head::Classifier { outputs }),
        (TextHead::Classification { .. }, Architecture::Decoder) => {
            refuse(format!("{family} has no class with a classifier in transformers"), "ask for lm or none")
        }
        (_, Architecture::Decoder) => {
            let heads = "masked tokens, next sentence, token classes and answer spans";
            refuse(format!("{heads} are for encoders, and {family} is a decoder"), "ask for lm, cls or none")
        }
        _ => {
            let (one, fix) = match has_classifier {
                true => (", with one for classes", "ask for lm, cls or none"),
                false => ("", "ask for lm or none"),
            };
            let heads = format!("with the head for the next token of its decoder{one}, or without one");
            refuse(format!("{family} is opened {heads}"), fix)
        }
    }
}

fn requested_of_encoder<C: ModelFamily>(config: &C, head: TextHead, directory: &Path) -> Result<Head> {
    let family = config.dialect().title;
    let refuse = |reason: String| {
        let fix = match C::HAS_SENTENCES {
            true => "ask for mlm, nsp, cls, tokens, qa or none",
            false => "ask for mlm, cls, tokens, qa or none",
        };
        Err(Error::argument("the head asked for", reason, fix))
    };
    let head = match head {
        TextHead::None => Head::None,
        TextHead::Classification { outputs } => Head::Classifier { outputs },
        TextHead::TokenClassification { outputs } => Head::TokenClassifier { outputs },
        TextHead::QuestionAnswering => Head::Span,
        TextHead::MaskedLm => Head::MaskedLm,
        TextHead::NextSentence => Head::NextSentence,
        TextHead::Pretraining => Head::Pretraining,
        TextHead::CausalLm => {
            return refuse(format!("the head for the next token is for decoders, and {family} is an encoder"));
        }
    };
    if head.has_sentences() && !C::HAS_SENTENCES {
        return refuse(format!("{family} is not trained on pairs of sentences and has no head for the next one"));
    }
    if head == Head::NextSentence && !config.classes().has(head.requested()) {
        return refuse(format!("{family} has the head for sentences beside the one for masked tokens alone"));
    }
    if head.is_masked_lm() && !config.text().tied {
        let reason = "tie_word_embeddings is false: a masked-token head with a matrix of its own";
        return Err(Error::model(directory.display().to_string(), reason, "use a model with tied embeddings"));
    }
    Ok(head)
}

/// The head of ModelCenter's files, which name no class.
pub(in crate::model) fn of_model_center<C: ModelFamily>(config: &C, directory: &Path) -> Result<TextHead> {
    let classes = config.text().cls_head.map(|outputs| TextHead::Classification { outputs });
    Ok(match C::ARCHITECTURE {
        Architecture::Encoder if has_tensor(directory, "lm_head.dense.weight")? => TextHead::MaskedLm,
        Architecture::Encoder => TextHead::None,
        Architecture::Decoder => classes.unwrap_or(TextHead::CausalLm),
        Architecture::EncoderDecoder => TextHead::CausalLm,
    })
}

/// Whether the weights of a directory have this tensor.
pub(in crate::model) fn has_tensor(directory: &Path, name: &str) -> Result<bool> {
    Ok(Weights::open(directory)?.entries().iter().any(|entry| entry.name == name))
}

/// The heads whose tensors a directory has.
pub(in crate::model) fn of_tensors<C: ModelFamily>(config: &C, directory: &Path) -> Result<FoundHeads> {
    let classes = config.names(Head::Classifier { outputs: 1 });
    let (lm, head) = match C::ARCHITECTURE {
        Architecture::Encoder => ("lm_head.dense.weight", Head::MaskedLm),
        Architecture::Decoder | Architecture::EncoderDecoder => ("lm_head.weight", Head::CausalLm { tied: false }),
    };
    let names = config.names(head);
    let sentences = C::HAS_SENTENCES.then_some(("nsp_projection.weight", &names));
    let found = FoundHeads::of(directory, (lm, &names), sentences, ("cls_projection.weight", &classes))?;
    // A classifier that has the transform, too, is one head.
    let is_one = found.classes.is_some() && config.spec().head.transforms_all;
    Ok(FoundHeads { tokens: found.tokens && !is_one, ..found })
}

/// The default head for weights without tensors of any head, and for weights with a language-modelling head.
pub(in crate::model) fn defaults<C: ModelFamily>(config: &C) -> (TextHead, TextHead) {
    match C::ARCHITECTURE {
        Architecture::Encoder => (TextHead::None, TextHead::MaskedLm),
        // A tied language-modelling head has no tensor of its own.
        _ if config.text().tied => (TextHead::CausalLm, TextHead::CausalLm),
        _ => (TextHead::None, TextHead::CausalLm),
    }
}

/// Refuses heads of ModelCenter's encoders that compute something else than this crate's; `place` is the directory's
/// `config.json`.
pub(in crate::model) fn check_read<C: ModelFamily>(
    config: &C,
    place: &str,
    head: TextHead,
    values: HeadInit,
) -> Result<()> {
    if C::ARCHITECTURE != Architecture::Encoder {
        return Ok(());
    }
    match head {
        TextHead::Classification { .. } if config.text().cls_head.is_some() && values != HeadInit::Random => {
            let reason = "the classification head of ModelCenter's encoders reads hidden states, not pooled ones";
            let fix = "initialize a new head, or take another";
            Err(Error::model(format!("{place}, field cls_head"), reason, fix))
        }
        TextHead::MaskedLm | TextHead::Pretraining => check_lm_activation(config),
        _ => Ok(()),
    }
}

/// Whether ModelCenter's files can hold a model with this head.
pub(in crate::model) fn check_written<C: ModelFamily>(config: &C, head: Head) -> Result<()> {
    if C::ARCHITECTURE != Architecture::Encoder {
        return Ok(());
    }
    let missing = match head {
        Head::None | Head::CausalLm { .. } => return Ok(()),
        Head::MaskedLm => return check_lm_activation(config),
        Head::TokenClassifier { .. } => "for classes of tokens",
        Head::Span => "for answer spans",
        Head::Classifier { .. } => "for classes that reads what a pooler or a map of its own yields",
        Head::NextSentence | Head::Pretraining => "for the next sentence",
    };
    let fix = "name a class with another head in config.json, or write the model as a Hugging Face directory";
    let place = format!("{} in ModelCenter's layout", config.dialect().title);
    Err(Error::model(place, format!("it has no head {missing}"), fix))
}

/// ModelCenter's masked-LM heads have a fixed activation, independent of the activation of the blocks.
fn check_lm_activation<C: ModelFamily>(config: &C) -> Result<()> {
    match config.spec().head.transform {
        Some((_, activation)) if activation != Activation::Gelu => Err(Error::model(
            format!("{} in ModelCenter's layout", config.dialect().title),
            "its head for masked tokens has gelu, and this model's another function",
            "take the model without this head",
        )),
        _ => Ok(()),
    }
}

/// Tensors that a directory may lack or have in excess.
pub(in crate::model) fn allowed<C: ModelFamily>(
    config: &C,
    head: Head,
    values: HeadInit,
    is_model_center: bool,
) -> Allow {
    if C::ARCHITECTURE == Architecture::Encoder {
        return allowed_of_encoder(config, head, values, is_model_center);
    }
    let (own, here): (&[&str], &[&str]) = match head {
        Head::CausalLm { tied } => {
            let own: &[&str] = if tied { &[] } else { &["lm_head.*"] };
            (own, &["lm_head.*", "final_logits_bias", "output_projection.*"])
        }
        Head::Classifier { .. } => (&["cls_*"], &["score.*", "classification_head.*", "cls_projection.*"]),
        _ => (&[], &[]),
    };
    // ModelCenter's classes have two heads, each under one name in all families.
    let others = C::other_heads(head).iter().copied().chain(["output_projection.*", "cls_projection.*"]);
    allow(values, own, &others.filter(|names| !here.contains(names)).collect::<Vec<_>>())
}

fn allowed_of_encoder<C: ModelFamily>(config: &C, head: Head, values: HeadInit, is_model_center: bool) -> Allow {
    let own: &[&str] = match head {
        Head::None | Head::CausalLm { .. } => &[],
        Head::Classifier { .. } => &["cls_*"],
        Head::TokenClassifier { .. } => &["token_projection.*"],
        Head::Span => &["span_projection.*"],
        Head::MaskedLm => &["lm_head.*"],
        Head::NextSentence => &["nsp_projection.*"],
        Head::Pretraining => &["lm_head.*", "nsp_projection.*"],
    };
    // The pooler belongs to the base model: it is kept where there is one.
    let has_pooler = config.spec().head.has_pooler(head);
    let may_lack_pooler = has_pooler && (head == Head::None || values != HeadInit::Directory);
    let mut allowed = allow(values, own, C::other_heads(head));
    allowed.missing.extend(may_lack_pooler.then(|| "pooler.dense.*".to_owned()));
    // The transform is the one of another head where the directory has it.
    let may_lack_transform = config.spec().head.transform_of(head).is_some() && values != HeadInit::Directory;
    allowed.missing.extend(may_lack_transform.then(|| "head_transform.*".to_owned()));
    if is_model_center {
        // ModelCenter's classes have all heads at once.
        let heads = [("cls_projection.*", false), ("lm_head.*", head.is_masked_lm()), ("pooler.*", has_pooler)];
        allowed.unused = heads.iter().filter(|(_, is_here)| !is_here).map(|(names, _)| (*names).to_owned()).collect();
    }
    allowed
}
