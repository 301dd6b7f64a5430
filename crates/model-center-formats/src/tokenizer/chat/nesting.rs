//! Depth of a chat template's source, measured before it is parsed.
//!
//! Defines [`check`], called where templates are compiled. The library's parser bounds blocks and parentheses, but
//! follows chains by recursion without a bound: operators, filters, attributes, subscripts, calls and `elif`. Each link
//! nests the expression, or the condition, one level deeper. A long chain would overflow the stack, which aborts the
//! process. So the source is scanned first, without recursion: one
//! level per link of a chain and per bracket, counted along the deepest path.
//!
//! The scan divides the source into tags and tokens as the library does. It may count more levels than there are, such
//! as one for each bracket in a sum of brackets, and never fewer.

use crate::{Error, Result};

/// Levels of one expression, and of one chain of `elif`. Chat templates in use have a few dozen.
const MAX_LEVELS: usize = 500;
/// Keywords that make an expression deeper.
const OPERATORS: [&str; 7] = ["and", "else", "if", "in", "is", "not", "or"];
/// Signs that do.
const SIGNS: &[u8] = b"+-*/%~.|=!<>";

/// Refuses a template with chains that the parser cannot follow on a stack of known size.
pub fn check(place: &str, template: &str) -> Result<()> {
    let mut scan = Scan { source: template.as_bytes(), ..Scan::default() };
    scan.template();
    for (found, what, fix) in [
        (scan.expression, "an expression has", "chains of operators, filters, subscripts and calls, and brackets"),
        (scan.conditions, "a condition has", "branches by elif"),
    ] {
        if found.levels > MAX_LEVELS {
            return Err(Error::model(
                format!("{place}, line {} of the chat template", found.line),
                format!("{what} {} levels, the most that is parsed is {MAX_LEVELS}; levels are {fix}", found.levels),
                "use the template of the model's publisher, or divide it into shorter parts with {% set %}",
            ));
        }
    }
    Ok(())
}

/// The deepest place of a kind.
#[derive(Debug, Default, Clone, Copy)]
struct Deepest {
    levels: usize,
    line: usize,
}

impl Deepest {
    fn see(&mut self, levels: usize, line: usize) {
        if levels > self.levels {
            *self = Deepest { levels, line };
        }
    }
}

/// Levels between two brackets, up to the place that is read.
#[derive(Debug, Default, Clone, Copy)]
struct Levels {
    /// Links of the chain since the last comma.
    links: u32,
    /// Levels of the deepest bracket closed since.
    inner: u32,
    /// Levels of the deepest item before that comma.
    items: u32,
}

impl Levels {
    fn most(self) -> u32 {
        self.items.max(self.links + self.inner)
    }
}

/// Levels of one tag.
#[derive(Debug, Default)]
struct Expression {
    current: Levels,
    /// The levels of the enclosing brackets, outermost first.
    outer: Vec<Levels>,
}

impl Expression {
    fn open(&mut self) {
        self.current.links += 1;
        self.outer.push(std::mem::take(&mut self.current));
    }

    fn close(&mut self) {
        if let Some(before) = self.outer.pop() {
            let inner = self.current.most().max(before.inner);
            self.current = Levels { inner, ..before };
        }
    }

    fn end_item(&mut self) {
        self.current = Levels { items: self.current.most(), ..Levels::default() };
    }

    /// All its levels, brackets that are open included.
    fn levels(mut self) -> usize {
        while !self.outer.is_empty() {
            self.close();
        }
        self.current.most() as usize
    }
}

#[derive(Debug, Default)]
struct Scan<'a> {
    source: &'a [u8],
    at: usize,
    /// Position up to which lines are counted, and the number of its line, from 0.
    counted: (usize, usize),
    /// Line and branches of the `if` blocks that are open.
    blocks: Vec<(usize, usize)>,
    /// Branches of all of them.
    branches: usize,
    expression: Deepest,
    conditions: Deepest,
}

impl<'a> Scan<'a> {
    fn template(&mut self) {
        while let Some(found) = self.find(b"{") {
            self.at = found + 1;
            let Some(kind) = self.source.get(self.at).filter(|byte| b"{%#".contains(byte)) else { continue };
            let start = self.at + 1;
            self.at = start + usize::from(matches!(self.source.get(start), Some(b'-' | b'+')));
            match kind {
                b'#' => self.pass(b"#}"),
                b'%' => match self.bare_tag(start, b"raw") {
                    Some(end) => self.raw(end),
                    None => self.tag(b"%}"),
                },
                _ => self.tag(b"}}"),
            }
        }
    }

