//! Token ids of texts of any length in bounded memory.
//!
//! Defines [`Engine`], which holds a tokenizer of the `tokenizers` crate and runs its steps one by one: added tokens
//! and normalization, pre-tokenization, the model. A text longer than a section is cut by [`sections`], the sections
//! are tokenized on all threads, and [`boundaries`] makes the tokens at every boundary equal to the encoding of the
//! whole text. [`remembered`] keeps the tokens of words where texts can be taken by them. Called by
//! [`super::HfTokenizer`].

mod boundaries;
mod controls;
mod remembered;
mod sections;

use serde_json::Value;
use tokenizers::models::ModelWrapper;
use tokenizers::parallelism::MaybeParallelRefIterator;
use tokenizers::{
    AddedVocabulary, Model, NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType,
    PreTokenizedString, PreTokenizer, PreTokenizerWrapper, Token,
};

use crate::Result;
use crate::tokenizer::TokenSpan;
use crate::tokenizer::catch::catch_errors;
use crate::tokenizer::threads::start_threads;
use sections::{Runs, SECTION, Sides, Whole, continued, counts_characters, letters, next_cut};

/// Sections that are tokenized at a time.
const BATCH: usize = 16;
/// Tokens by which the tokens of a text so far may still become fewer, by joining at a boundary.
const JOINED: usize = boundaries::MANY;

/// The crate's tokenizer with what long texts need.
pub(super) struct Engine {
    pub(super) inner: tokenizers::Tokenizer,
    /// The steps for sections of a long text.
    steps: Vec<(Sides, Steps)>,
    /// Whether something is put before a stretch of a text, but not where a section goes on with one.
    pub(super) prefixed: bool,
    /// Whether pre-tokenization depends on a character's offset in the text: sections would change the result.
    whole_only: bool,
    runs: Runs,
    whole: Whole,
    /// Tells this tokenizer from others, where texts can be taken by words.
    words: Option<u64>,
    /// Tokens that no text becomes, whatever is asked for.
    unused: Vec<(u32, String)>,
    /// Tokens that no text may become unless it is asked for, by id; those that are not in use and single bytes among
    /// them.
    pub(super) controls: Vec<(u32, String)>,
    /// Token of text that cannot be spelled.
    pub(super) unknown: Option<u32>,
    pub(super) place: String,
}

/// Steps on a text before tokens are made of it.
#[derive(Debug)]
struct Steps {
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
}

/// The sides of an independent text, and of a section in the middle of one.
const ALONE: Sides = Sides { first: true, last: true };
const MIDDLE: Sides = Sides { first: false, last: false };

#[derive(Debug, Default)]
pub(super) struct Tokens {
    pub(super) ids: Vec<u32>,
    /// Number of them in the first pre-token, and in the last.
    pub(super) first: usize,
    pub(super) last: usize,
}

impl Engine {
    /// Engine of a tokenizer made of `document`.
    pub(super) fn new(place: &str, inner: tokenizers::Tokenizer, document: &Value) -> Result<Engine> {
        let steps = |sides: Sides| {
            let part = |key: &str| document.get(key).and_then(|part| continued(part, sides));
            let steps = catch_errors(place, "load", || -> serde_json::Result<_> {
                let normalizer = part("normalizer").map(serde_json::from_value).transpose()?;
                Ok(Steps { normalizer, pre_tokenizer: part("pre_tokenizer").map(serde_json::from_value).transpose()? })
            })?;
            Ok((sides, steps))
        };
        let pre_tokenizer = document.get("pre_tokenizer").unwrap_or(&Value::Null);
        let sides = [MIDDLE, Sides { first: true, ..MIDDLE }, Sides { last: true, ..MIDDLE }];
        let mut engine = Engine {
            inner,
            steps: sides.into_iter().map(steps).collect::<Result<_>>()?,
            prefixed: !pre_tokenizer.is_null() && continued(pre_tokenizer, MIDDLE).as_ref() != Some(pre_tokenizer),
            whole_only: counts_characters(pre_tokenizer),
            runs: Runs::default(),
            whole: Whole::default(),
            words: None,
            unused: Vec::new(),
            controls: Vec::new(),
            unknown: None,
            place: place.to_owned(),
        };
        engine.list_words();
        engine.unknown = engine.find_unknown();
        engine.runs = Runs { spaces: engine.collapsing()?, words: engine.forgets_long_words()? };
        Ok(engine)
    }

    /// Chooses whether special tokens written in a text are text.
    pub(super) fn set_specials_as_text(&mut self, as_text: bool) {
        self.inner.set_encode_special_tokens(as_text);
        self.list_words();
    }

    /// Takes tokens, by id, out of those that texts become.
    pub(super) fn set_unused(&mut self, ids: &[u32]) {
        self.unused = ids.iter().filter_map(|id| Some((*id, self.inner.id_to_token(*id)?))).collect();
        self.list_words();
    }

