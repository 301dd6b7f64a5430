//! The tokenizers of the CPM models: Chinese words, then the longest pieces that a vocabulary has.
//!
//! Defines [`CpmTokenizer`] for CPM-1, CPM-2 and the EncDec vocabularies of Yuan, and [`CpmKind`], which tells them
//! apart. [`CpmKind::of_directory`] and [`CpmTokenizer::from_directory`] are how a directory's tokenizer is opened.

mod vocabulary;
mod width;
#[cfg(feature = "cpm")]
mod words;
#[cfg(not(feature = "cpm"))]
#[path = "words_absent.rs"]
mod words;

use std::fmt;
use std::path::Path;

use self::vocabulary::{Pieces, Vocabulary};
use super::catch::catch_errors;
use super::files::{Settings, read_bounded};
use super::{SpecialIds, Template, TemplateSlot, Tokenizer};
use crate::{Error, Result};

const VOCABULARY: &str = "vocab.txt";
/// A longer word is one unknown token.
const MAX_WORD_CHARACTERS: usize = 200;
/// The most sentinels a vocabulary has.
const MAX_SENTINELS: usize = 190;
/// Replacement of a space and a newline in a text of CPM-1 and CPM-2 while it is cut.
const SPACE: char = '\u{fff2}';
const NEWLINE: char = '\u{fff3}';

/// The rules by which a vocabulary is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CpmKind {
    /// CPM-1: a space is `</_>`, a newline `</n>`; `<s>`, where the vocabulary has it, begins a text.
    Cpm1,
    /// CPM-2: a space is `▂`, a newline `▃`; a text may begin with `<s>`, and there are sentinels.
    Cpm2,
    /// The first tokenizer of CPM-2 and that of Yuan: as [`CpmKind::Cpm2`], and within a word what is not Chinese
    /// begins with `##`; between two tokens that are not Chinese a space is left out.
    EncDec,
}

impl CpmKind {
    /// The rules of a model directory's `vocab.txt`; `None` if it is not a CPM vocabulary, or if there is a
    /// `tokenizer.json` beside it.
    ///
    /// `tokenizer_class` in `tokenizer_config.json` decides if it is `CPM1Tokenizer`, `CPM2Tokenizer` or
    /// `EncDecTokenizer`. Otherwise the tokens do: `</_>` and `</n>` are CPM-1's, `▂`, `▃` and `<s_0>` CPM-2's, and if
    /// one of a hundred tokens begins with `##`, EncDec's.
    pub fn of_directory(directory: impl AsRef<Path>) -> Result<Option<CpmKind>> {
        let directory = directory.as_ref();
        if directory.join("tokenizer.json").symlink_metadata().is_ok() {
            return Ok(None);
        }
        let Some(bytes) = read_bounded(directory, VOCABULARY)? else { return Ok(None) };
        let settings = Settings::of_directory(directory)?;
        match settings.config.get("tokenizer_class").and_then(serde_json::Value::as_str) {
            Some("CPM1Tokenizer") => return Ok(Some(CpmKind::Cpm1)),
            Some("CPM2Tokenizer") => return Ok(Some(CpmKind::Cpm2)),
            Some("EncDecTokenizer") => return Ok(Some(CpmKind::EncDec)),
            Some(_) | None => (),
        }
        // Some vocabularies of other families are no text that this reader takes; they are not CPM's, and no mistake.
        let Ok(vocabulary) = Vocabulary::parse(VOCABULARY, &bytes) else { return Ok(None) };
        let has = |tokens: &[&str]| tokens.iter().all(|token| vocabulary.id(token).is_some());
        if !has(&["<eod>", "<pad>", "<unk>"]) {
            return Ok(None);
        }
        if has(&["▂", "▃", "<s_0>"]) {
            let continued = vocabulary.count_with_prefix("##");
            return Ok(Some(if continued * 100 >= vocabulary.len() { CpmKind::EncDec } else { CpmKind::Cpm2 }));
        }
        Ok(has(&["</_>", "</n>"]).then_some(CpmKind::Cpm1))
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            CpmKind::Cpm1 => "CPM-1 (vocab.txt)",
            CpmKind::Cpm2 => "CPM-2 (vocab.txt)",
            CpmKind::EncDec => "CPM's EncDec (vocab.txt)",
        }
    }

    /// Spelling of a space and a newline in the vocabulary.
    fn white_space(self) -> (&'static str, &'static str) {
        match self {
            CpmKind::Cpm1 => ("</_>", "</n>"),
            CpmKind::Cpm2 | CpmKind::EncDec => ("▂", "▃"),
        }
    }
}

/// A tokenizer of a CPM model.
///
/// A text is cut into words by jieba, and each word into the longest pieces from its left; a character that no piece
/// begins with is an unknown token. Special tokens written inside a text are text. Decoding joins the pieces; what was
/// unknown is lost, and in texts of CPM-1 and CPM-2 the spellings of white space (`</_>`, `▂`) come back as white
/// space.
pub struct CpmTokenizer {
    place: String,
    kind: CpmKind,
    vocabulary: Vocabulary,
    /// Pieces with which texts are spelled.
    pieces: Pieces,
    /// Continuations of a word that is not Chinese; of EncDec alone.
    continuations: Option<Pieces>,
    special: SpecialIds,
    unknown: u32,
    space: u32,
    newline: u32,
    sentinels: Vec<u32>,
    half_width: bool,
    single: Template,
    pair: Template,
}

