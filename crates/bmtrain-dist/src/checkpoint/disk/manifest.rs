//! The manifest: the description of a checkpoint, in one file whose hash is part of the directory's name.
//!
//! The file is one JSON object. Its last member is the BLAKE3 hash of all bytes before that member, at a fixed place,
//! so that the hash can be checked before anything is parsed. Equal facts give equal bytes.
//!
//! Written by [`Writer`](super::Writer), read by [`Store`](super::Store).

use super::fault::printable;
use super::hash::ContentHash;
use super::piece::FileRecord;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// The newest version of the format that this code reads. It writes the oldest that can express a checkpoint: version 1
/// has no pieces of several runs, which tensor-parallel ranks save.
pub const SCHEMA: u64 = 2;
/// Longest manifest: half a million pieces. It is held in memory as a whole.
pub(super) const MAX_MANIFEST_BYTES: u64 = 128 << 20;
/// Longest `layout` or `state`.
const MAX_FREE_BYTES: usize = 16 << 20;
/// Most values in `layout` or `state`, objects and lists counted: generic JSON takes fifty times its text in memory.
const MAX_VALUES: usize = 1 << 18;
/// Most files of one checkpoint.
const MAX_FILES: usize = 1 << 16;
/// Longest recipe hash.
const MAX_RECIPE: usize = 256;

const TRAILER_OPENS: &[u8] = b",\"hash\":\"";
const TRAILER_ENDS: &[u8] = b"\"}\n";
const TRAILER_BYTES: usize = TRAILER_OPENS.len() + 64 + TRAILER_ENDS.len();

/// The caller's record in a checkpoint, in addition to its tensors.
///
/// Numbers in `layout` and `state` come back to the last bit. JSON has no NaN and no infinities: `serde_json`
/// makes them `null`, so a caller that may have such numbers stores their bits.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Facts {
    /// Number of ranks that saved it; each wrote one file.
    pub world: u64,
    /// Their division of the model, and other facts for people and tools: no digest and no state depends on it.
    pub layout: Map<String, Value>,
    /// Hash of the recipe, or any other short text that tells runs apart.
    pub recipe: String,
    /// Scaler, schedules, position in the data, counters: what has no tensors.
    pub state: Map<String, Value>,
}

/// Manifest of a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// Optimizer steps done.
    pub step: u64,
    /// The caller's record.
    pub facts: Facts,
    /// The files, sorted by name.
    pub files: Vec<FileRecord>,
}

#[derive(Serialize)]
struct Written<'a> {
    schema: u64,
    step: u64,
    world: u64,
    layout: Value,
    recipe: &'a str,
    state: Value,
    files: &'a [FileRecord],
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Read<'a> {
    #[serde(rename = "schema")]
    _schema: u64,
    step: u64,
    world: u64,
    #[serde(borrow)]
    layout: &'a RawValue,
    recipe: String,
    #[serde(borrow)]
    state: &'a RawValue,
    files: Vec<FileRecord>,
    #[serde(rename = "hash")]
    _hash: ContentHash,
}

#[derive(Deserialize)]
struct Version {
    schema: u64,
}

impl Manifest {
    /// The bytes of the file and the hash they carry, or why there can be no such manifest.
    pub(super) fn encode(&self) -> Result<(Vec<u8>, ContentHash), String> {
        self.check()?;
        let written = Written {
            schema: self.schema(),
            step: self.step,
            world: self.facts.world,
            layout: sorted(&self.facts.layout),
            recipe: &self.facts.recipe,
            state: sorted(&self.facts.state),
            files: &self.files,
        };
        let mut bytes = serde_json::to_vec(&written).map_err(|e| e.to_string())?;
        // The closing brace comes again after the trailer.
        bytes.pop();
        let hash = ContentHash::of(&bytes);
        bytes.extend_from_slice(TRAILER_OPENS);
        bytes.extend_from_slice(hash.to_string().as_bytes());
        bytes.extend_from_slice(TRAILER_ENDS);
        if bytes.len() as u64 > MAX_MANIFEST_BYTES {
            return Err(format!("the manifest has {} bytes, at most {MAX_MANIFEST_BYTES} are read", bytes.len()));
        }
        // What is written must be readable: the limits on free JSON are checked by the reader's own code.
        Manifest::decode(&bytes)?;
        Ok((bytes, hash))
    }

