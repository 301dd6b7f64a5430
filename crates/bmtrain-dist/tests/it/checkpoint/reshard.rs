//! A checkpoint in another number of files is the same checkpoint.

use crate::checkpoint::sample::{Cut, State, memory_with};
use bmtrain_dist::checkpoint::simulated::MemoryDisk;
use bmtrain_dist::checkpoint::{Store, reshard};
use std::sync::Arc;

#[test]
fn two_ranks_to_four_to_one_to_seven_keep_the_digest_and_every_bit() {
    [Cut::Even, Cut::Columns].into_iter().for_each(resharded_again_and_again);
}

fn resharded_again_and_again(cut: Cut) {
    let state = State::new(9);
    let (_, store) = memory_with(&[], 1);
    let name = state.save(&store, 9, 2, cut).unwrap().name;
    let mut checkpoint = store.verify(&name).unwrap();
    let digest = checkpoint.digest().unwrap();
    for world in [4, 1, 7, 40] {
        let target = Store::on(Arc::new(MemoryDisk::default()));
        let name = reshard(&checkpoint, &target, world, "reshard").unwrap().name;
        checkpoint = target.verify(&name).unwrap();
        assert_eq!(checkpoint.manifest().files.len(), world);
        assert_eq!(checkpoint.digest().unwrap(), digest, "{world} files");
        state.assert_in(&checkpoint);
    }
    let from = &checkpoint.manifest().facts.layout["resharded_from"];
    assert!(from.as_str().unwrap().starts_with("step-9-"), "{from}");
}

#[test]
fn files_of_a_resharded_checkpoint_are_of_nearly_equal_size() {
    let (_, store) = memory_with(&[4], 1);
    let checkpoint = store.newest_verified().unwrap().checkpoint.unwrap();
    let target = Store::on(Arc::new(MemoryDisk::default()));
    let name = reshard(&checkpoint, &target, 4, "a").unwrap().name;
    let loads: Vec<u64> = target
        .checkpoint(&name)
        .unwrap()
        .manifest()
        .files
        .iter()
        .map(|file| file.pieces.iter().map(|piece| piece.spec.bytes().unwrap()).sum())
        .collect();
    assert!(loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 16, "{loads:?}");
}

#[test]
fn damage_found_while_resharding_commits_nothing() {
    let (disk, store) = memory_with(&[4], 2);
    let name = store.list().unwrap()[0].clone();
    let checkpoint = store.checkpoint(&name).unwrap();
    assert!(disk.change(&name.to_string(), "rank-1.safetensors", |bytes| *bytes.last_mut().unwrap() ^= 1));
    let target = MemoryDisk::default();
    let error = reshard(&checkpoint, &Store::on(Arc::new(target.clone())), 3, "a").unwrap_err();
    assert!(error.to_string().contains("rank-1.safetensors"), "{error}");
    assert_eq!(target.names(), []);
    assert!(checkpoint.digest().is_err());
    assert!(reshard(&checkpoint, &store, 0, "a").is_err());
}

#[test]
fn the_digest_sees_every_bit_and_the_state_but_no_layout() {
    let digest = State::new(5).digest(5);
    let mut other = State::new(5);
    other.facts.layout.insert("zero".into(), 1.into());
    other.facts.recipe = "another".into();
    assert_eq!(other.digest(5), digest);
    other.tensors[3].bytes[0] ^= 1;
    assert_ne!(other.digest(5).tensors, digest.tensors);
    let mut later = State::new(5);
    later.facts.state.insert("lr".into(), 0.2.into());
    assert_eq!(later.digest(5).tensors, digest.tensors);
    assert_ne!(later.digest(5).all, digest.all);
    assert_ne!(State::new(5).digest(6).all, digest.all);
}
