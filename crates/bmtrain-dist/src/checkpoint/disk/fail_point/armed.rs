//! Arming of fail points: which place fails, how, and at which arrival.

use super::{FailPoint, FailPoints};
use crate::checkpoint::disk::Fault;
use crate::checkpoint::disk::fault::{printable, request};
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Action at an armed place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailAction {
    /// The operation returns an error, once.
    Error,
    /// The process dies at once, as from `kill -9`.
    Kill,
}

#[derive(Debug, Clone, Copy)]
struct Armed {
    action: FailAction,
    /// Number of times that the place is still passed unharmed.
    passes: u32,
}

#[derive(Debug, Clone)]
pub(super) struct ArmedPoints(Arc<Mutex<BTreeMap<FailPoint, Armed>>>);

impl ArmedPoints {
    pub(super) fn reach(&self, point: FailPoint) -> Result<()> {
        let mut armed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(here) = armed.get_mut(&point) else { return Ok(()) };
        if here.passes > 0 {
            here.passes -= 1;
            return Ok(());
        }
        let action = here.action;
        armed.remove(&point);
        match action {
            FailAction::Error => {
                Err(Error::checkpoint(Fault::FailPoint, point.name(), "an armed fail point", "disarm it"))
            }
            FailAction::Kill => die(),
        }
    }
}

impl FailPoints {
    /// One armed place, which is passed unharmed `passes` times before.
    pub fn armed(point: FailPoint, action: FailAction, passes: u32) -> Self {
        FailPoints::of([(point, Armed { action, passes })].into())
    }

    /// Places from text such as `save.before_rename=kill,prune.mid=error@3`: action `error` or `kill`, and after `@`
    /// the number of the arrival at which it happens, by default 1. Empty text arms nothing.
    ///
    /// # Errors
    /// A name, an action or a count that does not exist; the message lists the names.
    pub fn parse(text: &str) -> Result<Self> {
        let mut armed = BTreeMap::new();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let (point, what) = parse_entry(entry).ok_or_else(|| {
                let names: Vec<_> = FailPoint::ALL.iter().map(|point| point.name()).collect();
                let fix =
                    format!("write NAME=error or NAME=kill, perhaps with @COUNT, and as NAME {}", names.join(", "));
                request("fail points", format!("unknown fail point {:?}", printable(entry, 60)), fix)
            })?;
            armed.insert(point, what);
        }
        Ok(if armed.is_empty() { FailPoints::NONE } else { FailPoints::of(armed) })
    }

    fn of(armed: BTreeMap<FailPoint, Armed>) -> Self {
        FailPoints { armed: Some(ArmedPoints(Arc::new(Mutex::new(armed)))) }
    }
}

fn parse_entry(entry: &str) -> Option<(FailPoint, Armed)> {
    let (name, action) = entry.split_once('=')?;
    let (action, arrival) = action.split_once('@').unwrap_or((action, "1"));
    let point = FailPoint::ALL.iter().copied().find(|point| point.name() == name)?;
    let action = match action {
        "error" => FailAction::Error,
        "kill" => FailAction::Kill,
        _ => return None,
    };
    Some((point, Armed { action, passes: arrival.parse::<u32>().ok()?.checked_sub(1)? }))
}

/// End this process the way `kill -9` does: no handler, no destructor, no core file.
fn die() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_armed_place_fails_once_at_the_arrival_that_was_asked_for() {
        let points = FailPoints::parse(" save.mid_shard=error@3, prune.mid=error").unwrap();
        let hits: Vec<_> = (0..5).map(|_| points.clone().reach(FailPoint::SaveMidShard).is_err()).collect();
        assert_eq!(hits, [false, false, true, false, false]);
        assert!(points.reach(FailPoint::SaveBeforeRename).is_ok());
        let error = points.reach(FailPoint::PruneMid).unwrap_err();
        assert!(
            matches!(error, Error::Checkpoint { fault: Fault::FailPoint, .. })
                && error.to_string().contains("prune.mid")
        );
    }

    #[test]
    fn unknown_places_are_refused_with_the_names_of_all() {
        for wrong in ["save", "save.mid_shard", "save.mid_shard=explode", "prune.mid=kill@0", "prune.mid=kill@x"] {
            let text = FailPoints::parse(wrong).unwrap_err().to_string();
            assert!(text.contains("save.before_rename") && text.contains(wrong), "{text}");
        }
        assert!(FailPoints::parse("").unwrap().armed.is_none());
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = FailPoint::ALL.iter().map(|point| point.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FailPoint::ALL.len());
    }
}
