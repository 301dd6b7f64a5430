//! Random damage to checkpoints: all of it is found before a byte is handed out, and the newest good one is used.

use crate::checkpoint::background::Gated;
use crate::checkpoint::sample::{Cut, Random, State, memory_with, newest_step};
use bmtrain_dist::Error;
use bmtrain_dist::checkpoint::simulated::MemoryDisk;
use bmtrain_dist::checkpoint::{Fault, MANIFEST_FILE, Store};
use std::sync::Arc;

const CORRUPTIONS: u64 = 2000;

/// Damage one checkpoint in one way; returns how. `other` is the directory of another step.
fn damage(disk: &MemoryDisk, directory: &str, other: &str, random: &mut Random) -> String {
    let files = ["rank-0.safetensors", "rank-1.safetensors", "rank-2.safetensors", MANIFEST_FILE];
    let file = files[random.below(4)];
    let mut bytes = disk.get(directory, file).unwrap();
    let before = bytes.clone();
    let at = random.below(bytes.len());
    let what = match random.below(12) {
        0..5 => {
            bytes[at] ^= 1 << random.below(8);
            "a bit is flipped"
        }
        5 => {
            bytes.truncate(at);
            "the end is missing"
        }
        6 => {
            let more = 1 + random.below(600);
            bytes.extend(random.bytes(more));
            "there is more at the end"
        }
        7 => {
            let sector = at / 512 * 512;
            let end = bytes.len().min(sector + 512);
            bytes[sector..end].fill(0);
            "a sector is zero"
        }
        8 => {
            bytes = disk.get(directory, files[random.below(4)]).unwrap();
            "it is another file of the checkpoint"
        }
        9 => {
            bytes = disk.get(other, file).unwrap();
            "it is the file of another step"
        }
        10 => {
            let (one, two) = (random.below(3), random.below(3));
            let (a, b) = (disk.get(directory, files[one]).unwrap(), disk.get(directory, files[two]).unwrap());
            if one != two {
                disk.put(directory, files[one], b);
                disk.put(directory, files[two], a);
                return "two files are swapped".into();
            }
            bytes[at] ^= 0x80;
            "a bit is flipped"
        }
        _ => {
            bmtrain_dist::checkpoint::disk::Disk::remove_file(disk, directory, file).unwrap();
            return format!("{file}: it is missing");
        }
    };
    if bytes == before {
        bytes[at] ^= 1;
    }
    disk.put(directory, file, bytes);
    format!("{file}: {what}")
}

#[test]
fn two_thousand_random_corruptions_are_detected_and_the_newest_good_checkpoint_is_used() {
    let (clean, store) = memory_with(&[10, 20, 30], 3);
    let directories: Vec<String> = store.list().unwrap().iter().map(ToString::to_string).collect();
    let state = State::new(30);
    for seed in 0..CORRUPTIONS {
        let mut random = Random(seed);
        let disk = clean.copy();
        let store = Store::on(Arc::new(disk.clone()));
        let how = damage(&disk, &directories[0], &directories[1], &mut random);
        let twice = random.below(4) == 0;
        if twice {
            damage(&disk, &directories[1], &directories[2], &mut random);
        }
        let newest = store.newest_verified().unwrap();
        let found = newest.checkpoint.map(|checkpoint| checkpoint.manifest().step);
        assert_eq!(found, Some(if twice { 10 } else { 20 }), "seed {seed}: {how}");
        assert_eq!(newest.passed_over.len(), 1 + usize::from(twice), "seed {seed}: {how}");
        for passed in &newest.passed_over {
            let text = passed.reason.to_string();
            assert!(matches!(passed.reason, Error::Checkpoint { fault: Fault::Damaged, .. }), "seed {seed}: {text}");
            assert!(text.contains(&passed.name.to_string()) && text.lines().count() == 1, "seed {seed}: {text}");
        }
        // Also a reader that verified nothing beforehand never gets a wrong byte.
        let Ok(checkpoint) = store.checkpoint(&newest.passed_over[0].name) else { continue };
        for tensor in &state.tensors {
            let spec = &tensor.spec;
            let half = spec.length / 2;
            let size = spec.dtype.size();
            for (range, truth) in [
                (half..spec.length, &tensor.bytes[half as usize * size..]),
                (0..half, &tensor.bytes[..half as usize * size]),
            ] {
                let mut bytes = vec![0xaa; truth.len()];
                match checkpoint.read_range_into(&spec.name, &spec.kind, range, &mut bytes) {
                    Ok(()) => assert_eq!(bytes, truth, "seed {seed}: {how}, {}", spec.name),
                    Err(_) => assert!(bytes.iter().all(|&b| b == 0), "seed {seed}: {how}, {}", spec.name),
                }
            }
        }
    }
}

