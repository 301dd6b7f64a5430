//! Texts to read, from the command line or a table of corpora.

use clap::Args;
use model_center_base::{Error, Result};
use model_center_data::OnBadRecord;
use model_center_data::corpus::text::{MAX_DOCUMENT_BYTES, TextEncoding, TextFormat, TextSource, read_table};
use std::path::PathBuf;

/// Files of documents, and how they are read.
#[derive(Debug, Args)]
pub struct SourceArguments {
    /// Files and directories of documents, which gzip or zstd may have compressed; with --corpora, names of corpora.
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// A TOML file in which each table is a corpus: paths and, as needed, format, key, delimiter, encoding and
    /// max_document_bytes.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["format", "key", "delimiter", "encoding"])]
    pub corpora: Option<PathBuf>,
    /// How documents are marked; by default what each file name stands for.
    #[arg(long, value_enum)]
    pub format: Option<TextFormat>,
    /// The key or column of the documents; a dot reaches into JSON objects.
    #[arg(long, default_value = "text")]
    pub key: String,
    /// Delimiter of the fields of CSV.
    #[arg(long, default_value_t = ',')]
    pub delimiter: char,
    /// How texts are stored.
    #[arg(long, value_enum, default_value_t = TextEncoding::Utf8)]
    pub encoding: TextEncoding,
    /// The longest document, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = MAX_DOCUMENT_BYTES)]
    pub max_document_bytes: usize,
}

impl SourceArguments {
    /// Sources of the arguments: files, or corpora one after the other.
    pub(super) fn sources(&self) -> Result<Vec<TextSource>> {
        let Some(path) = &self.corpora else { return Ok(vec![self.of_files()]) };
        let table = read_table(path)?;
        let corpus = |name: &PathBuf| {
            table.get(&*name.to_string_lossy()).cloned().ok_or_else(|| {
                let known: Vec<&str> = table.keys().map(String::as_str).collect();
                let reason =
                    format!("unknown corpus {:?}; {} has {}", name.display(), path.display(), known.join(", "));
                Error::argument("--corpora", reason, "name one of these")
            })
        };
        self.files.iter().map(corpus).collect()
    }

    /// Source for tasks whose result has records with the text under the key of one corpus.
    pub(super) fn source(&self) -> Result<TextSource> {
        let mut sources = self.sources()?;
        match (sources.pop(), sources.len()) {
            (Some(source), 0) => Ok(source),
            (_, more) => {
                let reason = format!("{} names of corpora", more + 1);
                Err(Error::argument("FILES", reason, "name one corpus at a time"))
            }
        }
    }

    fn of_files(&self) -> TextSource {
        let SourceArguments { format, key, delimiter, encoding, max_document_bytes, .. } = self;
        TextSource {
            format: *format,
            key: key.clone(),
            delimiter: *delimiter,
            encoding: *encoding,
            max_document_bytes: *max_document_bytes,
            ..TextSource::new(self.files.clone())
        }
    }
}

/// Treatment of bad records that --skip-bad asks for.
pub(super) fn on_bad_record(skip_bad: Option<f64>) -> Result<OnBadRecord> {
    match skip_bad {
        None => Ok(OnBadRecord::Error),
        Some(max_share) if (0.0..=1.0).contains(&max_share) => Ok(OnBadRecord::Skip { max_share }),
        Some(share) => {
            let reason = format!("{share} is not a share between 0 and 1");
            Err(Error::argument("--skip-bad", reason, "use a share such as 0.001"))
        }
    }
}
