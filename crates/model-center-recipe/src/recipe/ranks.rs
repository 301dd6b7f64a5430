//! The batch of a number of ranks: `train.batch_size` is `train.micro_batch_size` × `train.accumulation` × data ranks,
//! and what a recipe leaves out follows from the others.
//!
//! Defines [`Resolved::on_ranks`], [`Resolved::micro_batch_on`] and [`Resolved::mismatches`], called by the programs
//! once the number of ranks is known. A recipe is read without it, since it is the same recipe however many ranks carry
//! it out.

use super::engine::layers::Origin;
use super::resolved::Resolved;
use bmtrain_dist::pipeline::ScheduleKind;
use bmtrain_dist::shard::{GradientSum, ZeroLevel};

const BATCH: &str = "train.batch_size";
const MICRO_BATCH: &str = "train.micro_batch_size";
const ACCUMULATION: &str = "train.accumulation";
const TENSOR: &str = "parallel.tensor";
const PIPELINE: &str = "parallel.pipeline";
const SCHEDULE: &str = "parallel.schedule";

/// Something that the ranks of a run do not divide, or that does not divide them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The setting to change.
    pub key: &'static str,
    /// Numbers that do not divide each other, in a sentence.
    pub reason: String,
    /// The nearest values that would.
    pub fix: String,
}

impl Resolved {
    /// Recipe for this number of ranks. Where `train.accumulation` is set, it gives the batch or the micro-batch that
    /// is not. Where neither it nor `train.micro_batch_size` is set, that is the largest size that gives every
    /// data-parallel rank a micro-batch of each step, `train.batch_size` divided by these ranks; over pipeline stages,
    /// the fewest micro-batches that fill them.
    ///
    /// `begun` is the recipe that the run was begun with, as [`Resolved::to_toml`] wrote it, where there is one. Its
    /// size wins over the default: a run keeps its micro-batches, and with them its hash and its bits, on another
    /// number of ranks. A batch that the ranks cannot share leaves the default at the whole batch.
    #[must_use]
    pub fn on_ranks(mut self, ranks: usize, begun: Option<&str>) -> Self {
        let ranks = self.parallel.data_ranks(ranks);
        if let Some(accumulation) = self.train.accumulation {
            self.solve(accumulation, ranks);
            return self;
        }
        if self.is_explicit(MICRO_BATCH) {
            return self;
        }
        let batch = self.train.batch_size;
        let whole = (batch, Origin::Follows(BATCH));
        let micro_batches = self.parallel.schedule.fewest_micro_batches(self.parallel.pipeline);
        let shares = ranks.saturating_mul(micro_batches);
        let (size, origin) = match begun.and_then(|text| begun_with(text, batch)) {
            Some(size) if size != batch => (size, Origin::Begun),
            Some(_) => whole,
            None if shares > 1 && batch.is_multiple_of(shares) => {
                (batch / shares, Origin::Shared { ranks, micro_batches })
            }
            None => whole,
        };
        self.set_micro_batch(size, origin);
        self
    }

    /// Solution of this accumulation on these data-parallel ranks: the batch where the micro-batch alone is set, else
    /// the micro-batch, if it is a whole number.
    fn solve(&mut self, accumulation: usize, data_ranks: usize) {
        let (batch, micro_batch) = (self.train.batch_size, self.train.micro_batch_size);
        let (origin, micro_batches) = (Origin::Solved { data_ranks }, accumulation.saturating_mul(data_ranks));
        match (self.is_explicit(BATCH), self.is_explicit(MICRO_BATCH)) {
            (true, true) => {}
            (false, true) => self.set_batch(micro_batch.saturating_mul(micro_batches), origin),
            (_, false) if batch.is_multiple_of(micro_batches) => self.set_micro_batch(batch / micro_batches, origin),
            (_, false) => {}
        }
    }

