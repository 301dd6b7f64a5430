//! Vocabularies trained from texts: byte-level BPE, Unigram, WordPiece, characters.
//!
//! Defines [`train`], its [`TrainOptions`] and [`Trained`], the files of a tokenizer. Texts are read once and only
//! their words are kept (`corpus`); the trainers of the `tokenizers` crate do the counting (`models`); the same texts
//! and options give the same bytes, whatever the number of threads. Called by the tokenizer program.

mod corpus;
mod document;
mod models;
mod sentencepiece;

pub use self::sentencepiece::{PieceModel, SentencePieceOptions, TrainedPieces, train_sentencepiece};

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use self::corpus::Corpus;
use super::catch::catch_errors;
use crate::io::texts::TextLayout;
use crate::{Error, Result};
use model_center_base::file::{AtomicFile, commit_together};

/// The largest vocabulary that is trained; those in use have up to 256 thousand tokens.
const MAX_VOCABULARY: usize = 1 << 20;

/// Model of a vocabulary, by which a text is cut into tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VocabularyKind {
    /// Pairs of bytes merged in the order of their frequency, as in GPT-2: spells every text without an unknown token.
    ByteBpe,
    /// The pieces that make the texts most probable, as in T5: a word becomes its most probable pieces.
    Unigram,
    /// Pairs of characters merged within words, as in BERT: a word is its longest pieces from the left.
    WordPiece,
    /// The characters of the texts, the most frequent ones if there are too many.
    Characters,
}

/// Normalization of characters before a text is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Normalization {
    /// Nothing.
    #[default]
    None,
    /// Characters and their accents are composed.
    Nfc,
    /// Also forms of a character that mean the same become one: full width, ligatures.
    Nfkc,
}

/// Options of training a vocabulary.
#[derive(Debug, Clone)]
pub struct TrainOptions {
    /// Model of the vocabulary.
    pub kind: VocabularyKind,
    /// Tokens, special ones included. The vocabulary is smaller if the texts do not have as many.
    pub vocab_size: usize,
    /// Minimum frequency of merges (byte-level BPE and WordPiece) or of characters of their own (characters); by
    /// default 2. Unigram has no such limit and refuses one.
    pub min_frequency: Option<u64>,
    /// Special tokens after the kind's own, such as a chat template's markers.
    pub special_tokens: Vec<String>,
    /// Normalization of characters.
    pub normalization: Normalization,
    /// Lower-case the texts; WordPiece also takes accents away then, as BERT does.
    pub lowercase: bool,
    /// The most characters an alphabet has; words with others are not trained on. Byte-level BPE, whose alphabet are
    /// the bytes, refuses a limit.
    pub limit_alphabet: Option<usize>,
    /// The most different words that are kept while texts are read; what bounds memory.
    pub max_words: usize,
    /// The longest line that is read, in bytes.
    pub max_line_bytes: usize,
}

impl TrainOptions {
    /// A vocabulary of a kind and size, of everything that is seen twice.
    pub fn new(kind: VocabularyKind, vocab_size: usize) -> TrainOptions {
        TrainOptions {
            kind,
            vocab_size,
            min_frequency: None,
            special_tokens: Vec::new(),
            normalization: Normalization::None,
            lowercase: false,
            limit_alphabet: None,
            max_words: 2_000_000,
            max_line_bytes: 16 << 20,
        }
    }

    /// Minimum frequency that counts.
    fn least_frequency(&self) -> u64 {
        self.min_frequency.unwrap_or(2)
    }

    /// Refuses what would be without effect on the kind.
    fn check_effect(&self) -> Result<()> {
        let (name, why) = match self.kind {
            VocabularyKind::Unigram if self.min_frequency.is_some() => {
                ("min_frequency", "Unigram chooses pieces by likelihood, not by how often they are there")
            }
            VocabularyKind::ByteBpe if self.limit_alphabet.is_some() => {
                ("limit_alphabet", "the alphabet of byte-level BPE are the 256 bytes")
            }
            _ => return Ok(()),
        };
        Err(Error::argument(name, format!("it has no effect here: {why}"), "leave it out, or choose another kind"))
    }
}

/// A tokenizer that was trained, as the files of a directory.
#[derive(Debug, Clone, PartialEq)]
pub struct Trained {
    /// `tokenizer.json`.
    pub tokenizer: Value,
    /// `tokenizer_config.json`.
    pub config: Value,
    /// Tokens it has.
    pub tokens: usize,
    /// Texts that were read.
    pub texts: u64,
    /// Distinct words kept.
    pub words: usize,
    /// Evictions of words because there were more than `max_words`, the rarest first. A word that occurs again may be
    /// evicted again, and counts again.
    pub words_dropped: u64,
}

