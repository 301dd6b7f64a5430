//! The caching pool of one device: best fit with splitting and merging inside slabs taken from the system.
//!
//! Short-lived tensors share slabs, so that the memory of an activation that was freed serves the next gradient.
//! Long-lived storages get slabs of their own and never fragment the others. Freed memory keeps the marks of the lanes
//! that still work on it; the pool waits for them, on the device, before the memory is used on another lane. In steady
//! state the system is asked for nothing, which [`Report::system_requests`] shows.

mod usage;

pub(crate) use usage::HostAccount;
pub use usage::{Report, Segment, Usage};

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::lane::{Lane, Mark};
use crate::memory::Memory;
use std::collections::{BTreeMap, BTreeSet};

/// Every chunk starts at a multiple of this, in bytes: the alignment of storages and of vector loads.
pub const ALIGNMENT: usize = 512;

/// Size of a slab that the pool of a CUDA device takes from the driver for short-lived tensors, bytes.
pub const CUDA_SLAB_BYTES: usize = 64 << 20;

/// A piece of pool memory on its way to or from a buffer.
#[derive(Debug)]
pub struct Chunk {
    slab: usize,
    offset: usize,
    bytes: usize,
    address: u64,
    segment: Segment,
}

impl Chunk {
    /// Device address of the first byte.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

/// A free range inside a slab.
#[derive(Debug, Clone)]
struct Free {
    bytes: usize,
    /// Lanes whose queued work may still touch the range, with the point after which it does not.
    marks: Vec<Mark>,
    /// Lanes that used it and need no mark when the same lane uses it next.
    lanes: u8,
}

#[derive(Debug)]
struct Slab {
    memory: Memory,
    free: BTreeMap<usize, Free>,
    long_lived: bool,
    /// End of the part that was ever handed out.
    reached: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Pool {
    slabs: Vec<Option<Slab>>,
    /// Places in `slabs` whose slab was released to the system: tens of thousands of storages come and go.
    vacant: Vec<usize>,
    /// Free ranges of shared slabs by (bytes, slab, offset): the first one not smaller than a request is the best fit.
    by_size: BTreeSet<(usize, usize, usize)>,
    /// Released while a message to another rank may still be read from it. Its next user would have to wait
    /// for that rank, which may wait for this one.
    under_way: Vec<(Mark, Chunk, u8)>,
    usage: [Usage; Segment::ALL.len()],
    total: Usage,
    /// `now` of every segment when `total` was at its peak.
    at_peak: [usize; Segment::ALL.len()],
    touched: Usage,
    system_bytes: usize,
    system_requests: u64,
}

impl Pool {
    /// Take at least `bytes` bytes whose first use will be on `lane`.
    pub(crate) fn take(&mut self, backend: &dyn Backend, bytes: usize, segment: Segment, lane: Lane) -> Result<Chunk> {
        for (mark, chunk, lanes) in std::mem::take(&mut self.under_way) {
            match backend.has_reached(mark) {
                Some(true) => self.free(backend, chunk, lanes & !Lane::Pipe.bit()),
                _ => self.under_way.push((mark, chunk, lanes)),
            }
        }
        let rounded = bytes
            .max(1)
            .checked_next_multiple_of(ALIGNMENT)
            .ok_or_else(|| out_of_memory(backend, segment, bytes, self.total.now))?;
        let found = if segment.long_lived() { None } else { self.by_size.range((rounded, 0, 0)..).next().copied() };
        let (slab, offset) = match found {
            Some((_, slab, offset)) => (slab, offset),
            None => (self.grow(backend, rounded, segment)?, 0),
        };
        let chunk = self.carve(backend, slab, offset, rounded, segment, lane)?;
        self.usage[segment as usize].add(rounded);
        let before = self.total.peak;
        self.total.add(rounded);
        if self.total.peak > before {
            self.at_peak = self.usage.map(|usage| usage.now);
        }
        Ok(chunk)
    }

