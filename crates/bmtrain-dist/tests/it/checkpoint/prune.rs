//! Pruning keeps exactly the number it was asked to, and never the wrong ones.

use crate::checkpoint::sample::{Cut, State, memory_with, newest_step};
use bmtrain_dist::checkpoint::{FailAction, FailPoint, FailPoints, Keep, Store};
use std::sync::Arc;

fn steps(store: &Store) -> Vec<u64> {
    store.list().unwrap().iter().map(|name| name.step()).collect()
}

#[test]
fn after_every_save_exactly_k_checkpoints_are_there() {
    for keep in 2..5 {
        let (disk, store) = memory_with(&[], 1);
        for step in 1..=12 {
            let committed = State::new(step).save(&store, step * 5, 2, Cut::Even).unwrap();
            store.prune(keep, Some(&committed)).unwrap();
            let expected: Vec<u64> = (1..=step).rev().take(keep).map(|s| s * 5).collect();
            assert_eq!(steps(&store), expected);
            assert_eq!(disk.names().len(), expected.len());
        }
        assert_eq!(store.prune(keep, None).unwrap(), []);
    }
    let (_, store) = memory_with(&[1], 1);
    assert!(store.prune(1, None).unwrap_err().to_string().contains("cannot keep 1 checkpoints only"));
}

#[test]
fn the_newest_that_verifies_stays_however_many_damaged_ones_are_newer() {
    let (disk, store) = memory_with(&[1, 2, 3, 4, 5], 2);
    let names: Vec<String> = store.list().unwrap().iter().map(ToString::to_string).collect();
    // 5: without a manifest; 4 and 3: a flipped bit, which only reading finds.
    disk.put(&names[0], "manifest.json", b"{}".to_vec());
    for name in &names[1..3] {
        assert!(disk.change(name, "rank-0.safetensors", |bytes| *bytes.last_mut().unwrap() ^= 1));
    }
    let removed = store.prune(2, None).unwrap();
    assert_eq!(removed.iter().map(|name| name.step()).collect::<Vec<_>>(), [1]);
    assert_eq!(steps(&store), [5, 4, 3, 2]);
    assert_eq!(newest_step(&store), Some(2));
    // With good ones newer than them, the damaged ones are removed.
    for step in [6, 7] {
        let committed = State::new(step).save(&store, step, 1, Cut::Even).unwrap();
        store.prune(2, Some(&committed)).unwrap();
    }
    assert_eq!(steps(&store), [7, 6]);
}

#[test]
fn where_none_verifies_none_is_removed() {
    let (disk, store) = memory_with(&[1, 2, 3, 4], 1);
    for name in store.list().unwrap() {
        assert!(disk.change(&name.to_string(), "rank-0.safetensors", |bytes| *bytes.last_mut().unwrap() ^= 1));
    }
    assert_eq!(store.prune(2, None).unwrap(), []);
    assert_eq!(steps(&store), [4, 3, 2, 1]);
}

#[test]
fn a_save_overtakes_another_one_of_its_step_and_going_back_removes_what_was_later() {
    let (_, store) = memory_with(&[1, 2, 3], 1);
    let committed = State::new(99).save(&store, 3, 1, Cut::Even).unwrap();
    assert_eq!(steps(&store), [3, 3, 2, 1]);
    store.prune(3, Some(&committed)).unwrap();
    assert_eq!(steps(&store), [3, 2, 1]);
    assert_eq!(store.list().unwrap()[0], committed.name);
    store.remove_later_than(1).unwrap();
    assert_eq!(steps(&store), [1]);
}

#[test]
fn leftovers_are_removed_and_nothing_else_is() {
    let (disk, store) = memory_with(&[1, 2, 3], 2);
    for directory in ["step-4.tmp-a", ".gone-step-1-01234567", "notes", "step-5", "step-x.tmp-a", "metrics.tmp-a"] {
        disk.put(directory, "file", b"x".to_vec());
    }
    let mut removed = store.remove_leftovers().unwrap();
    removed.sort();
    assert_eq!(removed, [".gone-step-1-01234567", "step-4.tmp-a"]);
    assert_eq!(disk.names().len(), 3 + 4);
    assert_eq!(steps(&store), [3, 2, 1]);
}

