//! The tokens of one tag of a template, by Jinja's rules.

use super::literals::{float, integer, string};

/// Token of a tag.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    Name(String),
    Text(String),
    Integer(u128),
    Float(f64),
    Sign(&'static str),
}

/// Signs, longer ones first.
const SIGNS: [&str; 28] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".",
    ":", "|", ",", ";", "!", "?",
];

/// The inside of a tag.
pub(super) struct Tag<'a> {
    pub(super) tokens: Vec<Token>,
    /// `-` or `+` before the closing delimiter.
    pub(super) trim: &'a str,
    /// Bytes, the closing delimiter included.
    pub(super) bytes: usize,
}

/// Reads tokens from `source`, which follows the opening delimiter, up to the `end` outside of brackets. The error is a
/// sentence.
pub(super) fn tag<'a>(source: &'a str, end: &str) -> Result<Tag<'a>, String> {
    let (mut tokens, mut at, mut open) = (Vec::new(), 0, 0usize);
    loop {
        let rest = source.get(at..).unwrap_or_default();
        let Some(first) = rest.chars().next() else { return Err(format!("the tag has no {end}")) };
        if open == 0 {
            let sign = usize::from(first == '-' || (first == '+' && end == "%}"));
            if rest.get(sign..).is_some_and(|rest| rest.starts_with(end)) {
                return Ok(Tag { tokens, trim: &rest[..sign], bytes: at + sign + end.len() });
            }
        }
        if first.is_whitespace() {
            at += first.len_utf8();
            continue;
        }
        let after_dot = tokens.last() == Some(&Token::Sign("."));
        let (token, length) = match first {
            '\'' | '"' => string(rest, first)?,
            '0'..='9' => match float(rest).filter(|_| !after_dot) {
                Some(found) => found,
                None => integer(rest)?,
            },
            _ if first.is_alphabetic() || first == '_' => {
                let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                (Token::Name(rest[..length].to_owned()), length)
            }
            _ => match SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
                Some(sign) => (Token::Sign(sign), sign.len()),
                None => return Err(format!("unexpected character {first:?}")),
            },
        };
        match token {
            Token::Sign("(" | "[" | "{") => open += 1,
            Token::Sign(")" | "]" | "}") => {
                open = open.checked_sub(1).ok_or_else(|| format!("unexpected {first:?}"))?;
            }
            _ => {}
        }
        tokens.push(token);
        at += length;
    }
}
