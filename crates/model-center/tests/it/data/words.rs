//! A tokenizer for tests: one token per word, so that texts can be read back from ids.

use std::path::PathBuf;
use std::sync::Mutex;

use model_center::data::{Dataset, ReadOptions};
use model_center::tokenizer::{SpecialIds, Template, TemplateSlot, Tokenizer};
use model_center::{Error, Result};
use tempfile::TempDir;

/// Learns words as it meets them: 0 padding, 1 BOS, 2 EOS, then words. Drops "mute", as a vocabulary drops unknown
/// signs.
#[derive(Debug)]
pub(crate) struct Words {
    words: Mutex<Vec<String>>,
    single: Template,
    pair: Template,
}

impl Words {
    pub(crate) fn new() -> Words {
        let cls = TemplateSlot::Special { id: 1, type_id: 0 };
        let sep = |type_id| TemplateSlot::Special { id: 2, type_id };
        let first = TemplateSlot::First { type_id: 0 };
        Words {
            words: Mutex::new(["[PAD]", "[CLS]", "[SEP]"].map(String::from).to_vec()),
            single: Template { pieces: vec![cls, first, sep(0)] },
            pair: Template { pieces: vec![cls, first, sep(0), TemplateSlot::Second { type_id: 1 }, sep(1)] },
        }
    }
}

impl Tokenizer for Words {
    fn tokenize(&self, texts: &[&str]) -> Result<Vec<Vec<u32>>> {
        let mut words = self.words.lock().unwrap();
        let mut id = |word: &str| {
            let at = words.iter().position(|known| known == word).unwrap_or_else(|| {
                words.push(word.to_owned());
                words.len() - 1
            });
            at as u32
        };
        texts
            .iter()
            .map(|text| match text.contains("unspeakable") {
                true => Err(Error::model("words", "the text cannot be tokenized", "leave it out")),
                false => Ok(text.split_whitespace().filter(|word| *word != "mute").map(&mut id).collect()),
            })
            .collect()
    }

    fn template(&self, pair: bool) -> &Template {
        if pair { &self.pair } else { &self.single }
    }

    fn special_ids(&self) -> SpecialIds {
        SpecialIds { pad: Some(0), cls: Some(1), sep: Some(2), ..SpecialIds::default() }
    }

    fn vocab_size(&self) -> usize {
        self.words.lock().unwrap().len()
    }

    fn decode(&self, ids: &[u32], _skip_special: bool) -> Result<String> {
        let words = self.words.lock().unwrap();
        Ok(ids.iter().map(|id| words[*id as usize].as_str()).collect::<Vec<_>>().join(" "))
    }

    fn token(&self, id: u32) -> Option<String> {
        self.words.lock().unwrap().get(id as usize).cloned()
    }

    fn id(&self, token: &str) -> Option<u32> {
        self.words.lock().unwrap().iter().position(|word| word == token).map(|at| at as u32)
    }
}

/// The rows of a dataset as text, with their segments.
pub(crate) fn rows(words: &Words, dataset: &Dataset) -> Vec<(String, Vec<u8>)> {
    (0..dataset.len())
        .flat_map(|sample| dataset.rows(sample).unwrap())
        .map(|row| (words.decode(row.input_ids, false).unwrap(), row.token_type_ids.to_vec()))
        .collect()
}

/// A directory holding one file.
pub(crate) fn file(name: &str, content: impl AsRef<[u8]>) -> (TempDir, PathBuf) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, content).unwrap();
    (directory, path)
}

pub(crate) fn options(words: &Words) -> ReadOptions<'_> {
    ReadOptions::new(words, 64)
}

impl Words {
    /// The id of a word.
    pub(crate) fn tokenize_one(&self, word: &str) -> u32 {
        self.tokenize(&[word]).unwrap()[0][0]
    }
}
