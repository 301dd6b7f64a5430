//! Instructions that name, call or make something: where a pickle would act, and where this one stops.
//!
//! Part of [`Machine`]; called by its dispatch.

use super::super::globals::{Global, Meaning};
use super::super::opcode;
use super::super::value::{Call, Id, Value, describe, value, value_mut};
use super::{Machine, NOTHING};
use crate::Result;

/// Different names of modules, classes and functions; each is kept once.
const MAX_GLOBALS: usize = 4096;
/// The longest name of a module or class.
const MAX_NAME: usize = 512;

impl Machine<'_, '_> {
    pub(super) fn global(&mut self, code: u8) -> Result<()> {
        let (module, name) = if code == opcode::GLOBAL {
            (self.input.line(MAX_NAME)?, self.input.line(MAX_NAME)?)
        } else {
            let (name, module) = (self.pop()?, self.pop()?);
            match (value(&self.values, module), value(&self.values, name)) {
                (Some(Value::Text(module)), Some(Value::Text(name))) if module.len().max(name.len()) <= MAX_NAME => {
                    (module.to_string(), name.to_string())
                }
                _ => return self.damaged("STACK_GLOBAL without two texts that can be names"),
            }
        };
        let global = Global { module, name };
        if global.is_suspect() && !self.keeps {
            return self.hostile(code, &global);
        }
        let key = (global.module.clone(), global.name.clone());
        if let Some(known) = self.globals.get(&key) {
            return self.push(*known);
        }
        if self.globals.len() == MAX_GLOBALS {
            return self.refused(format!("more than {MAX_GLOBALS} different names"));
        }
        self.make(Value::Global(Box::new(global)))?;
        let made = self.top()?;
        self.globals.insert(key, made);
        Ok(())
    }

    fn hostile<T>(&self, code: u8, global: &Global) -> Result<T> {
        Err(self
            .input
            .hostile(self.at, format!("{} of the global {global}, which no file of weights needs", opcode::name(code))))
    }

    /// A call: a value of a known kind, or the end.
    pub(super) fn reduce(&mut self) -> Result<()> {
        let (arguments, callee) = (self.pop()?, self.pop()?);
        if self.keeps {
            return self.make(Value::Call(Box::new(Call { callee, arguments, state: None })));
        }
        if matches!(value(&self.values, callee), Some(Value::Global(_))) {
            self.arguments(arguments)?;
        }
        match self.meaning(callee)? {
            Meaning::OfClass => self.of_class(arguments),
            meaning => self.call(meaning, callee, arguments),
        }
    }

    /// Meaning of a call of a value, if that is known.
    fn meaning(&self, callee: Id) -> Result<Meaning> {
        let Some(Value::Global(global)) = value(&self.values, callee) else {
            return self.damaged(format!("REDUCE calls {}, which cannot be called", describe(&self.values, callee)));
        };
        match global.meaning() {
            Some(meaning) => Ok(meaning),
            None => self.refused(format!("REDUCE calls the global {global}, which is not read")),
        }
    }

    fn arguments(&self, arguments: Id) -> Result<&[Id]> {
        match value(&self.values, arguments) {
            Some(Value::Tuple(given)) => Ok(given),
            _ => self.damaged("REDUCE without a tuple of arguments"),
        }
    }

    /// `_rebuild_from_type_v2(function, class, arguments, state)`: a tensor with attributes of Python, which have no
    /// effect. Other classes may mean anything, such as one rank's part of a tensor.
    fn of_class(&mut self, arguments: Id) -> Result<()> {
        let &[function, class, inner, ..] = self.arguments(arguments)? else {
            return self.damaged("REDUCE makes an object of a class without a function, a class and arguments");
        };
        match value(&self.values, class) {
            Some(Value::Global(class)) if class.is_tensor_class() => {}
            Some(Value::Global(class)) => return self.other_class(class),
            _ => return self.damaged(format!("REDUCE makes an object of {}, no class", describe(&self.values, class))),
        }
        match self.meaning(function)? {
            meaning @ (Meaning::Tensor | Meaning::Parameter) => self.call(meaning, function, inner),
            _ => self.damaged(format!("REDUCE makes a tensor by calling {}", describe(&self.values, function))),
        }
    }

    fn other_class<T>(&self, class: &Global) -> Result<T> {
        let what = match class.sharded() {
            Some(fix) => {
                let reason = format!("it holds a {class}, one rank's part of a tensor that several ranks share");
                return Err(self.input.refused_for(self.at, reason, fix));
            }
            None => format!("REDUCE makes a tensor of the class {class}, which is not read"),
        };
        self.refused(what)
    }

