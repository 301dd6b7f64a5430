//! The command line.

use crate::cli::device::DeviceArguments;
use crate::cli::opened::ModelSource;
use clap::{Args, Parser, ValueEnum};
use model_center_data::Format;
use model_center_data::metrics::Metric;
use model_center_formats::tokenizer::KeepSide;
use model_center_train::predict::{InputFormat, PredictColumns, PredictOptions};
use serde_json::{Map, Value};
use std::path::PathBuf;

/// Predict with a fine-tuned model: classes with probabilities, numbers, entities, answers, embeddings.
///
/// What is predicted follows from the model's head. Inputs are JSON lines, CSV, TSV, Parquet, Arrow, lines of text,
/// CoNLL or SQuAD's JSON; where they have labels, metrics are computed too. Results have the fields of their records
/// and `prediction`, `score`, `probabilities`; without --out they are printed as JSON lines.
///
/// Example: bmtrain predict runs/tickets/model new.csv --out labelled.csv
#[derive(Debug, Clone, Parser)]
#[command(name = "predict", version)]
pub struct Options {
    /// Directory of Hugging Face or ModelCenter, of PEFT's adapter, or the hub name of a model in its cache (program
    /// fetch).
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// File of inputs.
    #[arg(value_name = "INPUTS", required_unless_present = "sentence", conflicts_with = "sentence")]
    pub inputs: Option<PathBuf>,
    /// A text, in place of a file; may be repeated.
    #[arg(long, value_name = "TEXT")]
    pub sentence: Vec<String>,
    /// Files of the model, and its adapter.
    #[command(flatten)]
    pub source: ModelSource,
    /// Columns that are read.
    #[command(flatten)]
    pub columns: Columns,
    /// Settings of predictions.
    #[command(flatten)]
    pub settings: Settings,
    /// Results that are written.
    #[command(flatten)]
    pub results: Results,
    /// Device and dtype of the computation.
    #[command(flatten)]
    pub device: DeviceArguments,
}

impl Options {
    /// The texts of the command line as records.
    pub(super) fn sentences(&self) -> Vec<Map<String, Value>> {
        let record = |text: &String| Map::from_iter([("text".to_owned(), text.as_str().into())]);
        self.sentence.iter().map(record).collect()
    }
}

/// Columns of the inputs.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Inputs")]
pub struct Columns {
    /// Format of the inputs; by default by the file name.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub format: Option<Form>,
    /// The delimiter of columns, of a CSV file with another one than a comma.
    #[arg(long, value_name = "LETTER", conflicts_with = "format")]
    pub delimiter: Option<char>,
    /// Column of the text, of the first of a pair, or of the question. By default `text`, or a conversation in
    /// `messages`; of questions `question`.
    #[arg(long, value_name = "COLUMN")]
    pub text: Option<String>,
    /// Column of the second text of a pair, or of the passage. By default `text_pair` where records have it; of
    /// questions `context`.
    #[arg(long, value_name = "COLUMN")]
    pub text_pair: Option<String>,
    /// Column of a list of words, of a model that classifies words. By default `tokens`, else the text.
    #[arg(long, value_name = "COLUMN")]
    pub tokens: Option<String>,
    /// Column of the known label. By default `label`, `labels`, `ner_tags`, `tags` or `answers` where records
    /// have it.
    #[arg(long, value_name = "COLUMN")]
    pub label: Option<String>,
    /// Do not read labels.
    #[arg(long, conflicts_with = "label")]
    pub without_labels: bool,
    /// Leave records out that cannot be used; their number and the first of them are reported.
    #[arg(long)]
    pub skip_bad_records: bool,
}

/// Formats by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// A JSON object in each line.
    Jsonl,
    /// Comma-separated, with a header.
    Csv,
    /// Tab-separated, with a header.
    Tsv,
    /// Parquet.
    Parquet,
    /// Arrow, or a directory of `datasets`.
    Arrow,
    /// A text in each line.
    Text,
    /// A word and its tag in each line.
    Conll,
    /// SQuAD's JSON.
    Squad,
}

