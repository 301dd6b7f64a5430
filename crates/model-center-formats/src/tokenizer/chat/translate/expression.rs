//! Expressions by Jinja's grammar, written again for the library.
//!
//! Adds expressions to [`Parser`]. What means the same in the library stays; operators, subscripts, tests and methods
//! become filters whose names begin with [`PREFIX`], which do what Python does.

use super::lexer::Token;
use super::literals::quoted;
use super::parser::{Parser, Written};
use crate::tokenizer::chat::filters::is_filter;
use crate::tokenizer::chat::python::access::is_python_attribute;
use crate::tokenizer::chat::tests::is_test;

/// Names of filters that stand for operators; templates cannot use them.
pub(in super::super) const PREFIX: &str = "py__";

/// Binding strength of an expression that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Binding {
    Condition,
    Or,
    And,
    Not,
    Filter,
    Atom,
}

/// An expression for the library.
#[derive(Debug, Clone)]
struct Code {
    text: String,
    binding: Binding,
}

impl Code {
    fn new(text: impl Into<String>, binding: Binding) -> Code {
        Code { text: text.into(), binding }
    }

    fn atom(text: impl Into<String>) -> Code {
        Code::new(text, Binding::Atom)
    }

    /// The text as an operand of something that binds as `least` does.
    fn at(self, least: Binding) -> String {
        if self.binding >= least { self.text } else { format!("({})", self.text) }
    }

    /// A filter of it; `arguments` is empty, or a list in brackets.
    fn filter(self, name: &str, arguments: &str) -> Code {
        Code::new(format!("{}|{name}{arguments}", self.at(Binding::Filter)), Binding::Filter)
    }

    fn operator(self, name: &str, arguments: &str) -> Code {
        self.filter(&format!("{PREFIX}{name}"), &format!("({arguments})"))
    }
}

type Parsed = Result<Code, String>;

