//! From what a user writes to a local directory: a path, a model of the hub, or one of ModelCenter's identifiers.
//!
//! Defines [`Pretrained`] and [`ModelCaches`]; [`name`] has the hub's rules for names, [`cache`] the layout of its
//! cache, [`aliases`] the identifiers, `advice` the fix for an unknown name. Nothing is downloaded here. Called by the
//! programs before a directory is opened.

mod advice;
pub mod aliases;
pub mod cache;
pub mod name;

use advice::Meaning;
pub use advice::near_path;
pub use aliases::{family_of, hub_names, unavailable_family};
pub use cache::{Cached, CachedModel};
pub use name::{RepoId, Revision};

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::formats::gguf::has_gguf_name;
use crate::formats::known_directory::refuse_other_than_model;
use crate::formats::shard_index::shard_names;
use crate::formats::weights::WeightsName;
use crate::{Error, Result};
use model_center_base::file::{is_inside, printable, unreadable};

/// Caches to search besides the directories that users name. Filled by the programs; empty, none is searched.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelCaches {
    /// The cache of Hugging Face's libraries: the directory that holds `models--org--name`.
    pub hub: Option<PathBuf>,
    /// ModelCenter's cache: the directory that holds a directory for each identifier.
    pub model_center: Option<PathBuf>,
    /// Whether the user wants nothing fetched; decides what is proposed where a model is missing.
    pub offline: bool,
}

/// The maximum number of missing files that are named.
const SHOWN: usize = 5;

/// Finds pretrained models; see the module documentation.
#[derive(Debug, Clone, Copy)]
pub struct Pretrained;

impl Pretrained {
    /// The directory of a model.
    ///
    /// In this order: the directory of that path; the hub's cache under that name, and under the hub's names for an
    /// identifier of ModelCenter's; ModelCenter's cache. `revision` is a branch, a tag or a full commit, `main` by
    /// default. Only directories of the caches are searched: they have a configuration and weights, in files that are
    /// inside.
    ///
    /// # Errors
    /// [`Error::Model`] if there is no such directory or model, with the command that fetches it; if the snapshot is
    /// incomplete, with what it lacks; if name or revision are none that the hub allows; if the revision has no effect.
    pub fn resolve(name: &str, revision: Option<&str>, places: &ModelCaches) -> Result<PathBuf> {
        let path = Path::new(name);
        match fs::metadata(path) {
            Ok(kind) if kind.is_dir() => {
                return match revision {
                    None => refuse_other_than_model(path).map(|()| path.to_owned()),
                    Some(revision) => Err(fault(
                        name,
                        format!(
                            "a directory of this path is used as it is, so the revision \"{}\" has no effect",
                            printable(revision, 60)
                        ),
                        "leave the revision out, or name the model as the hub does from another directory",
                    )),
                };
            }
            Ok(_) if has_gguf_name(path) => {
                let reason =
                    "a GGUF file has no directory's files, which are needed here; it can be used, and trained \
                              beside an adapter, but not trained itself"
                        .into();
                return Err(fault(name, reason, "write a directory with bmtrain convert FILE.gguf DIR, and give DIR"));
            }
            Ok(_) => {
                return Err(fault(name, "this is a file, not a directory".into(), "give its directory"));
            }
            Err(e) if e.kind() == ErrorKind::PermissionDenied => return Err(unreadable(path, e)),
            Err(_) if path.symlink_metadata().is_ok() => {
                let reason = "this is a symbolic link that leads nowhere".into();
                return Err(fault(name, reason, "mend the link, or give the path of a model directory"));
            }
            Err(_) => {}
        }
        let for_path = || advice::for_path(name, places.offline);
        if advice::is_path(name) {
            return Err(fault(name, "there is no such directory".into(), &for_path()));
        }
        let id = RepoId::parse(name).map_err(|why| {
            let reason = format!("there is no such directory, and no model of the hub is called so: the name {why}");
            fault(name, reason, &for_path())
        })?;
        let wanted = match revision {
            None => Revision::default(),
            Some(text) => Revision::parse(text).map_err(|why| {
                let place = format!("{name}, revision {}", printable(text, 80));
                Error::model(place, format!("the revision {why}"), "give a branch, a tag or a whole commit")
            })?,
        };
        Search { name, id, is_pinned: revision.is_some(), revision: wanted, places }.run()
    }
}

fn fault(name: &str, reason: String, fix: &str) -> Error {
    Error::model(printable(name, 200), reason, fix)
}

