//! `str.format`.

use minijinja::{Error, State, Value};

use super::spec::formatted;
use super::text::{quoted, repr, str_of};
use super::{Args, Type, access, fail, not_supported};
use crate::tokenizer::chat::bounds::check_size;

/// A format, and the specifications of its fields, in which fields may be; those have none.
const DEPTH: usize = 3;

/// Fills in the fields of a format.
pub(super) fn format(state: &State<'_, '_>, text: &str, args: Args) -> Result<String, Error> {
    let mut filler = Filler { state, args: &args, next: Some(0) };
    filler.fill(text, DEPTH)
}

struct Filler<'a, 's, 't, 'e> {
    state: &'s State<'t, 'e>,
    args: &'a Args,
    /// The number of the next field without one; `None` once a field has a number.
    next: Option<usize>,
}

impl Filler<'_, '_, '_, '_> {
    fn fill(&mut self, text: &str, depth: usize) -> Result<String, Error> {
        let Some(depth) = depth.checked_sub(1) else { return Err(fail("Max string recursion exceeded")) };
        let (mut out, mut rest) = (String::new(), text);
        while let Some(at) = rest.find(['{', '}']) {
            out += &rest[..at];
            let sign = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(behind) = rest.strip_prefix(sign) {
                out += sign;
                rest = behind;
                continue;
            }
            if sign == "}" {
                return Err(fail("Single '}' encountered in format string"));
            }
            let length = field(rest).ok_or_else(|| fail("expected '}' before end of string"))?;
            out += &self.field(&rest[..length], depth)?;
            rest = &rest[length + 1..];
            check_size(self.state, out.len())?;
        }
        Ok(out + rest)
    }

    /// `name!conversion:specification`.
    fn field(&mut self, field: &str, depth: usize) -> Result<String, Error> {
        let end = field.find(['!', ':']).unwrap_or(field.len());
        // A subscript may hold these signs.
        let end = match field.find('[').filter(|open| *open < end) {
            Some(open) => {
                let close = field[open..].rfind(']').map_or(end, |close| open + close);
                field[close..].find(['!', ':']).map_or(field.len(), |at| close + at)
            }
            None => end,
        };
        let (name, rest) = field.split_at(end);
        let (conversion, spec) = match rest.strip_prefix('!') {
            Some(rest) => rest.split_once(':').map_or((rest, ""), |(conversion, spec)| (conversion, spec)),
            None => ("", rest.strip_prefix(':').unwrap_or_default()),
        };
        let value = self.value(name)?;
        let spec = self.fill(spec, depth)?;
        let value = match conversion {
            "" => value,
            "s" => Value::from(str_of(self.state, &value)?),
            "r" => Value::from(self.repr(&value)?),
            "a" => return Err(not_supported("the conversion !a")),
            other => return Err(fail(format!("unknown conversion specifier {other:?}"))),
        };
        let text = str_of(self.state, &value)?;
        formatted(self.state, &value, &spec, text)
    }

    fn repr(&self, value: &Value) -> Result<String, Error> {
        match value.as_str().filter(|_| !value.is_safe()) {
            Some(text) => Ok(quoted(text)),
            None => repr(self.state, value),
        }
    }

    /// The argument that a field names, and what is in it.
    fn value(&mut self, name: &str) -> Result<Value, Error> {
        let end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut rest) = name.split_at(end);
        let mut value = match (first.is_empty(), first.parse::<usize>()) {
            (true, _) if !rest.is_empty() => return Err(not_supported("a field that begins with . or [")),
            (true, _) => {
                let reason = "cannot switch from manual field specification to automatic field numbering";
                let number = self.next.ok_or_else(|| fail(reason))?;
                self.next = Some(number + 1);
                self.positional(number)?
            }
            (_, Ok(number)) => {
                if self.next.is_some_and(|next| next > 0) {
                    return Err(fail("cannot switch from automatic field numbering to manual field specification"));
                }
                self.next = None;
                self.positional(number)?
            }
            _ => {
                let named = self.args.named.iter().find(|(own, _)| own == first);
                named.map(|(_, value)| value.clone()).ok_or_else(|| fail(format!("there is no field {first:?}")))?
            }
        };
        while !rest.is_empty() {
            if let Some(inside) = rest.strip_prefix('[') {
                let (key, behind) = inside.split_once(']').ok_or_else(|| fail("Missing ']' in format string"))?;
                let key = key.parse::<i64>().map_or_else(|_| Value::from(key), Value::from);
                value = access::item(&value, &key)?;
                rest = behind;
            } else {
                let inside = rest.strip_prefix('.').ok_or_else(|| fail("Only '.' or '[' may follow ']'"))?;
                let end = inside.find(['.', '[']).unwrap_or(inside.len());
                value = access::attribute(&value, &inside[..end])?;
                rest = &inside[end..];
            }
        }
        match Type::of(&value) {
            Type::Undefined => Ok(Value::from("")),
            _ => Ok(value),
        }
    }

    fn positional(&self, number: usize) -> Result<Value, Error> {
        let missing = || fail("Replacement index out of range for positional args tuple");
        self.args.positional.get(number).cloned().ok_or_else(missing)
    }
}

/// The bytes of a field, up to its `}`.
fn field(rest: &str) -> Option<usize> {
    let mut open = 0usize;
    for (at, letter) in rest.char_indices() {
        match letter {
            '{' => open += 1,
            '}' if open == 0 => return Some(at),
            '}' => open -= 1,
            _ => {}
        }
    }
    None
}
