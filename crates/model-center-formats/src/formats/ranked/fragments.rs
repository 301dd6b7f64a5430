//! Parameters that are not in ZeRO's flat vectors: frozen ones, and the ones of universal checkpoints.
//!
//! Defines [`FrozenShards`], which stage 3 divides among the files of the data ranks, and [`UniversalStates`], which
//! `ds_to_universal.py` writes into a directory for each parameter.

use std::path::{Path, PathBuf};

use super::super::pickle::{PickleFile, Scalar};
use super::super::safetensors::{StoredDtype, TensorSource};
use super::zero::shapes;
use crate::{Error, Result};
use model_center_base::file::{printable, resolve_inside, unreadable};

/// Key of a rank's parts of frozen parameters, and their whole shapes.
const FRAGMENTS: &str = "frozen_param_fragments";
const SHAPES: &str = "frozen_param_shapes";
/// Directories of a universal checkpoint.
const MAX_PARAMETERS: usize = 1 << 17;

/// Frozen parameters, each in equal parts over the data ranks, padded.
#[derive(Debug)]
pub(super) struct FrozenShards {
    files: Vec<PickleFile>,
    parameters: Vec<(String, Vec<usize>, StoredDtype)>,
}

impl FrozenShards {
    /// Opens the files of all data ranks; the first has the shapes. `None` where nothing is frozen.
    pub(super) fn open(paths: &[PathBuf]) -> Result<Option<Self>> {
        let wanted = |key: &str| [FRAGMENTS, SHAPES, "param_shapes"].contains(&key);
        let Some(first) = paths.first() else { return Ok(None) };
        let first = PickleFile::open_tree(first, &wanted)?;
        let own = |name: &str, prefix: &str| name.strip_prefix(prefix)?.strip_prefix('.').map(str::to_owned);
        let mut parameters = Vec::new();
        for (path, scalar) in first.scalars() {
            let (Some(name), Scalar::Shape(shape)) = (own(path, SHAPES), scalar) else { continue };
            let part = first.tensors().iter().find(|entry| entry.name == format!("{FRAGMENTS}.{name}"));
            let dtype = part.map(|entry| entry.dtype).filter(|_| part.is_some_and(|part| part.is_float()));
            let dtype = dtype.ok_or_else(|| lacks(first.path(), &name))?;
            parameters.push((name, shape.clone(), dtype));
        }
        if parameters.is_empty() {
            return Ok(None);
        }
        let others = paths.iter().skip(1).map(|path| PickleFile::open_tree(path, &wanted));
        let files = std::iter::once(Ok(first)).chain(others).collect::<Result<Vec<_>>>()?;
        Ok(Some(FrozenShards { files, parameters }))
    }

    /// Names, shapes and dtypes.
    pub(super) fn parameters(&self) -> &[(String, Vec<usize>, StoredDtype)] {
        &self.parameters
    }

    pub(super) fn read(&self, name: &str, out: &mut [f32]) -> Result<()> {
        let key = format!("{FRAGMENTS}.{name}");
        let mut rest = out;
        for file in &self.files {
            let part = file.tensors().iter().find(|entry| entry.name == key);
            let count = part.and_then(|part| part.elements()).ok_or_else(|| lacks(file.path(), name))?;
            let (piece, after) = rest.split_at_mut(count.min(rest.len()));
            file.read_f32_at(&key, 0, piece)?;
            rest = after;
        }
        match (rest.is_empty(), self.files.last()) {
            (false, Some(last)) => Err(lacks(last.path(), name)),
            _ => Ok(()),
        }
    }
}

fn lacks(path: &Path, name: &str) -> Error {
    let reason = format!("it lacks a part of the frozen parameter {}", printable(name, 120));
    Error::model(path.display().to_string(), reason, "copy the checkpoint again, with the files of all ranks")
}

/// The f32 master weights of a universal checkpoint, whole whatever ranks there were.
#[derive(Debug)]
pub(super) struct UniversalStates {
    directory: PathBuf,
    /// Names and shapes.
    pub(super) parameters: Vec<(String, Vec<usize>)>,
}

impl UniversalStates {
    /// Opens the headers of all parameters in the directory `zero`; `model` has the shapes of those that are flat.
    pub(super) fn open(directory: &Path, model: &PickleFile) -> Result<Self> {
        let mut parameters = Vec::new();
        for (number, entry) in std::fs::read_dir(directory).map_err(|e| unreadable(directory, e))?.enumerate() {
            if number == MAX_PARAMETERS {
                let reason = format!("it has more than {MAX_PARAMETERS} entries");
                return Err(Error::model(
                    directory.display().to_string(),
                    reason,
                    "remove the entries that are not parameters",
                ));
            }
            let entry = entry.map_err(|e| unreadable(directory, e))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if !entry.path().join("fp32.pt").is_file() {
                continue;
            }
            let file = open_state(directory, &name)?;
            let held = file.tensors().first().map(|tensor| tensor.shape.clone()).unwrap_or_default();
            // Stage 3's are flat, and the shape is in the model's file.
            let stated = shapes(model).find(|(_, own, _)| *own == name).map(|(_, _, shape)| shape.to_vec());
            let shape = stated.filter(|_| held.len() == 1).unwrap_or_else(|| held.clone());
            let count = |shape: &[usize]| shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
            if count(&shape).is_none_or(|wanted| count(&held).is_none_or(|held| held < wanted)) {
                let reason = format!("{held:?} values do not make the shape {shape:?}");
                let fix = "convert the checkpoint again with ds_to_universal.py";
                return Err(Error::model(file.path().display().to_string(), reason, fix));
            }
            parameters.push((name, shape));
        }
        if parameters.is_empty() {
            let reason = "it has no directory with an fp32.pt";
            let fix = "convert the checkpoint again with ds_to_universal.py";
            return Err(Error::model(directory.display().to_string(), reason, fix));
        }
        parameters.sort();
        Ok(UniversalStates { directory: directory.to_owned(), parameters })
    }

    pub(super) fn read(&self, name: &str, out: &mut [f32]) -> Result<()> {
        let file = open_state(&self.directory, name)?;
        let tensor = file.tensors().first().ok_or_else(|| lacks(file.path(), name))?;
        file.read_f32_at(&tensor.name, 0, out)
    }
}

/// The one tensor of a parameter's master weights: by itself, or beside how ranks divide it.
fn open_state(directory: &Path, name: &str) -> Result<PickleFile> {
    let path = resolve_inside(directory, &format!("{name}/fp32.pt"))?;
    let file = PickleFile::open_tree(&path, &|key| key == "param")?;
    match file.tensors() {
        [_] => Ok(file),
        several => {
            let reason = format!("it has {} tensors in the place of one", several.len());
            Err(Error::model(
                path.display().to_string(),
                reason,
                "convert the checkpoint again with ds_to_universal.py",
            ))
        }
    }
}
