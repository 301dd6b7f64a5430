//! The weights of a model directory: one file, or the shards of an index, in safetensors or in PyTorch's own files.

use std::fmt;
use std::path::{Path, PathBuf};

use bmtrain_core::dtype::DType;
use bmtrain_core::quantised::BlockFormat;

use super::distributed::{DistributedWeights, distributed_files, is_distributed};
use super::gguf::{GgufAsHuggingFace, GgufFile, is_gguf};
use super::known_directory::KnownDirectory;
use super::model_center::WEIGHTS_FILE;
use super::pickle::PickleFile;
use super::safetensors::{SafetensorsFile, StoredDtype, TensorEntry, TensorSource};
use super::shard_index::Index;
use super::stored::absent;
use crate::{Error, Result};
use model_center_base::file::{is_inside, printable, refuse_dangling, resolve_inside, unreadable};

/// The name of unsharded weights.
pub const SINGLE_FILE: &str = "model.safetensors";
/// The name of the list of shards.
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// A file in which a directory's weights are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightsName {
    /// Its name.
    pub name: &'static str,
    /// Whether it lists shards.
    pub is_index: bool,
    /// Whether it is, or lists, PyTorch's own files.
    pub is_pickle: bool,
}

/// The possible files of a directory's weights; the first one present counts: as in `transformers`, safetensors come
/// before pickles, and one file before shards. ModelCenter's comes last.
pub const WEIGHTS_NAMES: [WeightsName; 5] = [
    WeightsName { name: SINGLE_FILE, is_index: false, is_pickle: false },
    WeightsName { name: INDEX_FILE, is_index: true, is_pickle: false },
    WeightsName { name: "pytorch_model.bin", is_index: false, is_pickle: true },
    WeightsName { name: "pytorch_model.bin.index.json", is_index: true, is_pickle: true },
    WeightsName { name: WEIGHTS_FILE, is_index: false, is_pickle: true },
];

impl WeightsName {
    /// The one that counts in a directory; `None` where there is none. Pickles of both Hugging Face and ModelCenter are
    /// an error.
    pub fn of(directory: &Path) -> Result<Option<Self>> {
        let mut found: Option<Self> = None;
        for candidate in WEIGHTS_NAMES {
            let decided = found.is_some_and(|found| !found.is_pickle || candidate.name != WEIGHTS_FILE);
            if decided {
                continue;
            }
            if !is_inside(directory, candidate.name)? {
                refuse_dangling(directory, candidate.name)?;
                continue;
            }
            if let Some(found) = found {
                return Err(Error::model(
                    directory.display().to_string(),
                    format!("the directory has both {} and {WEIGHTS_FILE}, so its weights are ambiguous", found.name),
                    "remove the one that is left over from another model",
                ));
            }
            found = Some(candidate);
        }
        Ok(found)
    }

    /// All names, for messages.
    pub fn all() -> String {
        WEIGHTS_NAMES.map(|known| known.name).join(", ")
    }

    fn kind(self) -> Kind {
        if self.is_pickle { Kind::Pickle } else { Kind::Safetensors }
    }
}

/// Format of a file's tensors, derived from its name.
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
            let reason = format!("{} is a GGUF file, which a model directory does not have", printable(name, 120));
            let fix = "make a directory of it: bmtrain convert FILE.gguf DIR --dtype f32; or generate with \
                       the file itself";
            return Err(Error::model(place.display().to_string(), reason, fix));
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

    fn open(self, path: &Path) -> Result<Box<dyn TensorSource + Send + Sync>> {
        Ok(match self {
            Kind::Safetensors => Box::new(SafetensorsFile::open(path)?),
            Kind::Pickle => Box::new(PickleFile::open(path)?),
        })
    }
}

/// The files that [`Weights::open`] reads of a model directory, by name, the index of shards among them.
///
/// # Errors
/// As [`Weights::open`], as far as it is about names.
pub fn weights_files(directory: &Path) -> Result<Vec<String>> {
    let Some(found) = WeightsName::of(directory)? else {
        return if is_distributed(directory) { distributed_files(directory) } else { Err(no_weights(directory)) };
    };
    let shards = if found.is_index { Index::read(directory, found.name)?.shards } else { Vec::new() };
    Ok(std::iter::once(found.name.to_owned()).chain(shards).collect())
}

/// All tensors of a model, wherever its directory keeps them.
pub struct Weights {
    place: String,
    /// Notes for users on parts of the files that are not among the tensors.
    notes: Vec<String>,
    files: Vec<Box<dyn TensorSource + Send + Sync>>,
    /// Sorted by name, each with its file.
    tensors: Vec<(TensorEntry, usize)>,
}