    /// Lists the added tokens, and the tokens that no text may become.
    fn list_words(&mut self) {
        let as_text = self.inner.get_encode_special_tokens();
        let added = self.inner.get_added_tokens_decoder();
        let whole = added.values().filter(|token| !(as_text && token.special)).map(|token| token.content.clone());
        self.whole = Whole::new(whole.collect());
        self.controls.clone_from(&self.unused);
        if as_text {
            let special = added.iter().filter(|(_, token)| token.special);
            self.controls.extend(special.map(|(id, token)| (*id, token.content.clone())));
        }
        if self.falls_back() {
            let bytes = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>"));
            self.controls.extend(bytes.filter_map(|byte| Some((self.inner.token_to_id(&byte)?, byte))));
        }
        self.controls.sort_unstable();
        self.words = self.is_by_words().then(remembered::new_identity);
    }

    /// White space characters whose runs are equivalent to one space.
    fn collapsing(&self) -> Result<Vec<char>> {
        // Such a token may be one of the characters below, which then has no token to compare.
        if self.unknown.is_none() && self.controls.iter().any(|(_, text)| text.chars().nth(1).is_none()) {
            return Ok(Vec::new());
        }
        let ids = |text: &str| self.tokens(text, ALONE).map(|tokens| tokens.ids);
        let (within, before, after) = (ids("a b")?, ids(" a")?, ids("a ")?);
        let unknown = self.unknown;
        if within.len() < 2 || within.iter().any(|id| Some(*id) == unknown) {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        for c in [' ', '\t', '\n', '\r', '\u{A0}', '\u{3000}'] {
            let run = c.to_string().repeat(5);
            if ids(&format!("a{run}b"))? == within
                && ids(&format!("{run}a"))? == before
                && ids(&format!("a{run}"))? == after
            {
                found.push(c);
            }
        }
        Ok(found)
    }

    /// Whether any long word becomes exactly one unknown token.
    fn forgets_long_words(&self) -> Result<bool> {
        if !matches!(self.inner.get_model(), ModelWrapper::WordPiece(_)) {
            return Ok(false);
        }
        let word: String = letters().chain(['a'; 1025]).collect();
        let ids = self.tokens(&word, ALONE)?.ids;
        Ok(ids.len() == 1 && ids.first() == self.unknown.as_ref())
    }

    fn find_unknown(&self) -> Option<u32> {
        let token = match self.inner.get_model() {
            ModelWrapper::BPE(model) => model.unk_token.as_ref(),
            ModelWrapper::WordPiece(model) => Some(&model.unk_token),
            ModelWrapper::WordLevel(model) => Some(&model.unk_token),
            // The crate does not tell which it is; a character that no vocabulary has becomes it, or bytes.
            ModelWrapper::Unigram(model) => {
                let tokens =
                    catch_errors(&self.place, "tokenize a text", || model.tokenize("\u{10FFFF}")).unwrap_or_default();
                return tokens.first().map(|token| token.id).filter(|_| tokens.len() == 1);
            }
        };
        token.and_then(|token| self.inner.token_to_id(token))
    }

    pub(super) fn tokenize(&self, texts: &[&str]) -> Result<Vec<Vec<u32>>> {
        match texts {
            // Work for a pool of threads costs more than one or two texts do.
            [] | [_] | [_, _] => texts.iter().map(|text| self.ids(text, usize::MAX)).collect(),
            _ => {
                start_threads();
                texts.maybe_par_iter().map(|text| self.ids(text, usize::MAX)).collect()
            }
        }
    }

    /// The tokens of a text; `None` of one with more than `most`, which is tokenized little further.
    pub(super) fn tokenize_up_to(&self, text: &str, most: usize) -> Result<Option<Vec<u32>>> {
        Ok(Some(self.ids(text, most)?).filter(|ids| ids.len() <= most))
    }

    pub(super) fn tokenize_whole(&self, text: &str) -> Result<Vec<u32>> {
        self.tokens(text, ALONE).map(|tokens| tokens.ids)
    }

    /// The tokens of a text that is taken at once, with their places.
    pub(super) fn tokenize_with_spans(&self, text: &str) -> Result<Vec<TokenSpan>> {
        let encoding = catch_errors(&self.place, "tokenize a text", || -> tokenizers::Result<_> {
            let cut = self.cut(text, ALONE, |piece| self.tokenize_piece(piece))?;
            cut.into_encoding(None, 0, OffsetType::Byte)
        })?;
        let tokens = encoding.get_ids().iter().zip(encoding.get_offsets());
        Ok(tokens.map(|(id, (from, to))| TokenSpan { id: *id, bytes: *from..*to }).collect())
    }

    /// All tokens of a text, or more than `most` of its first ones.
    fn ids(&self, text: &str, most: usize) -> Result<Vec<u32>> {
        match self.words {
            Some(identity) => self.by_words(text, identity, most),
            None => self.ids_of_sections(text, most),
        }
    }

    fn ids_of_sections(&self, text: &str, most: usize) -> Result<Vec<u32>> {
        if text.len() <= SECTION + SECTION / 2 || self.whole_only {
            return Ok(self.tokens(text, ALONE)?.ids);
        }
        let text = &*self.runs.shorten(text);
        let mut out = Tokens::default();
        // What is taken away at the end of a text may be more than a section.
        let last = text.trim_end().len();
        let (mut start, mut batch) = (0, Vec::with_capacity(BATCH));
        let mut batches = batch_sizes(most);
        start_threads();
        while start < text.len() && out.ids.len() <= most.saturating_add(JOINED) {
            let size = batches.next().unwrap_or(BATCH);
            while start < text.len() && batch.len() < size {
                let end = next_cut(text, start, &self.whole);
                batch.push((start, end));
                start = end;
            }
            let sides = |from: usize, to: usize| Sides { first: from == 0, last: to >= last };
            let sections = batch.maybe_par_iter().map(|(from, to)| self.tokens(&text[*from..*to], sides(*from, *to)));
            let sections: Vec<Tokens> = sections.collect::<Result<_>>()?;
            for ((from, _), section) in batch.drain(..).zip(sections) {
                self.append(&mut out, section, text, from)?;
            }
        }
        Ok(out.ids)
    }

    fn tokens(&self, text: &str, sides: Sides) -> Result<Tokens> {
        catch_errors(&self.place, "tokenize a text", || -> tokenizers::Result<_> {
            let mut tokens = Tokens::default();
            let behind = if sides.first { None } else { self.first_added_token(text, sides) };
            let Some(behind) = behind else {
                self.add_tokens(&mut tokens, text, sides)?;
                return Ok(tokens);
            };
            // After an added token a new text begins, with everything that precedes a text.
            self.add_tokens(&mut tokens, &text[..behind], Sides { last: true, ..sides })?;
            self.add_tokens(&mut tokens, &text[behind..], Sides { first: true, ..sides })?;
            Ok(tokens)
        })
    }

    /// Start of the first added token, if a prefix space follows it.
    fn first_added_token(&self, text: &str, sides: Sides) -> Option<usize> {
        if !self.prefixed {
            return None;
        }
        let stretches = self.stretches(text, sides);
        let splits = stretches.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.into_iter().find(|(_, _, tokens)| tokens.is_some()).map(|(_, offsets, _)| offsets.0)
    }

    fn add_tokens(&self, tokens: &mut Tokens, text: &str, sides: Sides) -> tokenizers::Result<()> {
        let cut = self.cut(text, sides, |piece| self.tokenize_piece(piece))?;
        for (_, _, piece) in cut.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            let before = tokens.ids.len();
            tokens.ids.extend(piece.iter().flatten().map(|token| token.id));
            tokens.last = tokens.ids.len() - before;
            if before == 0 {
                tokens.first = tokens.last;
            }
        }
        Ok(())
    }

