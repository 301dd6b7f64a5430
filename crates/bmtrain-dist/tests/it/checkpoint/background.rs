//! Saving in the background: one job at a time, buffers are returned, waits have a deadline.

use crate::checkpoint::sample::{Cut, State, memory_with, newest_step};
use bmtrain_dist::checkpoint::disk::{Disk, EntryKind, ReadFile, WriteFile};
use bmtrain_dist::checkpoint::simulated::{FailingDisk, Failure, MemoryDisk};
use bmtrain_dist::checkpoint::{
    Facts, Fault, FileRecord, SaveJob, SaveOutcome, SaveThread, Store, TensorPiece, Writer,
};
use bmtrain_dist::{Error, Result};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

fn shard(
    thread: &mut SaveThread,
    writer: &Writer,
    rank: usize,
    pieces: Vec<TensorPiece>,
) -> (Result<FileRecord>, Vec<TensorPiece>) {
    thread.submit(SaveJob::Shard { writer: writer.clone(), rank, pieces }).unwrap();
    match thread.wait(LONG).unwrap() {
        Some(SaveOutcome::Shard { record, pieces }) => (record, pieces),
        other => panic!("{other:?}"),
    }
}

#[test]
fn two_ranks_save_in_the_background_and_get_their_buffers_back() {
    let (_, store) = memory_with(&[], 1);
    let mut threads = [SaveThread::start("save-0").unwrap(), SaveThread::start("save-1").unwrap()];
    let mut buffers: Vec<Vec<TensorPiece>> = (0..2).map(|rank| State::new(1).pieces(rank, 2, Cut::Even)).collect();
    let places = |pieces: &[TensorPiece]| pieces.iter().map(|piece| piece.bytes.as_ptr()).collect::<Vec<_>>();
    let first: Vec<_> = buffers.iter().map(|pieces| places(pieces)).collect();
    for step in 1..=4 {
        let state = State::new(step);
        let writer = Writer::begin(&store, step, "a").unwrap();
        let mut records = Vec::new();
        for (rank, thread) in threads.iter_mut().enumerate() {
            let mut pieces = std::mem::take(&mut buffers[rank]);
            for (piece, now) in pieces.iter_mut().zip(state.pieces(rank, 2, Cut::Even)) {
                piece.bytes.copy_from_slice(&now.bytes);
            }
            let (record, pieces) = shard(thread, &writer, rank, pieces);
            assert_eq!(places(&pieces), first[rank]);
            buffers[rank] = pieces;
            // As it is carried from rank to rank.
            records.push(FileRecord::from_json(&record.unwrap().to_json().unwrap()).unwrap());
        }
        let facts = Facts { world: 2, ..state.facts };
        threads[0].submit(SaveJob::Commit { writer, records, facts, keep: Some(2.into()) }).unwrap();
        let Some(SaveOutcome::Commit { committed, pruned }) = threads[0].wait(LONG).unwrap() else { panic!() };
        assert_eq!(committed.unwrap().name, store.list().unwrap()[0]);
        assert_eq!(pruned.unwrap().len(), usize::from(step > 2));
        assert_eq!(newest_step(&store), Some(step));
    }
    assert_eq!(store.list().unwrap().len(), 2);
}

#[test]
fn a_failed_save_comes_back_as_an_error_with_the_buffers() {
    let disk = FailingDisk::new(Arc::new(MemoryDisk::default()), Failure::Full, 3);
    let store = Store::on(Arc::new(disk));
    let mut thread = SaveThread::start("save").unwrap();
    let writer = Writer::begin(&store, 1, "a").unwrap();
    let pieces = State::new(1).pieces(0, 1, Cut::Even);
    let (record, back) = shard(&mut thread, &writer, 0, pieces.clone());
    assert!(matches!(record, Err(Error::Checkpoint { fault: Fault::Disk, .. })));
    assert_eq!(back, pieces);
    thread.submit(SaveJob::Commit { writer, records: vec![], facts: Facts::default(), keep: None }).unwrap();
    let Some(SaveOutcome::Commit { committed, pruned }) = thread.wait(LONG).unwrap() else { panic!() };
    assert!(committed.is_err() && pruned.unwrap().is_empty());
}