impl Weights {
    /// Opens the weights of a model directory, or a single file, whose name determines its kind: `.bin`, `.pt`, `.pth`
    /// and `.ckpt` are read as PyTorch's own files, without running them (see [`crate::formats::pickle`]), others as
    /// safetensors. A `.gguf` file is read under Hugging Face's names, see [`GgufAsHuggingFace`].
    ///
    /// In a directory the first of [`WEIGHTS_NAMES`] that is there counts, and what else there is is left alone; one
    /// without any of them may be a checkpoint of `torch.distributed.checkpoint`, see [`DistributedWeights`]. Reads and
    /// checks every header; data are read on request, see [`TensorSource`].
    ///
    /// # Errors
    /// [`Error::Model`] if there are none, the index and the shards disagree, or a name leads out of the directory.
    pub fn open(path: &Path) -> Result<Self> {
        let metadata = std::fs::metadata(path).map_err(|e| unreadable(path, e))?;
        if is_gguf(path) {
            return Self::from_files(path, vec![Box::new(GgufAsHuggingFace::new(GgufFile::open(path)?)?)]);
        }
        if !metadata.is_dir() {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            return Self::from_files(path, vec![Kind::of(path, name)?.open(path)?]);
        }
        let Some(found) = WeightsName::of(path)? else {
            return if is_distributed(path) { Self::open_distributed(path) } else { Err(no_weights(path)) };
        };
        if found.is_index {
            return Self::open_shards(path, found);
        }
        let file = found.kind().open(&resolve_inside(path, found.name)?)?;
        Self::from_files(&path.join(found.name), vec![file])
    }

    fn from_files(path: &Path, files: Vec<Box<dyn TensorSource + Send + Sync>>) -> Result<Self> {
        let mut tensors: Vec<(TensorEntry, usize)> = Vec::new();
        for (file, source) in files.iter().enumerate() {
            tensors.extend(source.entries().into_iter().map(|entry| (entry.clone(), file)));
        }
        tensors.sort_by(|a, b| a.0.name.cmp(&b.0.name));
        if let Some(pair) = tensors.windows(2).find(|pair| pair[0].0.name == pair[1].0.name) {
            let reason = format!("two shards hold it: {} and {}", shard(&*files[pair[0].1]), shard(&*files[pair[1].1]));
            let fix = "the directory is damaged: download it again";
            return Err(Error::model(format!("{}, tensor {}", path.display(), pair[0].0.name), reason, fix));
        }
        Ok(Self { place: path.display().to_string(), notes: Vec::new(), files, tensors })
    }

    fn open_distributed(directory: &Path) -> Result<Self> {
        let weights = DistributedWeights::open(directory)?;
        let counted = |(keys, count): (&String, &usize)| match count {
            0 => format!("values under {keys}"),
            1 => format!("1 tensor under {keys}"),
            count => format!("{count} tensors under {keys}"),
        };
        let left: Vec<String> = weights.left().iter().map(counted).collect();
        let notes = (!left.is_empty()).then(|| format!("left out of the checkpoint: {}", left.join(", ")));
        let opened = Self::from_files(directory, vec![Box::new(weights)])?;
        Ok(Self { notes: notes.into_iter().collect(), ..opened })
    }

    /// Notes on parts of the files that are not among the tensors, such as the state of an optimizer, a sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    fn open_shards(directory: &Path, list: WeightsName) -> Result<Self> {
        let (path, kind) = (directory.join(list.name), list.kind());
        let index = Index::read(directory, list.name)?;
        let mut files = Vec::new();
        for shard in &index.shards {
            if Kind::of(&path, shard)? != kind {
                return Err(Error::model(
                    path.display().to_string(),
                    format!("the index names {}, which is a file of another kind than its own", printable(shard, 120)),
                    "index and shards are from different models: download all again",
                ));
            }
            files.push(kind.open(&resolve_inside(directory, shard)?)?);
        }
        index.compare(&path, &files.iter().map(|file| file.entries()).collect::<Vec<_>>())?;
        Self::from_files(directory, files)
    }

    /// Number of files.
    pub fn shards(&self) -> usize {
        self.files.len()
    }

    /// The type that most of the values are stored in, see [`most_stored`].
    pub fn dtype(&self) -> Option<DType> {
        most_stored(self.entries())
    }

    /// Bytes of all tensors together.
    pub fn bytes(&self) -> u64 {
        self.entries().iter().filter_map(|entry| entry.bytes()).map(|bytes| bytes as u64).sum()
    }

    fn find(&self, name: &str) -> Option<usize> {
        let found = self.tensors.binary_search_by(|(entry, _)| entry.name.as_str().cmp(name));
        found.ok().map(|at| self.tensors[at].1)
    }

    fn source_of(&self, name: &str) -> Result<&dyn TensorSource> {
        let file = self.find(name).ok_or_else(|| absent(&self.place, name))?;
        Ok(&*self.files[file])
    }
}

