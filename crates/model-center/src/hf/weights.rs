//! The weights of a model folder: one file, or the shards of an index, in safetensors or in PyTorch's own files.
//!
//! Defines [`Weights`] and [`shard_names`]; called by [`crate::hf::names`], the models' loaders and
//! [`crate::hf::pretrained`].

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::pickle::PickleFile;
use super::safetensors::{SafetensorsFile, TensorEntry, TensorSource};
use super::stored::absent;
use crate::file::{printable, read_text, resolve_inside, unreadable};
use crate::{Error, Result};

/// The name of unsharded weights.
pub const SINGLE_FILE: &str = "model.safetensors";
/// The name of the list of shards.
pub const INDEX_FILE: &str = "model.safetensors.index.json";
/// The names of unsharded weights in PyTorch's own files: those of Hugging Face folders and of ModelCenter's.
pub(crate) const PICKLE_FILES: [&str; 2] = ["pytorch_model.bin", "pytorch_model.pt"];
/// The name of the list of their shards.
pub(crate) const PICKLE_INDEX: &str = "pytorch_model.bin.index.json";

/// The longest index that is read. A model of 100,000 tensors has one of about 10 MB.
const INDEX_LIMIT: u64 = 64 << 20;
/// Shards are kept open: this stays below the usual limit of 1,024 open files.
const SHARD_LIMIT: usize = 512;
/// Tensors in all shards together.
const TENSOR_LIMIT: usize = 1 << 20;

/// How a file holds its tensors, which its name says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Safetensors,
    Pickle,
}

impl Kind {
    /// The kind of a file by its name; the refusal of those that are not read.
    fn of(place: &Path, name: &str) -> Result<Self> {
        let lower = name.to_ascii_lowercase();
        let ends = |endings: &[&str]| endings.iter().any(|ending| lower.ends_with(ending));
        if ends(&[".bin", ".pt", ".pth", ".ckpt"]) {
            return Ok(Kind::Pickle);
        }
        if ends(&[".gguf"]) {
            return Err(Error::model(
                place.display().to_string(),
                format!("{} is a GGUF file, which is no model folder", printable(name, 120)),
                "make a folder of it: convert FILE.gguf FOLDER --dtype f32",
            ));
        }
        if ends(&[".pkl", ".pickle", ".h5", ".msgpack", ".onnx", ".npz"]) {
            return Err(Error::model(
                place.display().to_string(),
                format!("{} is of a format that is not read", printable(name, 120)),
                "convert it to safetensors, on a machine you trust it with, in Python: \
                 AutoModel.from_pretrained(\"IN\").save_pretrained(\"OUT\", safe_serialization=True)",
            ));
        }
        Ok(Kind::Safetensors)
    }
}

/// One file of weights.
#[derive(Debug)]
enum WeightsFile {
    Safetensors(SafetensorsFile),
    Pickle(PickleFile),
}

impl WeightsFile {
    fn open(path: &Path, kind: Kind) -> Result<Self> {
        Ok(match kind {
            Kind::Safetensors => WeightsFile::Safetensors(SafetensorsFile::open(path)?),
            Kind::Pickle => WeightsFile::Pickle(PickleFile::open(path)?),
        })
    }

    fn source(&self) -> &dyn TensorSource {
        match self {
            WeightsFile::Safetensors(file) => file,
            WeightsFile::Pickle(file) => file,
        }
    }

    fn path(&self) -> &Path {
        match self {
            WeightsFile::Safetensors(file) => file.path(),
            WeightsFile::Pickle(file) => file.path(),
        }
    }

