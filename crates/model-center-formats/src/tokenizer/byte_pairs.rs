//! `vocab.json` and `merges.txt`, a byte-level vocabulary, as a `tokenizer.json` document.
//!
//! Defines [`document`], called by [`super::AutoTokenizer`]. The two files specify neither pre-tokenization nor the
//! special tokens around a text: the family named in the directory's configuration does, GPT-2 by default.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::byte_level::Split;
use super::document::{BpeOptions, DocumentParts, added_token, around, bpe, byte_level, end_twice, merge};
use super::files::{Settings, broken_json, utf8};
use crate::{Error, Result};
use model_center_base::file::printable;

/// The maximum number of merges: several times the number in the largest real vocabularies.
const MAX_MERGES: usize = 1 << 20;
/// Larger than any vocabulary: an id takes a place in tables of that length.
const MAX_ID: u64 = 1 << 24;
const FIX: &str = "fetch vocab.json and merges.txt again, both from the same model";

/// Use of such files by a family.
#[derive(Debug)]
struct Family {
    /// Beginnings of the model's or the tokenizer's name.
    names: &'static [&'static str],
    /// Name of the pre-tokenization.
    split: &'static str,
    around: Around,
    /// The default names of special tokens: BOS, EOS, unknown, padding, mask.
    usual: [(&'static str, &'static str); 5],
}

#[derive(Debug)]
enum Around {
    /// Nothing, unless the configuration asks for the beginning or the end.
    Nothing,
    Begin,
    /// Begin and end around the first text, the end twice before the second.
    BothTwice,
}

