//! From values to tensors: which dictionary of a pickle has the weights, and what each of its tensors is a view of.

use std::path::Path;

use super::super::safetensors::{MAX_RANK, StoredDtype, TensorEntry, is_tensor_name};
use super::super::stored::damaged;
use super::globals::stored_type;
use super::input::refused;
use super::tree::Scalar;
use super::value::{Id, Object, Value};
use crate::{Error, Result};
use model_center_base::file::printable;

/// Keys at which the dictionary of tensors may be, besides the top level.
const PLACES: [&str; 3] = ["state_dict", "model", "module"];
/// More tensors than any one file has.
const MAX_TENSORS: usize = 1 << 17;
/// Dimensions of all tensors together.
const MAX_DIMENSIONS: usize = 1 << 20;

/// A pickle's description of a storage.
#[derive(Debug, Clone, Copy)]
pub(super) struct Storage<'a> {
    /// Its name in the container.
    pub(super) key: &'a str,
    pub(super) dtype: StoredDtype,
    pub(super) elements: u64,
}

impl Storage<'_> {
    /// Its length, `None` if it overflows.
    pub(super) fn bytes(&self) -> Option<u64> {
        self.elements.checked_mul(element_bytes(self.dtype))
    }
}

/// Bytes of an element; all types of storages have whole ones.
pub(super) fn element_bytes(dtype: StoredDtype) -> u64 {
    dtype.bitsize() as u64 / 8
}

/// Offset, shape and strides of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct View {
    /// The byte of the file at which the first element begins.
    pub(super) start: u64,
    /// Distance in elements along each axis; `None` if contiguous and row-major.
    pub(super) strides: Option<Box<[u64]>>,
}

/// The dictionary's tensors and the keys of what else it has.
#[derive(Debug)]
pub(super) struct State {
    /// In the order of the file.
    pub(super) tensors: Vec<(TensorEntry, View)>,
    /// Keys of values that are no tensors.
    pub(super) others: Vec<String>,
    /// Other values by path, where they were asked for.
    pub(super) scalars: Vec<(String, Scalar)>,
    /// Dimensions of all tensors.
    dimensions: usize,
}

impl State {
    pub(super) fn new() -> Self {
        State { tensors: Vec::new(), others: Vec::new(), scalars: Vec::new(), dimensions: 0 }
    }

    /// Adds a tensor under `name`, which is checked.
    pub(super) fn add(
        &mut self,
        path: &Path,
        object: &Object,
        (name, arguments): (&str, Id),
        locate: &mut dyn FnMut(&Storage<'_>) -> Result<u64>,
    ) -> Result<()> {
        if !is_tensor_name(name) {
            return Err(damaged(path.display(), "a tensor name is empty, too long or has control characters in it"));
        }
        let resolved = resolve(path, object, name, arguments, locate)?;
        self.dimensions += resolved.0.shape.len();
        if self.tensors.len() == MAX_TENSORS || self.dimensions > MAX_DIMENSIONS {
            let reason = format!("more than {MAX_TENSORS} tensors or {MAX_DIMENSIONS} dimensions");
            return Err(refused(path, reason));
        }
        self.tensors.push(resolved);
        Ok(())
    }
}

/// Finds the dictionary of tensors and checks each; `locate` returns the file offset of a storage.
pub(super) fn tensors(
    path: &Path,
    object: &Object,
    locate: &mut dyn FnMut(&Storage<'_>) -> Result<u64>,
) -> Result<State> {
    let mut state = State::new();
    let dict = dictionary(path, object)?;
    for &(key, value) in object.dict(dict).unwrap_or_default() {
        let Some(name) = object.text(key) else {
            return Err(refused(path, format!("a tensor's name is {}, not a text", object.describe(key))));
        };
        if !is_tensor_name(name) {
            return Err(damaged(path.display(), "a tensor name is empty, too long or has control characters in it"));
        }
        match object.value(value) {
            Some(Value::Tensor(arguments)) => state.add(path, object, (name, *arguments), locate)?,
            Some(Value::Foreign(_) | Value::Global(_)) => {
                let kind = object.describe(value);
                let reason = format!("{} is {kind}, which is not read as a tensor", printable(name, 200));
                return Err(refused(path, reason));
            }
            _ => state.others.push(name.to_string()),
        }
    }
    Ok(state)
}

/// The one dictionary that has tensors.
fn dictionary(path: &Path, object: &Object) -> Result<Id> {
    let has_tensors = |id: Id| {
        let pairs = object.dict(id).unwrap_or_default();
        pairs.iter().any(|(_, value)| matches!(object.value(*value), Some(Value::Tensor(_))))
    };
    let mut found: Vec<(&str, Id)> = Vec::new();
    if has_tensors(object.root) {
        found.push(("the top", object.root));
    }
    let below = PLACES.iter().filter_map(|place| object.get(object.root, place).map(|id| (*place, id)));
    found.extend(below.clone().filter(|(_, id)| has_tensors(*id)));
    match found.as_slice() {
        [(_, id)] => Ok(*id),
        [] => {
            let kind = object.describe(object.root);
            let seen: Vec<String> = below.map(|(place, id)| format!("{place} is {}", object.describe(id))).collect();
            let seen = if seen.is_empty() { String::new() } else { format!("; {}", seen.join(", ")) };
            let places = PLACES.join(", ");
            let reason = format!("the file holds {kind} without tensors, neither at the top nor under {places}{seen}");
            Err(refused(path, reason))
        }
        several => {
            let places: Vec<&str> = several.iter().map(|(place, _)| *place).collect();
            let reason = format!("there are several dictionaries of tensors: {}", places.join(", "));
            Err(Error::model(path.display().to_string(), reason, "save the one that is meant into a file of its own"))
        }
    }
}

/// A storage's tuple, `("storage", class, key, device, elements)`; in older files with a view, which must be empty.
pub(super) fn storage<'a>(path: &Path, object: &'a Object, id: Id) -> Result<Storage<'a>> {
    let items = object.tuple(id).unwrap_or_default();
    let [_, class, key, _, elements, rest @ ..] = items else {
        return Err(damaged(path.display(), format!("a storage is described by {} values", items.len())));
    };
    let dtype = match object.value(*class) {
        Some(Value::Global(class)) => {
            stored_type(class).ok_or_else(|| refused(path, format!("a storage of the type {class}")))?
        }
        _ => return Err(damaged(path.display(), format!("the type of a storage is {}", object.describe(*class)))),
    };
    let elements = object.integer(*elements).and_then(|elements| u64::try_from(elements).ok());
    let (Some(key), Some(elements)) = (object.text(*key), elements) else {
        return Err(damaged(path.display(), "a storage without a text for its key, or without a length"));
    };
    if rest.iter().any(|view| !matches!(object.value(*view), Some(Value::Nothing))) {
        return Err(refused(path, format!("the storage {} is a view of another", printable(key, 40))));
    }
    Ok(Storage { key, dtype, elements })
}

