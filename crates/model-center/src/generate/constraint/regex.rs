//! Regular expressions as terms.
//!
//! Supported is what Python's `re` and ECMA 262 have in common and mean alike: characters, `.`, classes, groups,
//! alternatives, repetitions, and anchors at the ends. `\d`, `\w` and `\s` are of ASCII; `\D`, `\W` and `\S` are
//! characters that are none of these in Unicode either.

use super::bytes::CharSet;
use super::characters::{CharKind, line_ends};
use super::terms::{EPSILON, Term, Terms};
use std::iter::Peekable;
use std::str::Chars;

/// The longest expression, in bytes.
pub(super) const MAX_PATTERN: usize = 16 << 10;
/// Groups within each other.
const MAX_DEPTH: usize = 60;
/// The most repetitions that may be stated.
const MAX_REPEAT: u32 = 100_000;

const BRACE: &str = "a brace that does not repeat has to be written \\{";

/// How characters are written in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// As themselves.
    Plain,
    /// Within a string of JSON, each in one way.
    Json,
}

/// Why an expression cannot be used.
type Refused = String;

/// A part of an expression.
#[derive(Debug, Clone, PartialEq)]
enum Ast {
    Chars(CharSet),
    Sequence(Vec<Ast>),
    Either(Vec<Ast>),
    Repeat(Box<Ast>, u32, Option<u32>),
    Start,
    End,
}

/// The texts that match an expression as a whole; with `is_search` those that have a match.
pub(super) fn term(terms: &mut Terms, pattern: &str, (spelling, is_search): (Spelling, bool)) -> Result<Term, Refused> {
    if pattern.len() > MAX_PATTERN {
        return Err(format!("it has {} bytes, more than {MAX_PATTERN}", pattern.len()));
    }
    let mut parser = Parser { chars: pattern.chars().peekable(), depth: 0 };
    let ast = parser.either()?;
    if let Some(c) = parser.chars.next() {
        return Err(format!("{c:?} closes nothing"));
    }
    let mut branches = Vec::new();
    flatten(ast, &mut branches);
    let mut found = Vec::new();
    for mut parts in branches {
        let starts = parts.iter().take_while(|part| **part == Ast::Start).count();
        parts.drain(..starts);
        let ends = parts.iter().rev().take_while(|part| **part == Ast::End).count();
        parts.truncate(parts.len() - ends);
        let inner = spell(terms, &Ast::Sequence(parts), spelling)?;
        let any = spell(terms, &Ast::Chars(CharSet::all()), spelling)?;
        let any = terms.repeat(any, 0, None);
        let around = |is_open: bool| if is_search && is_open { any } else { EPSILON };
        found.push(terms.all(&[around(starts == 0), inner, around(ends == 0)]));
    }
    Ok(terms.either(found))
}

/// The alternatives of an expression, also of one in a group, as sequences.
fn flatten(ast: Ast, branches: &mut Vec<Vec<Ast>>) {
    match ast {
        Ast::Either(all) => all.into_iter().for_each(|branch| flatten(branch, branches)),
        Ast::Sequence(mut parts) => match (parts.len(), parts.pop()) {
            (1, Some(one @ (Ast::Either(_) | Ast::Sequence(_)))) => flatten(one, branches),
            (_, last) => {
                parts.extend(last);
                branches.push(parts);
            }
        },
        one => branches.push(vec![one]),
    }
}

/// The bytes of a character.
fn spelled(c: char, spelling: Spelling) -> Vec<u8> {
    let mut text = match spelling {
        Spelling::Plain => return c.to_string().into_bytes(),
        Spelling::Json => serde_json::Value::from(c.to_string()).to_string().into_bytes(),
    };
    // Without the quotation marks.
    text.pop();
    text.drain(..1);
    text
}

/// A character of a set.
pub(super) fn char_term(terms: &mut Terms, set: &CharSet, spelling: Spelling) -> Term {
    if spelling == Spelling::Plain {
        return set.term(terms);
    }
    let escaped = CharSet::new(vec![(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)]);
    let mut found = vec![set.without(&escaped).term(terms)];
    for c in set.and(&escaped).chars() {
        found.push(terms.text(&spelled(c, spelling)));
    }
    terms.either(found)
}

