//! Regular expressions as trees.

use super::super::bytes::CharSet;
use super::super::characters::{CharKind, line_ends};
use super::{Ast, Refused};
use std::iter::Peekable;
use std::str::Chars;

/// Groups within each other.
const MAX_DEPTH: usize = 60;
/// The most repetitions that may be stated.
const MAX_REPEAT: u32 = 100_000;

const BRACE: &str = "a brace that does not repeat has to be written \\{";

/// The tree of an expression.
pub(super) fn parse(pattern: &str) -> Result<Ast, Refused> {
    let mut parser = Parser { chars: pattern.chars().peekable(), depth: 0 };
    let ast = parser.either()?;
    match parser.chars.next() {
        Some(c) => Err(format!("{c:?} closes nothing")),
        None => Ok(ast),
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

    /// `m}`, `m,}` or `m,n}` after a brace; `,n}` repeats in Python alone.
    fn bounds(&mut self) -> Result<(u32, Option<u32>), Refused> {
        let inside: String = self.chars.by_ref().take_while(|c| *c != '}').collect();
        let is_bound = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let (least, most) = inside.split_once(',').unwrap_or((&inside, &inside));
        if !is_bound(least) || !is_bound(most) || inside.is_empty() {
            return Err(BRACE.into());
        }
        if least.is_empty() {
            return Err(format!("{{{inside}}} has no least number: write {{0{inside}}}"));
        }
        let number = |text: &str| match text.parse::<u32>() {
            Ok(number) if number <= MAX_REPEAT => Ok(number),
            _ => Err(format!("more than {MAX_REPEAT} repetitions")),
        };
        let least = number(least)?;
        let most = if most.is_empty() { None } else { Some(number(most)?) };
        if most.is_some_and(|most| most < least) {
            return Err(format!("{{{inside}}} has more at least than at most"));
        }
        Ok((least, most))
    }

    /// Escape after a backslash.
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
