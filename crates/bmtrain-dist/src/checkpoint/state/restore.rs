//! Restore a model from a checkpoint: every rank reads the elements it stores, whichever ranks had saved them.

use super::training_state::{OptimizerState, TrainingState};
use super::{kept_shape, kind_of};
use crate::checkpoint::disk::{Checkpoint, ElementRun, Fault, Kind};
use crate::control::ControlGroup;
use crate::error::{Error, Result};
use crate::optim::average::AVERAGE;
use crate::optim::{KeptForm, OptimManager};
use crate::param::{Param, Parameters};
use bmtrain_core::DType;
use std::collections::HashMap;
use std::sync::Arc;

const SAME_MODEL: &str = "resume with the model and the dtypes that were saved; to start a new run from its weights \
                          alone, load them into it";
const SAME_OPTIMIZER: &str = "resume with the optimizer, and the version, that saved it; or without optimizer state, \
                              as --fresh-optimizer does";
const NO_OPTIMIZER_STATE: &str = "the checkpoint was saved without optimizer state";

/// Restore parameters, optimizer state, schedules, loss scale and the freeze mask. The caller continues with the step
/// after [`Manifest::step`](crate::checkpoint::Manifest::step). Collective over pipeline stages: each reads what it
/// holds.
///
/// # Errors
/// [`Fault::Request`] for a checkpoint of another model, dtype or other optimizers, or without their state, the same on
/// all ranks, before anything is changed. [`Fault::Damaged`] for bytes whose hash differs: the run must not continue
/// with what was loaded so far.
pub fn restore(
    checkpoint: &Checkpoint,
    state: &TrainingState,
    params: &Parameters,
    optim: &mut OptimManager,
) -> Result<()> {
    if !state.has_optimizer_state {
        let fix = "restore it without optimizer state, with which the optimizers begin anew";
        return Err(Error::checkpoint(Fault::Request, checkpoint.name().to_string(), NO_OPTIMIZER_STATE, fix));
    }
    check_parameters(checkpoint, params)?;
    state.check(optim, params)?;
    agree(checkpoint, params, optim, check_optimizers(checkpoint, state, (params, optim)))?;
    read_parameters(checkpoint, params)?;
    state.apply(optim, params)?;
    for ((optimizer, _), saved) in optim.parts_mut().zip(&state.optimizers) {
        let params: Vec<Param> = optimizer.groups().iter().flat_map(|group| group.params.iter().cloned()).collect();
        for param in &params {
            let Some(&steps) = saved.steps.get(param.name()) else { continue };
            optimizer.load_kept(param, steps, &mut |spec, part| {
                let runs = match spec.form.is_by_element() {
                    true => element_runs(&param.runs_of(&part)),
                    false => element_runs(&[(part.start, 0, part.len())]),
                };
                let read = |out: &mut [u8]| checkpoint.read_runs(param.name(), &kind_of(spec.name), &runs, out);
                if spec.form == KeptForm::Codes {
                    let mut codes = vec![0u8; part.len()];
                    read(&mut codes)?;
                    return Ok(codes.into_iter().map(f32::from).collect());
                }
                let mut values = vec![0.0f32; part.len()];
                read(bytemuck::cast_slice_mut(&mut values))?;
                Ok(values)
            })?;
        }
    }
    Ok(())
}

/// As [`restore`] without moments, master weights and step counts, whether the checkpoint has them or not: optimizers
/// that were made for this begin with fresh state, at the same position in their schedules.
///
/// # Errors
/// As [`restore`].
pub fn restore_without_optimizer_state(
    checkpoint: &Checkpoint,
    state: &TrainingState,
    params: &Parameters,
    optim: &mut OptimManager,
) -> Result<()> {
    check_parameters(checkpoint, params)?;
    state.check(optim, params)?;
    read_parameters(checkpoint, params)?;
    state.apply(optim, params)
}

/// Restore the values of parameters, and nothing else. The checkpoint and the model have the same parameters, in the
/// same dtypes; parameters of a frozen model under adapters keep their values
/// ([`Parameters::is_saved`]); a pipeline stage reads those that it holds.
///
/// # Errors
/// As [`restore`].
pub fn load_parameters(checkpoint: &Checkpoint, params: &Parameters) -> Result<()> {
    check_parameters(checkpoint, params)?;
    read_parameters(checkpoint, params)
}

