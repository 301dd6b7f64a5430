//! Values that Python has and the library has not.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{Enumerator, Object, ObjectRepr, Tuple};
use minijinja::{Error, ErrorKind, State, Value};

use super::{Args, access, fail, text};

/// `range(start, stop, step)`.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Range {
    pub(super) start: i64,
    pub(super) stop: i64,
    pub(super) step: i64,
    pub(super) count: usize,
}

/// The longest range of Jinja's sandbox.
const MAX_RANGE: i128 = 100_000;

impl Range {
    /// A range; an error where it is longer than the sandbox allows.
    pub(in super::super) fn new(start: i64, stop: i64, step: i64) -> Result<Range, Error> {
        if step == 0 {
            return Err(fail("range() arg 3 must not be zero"));
        }
        let (distance, stride) = match step > 0 {
            true => (i128::from(stop) - i128::from(start), i128::from(step)),
            false => (i128::from(start) - i128::from(stop), -i128::from(step)),
        };
        let count = if distance <= 0 { 0 } else { (distance + stride - 1) / stride };
        if count > MAX_RANGE {
            return Err(fail(format!("range has more than {MAX_RANGE} values")));
        }
        Ok(Range { start, stop, step, count: count as usize })
    }

    pub(super) fn at(&self, index: usize) -> Option<Value> {
        (index < self.count).then(|| Value::from(self.start.wrapping_add(self.step.wrapping_mul(index as i64))))
    }

    pub(super) fn text(&self) -> String {
        let step = if self.step == 1 { String::new() } else { format!(", {}", self.step) };
        format!("range({}, {}{step})", self.start, self.stop)
    }
}

impl Object for Range {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.at(key.as_usize()?)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.count)
    }
}

/// Result of filters such as `select`: true whatever it holds, and gone through once.
#[derive(Debug)]
pub(in super::super) struct Generator(Mutex<VecDeque<Value>>);

impl Generator {
    pub(in super::super) fn value(items: Vec<Value>) -> Value {
        Value::from_object(Generator(Mutex::new(items.into())))
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Iter(Box::new(Taken(Arc::clone(self))))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }
}

/// Takes the values out of a generator.
struct Taken(Arc<Generator>);

impl Iterator for Taken {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.0.0.lock().unwrap_or_else(PoisonError::into_inner).len();
        (left, Some(left))
    }
}

/// Result of `keys`, `values` and `items` of a dictionary.
#[derive(Debug)]
pub(in super::super) struct View {
    pub(super) kind: ViewKind,
    items: Vec<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum ViewKind {
    Keys,
    Values,
    Items,
}

impl ViewKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            ViewKind::Keys => "dict_keys",
            ViewKind::Values => "dict_values",
            ViewKind::Items => "dict_items",
        }
    }
}

impl View {
    pub(in super::super) fn value(of: &Value, kind: ViewKind) -> Result<Value, Error> {
        let mut items = Vec::new();
        for key in of.try_iter()? {
            items.push(match kind {
                ViewKind::Keys => key,
                ViewKind::Values => of.get_item(&key)?,
                ViewKind::Items => {
                    let value = of.get_item(&key)?;
                    Value::from(Tuple::from([key, value]))
                }
            });
        }
        Ok(Value::from_object(View { kind, items }))
    }
}

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items.clone())
    }
}

/// A method of a value, not called yet.
#[derive(Debug)]
pub(in super::super) struct Method {
    pub(super) of: Value,
    pub(super) name: String,
}

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        access::method(state, &self.of, &self.name, args.to_vec())
    }
}

/// `cycler(items...)`.
#[derive(Debug)]
pub(in super::super) struct Cycler {
    pub(in super::super) items: Vec<Value>,
    pub(in super::super) at: Mutex<usize>,
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let at = *self.at.lock().unwrap_or_else(PoisonError::into_inner);
        match key.as_str()? {
            "current" => self.items.get(at).cloned(),
            "pos" => Some(Value::from(at)),
            "items" => Some(Value::from(Tuple::from(self.items.clone()))),
            _ => None,
        }
    }

    fn call_method(self: &Arc<Self>, _: &mut State<'_, '_>, name: &str, args: &[Value]) -> Result<Value, Error> {
        let [] = Args::new(args.to_vec()).bind("this method of a cycler", [])?;
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        match name {
            "next" => {
                let item = self.items.get(*at).cloned().unwrap_or_default();
                *at = (*at + 1) % self.items.len().max(1);
                Ok(item)
            }
            "reset" => {
                *at = 0;
                Ok(Value::from(()))
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}

/// `joiner(separator)`: nothing the first time, then the separator.
#[derive(Debug)]
pub(in super::super) struct Joiner {
    pub(in super::super) separator: Value,
    pub(in super::super) is_used: Mutex<bool>,
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let [] = Args::new(args.to_vec()).bind("a joiner", [])?;
        let mut is_used = self.is_used.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *is_used, true) {
            true => Ok(self.separator.clone()),
            false => Ok(Value::from("")),
        }
    }
}

/// `str` of a value that may be in a text that is marked safe.
pub(in super::super) fn escaped(state: &State<'_, '_>, value: &Value) -> Result<String, Error> {
    let text = text::str_of(state, value)?;
    if value.is_safe() {
        return Ok(text);
    }
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '\'' => out += "&#39;",
            '"' => out += "&#34;",
            letter => out.push(letter),
        }
    }
    Ok(out)
}