    /// Samples of a micro-batch on this number of data-parallel ranks.
    ///
    /// It is `train.micro_batch_size`, but for a run that was begun with a default that this number of ranks cannot
    /// share: its micro-batches become smaller where no bit depends on them staying as they are. They have to stay with
    /// elastic sums, which promise the same bits on any number of ranks, and where samples are grouped by length, which
    /// is done micro-batch by micro-batch.
    pub fn micro_batch_on(&self, data_ranks: usize) -> usize {
        let (batch, size) = (self.train.batch_size, self.train.micro_batch_size);
        let is_shared = (batch / size.max(1)).is_multiple_of(data_ranks);
        let is_bound = self.train.gradient_sum == GradientSum::Elastic || self.data.length_grouped;
        let is_set = self.is_explicit(MICRO_BATCH) || self.train.accumulation.is_some();
        if is_shared || is_bound || is_set || !batch.is_multiple_of(data_ranks) {
            return size;
        }
        batch / data_ranks
    }

    /// Micro-batches of each of this number of data-parallel ranks in a step.
    pub fn micro_batches_on(&self, data_ranks: usize) -> usize {
        self.train.batch_size / self.micro_batch_on(data_ranks).max(1) / data_ranks.max(1)
    }

    /// Settings that reduce gradients with every micro-batch on this number of data-parallel ranks, rather than once a
    /// step, and those that would not. Empty where nothing does.
    pub fn reducing_each_micro_batch(&self, data_ranks: usize) -> Vec<(String, &'static str)> {
        let mut found = Vec::new();
        let zero = self.parallel.zero;
        if data_ranks > 1 && zero >= ZeroLevel::Two {
            found.push((format!("`parallel.zero` = {}", zero.number()), "parallel.zero = 1"));
        }
        if self.train.gradient_sum == GradientSum::Elastic {
            found.push(("`train.gradient_sum` = \"elastic\"".to_owned(), "train.gradient_sum = \"fast\""));
        }
        found
    }

    /// Mismatches on this number of ranks: ranks that are no copies of the model, a batch that they do not divide into
    /// micro-batches, a pipeline that these do not fill or cannot follow. The recipe is [`Resolved::on_ranks`] already.
    pub fn mismatches(&self, ranks: usize) -> Vec<Mismatch> {
        let (parallel, mut found) = (&self.parallel, Vec::new());
        let copy = parallel.ranks_of_copy();
        if ranks == 0 || !ranks.is_multiple_of(copy) {
            let (tensor, stages) = (parallel.tensor, parallel.pipeline);
            let (key, parts) = match (tensor, stages) {
                (tensor, 1) => (TENSOR, format!("{tensor} tensor-parallel ranks")),
                (1, stages) => (PIPELINE, format!("{stages} pipeline stages")),
                _ => (TENSOR, format!("{tensor} tensor-parallel ranks x {stages} pipeline stages")),
            };
            let reason = format!("{} cannot be divided by {parts}", count_ranks(ranks));
            let fix = format!("start {} ranks, or change {key}", nearest_multiples(ranks, copy));
            found.push(Mismatch { key, reason, fix });
            // How many data ranks there are is not known.
            return found;
        }
        let data_ranks = parallel.data_ranks(ranks);
        let undivided = match self.train.accumulation {
            Some(accumulation) => self.unequal_batch(accumulation, data_ranks),
            None => self.unshared_batch(ranks, data_ranks),
        };
        if parallel.pipeline > 1 {
            // Where the batch is not divided, a set accumulation still is the number of micro-batches.
            let micro_batches =
                self.train.accumulation.or(undivided.is_none().then(|| self.micro_batches_on(data_ranks)));
            found.extend(micro_batches.and_then(|micro_batches| self.unfilled_pipeline(micro_batches, data_ranks)));
            found.extend(self.parted_reduction(data_ranks));
        }
        undivided.into_iter().chain(self.undivided_ramp(data_ranks)).chain(found).collect()
    }

