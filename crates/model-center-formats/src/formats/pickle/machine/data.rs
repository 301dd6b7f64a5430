//! Instructions that push numbers and texts, or make and fill collections.
//!
//! Part of [`Machine`]; called by its dispatch.

use super::super::opcode;
use super::super::value::{Id, Value, value, value_mut};
use super::{BYTES, EMPTY_TUPLE, Machine, NOTHING, SET};
use crate::Result;

/// The longest text.
const MAX_TEXT_BYTES: u64 = 16 << 20;
/// The longest integer, in bytes.
const MAX_LONG_BYTES: u64 = 1024;

impl Machine<'_, '_> {
    fn integer(&mut self, value: i64) -> Result<()> {
        match Id::of_integer(value) {
            Some(id) => self.push(id),
            None => self.make(Value::Integer(value)),
        }
    }

    pub(super) fn scalar(&mut self, code: u8) -> Result<()> {
        match code {
            opcode::BININT => {
                let value = i32::from_le_bytes(self.input.array()?);
                self.integer(i64::from(value))
            }
            opcode::BININT1 => {
                let value = self.input.byte()?;
                self.integer(i64::from(value))
            }
            opcode::BININT2 => {
                let value = u16::from_le_bytes(self.input.array()?);
                self.integer(i64::from(value))
            }
            opcode::LONG1 | opcode::LONG4 => {
                let length = self.length(if code == opcode::LONG1 { 1 } else { 4 })?;
                let bytes = self.input.bytes(length, MAX_LONG_BYTES)?;
                self.long(bytes)
            }
            opcode::SHORT_BINBYTES | opcode::BINBYTES | opcode::BINBYTES8 | opcode::BYTEARRAY8 => {
                let length = self.length(opcode::length_bytes(code))?;
                let at = self.input.position();
                self.input.skip(length)?;
                match self.keeps {
                    true => self.make(Value::Stretch { at, bytes: length }),
                    false => self.push(Id::of_index(BYTES)),
                }
            }
            // Python 2's strings are bytes; those in weights are names.
            _ => {
                let length = self.length(opcode::length_bytes(code))?;
                let text = self.input.text(length, MAX_TEXT_BYTES)?;
                self.make(Value::Text(text.into()))
            }
        }
    }

    fn length(&mut self, bytes: usize) -> Result<u64> {
        let mut length = [0; 8];
        self.input.fill(&mut length[..bytes])?;
        Ok(u64::from_le_bytes(length))
    }

    fn long(&mut self, bytes: Vec<u8>) -> Result<()> {
        if bytes.len() > 8 {
            return self.make(Value::Long(bytes.into()));
        }
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut all = [if negative { 0xff } else { 0 }; 8];
        all[..bytes.len()].copy_from_slice(&bytes);
        self.integer(i64::from_le_bytes(all))
    }

    pub(super) fn collection(&mut self, code: u8) -> Result<()> {
        match code {
            opcode::EMPTY_TUPLE => self.push(Id::of_index(EMPTY_TUPLE)),
            opcode::EMPTY_LIST => self.make(Value::List(Vec::new())),
            opcode::EMPTY_DICT => self.make(Value::Dict(Vec::new())),
            opcode::EMPTY_SET => self.push(Id::of_index(SET)),
            opcode::FROZENSET => {
                self.since_mark()?;
                self.push(Id::of_index(SET))
            }
            opcode::TUPLE1 | opcode::TUPLE2 | opcode::TUPLE3 => {
                let mut items = vec![Id::of_index(NOTHING); usize::from(code - opcode::TUPLE1) + 1];
                for item in items.iter_mut().rev() {
                    *item = self.pop()?;
                }
                self.tuple(items)
            }
            opcode::TUPLE => {
                let items = self.since_mark()?;
                self.tuple(items)
            }
            opcode::LIST => {
                let items = self.since_mark()?;
                self.count(items.len())?;
                self.make(Value::List(items))
            }
            opcode::DICT => {
                let items = self.since_mark()?;
                self.make(Value::Dict(Vec::new()))?;
                self.set_items(&items)
            }
            opcode::APPEND => {
                let item = self.pop()?;
                self.append(&[item])
            }
            opcode::APPENDS => {
                let items = self.since_mark()?;
                self.append(&items)
            }
            opcode::ADDITEMS => {
                self.since_mark()?;
                match value(&self.values, self.top()?) {
                    Some(Value::Set | Value::Foreign(_)) => Ok(()),
                    _ => self.damaged("ADDITEMS to something that is not a set"),
                }
            }
            opcode::SETITEM => {
                let item = self.pop()?;
                let key = self.pop()?;
                self.set_items(&[key, item])
            }
            _ => {
                let items = self.since_mark()?;
                self.set_items(&items)
            }
        }
    }

    fn tuple(&mut self, items: Vec<Id>) -> Result<()> {
        self.count(items.len())?;
        self.make(Value::Tuple(items.into()))
    }

    fn append(&mut self, items: &[Id]) -> Result<()> {
        self.count(items.len())?;
        let top = self.top()?;
        match value_mut(&mut self.values, top) {
            Some(Value::List(list)) => list.extend_from_slice(items),
            // A class of its own that is a list: what it holds plays no part.
            Some(Value::Foreign(_)) => {}
            _ => return self.damaged("APPEND to something that is not a list"),
        }
        Ok(())
    }

    fn set_items(&mut self, items: &[Id]) -> Result<()> {
        self.count(items.len())?;
        let top = self.top()?;
        let (pairs, rest) = items.as_chunks::<2>();
        if !rest.is_empty() {
            return self.damaged("a key without its value");
        }
        match value_mut(&mut self.values, top) {
            Some(Value::Dict(dict)) => dict.extend(pairs.iter().map(|[key, item]| (*key, *item))),
            // A class of its own that is a dictionary: what it holds plays no part.
            Some(Value::Foreign(_)) => {}
            _ => return self.damaged("SETITEM in something that is not a dictionary"),
        }
        Ok(())
    }
}
