//! The pickle `.metadata`: which tensors there are, what they are parts of, and where each part is.
//!
//! Defines [`read`] and [`SavedTensor`]. The pickle holds objects of a few classes of `torch.distributed.checkpoint`,
//! whose states are read; no class is looked up, and an object of any other class in their place is an error.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::super::pickle::{Id, PlainPickle, Value};
use super::super::safetensors::{MAX_RANK, StoredDtype, is_tensor_name};
use super::super::stored::damaged;
use super::METADATA_FILE;
use crate::{Error, Result};
use model_center_base::file::{open_regular, printable, resolve_inside};

/// The longest list: about 140 bytes for each part of a tensor.
const MAX_METADATA_BYTES: u64 = 1 << 30;
/// Tensors, and parts of all of them.
const MAX_TENSORS: usize = 1 << 20;
const MAX_PARTS: usize = 1 << 22;
/// Names of dictionaries around a value.
const MAX_PATH: usize = 16;

/// A tensor of the checkpoint.
#[derive(Debug, Clone)]
pub(super) struct SavedTensor {
    /// The keys that lead to it, joined by dots.
    pub(super) key: String,
    /// The keys one by one, where the file tells them.
    pub(super) path: Option<Vec<String>>,
    /// PyTorch's name of the dtype, such as `float32`.
    pub(super) dtype: String,
    pub(super) shape: Vec<usize>,
    pub(super) chunks: Vec<Chunk>,
}

/// A part of a tensor, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Its first element along each axis, and its size.
    pub(super) offsets: Vec<usize>,
    pub(super) sizes: Vec<usize>,
    /// The file, by its number in [`Saved::files`], and the bytes in it.
    pub(super) file: usize,
    pub(super) start: u64,
    pub(super) bytes: u64,
}

/// Another value of the checkpoint than a tensor.
#[derive(Debug, Clone)]
pub(super) struct SavedValue {
    /// As of a tensor.
    pub(super) key: String,
    pub(super) path: Option<Vec<String>>,
}

/// Content of the list.
#[derive(Debug, Default)]
pub(super) struct Saved {
    /// In the order of the list.
    pub(super) tensors: Vec<SavedTensor>,
    pub(super) values: Vec<SavedValue>,
    /// Names of the files in the directory.
    pub(super) files: Vec<String>,
}

/// The element type of PyTorch's name.
pub(super) fn stored_type(name: &str) -> Option<StoredDtype> {
    Some(match name {
        "float64" => StoredDtype::F64,
        "float32" => StoredDtype::F32,
        "float16" => StoredDtype::F16,
        "bfloat16" => StoredDtype::BF16,
        "int64" => StoredDtype::I64,
        "int32" => StoredDtype::I32,
        "int16" => StoredDtype::I16,
        "int8" => StoredDtype::I8,
        "uint8" => StoredDtype::U8,
        "bool" => StoredDtype::BOOL,
        _ => return None,
    })
}

/// Reads the list of a directory.
pub(super) fn read(directory: &Path) -> Result<Saved> {
    let path = resolve_inside(directory, METADATA_FILE)?;
    let (file, length) = open_regular(&path)?;
    if length > MAX_METADATA_BYTES {
        let reason = format!("the list of tensors has {length} bytes, the limit is {MAX_METADATA_BYTES}");
        let fix = "gather the tensors into one file: python -m torch.distributed.checkpoint.format_utils dcp_to_torch \
                   DIR pytorch_model.bin";
        return Err(Error::model(path.display().to_string(), reason, fix));
    }
    let (pickle, end) = PlainPickle::read(&path, &file, 0, length)?;
    if end != length {
        return Err(damaged(path.display(), format!("{} bytes follow the list of tensors", length - end)));
    }
    Reader { pickle: &pickle, path: &path }.saved()
}

/// Location of a part, by the key of its tensor and its first element.
type Places<'p> = HashMap<(&'p str, Vec<usize>), (usize, u64, u64)>;

struct Reader<'p> {
    pickle: &'p PlainPickle,
    path: &'p Path,
}

impl<'p> Reader<'p> {
    fn bad(&self, reason: impl Into<String>) -> Error {
        damaged(self.path.display(), reason)
    }

