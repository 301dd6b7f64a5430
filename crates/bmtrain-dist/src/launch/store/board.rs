//! Content of the store: values by key, counters, and the ranks that have come to each barrier. No sockets, no clock.

use super::refused::label;
use std::collections::{BTreeSet, HashMap};

/// Keys are no longer than this, in bytes.
pub(super) const MAX_KEY: usize = 256;
/// Values are no longer than this, so that a key and its value fit into a frame.
pub(super) const MAX_VALUE: usize = super::frame::MAX_FRAME - MAX_KEY - 2;
/// All keys and values together, in bytes.
const MAX_BYTES: usize = 64 << 20;
/// Keys, and barriers under way.
const MAX_KEYS: usize = 1 << 16;

/// Progress of a barrier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Gathered {
    /// Every rank has come.
    Complete,
    /// These ranks are gone and will not come.
    Lost(Vec<usize>),
    /// Some ranks have not come yet: [`Board::missing`].
    Waiting,
}

/// Why a job cannot start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// A rank has ended by itself.
    Ended { rank: usize, code: u8, reason: String },
    /// Ranks do not fit together.
    Differs(String),
}

#[derive(Debug, Default)]
struct Gathering {
    arrived: BTreeSet<usize>,
    left: usize,
}

#[derive(Debug)]
pub(super) struct Board {
    /// Whether each rank has ever been here.
    seen: Vec<bool>,
    /// Ranks that were here and have gone.
    gone: BTreeSet<usize>,
    /// Their hosts, as far as they have come.
    hosts: Vec<String>,
    fault: Option<Fault>,
    entries: HashMap<String, Vec<u8>>,
    bytes: usize,
    gatherings: HashMap<String, Gathering>,
}

impl Board {
    pub(super) fn new(world: usize) -> Self {
        let (entries, gatherings) = (HashMap::new(), HashMap::new());
        let (seen, hosts) = (vec![false; world], vec![String::new(); world]);
        Board { seen, gone: BTreeSet::new(), hosts, fault: None, entries, bytes: 0, gatherings }
    }

    /// Whether every rank has been here.
    pub(super) fn is_complete(&self) -> bool {
        self.seen.iter().all(|&seen| seen)
    }

    /// A rank of a host comes in; false if there was one of its number before.
    pub(super) fn enter(&mut self, rank: usize, host: String) -> bool {
        let is_first = !std::mem::replace(&mut self.seen[rank], true);
        if is_first {
            self.hosts[rank] = host;
        }
        is_first
    }

    /// Whether a rank has ever been here.
    pub(super) fn has_seen(&self, rank: usize) -> bool {
        self.seen.get(rank) == Some(&true)
    }

    /// The host of each rank; empty for a rank that has not come.
    pub(super) fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// A rank with its host, where that is known.
    pub(super) fn label(&self, rank: usize) -> String {
        label(rank, self.hosts.get(rank).map_or("", String::as_str))
    }

    /// Ranks that were here and have gone.
    pub(super) fn gone(&self) -> Vec<usize> {
        self.gone.iter().copied().collect()
    }

    /// The job cannot start; the first reason counts. Nothing is wrong with one that has started.
    pub(super) fn fail(&mut self, fault: Fault) {
        self.fault.get_or_insert(fault);
    }

    pub(super) fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    /// A rank that was here has gone.
    pub(super) fn depart(&mut self, rank: usize) {
        self.gone.insert(rank);
    }

    pub(super) fn get(&self, key: &str) -> Option<&[u8]> {
        self.entries.get(key).map(Vec::as_slice)
    }

    /// Store a value under a key, in place of an older one.
    pub(super) fn set(&mut self, key: &str, value: &[u8]) -> Result<(), String> {
        if key.len() > MAX_KEY || value.len() > MAX_VALUE {
            return Err(format!("a key has at most {MAX_KEY} bytes, a value {MAX_VALUE}"));
        }
        let old = self.entries.get(key).map_or(0, |old| key.len() + old.len());
        let bytes = self.bytes - old + key.len() + value.len();
        let keys = self.entries.len() + usize::from(!self.entries.contains_key(key));
        if bytes > MAX_BYTES || keys > MAX_KEYS {
            return Err(format!("the store is full: it holds {MAX_KEYS} keys and {} MiB", MAX_BYTES >> 20));
        }
        self.bytes = bytes;
        self.entries.insert(key.to_owned(), value.to_vec());
        Ok(())
    }

