//! The tokenizer program: train a vocabulary, encode, decode, and describe a directory's tokenizer.

mod info;
mod texts;
mod train;

use crate::cli::places::model_places;
use crate::cli::terminal;
use clap::{Args, Parser, Subcommand};
use model_center_base::{Error, Result};
use model_center_formats::Pretrained;
use model_center_formats::tokenizer::{AutoTokenizer, TextSpecials, Tokenizer};
use model_center_recipe::run::ExitStatus;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;

/// Train vocabularies, and see what a tokenizer makes of texts.
///
/// MODEL is a directory with a tokenizer, or the name of a model in the local cache.
///
/// Example: bmtrain tokenizer train corpus.txt --kind byte-bpe --vocab-size 16000 --out my-tokenizer
#[derive(Debug, Parser)]
#[command(name = "tokenizer", version)]
pub struct Options {
    /// Task of the program.
    #[command(subcommand)]
    pub task: Task,
    /// Print JSON.
    #[arg(long, global = true)]
    pub json: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Task {
    /// Train a vocabulary on the texts of files; write tokenizer.json and tokenizer_config.json, which transformers
    /// opens too. The same texts and options give the same bytes.
    Train(train::TrainArguments),
    /// Print the ids of a text, of every line of a file, or of standard input; one line of ids for each text.
    Encode(EncodeArguments),
    /// Print the text of ids; without any, of every line of ids on standard input.
    Decode(DecodeArguments),
    /// Describe the tokenizer: kind, size, special tokens, what surrounds texts, chat templates.
    Info {
        /// Directory, or name of a model in the cache.
        model: String,
    },
}

/// What is encoded.
#[derive(Debug, Args)]
pub struct EncodeArguments {
    /// Directory, or name of a model in the cache.
    pub model: String,
    /// The text; by default every line of standard input.
    pub text: Option<String>,
    /// Encode every line of this file.
    #[arg(long, value_name = "FILE", conflicts_with = "text")]
    pub file: Option<PathBuf>,
    /// After each line of ids also its tokens, one a line.
    #[arg(long)]
    pub pieces: bool,
    /// Leave out the special tokens that surround a text.
    #[arg(long)]
    pub bare: bool,
    /// Read control tokens that a text spells as such; by default they are text.
    #[arg(long)]
    pub control: bool,
}

/// What is decoded.
#[derive(Debug, Args)]
pub struct DecodeArguments {
    /// Directory, or name of a model in the cache.
    pub model: String,
    /// The ids; by default, every line of standard input.
    pub ids: Vec<u32>,
    /// Leave out special tokens.
    #[arg(long)]
    pub skip_special: bool,
}

/// Run the program.
pub fn run(options: &Options) -> Result<ExitStatus> {
    match &options.task {
        Task::Train(arguments) => train::run(arguments, options.json)?,
        Task::Encode(arguments) => encode(arguments, options.json)?,
        Task::Decode(arguments) => decode(arguments, options.json)?,
        Task::Info { model } => info::run(model, options.json)?,
    }
    Ok(ExitStatus::Done)
}

fn open(model: &str, specials: TextSpecials) -> Result<(PathBuf, Arc<dyn Tokenizer>)> {
    let directory = Pretrained::resolve(model, None, &model_places())?;
    let tokenizer = AutoTokenizer::open_with(&directory, specials)?;
    Ok((directory, tokenizer))
}

fn encode(arguments: &EncodeArguments, as_json: bool) -> Result<()> {
    let specials = if arguments.control { TextSpecials::AsTokens } else { TextSpecials::AsText };
    let (_, tokenizer) = open(&arguments.model, specials)?;
    texts::each(arguments.text.as_deref(), arguments.file.as_deref(), &mut |text| {
        let ids = match arguments.bare {
            true => tokenizer.tokenize(&[text])?.concat(),
            false => tokenizer.encode(text, None, None)?.input_ids,
        };
        let pieces: Vec<String> = ids.iter().map(|id| tokenizer.token(*id).unwrap_or_default()).collect();
        if as_json {
            let record = if arguments.pieces { json!({"ids": ids, "pieces": pieces}) } else { json!({"ids": ids}) };
            return terminal::print(&record.to_string());
        }
        let mut lines = spaced(&ids);
        if arguments.pieces {
            for (id, piece) in ids.iter().zip(&pieces) {
                lines += &format!("\n{id:>8}  {}", info::shown(piece));
            }
        }
        terminal::print(&lines)
    })
}

fn decode(arguments: &DecodeArguments, as_json: bool) -> Result<()> {
    let (_, tokenizer) = open(&arguments.model, TextSpecials::AsText)?;
    let given = (!arguments.ids.is_empty()).then(|| spaced(&arguments.ids));
    let mut number = 0;
    texts::each(given.as_deref(), None, &mut |line| {
        number += 1;
        let ids: Vec<u32> = line.split_whitespace().map(|word| id(word, number)).collect::<Result<_>>()?;
        if let Some(unknown) = ids.iter().find(|id| tokenizer.token(**id).is_none()) {
            let reason =
                format!("there is no token {unknown}; ids end at {}", tokenizer.vocab_size().saturating_sub(1));
            return Err(Error::data(format!("ids, line {number}"), reason, "use ids of this tokenizer"));
        }
        let text = tokenizer.decode(&ids, arguments.skip_special)?;
        terminal::print(&if as_json { json!({"text": text}).to_string() } else { text })
    })
}

fn id(word: &str, line: usize) -> Result<u32> {
    word.trim_end_matches(',').parse().map_err(|_| {
        let reason = format!("{} is not an id", info::shown(word));
        Error::data(format!("ids, line {line}"), reason, "write whole numbers with spaces between them")
    })
}

fn spaced(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}