/// As [`load_parameters`], with the averages of parameters that have one in place of their values, as
/// [`OptimManager::use_averages`] has them.
///
/// # Errors
/// As [`restore`].
pub fn load_averages(checkpoint: &Checkpoint, params: &Parameters) -> Result<()> {
    load_parameters(checkpoint, params)?;
    let kind = kind_of(AVERAGE);
    for param in saved_of(params).filter(|param| checkpoint.tensor(param.name(), &kind).is_some()) {
        check(checkpoint, param, &kind, (DType::F32, &KeptForm::Elements))
            .map_err(|reason| misfit(checkpoint, reason))?;
        param.load_runs(&mut |runs, values| {
            checkpoint.read_runs(param.name(), &kind, &element_runs(runs), bytemuck::cast_slice_mut(values))
        })?;
    }
    Ok(())
}

/// Whether the checkpoint has the parameters of all pipeline stages and no others. All ranks come to the same.
fn check_parameters(checkpoint: &Checkpoint, params: &Parameters) -> Result<()> {
    let declared = || params.declared().iter().filter(|param| params.is_saved(param));
    for param in declared() {
        let dtype = param.spec().dtype;
        check(checkpoint, param, &Kind::Parameter, (dtype, &KeptForm::Elements))
            .map_err(|reason| misfit(checkpoint, reason))?;
    }
    let saved = checkpoint.tensors().iter().filter(|tensor| tensor.kind == Kind::Parameter).count();
    let declared = declared().count();
    if saved != declared {
        let reason = format!("{saved} parameters were saved, the model has {declared}");
        return Err(misfit(checkpoint, reason));
    }
    // A parameter that is held in quantised blocks is refused before others change.
    saved_of(params).try_for_each(|param| param.place().map(drop))
}

/// The parameters of this stage that checkpoints have.
fn saved_of(params: &Parameters) -> impl Iterator<Item = &Param> {
    params.iter().filter(|param| params.is_saved(param))
}

fn read_parameters(checkpoint: &Checkpoint, params: &Parameters) -> Result<()> {
    saved_of(params).try_for_each(|param| {
        param.load_bits(&mut |runs, bytes| {
            checkpoint.read_runs(param.name(), &Kind::Parameter, &element_runs(runs), bytes)
        })
    })
}

/// Whether the optimizers of this stage are those that were saved: else the reason. State of parameters that only other
/// stages hold is left to them.
fn check_optimizers(
    checkpoint: &Checkpoint,
    state: &TrainingState,
    (params, optim): (&Parameters, &OptimManager),
) -> Result<(), String> {
    for ((optimizer, _), OptimizerState { steps, .. }) in optim.parts().zip(&state.optimizers) {
        let own: HashMap<&str, &Param> =
            optimizer.groups().iter().flat_map(|group| &group.params).map(|param| (param.name(), param)).collect();
        for name in steps.keys() {
            let Some(param) = own.get(name.as_str()) else {
                if params.get(name).is_none() && params.find_declared(name).is_some() {
                    continue;
                }
                return Err(format!("{name} had an optimizer and has none now"));
            };
            for spec in optimizer.kept_specs(param) {
                check(checkpoint, param, &kind_of(spec.name), (spec.form.dtype(), &spec.form))?;
            }
        }
    }
    Ok(())
}

/// The first stage's reason against the checkpoint, if there is one, as the same error on all ranks.
fn agree(checkpoint: &Checkpoint, params: &Parameters, optim: &OptimManager, own: Result<(), String>) -> Result<()> {
    let own = own.err().unwrap_or_default();
    let ranks = params.stages().ranks();
    let reasons = match ranks.size() {
        1 => vec![own],
        _ => ControlGroup::new(Arc::clone(ranks), optim.device()).gather_texts(&own)?,
    };
    let Some(reason) = reasons.into_iter().find(|reason| !reason.is_empty()) else { return Ok(()) };
    Err(Error::checkpoint(Fault::Request, checkpoint.name().to_string(), reason, SAME_OPTIMIZER))
}

/// Whether the checkpoint has a tensor of a parameter: else the reason.
fn check(checkpoint: &Checkpoint, param: &Param, kind: &Kind, (dtype, form): (DType, &KeptForm)) -> Result<(), String> {
    let Some(tensor) = checkpoint.tensor(param.name(), kind) else {
        return Err(format!("there is no {kind} {}", param.name()));
    };
    let shape = kept_shape(param, form);
    if tensor.dtype != dtype || tensor.shape != shape {
        let (name, saved) = (param.name(), format!("{} {:?}", tensor.dtype, tensor.shape));
        return Err(format!("{kind} {name}: saved as {saved}, wanted as {dtype} {shape:?}"));
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
