//! The files of a checkpoint by rank.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::super::known_directory::{DirectoryKind, KnownDirectory};
use crate::{Error, Result};
use model_center_base::file::{printable, read_text, resolve_inside, unreadable};

/// More files than any checkpoint has.
const MAX_FILES: usize = 1 << 16;
const TRACKER: &str = "latest_checkpointed_iteration.txt";
const LATEST: &str = "latest";
/// Directory of a universal checkpoint with a directory for each parameter.
const UNIVERSAL: &str = "zero";

/// System whose layout a checkpoint has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankedSystem {
    /// `mp_rank_00/model_optim_rng.pt`.
    Megatron,
    /// `mp_rank_00_model_states.pt`, with ZeRO's shards beside them.
    DeepSpeed,
}

/// Files by tensor-parallel rank and pipeline stage.
#[derive(Debug, Default)]
pub(crate) struct RankFiles {
    pub(crate) root: PathBuf,
    pub(super) is_deepspeed: bool,
    /// By tensor-parallel rank and stage.
    pub(super) model: BTreeMap<(usize, usize), PathBuf>,
    /// Files of single layers, by layer and tensor-parallel rank.
    pub(super) layers: BTreeMap<(usize, usize), PathBuf>,
    /// ZeRO's optimizer states, by tensor-parallel rank and data rank.
    pub(super) zero: BTreeMap<(usize, usize), PathBuf>,
    /// Each data rank's part of the model in stage 3, in the same way.
    pub(super) divided: BTreeMap<(usize, usize), PathBuf>,
    /// The directory of whole master weights of a universal checkpoint.
    pub(super) universal: Option<PathBuf>,
}

impl RankFiles {
    pub(super) fn tensor_ranks(&self) -> usize {
        let of = |map: &BTreeMap<(usize, usize), PathBuf>| map.keys().map(|(rank, _)| rank + 1).max().unwrap_or(0);
        // Its parameters are whole.
        if self.universal.is_some() {
            return 1;
        }
        let of_layers = self.layers.keys().map(|(_, rank)| rank + 1).max().unwrap_or(0);
        if of_layers > 0 { of_layers } else { of(&self.model).max(1) }
    }

    pub(super) fn stages(&self) -> usize {
        self.model.keys().map(|(_, stage)| stage + 1).max().unwrap_or(0)
    }

    pub(crate) fn system(&self) -> RankedSystem {
        if self.is_deepspeed { RankedSystem::DeepSpeed } else { RankedSystem::Megatron }
    }
}

/// Whether a directory is such a checkpoint, or a run's directory of them.
pub fn is_ranked(directory: &Path) -> bool {
    let has = |name: &str| directory.join(name).is_file();
    // A model's own files are another matter.
    if has("config.json") {
        return false;
    }
    if has(TRACKER) || has(LATEST) {
        return true;
    }
    let Ok(entries) = fs::read_dir(directory) else { return false };
    let mut names = entries.flatten().take(MAX_FILES).map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.any(|name| Named::of(&name).is_some())
}

