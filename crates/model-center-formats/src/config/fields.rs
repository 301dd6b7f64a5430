//! The fields of a configuration file, taken out one by one with their types checked.

use serde_json::{Map, Value};

use super::variants::not_available;
use crate::{Error, Result};
use model_center_base::file::printable;
use model_center_base::json::parse_object;

/// Sizes above this are refused: far beyond any model, and products of two of them and an element size still fit in 64
/// bits.
const MAX_SIZE: u64 = 1 << 28;

/// Scores of masked positions are at most this: what is left of such a position is 0 beside any other score.
const MASKED: f32 = -1e4;

/// A JSON object whose fields are taken out by name; the others remain for [`Fields::into_rest`].
///
/// A field that is `null` counts as absent, as it does for `transformers`.
#[derive(Debug, Clone)]
pub struct Fields {
    place: String,
    map: Map<String, Value>,
}

impl Fields {
    /// Parse a JSON object; `place` names it in errors.
    ///
    /// # Errors
    /// [`Error::Model`] with line and column for anything but one object with distinct names.
    pub fn parse(text: &str, place: &str) -> Result<Self> {
        Ok(Self { place: place.to_string(), map: parse_object(text, place)? })
    }

    /// The fields of an object that was read before.
    pub fn of_map(map: Map<String, Value>, place: &str) -> Self {
        Self { place: place.to_string(), map }
    }

    /// Sets a field, whatever it was.
    pub fn set(&mut self, name: &str, value: Value) {
        self.map.insert(name.to_owned(), value);
    }

    /// Give a number the name that other families have for it.
    ///
    /// # Errors
    /// A file that has another number under that name.
    pub fn rename(&mut self, own: &str, general: &str) -> Result<()> {
        let Some(value) = self.take(own) else { return Ok(()) };
        if self.peek(general).is_some_and(|other| other.as_f64() != value.as_f64()) {
            let reason = format!("the file states another {general}, and they are two names of one thing");
            return Err(self.error(own, &reason, "remove one of the two fields, or make them equal"));
        }
        self.set(general, value);
        Ok(())
    }

    /// Source of the fields, for messages.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Whether the field is there, even as `null`.
    pub fn has(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    /// The names of all fields.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.map.keys().map(String::as_str)
    }

    /// These fields with the family, where they do not name it.
    #[must_use]
    pub fn of_family(mut self, family: Option<&str>) -> Self {
        if let Some(family) = family.filter(|_| self.peek("model_type").is_none()) {
            self.map.insert("model_type".to_owned(), Value::from(family));
        }
        self
    }

    /// The fields that are left.
    pub fn into_rest(self) -> Map<String, Value> {
        self.map
    }

    /// The error for a field.
    pub fn error(&self, name: &str, reason: &str, fix: &str) -> Error {
        Error::model(format!("{}, field {name}", self.place), reason, fix)
    }

    /// The error for sizes that a file must state and does not.
    pub fn missing_sizes(&self, names: &[&str]) -> Error {
        let names = names.join(", ");
        let reason = "the file does not state it, and there is no safe default for a size";
        self.error(&names, reason, &format!("add {names}"))
    }

    /// The field's value, left in place.
    pub fn peek(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// The field's text, left in place.
    pub fn peek_text(&self, name: &str) -> Result<Option<&str>> {
        self.peek(name).map(|v| v.as_str().ok_or_else(|| self.wrong_type(name, v, "text"))).transpose()
    }

    /// The field's truth value, left in place.
    pub fn peek_flag(&self, name: &str) -> Result<Option<bool>> {
        self.peek(name).map(|v| v.as_bool().ok_or_else(|| self.wrong_type(name, v, "true or false"))).transpose()
    }

    /// The field's whole number from 0 to 2^28, left in place.
    pub fn peek_index(&self, name: &str) -> Result<Option<usize>> {
        let Some(value) = self.peek(name) else { return Ok(None) };
        match value.as_u64() {
            Some(number) if number <= MAX_SIZE => Ok(Some(number as usize)),
            _ => Err(self.wrong_type(name, value, &format!("a whole number from 0 to {MAX_SIZE}"))),
        }
    }

    /// The field's whole number from 1 to 2^28, left in place.
    pub fn peek_size(&self, name: &str) -> Result<Option<usize>> {
        match self.peek_index(name)? {
            Some(0) => Err(self.error(name, "0 is not a size", "give a whole number above 0")),
            size => Ok(size),
        }
    }

    /// The field's finite number, rounded to single precision and left in place.
    pub fn peek_number(&self, name: &str) -> Result<Option<f32>> {
        let Some(value) = self.peek(name) else { return Ok(None) };
        let number = match value {
            Value::Number(number) => number.as_f64().map(|n| n as f32).filter(|n| n.is_finite()),
            _ => None,
        };
        number.map(Some).ok_or_else(|| self.wrong_type(name, value, "a number"))
    }

    /// Take the field out.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.map.shift_remove(name).filter(|value| !value.is_null())
    }

