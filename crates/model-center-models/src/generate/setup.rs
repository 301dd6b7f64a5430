//! Opening of a model directory for generation without its weights: tokenizer, chat template, settings and the encoding
//! of prompts.

use super::config::GenerationConfig;
use super::overrides::GenerationOverrides;
use super::prompts::{Prompt, PromptRow};
use super::settings::GenerationSettings;
use crate::adapter::{Adapter, chat_template, tokenizer_directory};
use crate::model::{ModelInfo, OpenMode, OpenOptions, OpenedModel, Registry};
use crate::{Error, Result};
use bmtrain_core::Device;
use bmtrain_core::wrap::Counting;
use model_center_formats::config::TextHead;
use model_center_formats::tokenizer::{
    AutoTokenizer, ChatMessage, ChatRequest, ChatTemplate, TemplateSlot, TextSpecials, Tokenizer,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Replaced by the prompt in a template.
pub const PROMPT: &str = "{prompt}";

/// Everything of a model directory that generation needs besides the model.
#[derive(Debug)]
pub struct GenerationSetup {
    /// The model directory.
    pub directory: PathBuf,
    /// The adapter that the model is opened with.
    pub adapter: Option<Adapter>,
    /// Sizes of the model.
    pub info: ModelInfo,
    /// The tokenizer; names of special tokens in prompts are text to it.
    pub tokenizer: Option<Arc<dyn Tokenizer>>,
    /// The tokenizer of text prompts, if it differs: one that reads names of special tokens as these tokens.
    pub special_tokenizer: Option<Arc<dyn Tokenizer>>,
    /// The chat template, if prompts are conversations and the model has one.
    pub chat: Option<ChatTemplate>,
    /// The system message of conversations.
    pub system: Option<String>,
    /// A text around text prompts, with `{prompt}` in it.
    pub template: Option<String>,
    /// Whether text prompts are messages of a user, formatted by the chat template.
    pub is_chat: bool,
    /// The most tokens of a prompt, beside what the model takes.
    pub limit: PromptLimit,
}

/// Treatment of long prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PromptLimit {
    /// The most tokens, with special tokens; `None`: what the model takes.
    pub most: Option<usize>,
    /// The side at which longer texts are cut; `None`: they are refused, as conversations always are.
    pub cut: Option<CutSide>,
}

/// A side of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum CutSide {
    /// The first tokens are dropped.
    Start,
    /// The last tokens are dropped.
    End,
}

impl GenerationSetup {
    /// The options to open a model for generation: with a language-modelling head, in its stored dtype.
    pub fn open_options(device: &Device) -> OpenOptions {
        OpenOptions { head: Some(TextHead::CausalLm), keep_dtype: true, ..OpenOptions::new(device) }
    }

    /// Open a model that generates.
    ///
    /// # Errors
    /// [`Error::Model`] for a directory without one, or whose weights lack parameters.
    pub fn open_model(directory: &Path, registry: Registry<'_>, options: &OpenOptions) -> Result<OpenedModel> {
        let place = || directory.display().to_string();
        let opened = registry.open(directory, options).map_err(|error| match error {
            Error::Argument { reason, .. } | Error::Recipe { reason, .. } => {
                Error::model(place(), reason, "use a model that generates text: a decoder, or an encoder-decoder")
            }
            other => other,
        })?;
        match opened.initialized.first() {
            None => Ok(opened),
            Some(name) => {
                let reason = format!("its weights have no {name}, which would be initialized at random");
                Err(Error::model(place(), reason, "use a model with a trained language-modelling head"))
            }
        }
    }

    /// Check a model without reading its weights: its shapes on a device that has no memory.
    pub fn check_model(
        directory: &Path,
        registry: Registry<'_>,
        options: impl FnOnce(&Device) -> OpenOptions,
    ) -> Result<OpenedModel> {
        let options = options(&Device::new(Arc::new(Counting::new(1 << 20))));
        Self::open_model(directory, registry, &OpenOptions { mode: OpenMode::Check, ..options })
    }

