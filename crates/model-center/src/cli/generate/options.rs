//! The options of prompts and of decoding on the command line, and what they are to the library.

use crate::file::printable;
use crate::generate::{GenerationOverrides, GenerationSetup, Patience, Prompt, PromptRow, read_prompts, token_id};
use crate::{Error, Result};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

const PROMPT: &str = "{prompt}";

/// Prompts.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Prompts")]
pub struct PromptOptions {
    /// A prompt; may be repeated.
    #[arg(long, value_name = "TEXT", conflicts_with = "input")]
    pub prompt: Vec<String>,
    /// File of rows in JSONL: "prompt" or "input" is a text, "input_ids" a list of ids, "messages" a conversation of
    /// "role" and "content". Other fields are kept.
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Field of the rows with the text.
    #[arg(long, value_name = "NAME", requires = "input")]
    pub column: Option<String>,
    /// Text around each prompt, which replaces the first {prompt}: "Q: {prompt} A:".
    #[arg(long, value_name = "TEXT")]
    pub template: Option<String>,
    /// Prompts are messages of a user, formatted by the model's chat template; without --prompt and --input, chat.
    #[arg(long)]
    pub chat: bool,
    /// System message of conversations.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Read names of special tokens in prompts, such as <extra_id_0>, as these tokens; never in conversations.
    #[arg(long, conflicts_with = "chat")]
    pub special_tokens: bool,
}

impl PromptOptions {
    /// Read all prompts.
    ///
    /// # Errors
    /// A file that cannot be read; a line without a prompt; options without effect.
    pub fn rows(&self) -> Result<Vec<PromptRow>> {
        if let Some(template) = self.template.as_ref().filter(|template| !template.contains(PROMPT)) {
            let reason = format!("{:?} has no {PROMPT}", printable(template, 80));
            return Err(Error::argument("--template", reason, format!("write {PROMPT} for the prompt")));
        }
        let rows = match &self.input {
            Some(path) => read_prompts(path, self.column.as_deref()).map_err(with_flags)?,
            None => {
                let row = |(index, text): (usize, &String)| {
                    PromptRow::from_text(format!("--prompt, number {}", index + 1), text)
                };
                self.prompt.iter().enumerate().map(row).collect()
            }
        };
        let has = |is: fn(&Prompt) -> bool| rows.iter().any(|row| is(&row.prompt));
        let (has_texts, has_chats) =
            (has(|prompt| matches!(prompt, Prompt::Text(_))), has(|prompt| matches!(prompt, Prompt::Messages(_))));
        let unused = match () {
            () if self.template.is_some() && !has_texts => Some(("--template", "no prompt is a text")),
            () if self.special_tokens && !has_texts => Some(("--special-tokens", "no prompt is a text")),
            () if self.chat && !rows.is_empty() && !has_texts => Some(("--chat", "no prompt is a text")),
            () if self.system.is_some() && !self.chat && !has_chats => Some(("--system", "there is no conversation")),
            () => None,
        };
        match unused {
            Some((name, reason)) => Err(Error::argument(name, format!("it has no effect: {reason}"), "leave it out")),
            None => Ok(rows),
        }
    }
}