    /// Sorted by name.
    fn tensors(&self) -> &[TensorEntry] {
        match self {
            WeightsFile::Safetensors(file) => file.tensors(),
            WeightsFile::Pickle(file) => file.tensors(),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.tensors().binary_search_by(|entry| entry.name.as_str().cmp(name)).is_ok()
    }
}

/// All tensors of a model, wherever its folder keeps them.
#[derive(Debug)]
pub struct Weights {
    place: String,
    files: Vec<WeightsFile>,
    /// Of each tensor, sorted by name: its file and its position there.
    order: Vec<(usize, usize)>,
}

impl Weights {
    /// Open the weights of a model folder, or a single file, whose name says its kind: `.bin`, `.pt`, `.pth` and `.ckpt` are
    /// read as PyTorch's own files, none of which is ever run (see [`crate::hf::pickle`]), others as safetensors.
    ///
    /// In a folder `model.safetensors` or `model.safetensors.index.json` count if one of them is there, and PyTorch's own
    /// files beside them are left alone, as `transformers` does; without them it is `pytorch_model.bin`, `pytorch_model.pt`
    /// or `pytorch_model.bin.index.json`. Reads and checks every header; data are read on request, see [`TensorSource`].
    ///
    /// # Errors
    /// [`Error::Model`] if there are none, if there are several of one kind, if the index and the shards disagree, if a name
    /// leads out of the folder, or if the weights are of a kind that is refused by name; those of [`SafetensorsFile::open`]
    /// and [`PickleFile::open`].
    pub fn open(path: &Path) -> Result<Self> {
        let metadata = std::fs::metadata(path).map_err(|e| unreadable(path, e))?;
        if !metadata.is_dir() {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            return Self::from_files(path, vec![WeightsFile::open(path, Kind::of(path, name)?)?]);
        }
        let present = |name: &&&str| path.join(name).symlink_metadata().is_ok();
        let [first, second] = PICKLE_FILES;
        for (kind, names) in
            [(Kind::Safetensors, &[SINGLE_FILE, INDEX_FILE][..]), (Kind::Pickle, &[first, second, PICKLE_INDEX][..])]
        {
            match names.iter().filter(present).collect::<Vec<_>>().as_slice() {
                [] => {}
                [name] if name.ends_with(".index.json") => return Self::open_shards(path, name, kind),
                [name] => {
                    let file = WeightsFile::open(&resolve_inside(path, name)?, kind)?;
                    return Self::from_files(&path.join(name), vec![file]);
                }
                [one, another, ..] => {
                    return Err(Error::model(
                        path.display().to_string(),
                        format!("the folder has both {one} and {another}, so its weights are ambiguous"),
                        "remove the one that is left over from another model",
                    ));
                }
            }
        }
        Err(no_weights(path))
    }

    fn from_files(path: &Path, files: Vec<WeightsFile>) -> Result<Self> {
        let mut order: Vec<(usize, usize)> =
            files.iter().enumerate().flat_map(|(f, file)| (0..file.tensors().len()).map(move |t| (f, t))).collect();
        let name = |&(f, t): &(usize, usize)| files[f].tensors()[t].name.as_str();
        order.sort_by(|a, b| name(a).cmp(name(b)));
        if let Some(pair) = order.windows(2).find(|pair| name(&pair[0]) == name(&pair[1])) {
            return Err(Error::model(
                format!("{}, tensor {}", path.display(), name(&pair[0])),
                format!("two shards hold it: {} and {}", shard(&files[pair[0].0]), shard(&files[pair[1].0])),
                "the folder is damaged: download it again",
            ));
        }
        Ok(Self { place: path.display().to_string(), files, order })
    }

    fn open_shards(folder: &Path, index: &str, kind: Kind) -> Result<Self> {
        let path = folder.join(index);
        let index = Index::read(folder, index)?;
        let mut files = Vec::new();
        for shard in &index.shards {
            if Kind::of(&path, shard)? != kind {
                return Err(Error::model(
                    path.display().to_string(),
                    format!("the index names {}, which is a file of another kind than its own", printable(shard, 120)),
                    "index and shards are from different models: download all again",
                ));
            }
            files.push(WeightsFile::open(&resolve_inside(folder, shard)?, kind)?);
        }
        index.compare(&path, &files)?;
        Self::from_files(folder, files)
    }

