//! Manifests and directories made to do damage: no panic, no way out of the directory, no memory without
//! bounds.

use crate::checkpoint::sample::{Cut, Random, State, memory_with, memory_with_cut};
use bmtrain_dist::checkpoint::simulated::MemoryDisk;
use bmtrain_dist::checkpoint::{CheckpointName, ContentHash, MANIFEST_FILE, Store};
use std::os::unix::fs::symlink;
use std::sync::Arc;

const MUTANTS: u64 = 4000;
/// Peak memory above the start, in KiB, including what other tests allocate at the same time.
const MEMORY_KIB: u64 = 96 * 1024;

/// The manifest of a good checkpoint without the hash at its end.
fn body(disk: &MemoryDisk, directory: &str) -> String {
    let text = String::from_utf8(disk.get(directory, MANIFEST_FILE).unwrap()).unwrap();
    text[..text.rfind(",\"hash\":").unwrap()].to_string()
}

/// A manifest of any content with a right hash, and the name of its directory.
fn signed(step: u64, body: &str) -> (CheckpointName, Vec<u8>) {
    let hash = ContentHash::of(body.as_bytes());
    (CheckpointName::new(step, &hash), format!("{body},\"hash\":\"{hash}\"}}\n").into_bytes())
}

/// The good checkpoint under another manifest.
fn with_manifest(disk: &MemoryDisk, directory: &str, body: &str) -> CheckpointName {
    let (name, text) = signed(1, body);
    for file in ["rank-0.safetensors", "rank-1.safetensors"] {
        disk.put(&name.to_string(), file, disk.get(directory, file).unwrap());
    }
    disk.put(&name.to_string(), MANIFEST_FILE, text);
    name
}

/// Read everything that a checkpoint offers.
fn use_it(store: &Store, name: &CheckpointName) -> bool {
    let verified = store.verify(name).is_ok();
    if let Ok(checkpoint) = store.checkpoint(name) {
        for tensor in checkpoint.tensors() {
            let _ = checkpoint.read_range(&tensor.name, &tensor.kind, 0..tensor.elements);
            let _ = checkpoint.read_range(&tensor.name, &tensor.kind, tensor.elements / 2..tensor.elements);
        }
        let _ = checkpoint.digest();
    }
    verified
}

fn mutate(text: &str, random: &mut Random) -> String {
    let mut text = text.to_string();
    for _ in 0..1 + random.below(3) {
        let marks: Vec<usize> = text.match_indices(|c: char| "{}[]:,\"".contains(c)).map(|(at, _)| at).collect();
        let at = marks[random.below(marks.len())];
        let numbers =
            ["0", "1", "-1", "8", "18446744073709551615", "9223372036854775808", "1e300", "4294967296", "3.5"];
        let words =
            ["{", "}", "[", "]", "null", "true", "\"\"", "\"../x\"", "\"\\u0000\"", "[[[[[[[[", "\"parameter\"", ","];
        match random.below(6) {
            0 => text.replace_range(at..at + 1, words[random.below(words.len())]),
            1 => text.insert_str(at + 1, words[random.below(words.len())]),
            2 => text.replace_range(at..at + 1, ""),
            3 => {
                // A number anywhere in the text.
                let digits: Vec<usize> = text.match_indices(|c: char| c.is_ascii_digit()).map(|(at, _)| at).collect();
                let from = digits[random.below(digits.len())];
                let to = text[from..].find(|c: char| !c.is_ascii_digit()).map_or(text.len(), |n| from + n);
                text.replace_range(from..to, numbers[random.below(numbers.len())]);
            }
            4 => {
                let end = marks[random.below(marks.len())];
                let (from, to) = (at.min(end), at.max(end));
                let copy = text[from..to].to_string();
                if copy.len() < 2000 {
                    text.insert_str(to, &copy);
                }
            }
            _ => {
                let end = (at + random.below(80)).min(text.len());
                text.replace_range(at..end, "");
            }
        }
    }
    text
}

fn peak_memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or("VmHWM: 0");
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn mutants_of_a_well_signed_manifest_neither_panic_nor_take_memory() {
    [Cut::Even, Cut::Columns].into_iter().for_each(mutants_of);
}

