//! Checkpoints saved by some ranks are read by any number of others, range by range.

use crate::checkpoint::sample::{Cut, Random, State, memory_with, memory_with_cut, newest_step};
use bmtrain_core::DType;
use bmtrain_dist::Error;
use bmtrain_dist::checkpoint::simulated::MemoryDisk;
use bmtrain_dist::checkpoint::{ElementRun, Facts, Fault, FileRecord, Kind, MANIFEST_FILE, PieceSpec, Store, Writer};
use std::sync::Arc;

#[test]
fn every_shape_and_number_type_comes_back_from_one_to_four_ranks_and_any_cut() {
    let state = State::new(1);
    let digest = state.digest(5);
    for world in 1..=4 {
        for cut in [Cut::Even, Cut::Ragged(1), Cut::Ragged(2), Cut::LastRank, Cut::Copies, Cut::Columns] {
            let store = Store::on(Arc::new(MemoryDisk::default()));
            let committed = state.save(&store, 5, world, cut).unwrap();
            let checkpoint = store.verify(&committed.name).unwrap();
            state.assert_in(&checkpoint);
            assert_eq!(checkpoint.digest().unwrap(), digest, "{world} ranks, {cut:?}");
            assert_eq!(checkpoint.manifest().files.len(), world);
        }
    }
}

#[test]
fn any_range_is_put_together_from_the_files_that_hold_it() {
    let state = State::new(2);
    let store = Store::on(Arc::new(MemoryDisk::default()));
    let names = [Cut::Ragged(7), Cut::Columns].map(|cut| state.save(&store, 1, 4, cut).unwrap().name);
    let mut random = Random(3);
    for round in 0..100 {
        // Opened anew: the first range decides which part of a piece is read while it is hashed.
        let checkpoint = store.checkpoint(&names[round % 2]).unwrap();
        for _ in 0..20 {
            let tensor = &state.tensors[random.below(state.tensors.len())];
            let (spec, size) = (&tensor.spec, tensor.spec.dtype.size());
            let (a, b) = (random.below(spec.length as usize + 1), random.below(spec.length as usize + 1));
            let (start, end) = (a.min(b), a.max(b));
            let bytes = checkpoint.read_range(&spec.name, &spec.kind, start as u64..end as u64).unwrap();
            assert_eq!(bytes, tensor.bytes[start * size..end * size], "round {round}: {} {start}..{end}", spec.name);
        }
    }
}

#[test]
fn runs_of_a_tensor_go_to_their_places_and_nothing_else_is_touched() {
    let state = State::new(2);
    let store = Store::on(Arc::new(MemoryDisk::default()));
    let names = [Cut::Even, Cut::Columns].map(|cut| state.save(&store, 1, 3, cut).unwrap().name);
    let mut random = Random(5);
    for round in 0..200 {
        let checkpoint = store.checkpoint(&names[round % 2]).unwrap();
        let tensor = &state.tensors[random.below(state.tensors.len())];
        let (spec, size, elements) = (&tensor.spec, tensor.spec.dtype.size(), tensor.spec.length as usize);
        // Cut anywhere, some of the runs left out, the others in another order with gaps between them.
        let mut borders: Vec<usize> = (0..6).map(|_| random.below(elements + 1)).collect();
        borders.sort_unstable();
        let (mut runs, mut at) = (Vec::new(), 0);
        let mut expected = vec![0xee; (elements + 6) * size];
        for pair in borders.windows(2).rev().filter(|_| random.below(3) > 0) {
            let (start, length) = (pair[0], pair[1] - pair[0]);
            runs.push(ElementRun { start: start as u64, length: length as u64, at: at as u64 });
            let source = &tensor.bytes[start * size..(start + length) * size];
            expected[at * size..(at + length) * size].copy_from_slice(source);
            at += length + 1;
        }
        let mut out = vec![0xee; expected.len()];
        checkpoint.read_runs(&spec.name, &spec.kind, &runs, &mut out).unwrap();
        assert!(out == expected, "round {round}: {} {runs:?}", spec.name);
    }
    let checkpoint = store.checkpoint(&names[0]).unwrap();
    let refused = |runs: &[(u64, u64, u64)]| {
        let run = |&(start, length, at)| ElementRun { start, length, at };
        let runs: Vec<_> = runs.iter().map(run).collect();
        checkpoint.read_runs("layer.0.bias", &Kind::Parameter, &runs, &mut [0; 14]).unwrap_err().to_string()
    };
    assert!(refused(&[(5, 3, 0)]).contains("elements 5..8 of 7"));
    assert!(refused(&[(u64::MAX, 2, 0)]).contains("of 7"));
    assert!(refused(&[(0, 4, 4)]).contains("leaves the room for 7 elements"));
    assert!(refused(&[(0, 4, u64::MAX)]).contains("leaves the room"));
    assert!(refused(&[(3, 2, 0), (0, 4, 3)]).contains("share elements"));
}

