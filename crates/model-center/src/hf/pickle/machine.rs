//! The pickle machine: it builds inert values out of a strict list of instructions, and runs nothing.
//!
//! Defines [`parse`] and, for messages, the names of what it does not know; called by [`super::archive`] and [`super::legacy`].
//!
//! A pickle is a program for a stack machine. What makes the usual interpreter dangerous is that some instructions look up
//! a name of the running process and call it. Here a name is text. A call gives a value only if the name is on the list of
//! [`Global::meaning`], and what it gives is one of the kinds of [`Value`]; any other call ends the reading, with the
//! instruction, its byte and the name. Objects of unknown classes that are made without a call (`NEWOBJ`) become
//! [`Value::Foreign`]: a class name, and nothing of what a class would do with its state. So a checkpoint that has its
//! command line beside its tensors can be read, and no file can make this process do anything but read.
//!
//! Memory is bounded by the limits below, and no instruction takes more than in proportion to its own bytes.

use super::globals::{Global, Meaning};
use super::input::Input;
use super::opcode;
use super::value::{Id, Object, Value, describe, value, value_mut};
use crate::Result;

/// Values of one pickle but for small integers. A tensor takes about eight.
const VALUE_LIMIT: usize = 1 << 19;
/// Members of lists, tuples and dictionaries together.
const ITEM_LIMIT: usize = 1 << 21;
/// Values on the stack; long lists come in parts of 1,000.
const STACK_LIMIT: usize = 1 << 18;
/// Open marks. Real nesting is some ten deep.
const MARK_LIMIT: usize = 4096;
/// Remembered values.
const MEMO_LIMIT: usize = 1 << 20;
/// The longest text.
const TEXT_LIMIT: u64 = 16 << 20;
/// The longest integer, in bytes.
const LONG_LIMIT: u64 = 1024;
/// The longest name of a module or class.
const NAME_LIMIT: usize = 512;

/// Read one pickle; `input` is then behind its `STOP`.
///
/// # Errors
/// [`crate::Error::Model`] naming the byte: an instruction or a call that is not on the list, a limit, or contents that
/// make no sense.
pub(super) fn parse(input: &mut Input<'_>) -> Result<Object> {
    let mut machine = Machine {
        input,
        at: 0,
        values: vec![
            Value::Nothing,
            Value::Truth(false),
            Value::Truth(true),
            Value::Number,
            Value::Bytes,
            Value::Set,
            Value::Tuple(Box::default()),
        ],
        items: 0,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
    };
    loop {
        machine.at = machine.input.offset();
        let code = machine.input.byte()?;
        if code == opcode::STOP {
            let root = machine.pop()?;
            return Ok(Object { values: machine.values, root });
        }
        machine.step(code)?;
    }
}

// Values that are there from the start, by their places in `Machine::values`.
const NOTHING: usize = 0;
const FALSE: usize = 1;
const TRUE: usize = 2;
const NUMBER: usize = 3;
const BYTES: usize = 4;
const SET: usize = 5;
const EMPTY_TUPLE: usize = 6;
/// In the memo where nothing was remembered.
const NEVER: Option<Id> = None;

struct Machine<'i, 'f> {
    input: &'i mut Input<'f>,
    /// The byte of the present instruction.
    at: u64,
    values: Vec<Value>,
    items: usize,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: Vec<Option<Id>>,
}

impl Machine<'_, '_> {
    fn damaged<T>(&self, reason: impl AsRef<str>) -> Result<T> {
        Err(self.input.damaged(self.at, reason))
    }

    fn refused<T>(&self, reason: impl AsRef<str>) -> Result<T> {
        Err(self.input.refused(self.at, reason))
    }

    fn step(&mut self, code: u8) -> Result<()> {
        match code {
            opcode::PROTO => {
                let version = self.input.byte()?;
                if version > 5 {
                    return self.refused(format!("PROTO: pickle protocol {version}, 5 is the newest known"));
                }
                Ok(())
            }
            opcode::FRAME => {
                let length = u64::from_le_bytes(self.input.array()?);
                if length > self.input.left() {
                    return self.damaged(format!("FRAME of {length} bytes, but {} are left", self.input.left()));
                }
                Ok(())
            }
            opcode::MARK if self.marks.len() < MARK_LIMIT => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            opcode::MARK => self.refused(format!("MARK: nested deeper than {MARK_LIMIT}")),
            opcode::POP => {
                if self.marks.last() == Some(&self.stack.len()) {
                    self.marks.pop();
                    return Ok(());
                }
                self.pop().map(drop)
            }
            opcode::POP_MARK => self.since_mark().map(drop),
            opcode::NONE => self.push(Id::of_index(NOTHING)),
            opcode::NEWFALSE => self.push(Id::of_index(FALSE)),
            opcode::NEWTRUE => self.push(Id::of_index(TRUE)),
            opcode::BINFLOAT => {
                self.input.skip(8)?;
                self.push(Id::of_index(NUMBER))
            }
            opcode::BINGET | opcode::LONG_BINGET => self.recall(code),
            opcode::BINPUT | opcode::LONG_BINPUT | opcode::MEMOIZE => self.remember(code),
            opcode::GLOBAL | opcode::STACK_GLOBAL => self.global(code),
            opcode::REDUCE => self.reduce(),
            opcode::NEWOBJ | opcode::NEWOBJ_EX => self.new_object(code),
            opcode::BUILD => self.build(),
            opcode::BINPERSID => self.storage(),
            _ if opcode::is_scalar(code) => self.scalar(code),
            _ if opcode::is_collection(code) => self.collection(code),
            _ => self.refused(format!("the instruction {} is not read", opcode::name(code))),
        }
    }

