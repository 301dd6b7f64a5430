//! Tokenizers: text to token ids and back.
//!
//! Defines the [`Tokenizer`] trait, its result [`Encoding`] and the special token ids. [`AutoTokenizer`] opens the
//! tokenizer of a directory or a file in any supported format (`docs/tokenizers.md`). The loader pads, and truncation
//! is a [`Limit`] given per call: a stored `tokenizer.json` contains the settings of the process that saved it
//! (all-MiniLM-L6-v2 pads everything to 128 tokens), and they must not affect training.
//!
//! Called when a dataset is read and by programs that encode single texts.

mod added;
mod auto;
pub(crate) mod byte_level;
mod byte_pairs;
mod catch;
mod characters;
mod chat;
mod chunked;
mod cpm;
pub(crate) mod document;
mod fields;
pub(crate) mod files;
pub mod gguf;
mod hf;
mod limits;
mod overrides;
pub mod pieces;
mod protobuf;
mod sentencepiece;
mod template;
mod threads;
mod token_bytes;
mod train;
pub(crate) mod vocab;

use std::fmt::Debug;

pub use auto::AutoTokenizer;
pub(crate) use chat::further_templates;
pub use chat::{AssistantTurns, ChatMessage, ChatRequest, ChatTemplate, ChatTokens, LearnedEnds};
pub use cpm::{CpmKind, CpmTokenizer};
pub use fields::{ConfigField, meaning as config_field};
pub use hf::{HfTokenizer, TextSpecials};
pub use template::{Template, TemplateSlot};
pub use threads::start_threads;
pub use train::{
    Normalization, PieceModel, SentencePieceOptions, TrainOptions, Trained, TrainedPieces, VocabularyKind, train,
    train_sentencepiece,
};
pub use vocab::VocabOptions;

use crate::{Error, Result};

/// The longest text whose tokens are found with their places: such a text is tokenized at once, in memory of more than
/// a hundred times its bytes.
pub const SPAN_BYTES: usize = 1 << 20;

/// End of an over-long text that is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeepSide {
    /// The first tokens stay, the end is cut. What BERT's own code does.
    #[default]
    Start,
    /// The last tokens stay, the start is cut. For prompts whose question comes last.
    End,
}

/// The most tokens one input may have, special tokens included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Tokens, special tokens included.
    pub max_tokens: usize,
    /// Part of the text that is kept.
    pub keep: KeepSide,
}

/// One input ready for a model, without padding.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Encoding {
    /// Token ids with special tokens, length L.
    pub input_ids: Vec<u32>,
    /// Segment of each token, length L: 0 for the first text, 1 for the second in BERT's template.
    pub token_type_ids: Vec<u8>,
    /// Number of tokens cut to respect the [`Limit`].
    pub removed: usize,
}

/// A token of a text with the bytes that it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSpan {
    /// Its id.
    pub id: u32,
    /// Bytes of the text.
    pub bytes: std::ops::Range<usize>,
}

impl TokenSpan {
    /// The bytes without white space at their ends; none of a token of white space alone.
    pub fn trimmed(&self, text: &str) -> std::ops::Range<usize> {
        let covered = text.get(self.bytes.clone()).unwrap_or_default();
        let start = self.bytes.start + covered.len() - covered.trim_start().len();
        start..start + covered.trim().len()
    }
}

/// The ids with a meaning of their own; `None` where a vocabulary has no such token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpecialIds {
    /// Fills rows up to the longest of a batch.
    pub pad: Option<u32>,
    /// Stands for what the vocabulary cannot spell.
    pub unk: Option<u32>,
    /// Opens a BERT input; its last hidden state feeds classification heads.
    pub cls: Option<u32>,
    /// Closes a segment of a BERT input.
    pub sep: Option<u32>,
    /// The blank of masked language modelling.
    pub mask: Option<u32>,
    /// Begins a text for decoder models.
    pub bos: Option<u32>,
    /// Ends a text for decoder models.
    pub eos: Option<u32>,
}

/// The bytes of tokens, for a vocabulary in which a text is the bytes of its tokens joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenBytes {
    /// By token; empty for special tokens, which are not text.
    pub bytes: Vec<Box<[u8]>>,
    /// Whether a text loses the space with which its first token begins.
    pub loses_space: bool,
}

/// A token that templates write and texts do not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlToken {
    /// Spelling in templates.
    pub text: String,
    /// Its id.
    pub id: u32,
    /// White space before it is part of it.
    pub takes_space_before: bool,
    /// White space after it is part of it.
    pub takes_space_after: bool,
}

