//! Restore a model from a checkpoint: every rank reads the elements it stores, whichever ranks had saved them.

use super::training_state::{OptimizerState, TrainingState};
use super::{kind_of, shape_of};
use crate::checkpoint::disk::{Checkpoint, ElementRun, Fault, Kind};
use crate::error::{Error, Result};
use crate::optim::OptimManager;
use crate::param::{Param, Parameters};
use bmtrain_core::DType;

const SAME_MODEL: &str = "resume with the model and the dtypes that were saved; to start a new run from its weights \
                          alone, load them into it";

/// Restore parameters, optimizer state, schedules, loss scale and the freeze mask. The caller continues with the step
/// after [`Manifest::step`](crate::checkpoint::Manifest::step).
///
/// # Errors
/// [`Fault::Request`] for a checkpoint of another model, dtype or other optimizers, [`Fault::Damaged`] for bytes whose
/// hash differs: the run must not continue with what was loaded so far.
pub fn restore(
    checkpoint: &Checkpoint,
    state: &TrainingState,
    params: &Parameters,
    optim: &mut OptimManager,
) -> Result<()> {
    load_parameters(checkpoint, params)?;
    state.apply(optim, params)?;
    for ((optimizer, _), saved) in optim.parts_mut().zip(&state.optimizers) {
        let OptimizerState { steps, .. } = saved;
        let params: Vec<Param> = optimizer.groups().iter().flat_map(|group| group.params.iter().cloned()).collect();
        let known = |name: &String| params.iter().any(|param| param.name() == name);
        if let Some(name) = steps.keys().find(|name| !known(name)) {
            return Err(misfit(checkpoint, format!("{name} had an optimizer and has none now")));
        }
        for param in &params {
            let Some(&steps) = steps.get(param.name()) else { continue };
            optimizer.load_kept(param, steps, &mut |name, part| {
                check(checkpoint, param, &kind_of(name), DType::F32)?;
                let mut values = vec![0.0f32; part.len()];
                let (runs, out) = (element_runs(&param.runs_of(&part)), bytemuck::cast_slice_mut(&mut values));
                checkpoint.read_runs(param.name(), &kind_of(name), &runs, out)?;
                Ok(values)
            })?;
        }
    }
    Ok(())
}

/// Restore the values of parameters, and nothing else. The checkpoint and the model have the same parameters, in the
/// same dtypes.
pub fn load_parameters(checkpoint: &Checkpoint, params: &Parameters) -> Result<()> {
    let mut loaded = 0;
    for param in params {
        let dtype = param.place()?.0.dtype();
        check(checkpoint, param, &Kind::Parameter, dtype)?;
        param.load_bits(&mut |runs, bytes| {
            checkpoint.read_runs(param.name(), &Kind::Parameter, &element_runs(runs), bytes)
        })?;
        loaded += 1;
    }
    let saved = checkpoint.tensors().iter().filter(|tensor| tensor.kind == Kind::Parameter).count();
    if saved != loaded {
        let reason = format!("{saved} parameters were saved, the model has {loaded}");
        return Err(misfit(checkpoint, reason));
    }
    Ok(())
}

fn check(checkpoint: &Checkpoint, param: &Param, kind: &Kind, dtype: DType) -> Result<()> {
    let Some(tensor) = checkpoint.tensor(param.name(), kind) else {
        return Err(misfit(checkpoint, format!("there is no {kind} {}", param.name())));
    };
    let shape = shape_of(param);
    if tensor.dtype != dtype || tensor.shape != shape {
        let (name, saved) = (param.name(), format!("{} {:?}", tensor.dtype, tensor.shape));
        let reason = format!("{kind} {name}: saved as {saved}, wanted as {dtype} {shape:?}");
        return Err(misfit(checkpoint, reason));
    }
    Ok(())
}

fn element_runs(runs: &[(usize, usize, usize)]) -> Vec<ElementRun> {
    let run = |&(start, at, length): &(usize, usize, usize)| (start as u64, length as u64, at as u64);
    runs.iter().map(run).map(|(start, length, at)| ElementRun { start, length, at }).collect()
}

fn misfit(checkpoint: &Checkpoint, reason: String) -> Error {
    Error::checkpoint(Fault::Request, checkpoint.name().to_string(), reason, SAME_MODEL)
}
