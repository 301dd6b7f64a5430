//! Encoder-decoders as an [`Architecture`]: a decoder that attends to an encoder, a language-modelling head or a
//! classifier at the EOS token.

use super::{Around, Seq2SeqFamily, Sinusoids};
use crate::layer::{PositionsConfig, TransformerBlock};
use crate::model::architecture::{Added, Architecture, Spec, StackSpec};
use crate::model::head::{ClassifierInput, Head, HeadSpec};
use crate::model::load::opening::allow;
use crate::model::load::registry::is_named_by_model_center;
use crate::model::{HeadInit, OpenOptions};
use bmtrain_core::DType;
use bmtrain_dist::Builder;
use bmtrain_dist::param::Init;
use model_center_base::error::{Error, Result};
use model_center_formats::config::{TextConfig, TextHead};
use model_center_formats::directory::DirectoryLayout;
use model_center_formats::{Allow, NameTable, TensorSource, Weights};
use std::borrow::Cow;
use std::marker::PhantomData;
use std::path::Path;

/// The encoder-decoders of a family.
#[derive(Debug)]
pub struct EncoderDecoder<C>(PhantomData<C>);

fn stack(text: &TextConfig, name: &'static str, layers: usize, around: Around) -> StackSpec {
    let Around { added, embedding_norm, relative, output_norm, output_dropout } = around;
    let position_rows = match added {
        Added::Learned(table) | Added::Shared(table) => table.first + text.position_size,
        Added::None | Added::Sinusoids => 0,
    };
    StackSpec {
        name,
        layers,
        added,
        position_rows,
        position_padding: None,
        position_init: Init::normal(text.init_std),
        counts_ids: false,
        type_size: None,
        embedding_norm,
        embedding_dropout: text.embedding_dropout_p,
        positions: relative.map_or(PositionsConfig::None, PositionsConfig::Relative),
        output_norm,
        output_dropout,
    }
}

impl<C: Seq2SeqFamily> Architecture for EncoderDecoder<C> {
    type Config = C;
    type Block = TransformerBlock;

    fn spec(config: &C) -> Spec {
        let (text, layout) = (config.text(), config.layout());
        let stacks = vec![
            stack(text, "encoder", text.num_layers, layout.encoder),
            stack(text, "decoder", config.decoder_layers(), layout.decoder),
        ];
        let spec = Spec::new(C::DIALECT.title, text, stacks, ClassifierInput::EosToken);
        Spec {
            padding_learns: layout.padding_learns,
            embedding_factor: layout.word_factor,
            head: HeadSpec {
                logits_bias: layout.logits_bias,
                factor: layout.head_factor,
                classifier_dropout: layout.classifier_dropout,
                ..spec.head
            },
            decoder_start_token: config.decoder_start_token(),
            eos_token: config.eos_token(),
            starts_with_sentinel: C::BEGINS_WITH_SENTINELS,
            ..spec
        }
    }

    fn block(config: &C, stack: usize, _: usize, builder: &Builder) -> bmtrain_dist::Result<TransformerBlock> {
        TransformerBlock::new(builder, if stack == 0 { config.encoder_block() } else { config.decoder_block() })
    }

    fn names(config: &C, head: Head) -> NameTable {
        config.names(head)
    }

    fn names_of_model_center(config: &C, _: Head) -> Option<NameTable> {
        config.names_of_model_center()
    }

