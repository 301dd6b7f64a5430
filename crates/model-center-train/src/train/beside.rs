//! The files beside a checkpoint that a resumed run reads again: hashed at the start of a run, recorded in the manifest
//! of each checkpoint, compared where the run is resumed.
//!
//! Defines [`Beside`]. Called by a run before it opens its model, and by `bmtrain ckpt export`.

use super::finetune::RunConfig;
use super::objective::OwnObjective;
use super::run_data;
use crate::{Error, Result};
use bmtrain_dist::ControlGroup;
use bmtrain_dist::checkpoint::ContentHash;
use model_center_base::file::printable;
use model_center_formats::directory::{CONFIG_FILE, companions, is_companion};
use model_center_formats::weights::weights_files;
use model_center_models::adapter::{ADAPTER_CONFIG, ADAPTER_WEIGHTS, PICKLED_WEIGHTS};
use model_center_models::sentence_files;
use model_center_recipe::run::{FileHash, hash_of};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The member of the manifest's layout: no state depends on it.
pub(super) const BESIDE: &str = "beside";

const MODEL: &str = "model";
const ADAPTER: &str = "adapter";
const TEST_DATA: &str = "test data";
const OBJECTIVE: &str = "objective of the program";
/// Changes that an error names.
const NAMED: usize = 4;

/// Files that a run reads beside its checkpoints, each with its hash.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Beside(BTreeMap<String, Found>);

/// A file, or data, by their content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Found {
    path: PathBuf,
    content: FileHash,
}

/// Something that is not as it was when the checkpoint was saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BesideChange {
    place: String,
    what: String,
}

impl Beside {
    /// The hashes of what this run reads, which the first rank of `ranks` computes; reads every byte of these files.
    ///
    /// # Errors
    /// Files that cannot be read, on the first rank.
    pub(super) fn of(config: &RunConfig, ranks: &ControlGroup) -> Result<Self> {
        let hashed = || -> Result<Self> {
            let found = files(config)?.into_iter().map(|(name, path)| {
                let content = hash_of(&path)?;
                Ok((name, Found { path, content }))
            });
            let mut beside = Beside(found.collect::<Result<_>>()?);
            let (test, samples) = (run_data::fingerprint(&config.setup.test), run_data::samples(&config.setup.test));
            let own = config.options.objective.as_ref().map(OwnObjective::name);
            let own = own.map(|name| (OBJECTIVE, name, name.len() as u64));
            let further = own.into_iter().chain((samples > 0).then_some((TEST_DATA, test.as_str(), samples)));
            for (name, text, bytes) in further {
                let content = FileHash { bytes, blake3: ContentHash::of(text.as_bytes()) };
                beside.0.insert(name.to_owned(), Found { path: name.into(), content });
            }
            Ok(beside)
        };
        // Reading a large model takes longer than ranks wait for each other.
        let first = ranks.while_first(hashed)?.transpose()?;
        let internal = |error: serde_json::Error| Error::model(BESIDE, error.to_string(), "report this");
        let text = first.as_ref().map(serde_json::to_string).transpose().map_err(internal)?;
        let text = ranks.first_text(&text.unwrap_or_default())?;
        first.map_or_else(|| serde_json::from_str(&text).map_err(internal), Ok)
    }

    /// As a manifest's layout holds it.
    pub(super) fn to_value(&self) -> Value {
        let hashes: BTreeMap<&String, FileHash> = self.0.iter().map(|(name, found)| (name, found.content)).collect();
        serde_json::to_value(hashes).unwrap_or(Value::Null)
    }

    /// Changes since a checkpoint with this layout; `None` if an earlier version saved it, which recorded nothing.
    pub(super) fn changes(&self, layout: &Map<String, Value>) -> Option<Vec<BesideChange>> {
        let then = recorded(layout)?;
        let gone = then.iter().filter(|(name, _)| !self.0.contains_key(*name)).map(|(name, _)| BesideChange {
            place: printable(name, 200),
            what: "it is not there, or not read, any more".to_owned(),
        });
        let changed = self.0.iter().filter_map(|(name, found)| found.change(then.get(name).copied()));
        Some(changed.chain(gone).collect())
    }
}

