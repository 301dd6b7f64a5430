//! A template of Jinja written again as one that the template library runs with Jinja's results.
//!
//! Defines [`translate`]. The library's operators follow its own rules: they print numbers otherwise, compare a text
//! with a number, find no methods beside an item of the same name. So each tag is read by Jinja's grammar, and each
//! operator becomes a call of what [`super::python`] defines. Blocks, scopes, loops, macros and white space stay the
//! library's. Lines stay where they are, for errors.

mod expression;
mod lexer;
mod literals;
mod parser;

pub(super) use self::expression::PREFIX;
use self::lexer::{Tag, tag};
use self::literals::quoted;
use self::parser::{Known, Parser};
use super::environment::MARKS;
use crate::{Error, Result};

/// Further arguments that a macro can be given.
const BEYOND: [&str; 2] = ["varargs", "kwargs"];

/// A template for the library.
pub(super) struct Translated {
    pub(super) text: String,
    /// Whether it marks what an assistant writes with `{% generation %}`.
    pub(super) is_marked: bool,
}

/// Replacement of a statement.
enum Statement {
    /// The inside of a tag.
    One(String),
    /// The inside of a tag, what follows it, and the inside of another tag.
    Two([String; 3]),
}

/// Every line end of a template is `\n` for Jinja.
pub(super) fn with_plain_lines(template: &str) -> String {
    template.replace("\r\n", "\n").replace('\r', "\n")
}

/// Writes a template for the library.
///
/// # Errors
/// [`Error::Model`] with the line of the tag that is not Jinja.
pub(super) fn translate(place: &str, template: &str) -> Result<Translated> {
    let mut first = Writer { out: String::with_capacity(template.len()), ..Writer::default() };
    write(place, template, &mut first)?;
    if first.defaults.is_empty() {
        return Ok(Translated { text: first.out, is_marked: first.is_marked });
    }
    // A macro may call one that is defined after it.
    let out = String::with_capacity(first.out.len());
    let mut writer = Writer { out, defaults: first.defaults, ..Writer::default() };
    write(place, template, &mut writer)?;
    Ok(Translated { text: writer.out, is_marked: writer.is_marked })
}

fn write(place: &str, template: &str, writer: &mut Writer) -> Result<()> {
    let mut rest = template;
    while let Some(at) = next_tag(rest) {
        let (before, source) = rest.split_at(at);
        writer.out += before;
        let length = writer.write(source).map_err(|reason| {
            let line = 1 + template[..template.len() - source.len()].matches('\n').count();
            let fix = "fetch the file again, or correct the template; it is a Jinja template";
            Error::model(format!("{place}, line {line} of the chat template"), reason, fix)
        })?;
        rest = source.get(length..).unwrap_or_default();
    }
    writer.out += rest;
    Ok(())
}

/// Start of a tag or a comment.
fn next_tag(rest: &str) -> Option<usize> {
    let bytes = rest.as_bytes();
    bytes.windows(2).position(|pair| matches!(pair, [b'{', b'{' | b'%' | b'#']))
}

#[derive(Default)]
struct Writer {
    out: String,
    /// Names of [`BEYOND`] that each open macro lacks.
    macros: Vec<Vec<&'static str>>,
    /// Names of each macro's arguments that have a default.
    defaults: Vec<(String, Vec<Option<String>>)>,
    is_marked: bool,
    /// The conditions and loops that are open.
    open: Vec<Open>,
}

/// A condition or a loop that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    If,
    For { has_else: bool },
}