    fn grow(&mut self, backend: &dyn Backend, rounded: usize, segment: Segment) -> Result<usize> {
        let long_lived = segment.long_lived();
        let bytes = if long_lived { rounded } else { rounded.max(backend.slab_bytes()) };
        if !long_lived && bytes > backend.slab_bytes() && !backend.release_waits() {
            self.release_outgrown(backend, bytes)?;
        }
        let memory = match backend.allocate(bytes) {
            Err(Error::OutOfMemory { .. }) => self.allocate_after_all(backend, rounded, segment)?,
            other => other?,
        };
        self.system_bytes += memory.bytes();
        self.system_requests += 1;
        let bytes = memory.bytes();
        let free = BTreeMap::from([(0, Free { bytes, marks: Vec::new(), lanes: 0 })]);
        let slab = Some(Slab { memory, free, long_lived, reached: 0 });
        let index = match self.vacant.pop() {
            Some(index) => {
                self.slabs[index] = slab;
                index
            }
            None => {
                self.slabs.push(slab);
                self.slabs.len() - 1
            }
        };
        if !long_lived {
            self.by_size.insert((bytes, index, 0));
        }
        Ok(index)
    }

    /// Allocation of the request alone where a whole slab was too much, if need be after what is free has gone back to
    /// the system.
    fn allocate_after_all(&mut self, backend: &dyn Backend, bytes: usize, segment: Segment) -> Result<Memory> {
        let full = |error, in_use| match error {
            Error::OutOfMemory { .. } => out_of_memory(backend, segment, bytes, in_use),
            // A device that failed before reports it here.
            other => other,
        };
        match backend.allocate(bytes) {
            Err(Error::OutOfMemory { .. }) => {
                self.release_free(backend)?;
                backend.allocate(bytes).map_err(|error| full(error, self.total.now))
            }
            other => other.map_err(|error| full(error, self.total.now)),
        }
    }

    /// Before a slab for one large request is taken: release free slabs that were taken for smaller ones, the largest
    /// first, until they make up for it. With batches of growing length every tensor outgrows the slab of the one
    /// before, and the pool would hold them all. Each such release replaces slabs by a larger one, so that it ends with
    /// the largest batch.
    fn release_outgrown(&mut self, backend: &dyn Backend, bytes: usize) -> Result<()> {
        let outgrown = |(index, slab): (usize, &Option<Slab>)| {
            let slab = slab.as_ref().filter(|slab| !slab.long_lived && slab.memory.bytes() > backend.slab_bytes())?;
            let free = slab.free.get(&0).filter(|free| free.bytes == slab.memory.bytes())?;
            Some((free.bytes, index, free.lanes))
        };
        let mut candidates: Vec<(usize, usize, u8)> = self.slabs.iter().enumerate().filter_map(outgrown).collect();
        candidates.sort_unstable_by(|a, b| b.cmp(a));
        let mut released = 0;
        for (size, index, lanes) in candidates {
            if released >= bytes {
                break;
            }
            Lane::ALL.into_iter().filter(|lane| lanes & lane.bit() != 0).try_for_each(|lane| backend.sync(lane))?;
            if let Some(gone) = self.slabs[index].take() {
                self.by_size.remove(&(size, index, 0));
                self.forget(gone, index, backend);
                released += size;
            }
        }
        Ok(())
    }

    /// Release slabs without a part in use. Waits for all lanes.
    fn release_free(&mut self, backend: &dyn Backend) -> Result<()> {
        let is_free = |slab: &Slab| slab.free.get(&0).is_some_and(|free| free.bytes == slab.memory.bytes());
        if !self.slabs.iter().flatten().any(is_free) {
            return Ok(());
        }
        Lane::ALL.into_iter().try_for_each(|lane| backend.sync(lane))?;
        for index in 0..self.slabs.len() {
            if let Some(gone) = self.slabs[index].take_if(|slab| is_free(slab)) {
                self.by_size.remove(&(gone.memory.bytes(), index, 0));
                self.forget(gone, index, backend);
            }
        }
        Ok(())
    }

    fn forget(&mut self, gone: Slab, index: usize, backend: &dyn Backend) {
        self.system_bytes -= gone.memory.bytes();
        self.touched.now -= gone.reached;
        backend.release(gone.memory);
        self.vacant.push(index);
    }

