//! The weights of a model folder: one `model.safetensors`, or the shards of `model.safetensors.index.json`.
//!
//! Defines [`Weights`] and [`shard_names`]; called by [`crate::hf::names`], the models' loaders and
//! [`crate::hf::pretrained`].

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::safetensors::{SafetensorsFile, TensorEntry, TensorSource};
use crate::file::{printable, read_text, resolve_inside, unreadable};
use crate::{Error, Result};

/// The name of unsharded weights.
pub const SINGLE_FILE: &str = "model.safetensors";
/// The name of the list of shards.
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// The longest index that is read. A model of 100,000 tensors has one of about 10 MB.
const INDEX_LIMIT: u64 = 64 << 20;
/// Shards are kept open: this stays below the usual limit of 1,024 open files.
const SHARD_LIMIT: usize = 512;
/// Tensors in all shards together.
const TENSOR_LIMIT: usize = 1 << 20;

/// All tensors of a model, wherever its folder keeps them.
#[derive(Debug)]
pub struct Weights {
    place: String,
    files: Vec<SafetensorsFile>,
    /// Of each tensor, sorted by name: its file and its position there.
    order: Vec<(usize, usize)>,
}

impl Weights {
    /// Open the weights of a model folder, or a single safetensors file.
    ///
    /// Reads and checks every header; data are read on request, see [`TensorSource`].
    ///
    /// # Errors
    /// [`Error::Model`] if there are none, if there are both one file and shards, if the index and the shards disagree,
    /// if a name leads out of the folder, or if the weights are of a kind that is refused by name, such as pickles
    /// (`pytorch_model.bin`, `.pt`, `.ckpt`), which run code when they are opened; those of [`SafetensorsFile::open`].
    pub fn open(path: &Path) -> Result<Self> {
        let metadata = std::fs::metadata(path).map_err(|e| unreadable(path, e))?;
        if !metadata.is_dir() {
            if let Some(name) = path.file_name().and_then(|name| name.to_str()) {
                refuse_by_name(path, name)?;
            }
            return Self::from_files(path, vec![SafetensorsFile::open(path)?]);
        }
        let present = |name: &str| path.join(name).symlink_metadata().is_ok();
        match (present(SINGLE_FILE), present(INDEX_FILE)) {
            (true, true) => Err(Error::model(
                path.display().to_string(),
                format!("the folder has both {SINGLE_FILE} and {INDEX_FILE}, so its weights are ambiguous"),
                "remove the one that is left over from another model",
            )),
            (true, false) => {
                let file = SafetensorsFile::open(&resolve_inside(path, SINGLE_FILE)?)?;
                Self::from_files(&path.join(SINGLE_FILE), vec![file])
            }
            (false, true) => Self::open_shards(path),
            (false, false) => Err(no_weights(path)),
        }
    }

    fn from_files(path: &Path, files: Vec<SafetensorsFile>) -> Result<Self> {
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

    fn open_shards(folder: &Path) -> Result<Self> {
        let path = folder.join(INDEX_FILE);
        let index = Index::read(folder, INDEX_FILE)?;
        let mut files = Vec::new();
        for shard in &index.shards {
            refuse_by_name(&path, shard)?;
            files.push(SafetensorsFile::open(&resolve_inside(folder, shard)?)?);
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

    fn file_of(&self, name: &str) -> Result<&SafetensorsFile> {
        let entry = |&(f, t): &(usize, usize)| &self.files[f].tensors()[t];
        match self.order.binary_search_by(|at| entry(at).name.as_str().cmp(name)) {
            Ok(i) => Ok(&self.files[self.order[i].0]),
            Err(_) => Err(Error::model(
                format!("{}, tensor {}", self.place, printable(name, 200)),
                "there is no tensor of this name in the weights",
                "check the name against the weights' list of tensors",
            )),
        }
    }
}

impl TensorSource for Weights {
    fn place(&self) -> String {
        self.place.clone()
    }

    fn entries(&self) -> Vec<&TensorEntry> {
        self.order.iter().map(|&(f, t)| &self.files[f].tensors()[t]).collect()
    }

    fn read_f32(&self, name: &str, out: &mut [f32]) -> Result<()> {
        self.file_of(name)?.read_f32(name, out)
    }

    fn read_raw_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<()> {
        self.file_of(name)?.read_raw_at(name, offset, out)
    }
}

/// The shards that the index `name` of a folder lists, each once. Names are as the file has them: anything.
///
/// # Errors
/// [`Error::Model`] for an index that is missing, too long, or none.
pub fn shard_names(folder: &Path, name: &str) -> Result<Vec<String>> {
    Ok(Index::read(folder, name)?.shards)
}

fn shard(file: &SafetensorsFile) -> String {
    file.path().file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// Refuse kinds of weights that are not read, by the look of their name.
fn refuse_by_name(place: &Path, name: &str) -> Result<()> {
    let lower = name.to_ascii_lowercase();
    let ends = |endings: &[&str]| endings.iter().any(|ending| lower.ends_with(ending));
    let reason = if ends(&[".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".bin.index.json"]) {
        "is a pickle, which can run any code when it is opened; it is never read"
    } else if ends(&[".h5", ".msgpack", ".gguf", ".onnx", ".npz"]) {
        "is of a format that is not read"
    } else {
        return Ok(());
    };
    Err(Error::model(
        place.display().to_string(),
        format!("{} {reason}", printable(name, 120)),
        "convert it to safetensors, on a machine you trust it with, in Python: \
         AutoModel.from_pretrained(\"IN\").save_pretrained(\"OUT\", safe_serialization=True)",
    ))
}

/// The error for a folder without safetensors weights: name what is there instead.
fn no_weights(folder: &Path) -> Error {
    let mut names: Vec<String> = match std::fs::read_dir(folder) {
        // Bounded: a folder of a million files is no model.
        Ok(list) => list.take(4096).flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect(),
        Err(e) => return unreadable(folder, e),
    };
    names.sort();
    if let Some(refused) = names.iter().find_map(|name| refuse_by_name(&folder.join(name), name).err()) {
        return refused;
    }
    let others: Vec<String> =
        names.iter().filter(|name| name.ends_with(".safetensors")).take(5).map(|name| printable(name, 60)).collect();
    let seen = if others.is_empty() { String::new() } else { format!("; it has {}", others.join(", ")) };
    Error::model(
        folder.display().to_string(),
        format!("the folder has neither {SINGLE_FILE} nor {INDEX_FILE}{seen}"),
        "give the folder of a model, or the path of one safetensors file",
    )
}

/// `model.safetensors.index.json`: which shard holds which tensor.
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
    fn compare(&self, path: &Path, files: &[SafetensorsFile]) -> Result<()> {
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
        let absent = |(name, position): &(&String, &usize)| files[**position].entry(name).is_none();
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
