//! A padded batch in host memory: what a loader collates and a model's forward pass takes.
//!
//! Defines [`Batch`] with its [`Labels`] and [`VerbalizerBatch`]. A model checks it and copies it to its device.

mod labels;
mod position;

pub use labels::{Label, LabelSpace, Member, Verbalizer, VerbalizerPosition};
pub use position::Position;

/// The label of tokens without a loss, as in `transformers`.
pub const IGNORED: i64 = -100;

/// Labels of a batch, in the type the loss takes. Token labels are padded with [`IGNORED`], which also marks tokens
/// without a loss.
#[derive(Debug, Clone, PartialEq)]
pub enum Labels {
    /// Class or choice indices of the samples; [`IGNORED`] for none. A language-modelling head takes them as token ids.
    Classes(Vec<i64>),
    /// Numbers to predict: one per sample and output. A classifier of any number of labels takes 1 for each label of a
    /// sample, else 0.
    Values(Vec<f32>),
    /// The token ids of the sequences themselves, R × L.
    NextTokens(Vec<i64>),
    /// A class for each token, R × L; [`IGNORED`] for none.
    TokenClasses(Vec<i64>),
    /// The first and the last token of the answer in each sequence, R.
    Spans(Vec<[i64; 2]>),
    /// Token ids of target sequences, R × T, for encoder-decoders.
    Target(Vec<i64>),
    /// The token id that each position predicts, R × L, whatever the head: masked tokens, or the tokens that follow
    /// where the sequence itself does not have the last of them.
    Predicted(Vec<i64>),
}

impl Labels {
    /// Number of labels.
    pub fn len(&self) -> usize {
        match self {
            Labels::Classes(labels)
            | Labels::NextTokens(labels)
            | Labels::TokenClasses(labels)
            | Labels::Target(labels)
            | Labels::Predicted(labels) => labels.len(),
            Labels::Spans(labels) => labels.len(),
            Labels::Values(labels) => labels.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Class indices or token ids; `None` for values and spans.
    pub fn ids(&self) -> Option<&[i64]> {
        match self {
            Labels::Classes(ids)
            | Labels::NextTokens(ids)
            | Labels::TokenClasses(ids)
            | Labels::Target(ids)
            | Labels::Predicted(ids) => Some(ids),
            Labels::Values(_) | Labels::Spans(_) => None,
        }
    }

    /// Whether the loss is a mean over tokens.
    pub fn are_tokens(&self) -> bool {
        matches!(self, Labels::NextTokens(_) | Labels::Target(_) | Labels::Predicted(_))
    }
}

/// Prompts with a verbalizer: a language-modelling head compares only the label words, at one position of each
/// sequence. The labels of the batch are the classes that the label words stand for.
#[derive(Debug, Clone, PartialEq)]
pub struct VerbalizerBatch {
    /// The token id of each class's label word.
    pub label_words: Vec<i64>,
    /// For each sequence the position, among all R × L tokens (of an encoder-decoder: all R × T of the decoder), whose
    /// logits predict the label word.
    pub positions: Vec<i64>,
}

/// A padded batch in host memory.
///
/// Shapes: B samples, R = B × sequences per sample, L the longest sequence, T the longest of a decoder's.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Position in the data; the default of batches that no loader has made.
    pub position: Position,
    /// Dataset index of each sample, length B; empty in batches that no loader has made.
    pub samples: Vec<u32>,
    /// Number of sequences R.
    pub rows: usize,
    /// Padded length L.
    pub length: usize,
    /// Token ids, R × L.
    pub input_ids: Vec<i64>,
    /// R × L, 1 for tokens and 0 for padding; `None` for tokens only.
    pub attention_mask: Option<Vec<u8>>,
    /// R × L; `None` for all zero.
    pub token_type_ids: Option<Vec<i64>>,
    /// R × T, for encoder-decoders; `None` where the decoder reads the labels shifted right.
    pub decoder_input_ids: Option<Vec<i64>>,
    /// R × T, 1 for the decoder's tokens and 0 for padding; `None` for tokens only.
    pub decoder_attention_mask: Option<Vec<u8>>,
    /// R × L, for prefix language models such as CPM-1: 1 for tokens of the context, with bidirectional attention, and
    /// 0 for those with a causal mask. `None` for no context.
    pub context: Option<Vec<u8>>,
    /// R × L, for the same models: tokens attend to tokens with the same span id. `None` for one span per sequence.
    pub span: Option<Vec<i64>>,
    /// R × L, for packed documents: the index in its sequence of the first token of a token's document. Tokens attend
    /// to tokens of their document alone, and positions count from its first token. `None` for one document per
    /// sequence.
    pub document_starts: Option<Vec<u32>>,
    /// Targets of the loss.
    pub labels: Option<Labels>,
    /// For prompts with a verbalizer.
    pub verbalizer: Option<VerbalizerBatch>,
    /// For pretraining, R: 1 where the second sentence is a random one.
    pub next_sentence: Option<Vec<i64>>,
    /// Whether each rated completion is good, B. Its row precedes the one of the same prompt with another completion.
    pub judgements: Option<Vec<bool>>,
    /// Sequences per sample; above 1 for multiple choice.
    pub choices: usize,
}

impl Batch {
    /// Sequences of `length` tokens without padding or labels.
    pub fn new(length: usize, input_ids: Vec<i64>) -> Self {
        Batch {
            position: Position::default(),
            samples: Vec::new(),
            rows: input_ids.len().checked_div(length).unwrap_or(0),
            length,
            input_ids,
            attention_mask: None,
            token_type_ids: None,
            decoder_input_ids: None,
            decoder_attention_mask: None,
            context: None,
            span: None,
            document_starts: None,
            labels: None,
            verbalizer: None,
            next_sentence: None,
            judgements: None,
            choices: 1,
        }
    }

