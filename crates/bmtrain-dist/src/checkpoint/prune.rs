//! Removing checkpoints: only as many as are wanted stay, and what interrupted saves left behind goes.
//!
//! A checkpoint is first renamed to `.gone-NAME`, then emptied: at no moment does a half-removed folder bear a checkpoint's
//! name. Methods of [`Store`]; called after a commit and at the start of a run, by one rank.

use super::disk::EntryKind;
use super::fail_point::FailPoint;
use super::fault::{refused, request};
use super::name::{self, CheckpointName};
use super::store::Store;
use super::writer::Committed;
use crate::error::Result;
use std::io::ErrorKind;

/// The fewest checkpoints that are kept: if the newest turns out to be damaged there is another.
pub const KEEP_LEAST: usize = 2;

impl Store {
    /// Keep the newest `keep` checkpoints (at least [`KEEP_LEAST`]) and remove older ones. Returns the names of the removed.
    ///
    /// Counted are those whose manifest and sizes are right. The newest that verifies to the last byte is never removed, nor
    /// anything newer; if none verifies, nothing is. `trusted`, the one that this process has just committed, counts as
    /// verified without being read again and stays, even where `keep` of later steps are there; another checkpoint of the same
    /// step is overtaken by it and goes first.
    ///
    /// # Errors
    /// `keep` too small; what the disk says. A removal that failed half-way is taken up by [`Store::remove_leftovers`].
    pub fn prune(&self, keep: usize, trusted: Option<&Committed>) -> Result<Vec<CheckpointName>> {
        if keep < KEEP_LEAST {
            let fix = format!("keep {KEEP_LEAST} or more: one of them may turn out to be damaged");
            return Err(request(self.place(), format!("cannot keep {keep} checkpoints only"), fix));
        }
        let trusted = trusted.map(|committed| &committed.name);
        let overtaken = |name: &CheckpointName| trusted.is_some_and(|new| new.step() == name.step() && new != name);
        let (mut removed, names): (Vec<_>, Vec<_>) = self.list()?.into_iter().partition(overtaken);
        let mut sound = (0..names.len()).filter(|&at| self.checkpoint(&names[at]).is_ok());
        if let Some(last_kept) = sound.nth(keep - 1)
            && last_kept + 1 < names.len()
            // Read only where something depends on it.
            && let Some(verified) = names.iter().position(|name| trusted == Some(name) || self.verify(name).is_ok())
        {
            let older = names[last_kept.max(verified) + 1..].iter();
            removed.extend(older.filter(|name| trusted != Some(*name)).cloned());
        }
        removed.iter().try_for_each(|name| self.remove(name))?;
        Ok(removed)
    }

    /// Remove every checkpoint of a later step, for a run that goes on from `step` on purpose: its own later checkpoints would
    /// else be mistaken for the newest. Returns the names of the removed.
    ///
    /// # Errors
    /// What the disk says.
    pub fn remove_later_than(&self, step: u64) -> Result<Vec<CheckpointName>> {
        let later: Vec<_> = self.list()?.into_iter().filter(|name| name.step() > step).collect();
        later.iter().try_for_each(|name| self.remove(name))?;
        Ok(later)
    }

    /// Remove what interrupted saves and removals left behind. Called at the start of a run, before its first save, by one
    /// rank; never while another process saves here. Returns the names of the removed folders.
    ///
    /// # Errors
    /// What the disk says.
    pub fn remove_leftovers(&self) -> Result<Vec<String>> {
        let entries = self.disk().list(None).map_err(|e| refused(self.place(), "list this folder", &e))?;
        let ours = |(name, kind): &(String, EntryKind)| *kind == EntryKind::Folder && name::is_leftover(name);
        let folders: Vec<String> = entries.into_iter().filter(ours).map(|(name, _)| name).collect();
        folders.iter().try_for_each(|folder| self.remove_folder(folder))?;
        Ok(folders)
    }

    /// Remove one checkpoint, whatever state it is in.
    ///
    /// # Errors
    /// What the disk says; [`Fault::Missing`](super::Fault::Missing) if there is none of this name.
    pub fn remove(&self, name: &CheckpointName) -> Result<()> {
        let (folder, gone) = (name.to_string(), name.gone());
        self.fail_points().reach(FailPoint::PruneBeforeRename)?;
        // From an interrupted removal of an equal checkpoint: the rename would fail on it.
        self.remove_folder(&gone)?;
        let renamed = self.disk().rename(&folder, &gone);
        renamed.map_err(|e| refused(self.place_of(&folder, ""), "set this folder aside", &e))?;
        self.disk().sync_folder(None).map_err(|e| refused(self.place(), "flush this folder", &e))?;
        self.fail_points().reach(FailPoint::PruneAfterRename)?;
        self.remove_folder(&gone)
    }

    /// Empty and remove a folder that bears no checkpoint's name. One that is not there is removed already.
    pub(super) fn remove_folder(&self, folder: &str) -> Result<()> {
        let mut entries = match self.disk().list(Some(folder)) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            other => other.map_err(|e| refused(self.place_of(folder, ""), "list this folder", &e))?,
        };
        entries.sort();
        for (file, kind) in entries {
            let place = self.place_of(folder, &file);
            if kind == EntryKind::Folder {
                return Err(request(
                    place,
                    "a folder in a checkpoint is none of ours",
                    "move it elsewhere, or remove it",
                ));
            }
            self.disk().remove_file(folder, &file).map_err(|e| refused(place, "remove this file", &e))?;
            self.fail_points().reach(FailPoint::PruneMid)?;
        }
        self.disk().remove_folder(folder).map_err(|e| refused(self.place_of(folder, ""), "remove this folder", &e))
    }
}
