//! The ranks of a program that are threads of its process: `--ranks` and `--tensor`.
//!
//! Called by the programs `forward` and `generate`; training takes both from a launcher and a recipe.

use crate::model::OpenOptions;
use crate::model::division::Division;
use crate::recipe::nearest;
use crate::{Error, Result};
use bmtrain_dist::launch::Launcher;
use bmtrain_dist::param::Parameters;
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use bmtrain_dist::{Launch, RankGroups};
use std::sync::Arc;

/// The most ranks that `--ranks` starts.
const MOST_RANKS: usize = 1024;

/// The launch of `ranks` ranks, by default of the tensor-parallel ones.
///
/// # Errors
/// Ranks that `tensor` does not divide; a launcher that started several processes.
pub fn launch(ranks: Option<usize>, tensor: usize) -> Result<Launch> {
    if !(1..=MOST_RANKS).contains(&tensor) {
        let reason = format!("{tensor} tensor-parallel ranks");
        return Err(Error::argument("--tensor", reason, format!("use a number from 1 to {MOST_RANKS}")));
    }
    let asked = ranks.or((tensor > 1).then_some(tensor));
    let launch = Launch::detect(asked, &|name| std::env::var(name).ok())?;
    if launch.world > 1 && launch.launcher != Launcher::Threads {
        let reason =
            format!("{} started {} processes, and one writes the output", launch.launcher.name(), launch.world);
        return Err(Error::argument("ranks", reason, "start it once, with --ranks"));
    }
    Ok(launch)
}

/// Whether these tensor-parallel ranks divide all ranks and the model, whose parameters may be a sketch.
///
/// # Errors
/// [`Error::Argument`] with all that does not divide and the nearest numbers that would.
pub fn check(world: usize, tensor: usize, parameters: &Parameters) -> Result<()> {
    let division = Division::of(parameters);
    let mut undivided = division.undivided(tensor);
    if !world.is_multiple_of(tensor) {
        undivided.insert(0, format!("{world} ranks"));
    }
    if undivided.is_empty() {
        return Ok(());
    }
    // Without --ranks the number of ranks follows --tensor.
    let are_all = world == tensor;
    let fits = |ranks: usize| division.undivided(ranks).is_empty() && (are_all || world.is_multiple_of(ranks));
    let fix = match nearest(tensor, if are_all { 2 * tensor } else { world }, fits).as_str() {
        "" => "leave --tensor out".to_owned(),
        near => format!("use --tensor {near}"),
    };
    let reason = format!("{} cannot be divided over {tensor} tensor-parallel ranks", undivided.join(" and "));
    Err(Error::argument("--tensor", reason, fix))
}

/// The options of a model on a rank of these groups, whose data-parallel ranks share its weights (ZeRO-3).
pub fn on_groups(open: OpenOptions, groups: &RankGroups) -> OpenOptions {
    let sharding = match groups.mesh().data_size() {
        1 => Sharding::solo(),
        _ => {
            let ranks = Arc::clone(groups.data());
            Sharding { ranks, level: ZeroLevel::Three, sum: GradientSum::Fast, prefetch: true }
        }
    };
    OpenOptions { sharding, ..open }.on_groups(groups)
}
