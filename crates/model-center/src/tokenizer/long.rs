//! Token ids of texts of any length in bounded memory.
//!
//! Defines [`Engine`], which holds what the `tokenizers` crate makes of a document and goes through its steps one by one:
//! words found whole and normalisation, pre-tokens, tokens. A text longer than a section is cut by [`super::sections`], the
//! sections are tokenized on all threads, and the tokens at every seam are made what they are in the whole. Called by
//! [`super::HfTokenizer`].
//!
//! Byte pairs at a seam are exact: tokens stand side by side in the encoding of a text exactly if every two neighbours do so
//! in the encoding of their own text alone, because no merge over their border is ever the best one in either. So a
//! stretch over the seam is tokenized again, and if its first and last token are those that stood there, all is as in the
//! whole. Best sums of scores have no such rule, but two best paths that meet agree from there on.

use serde_json::Value;
use tokenizers::models::ModelWrapper;
use tokenizers::parallelism::MaybeParallelRefIterator;
use tokenizers::{
    AddedVocabulary, Model, NormalizerWrapper, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
    PreTokenizerWrapper, Token,
};

use super::guard::guard;
use super::sections::{Runs, SECTION, Whole, around, continued, next_cut};
use crate::Result;

/// Sections that are tokenized at a time.
const BATCH: usize = 16;
/// Tokens on each side of a seam that are looked at first, and at most.
const FEW: usize = 16;
const MANY: usize = 4096;

/// The crate's tokenizer with what long texts need.
pub(super) struct Engine {
    pub(super) inner: tokenizers::Tokenizer,
    /// The steps for sections after the first.
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    runs: Runs,
    whole: Whole,
    /// Tokens that no text may become unless it is asked for, by id; single bytes among them.
    controls: Vec<(u32, String)>,
    /// What cannot be spelled.
    unknown: Option<u32>,
    place: String,
}

/// Tokens of a section.
#[derive(Debug, Default)]
struct Tokens {
    ids: Vec<u32>,
    /// How many of them are of the first pre-token, and of the last.
    first: usize,
    last: usize,
}

impl Engine {
    /// What a tokenizer made of `document` needs besides.
    ///
    /// Errors: parts that the crate refuses.
    pub(super) fn new(place: &str, inner: tokenizers::Tokenizer, document: &Value) -> Result<Engine> {
        let part = |key: &str| document.get(key).and_then(continued);
        let (normalizer, pre_tokenizer) = guard(place, "load", || -> serde_json::Result<_> {
            let normalizer = part("normalizer").map(serde_json::from_value).transpose()?;
            Ok((normalizer, part("pre_tokenizer").map(serde_json::from_value).transpose()?))
        })?;
        let mut engine = Engine {
            inner,
            normalizer,
            pre_tokenizer,
            runs: Runs::default(),
            whole: Whole::default(),
            controls: Vec::new(),
            unknown: None,
            place: place.to_owned(),
        };
        engine.list_words();
        engine.unknown = engine.find_unknown();
        engine.runs = Runs {
            spaces: engine.collapsing()?,
            words: matches!(engine.inner.get_model(), ModelWrapper::WordPiece(_)),
        };
        Ok(engine)
    }

    /// Chooses whether special tokens written in a text are text.
    pub(super) fn set_specials_as_text(&mut self, as_text: bool) {
        self.inner.set_encode_special_tokens(as_text);
        self.list_words();
    }

    /// Lists the words that are found whole, and those that no text may become.
    fn list_words(&mut self) {
        let as_text = self.inner.get_encode_special_tokens();
        let added = self.inner.get_added_tokens_decoder();
        let whole = added.values().filter(|token| !(as_text && token.special)).map(|token| token.content.clone());
        self.whole = Whole::new(whole.collect());
        self.controls.clear();
        if as_text {
            let special = added.iter().filter(|(_, token)| token.special);
            self.controls.extend(special.map(|(id, token)| (*id, token.content.clone())));
        }
        let falls_back = match self.inner.get_model() {
            ModelWrapper::BPE(model) => model.byte_fallback,
            ModelWrapper::Unigram(model) => model.byte_fallback(),
            _ => false,
        };
        if falls_back {
            let bytes = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>"));
            self.controls.extend(bytes.filter_map(|byte| Some((self.inner.token_to_id(&byte)?, byte))));
        }
        self.controls.sort_unstable();
    }