    /// Add to a counter, which starts at 0.
    pub(super) fn add(&mut self, key: &str, delta: i64) -> Result<i64, String> {
        let before = match self.get(key).map(<[u8; 8]>::try_from) {
            None => 0,
            Some(Ok(bytes)) => i64::from_le_bytes(bytes),
            Some(Err(_)) => return Err(format!("the value of {key} is not a counter")),
        };
        let sum = before.checked_add(delta).ok_or_else(|| format!("the counter {key} would overflow"))?;
        self.set(key, &sum.to_le_bytes())?;
        Ok(sum)
    }

    /// A rank has come to a barrier.
    pub(super) fn arrive(&mut self, name: &str, rank: usize) -> Result<(), String> {
        if name.len() > MAX_KEY || (self.gatherings.len() >= MAX_KEYS && !self.gatherings.contains_key(name)) {
            return Err(format!("a barrier's name has at most {MAX_KEY} bytes, and {MAX_KEYS} are enough"));
        }
        let arrived = &mut self.gatherings.entry(name.to_owned()).or_default().arrived;
        if arrived.insert(rank) { Ok(()) } else { Err(format!("rank {rank} has come to barrier {name} already")) }
    }

    /// Progress of a barrier. Looked at by every waiting rank at every change, so it makes no lists without need.
    pub(super) fn gathered(&self, name: &str) -> Gathered {
        let Some(Gathering { arrived, .. }) = self.gatherings.get(name) else { return Gathered::Waiting };
        if arrived.len() >= self.seen.len() {
            return Gathered::Complete;
        }
        let lost: Vec<usize> = self.gone.difference(arrived).copied().collect();
        if lost.is_empty() { Gathered::Waiting } else { Gathered::Lost(lost) }
    }

    /// Ranks that have not come to a barrier.
    pub(super) fn missing(&self, name: &str) -> Vec<usize> {
        let arrived = self.gatherings.get(name).map(|gathering| &gathering.arrived);
        (0..self.seen.len()).filter(|rank| arrived.is_none_or(|arrived| !arrived.contains(rank))).collect()
    }

    /// A rank has been told that a barrier is complete; the last one to be told takes it away.
    pub(super) fn leave(&mut self, name: &str) {
        if let Some(gathering) = self.gatherings.get_mut(name) {
            gathering.left += 1;
            if gathering.left >= self.seen.len() {
                self.gatherings.remove(name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_start_at_zero_and_refuse_what_is_none() {
        let mut board = Board::new(1);
        assert_eq!(board.add("n", 5), Ok(5));
        assert_eq!(board.add("n", -7), Ok(-2));
        assert!(board.add("n", i64::MIN).is_err());
        board.set("text", b"abc").unwrap();
        assert!(board.add("text", 1).is_err());
    }

    #[test]
    fn a_barrier_is_complete_with_all_and_names_who_is_missing_or_gone() {
        let mut board = Board::new(3);
        let mut enter = |rank, host: &str| board.enter(rank, host.to_owned());
        assert!(enter(0, "a") && enter(1, "b") && !enter(1, "c"));
        assert_eq!([0, 1, 2].map(|rank| board.label(rank)), ["rank 0 on a", "rank 1 on b", "rank 2"]);
        board.arrive("b", 1).unwrap();
        assert_eq!((board.gathered("b"), board.missing("b")), (Gathered::Waiting, vec![0, 2]));
        assert!(board.arrive("b", 1).is_err());
        // A rank that leaves after it has arrived is not lost.
        board.depart(1);
        assert_eq!(board.gathered("b"), Gathered::Waiting);
        board.depart(0);
        assert_eq!(board.gathered("b"), Gathered::Lost(vec![0]));
        board.arrive("b", 0).unwrap();
        board.arrive("b", 2).unwrap();
        assert_eq!(board.gathered("b"), Gathered::Complete);
        (0..3).for_each(|_| board.leave("b"));
        assert!(board.gatherings.is_empty());
    }

    #[test]
    fn the_board_does_not_grow_without_bound() {
        let mut board = Board::new(1);
        assert!(board.set(&"k".repeat(MAX_KEY + 1), b"").is_err());
        assert!(board.set("k", &vec![0; MAX_VALUE + 1]).is_err());
        let value = vec![0; MAX_VALUE];
        let kept = (0..2000).take_while(|n| board.set(&format!("{n}"), &value).is_ok()).count();
        assert!((1000..1030).contains(&kept), "{kept} values of 64 KiB");
        // One in place of another takes no more room.
        assert_eq!(board.set("0", &value), Ok(()));
    }
}
