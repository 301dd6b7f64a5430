//! Labels of samples.
//!
//! Defines [`LabelSpace`], [`Label`], [`Member`] and [`Verbalizer`]. Readers of data set them, heads and metrics follow
//! from them.

/// Label space of a dataset, which decides the head and the loss of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabelSpace {
    /// One of these classes; the head has one output per class.
    Classes(Vec<String>),
    /// One of this number of texts; each is a sequence of its own and the head has one output.
    Choices(usize),
    /// One of these classes, predicted as its label token by the language-modelling head.
    Verbalizer(Verbalizer),
    /// A number; the head has one output.
    Value,
    /// The next token at each position of the sequence itself.
    NextTokens,
    /// Two sequences, the first preferred: the log-probabilities of their learned tokens are compared.
    Pairs,
    /// Two sequences: an unpaired completion, good (class 1) or bad (class 0), and its prompt with the
    /// completion of another sample. The log-probabilities of their learned tokens are compared with a reference
    /// model's.
    Unpaired,
    /// This number of texts: an anchor, one that belongs to it, and perhaps one that does not. Their embeddings are
    /// compared.
    Texts(usize),
    /// Any number of these labels; the head has one output per label.
    LabelSets(Vec<String>),
    /// One of these classes for each token that has one, such as the first of each word.
    TokenClasses(Vec<String>),
    /// The first and the last token of the span of the row that answers a question.
    Span,
    /// The tokens of a second sequence of each sample, which a decoder generates from the encoder's input.
    Target,
    /// The original tokens of masked positions, as encoders are pretrained.
    MaskedTokens {
        /// Whether the head also predicts if the second sentence follows the first.
        sentences: bool,
    },
}

impl LabelSpace {
    /// Logits per sequence; 0 where labels are tokens, whose number the model knows.
    pub fn outputs(&self) -> usize {
        match self {
            LabelSpace::Classes(names) => names.len(),
            LabelSpace::Verbalizer(answers) => answers.names.len(),
            LabelSpace::Choices(_) | LabelSpace::Value => 1,
            // Of each token.
            LabelSpace::TokenClasses(names) => names.len(),
            LabelSpace::LabelSets(names) => names.len(),
            LabelSpace::Span => 2,
            LabelSpace::NextTokens
            | LabelSpace::Pairs
            | LabelSpace::Unpaired
            | LabelSpace::Texts(_)
            | LabelSpace::Target
            | LabelSpace::MaskedTokens { .. } => 0,
        }
    }

    /// Rows of one sample: 1 except for multiple choice, pairs and targets.
    pub fn rows_per_sample(&self) -> usize {
        match self {
            LabelSpace::Choices(rows) | LabelSpace::Texts(rows) => *rows,
            LabelSpace::Target | LabelSpace::Pairs | LabelSpace::Unpaired => 2,
            LabelSpace::Classes(_)
            | LabelSpace::Verbalizer(_)
            | LabelSpace::Value
            | LabelSpace::NextTokens
            | LabelSpace::LabelSets(_)
            | LabelSpace::TokenClasses(_)
            | LabelSpace::Span
            | LabelSpace::MaskedTokens { .. } => 1,
        }
    }

    /// Whether the labels are tokens.
    pub fn are_tokens(&self) -> bool {
        matches!(self, LabelSpace::NextTokens | LabelSpace::Target | LabelSpace::MaskedTokens { .. })
    }

    /// Whether the loss is a mean over tokens.
    pub fn loss_is_by_token(&self) -> bool {
        self.are_tokens() || matches!(self, LabelSpace::TokenClasses(_))
    }

    /// Whether log-probabilities of the two sequences of a sample are compared.
    pub fn are_compared(&self) -> bool {
        matches!(self, LabelSpace::Pairs | LabelSpace::Unpaired)
    }

    /// Whether they need a language-modelling head.
    pub fn need_lm_head(&self) -> bool {
        self.are_tokens() || self.are_compared() || matches!(self, LabelSpace::Verbalizer(_))
    }

    /// The number of classes or choices; `None` for a value, for sets of labels and for tokens.
    pub fn classes(&self) -> Option<usize> {
        match self {
            LabelSpace::Classes(names) => Some(names.len()),
            LabelSpace::Choices(choices) => Some(*choices),
            LabelSpace::Verbalizer(answers) => Some(answers.names.len()),
            LabelSpace::Value
            | LabelSpace::NextTokens
            | LabelSpace::Pairs
            | LabelSpace::Unpaired
            | LabelSpace::Texts(_)
            | LabelSpace::Target
            | LabelSpace::LabelSets(_)
            | LabelSpace::TokenClasses(_)
            | LabelSpace::Span
            | LabelSpace::MaskedTokens { .. } => None,
        }
    }
}

/// Position at which a language model answers a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerbalizerPosition {
    /// After the prompt, as the next token. Text after the answer is not read.
    Next,
    /// At a blank inside the prompt: the token before it sees both sides and predicts it.
    Blank,
    /// In a decoder, after the sentinel that stands for the answer in the encoder's input.
    Sentinel {
        /// The token before that sentinel; `None` for a decoder that begins with it.
        start: Option<u32>,
    },
}

/// Labels that are tokens of a model's vocabulary.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Verbalizer {
    /// Names of the classes in the order of their indices.
    pub names: Vec<String>,
    /// The label token of each class, all different.
    pub tokens: Vec<u32>,
    /// Position of the answer.
    pub place: VerbalizerPosition,
    /// Decoder input of every row, the answer being predicted at its end; empty for a model with one stack.
    pub decoder: Vec<u32>,
}

/// The answer to a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Label {
    /// The index of a class, or of the right choice.
    Class(usize),
    /// A number to predict, finite.
    Value(f32),
    /// The number of a set of labels, which the dataset has beside them.
    Set(usize),
    /// The tokens of the sequence itself, or of its target, from this one on; the preceding ones are the prompt.
    TokensFrom(usize),
    /// The first and the last token of an answer in the row.
    Span([u32; 2]),
    /// Classes of the tokens of the row, which the dataset has beside them.
    Tags,
    /// Those tokens of the row that the dataset marks as learned.
    Learned,
}

/// Group of a sample, where several samples are scored together: the answers of one question, the candidates of one
/// gap.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Member {
    /// The number of the question, from 0.
    pub question: u32,
    /// Score for choosing this sample: exact match and token F1 of its text. `None` where each sample is decided by
    /// itself.
    pub credit: Option<[f32; 2]>,
}