impl Form {
    /// The format of the library.
    pub fn format(self) -> InputFormat {
        match self {
            Form::Jsonl => InputFormat::Records(Format::Jsonl),
            Form::Csv => InputFormat::Records(Format::Csv),
            Form::Tsv => InputFormat::Records(Format::Tsv),
            Form::Parquet => InputFormat::Records(Format::Parquet),
            Form::Arrow => InputFormat::Records(Format::Arrow),
            Form::Text => InputFormat::Lines,
            Form::Conll => InputFormat::Conll,
            Form::Squad => InputFormat::Squad,
        }
    }
}

impl Columns {
    /// The columns of the library.
    pub fn columns(&self) -> PredictColumns {
        PredictColumns {
            text: self.text.clone(),
            text_pair: self.text_pair.clone(),
            tokens: self.tokens.clone(),
            label: self.label.clone(),
            without_labels: self.without_labels,
        }
    }
}

/// Settings of predictions.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Predictions")]
pub struct Settings {
    /// Tokens of an input, special tokens included; longer ones are truncated, or read in windows where words or
    /// answers are predicted. By default the positions of the model, of answers 384 at most.
    #[arg(long, value_name = "TOKENS")]
    pub max_length: Option<usize>,
    /// Keep the end of longer texts, not their start.
    #[arg(long)]
    pub keep_end: bool,
    /// Probability above which a label is predicted, where an input has any number of them.
    #[arg(long, value_name = "P", default_value_t = 0.5)]
    pub threshold: f32,
    /// Names of the classes in the order of the model's outputs, separated by commas, of a model that has none: an
    /// adapter's directory states none.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub labels: Vec<String>,
    /// Tokens that consecutive windows share, at most half of a window.
    #[arg(long, value_name = "TOKENS", default_value_t = 128)]
    pub stride: usize,
    /// The most tokens of an answer.
    #[arg(long, value_name = "TOKENS", default_value_t = 30)]
    pub answer_length: usize,
    /// A question may have no answer, as in SQuAD 2.0.
    #[arg(long)]
    pub may_be_none: bool,
    /// Embeddings, of a model that has another head.
    #[arg(long)]
    pub embeddings: bool,
    /// Name of the prompt before texts that are embedded; by default the directory's default one.
    #[arg(long, value_name = "NAME")]
    pub prompt_name: Option<String>,
    /// Inputs of a pass.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub batch: usize,
}

impl Settings {
    /// The options of the library.
    pub fn options(&self) -> PredictOptions {
        PredictOptions {
            max_length: self.max_length,
            keep: if self.keep_end { KeepSide::End } else { KeepSide::Start },
            threshold: self.threshold,
            stride: self.stride,
            answer_length: self.answer_length,
            may_be_none: self.may_be_none,
            prompt: self.prompt_name.clone(),
            batch: self.batch,
        }
    }
}

/// Files of results.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Results")]
pub struct Results {
    /// File to write: JSON lines, CSV or TSV by its name. Without it results are printed as JSON lines.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Leave the fields of the records out of the results.
    #[arg(long)]
    pub only_predictions: bool,
    /// A further metric, such as f1_weighted; may be repeated.
    #[arg(long, value_name = "NAME", value_parser = metric)]
    pub metric: Vec<Metric>,
    /// File for the metrics, a JSON object. They are reported on standard error in any case.
    #[arg(long, value_name = "FILE")]
    pub metrics_out: Option<PathBuf>,
    /// Print only results and errors.
    #[arg(long)]
    pub quiet: bool,
}

fn metric(name: &str) -> Result<Metric, String> {
    let found = Metric::all().find(|metric| metric.name() == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = Metric::all().map(Metric::name).collect();
        format!("there is no such metric; metrics: {}", names.join(", "))
    })
}
