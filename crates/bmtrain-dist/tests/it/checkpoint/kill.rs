//! A process killed at every fail point of saving and pruning: the next one resumes from a good checkpoint and clears
//! up.
//!
//! The process that dies is this test program again, running [`child`] alone.

use crate::checkpoint::sample::{Cut, State, newest_step};
use bmtrain_dist::checkpoint::{FailPoint, FailPoints, Store};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

const DIRECTORY: &str = "BMTRAIN_TEST_CHECKPOINT_DIRECTORY";
const POINTS: &str = "BMTRAIN_TEST_CHECKPOINT_FAIL_POINTS";

/// Go on with a run as a program does: clear up, find the newest, save the next step, prune.
fn resume(store: &Store) -> u64 {
    store.remove_leftovers().unwrap();
    let next = newest_step(store).map_or(1, |step| step + 1);
    let committed = State::new(next).save(store, next, 2, Cut::Even).unwrap();
    store.prune(2, Some(&committed)).unwrap();
    next
}

/// Not a test of its own: does nothing unless started by the test below.
#[test]
fn child() {
    let (Ok(directory), Ok(points)) = (std::env::var(DIRECTORY), std::env::var(POINTS)) else { return };
    let store = Store::open(Path::new(&directory)).unwrap().with_fail_points(FailPoints::parse(&points).unwrap());
    resume(&store);
}

#[test]
fn a_kill_at_every_fail_point_loses_nothing_committed() {
    for point in FailPoint::ALL {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::create(dir.path()).unwrap();
        while resume(&store) < 3 {}
        let died = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "checkpoint::kill::child"])
            .env(DIRECTORY, dir.path())
            .env(POINTS, format!("{}=kill", point.name()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert_eq!(died.signal(), Some(9), "{} was not reached: {died}", point.name());
        let newest = newest_step(&store).unwrap();
        let renamed = *point >= FailPoint::SaveAfterRename;
        assert_eq!(newest, if renamed { 4 } else { 3 }, "killed at {}", point.name());
        assert_eq!(resume(&store), newest + 1);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "killed at {}", point.name());
    }
}
