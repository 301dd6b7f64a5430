//! Decoders as an [`Architecture`]: causal blocks, a language-modelling head or a classifier at the last token.

use super::{Classes, DecoderBlock, DecoderFamily};
use crate::layer::TransformerBlock;
use crate::model::HeadInit;
use crate::model::architecture::{Added, Architecture, Spec, StackSpec};
use crate::model::head::{ClassifierInput, Head, HeadSpec};
use crate::model::load::opening::allow;
use bmtrain_dist::Builder;
use bmtrain_dist::param::Init;
use model_center_base::error::{Error, Result};
use model_center_formats::config::TextHead;
use model_center_formats::{Allow, NameTable};
use std::borrow::Cow;
use std::marker::PhantomData;
use std::path::Path;

/// The decoders of a family, made of [`TransformerBlock`]s or of blocks of the family's own.
#[derive(Debug)]
pub struct Decoder<C, B = TransformerBlock>(PhantomData<(C, B)>);

impl<C: DecoderFamily, B: DecoderBlock<C>> Architecture for Decoder<C, B> {
    type Config = C;
    type Block = B;

    fn spec(config: &C) -> Spec {
        let (text, layout) = (config.text(), config.layout());
        let init = Init::normal(text.outer_std());
        let stack = StackSpec {
            name: "decoder",
            layers: text.num_layers,
            added: layout.table.map_or(Added::None, Added::Learned),
            position_rows: layout.table.map_or(0, |table| table.first + text.position_size),
            position_padding: None,
            position_init: init,
            counts_ids: false,
            type_size: None,
            embedding_norm: layout.embedding_norm,
            embedding_dropout: text.embedding_dropout_p,
            positions: layout.positions.clone(),
            output_norm: layout.output_norm,
            output_dropout: 0.0,
        };
        let spec = Spec::new(C::DIALECT.title, text, vec![stack], ClassifierInput::LastToken);
        Spec {
            embedding_size: layout.word_size,
            max_length: layout.positions.reach(text.position_size),
            padding_learns: layout.padding_learns,
            length_scale: layout.length_scale,
            head: HeadSpec { size: layout.word_size, lm_bias: layout.head_bias, ..spec.head },
            has_spans: C::HAS_SPANS,
            ..spec
        }
    }

    fn block(config: &C, _: usize, layer: usize, builder: &Builder) -> bmtrain_dist::Result<B> {
        B::build(builder, config, layer)
    }

    fn are_alike(config: &C, _: usize, blocks: [usize; 2]) -> bool {
        let [first, second] = blocks.map(|layer| config.block(layer));
        first == second
    }

    fn names(config: &C, head: Head) -> NameTable {
        config.names(head)
    }

    fn names_of_model_center(config: &C, _: Head) -> Option<NameTable> {
        config.names_of_model_center()
    }

    fn names_of_torchtitan(config: &C, head: Head) -> Option<NameTable> {
        config.names_of_torchtitan(head)
    }

    fn class(_: &C, head: Head) -> Cow<'static, str> {
        let class = match head {
            Head::CausalLm { .. } => C::CLASSES.words,
            Head::Classifier { .. } => C::CLASSES.classifier,
            _ => C::CLASSES.base,
        };
        class.into()
    }

    fn head_of_class(_: &C, class: &str) -> Option<TextHead> {
        let Classes { base, words, classifier } = C::CLASSES;
        // The first files of Llama have its name in uppercase.
        let is = |name: &str| class.eq_ignore_ascii_case(name);
        match () {
            () if is(words) => Some(TextHead::CausalLm),
            () if is(classifier) => Some(TextHead::Classification { outputs: 0 }),
            () if is(base) => Some(TextHead::None),
            () => None,
        }
    }

    fn known_classes(_: &C) -> Vec<String> {
        let Classes { base, words, classifier } = C::CLASSES;
        [base, words, classifier].map(str::to_owned).to_vec()
    }

    /// A language-modelling head, unless there is a classifier.
    fn head_of_model_center(config: &mut C, _: &Path) -> Result<TextHead> {
        let outputs = config.text().cls_head;
        Ok(outputs.map_or(TextHead::CausalLm, |outputs| TextHead::Classification { outputs }))
    }

    fn default_heads(config: &mut C) -> (TextHead, TextHead) {
        // A tied language-modelling head has no tensor of its own.
        let without = if config.text().tied { TextHead::CausalLm } else { TextHead::None };
        (without, TextHead::CausalLm)
    }

    fn head(config: &mut C, head: TextHead, _: &Path) -> Result<Head> {
        Ok(match head {
            TextHead::None => Head::None,
            TextHead::CausalLm => Head::CausalLm { tied: config.text().tied },
            TextHead::Classification { outputs } => Head::Classifier { outputs },
            TextHead::TokenClassification { .. }
            | TextHead::QuestionAnswering
            | TextHead::MaskedLm
            | TextHead::NextSentence
            | TextHead::Pretraining => {
                let family = C::DIALECT.title;
                let heads = "masked tokens, next sentence, token classes and answer spans";
                let reason = format!("{heads} are for encoders, and {family} is a decoder");
                return Err(Error::argument("the head asked for", reason, "ask for lm, cls or none"));
            }
        })
    }

    fn set_hidden_dropout(config: &mut C, rate: f32) {
        config.text_mut().set_hidden_dropout(rate, C::DROPS_EMBEDDINGS);
    }

    fn allowed(_: &C, head: Head, values: HeadInit, _: bool) -> Allow {
        // ModelCenter has two heads, each under one name in all families.
        let of_model_center = ["output_projection.*", "cls_projection.*"];
        let (own, here): (&[&str], &[&str]) = match head {
            Head::CausalLm { tied: true } => (&[], &["lm_head.*", "output_projection.*"]),
            Head::CausalLm { tied: false } => (&["lm_head.*"], &["lm_head.*", "output_projection.*"]),
            Head::Classifier { .. } => (&["cls_projection.*"], &["score.*", "cls_projection.*"]),
            _ => (&[], &[]),
        };
        let others = C::OTHER_HEADS.iter().copied().chain(of_model_center);
        allow(values, own, &others.filter(|names| !here.contains(names)).collect::<Vec<_>>())
    }
}
