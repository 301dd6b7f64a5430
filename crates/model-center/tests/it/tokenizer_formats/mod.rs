//! Tokenizers of every format: ids equal those libraries' own, long texts equal short ones, and damaged files are
//! errors. The golden files are described in `tests/golden/tokenizers/README.md`.

mod damaged;
mod forms;
mod long;
mod seams;
mod specials;

use std::fs;
use std::path::{Path, PathBuf};

use model_center::tokenizer::{HfTokenizer, Tokenizer};
use serde_json::Value;
use tempfile::TempDir;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tokenizers").join(name)
}

fn read(name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(golden(name)).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}

/// A directory with copies of golden files and files of these contents.
fn directory(copies: &[(&str, &str)], contents: &[(&str, Value)]) -> TempDir {
    let directory = TempDir::new().unwrap();
    for (from, to) in copies {
        fs::copy(golden(from), directory.path().join(to)).unwrap();
    }
    for (name, content) in contents {
        fs::write(directory.path().join(name), content.to_string()).unwrap();
    }
    directory
}

/// Checks that a long text has the ids that it has when it is taken at once; `what` names tokenizer and text.
fn check_as_whole(tokenizer: &HfTokenizer, text: &str, what: &str) {
    let long = tokenizer.tokenize(&[text]).unwrap().concat();
    let whole = tokenizer.tokenize_whole(text).unwrap();
    let first = long.iter().zip(&whole).position(|(a, b)| a != b);
    let (long_ids, whole_ids) = (long.len(), whole.len());
    assert!(long == whole, "{what}: {long_ids} and {whole_ids} ids, the first other one at {first:?}");
}

/// The vocabulary of scores, in which a piece is of another kind.
fn with_kind(text: &str, kind: u8) -> (TempDir, PathBuf) {
    // Its field of kind, 1 if it is left out, is appended.
    let sound = fs::read(golden("unigram.model")).unwrap();
    let length = u8::try_from(text.len()).unwrap();
    let piece = |more: u8| [&[0x0A, 7 + length + more, 0x0A, length][..], text.as_bytes(), &[0x15]].concat();
    let long = piece(0).len();
    let at = sound.windows(long).position(|bytes| bytes == piece(0)).unwrap();
    let mut bytes = sound.clone();
    bytes.splice(at..at + long + 4, [&piece(2)[..], &sound[at + long..at + long + 4], &[0x18, kind]].concat());
    let place = TempDir::new().unwrap();
    let path = place.path().join("tokenizer.model");
    fs::write(&path, bytes).unwrap();
    (place, path)
}
