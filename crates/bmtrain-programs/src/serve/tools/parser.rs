//! The text of a model's message as text and tool calls, as it comes.

use super::ToolForm;
use super::reader::{CallReader, Reading};

/// A part of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::serve) enum MessagePart {
    Text(String),
    /// A call of a function begins.
    Call {
        index: usize,
        name: String,
    },
    /// Further text of a call's arguments.
    Arguments {
        index: usize,
        text: String,
    },
}

/// State of the parser.
#[derive(Debug)]
enum State {
    /// Before the first character that tells text from a call, in forms whose calls are the whole message.
    Start,
    Text,
    Call(CallReader),
    /// After a call.
    After,
    /// The message has calls no more.
    Rest,
}

/// Reads a message. The parts of all texts together are the same however the texts are cut.
#[derive(Debug)]
pub(in crate::serve) struct ToolCallParser {
    form: ToolForm,
    /// The names of the functions.
    names: Vec<String>,
    /// Text that is not certain yet.
    held: String,
    /// The marker of the call that is read, which is text if it is not one.
    marker: String,
    state: State,
    /// Whether a call has ended, so that white space is of no text.
    skips_space: bool,
    /// Calls that have begun.
    pub(in crate::serve) calls: usize,
    parts: Vec<MessagePart>,
}

impl ToolCallParser {
    pub(in crate::serve) fn new(form: ToolForm, names: Vec<String>) -> Self {
        let state = if form.is_whole_message() { State::Start } else { State::Text };
        let (held, marker) = (String::new(), String::new());
        ToolCallParser { form, names, held, marker, state, skips_space: false, calls: 0, parts: Vec::new() }
    }

    /// Reads further text; returns the parts that are certain now.
    pub(in crate::serve) fn push(&mut self, text: &str) -> Vec<MessagePart> {
        self.held.push_str(text);
        while self.advance(false) {}
        self.take()
    }

    /// Ends the message; returns what was held.
    pub(in crate::serve) fn finish(&mut self) -> Vec<MessagePart> {
        while self.advance(true) {}
        if let State::Call(reader) = std::mem::replace(&mut self.state, State::Rest)
            && reader.name.is_none()
        {
            // Not a call as far as it came.
            let text = std::mem::take(&mut self.marker) + &reader.text;
            self.text(&text);
        }
        let held = std::mem::take(&mut self.held);
        self.text(&held);
        self.take()
    }

    /// The parts so far; neighbours of one kind are joined.
    fn take(&mut self) -> Vec<MessagePart> {
        let mut joined: Vec<MessagePart> = Vec::new();
        for part in std::mem::take(&mut self.parts) {
            match (joined.last_mut(), part) {
                (Some(MessagePart::Text(before)), MessagePart::Text(text)) => before.push_str(&text),
                (Some(MessagePart::Arguments { index, text: before }), MessagePart::Arguments { index: own, text })
                    if *index == own =>
                {
                    before.push_str(&text)
                }
                (_, part) => joined.push(part),
            }
        }
        joined
    }

    fn text(&mut self, text: &str) {
        if !text.is_empty() {
            self.parts.push(MessagePart::Text(text.to_owned()));
        }
    }

    /// Takes the first bytes of what is held.
    fn pass(&mut self, bytes: usize) -> String {
        let rest = self.held.split_off(bytes.min(self.held.len()));
        std::mem::replace(&mut self.held, rest)
    }

    /// Takes a step with what is held; returns whether another one may follow.
    fn advance(&mut self, is_last: bool) -> bool {
        match self.state {
            State::Start => self.start(is_last),
            State::Text => self.find_call(is_last),
            State::Call(_) => self.read_call(),
            State::After => self.after_call(is_last),
            State::Rest => {
                let held = std::mem::take(&mut self.held);
                self.text(&held);
                false
            }
        }
    }

    /// Whether what is held, without white space before it, begins with a text; `None` if more text has to come.
    fn begins(&self, with: &str, is_last: bool) -> Option<bool> {
        let held = self.held.trim_start();
        match held.starts_with(with) {
            true => Some(true),
            false if !is_last && with.starts_with(held) => None,
            false => Some(false),
        }
    }