impl CpmTokenizer {
    /// The tokenizer of a directory with the `vocab.txt` of a CPM model. `q2b` in `tokenizer_config.json` is taken
    /// over.
    pub fn from_directory(directory: impl AsRef<Path>) -> Result<CpmTokenizer> {
        let directory = directory.as_ref();
        let kind = CpmKind::of_directory(directory)?.ok_or_else(|| {
            let fix = "its vocab.txt must have <eod>, <pad>, <unk>, and </_>, </n> (CPM-1) or ▂, ▃, <s_0> (CPM-2)";
            Error::model(directory.display().to_string(), "there is no vocab.txt of a CPM model in this directory", fix)
        })?;
        let tokenizer = CpmTokenizer::with_kind(directory, kind)?;
        Ok(tokenizer.with_half_width(Settings::of_directory(directory)?.flag("q2b").unwrap_or(false)))
    }

    /// The tokenizer of a directory's `vocab.txt`, used by the rules that are given.
    pub fn with_kind(directory: impl AsRef<Path>, kind: CpmKind) -> Result<CpmTokenizer> {
        let directory = directory.as_ref();
        let place = directory.join(VOCABULARY).display().to_string();
        words::check(&place)?;
        let bytes = read_bounded(directory, VOCABULARY)?.ok_or_else(|| {
            Error::model(&place, "there is no such file", "copy the vocab.txt of the model into the directory")
        })?;
        CpmTokenizer::from_vocabulary(place.clone(), kind, Vocabulary::parse(&place, &bytes)?)
    }

    fn from_vocabulary(place: String, kind: CpmKind, vocabulary: Vocabulary) -> Result<CpmTokenizer> {
        let require = |token: &str| {
            vocabulary.id(token).ok_or_else(|| {
                let reason = format!("the vocabulary of {} tokens lacks {token}", vocabulary.len());
                Error::model(&place, reason, format!("check that this is a vocabulary of {kind:?}"))
            })
        };
        let (space, newline) = kind.white_space();
        let (space, newline) = (require(space)?, require(newline)?);
        let unknown = require("<unk>")?;
        let special = SpecialIds {
            pad: Some(require("<pad>")?),
            unk: Some(unknown),
            bos: match kind {
                CpmKind::Cpm1 | CpmKind::EncDec => vocabulary.id("<s>"),
                CpmKind::Cpm2 => Some(require("<s>")?),
            },
            eos: Some(require("<eod>")?),
            ..SpecialIds::default()
        };
        let sentinels: Vec<u32> = match kind {
            CpmKind::Cpm1 => Vec::new(),
            CpmKind::Cpm2 | CpmKind::EncDec => {
                (0..MAX_SENTINELS).map_while(|number| vocabulary.id(&format!("<s_{number}>"))).collect()
            }
        };
        let control = |id: u32| {
            [special.pad, special.unk, special.bos, special.eos].contains(&Some(id)) || sentinels.contains(&id)
        };
        let pieces = vocabulary.pieces("", |id| !control(id));
        let continuations = (kind == CpmKind::EncDec).then(|| vocabulary.pieces("##", |_| true));
        let (first, second) = (TemplateSlot::First { type_id: 0 }, TemplateSlot::Second { type_id: 0 });
        Ok(CpmTokenizer {
            kind,
            pieces,
            continuations,
            special,
            unknown,
            space,
            newline,
            sentinels,
            half_width: false,
            single: Template { pieces: vec![first] },
            pair: Template { pieces: vec![first, second] },
            vocabulary,
            place,
        })
    }

    /// Whether full-width characters become half-width ones after the text is cut into words; by default not. Without
    /// effect on EncDec.
    #[must_use]
    pub fn with_half_width(mut self, half_width: bool) -> CpmTokenizer {
        self.half_width = half_width && self.kind != CpmKind::EncDec;
        self
    }

    /// The rules it uses.
    pub fn kind(&self) -> CpmKind {
        self.kind
    }

    /// The number of sentinels: 190 in CPM-2's vocabularies, none in CPM-1's.
    pub fn sentinels(&self) -> usize {
        self.sentinels.len()
    }

    /// The id of sentinel `number`, from 0: what stands for a span that is to be filled in.
    pub fn sentinel_id(&self, number: usize) -> Option<u32> {
        self.sentinels.get(number).copied()
    }

    fn ids(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        if self.kind == CpmKind::EncDec {
            words::words(text, |word| self.push_word(word, &mut ids));
            return self.without_spaces(&ids);
        }
        let (space, newline) = self.kind.white_space();
        let mut text =
            text.replace(' ', SPACE.encode_utf8(&mut [0; 4])).replace('\n', NEWLINE.encode_utf8(&mut [0; 4]));
        for (spelled, by) in [(space, SPACE), (newline, NEWLINE)] {
            if text.contains(spelled) {
                text = text.replace(spelled, by.encode_utf8(&mut [0; 4]));
            }
        }
        words::words(&text, |word| self.push_word(word, &mut ids));
        ids
    }

