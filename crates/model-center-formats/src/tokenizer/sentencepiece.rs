//! A SentencePiece `.model` file as a `tokenizer.json` document.
//!
//! Defines [`document`], called by [`super::AutoTokenizer`]. The file specifies the pieces, normalization and
//! segmentation; the special tokens around a text and the ids of the pieces depend on the family: T5 has its sentinels
//! after the pieces, XLM-RoBERTa its own first ids.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::document::{self, Slot};
use super::files::Settings;
use super::pieces::{Cutting, PieceKind, PieceVocabulary, ScoredPiece};
use super::protobuf::{Fields, Wire};
use crate::{Error, Result};

/// The maximum number of pieces: several times more than the largest real vocabularies have.
const MAX_COUNT: usize = 1 << 20;
const FIX: &str = "fetch the file again; only whole models as SentencePiece trains them are read";
/// T5's sentinels, and the most that a configuration may ask for.
const T5_BLANKS: u64 = 100;
const MAX_BLANKS: u64 = 10_000;
/// Families whose ids differ from the file's in unsupported ways: prefixes of their names, and their titles.
const OTHER_IDS: [(&str, &str); 15] = [
    ("mbart", "mBART"),
    ("nllb", "NLLB"),
    ("m2m100", "M2M100"),
    ("camembert", "CamemBERT"),
    ("xglm", "XGLM"),
    ("barthez", "BARThez"),
    ("bartpho", "BARTpho"),
    ("plbart", "PLBART"),
    ("erniem", "ERNIE-M"),
    ("layoutxlm", "LayoutXLM"),
    ("mluke", "mLUKE"),
    ("seamlessm4t", "SeamlessM4T"),
    ("xlmprophetnet", "XLM-ProphetNet"),
    ("pegasus", "Pegasus"),
    ("bigbirdpegasus", "BigBird-Pegasus"),
];

#[derive(Debug)]
struct Model<'a> {
    pieces: Vec<ScoredPiece<'a>>,
    /// 1 Unigram, 2 BPE, 3 word, 4 char.
    cutting: u64,
    byte_fallback: bool,
    spaces_follow: bool,
    /// The ids of unknown, begin, end and padding; -1 for none.
    ids: [i64; 4],
    charsmap: &'a [u8],
    prefixed: bool,
    trimmed: bool,
    escaped: bool,
}

/// A `.model` file in the library's terms.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) json: Value,
    pub(super) names: Map<String, Value>,
    /// Pieces that no text becomes, which a `tokenizer.json` cannot express.
    pub(super) unused: Vec<u32>,
}

/// The `tokenizer.json` document of a `.model` file, with what such a document cannot express.
pub(super) fn document(place: &str, bytes: &[u8], settings: &Settings) -> Result<Document> {
    check_family(place, settings)?;
    let model = Model::read(bytes).map_err(|reason| Error::model(place, reason, FIX))?;
    let refuse = |reason: &str| Error::model(place, reason, "convert the tokenizer to tokenizer.json");
    let cutting = match model.cutting {
        1 => Cutting::Unigram,
        2 => Cutting::BytePairs,
        4 => Cutting::Characters,
        _ => return Err(refuse("a vocabulary of whole words is not read; Unigram, BPE and characters are")),
    };
    if model.spaces_follow {
        return Err(refuse("pieces with the space after the word are not supported"));
    }
    if !model.escaped {
        return Err(refuse("pieces with plain spaces in them are not read"));
    }
    let special = model.ids.map(|id| usize::try_from(id).ok().filter(|id| *id < model.pieces.len()));
    let names: Vec<Option<String>> = special.iter().map(|id| id.map(|id| model.pieces[id].text.to_owned())).collect();
    let sentinels = sentinels(settings, &model.pieces);
    let mut pieces = model.pieces;
    let mut unknown = special[0];
    if settings.is_family("xlmroberta") {
        pieces = xlm_roberta(place, pieces)?;
        unknown = Some(3);
    }
    pieces.extend(sentinels.iter().map(|text| ScoredPiece { text, score: 0.0, kind: PieceKind::Control }));
    let vocabulary = PieceVocabulary {
        place: place.to_owned(),
        pieces,
        cutting,
        charsmap: model.charsmap,
        prefixed: model.prefixed,
        trimmed: model.trimmed,
        byte_fallback: model.byte_fallback,
        unknown,
    };
    let mut parts = vocabulary.parts()?;
    // Tokens that a directory adds continue the ids of the pieces.
    let own: HashMap<&str, usize> = vocabulary.pieces.iter().enumerate().map(|(id, piece)| (piece.text, id)).collect();
    let mut added = settings.added_entries(vocabulary.added(), |token| own.get(token).copied());
    for entry in &mut added {
        // Normalized like a text, a token would start with a space and be matched only after spaces.
        entry["normalized"] = json!(false);
    }
    let unused = vocabulary.pieces.iter().enumerate().filter(|(_, piece)| piece.kind == PieceKind::Unused);
    let unused = unused.filter_map(|(id, _)| u32::try_from(id).ok()).collect();
    parts.post_processor = post_processor(place, &vocabulary, &names, settings)?;
    if settings.is_family("albert") {
        change_texts(&mut parts.normalizer, settings);
    }
    let json = parts.with_added(added);
    let keys = ["unk_token", "bos_token", "eos_token", "pad_token"];
    let names = keys.iter().zip(names).filter_map(|(key, name)| Some((key.to_string(), json!(name?)))).collect();
    Ok(Document { json, names, unused })
}

