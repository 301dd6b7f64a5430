//! The task that trains a vocabulary.

use crate::cli::terminal;
use clap::{Args, ValueEnum};
use model_center_base::{Error, Result};
use model_center_data::TextLayout;
use model_center_formats::tokenizer::{
    AutoTokenizer, HfTokenizer, Normalization, PieceModel, SentencePieceOptions, TrainOptions, VocabularyKind, train,
    train_sentencepiece,
};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Files that describe a tokenizer, whatever its form.
const SIDE_FILES: [&str; 4] =
    ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"];

/// What is trained, and on what.
#[derive(Debug, Args)]
pub struct TrainArguments {
    /// Files of texts: each line is one, or a column of each record of JSONL, CSV or TSV.
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// The column with the text; by default a file's lines are the texts, whatever its name.
    #[arg(long, value_name = "NAME")]
    pub column: Option<String>,
    /// How texts are cut into tokens.
    #[arg(long, value_enum)]
    pub kind: Kind,
    /// Write SentencePiece's tokenizer.model and tokenizer.vocab: unigram, bpe, characters and whole-words. Texts are
    /// as they are but for their spaces.
    #[arg(long, conflicts_with_all = ["min_frequency", "normalization", "lowercase"])]
    pub sentencepiece: bool,
    /// Tokens, special ones included.
    #[arg(long, value_name = "N")]
    pub vocab_size: usize,
    /// The directory to write; it must not have a tokenizer of any form yet.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// What is seen less often is not merged, or no character of its own; by default 2. Not for unigram.
    #[arg(long, value_name = "N")]
    pub min_frequency: Option<u64>,
    /// A special token after the kind's own, such as <|im_start|>; may be given several times.
    #[arg(long, value_name = "TOKEN")]
    pub special: Vec<String>,
    /// What happens to characters before; by default nfkc for unigram, none for the others.
    #[arg(long, value_enum)]
    pub normalization: Option<Form>,
    /// Lower-case the texts; word-piece then also strips accents.
    #[arg(long)]
    pub lowercase: bool,
    /// The most characters an alphabet has; words with others are left out. Not for byte-bpe.
    #[arg(long, value_name = "N")]
    pub limit_alphabet: Option<usize>,
    /// The most different words kept in memory; beyond, the rarest go.
    #[arg(long, value_name = "N", default_value_t = 2_000_000)]
    pub max_words: usize,
}

/// Kind of tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Pairs of bytes merged, as in GPT-2; spells every text.
    ByteBpe,
    /// The most likely pieces, as in T5.
    Unigram,
    /// The longest pieces from the left, as in BERT.
    WordPiece,
    /// The most frequent characters.
    Characters,
    /// Pairs of characters merged; with --sentencepiece alone.
    Bpe,
    /// The most frequent words between spaces; with --sentencepiece alone.
    WholeWords,
}

/// Forms of characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// As they are.
    None,
    /// Accents composed.
    Nfc,
    /// Also full width, ligatures and the like made plain.
    Nfkc,
}

/// Train and write.
pub(super) fn run(arguments: &TrainArguments, as_json: bool) -> Result<()> {
    require_free(&arguments.out)?;
    let source = arguments.column.clone().map_or(TextLayout::Lines, TextLayout::Column);
    let (tokens, texts, words, words_dropped) = if arguments.sentencepiece {
        let trained = train_sentencepiece(&arguments.files, &source, &sentencepiece(arguments)?)?;
        trained.save(&arguments.out)?;
        (trained.tokens, trained.texts, trained.words, trained.words_dropped)
    } else {
        let trained = train(&arguments.files, &source, &options(arguments)?)?;
        trained.save(&arguments.out)?;
        HfTokenizer::from_directory(&arguments.out)?;
        (trained.tokens, trained.texts, trained.words, trained.words_dropped)
    };
    let directory = arguments.out.display();
    let mut text = format!("{directory}: {tokens} tokens from {texts} texts with {words} different words");
    if words_dropped > 0 {
        text += &format!("; rarer ones were dropped {words_dropped} times (--max-words)");
    }
    if tokens < arguments.vocab_size {
        text += &format!("; the texts have no more than these for --vocab-size {}", arguments.vocab_size);
    }
    let record = json!({
        "folder": directory.to_string(), "tokens": tokens, "texts": texts, "words": words,
        "words_dropped": words_dropped,
    });
    terminal::print(&if as_json { record.to_string() } else { text })
}

/// Refuses a directory with a tokenizer, or with a file that describes one: it would be mixed with the new
/// one.
fn require_free(out: &Path) -> Result<()> {
    let fix = "choose another directory, or remove the files";
    for name in SIDE_FILES {
        if out.join(name).symlink_metadata().is_ok() {
            return Err(Error::argument("--out", format!("the directory {} has a {name}", out.display()), fix));
        }
    }
    if out.is_dir()
        && let Some(kind) = AutoTokenizer::format_of(out)?
    {
        return Err(Error::argument("--out", format!("the directory {} has a tokenizer: {kind}", out.display()), fix));
    }
    Ok(())
}

fn sentencepiece(arguments: &TrainArguments) -> Result<SentencePieceOptions> {
    let model = match arguments.kind {
        Kind::Unigram => PieceModel::Unigram,
        Kind::Bpe => PieceModel::Bpe,
        Kind::Characters => PieceModel::Char,
        Kind::WholeWords => PieceModel::Word,
        Kind::ByteBpe | Kind::WordPiece => {
            let fix = "choose unigram, bpe, characters or whole-words, or leave --sentencepiece out";
            return Err(Error::argument("--kind", "SentencePiece's files have no such kind", fix));
        }
    };
    Ok(SentencePieceOptions {
        model,
        vocab_size: arguments.vocab_size,
        control_tokens: arguments.special.clone(),
        limit_alphabet: arguments.limit_alphabet,
        max_words: arguments.max_words,
    })
}

fn options(arguments: &TrainArguments) -> Result<TrainOptions> {
    let kind = match arguments.kind {
        Kind::ByteBpe => VocabularyKind::ByteBpe,
        Kind::Unigram => VocabularyKind::Unigram,
        Kind::WordPiece => VocabularyKind::WordPiece,
        Kind::Characters => VocabularyKind::Characters,
        Kind::Bpe | Kind::WholeWords => {
            let fix = "add --sentencepiece, or choose byte-bpe or word-piece";
            return Err(Error::argument("--kind", "only SentencePiece's files have this kind", fix));
        }
    };
    let normalization = match arguments.normalization {
        Some(Form::None) => Normalization::None,
        Some(Form::Nfc) => Normalization::Nfc,
        Some(Form::Nfkc) => Normalization::Nfkc,
        None if arguments.kind == Kind::Unigram => Normalization::Nfkc,
        None => Normalization::None,
    };
    Ok(TrainOptions {
        min_frequency: arguments.min_frequency,
        special_tokens: arguments.special.clone(),
        normalization,
        lowercase: arguments.lowercase,
        limit_alphabet: arguments.limit_alphabet,
        max_words: arguments.max_words,
        ..TrainOptions::new(kind, arguments.vocab_size)
    })
}