impl Writer {
    /// Writes the tag or the comment with which `source` begins; its bytes.
    fn write(&mut self, source: &str) -> std::result::Result<usize, String> {
        let (open, inside) = source.split_at(2);
        if open == "{#" {
            let length = inside.find("#}").map_or(source.len(), |at| at + 4);
            self.out += &source[..length];
            return Ok(length);
        }
        let sign = inside.get(..1).filter(|sign| matches!(*sign, "-" | "+")).unwrap_or_default();
        let body = &inside[sign.len()..];
        if open == "{%"
            && let Some(length) = raw(body)
        {
            let length = 2 + sign.len() + length;
            // Jinja keeps the line end after this tag.
            let close = source.find("%}").unwrap_or(length);
            self.out += &source[..close];
            self.out += if source[..close].ends_with(['-', '+']) { "" } else { "+" };
            self.out += &source[close..length];
            return Ok(length);
        }
        let Tag { tokens, trim, bytes } = tag(body, if open == "{%" { "%}" } else { "}}" })?;
        let lines = "\n".repeat(body[..bytes].matches('\n').count());
        let refused = self.macros.last().cloned().unwrap_or_default();
        let known = Known { refused, defaults: self.defaults.clone() };
        let mut parser = Parser::new(&tokens, &known);
        let written = match open {
            "{{" => format!("{{{{{sign} {}{lines} {trim}}}}}", parser.tuple(true, &[])?),
            _ => match self.statement(&mut parser)? {
                Statement::One(text) => format!("{{%{sign} {text}{lines} {trim}%}}"),
                // White space around the two tags is treated as around the one.
                Statement::Two([first, between, last]) => {
                    format!("{{%{sign} {first} %}}{between}{{% {last}{lines} {trim}%}}")
                }
            },
        };
        parser.expect_end()?;
        self.out += &written;
        Ok(2 + sign.len() + bytes)
    }

    fn statement(&mut self, parser: &mut Parser<'_>) -> std::result::Result<Statement, String> {
        let keyword = parser.expect_name()?;
        let plain = |text: String| Ok(Statement::One(text));
        let two = |first: &str, between: String, last: &str| {
            Ok(Statement::Two([first.to_owned(), format!("{{{{ {between} }}}}"), last.to_owned()]))
        };
        // In Jinja what a block assigns stays in it; the library has no scope of its own for some.
        let scoped = |first: String| Ok(Statement::Two([first, String::new(), "with".to_owned()]));
        let unscoped = |last: &str| Ok(Statement::Two(["endwith".to_owned(), String::new(), last.to_owned()]));
        match keyword {
            "if" | "elif" => {
                self.open.extend((keyword == "if").then_some(Open::If));
                plain(format!("{keyword} {}", parser.tuple(false, &[])?))
            }
            "for" => {
                self.open.push(Open::For { has_else: false });
                let target = parser.targets(&["in"])?;
                if !parser.skip_name("in") {
                    return Err(parser.unexpected("in"));
                }
                let items = parser.tuple(false, &["recursive", "if"])?;
                let condition = match parser.skip_name("if") {
                    true => format!(" if {}", parser.expression()?),
                    false => String::new(),
                };
                let recursive = if parser.skip_name("recursive") { " recursive" } else { "" };
                plain(format!("for {target} in ({items})|{PREFIX}items{condition}{recursive}"))
            }
            "set" => {
                let target = parser.targets(&[])?;
                if parser.skip_sign("=") {
                    return plain(format!("set {target} = {}", parser.tuple(true, &[])?));
                }
                let filters = if parser.skip_sign("|") { format!("|{}", filters(parser)?) } else { String::new() };
                scoped(format!("set {target}{filters}"))
            }
            "filter" => scoped(format!("filter {}", filters(parser)?)),
            "endset" | "endfilter" => unscoped(keyword),
            "else" => match self.open.last_mut() {
                Some(Open::For { has_else }) => {
                    *has_else = true;
                    scoped(keyword.to_owned())
                }
                _ => plain(keyword.to_owned()),
            },
            "endif" | "endfor" => match self.open.pop() {
                Some(Open::For { has_else: true }) => unscoped(keyword),
                _ => plain(keyword.to_owned()),
            },
            "with" => {
                let mut all = Vec::new();
                for (name, value) in assignments(parser)? {
                    all.push(format!("{name} = {}", value.ok_or_else(|| parser.unexpected("\"=\""))?));
                }
                plain(format!("with {}", all.join(", ")))
            }
            "macro" => {
                let name = parser.expect_name()?.to_owned();
                self.signature(parser, &name, "")
            }
            "endmacro" | "endcall" => {
                self.macros.pop();
                parser.pass_all();
                plain(keyword.to_owned())
            }
            "call" if parser.is_sign("(") => self.signature(parser, "", "call"),
            "call" => {
                self.macros.push(BEYOND.to_vec());
                plain(format!("call {}", parser.expression()?))
            }
            // What it assigns stays within, as in the macro that Jinja makes of it.
            "generation" => {
                self.is_marked = true;
                two("with", MARKS[0].to_owned(), "with")
            }
            "endgeneration" => two("endwith", MARKS[1].to_owned(), "endwith"),
            "print" => {
                let mut all = vec![parser.expression()?];
                while parser.skip_sign(",") {
                    all.push(parser.expression()?);
                }
                two("if true", all.join(" }}{{ "), "endif")
            }
            "autoescape" => two("with", format!("({})|{PREFIX}plain", parser.expression()?), "if true %}{% endif"),
            "endautoescape" => plain("endwith".to_owned()),
            "include" | "import" | "extends" | "from" => {
                parser.pass_all();
                let what = quoted(&format!("other template for {keyword}"));
                two("if true", format!("none|{PREFIX}missing({what})"), "endif")
            }
            "block" => {
                let name = parser.expect_name()?;
                let mut is_scoped = false;
                while !parser.is_at_end() && (parser.skip_name("required") || parser.skip_name("scoped")) {
                    is_scoped = true;
                }
                // There it does not see the variables of the loop, in the library it does.
                if !is_scoped && self.open.iter().any(|open| matches!(open, Open::For { .. })) {
                    return Err(format!("the block {} within a loop is not supported", quoted(name)));
                }
                plain(format!("block {name}"))
            }
            "endblock" => {
                let name = if parser.is_at_end() { "" } else { parser.expect_name()? };
                plain(format!("endblock {name}"))
            }
            "endwith" | "break" | "continue" => plain(keyword.to_owned()),
            other => Err(format!("there is no statement {}", quoted(other))),
        }
    }