fn mutants_of(cut: Cut) {
    let (clean, store) = memory_with_cut(&[1], 2, cut);
    let directory = store.list().unwrap()[0].to_string();
    let body = body(&clean, &directory);
    assert!(use_it(&store, &with_manifest(&clean.copy(), &directory, &body)));
    let before = peak_memory_kib();
    let mut verified = 0;
    for seed in 0..MUTANTS {
        let disk = clean.copy();
        let name = with_manifest(&disk, &directory, &mutate(&body, &mut Random(seed)));
        verified += u64::from(use_it(&Store::on(Arc::new(disk)), &name));
    }
    println!("{verified} of {MUTANTS} mutants are valid checkpoints");
    // Most do not verify; a few change only what is free, such as a number of the state.
    assert!(verified < MUTANTS / 4);
    assert!(peak_memory_kib() < before + MEMORY_KIB, "{} KiB, before {before}", peak_memory_kib());
}

#[test]
fn claims_larger_than_memory_are_refused_before_memory_is_taken() {
    let (clean, store) = memory_with(&[1], 2);
    let directory = store.list().unwrap()[0].to_string();
    let body = body(&clean, &directory);
    let before = peak_memory_kib();
    let first = "\"shape\":[7],\"start\":0,\"length\":4";
    assert!(body.contains(first));
    for (from, to) in [
        (first, "\"shape\":[9223372036854775807],\"start\":0,\"length\":9223372036854775807"),
        (first, "\"shape\":[1099511627776],\"start\":0,\"length\":1099511627776"),
        (first, "\"shape\":[4294967296,4294967296],\"start\":0,\"length\":4"),
        (first, "\"shape\":[1099511627776],\"start\":1099511627770,\"length\":4"),
        ("\"offset\":", "\"offset\":18446744073709551"),
    ] {
        let disk = clean.copy();
        let name = with_manifest(&disk, &directory, &body.replacen(from, to, 1));
        assert!(!use_it(&Store::on(Arc::new(disk)), &name), "{to}");
    }
    // Generic JSON takes fifty times its text.
    let disk = clean.copy();
    let nest = format!("{{\"state\":[{}0]}}", "0,".repeat(3 << 20));
    let bomb = body.replacen("\"state\":{", &format!("\"state\":{{\"x\":{nest},"), 1);
    let name = with_manifest(&disk, &directory, &bomb);
    let error = Store::on(Arc::new(disk)).checkpoint(&name).unwrap_err().to_string();
    assert!(error.contains("state has") && error.contains("are read"), "{error}");
    assert!(peak_memory_kib() < before + MEMORY_KIB, "{} KiB, before {before}", peak_memory_kib());
}

/// The claims of tensor-parallel ranks: which columns of the 8 rows of `embed.weight` each of the two has.
#[test]
fn columns_that_overlap_leave_gaps_or_do_not_fit_are_refused_by_the_name_of_the_tensor() {
    let (clean, store) = memory_with_cut(&[1], 2, Cut::Columns);
    let directory = store.list().unwrap()[0].to_string();
    let body = body(&clean, &directory);
    assert!(use_it(&store, &with_manifest(&clean.copy(), &directory, &body)));
    // The last piece of the second rank: 29 rows of columns 4 to 7.
    let last = "\"shape\":[31,8],\"start\":20,\"length\":4,\"runs\":29,\"stride\":8";
    assert_eq!(body.matches(last).count(), 4, "a parameter, its master and two moments");
    for (to, reason) in [
        ("\"start\":19,\"length\":4,\"runs\":29,\"stride\":8", "the pieces overlap at element 19 of 248"),
        ("\"start\":28,\"length\":4,\"runs\":28,\"stride\":8", "the pieces leave a gap: they hold 244 of 248"),
        ("\"start\":20,\"length\":3,\"runs\":29,\"stride\":8", "the pieces leave a gap: they hold 219 of 248"),
        (
            "\"start\":20,\"length\":4,\"runs\":30,\"stride\":8",
            "30 runs of 4 elements, 8 apart from 20 on, are no piece",
        ),
        ("\"start\":20,\"length\":4,\"runs\":7,\"stride\":31", "one piece has rows of 8 elements, another of 31"),
        (
            "\"start\":20,\"length\":4,\"runs\":29,\"stride\":7",
            "29 runs of 4 elements, 7 apart from 20 on, are no piece",
        ),
        ("\"start\":20,\"length\":4,\"runs\":18446744073709551615,\"stride\":8", "are no piece of 248 elements"),
        ("\"start\":20,\"length\":4,\"runs\":0,\"stride\":8", "are no piece of 248 elements"),
        ("\"start\":20,\"length\":4,\"runs\":29,\"stride\":0", "are no piece of 248 elements"),
    ] {
        let disk = clean.copy();
        let name = with_manifest(&disk, &directory, &body.replacen(last, &format!("\"shape\":[31,8],{to}"), 1));
        let error = Store::on(Arc::new(disk)).checkpoint(&name).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains("embed.weight"), "{to}: {error}");
    }
    let disk = clean.copy();
    let name = with_manifest(&disk, &directory, &body.replacen("\"schema\":2", "\"schema\":1", 1));
    let error = Store::on(Arc::new(disk)).checkpoint(&name).unwrap_err().to_string();
    assert!(error.contains("version 1 of the format has no pieces of several runs"), "{error}");
}