const fn usual(begin: &'static str, end: &'static str, rest: [&'static str; 3]) -> [(&'static str, &'static str); 5] {
    [("bos_token", begin), ("eos_token", end), ("unk_token", rest[0]), ("pad_token", rest[1]), ("mask_token", rest[2])]
}

const END: &str = "<|endoftext|>";

const FAMILIES: &[Family] = &[
    Family {
        names: &["roberta", "bart", "longformer", "led", "lawformer"],
        split: "gpt-2",
        around: Around::BothTwice,
        usual: usual("<s>", "</s>", ["<unk>", "<pad>", "<mask>"]),
    },
    // The tokenizer's class is named after GPT-2, the model's is not.
    Family {
        names: &["opt"],
        split: "gpt-2",
        around: Around::Begin,
        usual: usual("</s>", "</s>", ["</s>", "<pad>", ""]),
    },
    Family { names: &["qwen"], split: "qwen2", around: Around::Nothing, usual: usual("", END, ["", END, ""]) },
    Family { names: &[""], split: "gpt-2", around: Around::Nothing, usual: usual(END, END, [END, "", ""]) },
];

/// The `tokenizer.json` document of the two files, and the names of the family's special tokens.
pub(super) fn document(
    (vocab_path, vocab): (&Path, &[u8]),
    (merges_path, merges): (&Path, &[u8]),
    settings: &Settings,
) -> Result<(Value, Map<String, Value>)> {
    let place = vocab_path.display().to_string();
    let vocab = read_vocab(vocab_path, &place, vocab)?;
    let merges = read_merges(&merges_path.display().to_string(), merges, &vocab)?;
    let family = FAMILIES.iter().find(|family| family.names.iter().any(|name| settings.is_family(name)));
    let family = family.unwrap_or(&FAMILIES[FAMILIES.len() - 1]);
    let find_own = |token: &str| vocab.get(token).and_then(Value::as_u64).and_then(|id| usize::try_from(id).ok());
    let find = |token: &str| {
        find_own(token)
            .or_else(|| settings.added.iter().find(|added| added.text == token).map(|added| added.id as usize))
    };
    let mut names = Map::new();
    let mut special: Vec<(String, usize)> = Vec::new();
    for (key, usual) in family.usual {
        let name = settings.special(key).unwrap_or(usual);
        if let Some(id) = find(name) {
            names.insert(key.into(), json!(name));
            if special.iter().all(|(known, _)| known != name) {
                special.push((name.to_owned(), id));
            }
        }
    }
    let token = |key: &str| {
        let name = names.get(key).and_then(Value::as_str)?;
        special.iter().find(|(known, _)| known == name).map(|(name, id)| (name.as_str(), *id))
    };
    let post_processor = post_processor(&place, family, settings, [token("bos_token"), token("eos_token")])?;
    let own = special.iter().map(|(name, id)| added_token(name, *id, true)).collect();
    let mut added = settings.added_entries(own, find_own);
    if let (Around::BothTwice, Some((mask, _))) = (&family.around, token("mask_token")) {
        // The blank takes the space before it.
        for entry in added.iter_mut().filter(|entry| entry["content"] == mask) {
            entry["lstrip"] = json!(true);
        }
    }
    let split = Split::of(family.split).unwrap_or(Split::built_in());
    let parts = DocumentParts {
        normalizer: split.normalizer(),
        pre_tokenizer: split.pre_tokenizer(settings.flag("add_prefix_space").unwrap_or(false)),
        post_processor,
        decoder: byte_level(true, true, true),
        model: bpe(vocab, merges, BpeOptions::default()),
    };
    Ok((parts.with_added(added), names))
}

fn post_processor(
    place: &str,
    family: &Family,
    settings: &Settings,
    [begin, end]: [Option<(&str, usize)>; 2],
) -> Result<Value> {
    let lacking = |what: &str| {
        let reason = format!("texts of this family have a token of {what}, and the vocabulary has none");
        Error::model(place, reason, "name it in tokenizer_config.json or special_tokens_map.json")
    };
    if let Around::BothTwice = family.around {
        let begin = begin.ok_or_else(|| lacking("beginning"))?;
        return Ok(end_twice(begin, end.ok_or_else(|| lacking("end"))?));
    }
    let begins = settings.flag("add_bos_token").unwrap_or(matches!(family.around, Around::Begin));
    let ends = settings.flag("add_eos_token").unwrap_or(false);
    let begin = if begins { Some(begin.ok_or_else(|| lacking("beginning"))?) } else { None };
    let end = if ends { Some(end.ok_or_else(|| lacking("end"))?) } else { None };
    Ok(around(begin, end, false))
}

fn read_vocab(path: &Path, place: &str, bytes: &[u8]) -> Result<Map<String, Value>> {
    let vocab: Map<String, Value> = serde_json::from_slice(bytes).map_err(|error| broken_json(path, &error))?;
    let bad = |reason: String| Error::model(place, reason, FIX);
    let mut ids = Vec::with_capacity(vocab.len());
    for (token, id) in &vocab {
        let token = printable(token, 60);
        match id.as_u64().filter(|id| *id < MAX_ID) {
            Some(id) => ids.push(id),
            None => return Err(bad(format!("\"{token}\" has the id {id}, ids are whole numbers below {MAX_ID}"))),
        }
        if token.ends_with("</w>") {
            let reason = format!("\"{token}\" ends in an end-of-word marker: this is not a byte-level vocabulary");
            return Err(Error::model(place, reason, "use a model whose tokenizer comes as tokenizer.json"));
        }
    }
    ids.sort_unstable();
    match ids.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(bad(format!("two tokens have the id {}", pair[0]))),
        None => Ok(vocab),
    }
}

/// The merges as pairs of tokens of the vocabulary whose concatenation is in the vocabulary, too.
fn read_merges(place: &str, bytes: &[u8], vocab: &Map<String, Value>) -> Result<Vec<Value>> {
    let mut merges = Vec::new();
    for (at, line) in utf8(place, bytes)?.lines().enumerate() {
        if line.is_empty() || at == 0 && line.starts_with("#version") {
            continue;
        }
        let Some(merge) = merge(line, |word| vocab.contains_key(word)) else {
            let reason = format!("\"{}\" is not of two tokens of vocab.json that make a third", printable(line, 80));
            return Err(Error::model(format!("{place}:{}", at + 1), reason, FIX));
        };
        if merges.len() == MAX_MERGES {
            let reason = format!("there are more than the {MAX_MERGES} merges that are read");
            return Err(Error::model(place, reason, FIX));
        }
        merges.push(merge);
    }
    Ok(merges)
}
