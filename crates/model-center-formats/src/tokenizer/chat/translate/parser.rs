//! Goes through the tokens of a tag: what is there, what has to be there, names that are assigned, arguments of calls.
//!
//! Defines [`Parser`], to which [`super::expression`] adds expressions.

use super::expression::PREFIX;
use super::lexer::Token;

/// Names that the tags before this one define.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    /// Names that stand for what the library does not keep: `varargs` and `kwargs` within a macro.
    pub(super) refused: Vec<&'static str>,
    /// Names of each macro's arguments that have a default.
    pub(super) defaults: Vec<(String, Vec<Option<String>>)>,
}

/// Reads the tokens of a tag.
pub(super) struct Parser<'a> {
    pub(super) tokens: &'a [Token],
    pub(super) at: usize,
    pub(super) known: &'a Known,
}

/// Source for the library; the error is a sentence.
pub(super) type Written = Result<String, String>;

impl<'a> Parser<'a> {
    pub(super) fn new(tokens: &'a [Token], known: &'a Known) -> Parser<'a> {
        Parser { tokens, at: 0, known }
    }

    pub(super) fn current(&self) -> Option<&'a Token> {
        self.tokens.get(self.at)
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.at >= self.tokens.len()
    }

    pub(super) fn is_sign(&self, sign: &str) -> bool {
        matches!(self.current(), Some(Token::Sign(found)) if *found == sign)
    }

    pub(super) fn is_name(&self, name: &str) -> bool {
        matches!(self.current(), Some(Token::Name(found)) if found == name)
    }

    pub(super) fn skip_sign(&mut self, sign: &str) -> bool {
        let found = self.is_sign(sign);
        self.at += usize::from(found);
        found
    }

    pub(super) fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    pub(super) fn unexpected(&self, expected: &str) -> String {
        let found = match self.current() {
            None => "unexpected end of block".to_owned(),
            Some(Token::Name(name)) => format!("unexpected {name}"),
            Some(Token::Text(text)) => format!("unexpected text {text:?}"),
            Some(Token::Integer(number)) => format!("unexpected number {number}"),
            Some(Token::Float(number)) => format!("unexpected number {number}"),
            Some(Token::Sign(sign)) => format!("unexpected {sign:?}"),
        };
        format!("{found}, expected {expected}")
    }

    pub(super) fn expect_sign(&mut self, sign: &str) -> Result<(), String> {
        if self.skip_sign(sign) { Ok(()) } else { Err(self.unexpected(&format!("{sign:?}"))) }
    }

    pub(super) fn expect_name(&mut self) -> Result<&'a str, String> {
        let Some(Token::Name(name)) = self.current() else { return Err(self.unexpected("a name")) };
        self.at += 1;
        Ok(name)
    }

    pub(super) fn pass_all(&mut self) {
        self.at = self.tokens.len();
    }

    pub(super) fn expect_end(&self) -> Result<(), String> {
        if self.is_at_end() { Ok(()) } else { Err(self.unexpected("the end of the tag")) }
    }

    /// Arguments between the brackets of a call.
    pub(super) fn arguments(&mut self) -> Written {
        self.arguments_of("")
    }

    /// As [`Parser::arguments`], of what is called by a name: a macro's with a default have to be there.
    pub(super) fn arguments_of(&mut self, name: &str) -> Written {
        let defaults: &[Option<String>] =
            self.known.defaults.iter().find(|(own, _)| own == name).map_or(&[], |(_, defaults)| defaults);
        self.expect_sign("(")?;
        let mut arguments = Vec::new();
        while !self.is_sign(")") {
            let name = match (self.current(), self.tokens.get(self.at + 1)) {
                (Some(Token::Name(name)), Some(Token::Sign("="))) => Some(name),
                _ => None,
            };
            let prefix = match (self.current(), name) {
                (_, Some(name)) => {
                    self.at += 2;
                    format!("{name}=")
                }
                (Some(Token::Sign(sign @ ("*" | "**"))), _) => {
                    self.at += 1;
                    (*sign).to_owned()
                }
                _ => String::new(),
            };
            let is_checked = match name {
                Some(name) => defaults.iter().flatten().any(|own| own == name),
                None => defaults.get(arguments.len()).is_some_and(Option::is_some),
            };
            let value = self.expression()?;
            let value = if is_checked { format!("({value})|{PREFIX}given") } else { value };
            arguments.push(prefix + &value);
            if !self.is_sign(")") {
                self.expect_sign(",")?;
            }
        }
        self.expect_sign(")")?;
        Ok(arguments.join(", "))
    }

    /// The names that a value is assigned to, as of `for` and `set`.
    pub(super) fn targets(&mut self, ends: &[&str]) -> Written {
        let (mut items, mut is_tuple) = (Vec::new(), false);
        loop {
            if self.is_at_end() || self.is_sign(")") || self.is_sign("=") || ends.iter().any(|end| self.is_name(end)) {
                break;
            }
            items.push(self.target()?);
            if !self.skip_sign(",") {
                break;
            }
            is_tuple = true;
        }
        match (is_tuple, items.as_slice()) {
            (_, []) => Err(self.unexpected("a name")),
            (false, [item]) => Ok(item.clone()),
            (_, [item]) => Ok(format!("({item},)")),
            _ => Ok(format!("({})", items.join(", "))),
        }
    }

    pub(super) fn target(&mut self) -> Written {
        if self.skip_sign("(") {
            let inner = self.targets(&[])?;
            self.expect_sign(")")?;
            return Ok(inner);
        }
        let name = self.expect_name()?;
        if name.starts_with(PREFIX) || matches!(name, "true" | "True" | "false" | "False" | "none" | "None") {
            return Err(format!("{name} cannot be assigned to"));
        }
        if matches!(name, "loop" | "self") {
            return Err(format!("a value of the name {name} is not supported in chat templates, rename it"));
        }
        if !self.skip_sign(".") {
            return Ok(name.to_owned());
        }
        let attribute = self.expect_name()?;
        if attribute.starts_with('_') {
            return Err(format!("the attribute {attribute} of a namespace begins with _, rename it"));
        }
        Ok(format!("{name}.{attribute}"))
    }
}