/// A disk on which nothing is made while the gate is held, and one directory may be refused to readers.
#[derive(Debug, Default)]
pub struct Gated {
    pub disk: MemoryDisk,
    pub gate: Arc<Mutex<()>>,
    /// The directory, and the operating system's number of the reason.
    pub refused: Option<(String, i32)>,
}

impl Disk for Gated {
    fn place(&self) -> String {
        self.disk.place()
    }
    fn list(&self, directory: Option<&str>) -> io::Result<Vec<(String, EntryKind)>> {
        self.disk.list(directory)
    }
    fn create_directory(&self, directory: &str) -> io::Result<()> {
        self.disk.create_directory(directory)
    }
    fn create(&self, directory: &str, file: &str) -> io::Result<Box<dyn WriteFile>> {
        drop(self.gate.lock());
        self.disk.create(directory, file)
    }
    fn open(&self, directory: &str, file: &str) -> io::Result<Box<dyn ReadFile>> {
        match &self.refused {
            Some((refused, reason)) if refused == directory => Err(io::Error::from_raw_os_error(*reason)),
            _ => self.disk.open(directory, file),
        }
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn sync_directory(&self, directory: Option<&str>) -> io::Result<()> {
        self.disk.sync_directory(directory)
    }
    fn remove_file(&self, directory: &str, file: &str) -> io::Result<()> {
        self.disk.remove_file(directory, file)
    }
    fn remove_directory(&self, directory: &str) -> io::Result<()> {
        self.disk.remove_directory(directory)
    }
    fn free_bytes(&self) -> io::Result<u64> {
        self.disk.free_bytes()
    }
}

#[test]
fn a_slow_disk_delays_neither_polling_nor_waiting_and_a_second_save_is_refused() {
    let gate = Arc::new(Mutex::new(()));
    let store = Store::on(Arc::new(Gated { gate: gate.clone(), ..Gated::default() }));
    let mut thread = SaveThread::start("save").unwrap();
    assert!(thread.poll().unwrap().is_none() && thread.wait(LONG).unwrap().is_none());
    let writer = Writer::begin(&store, 1, "a").unwrap();
    let job = |rank| SaveJob::Shard { writer: writer.clone(), rank, pieces: State::new(1).pieces(0, 1, Cut::Even) };
    let held = gate.lock().unwrap();
    thread.submit(job(0)).unwrap();
    assert!(thread.is_busy() && thread.poll().unwrap().is_none());
    assert!(thread.submit(job(1)).unwrap_err().to_string().contains("still in flight"));
    let late = thread.wait(Duration::from_millis(5)).unwrap_err();
    assert!(matches!(late, Error::Checkpoint { fault: Fault::Deadline, .. }), "{late}");
    drop(held);
    assert!(matches!(thread.wait(LONG).unwrap(), Some(SaveOutcome::Shard { record: Ok(_), .. })));
    assert!(!thread.is_busy());
}

#[test]
fn a_commit_in_flight_has_landed_when_the_thread_is_dropped() {
    let (disk, gate) = (MemoryDisk::default(), Arc::new(Mutex::new(())));
    let gated = Gated { disk: disk.clone(), gate: gate.clone(), refused: None };
    let (store, state) = (Store::on(Arc::new(gated)), State::new(1));
    let writer = Writer::begin(&store, 1, "a").unwrap();
    let records = vec![writer.write_shard(0, &state.pieces(0, 1, Cut::Even)).unwrap()];
    let facts = Facts { world: 1, ..state.facts };
    let (held, is_held) = std::sync::mpsc::channel();
    let keeper = std::thread::spawn(move || {
        let _held = gate.lock().unwrap();
        held.send(()).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    });
    is_held.recv().unwrap();
    let mut thread = SaveThread::start("save").unwrap();
    thread.submit(SaveJob::Commit { writer, records, facts, keep: None }).unwrap();
    drop(thread);
    assert_eq!(newest_step(&Store::on(Arc::new(disk))), Some(1));
    keeper.join().unwrap();
}