fn spell(terms: &mut Terms, ast: &Ast, spelling: Spelling) -> Result<Term, Refused> {
    match ast {
        Ast::Chars(set) => Ok(match set.single() {
            Some(c) => terms.text(&spelled(c, spelling)),
            None => char_term(terms, set, spelling),
        }),
        Ast::Sequence(parts) => {
            let (mut found, mut run) = (Vec::new(), Vec::new());
            for part in parts {
                match part {
                    Ast::Chars(set) if set.single().is_some() => {
                        run.extend(set.single().into_iter().flat_map(|c| spelled(c, spelling)));
                    }
                    _ => {
                        found.push(terms.text(&std::mem::take(&mut run)));
                        found.push(spell(terms, part, spelling)?);
                    }
                }
            }
            found.push(terms.text(&run));
            Ok(terms.all(&found))
        }
        Ast::Either(all) => {
            let all = all.iter().map(|ast| spell(terms, ast, spelling)).collect::<Result<Vec<_>, _>>()?;
            Ok(terms.either(all))
        }
        Ast::Repeat(inner, least, most) => {
            let inner = spell(terms, inner, spelling)?;
            Ok(terms.repeat(inner, *least, *most))
        }
        Ast::Start | Ast::End => Err("an anchor is not at an end of the expression".into()),
    }
}

struct Parser<'p> {
    chars: Peekable<Chars<'p>>,
    depth: usize,
}