    /// Sequences of `length` tokens whose labels are the tokens themselves, without padding, for a head that predicts
    /// the next token.
    pub fn next_tokens(length: usize, input_ids: Vec<i64>, attention_mask: Option<Vec<u8>>) -> Self {
        let is_token = |at: usize| attention_mask.as_ref().is_none_or(|mask| mask.get(at) == Some(&1));
        let labels = input_ids.iter().enumerate().map(|(at, id)| if is_token(at) { *id } else { IGNORED }).collect();
        Batch { labels: Some(Labels::NextTokens(labels)), attention_mask, ..Batch::new(length, input_ids) }
    }

    /// Its weight in a mean over batches: the number of tokens that it predicts or classifies, or of samples where
    /// labels are not tokens.
    pub fn weight(&self) -> u64 {
        let counted = |ids: &[i64]| ids.iter().filter(|id| **id != IGNORED).count() as u64;
        match &self.labels {
            // The first token of a sequence, or of a packed document, is never predicted.
            Some(Labels::NextTokens(ids)) => {
                let is_first = |at: usize| match &self.document_starts {
                    Some(starts) => starts.get(at).is_some_and(|start| *start as usize == at % self.length.max(1)),
                    None => at.is_multiple_of(self.length.max(1)),
                };
                ids.iter().enumerate().filter(|(at, id)| **id != IGNORED && !is_first(*at)).count() as u64
            }
            Some(Labels::Target(ids) | Labels::Predicted(ids) | Labels::TokenClasses(ids)) => counted(ids),
            Some(Labels::Classes(_) | Labels::Values(_) | Labels::Spans(_)) | None => {
                (self.rows / self.choices.max(1)) as u64
            }
        }
    }

    /// Tokens without padding, targets included.
    pub fn tokens(&self) -> usize {
        let inputs = match &self.attention_mask {
            Some(mask) => mask.iter().filter(|value| **value == 1).count(),
            None => self.input_ids.len(),
        };
        inputs + self.targets().iter().filter(|id| **id != IGNORED).count()
    }

    /// Tokens with padding, targets included.
    pub fn padded_tokens(&self) -> usize {
        self.input_ids.len() + self.targets().len()
    }

    fn targets(&self) -> &[i64] {
        if let Some(Labels::Target(ids)) = &self.labels { ids } else { &[] }
    }
}
