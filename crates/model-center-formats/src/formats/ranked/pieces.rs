//! The tensors of each tensor-parallel rank under plain names, over its pipeline stages and files of layers.
//!
//! Defines [`Pieces`]; called by [`crate::directory::ranked`].

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::super::{
    pickle::{PickleFile, Scalar},
    safetensors::{StoredDtype, TensorSource},
};
use super::found::RankFiles;
use super::fragments::{FrozenShards, UniversalStates};
use super::zero::ZeroShards;
use crate::{Error, Result};
use model_center_base::file::printable;

/// Location of a rank's tensor.
#[derive(Debug, Clone)]
pub(super) enum Held {
    /// In a file, by its number and name.
    File(usize, String),
    /// In ZeRO's shards.
    Zero(String),
    /// In the data ranks' files, frozen.
    Frozen(String),
    /// In the directory of a universal checkpoint.
    Universal(String),
}

/// A tensor of a rank.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: StoredDtype,
    held: Held,
}

/// The tensors of one tensor-parallel rank.
#[derive(Debug, Default)]
pub(crate) struct RankPieces {
    files: Vec<PickleFile>,
    zero: Option<ZeroShards>,
    frozen: Option<FrozenShards>,
    universal: Option<UniversalStates>,
    pub(crate) pieces: BTreeMap<String, Piece>,
}

/// All ranks.
#[derive(Debug)]
pub(crate) struct Pieces {
    pub(crate) ranks: Vec<RankPieces>,
    /// Settings of the run, `args.…` and `checkpoint_version`.
    pub(super) settings: BTreeMap<String, Scalar>,
    /// The directory of the checkpoint.
    pub(crate) place: PathBuf,
    /// Whether names are Megatron-LM's; otherwise they are the model's own.
    pub(crate) is_megatron: bool,
}

impl RankPieces {
    /// The values of a tensor.
    pub(super) fn read(&self, name: &str) -> Result<Vec<f32>> {
        let lost = || {
            let place = self.files.first().map_or_else(String::new, TensorSource::place);
            let fix = "copy the checkpoint again, with the files of all ranks";
            Error::model(place, format!("there is no tensor {} on this rank", printable(name, 120)), fix)
        };
        let piece = self.pieces.get(name).ok_or_else(lost)?;
        let count = piece.shape.iter().product();
        let mut values = Vec::new();
        bmtrain_core::limits::make_room(&mut values, count, format_args!("tensor {name}"))?;
        values.resize(count, 0.0);
        match &piece.held {
            Held::File(file, own) => self.files[*file].read_f32(own, &mut values)?,
            Held::Zero(own) => self.zero.as_ref().ok_or_else(lost)?.read(own, &mut values)?,
            Held::Frozen(own) => self.frozen.as_ref().ok_or_else(lost)?.read(own, &mut values)?,
            Held::Universal(own) => self.universal.as_ref().ok_or_else(lost)?.read(own, &mut values)?,
        }
        Ok(values)
    }
}

/// Whether a key of a rank's file is read.
fn wanted(key: &str) -> bool {
    ["model", "module", "args", "checkpoint_version", "param_shapes", "iteration"].contains(&key)
        // Chunks of a stage with several, which are refused by name.
        || (key.starts_with("model") && key[5..].parse::<u32>().is_ok())
}

impl Pieces {
    /// Opens the files of every rank; data of tensors are not read.
    pub(crate) fn open(found: &RankFiles) -> Result<Pieces> {
        let mut settings = BTreeMap::new();
        let mut ranks = Vec::new();
        for tensor in 0..found.tensor_ranks() {
            let mut rank = RankPieces::default();
            let mut names: Vec<(usize, String, String)> = Vec::new();
            for stage in 0..found.stages().max(1) {
                let Some(path) = found.model.get(&(tensor, stage)) else { continue };
                let file = PickleFile::open_tree(path, &wanted)?;
                if file.tensors().iter().any(|entry| entry.name.starts_with("model0.")) {
                    let reason = "a stage has several chunks (an interleaved pipeline)";
                    let fix = "save the checkpoint without virtual stages";
                    return Err(Error::model(path.display().to_string(), reason, fix));
                }
                let at = rank.files.len();
                for entry in file.tensors() {
                    let bare = entry.name.split_once('.').map_or("", |(_, rest)| rest);
                    names.push((at, entry.name.clone(), format!("{stage}:{bare}")));
                }
                let kept = file.scalars().iter().filter(|(path, _)| !path.starts_with("param_shapes."));
                for (name, scalar) in kept {
                    settings.entry(name.clone()).or_insert_with(|| scalar.clone());
                }
                rank.files.push(file);
            }
            rank.open_layers(found, tensor, &mut names)?;
            let shards: Vec<PathBuf> =
                found.zero.iter().filter(|((rank, _), _)| *rank == tensor).map(|(_, path)| path.clone()).collect();
            if let (false, Some(model)) = (shards.is_empty() || !found.layers.is_empty(), rank.files.first()) {
                rank.zero = Some(ZeroShards::open(&shards, model)?);
            }
            if let (Some(directory), Some(model)) = (&found.universal, rank.files.first()) {
                rank.universal = Some(UniversalStates::open(directory, model)?);
            }
            let divided: Vec<PathBuf> =
                found.divided.iter().filter(|((rank, _), _)| *rank == tensor).map(|(_, path)| path.clone()).collect();
            rank.frozen = FrozenShards::open(&divided)?;
            rank.collect(names);
            rank.refuse_placeholders(found)?;
            ranks.push(rank);
        }
        let is_megatron = ranks.iter().any(|rank| {
            rank.pieces.keys().any(|name| name.contains("layers.") && name.contains("attention.query_key_value"))
        });
        let mut pieces = Pieces { ranks, settings, place: found.root.clone(), is_megatron };
        if is_megatron {
            pieces.name_plainly(found)?;
        } else {
            pieces.without_stages();
        }
        Ok(pieces)
    }

