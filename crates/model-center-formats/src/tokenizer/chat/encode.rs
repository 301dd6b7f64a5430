//! A conversation as ids, in which only the template makes control tokens.
//!
//! Adds [`ChatTemplate::encode`], and what [`super::turns`] needs of it. A template joins its own text and the
//! messages' text into one string; a tokenizer that parses control tokens in that string also parses those that a
//! message spells. So the template is rendered a second time, with a random placeholder for each text of the messages,
//! which shows which parts come from messages.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::ops::Range;
use std::time::SystemTime;

use serde_json::Value;

use super::{ChatMessage, ChatRequest, ChatTemplate};
use crate::tokenizer::{ControlToken, TokenSpan, Tokenizer};
use crate::{Error, Result};
use model_center_base::file::printable;

/// Templates build control tokens out of roles, so only known role names are accepted.
const ROLES: [&str; 7] = ["system", "developer", "user", "assistant", "tool", "function", "ipython"];
/// Fields whose texts templates compare rather than write.
const STRUCTURE: [&str; 2] = ["role", "type"];
/// A private-use character: in place of a text's characters it spells nothing, whatever a template makes of it.
const MASK: char = '\u{e000}';

impl ChatTemplate {
    /// The ids of a conversation. Control tokens come from the template alone: what messages spell is text.
    ///
    /// `tokenizer` must take control tokens in texts for text, as tokenizers do unless asked otherwise. The ids equal
    /// `transformers`' ids except in three cases: a text of a message spells a control token; the vocabulary puts
    /// the space marker only before the first word of a text (`Metaspace` with `prepend_scheme` `first`), because here
    /// a text begins after every control token; a template changes its output depending on a text's contents (see
    /// errors). For trusted conversations, [`ChatTemplate::render_request`] with a tokenizer that has
    /// [`TextSpecials::AsTokens`](crate::tokenizer::TextSpecials::AsTokens) returns exactly `transformers`' ids.
    pub fn encode(&self, tokenizer: &dyn Tokenizer, request: &ChatRequest<'_>) -> Result<Vec<u32>> {
        Ok(self.encode_up_to(tokenizer, request, usize::MAX)?.unwrap_or_default())
    }

    /// As [`ChatTemplate::encode`]; `None` of a conversation with more than `most` tokens, which is tokenized little
    /// further.
    pub fn encode_up_to(
        &self,
        tokenizer: &dyn Tokenizer,
        request: &ChatRequest<'_>,
        most: usize,
    ) -> Result<Option<Vec<u32>>> {
        let request = &at_one_time(request);
        let control = tokenizer.control_tokens();
        let (_, pieces) = self.rendered_pieces(request, &control)?;
        let mut writer =
            IdWriter { most: (most != usize::MAX).then_some(most), ..IdWriter::new(tokenizer, &control, false) };
        pieces.iter().try_for_each(|piece| writer.push(piece))?;
        writer.flush(false)?;
        Ok(Some(writer.written.ids).filter(|ids| ids.len() <= most && !writer.is_beyond))
    }

    /// The text of a conversation, and the same in pieces: one piece of the template where texts cannot be separated.
    pub(super) fn rendered_pieces(
        &self,
        request: &ChatRequest<'_>,
        control: &[ControlToken],
    ) -> Result<(String, Vec<ChatPiece>)> {
        request.check_depth()?;
        check_structure(request.messages, control)?;
        let rendered = self.render_request(request)?;
        let pieces = match self.pieces(request, &rendered)? {
            Some(pieces) => pieces,
            None => {
                self.require_no_control(request, &rendered, control)?;
                vec![ChatPiece::Template(rendered.clone())]
            }
        };
        Ok((rendered, pieces))
    }

    /// Separates the template's own output from the messages' texts; `None` if the template inspects texts, so that
    /// they cannot be separated.
    fn pieces(&self, request: &ChatRequest<'_>, rendered: &str) -> Result<Option<Vec<ChatPiece>>> {
        let nonce = nonce();
        let mut texts = Vec::new();
        let messages = mapped(request.messages, &mut |message, text| {
            let core = text.trim();
            if core.is_empty() {
                return text.to_owned();
            }
            texts.push((message, core.to_owned()));
            // White space around stays, for templates trim.
            text.replacen(core, &format!("{nonce}{:08}", texts.len() - 1), 1)
        });
        let Ok(marked) = self.render_request(&ChatRequest { messages: &messages, ..request.clone() }) else {
            return Ok(None);
        };
        let mut pieces = Vec::new();
        for (at, part) in marked.split(nonce.as_str()).enumerate() {
            let mut part = part;
            if at > 0 {
                let number = part.get(..8).and_then(|digits| digits.parse::<usize>().ok());
                let Some((message, text)) = number.and_then(|number| texts.get(number)) else { return Ok(None) };
                pieces.push(ChatPiece::Text { message: *message, text: text.clone() });
                part = &part[8..];
            }
            pieces.push(ChatPiece::Template(part.to_owned()));
        }
        let joined: String = pieces.iter().map(ChatPiece::as_str).collect();
        Ok((joined == rendered).then_some(pieces))
    }