    /// Batches of a ramp that the ranks cannot share evenly.
    fn undivided_ramp(&self, data_ranks: usize) -> Option<Mismatch> {
        let ramp = self.train.batch_ramp?;
        let samples = (self.micro_batch_on(data_ranks) * data_ranks) as u64;
        let near = |number: u64| nearest_multiples(number as usize, samples as usize);
        let wrong = |key: &'static str, number: u64| {
            let reason = format!("`{key}` = {number} is not a multiple of {samples}, a micro-batch of each data rank");
            Mismatch { key, reason, fix: format!("set {key} = {}", near(number)) }
        };
        let keys = [("train.batch_ramp.start", ramp.start), ("train.batch_ramp.increment", ramp.increment)];
        let found = keys.into_iter().find(|(_, number)| !number.is_multiple_of(samples.max(1)));
        found.map(|(key, number)| wrong(key, number))
    }

    /// Micro-batches of a data-parallel rank that do not fill its pipeline.
    fn unfilled_pipeline(&self, micro_batches: usize, data_ranks: usize) -> Option<Mismatch> {
        let (stages, schedule) = (self.parallel.pipeline, self.parallel.schedule);
        let is_filled = |micro_batches| schedule.is_filled_by(stages, micro_batches);
        if is_filled(micro_batches) {
            return None;
        }
        let fewest = schedule.fewest_micro_batches(stages);
        let wanted = match schedule {
            ScheduleKind::Interleaved => format!("a multiple of {stages}"),
            _ => format!("at least {fewest}"),
        };
        let reason = format!(
            "`{SCHEDULE}` = \"{schedule}\" over {stages} pipeline stages needs {wanted} micro-batches of a data rank, \
             and a step has {micro_batches}"
        );
        let (batch, micro) = (self.train.batch_size, self.micro_batch_on(data_ranks));
        let fits = |size: usize| {
            let samples = size.saturating_mul(data_ranks);
            batch.is_multiple_of(samples) && is_filled(batch / samples)
        };
        let sizes = if self.train.accumulation.is_none() { nearest(micro, batch, fits) } else { String::new() };
        let (key, fix) = match (self.train.accumulation, sizes.is_empty()) {
            (Some(_), _) => {
                let near = nearest(micro_batches, micro_batches.saturating_add(fewest), is_filled);
                (ACCUMULATION, format!("set {ACCUMULATION} = {near}"))
            }
            (None, false) => (MICRO_BATCH, format!("set {MICRO_BATCH} = {sizes}")),
            (None, true) => {
                let near = nearest_multiples(batch, data_ranks.saturating_mul(fewest));
                (BATCH, format!("set {BATCH} = {near}, and leave {MICRO_BATCH} out"))
            }
        };
        Some(Mismatch { key, reason, fix })
    }

    /// Gradients that are reduced with their micro-batch, under a schedule that computes weight gradients later.
    fn parted_reduction(&self, data_ranks: usize) -> Option<Mismatch> {
        let (schedule, reducing) = (self.parallel.schedule, self.reducing_each_micro_batch(data_ranks));
        if !schedule.splits_backward() || reducing.is_empty() {
            return None;
        }
        let (what, instead): (Vec<String>, Vec<&str>) = reducing.into_iter().unzip();
        let reason = format!(
            "`{SCHEDULE}` = \"{schedule}\" computes gradients of weights apart from their micro-batch, and {} reduces \
             them with it",
            what.join(" with ")
        );
        let fix = format!("set {}, or {SCHEDULE} = \"1f1b\"", instead.join(" and "));
        Some(Mismatch { key: SCHEDULE, reason, fix })
    }

    /// A batch that is not the product of its three numbers.
    fn unequal_batch(&self, accumulation: usize, data_ranks: usize) -> Option<Mismatch> {
        let (batch, micro) = (self.train.batch_size, self.train.micro_batch_size);
        let micro_batches = accumulation.saturating_mul(data_ranks);
        if micro_batches.saturating_mul(micro) == batch {
            return None;
        }
        let parts = format!("train.accumulation {accumulation} x {data_ranks} data ranks");
        if self.is_explicit(BATCH) && self.is_explicit(MICRO_BATCH) {
            let reason = format!("`{BATCH}` = {batch} is not {MICRO_BATCH} {micro} x {parts}");
            let fix = format!("set {BATCH} = {}, or leave one of the three out", micro_batches.saturating_mul(micro));
            return Some(Mismatch { key: BATCH, reason, fix });
        }
        let reason = format!("`{BATCH}` = {batch} cannot be divided by {parts}");
        let fix = format!("set {BATCH} = {}", nearest_multiples(batch, micro_batches));
        Some(Mismatch { key: ACCUMULATION, reason, fix })
    }

    /// Micro-batches that cannot be shared evenly among the data-parallel ranks.
    fn unshared_batch(&self, ranks: usize, data_ranks: usize) -> Option<Mismatch> {
        let (batch, micro) = (self.train.batch_size, self.micro_batch_on(data_ranks));
        let count = batch / micro.max(1);
        if count.is_multiple_of(data_ranks) {
            return None;
        }
        let kind = if data_ranks == ranks { "ranks" } else { "data ranks" };
        let what = if count == 1 { "micro-batch" } else { "micro-batches" };
        let reason = format!("{count} {what} of {micro} cannot be shared evenly among {data_ranks} {kind}");
        let (reason, fix) = match batch.is_multiple_of(data_ranks) {
            // By itself the default can be shared: it is the run in the output directory that has to keep its
            // micro-batches.
            true if !self.is_explicit(MICRO_BATCH) => (
                format!("{reason}, and the run was begun with them and keeps its bits"),
                format!(
                    "resume it on ranks that divide {count}, or set {MICRO_BATCH} = {} and add --accept-change",
                    batch / data_ranks
                ),
            ),
            true => (reason, format!("set {MICRO_BATCH} = {}", batch / data_ranks)),
            false => {
                let near = nearest_multiples(batch, data_ranks);
                let fix = format!("set {BATCH} to a multiple of {data_ranks} ({near}), and {MICRO_BATCH} to its share");
                (reason, fix)
            }
        };
        // The one that was set.
        let key = if self.is_explicit(BATCH) && !self.is_explicit(MICRO_BATCH) { BATCH } else { MICRO_BATCH };
        Some(Mismatch { key, reason, fix })
    }
}

