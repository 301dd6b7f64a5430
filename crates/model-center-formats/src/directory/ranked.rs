//! A checkpoint of Megatron-LM or DeepSpeed as a Hugging Face directory.
//!
//! Defines [`ranked_to_directory`] and [`RankedReport`]; called by programs that convert a model.

use crate::formats::RankedOptions;
use std::fmt;
use std::path::Path;

use bmtrain_core::dtype::DType;
use bmtrain_core::limits::make_room;
use serde_json::json;

use super::{CONFIG_FILE, copy_companions, write_config};
use crate::config::HfHeader;
use crate::formats::{
    names::{NotFinite, finite, finite::CheckedTensor},
    ranked::{
        found::RankedSystem, found::find, joined::Join, joined::JoinedTensor, joined::Order, joined::values,
        names::Model, pieces::Pieces,
    },
    safetensors::{StoredDtype, TensorEntry, TensorSource, stored},
    shards::{SHARD_BYTES, ShardedWriter},
    shortened,
    stored::{absent, require_length, tensor_place},
};
use crate::{Error, Result};
use model_center_base::file::{StagedDirectory, read_text};
use model_center_base::json::parse_object;

/// The longest config.json.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Report on a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct RankedReport {
    /// System whose layout it has.
    pub system: RankedSystem,
    /// Tensor-parallel ranks.
    pub ranks: usize,
    /// The family, or "own" of a model whose names are Hugging Face's already.
    pub family: &'static str,
    /// Dtype of what was written.
    pub dtype: DType,
    /// Tensors that were written.
    pub written: Vec<JoinedTensor>,
    /// Tensors of the checkpoint that were left out.
    pub left: Vec<String>,
    /// Rows of padding that were left out.
    pub padding: usize,
    /// Whether padding may be left, as nothing tells the size of the vocabulary.
    pub is_padded: bool,
    /// Tensors with values that are not finite, which were written as they are.
    pub not_finite: Vec<NotFinite>,
}

impl fmt::Display for RankedReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let system = if self.system == RankedSystem::Megatron { "Megatron-LM" } else { "DeepSpeed" };
        let ranks = if self.ranks == 1 {
            "1 tensor-parallel rank".to_owned()
        } else {
            format!("{} tensor-parallel ranks", self.ranks)
        };
        write!(f, "{} of {system}, {ranks}: {} tensors written as {}", self.family, self.written.len(), self.dtype)?;
        if self.padding > 0 {
            write!(f, "\n  rows of padding left out of the vocabulary: {}", self.padding)?;
        } else if self.is_padded && self.family != "own" {
            write!(f, "\n  note: the vocabulary may be padded; --vocab-size leaves the padding out")?;
        }
        if !self.left.is_empty() {
            write!(f, "\n  left out: {}", shortened(&self.left))?;
        }
        Ok(())
    }
}

/// Write the checkpoint in `from`, or the newest of a run's directory, as the Hugging Face directory `out`, which is
/// made if need be and must be empty. Nothing in the files is run.
///
/// Numerics: values are as in the files, or as in ZeRO's f32 master weights where there are any, rounded to the dtype.
/// Memory: one tensor at a time. The directory appears whole or not at all.
///
/// # Errors
/// [`Error::Model`] for missing ranks, pieces that do not fit each other, tensors that are not known, and what the
/// files do not tell.
pub fn ranked_to_directory(from: &Path, out: &Path, options: &RankedOptions) -> Result<RankedReport> {
    let found = find(from)?;
    let pieces = Pieces::open(&found)?;
    let model = match pieces.is_megatron {
        true => Model::of(&pieces, &found.root, options)?,
        false => own_names(&pieces, &found.root, options)?,
    };
    let dtype = options.dtype.unwrap_or_else(|| most_stored(&model.tensors));
    let mut config = model.config.clone();
    let architecture = config.get("architectures").and_then(|list| list.get(0)?.as_str()).unwrap_or_default();
    let header = HfHeader { architecture: architecture.to_owned(), dtype };
    for key in ["torch_dtype", "dtype"] {
        config.insert(key.into(), json!(header.torch_dtype()?));
    }
    let staged = StagedDirectory::for_result_anywhere(out, CONFIG_FILE)?;
    let out = staged.path();
    let not_finite = write_weights(&pieces, &model, out, dtype)?;
    if let Some(companions) = &options.config {
        copy_companions(companions, out)?;
    }
    write_config(out, &config)?;
    staged.commit()?;
    Ok(RankedReport {
        system: found.system(),
        ranks: pieces.ranks.len(),
        family: model.family,
        dtype,
        written: model.tensors,
        left: model.left,
        padding: model.padding,
        is_padded: model.is_padded,
        not_finite,
    })
}

