//! One model in the cache layout of Hugging Face's libraries: `refs` name commits, `snapshots` hold a commit's files as
//! links into `blobs`.
//!
//! Defines [`CachedModel`]; called by [`Pretrained`](super::Pretrained) and by the program that fetches models.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::name::{RepoId, Revision, is_commit};
use crate::{Error, Result};
use model_center_base::file::{printable, read_text, resolve_inside, unreadable};

/// A reference is a commit and perhaps a newline.
const MAX_REF_BYTES: u64 = 256;

/// A model's directory in a cache, which need not be there.
#[derive(Debug, Clone)]
pub struct CachedModel {
    root: PathBuf,
}

/// A cache's files of a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cached {
    /// Nothing of the model.
    NoModel,
    /// The model, and no reference of this name or no snapshot of this commit.
    NoRevision,
    /// The directory of the snapshot, which may lack files.
    Snapshot(PathBuf),
}

impl CachedModel {
    /// The directory of a model in the cache `hub`.
    pub fn new(hub: &Path, id: &RepoId) -> Self {
        Self { root: hub.join(id.directory_name()) }
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The file that names the commit of a branch or tag.
    pub fn reference(&self, revision: &Revision) -> PathBuf {
        self.root.join("refs").join(revision.as_str())
    }

    /// The directory of a commit's files.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.root.join("snapshots").join(commit)
    }

    /// The directory of contents, each under the server's name for it.
    pub fn blobs(&self) -> PathBuf {
        self.root.join("blobs")
    }

    /// The files of a revision.
    ///
    /// # Errors
    /// [`Error::Model`] if a reference holds no commit, or if reference or snapshot are links out of the model's
    /// directory; [`Error::File`] for what may not be read.
    pub fn find(&self, revision: &Revision) -> Result<Cached> {
        match fs::metadata(&self.root) {
            Ok(kind) if kind.is_dir() => {}
            Err(e) if e.kind() == ErrorKind::PermissionDenied => return Err(unreadable(&self.root, e)),
            _ => return Ok(Cached::NoModel),
        }
        let commit = match revision.is_commit() {
            true => revision.as_str().to_owned(),
            false => match self.commit_of(revision)? {
                Some(commit) => commit,
                None => return Ok(Cached::NoRevision),
            },
        };
        let snapshot = self.snapshot(&commit);
        let real = match fs::canonicalize(&snapshot) {
            Ok(real) => real,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Cached::NoRevision),
            Err(e) => return Err(unreadable(&snapshot, e)),
        };
        let root = fs::canonicalize(&self.root).map_err(|e| unreadable(&self.root, e))?;
        if real != root.join("snapshots").join(&commit) || !real.is_dir() {
            let reason = format!("the snapshot is not a directory of the model's own cache, but {}", real.display());
            return Err(Error::model(snapshot.display().to_string(), reason, "remove it, and fetch the model again"));
        }
        Ok(Cached::Snapshot(snapshot))
    }

    fn commit_of(&self, revision: &Revision) -> Result<Option<String>> {
        let path = self.reference(revision);
        match fs::symlink_metadata(&path) {
            Ok(kind) if kind.is_dir() => return Ok(None),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
            Err(e) => return Err(unreadable(&path, e)),
            Ok(_) => {}
        }
        let text = read_text(&resolve_inside(&self.root, &format!("refs/{revision}"))?, MAX_REF_BYTES)?;
        let commit = text.trim_ascii();
        if !is_commit(commit) {
            let reason = format!("the reference holds \"{}\", which is not a commit", printable(commit, 60));
            return Err(Error::model(path.display().to_string(), reason, "remove the file, and fetch the model again"));
        }
        Ok(Some(commit.to_owned()))
    }
}
