//! The options of prompts and of decoding on the command line, and what they are to the library.

use crate::cli::flags::with_flags;
use crate::{Error, Result};
use clap::Args;
use model_center_base::file::printable;
use model_center_models::generate::{
    Constraint, CutSide, GenerationOverrides, GenerationSetup, Grammar, PROMPT, Prompt, PromptRow, TokenTexts,
    read_prompts, read_split, token_id,
};
use std::path::PathBuf;
use std::sync::Arc;

const DEFAULT_SPLIT: &str = "test";

/// Prompts.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Prompts")]
pub struct PromptOptions {
    /// A prompt; may be repeated.
    #[arg(long, value_name = "TEXT", conflicts_with = "rows")]
    pub prompt: Vec<String>,
    /// File of rows in JSONL: "prompt" or "input" is a text, "input_ids" a list of ids, "messages" a conversation of
    /// "role" and "content". Other fields are kept.
    #[arg(long, value_name = "FILE", group = "rows")]
    pub input: Option<PathBuf>,
    /// Directory of a data set: the rows of all DIR/SPLIT/*.jsonl in the order of their names, or of DIR/SPLIT.jsonl,
    /// as for --input.
    #[arg(long, value_name = "DIR", group = "rows")]
    pub data: Option<PathBuf>,
    /// Split of --data; test by default.
    #[arg(long, value_name = "NAME", requires = "data")]
    pub split: Option<String>,
    /// Field of the rows with the text.
    #[arg(long, value_name = "NAME", requires = "rows")]
    pub column: Option<String>,
    /// Text around each prompt, which replaces the first {prompt}: "Q: {prompt} A:".
    #[arg(long, value_name = "TEXT")]
    pub template: Option<String>,
    /// Prompts are messages of a user, formatted by the model's chat template; without --prompt and --input, chat.
    #[arg(long)]
    pub chat: bool,
    /// Complete each line of standard input, independently of the others.
    #[arg(long, conflicts_with_all = ["prompt", "rows", "chat"])]
    pub interactive: bool,
    /// The most tokens of a prompt, with the special tokens around it.
    #[arg(long, value_name = "N")]
    pub max_prompt_tokens: Option<usize>,
    /// Side at which longer prompts are cut, to --max-prompt-tokens and to what leaves room for the new tokens; without
    /// it they are refused.
    #[arg(long, value_enum, value_name = "SIDE", conflicts_with = "chat")]
    pub cut: Option<CutSide>,
    /// Name of the model's chat template, of several with names; by default `default`.
    #[arg(long, value_name = "NAME")]
    pub chat_template: Option<String>,
    /// System message of conversations.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Read names of special tokens in prompts, such as <extra_id_0>, as these tokens; never in conversations.
    #[arg(long, conflicts_with = "chat")]
    pub special_tokens: bool,
}

impl PromptOptions {
    /// Whether prompts are the rows of files.
    pub fn are_rows(&self) -> bool {
        self.input.is_some() || self.data.is_some()
    }

    /// Read all prompts.
    ///
    /// # Errors
    /// A file that cannot be read; a line without a prompt; options without effect.
    pub fn rows(&self) -> Result<Vec<PromptRow>> {
        if let Some(template) = self.template.as_ref().filter(|template| !template.contains(PROMPT)) {
            let reason = format!("{:?} has no {PROMPT}", printable(template, 80));
            return Err(Error::argument("--template", reason, format!("write {PROMPT} for the prompt")));
        }
        let split = self.split.as_deref().unwrap_or(DEFAULT_SPLIT);
        let rows = match (&self.input, &self.data) {
            (Some(path), _) => read_prompts(path, self.column.as_deref()).map_err(with_flags)?,
            (None, Some(data)) => read_split(data, split, self.column.as_deref()).map_err(with_flags)?,
            (None, None) => {
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
            () if self.interactive => None,
            () if self.template.is_some() && !has_texts => Some(("--template", "no prompt is a text")),
            () if self.special_tokens && !has_texts => Some(("--special-tokens", "no prompt is a text")),
            () if self.chat && !rows.is_empty() && !has_texts => Some(("--chat", "no prompt is a text")),
            () if self.system.is_some() && !self.chat && !has_chats => Some(("--system", "there is no conversation")),
            () if self.chat_template.is_some() && !self.chat && !has_chats => {
                Some(("--chat-template", "there is no conversation"))
            }
            () => None,
        };
        match unused {
            Some((name, reason)) => Err(Error::without_effect(name, reason)),
            None => Ok(rows),
        }
    }
}

/// Decoding.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Decoding")]
pub struct MethodOptions {
    #[command(flatten)]
    settings: GenerationOverrides,
    /// End token, by its name or as id:N, instead of the model's own; may be repeated.
    #[arg(long, value_name = "TOKEN")]
    pub end_token: Vec<String>,
    /// A token that is never generated, by its name or as id:N; may be repeated.
    #[arg(long, value_name = "TOKEN")]
    pub forbid: Vec<String>,
    /// File of a JSON schema that every text is a value of; docs/serve.md lists what schemas may have.
    #[arg(long, value_name = "FILE", conflicts_with = "regex")]
    pub json_schema: Option<PathBuf>,
    /// Regular expression that every text matches as a whole.
    #[arg(long, value_name = "PATTERN")]
    pub regex: Option<String>,
    /// Start of the decoder's text of an encoder-decoder, such as <extra_id_0>.
    #[arg(long, value_name = "TEXT")]
    pub prefix: Option<String>,
}

impl MethodOptions {
    /// The form of texts, if one is given.
    fn constraint(&self, setup: &GenerationSetup) -> Result<Option<Arc<Constraint>>> {
        let grammar = match (&self.json_schema, &self.regex) {
            (Some(path), _) => {
                let place = || path.display().to_string();
                let text = std::fs::read_to_string(path);
                let text = text.map_err(|error| Error::file("read", path, error, "check the name"))?;
                let schema = serde_json::from_str(&text);
                let refused = |error| Error::data(place(), format!("it is not JSON: {error}"), "correct the file");
                Grammar::JsonSchema(schema.map_err(refused)?)
            }
            (None, Some(pattern)) => Grammar::Regex(pattern.clone()),
            (None, None) => return Ok(None),
        };
        let Some(tokenizer) = setup.tokenizer.as_deref() else {
            let reason = "there is no tokenizer, and so texts have no form";
            return Err(Error::model(
                setup.directory.display().to_string(),
                reason,
                "copy the tokenizer's files into it",
            ));
        };
        let texts = Arc::new(TokenTexts::new(tokenizer, &[])?);
        Constraint::new(grammar, texts).map(|constraint| Some(Arc::new(constraint))).map_err(with_flags)
    }

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
            prefix: prefix.transpose()?,
            constraint: self.constraint(setup)?,
            end_tokens: ids("--end-token", &self.end_token)?,
            forbidden: ids("--forbid", &self.forbid)?,
            ..self.settings.clone()
        })
    }
}