    /// Refuses a conversation whose texts spell a control token, complete one together with the template's output, or
    /// spell one after the template's changes, such as a change of case.
    fn require_no_control(&self, request: &ChatRequest<'_>, rendered: &str, control: &[ControlToken]) -> Result<()> {
        let mut spelled = None;
        let messages = mapped(request.messages, &mut |_, text| {
            spelled = spelled.take().or_else(|| control.iter().find(|token| text.contains(&token.text)));
            text.chars().map(|c| if c.is_whitespace() { c } else { MASK }).collect()
        });
        // A template that refuses empty texts renders nothing to compare with.
        let masked = self.render_request(&ChatRequest { messages: &messages, ..request.clone() });
        let is_same = |masked: String| control_ids(rendered, control) == control_ids(&masked, control);
        if spelled.is_none() && masked.is_ok_and(is_same) {
            return Ok(());
        }
        let token = spelled
            .map_or("a control token together with the template, or changes which ones it writes".into(), |token| {
                token.text.clone()
            });
        Err(Error::data(
            "chat",
            format!(
                "a message spells {token}, and the chat template looks into messages, so that it cannot be kept as text"
            ),
            "remove it from the message; to trust the messages, render the chat and tokenize it with special tokens",
        ))
    }
}

/// The conversation with a time: all renderings of it have to state the same one.
pub(super) fn at_one_time<'a>(request: &ChatRequest<'a>) -> ChatRequest<'a> {
    ChatRequest { now: Some(request.now.unwrap_or_else(SystemTime::now)), ..request.clone() }
}

/// A part of a rendered conversation.
pub(super) enum ChatPiece {
    /// Output of the template itself, in which control tokens are parsed.
    Template(String),
    /// Text of a message.
    Text {
        /// The number of the message, from 0.
        message: usize,
        text: String,
    },
}

impl ChatPiece {
    pub(super) fn as_str(&self) -> &str {
        match self {
            ChatPiece::Template(text) | ChatPiece::Text { text, .. } => text,
        }
    }
}

/// Collects ids: text between two control tokens goes through the tokenizer in one piece, whosever it is.
pub(super) struct IdWriter<'a> {
    tokenizer: &'a dyn Tokenizer,
    control: &'a [ControlToken],
    written: WrittenIds,
    /// Whether the bytes of tokens are collected.
    with_bytes: bool,
    /// Beyond this number of tokens no text is tokenized, and then this is known.
    most: Option<usize>,
    is_beyond: bool,
    run: String,
    /// Bytes of all pieces before and in the run.
    end: usize,
    /// Whether white space at the beginning of the run belongs to the control token before it.
    trim: bool,
}

/// Token ids of the pieces.
#[derive(Default)]
pub(super) struct WrittenIds {
    pub(super) ids: Vec<u32>,
    /// Bytes of each in the pieces together, if they are collected.
    pub(super) bytes: Vec<Range<usize>>,
}

impl<'a> IdWriter<'a> {
    pub(super) fn new(tokenizer: &'a dyn Tokenizer, control: &'a [ControlToken], with_bytes: bool) -> Self {
        let written = WrittenIds::default();
        let run = String::new();
        IdWriter { tokenizer, control, written, with_bytes, most: None, is_beyond: false, run, end: 0, trim: false }
    }