    /// Splits a text at added tokens and normalizes the stretches between them.
    fn stretches(&self, text: &str, sides: Sides) -> PreTokenizedString {
        let added: &AddedVocabulary = self.inner.get_added_vocabulary();
        added.extract_and_normalize(Some(&SectionNormalizer { engine: self, sides, length: text.len() }), text)
    }

    /// The steps of a section, `None` for the tokenizer's own.
    fn steps(&self, sides: Sides) -> Option<&Steps> {
        self.steps.iter().find(|(known, _)| *known == sides).map(|(_, steps)| steps)
    }

    /// Splits a text into added tokens and pre-tokens, which `tokenize` turns into tokens.
    fn cut(
        &self,
        text: &str,
        sides: Sides,
        tokenize: impl Fn(&str) -> tokenizers::Result<Vec<Token>>,
    ) -> tokenizers::Result<PreTokenizedString> {
        let mut cut = self.stretches(text, sides);
        let pre_tokenizer = match self.steps(sides) {
            None => self.inner.get_pre_tokenizer(),
            Some(steps) => steps.pre_tokenizer.as_ref(),
        };
        if let Some(pre_tokenizer) = pre_tokenizer {
            pre_tokenizer.pre_tokenize(&mut cut)?;
        }
        cut.tokenize(|piece| tokenize(piece.get()))?;
        Ok(cut)
    }
}

/// Parts of a text to take at a time: all threads' share, or, where there is a limit, few at first.
pub(super) fn batch_sizes(most: usize) -> impl Iterator<Item = usize> {
    let first = if most == usize::MAX { BATCH } else { 1 };
    std::iter::successors(Some(first), |size| Some((2 * size).min(BATCH)))
}

/// Normalizes the stretches between added tokens. The library treats each stretch as a text with two ends; the first
/// and the last stretch of a section may have none on the section's side.
struct SectionNormalizer<'a> {
    engine: &'a Engine,
    sides: Sides,
    /// Length of the section in bytes.
    length: usize,
}

impl Normalizer for SectionNormalizer<'_> {
    fn normalize(&self, stretch: &mut NormalizedString) -> tokenizers::Result<()> {
        let (from, to) = stretch.offsets_original();
        let sides = Sides { first: from > 0 || self.sides.first, last: to < self.length || self.sides.last };
        let normalizer = match self.engine.steps(sides) {
            None => self.engine.inner.get_normalizer(),
            Some(steps) => steps.normalizer.as_ref(),
        };
        normalizer.map_or(Ok(()), |normalizer| normalizer.normalize(stretch))
    }
}