    pub(super) fn whole(&self, key: &str) -> Option<usize> {
        match self.settings.get(key)? {
            Scalar::Whole(value) => usize::try_from(*value).ok(),
            Scalar::Float(value) if value.fract() == 0.0 && *value >= 0.0 => Some(*value as usize),
            _ => None,
        }
    }

    pub(super) fn float(&self, key: &str) -> Option<f64> {
        match self.settings.get(key)? {
            Scalar::Whole(value) => Some(*value as f64),
            Scalar::Float(value) => Some(*value),
            _ => None,
        }
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        if let Scalar::Text(text) = self.settings.get(key)? { Some(text) } else { None }
    }

    pub(super) fn is_set(&self, key: &str) -> bool {
        self.settings.get(key) == Some(&Scalar::Truth(true))
    }

    /// Names with layers counted over all stages, and without what wraps the model.
    fn name_plainly(&mut self, found: &RankFiles) -> Result<()> {
        for rank in &mut self.ranks {
            let mut layers_of: BTreeMap<usize, usize> = BTreeMap::new();
            for name in rank.pieces.keys() {
                if let (Some(stage), Some((layer, _))) = (stage_of(name), layer_of(name)) {
                    let count = layers_of.entry(stage).or_default();
                    *count = (*count).max(layer + 1);
                }
            }
            let mut unknown = Vec::new();
            let held = std::mem::take(&mut rank.pieces);
            for (name, piece) in held {
                let before: usize = stage_of(&name)
                    .map_or(0, |stage| layers_of.iter().filter(|(own, _)| **own < stage).map(|(_, n)| *n).sum());
                let bare = name.split_once(':').map_or(name.as_str(), |(_, bare)| bare);
                match plain(bare, before) {
                    Plain::Named(plain) => {
                        rank.pieces.insert(plain, piece);
                    }
                    Plain::Passed => {}
                    Plain::Unknown => unknown.push(bare.to_owned()),
                }
            }
            if unknown.iter().any(|name| name.contains("decoder") || name.contains("inter_attention")) {
                let reason = "it is an encoder-decoder of Megatron-LM, with LayerNorm and learned positions, and T5 \
                              has RMSNorm and relative ones";
                let fix = "convert a model of GPT-2 or BERT";
                return Err(Error::model(found.root.display().to_string(), reason, fix));
            }
            if !unknown.is_empty() {
                let reason = format!("tensors that are not known: {}", super::super::shortened(&unknown));
                let fix = "convert a GPT-2 or BERT of Megatron-LM before its version 3";
                return Err(Error::model(found.root.display().to_string(), printable(&reason, 400), fix));
            }
        }
        Ok(())
    }

    fn without_stages(&mut self) {
        for rank in &mut self.ranks {
            let held = std::mem::take(&mut rank.pieces);
            let bare = |name: String| name.split_once(':').map_or(name.clone(), |(_, bare)| bare.to_owned());
            rank.pieces = held.into_iter().map(|(name, piece)| (bare(name), piece)).collect();
        }
    }
}

impl RankPieces {
    /// Files of single layers: the first is the embedding, and those with attention are blocks, in their order.
    fn open_layers(
        &mut self,
        found: &RankFiles,
        tensor: usize,
        names: &mut Vec<(usize, String, String)>,
    ) -> Result<()> {
        let mut block = 0;
        for (_, path) in found.layers.iter().filter(|((_, rank), _)| *rank == tensor) {
            let file = PickleFile::open(path)?;
            let own: Vec<String> = file.tensors().iter().map(|entry| entry.name.clone()).collect();
            let is_block = own.iter().any(|name| name.contains("query_key_value"));
            for name in own {
                let bare = match (is_block, name.as_str()) {
                    (true, _) => format!("layers.{block}.{name}"),
                    // The norm after the blocks is a module of its own.
                    (false, "weight" | "bias") => format!("final_layernorm.{name}"),
                    (false, _) => name.clone(),
                };
                names.push((self.files.len(), name, format!("0:{bare}")));
            }
            block += usize::from(is_block);
            self.files.push(file);
        }
        Ok(())
    }

