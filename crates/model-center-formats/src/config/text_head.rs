//! Heads of models of text.

/// The head that a caller requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TextHead {
    /// Hidden states only.
    #[default]
    None,
    /// Classes, choices or a value, from the outputs of each sequence.
    Classification {
        /// Outputs.
        outputs: usize,
    },
    /// Classes of each token.
    TokenClassification {
        /// Outputs.
        outputs: usize,
    },
    /// The first and the last token of the span that answers a question.
    QuestionAnswering,
    /// Masked language modelling.
    MaskedLm,
    /// Next-sentence prediction.
    NextSentence,
    /// Masked language modelling and next-sentence prediction.
    Pretraining,
    /// Next-token prediction at every position; in an encoder-decoder at every position of the decoder.
    CausalLm,
}

impl TextHead {
    /// Whether it has logits over the vocabulary.
    pub fn is_lm(self) -> bool {
        matches!(self, TextHead::MaskedLm | TextHead::Pretraining | TextHead::CausalLm)
    }
}
