//! Chats to texts and ids, by the template that a model directory carries.
//!
//! Defines [`ChatTemplate`], its messages and [`ChatRequest`], the other inputs of a rendering. A template is an
//! untrusted program: it runs with a bounded number of instructions, a bounded depth and a bounded output, and reaches
//! nothing but its arguments. [`ChatTemplate::encode`] keeps message texts from becoming control tokens.
//!
//! Called by programs that generate from, or train on, conversations.

mod bounds;
mod encode;
mod environment;
mod filters;
mod globals;
mod json;
mod nesting;
mod python;
mod request;
mod source;
mod stack;
mod tests;
mod translate;
mod turns;

use std::path::Path;
use std::time::SystemTime;

use minijinja::{Environment, ErrorKind};
use serde_json::{Map, Value};

pub use self::request::{ChatMessage, ChatRequest};
use self::source::Source;
pub(crate) use self::source::further as further_templates;
pub use self::turns::{AssistantTurns, ChatTokens, LearnedEnds};
use super::catch::catch_errors;
use crate::{Error, Result};
use model_center_base::file::printable;

/// The template that is taken where none is named.
const DEFAULT: &str = "default";
/// The template that is taken where none is named and there are tools.
const WITH_TOOLS: &str = "tool_use";
/// The longest part of a template's own error message that an error repeats.
const MESSAGE_CHARACTERS: usize = 300;

/// The chat templates of a model directory, ready to run.
///
/// Source: `apply_chat_template` of transformers, whose environment for templates this is.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// Name and place of each, in the order of the directory.
    names: Vec<(String, String)>,
    /// The names of those that mark what an assistant writes with `{% generation %}`.
    marked: Vec<String>,
    /// `bos_token` and its like, which templates see by these names.
    special_tokens: Map<String, Value>,
    /// Name and source of each.
    sources: Vec<(String, String)>,
    /// The one that is taken where a request names none.
    chosen: Option<String>,
}

impl ChatTemplate {
    /// The templates of a model directory; `None` where it has none.
    ///
    /// `chat_template.jinja` and the files of `additional_chat_templates/` win over `chat_template` in
    /// `tokenizer_config.json`, which is one template or a list of them with names.
    pub fn from_directory(directory: impl AsRef<Path>) -> Result<Option<ChatTemplate>> {
        let found = source::read(directory.as_ref())?;
        if found.templates.is_empty() {
            return Ok(None);
        }
        ChatTemplate::compile(found.templates, found.special_tokens).map(Some)
    }

    /// As [`ChatTemplate::from_directory`], with the template of this name for requests that name none.
    ///
    /// # Errors
    /// [`Error::Model`] for a name that the directory has no template of, or a directory without templates.
    pub fn named(directory: impl AsRef<Path>, name: Option<&str>) -> Result<Option<ChatTemplate>> {
        let directory = directory.as_ref();
        match (ChatTemplate::named_if_any(directory, name)?, name) {
            (None, Some(name)) => {
                let reason = format!("a chat template named {name:?} is asked for, and the model has none");
                Err(Error::model(directory.display().to_string(), reason, "leave the name out"))
            }
            (found, _) => Ok(found),
        }
    }

    /// The same, which is `None` of a directory without templates whatever the name.
    pub fn named_if_any(directory: &Path, name: Option<&str>) -> Result<Option<ChatTemplate>> {
        let Some(mut template) = ChatTemplate::from_directory(directory)? else { return Ok(None) };
        if name.is_some() {
            template.chosen = name.map(str::to_owned);
            template.choose(&ChatRequest::new(&[]))?;
        }
        Ok(Some(template))
    }

    /// One template that comes from elsewhere; `place` names it in errors, `special_tokens` are `bos_token` and its
    /// like.
    pub fn from_source(place: &str, template: &str, special_tokens: Map<String, Value>) -> Result<ChatTemplate> {
        let source = Source { name: DEFAULT.into(), place: place.into(), text: template.into() };
        ChatTemplate::compile(vec![source], special_tokens)
    }

    fn compile(templates: Vec<Source>, special_tokens: Map<String, Value>) -> Result<ChatTemplate> {
        let mut environment = environment::new();
        let (mut names, mut marked, mut sources) = (Vec::new(), Vec::new(), Vec::new());
        for Source { name, place, text } in templates {
            source::check_size(&place, &text)?;
            let text = translate::with_plain_lines(&text);
            sources.push((name.clone(), text.clone()));
            nesting::check(&place, &text)?;
            let is_marked = stack::on_own_stack(&place, || {
                let translate::Translated { text, is_marked } = translate::translate(&place, &text)?;
                catch_errors(&place, "compile the chat template", || {
                    Ok::<_, Error>(
                        environment.add_template_owned(name.clone(), text).map_err(|error| refused(&place, &error)),
                    )
                })??;
                Ok(is_marked)
            })?;
            marked.extend(is_marked.then(|| name.clone()));
            names.push((name, place));
        }
        Ok(ChatTemplate { environment, names, marked, special_tokens, sources, chosen: None })
    }