    /// The pieces of these names; ZeRO's f32 values come before the model's.
    fn collect(&mut self, names: Vec<(usize, String, String)>) {
        for (file, own, name) in names {
            if let Ok(index) = self.files[file].tensors().binary_search_by(|entry| entry.name.cmp(&own)) {
                let entry = &self.files[file].tensors()[index];
                if entry.is_float() {
                    let piece = Piece { shape: entry.shape.clone(), dtype: entry.dtype, held: Held::File(file, own) };
                    self.pieces.insert(name, piece);
                }
            }
        }
        let of_zero = self.zero.iter().flat_map(ZeroShards::parameters);
        let of_zero = of_zero.map(|(name, shape)| (name, shape, StoredDtype::F32, Held::Zero(name.to_owned())));
        let frozen = self.frozen.iter().flat_map(FrozenShards::parameters);
        let frozen = frozen.map(|(name, shape, dtype)| (name.as_str(), &shape[..], *dtype, Held::Frozen(name.clone())));
        let universal = self.universal.iter().flat_map(|states| &states.parameters);
        let universal =
            universal.map(|(name, shape)| (name.as_str(), &shape[..], StoredDtype::F32, Held::Universal(name.clone())));
        let found: Vec<(String, Piece)> = of_zero
            .chain(frozen)
            .chain(universal)
            .map(|(name, shape, dtype, held)| (format!("0:{name}"), Piece { shape: shape.to_vec(), dtype, held }))
            .collect();
        self.pieces.extend(found);
    }

    /// Refuses placeholders of parameters that ranks share, which have no values of their own, or a part of them.
    fn refuse_placeholders(&self, found: &RankFiles) -> Result<()> {
        let is_shared = self.universal.is_some() && found.model.keys().any(|(tensor, _)| *tensor > 0);
        let part = self.pieces.iter().find(|(_, piece)| is_shared && matches!(piece.held, Held::File(..)));
        if let Some((name, _)) = part {
            let name = name.split_once(':').map_or(name.as_str(), |(_, bare)| bare);
            let reason = format!("{} is not among the whole master weights, and ranks divide it", printable(name, 120));
            let fix = "convert the checkpoint that the universal one was made of";
            return Err(Error::model(found.root.display().to_string(), reason, fix));
        }
        let is_divided = !found.divided.is_empty();
        let empty = self.pieces.iter().find(|(_, piece)| is_divided && piece.shape.contains(&0));
        let Some((name, _)) = empty else { return Ok(()) };
        let name = name.split_once(':').map_or(name.as_str(), |(_, bare)| bare);
        let reason = format!("no file has the values of {}, which the data ranks share", printable(name, 120));
        let fix = "save the checkpoint with its frozen parameters (exclude_frozen_parameters=False)";
        Err(Error::model(found.root.display().to_string(), reason, fix))
    }
}

fn stage_of(name: &str) -> Option<usize> {
    name.split_once(':')?.0.parse().ok()
}

/// The number of a layer, and what follows it.
fn layer_of(name: &str) -> Option<(usize, &str)> {
    let (_, rest) = name.split_once("layers.")?;
    let (number, rest) = rest.split_once('.')?;
    // More layers than any model has.
    Some((number.parse().ok().filter(|number| *number < 1 << 16)?, rest))
}

enum Plain {
    Named(String),
    /// A copy, or what follows from others.
    Passed,
    Unknown,
}

fn plain(name: &str, layers_before: usize) -> Plain {
    if name.contains("decoder.") || name.ends_with("_extra_state") {
        return if name.contains("decoder.") { Plain::Unknown } else { Plain::Passed };
    }
    if let Some((layer, rest)) = layer_of(name) {
        let rest = rest.replace("self_attention.", "attention.");
        if rest.contains("inter_attention") {
            return Plain::Unknown;
        }
        if rest.ends_with("inv_freq") || rest == "attention.bias" || rest == "attention.masked_bias" {
            return Plain::Passed;
        }
        return Plain::Named(format!("layers.{}.{rest}", layer + layers_before));
    }
    let ends = [
        "word_embeddings.weight",
        "position_embeddings.weight",
        "tokentype_embeddings.weight",
        "final_layernorm.weight",
        "final_layernorm.bias",
        "pooler.dense.weight",
        "pooler.dense.bias",
        "lm_head.dense.weight",
        "lm_head.dense.bias",
        "lm_head.layernorm.weight",
        "lm_head.layernorm.bias",
        "lm_head.bias",
        "binary_head.weight",
        "binary_head.bias",
    ];
    if name.contains("word_embeddings_for_head") {
        return Plain::Passed;
    }
    let is_end = |end: &&&str| name.strip_suffix(**end).is_some_and(|front| front.is_empty() || front.ends_with('.'));
    ends.iter().find(is_end).map_or(Plain::Unknown, |end| Plain::Named((*end).to_owned()))
}
