//! `/v1/chat/completions`: the next message of a conversation.

use super::ApiError;
use super::fields::{Fields, is_empty};
use super::generation::{Collected, Generation, MAX_TOP, Scores, decoder, object, reason_name};
use super::messages::messages;
use super::reply::{Ended, Reply};
use super::tokens::chat_scores;
use super::tools::Tools;
use crate::http::Response;
use crate::serve::Shared;
use crate::serve::job::{Event, ScoredToken};
use crate::serve::tools::{MessagePart, ToolCallParser};
use model_center_formats::tokenizer::{ChatRequest, Tokenizer};
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
    tools: Option<Tools>,
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
        let mut generation = Generation::read(&mut fields, &names, (shared, decoder))?;
        if generation.asked_tokens() == Some(0) {
            return Err(ApiError::field("max_tokens", "\"max_tokens\" is 0: the response would be empty"));
        }
        let has_scores = fields.flag("logprobs")?;
        let top = fields.count("top_logprobs", MAX_TOP)?;
        if top.is_some() && !has_scores {
            return Err(ApiError::field("top_logprobs", "\"top_logprobs\" has no effect without \"logprobs\""));
        }
        let scores = Scores { top: has_scores.then(|| top.unwrap_or(0)), of_prompts: false };
        let messages = messages(fields.required("messages")?)?;
        let tools = Tools::read(&mut fields, decoder)?;
        fields.neutral("functions", is_empty)?;
        fields.neutral("function_call", |choice| choice == "none" || choice == "auto")?;
        fields.neutral("modalities", |modes| *modes == json!(["text"]))?;
        fields.finish()?;
        let format = generation.take_format();
        let kept = tools.as_ref().map_or(&[][..], |tools| &tools.kept);
        let demanded = match (&tools, format) {
            (Some(tools), format) => {
                let name = format.as_ref().map_or("tools", |(name, _)| name);
                tools.grammar(format.map(|(_, grammar)| grammar)).map(|grammar| (name, grammar))
            }
            (None, format) => format,
        };
        if let Some(demanded) = demanded {
            generation.constrain(demanded, kept, (shared, decoder))?;
        }
        generation.kept = kept.to_vec();
        let request = ChatRequest { tools: tools.as_ref().map(|tools| &tools.list), ..ChatRequest::new(&messages) };
        let prompt = decoder.setup.chat_up_to(&request, shared.longest);
        let prompt = prompt.map_err(|error| ApiError::of_input(&error, "messages"))?;
        let prompt = prompt.ok_or_else(|| ApiError::beyond("messages", shared.longest))?;
        if prompt.is_empty() {
            return Err(ApiError::field("messages", "the conversation has no token"));
        }
        let tokenizer = decoder.setup.tokenizer.as_deref();
        let (length, id) = (prompt.len(), shared.next_id("chatcmpl"));
        Ok((Chat { shared, tokenizer, generation, length, scores, id, tools }, prompt))
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
            let (message, has_calls) = self.message(&choice.text);
            let reason = choice.finish_reason.unwrap_or("length");
            json!({
                "index": index, "message": message, "logprobs": self.scores(&choice.tokens),
                "finish_reason": reason_with(reason, has_calls),
            })
        });
        let object = self.object("chat.completion", choices.collect(), Some(collected.usage()));
        reply.send(&Response::new("application/json", object))
    }

    /// The message of a text, and whether it has tool calls.
    fn message(&self, text: &str) -> (Value, bool) {
        let Some(tools) = &self.tools else {
            return (json!({"role": "assistant", "content": text, "refusal": null}), false);
        };
        let mut parser = tools.parser();
        let mut parts = parser.push(text);
        parts.extend(parser.finish());
        let (mut content, mut calls) = (String::new(), Vec::<(String, String)>::new());
        for part in parts {
            match part {
                MessagePart::Text(text) => content.push_str(&text),
                MessagePart::Call { name, .. } => calls.push((name, String::new())),
                MessagePart::Arguments { text, .. } => {
                    calls.last_mut().into_iter().for_each(|(_, arguments)| arguments.push_str(&text));
                }
            }
        }
        if calls.is_empty() {
            return (json!({"role": "assistant", "content": content, "refusal": null}), false);
        }
        let call = |(name, arguments): (String, String)| {
            let function = json!({"name": name, "arguments": arguments});
            json!({"id": self.shared.next_id("call"), "type": "function", "function": function})
        };
        let calls: Vec<Value> = calls.into_iter().map(call).collect();
        let content = if content.is_empty() { Value::Null } else { content.into() };
        (json!({"role": "assistant", "content": content, "refusal": null, "tool_calls": calls}), true)
    }

    fn stream(&self, events: &Receiver<Event>, reply: &mut Reply<'_>) -> Result<(), Ended> {
        let mut collected = Collected::new(&[self.length], self.generation.choices);
        let mut parsers: Vec<ToolCallParser> =
            self.tools.iter().flat_map(|tools| (0..self.generation.choices).map(|_| tools.parser())).collect();
        for index in 0..self.generation.choices {
            // A message of calls alone has no content.
            let content = if self.tools.is_some() { Value::Null } else { "".into() };
            self.piece(index, json!({"role": "assistant", "content": content}), Value::Null, None, reply)?;
        }
        loop {
            match reply.wait(events)? {
                Event::Token { sequence, token, text, finish_reason } => {
                    collected.new_tokens += 1;
                    let (deltas, has_calls) = match parsers.get_mut(sequence) {
                        Some(parser) => (self.deltas(parser, &text, finish_reason.is_some()), parser.calls > 0),
                        None if text.is_empty() => (Vec::new(), false),
                        None => (vec![json!({"content": text})], false),
                    };
                    let reason = finish_reason.map(|reason| reason_with(reason_name(reason), has_calls));
                    let scores = self.scores(std::slice::from_ref(&token));
                    self.pieces(sequence, deltas, (scores, reason), reply)?;
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

    /// Deltas of a message with tools for further text.
    fn deltas(&self, parser: &mut ToolCallParser, text: &str, is_last: bool) -> Vec<Value> {
        let mut parts = parser.push(text);
        if is_last {
            parts.extend(parser.finish());
        }
        let delta = |part: MessagePart| match part {
            MessagePart::Text(text) => json!({"content": text}),
            MessagePart::Call { index, name } => {
                let function = json!({"name": name, "arguments": ""});
                let id = self.shared.next_id("call");
                json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]})
            }
            MessagePart::Arguments { index, text } => {
                json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
            }
        };
        parts.into_iter().map(delta).collect()
    }

    /// Events of what a token adds: the first has its scores, the last the reason of the end.
    fn pieces(
        &self,
        index: usize,
        mut deltas: Vec<Value>,
        (mut scores, reason): (Value, Option<&str>),
        reply: &mut Reply<'_>,
    ) -> Result<(), Ended> {
        if deltas.is_empty() && (self.scores.top.is_some() || reason.is_some()) {
            deltas.push(json!({}));
        }
        let last = deltas.len().saturating_sub(1);
        for (at, delta) in deltas.into_iter().enumerate() {
            self.piece(index, delta, std::mem::take(&mut scores), reason.filter(|_| at == last), reply)?;
        }
        Ok(())
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

/// The reason of an end: of a message with calls, the calls.
fn reason_with(reason: &'static str, has_calls: bool) -> &'static str {
    if has_calls && reason == "stop" { "tool_calls" } else { reason }
}
