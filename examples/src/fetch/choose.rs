//! Which files of a model are fetched: configuration, tokenizer and one set of weights.

use model_center::file::{check_name, printable};
use model_center::hf::COMPANION_FILES;
use model_center::hf::pretrained::RepoId;
use model_center::hf::weights::{WEIGHTS_NAMES, WeightsName};
use model_center::{Error, Result};
use std::path::Path;

/// The files to fetch.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    /// By name, small ones first.
    pub(super) files: Vec<&'static str>,
    /// The list of the shards to fetch besides.
    pub(super) index: Option<&'static str>,
    /// Whether the weights are pickles.
    pub(super) are_pickles: bool,
}

/// Choose among the files of a model: of its weights those that count in a folder too.
///
/// # Errors
/// No configuration, or no weights under the names that are read.
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

/// The shards of an index, each of which the model must have.
///
/// # Errors
/// A name that leads elsewhere or is no file of the model.
pub(super) fn shards(id: &RepoId, shards: Vec<String>, names: &[String]) -> Result<Vec<String>> {
    for shard in &shards {
        check_name(Path::new(id.as_str()), shard)?;
        if !names.contains(shard) {
            let reason = format!("the index lists {}, which the hub does not have", printable(shard, 120));
            return Err(Error::model(id.to_string(), reason, "the model is broken on the hub: try another revision"));
        }
    }
    Ok(shards)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model_center::hf::weights::{INDEX_FILE, SINGLE_FILE};

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
        let names = ["a.safetensors".to_owned(), "../b".to_owned()];
        assert!(shards(&id, vec!["a.safetensors".into()], &names).is_ok());
        assert!(shards(&id, vec!["../b".into()], &names).is_err());
        assert!(shards(&id, vec!["c.safetensors".into()], &names).unwrap_err().to_string().contains("c.safetensors"));
    }
}
