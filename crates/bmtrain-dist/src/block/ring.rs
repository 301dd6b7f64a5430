//! Gathering of blocks in turn: the next one's parameters arrive while this one computes, and never more than
//! [`MAX_GATHERED_BLOCKS`] are gathered at once. A block at two neighbouring places is held by both and gathered once.
//! Defines [`GatherRing`], which a run of a [`TransformerBlockList`](super::TransformerBlockList) holds.

use crate::error::{Error, Result};
use crate::param::{Flat, MAX_GATHERED_BLOCKS};
use std::collections::VecDeque;
use std::rc::Rc;

/// The places whose blocks are gathered now, in the order of their use. Dropping it releases them, so that a run that
/// ends in an error leaves nothing gathered.
#[derive(Debug, Default)]
pub(super) struct GatherRing {
    present: VecDeque<(usize, Vec<Rc<Flat>>)>,
}

impl GatherRing {
    /// Gather the block at `place`, unless that has begun already, and let the compute lane wait for it.
    pub(super) fn gather(&mut self, place: usize, flats: impl FnOnce() -> Vec<Rc<Flat>>) -> Result<()> {
        self.begin(place, flats)?;
        self.flats(place).iter().try_for_each(|flat| flat.wait_gathered())
    }

    /// Begin to gather the block at `next` while the one at `place` computes, where prefetching is on or both use the
    /// same storage: that one stays gathered.
    pub(super) fn prefetch(&mut self, place: usize, next: usize, flats: impl FnOnce() -> Vec<Rc<Flat>>) -> Result<()> {
        let (now, then) = (self.flats(place), flats());
        let again = |flat: &Rc<Flat>| then.iter().any(|other| Rc::ptr_eq(flat, other));
        let wanted = now.iter().any(|flat| flat.sharding().prefetch || again(flat));
        if wanted { self.begin(next, || then) } else { Ok(()) }
    }

    pub(super) fn release(&mut self, place: usize) {
        if let Some(at) = self.present.iter().position(|(present, _)| *present == place)
            && let Some((_, flats)) = self.present.remove(at)
        {
            flats.iter().for_each(|flat| flat.release());
        }
    }

    fn flats(&self, place: usize) -> &[Rc<Flat>] {
        self.present.iter().find(|(present, _)| *present == place).map_or(&[], |(_, flats)| flats)
    }

    fn begin(&mut self, place: usize, flats: impl FnOnce() -> Vec<Rc<Flat>>) -> Result<()> {
        if self.present.iter().any(|(present, _)| *present == place) {
            return Ok(());
        }
        if self.present.len() == MAX_GATHERED_BLOCKS {
            let gathered: Vec<usize> = self.present.iter().map(|(place, _)| *place).collect();
            let reason = format!("block {place} is to be gathered while blocks {gathered:?} still are");
            return Err(Error::setting("block list", reason));
        }
        let flats = flats();
        for flat in &flats {
            flat.gather()?;
        }
        self.present.push_back((place, flats));
        Ok(())
    }
}

impl Drop for GatherRing {
    fn drop(&mut self) {
        self.present.iter().flat_map(|(_, flats)| flats).for_each(|flat| flat.release());
    }
}
