//! Gathering of blocks in turn: the next one's parameters arrive while this one computes, and never more than two
//! blocks' are whole at once. A block that stands in two neighbouring places is held by both and gathered once. Defines
//! [`Ring`], which a run of a [`TransformerBlockList`](super::TransformerBlockList) holds.

use crate::error::{Error, Result};
use crate::param::Flat;
use std::collections::VecDeque;
use std::rc::Rc;

/// Blocks whose parameters may be whole at once.
pub const SLOTS: usize = 2;

/// The places whose blocks are whole now, in the order of their use.
#[derive(Debug, Default)]
pub(super) struct Ring {
    present: VecDeque<(usize, Vec<Rc<Flat>>)>,
}

impl Ring {
    /// Make the block at place `index` whole, and begin with the one that comes `next`, if it is to be fetched ahead.
    /// `flats` gives the storages of the block at a place.
    ///
    /// # Errors
    /// No memory left; a failing exchange.
    pub(super) fn enter(
        &mut self,
        index: usize,
        next: Option<usize>,
        flats: impl Fn(usize) -> Vec<Rc<Flat>>,
    ) -> Result<()> {
        self.fetch(index, &flats)?;
        for flat in self.flats(index) {
            flat.whole()?;
        }
        let Some(next) = next else { return Ok(()) };
        let (now, then) = (self.flats(index), flats(next));
        // What the next place uses again is held on to, be it fetched ahead or not.
        let again = |flat: &Rc<Flat>| then.iter().any(|other| Rc::ptr_eq(flat, other));
        if now.iter().any(|flat| flat.sharding().prefetch || again(flat)) { self.fetch(next, flats) } else { Ok(()) }
    }

    /// The block at place `index` has done its work.
    pub(super) fn leave(&mut self, index: usize) {
        if let Some(place) = self.present.iter().position(|(present, _)| *present == index)
            && let Some((_, flats)) = self.present.remove(place)
        {
            flats.iter().for_each(|flat| flat.release());
        }
    }

    fn flats(&self, index: usize) -> &[Rc<Flat>] {
        self.present.iter().find(|(present, _)| *present == index).map_or(&[], |(_, flats)| flats)
    }

    fn fetch(&mut self, index: usize, flats: impl Fn(usize) -> Vec<Rc<Flat>>) -> Result<()> {
        if self.present.iter().any(|(present, _)| *present == index) {
            return Ok(());
        }
        if self.present.len() == SLOTS {
            let whole: Vec<usize> = self.present.iter().map(|(index, _)| *index).collect();
            return Err(Error::setting("block ring", format!("block {index} while blocks {whole:?} are whole")));
        }
        let flats = flats(index);
        for flat in &flats {
            flat.gather()?;
        }
        self.present.push_back((index, flats));
        Ok(())
    }
}

impl Drop for Ring {
    /// A run that ended in an error leaves nothing whole behind.
    fn drop(&mut self) {
        self.present.iter().flat_map(|(_, flats)| flats).for_each(|flat| flat.release());
    }
}
