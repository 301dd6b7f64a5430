//! The tokens of a conversation that the assistant wrote: those that a model is trained to write.
//!
//! Adds [`ChatTemplate::encode_turns`]. A template that marks the assistant's output with `{% generation %}` states it.
//! Of any other, the conversation up to a message, with what asks for an answer at its end, is rendered too: the turn
//! begins after it. Where templates change earlier turns, so that this is not how the whole conversation begins, the
//! text of the message is found in it.

use std::ops::Range;

use super::encode::{ChatPiece, IdWriter, at_one_time, next_control, nonce};
use super::{ChatMessage, ChatRequest, ChatTemplate};
use crate::tokenizer::{ControlToken, Tokenizer};
use crate::{Error, Result};

const ASSISTANT: &str = "assistant";

/// Selection of the assistant's turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AssistantTurns {
    /// Every one.
    #[default]
    All,
    /// The last one.
    Last,
    /// From this message on, numbered from 0.
    From(usize),
}

impl AssistantTurns {
    /// The turns among these, the numbers of all messages of the assistant.
    fn of(self, mut numbers: Vec<usize>) -> Vec<usize> {
        match self {
            AssistantTurns::All => {}
            AssistantTurns::Last => drop(numbers.drain(..numbers.len().saturating_sub(1))),
            AssistantTurns::From(first) => numbers.retain(|number| *number >= first),
        }
        numbers
    }
}

/// A conversation as ids.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChatTokens {
    /// The ids, as of [`ChatTemplate::encode`].
    pub ids: Vec<u32>,
    /// Whether each token is part of one of the turns that were asked for.
    pub in_turns: Vec<bool>,
}

/// With which of the assistant's turns a model learns to end: see [`ChatTemplate::learned_ends`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LearnedEnds {
    /// A turn that another message follows.
    pub within: bool,
    /// The turn that ends the conversation.
    pub last: bool,
}

/// A rendered conversation and the parts of it.
struct Rendered<'a> {
    request: &'a ChatRequest<'a>,
    text: &'a str,
    control: &'a [ControlToken],
    /// The bytes of each text of a message that was found, with the number of the message.
    texts: Vec<(usize, Range<usize>)>,
}

impl ChatTemplate {
    /// The ids of a conversation, and which of them are the assistant's: its text, and what the template writes to end
    /// the turn, up to a control token such as `<|im_end|>`, without white space after that. Where only the heading of
    /// the next message ends the turn, the control token with which that begins is the assistant's, too. A token that
    /// is partly the assistant's is.
    ///
    /// # Errors
    /// As [`ChatTemplate::encode`]; a tokenizer that does not report where its tokens are; [`Error::Model`] for a
    /// template with which the beginning of a turn cannot be found.
    pub fn encode_turns(
        &self,
        tokenizer: &dyn Tokenizer,
        request: &ChatRequest<'_>,
        turns: AssistantTurns,
    ) -> Result<ChatTokens> {
        let request = &at_one_time(request);
        let control = tokenizer.control_tokens();
        let (text, pieces) = self.rendered_pieces(request, &control)?;
        let mut writer = IdWriter::new(tokenizer, &control, true);
        pieces.iter().try_for_each(|piece| writer.push(piece))?;
        let written = writer.finish()?;
        let spans = match self.marked_spans(request, &text, turns)? {
            Some(spans) => spans,
            None => {
                let rendered = Rendered { request, text: &text, control: &control, texts: texts_of(&pieces) };
                self.spans_of_messages(&rendered, turns)?
            }
        };
        let is_in = |bytes: &Range<usize>, span: &Range<usize>| match bytes.is_empty() {
            true => span.contains(&bytes.start),
            false => bytes.start < span.end && span.start < bytes.end,
        };
        let in_turns = written.bytes.iter().map(|bytes| spans.iter().any(|span| is_in(bytes, span))).collect();
        Ok(ChatTokens { ids: written.ids, in_turns })
    }

    /// Whether a control token ends what is learned of a turn, within a conversation and at its end. A model that
    /// learns no end does not stop.
    ///
    /// # Errors
    /// As [`ChatTemplate::encode_turns`].
    pub fn learned_ends(&self, tokenizer: &dyn Tokenizer) -> Result<LearnedEnds> {
        let message =
            |number: usize| ChatMessage::new(if number.is_multiple_of(2) { "user" } else { ASSISTANT }, "a b c");
        let messages: Vec<ChatMessage> = (0..4).map(message).collect();
        let control = tokenizer.control_tokens();
        let tokens = self.encode_turns(tokenizer, &ChatRequest::new(&messages), AssistantTurns::All)?;
        let is_control = |at: usize| tokens.ids.get(at).is_some_and(|id| control.iter().any(|token| token.id == *id));
        // The ends of the two turns.
        let ends = (0..tokens.ids.len()).filter(|at| {
            let in_turn = |at: usize| tokens.in_turns.get(at).copied().unwrap_or(false);
            in_turn(*at) && !in_turn(at + 1)
        });
        let ends: Vec<bool> = ends.map(is_control).collect();
        let [within, last] = [ends.first(), ends.last()].map(|end| end.copied().unwrap_or(false));
        Ok(LearnedEnds { within, last })
    }