    fn class(config: &C, head: Head) -> Cow<'static, str> {
        let classes = config.classes();
        let class = match head {
            Head::CausalLm { .. } => classes.words,
            Head::Classifier { .. } => classes.classifier.unwrap_or(classes.base),
            _ => classes.base,
        };
        class.into()
    }

    /// A class with a head need not have a suffix that a bare model's lacks: there is `MarianMTModel`.
    fn has_prefix(head: Head) -> Option<bool> {
        Some(head != Head::None)
    }

    fn rescaled(config: &C, parameter: &str, layout: DirectoryLayout) -> Option<fn(f32) -> f32> {
        config.rescaled_norm(layout).filter(|_| parameter == "decoder.output_norm.weight")
    }

    fn head_of_class(config: &C, class: &str) -> Option<TextHead> {
        let classes = config.classes();
        match class {
            // The first files of T5 name a class that was removed later.
            _ if class == classes.words || class.ends_with("WithLMHeadModel") => Some(TextHead::CausalLm),
            _ if classes.classifier == Some(class) => Some(TextHead::Classification { outputs: 0 }),
            _ if class == classes.base => Some(TextHead::None),
            _ => None,
        }
    }

    fn known_classes(config: &C) -> Vec<String> {
        let classes = config.classes();
        [classes.base, classes.words].into_iter().chain(classes.classifier).map(str::to_owned).collect()
    }

    fn default_heads(config: &mut C) -> (TextHead, TextHead) {
        // A tied language-modelling head has no tensor of its own.
        let without = if config.text().tied { TextHead::CausalLm } else { TextHead::None };
        (without, TextHead::CausalLm)
    }

    fn head(config: &mut C, head: TextHead, _: &Path) -> Result<Head> {
        let has_classifier = config.classes().classifier.is_some();
        match head {
            TextHead::None => Ok(Head::None),
            TextHead::CausalLm => Ok(Head::CausalLm { tied: config.text().tied }),
            TextHead::Classification { outputs } if has_classifier => Ok(Head::Classifier { outputs }),
            TextHead::Classification { .. }
            | TextHead::TokenClassification { .. }
            | TextHead::QuestionAnswering
            | TextHead::MaskedLm
            | TextHead::NextSentence
            | TextHead::Pretraining => {
                let (one, fix) = match has_classifier {
                    true => (", with one for classes", "ask for lm, cls or none"),
                    false => ("", "ask for lm or none"),
                };
                let family = C::DIALECT.title;
                let reason =
                    format!("{family} is opened with the head for the next token of its decoder{one}, or without one");
                Err(Error::argument("the head asked for", reason, fix))
            }
        }
    }

    fn prepare(config: &mut C, directory: &Path, options: &OpenOptions) -> Result<()> {
        if C::LEAVES_F16 && options.dtype == DType::F16 {
            let reason = format!("the hidden states of {} leave the range of f16", C::DIALECT.title);
            let place = directory.join("config.json").display().to_string();
            return Err(Error::model(place, reason, "use bf16, or f32"));
        }
        if config.weights_tell_the_head() && !options.from_config && !is_named_by_model_center(directory)? {
            let has_matrix = Weights::open(directory)?.entries().iter().any(|entry| entry.name == "lm_head.weight");
            config.text_mut().tied = !has_matrix;
        }
        Ok(())
    }

    fn set_hidden_dropout(config: &mut C, rate: f32) {
        config.set_hidden_dropout(rate);
    }

    fn check_weights(config: &C, directory: &Path) -> Result<()> {
        let (layout, text) = (config.layout(), config.text());
        match [layout.encoder, layout.decoder].iter().any(|around| around.added == Added::Sinusoids) {
            true => Sinusoids::check(&Weights::open(directory)?, [text.position_size, text.dim_model]),
            false => Ok(()),
        }
    }

    fn allowed(_: &C, head: Head, values: HeadInit, _: bool) -> Allow {
        let own: &[&str] = match head {
            Head::CausalLm { tied: false } => &["lm_head.*"],
            Head::Classifier { .. } => &["cls_dense.*", "cls_projection.*"],
            _ => &[],
        };
        let here: &[&str] = match head {
            Head::CausalLm { .. } => &["lm_head.*", "final_logits_bias", "output_projection.*"],
            Head::Classifier { .. } => &["classification_head.*", "cls_projection.*"],
            _ => &[],
        };
        // ModelCenter's classes have a classification head next to the language-modelling head.
        let others = C::OTHER_HEADS.iter().copied().chain(["output_projection.*", "cls_projection.*"]);
        allow(values, own, &others.filter(|names| !here.contains(names)).collect::<Vec<_>>())
    }

    fn options(options: &OpenOptions) -> Cow<'_, OpenOptions> {
        match C::LEAVES_F16 && options.dtype == DType::F16 && options.keep_dtype {
            true => Cow::Owned(OpenOptions { dtype: DType::F32, ..options.clone() }),
            false => Cow::Borrowed(options),
        }
    }
}
