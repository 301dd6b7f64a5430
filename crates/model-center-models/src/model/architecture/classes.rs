//! The names that `transformers` gives the classes of a family.
//!
//! Defines [`Classes`]: a model's head is written to `config.json` as a class, and read from it.

use crate::model::head::Head;
use model_center_formats::config::TextHead;

/// The `transformers` classes of a family by head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Classes {
    /// The beginning of all names.
    pub prefix: &'static str,
    /// The rest of the name for each head, a classifier without its number of outputs; the bare model's is the first.
    pub suffixes: &'static [(TextHead, &'static str)],
}

/// The heads of an encoder, for next-sentence prediction alone last.
const ENCODER: &[(TextHead, &str)] = &[
    (TextHead::None, "Model"),
    (TextHead::MaskedLm, "ForMaskedLM"),
    (TextHead::Classification { outputs: 0 }, "ForSequenceClassification"),
    (TextHead::TokenClassification { outputs: 0 }, "ForTokenClassification"),
    (TextHead::QuestionAnswering, "ForQuestionAnswering"),
    (TextHead::Pretraining, "ForPreTraining"),
    (TextHead::NextSentence, "ForNextSentencePrediction"),
];

impl Classes {
    /// The classes of an encoder.
    pub const fn encoder(prefix: &'static str) -> Self {
        Classes { prefix, suffixes: ENCODER }
    }

    /// The classes of an encoder without one for next-sentence prediction alone.
    pub const fn encoder_without_next_sentence(prefix: &'static str) -> Self {
        Classes { prefix, suffixes: ENCODER.split_at(ENCODER.len() - 1).0 }
    }

    /// The classes of a decoder.
    pub const fn decoder(prefix: &'static str) -> Self {
        let suffixes = &[
            (TextHead::None, "Model"),
            (TextHead::CausalLm, "ForCausalLM"),
            (TextHead::Classification { outputs: 0 }, "ForSequenceClassification"),
        ];
        Classes { prefix, suffixes }
    }

    /// The classes of a decoder without a classifier.
    pub const fn language_model(prefix: &'static str) -> Self {
        let suffixes = &[(TextHead::None, "Model"), (TextHead::CausalLm, "ForCausalLM")];
        Classes { prefix, suffixes }
    }

    /// The classes of an encoder-decoder without a classifier.
    pub const fn encoder_decoder(prefix: &'static str) -> Self {
        let suffixes = &[(TextHead::None, "Model"), (TextHead::CausalLm, "ForConditionalGeneration")];
        Classes { prefix, suffixes }
    }

    fn suffix(&self, head: TextHead) -> Option<&'static str> {
        let head = match head {
            TextHead::Classification { .. } => TextHead::Classification { outputs: 0 },
            TextHead::TokenClassification { .. } => TextHead::TokenClassification { outputs: 0 },
            head => head,
        };
        self.suffixes.iter().find(|(of, _)| *of == head).map(|(_, suffix)| *suffix)
    }

    /// Whether the family has a class for sequence classification.
    pub fn has_classifier(&self) -> bool {
        self.has(TextHead::Classification { outputs: 0 })
    }

    /// Whether the family has a class for this head.
    pub fn has(&self, head: TextHead) -> bool {
        self.suffix(head).is_some()
    }

    /// The class of a model with this head; the bare model's for a head without one.
    pub fn of(&self, head: Head) -> String {
        let suffix = self.suffix(head.requested()).or_else(|| self.suffix(TextHead::None));
        format!("{}{}", self.prefix, suffix.unwrap_or_default())
    }

    /// The head of a class, a classifier without its number of outputs; `None` for an unknown class.
    pub fn head_of(&self, class: &str) -> Option<TextHead> {
        // The first files of Llama have its name in uppercase; T5's first class was removed later.
        let is = |suffix: &str| class.eq_ignore_ascii_case(&format!("{}{suffix}", self.prefix));
        let is_old = |head: TextHead| head == TextHead::CausalLm && class.ends_with("WithLMHeadModel");
        self.suffixes.iter().find(|(head, suffix)| is(suffix) || is_old(*head)).map(|(head, _)| *head)
    }

    /// The classes to list in the error about an unknown one.
    pub fn known(&self) -> Vec<String> {
        let listed =
            self.suffixes.iter().filter(|(head, _)| !matches!(head, TextHead::NextSentence | TextHead::Pretraining));
        listed.map(|(_, suffix)| format!("{}{suffix}", self.prefix)).collect()
    }
}
