//! What a chat template is rendered with.
//!
//! Defines [`ChatMessage`] and [`ChatRequest`].

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Names under which a message's reasoning is passed; the first is the one that templates read.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// One message of a conversation, as records of chats have it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// Who speaks: `system`, `user`, `assistant`, `tool`.
    pub role: String,
    /// What is said: a text, or a list of parts of which some are texts, or null beside calls of tools.
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

    /// The message as templates see it: reasoning stands under the two names that they read.
    pub(super) fn for_template(&self) -> Value {
        let mut fields = Map::new();
        let reasoning = REASONING.iter().find_map(|key| self.more.get(*key).filter(|value| !value.is_null()));
        if let Some(reasoning) = reasoning {
            fields.insert("thinking".into(), reasoning.clone());
        }
        fields.insert("role".into(), self.role.clone().into());
        fields.insert("content".into(), self.content.clone());
        fields.extend(self.more.clone());
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
    /// What `strftime_now` takes for the time, in UTC; by default the time of the call, with which results change.
    pub now: Option<SystemTime>,
}

impl<'a> ChatRequest<'a> {
    /// A conversation alone.
    pub fn new(messages: &'a [ChatMessage]) -> ChatRequest<'a> {
        ChatRequest { messages, add_generation_prompt: false, tools: None, template: None, more: Map::new(), now: None }
    }
}
