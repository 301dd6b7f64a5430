//! Fate of every document of the input: one byte each, on the disk.
//!
//! Defines [`Fate`] and [`Fates`]. The counts of a report are the counts of these bytes, so that they agree with what
//! is written however often the work was interrupted.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::Result;
use model_center_data::corpus::spool::{Spool, refused};

/// Fate of a document. The numbers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Fate {
    Kept = 0,
    Site = 1,
    Ending = 2,
    Short = 3,
    Malformed = 4,
    SameUrl = 5,
    Language = 6,
    Length = 7,
    Near = 8,
    Task = 9,
}

impl Fate {
    /// Every fate with its name in reports.
    pub(super) const ALL: [(Fate, &'static str); 10] = [
        (Fate::Kept, "kept"),
        (Fate::Site, "blocked_site"),
        (Fate::Ending, "blocked_ending"),
        (Fate::Short, "short_url"),
        (Fate::Malformed, "malformed_url"),
        (Fate::SameUrl, "duplicate_url"),
        (Fate::Language, "other_language"),
        (Fate::Length, "too_short"),
        (Fate::Near, "near_duplicate"),
        (Fate::Task, "task_text"),
    ];
}

/// Bytes beside the fate: the text was repaired, and the task's n-grams split it.
pub(super) const REPAIRED: u8 = 0x80;
pub(super) const SPLIT: u8 = 0x40;
const FATE: u8 = 0x0F;
const PIECE: usize = 1 << 16;

/// The bytes, being written.
#[derive(Debug)]
pub(super) struct Fates {
    spool: Spool,
    length: u64,
}

impl Fates {
    /// Goes on after `length` documents; `None` if the file has fewer.
    pub(super) fn open(path: PathBuf, length: u64) -> Result<Option<Fates>> {
        let mut spool = Spool::open(path)?;
        Ok(spool.cut(length)?.then_some(Fates { spool, length }))
    }

    pub(super) fn add(&mut self, fate: Fate, marks: u8) -> Result<()> {
        self.length += 1;
        self.spool.write(&[fate as u8 | marks])
    }

    pub(super) fn sync(&mut self) -> Result<u64> {
        self.spool.sync()?;
        Ok(self.length)
    }

    /// Changes the fate of a document, or adds a mark; [`Fates::sync`] must follow the last addition.
    pub(super) fn change(&mut self, number: u64, fate: Fate, marks: u8) -> Result<()> {
        let file = self.spool.file.get_ref();
        let mut byte = [0];
        let changed = file.read_exact_at(&mut byte, number).and_then(|()| {
            byte[0] = (byte[0] & !FATE) | fate as u8 | marks;
            file.write_all_at(&byte, number)
        });
        changed.map_err(|error| refused(&self.spool.path, error))
    }

    pub(super) fn is_kept(&self, number: u64) -> Result<bool> {
        let mut byte = [0];
        let read = self.spool.file.get_ref().read_exact_at(&mut byte, number);
        read.map_err(|error| refused(&self.spool.path, error))?;
        Ok(byte[0] & FATE == Fate::Kept as u8)
    }

    /// Number of documents with each fate, then of repaired and split ones.
    pub(super) fn counts(&self) -> Result<([u64; Fate::ALL.len()], u64, u64)> {
        let (mut counts, mut repaired, mut split, mut at) = ([0; Fate::ALL.len()], 0, 0, 0);
        let mut bytes = vec![0; PIECE];
        while at < self.length {
            let piece = &mut bytes[..(self.length - at).min(PIECE as u64) as usize];
            let read = self.spool.file.get_ref().read_exact_at(piece, at);
            read.map_err(|error| refused(&self.spool.path, error))?;
            for byte in &*piece {
                if let Some(count) = counts.get_mut(usize::from(byte & FATE)) {
                    *count += 1;
                }
                repaired += u64::from(byte & REPAIRED != 0);
                split += u64::from(byte & SPLIT != 0);
            }
            at += piece.len() as u64;
        }
        Ok((counts, repaired, split))
    }
}
