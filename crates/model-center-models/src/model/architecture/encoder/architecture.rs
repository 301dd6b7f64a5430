//! Encoders as an [`Architecture`]: blocks with bidirectional attention, BERT's heads.

use super::{Classifier, EncoderFamily};
use crate::layer::{Placement, PositionsConfig, TransformerBlock};
use crate::model::HeadInit;
use crate::model::architecture::position_table::Count;
use crate::model::architecture::{Added, Architecture, Spec, StackSpec};
use crate::model::head::{ClassifierInput, Head, HeadSpec};
use crate::model::load::infer::FoundHeads;
use crate::model::load::opening::allow;
use bmtrain_core::kernel::Activation;
use bmtrain_dist::Builder;
use bmtrain_dist::nn::norm::NormOptions;
use bmtrain_dist::param::Init;
use model_center_base::error::{Error, Result};
use model_center_formats::config::TextHead;
use model_center_formats::{Allow, NameTable, TensorSource, Weights};
use std::borrow::Cow;
use std::marker::PhantomData;
use std::path::Path;

/// The encoders of a family.
#[derive(Debug)]
pub struct Encoder<C>(PhantomData<C>);

/// The class name of a model with this head, without the family's prefix.
fn class_suffix(head: Head) -> &'static str {
    match head {
        Head::None | Head::CausalLm { .. } => "Model",
        Head::Classifier { .. } => "ForSequenceClassification",
        Head::TokenClassifier { .. } => "ForTokenClassification",
        Head::Span => "ForQuestionAnswering",
        Head::MaskedLm => "ForMaskedLM",
        Head::NextSentence => "ForNextSentencePrediction",
        Head::Pretraining => "ForPreTraining",
    }
}

impl<C: EncoderFamily> Encoder<C> {
    /// The heads to request instead of one that the family does not have.
    fn known_heads() -> &'static str {
        if C::HAS_SENTENCES {
            "ask for mlm, nsp, cls, tokens, qa or none"
        } else {
            "ask for mlm, cls, tokens, qa or none"
        }
    }
}

impl<C: EncoderFamily> Architecture for Encoder<C> {
    type Config = C;
    type Block = TransformerBlock;

    const HAS_ALL_HEADS: bool = true;

    fn spec(config: &C) -> Spec {
        let (text, layout) = (config.text(), config.layout());
        let init = Init::normal(text.outer_std());
        let norm = NormOptions::layer(text.dim_model, text.norm_eps);
        // Where norms precede the layers, the first block has the one of the embeddings.
        let is_pre = config.block().placement == Placement::Pre;
        // Where positions count tokens, padding has a row, which is not trained.
        let position_padding = match layout.positions.count {
            Count::Places => None,
            Count::Tokens => layout.positions.first.checked_sub(1).map(|row| row as i64),
        };
        let stack = StackSpec {
            name: "encoder",
            layers: text.num_layers,
            added: Added::Learned(layout.positions),
            position_rows: text.position_size,
            position_padding,
            position_init: init,
            counts_ids: true,
            type_size: Some(layout.type_size),
            embedding_norm: (!is_pre).then_some(norm),
            embedding_dropout: text.dropout_p,
            positions: PositionsConfig::None,
            output_norm: is_pre.then_some(norm),
            output_dropout: 0.0,
        };
        let classifier = match C::CLASSIFIER {
            Classifier::Pooled => ClassifierInput::Pooled,
            Classifier::Dense => ClassifierInput::FirstToken,
        };
        let spec = Spec::new(config.dialect().title, text, vec![stack], classifier);
        Spec {
            max_length: text.position_size.saturating_sub(layout.positions.first),
            head: HeadSpec {
                init: layout.head_init,
                transform: Some((norm, layout.word_activation)),
                classifier_dropout: layout.classifier_dropout_p,
                ..spec.head
            },
            ..spec
        }
    }

    fn block(config: &C, _: usize, _: usize, builder: &Builder) -> bmtrain_dist::Result<TransformerBlock> {
        TransformerBlock::new(builder, config.block())
    }

    fn names(config: &C, _: Head) -> NameTable {
        config.names()
    }

    fn names_of_model_center(config: &C, head: Head) -> Option<NameTable> {
        config.names_of_model_center(head)
    }

    fn check_model_center(config: &C, head: Head) -> Result<()> {
        let missing = match head {
            Head::None | Head::CausalLm { .. } => return Ok(()),
            Head::MaskedLm => return check_own_activation(config.layout().word_activation, config.dialect().title),
            Head::TokenClassifier { .. } => "for classes of tokens",
            Head::Span => "for answer spans",
            Head::Classifier { .. } => "for classes that reads what a pooler or a map of its own yields",
            Head::NextSentence | Head::Pretraining => "for the next sentence",
        };
        let reason = format!("it has no head {missing}");
        let fix = "name a class with another head in config.json, or write the model as a Hugging Face directory";
        Err(Error::model(format!("{} in ModelCenter's layout", config.dialect().title), reason, fix))
    }

