//! The parameters of any model in one safetensors file, under their own names: what `bmt.save` and `bmt.load` of the
//! predecessor are for. Defines [`save`] and [`load`].
//!
//! A file does not depend on how the model is sharded: any number of data-parallel and tensor-parallel ranks and of
//! pipeline stages, at any ZeRO level, reads what any other wrote. To resume training, with optimizer state, there are
//! [checkpoints](bmtrain_dist::checkpoint).
//!
//! ```
//! use model_center_formats::parameters;
//! use bmtrain_dist::prelude::*;
//! use model_center_formats::Result;
//!
//! struct Line {
//!     layer: Linear,
//!     parameters: Parameters,
//! }
//!
//! impl Module for Line {
//!     fn parameters(&self) -> &Parameters {
//!         &self.parameters
//!     }
//! }
//!
//! fn line(seed: u64) -> bmtrain_dist::Result<Line> {
//!     let b = Builder::new(&Device::cpu(1)?, BuilderOptions { seed, ..BuilderOptions::default() });
//!     let layer = Linear::new(&b.at("layer"), LinearOptions::new(8, 4, true, Init::normal(0.1)))?;
//!     Ok(Line { layer, parameters: b.finish() })
//! }
//!
//! # fn main() -> Result<()> {
//! # let directory = tempfile::tempdir().expect("a directory for the test");
//! # let path = directory.path().join("line.safetensors");
//! let trained = line(1)?;
//! parameters::save(&trained, &path)?;
//!
//! let other = line(2)?;
//! parameters::load(&other, &path)?;
//! assert_eq!(other.layer.weight().read()?, trained.layer.weight().read()?);
//! # Ok(())
//! # }
//! ```

use super::safetensors::stored;
use super::{SafetensorsFile, SafetensorsWriter, TensorEntry, TensorSource, shortened};
use crate::{Error, Result};
use bmtrain_core::limits::Resource;
use bmtrain_dist::param::WholeReader;
use bmtrain_dist::{ControlGroup, Module, Parameters};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Interval at which the rank that flushes a file tells the others that it is alive.
const SIGN_OF_LIFE: Duration = Duration::from_millis(100);

/// Write all parameters to one safetensors file, each in its own dtype. The file appears complete or not at all, in
/// place of an earlier one.
///
/// All ranks that share the model call it. The first of them writes; its host holds one full parameter at a time.
///
/// # Errors
/// What the disk refuses, on all ranks; a lost rank; matrices in quantised blocks.
pub fn save<M: Module + ?Sized>(model: &M, path: &Path) -> Result<()> {
    let parameters = model.parameters();
    let groups = groups(parameters)?;
    let mut writer = match groups.iter().all(ControlGroup::is_first) {
        true => entries(parameters).and_then(|entries| SafetensorsWriter::create(path, &entries)).map(Some),
        false => Ok(None),
    };
    let mut reader = WholeReader::of(parameters)?;
    for param in parameters.declared() {
        match &mut writer {
            Ok(Some(to)) => {
                let values = reader.read(param)?;
                if let Err(error) = to.write_f32(param.name(), &values) {
                    writer = Err(error);
                }
            }
            // A rank that could not write still takes part, so that the others reach the end and are told.
            Ok(None) | Err(_) => reader.pass(param)?,
        }
    }
    drop(reader);
    let written = match writer {
        Ok(writer) => while_flushing(&groups, writer)?,
        Err(error) => while_flushing(&groups, None)?.and(Err(error)),
    };
    agree(&groups, path, written)
}

/// Set all parameters from a file that [`save`] wrote, or any other safetensors file with floating-point tensors of
/// exactly these names and shapes. Each rank reads the elements that it stores. Values are rounded to the dtype of the
/// parameter.
///
/// All ranks that share the model call it.
///
/// # Errors
/// A file that cannot be read, or whose tensors are not the model's, on all ranks; then nothing was changed.
pub fn load<M: Module + ?Sized>(model: &M, path: &Path) -> Result<()> {
    let parameters = model.parameters();
    let groups = groups(parameters)?;
    let opened = SafetensorsFile::open(path).and_then(|file| check(&file, parameters).map(|()| file));
    let (file, outcome) = match opened {
        Ok(file) => (Some(file), Ok(())),
        Err(error) => (None, Err(error)),
    };
    agree(&groups, path, outcome)?;
    let Some(file) = file else { return Ok(()) };
    let read = parameters
        .iter()
        .try_for_each(|param| param.load_part(&mut |start, out| file.read_f32_at(param.name(), start, out)));
    agree(&groups, path, read)
}

