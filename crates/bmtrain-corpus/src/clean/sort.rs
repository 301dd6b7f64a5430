//! Sorting of more records than fit into memory.
//!
//! Defines [`ExternalSort`], which takes records of whole numbers and returns them in order: sorted runs go to a file,
//! and are merged when all are there. Called by [`super::near`] and [`super::urls`].

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::PathBuf;

use crate::Result;
use model_center_data::corpus::positioned::PositionedFile;
use model_center_data::corpus::spool::Spool;

/// Bytes of a run's piece that is read at once.
const PIECE: usize = 1 << 16;

/// Collects records of `N` numbers.
#[derive(Debug)]
pub(super) struct ExternalSort<const N: usize> {
    records: Vec<[u64; N]>,
    most: usize,
    path: PathBuf,
    file: Option<Spool>,
    /// End of each run in the file, in records.
    ends: Vec<u64>,
}

impl<const N: usize> ExternalSort<N> {
    /// With `memory` bytes for records; what is more goes to the file `path`, which is removed at the end.
    pub(super) fn new(path: PathBuf, memory: usize) -> Self {
        let most = (memory / (8 * N)).max(2);
        ExternalSort { records: Vec::new(), most, path, file: None, ends: Vec::new() }
    }

    pub(super) fn push(&mut self, record: [u64; N]) -> Result<()> {
        if self.records.len() == self.most {
            self.spill()?;
        }
        self.records.push(record);
        Ok(())
    }

    fn spill(&mut self) -> Result<()> {
        if self.records.is_empty() {
            return Ok(());
        }
        self.records.sort_unstable();
        let file = match &mut self.file {
            Some(file) => file,
            empty => {
                let mut file = Spool::open(self.path.clone())?;
                file.cut(0)?;
                empty.insert(file)
            }
        };
        for record in &self.records {
            for number in record {
                file.write(&number.to_le_bytes())?;
            }
        }
        let before = self.ends.last().copied().unwrap_or(0);
        self.ends.push(before + self.records.len() as u64);
        self.records.clear();
        Ok(())
    }

    /// The records in order.
    pub(super) fn finish(mut self) -> Result<Sorted<N>> {
        if self.file.is_none() {
            self.records.sort_unstable();
            return Ok(Sorted { memory: self.records.into_iter(), merge: None });
        }
        self.spill()?;
        if let Some(file) = &mut self.file {
            file.sync()?;
        }
        let file = PositionedFile::open(&self.path)?;
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let runs = starts.zip(&self.ends).map(|(next, end)| Run { next, end: *end, piece: Vec::new() }).collect();
        let mut merge = Merge { file, runs, heap: BinaryHeap::new() };
        for run in 0..merge.runs.len() {
            merge.refill(run)?;
        }
        Ok(Sorted { memory: Vec::new().into_iter(), merge: Some(merge) })
    }
}

/// Records in order.
#[derive(Debug)]
pub(super) struct Sorted<const N: usize> {
    memory: std::vec::IntoIter<[u64; N]>,
    merge: Option<Merge<N>>,
}

#[derive(Debug)]
struct Merge<const N: usize> {
    file: PositionedFile,
    runs: Vec<Run<N>>,
    /// The first record of every run that has one.
    heap: BinaryHeap<Reverse<([u64; N], usize)>>,
}

#[derive(Debug)]
struct Run<const N: usize> {
    next: u64,
    end: u64,
    /// Records that were read, the next one last.
    piece: Vec<[u64; N]>,
}

impl<const N: usize> Sorted<N> {
    pub(super) fn advance(&mut self) -> Result<Option<[u64; N]>> {
        let Some(merge) = &mut self.merge else { return Ok(self.memory.next()) };
        let Some(Reverse((record, run))) = merge.heap.pop() else { return Ok(None) };
        merge.refill(run)?;
        Ok(Some(record))
    }
}

impl<const N: usize> Merge<N> {
    /// Puts the next record of a run on the heap.
    fn refill(&mut self, run: usize) -> Result<()> {
        let Run { next, end, piece } = &mut self.runs[run];
        if piece.is_empty() && next < end {
            let count = (*end - *next).min((PIECE / (8 * N)).max(1) as u64);
            let mut bytes = vec![0; count as usize * 8 * N];
            self.file.read_at(*next * 8 * N as u64, &mut bytes)?;
            *next += count;
            let record = |bytes: &[u8]| {
                let mut numbers = bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
                [0; N].map(|_: u64| numbers.next().unwrap_or(0))
            };
            piece.extend(bytes.chunks_exact(8 * N).map(record).rev());
        }
        if let Some(record) = piece.pop() {
            self.heap.push(Reverse((record, run)));
        }
        Ok(())
    }
}

impl<const N: usize> Drop for Merge<N> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.file.path());
    }
}

#[cfg(test)]
mod tests {
    use super::super::minhash::mix;
    use super::*;

    #[test]
    fn records_come_in_order_from_memory_and_from_the_disk() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("runs");
        let records: Vec<[u64; 2]> = (0..20_000).map(|n| [mix(n) % 977, n]).collect();
        let mut expected = records.clone();
        expected.sort_unstable();
        for memory in [0, 40_000, 1 << 30] {
            let mut sort = ExternalSort::new(path.clone(), memory.max(1600));
            records.iter().try_for_each(|record| sort.push(*record)).unwrap();
            let mut sorted = sort.finish().unwrap();
            let mut found = Vec::new();
            while let Some(record) = sorted.advance().unwrap() {
                found.push(record);
            }
            assert!(found == expected, "{memory}");
            drop(sorted);
            assert!(!path.exists());
        }
    }
}
