//! Kernels on an emulated device that is watched: accesses of threads that nothing orders, and accesses outside of the
//! views that a launch names.
//!
//! Of each kernel the cheapest rows of the conformance table are run that have several warps or several blocks at work.
//! BMTRAIN_SANITIZE_ALL=1 runs every row that launches a kernel; BMTRAIN_ROWS narrows both to names that contain its
//! value. The sanitizers' libraries come with g++; without them these tests report that they were skipped.
#![cfg(feature = "cuda")]

use bmtrain_core::conformance::{self, Case};
use bmtrain_core::cuda::{CudaBackend, CudaOptions};
use bmtrain_core::kernel::{NormForward, NormKind};
use bmtrain_core::{DType, Device, Error, Segment, Tensor};
use cuda_emulator::declared::Declared;
use cuda_emulator::launches::{Launched, launched_by};
use cuda_emulator::with_stems;
use cuda_emulator::{Checker, Driver, in_child, with_driver};
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

/// Names the chosen rows in the second child, a line each: name, tab, dtype.
const CHOSEN: &str = "BMTRAIN_SANITIZED_ROWS";

/// Beginning of a line of the first child that names a chosen row.
const MARK: &str = "chosen: ";

fn emulated() -> Device {
    let options = CudaOptions { compiled: Some(cuda_emulator::compiled_kernels()), ..CudaOptions::default() };
    let backend = CudaBackend::open(0, &options).unwrap();
    Device::new(Arc::new(Declared::new(Arc::new(backend))))
}