    fn call(&mut self, meaning: Meaning, callee: Id, arguments: Id) -> Result<()> {
        let first = self.arguments(arguments)?.first().copied();
        match meaning {
            Meaning::Tensor => self.make(Value::Tensor(arguments)),
            Meaning::Parameter => match first.map(|id| (id, value(&self.values, id))) {
                Some((id, Some(Value::Tensor(_)))) => self.push(id),
                _ => {
                    let callee = describe(&self.values, callee);
                    self.damaged(format!("REDUCE calls {callee} on something that is not a tensor"))
                }
            },
            Meaning::Plain | Meaning::OfClass => self.make(Value::Foreign(callee)),
            Meaning::Namespace => self.make(Value::Namespace(Id::of_index(NOTHING))),
            Meaning::Shape => match first.map(|id| (id, value(&self.values, id))) {
                Some((id, Some(Value::Tuple(_)))) => self.push(id),
                _ => self.make(Value::Foreign(callee)),
            },
            Meaning::Dictionary => {
                let pairs = first.map_or_else(|| Ok(Vec::new()), |list| self.pairs(list))?;
                self.count(2 * pairs.len())?;
                self.make(Value::Dict(pairs))
            }
        }
    }

    /// The pairs that a dictionary is called with: a list of lists or tuples of two, or another dictionary. Anything
    /// else, such as the factory of a dictionary of defaults, has none.
    fn pairs(&self, id: Id) -> Result<Vec<(Id, Id)>> {
        let pair = |id: &Id| match value(&self.values, *id) {
            Some(Value::List(two)) if two.len() == 2 => Ok((two[0], two[1])),
            Some(Value::Tuple(two)) if two.len() == 2 => Ok((two[0], two[1])),
            _ => self.damaged("REDUCE makes a dictionary of something that is not a pair"),
        };
        match value(&self.values, id) {
            Some(Value::List(list)) if list.len() <= self.limits.items - self.items => list.iter().map(pair).collect(),
            Some(Value::Dict(pairs)) if pairs.len() <= self.limits.items - self.items => Ok(pairs.clone()),
            Some(Value::List(_) | Value::Dict(_)) => self.refused("REDUCE copies a dictionary too large"),
            _ => Ok(Vec::new()),
        }
    }

    /// An object made without a call: a dictionary, or an inert one of its class.
    pub(super) fn new_object(&mut self, code: u8) -> Result<()> {
        if code == opcode::NEWOBJ_EX {
            self.pop()?;
        }
        let (arguments, class) = (self.pop()?, self.pop()?);
        if self.keeps {
            return self.make(Value::Call(Box::new(Call { callee: class, arguments, state: None })));
        }
        let Some(Value::Global(global)) = value(&self.values, class) else {
            return self.damaged(format!("{} of {}, no class", opcode::name(code), describe(&self.values, class)));
        };
        match global.meaning() {
            Some(Meaning::Dictionary) => self.make(Value::Dict(Vec::new())),
            Some(Meaning::Tensor | Meaning::Parameter | Meaning::OfClass) => {
                self.damaged(format!("{} of the global {global}, which is not a class", opcode::name(code)))
            }
            Some(Meaning::Namespace) => self.make(Value::Namespace(Id::of_index(NOTHING))),
            Some(Meaning::Plain | Meaning::Shape) | None => self.make(Value::Foreign(class)),
        }
    }

    /// An object is given its state: dictionaries and foreign objects have no use for it.
    pub(super) fn build(&mut self) -> Result<()> {
        let state = self.pop()?;
        let top = self.top()?;
        match value_mut(&mut self.values, top) {
            Some(Value::Call(call)) => {
                call.state = Some(state);
                Ok(())
            }
            Some(Value::Namespace(held)) => {
                *held = state;
                Ok(())
            }
            Some(Value::Dict(_) | Value::Foreign(_)) => Ok(()),
            _ => self.refused(format!("BUILD gives a state to {}", describe(&self.values, top))),
        }
    }

    /// Something outside of the pickle: only storages are known.
    pub(super) fn storage(&mut self) -> Result<()> {
        let id = self.pop()?;
        let kind = match value(&self.values, id) {
            Some(Value::Tuple(items)) => items.first().and_then(|kind| value(&self.values, *kind)),
            _ => None,
        };
        match kind {
            Some(Value::Text(kind)) if **kind == *"storage" => self.make(Value::Storage(id)),
            _ => self.refused("BINPERSID of something that is not a storage"),
        }
    }
}