    /// White space of which several characters are as one space.
    fn collapsing(&self) -> Result<Vec<char>> {
        let ids = |text: &str| self.tokens(text, true).map(|tokens| tokens.ids);
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

    /// The id of what cannot be spelled.
    fn find_unknown(&self) -> Option<u32> {
        let token = match self.inner.get_model() {
            ModelWrapper::BPE(model) => model.unk_token.as_ref(),
            ModelWrapper::WordPiece(model) => Some(&model.unk_token),
            ModelWrapper::WordLevel(model) => Some(&model.unk_token),
            // The crate does not tell which it is; a character that no vocabulary has becomes it, or bytes.
            ModelWrapper::Unigram(model) => {
                let tokens = guard(&self.place, "tokenize a text", || model.tokenize("\u{10FFFF}")).unwrap_or_default();
                return tokens.first().map(|token| token.id).filter(|_| tokens.len() == 1);
            }
        };
        token.and_then(|token| self.inner.token_to_id(token))
    }

    /// Token ids of each text.
    pub(super) fn tokenize(&self, texts: &[&str]) -> Result<Vec<Vec<u32>>> {
        match texts {
            // Work for a pool of threads costs more than one or two texts do.
            [] | [_] | [_, _] => texts.iter().map(|text| self.ids(text)).collect(),
            _ => texts.maybe_par_iter().map(|text| self.ids(text)).collect(),
        }
    }

    /// Token ids of a text of any length at once.
    pub(super) fn tokenize_whole(&self, text: &str) -> Result<Vec<u32>> {
        self.tokens(text, true).map(|tokens| tokens.ids)
    }

    fn ids(&self, text: &str) -> Result<Vec<u32>> {
        if text.len() <= SECTION + SECTION / 2 {
            return Ok(self.tokens(text, true)?.ids);
        }
        let text = &*self.runs.shorten(text);
        let mut out = Tokens::default();
        let (mut start, mut batch) = (0, Vec::with_capacity(BATCH));
        while start < text.len() {
            while start < text.len() && batch.len() < BATCH {
                let end = next_cut(text, start, &self.whole);
                batch.push((start, end));
                start = end;
            }
            let sections = batch.maybe_par_iter().map(|(from, to)| self.tokens(&text[*from..*to], *from == 0));
            let sections: Vec<Tokens> = sections.collect::<Result<_>>()?;
            for ((from, _), section) in batch.drain(..).zip(sections) {
                self.append(&mut out, section, text, from)?;
            }
        }
        Ok(out.ids)
    }

    /// Tokens of a section; `first` if the text begins with it.
    fn tokens(&self, text: &str, first: bool) -> Result<Tokens> {
        guard(&self.place, "tokenize a text", || -> tokenizers::Result<_> {
            let mut tokens = Tokens::default();
            let cut = self.cut(text, first, |piece| self.tokenize_piece(piece))?;
            for (_, _, piece) in cut.get_splits(OffsetReferential::Original, OffsetType::Byte) {
                let before = tokens.ids.len();
                tokens.ids.extend(piece.iter().flatten().map(|token| token.id));
                tokens.last = tokens.ids.len() - before;
                if before == 0 {
                    tokens.first = tokens.last;
                }
            }
            Ok(tokens)
        })
    }

    /// A text taken apart: words found whole, and pre-tokens of which `tokenize` makes tokens.
    fn cut(
        &self,
        text: &str,
        first: bool,
        tokenize: impl Fn(&str) -> tokenizers::Result<Vec<Token>>,
    ) -> tokenizers::Result<PreTokenizedString> {
        let (normalizer, pre_tokenizer) = match first {
            true => (self.inner.get_normalizer(), self.inner.get_pre_tokenizer()),
            false => (self.normalizer.as_ref(), self.pre_tokenizer.as_ref()),
        };
        let added: &AddedVocabulary = self.inner.get_added_vocabulary();
        let mut cut = added.extract_and_normalize(normalizer, text);
        if let Some(pre_tokenizer) = pre_tokenizer {
            pre_tokenizer.pre_tokenize(&mut cut)?;
        }
        cut.tokenize(|piece| tokenize(piece.get()))?;
        Ok(cut)
    }

    /// Tokens of a pre-token. One that spells a control token becomes tokens of its parts before and after its first character:
    /// such vocabularies find their control tokens like any other piece.
    fn tokenize_piece(&self, piece: &str) -> tokenizers::Result<Vec<Token>> {
        let model = self.inner.get_model();
        let tokens = model.tokenize(piece)?;
        let mut found: Vec<u32> =
            tokens.iter().map(|token| token.id).filter(|id| self.control(*id).is_some()).collect();
        found.sort_unstable();
        // Bytes of what no piece spells come by the thousand, and each is looked for once.
        found.dedup();
        let spelled =
            found.into_iter().filter_map(|id| self.control(id)).filter_map(|text| Some((piece.find(text)?, text)));
        let Some((at, text)) = spelled.min() else { return Ok(tokens) };
        let (before, after) = piece.split_at(at + text.chars().next().map_or(0, char::len_utf8));
        let mut tokens = self.tokenize_piece(before)?;
        let after = self.tokenize_piece(after)?;
        let unknown = |token: Option<&Token>| token.is_some_and(|token| Some(token.id) == self.unknown);
        let fused = self.is_fused() && unknown(tokens.last()) && unknown(after.first());
        tokens.extend(after.into_iter().skip(usize::from(fused)));
        Ok(tokens)
    }

    /// The spelling of a token that no text may become.
    fn control(&self, id: u32) -> Option<&str> {
        self.controls.binary_search_by_key(&id, |(id, _)| *id).ok().map(|at| &*self.controls[at].1)
    }

    /// Whether neighbours that cannot be spelled are one token.
    fn is_fused(&self) -> bool {
        match self.inner.get_model() {
            ModelWrapper::BPE(model) => model.fuse_unk,
            ModelWrapper::Unigram(_) | ModelWrapper::WordPiece(_) => true,
            ModelWrapper::WordLevel(_) => false,
        }
    }

    /// Appends a section's tokens to those of the text before `cut`, as if both had been one.
    fn append(&self, out: &mut Tokens, section: Tokens, text: &str, cut: usize) -> Result<()> {
        if cut == 0 || section.ids.is_empty() || out.ids.is_empty() || self.breaks(text, cut)? {
            out.ids.extend_from_slice(&section.ids);
            // A section of no tokens leaves the last word as it was.
            out.last = if section.ids.is_empty() { out.last } else { section.last };
            return Ok(());
        }
        let is_one_word = section.first == section.ids.len();
        let (word, rest) = section.ids.split_at(section.first);
        let begin = out.ids.len() - out.last;
        let joined = self.join(&out.ids[begin..], word)?;
        out.ids.truncate(begin + joined.kept);
        out.ids.extend_from_slice(&joined.between);
        out.ids.extend_from_slice(&word[joined.skipped..]);
        out.last = out.ids.len() - begin;
        if !is_one_word {
            out.ids.extend_from_slice(rest);
            out.last = section.last;
        }
        Ok(())
    }

    /// Whether pre-tokens end at a cut.
    fn breaks(&self, text: &str, cut: usize) -> Result<bool> {
        let (text, cut) = around(text, cut);
        guard(&self.place, "tokenize a text", || -> tokenizers::Result<_> {
            let pieces = self.cut(text, false, |_| Ok(Vec::new()))?;
            let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
            // White space may be left out, so that nothing begins or ends at the cut.
            Ok(!splits.iter().any(|(_, offsets, _)| offsets.0 < cut && cut < offsets.1))
        })
    }

    /// The tokens of a word of which two parts were tokenized apart.
    fn join(&self, left: &[u32], right: &[u32]) -> Result<Joined> {
        let apart = Joined { kept: left.len(), between: Vec::new(), skipped: 0 };
        let unknown = self.unknown;
        if unknown.is_some() && left.last() == unknown.as_ref() && right.first() == unknown.as_ref() {
            return Ok(Joined { skipped: usize::from(self.is_fused()), ..apart });
        }
        if matches!(self.inner.get_model(), ModelWrapper::WordPiece(_) | ModelWrapper::WordLevel(_)) {
            return Ok(apart);
        }
        // Bytes and what is unknown take part in nothing.
        let is_fixed = |id: &u32| Some(*id) == unknown || self.control(*id).is_some();
        let left_free = left.iter().rev().take_while(|id| !is_fixed(id)).count();
        let right_free = right.iter().take_while(|id| !is_fixed(id)).count();
        if left_free == 0 || right_free == 0 {
            return Ok(apart);
        }
        let mut few = FEW;
        loop {
            let (l, r) = (few.min(left_free), few.min(right_free));
            let (kept, skipped) = (left.len() - l, r);
            let stretch = left[kept..].iter().chain(&right[..r]);
            let stretch: String = stretch.filter_map(|id| self.inner.id_to_token(*id)).collect();
            let tokens = guard(&self.place, "tokenize a text", || self.tokenize_piece(&stretch))?;
            let between: Vec<u32> = tokens.into_iter().map(|token| token.id).collect();
            let meets_left = l == left_free || between.first() == Some(&left[kept]);
            let meets_right = r == right_free || between.last() == Some(&right[r - 1]);
            if meets_left && meets_right || few >= MANY {
                return Ok(Joined { kept, between, skipped });
            }
            few *= 4;
        }
    }
}

/// How two parts of a word go together: so many tokens of the first, others, the second without so many.
struct Joined {
    kept: usize,
    between: Vec<u32>,
    skipped: usize,
}