    /// The state of an object of a class of the library.
    fn state(&self, id: Id, class: &str) -> Result<Id> {
        match self.pickle.call(id) {
            Some((module, name, call)) if name == class && module.starts_with("torch.distributed") => {
                call.state.ok_or_else(|| self.bad(format!("a {class} without contents")))
            }
            _ => Err(self.bad(format!("it has {} in the place of a {class}", self.pickle.describe(id)))),
        }
    }

    fn field(&self, state: Id, class: &str, key: &str) -> Result<Id> {
        self.pickle.get(state, key).ok_or_else(|| self.bad(format!("a {class} without {key}")))
    }

    fn dict(&self, id: Id, what: &str) -> Result<&'p [(Id, Id)]> {
        match self.pickle.value(id) {
            Some(Value::Dict(pairs)) => Ok(pairs),
            _ => Err(self.bad(format!("{what} is {}, no dictionary", self.pickle.describe(id)))),
        }
    }

    /// A `torch.Size`, or a tuple of whole numbers.
    fn size(&self, id: Id) -> Result<Vec<usize>> {
        let id = match self.pickle.call(id) {
            Some(("torch", "Size", call)) => self.pickle.members(call.arguments).and_then(|all| all.first().copied()),
            _ => Some(id),
        };
        let members = id.and_then(|id| self.pickle.members(id)).filter(|members| members.len() <= MAX_RANK);
        let whole = |id: &Id| self.pickle.integer(*id).and_then(|value| usize::try_from(value).ok());
        let numbers = members.and_then(|members| members.iter().map(whole).collect::<Option<Vec<usize>>>());
        numbers.ok_or_else(|| self.bad(format!("a size is not a list of up to {MAX_RANK} whole numbers")))
    }

    fn whole(&self, id: Id, what: &str) -> Result<u64> {
        let value = self.pickle.integer(id).and_then(|value| u64::try_from(value).ok());
        value.ok_or_else(|| self.bad(format!("{what} is {}, no whole number", self.pickle.describe(id))))
    }

    fn saved(&self) -> Result<Saved> {
        let root = self.state(self.pickle.root(), "Metadata")?;
        let mut files = Vec::new();
        let places = self.places(self.field(root, "Metadata", "storage_data")?, &mut files)?;
        let mut paths = self.paths(root)?;
        let (mut tensors, mut values) = (Vec::new(), Vec::new());
        let mut parts = 0;
        let list = self.dict(self.field(root, "Metadata", "state_dict_metadata")?, "state_dict_metadata")?;
        for (key, value) in list {
            let name = self.pickle.text(*key).filter(|name| is_tensor_name(name));
            let name = name
                .ok_or_else(|| self.bad("the name of a tensor is not a text, is too long or has control characters"))?;
            if matches!(self.pickle.call(*value), Some((_, "BytesStorageMetadata", _))) {
                values.push(SavedValue { key: name.to_owned(), path: paths.remove(name) });
                continue;
            }
            let mut tensor = self.tensor(name, *value, &places)?;
            tensor.path = paths.remove(name);
            parts += tensor.chunks.len();
            if tensors.len() == MAX_TENSORS || parts > MAX_PARTS {
                return Err(self.bad(format!("more than {MAX_TENSORS} tensors or {MAX_PARTS} parts of them")));
            }
            tensors.push(tensor);
        }
        Ok(Saved { tensors, values, files })
    }

    fn tensor(&self, name: &str, value: Id, places: &Places<'_>) -> Result<SavedTensor> {
        let class = "TensorStorageMetadata";
        let state = self.state(value, class)?;
        let shape = self.size(self.field(state, class, "size")?)?;
        let properties = self.state(self.field(state, class, "properties")?, "TensorProperties")?;
        let dtype = self.pickle.members(properties).and_then(|members| members.first().copied());
        let dtype = match dtype.and_then(|id| self.pickle.value(id)) {
            Some(Value::Global(global)) if global.module == "torch" => global.name.clone(),
            _ => return Err(self.bad(format!("tensor {}: its dtype is not told", printable(name, 200)))),
        };
        let list = self.field(state, class, "chunks")?;
        let list = self.pickle.members(list).ok_or_else(|| self.bad("the parts of a tensor are no list"))?;
        let mut chunks: Vec<Chunk> = Vec::with_capacity(list.len());
        for id in list {
            let class = "ChunkStorageMetadata";
            let part = self.state(*id, class)?;
            let offsets = self.size(self.field(part, class, "offsets")?)?;
            let sizes = self.size(self.field(part, class, "sizes")?)?;
            // A part that is listed twice is one part.
            if chunks.last().is_some_and(|last| last.offsets == offsets && last.sizes == sizes) {
                continue;
            }
            let Some(&(file, start, bytes)) = places.get(&(name, offsets.clone())) else {
                let reason = format!("tensor {}: no file has its part at {offsets:?}", printable(name, 200));
                return Err(self.bad(reason));
            };
            chunks.push(Chunk { offsets, sizes, file, start, bytes });
        }
        Ok(SavedTensor { key: name.to_owned(), path: None, dtype, shape, chunks })
    }

    /// `storage_data`, a dictionary from the part of a tensor to its place.
    fn places(&self, id: Id, files: &mut Vec<String>) -> Result<Places<'p>> {
        let mut numbers: HashMap<&str, usize> = HashMap::new();
        let mut places = HashMap::new();
        for (key, value) in self.dict(id, "storage_data")? {
            let index = self.state(*key, "MetadataIndex")?;
            let name = self.pickle.text(self.field(index, "MetadataIndex", "fqn")?);
            let name = name.ok_or_else(|| self.bad("a part of a tensor without its name"))?;
            // Values that are no tensors have none.
            let offset = self.pickle.get(index, "offset");
            let offset = offset.filter(|offset| !matches!(self.pickle.value(*offset), Some(Value::Nothing)));
            let Some(offset) = offset else { continue };
            let class = "_StorageInfo";
            let info = self.state(*value, class)?;
            self.refuse_transformed(info, name)?;
            let file = self.pickle.text(self.field(info, class, "relative_path")?);
            let file = file.ok_or_else(|| self.bad("a part of a tensor without its file"))?;
            let number = *numbers.entry(file).or_insert_with(|| {
                files.push(file.to_owned());
                files.len() - 1
            });
            let start = self.whole(self.field(info, class, "offset")?, "the place of a part")?;
            let bytes = self.whole(self.field(info, class, "length")?, "the length of a part")?;
            places.insert((name, self.size(offset)?), (number, start, bytes));
        }
        Ok(places)
    }

    /// Refuses bytes that an extension of the writer transformed, such as compression.
    fn refuse_transformed(&self, info: Id, name: &str) -> Result<()> {
        let made = self.pickle.get(info, "transform_descriptors").and_then(|id| self.pickle.members(id));
        let Some(first) = made.and_then(|made| made.first()) else { return Ok(()) };
        let by = printable(self.pickle.text(*first).unwrap_or("an extension"), 60);
        let reason = format!("tensor {} was written through {by}, which is not undone here", printable(name, 200));
        Err(Error::model(self.path.display().to_string(), reason, "save without extensions of FileSystemWriter"))
    }

    /// `planner_data`, the keys that lead to each value.
    fn paths(&self, root: Id) -> Result<BTreeMap<String, Vec<String>>> {
        let mut paths = BTreeMap::new();
        let Some(Value::Dict(pairs)) = self.pickle.get(root, "planner_data").and_then(|id| self.pickle.value(id))
        else {
            return Ok(paths);
        };
        for (key, path) in pairs {
            let keys = self.pickle.members(*path).filter(|keys| keys.len() <= MAX_PATH);
            let one = |id: &Id| match (self.pickle.text(*id), self.pickle.integer(*id)) {
                (Some(text), _) => Some(text.to_owned()),
                (None, number) => number.map(|number| number.to_string()),
            };
            let keys = keys.and_then(|keys| keys.iter().map(one).collect::<Option<Vec<String>>>());
            if let (Some(key), Some(keys)) = (self.pickle.text(*key), keys) {
                paths.insert(key.to_owned(), keys);
            }
        }
        Ok(paths)
    }
}