impl Trained {
    /// Writes `tokenizer.json` and `tokenizer_config.json` into a directory, which is made if it is not there.
    /// `tokenizer.json`, without which there is no tokenizer, gets its name last.
    pub fn save(&self, directory: impl AsRef<Path>) -> Result<()> {
        let directory = directory.as_ref();
        std::fs::create_dir_all(directory).map_err(|error| {
            Error::file("make the directory", directory, error, "choose a directory that you may write to")
        })?;
        let mut files = Vec::new();
        for (name, content) in [("tokenizer_config.json", &self.config), ("tokenizer.json", &self.tokenizer)] {
            let text = serde_json::to_string_pretty(content)
                .map_err(|error| Error::model(name, error.to_string(), "report this"))?;
            files.push(AtomicFile::with(&directory.join(name), (text + "\n").as_bytes())?);
        }
        commit_together(files)
    }
}

/// Trains a vocabulary on the texts of files.
///
/// # Errors
/// [`Error::Argument`] for options that contradict each other or a size that the alphabet does not fit into;
/// [`Error::Data`] for files as [`read_texts`](crate::io::texts::read_texts) says, and if there is no word in them.
pub fn train(files: &[PathBuf], source: &TextLayout, options: &TrainOptions) -> Result<Trained> {
    options.check_effect()?;
    let special = special_tokens(options)?;
    if !(1..=MAX_VOCABULARY).contains(&options.vocab_size) {
        let reason = format!("{} is not a valid vocabulary size", options.vocab_size);
        return Err(Error::argument("vocab_size", reason, format!("choose between 300 and {MAX_VOCABULARY}")));
    }
    let corpus = Corpus::read(files, source, options)?;
    let model = catch_errors("training", "train a vocabulary", || {
        Ok::<_, Error>(match options.kind {
            VocabularyKind::ByteBpe => models::byte_bpe(&corpus, options, &special),
            VocabularyKind::Unigram => models::unigram(&corpus, options, &special),
            VocabularyKind::WordPiece => models::word_piece(&corpus, options, &special),
            VocabularyKind::Characters => models::characters(&corpus, options, &special),
        })
    })??;
    let tokens = models::size(&model);
    Ok(Trained {
        tokenizer: document::tokenizer(options, &special, model),
        config: document::config(options, &special),
        tokens,
        texts: corpus.texts,
        words: corpus.words.len(),
        words_dropped: corpus.dropped,
    })
}

/// The special tokens in the order of their ids, which begin at 0.
fn special_tokens(options: &TrainOptions) -> Result<Vec<String>> {
    let mut tokens: Vec<String> =
        document::own_special_tokens(options.kind).iter().map(|(_, token)| (*token).into()).collect();
    for token in &options.special_tokens {
        let wrong = match token {
            token if token.trim().is_empty() => Some("is empty"),
            token if token.len() > 100 => Some("is longer than 100 bytes"),
            token if tokens.contains(token) => Some("is there already"),
            token if is_byte(options.kind, token) => Some("is what spells a byte of texts"),
            _ => None,
        };
        if let Some(wrong) = wrong {
            let reason = format!("the special token {token:?} {wrong}");
            let fix = "give each token once, spelled as templates spell it";
            return Err(Error::argument("special_tokens", reason, fix));
        }
        tokens.push(token.clone());
    }
    Ok(tokens)
}

/// Whether a token is one of the alphabet that every text is spelled with.
fn is_byte(kind: VocabularyKind, token: &str) -> bool {
    let is_letter = |c: char| ByteLevel::alphabet().contains(&c) && token.chars().eq([c]);
    kind == VocabularyKind::ByteBpe && token.chars().next().is_some_and(is_letter)
}

/// Normalizer of texts by options, as a part of `tokenizer.json`; the same for training and for use.
fn normalizer(options: &TrainOptions) -> Value {
    let mut steps = match options.normalization {
        Normalization::None => Vec::new(),
        Normalization::Nfc => vec![json!({"type": "NFC"})],
        Normalization::Nfkc => vec![json!({"type": "NFKC"})],
    };
    match options.kind {
        VocabularyKind::WordPiece => steps.push(json!({
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
            "lowercase": options.lowercase,
        })),
        _ if options.lowercase => steps.push(json!({"type": "Lowercase"})),
        _ => (),
    }
    match steps.len() {
        0 => Value::Null,
        1 => steps.remove(0),
        _ => json!({"type": "Sequence", "normalizers": steps}),
    }
}