    /// The manifest in these bytes with its hash, or what is wrong with it.
    ///
    /// Memory: a small multiple of the bytes, whatever their content.
    pub(super) fn decode(bytes: &[u8]) -> Result<(Self, ContentHash), String> {
        let hash = check_trailer(bytes)?;
        let text = std::str::from_utf8(bytes).map_err(|e| format!("byte {} is not UTF-8", e.valid_up_to()))?;
        let wrong = |e: serde_json::Error| format!("not a valid manifest: {}", printable(&e.to_string(), 300));
        let version: Version = serde_json::from_str(text).map_err(wrong)?;
        if !(1..=SCHEMA).contains(&version.schema) {
            let reads = format!("this program reads versions 1 to {SCHEMA}");
            return Err(format!("the format has version {}, {reads}", version.schema));
        }
        let read: Read<'_> = serde_json::from_str(text).map_err(wrong)?;
        let facts = Facts {
            world: read.world,
            layout: free("layout", read.layout)?,
            recipe: read.recipe,
            state: free("state", read.state)?,
        };
        let manifest = Manifest { step: read.step, facts, files: read.files };
        manifest.check()?;
        if manifest.schema() > version.schema {
            return Err(format!("version {} of the format has no pieces of several runs", version.schema));
        }
        Ok((manifest, hash))
    }

    /// Bytes of all files, without the manifest. Saturates.
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
    }

    /// The oldest version of the format that can express it.
    fn schema(&self) -> u64 {
        let has_runs = self.files.iter().flat_map(|file| &file.pieces).any(|piece| piece.spec.runs > 1);
        if has_runs { 2 } else { 1 }
    }

    fn check(&self) -> Result<(), String> {
        let (files, ranks) = (self.files.len(), self.facts.world);
        if files as u64 != ranks || files > MAX_FILES {
            return Err(format!("{files} files from {ranks} ranks: each rank writes one, and at most {MAX_FILES} do"));
        }
        if self.facts.recipe.len() > MAX_RECIPE || self.facts.recipe.chars().any(char::is_control) {
            return Err(format!("the recipe's hash is longer than {MAX_RECIPE} bytes or not printable"));
        }
        self.files.iter().try_for_each(FileRecord::check)?;
        match self.files.windows(2).find(|pair| pair[0].name >= pair[1].name) {
            Some(pair) => Err(format!("file {}: listed twice, or the files are not sorted", pair[1].name)),
            None => Ok(()),
        }
    }
}

fn check_trailer(bytes: &[u8]) -> Result<ContentHash, String> {
    let damaged = || "the manifest is cut short or overwritten: it does not end in its own hash".to_string();
    let (body, trailer) = bytes.split_at_checked(bytes.len().wrapping_sub(TRAILER_BYTES)).ok_or_else(damaged)?;
    let digits = trailer.strip_prefix(TRAILER_OPENS).and_then(|rest| rest.strip_suffix(TRAILER_ENDS));
    let claimed = digits.and_then(|digits| std::str::from_utf8(digits).ok()).and_then(ContentHash::parse);
    let claimed = claimed.ok_or_else(damaged)?;
    let found = ContentHash::of(body);
    if found == claimed { Ok(found) } else { Err(format!("the manifest's hash is {found}, but it claims {claimed}")) }
}

fn sorted(map: &Map<String, Value>) -> Value {
    let mut value = Value::Object(map.clone());
    value.sort_all_objects();
    value
}