    pub(super) fn push(&mut self, piece: &ChatPiece) -> Result<()> {
        match piece {
            ChatPiece::Text { text, .. } => self.extend(text),
            ChatPiece::Template(text) => {
                let mut rest = text.as_str();
                while let Some((at, token)) = next_control(rest, self.control) {
                    self.extend(&rest[..at]);
                    self.flush(token.takes_space_before)?;
                    let end = self.end + token.text.len();
                    self.add(token.id, self.end..end);
                    self.end = end;
                    self.trim = token.takes_space_after;
                    rest = &rest[at + token.text.len()..];
                }
                self.extend(rest);
            }
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<WrittenIds> {
        self.flush(false)?;
        Ok(self.written)
    }

    fn extend(&mut self, text: &str) {
        self.run += text;
        self.end += text.len();
    }

    fn add(&mut self, id: u32, bytes: Range<usize>) {
        self.written.ids.push(id);
        if self.with_bytes {
            self.written.bytes.push(bytes);
        }
    }

    /// Tokenizes the run; white space at its end may belong to the control token that follows.
    fn flush(&mut self, trim_end: bool) -> Result<()> {
        let run = std::mem::take(&mut self.run);
        let trimmed = if self.trim { run.trim_start() } else { &run };
        let start = self.end - trimmed.len();
        let text = if trim_end { trimmed.trim_end() } else { trimmed };
        self.trim = false;
        if text.is_empty() || self.is_beyond {
            return Ok(());
        }
        let unknown = self.tokenizer.special_ids().unk;
        let tokens: Vec<TokenSpan> = match self.with_bytes {
            true => self.tokenizer.tokenize_with_spans(text)?,
            false => {
                let left = self.most.map(|most| most.saturating_sub(self.written.ids.len()));
                let ids = match left {
                    None => Some(self.tokenizer.tokenize(&[text])?.concat()),
                    Some(left) => self.tokenizer.tokenize_up_to(text, left)?,
                };
                let Some(ids) = ids else {
                    self.is_beyond = true;
                    return Ok(());
                };
                ids.into_iter().map(|id| TokenSpan { id, bytes: 0..0 }).collect()
            }
        };
        for TokenSpan { id, bytes } in tokens {
            if let Some(token) = self.control.iter().find(|token| token.id == id && Some(id) != unknown) {
                return Err(Error::model(
                    "chat",
                    format!("the tokenizer parses {} as a control token in a text", token.text),
                    "open the tokenizer without TextSpecials::AsTokens; if that is so, the token is in its vocabulary",
                ));
            }
            self.add(id, start + bytes.start..start + bytes.end);
        }
        Ok(())
    }
}

/// The first control token in `text`, the longest of those that begin there.
pub(super) fn next_control<'a>(text: &str, control: &'a [ControlToken]) -> Option<(usize, &'a ControlToken)> {
    let begins = |c: char| control.iter().any(|token| token.text.starts_with(c));
    text.match_indices(begins).find_map(|(at, _)| {
        let found = control.iter().filter(|token| text[at..].starts_with(&token.text));
        found.max_by_key(|token| token.text.len()).map(|token| (at, token))
    })
}

fn control_ids(text: &str, control: &[ControlToken]) -> Vec<u32> {
    let mut rest = text;
    let mut ids = Vec::new();
    while let Some((at, token)) = next_control(rest, control) {
        ids.push(token.id);
        rest = &rest[at + token.text.len()..];
    }
    ids
}

/// The messages with every text of theirs changed, but for roles and kinds; `change` has the number of the message.
fn mapped(messages: &[ChatMessage], change: &mut dyn FnMut(usize, &str) -> String) -> Vec<ChatMessage> {
    let mut messages = messages.to_vec();
    for (number, message) in messages.iter_mut().enumerate() {
        let change = &mut |text: &str| change(number, text);
        change_texts(&mut message.content, change);
        message.more.iter_mut().filter(|(key, _)| !STRUCTURE.contains(&key.as_str())).for_each(|(_, value)| {
            change_texts(value, change);
        });
    }
    messages
}

fn change_texts(value: &mut Value, change: &mut dyn FnMut(&str) -> String) {
    match value {
        Value::String(text) => *text = change(text),
        Value::Array(items) => items.iter_mut().for_each(|item| change_texts(item, change)),
        Value::Object(fields) => {
            let texts = fields.iter_mut().filter(|(key, _)| !STRUCTURE.contains(&key.as_str()));
            texts.for_each(|(_, field)| change_texts(field, change));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => (),
    }
}

/// Refuses message parts that templates copy into their own output: roles, types and names of fields.
fn check_structure(messages: &[ChatMessage], control: &[ControlToken]) -> Result<()> {
    for (number, message) in messages.iter().enumerate() {
        let place = || format!("chat, message {}", number + 1);
        if !ROLES.contains(&message.role.as_str()) {
            let reason = format!("the role {:?} is not known", printable(&message.role, 40));
            return Err(Error::data(place(), reason, format!("use one of: {}", ROLES.join(", "))));
        }
        let more = Value::Object(message.more.clone());
        let structure = [&message.content, &more].into_iter().find_map(|value| spelled_in_structure(value, control));
        if let Some(token) = structure {
            let reason = format!("the name or the kind of a field spells {token}");
            return Err(Error::data(place(), reason, "use plain names for fields"));
        }
    }
    Ok(())
}

fn spelled_in_structure<'a>(value: &Value, control: &'a [ControlToken]) -> Option<&'a str> {
    let spelled = |text: &str| control.iter().find(|token| text.contains(&token.text)).map(|token| token.text.as_str());
    match value {
        Value::Array(items) => items.iter().find_map(|item| spelled_in_structure(item, control)),
        Value::Object(fields) => fields.iter().find_map(|(key, field)| {
            let kind = field.as_str().filter(|_| STRUCTURE.contains(&key.as_str()));
            spelled(key).or_else(|| kind.and_then(spelled)).or_else(|| spelled_in_structure(field, control))
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

/// A placeholder that no message can contain: 128 bits of the randomness that hash maps get from the system.
pub(super) fn nonce() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("q{:016x}{:016x}", random(), random())
}