fn edit(disk: &MemoryDisk, directory: &str, file: &str, change: impl FnOnce(&mut Vec<u8>)) {
    assert!(disk.change(directory, file, change));
}

#[test]
fn each_kind_of_damage_is_reported() {
    let (clean, store) = memory_with(&[1, 2], 2);
    let directories: Vec<String> = store.list().unwrap().iter().map(ToString::to_string).collect();
    let told = |damage: &dyn Fn(&MemoryDisk)| {
        let disk = clean.copy();
        damage(&disk);
        let store = Store::on(Arc::new(disk.clone()));
        assert_eq!(newest_step(&store), Some(1));
        let reports = store.reports(true).unwrap();
        assert!(reports[1].contents.is_ok());
        reports[0].to_string()
    };
    let data = |disk: &MemoryDisk| edit(disk, &directories[0], "rank-1.safetensors", |b| *b.last_mut().unwrap() ^= 1);
    let text = told(&data);
    assert!(text.contains("rank-1.safetensors: other-frozen mask is not as it was written"), "{text}");
    let header = |disk: &MemoryDisk| edit(disk, &directories[0], "rank-1.safetensors", |b| b[20] ^= 1);
    assert!(told(&header).contains("the file is not as it was written"));
    let short = |disk: &MemoryDisk| edit(disk, &directories[0], "rank-0.safetensors", |b| b.truncate(100));
    assert!(told(&short).contains("rank-0.safetensors: the file has 100 bytes, written were"));
    let manifest = |disk: &MemoryDisk| edit(disk, &directories[0], MANIFEST_FILE, |b| b[30] ^= 1);
    assert!(told(&manifest).contains("manifest.json: the manifest's hash is"));
    let foreign =
        |disk: &MemoryDisk| disk.put(&directories[0], MANIFEST_FILE, disk.get(&directories[1], MANIFEST_FILE).unwrap());
    let text = told(&foreign);
    assert!(text.contains(&format!("this is the manifest of {}, not of {}", directories[1], directories[0])), "{text}");
    let empty = |disk: &MemoryDisk| disk.put(&directories[0], MANIFEST_FILE, Vec::new());
    assert!(told(&empty).contains("cut short"));
}

#[test]
fn a_whole_checkpoint_under_the_name_of_another_one_is_refused() {
    let (disk, store) = memory_with(&[1], 2);
    let name = store.list().unwrap()[0].to_string();
    let other_step = name.replace("step-1-", "step-9-");
    let other_hash = "step-1-ffffffff".to_string();
    for disguised in [&other_step, &other_hash] {
        for file in ["rank-0.safetensors", "rank-1.safetensors", MANIFEST_FILE] {
            disk.put(disguised, file, disk.get(&name, file).unwrap());
        }
    }
    let newest = store.newest_verified().unwrap();
    assert_eq!(newest.checkpoint.unwrap().name().to_string(), name);
    let passed: Vec<String> = newest.passed_over.iter().map(|passed| passed.name.to_string()).collect();
    assert_eq!(passed, [other_step, other_hash]);
}

#[test]
fn damage_on_a_real_disk_is_passed_over_with_the_path_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(dir.path()).unwrap();
    for step in [1, 2] {
        State::new(step).save(&store, step, 2, Cut::Even).unwrap();
    }
    let path = dir.path().join(store.list().unwrap()[0].to_string()).join("rank-1.safetensors");
    std::fs::remove_file(&path).unwrap();
    let newest = store.newest_verified().unwrap();
    State::new(1).assert_in(&newest.checkpoint.unwrap());
    let reason = newest.passed_over[0].reason.to_string();
    assert!(reason.contains(path.to_str().unwrap()) && reason.contains("cannot read"), "{reason}");
}

#[test]
fn a_checkpoint_that_the_disk_refuses_to_read_is_not_passed_over_for_an_older_one() {
    let (disk, store) = memory_with(&[1, 2], 1);
    let newest = store.list().unwrap()[0].to_string();
    // EIO, EACCES, EMFILE, ESTALE.
    for reason in [5, 13, 24, 116] {
        let refused = Some((newest.clone(), reason));
        let refusing = Store::on(Arc::new(Gated { disk: disk.clone(), refused, ..Gated::default() }));
        let error = refusing.newest_verified().unwrap_err();
        assert!(matches!(error, Error::Checkpoint { fault: Fault::Disk, .. }), "{error}");
        assert!(error.to_string().contains(&newest), "{error}");
    }
    assert_eq!(newest_step(&store), Some(2));
}
