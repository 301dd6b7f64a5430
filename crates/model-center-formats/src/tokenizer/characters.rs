//! A vocabulary of characters, `characters.txt`, as a `tokenizer.json` document.
//!
//! Defines [`document`], called by [`super::AutoTokenizer`]. Each line is a token; its number, from 0, is the id. A
//! line of one character is that character; longer ones are special tokens, among which the unknown token is required.
//! Characters that a line cannot contain are written `\n`, `\r`, `\t`, `\\` and, for a space that editors would strip,
//! `\s`.

use serde_json::{Map, Value, json};

use super::document::{BpeOptions, DocumentParts, added_token, bpe};
use super::files::{Settings, utf8};
use crate::{Error, Result};
use model_center_base::file::printable;

/// More characters than Unicode has.
const MAX_COUNT: usize = 0x0011_0000;
/// Usual names of special tokens.
const USUAL: [(&str, &[&str]); 5] = [
    ("unk_token", &["<unk>", "[UNK]", "UNK"]),
    ("pad_token", &["<pad>", "[PAD]", "PAD"]),
    ("bos_token", &["<bos>", "<s>"]),
    ("eos_token", &["<eos>", "</s>"]),
    ("mask_token", &["<mask>", "[MASK]", "MASK"]),
];

/// The `tokenizer.json` document of such a file, and the names of its special tokens.
pub(super) fn document(place: &str, bytes: &[u8], settings: &Settings) -> Result<(Value, Map<String, Value>)> {
    let mut vocab = Map::new();
    let mut special = Vec::new();
    for (id, line) in utf8(place, bytes)?.split_terminator('\n').enumerate() {
        let line = line.strip_suffix('\r').unwrap_or(line);
        let bad = |reason: String, fix: &str| Error::model(format!("{place}:{}", id + 1), reason, fix);
        if id == MAX_COUNT {
            return Err(bad("there are more lines than characters".into(), "check that this is the file you meant"));
        }
        let token = match line {
            r"\n" => "\n",
            r"\r" => "\r",
            r"\t" => "\t",
            r"\s" => " ",
            r"\\" => "\\",
            "" => return Err(bad("the line is empty".into(), r"write a space as \s and a line's end as \n")),
            other => other,
        };
        if token.chars().nth(1).is_some() {
            special.push(added_token(token, id, true));
        }
        if vocab.insert(token.to_owned(), json!(id)).is_some() {
            return Err(bad(format!("\"{}\" appears twice", printable(line, 40)), "remove one of the two lines"));
        }
    }
    let mut names = Map::new();
    for (key, usual) in USUAL {
        let own = settings.special(key).into_iter();
        if let Some(name) = own.chain(usual.iter().copied()).find(|name| vocab.contains_key(*name)) {
            names.insert(key.into(), json!(name));
        }
    }
    let Some(unknown) = names.get("unk_token").cloned() else {
        let reason = format!("none of the {} tokens stands for characters that are not listed", vocab.len());
        let fix = "add a line <unk>, or name the token as unk_token in special_tokens_map.json";
        return Err(Error::model(place, reason, fix));
    };
    let find = |token: &str| vocab.get(token).and_then(Value::as_u64).and_then(|id| usize::try_from(id).ok());
    let added = settings.added_entries(special, find);
    let options = BpeOptions { unknown: unknown.as_str(), ..BpeOptions::default() };
    let parts = DocumentParts {
        normalizer: Value::Null,
        pre_tokenizer: Value::Null,
        post_processor: Value::Null,
        decoder: json!({ "type": "Fuse" }),
        model: bpe(vocab, Vec::new(), options),
    };
    Ok((parts.with_added(added), names))
}