    fn push_word(&self, word: &str, ids: &mut Vec<u32>) {
        if word.len() > MAX_WORD_CHARACTERS && word.chars().count() > MAX_WORD_CHARACTERS {
            return ids.push(self.unknown);
        }
        let changed: String;
        let word = match self.kind {
            CpmKind::EncDec if word.contains([' ', '\n']) => {
                changed = word.replace(' ', "▂").replace('\n', "▃");
                &changed
            }
            CpmKind::Cpm1 | CpmKind::Cpm2 if self.half_width && !word.is_ascii() => {
                changed = word.chars().map(width::half_width).collect();
                &changed
            }
            CpmKind::Cpm1 | CpmKind::Cpm2 | CpmKind::EncDec => word,
        };
        let mut start = 0;
        while let Some(first) = word[start..].chars().next() {
            let (length, id) = match first {
                SPACE | ' ' if self.kind != CpmKind::EncDec => (first.len_utf8(), self.space),
                NEWLINE if self.kind != CpmKind::EncDec => (first.len_utf8(), self.newline),
                _ => self.longest(word, start).unwrap_or((first.len_utf8(), self.unknown)),
            };
            ids.push(id);
            start += length;
        }
    }

    /// The longest piece of the vocabulary that `word` goes on with.
    fn longest(&self, word: &str, start: usize) -> Option<(usize, u32)> {
        let rest = &word[start..];
        let plain = self.vocabulary.longest(&self.pieces, rest);
        let Some(continuations) = self.continuations.as_ref().filter(|_| start > 0) else { return plain };
        // A plain piece with a Chinese character is longer than any piece without.
        plain.filter(|(length, _)| rest[..*length].contains(is_chinese)).or_else(|| {
            let without = &rest[..rest.find(is_chinese).unwrap_or(rest.len())];
            self.vocabulary.longest(continuations, without)
        })
    }

    /// Without the spaces between two tokens that are not Chinese.
    fn without_spaces(&self, ids: &[u32]) -> Vec<u32> {
        let dropped = |at: usize| {
            ids[at] == self.space
                && at > 0
                && at + 1 < ids.len()
                && self.is_foreign(ids[at - 1])
                && self.is_foreign(ids[at + 1])
        };
        (0..ids.len()).filter(|at| !dropped(*at)).map(|at| ids[at]).collect()
    }

    /// Whether a token has no Chinese character and is not a space.
    fn is_foreign(&self, id: u32) -> bool {
        id != self.space && self.vocabulary.token(id).is_some_and(|token| !token.contains(is_chinese))
    }

    fn is_special(&self, id: u32) -> bool {
        let SpecialIds { pad, unk, bos, eos, .. } = self.special;
        [pad, unk, bos, eos].contains(&Some(id)) || self.sentinels.contains(&id)
    }
}

/// The block of Han characters that the rules use.
fn is_chinese(c: char) -> bool {
    matches!(c, '\u{4e00}'..='\u{9fff}')
}

impl Tokenizer for CpmTokenizer {
    fn tokenize(&self, texts: &[&str]) -> Result<Vec<Vec<u32>>> {
        catch_errors(&self.place, "tokenize a text", || {
            Ok::<_, Error>(texts.iter().map(|text| self.ids(text)).collect())
        })
    }

    fn template(&self, pair: bool) -> &Template {
        if pair { &self.pair } else { &self.single }
    }

    fn special_ids(&self) -> SpecialIds {
        self.special
    }

    fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        let (space, newline) = self.kind.white_space();
        let mut text = String::new();
        let mut before = None;
        for &id in ids.iter().filter(|id| !(skip_special && self.is_special(**id))) {
            let Some(token) = self.vocabulary.token(id) else { continue };
            let continued = self.continuations.is_some().then(|| token.strip_prefix("##")).flatten();
            let joined = self.kind != CpmKind::EncDec || continued.is_some_and(|rest| !rest.is_empty());
            if !joined && self.is_foreign(id) && before.is_some_and(|before| self.is_foreign(before)) {
                text.push(' ');
            }
            text += &continued.unwrap_or(token).replace(space, " ").replace(newline, "\n");
            before = Some(id);
        }
        Ok(text)
    }

    fn token(&self, id: u32) -> Option<String> {
        self.vocabulary.token(id).map(str::to_owned)
    }

    fn id(&self, token: &str) -> Option<u32> {
        self.vocabulary.id(token)
    }

    fn place(&self) -> &str {
        &self.place
    }
}

impl fmt::Debug for CpmTokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpmTokenizer")
            .field("place", &self.place)
            .field("kind", &self.kind)
            .field("vocab_size", &self.vocabulary.len())
            .field("special", &self.special)
            .finish_non_exhaustive()
    }
}