/// A model whose names are its own: of one tensor-parallel rank, with the configuration of a directory.
fn own_names(pieces: &Pieces, place: &Path, options: &RankedOptions) -> Result<Model> {
    let bad = |reason: &str, fix: &str| Error::model(place.display().to_string(), reason, fix);
    let [rank] = pieces.ranks.as_slice() else {
        let reason = "its tensors are not Megatron-LM's, and how several ranks divide them is not known";
        return Err(bad(reason, "save the model with one tensor-parallel rank"));
    };
    let Some(directory) = &options.config else {
        let reason = "its tensors are not Megatron-LM's, and the files do not tell the configuration";
        return Err(bad(reason, "give the directory with the model's config.json with --config"));
    };
    let path = directory.join("config.json");
    let config = parse_object(&read_text(&path, MAX_CONFIG_BYTES)?, &path.display().to_string())?;
    let tensors = rank.pieces.iter().map(|(name, piece)| JoinedTensor {
        // What wraps the model in training.
        entry: TensorEntry::new(name.strip_prefix("module.").unwrap_or(name), piece.dtype, piece.shape.as_slice()),
        theirs: name.clone(),
        stored: piece.dtype,
        piece: piece.shape.clone(),
        join: Join::Replicated,
        is_transposed: false,
    });
    Ok(Model {
        family: "own",
        tensors: tensors.collect(),
        config,
        order: Order { version: 0, heads: 1 },
        left: Vec::new(),
        padding: 0,
        is_padded: false,
    })
}

/// The dtype of most values.
fn most_stored(tensors: &[JoinedTensor]) -> DType {
    let count = |dtype: StoredDtype| -> usize {
        tensors.iter().filter(|tensor| tensor.stored == dtype).filter_map(|tensor| tensor.entry.elements()).sum()
    };
    let all = [(StoredDtype::F32, DType::F32), (StoredDtype::F16, DType::F16), (StoredDtype::BF16, DType::BF16)];
    all.into_iter().max_by_key(|(stored, _)| count(*stored)).map_or(DType::F32, |(_, dtype)| dtype)
}

fn write_weights(pieces: &Pieces, model: &Model, out: &Path, dtype: DType) -> Result<Vec<NotFinite>> {
    let kind = stored(dtype)?;
    let source = JoinedSource { pieces, model };
    let entries: Vec<TensorEntry> = source
        .entries()
        .into_iter()
        .map(|entry| TensorEntry::new(entry.name.as_str(), kind, entry.shape.as_slice()))
        .collect();
    let mut writer = ShardedWriter::create(out, &entries, SHARD_BYTES)?;
    let (mut data, mut found): (Vec<f32>, Vec<NotFinite>) = (Vec::new(), Vec::new());
    for entry in &entries {
        let count = entry.elements().unwrap_or(0);
        data.clear();
        make_room(&mut data, count, format_args!("tensor {} of {}", entry.name, source.place()))?;
        data.resize(count, 0.0);
        finite::read(&source, CheckedTensor { name: &entry.name, shape: &entry.shape }, 0, &mut data, &mut found)?;
        writer.write_f32(&entry.name, &data)?;
    }
    writer.finish()?;
    Ok(found)
}

/// The tensors that are written, joined when they are read.
struct JoinedSource<'a> {
    pieces: &'a Pieces,
    model: &'a Model,
}

impl TensorSource for JoinedSource<'_> {
    fn place(&self) -> String {
        self.pieces.place.display().to_string()
    }

    fn entries(&self) -> Vec<&TensorEntry> {
        self.model.tensors.iter().map(|tensor| &tensor.entry).collect()
    }

    fn read_f32(&self, name: &str, out: &mut [f32]) -> Result<()> {
        let tensor = self.model.tensors.iter().find(|tensor| tensor.entry.name == name);
        let tensor = tensor.ok_or_else(|| absent(&self.place(), name))?;
        let joined = values(self.pieces, tensor, self.model.order)?;
        require_length(&self.place(), &tensor.entry, joined.len())?;
        out.copy_from_slice(&joined);
        Ok(())
    }

    fn read_raw_at(&self, name: &str, _offset: u64, _out: &mut [u8]) -> Result<()> {
        let reason = "the tensor is joined of several, which have no bytes of their own";
        Err(Error::model(tensor_place(self.place(), name), reason, "read it as single precision"))
    }
}
