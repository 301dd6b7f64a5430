//! Choice of a model's files to fetch: configuration, tokenizer and one set of weights.

use model_center_base::file::{check_name, printable};
use model_center_base::{Error, Result};
use model_center_formats::COMPANION_FILES;
use model_center_formats::pretrained::RepoId;
use model_center_formats::weights::{WEIGHTS_NAMES, WeightsName};
use std::collections::HashSet;
use std::path::Path;

/// The longest of all files but weights: indexes, and tokenizers of 260,000 tokens, which have about 35 MB.
const MAX_TEXT_BYTES: u64 = 256 << 20;
const MAX_PARTS: usize = 200;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    /// By name, small ones first.
    pub(super) files: Vec<&'static str>,
    /// The list of the shards to fetch besides.
    pub(super) index: Option<&'static str>,
    pub(super) are_pickles: bool,
}

/// Choose among the files of a model: of its weights those that count in a directory too.
pub(super) fn choose(id: &RepoId, names: &[String]) -> Result<Chosen> {
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    let lacks = |what: &str| {
        let reason = format!("the hub's {id} has no {what}");
        Error::model(id.to_string(), reason, "fetch the model that it was made from, in the format of transformers")
    };
    if !has("config.json") {
        return Err(lacks("config.json"));
    }
    let companions = COMPANION_FILES.iter().copied().filter(|name| has(name));
    let mut files: Vec<&'static str> = std::iter::once("config.json").chain(companions).collect();
    let weights = WEIGHTS_NAMES.into_iter().find(|known| has(known.name));
    let WeightsName { name, is_index, is_pickle } =
        weights.ok_or_else(|| lacks(&format!("weights ({})", WeightsName::all())))?;
    files.extend((!is_index).then_some(name));
    Ok(Chosen { files, index: is_index.then_some(name), are_pickles: is_pickle })
}

/// The shards of an index. The model must have each, under names that can be in one directory.
pub(super) fn shards(id: &RepoId, chosen: &Chosen, shards: Vec<String>, names: &[String]) -> Result<Vec<String>> {
    let refused = |shard: &str, why: &str| {
        let reason = format!("the index lists {}, {why}", printable(shard, 120));
        Err(Error::model(id.to_string(), reason, "the model is broken on the hub: try another revision"))
    };
    // Names as a file system sees them that does not tell capital letters from small ones.
    let mut taken: HashSet<String> = chosen.files.iter().chain(&chosen.index).map(|name| name.to_lowercase()).collect();
    for shard in &shards {
        check_name(Path::new(id.as_str()), shard)?;
        if !shard.split('/').all(is_plain) {
            return refused(shard, "which is not a plain file name");
        }
        if !names.contains(shard) {
            return refused(shard, "which the hub does not have");
        }
        if !taken.insert(shard.to_lowercase()) {
            return refused(shard, "which is the name of another file");
        }
    }
    let parents = |shard: &str| shard.match_indices('/').map(|(at, _)| shard[..at].to_lowercase()).collect::<Vec<_>>();
    match shards.iter().find(|shard| parents(shard).iter().any(|parent| taken.contains(parent))) {
        Some(shard) => refused(shard, "in a directory that is the name of another file"),
        None => Ok(shards),
    }
}

/// The most bytes that a file of the chosen ones may have: any number for weights, for which the disk alone sets a
/// bound.
pub(super) fn longest(name: &str) -> u64 {
    let is_weights = WEIGHTS_NAMES.iter().any(|known| known.name == name && !known.is_index);
    if is_weights { u64::MAX } else { MAX_TEXT_BYTES }
}

/// Whether a part of a path is one to the cache: neither hidden, as its own preparations are, nor empty, nor longer
/// than file systems allow with what is added to it.
fn is_plain(part: &str) -> bool {
    !part.is_empty() && part.len() <= MAX_PARTS && !part.starts_with('.') && !part.contains('\\')
}

#[cfg(test)]
mod tests {
    use super::*;
    use model_center_formats::weights::{INDEX_FILE, SINGLE_FILE};

    const PICKLE: &str = "pytorch_model.bin";

    fn chosen(names: &[&str]) -> Result<Chosen> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        choose(&RepoId::parse("org/name").unwrap(), &names)
    }

    #[test]
    fn safetensors_come_before_pickles_and_one_file_before_shards() {
        let all = ["README.md", "config.json", "vocab.txt", "flax_model.msgpack", PICKLE, INDEX_FILE, SINGLE_FILE];
        let files = vec!["config.json", "vocab.txt", SINGLE_FILE];
        assert_eq!(chosen(&all).unwrap(), Chosen { files, index: None, are_pickles: false });
        let found = chosen(&all[..6]).unwrap();
        assert_eq!((found.index, found.are_pickles), (Some(INDEX_FILE), false));
        let found = chosen(&all[..5]).unwrap();
        assert_eq!((found.index, found.are_pickles), (None, true));
        assert!(chosen(&all[..4]).unwrap_err().to_string().contains("no weights"));
        assert!(chosen(&all[..1]).unwrap_err().to_string().contains("no config.json"));
    }

    #[test]
    fn shards_are_files_of_the_model() {
        let id = RepoId::parse("org/name").unwrap();
        let chosen = chosen(&["config.json", INDEX_FILE]).unwrap();
        let check = |shards: &[&str]| {
            let owned: Vec<String> = shards.iter().map(|name| (*name).to_owned()).collect();
            // The hub has everything that is asked for, whatever its name.
            super::shards(&id, &chosen, owned.clone(), &owned)
        };
        assert!(check(&["a.safetensors", "part/b.safetensors", "part/c d é.safetensors", "-r"]).is_ok());
        let long = "x".repeat(201);
        for name in ["", "../b", "/b", "a/../b", "./b", "a//b", "a/", ".b", "a/.b", "a\\b", "a\0", "a\u{1b}[2J", &long]
        {
            assert!(check(&[name]).is_err(), "{name:?}");
        }
        for names in [
            ["config.json", "b"],
            ["Config.JSON", "b"],
            [INDEX_FILE, "b"],
            ["config.json/a", "b"],
            ["a", "A"],
            ["a", "a/b"],
            ["a/b", "A"],
            ["a/b/c", "a/b"],
        ] {
            assert!(check(&names).is_err(), "{names:?}");
        }
        let absent = super::shards(&id, &chosen, vec!["c.safetensors".into()], &[]).unwrap_err().to_string();
        assert!(absent.contains("c.safetensors, which the hub does not have"), "{absent}");
    }
}