    /// A macro, or a call with a block: its arguments, and what gives them their defaults, which see those before them.
    fn signature(&mut self, parser: &mut Parser<'_>, name: &str, call: &str) -> std::result::Result<Statement, String> {
        parser.expect_sign("(")?;
        let arguments = assignments(parser)?;
        parser.expect_sign(")")?;
        let names: Vec<&str> = arguments.iter().map(|(name, _)| name.as_str()).collect();
        self.macros.push(BEYOND.into_iter().filter(|beyond| !names.contains(beyond)).collect());
        let list = names.join(", ");
        let first = match call {
            "" => format!("macro {name}({list})"),
            call => format!("{call}({list}) {}", parser.expression()?),
        };
        let with_default = |(name, default): &(String, Option<String>)| default.as_ref().map(|_| name.clone());
        self.defaults.retain(|(own, _)| own != name);
        self.defaults.push((name.to_owned(), arguments.iter().map(with_default).collect()));
        let set = |(name, default): &(String, Option<String>)| {
            let default = default.as_ref()?;
            Some(format!("{{% if {name}|{PREFIX}is_undefined %}}{{% set {name} = {default} %}}{{% endif %}}"))
        };
        let between: String = arguments.iter().filter_map(set).collect();
        Ok(match between.is_empty() {
            true => Statement::One(first),
            false => Statement::Two([first, between, "if true %}{% endif".into()]),
        })
    }
}

/// Names by commas, each with its value if it has one.
fn assignments(parser: &mut Parser<'_>) -> std::result::Result<Vec<(String, Option<String>)>, String> {
    let mut all = Vec::new();
    while !parser.is_at_end() && !parser.is_sign(")") {
        let target = parser.target()?;
        let value = if parser.skip_sign("=") { Some(parser.expression()?) } else { None };
        all.push((target, value));
        if !parser.skip_sign(",") {
            break;
        }
    }
    Ok(all)
}

/// Filters of a block, by `|`.
fn filters(parser: &mut Parser<'_>) -> std::result::Result<String, String> {
    let mut all = Vec::new();
    loop {
        let (name, arguments) = parser.filter()?;
        all.push(name + &arguments);
        if !parser.skip_sign("|") {
            return Ok(all.join("|"));
        }
    }
}

/// The bytes of a raw block, whose `{%` and sign precede `body`, up to its end.
fn raw(body: &str) -> Option<usize> {
    let bare = |rest: &str, name: &str| {
        let inside = rest.trim_start().strip_prefix(name)?.trim_start();
        let inside = inside.strip_prefix(['-', '+']).unwrap_or(inside).strip_prefix("%}")?;
        Some(rest.len() - inside.len())
    };
    let mut at = bare(body, "raw")?;
    while let Some(found) = body.get(at..)?.find("{%") {
        at += found + 2;
        let rest = body.get(at..)?;
        let sign = usize::from(rest.starts_with(['-', '+']));
        if let Some(length) = bare(rest.get(sign..)?, "endraw") {
            return Some(at + sign + length);
        }
    }
    Some(body.len())
}
