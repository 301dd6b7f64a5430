//! Repairs of texts that were decoded by the wrong table.
//!
//! Defines [`repair`]. UTF-8 that was read as Windows-1252 or Latin-1, once or several times, becomes what it was:
//! `â€™` is the three bytes of `’`. Also: control characters of the second block become Windows-1252's characters, line
//! ends become `\n`, and other control characters are dropped. Called by [`super::screen`].

use std::borrow::Cow;

/// Texts are decoded again as long as that changes them, but not more often than this.
const MAX_ROUNDS: usize = 4;
/// The characters of Windows-1252 for the bytes 0x80 to 0x9F; 0 where the table has none.
const WINDOWS_1252: [u16; 32] = [
    0x20AC, 0, 0x201A, 0x0192, 0x201E, 0x2026, 0x2020, 0x2021, 0x02C6, 0x2030, 0x0160, 0x2039, 0x0152, 0, 0x017D, 0, 0,
    0x2018, 0x2019, 0x201C, 0x201D, 0x2022, 0x2013, 0x2014, 0x02DC, 0x2122, 0x0161, 0x203A, 0x0153, 0, 0x017E, 0x0178,
];

/// The text as it was meant; borrowed if there is nothing to repair.
pub(super) fn repair(text: &str) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(text);
    for _ in 0..MAX_ROUNDS {
        match decode_again(&text) {
            Some(decoded) => text = Cow::Owned(decoded),
            None => break,
        }
    }
    match plain_controls(&text) {
        Some(plain) => Cow::Owned(plain),
        None => text,
    }
}

/// The byte that a character was read from, if Windows-1252 or Latin-1 has it at 0x80 or above.
fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ 0x80..=0xFF => u8::try_from(code).ok(),
        code => {
            let code = u16::try_from(code).ok().filter(|code| *code != 0)?;
            let at = WINDOWS_1252.iter().position(|known| *known == code)?;
            u8::try_from(0x80 + at).ok()
        }
    }
}

/// A run of characters that spell UTF-8, decoded.
struct Spelled {
    decoded: String,
    /// Bytes of the text that it takes.
    length: usize,
    characters: usize,
    /// Whether one of them has three bytes or four, which no text has by chance.
    is_long: bool,
    first: char,
    second: char,
}

/// The text with such runs decoded; `None` if there are none.
fn decode_again(text: &str) -> Option<String> {
    let mut decoded: Option<String> = None;
    let (mut at, mut copied, mut before) = (0, 0, ' ');
    while let Some(c) = text[at..].chars().next() {
        if c.is_ascii() {
            (at, before) = (at + 1, c);
            continue;
        }
        match spelled(&text[at..]).filter(|run| is_meant(run, before)) {
            Some(run) => {
                let out = decoded.get_or_insert_default();
                out.push_str(&text[copied..at]);
                out.push_str(&run.decoded);
                at += run.length;
                copied = at;
                before = ' ';
            }
            None => (at, before) = (at + c.len_utf8(), c),
        }
    }
    let mut decoded = decoded?;
    decoded.push_str(&text[copied..]);
    Some(decoded)
}

/// The longest run at the start of a text in which characters spell whole characters of UTF-8.
fn spelled(text: &str) -> Option<Spelled> {
    let mut run = Spelled { decoded: String::new(), length: 0, characters: 0, is_long: false, first: ' ', second: ' ' };
    let mut rest = text.chars();
    loop {
        let mut ahead = rest.clone();
        let Some(first) = ahead.next() else { break };
        let Some(lead) = byte_of(first) else { break };
        let count = match lead {
            0xC2..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF4 => 4,
            _ => break,
        };
        let mut bytes = vec![lead];
        let mut second = ' ';
        for c in ahead.by_ref().take(count - 1) {
            bytes.extend(byte_of(c));
            second = if bytes.len() == 2 { c } else { second };
        }
        let Some(character) = std::str::from_utf8(&bytes).ok().filter(|_| bytes.len() == count) else { break };
        run.decoded.push_str(character);
        run.is_long |= count > 2;
        if run.characters == 0 {
            (run.first, run.second) = (first, second);
        }
        run.characters += 1;
        rest = ahead;
        run.length = text.len() - rest.as_str().len();
    }
    (run.characters > 0).then_some(run)
}