#[test]
fn no_name_in_a_manifest_reaches_outside_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("run");
    let store = Store::create(&root).unwrap();
    let name = State::new(1).save(&store, 1, 2, Cut::Even).unwrap().name;
    let good = root.join(name.to_string());
    std::fs::copy(good.join("rank-0.safetensors"), dir.path().join("outside")).unwrap();
    let text = std::fs::read_to_string(good.join(MANIFEST_FILE)).unwrap();
    let body = &text[..text.rfind(",\"hash\":").unwrap()];
    let absolute = dir.path().join("outside").display().to_string();
    let up = ["../../outside", "../outside", "./rank-0.safetensors", "a/../rank-0.safetensors", "rank-0.safetensors/"];
    let odd =
        ["..", ".", "", "rank-0.safetensors\\u0000", "\\u002e\\u002e/outside", "a\\\\b", "/etc/passwd", MANIFEST_FILE];
    for evil in up.into_iter().chain(odd).chain([absolute.as_str()]) {
        let (name, text) = signed(1, &body.replace("rank-0.safetensors", evil));
        let directory = root.join(name.to_string());
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join(MANIFEST_FILE), text).unwrap();
        std::fs::copy(good.join("rank-1.safetensors"), directory.join("rank-1.safetensors")).unwrap();
        let error = store.checkpoint(&name).unwrap_err().to_string();
        assert!(error.contains("not one plain file name"), "{evil}: {error}");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}

#[test]
fn links_pipes_and_directories_in_the_place_of_files_are_refused_without_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("run");
    let store = Store::create(&root).unwrap();
    let name = State::new(1).save(&store, 1, 2, Cut::Even).unwrap().name;
    let directory = root.join(name.to_string());
    for file in ["rank-0.safetensors", MANIFEST_FILE] {
        let path = directory.join(file);
        let copy = dir.path().join("copy");
        std::fs::rename(&path, &copy).unwrap();
        let refused = |what: &str| {
            let newest = store.newest_verified().unwrap();
            assert!(newest.checkpoint.is_none(), "{file} is {what}");
            let reason = newest.passed_over[0].reason.to_string();
            assert!(reason.contains(file), "{what}: {reason}");
        };
        symlink(&copy, &path).unwrap();
        refused("a link to the very same bytes");
        std::fs::remove_file(&path).unwrap();
        symlink(file, &path).unwrap();
        refused("a link to itself");
        std::fs::remove_file(&path).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
        refused("a pipe");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        refused("a directory");
        std::fs::remove_dir(&path).unwrap();
        symlink("/dev/zero", &path).unwrap();
        refused("a device");
        std::fs::remove_file(&path).unwrap();
        std::fs::rename(&copy, &path).unwrap();
    }
    assert!(store.newest_verified().unwrap().checkpoint.is_some());
    // A whole checkpoint elsewhere, under a link.
    std::fs::rename(&directory, dir.path().join("elsewhere")).unwrap();
    symlink(dir.path().join("elsewhere"), &directory).unwrap();
    let newest = store.newest_verified().unwrap();
    assert!(newest.checkpoint.is_none() && newest.passed_over.len() == 1);
}
