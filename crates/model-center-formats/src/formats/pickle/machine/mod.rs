//! The pickle machine: it builds inert values out of a strict list of instructions, and runs nothing.
//!
//! Defines [`parse`] and [`parse_kept`]; `data` and `calls` have the instructions. Called by [`super::archive`],
//! [`super::legacy`] and [`super::plain`].
//!
//! A pickle is a program for a stack machine. What makes the usual interpreter dangerous is that some instructions look
//! up a name of the running process and call it. Here a name is text. A call gives a value only if the name is on the
//! list of [`Global::meaning`](super::globals::Global::meaning), and what it gives is one of the kinds of [`Value`];
//! any other call ends the reading, with the instruction, its byte and the name. Objects of unknown classes that are
//! made without a call (`NEWOBJ`) become [`Value::Foreign`]: a class name, and nothing of what a class would do with
//! its state. So a checkpoint that has its command line beside its tensors can be read, and no file can make this
//! process do anything but read.
//!
//! Memory is bounded by the limits below: everything that is kept is counted before it is made.

mod calls;
mod data;

use std::collections::HashMap;

use super::input::Input;
use super::opcode;
use super::value::{Id, Object, Value};
use crate::Result;

/// Values of a pickle of tensors but for small integers. A tensor takes about nine.
pub(super) const MAX_VALUES: usize = 1 << 19;
/// Members of lists, tuples and dictionaries together, in a pickle of tensors.
const MAX_ITEMS: usize = 1 << 21;
/// Values on the stack; long lists come in parts of 1,000.
const MAX_STACK: usize = 1 << 18;
/// Open marks. Real nesting is some ten deep.
const MAX_MARKS: usize = 4096;
const MAX_MEMO: usize = 1 << 20;
/// Values of a pickle whose values are kept; an array takes about six.
const MAX_KEPT: usize = 1 << 24;
/// Different floats that are kept.
const MAX_FLOATS: usize = 4096;

/// Reads one pickle of at most `limit` values; `input` is then after its `STOP`.
pub(super) fn parse(input: &mut Input<'_>, limit: usize) -> Result<Object> {
    run(input, Limits { values: limit, items: MAX_ITEMS, memo: MAX_MEMO }, false)
}

/// Reads one pickle with its bytes, by their positions, and with the calls that it asks for. No call is made, so every
/// name is read. Each value and member takes a byte of the input or more, which bounds memory.
pub(super) fn parse_kept(input: &mut Input<'_>) -> Result<Object> {
    let bytes = usize::try_from(input.left()).unwrap_or(usize::MAX);
    run(input, Limits { values: MAX_KEPT.min(bytes.max(64)), items: bytes, memo: bytes.min(MAX_KEPT) }, true)
}

/// Limits of a pickle.
#[derive(Debug, Clone, Copy)]
struct Limits {
    values: usize,
    items: usize,
    memo: usize,
}

fn run(input: &mut Input<'_>, limits: Limits, keeps: bool) -> Result<Object> {
    let mut machine = Machine {
        input,
        limits,
        keeps,
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
        globals: HashMap::new(),
        floats: HashMap::new(),
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
    limits: Limits,
    /// Whether bytes and calls are kept.
    keeps: bool,
    /// The byte of the present instruction.
    at: u64,
    values: Vec<Value>,
    items: usize,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: Vec<Option<Id>>,
    globals: HashMap<(String, String), Id>,
    floats: HashMap<u64, Id>,
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
            opcode::MARK if self.marks.len() < MAX_MARKS => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            opcode::MARK => self.refused(format!("MARK: nested deeper than {MAX_MARKS}")),
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
                let number = f64::from_be_bytes(self.input.array()?);
                self.float(number)
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

    /// The first different floats are kept: settings are among them, and a history of losses may have any number.
    fn float(&mut self, number: f64) -> Result<()> {
        if let Some(known) = self.floats.get(&number.to_bits()) {
            return self.push(*known);
        }
        if self.floats.len() == MAX_FLOATS {
            return self.push(Id::of_index(NUMBER));
        }
        self.make(Value::Float(number))?;
        let made = self.top()?;
        self.floats.insert(number.to_bits(), made);
        Ok(())
    }

    fn push(&mut self, id: Id) -> Result<()> {
        if self.stack.len() == MAX_STACK {
            return self.refused(format!("more than {MAX_STACK} values wait on the stack"));
        }
        self.stack.push(id);
        Ok(())
    }

    fn make(&mut self, value: Value) -> Result<()> {
        if self.values.len() >= self.limits.values {
            return self.refused(format!("more than {} values", self.limits.values));
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
        if self.items > self.limits.items {
            let limit = self.limits.items;
            return self.refused(format!("more than {limit} members of lists, tuples and dictionaries"));
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
        if index >= self.limits.memo {
            let limit = self.limits.memo;
            return self.refused(format!("{}: number {index}, the limit is {limit}", opcode::name(code)));
        }
        if index >= self.memo.len() {
            self.memo.resize(index + 1, NEVER);
        }
        self.memo[index] = Some(id);
        Ok(())
    }
}