#[test]
fn checkpoints_of_tensor_parallel_ranks_have_their_own_format_version_and_others_the_first() {
    let version = |cut| {
        let (disk, store) = memory_with_cut(&[1], 2, cut);
        let name = store.list().unwrap()[0].to_string();
        String::from_utf8(disk.get(&name, MANIFEST_FILE).unwrap()).unwrap()[..11].to_owned()
    };
    assert_eq!((version(Cut::Even), version(Cut::Columns)), ("{\"schema\":1".into(), "{\"schema\":2".into()));
}

#[test]
fn a_directory_of_the_operating_system_keeps_checkpoints_with_all_their_files() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("run/checkpoints");
    let store = Store::create(&root).unwrap();
    let state = State::new(3);
    let committed = state.save(&store, 120, 3, Cut::Even).unwrap();
    assert!(committed.name.to_string().starts_with("step-120-"));
    let mut files: Vec<_> =
        std::fs::read_dir(root.join(committed.name.to_string())).unwrap().map(|e| e.unwrap().file_name()).collect();
    files.sort();
    assert_eq!(files, ["manifest.json", "rank-0.safetensors", "rank-1.safetensors", "rank-2.safetensors"]);
    let checkpoint = Store::open(&root).unwrap().newest_verified().unwrap().checkpoint.unwrap();
    state.assert_in(&checkpoint);
    let lines: Vec<String> = store.reports(true).unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(lines.len(), 1);
    assert!(lines[0].contains("every byte verified: 3 files, 18 tensors"), "{}", lines[0]);
    assert!(store.free_bytes().unwrap() > 0);
}

#[test]
fn a_shard_is_an_ordinary_safetensors_file_with_aligned_data() {
    let state = State::new(4);
    let (disk, store) = memory_with(&[], 1);
    let name = state.save(&store, 1, 2, Cut::Even).unwrap().name.to_string();
    let bytes = disk.get(&name, "rank-1.safetensors").unwrap();
    let pieces = state.pieces(1, 2, Cut::Even);
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.len(), pieces.len());
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert!(header.is_multiple_of(8));
    for piece in &pieces {
        let key = format!("{}:{}@{}", piece.spec.kind, piece.spec.name, piece.spec.start);
        let view = file.tensor(&key).unwrap();
        assert_eq!(view.data(), piece.bytes, "{key}");
        assert_eq!(format!("{:?}", view.dtype()).to_lowercase(), piece.spec.dtype.name());
        assert!((view.data().as_ptr() as usize - bytes.as_ptr() as usize).is_multiple_of(piece.spec.dtype.size()));
    }
}

#[test]
fn equal_states_have_equal_names_and_a_second_save_of_one_changes_nothing() {
    let (disk, store) = memory_with(&[7], 2);
    let before = disk.names();
    assert_eq!(State::new(7).save(&store, 7, 2, Cut::Even).unwrap().name, store.list().unwrap()[0]);
    assert_eq!(disk.names(), before);
    // A damaged one of this name is replaced.
    let name = store.list().unwrap()[0].to_string();
    assert!(disk.change(&name, "rank-1.safetensors", |bytes| bytes[200] ^= 1));
    assert_eq!(newest_step(&store), None);
    State::new(7).save(&store, 7, 2, Cut::Even).unwrap();
    assert_eq!(newest_step(&store), Some(7));
    assert_eq!(disk.names(), before);
}

#[test]
fn the_format_and_the_digest_are_frozen() {
    let (_, store) = memory_with(&[3], 2);
    let checkpoint = store.newest_verified().unwrap().checkpoint.unwrap();
    assert_eq!(checkpoint.name().to_string(), "step-3-caa7facf");
    let digest = "8499058aca3c5a85fa012bfe2926260bb01f03ec1576dab227791fe144497cb3";
    assert_eq!(checkpoint.digest().unwrap().to_string(), digest);
}

