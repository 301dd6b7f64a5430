//! Messages between two ranks: a ring of chunks for each pair and direction, which no other rank waits for.
//!
//! A sender waits only when all chunks of the ring are on their way; up to there it goes on whether or not the receiver
//! has come. Each chunk records its message, and a receiver that expects another one breaks the group: a sender that
//! has gone on learns of it at its next call.
#![allow(unsafe_code)]

use super::group::SharedGroup;
use super::layout::PAIR_SLOTS;
use crate::comm::call::{Call, describe};
use crate::comm::engine::Group;
use crate::error::Result;
use rustix::time::{ClockId, clock_gettime};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl SharedGroup {
    /// Put a message on its way to rank `to`; `next` is the number of the next chunk between the two.
    pub(super) fn send(&self, call: &Call, to: usize, data: &[u8], next: &mut u64) -> Result<()> {
        if *next == 0 {
            self.reserve_pair(call, to)?;
        }
        let (layout, from) = (&self.layout, self.members.rank);
        let (sent, received) = (self.region.slot(layout.sent(from, to)), self.region.slot(layout.received(from, to)));
        let ([code, part], begin) = (call.kind.encoded(), nanoseconds());
        for piece in pieces(data.len(), layout.chunk()) {
            let needed = (*next + 1).saturating_sub(PAIR_SLOTS as u64);
            self.wait(call, || if received.load(Ordering::Acquire) < needed { 1 << to } else { 0 })?;
            let record = layout.pair_record(from, to, *next);
            for (place, word) in [(0, code), (8, part), (16, call.sequence), (24, begin)] {
                self.region.slot(record + place).store(word, Ordering::Relaxed);
            }
            // SAFETY: only this rank writes to the chunks of this pair, one message at a time, and the receiver has
            // marked what was here as received; it will not read before `sent` is stored below.
            let slot = unsafe { self.region.part_mut(layout.pair_data(from, to, *next), piece.len()) };
            slot.copy_from_slice(&data[piece]);
            *next += 1;
            sent.store(*next, Ordering::Release);
            self.notify();
        }
        Ok(())
    }

    /// Take a message of rank `from`. Returns how long ago it began to be sent.
    pub(super) fn receive(&self, call: &Call, from: usize, data: &mut [u8], next: &mut u64) -> Result<Duration> {
        let (layout, to) = (&self.layout, self.members.rank);
        let (sent, received) = (self.region.slot(layout.sent(from, to)), self.region.slot(layout.received(from, to)));
        let mut begin = 0;
        for piece in pieces(data.len(), layout.chunk()) {
            self.wait(call, || if sent.load(Ordering::Acquire) <= *next { 1 << from } else { 0 })?;
            let record = layout.pair_record(from, to, *next);
            let word = |place| self.region.slot(record + place).load(Ordering::Relaxed);
            let [code, part, sequence] = [0, 8, 16].map(word);
            begin = word(24);
            if [code, part] != call.kind.encoded() || sequence != call.sequence {
                let reason = format!(
                    "{} sent {} as message {sequence}, {} called {} for message {}",
                    self.members.label(from),
                    describe([code, part]),
                    self.members.label(to),
                    call.kind,
                    call.sequence
                );
                return Err(self.fail(call, &[from.min(to), from.max(to)], reason));
            }
            // SAFETY: the sender has filled this chunk, as `sent` shows, and does not write to it before `received` is
            // stored below.
            let slot = unsafe { self.region.part(layout.pair_data(from, to, *next), piece.len()) };
            data[piece].copy_from_slice(slot);
            *next += 1;
            received.store(*next, Ordering::Release);
            self.notify();
        }
        Ok(Duration::from_nanos(nanoseconds().saturating_sub(begin)))
    }
}

/// The time, on a clock that all processes of the machine read alike.
fn nanoseconds() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The pieces of a message, at least one: an empty message is one too.
fn pieces(bytes: usize, chunk: usize) -> impl Iterator<Item = Range<usize>> {
    (0..bytes.div_ceil(chunk).max(1)).map(move |piece| piece * chunk..((piece + 1) * chunk).min(bytes))
}