    /// Number of files.
    pub fn shards(&self) -> usize {
        self.files.len()
    }

    /// Bytes of all tensors together.
    pub fn bytes(&self) -> u64 {
        self.entries().iter().filter_map(|entry| entry.bytes()).map(|bytes| bytes as u64).sum()
    }

    fn entry_at(&self, (file, tensor): (usize, usize)) -> &TensorEntry {
        &self.files[file].tensors()[tensor]
    }

    fn find(&self, name: &str) -> Option<usize> {
        let found = self.order.binary_search_by(|at| self.entry_at(*at).name.as_str().cmp(name));
        found.ok().map(|i| self.order[i].0)
    }

    fn source_of(&self, name: &str) -> Result<&dyn TensorSource> {
        let file = self.find(name).ok_or_else(|| absent(&self.place, name))?;
        Ok(self.files[file].source())
    }
}

impl TensorSource for Weights {
    fn place(&self) -> String {
        self.place.clone()
    }

    fn entries(&self) -> Vec<&TensorEntry> {
        self.order.iter().map(|at| self.entry_at(*at)).collect()
    }

    fn read_f32(&self, name: &str, out: &mut [f32]) -> Result<()> {
        self.source_of(name)?.read_f32(name, out)
    }

    fn read_raw_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<()> {
        self.source_of(name)?.read_raw_at(name, offset, out)
    }

    fn are_tied(&self, first: &str, second: &str) -> bool {
        match (self.find(first), self.find(second)) {
            (Some(file), Some(other)) if file == other => self.files[file].source().are_tied(first, second),
            _ => false,
        }
    }
}

/// The shards that the index `name` of a folder lists, each once. Names are as the file has them: anything.
///
/// # Errors
/// [`Error::Model`] for an index that is missing, too long, or none.
pub fn shard_names(folder: &Path, name: &str) -> Result<Vec<String>> {
    Ok(Index::read(folder, name)?.shards)
}

fn shard(file: &WeightsFile) -> String {
    file.path().file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// The error for a folder without weights of the usual names: name what is there instead.
fn no_weights(folder: &Path) -> Error {
    let mut names: Vec<String> = match std::fs::read_dir(folder) {
        // Bounded: a folder of a million files is no model.
        Ok(list) => list.take(4096).flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect(),
        Err(e) => return unreadable(folder, e),
    };
    names.sort();
    if let Some(refused) = names.iter().find_map(|name| Kind::of(&folder.join(name), name).err()) {
        return refused;
    }
    let is_single =
        |name: &&String| name.ends_with(".safetensors") || matches!(Kind::of(folder, name), Ok(Kind::Pickle));
    let others: Vec<String> = names.iter().filter(is_single).take(5).map(|name| printable(name, 60)).collect();
    let seen = if others.is_empty() { String::new() } else { format!("; it has {}", others.join(", ")) };
    let [first, second] = PICKLE_FILES;
    Error::model(
        folder.display().to_string(),
        format!("the folder has neither {SINGLE_FILE} nor {INDEX_FILE}, nor {first}, {second} or {PICKLE_INDEX}{seen}"),
        "give the folder of a model, or the path of one file of weights",
    )
}

/// An index, such as `model.safetensors.index.json`: which shard holds which tensor.
#[derive(Debug)]
struct Index {
    shards: Vec<String>,
    /// Tensor name to position in `shards`.
    map: HashMap<String, usize>,
}

impl Index {
    fn read(folder: &Path, name: &str) -> Result<Self> {
        let text = read_text(&resolve_inside(folder, name)?, INDEX_LIMIT)?;
        serde_json::from_str(&text).map_err(|e| {
            let place = format!("{}:{}:{}", folder.join(name).display(), e.line(), e.column());
            let reason = format!("invalid index: {}", printable(&e.to_string(), 300));
            Error::model(place, reason, "correct the file, or download it again")
        })
    }

    /// The index lists exactly the tensors that the shards hold, each in the right one.
    fn compare(&self, path: &Path, files: &[WeightsFile]) -> Result<()> {
        let differ = |tensor: &str, reason: String| {
            let place = format!("{}, tensor {}", path.display(), printable(tensor, 200));
            Err(Error::model(
                place,
                reason,
                "index and shards are from different models, or one is damaged: download all again",
            ))
        };
        for (position, file) in files.iter().enumerate() {
            if let Some(entry) = file.tensors().iter().find(|entry| self.map.get(&entry.name) != Some(&position)) {
                return differ(&entry.name, format!("{} holds it, the index does not say so", shard(file)));
            }
        }
        let held: usize = files.iter().map(|file| file.tensors().len()).sum();
        if held == self.map.len() {
            return Ok(());
        }
        let absent = |(name, position): &(&String, &usize)| !files[**position].has(name);
        match self.map.iter().filter(absent).min() {
            Some((name, &position)) => {
                differ(name, format!("the index puts it in {}, which does not hold it", self.shards[position]))
            }
            None => Ok(()),
        }
    }
}

impl<'de> Deserialize<'de> for Index {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(IndexVisitor)
    }
}

struct IndexVisitor;

impl<'de> Visitor<'de> for IndexVisitor {
    type Value = Index;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a weight_map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Index, A::Error> {
        let mut index = None;
        while let Some(key) = access.next_key::<String>()? {
            if key != "weight_map" {
                access.next_value::<IgnoredAny>()?;
            } else if index.replace(access.next_value::<WeightMap>()?.0).is_some() {
                return Err(A::Error::custom("weight_map stands twice"));
            }
        }
        index.ok_or_else(|| A::Error::custom("there is no weight_map"))
    }
}

struct WeightMap(Index);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(WeightMapVisitor)
    }
}