/// Choose rows on a device that runs nothing, then run them on one that is watched.
fn rows_are_clean(test: &str, checker: Checker, stems: &[&str]) {
    if env::var_os(CHOSEN).is_some() {
        with_driver(test, Driver::Checked(checker), &[], run_chosen);
        return;
    }
    let idle = [("EMULATED_CUDA_IDLE", "1")];
    let Some(child) = in_child(test, Driver::Emulated, &idle, || choose(stems)) else { return };
    assert!(child.passed, "in the child that chooses rows:\n{}", child.text);
    let rows: Vec<&str> = child.text.lines().filter_map(|line| line.trim().strip_prefix(MARK)).collect();
    assert!(!rows.is_empty(), "no row of {stems:?} launches a kernel:\n{}", child.text);
    cuda_emulator::prepare(Driver::Checked(checker));
    let start = Instant::now();
    with_driver(test, Driver::Checked(checker), &[(CHOSEN, &rows.join("\n"))], || {});
    let line = format!("\n{test}: {} rows in {:.1} s\n", rows.len(), start.elapsed().as_secs_f64());
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// A kernel, and whether a launch of it had several blocks and several warps.
type Kind = (String, bool, bool);

/// Rows that are run besides: sums of norms over several clusters of blocks.
const BESIDES: [&str; 1] = ["norm/layer/bias/70x8/large"];

/// Print the cheapest row for each kind of launch.
fn choose(stems: &[&str]) {
    let device = emulated();
    let everything = env::var_os("BMTRAIN_SANITIZE_ALL").is_some_and(|value| value == "1");
    let wanted = env::var("BMTRAIN_ROWS").unwrap_or_default();
    let mut cheapest: BTreeMap<Kind, (u64, String)> = BTreeMap::new();
    let mut all = BTreeSet::new();
    for case in conformance::cases() {
        if !stems.contains(&case.stem()) || !case.name.contains(&wanted) {
            continue;
        }
        for &dtype in &case.dtypes {
            let launches = launches_of(&device, &case, dtype);
            let cost: u64 = launches.iter().map(|launch| launch.blocks * u64::from(launch.threads)).sum();
            let row = format!("{}\t{dtype}", case.name);
            for Launched { kernel, blocks, threads } in launches {
                if blocks * u64::from(threads) > 1 {
                    all.insert(row.clone());
                    let best = cheapest.entry((kernel, blocks > 1, threads > 32)).or_insert((u64::MAX, String::new()));
                    *best = best.clone().min((cost, row.clone()));
                }
            }
        }
    }
    let besides = |row: &&String| BESIDES.iter().any(|name| row.starts_with(&format!("{name}\t")));
    let besides: Vec<String> = all.iter().filter(besides).cloned().collect();
    let chosen = cheapest.into_values().map(|(_, row)| row).chain(besides);
    let rows = if everything { all } else { chosen.collect() };
    for row in rows {
        println!("{MARK}{row}");
    }
}

/// Launches of a row. Results mean nothing here, and neither does a kernel that the backend lacks.
fn launches_of(device: &Device, case: &Case, dtype: DType) -> Vec<Launched> {
    launched_by(|| conformance::compare(device, device, case, dtype)).1
}

/// The body of the second child. A report ends the process; the row it belongs to is the last that was named.
fn run_chosen() {
    let chosen = env::var(CHOSEN).unwrap();
    let (reference, tested) = (Device::cpu(1).unwrap(), emulated());
    let cases = conformance::cases();
    for (name, dtype) in chosen.lines().map(|line| line.split_once('\t').unwrap()) {
        eprintln!("row {name} {dtype}");
        let case = cases.iter().find(|case| case.name == name).unwrap();
        let dtype = *case.dtypes.iter().find(|known| known.to_string() == dtype).unwrap();
        match conformance::compare(&reference, &tested, case, dtype) {
            Ok(check) => assert!(check.passed(), "{name} {dtype}: {check:?}"),
            // A row is chosen for one of its kernels; missing others are reported by the conformance test.
            Err(Error::Unsupported { .. }) => {}
            Err(error) => panic!("{name} {dtype}: {error}"),
        }
    }
}

macro_rules! stems {
    ($($name:ident: [$($stem:literal),+];)*) => {
        $(mod $name {
            use super::*;

            #[test]
            fn no_access_races() {
                rows_are_clean(concat!(stringify!($name), "::no_access_races"), Checker::Races, &[$($stem),+]);
            }

            #[test]
            fn no_access_is_outside() {
                rows_are_clean(concat!(stringify!($name), "::no_access_is_outside"), Checker::Addresses, &[$($stem),+]);
            }
        })*
    };
}

with_stems!(stems);

/// Layer norm of four rows, of four warps each.
fn launch_planted() {
    const ROWS: usize = 4;
    const COLUMNS: usize = 1024;
    let device = emulated();
    let full = |len: usize| Tensor::full_in(&device, [len], DType::F32, 2.0, Segment::Data).unwrap();
    let (x, weight) = (full(ROWS * COLUMNS), full(COLUMNS));
    let empty = |len: usize| Tensor::empty_in(&device, [len], DType::F32, Segment::Data).unwrap();
    let (mut y, mut mean, mut rstd) = (empty(ROWS * COLUMNS), empty(ROWS), empty(ROWS));
    let kernel = NormForward {
        weight_offset: 0.0,
        kind: NormKind::Layer,
        rows: ROWS,
        columns: COLUMNS,
        epsilon: 1e-5,
        x: x.view().unwrap(),
        dropout: None,
        residual: None,
        sum: None,
        weight: weight.view().unwrap(),
        bias: None,
        y: y.view_mut().unwrap(),
        mean: Some(mean.view_mut().unwrap()),
        rstd: rstd.view_mut().unwrap(),
    };
    device.launch(kernel).unwrap();
    device.sync().unwrap();
}

/// Each mistake of planted.cu, with what its report must contain; nothing for those without a mistake.
fn mistakes_are_found(test: &str, checker: Checker, mistakes: &[(&str, &[&str])]) {
    for (mistake, words) in mistakes {
        let settings = [("EMULATED_PLANTED", *mistake)];
        let Some(child) = in_child(test, Driver::Planted(checker), &settings, launch_planted) else { return };
        if words.is_empty() {
            assert!(child.passed, "{mistake}: reported\n{}", child.text);
        } else {
            assert!(!child.passed, "{mistake}: not found\n{}", child.text);
            assert!(words.iter().all(|word| child.text.contains(word)), "{mistake}: lacks {:?}\n{}", words, child.text);
        }
    }
}

#[test]
fn planted_races_are_found_and_right_orders_are_not() {
    let race: &[&str] = &["data race", "planted.cu"];
    let mistakes: [(&str, &[&str]); 9] = [
        ("", &[]),
        ("a missing barrier", race),
        ("no mistake with a barrier", &[]),
        ("a shuffle in place of an order", race),
        ("no mistake with an order of lanes", &[]),
        ("blocks that write the same", race),
        ("blocks that write the same after a barrier", race),
        ("a missing fence", race),
        ("no mistake with a fence", &[]),
    ];
    mistakes_are_found("planted_races_are_found_and_right_orders_are_not", Checker::Races, &mistakes);
}

#[test]
fn planted_accesses_outside_are_found() {
    let mistakes: [(&str, &[&str]); 10] = [
        ("", &[]),
        ("no mistake with a barrier", &[]),
        ("a write beyond a view", &["AddressSanitizer", "WRITE", "planted.cu"]),
        ("a write beyond a view, in its allocation", &["use-after-poison", "WRITE", "planted.cu"]),
        ("a write before a view", &["AddressSanitizer", "WRITE", "planted.cu"]),
        ("a read beyond a view", &["AddressSanitizer", "READ", "planted.cu"]),
        ("a read beyond shared memory", &["heap-buffer-overflow", "READ", "planted.cu"]),
        ("an index beyond an array", &["out of bounds", "planted.cu"]),
        ("a misaligned pack", &["misaligned address", "numbers.cuh"]),
        ("a write to what is read", &["declared as only read"]),
    ];
    mistakes_are_found("planted_accesses_outside_are_found", Checker::Addresses, &mistakes);
}