fn count_ranks(ranks: usize) -> String {
    if ranks == 1 { "1 rank".to_owned() } else { format!("{ranks} ranks") }
}

/// The nearest numbers below and above `number`, up to `most`, that fit: `4`, or `4 or 6`. Empty where none does.
pub fn nearest(number: usize, most: usize, fits: impl Fn(usize) -> bool) -> String {
    let below = (1..number).rev().find(|candidate| fits(*candidate));
    let above = (number.saturating_add(1)..=most).find(|candidate| fits(*candidate));
    below.into_iter().chain(above).map(|found| found.to_string()).collect::<Vec<_>>().join(" or ")
}

/// The nearest multiples of `of`.
fn nearest_multiples(number: usize, of: usize) -> String {
    nearest(number, number.saturating_add(of), |candidate| candidate.is_multiple_of(of))
}

/// The micro-batch of a recipe of the same batch; `None` of any other text.
fn begun_with(text: &str, batch: usize) -> Option<usize> {
    let recipe: toml::Table = toml::from_str(text).ok()?;
    let train = recipe.get("train")?.as_table()?;
    let number = |key: &str| usize::try_from(train.get(key)?.as_integer()?).ok();
    let size = number("micro_batch_size").filter(|size| *size > 0 && batch.is_multiple_of(*size))?;
    (number("batch_size")? == batch).then_some(size)
}
