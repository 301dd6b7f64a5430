//! A dry run: all that is checked before weights are read, with every mistake and not the first alone.
//!
//! Defines [`dry_run`], which [`finetune_on`](super::finetune_on) calls; and, for the program that has found mistakes
//! in the recipe itself, [`environment_mistakes`] and [`refuse_all`].

use super::division::check_layout;
use super::model_options::{Multiplies, check_products};
use super::preconditions::{FinetuneOptions, changes, check_output, is_finished};
use super::resume::{Resume, choose, named};
use super::setup::{self, Setup};
use super::{memory_limit, waiting};
use crate::{Error, Result};
use bmtrain_dist::launch::{ProcessGroup, cpu_options};
use model_center_base::error::{ExitStatus, OutputFault, layout_error};
use model_center_models::Registry;
use model_center_recipe::run::{CHECKPOINT_DIRECTORY, console};
use model_center_recipe::{Resolved, list};

/// Fix for the output directory of another recipe while that recipe has mistakes: a corrected setting may be the
/// earlier run's again.
const AFTER_THE_OTHERS: &str = "mend the other mistakes first: a run whose settings are the earlier run's again needs \
                                nothing more; for other settings set output.dir to another directory";

/// Checks a run and reports what would be trained.
///
/// # Errors
/// The mistake; of several [`refuse_all`].
pub(super) fn dry_run(
    group: &ProcessGroup,
    resolved: &Resolved,
    options: &FinetuneOptions,
    registry: Registry<'static>,
) -> Result<ExitStatus> {
    let launch = group.launch();
    let is_first = launch.rank == 0;
    if is_first {
        waiting::note_reading(resolved);
    }
    let mut mistakes: Vec<Error> =
        check_layout(resolved, launch.world, registry, &options.places).err().into_iter().collect();
    mistakes.extend(options.objective.as_ref().and_then(|own| own.check(resolved).err()));
    let setup = setup::prepare_all(resolved, registry, &options.places);
    let on_processors = device(group, resolved, is_first);
    if let (Ok(setup), Ok(true)) = (&setup, &on_processors) {
        mistakes.extend(memory_limit::check(setup, resolved, launch).err());
    }
    let setup: Option<Setup> = match setup {
        Ok(setup) => Some(setup),
        Err(found) => {
            mistakes.extend(found);
            None
        }
    };
    mistakes.extend(on_processors.err());
    mistakes.extend(output(group, resolved, options).err());
    refuse_all(mistakes)?;
    if let Some(setup) = setup.filter(|_| is_first) {
        let summary = setup.summary(resolved);
        console::print(&format!("{summary}\ndry run: nothing is wrong that can be seen without reading weights"))?;
    }
    Ok(ExitStatus::Done)
}

/// Mistakes that do not depend on data and model: the device and the output directory. For recipes that are refused
/// before [`finetune_on`](super::finetune_on) is called.
pub fn environment_mistakes(group: &ProcessGroup, resolved: &Resolved, options: &FinetuneOptions) -> Vec<Error> {
    let device = device(group, resolved, false).err();
    device.into_iter().chain(output(group, resolved, options).err()).collect()
}

/// Opens the device as the run does, with one thread; whether it is the processors.
fn device(group: &ProcessGroup, resolved: &Resolved, notes: bool) -> Result<bool> {
    let cpu = cpu_options(1)?;
    let opened = group.open_device(resolved.device.name, group.launch().rank, cpu)?;
    let products = check_products(resolved.train.products, Multiplies::of(&opened, cpu.instruction_set))?;
    opened.note.iter().chain(&products).filter(|_| notes).for_each(|note| console::note(note));
    Ok(opened.cuda.is_none())
}

/// Checks the output directory, to which the first rank writes.
fn output(group: &ProcessGroup, resolved: &Resolved, options: &FinetuneOptions) -> Result<()> {
    let is_first = group.launch().rank == 0;
    if is_first {
        check_output(resolved, options, &changes(resolved))?;
        let own = resolved.output.dir.join(CHECKPOINT_DIRECTORY);
        if matches!(options.resume, Resume::Must | Resume::From(_)) {
            choose(&options.resume, &own)?;
        }
        options.init_from.as_ref().map(named).transpose()?;
    }
    is_finished(resolved, options, is_first).map(drop)
}

/// Nothing for no mistake, the mistake itself for one; several are listed on standard error, each of them once.
///
/// # Errors
/// The mistake, or the number of them.
pub fn refuse_all(mistakes: Vec<Error>) -> Result<()> {
    let mut mistakes = mistakes;
    if mistakes.len() < 2 {
        return mistakes.pop().map_or(Ok(()), Err);
    }
    let mut texts: Vec<String> = Vec::new();
    for mistake in mistakes.iter_mut() {
        if let Error::Output { fault: OutputFault::OtherRecipe, fix, .. } = mistake {
            *fix = AFTER_THE_OTHERS.to_owned();
        }
        let text = layout_error(mistake);
        // The layout and the reading of the data both open the model.
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    if texts.len() == 1 {
        return Err(mistakes.swap_remove(0));
    }
    console::note(&list(&texts));
    let reason = format!("{} mistakes, listed above", texts.len());
    Err(Error::recipe("dry run", reason, "mend them in the order shown"))
}
