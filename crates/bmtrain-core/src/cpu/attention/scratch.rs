//! "Attention scratch": the tiles of one thread, kept between calls.
//!
//! Regions are sized by the tiles and the head size alone, so they stop growing after the first call of a model.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};

static BYTES: AtomicUsize = AtomicUsize::new(0);

pub(in crate::cpu) fn bytes() -> usize {
    BYTES.load(Ordering::Relaxed)
}

/// Tiles of one thread; each is at most 1 MiB for heads of up to 2048.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Queries times the scale, by row.
    pub(super) query: Region,
    /// Keys by row; in the forward pass also values.
    pub(super) key: Region,
    pub(super) key_panels: Region,
    /// Values, transposed; by row on the way there.
    pub(super) value_panels: Region,
    /// Scores, then probabilities.
    pub(super) scores: Region,
    /// Gradients of the probabilities, then of the scores.
    pub(super) dscores: Region,
    /// Sums of the result, or gradients of the result.
    pub(super) out: Region,
    pub(super) dquery: Region,
    pub(super) dkey: Region,
    pub(super) dvalue: Region,
    /// Maximum and sum of every row.
    pub(super) statistics: Region,
    pub(super) row: Region,
}

#[cfg(test)]
impl Scratch {
    pub(super) fn bytes(&self) -> usize {
        let Scratch {
            query,
            key,
            key_panels,
            value_panels,
            scores,
            dscores,
            out,
            dquery,
            dkey,
            dvalue,
            statistics,
            row,
        } = self;
        let all = [query, key, key_panels, value_panels, scores, dscores, out, dquery, dkey, dvalue, statistics, row];
        all.iter().map(|region| region.0.len() * size_of::<f32>()).sum()
    }
}

/// Numbers in a cache line: vectors that straddle two cost two loads.
const LINE: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Region(Vec<f32>);

impl Region {
    /// `len` numbers of arbitrary content, the first at the start of a cache line.
    pub(super) fn take(&mut self, len: usize) -> &mut [f32] {
        self.take_of(len, len)
    }

    /// As [`Region::take`], from a region of at least `most` numbers, so that a later call for up to `most` finds it
    /// large enough. Pages that are never touched cost nothing.
    pub(super) fn take_of(&mut self, len: usize, most: usize) -> &mut [f32] {
        let needed = len.max(most) + LINE;
        if self.0.len() < needed {
            BYTES.fetch_add((needed - self.0.len()) * size_of::<f32>(), Ordering::Relaxed);
            // The old content is worthless: dropping it first keeps the peak at the new size.
            self.0 = Vec::new();
            self.0 = vec![0.0; needed];
        }
        let skip = self.0.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
        &mut self.0[skip..skip + len]
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        BYTES.fetch_sub(self.0.len() * size_of::<f32>(), Ordering::Relaxed);
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Lends this thread's scratch.
pub(super) fn with<R>(work: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with(|scratch| match scratch.try_borrow_mut() {
        Ok(mut scratch) => work(&mut scratch),
        // A thread that waits inside one piece may be given another one.
        Err(_) => work(&mut Scratch::default()),
    })
}