impl TensorSource for Weights {
    fn place(&self) -> String {
        self.place.clone()
    }

    fn entries(&self) -> Vec<&TensorEntry> {
        self.tensors.iter().map(|(entry, _)| entry).collect()
    }

    fn read_f32(&self, name: &str, out: &mut [f32]) -> Result<()> {
        self.source_of(name)?.read_f32(name, out)
    }

    fn read_f32_at(&self, name: &str, first: usize, out: &mut [f32]) -> Result<()> {
        self.source_of(name)?.read_f32_at(name, first, out)
    }

    fn read_raw_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<()> {
        self.source_of(name)?.read_raw_at(name, offset, out)
    }

    fn block_format(&self, name: &str) -> Option<BlockFormat> {
        self.source_of(name).ok()?.block_format(name)
    }

    fn read_blocks_at(&self, name: &str, first: usize, out: &mut [u8]) -> Result<()> {
        self.source_of(name)?.read_blocks_at(name, first, out)
    }

    fn place_of(&self, name: &str) -> String {
        self.source_of(name).map_or_else(|_| self.place(), TensorSource::place)
    }

    fn reads_parts(&self, name: &str) -> bool {
        self.source_of(name).is_ok_and(|source| source.reads_parts(name))
    }

    fn are_tied(&self, first: &str, second: &str) -> bool {
        match (self.find(first), self.find(second)) {
            (Some(file), Some(other)) if file == other => self.files[file].are_tied(first, second),
            _ => false,
        }
    }
}

/// The type that most values of tensors are stored in: f32, f16 or bf16; f64 counts as f32. `None` without any such
/// value.
pub fn most_stored(entries: Vec<&TensorEntry>) -> Option<DType> {
    let mut counts = [(DType::F16, 0), (DType::BF16, 0), (DType::F32, 0)];
    for entry in entries {
        let dtype = match entry.dtype {
            StoredDtype::F32 | StoredDtype::F64 => DType::F32,
            StoredDtype::BF16 => DType::BF16,
            StoredDtype::F16 => DType::F16,
            _ => continue,
        };
        let count = counts.iter_mut().find(|(known, _)| *known == dtype);
        count.into_iter().for_each(|(_, count)| *count += entry.elements().unwrap_or(0));
    }
    // Of equal shares the last, which is the widest.
    let (dtype, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    (count > 0).then_some(dtype)
}

impl fmt::Debug for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Weights").field("place", &self.place).finish_non_exhaustive()
    }
}

fn shard(file: &dyn TensorSource) -> String {
    Path::new(&file.place()).file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// The error for a directory without weights of the usual names: name what is there instead.
fn no_weights(directory: &Path) -> Error {
    let mut names: Vec<String> = match std::fs::read_dir(directory) {
        // Bounded: a directory of a million files is not a model.
        Ok(list) => list.take(4096).flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect(),
        Err(e) => return unreadable(directory, e),
    };
    names.sort();
    if let Some(known) = KnownDirectory::of(directory) {
        return known.no_model();
    }
    if let Some(refused) = names.iter().find_map(|name| Kind::of(&directory.join(name), name).err()) {
        return refused;
    }
    let is_single =
        |name: &&String| name.ends_with(".safetensors") || matches!(Kind::of(directory, name), Ok(Kind::Pickle));
    let others: Vec<String> = names.iter().filter(is_single).take(5).map(|name| printable(name, 60)).collect();
    let seen = if others.is_empty() { String::new() } else { format!("; it has {}", others.join(", ")) };
    let reason = format!("the directory has none of {}{seen}", WeightsName::all());
    let fix = "give the directory of a model, or the path of one file of weights";
    Error::model(directory.display().to_string(), reason, fix)
}

/// Whether a directory's weights may include a file of this name, for callers that replace them.
pub(crate) fn is_weights_file(name: &str) -> bool {
    let numbered =
        name.strip_prefix("model-").and_then(|rest| rest.strip_suffix(".safetensors")).is_some_and(|middle| {
            let digits = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
            middle.split_once("-of-").is_some_and(|(number, count)| digits(number) && digits(count))
        });
    numbered || name == SINGLE_FILE || name == INDEX_FILE
}

/// The path of shard `number` (from 1) of `count`.
pub(crate) fn shard_path(directory: &Path, number: usize, count: usize) -> PathBuf {
    match count {
        1 => directory.join(SINGLE_FILE),
        _ => directory.join(format!("model-{number:05}-of-{count:05}.safetensors")),
    }
}