/// Parse free JSON after a look at how much memory it can take at most.
fn free(what: &str, raw: &RawValue) -> Result<Map<String, Value>, String> {
    let text = raw.get();
    // Every value but the first follows one of these; those inside of strings only make the bound larger.
    let values = 1 + text.bytes().filter(|b| b",[:".contains(b)).count();
    if text.len() > MAX_FREE_BYTES || values > MAX_VALUES {
        return Err(format!(
            "{what} has {} bytes and up to {values} values, at most {MAX_FREE_BYTES} and {MAX_VALUES} are read",
            text.len()
        ));
    }
    serde_json::from_str(text).map_err(|e| format!("{what} is not a JSON object: {}", printable(&e.to_string(), 300)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    fn manifest(state: Value) -> Manifest {
        let facts = Facts { world: 0, layout: Map::new(), recipe: "r".into(), state: object(state) };
        Manifest { step: 7, facts, files: Vec::new() }
    }

    /// Bytes with a right hash around any body, as an attacker makes them.
    fn signed(body: &str) -> Vec<u8> {
        format!("{body},\"hash\":\"{}\"}}\n", ContentHash::of(body.as_bytes())).into_bytes()
    }

    #[test]
    fn the_order_of_keys_does_not_change_the_bytes() {
        let a = manifest(json!({"b": {"y": 1, "x": [2.5, {"q": 1, "p": 2}]}, "a": true}));
        let b = manifest(json!({"a": true, "b": {"x": [2.5, {"p": 2, "q": 1}], "y": 1}}));
        assert_eq!(a.encode().unwrap(), b.encode().unwrap());
        assert!(serde_json::from_slice::<Value>(&a.encode().unwrap().0).is_ok());
    }

    #[test]
    fn numbers_of_the_state_come_back_to_the_last_bit() {
        let numbers = [0.1, 1.0 / 3.0, f64::MIN_POSITIVE, 9007199254740993.0, 5e-324, -0.0, 65536.0, 1.7e308];
        for bits in numbers.map(f64::to_bits).into_iter().chain((1..2000u64).map(|i| i * 0x0009_1234_5678_9abd)) {
            let number = f64::from_bits(bits);
            if number.is_finite() {
                let read = Manifest::decode(&manifest(json!({"n": number})).encode().unwrap().0).unwrap().0;
                assert_eq!(read.facts.state["n"].as_f64().unwrap().to_bits(), bits, "{number:e}");
            }
        }
        let big = json!({"n": u64::MAX, "m": i64::MIN});
        assert_eq!(Manifest::decode(&manifest(big.clone()).encode().unwrap().0).unwrap().0.facts.state, object(big));
    }

    #[test]
    fn the_bytes_of_the_format_are_frozen() {
        let (bytes, hash) = manifest(json!({"scale": 65536.0, "position": [3, 17]})).encode().unwrap();
        let start = r#"{"schema":1,"step":7,"world":0,"layout":{},"recipe":"r","state":"#;
        let body = &format!("{start}{}", r#"{"position":[3,17],"scale":65536.0},"files":[]"#);
        assert_eq!(bytes, signed(body));
        assert_eq!(hash, ContentHash::of(body.as_bytes()));
    }

    #[test]
    fn every_changed_or_missing_byte_is_noticed() {
        let (bytes, _) = manifest(json!({"scale": 1024.0})).encode().unwrap();
        for at in 0..bytes.len() {
            assert!(Manifest::decode(&bytes[..at]).is_err());
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                assert!(Manifest::decode(&changed).is_err(), "bit {bit} of byte {at}");
            }
        }
    }

    #[test]
    fn well_signed_nonsense_is_refused_with_a_reason() {
        let start = r#"{"schema":1,"step":7,"world":0,"layout":{},"recipe":"r","state":"#;
        for (body, reason) in [
            ("[".into(), "not a valid manifest"),
            (r#"{"schema":3,"new":[]"#.into(), "version 3, this program reads versions 1 to 2"),
            (r#"{"schema":0,"new":[]"#.into(), "version 0"),
            (format!("{start}[],\"files\":[]"), "state is not a JSON object"),
            (format!("{start}{{}},\"files\":[],\"step\":8"), "duplicate field"),
            (format!("{start}{{}},\"files\":[],\"extra\":8"), "unknown field"),
            (format!("{start}{}1{},\"files\":[]", "[".repeat(400), "]".repeat(400)), "state is not a JSON object"),
            (format!("{start}{{\"a\":[1{}]}},\"files\":[]", ",1".repeat(MAX_VALUES)), "at most"),
            (format!("{start}{{\"a\":\"{}\"}},\"files\":[]", "x".repeat(MAX_FREE_BYTES)), "at most"),
            (format!("{start}{{}},\"files\":[]").replace("\"world\":0", "\"world\":1"), "each rank writes one"),
            (format!("{start}{{}},\"files\":[]").replace("\"r\"", "\"\\u001b\""), "not printable"),
        ] {
            let error = Manifest::decode(&signed(&body)).unwrap_err();
            assert!(error.contains(reason), "{error} does not contain {reason}");
            assert!(error.len() < 500 && !error.contains('\u{1b}'), "{error}");
        }
    }

    #[test]
    fn what_could_not_be_read_is_not_written() {
        let facts = Facts { recipe: "a\nb".into(), ..Facts::default() };
        assert!(Manifest { step: 0, facts, files: Vec::new() }.encode().is_err());
        let long: Vec<u8> = vec![0; MAX_VALUES];
        assert!(manifest(json!({ "list": long })).encode().unwrap_err().contains("at most"));
    }
}