    /// A setup without a tokenizer, for prompts of ids.
    pub fn new(directory: &Path, info: &ModelInfo) -> Self {
        GenerationSetup {
            directory: directory.to_owned(),
            adapter: None,
            info: info.clone(),
            tokenizer: None,
            special_tokenizer: None,
            chat: None,
            system: None,
            template: None,
            is_chat: false,
            limit: PromptLimit::default(),
        }
    }

    /// A setup for prompts of any kind: with the directory's tokenizer, and its chat template if it has one.
    ///
    /// # Errors
    /// As [`GenerationSetup::open_tokenizer`]; a chat template that cannot be read.
    pub fn with_tokenizer(directory: &Path, info: &ModelInfo) -> Result<Self> {
        let mut setup = GenerationSetup::new(directory, info);
        setup.open_tokenizer(true)?;
        setup.open_chat_template(None)?;
        Ok(setup)
    }

    /// The directory of the tokenizer: the adapter's, if that has one.
    fn tokenizer_directory(&self) -> Result<&Path> {
        tokenizer_directory(self.adapter.as_ref(), &self.directory)
    }

    /// Open the chat template of the adapter or of the directory, if one has it; `name` chooses one of several.
    ///
    /// # Errors
    /// A template that cannot be read, a name that no template has.
    pub fn open_chat_template(&mut self, name: Option<&str>) -> Result<()> {
        self.chat = chat_template(self.adapter.as_ref(), &self.directory, name)?;
        Ok(())
    }

    /// Open the tokenizer of the adapter or of the directory.
    ///
    /// # Errors
    /// [`Error::Model`] for none if it is required, or one with more tokens than the model.
    pub fn open_tokenizer(&mut self, is_required: bool) -> Result<()> {
        let directory = self.tokenizer_directory()?;
        if is_required || AutoTokenizer::is_in(directory)? {
            let tokenizer = AutoTokenizer::open(directory)?;
            tokenizer.require_rows(self.info.vocab_size)?;
            self.tokenizer = Some(tokenizer);
        }
        Ok(())
    }

    /// The directory's tokenizer, reading names of special tokens as these tokens.
    pub fn open_special_tokenizer(&self) -> Result<Arc<dyn Tokenizer>> {
        match &self.special_tokenizer {
            Some(tokenizer) => Ok(Arc::clone(tokenizer)),
            None => AutoTokenizer::open_with(self.tokenizer_directory()?, TextSpecials::AsTokens),
        }
    }

    /// The options of a caller over the directory's, checked for the model.
    ///
    /// # Errors
    /// [`Error::Argument`] or, for a setting of the directory, [`Error::Model`], for a setting out of range or without
    /// effect.
    pub fn settings(&self, overrides: &GenerationOverrides) -> Result<GenerationSettings> {
        let config = GenerationConfig::from_directory(&self.directory, self.info.vocab_size)?;
        let tokenizer = self.tokenizer.as_deref();
        let settings = GenerationSettings::resolve(overrides, &config, tokenizer, self.info.generates_targets)?;
        let checked = settings.options.validate_for(&self.info, tokenizer.is_some());
        checked.map_err(|error| settings.attribute(error))?;
        Ok(settings)
    }