impl Found {
    /// How it differs from what was recorded.
    fn change(&self, then: Option<FileHash>) -> Option<BesideChange> {
        let now = self.content;
        let what = match then {
            Some(then) if then == now => return None,
            None => "it was not there, or not read, then".to_owned(),
            Some(_) if self.path.as_os_str() == TEST_DATA => "its samples are others".to_owned(),
            Some(_) if self.path.as_os_str() == OBJECTIVE => "it is another one".to_owned(),
            Some(then) if then.bytes != now.bytes => format!("it has {} bytes, and had {}", now.bytes, then.bytes),
            Some(then) => {
                format!(
                    "its BLAKE3 hash is {}…, and was {}…, at the same size",
                    now.blake3.short(),
                    then.blake3.short()
                )
            }
        };
        Some(BesideChange { place: self.path.display().to_string(), what })
    }
}

impl BesideChange {
    /// On a line.
    pub(super) fn line(&self) -> String {
        format!("{}: {}", self.place, self.what)
    }

    /// The error for changes since `checkpoint`; `None` if there are none.
    pub(super) fn refusal(changes: &[Self], checkpoint: &str, fix: &str) -> Option<Error> {
        let (first, others) = changes.split_first()?;
        let mut reason = format!("this is not what the run read up to its checkpoint {checkpoint}: {}", first.what);
        if !others.is_empty() {
            let named: Vec<String> = others.iter().take(NAMED).map(Self::line).collect();
            let dots = if others.len() > NAMED { "; …" } else { "" };
            reason += &format!("; also {}{dots}", named.join("; "));
        }
        Some(Error::model(first.place.clone(), reason, fix))
    }
}

/// Files of `directory`, the model's, and of `adapter` that an export would read and that are not as the run recorded
/// them: the files beside the weights.
///
/// # Errors
/// Files that cannot be read.
pub(super) fn changes_of_export(
    layout: &Map<String, Value>,
    directory: &Path,
    adapter: Option<&Path>,
) -> Result<Vec<BesideChange>> {
    let Some(then) = recorded(layout) else { return Ok(Vec::new()) };
    let mut now = Beside::default();
    let adapter = adapter.map(|adapter| (ADAPTER, adapter, vec![ADAPTER_CONFIG.to_owned()]));
    let parts = [Some((MODEL, directory, small_files(directory)?)), adapter];
    for (role, directory, name) in parts
        .into_iter()
        .flatten()
        .flat_map(|(role, directory, names)| names.into_iter().map(move |name| (role, directory, name)))
    {
        let path = directory.join(&name);
        now.0.insert(format!("{role}/{name}"), Found { content: hash_of(&path)?, path });
    }
    let changed = now.0.iter().filter_map(|(name, found)| found.change(then.get(name).copied()));
    // An export would lack what it copies from there.
    let gone = then.keys().filter(|name| !now.0.contains_key(*name)).filter_map(|name| {
        let file = name.strip_prefix(MODEL)?.strip_prefix('/').filter(|file| is_companion(file))?;
        let place = directory.join(printable(file, 200)).display().to_string();
        (!directory.join(file).is_file()).then(|| BesideChange { place, what: "it is not there any more".to_owned() })
    });
    Ok(changed.chain(gone).collect())
}

fn recorded(layout: &Map<String, Value>) -> Option<BTreeMap<String, FileHash>> {
    serde_json::from_value(layout.get(BESIDE)?.clone()).ok()
}