impl Parser<'_> {
    fn takes(&mut self, c: char) -> bool {
        self.chars.next_if_eq(&c).is_some()
    }

    fn either(&mut self) -> Result<Ast, Refused> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("groups nest more than {MAX_DEPTH} deep"));
        }
        let mut all = vec![self.sequence()?];
        while self.takes('|') {
            all.push(self.sequence()?);
        }
        self.depth -= 1;
        Ok(match all.pop() {
            Some(one) if all.is_empty() => one,
            last => Ast::Either(all.into_iter().chain(last).collect()),
        })
    }

    fn sequence(&mut self) -> Result<Ast, Refused> {
        let mut parts = Vec::new();
        while let Some(c) = self.chars.next_if(|c| !"|)".contains(*c)) {
            let part = match c {
                '(' => self.group()?,
                '[' => Ast::Chars(self.class()?),
                '.' => Ast::Chars(CharSet::all().without(&line_ends())),
                '^' => Ast::Start,
                '$' => Ast::End,
                '\\' => Ast::Chars(self.escape()?),
                '{' => return Err(BRACE.into()),
                '*' | '+' | '?' => return Err(format!("{c:?} repeats nothing")),
                c => Ast::Chars(CharSet::one(c)),
            };
            parts.push(self.repeated(part)?);
        }
        Ok(Ast::Sequence(parts))
    }

    fn group(&mut self) -> Result<Ast, Refused> {
        if self.takes('?') {
            let kind: String = self.chars.by_ref().take(1).collect();
            match kind.as_str() {
                ":" => {}
                "P" | "<" if kind == "<" || self.takes('<') => {
                    if kind == "<" && self.chars.peek().is_some_and(|c| "=!".contains(*c)) {
                        return Err("a lookbehind, (?<= or (?<!, is not supported".into());
                    }
                    self.chars.by_ref().take_while(|c| *c != '>').for_each(drop);
                }
                "=" | "!" => return Err(format!("a lookahead, (?{kind}, is not supported")),
                other => return Err(format!("the group (?{other} is not supported")),
            }
        }
        let inner = self.either()?;
        match self.takes(')') {
            true => Ok(inner),
            false => Err("a group is not closed".into()),
        }
    }

    /// A part with the repetitions after it.
    fn repeated(&mut self, part: Ast) -> Result<Ast, Refused> {
        let Some(kind) = self.chars.next_if(|c| "*+?{".contains(*c)) else { return Ok(part) };
        let (least, most) = match kind {
            '*' => (0, None),
            '+' => (1, None),
            '?' => (0, Some(1)),
            _ => self.bounds()?,
        };
        if matches!(part, Ast::Start | Ast::End) {
            return Err("an anchor is repeated".into());
        }
        // Few or many first is the same set of texts.
        self.takes('?');
        if matches!(self.chars.peek(), Some('*' | '+' | '?' | '{')) {
            return Err("a repetition is repeated: put it into a group".into());
        }
        Ok(Ast::Repeat(Box::new(part), least, most))
    }

    /// `m}`, `m,}`, `,n}` or `m,n}` after a brace.
    fn bounds(&mut self) -> Result<(u32, Option<u32>), Refused> {
        let inside: String = self.chars.by_ref().take_while(|c| *c != '}').collect();
        let is_bound = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let (least, most) = inside.split_once(',').unwrap_or((&inside, &inside));
        if !is_bound(least) || !is_bound(most) || inside.is_empty() || inside == "," {
            return Err(BRACE.into());
        }
        let number = |text: &str| match text.parse::<u32>() {
            Ok(number) if number <= MAX_REPEAT => Ok(number),
            _ => Err(format!("more than {MAX_REPEAT} repetitions")),
        };
        let least = if least.is_empty() { 0 } else { number(least)? };
        let most = if most.is_empty() { None } else { Some(number(most)?) };
        if most.is_some_and(|most| most < least) {
            return Err(format!("{{{inside}}} has more at least than at most"));
        }
        Ok((least, most))
    }

    /// What follows a backslash.
    fn escape(&mut self) -> Result<CharSet, Refused> {
        if let Some(kind) = self.kind() {
            return Ok(kind.certain);
        }
        let c = self.chars.next().ok_or("a backslash is at the end")?;
        Ok(match c {
            'n' => CharSet::one('\n'),
            't' => CharSet::one('\t'),
            'r' => CharSet::one('\r'),
            'f' => CharSet::one('\u{C}'),
            'v' => CharSet::one('\u{B}'),
            '0' if !self.chars.peek().is_some_and(char::is_ascii_digit) => CharSet::one('\0'),
            'x' => self.hex(2)?,
            'u' => self.hex(4)?,
            'b' | 'B' | 'A' | 'Z' | 'z' | 'G' => return Err(format!("\\{c} is not supported")),
            'p' | 'P' => return Err(format!("classes of Unicode, \\{c}, are not supported")),
            '0'..='9' | 'k' => return Err(format!("references to groups, \\{c}, are not supported")),
            c if c.is_ascii_alphanumeric() => return Err(format!("\\{c} is not known")),
            c => CharSet::one(c),
        })
    }

    /// `d`, `w`, `s` or one of their opposites, if it follows.
    fn kind(&mut self) -> Option<CharKind> {
        CharKind::of(self.chars.next_if(|c| CharKind::LETTERS.contains(*c))?)
    }

    fn hex(&mut self, digits: usize) -> Result<CharSet, Refused> {
        let text: String = self.chars.by_ref().take(digits).collect();
        let is_hex = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u32::from_str_radix(&text, 16).ok().filter(|_| is_hex);
        let c = number.and_then(char::from_u32);
        c.map(CharSet::one).ok_or_else(|| format!("{text:?} is not the number of a character in {digits} digits"))
    }

    /// A class after its bracket.
    fn class(&mut self) -> Result<CharSet, Refused> {
        let is_negated = self.takes('^');
        let (mut set, mut possible, mut is_first) = (CharSet::default(), CharSet::default(), true);
        loop {
            let c = self.chars.next().ok_or("a class is not closed")?;
            if c == ']' && !is_first {
                break;
            }
            if c == ']' {
                return Err("a class begins with ]: write \\]".into());
            }
            is_first = false;
            if c == '\\'
                && let Some(kind) = self.kind()
            {
                (set, possible) = (set.or(&kind.certain), possible.or(&kind.possible));
                continue;
            }
            let low = self.member(c)?;
            let mut ahead = self.chars.clone();
            let is_range = ahead.next() == Some('-') && ahead.next().is_some_and(|c| c != ']');
            if !is_range {
                set = set.or(&low);
                continue;
            }
            self.chars.next();
            let c = self.chars.next().ok_or("a class is not closed")?;
            let high = self.member(c)?;
            match (low.single(), high.single()) {
                (Some(low), Some(high)) if low <= high => {
                    set = set.or(&CharSet::new(vec![(u32::from(low), u32::from(high))]));
                }
                _ => return Err("a range of a class is not from one character to a later one".into()),
            }
        }
        let set = if is_negated { CharSet::all().without(&set).without(&possible) } else { set.and(&CharSet::all()) };
        if set.is_empty() { Err("a class has no character".into()) } else { Ok(set) }
    }

    fn member(&mut self, c: char) -> Result<CharSet, Refused> {
        match c {
            '\\' if self.takes('b') => Ok(CharSet::one('\u{8}')),
            '\\' => self.escape(),
            '[' => Err("a bracket in a class has to be written \\[".into()),
            '&' | '~' | '|' | '-' if self.chars.peek() == Some(&c) => {
                Err(format!("{c}{c} in a class is not supported"))
            }
            c => Ok(CharSet::one(c)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, text: &str, is_search: bool) -> bool {
        let mut terms = Terms::new();
        let term = term(&mut terms, pattern, (Spelling::Plain, is_search)).unwrap();
        terms.accepts(term, text.as_bytes())
    }

    #[test]
    fn expressions_match_as_pythons_do() {
        // Results of Python 3.11's re.fullmatch.
        for (pattern, yes, no) in [
            ("a|bc", &["a", "bc"][..], &["ac", "b", ""][..]),
            ("(?:ab)*c?", &["", "ababc", "c"], &["abcab", "aba"]),
            ("[a-cx]{2,3}", &["ax", "abc"], &["a", "abcd", "ad"]),
            (r"\d{4}-\d\d", &["2024-01"], &["2024-1", "٢٠٢٤-٠١"]),
            (r"^[^\d\s]+$", &["aé-", "\u{1F600}"], &["a1", "a b", "", "a٣"]),
            (r"\w+@\w+\.(com|org)", &["a_1@b.com"], &["a@b.net", "a@bcom"]),
            (r"a.c", &["abc", "aéc"], &["a\nc", "ac"]),
            (r"\x41\u00e9\t", &["Aé\t"], &["A\u{e9}"]),
            (r"a{2}", &["aa"], &["a", "aaa"]),
            (r"(?P<year>a)(?<b>c)*?", &["a", "acc"], &["b"]),
            (r"[\]\-a]+", &["]-a"], &["b"]),
            (r"[+-]?x", &["+x", "-x", "x"], &["+-x"]),
            (r"(?:a|)+b", &["aab", "b"], &["a"]),
            (r"\.\*\(\[\{\|", &[".*([{|"], &[""]),
            (r"\W\S\D", &["-aa", " -."], &["aaa", "- a", "--1", "--٣"]),
            ("Ä|日本語*", &["Ä", "日本", "日本語語"], &["日", "ä"]),
        ] {
            yes.iter().for_each(|text| assert!(matches(pattern, text, false), "{pattern} {text}"));
            no.iter().for_each(|text| assert!(!matches(pattern, text, false), "{pattern} {text}"));
        }
        for (pattern, yes, no) in [
            ("b", &["abc", "b"][..], &["ac", ""][..]),
            ("^a|c$", &["ab", "bc"], &["ba", "cb"]),
            ("^(?:a|b)+$", &["ab"], &["abc"]),
            ("(^a$)", &["a"], &["ab"]),
            ("", &["", "x"], &[]),
        ] {
            yes.iter().for_each(|text| assert!(matches(pattern, text, true), "{pattern} {text}"));
            no.iter().for_each(|text| assert!(!matches(pattern, text, true), "{pattern} {text}"));
        }
    }

    #[test]
    fn what_is_not_supported_is_refused_with_a_reason() {
        let deep = format!("{}a{}", "(".repeat(100), ")".repeat(100));
        let long = "a".repeat(MAX_PATTERN + 1);
        for (pattern, reason) in [
            ("(?=a)", "lookahead"),
            ("(?<!a)b", "lookbehind"),
            (r"(a)\1", "references"),
            (r"\bword", "\\b"),
            (r"\p{L}", "Unicode"),
            ("(?i)a", "(?i"),
            ("a^b", "anchor"),
            ("(a", "not closed"),
            ("a)", "closes nothing"),
            ("[a", "not closed"),
            ("[b-a]", "range"),
            ("[[:alpha:]]", "has to be written"),
            ("a**", "repeated"),
            ("a{2}{3}", "repeated"),
            ("{2}", "brace"),
            ("a{2}+", "repeated"),
            ("*a", "repeats nothing"),
            ("a{3,2}", "more at least"),
            ("a{1000000}", "repetitions"),
            ("{", "brace"),
            (r"\q", "not known"),
            (r"\u12", "number of a character"),
            ("a\\", "at the end"),
            (&deep, "deep"),
            (&long, "bytes"),
        ] {
            let refused = term(&mut Terms::new(), pattern, (Spelling::Plain, false)).unwrap_err();
            assert!(refused.contains(reason), "{pattern:.40}: {refused}");
        }
    }

    #[test]
    fn characters_of_json_strings_are_escaped_in_one_way() {
        let mut terms = Terms::new();
        let term = term(&mut terms, "[^a]\"\\\\\n", (Spelling::Json, false)).unwrap();
        for (text, is_in) in [
            (r#"b\"\\\n"#, true),
            (r#"\u0001\"\\\n"#, true),
            (r#"\t\"\\\n"#, true),
            (r#"\u0009\"\\\n"#, false),
            (r#"""\\\n"#, false),
        ] {
            assert_eq!(terms.accepts(term, text.as_bytes()), is_in, "{text}");
        }
    }
}