#[test]
fn what_is_not_there_is_said_and_no_memory_is_taken_for_it() {
    let (_, store) = memory_with(&[1], 2);
    let checkpoint = store.newest_verified().unwrap().checkpoint.unwrap();
    let bias = "layer.0.bias";
    for (name, kind, range) in [
        ("layer.0.bia", Kind::Parameter, 0..1),
        (bias, Kind::Other("x".into()), 0..1),
        (bias, Kind::Parameter, 0..8),
        (bias, Kind::Parameter, u64::MAX - 1..u64::MAX),
        ("scalar", Kind::Parameter, 1..2),
    ] {
        let error = checkpoint.read_range(name, &kind, range).unwrap_err();
        assert!(matches!(error, Error::Checkpoint { fault: Fault::Missing, .. }), "{error}");
    }
    #[allow(clippy::reversed_empty_ranges)]
    let backwards = checkpoint.read_range(bias, &Kind::Parameter, 3..1);
    assert!(backwards.is_err());
    let short = checkpoint.read_range_into(bias, &Kind::Parameter, 0..7, &mut [0; 13]).unwrap_err();
    assert!(short.to_string().contains("14 bytes"), "{short}");
    let absent = store.checkpoint(&"step-9-01234567".parse().unwrap()).unwrap_err();
    assert!(matches!(absent, Error::Checkpoint { fault: Fault::Missing, .. }), "{absent}");
    assert!(Store::open(std::path::Path::new("/no/such/directory")).is_err());
}

#[test]
fn an_incomplete_or_contradictory_save_is_not_committed() {
    let (disk, store) = memory_with(&[1], 2);
    let before = disk.names();
    let state = State::new(2);
    let shard = |writer: &Writer, rank| writer.write_shard(rank, &state.pieces(rank, 2, Cut::Even)).unwrap();
    let commit = |records: &dyn Fn(&Writer) -> Vec<FileRecord>, world: u64| {
        let writer = Writer::begin(&store, 2, "a").unwrap();
        let records = records(&writer);
        let error = writer.commit(records, Facts { world, ..state.facts.clone() }).unwrap_err();
        assert_eq!(disk.names(), before, "{error}");
        error.to_string()
    };
    assert!(commit(&|w| vec![shard(w, 0)], 2).contains("1 files from 2 ranks"));
    assert!(commit(&|w| vec![shard(w, 0)], 1).contains("the pieces leave a gap at element"));
    assert!(commit(&|w| vec![shard(w, 1)], 1).contains("leave a gap"));
    let twice = commit(
        &|w| {
            let one = shard(w, 0);
            vec![one.clone(), one]
        },
        2,
    );
    assert!(twice.contains("listed twice"), "{twice}");
    let other = State::new(3).pieces(1, 2, Cut::Even);
    let differ = commit(&|w| vec![shard(w, 0), shard(w, 1), w.write_shard(2, &other).unwrap()], 3);
    assert!(differ.contains("differ"), "{differ}");
    // A rank on another host wrote to its own disk.
    let elsewhere = memory_with(&[], 1).1;
    let lost = commit(&|w| vec![shard(w, 0), shard(&Writer::begin(&elsewhere, 2, "a").unwrap(), 1)], 2);
    assert!(lost.contains("shared disk"), "{lost}");
    let unreported = commit(
        &|w| {
            shard(w, 1);
            vec![]
        },
        0,
    );
    assert!(unreported.contains("no rank reported this file"), "{unreported}");
}

#[test]
fn pieces_that_do_not_fit_are_refused_before_anything_is_committed() {
    let (_, store) = memory_with(&[], 1);
    let writer = Writer::begin(&store, 1, "a").unwrap();
    let spec = PieceSpec::whole("w", Kind::Parameter, DType::F32, &[2]);
    let piece = |spec: &PieceSpec, bytes: usize| bmtrain_dist::checkpoint::TensorPiece {
        spec: spec.clone(),
        bytes: vec![0u8; bytes],
    };
    assert!(writer.write_shard(0, &[piece(&spec, 7)]).unwrap_err().to_string().contains("7 bytes for 2 x f32"));
    assert!(
        writer.write_shard(0, &[piece(&spec, 8), piece(&spec, 8)]).unwrap_err().to_string().contains("given twice")
    );
    let beyond = PieceSpec { start: 1, ..spec.clone() };
    assert!(writer.write_shard(0, &[piece(&beyond, 8)]).unwrap_err().to_string().contains("no piece of 2"));
    let mut short = writer.shard(1, vec![spec.clone()]).unwrap();
    short.write(&[0; 7]).unwrap();
    assert!(short.finish().unwrap_err().to_string().contains("fewer bytes"));
    let mut long = writer.shard(2, vec![spec]).unwrap();
    assert!(long.write(&[0; 9]).unwrap_err().to_string().contains("more bytes"));
    for id in ["", "a/b", "..", "a b", &"x".repeat(65)] {
        assert!(Writer::begin(&store, 1, id).is_err(), "{id:?}");
    }
}