/// Decoding.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Decoding")]
pub struct MethodOptions {
    /// The most new tokens; 128 unless the model states it.
    #[arg(long, value_name = "N")]
    pub max_new_tokens: Option<usize>,
    /// The fewest tokens before an end token.
    #[arg(long, value_name = "N")]
    pub min_new_tokens: Option<usize>,
    /// Greedy decoding: the most probable token each time.
    #[arg(long, conflicts_with_all = ["sample", "beams"])]
    pub greedy: bool,
    /// Sampling, which the six settings that follow select, too.
    #[arg(long, conflicts_with = "beams")]
    pub sample: bool,
    /// Temperature: below 1 the distribution is sharper, above 1 flatter.
    #[arg(long, value_name = "NUMBER")]
    pub temperature: Option<f32>,
    /// Sample among this number of most probable tokens; 0 for all.
    #[arg(long, value_name = "N")]
    pub top_k: Option<usize>,
    /// Sample among the most probable tokens whose probabilities sum to this.
    #[arg(long, value_name = "SHARE")]
    pub top_p: Option<f32>,
    /// Sample among tokens with at least this fraction of the highest probability.
    #[arg(long, value_name = "SHARE")]
    pub min_p: Option<f32>,
    /// Seed of sampling: equal seeds give equal texts. 0 by default.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Texts of each prompt.
    #[arg(long, value_name = "N")]
    pub texts: Option<usize>,
    /// Beam search with this number of beams.
    #[arg(long, value_name = "N")]
    pub beams: Option<usize>,
    /// Log probabilities are divided by the length to this power: above 0 favours long texts.
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub length_penalty: Option<f32>,
    /// Number of texts to return from a beam search.
    #[arg(long, value_name = "N")]
    pub best: Option<usize>,
    /// Early stopping of beam search.
    #[arg(long, value_enum, value_name = "WHEN")]
    pub patience: Option<PatienceName>,
    /// Repetition penalty: above 1 makes tokens of the text less probable.
    #[arg(long, value_name = "NUMBER")]
    pub repetition_penalty: Option<f32>,
    /// Number of last tokens that the repetition penalty includes; by default all.
    #[arg(long, value_name = "N")]
    pub repetition_window: Option<usize>,
    /// Whether the repetition penalty includes the prompt; by default it does.
    #[arg(long, value_name = "true|false")]
    pub penalise_prompt: Option<bool>,
    /// N-grams of this size are not repeated; 0 for no such rule.
    #[arg(long, value_name = "N")]
    pub no_repeat: Option<usize>,
    /// Stop string: the text ends before it; may be repeated.
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// End token, by its name or as id:N, instead of the model's own; may be repeated.
    #[arg(long, value_name = "TOKEN")]
    pub end_token: Vec<String>,
    /// A token that is never generated, by its name or as id:N; may be repeated.
    #[arg(long, value_name = "TOKEN")]
    pub forbid: Vec<String>,
    /// Start of the decoder's text of an encoder-decoder, such as <extra_id_0>.
    #[arg(long, value_name = "TEXT")]
    pub prefix: Option<String>,
    /// Bidirectional attention over the prompt, for CPM-1.
    #[arg(long)]
    pub context: bool,
}

/// Early stopping of beam search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PatienceName {
    /// When no running beam would score better now.
    Likely,
    /// As soon as the number of finished texts is --beams.
    First,
    /// When no running beam could ever score better.
    Never,
}

impl MethodOptions {
    /// The options for the library, with the ids of tokens.
    ///
    /// # Errors
    /// A token that the tokenizer does not have; a prefix without effect.
    pub fn overrides(&self, setup: &GenerationSetup) -> Result<GenerationOverrides> {
        let ids = |name: &str, tokens: &[String]| -> Result<Vec<u32>> {
            tokens.iter().map(|token| token_id(name, token, setup.tokenizer.as_deref()).map_err(with_flags)).collect()
        };
        let prefix = self.prefix.as_deref().map(|text| setup.encode_prefix(text).map_err(with_flags));
        Ok(GenerationOverrides {
            origin: "the command line",
            max_new_tokens: self.max_new_tokens,
            min_new_tokens: self.min_new_tokens,
            greedy: self.greedy,
            sample: self.sample,
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            seed: self.seed,
            texts: self.texts,
            beams: self.beams,
            length_penalty: self.length_penalty,
            best: self.best,
            patience: self.patience.map(|patience| match patience {
                PatienceName::Likely => Patience::Likely,
                PatienceName::First => Patience::First,
                PatienceName::Never => Patience::Never,
            }),
            repetition_penalty: self.repetition_penalty,
            repetition_window: self.repetition_window,
            penalize_prompt: self.penalise_prompt,
            no_repeat: self.no_repeat,
            stop_strings: self.stop.clone(),
            prefix: prefix.transpose()?,
            end_tokens: ids("--end-token", &self.end_token)?,
            forbidden: ids("--forbid", &self.forbid)?,
            is_context: self.context,
        })
    }
}

/// An error of the library with settings named as on the command line: `top_k` is --top-k.
pub(super) fn with_flags(error: Error) -> Error {
    match error {
        Error::Argument { place, reason, fix } => Error::argument(flag(&place), flags(&reason), flags(&fix)),
        Error::Model { place, reason, fix } => Error::model(place, flags(&reason), flags(&fix)),
        Error::Data { place, reason, fix } => Error::data(place, flags(&reason), flags(&fix)),
        other => other,
    }
}

fn flag(name: &str) -> String {
    if name.starts_with("--") { name.to_owned() } else { format!("--{}", name.replace('_', "-")) }
}

/// A text with its names in backticks as flags.
fn flags(text: &str) -> String {
    let is_name = |part: &str| !part.is_empty() && part.bytes().all(|c| c.is_ascii_lowercase() || c == b'_');
    let parts = text.split('`').enumerate().map(|(index, part)| match (index % 2 == 1, is_name(part)) {
        (true, true) => flag(part),
        (true, false) => format!("`{part}`"),
        (false, _) => part.to_owned(),
    });
    parts.collect()
}
