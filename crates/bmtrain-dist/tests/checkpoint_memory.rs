//! Memory for saving and reading: buffers of a fraction of a megabyte, whatever the size of the checkpoint.
//!
//! One test alone in its program, since it counts what the whole program allocates.
#![allow(missing_docs, clippy::unwrap_used)]

use bmtrain_core::DType;
use bmtrain_core::heap::{CountingHeap, counts};
use bmtrain_dist::checkpoint::{
    Checkpoint, Facts, FileRecord, Kind, PieceSpec, SaveJob, SaveOutcome, SaveThread, Store, TensorPiece, Writer,
    reshard,
};
use std::time::Duration;

#[global_allocator]
static HEAP: CountingHeap = CountingHeap;

/// Bytes of the large checkpoint.
const LARGE: u64 = 32 << 20;
/// Bytes that saving and reading may add to the program's peak, in KiB.
const ALLOWED_KIB: u64 = 4 << 10;

fn peak_memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or("VmHWM: 0");
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Six tensors, written a little at a time.
fn write_large(store: &Store) -> Checkpoint {
    let writer = Writer::begin(store, 1, "a").unwrap();
    let specs = (0..6).map(|n| PieceSpec::whole(format!("w{n}"), Kind::Master, DType::F32, &[LARGE / 24])).collect();
    let mut shard = writer.shard(0, specs).unwrap();
    let bytes = shard.specs().iter().filter_map(PieceSpec::bytes).sum::<u64>() as usize;
    let chunk: Vec<u8> = (0..65_521u32).map(|i| ((i * i) >> 3) as u8).collect();
    let mut left = bytes;
    while left > 0 {
        shard.write(&chunk[..left.min(chunk.len())]).unwrap();
        left -= left.min(chunk.len());
    }
    let committed = writer.commit(vec![shard.finish().unwrap()], Facts { world: 1, ..Facts::default() }).unwrap();
    store.verify(&committed.name).unwrap()
}

fn streaming_needs_buffers_only() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(dir.path()).unwrap();
    let before = peak_memory_kib();
    let checkpoint = write_large(&store);
    let digest = checkpoint.digest().unwrap();
    let other = reshard(&checkpoint, &store, 5, "b").unwrap();
    assert_eq!(store.verify(&other.name).unwrap().digest().unwrap(), digest);
    let grown = peak_memory_kib() - before;
    assert!(grown < ALLOWED_KIB, "{grown} KiB more for a checkpoint of {} KiB", LARGE >> 10);
}

fn a_steady_state_of_background_saves_allocates_nothing_large() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(dir.path()).unwrap();
    let mut thread = SaveThread::start("save").unwrap();
    let spec = |n: u64| PieceSpec::whole(format!("w{n}"), Kind::MomentM, DType::F32, &[n + 1, 1 << 16]);
    let mut pieces: Vec<TensorPiece> =
        (0..4).map(|n| TensorPiece { bytes: vec![1; spec(n).bytes().unwrap() as usize], spec: spec(n) }).collect();
    let mut save = |step: u64, thread: &mut SaveThread| {
        let writer = Writer::begin(&store, step, "a").unwrap();
        pieces.iter_mut().for_each(|piece| piece.bytes.fill(step as u8));
        let given = std::mem::take(&mut pieces);
        thread.submit(SaveJob::Shard { writer: writer.clone(), rank: 0, pieces: given }).unwrap();
        let records: Vec<FileRecord> = match thread.wait(Duration::from_secs(60)).unwrap() {
            Some(SaveOutcome::Shard { record, pieces: back }) => {
                pieces = back;
                vec![record.unwrap()]
            }
            other => panic!("{other:?}"),
        };
        let facts = Facts { world: 1, ..Facts::default() };
        thread.submit(SaveJob::Commit { writer, records, facts, keep: Some(2.into()) }).unwrap();
        match thread.wait(Duration::from_secs(60)).unwrap() {
            Some(SaveOutcome::Commit { committed: Ok(_), pruned: Ok(_) }) => {}
            other => panic!("{other:?}"),
        }
    };
    save(1, &mut thread);
    let before = counts().large;
    (2..6).for_each(|step| save(step, &mut thread));
    assert_eq!(counts().large - before, 0, "large allocations in four saves");
    assert_eq!(store.list().unwrap().len(), 2);
}

#[test]
fn memory_for_checkpoints_does_not_grow_with_them() {
    a_steady_state_of_background_saves_allocates_nothing_large();
    streaming_needs_buffers_only();
}