/// Name and path of every file that a resumed run reads again and that decides what it computes or saves. Weights are
/// among them where checkpoints lack them: a model beside an adapter, a teacher, a reference model.
fn files(config: &RunConfig) -> Result<Vec<(String, PathBuf)>> {
    let (setup, resolved) = (&config.setup, &config.resolved);
    let start = &setup.start;
    let has_reference = resolved.preference.is_some_and(|loss| loss.kind.has_reference());
    let mut found = Vec::new();
    let mut add = |role: &str, directory: &Path, names: Vec<String>| {
        let file = |name: String| (format!("{role}/{name}"), directory.join(name));
        found.extend(names.into_iter().map(file));
    };
    add(MODEL, &start.directory, small_files(&start.directory)?);
    if start.config.is_none() && (setup.adapter.is_some() || has_reference) {
        match start.directory.parent().filter(|_| start.directory.is_file()) {
            None => add(MODEL, &start.directory, weights_files(&start.directory)?),
            // A GGUF file has weights, configuration and tokenizer in one.
            Some(parent) => {
                let name = start.directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
                add(MODEL, parent, vec![name]);
            }
        }
    }
    if start.tokenizer != start.directory {
        match start.tokenizer.parent().filter(|_| start.tokenizer.is_file()) {
            None => add("tokenizer", &start.tokenizer, small_files(&start.tokenizer)?),
            Some(directory) => {
                let name = start.tokenizer.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let others = if start.directory == directory { Vec::new() } else { small_files(directory)? };
                add("tokenizer", directory, [vec![name], others].concat());
            }
        }
    }
    if let Some(teacher) = &setup.teacher {
        add("teacher", &teacher.directory, small_files(&teacher.directory)?);
        add("teacher", &teacher.directory, weights_files(&teacher.directory)?);
    }
    for directory in resolved.adapter.iter().flat_map(|adapter| adapter.directories()) {
        // Some of its tensors replace parameters of the model that stay frozen.
        let there = [ADAPTER_CONFIG, ADAPTER_WEIGHTS, PICKLED_WEIGHTS]
            .into_iter()
            .filter(|name| directory.join(name).is_file());
        add(ADAPTER, directory, there.map(str::to_owned).collect());
    }
    found.extend(start.config_file.iter().map(|path| ("configuration".to_owned(), path.clone())));
    Ok(found)
}

/// The files beside the weights of a model or a tokenizer.
fn small_files(directory: &Path) -> Result<Vec<String>> {
    let of_sentences = sentence_files(directory)?;
    let further = std::iter::once(CONFIG_FILE.to_owned()).chain(of_sentences);
    let there = further.filter(|name| directory.join(name).is_file());
    Ok(there.chain(companions(directory)?).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn beside(files: &[(&str, &[u8])]) -> Beside {
        let found = |(name, bytes): &(&str, &[u8])| {
            let content = FileHash { bytes: bytes.len() as u64, blake3: ContentHash::of(bytes) };
            ((*name).to_owned(), Found { path: format!("m/{name}").into(), content })
        };
        Beside(files.iter().map(found).collect())
    }

    #[test]
    fn every_kind_of_change_is_named_and_none_without_a_record() {
        let then = beside(&[("model/a", b"123"), ("model/b", b"12"), ("model/c", b"1")]);
        let layout = Map::from_iter([(BESIDE.to_owned(), then.to_value())]);
        assert_eq!(then.changes(&layout), Some(Vec::new()));
        assert_eq!(then.changes(&Map::new()), None);
        let now = beside(&[("model/a", b"124"), ("model/b", b"123"), ("model/d", b"1")]);
        let lines: Vec<String> = now.changes(&layout).unwrap().iter().map(BesideChange::line).collect();
        let parts =
            ["m/model/a: its BLAKE3 hash is ", "m/model/b: it has 3 bytes, and had 2", "m/model/d: it was not there"];
        assert!(lines.iter().zip(parts).all(|(line, part)| line.starts_with(part)), "{lines:?}");
        assert_eq!((lines.len(), lines[3].as_str()), (4, "model/c: it is not there, or not read, any more"));
        let error = BesideChange::refusal(&now.changes(&layout).unwrap(), "step-3-00", "bring it back").unwrap();
        assert_eq!(error.exit_code(), 3);
        assert!(error.to_string().contains("m/model/a: this is not what the run read"), "{error}");
        assert!(BesideChange::refusal(&[], "", "").is_none());
        // A manifest may hold anything.
        assert_eq!(now.changes(&Map::from_iter([(BESIDE.to_owned(), json!(3))])), None);
    }
}
