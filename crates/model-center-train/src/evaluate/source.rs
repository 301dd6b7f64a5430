//! The tokens of a file: of a text, of the documents of a corpus, or of a token file.
//!
//! Defines [`TokenSource`], read by windows, and [`TextCounts`], the words and bytes that a perplexity is related to.

use std::ops::Range;
use std::path::Path;

use super::Detokenizer;
use crate::{Error, Result};
use model_center_data::OnBadRecord;
use model_center_data::corpus::text::{Documents, TextFormat, TextSource};
use model_center_data::corpus::{TokenFile, index_path};
use model_center_formats::tokenizer::Tokenizer;

/// How a file is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceOptions {
    /// Format of the documents; by default what the file name stands for, else one text.
    pub format: Option<TextFormat>,
    /// Key or column of the documents.
    pub key: String,
    /// Rules that texts are detokenised by; by default the rules of the data set that the path names.
    pub detokenizer: Option<Detokenizer>,
    /// Read as many documents as have this number of tokens; `None` for all.
    pub tokens: Option<u64>,
}

/// Words and bytes of texts before they were detokenised, without white space at both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TextCounts {
    /// Texts.
    pub documents: u64,
    /// Words, separated by single spaces, as Megatron-LM counts.
    pub words: u64,
    /// Bytes in UTF-8.
    pub bytes: u64,
}

/// The tokens of a file.
#[derive(Debug)]
pub struct TokenSource {
    tokens: Tokens,
    /// Counts of texts; `None` for a token file.
    pub counts: Option<TextCounts>,
    /// The rules that were applied.
    pub detokenizer: Detokenizer,
}

#[derive(Debug)]
enum Tokens {
    Ids(Vec<u32>),
    File(TokenFile),
}

impl TokenSource {
    /// Whether a path is a token file's: its prefix, or the name of one of its two files.
    pub fn is_token_file(path: &Path) -> bool {
        let ending = path.extension().and_then(|ending| ending.to_str());
        matches!(ending, Some("bin" | "idx")) || (!path.is_file() && index_path(path).is_file())
    }

    /// Opens a token file, by its prefix or the name of either file.
    ///
    /// # Errors
    /// As [`TokenFile::open`]; [`Error::Data`] for a file of fewer than two tokens.
    pub fn of_token_file(path: &Path) -> Result<TokenSource> {
        let file = TokenFile::open(path)?;
        let source = TokenSource { tokens: Tokens::File(file), counts: None, detokenizer: Detokenizer::None };
        source.check(path)
    }

    /// Reads texts. Several documents have the EOS token between them, and the tokenizer's special tokens precede the
    /// first.
    ///
    /// # Errors
    /// As [`Documents::advance`]; [`Error::Data`] for fewer than two tokens.
    pub fn of_texts(path: &Path, tokenizer: &dyn Tokenizer, options: &SourceOptions) -> Result<TokenSource> {
        let format = options.format.or_else(|| TextFormat::of(path)).unwrap_or(TextFormat::Text);
        let detokenizer = options.detokenizer.unwrap_or_else(|| match format {
            TextFormat::Text => Detokenizer::of(path),
            _ => Detokenizer::None,
        });
        let source =
            TextSource { format: Some(format), key: options.key.clone(), ..TextSource::new(vec![path.to_owned()]) };
        let mut documents = Documents::open(source, OnBadRecord::Error)?;
        let (mut ids, mut counts) = (tokenizer.template(false).around_first().0, TextCounts::default());
        let is_enough = |ids: &[u32]| options.tokens.is_some_and(|tokens| ids.len() as u64 >= tokens);
        while !is_enough(&ids) {
            let Some(text) = documents.advance()? else { break };
            if counts.documents > 0 {
                ids.extend(tokenizer.special_ids().eos);
            }
            counts.documents += 1;
            let stripped = text.trim();
            counts.words += stripped.split(' ').count() as u64;
            counts.bytes += stripped.len() as u64;
            ids.extend(tokenizer.tokenize(&[&detokenizer.apply(&text)])?.concat());
        }
        TokenSource { tokens: Tokens::Ids(ids), counts: Some(counts), detokenizer }.check(path)
    }

    fn check(self, path: &Path) -> Result<TokenSource> {
        match self.len() {
            0 | 1 => {
                let reason = "there are fewer than two tokens, so none is predicted";
                Err(Error::data(path.display().to_string(), reason, "give a longer text"))
            }
            _ => Ok(self),
        }
    }

    /// Number of tokens.
    pub fn len(&self) -> u64 {
        match &self.tokens {
            Tokens::Ids(ids) => ids.len() as u64,
            Tokens::File(file) => file.tokens(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tokens of a range within [`TokenSource::len`].
    ///
    /// # Errors
    /// As [`TokenFile::read_ids`]; [`Error::Argument`] beyond the end.
    pub fn read(&self, range: Range<u64>) -> Result<Vec<u32>> {
        let beyond = || {
            let reason = format!("there are {} tokens", self.len());
            Error::argument(format!("tokens {} to {}", range.start, range.end), reason, "use a smaller range")
        };
        if range.end > self.len() || range.start > range.end {
            return Err(beyond());
        }
        match &self.tokens {
            Tokens::Ids(ids) => Ok(ids[range.start as usize..range.end as usize].to_vec()),
            Tokens::File(file) => {
                let mut ids = vec![0; usize::try_from(range.end - range.start).map_err(|_| beyond())?];
                file.read_ids(range.start, &mut ids)?;
                Ok(ids)
            }
        }
    }
}
