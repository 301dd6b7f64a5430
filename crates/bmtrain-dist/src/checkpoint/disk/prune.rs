//! Removal of old checkpoints and of the leftovers of interrupted saves.
//!
//! A checkpoint is first renamed to `.gone-NAME`, then emptied: at no moment does a half-removed directory have a
//! checkpoint's name. Methods of [`Store`]; called after a commit and at the start of a run, by one rank.

use super::fail_point::FailPoint;
use super::fault::{printable, refused, request};
use super::filesystem::EntryKind;
use super::name::{self, CheckpointName};
use super::store::Store;
use super::writer::Committed;
use crate::error::Result;
use std::io::ErrorKind;

/// The fewest checkpoints that are kept: if the newest turns out to be damaged there is another.
pub const KEEP_LEAST: usize = 2;

/// Checkpoints that [`Store::prune`] keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// The number of newest checkpoints, at least [`KEEP_LEAST`].
    pub newest: usize,
    /// The checkpoint of this step is kept in addition, if there is one.
    pub step: Option<u64>,
}

impl From<usize> for Keep {
    fn from(newest: usize) -> Self {
        Keep { newest, step: None }
    }
}

impl Store {
    /// Keep the checkpoints that `keep` specifies and remove older ones. Returns the names of the removed.
    ///
    /// Only checkpoints whose manifest and sizes are right are counted. The newest that verifies to the last byte is
    /// never removed, nor anything newer; if none verifies, nothing is. `trusted`, the one that this process has just
    /// committed, counts as verified without being read again and is kept, even if there are `keep` later ones; another
    /// checkpoint of the same step is replaced by it and removed first. [`Store::remove_leftovers`] completes a removal
    /// that failed half-way.
    pub fn prune(&self, keep: impl Into<Keep>, trusted: Option<&Committed>) -> Result<Vec<CheckpointName>> {
        let Keep { newest, step } = keep.into();
        if newest < KEEP_LEAST {
            let fix = format!("keep {KEEP_LEAST} or more: one of them may turn out to be damaged");
            return Err(request(self.place(), format!("cannot keep {newest} checkpoints only"), fix));
        }
        let trusted = trusted.map(|committed| &committed.name);
        let overtaken = |name: &CheckpointName| trusted.is_some_and(|new| new.step() == name.step() && new != name);
        let (mut removed, names): (Vec<_>, Vec<_>) = self.list()?.into_iter().partition(overtaken);
        let mut sound = (0..names.len()).filter(|&at| self.checkpoint(&names[at]).is_ok());
        if let Some(last_kept) = sound.nth(newest - 1)
            && last_kept + 1 < names.len()
            // Read only where something depends on it.
            && let Some(verified) = names.iter().position(|name| trusted == Some(name) || self.verify(name).is_ok())
        {
            let older = names[last_kept.max(verified) + 1..].iter();
            let stays = |name: &CheckpointName| trusted == Some(name) || step == Some(name.step());
            removed.extend(older.filter(|name| !stays(name)).cloned());
        }
        removed.iter().try_for_each(|name| self.remove(name))?;
        Ok(removed)
    }

    /// Remove every checkpoint of a later step, for a run that resumes from `step` on purpose: later checkpoints would
    /// else be mistaken for the newest. Returns the names of the removed.
    pub fn remove_later_than(&self, step: u64) -> Result<Vec<CheckpointName>> {
        let later: Vec<_> = self.list()?.into_iter().filter(|name| name.step() > step).collect();
        later.iter().try_for_each(|name| self.remove(name))?;
        Ok(later)
    }

    /// Remove the leftovers of interrupted saves and removals. Called at the start of a run, before its first save, by
    /// one rank; never while another process saves here. Returns the names of the removed directories. One that
    /// contains anything foreign is kept, with a warning.
    pub fn remove_leftovers(&self) -> Result<Vec<String>> {
        self.remove_leftovers_of(|_| true)
    }

    /// Removes the leftovers of those saves alone whose ids `is_left` knows to be interrupted ones, also while other
    /// processes save here.
    pub fn remove_leftovers_of(&self, is_left: impl Fn(&str) -> bool) -> Result<Vec<String>> {
        let entries = self.disk().list(None).map_err(|e| refused(self.place(), "list this directory", &e))?;
        let ours = |(name, kind): &(String, EntryKind)| {
            *kind == EntryKind::Directory && name::is_leftover(name) && is_left(name::id_of(name).unwrap_or_default())
        };
        let mut removed = Vec::new();
        for (directory, _) in entries.into_iter().filter(ours) {
            if self.remove_directory(&directory)? {
                removed.push(directory);
            }
        }
        Ok(removed)
    }

    /// Remove one checkpoint, whatever state it is in. A directory inside it stays, with a warning, under the name of a
    /// leftover. [`Fault::Missing`](super::Fault::Missing) if there is none of this name.
    pub fn remove(&self, name: &CheckpointName) -> Result<()> {
        let (directory, gone) = (name.to_string(), name.gone());
        self.fail_points().reach(FailPoint::PruneBeforeRename)?;
        // From an interrupted removal of an equal checkpoint: the rename would fail on it. Where it cannot be emptied,
        // the checkpoint is removed under its own name; its manifest goes first, so that what is left is not a
        // checkpoint.
        if !self.remove_directory(&gone)? {
            return self.remove_directory(&directory).map(drop);
        }
        let renamed = self.disk().rename(&directory, &gone);
        renamed.map_err(|e| refused(self.place_of(&directory, ""), "set this directory aside", &e))?;
        self.disk().sync_directory(None).map_err(|e| refused(self.place(), "flush this directory", &e))?;
        self.fail_points().reach(FailPoint::PruneAfterRename)?;
        self.remove_directory(&gone).map(drop)
    }

    /// Empty and remove a directory that is no longer needed, and return whether it is gone. Foreign contents, such as
    /// a directory, are not removed: then the directory is kept too, with a warning.
    pub(super) fn remove_directory(&self, directory: &str) -> Result<bool> {
        let mut entries = match self.disk().list(Some(directory)) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(true),
            other => other.map_err(|e| refused(self.place_of(directory, ""), "list this directory", &e))?,
        };
        entries.sort();
        let mut foreign = None;
        for (file, kind) in entries {
            if kind == EntryKind::Directory {
                foreign = foreign.or(Some(file));
                continue;
            }
            let place = self.place_of(directory, &file);
            self.disk().remove_file(directory, &file).map_err(|e| refused(place, "remove this file", &e))?;
            self.fail_points().reach(FailPoint::PruneMid)?;
        }
        let place = self.place_of(directory, "");
        let reason = match foreign {
            Some(name) => format!("it contains a directory, {}, and no checkpoint has one", printable(&name, 200)),
            None => match self.disk().remove_directory(directory) {
                Ok(()) => return Ok(true),
                Err(e) if e.kind() == ErrorKind::DirectoryNotEmpty => format!("it contains other files: {e}"),
                Err(e) => return Err(refused(place, "remove this directory", &e)),
            },
        };
        tracing::warn!(
            "{place} is left over from a checkpoint and was not removed: {reason}; move it elsewhere or remove it"
        );
        Ok(false)
    }
}