/// Refuses families whose own code gives the pieces other ids than the file.
fn check_family(place: &str, settings: &Settings) -> Result<()> {
    let found = OTHER_IDS.iter().find(|(name, _)| settings.is_family(name));
    match found.filter(|_| !settings.is_family("xlmroberta")) {
        None => Ok(()),
        Some((_, title)) => Err(Error::model(
            place,
            format!("this is {title}'s vocabulary, whose ids are not the file's but defined by the family's own code"),
            "transformers: AutoTokenizer.from_pretrained(directory).save_pretrained(directory) writes tokenizer.json",
        )),
    }
}

/// ALBERT's changes of a text before the file's own: quotation marks of two characters become one, accents are removed
/// and letters lower-cased.
fn change_texts(normalizer: &mut Value, settings: &Settings) {
    let replace = |pattern: &str| json!({ "type": "Replace", "pattern": { "String": pattern }, "content": "\"" });
    let mut steps = vec![replace("``"), replace("''")];
    if !settings.flag("keep_accents").unwrap_or(false) {
        steps.extend([json!({ "type": "NFKD" }), json!({ "type": "StripAccents" })]);
    }
    if settings.flag("do_lower_case").unwrap_or(true) {
        steps.push(json!({ "type": "Lowercase" }));
    }
    if let Some(own) = normalizer.get_mut("normalizers").and_then(Value::as_array_mut) {
        own.splice(..0, steps);
    }
}

/// Special tokens that the family puts around a text: T5 the end, Llama the beginning, XLM-RoBERTa both, ALBERT BERT's;
/// others nothing.
fn post_processor(
    place: &str,
    vocabulary: &PieceVocabulary<'_>,
    names: &[Option<String>],
    settings: &Settings,
) -> Result<Value> {
    let find = |key: &str, own: &Option<String>| {
        let name = settings.special(key).or(own.as_deref())?;
        vocabulary.pieces.iter().position(|piece| piece.text == name).map(|id| (vocabulary.pieces[id].text, id))
    };
    let (begin, end) = (find("bos_token", &names[1]), find("eos_token", &names[2]));
    if settings.is_family("xlmroberta")
        && let (Some(begin), Some(end)) = (begin, end)
    {
        return Ok(document::end_twice(begin, end));
    }
    if settings.is_family("albert") {
        let find = |key, usual: &str| find(key, &Some(usual.to_owned()));
        let (Some(cls), Some(sep)) = (find("cls_token", "[CLS]"), find("sep_token", "[SEP]")) else {
            let reason = "ALBERT puts cls_token and sep_token around texts, and the vocabulary lacks one of them";
            return Err(Error::model(place, reason, "name tokens of the vocabulary in tokenizer_config.json"));
        };
        let (cls, sep) = (Slot::Token(cls.0, cls.1), Slot::Token(sep.0, sep.1));
        let single = [cls, Slot::First, sep];
        return Ok(document::template(&single, &[cls, Slot::First, sep, Slot::Second, sep], true));
    }
    let begins = ["llama", "mistral", "mixtral", "gemma", "codellama"].iter().any(|name| settings.is_family(name));
    let ends = ["t5", "mt5", "umt5"].iter().any(|name| settings.is_family(name));
    let begin = wanted_token(place, settings, ("add_bos_token", begins), begin)?;
    let end = wanted_token(place, settings, ("add_eos_token", ends), end)?;
    Ok(document::around(begin, end, false))
}

/// The token if the configuration, or else the family, wants it around texts.
fn wanted_token<'a>(
    place: &str,
    settings: &Settings,
    (key, usual): (&str, bool),
    token: Option<(&'a str, usize)>,
) -> Result<Option<(&'a str, usize)>> {
    match (settings.flag(key).unwrap_or(usual), token) {
        (false, _) => Ok(None),
        (true, Some(token)) => Ok(Some(token)),
        (true, None) => Err(Error::model(
            place,
            format!("{key} is to hold, and the vocabulary has no such token"),
            format!("name a token of the vocabulary in tokenizer_config.json, or set {key} to false there"),
        )),
    }
}

