//! Opens a tokenizer from whatever files a model has.
//!
//! Defines [`AutoTokenizer`] and [`FORMATS`], the list of supported formats: a new format is an entry there. A CPM's
//! `vocab.txt` is not in the list: its contents tell it from BERT's, and it becomes a [`CpmTokenizer`].
//! Called by every program that tokenizes text, and by [`crate::formats::gguf`] to check the files it wrote.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::fields;
use super::files::{Settings, broken_json, directory_of, read_bounded, read_file};
use super::gguf::tokenizer_files;
use super::hf::HfTokenizer;
use super::{
    CpmKind, CpmTokenizer, TextSpecials, Tokenizer, VocabOptions, byte_pairs, characters, sentencepiece, vocab,
};
use crate::formats::gguf::{GgufFile, is_gguf};
use crate::{Error, Result};

/// A format of tokenizer files.
struct Format {
    /// The files' names, for messages.
    title: &'static str,
    /// The format, for listings.
    kind: &'static str,
    /// The files of a directory of this format; the first one identifies it; `*` matches any beginning of the name.
    files: &'static [&'static str],
    /// Reads it: the path of the first file and the directory's settings.
    read: fn(&Path, &Settings) -> Result<HfTokenizer>,
}

const fn format(
    title: &'static str,
    kind: &'static str,
    files: &'static [&'static str],
    read: fn(&Path, &Settings) -> Result<HfTokenizer>,
) -> Format {
    Format { title, kind, files, read }
}

/// The supported formats; of a directory with several of them the first is used.
const FORMATS: &[Format] = &[
    format("tokenizer.json", "tokenizer.json", &["tokenizer.json"], read_json),
    format("vocab.txt of BERT or a CPM", "WordPiece (vocab.txt)", &["vocab.txt"], read_vocab),
    format(
        "vocab.json with merges.txt",
        "byte-level pairs (vocab.json with merges.txt)",
        &["vocab.json", "merges.txt"],
        read_byte_pairs,
    ),
    format("spiece.model", "SentencePiece (spiece.model)", &["spiece.model"], read_sentencepiece),
    format(
        "sentencepiece.bpe.model",
        "SentencePiece (sentencepiece.bpe.model)",
        &["sentencepiece.bpe.model"],
        read_sentencepiece,
    ),
    format("tokenizer.model", "SentencePiece (tokenizer.model)", &["tokenizer.model"], read_sentencepiece),
    format("vocab.model", "SentencePiece (vocab.model)", &["vocab.model"], read_sentencepiece),
    format("characters.txt", "characters (characters.txt)", &["characters.txt"], read_characters),
    format("a single .gguf", "the vocabulary of a GGUF file (*.gguf)", &["*.gguf"], read_gguf),
];

/// Opens the tokenizer of a model, whatever its files: `transformers`' `AutoTokenizer`.
#[derive(Debug, Clone, Copy)]
pub struct AutoTokenizer;

impl AutoTokenizer {
    /// The tokenizer of a model directory, or of a single file: `tokenizer.json`, `vocab.txt` (WordPiece, or a CPM's:
    /// see [`CpmKind::of_directory`]), `vocab.json` with `merges.txt` beside it, a SentencePiece `.model`,
    /// `characters.txt`, or a `.gguf`. Special tokens written in a text are text.
    pub fn open(path: impl AsRef<Path>) -> Result<Arc<dyn Tokenizer>> {
        AutoTokenizer::open_with(path, TextSpecials::AsText)
    }

    /// [`AutoTokenizer::open`], with a choice of what special tokens written in a text mean: a CPM's tokenizer has only
    /// [`TextSpecials::AsText`].
    pub fn open_with(path: impl AsRef<Path>, specials: TextSpecials) -> Result<Arc<dyn Tokenizer>> {
        let path = path.as_ref();
        let directory = match path.file_name().and_then(|name| name.to_str()) {
            _ if path.is_dir() => Some(path.to_path_buf()),
            Some("vocab.txt") => Some(directory_of(path)),
            _ => None,
        };
        if let Some(directory) = directory
            && CpmKind::of_directory(&directory)?.is_some()
        {
            if specials == TextSpecials::AsTokens {
                let reason = "the tokenizers of the CPM models read no control tokens in texts";
                return Err(Error::argument(path.display().to_string(), reason, "leave control tokens to be text"));
            }
            return Ok(Arc::new(CpmTokenizer::from_directory(directory)?));
        }
        Ok(Arc::new(HfTokenizer::open(path)?.with_text_specials(specials)))
    }

    /// Whether a directory has a tokenizer's files, valid or not; a GGUF file has.
    pub fn is_in(directory: &Path) -> Result<bool> {
        Ok(is_gguf(directory) || find_in(directory)?.is_some())
    }

    /// The format of a directory's tokenizer, such as `WordPiece (vocab.txt)`; `None` without one.
    pub fn format_of(directory: impl AsRef<Path>) -> Result<Option<&'static str>> {
        let directory = directory.as_ref();
        if let Some(kind) = CpmKind::of_directory(directory)? {
            return Ok(Some(kind.title()));
        }
        Ok(find_in(directory)?.map(|(format, _)| format.kind))
    }
}

impl HfTokenizer {
    /// As [`AutoTokenizer::open`], but any `vocab.txt`, even a CPM's, is read as WordPiece.
    pub fn open(path: impl AsRef<Path>) -> Result<HfTokenizer> {
        let path = path.as_ref();
        if path.is_dir() { HfTokenizer::from_directory(path) } else { HfTokenizer::from_file(path) }
    }