    /// The names of the templates; one without a name is called `default`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|(name, _)| name.as_str())
    }

    /// The source of the template that is taken where none is named, with tools or without.
    pub fn source(&self, has_tools: bool) -> Option<&str> {
        let tools = Value::Null;
        let request = ChatRequest { tools: has_tools.then_some(&tools), ..ChatRequest::new(&[]) };
        let (name, _) = self.choose(&request).ok()?;
        self.sources.iter().find(|(own, _)| own == name).map(|(_, source)| source.as_str())
    }

    /// The text of a conversation, with what asks for an answer at its end if `add_generation_prompt`.
    pub fn render(&self, messages: &[ChatMessage], add_generation_prompt: bool) -> Result<String> {
        self.render_request(&ChatRequest { add_generation_prompt, ..ChatRequest::new(messages) })
    }

    /// The text of a conversation with everything a template can be told.
    ///
    /// # Errors
    /// [`Error::Model`] naming the template's place and line: it refuses the conversation, fails, or does not come to
    /// an end; [`Error::Data`] for a message, a description of a tool or a further name whose value nests too deep;
    /// [`Error::File`] if the system refuses the thread on which templates run.
    pub fn render_request(&self, request: &ChatRequest<'_>) -> Result<String> {
        self.render_marked(request, None)
    }

    /// As [`ChatTemplate::render_request`], with texts around what an assistant wrote.
    fn render_marked(&self, request: &ChatRequest<'_>, marks: Option<&[String; 2]>) -> Result<String> {
        let (name, place) = self.choose(request)?;
        request.check_depth()?;
        let context = self.context(request);
        let bytes = environment::size_of(&context);
        let limit = environment::MAX_OUTPUT_BYTES.saturating_add(bytes.saturating_mul(4));
        let now = request.now.unwrap_or_else(SystemTime::now);
        stack::on_own_stack(place, || {
            let rendered = catch_errors(place, "render the chat template", || {
                Ok::<_, Error>(environment::render(&self.environment, name, &context, (now, marks), limit))
            })?;
            rendered.map_err(|error| refused(place, &error))
        })
    }

    fn choose(&self, request: &ChatRequest<'_>) -> Result<(&str, &str)> {
        let find = |wanted: &str| self.names.iter().find(|(name, _)| name == wanted);
        let wanted = request.template.or(self.chosen.as_deref());
        let found = match wanted {
            Some(name) => find(name),
            None => request.tools.and_then(|_| find(WITH_TOOLS)).or_else(|| find(DEFAULT)),
        };
        found.map(|(name, place)| (name.as_str(), place.as_str())).ok_or_else(|| {
            let known = self.names().collect::<Vec<_>>().join(", ");
            let wanted = wanted.unwrap_or(DEFAULT);
            let place = self.names.first().map_or("chat template", |(_, place)| place.as_str());
            let reason = format!("there is no chat template named {wanted:?}");
            let fix = "with --chat-template NAME, in a recipe with data.chat_template";
            Error::model(place, reason, format!("choose one of {known}: {fix}"))
        })
    }

    /// Every variable of the template. The request's override the directory's, as in `transformers`.
    fn context(&self, request: &ChatRequest<'_>) -> Map<String, Value> {
        let mut context = self.special_tokens.clone();
        context.extend(request.more.clone());
        context.insert("messages".into(), request.messages.iter().map(ChatMessage::for_template).collect());
        context.insert("tools".into(), request.tools.cloned().unwrap_or(Value::Null));
        context.entry("documents").or_insert(Value::Null);
        context.insert("add_generation_prompt".into(), request.add_generation_prompt.into());
        context
    }
}

/// The error of the library, with place and line.
fn refused(place: &str, error: &minijinja::Error) -> Error {
    let at = error.line().map_or(place.to_owned(), |line| format!("{place}, line {line} of the chat template"));
    let mut reason = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        reason += &format!(": {inner}");
        cause = inner.source();
    }
    let fix = match error.kind() {
        ErrorKind::OutOfFuel => {
            reason = "the template does not come to an end".into();
            "use the template of the model's publisher; this one has an endless loop"
        }
        ErrorKind::SyntaxError => "fetch the file again, or correct the template; it is a Jinja template",
        _ => "change the messages to the template's roles, their order and content types, or correct the template",
    };
    Error::model(at, printable(&reason, MESSAGE_CHARACTERS), fix)
}
