//! A power cut at any moment of a save and of the pruning after it leaves a good checkpoint: the old one or the new
//! one.

use crate::checkpoint::sample::{Cut, State, memory_with, newest_step};
use bmtrain_dist::checkpoint::Store;
use bmtrain_dist::checkpoint::simulated::{Loss, MemoryDisk, RecordingDisk};
use std::sync::Arc;

/// Chances for every moment, beside the seven losses without chance.
const SEEDS: u64 = 12;

fn store(disk: &MemoryDisk) -> Store {
    Store::on(Arc::new(disk.clone()))
}

#[test]
fn every_crash_state_of_a_save_loads_the_last_good_checkpoint() {
    let (disk, _) = memory_with(&[1, 2], 2);
    let recorder = RecordingDisk::new(disk);
    let recording = Store::on(Arc::new(recorder.clone()));
    State::new(3).save(&recording, 3, 4, Cut::Ragged(1)).unwrap();
    let log = recorder.log();
    let mut states = 0;
    let mut new = 0;
    for moment in 0..=log.len() {
        for loss in Loss::all(SEEDS) {
            let disk = log.after(moment, loss);
            let found = newest_step(&store(&disk));
            let committed = moment == log.len();
            assert!(found == Some(3) || (found == Some(2) && !committed), "change {moment}, {loss:?}: found {found:?}");
            states += 1;
            new += usize::from(found == Some(3));
        }
    }
    println!("{states} crash states of {} changes, {new} of them load the new checkpoint", log.len());
    assert!(states >= 1000 && new >= Loss::all(SEEDS).len() && new < states / 2, "{states} states, {new} new");
}

#[test]
fn after_a_crash_nothing_is_left_over_and_the_save_can_be_done_again() {
    let (disk, _) = memory_with(&[1, 2], 2);
    let recorder = RecordingDisk::new(disk);
    State::new(3).save(&Store::on(Arc::new(recorder.clone())), 3, 2, Cut::Even).unwrap();
    let log = recorder.log();
    for moment in (0..=log.len()).step_by(3) {
        for loss in Loss::all(2) {
            let disk = log.after(moment, loss);
            let store = store(&disk);
            store.remove_leftovers().unwrap();
            State::new(3).save(&store, 3, 2, Cut::Even).unwrap();
            assert_eq!(newest_step(&store), Some(3), "change {moment}, {loss:?}");
            let directories: Vec<_> = disk.names().into_iter().map(|(directory, _)| directory).collect();
            assert!(directories.len() == 3 && directories.iter().all(|f| !f.contains("tmp")), "{directories:?}");
        }
    }
}

#[test]
fn every_crash_state_of_pruning_keeps_what_is_kept() {
    let (disk, _) = memory_with(&[1, 2, 3, 4, 5], 2);
    let recorder = RecordingDisk::new(disk);
    Store::on(Arc::new(recorder.clone())).prune(2, None).unwrap();
    let log = recorder.log();
    assert!(log.len() > 10);
    for moment in 0..=log.len() {
        for loss in Loss::all(SEEDS) {
            let disk = log.after(moment, loss);
            let store = store(&disk);
            assert_eq!(newest_step(&store), Some(5), "change {moment}, {loss:?}");
            // Nothing that is half removed bears a checkpoint's name.
            for name in store.list().unwrap() {
                State::new(name.step()).assert_in(&store.verify(&name).unwrap());
            }
            store.remove_leftovers().unwrap();
            store.prune(2, None).unwrap();
            assert_eq!(disk.names().len(), 2, "change {moment}, {loss:?}");
        }
    }
}

#[test]
fn a_damaged_checkpoint_being_replaced_by_its_equal_never_costs_the_one_before() {
    let (disk, intact) = memory_with(&[1, 2], 2);
    let name = intact.list().unwrap()[0].to_string();
    assert!(disk.change(&name, "rank-0.safetensors", |bytes| bytes.truncate(99)));
    let recorder = RecordingDisk::new(disk);
    State::new(2).save(&Store::on(Arc::new(recorder.clone())), 2, 2, Cut::Even).unwrap();
    let log = recorder.log();
    for moment in 0..=log.len() {
        for loss in Loss::all(SEEDS) {
            let found = newest_step(&store(&log.after(moment, loss)));
            let committed = moment == log.len();
            assert!(found == Some(2) || (found == Some(1) && !committed), "change {moment}, {loss:?}: {found:?}");
        }
    }
}