struct Search<'a> {
    name: &'a str,
    id: RepoId,
    /// Whether a revision was asked for.
    is_pinned: bool,
    revision: Revision,
    places: &'a ModelCaches,
}

impl Search<'_> {
    fn run(&self) -> Result<PathBuf> {
        let aliases = hub_names(self.name);
        let mut looked = Vec::new();
        // A cache that has a part of the model has a more useful error than one without any.
        let mut unfit: Option<Error> = None;
        for id in std::iter::once(&self.id).chain(aliases.iter().flatten()) {
            let Some(hub) = &self.places.hub else { break };
            let model = CachedModel::new(hub, id);
            looked.push(model.root().to_owned());
            let reason = match model.find(&self.revision)? {
                Cached::NoModel => continue,
                Cached::NoRevision => format!("the cache has {id}, but nothing of its revision {}", self.revision),
                Cached::Snapshot(directory) => match missing(&directory)? {
                    None => return Ok(directory),
                    Some(files) => format!("the snapshot {} is incomplete: it lacks {files}", directory.display()),
                },
            };
            unfit.get_or_insert_with(|| fault(self.name, reason, &self.way_to_get(Some(id), model.root())));
        }
        // It keeps no revisions, and no names with an owner.
        if let Some(own) = self.places.model_center.as_ref().filter(|_| !self.is_pinned && !self.name.contains('/')) {
            let directory = own.join(self.name);
            looked.push(directory.clone());
            if directory.is_dir() {
                let Some(files) = missing(&directory)? else { return Ok(directory) };
                let reason = format!("{} is incomplete: it lacks {files}", directory.display());
                unfit.get_or_insert_with(|| fault(self.name, reason, "complete the directory by hand, or remove it"));
            }
        }
        if let Some(unfit) = unfit {
            return Err(unfit);
        }
        // Fetching it would be in vain.
        if let Some(family) = unavailable_family(self.name) {
            let reason = format!("the family {family} is not available");
            return Err(fault(self.name, reason, "name a model of a family that `bmtrain finetune --help` lists"));
        }
        let to_fetch = match &aliases {
            None => Some(&self.id),
            Some(names) => names.first(),
        };
        let list = looked.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
        let reason = match looked.is_empty() {
            true => "there is no directory of this path, and no cache is known to look into".to_owned(),
            false => format!("there is no directory of this path, nor of a model of this name: looked for {list}"),
        };
        let directory = looked.last().map_or(Path::new(self.name), PathBuf::as_path);
        let near = advice::near(self.name);
        let fix = match Meaning::of(self.name) {
            Meaning::Path => advice::for_path(self.name, self.places.offline),
            Meaning::Either => {
                format!("{near}correct the path; or, for the hub's model, {}", self.way_to_fetch(&self.id))
            }
            Meaning::Hub => format!("{near}{}", self.way_to_get(to_fetch, directory)),
        };
        Err(fault(self.name, reason, &fix))
    }

    /// Way to get a missing model; `directory` is where it would be looked for.
    fn way_to_get(&self, id: Option<&RepoId>, directory: &Path) -> String {
        match id {
            Some(id) => format!("{}, or give the path of the model's directory", self.way_to_fetch(id)),
            None if aliases::is_on_model_centers_server(self.name) => {
                advice::to_fetch(self.name, None, self.places.offline)
            }
            None => format!("the hub has no such model: put its config.json and weights into {}", directory.display()),
        }
    }

    fn way_to_fetch(&self, id: &RepoId) -> String {
        let revision = self.is_pinned.then_some(&self.revision);
        advice::to_fetch(id.as_str(), revision, self.places.offline)
    }
}

/// Describes the missing files of a directory; `None` for a complete one. Dangling links count as missing.
fn missing(directory: &Path) -> Result<Option<String>> {
    let mut absent = Vec::new();
    if !is_inside(directory, "config.json")? {
        absent.push("config.json".to_owned());
    }
    match WeightsName::of(directory)? {
        Some(list) if list.is_index => {
            for shard in shard_names(directory, list.name)? {
                if !is_inside(directory, &shard)? {
                    absent.push(printable(&shard, 80));
                }
            }
        }
        Some(_) => {}
        None => absent.push(format!("weights ({})", WeightsName::all())),
    }
    let more = absent.len().saturating_sub(SHOWN);
    absent.truncate(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Ok((!absent.is_empty()).then(|| format!("{}{more}", absent.join(", "))))
}
