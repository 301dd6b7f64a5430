//! What is read, from the command line or a table of corpora.

use clap::{Args, ValueEnum};
use model_center::corpus::text::{MAX_DOCUMENT_BYTES, TextEncoding, TextFormat, TextSource, read_table};
use model_center::{Error, Result};
use std::path::PathBuf;

/// Files of documents, and how they are read.
#[derive(Debug, Args)]
pub struct SourceArguments {
    /// Files and directories of documents, which gzip or zstd may have compressed; with --corpora, the name of a
    /// corpus.
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// A TOML file in which each table is a corpus: paths and, as needed, format, key, delimiter, encoding and
    /// max_document_bytes.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["format", "key", "delimiter", "encoding"])]
    pub corpora: Option<PathBuf>,
    /// How documents are marked; by default what each file name stands for.
    #[arg(long, value_enum)]
    pub format: Option<Format>,
    /// The key or column of the documents; a dot reaches into JSON objects.
    #[arg(long, default_value = "text")]
    pub key: String,
    /// What is between the fields of CSV.
    #[arg(long, default_value_t = ',')]
    pub delimiter: char,
    /// How texts are stored.
    #[arg(long, value_enum, default_value_t = Encoding::Utf8)]
    pub encoding: Encoding,
    /// The longest document, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = MAX_DOCUMENT_BYTES)]
    pub max_document_bytes: usize,
}

/// How documents are marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// JSON objects, one a line or in one array.
    Json,
    /// Rows with a header, quoted as in RFC 4180.
    Csv,
    /// Rows with a header, tabs between fields, no quoting.
    Tsv,
    /// A file is a document.
    Text,
    /// A line is a document.
    Lines,
    /// Lines up to an empty one are a document.
    Paragraphs,
    /// The output of WikiExtractor.
    Wiki,
}

/// How texts are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Encoding {
    /// UTF-8.
    #[value(name = "utf-8")]
    Utf8,
    /// ISO 8859-1.
    #[value(name = "latin-1")]
    Latin1,
}

impl SourceArguments {
    /// What the arguments ask for.
    pub(super) fn source(&self) -> Result<TextSource> {
        if let Some(path) = &self.corpora {
            let mut table = read_table(path)?;
            let [name] = &self.files[..] else {
                let reason = format!("{} names of corpora", self.files.len());
                return Err(Error::argument("FILES", reason, "build one corpus at a time"));
            };
            return table.remove(&*name.to_string_lossy()).ok_or_else(|| {
                let known: Vec<&str> = table.keys().map(String::as_str).collect();
                let reason =
                    format!("unknown corpus {:?}; {} has {}", name.display(), path.display(), known.join(", "));
                Error::argument("--corpora", reason, "name one of these")
            });
        }
        let format = self.format.map(|format| match format {
            Format::Json => TextFormat::Json,
            Format::Csv => TextFormat::Csv,
            Format::Tsv => TextFormat::Tsv,
            Format::Text => TextFormat::Text,
            Format::Lines => TextFormat::Lines,
            Format::Paragraphs => TextFormat::Paragraphs,
            Format::Wiki => TextFormat::Wiki,
        });
        let encoding = match self.encoding {
            Encoding::Utf8 => TextEncoding::Utf8,
            Encoding::Latin1 => TextEncoding::Latin1,
        };
        let SourceArguments { key, delimiter, max_document_bytes, .. } = self;
        Ok(TextSource {
            format,
            key: key.clone(),
            delimiter: *delimiter,
            encoding,
            max_document_bytes: *max_document_bytes,
            ..TextSource::new(self.files.clone())
        })
    }
}