    fn start(&mut self, is_last: bool) -> bool {
        let space = self.held.len() - self.held.trim_start().len();
        let marker = self.form.marker();
        let length = match (self.begins(marker, is_last), self.held.trim_start().starts_with('{')) {
            (_, true) => space,
            (Some(true), _) => {
                let after = self.held.get(space + marker.len()..).unwrap_or_default();
                let is_call = after.trim_start().starts_with('{');
                if after.trim_start().is_empty() && !is_last {
                    return false;
                }
                if !is_call {
                    // Code, or a call in another form: the text after the marker.
                    self.pass(space + marker.len());
                    self.state = State::Rest;
                    return true;
                }
                space + marker.len() + (after.len() - after.trim_start().len())
            }
            (None, _) => return false,
            (Some(false), _) => {
                self.state = State::Rest;
                return true;
            }
        };
        self.marker = self.pass(length);
        self.state = State::Call(CallReader::new());
        true
    }

    fn find_call(&mut self, is_last: bool) -> bool {
        let marker = self.form.marker();
        if self.skips_space {
            let space = self.held.len() - self.held.trim_start().len();
            self.pass(space);
            self.skips_space = self.held.is_empty();
        }
        if let Some(at) = self.held.find(marker) {
            let before = self.pass(at);
            self.text(before.trim_end());
            self.marker =
                before.get(before.trim_end().len()..).unwrap_or_default().to_owned() + &self.pass(marker.len());
            self.state = State::Call(CallReader::new());
            return true;
        }
        if is_last {
            return false;
        }
        // White space belongs to a marker that may follow.
        let open =
            (1..marker.len()).rev().find(|length| self.held.ends_with(marker.get(..*length).unwrap_or_default()));
        let certain = self.held.len() - open.unwrap_or(0);
        let certain = self.held.get(..certain).unwrap_or_default().trim_end().len();
        let text = self.pass(certain);
        self.text(&text);
        false
    }

    fn read_call(&mut self) -> bool {
        let State::Call(reader) = &mut self.state else { return false };
        let had_name = reader.name.is_some();
        let names = &self.names;
        let is_known = |name: &str| names.iter().any(|known| known == name);
        let (mut read, mut reading) = (0, Reading::Open);
        for c in self.held.chars() {
            reading = reader.read(c, &is_known);
            read += c.len_utf8();
            if reading != Reading::Open {
                break;
            }
        }
        let (name, arguments) = (reader.name.clone(), reader.take_arguments());
        let text = std::mem::take(&mut self.held);
        self.held = text.get(read..).unwrap_or_default().to_owned();
        if let (false, Some(name)) = (had_name, name.clone()) {
            self.calls += 1;
            self.parts.push(MessagePart::Call { index: self.calls - 1, name });
        }
        if name.is_some() && !arguments.is_empty() {
            self.parts.push(MessagePart::Arguments { index: self.calls - 1, text: arguments });
        }
        match reading {
            Reading::Open => return false,
            Reading::Done => self.state = State::After,
            Reading::Failed => {
                // What was taken for a call is text, unless a part of it is a call already.
                let State::Call(reader) = std::mem::replace(&mut self.state, State::Rest) else { return false };
                if name.is_none() {
                    let text = std::mem::take(&mut self.marker) + &reader.text;
                    self.text(&text);
                }
                self.state = if self.form.is_whole_message() { State::Rest } else { State::Text };
            }
        }
        true
    }

    fn after_call(&mut self, is_last: bool) -> bool {
        let (end, is_whole) = (self.form.end(), self.form.is_whole_message());
        match self.begins(end, is_last) {
            None => return false,
            Some(true) => {
                let space = self.held.len() - self.held.trim_start().len();
                self.pass(space + end.len());
            }
            Some(false) => {}
        }
        if is_whole {
            // A further call, or the end.
            let is_call = self.held.trim_start().starts_with('{');
            if self.held.trim_start().is_empty() {
                if is_last {
                    self.held.clear();
                }
                return false;
            }
            self.state = if is_call { State::Start } else { State::Rest };
            return true;
        }
        self.state = State::Text;
        self.skips_space = true;
        true
    }
}

#[cfg(test)]
mod tests;