    /// The tokenizer of a model directory, in the first of the supported formats that the directory has.
    pub fn from_directory(directory: impl AsRef<Path>) -> Result<HfTokenizer> {
        let directory = directory.as_ref();
        let settings = Settings::of_directory(directory)?;
        if let Some((format, path)) = find_in(directory)? {
            fields::check(&path.display().to_string(), &settings, format.kind == "tokenizer.json")?;
            return (format.read)(&path, &settings);
        }
        let reason = format!("the directory has no tokenizer: neither of {}", titles());
        let fix = "point to a model directory, or copy the tokenizer's files into it";
        Err(Error::model(directory.display().to_string(), reason, fix))
    }

    fn from_file(path: &Path) -> Result<HfTokenizer> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // A name of its own tells the form; any other file that ends in .model is SentencePiece's.
        let by_ending = |format: &&Format| match path.extension().and_then(|ending| ending.to_str()) {
            Some("model" | "v1" | "v3") => format.files[0] == "tokenizer.model",
            Some("json") => format.files[0] == "tokenizer.json",
            Some("txt") => format.files[0] == "vocab.txt",
            _ => false,
        };
        let own = FORMATS.iter().find(|format| matches(format.files[0], name));
        let format = own.or_else(|| FORMATS.iter().find(by_ending)).ok_or_else(|| {
            let reason = "the file's name is not a tokenizer file's name";
            Error::model(path.display().to_string(), reason, format!("give a directory, or one of {}", titles()))
        })?;
        (format.read)(path, &Settings::of_directory(&directory_of(path))?)
    }
}

/// The first format that a directory has, and the path of its first file.
fn find_in(directory: &Path) -> Result<Option<(&'static Format, PathBuf)>> {
    for format in FORMATS {
        if let Some(path) = format.first_of(directory)? {
            return Ok(Some((format, path)));
        }
    }
    Ok(None)
}

fn titles() -> String {
    FORMATS.iter().map(|format| format.title).collect::<Vec<_>>().join(", ")
}

/// Whether a file's name matches a format's; `*` matches any beginning.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_prefix('*') {
        Some(ending) => name.len() > ending.len() && name.ends_with(ending),
        None => pattern == name,
    }
}

impl Format {
    /// The path of the first file, if a directory has them all.
    fn first_of(&self, directory: &Path) -> Result<Option<PathBuf>> {
        if !self.files[0].starts_with('*') {
            let has_all = self.files.iter().all(|name| directory.join(name).symlink_metadata().is_ok());
            return Ok(has_all.then(|| directory.join(self.files[0])));
        }
        let mut found: Vec<PathBuf> = std::fs::read_dir(directory)
            .map_err(|error| model_center_base::file::unreadable(directory, error))?
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .filter(|path| path.file_name().and_then(|n| n.to_str()).is_some_and(|n| matches(self.files[0], n)))
            .collect();
        match found.len() {
            0 | 1 => Ok(found.pop()),
            count => Err(Error::model(
                directory.display().to_string(),
                format!("the directory has {count} files {} and no other tokenizer", self.files[0]),
                "give the path of one of them",
            )),
        }
    }
}

/// Reads a file, but not through a link that leads out of its directory.
fn read_beside(path: &Path, name: &str) -> Result<Vec<u8>> {
    let directory = directory_of(path);
    read_bounded(&directory, name)?.map_or_else(|| read_file(&directory.join(name)), Ok)
}

fn read_named(path: &Path) -> Result<(String, Vec<u8>)> {
    let bytes = match path.file_name().and_then(|name| name.to_str()) {
        Some(name) => read_beside(path, name)?,
        None => read_file(path)?,
    };
    Ok((path.display().to_string(), bytes))
}

fn read_json(path: &Path, settings: &Settings) -> Result<HfTokenizer> {
    let (place, bytes) = read_named(path)?;
    let document = serde_json::from_slice::<Value>(&bytes).map_err(|error| broken_json(path, &error))?;
    HfTokenizer::from_document(place, document, settings, &Map::new())
}

fn read_vocab(path: &Path, settings: &Settings) -> Result<HfTokenizer> {
    let (place, bytes) = read_named(path)?;
    let document = vocab::document(&place, &bytes, &VocabOptions::of(settings), settings)?;
    HfTokenizer::from_document(place, document, settings, &Map::new())
}

fn read_byte_pairs(path: &Path, settings: &Settings) -> Result<HfTokenizer> {
    let (place, vocab) = read_named(path)?;
    let (merges_path, merges) = (path.with_file_name("merges.txt"), read_beside(path, "merges.txt")?);
    let (document, names) = byte_pairs::document((path, &vocab), (&merges_path, &merges), settings)?;
    HfTokenizer::from_document(place, document, settings, &names)
}

fn read_sentencepiece(path: &Path, settings: &Settings) -> Result<HfTokenizer> {
    let (place, bytes) = read_named(path)?;
    let document = sentencepiece::document(&place, &bytes, settings)?;
    let tokenizer = HfTokenizer::from_document(place, document.json, settings, &document.names)?;
    Ok(tokenizer.without(&document.unused))
}

fn read_characters(path: &Path, settings: &Settings) -> Result<HfTokenizer> {
    let (place, bytes) = read_named(path)?;
    let (document, names) = characters::document(&place, &bytes, settings)?;
    HfTokenizer::from_document(place, document, settings, &names)
}

/// The vocabulary of a GGUF file, which may hold a model's weights too; they are not read.
fn read_gguf(path: &Path, _: &Settings) -> Result<HfTokenizer> {
    let file = GgufFile::open(path)?;
    // The most positions are a limit of the model, not of its vocabulary.
    let files = tokenizer_files(file.metadata(), usize::MAX)?;
    let own = Settings { config: files.config, ..Settings::default() };
    let tokenizer = HfTokenizer::from_document(path.display().to_string(), files.tokenizer, &own, &Map::new())?;
    Ok(tokenizer.without(&files.unused))
}
