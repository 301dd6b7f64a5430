//! Advice about a name that leads to no model: correct a path, or fetch a model of the hub.
//!
//! Defines [`Meaning`], [`for_path`], [`to_fetch`] and [`near`]; called by [`Pretrained`](super::Pretrained). The
//! advice never names a fetch that cannot succeed: a path is not a name of the hub.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::aliases::{hub_names, is_hub_name};
use super::name::Revision;
use model_center_base::file::printable;
use model_center_base::suggest::edit_distance;

/// First parts of a path under which users keep models; an organisation of the hub is hardly called so.
const DIRECTORIES: &[&str] = &[
    "checkpoint",
    "checkpoints",
    "ckpt",
    "ckpts",
    "data",
    "experiments",
    "local",
    "model",
    "models",
    "out",
    "output",
    "outputs",
    "pretrained",
    "pretrained_models",
    "result",
    "results",
    "run",
    "runs",
    "tmp",
    "weights",
];
/// Entries of a directory that are compared with a mistyped name.
const MAX_ENTRIES: usize = 10_000;
/// The longest name of a directory entry on the file systems of Linux and macOS.
const MAX_NAME: usize = 255;

/// Intended meaning of a name that leads nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    Path,
    Hub,
    /// `owner/name` where the directory `owner` exists.
    Either,
}

impl Meaning {
    /// Intended meaning of `name`, by its form and by what the file system has.
    pub(super) fn of(name: &str) -> Self {
        if is_path(name) {
            return Meaning::Path;
        }
        match name.split_once('/') {
            Some(_) if is_hub_name(name) => Meaning::Hub,
            Some((first, _)) if DIRECTORIES.contains(&first.to_ascii_lowercase().as_str()) => Meaning::Path,
            Some((first, _)) if Path::new(first).is_dir() => Meaning::Either,
            _ => Meaning::Hub,
        }
    }
}

/// Whether a name can only be meant as a path.
pub(super) fn is_path(name: &str) -> bool {
    name.starts_with(['/', '.', '~']) || name.ends_with('/') || name.contains('\\') || name.matches('/').count() > 1
}

pub(super) fn for_path(name: &str, is_offline: bool) -> String {
    let near = near(name);
    let correct = match name.starts_with('~') {
        true => "write the home directory out, since only a shell expands `~`",
        false => "correct the path, or create the directory",
    };
    // The last part as ModelCenter's identifier of a model that the hub has.
    let last = name.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let known = hub_names(last).is_some_and(|names| !names.is_empty());
    match known {
        true => format!("{near}{correct}; for the hub's model write {last}, and {}", to_fetch(last, None, is_offline)),
        false => format!("{near}{correct}; a model of the hub is written org/name"),
    }
}

/// The advice to fetch a model of the hub, at a revision if one is asked for.
pub(super) fn to_fetch(id: &str, revision: Option<&Revision>, is_offline: bool) -> String {
    let revision = revision.map_or_else(String::new, |revision| format!(" --revision {revision}"));
    let command = format!("bmtrain fetch {id}{revision}");
    match is_offline {
        true => format!("fetch it: HF_HUB_OFFLINE is set, unset it for `{command}`"),
        false => format!("fetch it with `{command}`"),
    }
}

/// `did you mean ...? ` with an existing directory that differs from a missing path by a slip in one part; else
/// nothing.
pub(super) fn near(name: &str) -> String {
    near_path(Path::new(name), Path::is_dir)
}

/// Advice with an existing path that `is_kind`.
pub fn near_path(missing: &Path, is_kind: fn(&Path) -> bool) -> String {
    nearest(missing, is_kind).map_or_else(String::new, |path| {
        let shown = printable(&path.display().to_string(), 200);
        format!("did you mean `{shown}`? ")
    })
}

fn nearest(path: &Path, is_kind: fn(&Path) -> bool) -> Option<PathBuf> {
    let mut existing = PathBuf::new();
    let mut parts = path.components();
    let missing = loop {
        let part = parts.next()?;
        let next = existing.join(part);
        if !next.is_dir() {
            let Component::Normal(missing) = part else { return None };
            break missing.to_str().filter(|missing| missing.len() <= MAX_NAME)?;
        }
        existing = next;
    };
    let rest = parts.as_path();
    let parent = if existing.as_os_str().is_empty() { Path::new(".") } else { &existing };
    // As many edits as make a slip of a recipe's key.
    let limit = (missing.chars().count() / 3).max(1);
    let entries = fs::read_dir(parent).ok()?.take(MAX_ENTRIES).flatten();
    let slips = entries.filter_map(|entry| {
        let found = entry.file_name().into_string().ok()?;
        let distance = edit_distance(missing, &found, limit)?;
        // Joined with nothing, a path would end in a slash.
        let whole = existing.join(&found);
        let whole = if rest.as_os_str().is_empty() { whole } else { whole.join(rest) };
        is_kind(&whole).then_some((distance, whole))
    });
    slips.min().map(|(_, whole)| whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_paths_by_form_or_by_their_first_part() {
        for name in ["./a", "../a", "/a", "~/a", "a/b/c", "a/", "a\\b", "models/bert", "Checkpoints/x", "runs/first"] {
            assert_eq!(Meaning::of(name), Meaning::Path, "{name}");
        }
        for name in ["bert-base-uncased", "models", "org/name", "google-bert/bert-base-uncased"] {
            assert_eq!(Meaning::of(name), Meaning::Hub, "{name}");
        }
        // Tests run in the directory of the crate.
        assert_eq!(Meaning::of("src/name"), Meaning::Either);
    }
}