    fn push(&mut self, id: Id) -> Result<()> {
        if self.stack.len() == STACK_LIMIT {
            return self.refused(format!("more than {STACK_LIMIT} values wait on the stack"));
        }
        self.stack.push(id);
        Ok(())
    }

    fn make(&mut self, value: Value) -> Result<()> {
        if self.values.len() == VALUE_LIMIT {
            return self.refused(format!("more than {VALUE_LIMIT} values"));
        }
        self.values.push(value);
        self.push(Id::of_index(self.values.len() - 1))
    }

    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self) -> Result<Id> {
        match self.stack.pop() {
            Some(id) if self.stack.len() >= self.floor() => Ok(id),
            _ => self.damaged("an instruction wants a value, but there is none"),
        }
    }

    fn top(&self) -> Result<Id> {
        match self.stack.last() {
            Some(id) if self.stack.len() > self.floor() => Ok(*id),
            _ => self.damaged("an instruction wants a value, but there is none"),
        }
    }

    /// Take what was pushed since the last mark, and the mark.
    fn since_mark(&mut self) -> Result<Vec<Id>> {
        match self.marks.pop() {
            Some(mark) => Ok(self.stack.split_off(mark)),
            None => self.damaged("an instruction wants a mark, but there is none"),
        }
    }

    fn count(&mut self, items: usize) -> Result<()> {
        self.items += items;
        if self.items > ITEM_LIMIT {
            return self.refused(format!("more than {ITEM_LIMIT} members of lists, tuples and dictionaries"));
        }
        Ok(())
    }

    fn memo_index(&mut self, code: u8) -> Result<usize> {
        Ok(match code {
            opcode::BINGET | opcode::BINPUT => usize::from(self.input.byte()?),
            opcode::LONG_BINGET | opcode::LONG_BINPUT => u32::from_le_bytes(self.input.array()?) as usize,
            _ => self.memo.len(),
        })
    }

    fn recall(&mut self, code: u8) -> Result<()> {
        let index = self.memo_index(code)?;
        match self.memo.get(index).copied().flatten() {
            Some(id) => self.push(id),
            None => self.damaged(format!("{}: nothing was remembered as {index}", opcode::name(code))),
        }
    }

    fn remember(&mut self, code: u8) -> Result<()> {
        let (index, id) = (self.memo_index(code)?, self.top()?);
        if index >= MEMO_LIMIT {
            return self.refused(format!("{}: number {index}, the limit is {MEMO_LIMIT}", opcode::name(code)));
        }
        if index >= self.memo.len() {
            self.memo.resize(index + 1, NEVER);
        }
        self.memo[index] = Some(id);
        Ok(())
    }

    fn integer(&mut self, value: i64) -> Result<()> {
        match Id::of_integer(value) {
            Some(id) => self.push(id),
            None => self.make(Value::Integer(value)),
        }
    }

    fn scalar(&mut self, code: u8) -> Result<()> {
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
                let bytes = self.input.bytes(length, LONG_LIMIT)?;
                self.long(bytes)
            }
            opcode::SHORT_BINBYTES | opcode::BINBYTES | opcode::BINBYTES8 | opcode::BYTEARRAY8 => {
                let length = self.length(opcode::length_bytes(code))?;
                self.input.skip(length)?;
                self.push(Id::of_index(BYTES))
            }
            // The strings of Python 2 are bytes; those of weights are names.
            _ => {
                let length = self.length(opcode::length_bytes(code))?;
                let text = self.input.text(length, TEXT_LIMIT)?;
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

    fn collection(&mut self, code: u8) -> Result<()> {
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
                    _ => self.damaged("ADDITEMS to something that is no set"),
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
            _ => return self.damaged("APPEND to something that is no list"),
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
            _ => return self.damaged("SETITEM in something that is no dictionary"),
        }
        Ok(())
    }

    fn global(&mut self, code: u8) -> Result<()> {
        let (module, name) = if code == opcode::GLOBAL {
            (self.input.line(NAME_LIMIT)?, self.input.line(NAME_LIMIT)?)
        } else {
            let (name, module) = (self.pop()?, self.pop()?);
            match (value(&self.values, module), value(&self.values, name)) {
                (Some(Value::Text(module)), Some(Value::Text(name))) if module.len().max(name.len()) <= NAME_LIMIT => {
                    (module.to_string(), name.to_string())
                }
                _ => return self.damaged("STACK_GLOBAL without two texts that can be names"),
            }
        };
        let global = Global { module, name };
        if global.is_suspect() {
            return self.hostile(code, &global);
        }
        self.make(Value::Global(Box::new(global)))
    }

    fn hostile<T>(&self, code: u8, global: &Global) -> Result<T> {
        Err(self
            .input
            .hostile(self.at, format!("{} of the global {global}, which no file of weights needs", opcode::name(code))))
    }

    /// A call: a value of a known kind, or the end.
    fn reduce(&mut self) -> Result<()> {
        let (arguments, callee) = (self.pop()?, self.pop()?);
        let Some(Value::Global(global)) = value(&self.values, callee) else {
            return self.damaged(format!("REDUCE calls {}, which cannot be called", describe(&self.values, callee)));
        };
        let Some(Value::Tuple(given)) = value(&self.values, arguments) else {
            return self.damaged("REDUCE without a tuple of arguments");
        };
        let first = given.first().copied();
        match global.meaning() {
            None => self.refused(format!("REDUCE calls the global {global}, which is not read")),
            Some(Meaning::Tensor) => self.make(Value::Tensor(arguments)),
            Some(Meaning::Parameter) => match first.map(|id| (id, value(&self.values, id))) {
                Some((id, Some(Value::Tensor(_)))) => self.push(id),
                _ => self.damaged(format!("REDUCE calls the global {global} on something that is no tensor")),
            },
            Some(Meaning::Plain) => self.make(Value::Foreign(callee)),
            Some(Meaning::Dictionary) => {
                let pairs = first.map_or_else(|| Ok(Vec::new()), |list| self.pairs(list))?;
                self.count(2 * pairs.len())?;
                self.make(Value::Dict(pairs))
            }
        }
    }

    /// The pairs that a dictionary is called with: a list of lists or tuples of two, or another dictionary. Anything else,
    /// such as the factory of a dictionary of defaults, has none.
    fn pairs(&self, id: Id) -> Result<Vec<(Id, Id)>> {
        let pair = |id: &Id| match value(&self.values, *id) {
            Some(Value::List(two)) if two.len() == 2 => Ok((two[0], two[1])),
            Some(Value::Tuple(two)) if two.len() == 2 => Ok((two[0], two[1])),
            _ => self.damaged("REDUCE makes a dictionary of something that is no pair"),
        };
        match value(&self.values, id) {
            Some(Value::List(list)) if list.len() <= ITEM_LIMIT - self.items => list.iter().map(pair).collect(),
            Some(Value::Dict(pairs)) if pairs.len() <= ITEM_LIMIT - self.items => Ok(pairs.clone()),
            Some(Value::List(_) | Value::Dict(_)) => self.refused("REDUCE copies a dictionary too large"),
            _ => Ok(Vec::new()),
        }
    }

    /// An object made without a call: a dictionary, or an inert one of its class.
    fn new_object(&mut self, code: u8) -> Result<()> {
        if code == opcode::NEWOBJ_EX {
            self.pop()?;
        }
        let (_, class) = (self.pop()?, self.pop()?);
        let Some(Value::Global(global)) = value(&self.values, class) else {
            return self.damaged(format!("{} of {}, no class", opcode::name(code), describe(&self.values, class)));
        };
        match global.meaning() {
            Some(Meaning::Dictionary) => self.make(Value::Dict(Vec::new())),
            Some(Meaning::Tensor | Meaning::Parameter) => {
                self.damaged(format!("{} of the global {global}, which is no class", opcode::name(code)))
            }
            Some(Meaning::Plain) | None => self.make(Value::Foreign(class)),
        }
    }

    /// An object is given its state: dictionaries and foreign objects have no use for it.
    fn build(&mut self) -> Result<()> {
        self.pop()?;
        let top = self.top()?;
        match value(&self.values, top) {
            Some(Value::Dict(_) | Value::Foreign(_)) => Ok(()),
            _ => self.refused(format!("BUILD gives a state to {}", describe(&self.values, top))),
        }
    }

    /// Something outside of the pickle: only storages are known.
    fn storage(&mut self) -> Result<()> {
        let id = self.pop()?;
        let kind = match value(&self.values, id) {
            Some(Value::Tuple(items)) => items.first().and_then(|kind| value(&self.values, *kind)),
            _ => None,
        };
        match kind {
            Some(Value::Text(kind)) if **kind == *"storage" => self.make(Value::Storage(id)),
            _ => self.refused("BINPERSID of something that is no storage"),
        }
    }
}
