//! Vocabularies as SentencePiece's files: `tokenizer.model` and `tokenizer.vocab`.
//!
//! Defines [`train_sentencepiece`], its [`SentencePieceOptions`] and [`TrainedPieces`]. The texts are as they are
//! (normalization `identity`): of several spaces one is left, none at the ends, and one is put before. Called by the
//! tokenizer program.
//!
//! Source: the messages of `sentencepiece_model.proto`, as its documentation describes them.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::corpus::Corpus;
use super::models::{self, within_alphabet};
use super::{MAX_VOCABULARY, TrainOptions, VocabularyKind};
use crate::io::texts::TextLayout;
use crate::tokenizer::pieces::SPACE;
use crate::{Error, Result};
use model_center_base::file::{AtomicFile, commit_together};

/// The tokens of ids 0 to 2: unknown, BOS and EOS.
const OWN: [&str; 3] = ["<unk>", "<s>", "</s>"];
/// Kinds of pieces in the file.
const NORMAL: u64 = 1;
const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;

/// Model that makes pieces of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceModel {
    /// The most likely pieces.
    Unigram,
    /// Pairs of characters merged in the order of their frequency.
    Bpe,
    /// Characters.
    Char,
    /// A word between spaces.
    Word,
}

/// Options of training.
#[derive(Debug, Clone)]
pub struct SentencePieceOptions {
    /// The kind.
    pub model: PieceModel,
    /// Pieces, control tokens included. The vocabulary is smaller if the texts do not have as many.
    pub vocab_size: usize,
    /// Control tokens after unknown, BOS and EOS.
    pub control_tokens: Vec<String>,
    /// The most characters an alphabet has; words with others are not trained on.
    pub limit_alphabet: Option<usize>,
    /// The most different words that are kept while texts are read.
    pub max_words: usize,
}

/// A trained vocabulary as the content of its files.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainedPieces {
    /// `tokenizer.model`.
    pub model: Vec<u8>,
    /// `tokenizer.vocab`: pieces with their scores, a tab between them.
    pub vocab: String,
    /// Pieces it has.
    pub tokens: usize,
    /// Texts that were read.
    pub texts: u64,
    /// Distinct words kept.
    pub words: usize,
    /// Evictions of words because there were more than `max_words`.
    pub words_dropped: u64,
}

impl TrainedPieces {
    /// Writes both files into a directory, which is made if it is not there.
    ///
    /// # Errors
    /// [`Error::File`] if that fails.
    pub fn save(&self, directory: impl AsRef<Path>) -> Result<()> {
        let directory = directory.as_ref();
        std::fs::create_dir_all(directory).map_err(|error| {
            Error::file("make the directory", directory, error, "choose a directory that you may write to")
        })?;
        let vocab = AtomicFile::with(&directory.join("tokenizer.vocab"), self.vocab.as_bytes())?;
        commit_together(vec![vocab, AtomicFile::with(&directory.join("tokenizer.model"), &self.model)?])
    }
}

/// Trains a vocabulary on the texts of files.
///
/// # Errors
/// [`Error::Argument`] for a size that the alphabet does not fit into, and control tokens that are there twice;
/// [`Error::Data`] as [`super::train`].
pub fn train_sentencepiece(
    files: &[PathBuf],
    source: &TextLayout,
    options: &SentencePieceOptions,
) -> Result<TrainedPieces> {
    if !(OWN.len() + 1..=MAX_VOCABULARY).contains(&options.vocab_size) {
        let reason = format!("{} is not a valid vocabulary size", options.vocab_size);
        return Err(Error::argument("vocab_size", reason, format!("choose between 300 and {MAX_VOCABULARY}")));
    }
    let mut control: Vec<String> = OWN.map(str::to_owned).to_vec();
    for token in &options.control_tokens {
        if token.trim().is_empty() || token.len() > 100 || control.contains(token) {
            let reason = format!("the control token {token:?} is empty, longer than 100 bytes or there already");
            return Err(Error::argument("special_tokens", reason, "give each token once"));
        }
        control.push(token.clone());
    }
    // Texts are cut as for Unigram: at spaces, each with the word after it.
    let settings = TrainOptions {
        limit_alphabet: options.limit_alphabet,
        max_words: options.max_words,
        ..TrainOptions::new(VocabularyKind::Unigram, options.vocab_size)
    };
    let mut corpus = Corpus::read(files, source, &settings)?;
    // Of several spaces all but one are left out.
    corpus.words.remove(SPACE);
    let room = options.vocab_size.saturating_sub(control.len());
    let learnt = match options.model {
        PieceModel::Unigram => unigram(&corpus, &settings, &control)?,
        PieceModel::Bpe => byte_pairs(&corpus, &settings, &control)?,
        PieceModel::Char => by_frequency(corpus.characters().into_iter().map(|(c, n)| (c.to_string(), n)), room),
        PieceModel::Word => by_frequency(corpus.words.iter().map(|(word, count)| (word.clone(), *count)), room),
    };
    let learnt: Vec<(String, f32)> = learnt.into_iter().filter(|(piece, _)| !control.contains(piece)).collect();
    let mut model = Vec::new();
    let mut vocab = String::new();
    let own = control.iter().map(|token| (token.as_str(), 0.0, if token == OWN[0] { UNKNOWN } else { CONTROL }));
    for (text, score, kind) in own.chain(learnt.iter().map(|(text, score)| (text.as_str(), *score, NORMAL))) {
        bytes_field(&mut model, 1, &piece(text, score, kind));
        vocab += &format!("{text}\t{score}\n");
    }
    let tokens = control.len() + learnt.len();
    bytes_field(&mut model, 2, &trainer(options.model, tokens));
    bytes_field(&mut model, 3, &normalizer());
    let (texts, words, words_dropped) = (corpus.texts, corpus.words.len(), corpus.dropped);
    Ok(TrainedPieces { model, vocab, tokens, texts, words, words_dropped })
}

