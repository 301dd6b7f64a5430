//! Chinese text to words, as the jieba package for Python cuts it.
//!
//! Defines [`words`], the first step of every CPM tokenizer. The library behind it is a port that differs from the
//! package in three points, which are undone here, because a model's ids depend on them: it takes all blocks of Han
//! characters for words where the package has one, it keeps `WES-5.4` in one piece, and its dictionary lacks a word.

use std::sync::OnceLock;

use crate::Result;
use jieba_rs::Jieba;

/// Whether this build cuts texts; `place` is the vocabulary that needs it.
pub(super) fn check(_: &str) -> Result<()> {
    Ok(())
}

/// The dictionary of the package (0.42.1) in the library, loaded once in a process.
fn jieba() -> &'static Jieba {
    static JIEBA: OnceLock<Jieba> = OnceLock::new();
    JIEBA.get_or_init(|| {
        let mut jieba = Jieba::new();
        jieba.add_word("B超", Some(3), Some("n"));
        jieba
    })
}

/// Calls `each` with the words of `text` in order; together they are the text. Runs of Han characters, Latin letters,
/// digits and `+#&._%-` are cut by dictionary and hidden Markov model; every other character is a word, and so is
/// `\r\n`.
pub(super) fn words<'a>(text: &'a str, mut each: impl FnMut(&'a str)) {
    let mut rest = text;
    while !rest.is_empty() {
        let run = rest.find(|c| !is_cut(c)).unwrap_or(rest.len());
        if run > 0 {
            for token in jieba().cut(&rest[..run], true) {
                cut_connected(token.word, &mut each);
            }
        }
        rest = &rest[run..];
        while let Some(first) = rest.chars().next().filter(|c| !is_cut(*c)) {
            let length = if rest.starts_with("\r\n") { 2 } else { first.len_utf8() };
            each(&rest[..length]);
            rest = &rest[length..];
        }
    }
}

/// Whether the package looks a character up in its dictionary; of the Han characters only the first block.
fn is_cut(c: char) -> bool {
    matches!(c, '\u{4e00}'..='\u{9fd5}' | 'a'..='z' | 'A'..='Z' | '0'..='9' | '+' | '#' | '&' | '.' | '_' | '%' | '-')
}

/// Splits what the library joined with `.`, `_` or `-`: the package joins letters and digits only with the decimals and
/// the percent sign of a number.
fn cut_connected<'a>(word: &'a str, each: &mut impl FnMut(&'a str)) {
    let connected =
        word.is_ascii() && word.contains(['.', '_', '-']) && word.contains(|c: char| c.is_ascii_alphanumeric());
    if !connected || jieba().has_word(word) {
        return each(word);
    }
    let bytes = word.as_bytes();
    let mut start = 0;
    while start < word.len() {
        let end = match bytes[start].is_ascii_alphanumeric() {
            true => end_of_term(bytes, start),
            false => start + bytes[start..].iter().take_while(|byte| !byte.is_ascii_alphanumeric()).count(),
        };
        each(&word[start..end]);
        start = end;
    }
}

/// End of letters and digits, including decimals and a percent sign.
fn end_of_term(bytes: &[u8], start: usize) -> usize {
    let run = |from: usize, kind: fn(&u8) -> bool| from + bytes[from..].iter().take_while(|byte| kind(byte)).count();
    let mut end = run(start, u8::is_ascii_alphanumeric);
    if bytes.get(end) == Some(&b'.') {
        let decimals = run(end + 1, u8::is_ascii_digit);
        if decimals > end + 1 {
            end = decimals;
        }
    }
    end + usize::from(bytes.get(end) == Some(&b'%'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str) -> Vec<&str> {
        let mut all = Vec::new();
        words(text, |word| all.push(word));
        assert_eq!(all.concat(), text);
        all
    }

    #[test]
    fn texts_are_cut_as_the_package_cuts_them() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../model-center/tests/golden/cpm_tokenizer/words.json");
        let all: Vec<Vec<String>> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        assert!(all.len() > 25);
        for want in all {
            assert_eq!(cut(&want.concat()), want);
        }
    }

    #[test]
    fn words_are_those_of_the_package_and_not_those_of_the_library() {
        assert_eq!(cut("WES-5.4.5"), ["WES", "-", "5.4", ".", "5"]);
        assert_eq!(cut("a_b 50.5%x"), ["a", "_", "b", " ", "50.5%", "x"]);
        assert_eq!(cut("他做B超"), ["他", "做", "B超"]);
        assert_eq!(cut("\r\n\n \u{3000}"), ["\r\n", "\n", " ", "\u{3000}"]);
        assert_eq!(cut("𠀀𠀁"), ["𠀀", "𠀁"]);
    }
}