/// Whether a token has the space before a word in it, in vocabularies of byte pairs and pieces.
pub fn begins_after_space(token: &str) -> bool {
    token.starts_with(['Ġ', '▁'])
}

/// Whether a token continues a word, in vocabularies of BERT.
pub fn continues_word(token: &str) -> bool {
    token.starts_with("##")
}

/// Text to ids and back; shared by all ranks of a process.
pub trait Tokenizer: Debug + Send + Sync {
    /// Token ids of each text alone: no special tokens, no truncation.
    fn tokenize(&self, texts: &[&str]) -> Result<Vec<Vec<u32>>>;

    /// The tokens of one text alone, as [`Tokenizer::tokenize`] has them; `None` of a text with more than `most`
    /// tokens, after which a tokenizer may stop.
    fn tokenize_up_to(&self, text: &str, most: usize) -> Result<Option<Vec<u32>>> {
        Ok(Some(self.tokenize(&[text])?.concat()).filter(|ids| ids.len() <= most))
    }

    /// The tokens of one text alone with their places in it, the ids as [`Tokenizer::tokenize`] has them.
    ///
    /// # Errors
    /// [`Error::Model`] for a tokenizer that does not report places; [`Error::Data`] for a text of more than
    /// [`SPAN_BYTES`] bytes.
    fn tokenize_with_spans(&self, _text: &str) -> Result<Vec<TokenSpan>> {
        let reason = "it does not report where its tokens are in a text";
        Err(Error::model(self.place(), reason, "use a model with a tokenizer.json or a vocabulary of BERT"))
    }

    /// Template of special tokens around one text (`pair` false) or two (`pair` true).
    fn template(&self, pair: bool) -> &Template;

    /// The ids with a meaning of their own.
    fn special_ids(&self) -> SpecialIds;

    /// One more than the largest id this tokenizer can produce: what an embedding table must cover.
    fn vocab_size(&self) -> usize;

    /// Text of `ids`; ids outside the vocabulary are left out, special tokens too if `skip_special`.
    fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String>;

    /// The bytes of all tokens; `None` by default, and where a text is not the bytes of its tokens joined.
    fn token_bytes(&self) -> Option<TokenBytes> {
        None
    }

    /// The token spelled by `id`.
    fn token(&self, id: u32) -> Option<String>;

    /// The id of `token`.
    fn id(&self, token: &str) -> Option<u32>;

    /// Source of the tokenizer, for messages.
    fn place(&self) -> &str {
        "the tokenizer"
    }

    /// Checks that an embedding table of `rows` rows has one for each token.
    fn require_rows(&self, rows: usize) -> Result<()> {
        let tokens = self.vocab_size();
        if tokens <= rows {
            return Ok(());
        }
        let reason = format!("the vocabulary has {tokens} tokens, the embedding table {rows} rows");
        Err(Error::model(self.place(), reason, "use the tokenizer files that belong to these weights"))
    }

    /// Every token that has a meaning of its own, in any order. By default [`Tokenizer::special_ids`]; a tokenizer with
    /// more of them returns those, too.
    fn control_tokens(&self) -> Vec<ControlToken> {
        let SpecialIds { pad, unk, cls, sep, mask, bos, eos } = self.special_ids();
        let mut ids: Vec<u32> = [pad, unk, cls, sep, mask, bos, eos].into_iter().flatten().collect();
        ids.sort_unstable();
        ids.dedup();
        let token = |id: u32| {
            let text = self.token(id).filter(|text| !text.is_empty())?;
            Some(ControlToken { text, id, takes_space_before: false, takes_space_after: false })
        };
        ids.into_iter().filter_map(token).collect()
    }

    /// One text or a pair with special tokens, cut to `limit` if given (pairs: longest first).
    fn encode(&self, first: &str, second: Option<&str>, limit: Option<Limit>) -> Result<Encoding> {
        let texts: Vec<&str> = std::iter::once(first).chain(second).collect();
        let mut ids = self.tokenize(&texts)?.into_iter();
        match (ids.next(), ids.next(), second.is_some()) {
            (Some(first), None, false) => self.template(false).assemble(&first, &[], limit),
            (Some(first), Some(second), true) => self.template(true).assemble(&first, &second, limit),
            _ => Err(Error::model("tokenizer", "it returned another number of texts than it was given", "report this")),
        }
    }
}
