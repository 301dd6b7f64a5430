//! Ranks that are waited for although a process of their number was refused for its token: the others are told, instead
//! of waiting for a process that has ended.
//!
//! A process without the token can claim any number, so a claim alone ends nothing: a process with the token that comes
//! in time removes it. Called by `server` and `answers`. No sockets, no clock.

use super::frame::{Fields, numbers};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Ranks in an answer, which has to fit into a frame.
const MAX_RANKS: usize = 1024;

/// The first refusal of each rank that has not come since.
#[derive(Debug, Default)]
pub(super) struct RefusedRanks(BTreeMap<usize, Claim>);

#[derive(Debug)]
struct Claim {
    at: Instant,
    host: String,
}

impl RefusedRanks {
    /// A process that called itself rank `rank` of `host` was refused; true for the first one of this rank.
    pub(super) fn add(&mut self, rank: usize, host: String, at: Instant) -> bool {
        let is_first = !self.0.contains_key(&rank);
        self.0.entry(rank).or_insert(Claim { at, host });
        is_first
    }

    /// The rank has come.
    pub(super) fn remove(&mut self, rank: usize) {
        self.0.remove(&rank);
    }

    /// The ranks with their hosts, for the others, once one of them has been waited for as long as `patience`.
    pub(super) fn overdue(&self, now: Instant, patience: Duration) -> Option<Vec<u8>> {
        let is_overdue = |claim: &Claim| now.saturating_duration_since(claim.at) >= patience;
        if !self.0.values().any(is_overdue) {
            return None;
        }
        let ranks: Vec<usize> = self.0.keys().copied().take(MAX_RANKS).collect();
        let names: Vec<String> = self.0.iter().take(16).map(|(rank, claim)| label(*rank, &claim.host)).collect();
        let count = (ranks.len() as u32).to_le_bytes();
        Some([&count[..], &numbers(&ranks), names.join(", ").as_bytes()].concat())
    }
}

/// A rank with its host, where that is known.
pub(super) fn label(rank: usize, host: &str) -> String {
    if host.is_empty() { format!("rank {rank}") } else { format!("rank {rank} on {host}") }
}

/// The ranks and their names, as [`RefusedRanks::overdue`] wrote them.
pub(super) fn read(body: &[u8]) -> Option<(Vec<usize>, String)> {
    let mut fields = Fields(body);
    let len = usize::try_from(fields.u32()?).ok()?.checked_mul(size_of::<u32>())?;
    let (ranks, names) = fields.0.split_at_checked(len)?;
    Some((Fields(ranks).numbers(), String::from_utf8_lossy(names).replace(char::is_control, " ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_rank_is_named_when_it_has_not_come_in_time() {
        let (mut refused, start, patience) = (RefusedRanks::default(), Instant::now(), Duration::from_secs(30));
        assert!(refused.add(3, "b".into(), start) && !refused.add(3, "c".into(), start + patience));
        assert!(refused.add(1, String::new(), start + Duration::from_secs(20)));
        assert_eq!(refused.overdue(start + Duration::from_secs(29), patience), None);
        let told = refused.overdue(start + patience, patience).unwrap();
        assert_eq!(read(&told), Some((vec![1, 3], "rank 1, rank 3 on b".into())));
        refused.remove(3);
        assert_eq!(refused.overdue(start + patience, patience), None);
        assert!(refused.overdue(start + Duration::from_secs(50), patience).is_some());
    }

    #[test]
    fn other_bytes_are_no_ranks() {
        for bytes in [&[][..], &[1, 0, 0], &[2, 0, 0, 0, 1, 0, 0, 0], &[0xff; 8]] {
            assert_eq!(read(bytes), None, "{bytes:?}");
        }
    }
}