    fn carve(
        &mut self,
        backend: &dyn Backend,
        slab: usize,
        offset: usize,
        bytes: usize,
        segment: Segment,
        lane: Lane,
    ) -> Result<Chunk> {
        let Some(place) = self.slabs.get_mut(slab).and_then(Option::as_mut) else {
            return Err(out_of_memory(backend, segment, bytes, self.total.now));
        };
        let Some(mut free) = place.free.remove(&offset) else {
            return Err(out_of_memory(backend, segment, bytes, self.total.now));
        };
        self.by_size.remove(&(free.bytes, slab, offset));
        for mark in free.marks.iter().filter(|mark| mark.lane != lane) {
            backend.wait(lane, *mark)?;
        }
        // Work of a lane without a recorded mark: everything it has queued by now is late enough.
        for other in Lane::ALL {
            if other != lane && free.lanes & other.bit() != 0 && !free.marks.iter().any(|mark| mark.lane == other) {
                let mark = backend.mark(other)?;
                backend.wait(lane, mark)?;
                free.marks.push(mark);
            }
        }
        if offset + bytes > place.reached {
            self.touched.add(offset + bytes - place.reached);
            place.reached = offset + bytes;
        }
        let address = place.memory.address() + offset as u64;
        if free.bytes > bytes {
            let rest = Free { bytes: free.bytes - bytes, marks: free.marks, lanes: free.lanes };
            if !place.long_lived {
                self.by_size.insert((rest.bytes, slab, offset + bytes));
            }
            place.free.insert(offset + bytes, rest);
        }
        Ok(Chunk { slab, offset, bytes, address, segment })
    }

    /// Take a chunk back; `lanes` are those with queued work on it.
    pub(crate) fn release(&mut self, backend: &dyn Backend, chunk: Chunk, lanes: u8) {
        let is_sent = lanes & Lane::Pipe.bit() != 0;
        let end = is_sent.then(|| backend.mark(Lane::Pipe).ok()).flatten();
        let lanes = match end.and_then(|mark| Some((mark, backend.has_reached(mark)?))) {
            Some((mark, false)) => return self.under_way.push((mark, chunk, lanes)),
            Some((_, true)) => lanes & !Lane::Pipe.bit(),
            None => lanes,
        };
        self.free(backend, chunk, lanes);
    }

    fn free(&mut self, backend: &dyn Backend, chunk: Chunk, lanes: u8) {
        let Chunk { slab, offset, bytes, segment, .. } = chunk;
        self.usage[segment as usize].now -= bytes;
        self.total.now -= bytes;
        let Some(place) = self.slabs.get_mut(slab).and_then(Option::as_mut) else { return };
        // One lane alone needs no mark: its next use follows its last one, and a mark made later covers it too.
        // Several lanes get theirs now, so that a later user waits for no more than it must.
        let mut marks = Vec::new();
        if lanes.count_ones() > 1 {
            marks.extend(
                Lane::ALL.into_iter().filter(|lane| lanes & lane.bit() != 0).filter_map(|lane| backend.mark(lane).ok()),
            );
        }
        let mut freed = Free { bytes, marks, lanes };
        let mut start = offset;
        if let Some((&before, neighbour)) = place.free.range(..offset).next_back()
            && before + neighbour.bytes == offset
        {
            self.by_size.remove(&(neighbour.bytes, slab, before));
            merge(&mut freed, neighbour.clone());
            place.free.remove(&before);
            start = before;
        }
        if let Some(neighbour) = place.free.get(&(offset + bytes)).cloned() {
            self.by_size.remove(&(neighbour.bytes, slab, offset + bytes));
            merge(&mut freed, neighbour);
            place.free.remove(&(offset + bytes));
        }
        if place.long_lived && freed.bytes == place.memory.bytes() {
            // Long-lived storages go back to the system at once: another model of another size may follow.
            for lane in Lane::ALL.into_iter().filter(|lane| freed.lanes & lane.bit() != 0) {
                if backend.sync(lane).is_err() {
                    tracing::warn!("memory of a failed lane is kept");
                    return;
                }
            }
            if let Some(gone) = self.slabs[slab].take() {
                self.forget(gone, slab, backend);
            }
            return;
        }
        if !place.long_lived {
            self.by_size.insert((freed.bytes, slab, start));
        }
        place.free.insert(start, freed);
    }