    fn find(&self, needle: &[u8]) -> Option<usize> {
        let rest = self.source.get(self.at..)?;
        rest.windows(needle.len()).position(|window| window == needle).map(|found| self.at + found)
    }

    /// Advances past the next `end`, or to the end of the source.
    fn pass(&mut self, end: &[u8]) {
        self.at = self.find(end).map_or(self.source.len(), |found| found + end.len());
    }

    /// The end of a tag that is nothing but `name`, whose `{%` ends at `start`.
    fn bare_tag(&self, start: usize, name: &[u8]) -> Option<usize> {
        let sign = |rest: &mut &[u8]| *rest = rest.strip_prefix(b"-").or(rest.strip_prefix(b"+")).unwrap_or(rest);
        let mut rest = self.source.get(start..)?;
        sign(&mut rest);
        rest = rest.trim_ascii_start().strip_prefix(name)?.trim_ascii_start();
        sign(&mut rest);
        Some(self.source.len() - rest.strip_prefix(b"%}")?.len())
    }

    /// Text up to `{% endraw %}`.
    fn raw(&mut self, start: usize) {
        self.at = start;
        while let Some(found) = self.find(b"{%") {
            self.at = found + 2;
            if let Some(end) = self.bare_tag(self.at, b"endraw") {
                self.at = end;
                return;
            }
        }
        self.at = self.source.len();
    }

    /// The inside of a tag, up to the `end` outside of brackets.
    fn tag(&mut self, end: &[u8; 2]) {
        let line = self.line();
        let (mut expression, mut is_first) = (Expression::default(), true);
        while let Some(byte) = self.source.get(self.at).copied() {
            let rest = &self.source[self.at..];
            let sign = usize::from(b"-+".contains(&byte) && !rest.starts_with(end));
            if expression.outer.is_empty() && rest[sign..].starts_with(end) {
                self.at += sign + end.len();
                break;
            }
            match byte {
                b'\'' | b'"' => self.string(byte),
                _ if byte.is_ascii_alphanumeric() || byte == b'_' => {
                    let word = self.word();
                    if is_first && end == b"%}" {
                        self.statement(word, line);
                    }
                    expression.current.links += u32::from(is_operator(word));
                }
                _ => {
                    match byte {
                        b'(' | b'[' | b'{' => expression.open(),
                        b')' | b']' | b'}' => expression.close(),
                        b',' => expression.end_item(),
                        _ => expression.current.links += u32::from(SIGNS.contains(&byte)),
                    }
                    // Some signs have two characters.
                    let is_double =
                        matches!(rest, [b'*', b'*', ..] | [b'/', b'/', ..] | [b'=' | b'!' | b'<' | b'>', b'=', ..]);
                    self.at += 1 + usize::from(is_double);
                }
            }
            is_first &= byte.is_ascii_whitespace();
        }
        self.expression.see(expression.levels(), line);
    }

    /// Keeps count of the branches of the conditions that are open.
    fn statement(&mut self, word: &str, line: usize) {
        match (word, self.blocks.last_mut()) {
            ("if", _) => self.blocks.push((line, 0)),
            ("elif", Some((line, branches))) => {
                *branches += 1;
                self.branches += 1;
                self.conditions.see(self.branches, *line);
            }
            ("endif", Some((_, branches))) => {
                self.branches -= *branches;
                self.blocks.pop();
            }
            _ => (),
        }
    }

    /// Advances past a string; a backslash escapes the character after it.
    fn string(&mut self, quote: u8) {
        self.at += 1;
        while let Some(byte) = self.source.get(self.at).copied().filter(|byte| *byte != quote) {
            self.at += if byte == b'\\' { 2 } else { 1 };
        }
        self.at = self.source.len().min(self.at + 1);
    }

    /// A name, or a number with the identifier that directly follows it.
    fn word(&mut self) -> &'a str {
        let start = self.at;
        let source: &'a [u8] = self.source;
        let length = source[start..].iter().position(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_');
        self.at = start + length.unwrap_or(source.len() - start);
        std::str::from_utf8(&source[start..self.at]).unwrap_or_default()
    }

    fn line(&mut self) -> usize {
        let (from, lines) = self.counted;
        let further = self.source[from..self.at].iter().filter(|byte| **byte == b'\n').count();
        self.counted = (self.at, lines + further);
        lines + further + 1
    }
}

/// Whether a word is, or a number and the word right after it end with, a keyword that makes an expression deeper.
fn is_operator(word: &str) -> bool {
    match word.starts_with(|first: char| first.is_ascii_digit()) {
        true => OPERATORS.iter().any(|operator| word.ends_with(operator)),
        false => OPERATORS.contains(&word),
    }
}

#[cfg(test)]
mod tests;
