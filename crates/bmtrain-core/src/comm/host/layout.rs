//! Offsets in the region of a group: control slots first, then staged chunks.
//!
//! A pure function of the group's size and the bytes of a chunk, so all ranks agree without communication.

/// Most ranks of a group: one bit each in a `u64`.
pub const MAX_RANKS: usize = 64;
/// Chunks that a rank may be ahead of the others in a collective.
pub(super) const SLOTS: usize = 8;
/// Chunks on their way between two ranks.
pub(super) const PAIR_SLOTS: usize = 4;
/// Rings of a rank: what it gives for reduction or copying, and what it has reduced.
pub(super) const RINGS: usize = 2;

/// Regions start and end at multiples of this: the page size of every machine of the target.
pub(super) const PAGE: usize = 64 << 10;
/// Two cache lines, which processors load together: slots of different writers do not share them.
const LINE: usize = 128;

/// Tells a region of these ranks and chunks from others. See [`Layout::format`].
pub(super) const FORMAT: usize = 0;
/// Bytes of the file after the first region that were handed out; in the first region only.
pub(super) const HANDED_OUT: usize = 8;
/// Number of ranks that have left.
pub(super) const DEPARTED: usize = 16;
/// Position of the counter that sleeping ranks wait on, followed by their number.
pub(super) const BELL: usize = LINE;
pub(super) const SLEEPERS: usize = LINE + 8;
/// The record of the first failure; see [`super::failure`].
pub(super) const FAILURE: usize = 2 * LINE;
pub(super) const FAILURE_BYTES: usize = 1536;

const RANKS: usize = 2048;
const RANK_BYTES: usize = 1024;
const RECORD_BYTES: usize = 64;
const RECORDS: usize = LINE;
const COUNTERS: usize = RECORDS + 4 * RECORD_BYTES;
const PAIR_BYTES: usize = 2 * LINE + PAIR_SLOTS * RECORD_BYTES;

const _: () = assert!(FAILURE + FAILURE_BYTES <= RANKS && COUNTERS + RINGS * 2 * LINE <= RANK_BYTES);

#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    size: usize,
    chunk: usize,
}

impl Layout {
    /// For `size` ranks, at most [`MAX_RANKS`], and chunks of `chunk` bytes, a multiple of 4096 up to 64 MiB.
    pub(super) fn new(size: usize, chunk: usize) -> Self {
        Layout { size, chunk }
    }

    pub(super) fn chunk(&self) -> usize {
        self.chunk
    }

    /// A number that differs between layouts, and is never zero.
    pub(super) fn format(&self) -> u64 {
        const VERSION: u64 = 2;
        VERSION << 56 | (self.size as u64) << 32 | self.chunk as u64
    }

    /// Ranks and chunk of the number of a format, for an error.
    pub(super) fn of_format(format: u64) -> (usize, usize) {
        ((format >> 32 & 0xff_ffff) as usize, (format & 0xffff_ffff) as usize)
    }

    pub(super) fn control_bytes(&self) -> usize {
        (RANKS + self.size * RANK_BYTES + self.size * self.size * PAIR_BYTES).next_multiple_of(PAGE)
    }

    pub(super) fn bytes(&self) -> usize {
        (self.pair_data(self.size, 0, 0)).next_multiple_of(PAGE)
    }

    fn rank(&self, rank: usize) -> usize {
        RANKS + rank * RANK_BYTES
    }

    pub(super) fn process(&self, rank: usize) -> usize {
        self.rank(rank)
    }

    /// In which world its process number means something.
    pub(super) fn namespace(&self, rank: usize) -> usize {
        self.rank(rank) + 8
    }

    /// Start time of its process.
    pub(super) fn start(&self, rank: usize) -> usize {
        self.rank(rank) + 32
    }

    pub(super) fn left(&self, rank: usize) -> usize {
        self.rank(rank) + 16
    }

    /// The set of ranks a rank waits for.
    pub(super) fn waits_for(&self, rank: usize) -> usize {
        self.rank(rank) + 24
    }

    /// The eight slots in which a rank publishes its call number `sequence`, at two offsets in turn.
    pub(super) fn record(&self, rank: usize, channel: usize, sequence: u64) -> usize {
        self.rank(rank) + RECORDS + (channel * 2 + (sequence % 2) as usize) * RECORD_BYTES
    }

