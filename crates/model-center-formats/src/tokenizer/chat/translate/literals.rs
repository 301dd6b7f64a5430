//! Texts and numbers that a template spells, by Jinja's and Python's rules; and how they are spelled for the library.

use super::lexer::Token;

/// A text in quotes: its value, and its length in the source.
pub(super) fn string(rest: &str, quote: char) -> Result<(Token, usize), String> {
    let (mut out, mut letters) = (String::new(), rest.char_indices().skip(1));
    while let Some((at, letter)) = letters.next() {
        if letter == quote {
            return Ok((Token::Text(out), at + 1));
        }
        if letter != '\\' {
            out.push(letter);
            continue;
        }
        let Some((_, kind)) = letters.next() else { break };
        let mut number = |digits: usize| {
            let digits: String = letters.by_ref().take(digits).map(|(_, digit)| digit).collect();
            u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32).ok_or(digits)
        };
        let wrong = |digits: String| format!("\\{kind}{digits} is not a character");
        match kind {
            '\n' => {}
            '\\' | '\'' | '"' => out.push(kind),
            'a' => out.push('\u{7}'),
            'b' => out.push('\u{8}'),
            't' => out.push('\t'),
            'n' => out.push('\n'),
            'v' => out.push('\u{b}'),
            'f' => out.push('\u{c}'),
            'r' => out.push('\r'),
            'x' => out.push(number(2).map_err(wrong)?),
            'u' => out.push(number(4).map_err(wrong)?),
            'U' => out.push(number(8).map_err(wrong)?),
            'N' => return Err("\\N{...} in a text is not supported, write the character itself".into()),
            '0'..='7' => {
                let mut value = kind.to_digit(8).unwrap_or(0);
                let mut further = letters.clone();
                for _ in 0..2 {
                    let Some(digit) = further.next().and_then(|(_, next)| next.to_digit(8)) else { break };
                    value = value * 8 + digit;
                    letters.next();
                }
                out.push(char::from_u32(value).unwrap_or('\u{fffd}'));
            }
            other => {
                out.push('\\');
                out.push(other);
            }
        }
    }
    Err("a text has no end".into())
}

/// A text as the library reads it, on one line.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            letter => out.push(letter),
        }
    }
    out.push('"');
    out
}

/// Digits with single underscores between them.
fn digits(rest: &str, is_digit: impl Fn(char) -> bool) -> usize {
    let mut length = 0;
    for (at, letter) in rest.char_indices() {
        match letter {
            '_' if at > 0 && at == length => {}
            letter if is_digit(letter) => length = at + 1,
            _ => break,
        }
    }
    length
}

fn decimals(rest: &str) -> usize {
    digits(rest, |letter| letter.is_ascii_digit())
}

/// A number with a fraction or an exponent.
pub(super) fn float(rest: &str) -> Option<(Token, usize)> {
    let mut length = decimals(rest);
    let part = |at: usize| decimals(rest.get(at..).unwrap_or_default());
    let whole = length;
    if rest.get(length..)?.starts_with('.') && part(length + 1) > 0 {
        length += 1 + part(length + 1);
    }
    if rest.get(length..)?.starts_with(['e', 'E']) {
        let sign = usize::from(rest.get(length + 1..)?.starts_with(['+', '-']));
        let exponent = part(length + 1 + sign);
        if exponent > 0 {
            length += 1 + sign + exponent;
        }
    }
    if length == whole {
        return None;
    }
    let value = rest.get(..length)?.replace('_', "").parse().ok()?;
    Some((Token::Float(value), length))
}

/// A whole number, of any base that Python has.
pub(super) fn integer(rest: &str) -> Result<(Token, usize), String> {
    let prefix = rest.get(..2).unwrap_or_default().to_ascii_lowercase();
    let radix = match prefix.as_str() {
        "0b" => 2,
        "0o" => 8,
        "0x" => 16,
        _ => 10,
    };
    let start = if radix == 10 { 0 } else { 2 };
    let tail = rest.get(start..).unwrap_or_default();
    let length = digits(tail.strip_prefix('_').filter(|_| radix != 10).unwrap_or(tail), |c| c.is_digit(radix));
    let length = length + usize::from(radix != 10 && tail.starts_with('_'));
    let spelled = tail.get(..length).unwrap_or_default().replace('_', "");
    if radix == 10 && spelled.len() > 1 && spelled.starts_with('0') && spelled.contains(|c| c != '0') {
        return Err(format!("the number {spelled} begins with 0"));
    }
    let value = u128::from_str_radix(&spelled, radix).ok().filter(|value| i128::try_from(*value).is_ok());
    match value {
        Some(value) => Ok((Token::Integer(value), start + length)),
        None => Err(format!("the whole number {spelled} is larger than supported, 2 to the power of 127")),
    }
}
