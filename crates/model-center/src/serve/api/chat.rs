//! `/v1/chat/completions`: the next message of a conversation.

use super::ApiError;
use super::fields::{Fields, is_empty};
use super::generation::{Collected, Generation, MOST_TOP, Scores, decoder, object, reason_name};
use super::reply::{Ended, Reply};
use super::tokens::chat_scores;
use crate::http::Response;
use crate::serve::Shared;
use crate::serve::job::{Event, ScoredToken};
use crate::tokenizer::{ChatMessage, Tokenizer};
use serde_json::{Value, json};
use std::sync::mpsc::Receiver;

/// A request that was read.
struct Chat<'s> {
    shared: &'s Shared,
    tokenizer: Option<&'s dyn Tokenizer>,
    generation: Generation,
    /// Tokens of the prompt.
    length: usize,
    scores: Scores,
    id: String,
}

/// Answers a request.
pub(in crate::serve) fn chat(shared: &Shared, body: &[u8], reply: &mut Reply<'_>) -> Result<(), Ended> {
    let (chat, prompt) = Chat::read(shared, body)?;
    let (prompts, default) = (vec![prompt], shared.options.new_tokens);
    let events = chat.generation.submit(prompts, (chat.scores, default), ("messages", shared, &*reply))?;
    match chat.generation.streams {
        true => chat.stream(&events, reply),
        false => chat.whole(&events, reply),
    }
}

impl<'s> Chat<'s> {
    /// The request, and the tokens of its prompt.
    fn read(shared: &'s Shared, body: &[u8]) -> Result<(Self, Vec<u32>), ApiError> {
        let mut fields = Fields::parse(body)?;
        let decoder = decoder(&mut fields, shared)?;
        let names = ["max_completion_tokens", "max_tokens"];
        let generation = Generation::read(&mut fields, &names, (shared, decoder))?;
        if generation.asked_tokens() == Some(0) {
            return Err(ApiError::field("max_tokens", "\"max_tokens\" is 0: the response would be empty"));
        }
        let has_scores = fields.flag("logprobs")?;
        let top = fields.count("top_logprobs", MOST_TOP)?;
        if top.is_some() && !has_scores {
            return Err(ApiError::field("top_logprobs", "\"top_logprobs\" has no effect without \"logprobs\""));
        }
        let scores = Scores { top: has_scores.then(|| top.unwrap_or(0)), of_prompts: false };
        let messages = messages(fields.required("messages")?)?;
        fields.neutral("tools", is_empty)?;
        fields.neutral("functions", is_empty)?;
        fields.neutral("tool_choice", |choice| choice == "none" || choice == "auto")?;
        fields.neutral("response_format", |format| format.get("type").is_some_and(|kind| kind == "text"))?;
        fields.neutral("modalities", |modes| *modes == json!(["text"]))?;
        // Without effect where there are no tools.
        fields.take("parallel_tool_calls");
        fields.finish()?;
        let prompt = decoder.setup.encode_chat(&messages).map_err(|error| ApiError::of_input(&error, "messages"))?;
        if prompt.is_empty() {
            return Err(ApiError::field("messages", "the conversation has no token"));
        }
        let tokenizer = decoder.setup.tokenizer.as_deref();
        let (length, id) = (prompt.len(), shared.next_id("chatcmpl"));
        Ok((Chat { shared, tokenizer, generation, length, scores, id }, prompt))
    }

    fn scores(&self, tokens: &[ScoredToken]) -> Value {
        self.scores.top.map_or(Value::Null, |top| chat_scores(self.tokenizer, tokens, top))
    }

    fn object(&self, kind: &str, choices: Vec<Value>, usage: Option<Value>) -> String {
        object((self.shared, &self.id), kind, choices, usage)
    }

    fn whole(&self, events: &Receiver<Event>, reply: &mut Reply<'_>) -> Result<(), Ended> {
        let mut collected = Collected::new(&[self.length], self.generation.choices);
        collected.wait(reply, events)?;
        let choices = collected.choices.iter().enumerate().map(|(index, choice)| {
            json!({
                "index": index, "message": {"role": "assistant", "content": choice.text, "refusal": null},
                "logprobs": self.scores(&choice.tokens), "finish_reason": choice.finish_reason.unwrap_or("length"),
            })
        });
        let object = self.object("chat.completion", choices.collect(), Some(collected.usage()));
        reply.send(&Response::new("application/json", object))
    }

    fn stream(&self, events: &Receiver<Event>, reply: &mut Reply<'_>) -> Result<(), Ended> {
        let mut collected = Collected::new(&[self.length], self.generation.choices);
        for index in 0..self.generation.choices {
            self.piece(index, json!({"role": "assistant", "content": ""}), Value::Null, None, reply)?;
        }
        loop {
            match reply.wait(events)? {
                Event::Token { sequence, token, text, finish_reason } => {
                    collected.new_tokens += 1;
                    if self.scores.top.is_some() || !text.is_empty() || finish_reason.is_some() {
                        let delta = if text.is_empty() { json!({}) } else { json!({"content": text}) };
                        let scores = self.scores(std::slice::from_ref(&token));
                        self.piece(sequence, delta, scores, finish_reason.map(reason_name), reply)?;
                    }
                }
                Event::Prompt { .. } => {}
                Event::Done => break,
                Event::Failed(error) => return Err(error.into()),
            }
        }
        if self.generation.has_usage {
            reply.event(&self.object("chat.completion.chunk", Vec::new(), Some(collected.usage())))?;
        }
        reply.event("[DONE]")
    }

    fn piece(
        &self,
        index: usize,
        delta: Value,
        scores: Value,
        reason: Option<&str>,
        reply: &mut Reply<'_>,
    ) -> Result<(), Ended> {
        let choice = json!({"index": index, "delta": delta, "logprobs": scores, "finish_reason": reason});
        reply.event(&self.object("chat.completion.chunk", vec![choice], None))
    }
}

/// Messages with a role and a text; parts of a text are joined.
fn messages(value: Value) -> Result<Vec<ChatMessage>, ApiError> {
    let wrong = |reason: &str| ApiError::field("messages", reason);
    let Value::Array(items) = value else { return Err(wrong("\"messages\" is not a list")) };
    if items.is_empty() {
        return Err(wrong("\"messages\" is empty"));
    }
    let message = |item: Value| {
        let mut message: ChatMessage = serde_json::from_value(item)
            .map_err(|_| wrong("a message is not an object with \"role\" and \"content\""))?;
        if let Value::Array(parts) = &message.content {
            let text = |part: &Value| match (part.get("type").and_then(Value::as_str), part.get("text")) {
                (Some("text"), Some(Value::String(text))) => Ok(text.clone()),
                _ => Err(wrong("the content of a message has a part that is not a text")),
            };
            message.content = parts.iter().map(text).collect::<Result<String, _>>()?.into();
        }
        match message.content {
            Value::String(_) => Ok(message),
            _ => Err(wrong("the content of a message is not a text")),
        }
    };
    items.into_iter().map(message).collect()
}