/// Whether a run is UTF-8 read wrongly, not a text that happens to have these characters: it has a character of three
/// bytes or more, or two in a row, or one after `Ã` or `Â`, with which texts in Latin letters begin nearly all of them.
/// `CHÂ»` is a word in capitals before a quotation mark.
fn is_meant(run: &Spelled, before: char) -> bool {
    let follows_capital = before.is_uppercase() && !run.second.is_alphanumeric();
    run.is_long || run.characters > 1 || matches!(run.first, 'Ã' | 'Â') && !follows_capital
}

/// Line ends as `\n`, control characters as Windows-1252 has them or dropped; `None` if there are none.
fn plain_controls(text: &str) -> Option<String> {
    let is_plain = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    if text.chars().all(|c| is_plain(c) && c != '\u{FEFF}') {
        return None;
    }
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '\r' if characters.peek() == Some(&'\n') => {}
            '\r' | '\u{85}' => plain.push('\n'),
            '\u{80}'..='\u{9F}' => {
                let meant = WINDOWS_1252.get(u32::from(c) as usize - 0x80).filter(|code| **code != 0);
                plain.extend(meant.and_then(|code| char::from_u32(u32::from(*code))));
            }
            '\u{FEFF}' => {}
            c if is_plain(c) => plain.push(c),
            _ => {}
        }
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text as it looks after its UTF-8 was read as Windows-1252.
    fn misread(text: &str) -> String {
        let character = |byte: u8| match byte {
            0x80..=0x9F if WINDOWS_1252[usize::from(byte) - 0x80] != 0 => {
                char::from_u32(u32::from(WINDOWS_1252[usize::from(byte) - 0x80])).unwrap()
            }
            byte => char::from(byte),
        };
        text.bytes().map(character).collect()
    }

    #[test]
    fn what_was_read_wrongly_once_twice_or_thrice_is_repaired() {
        for text in [
            "It’s “fine” – really…",
            "déjà-vu of a naïve café",
            "Привет, мир",
            "中文的句子。",
            "an emoji 🚢 at sea",
            "£5 for 20 °C",
            "Ελλάδα",
            "a € b",
        ] {
            let mut wrong = text.to_owned();
            for times in 1..=3 {
                wrong = misread(&wrong);
                assert_ne!(wrong, text);
                assert_eq!(repair(&wrong), text, "{times} times: {wrong}");
            }
            assert!(matches!(repair(text), Cow::Borrowed(_)), "{text}");
        }
        assert_eq!(repair("doesnâ€™t"), "doesn’t");
        // Latin-1 instead of Windows-1252.
        assert_eq!(repair("doesn\u{E2}\u{80}\u{99}t"), "doesn’t");
        // Of a text with both, the wrong part.
        assert_eq!(repair("cafÃ© and café"), "café and café");
    }

    #[test]
    fn what_looks_like_it_by_chance_is_left() {
        for text in
            ["CAFÉ™ and RÉSUMÉ”", "« CHÂ»", "Ã or Â alone", "SÃO PAULO", "1 × 2 ÷ 3", "naïve – “quoted”", "Å‚ the one"]
        {
            assert!(matches!(repair(text), Cow::Borrowed(_)), "{text} became {}", repair(text));
        }
    }

    #[test]
    fn controls_and_line_ends_are_plain() {
        assert_eq!(repair("a\r\nb\rc\td\u{0}\u{1B}[1m\u{FEFF}"), "a\nb\nc\td[1m");
        assert_eq!(repair("it\u{92}s \u{96} well\u{81}"), "it’s – well");
    }
}
