//! ZeRO's shards: the f32 master weights of each parameter, in flat vectors over the data ranks.
//!
//! Defines [`ZeroShards`]. Stages 1 and 2 divide the vector of a parameter group in as many equal parts as there are
//! ranks; stage 3 divides each parameter so, padded to a multiple of the ranks.

use std::path::PathBuf;

use super::super::pickle::{PickleFile, Scalar};
use super::super::safetensors::TensorSource;
use crate::{Error, Result};

/// Location of a parameter.
#[derive(Debug, Clone)]
struct Location {
    group: usize,
    /// Stages 1 and 2: the first element in the group's vector. Stage 3: in the vector of each rank.
    start: usize,
    elements: usize,
}

/// The shards of one tensor-parallel rank.
#[derive(Debug)]
pub(super) struct ZeroShards {
    files: Vec<PickleFile>,
    /// By rank and group: the name of a flat vector and its length.
    vectors: Vec<Vec<(String, usize)>>,
    is_divided: bool,
    parameters: Vec<(String, Vec<usize>, Location)>,
}

impl ZeroShards {
    /// Opens the shards of all data ranks; `model` has the shapes of the parameters.
    pub(super) fn open(paths: &[PathBuf], model: &PickleFile) -> Result<Self> {
        let wanted = |key: &str| key == "optimizer_state_dict";
        let files = paths.iter().map(|path| PickleFile::open_tree(path, &wanted)).collect::<Result<Vec<_>>>()?;
        let mut vectors = Vec::new();
        let mut is_divided = false;
        for file in &files {
            let (found, divided) = vectors_of(file)?;
            is_divided |= divided;
            vectors.push(found);
        }
        if let Some(other) = vectors.iter().position(|found| found.len() != vectors[0].len()) {
            let place = paths[other].display().to_string();
            let reason = format!("{} parameter groups, the first rank has {}", vectors[other].len(), vectors[0].len());
            return Err(Error::model(place, reason, "copy the checkpoint again, with the files of all ranks"));
        }
        let mut shards = ZeroShards { files, vectors, is_divided, parameters: Vec::new() };
        shards.locate(model)?;
        Ok(shards)
    }

    /// Names and shapes, in the order of the optimizer.
    pub(super) fn parameters(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.parameters.iter().map(|(name, shape, _)| (name.as_str(), shape.as_slice()))
    }

    pub(super) fn read(&self, name: &str, out: &mut [f32]) -> Result<()> {
        let found = self.parameters.iter().find(|(own, ..)| own == name);
        let Some((_, _, location)) = found.filter(|(_, _, location)| location.elements == out.len()) else {
            return Err(self.bad(format!("{name} is not among its parameters")));
        };
        match self.is_divided {
            true => self.read_divided(location, out),
            false => self.read_range(location.group, location.start, out),
        }
    }

    /// A range of the vector of a group, which is divided over the ranks.
    fn read_range(&self, group: usize, start: usize, out: &mut [f32]) -> Result<()> {
        let (mut skipped, mut done) = (0, 0);
        for (rank, file) in self.files.iter().enumerate() {
            let (name, length) = &self.vectors[rank][group];
            let (from, to) = (start.max(skipped), (start + out.len()).min(skipped + length));
            if from < to {
                file.read_f32_at(name, from - skipped, &mut out[done..done + to - from])?;
                done += to - from;
            }
            skipped += length;
        }
        match done == out.len() {
            true => Ok(()),
            false => Err(self.bad(format!("a vector of {skipped} values has no range {start}+{}", out.len()))),
        }
    }

    /// A parameter that is divided among ranks.
    fn read_divided(&self, location: &Location, out: &mut [f32]) -> Result<()> {
        let part = location.elements.div_ceil(self.files.len());
        for (rank, piece) in out.chunks_mut(part.max(1)).enumerate() {
            let (mut skipped, mut start, mut done) = (0, location.start, 0);
            for (name, length) in &self.vectors[rank] {
                let (from, to) = (start.max(skipped), (start + piece.len() - done).min(skipped + length));
                if from < to {
                    self.files[rank].read_f32_at(name, from - skipped, &mut piece[done..done + to - from])?;
                    done += to - from;
                    start = to;
                }
                skipped += length;
            }
            if done != piece.len() {
                return Err(self.bad(format!("rank {rank} has {skipped} values, which are not all parameters")));
            }
        }
        Ok(())
    }

    fn locate(&mut self, model: &PickleFile) -> Result<()> {
        let ranks = self.files.len();
        let mut starts: Vec<usize> = vec![0; self.vectors.first().map_or(0, Vec::len).max(1)];
        for (group, name, shape) in shapes(model) {
            let group = if self.is_divided { 0 } else { group };
            let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
            let (Some(elements), Some(start)) = (elements, starts.get_mut(group)) else {
                return Err(self.bad(format!("{name} of shape {shape:?} belongs to no group of the optimizer")));
            };
            let location = Location { group, start: *start, elements };
            let taken = if self.is_divided { elements.div_ceil(ranks) } else { elements };
            *start = start.checked_add(taken).ok_or_else(|| self.bad("its sizes overflow".to_owned()))?;
            self.parameters.push((name.to_owned(), shape.to_vec(), location));
        }
        if self.parameters.is_empty() {
            let reason = "it has no param_shapes, which tell what the optimizer's vectors are";
            let fix = "export the weights with DeepSpeed's zero_to_fp32.py, and convert those";
            return Err(Error::model(model.path().display().to_string(), reason, fix));
        }
        Ok(())
    }

    fn bad(&self, reason: String) -> Error {
        let place = self.files.first().map_or_else(String::new, |file| file.path().display().to_string());
        Error::model(place, reason, "copy the checkpoint again, with the files of all ranks")
    }
}

/// Names and shapes of parameters with their groups: `param_shapes` is a list of dictionaries, in old versions one.
pub(super) fn shapes(model: &PickleFile) -> impl Iterator<Item = (usize, &str, &[usize])> {
    model.scalars().iter().filter_map(|(path, scalar)| {
        let Scalar::Shape(shape) = scalar else { return None };
        let rest = path.strip_prefix("param_shapes.")?;
        let numbered = rest.split_once('.').and_then(|(group, name)| Some((group.parse().ok()?, name)));
        let (group, name) = numbered.unwrap_or((0, rest));
        Some((group, name, shape.as_slice()))
    })
}

/// The flat vectors of a rank, and whether each parameter is divided (stage 3).
fn vectors_of(file: &PickleFile) -> Result<(Vec<(String, usize)>, bool)> {
    let of = |key: &str| {
        let prefix = format!("optimizer_state_dict.{key}.");
        let mut found: Vec<(usize, String, usize)> = file
            .tensors()
            .iter()
            .filter_map(|entry| {
                let group = entry.name.strip_prefix(&prefix)?.parse().ok()?;
                Some((group, entry.name.clone(), entry.elements()?))
            })
            .collect();
        found.sort();
        found.into_iter().map(|(_, name, elements)| (name, elements)).collect::<Vec<_>>()
    };
    let divided = of("fp32_flat_groups");
    if !divided.is_empty() {
        return Ok((divided, true));
    }
    let whole = of("single_partition_of_fp32_groups");
    if !whole.is_empty() {
        return Ok((whole, false));
    }
    let reason = "it has neither single_partition_of_fp32_groups nor fp32_flat_groups";
    let fix = "export the weights with DeepSpeed's zero_to_fp32.py, and convert those";
    Err(Error::model(file.path().display().to_string(), reason, fix))
}