struct WeightMapVisitor;

impl<'de> Visitor<'de> for WeightMapVisitor {
    type Value = WeightMap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object from tensor name to file name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<WeightMap, A::Error> {
        let mut index = Index { shards: Vec::new(), map: HashMap::new() };
        let mut positions: HashMap<String, usize> = HashMap::new();
        while let Some((tensor, shard)) = access.next_entry::<String, String>()? {
            if index.map.len() == TENSOR_LIMIT {
                return Err(A::Error::custom(format_args!("more than {TENSOR_LIMIT} tensors")));
            }
            let position = match positions.get(&shard) {
                Some(&position) => position,
                None if index.shards.len() == SHARD_LIMIT => {
                    return Err(A::Error::custom(format_args!("more than {SHARD_LIMIT} shards")));
                }
                None => {
                    index.shards.push(shard.clone());
                    positions.insert(shard, index.shards.len() - 1);
                    index.shards.len() - 1
                }
            };
            if index.map.insert(tensor.clone(), position).is_some() {
                return Err(A::Error::custom(format_args!("tensor {} stands twice", printable(&tensor, 80))));
            }
        }
        if index.map.is_empty() {
            return Err(A::Error::custom("the weight_map is empty"));
        }
        Ok(WeightMap(index))
    }
}

/// The files a folder's weights may consist of, for whoever replaces them.
pub(crate) fn is_weights_file(name: &str) -> bool {
    let numbered =
        name.strip_prefix("model-").and_then(|rest| rest.strip_suffix(".safetensors")).is_some_and(|middle| {
            let digits = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
            middle.split_once("-of-").is_some_and(|(number, count)| digits(number) && digits(count))
        });
    numbered || name == SINGLE_FILE || name == INDEX_FILE
}

/// The path of shard `number` (from 1) of `count`.
pub(crate) fn shard_path(folder: &Path, number: usize, count: usize) -> PathBuf {
    match count {
        1 => folder.join(SINGLE_FILE),
        _ => folder.join(format!("model-{number:05}-of-{count:05}.safetensors")),
    }
}