/// Check a tensor's arguments, `(storage, offset, size, stride, …)`, against its storage.
pub(super) fn resolve(
    path: &Path,
    object: &Object,
    name: &str,
    arguments: Id,
    locate: &mut dyn FnMut(&Storage<'_>) -> Result<u64>,
) -> Result<(TensorEntry, View)> {
    let bad = |reason: String| damaged(path.display(), format!("tensor {}: {reason}", printable(name, 200)));
    let [held, offset, size, stride, ..] = object.tuple(arguments).unwrap_or_default() else {
        return Err(bad("its constructor has too few arguments".into()));
    };
    let held = match object.value(*held) {
        Some(Value::Storage(id)) => storage(path, object, *id)?,
        _ => return Err(bad(format!("it is made of {}, not of a storage", object.describe(*held)))),
    };
    let whole = |id: Id| object.integer(id).and_then(|value| u64::try_from(value).ok());
    let numbers = |id: Id| match object.tuple(id) {
        Some(items) if items.len() <= MAX_RANK => items.iter().map(|item| whole(*item)).collect::<Option<Vec<u64>>>(),
        _ => None,
    };
    let (Some(offset), Some(size), Some(stride)) = (whole(*offset), numbers(*size), numbers(*stride)) else {
        return Err(bad(format!("its offset, size and stride are not whole numbers of up to {MAX_RANK} axes")));
    };
    if size.len() != stride.len() {
        return Err(bad(format!("its size has {} axes, its stride {}", size.len(), stride.len())));
    }
    let outside =
        || bad(format!("size {size:?}, stride {stride:?}, offset {offset}: out of its {} values", held.elements));
    let elements = size.iter().try_fold(1u64, |n, &d| n.checked_mul(d)).ok_or_else(outside)?;
    let mut end = offset;
    for (&size, &stride) in size.iter().zip(&stride) {
        let reach = size.saturating_sub(1).checked_mul(stride).ok_or_else(outside)?;
        end = end.checked_add(reach).ok_or_else(outside)?;
    }
    if elements > 0 && end >= held.elements {
        return Err(outside());
    }
    // Strides of zero make a large tensor of a small file. No model's weights are stored so.
    if elements > held.elements {
        let reason = format!("tensor {}: a view that repeats values", printable(name, 200));
        return Err(refused(path, reason));
    }
    let overflow = || bad("its place in the file overflows".into());
    let begin = locate(&held)?;
    let start = if elements == 0 { Some(begin) } else { begin.checked_add(offset * element_bytes(held.dtype)) };
    let shape = size.iter().map(|&d| usize::try_from(d)).collect::<Result<Vec<usize>, _>>().map_err(|_| overflow())?;
    let strides = (elements > 0 && !is_contiguous(&size, &stride)).then(|| stride.into_boxed_slice());
    Ok((TensorEntry::new(name, held.dtype, shape), View { start: start.ok_or_else(overflow)?, strides }))
}

/// Whether the elements, at least one, are contiguous and row-major. The strides of axes of length one do not matter.
fn is_contiguous(size: &[u64], stride: &[u64]) -> bool {
    let mut next = 1;
    for (&size, &stride) in size.iter().zip(stride).rev() {
        if size != 1 && stride != next {
            return false;
        }
        next *= size;
    }
    true
}