#[test]
fn an_interrupted_removal_is_taken_up_again() {
    for point in [FailPoint::PruneBeforeRename, FailPoint::PruneAfterRename, FailPoint::PruneMid] {
        let (disk, store) = memory_with(&[1, 2, 3], 2);
        let points = FailPoints::armed(point, FailAction::Error, 0);
        let failing = Store::on(Arc::new(disk.clone())).with_fail_points(points);
        assert!(failing.prune(2, None).unwrap_err().to_string().contains(point.name()));
        assert_eq!(newest_step(&store), Some(3));
        store.remove_leftovers().unwrap();
        store.prune(2, None).unwrap();
        assert_eq!((steps(&store), disk.names().len()), (vec![3, 2], 2));
    }
}

#[test]
fn what_was_just_committed_stays_though_enough_of_later_steps_are_there() {
    let (_, store) = memory_with(&[3, 11, 12, 13], 1);
    let committed = State::new(5).save(&store, 5, 1, Cut::Even).unwrap();
    store.prune(2, Some(&committed)).unwrap();
    assert_eq!(steps(&store), [13, 12, 5]);
}

#[test]
fn the_checkpoint_of_a_named_step_stays_beside_the_newest() {
    let (disk, store) = memory_with(&[], 1);
    for step in 1..=6 {
        let committed = State::new(step).save(&store, step, 1, Cut::Even).unwrap();
        // There is no checkpoint of step 9; the one of step 2 is among the newest at first.
        let best = if step < 4 { 9 } else { 2 };
        store.prune(Keep { newest: 3, step: Some(best) }, Some(&committed)).unwrap();
    }
    assert_eq!(steps(&store), [6, 5, 4, 2]);
    // Another one is named: the earlier one goes, and damaged ones are not counted as before.
    assert!(disk.change(&store.list().unwrap()[0].to_string(), "manifest.json", |bytes| bytes.truncate(9)));
    store.prune(Keep { newest: 2, step: Some(4) }, None).unwrap();
    assert_eq!(steps(&store), [6, 5, 4]);
}

#[test]
fn a_directory_in_a_checkpoint_is_left_in_place_and_stops_nothing() {
    let root = tempfile::tempdir().unwrap();
    let store = Store::create(root.path()).unwrap();
    for step in 1..=3 {
        State::new(step).save(&store, step, 1, Cut::Even).unwrap();
    }
    let damage = |name: &str| {
        let shard = root.path().join(name).join("rank-0.safetensors");
        std::fs::remove_file(&shard).unwrap();
        std::fs::create_dir(&shard).unwrap();
        std::fs::write(shard.join("notes"), "mine").unwrap();
    };
    let newest = store.list().unwrap()[0].to_string();
    damage(&newest);
    let found = store.newest_verified().unwrap();
    assert_eq!((found.passed_over.len(), newest_step(&store)), (1, Some(2)));
    store.remove_later_than(2).unwrap();
    assert_eq!(steps(&store), [2, 1]);
    let kept = root.path().join(format!(".gone-{newest}/rank-0.safetensors/notes"));
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "mine");
    // Neither another start nor an equal checkpoint that has to go trips over it.
    assert_eq!(store.remove_leftovers().unwrap(), Vec::<String>::new());
    State::new(3).save(&store, 3, 1, Cut::Even).unwrap();
    assert_eq!(store.list().unwrap()[0].to_string(), newest);
    store.remove_later_than(2).unwrap();
    assert_eq!(steps(&store), [2, 1]);
    assert_eq!(std::fs::read_to_string(kept).unwrap(), "mine");
}