    /// Give everything back to the system. Only for the end of a device: every buffer holds the device, so none is
    /// left.
    pub(crate) fn release_all(&mut self, backend: &dyn Backend) {
        self.under_way.clear();
        for slab in self.slabs.drain(..).flatten() {
            backend.release(slab.memory);
        }
        self.by_size.clear();
        self.vacant.clear();
    }

    pub(crate) fn report(&self) -> Report {
        Report {
            segments: Segment::ALL.into_iter().map(|segment| (segment, self.usage[segment as usize])).collect(),
            total: self.total,
            at_peak: Segment::ALL.into_iter().map(|segment| (segment, self.at_peak[segment as usize])).collect(),
            touched: self.touched,
            system_bytes: self.system_bytes,
            system_requests: self.system_requests,
        }
    }

    /// Start new high-water marks from what is in use now.
    pub(crate) fn reset_peaks(&mut self) {
        for usage in self.usage.iter_mut().chain([&mut self.total, &mut self.touched]) {
            usage.peak = usage.now;
        }
        self.at_peak = self.usage.map(|usage| usage.now);
    }
}

/// Join two free neighbours. A lane keeps its mark only where both sides know the lane's last use by a mark (or one
/// side was never used by it); otherwise the mark is made at the next use, which is later and therefore safe.
fn merge(into: &mut Free, neighbour: Free) {
    let marked = |free: &Free, lane: Lane| free.marks.iter().find(|mark| mark.lane == lane).copied();
    let mut marks = Vec::new();
    for lane in Lane::ALL {
        let (here, there) = (into.lanes & lane.bit() != 0, neighbour.lanes & lane.bit() != 0);
        let mark = match (marked(into, lane), marked(&neighbour, lane)) {
            // Tickets of one lane grow with time; the later one covers both.
            (Some(a), Some(b)) => Some(if a.ticket > b.ticket { a } else { b }),
            (Some(a), None) if !there => Some(a),
            (None, Some(b)) if !here => Some(b),
            _ => None,
        };
        marks.extend(mark);
    }
    into.bytes += neighbour.bytes;
    into.lanes |= neighbour.lanes;
    into.marks = marks;
}

fn out_of_memory(backend: &dyn Backend, segment: Segment, requested: usize, in_use: usize) -> Error {
    Error::OutOfMemory { backend: backend.name(), segment: segment.name(), requested, in_use }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wrap::Counting;
    use crate::{DType, Device, Storage};
    use std::sync::Arc;

    const SLAB: usize = 1 << 20;

    #[test]
    fn growing_requests_leave_no_outgrown_slabs_behind() {
        let device = Device::new(Arc::new(Counting::new(SLAB)));
        let take = |slabs: usize| Storage::empty(&device, slabs * SLAB, DType::U8, Segment::Activations).unwrap();
        // Two of each length live at once, as activations of two blocks do.
        for slabs in 2..10 {
            drop((take(slabs), take(slabs)));
        }
        assert_eq!(device.memory().system_bytes, 2 * 9 * SLAB);
        let requests = device.memory().system_requests;
        for slabs in (2..10).rev() {
            drop((take(slabs), take(slabs)));
        }
        assert_eq!(device.memory().system_requests, requests, "what serves the largest serves all");
    }

    #[test]
    fn a_backend_whose_release_waits_gives_nothing_back_on_the_way() {
        let device = Device::new(Arc::new(Counting::new(SLAB).standing_for_cuda(true)));
        for slabs in 2..4 {
            drop(Storage::empty(&device, slabs * SLAB, DType::U8, Segment::Activations).unwrap());
        }
        assert_eq!(device.memory().system_bytes, (2 + 3) * SLAB);
    }

    #[test]
    fn slabs_in_use_and_shared_slabs_stay() {
        let device = Device::new(Arc::new(Counting::new(SLAB)));
        let take = |bytes: usize| Storage::empty(&device, bytes, DType::U8, Segment::Activations).unwrap();
        let held = take(2 * SLAB);
        drop(take(SLAB / 2));
        drop(take(3 * SLAB));
        let larger = take(4 * SLAB);
        assert_eq!(device.memory().system_bytes, 2 * SLAB + SLAB + 4 * SLAB);
        drop((held, larger));
    }
}
