//! Inputs of a chat template.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Error, Result};
use model_center_base::file::printable;

/// Maximum depth of lists and mappings in a conversation, the limit of the JSON reader.
const MAX_DEPTH: usize = 128;
/// Names under which a message's reasoning is passed; the first is the one that templates read.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// One message of a conversation, as records of chats have it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// Speaker: `system`, `user`, `assistant`, `tool`.
    pub role: String,
    /// The content: a text, or a list of parts with texts among them, or null beside tool calls.
    #[serde(default)]
    pub content: Value,
    /// Further fields, such as `tool_calls` or `name`.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl ChatMessage {
    /// A message that is a text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> ChatMessage {
        ChatMessage { role: role.into(), content: Value::String(content.into()), more: Map::new() }
    }

    /// The message as templates see it: without fields that are null, and reasoning has the two names that templates
    /// read.
    pub(super) fn for_template(&self) -> Value {
        let mut fields = Map::new();
        let reasoning = REASONING.iter().find_map(|key| self.more.get(*key).filter(|value| !value.is_null()));
        if let Some(reasoning) = reasoning {
            fields.insert("thinking".into(), reasoning.clone());
        }
        fields.insert("role".into(), self.role.clone().into());
        fields.insert("content".into(), self.content.clone());
        fields.extend(self.more.clone());
        fields.retain(|_, field| !field.is_null());
        if let Some(reasoning) = reasoning {
            fields.insert(REASONING[0].into(), reasoning.clone());
        }
        fields.into()
    }
}

/// A conversation and what else a rendering depends on.
#[derive(Debug, Clone)]
pub struct ChatRequest<'a> {
    /// The conversation in order.
    pub messages: &'a [ChatMessage],
    /// Whether what asks the model for an answer follows.
    pub add_generation_prompt: bool,
    /// Descriptions of tools: a list of JSON schemas.
    pub tools: Option<&'a Value>,
    /// The template to take, of several with names.
    pub template: Option<&'a str>,
    /// Further names for the template, such as `enable_thinking`; they win over the special tokens.
    pub more: Map<String, Value>,
    /// Time of `strftime_now`, in UTC; by default the time of the call, with which results change.
    pub now: Option<SystemTime>,
}

impl<'a> ChatRequest<'a> {
    /// A conversation alone.
    pub fn new(messages: &'a [ChatMessage]) -> ChatRequest<'a> {
        ChatRequest { messages, add_generation_prompt: false, tools: None, template: None, more: Map::new(), now: None }
    }

    /// Refuses values that nest too deep to be gone through by recursion.
    pub(super) fn check_depth(&self) -> Result<()> {
        let is_deep = |value: &Value| nests_deeper(value, MAX_DEPTH);
        let of_message = |message: &ChatMessage| is_deep(&message.content) || message.more.values().any(is_deep);
        let message = self.messages.iter().position(of_message).map(|at| format!("message {}", at + 1));
        let tools = || self.tools.filter(|tools| is_deep(tools)).map(|_| "tools".to_owned());
        let more = || self.more.iter().find(|(_, value)| is_deep(value)).map(|(name, _)| printable(name, 40));
        let Some(place) = message.or_else(tools).or_else(more) else { return Ok(()) };
        let reason = format!("lists and mappings nest more than {MAX_DEPTH} levels deep");
        Err(Error::data(format!("chat, {place}"), reason, "remove the innermost levels, or write them as a text"))
    }
}

fn nests_deeper(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels == 0 || items.iter().any(|item| nests_deeper(item, levels - 1)),
        Value::Object(fields) => levels == 0 || fields.values().any(|field| nests_deeper(field, levels - 1)),
        _ => false,
    }
}
