//! The task that trains a vocabulary.

use crate::terminal;
use clap::{Args, ValueEnum};
use model_center::data::TextSource;
use model_center::tokenizer::{AutoTokenizer, HfTokenizer, Normalization, TrainOptions, VocabularyKind, train};
use model_center::{Error, Result};
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

/// How texts are cut.
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
    let source = arguments.column.clone().map_or(TextSource::Lines, TextSource::Column);
    let trained = train(&arguments.files, &source, &options(arguments))?;
    trained.save(&arguments.out)?;
    HfTokenizer::from_directory(&arguments.out)?;
    let directory = arguments.out.display();
    let mut text = format!(
        "{directory}: {} tokens from {} texts with {} different words",
        trained.tokens, trained.texts, trained.words
    );
    if trained.words_dropped > 0 {
        text += &format!("; rarer ones were dropped {} times (--max-words)", trained.words_dropped);
    }
    if trained.tokens < arguments.vocab_size {
        text += &format!("; the texts have no more than these for --vocab-size {}", arguments.vocab_size);
    }
    let record = json!({
        "folder": directory.to_string(), "tokens": trained.tokens, "texts": trained.texts, "words": trained.words,
        "words_dropped": trained.words_dropped,
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

fn options(arguments: &TrainArguments) -> TrainOptions {
    let kind = match arguments.kind {
        Kind::ByteBpe => VocabularyKind::ByteBpe,
        Kind::Unigram => VocabularyKind::Unigram,
        Kind::WordPiece => VocabularyKind::WordPiece,
        Kind::Characters => VocabularyKind::Characters,
    };
    let normalization = match arguments.normalization {
        Some(Form::None) => Normalization::None,
        Some(Form::Nfc) => Normalization::Nfc,
        Some(Form::Nfkc) => Normalization::Nfkc,
        None if arguments.kind == Kind::Unigram => Normalization::Nfkc,
        None => Normalization::None,
    };
    TrainOptions {
        min_frequency: arguments.min_frequency,
        special_tokens: arguments.special.clone(),
        normalization,
        lowercase: arguments.lowercase,
        limit_alphabet: arguments.limit_alphabet,
        max_words: arguments.max_words,
        ..TrainOptions::new(kind, arguments.vocab_size)
    }
}
