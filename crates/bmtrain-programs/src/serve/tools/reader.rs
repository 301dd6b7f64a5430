//! One tool call, an object of JSON, as its text comes.

use std::ops::Range;

/// Names of the member that has the arguments.
const ARGUMENTS: [&str; 2] = ["arguments", "parameters"];

/// Position of a reader in the object.
#[derive(Debug, Clone, PartialEq)]
enum At {
    Start,
    /// Before a name or the end.
    Member,
    Name {
        start: usize,
        is_escaped: bool,
    },
    Colon {
        name: String,
    },
    BeforeValue {
        name: String,
    },
    Value {
        name: String,
        start: usize,
        depth: usize,
        is_string: bool,
        is_escaped: bool,
    },
    AfterValue,
    Done,
}

/// Effect of a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// The object goes on.
    Open,
    /// The object ends with this character.
    Done,
    /// This is not a call.
    Failed,
}

/// Reads a call; the texts of its arguments are taken as they come.
#[derive(Debug)]
pub(super) struct CallReader {
    /// The text of the object so far.
    pub(super) text: String,
    at: At,
    /// The name of the function, once it is known.
    pub(super) name: Option<String>,
    /// The value of the arguments so far.
    arguments: Option<Range<usize>>,
    /// Whether the arguments have ended.
    has_arguments: bool,
    /// Bytes of the arguments that were taken.
    taken: usize,
    /// Whether the object has ended.
    is_ended: bool,
}

impl CallReader {
    pub(super) fn new() -> Self {
        let (text, at) = (String::new(), At::Start);
        CallReader { text, at, name: None, arguments: None, has_arguments: false, taken: 0, is_ended: false }
    }

    /// Reads a character; `is_known` tells whether a function has this name.
    pub(super) fn read(&mut self, c: char, is_known: &dyn Fn(&str) -> bool) -> Reading {
        let place = self.text.len();
        self.text.push(c);
        let is_space = c.is_ascii_whitespace();
        let at = std::mem::replace(&mut self.at, At::Done);
        self.at = match (at, c) {
            (At::Start, '{') => At::Member,
            (At::Member, '"') => At::Name { start: place, is_escaped: false },
            (At::Member | At::AfterValue, '}') => return self.end(),
            (At::AfterValue, ',') => At::Member,
            (At::Name { start, is_escaped: false }, '"') => {
                match serde_json::from_str(self.text.get(start..).unwrap_or_default()) {
                    Ok(name) => At::Colon { name },
                    Err(_) => return Reading::Failed,
                }
            }
            (At::Name { start, is_escaped }, c) => At::Name { start, is_escaped: c == '\\' && !is_escaped },
            (At::Colon { name }, ':') => At::BeforeValue { name },
            (at @ (At::Start | At::Member | At::AfterValue | At::Colon { .. } | At::BeforeValue { .. }), _)
                if is_space =>
            {
                at
            }
            (At::BeforeValue { name }, _) => {
                let value = At::Value { name, start: place, depth: 0, is_string: false, is_escaped: false };
                return self.value(value, c, is_known);
            }
            (at @ At::Value { .. }, _) => return self.value(at, c, is_known),
            _ => return Reading::Failed,
        };
        Reading::Open
    }

    /// Reads a character of a value, the last one of the text.
    fn value(&mut self, at: At, c: char, is_known: &dyn Fn(&str) -> bool) -> Reading {
        let At::Value { name, start, mut depth, mut is_string, mut is_escaped } = at else { return Reading::Failed };
        let place = self.text.len() - c.len_utf8();
        let is_closing = depth == 0 && !is_string && (c == ',' || c == '}' || c.is_ascii_whitespace());
        if is_closing {
            // A number, or a name such as true, ends before the character.
            self.at = At::AfterValue;
            if !self.member(&name, start..place, is_known) {
                return Reading::Failed;
            }
            self.text.truncate(place);
            return self.read(c, is_known);
        }
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if is_string => is_escaped = true,
            '"' => is_string = !is_string,
            '{' | '[' if !is_string => depth += 1,
            '}' | ']' if !is_string => match depth.checked_sub(1) {
                Some(less) => depth = less,
                None => return Reading::Failed,
            },
            _ => {}
        }
        if depth == 0 && !is_string && matches!(c, '"' | '}' | ']') {
            self.at = At::AfterValue;
            return match self.member(&name, start..self.text.len(), is_known) {
                true => Reading::Open,
                false => Reading::Failed,
            };
        }
        if ARGUMENTS.contains(&name.as_str()) {
            self.arguments = Some(start..self.text.len());
        }
        self.at = At::Value { name, start, depth, is_string, is_escaped };
        Reading::Open
    }

    /// Takes a member that has ended; returns whether this may be a call.
    fn member(&mut self, name: &str, value: Range<usize>, is_known: &dyn Fn(&str) -> bool) -> bool {
        if ARGUMENTS.contains(&name) {
            self.has_arguments = true;
            self.arguments = Some(value);
        } else if name == "name" {
            let text = self.text.get(value).unwrap_or_default();
            let function = serde_json::from_str::<String>(text).ok().filter(|function| is_known(function));
            self.name = function;
            return self.name.is_some();
        }
        true
    }

    fn end(&mut self) -> Reading {
        self.at = At::Done;
        self.is_ended = true;
        if self.name.is_some() { Reading::Done } else { Reading::Failed }
    }

    /// The arguments as far as they were not taken yet; nothing before the name is known. Arguments that are a text
    /// have JSON in it, and come as a whole.
    pub(super) fn take_arguments(&mut self) -> String {
        let Some(range) = self.arguments.clone().filter(|_| self.name.is_some()) else {
            let missing = self.is_ended && self.name.is_some() && self.taken == 0;
            self.taken += usize::from(missing);
            return if missing { "{}".to_owned() } else { String::new() };
        };
        let value = self.text.get(range).unwrap_or_default();
        if value.starts_with('"') {
            let text = serde_json::from_str::<String>(value).ok().filter(|_| self.has_arguments && self.taken == 0);
            self.taken = if text.is_some() { value.len() } else { self.taken };
            return text.unwrap_or_default();
        }
        let further = value.get(self.taken..).unwrap_or_default().to_owned();
        self.taken = value.len();
        further
    }
}