    /// The tokens of a decoder's prefix: a token by its name, or a text with names of special tokens.
    ///
    /// # Errors
    /// [`Error::Argument`] for a model without an encoder, or a text without tokens.
    pub fn encode_prefix(&self, text: &str) -> Result<Vec<u32>> {
        if !self.info.generates_targets {
            let reason = "it has no effect: it is for the decoder of an encoder-decoder, and this model has none";
            return Err(Error::argument("prefix", reason, "append it to the prompt, or use `template`"));
        }
        if let Some(id) = self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.id(text)) {
            return Ok(vec![id]);
        }
        let ids = self.open_special_tokenizer()?.tokenize(&[text])?.concat();
        match ids.is_empty() {
            false => Ok(ids),
            true => Err(Error::argument("prefix", "it has no token", "leave it out, or give a text")),
        }
    }

    /// The tokens of a row's prompt.
    ///
    /// # Errors
    /// [`Error::Data`] with the place of the row for a prompt that the model or the chat template cannot read.
    pub fn encode_row(&self, row: &PromptRow) -> Result<Vec<u32>> {
        let ids = self.tokens(&row.prompt, &row.place)?;
        self.check_length(ids.len(), &row.place)?;
        Ok(ids)
    }

    /// The tokens of each prompt.
    ///
    /// # Errors
    /// As [`GenerationSetup::encode_row`], with the number of the prompt, from 0.
    pub fn encode_prompts(&self, prompts: impl Iterator<Item = Prompt>) -> Result<Vec<Vec<u32>>> {
        let place = |index: usize| format!("prompt {index}");
        let row = |(index, prompt)| PromptRow { place: place(index), fields: Default::default(), prompt };
        prompts.enumerate().map(row).map(|row| self.encode_row(&row)).collect()
    }

    /// The tokens of a prompt of any length.
    fn tokens(&self, prompt: &Prompt, place: &str) -> Result<Vec<u32>> {
        Ok(self.tokens_up_to(prompt, place, usize::MAX)?.unwrap_or_default())
    }

    /// The tokens of a prompt; `None` of one with more than `most`, which is tokenized little further.
    pub fn tokens_up_to(&self, prompt: &Prompt, place: &str, most: usize) -> Result<Option<Vec<u32>>> {
        let at_row = |error| match error {
            Error::Data { place: within, reason, fix } => Error::data(format!("{place}, {within}"), reason, fix),
            other => other,
        };
        let ids = match prompt {
            Prompt::Tokens(ids) => Some(self.cut(ids.clone(), [0, 0])).filter(|ids| ids.len() <= most),
            Prompt::Messages(messages) => self.chat_up_to(&ChatRequest::new(messages), most).map_err(at_row)?,
            Prompt::Text(text) => {
                let text = self.template.as_ref().map_or(text.clone(), |template| template.replacen(PROMPT, text, 1));
                match self.is_chat {
                    true => {
                        let messages = [ChatMessage::new("user", text)];
                        self.chat_up_to(&ChatRequest::new(&messages), most).map_err(at_row)?
                    }
                    false => self.encode_text(&text, most)?,
                }
            }
        };
        ids.iter().try_for_each(|ids| self.check_ids(ids, place))?;
        Ok(ids)
    }

    /// The tokens of a text with the special tokens of the tokenizer's template; for a decoder, without those after the
    /// text. `None` if they are more than `most`.
    fn encode_text(&self, text: &str, most: usize) -> Result<Option<Vec<u32>>> {
        let tokenizer =
            self.special_tokenizer.as_ref().or(self.tokenizer.as_ref()).ok_or_else(|| self.no_tokenizer())?;
        let pieces = &tokenizer.template(false).pieces;
        let before = pieces.iter().map_while(|piece| match piece {
            TemplateSlot::First { .. } => None,
            TemplateSlot::Special { id, .. } => Some(Some(*id)),
            TemplateSlot::Second { .. } => Some(None),
        });
        let before: Vec<u32> = before.flatten().collect();
        if self.info.generates_targets {
            let specials = pieces.iter().filter(|piece| matches!(piece, TemplateSlot::Special { .. })).count();
            let around = [before.len(), specials.saturating_sub(before.len())];
            let ids = self.cut(tokenizer.encode(text, None, None)?.input_ids, around);
            return Ok(Some(ids).filter(|ids| ids.len() <= most));
        }
        let count = before.len();
        // A text that is cut is tokenized whole.
        let is_cut = most == usize::MAX || self.limit.cut.is_some();
        let of_text = match is_cut {
            true => tokenizer.tokenize(&[text])?.concat(),
            false => match tokenizer.tokenize_up_to(text, most.saturating_sub(count))? {
                Some(ids) => ids,
                None => return Ok(None),
            },
        };
        let mut ids: Vec<u32> = before.into_iter().chain(of_text).collect();
        if ids.is_empty() {
            // An unconditional sample.
            let special = tokenizer.special_ids();
            ids.extend(special.bos.or(special.eos));
        }
        Ok(Some(self.cut(ids, [count, 0])).filter(|ids| ids.len() <= most))
    }

    /// At most as many tokens as the limit has, if they may be cut, without those `around` the text.
    fn cut(&self, mut ids: Vec<u32>, [before, after]: [usize; 2]) -> Vec<u32> {
        let PromptLimit { most: Some(most), cut: Some(side) } = self.limit else { return ids };
        let most = most.max(before + after + 1);
        if ids.len() > most {
            let too_many = ids.len() - most;
            let end = ids.len() - after;
            let dropped = match side {
                CutSide::Start => before..before + too_many,
                CutSide::End => end - too_many..end,
            };
            ids.drain(dropped);
        }
        ids
    }

    /// The tokens of a conversation with the generation prompt.
    ///
    /// # Errors
    /// [`Error::Model`] without a tokenizer or chat template; [`Error::Data`] for two system messages.
    pub fn encode_chat(&self, messages: &[ChatMessage]) -> Result<Vec<u32>> {
        Ok(self.chat_up_to(&ChatRequest::new(messages), usize::MAX)?.unwrap_or_default())
    }

    /// The tokens of a conversation with the generation prompt; `None` of one with more than `most`, which is
    /// tokenized little further.
    pub fn chat_up_to(&self, request: &ChatRequest<'_>, most: usize) -> Result<Option<Vec<u32>>> {
        let tokenizer = self.tokenizer.as_deref().ok_or_else(|| self.no_tokenizer())?;
        let chat = self.chat.as_ref().ok_or_else(|| {
            let fix = "use a model that was trained on conversations, or give plain prompts, perhaps with `template`";
            Error::model(self.directory.display().to_string(), "the model has no chat template", fix)
        })?;
        let mut messages = request.messages.to_vec();
        if let Some(system) = &self.system {
            if messages.first().is_some_and(|first| first.role == "system") {
                let reason = "it is a system message, and `system` is given, too";
                return Err(Error::data("chat, message 1", reason, "leave one of the two out"));
            }
            messages.insert(0, ChatMessage::new("system", system.clone()));
        }
        let request = ChatRequest { messages: &messages, add_generation_prompt: true, ..request.clone() };
        chat.encode_up_to(tokenizer, &request, most)
    }

    fn no_tokenizer(&self) -> Error {
        let fix = "copy the tokenizer's files into it, or give prompts as input_ids";
        Error::model(self.directory.display().to_string(), "prompts are texts, and there is no tokenizer", fix)
    }

    fn check_ids(&self, ids: &[u32], place: &str) -> Result<()> {
        if ids.is_empty() {
            let fix = "give at least one token, such as the bos token";
            return Err(Error::data(place, "the prompt has no token", fix));
        }
        let vocab_size = self.info.vocab_size;
        match ids.iter().find(|id| **id as usize >= vocab_size) {
            None => Ok(()),
            Some(id) => {
                let reason = format!("token {id}, and the model has {vocab_size}");
                Err(Error::data(place, reason, "use the model's own tokens"))
            }
        }
    }

    fn check_length(&self, count: usize, place: &str) -> Result<()> {
        let refuse = |reason: String, fix: &str| Err(Error::data(place, reason, fix));
        let ModelInfo { max_length, generates_targets, .. } = self.info;
        // A decoder needs room for at least one new token.
        let most = if generates_targets { max_length } else { max_length.saturating_sub(1) };
        if count > most {
            return refuse(
                format!("the prompt has {count} tokens, the model takes {most} at most"),
                "shorten or `cut` it",
            );
        }
        match self.limit.most.filter(|most| count > *most) {
            Some(most) => {
                let reason = format!("the prompt has {count} tokens, and `max_prompt_tokens` is {most}");
                refuse(reason, "shorten or `cut` it")
            }
            None => Ok(()),
        }
    }
}