/// The data-parallel ranks, the tensor-parallel ranks and the pipeline stages: over all three, all ranks that share the
/// model.
fn groups(parameters: &Parameters) -> Result<Vec<ControlGroup>> {
    let Some(param) = parameters.iter().next() else {
        return Err(Error::argument("model", "it has no parameters", "declare some through its builder"));
    };
    let flat = param.place()?.0;
    let device = flat.device();
    let group = |ranks| ControlGroup::new(Arc::clone(ranks), device);
    Ok(vec![group(&flat.sharding().ranks), group(flat.tensor_ranks()), group(parameters.stages().ranks())])
}

fn entries(parameters: &Parameters) -> Result<Vec<TensorEntry>> {
    let entry = |param: &bmtrain_dist::Param| {
        Ok(TensorEntry::new(param.name(), stored(param.spec().dtype)?, param.spec().shape.dims()))
    };
    // Those that are held in quantised blocks have no place.
    parameters.iter().try_for_each(|param| param.place().map(drop))?;
    parameters.declared().iter().map(entry).collect()
}

/// Whether a file has floating-point tensors of the names and shapes of these parameters, and no others.
pub fn check(file: &SafetensorsFile, parameters: &Parameters) -> Result<()> {
    let fix = "load a file that this model wrote, with a model of the same configuration";
    let refuse = |reason: String| Err(Error::model(file.path().display().to_string(), reason, fix));
    let is_missing = |name: &&str| file.entry(name).is_none();
    let missing: Vec<String> =
        parameters.declared().iter().map(|p| p.name()).filter(is_missing).map(str::to_owned).collect();
    if !missing.is_empty() {
        return refuse(format!("it lacks parameters of the model: {}", shortened(&missing)));
    }
    let unknown = |entry: &&TensorEntry| parameters.find_declared(&entry.name).is_none();
    let unknown: Vec<String> = file.tensors().iter().filter(unknown).map(|entry| entry.name.clone()).collect();
    if !unknown.is_empty() {
        return refuse(format!("it has tensors that the model lacks: {}", shortened(&unknown)));
    }
    for param in parameters.declared() {
        let Some(entry) = file.entry(param.name()) else { continue };
        if entry.shape != param.spec().shape.dims() || !entry.is_float() {
            let (found, shape) = (format!("{:?} {:?}", entry.dtype, entry.shape), param.spec().shape);
            return refuse(format!("{} is {found}, the model's has floats of shape {shape}", param.name()));
        }
    }
    Ok(())
}

/// Flush and name the file on the rank that wrote it, while the others wait for as long as the disk takes.
fn while_flushing(groups: &[ControlGroup], writer: Option<SafetensorsWriter>) -> Result<Result<()>> {
    if groups.iter().all(|group| group.size() == 1) {
        return Ok(writer.map_or(Ok(()), SafetensorsWriter::finish));
    }
    std::thread::scope(|scope| {
        let start = |writer: SafetensorsWriter| std::thread::Builder::new().spawn_scoped(scope, || writer.finish());
        let refused = |error| bmtrain_core::Error::refused("thread that flushes a file", Resource::Threads, error);
        let worker = writer.map(start).transpose().map_err(refused)?;
        loop {
            let mut is_busy = worker.as_ref().is_some_and(|worker| !worker.is_finished());
            if is_busy {
                std::thread::sleep(SIGN_OF_LIFE);
            }
            // Each group tells the ranks that are first in the next one, until all others know.
            for group in groups {
                is_busy = group.gather(&[f32::from(u8::from(is_busy))])?.iter().flatten().any(|busy| *busy == 1.0);
            }
            if !is_busy {
                break;
            }
        }
        let died = || Error::model("file", "the thread that flushed it died", "report this, with the message above");
        Ok(worker.map_or(Ok(()), |worker| worker.join().unwrap_or_else(|_| Err(died()))))
    })
}

/// This rank's outcome, or the failure of another one: all ranks return an error, or none.
fn agree(groups: &[ControlGroup], path: &Path, own: Result<()>) -> Result<()> {
    let mut told = own.as_ref().err().map(ToString::to_string).unwrap_or_default();
    for group in groups {
        told = group.gather_texts(&told)?.into_iter().find(|text| !text.is_empty()).unwrap_or_default();
    }
    own?;
    match told.as_str() {
        "" => Ok(()),
        told => Err(Error::model(
            path.display().to_string(),
            format!("another rank could not use the file: {told}"),
            "correct that, and call it again on all ranks",
        )),
    }
}