fn unigram(corpus: &Corpus, options: &TrainOptions, control: &[String]) -> Result<Vec<(String, f32)>> {
    let model = models::unigram(corpus, options, control)?;
    let entries = model["vocab"].as_array().into_iter().flatten().skip(control.len());
    let entry = |entry: &Value| Some((entry[0].as_str()?.to_owned(), entry[1].as_f64()? as f32));
    Ok(entries.filter_map(entry).collect())
}

/// Merged pieces in their order, then the alphabet, the most frequent character first; the score falls by one each.
fn byte_pairs(corpus: &Corpus, options: &TrainOptions, control: &[String]) -> Result<Vec<(String, f32)>> {
    let corpus = within_alphabet(corpus, options);
    let alphabet: Vec<String> = corpus.characters().into_iter().map(|(c, _)| c.to_string()).collect();
    let fixed: Vec<String> = control.iter().chain(&alphabet).cloned().collect();
    models::require_room(alphabet.len(), options, control)?;
    let first = u32::try_from(fixed.len()).unwrap_or(u32::MAX);
    let merged = models::merged(&corpus, options, fixed, None)?;
    let mut pieces: Vec<(String, u32)> = merged.get_vocab().into_iter().filter(|(_, id)| *id >= first).collect();
    pieces.sort_by_key(|(_, id)| *id);
    let pieces = pieces.into_iter().map(|(piece, _)| piece).chain(alphabet);
    Ok(pieces.enumerate().map(|(rank, piece)| (piece, -(rank as f32))).collect())
}

/// The most frequent ones with the logarithms of their shares; of equal ones in the order of their spellings.
fn by_frequency(counted: impl Iterator<Item = (String, u64)>, room: usize) -> Vec<(String, f32)> {
    let mut counted: Vec<(String, u64)> = counted.collect();
    counted.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let all: u64 = counted.iter().map(|(_, count)| count).sum();
    counted.truncate(room);
    counted.into_iter().map(|(piece, count)| (piece, (count as f64 / all as f64).ln() as f32)).collect()
}

/// The message of a piece: its text, score and kind.
fn piece(text: &str, score: f32, kind: u64) -> Vec<u8> {
    let mut message = Vec::new();
    bytes_field(&mut message, 1, text.as_bytes());
    whole(&mut message, 2 << 3 | 5);
    message.extend(score.to_le_bytes());
    whole_field(&mut message, 3, kind);
    message
}

/// Trainer's record: the kind, the size, the ids of unknown, BOS, EOS and no padding.
fn trainer(model: PieceModel, tokens: usize) -> Vec<u8> {
    let kind = match model {
        PieceModel::Unigram => 1,
        PieceModel::Bpe => 2,
        PieceModel::Word => 3,
        PieceModel::Char => 4,
    };
    let mut message = Vec::new();
    whole_field(&mut message, 3, kind);
    whole_field(&mut message, 4, tokens as u64);
    for (number, id) in [(40, 0), (41, 1), (42, 2), (43, -1_i64)] {
        whole_field(&mut message, number, id.cast_unsigned());
    }
    message
}

/// Normalizer of texts: nothing but their spaces changes.
fn normalizer() -> Vec<u8> {
    let mut message = Vec::new();
    bytes_field(&mut message, 1, b"identity");
    for number in [3, 4, 5] {
        whole_field(&mut message, number, 1);
    }
    message
}

fn bytes_field(out: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    whole(out, number << 3 | 2);
    whole(out, bytes.len() as u64);
    out.extend(bytes);
}

fn whole_field(out: &mut Vec<u8>, number: u64, value: u64) {
    whole(out, number << 3);
    whole(out, value);
}

/// Seven bits a byte, the lowest first.
fn whole(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