/// The files of the checkpoint that `directory` is, or whose name the run's directory has.
pub(crate) fn find(directory: &Path) -> Result<RankFiles> {
    let root = checkpoint_of(directory)?;
    let mut files = RankFiles { root: root.clone(), ..RankFiles::default() };
    for entry in fs::read_dir(&root).map_err(|e| unreadable(&root, e))?.take(MAX_FILES) {
        let name = entry.map_err(|e| unreadable(&root, e))?.file_name().to_string_lossy().into_owned();
        match Named::of(&name) {
            Some(Named::Directory { tensor, stage }) => {
                let inner = root.join(&name);
                let known = ["model_optim_rng.pt", "model_rng.pt"];
                if let Some(file) = known.iter().map(|file| inner.join(file)).find(|file| file.is_file()) {
                    files.model.insert((tensor, stage), file);
                } else if inner.is_dir() {
                    let reason = "there is no model_optim_rng.pt in it";
                    return Err(Error::model(inner.display().to_string(), reason, "copy the checkpoint again"));
                }
            }
            Some(Named::Model { tensor }) => {
                files.is_deepspeed = true;
                files.model.insert((tensor, 0), root.join(&name));
            }
            Some(Named::Layer { layer, tensor }) => {
                files.is_deepspeed = true;
                files.layers.insert((layer, tensor), root.join(&name));
            }
            Some(Named::Zero { tensor, data }) => {
                files.is_deepspeed = true;
                files.zero.insert((tensor, data), root.join(&name));
            }
            // With ZeRO-3 each data rank has one: the first has all but the parts of frozen parameters.
            Some(Named::ZeroModel { tensor, data }) => {
                files.is_deepspeed = true;
                files.divided.insert((tensor, data), root.join(&name));
                if data == 0 {
                    files.model.entry((tensor, 0)).or_insert_with(|| root.join(&name));
                }
            }
            None => {}
        }
    }
    files.universal = Some(root.join(UNIVERSAL)).filter(|directory| files.is_deepspeed && directory.is_dir());
    require_all(&files)?;
    Ok(files)
}

fn checkpoint_of(directory: &Path) -> Result<PathBuf> {
    let bad = |file: &str, reason: String| {
        let place = directory.join(file).display().to_string();
        Error::model(place, reason, "give the directory of one checkpoint")
    };
    let mut named = None;
    // DeepSpeed's name comes first: CPM-Pretrain writes both.
    for file in [LATEST, TRACKER] {
        if !directory.join(file).is_file() {
            continue;
        }
        let text = read_text(&resolve_inside(directory, file)?, 1024)?;
        let text = text.trim();
        let name = match (file, text.parse::<u64>()) {
            (TRACKER, Ok(iteration)) => format!("iter_{iteration:07}"),
            (TRACKER, Err(_)) if text != "release" => {
                return Err(bad(file, format!("{} is neither a number nor `release`", printable(text, 60))));
            }
            _ => text.to_owned(),
        };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if name.is_empty() || name.starts_with('.') || !name.chars().all(is_plain) {
            return Err(bad(file, format!("{} cannot be the name of a directory", printable(&name, 60))));
        }
        if directory.join(&name).is_dir() {
            return resolve_inside(directory, &name);
        }
        named = Some((file, name));
    }
    match named {
        Some((file, name)) => Err(bad(file, format!("it names {name}, which is not there"))),
        None => Ok(directory.to_owned()),
    }
}

/// Every rank has a file, and every file a rank.
fn require_all(files: &RankFiles) -> Result<()> {
    let missing = |what: String| {
        let fix = "copy the checkpoint again, with the files of all ranks";
        Err(Error::model(files.root.display().to_string(), format!("the file of {what} is missing"), fix))
    };
    if files.model.is_empty() && files.layers.is_empty() {
        // A run's directory names its newest checkpoint whatever it is.
        if let Some(known) = KnownDirectory::of(&files.root).filter(|known| known.kind != DirectoryKind::Ranked) {
            return Err(known.no_model());
        }
        let reason = "there are no files such as mp_rank_00/model_optim_rng.pt or mp_rank_00_model_states.pt";
        let fix = "name the directory of a checkpoint of Megatron-LM or DeepSpeed";
        return Err(Error::model(files.root.display().to_string(), reason, fix));
    }
    let (ranks, stages) = (files.tensor_ranks(), files.stages());
    if files.layers.is_empty() {
        for rank in 0..ranks {
            for stage in 0..stages {
                if !files.model.contains_key(&(rank, stage)) {
                    return missing(format!("tensor-parallel rank {rank}, stage {stage}"));
                }
            }
        }
    }
    let layers: BTreeSet<usize> = files.layers.keys().map(|(layer, _)| *layer).collect();
    for layer in layers {
        if let Some(rank) = (0..ranks).find(|rank| !files.layers.contains_key(&(layer, *rank))) {
            return missing(format!("layer {layer}, tensor-parallel rank {rank}"));
        }
    }
    if !files.zero.is_empty() {
        let data = files.zero.keys().map(|(_, data)| data + 1).max().unwrap_or(0);
        for rank in 0..files.zero.keys().map(|(rank, _)| rank + 1).max().unwrap_or(0) {
            if let Some(lost) = (0..data).find(|data| !files.zero.contains_key(&(rank, *data))) {
                return missing(format!("data rank {lost}, tensor-parallel rank {rank} (zero_pp_rank_{lost}_…)"));
            }
        }
    }
    // Parameters that are frozen are divided over the files of the model.
    let data = files.divided.keys().chain(files.zero.keys()).map(|(_, data)| data + 1).max().unwrap_or(0);
    for rank in 0..files.divided.keys().map(|(rank, _)| rank + 1).max().unwrap_or(0) {
        if let Some(lost) = (0..data).find(|data| !files.divided.contains_key(&(rank, *data))) {
            let file = format!("zero_pp_rank_{lost}_…_model_states.pt");
            return missing(format!("data rank {lost}, tensor-parallel rank {rank} ({file})"));
        }
    }
    Ok(())
}