    /// Number of chunks that a rank has staged in a ring since the start.
    pub(super) fn staged(&self, rank: usize, ring: usize) -> usize {
        self.rank(rank) + COUNTERS + ring * 2 * LINE
    }

    /// Number of chunks of all other ranks' rings that a rank is done with.
    pub(super) fn taken(&self, rank: usize, ring: usize) -> usize {
        self.staged(rank, ring) + LINE
    }

    fn pair(&self, from: usize, to: usize) -> usize {
        RANKS + self.size * RANK_BYTES + (from * self.size + to) * PAIR_BYTES
    }

    /// Number of chunks that a rank has sent to another.
    pub(super) fn sent(&self, from: usize, to: usize) -> usize {
        self.pair(from, to)
    }

    /// Number of them that the other has received.
    pub(super) fn received(&self, from: usize, to: usize) -> usize {
        self.pair(from, to) + LINE
    }

    pub(super) fn pair_record(&self, from: usize, to: usize, post: u64) -> usize {
        self.pair(from, to) + 2 * LINE + (post % PAIR_SLOTS as u64) as usize * RECORD_BYTES
    }

    pub(super) fn slot(&self, rank: usize, ring: usize, post: u64) -> usize {
        let slot = (post % SLOTS as u64) as usize;
        self.control_bytes() + ((rank * RINGS + ring) * SLOTS + slot) * self.chunk
    }

    /// Bytes of all rings of a rank, from the first slot of ring 0 on.
    pub(super) fn rings_bytes(&self) -> usize {
        RINGS * SLOTS * self.chunk
    }

    /// The offset of chunk number `post` between two ranks.
    pub(super) fn pair_data(&self, from: usize, to: usize, post: u64) -> usize {
        let slot = (post % PAIR_SLOTS as u64) as usize;
        let pairs = self.control_bytes() + self.size * self.rings_bytes();
        pairs + ((from * self.size + to) * PAIR_SLOTS + slot) * self.chunk
    }

    pub(super) fn pair_bytes(&self) -> usize {
        PAIR_SLOTS * self.chunk
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_things_lie_at_the_same_place() {
        for (size, chunk) in [(1, 4096), (2, 4096), (3, 12288), (5, 1 << 18)] {
            let layout = Layout::new(size, chunk);
            let mut places = vec![(FORMAT, 24), (BELL, 4), (SLEEPERS, 4), (FAILURE, FAILURE_BYTES)];
            for rank in 0..size {
                places
                    .extend([layout.process(rank), layout.namespace(rank), layout.start(rank)].map(|place| (place, 8)));
                places.extend([(layout.left(rank), 8), (layout.waits_for(rank), 8)]);
                for (channel, sequence) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    places.push((layout.record(rank, channel, sequence), 64));
                }
                for ring in 0..RINGS {
                    places.extend([(layout.staged(rank, ring), LINE), (layout.taken(rank, ring), LINE)]);
                    places.extend((0..SLOTS as u64).map(|post| (layout.slot(rank, ring, post), chunk)));
                }
                for to in 0..size {
                    places.extend([(layout.sent(rank, to), LINE), (layout.received(rank, to), LINE)]);
                    places.extend((0..PAIR_SLOTS as u64).flat_map(|post| {
                        [(layout.pair_record(rank, to, post), 64), (layout.pair_data(rank, to, post), chunk)]
                    }));
                }
            }
            places.sort_unstable();
            assert!(places.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "{size} ranks, {chunk}");
            let (last, bytes) = places[places.len() - 1];
            assert!(last + bytes <= layout.bytes() && layout.bytes().is_multiple_of(PAGE));
            assert!(layout.slot(0, 0, 0) == layout.control_bytes());
            assert!(places.iter().all(|(place, _)| place % 8 == 0));
        }
    }

    #[test]
    fn a_format_tells_ranks_and_chunk() {
        let layout = Layout::new(64, 64 << 20);
        assert_eq!(Layout::of_format(layout.format()), (64, 64 << 20));
        assert_ne!(layout.format(), Layout::new(63, 64 << 20).format());
    }
}