    /// The bytes that the template marks; `None` where it marks none.
    fn marked_spans(
        &self,
        request: &ChatRequest<'_>,
        text: &str,
        turns: AssistantTurns,
    ) -> Result<Option<Vec<Range<usize>>>> {
        let (name, place) = self.choose(request)?;
        if !self.marked.iter().any(|marked| marked == name) {
            return Ok(None);
        }
        let marks = [nonce(), nonce()];
        let marked = self.render_marked(request, Some(&marks))?;
        let wrong = |reason: &str| {
            let fix = "put {% generation %} before, and {% endgeneration %} after what the assistant writes";
            Err(Error::model(place, reason, fix))
        };
        let (mut plain, mut spans) = (String::with_capacity(text.len()), Vec::new());
        let mut parts = marked.split(marks[0].as_str());
        plain += parts.next().unwrap_or_default();
        for part in parts {
            let Some((inside, behind)) = part.split_once(marks[1].as_str()) else {
                return wrong("a block {% generation %} has no end in the conversation");
            };
            let start = plain.len();
            plain += inside;
            spans.push(start..plain.len());
            plain += behind;
        }
        if plain != text {
            return wrong("the template changes its output where {% generation %} marks it");
        }
        // What is marked last is the last turn's.
        let wanted = turns.of(numbers_of_assistant(request)).len();
        if turns != AssistantTurns::All {
            spans.drain(..spans.len().saturating_sub(wanted));
        }
        Ok(Some(spans))
    }

    /// The bytes of the assistant's messages.
    fn spans_of_messages(&self, rendered: &Rendered<'_>, turns: AssistantTurns) -> Result<Vec<Range<usize>>> {
        let numbers = turns.of(numbers_of_assistant(rendered.request));
        numbers.into_iter().map(|number| self.span_of_message(rendered, number)).collect()
    }

    fn span_of_message(&self, rendered: &Rendered<'_>, number: usize) -> Result<Range<usize>> {
        let own = || rendered.texts.iter().filter(|(message, _)| *message == number).map(|(_, bytes)| bytes);
        let content = own().next().zip(own().next_back()).map(|(first, last)| first.start..last.end);
        let Some(start) = self.start_of_turn(rendered, number, content.as_ref()).or(content.as_ref().map(|c| c.start))
        else {
            let (_, place) = self.choose(rendered.request)?;
            let reason = format!(
                "the template writes the conversation before message {} differently when the message follows, and \
                 changes its text: where the answer begins cannot be found",
                number + 1
            );
            let fix = "put {% generation %} and {% endgeneration %} around what the assistant writes in the template, \
                       or learn all tokens (data.loss_on = \"all\")";
            return Err(Error::model(place, reason, fix));
        };
        let end = content.map_or(start, |content| content.end.max(start));
        Ok(start..self.end_of_turn(rendered, number, end)?)
    }

    /// Start of a message's turn: after the conversation before it and what asks for an answer. `None` where that is
    /// not how the whole conversation begins.
    fn start_of_turn(&self, rendered: &Rendered<'_>, number: usize, content: Option<&Range<usize>>) -> Option<usize> {
        let before = self.render_before(rendered, number, true)?;
        let start = before.len();
        if let Some(content) = content {
            let between = rendered.text.get(start..content.start)?;
            // A template that does not ask for an answer has its heading still to come.
            if !between.trim().is_empty() && self.render_before(rendered, number, false)? == before {
                return None;
            }
        }
        Some(start)
    }

    /// The text of the messages before one, if the whole conversation begins with it.
    fn render_before(&self, rendered: &Rendered<'_>, number: usize, asks: bool) -> Option<String> {
        let messages = rendered.request.messages.get(..number)?;
        let request = ChatRequest { messages, add_generation_prompt: asks, ..rendered.request.clone() };
        // Some templates refuse a part of a conversation.
        self.render_request(&request).ok().filter(|text| rendered.text.starts_with(text.as_str()))
    }

    /// End of the turn of a message whose text ends at `from`.
    fn end_of_turn(&self, rendered: &Rendered<'_>, number: usize, from: usize) -> Result<usize> {
        let Rendered { text, control, .. } = rendered;
        let is_last = number + 1 == rendered.request.messages.len();
        let whole = if is_last { Some(text.len()) } else { None };
        let limit = whole.or_else(|| self.render_before(rendered, number + 1, false).map(|text| text.len()));
        if let Some(limit) = limit.filter(|limit| *limit >= from) {
            let turn = text.get(from..limit).unwrap_or_default();
            let end = from + turn.trim_end().len();
            // Of templates such as GLM's the next heading ends the turn.
            let is_open = !is_last && next_control(turn, control).is_none();
            let heading = text.get(end..).filter(|_| is_open).unwrap_or_default();
            let white = heading.len() - heading.trim_start().len();
            return Ok(match next_control(heading.trim_start(), control) {
                Some((0, token)) => end + white + token.text.len(),
                _ => end,
            });
        }
        // The template goes on differently: the first control token before the next text ends the turn.
        let next = rendered.texts.iter().find(|(message, _)| *message > number).map_or(text.len(), |(_, b)| b.start);
        let between = text.get(from..next).unwrap_or_default();
        Ok(next_control(between, control).map_or(from, |(at, token)| from + at + token.text.len()))
    }
}

fn numbers_of_assistant(request: &ChatRequest<'_>) -> Vec<usize> {
    let messages = request.messages.iter().enumerate();
    messages.filter(|(_, message)| message.role == ASSISTANT).map(|(number, _)| number).collect()
}

/// The bytes of messages in the text of all pieces.
fn texts_of(pieces: &[ChatPiece]) -> Vec<(usize, Range<usize>)> {
    let (mut texts, mut at) = (Vec::new(), 0);
    for piece in pieces {
        let end = at + piece.as_str().len();
        if let ChatPiece::Text { message, .. } = piece {
            texts.push((*message, at..end));
        }
        at = end;
    }
    texts
}