    /// Take a text.
    pub fn take_text(&mut self, name: &str) -> Result<Option<String>> {
        let text = self.peek_text(name)?.map(str::to_owned);
        self.map.shift_remove(name);
        Ok(text)
    }

    /// Take a truth value.
    pub fn take_flag(&mut self, name: &str) -> Result<Option<bool>> {
        let flag = self.peek_flag(name)?;
        self.map.shift_remove(name);
        Ok(flag)
    }

    /// Take a whole number from 0 to 2^28.
    pub fn take_index(&mut self, name: &str) -> Result<Option<usize>> {
        let number = self.peek_index(name)?;
        self.map.shift_remove(name);
        Ok(number)
    }

    /// Take a whole number from 1 to 2^28.
    pub fn take_size(&mut self, name: &str) -> Result<Option<usize>> {
        let size = self.peek_size(name)?;
        self.map.shift_remove(name);
        Ok(size)
    }

    /// Take what ModelCenter adds to the scores of masked positions, a number or its text. Here they are left out
    /// exactly, which is the same where it underflows.
    ///
    /// # Errors
    /// [`Error::Model`] for a value that is not a number, and for one that leaves something of a masked position.
    pub fn take_mask_value(&mut self) -> Result<Option<f32>> {
        let name = "att_mask_value";
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = match &value {
            Value::Number(number) => number.as_f64().map(|number| number as f32),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        match number.filter(|number| !number.is_nan()) {
            None => Err(self.wrong_type(name, &value, "a number")),
            Some(number) if number > MASKED => {
                let reason = format!("{number} leaves something of masked positions, which are left out here");
                Err(self.error(name, &reason, &not_available("att_mask_value = -10000 or less")))
            }
            number => Ok(number),
        }
    }

    /// Take a finite number, rounded to single precision.
    pub fn take_number(&mut self, name: &str) -> Result<Option<f32>> {
        let number = self.peek_number(name)?;
        self.map.shift_remove(name);
        Ok(number)
    }

    /// Take the dtype of the stored weights, under the names of either dialect: whether it is f16.
    pub fn take_half(&mut self) -> Result<Option<bool>> {
        let stored = self.take_either("torch_dtype", "dtype", Fields::take_text)?;
        let stored_half = stored.as_deref().map(|name| name.trim_start_matches("torch.") == "float16");
        let half = self.take_flag("half")?;
        if let (Some(a), Some(b)) = (stored_half, half)
            && a != b
        {
            let reason = "torch_dtype and half contradict each other";
            return Err(self.error("half", reason, "remove one of the two fields"));
        }
        Ok(half.or(stored_half))
    }

    /// Take a field that two dialects name differently; both may be there if they agree.
    pub fn take_either<T: PartialEq + std::fmt::Debug>(
        &mut self,
        hugging_face: &str,
        model_center: &str,
        take: impl Fn(&mut Self, &str) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        self.take_any(&[hugging_face, model_center], take)
    }

    /// Take a field that has any of several names; more than one may be there if all agree.
    pub fn take_any<T: PartialEq + std::fmt::Debug>(
        &mut self,
        names: &[&str],
        take: impl Fn(&mut Self, &str) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let mut known: Option<(&str, T)> = None;
        for &name in names {
            let Some(value) = take(self, name)? else { continue };
            match &known {
                Some((other, first)) if *first != value => {
                    let reason =
                        format!("the file states {other} = {first:?} and {name} = {value:?}, two names of one thing");
                    return Err(self.error(other, &reason, "remove one of the two fields, or make them equal"));
                }
                Some(_) => {}
                None => known = Some((name, value)),
            }
        }
        Ok(known.map(|(_, value)| value))
    }

    fn wrong_type(&self, name: &str, got: &Value, want: &str) -> Error {
        let got = printable(&got.to_string(), 60);
        self.error(name, &format!("{got} is not {want}"), &format!("set {name} to {want}"))
    }
}
