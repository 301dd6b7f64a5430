//! A disk that is full or broken is an event: the previous checkpoint loads, and nothing is left over.

use crate::checkpoint::sample::{Cut, State, memory_with, newest_step};
use bmtrain_dist::checkpoint::simulated::{FailingDisk, Failure};
use bmtrain_dist::checkpoint::{Fault, Store};
use bmtrain_dist::{Error, Result};
use std::sync::Arc;

/// Save and removal at a step of a run.
fn save_and_prune(store: &Store) -> Result<()> {
    let committed = State::new(3).save(store, 3, 3, Cut::Even)?;
    store.prune(2, Some(&committed)).map(drop)
}

#[test]
fn a_disk_full_at_any_write_leaves_the_previous_checkpoint_and_nothing_else() {
    let (clean, _) = memory_with(&[1, 2], 2);
    let before = clean.names();
    let mut at = 0;
    loop {
        let disk = clean.copy();
        let failing = FailingDisk::new(Arc::new(disk.clone()), Failure::Full, at);
        let result = save_and_prune(&Store::on(Arc::new(failing.clone())));
        let store = Store::on(Arc::new(disk.clone()));
        if failing.changes() <= at {
            result.unwrap();
            break;
        }
        // The name of the directory is given before its last flush fails; then it is there, whole.
        let newest = newest_step(&store);
        if let Err(error) = result {
            assert!(matches!(error, Error::Checkpoint { fault: Fault::Disk, .. }), "change {at}: {error}");
            assert!(error.to_string().contains("make room on this disk"), "change {at}: {error}");
        }
        assert!(store.remove_leftovers().is_ok());
        if newest == Some(2) {
            assert_eq!(disk.names(), before, "change {at}");
        } else {
            assert_eq!(newest, Some(3), "change {at}");
            assert_eq!(disk.names().len(), store.list().unwrap().len(), "change {at}");
        }
        // There is room again.
        save_and_prune(&store).unwrap();
        assert_eq!((newest_step(&store), disk.names().len()), (Some(3), 2), "change {at}");
        at += 1;
    }
    assert!(at > 60, "{at} changes");
}

#[test]
fn a_failed_save_frees_its_room_at_once() {
    let (clean, _) = memory_with(&[1, 2], 2);
    let before = clean.names();
    for at in 1..20 {
        let disk = clean.copy();
        let failing = FailingDisk::new(Arc::new(disk.clone()), Failure::Full, at);
        assert!(save_and_prune(&Store::on(Arc::new(failing))).is_err());
        assert_eq!(disk.names(), before, "change {at}");
    }
}

#[test]
fn an_input_output_error_at_any_change_leaves_a_good_checkpoint() {
    let (clean, _) = memory_with(&[1, 2], 2);
    let mut at = 0;
    loop {
        let disk = clean.copy();
        let failing = FailingDisk::new(Arc::new(disk.clone()), Failure::Broken, at);
        let result = save_and_prune(&Store::on(Arc::new(failing.clone())));
        if failing.changes() <= at {
            result.unwrap();
            break;
        }
        let store = Store::on(Arc::new(disk.clone()));
        let newest = newest_step(&store);
        assert!(newest == Some(3) || (newest == Some(2) && result.is_err()), "change {at}: {newest:?}");
        store.remove_leftovers().unwrap();
        assert!(disk.names().iter().all(|(directory, _)| directory.starts_with("step-") && !directory.contains("tmp")));
        save_and_prune(&store).unwrap();
        assert_eq!((newest_step(&store), disk.names().len()), (Some(3), 2), "change {at}");
        at += 1;
    }
    assert!(at > 60, "{at} changes");
}