/// Content of a file by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    Directory { tensor: usize, stage: usize },
    Model { tensor: usize },
    Layer { layer: usize, tensor: usize },
    Zero { tensor: usize, data: usize },
    ZeroModel { tensor: usize, data: usize },
}

impl Named {
    fn of(name: &str) -> Option<Named> {
        if let Some(rest) = name.strip_prefix("layer_") {
            let (layer, rest) = rest.split_once("-model_")?;
            let tensor = rest.strip_suffix("-model_states.pt")?;
            return Some(Named::Layer { layer: number(layer)?, tensor: number(tensor)? });
        }
        let zero = name.strip_prefix("zero_pp_rank_").or_else(|| name.strip_prefix("bf16_zero_pp_rank_"));
        if let Some(rest) = zero {
            let (data, rest) = rest.split_once("_mp_rank_")?;
            let data = number(data)?;
            if let Some(tensor) = rest.strip_suffix("_model_states.pt") {
                return Some(Named::ZeroModel { tensor: number(tensor)?, data });
            }
            let tensor = rest.strip_suffix("optim_states.pt")?.trim_end_matches('_');
            return Some(Named::Zero { tensor: number(tensor)?, data });
        }
        let rest = name.strip_prefix("mp_rank_")?;
        if let Some(tensor) = rest.strip_suffix("_model_states.pt") {
            return Some(Named::Model { tensor: number(tensor)? });
        }
        let (tensor, stage) = rest.split_once('_').map_or((rest, "0"), |parts| parts);
        Some(Named::Directory { tensor: number(tensor)?, stage: number(stage)? })
    }
}

fn number(text: &str) -> Option<usize> {
    let is_number = !text.is_empty() && text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_ranks() {
        let named = [
            ("mp_rank_03", Named::Directory { tensor: 3, stage: 0 }),
            ("mp_rank_01_002", Named::Directory { tensor: 1, stage: 2 }),
            ("mp_rank_00_model_states.pt", Named::Model { tensor: 0 }),
            ("layer_07-model_01-model_states.pt", Named::Layer { layer: 7, tensor: 1 }),
            ("zero_pp_rank_2_mp_rank_01_optim_states.pt", Named::Zero { tensor: 1, data: 2 }),
            ("zero_pp_rank_2_mp_rank_01optim_states.pt", Named::Zero { tensor: 1, data: 2 }),
            ("bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", Named::Zero { tensor: 0, data: 0 }),
            ("zero_pp_rank_1_mp_rank_00_model_states.pt", Named::ZeroModel { tensor: 0, data: 1 }),
        ];
        for (name, expected) in named {
            assert_eq!(Named::of(name), Some(expected), "{name}");
        }
        for name in ["mp_rank_", "mp_rank_x", "layer_-model_00-model_states.pt", "model.pt", "mp_rank_9999999"] {
            assert_eq!(Named::of(name), None, "{name}");
        }
    }
}
