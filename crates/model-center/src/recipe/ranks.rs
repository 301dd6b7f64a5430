//! The micro-batch of a number of ranks: how a recipe that does not set `train.micro_batch_size` shares its batch.
//!
//! Defines [`Resolved::on_ranks`] and [`Resolved::micro_batch_on`], called by the programs once the number of ranks is
//! known. A recipe is read without it, since it is the same recipe however many ranks carry it out.

use super::layers::Origin;
use super::resolved::Resolved;
use bmtrain_dist::shard::GradientSum;

const MICRO_BATCH: &str = "train.micro_batch_size";

impl Resolved {
    /// The same recipe for this number of ranks: where `train.micro_batch_size` is not set, it is the largest size that
    /// gives every rank a micro-batch of each step, `train.batch_size` divided by the ranks.
    ///
    /// `begun` is the recipe that the run was begun with, as [`Resolved::to_toml`] wrote it, where there is one. Its
    /// size wins over the default: a run keeps its micro-batches, and with them its hash and its bits, on another
    /// number of ranks. A batch that the ranks cannot share leaves the default at the whole batch.
    #[must_use]
    pub fn on_ranks(mut self, ranks: usize, begun: Option<&str>) -> Self {
        if self.is_explicit(MICRO_BATCH) {
            return self;
        }
        let batch = self.train.batch_size;
        let whole = (batch, Origin::Follows("train.batch_size"));
        let (size, origin) = match begun.and_then(|text| begun_with(text, batch)) {
            Some(size) if size != batch => (size, Origin::Begun),
            Some(_) => whole,
            None if ranks > 1 && batch.is_multiple_of(ranks) => (batch / ranks, Origin::Shared { ranks }),
            None => whole,
        };
        self.set_micro_batch(size, origin);
        self
    }

    /// Samples of a micro-batch on this number of ranks.
    ///
    /// It is `train.micro_batch_size`, but for a run that was begun with a default that this number of ranks cannot
    /// share: its micro-batches become smaller where no bit depends on them staying as they are. They have to stay with
    /// elastic sums, which promise the same bits on any number of ranks, and where samples are grouped by length, which
    /// is done micro-batch by micro-batch.
    pub fn micro_batch_on(&self, ranks: usize) -> usize {
        let (batch, size) = (self.train.batch_size, self.train.micro_batch_size);
        let is_shared = (batch / size.max(1)).is_multiple_of(ranks);
        let is_bound = self.train.gradient_sum == GradientSum::Elastic || self.data.length_grouped;
        if is_shared || is_bound || self.is_explicit(MICRO_BATCH) || !batch.is_multiple_of(ranks) {
            return size;
        }
        batch / ranks
    }
}

/// The micro-batch of a recipe of the same batch; `None` of any other text.
fn begun_with(text: &str, batch: usize) -> Option<usize> {
    let recipe: toml::Table = toml::from_str(text).ok()?;
    let train = recipe.get("train")?.as_table()?;
    let number = |key: &str| usize::try_from(train.get(key)?.as_integer()?).ok();
    let size = number("micro_batch_size").filter(|size| *size > 0 && batch.is_multiple_of(*size))?;
    (number("batch_size")? == batch).then_some(size)
}