/// T5's sentinels, which are not in the file: 100 unless the configuration specifies another number, the highest first.
fn sentinels(settings: &Settings, pieces: &[ScoredPiece<'_>]) -> Vec<String> {
    let usual = if settings.is_family("t5") && !settings.family.starts_with("mt5") { T5_BLANKS } else { 0 };
    let count = settings.config.get("extra_ids").and_then(Value::as_u64).unwrap_or(usual).min(MAX_BLANKS);
    let has_own = pieces.iter().any(|piece| piece.text == "<extra_id_0>");
    if has_own { Vec::new() } else { (0..count).rev().map(|at| format!("<extra_id_{at}>")).collect() }
}

/// The order of ids in XLM-RoBERTa: begin, padding, end and unknown first, the pieces after their own first three, the
/// blank.
fn xlm_roberta<'a>(place: &str, pieces: Vec<ScoredPiece<'a>>) -> Result<Vec<ScoredPiece<'a>>> {
    if pieces.len() < 3 || pieces[..3].iter().any(|piece| piece.kind == PieceKind::Normal) {
        let reason = "the first three pieces are not the unknown token, BOS and EOS";
        return Err(Error::model(place, reason, "check that the file belongs to the model"));
    }
    let control = |(text, kind)| ScoredPiece { text, score: 0.0, kind };
    let first = [
        ("<s>", PieceKind::Control),
        ("<pad>", PieceKind::Control),
        ("</s>", PieceKind::Control),
        ("<unk>", PieceKind::Unknown),
    ];
    let last = [("<mask>", PieceKind::Control)];
    Ok(first.map(control).into_iter().chain(pieces.into_iter().skip(3)).chain(last.map(control)).collect())
}

impl<'a> Model<'a> {
    fn read(bytes: &'a [u8]) -> std::result::Result<Model<'a>, String> {
        let mut model = Model {
            pieces: Vec::new(),
            cutting: 1,
            byte_fallback: false,
            spaces_follow: false,
            ids: [0, 1, 2, -1],
            charsmap: &[],
            prefixed: true,
            trimmed: true,
            escaped: true,
        };
        for field in Fields::new(bytes) {
            let field =
                field.map_err(|at| format!("byte {at}: this is not a SentencePiece model, or a damaged one"))?;
            match (field.number, field.value) {
                (1, Wire::Bytes(piece)) => {
                    if model.pieces.len() == MAX_COUNT {
                        return Err(format!("there are more than the {MAX_COUNT} pieces that are read"));
                    }
                    let id = model.pieces.len();
                    model.pieces.push(read_piece(piece).map_err(|reason| format!("piece {id} {reason}"))?);
                }
                (2, Wire::Bytes(trainer)) => model.read_trainer(trainer)?,
                (3, Wire::Bytes(normalizer)) => model.read_normalizer(normalizer)?,
                _ => {}
            }
        }
        if model.pieces.is_empty() {
            return Err("there are no pieces: this is not a SentencePiece model".into());
        }
        Ok(model)
    }

    /// Reads the trainer's options, which determine the model's kind.
    fn read_trainer(&mut self, bytes: &'a [u8]) -> std::result::Result<(), String> {
        for field in Fields::new(bytes) {
            let field = field.map_err(|at| format!("byte {at} of its training settings is damaged"))?;
            let Wire::Whole(value) = field.value else { continue };
            match field.number {
                3 => self.cutting = value,
                24 => self.spaces_follow = value != 0,
                35 => self.byte_fallback = value != 0,
                // Negative numbers are encoded as 64-bit ones.
                number @ 40..=43 => self.ids[number as usize - 40] = value.cast_signed(),
                _ => {}
            }
        }
        Ok(())
    }

    fn read_normalizer(&mut self, bytes: &'a [u8]) -> std::result::Result<(), String> {
        for field in Fields::new(bytes) {
            let field = field.map_err(|at| format!("byte {at} of its changes of texts is damaged"))?;
            match (field.number, field.value) {
                (2, Wire::Bytes(map)) => self.charsmap = map,
                (3, Wire::Whole(value)) => self.prefixed = value != 0,
                (4, Wire::Whole(value)) => self.trimmed = value != 0,
                (5, Wire::Whole(value)) => self.escaped = value != 0,
                _ => {}
            }
        }
        Ok(())
    }
}

fn read_piece(bytes: &[u8]) -> std::result::Result<ScoredPiece<'_>, String> {
    let mut piece = ScoredPiece { text: "", score: 0.0, kind: PieceKind::Normal };
    for field in Fields::new(bytes) {
        let field = field.map_err(|at| format!("is damaged at its byte {at}"))?;
        match (field.number, field.value) {
            (1, Wire::Bytes(text)) => piece.text = std::str::from_utf8(text).map_err(|_| "is not UTF-8 text")?,
            (2, Wire::Four(score)) => piece.score = f32::from_le_bytes(score),
            (3, Wire::Whole(kind)) => {
                piece.kind = PieceKind::of(kind).ok_or_else(|| format!("is of kind {kind}, the last is 6"))?;
            }
            _ => {}
        }
    }
    if piece.text.is_empty() { Err("has no text".into()) } else { Ok(piece) }
}