impl Parser<'_> {
    /// One expression, or several with commas between them, which make a tuple.
    pub(super) fn tuple(&mut self, with_condition: bool, ends: &[&str]) -> Written {
        Ok(self.tuple_code(with_condition, ends, false)?.text)
    }

    fn tuple_code(&mut self, with_condition: bool, ends: &[&str], may_be_empty: bool) -> Parsed {
        let (mut items, mut is_tuple) = (Vec::new(), false);
        loop {
            let ends_here = self.is_at_end() || self.is_sign(")") || ends.iter().any(|end| self.is_name(end));
            if ends_here {
                break;
            }
            items.push(self.conditional(with_condition)?);
            if !self.skip_sign(",") {
                break;
            }
            is_tuple = true;
        }
        if !is_tuple {
            match items.pop() {
                Some(item) => return Ok(item),
                None if !may_be_empty => return Err(self.unexpected("an expression")),
                None => {}
            }
        }
        let comma = if items.len() == 1 { "," } else { "" };
        let items: Vec<String> = items.into_iter().map(|item| item.text).collect();
        Ok(Code::atom(format!("({}{comma})", items.join(", "))))
    }

    /// An expression that ends before a comma.
    pub(super) fn expression(&mut self) -> Written {
        Ok(self.conditional(true)?.text)
    }

    fn conditional(&mut self, with_condition: bool) -> Parsed {
        let mut value = self.or()?;
        while with_condition && self.skip_name("if") {
            let condition = self.or()?.at(Binding::Or);
            let otherwise = match self.skip_name("else") {
                true => format!(" else {}", self.conditional(true)?.text),
                false => String::new(),
            };
            let text = format!("{} if {condition}{otherwise}", value.at(Binding::Or));
            value = Code::new(text, Binding::Condition);
        }
        Ok(value)
    }

    fn or(&mut self) -> Parsed {
        let mut left = self.and()?;
        while self.skip_name("or") {
            let right = self.and()?.at(Binding::And);
            left = Code::new(format!("{} or {right}", left.at(Binding::Or)), Binding::Or);
        }
        Ok(left)
    }

    fn and(&mut self) -> Parsed {
        let mut left = self.not()?;
        while self.skip_name("and") {
            let right = self.not()?.at(Binding::Not);
            left = Code::new(format!("{} and {right}", left.at(Binding::And)), Binding::And);
        }
        Ok(left)
    }

    fn not(&mut self) -> Parsed {
        if self.skip_name("not") {
            return Ok(Code::new(format!("not {}", self.not()?.at(Binding::Not)), Binding::Not));
        }
        self.comparison()
    }

    /// All comparisons of a chain at once: each operand is calculated one time.
    fn comparison(&mut self) -> Parsed {
        let left = self.sum()?;
        let mut chain = Vec::new();
        loop {
            let sign = match self.current() {
                Some(Token::Sign(sign @ ("==" | "!=" | ">" | ">=" | "<" | "<="))) => *sign,
                Some(Token::Name(name)) if name == "in" => "in",
                Some(Token::Name(name)) if name == "not" => {
                    if !matches!(self.tokens.get(self.at + 1), Some(Token::Name(next)) if next == "in") {
                        break;
                    }
                    self.at += 1;
                    "notin"
                }
                _ => break,
            };
            self.at += 1;
            chain.push(format!("{}, {}", quoted(sign), self.sum()?.text));
        }
        if chain.is_empty() { Ok(left) } else { Ok(left.operator("compare", &chain.join(", "))) }
    }

    fn sum(&mut self) -> Parsed {
        let mut left = self.concatenation()?;
        loop {
            let name = match self.current() {
                Some(Token::Sign("+")) => "add",
                Some(Token::Sign("-")) => "sub",
                _ => return Ok(left),
            };
            self.at += 1;
            let right = self.concatenation()?;
            left = left.operator(name, &right.text);
        }
    }

    fn concatenation(&mut self) -> Parsed {
        let left = self.product()?;
        let mut further = Vec::new();
        while self.skip_sign("~") {
            further.push(self.product()?.text);
        }
        if further.is_empty() { Ok(left) } else { Ok(left.operator("concat", &further.join(", "))) }
    }

    fn product(&mut self) -> Parsed {
        let mut left = self.power()?;
        loop {
            let name = match self.current() {
                Some(Token::Sign("*")) => "mul",
                Some(Token::Sign("/")) => "div",
                Some(Token::Sign("//")) => "floordiv",
                Some(Token::Sign("%")) => "mod",
                _ => return Ok(left),
            };
            self.at += 1;
            let right = self.power()?;
            left = left.operator(name, &right.text);
        }
    }

    fn power(&mut self) -> Parsed {
        let mut left = self.unary(true)?;
        while self.skip_sign("**") {
            let right = self.unary(true)?;
            left = left.operator("pow", &right.text);
        }
        Ok(left)
    }

    fn unary(&mut self, with_filter: bool) -> Parsed {
        let value = match self.current() {
            Some(Token::Sign(sign @ ("-" | "+"))) => {
                self.at += 1;
                let name = if *sign == "-" { "neg" } else { "pos" };
                self.unary(false)?.operator(name, "")
            }
            _ => self.primary()?,
        };
        let value = self.postfix(value)?;
        if with_filter { self.filters_and_tests(value) } else { Ok(value) }
    }

    fn primary(&mut self) -> Parsed {
        let Some(token) = self.current() else { return Err(self.unexpected("an expression")) };
        match token {
            Token::Name(name) => {
                self.at += 1;
                self.name(name)
            }
            Token::Text(text) => {
                let mut text = text.clone();
                self.at += 1;
                while let Some(Token::Text(further)) = self.current() {
                    text += further;
                    self.at += 1;
                }
                Ok(Code::atom(quoted(&text)))
            }
            Token::Integer(number) => {
                self.at += 1;
                Ok(Code::atom(number.to_string()))
            }
            Token::Float(number) => {
                self.at += 1;
                Ok(Code::atom(quoted(&format!("{number:?}"))).operator("number", ""))
            }
            Token::Sign("(") => {
                self.at += 1;
                let inner = self.tuple_code(true, &[], true)?;
                self.expect_sign(")")?;
                Ok(inner)
            }
            Token::Sign("[") => self.list(),
            Token::Sign("{") => self.mapping(),
            Token::Sign(_) => Err(self.unexpected("an expression")),
        }
    }

    fn name(&self, name: &str) -> Parsed {
        if name.starts_with(PREFIX) {
            return Err(format!("names that begin with {PREFIX} are the program's own"));
        }
        if self.known.refused.contains(&name) {
            return Err(format!("{name} of a macro is not supported, give the macro arguments with names"));
        }
        if name == "self" && !self.is_sign(".") {
            return Err("self alone is not supported in chat templates".into());
        }
        Ok(Code::atom(match name {
            "True" => "true",
            "False" => "false",
            "None" => "none",
            name => name,
        }))
    }

    fn list(&mut self) -> Parsed {
        self.expect_sign("[")?;
        let mut items = Vec::new();
        while !self.is_sign("]") {
            items.push(self.expression()?);
            if !self.is_sign("]") {
                self.expect_sign(",")?;
            }
        }
        self.expect_sign("]")?;
        Ok(Code::atom(format!("[{}]", items.join(", "))))
    }

    fn mapping(&mut self) -> Parsed {
        self.expect_sign("{")?;
        let (mut keys, mut values, mut is_plain) = (Vec::new(), Vec::new(), true);
        while !self.is_sign("}") {
            is_plain &= matches!(
                (self.current(), self.tokens.get(self.at + 1)),
                (Some(Token::Text(_)), Some(Token::Sign(":")))
            );
            keys.push(self.expression()?);
            self.expect_sign(":")?;
            values.push(self.expression()?);
            if !self.is_sign("}") {
                self.expect_sign(",")?;
            }
        }
        self.expect_sign("}")?;
        if is_plain {
            let pairs: Vec<String> = keys.iter().zip(&values).map(|(key, value)| format!("{key}: {value}")).collect();
            return Ok(Code::atom(format!("{{{}}}", pairs.join(", "))));
        }
        Ok(Code::atom(format!("[{}]", keys.join(", "))).operator("dict", &format!("[{}]", values.join(", "))))
    }

    fn postfix(&mut self, mut value: Code) -> Parsed {
        loop {
            value = match self.current() {
                Some(Token::Sign(".")) => {
                    self.at += 1;
                    self.attribute(value)?
                }
                Some(Token::Sign("[")) => self.subscript(value)?,
                Some(Token::Sign("(")) => self.call(value)?,
                _ => return Ok(value),
            };
        }
    }

    fn attribute(&mut self, value: Code) -> Parsed {
        if let Some(Token::Integer(number)) = self.current() {
            self.at += 1;
            return Ok(value.operator("item", &number.to_string()));
        }
        let name = self.expect_name()?;
        let is_plain = value.binding == Binding::Atom && !is_python_attribute(name);
        if self.is_sign("(") {
            let arguments = self.arguments()?;
            return Ok(match (is_plain, arguments.is_empty()) {
                (true, _) => Code::atom(format!("{}.{name}({arguments})", value.text)),
                (false, true) => value.operator("method", &quoted(name)),
                (false, false) => value.operator("method", &format!("{}, {arguments}", quoted(name))),
            });
        }
        Ok(match is_plain {
            true => Code::atom(format!("{}.{name}", value.text)),
            false => value.operator("attribute", &quoted(name)),
        })
    }

    fn subscript(&mut self, value: Code) -> Parsed {
        self.expect_sign("[")?;
        // Most are a name in quotes.
        if let (Some(Token::Text(key)), Some(Token::Sign("]"))) = (self.current(), self.tokens.get(self.at + 1))
            && value.binding == Binding::Atom
            && !is_python_attribute(key)
        {
            self.at += 2;
            return Ok(Code::atom(format!("{}[{}]", value.text, quoted(key))));
        }
        let mut items = Vec::new();
        let mut slice = None;
        while !self.is_sign("]") {
            let mut bounds = vec![None];
            loop {
                if self.skip_sign(":") {
                    bounds.push(None);
                } else if self.is_sign("]") || self.is_sign(",") {
                    break;
                } else if let Some(last) = bounds.last_mut().filter(|last| last.is_none()) {
                    *last = Some(self.expression()?);
                } else {
                    return Err(self.unexpected("\"]\""));
                }
            }
            match (bounds.len(), bounds.first().cloned().flatten()) {
                (1, Some(item)) => items.push(item),
                (2 | 3, _) => {
                    bounds.resize(3, None);
                    let bounds = bounds.into_iter().map(|bound| bound.unwrap_or_else(|| "none".into()));
                    slice = Some(bounds.collect::<Vec<_>>().join(", "));
                }
                _ => return Err(self.unexpected("an expression")),
            }
            if !self.is_sign("]") {
                self.expect_sign(",")?;
            }
        }
        self.expect_sign("]")?;
        match (slice, items.as_slice()) {
            (Some(slice), []) => Ok(value.operator("slice", &slice)),
            (None, [item]) => Ok(value.operator("item", item)),
            (None, [_, ..]) => Ok(value.operator("item", &format!("({})", items.join(", ")))),
            _ => Err("a subscript of this form is not supported".into()),
        }
    }

    fn call(&mut self, value: Code) -> Parsed {
        // Of a plain name: what else ends so was called in `attribute`, or is a value.
        let is_name = value.text.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
        match is_name {
            true => Ok(Code::atom(format!("{}({})", value.text, self.arguments_of(&value.text)?))),
            false => Ok(value.operator("call", &self.arguments()?)),
        }
    }

    fn filters_and_tests(&mut self, mut value: Code) -> Parsed {
        loop {
            value = match self.current() {
                Some(Token::Sign("|")) => {
                    self.at += 1;
                    let (name, arguments) = self.filter()?;
                    value.filter(&name, &arguments)
                }
                Some(Token::Name(name)) if name == "is" => self.test(value)?,
                Some(Token::Sign("(")) => self.call(value)?,
                _ => return Ok(value),
            };
        }
    }

    /// The name of a filter, and its arguments in brackets.
    pub(super) fn filter(&mut self) -> Result<(String, String), String> {
        let name = self.dotted()?;
        let arguments = if self.is_sign("(") { format!("({})", self.arguments()?) } else { String::new() };
        Ok(match is_filter(&name) {
            true => (name, arguments),
            // Jinja refuses it only where it is reached.
            false => (format!("{PREFIX}missing"), format!("({})", quoted(&format!("filter named {name}")))),
        })
    }

    fn dotted(&mut self) -> Written {
        let mut name = self.expect_name()?.to_owned();
        while self.skip_sign(".") {
            name = format!("{name}.{}", self.expect_name()?);
        }
        Ok(name)
    }

    fn test(&mut self, value: Code) -> Parsed {
        self.at += 1;
        let is_negated = self.skip_name("not");
        let name = self.dotted()?;
        let arguments = match self.current() {
            Some(Token::Sign("(")) => self.arguments()?,
            Some(Token::Name(next)) if matches!(next.as_str(), "else" | "or" | "and") => String::new(),
            Some(Token::Name(next)) if next == "is" => return Err("tests cannot be chained with is".into()),
            Some(Token::Name(_) | Token::Text(_) | Token::Integer(_) | Token::Float(_) | Token::Sign("[" | "{")) => {
                let argument = self.primary()?;
                self.postfix(argument)?.text
            }
            _ => String::new(),
        };
        let tested = match is_test(&name) {
            true => value.operator(&format!("is_{name}"), &arguments),
            false => value.operator("missing", &quoted(&format!("test named {name}"))),
        };
        match is_negated {
            true => Ok(Code::new(format!("not {}", tested.at(Binding::Not)), Binding::Not)),
            false => Ok(tested),
        }
    }
}