    fn class(config: &C, head: Head) -> Cow<'static, str> {
        format!("{}{}", config.class_prefix(), class_suffix(head)).into()
    }

    fn head_of_class(config: &C, class: &str) -> Option<TextHead> {
        match class.strip_prefix(config.class_prefix())? {
            "Model" => Some(TextHead::None),
            "ForSequenceClassification" => Some(TextHead::Classification { outputs: 0 }),
            "ForTokenClassification" => Some(TextHead::TokenClassification { outputs: 0 }),
            "ForQuestionAnswering" => Some(TextHead::QuestionAnswering),
            "ForMaskedLM" => Some(TextHead::MaskedLm),
            "ForNextSentencePrediction" => Some(TextHead::NextSentence),
            "ForPreTraining" => Some(TextHead::Pretraining),
            _ => None,
        }
    }

    fn known_classes(config: &C) -> Vec<String> {
        let prefix = config.class_prefix();
        let kinds =
            ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"];
        kinds.map(|kind| format!("{prefix}{kind}")).to_vec()
    }

    fn head_of_model_center(_: &mut C, directory: &Path) -> Result<TextHead> {
        let has_lm = Weights::open(directory)?.entries().iter().any(|entry| entry.name == "lm_head.dense.weight");
        Ok(if has_lm { TextHead::MaskedLm } else { TextHead::None })
    }

    fn heads_of_tensors(config: &C, directory: &Path) -> Result<FoundHeads> {
        let names = config.names();
        let sentences = C::HAS_SENTENCES.then_some(("nsp_projection.weight", &names));
        FoundHeads::of(directory, ("lm_head.dense.weight", &names), sentences, ("cls_projection.weight", &names))
    }

    fn default_heads(_: &mut C) -> (TextHead, TextHead) {
        (TextHead::None, TextHead::MaskedLm)
    }

    fn head(config: &mut C, head: TextHead, directory: &Path) -> Result<Head> {
        let family = config.dialect().title;
        let refuse = |reason: String| Err(Error::argument("the head asked for", reason, Self::known_heads()));
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
        if head.is_masked_lm() && !config.text().tied {
            let reason = "tie_word_embeddings is false: a masked-token head with a matrix of its own";
            return Err(Error::model(directory.display().to_string(), reason, "use a model with tied embeddings"));
        }
        Ok(head)
    }

    fn set_hidden_dropout(config: &mut C, rate: f32) {
        config.text_mut().set_hidden_dropout(rate, true);
        *config.classifier_dropout() = rate;
    }

    /// Refuses heads of ModelCenter's files that compute something else than this crate's.
    fn check_directory(
        config: &C,
        place: &str,
        (head, values): (TextHead, HeadInit),
        is_model_center: bool,
    ) -> Result<()> {
        let layout = config.layout();
        match head {
            _ if !is_model_center => Ok(()),
            TextHead::Classification { .. } if config.text().cls_head.is_some() && values != HeadInit::Random => {
                let reason = "the classification head of ModelCenter's encoders reads hidden states, not pooled ones";
                let fix = "initialize a new head, or take another";
                Err(Error::model(format!("{place}, field cls_head"), reason, fix))
            }
            TextHead::MaskedLm | TextHead::Pretraining => {
                check_own_activation(layout.word_activation, config.dialect().title)
            }
            _ => Ok(()),
        }
    }

    fn allowed(config: &C, head: Head, values: HeadInit, is_model_center: bool) -> Allow {
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
        let has_pooler = Self::spec(config).head.has_pooler(head);
        let may_lack_pooler = has_pooler && (head == Head::None || values != HeadInit::Directory);
        let mut allowed = allow(values, own, C::unused(head));
        allowed.missing.extend(may_lack_pooler.then(|| "pooler.dense.*".to_owned()));
        if is_model_center {
            // ModelCenter's classes have all heads at once.
            let heads = [("cls_projection.*", false), ("lm_head.*", head.is_masked_lm()), ("pooler.*", has_pooler)];
            allowed.unused =
                heads.iter().filter(|(_, is_here)| !is_here).map(|(names, _)| (*names).to_owned()).collect();
        }
        allowed
    }
}

/// ModelCenter's masked-LM heads have a fixed activation, independent of the activation of the blocks.
fn check_own_activation(activation: Activation, title: &str) -> Result<()> {
    match activation {
        Activation::Gelu => Ok(()),
        _ => Err(Error::model(
            format!("{title} in ModelCenter's layout"),
            "its head for masked tokens has gelu, and this model's another function",
            "take the model without this head",
        )),
    }
}
