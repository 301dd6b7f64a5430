//! Merges the tokens of consecutive sections so that they equal the encoding of the whole text.
//!
//! Defines [`Engine::append`], called by [`super`], which defines sections.
//!
//! Byte-pair tokens at a boundary are exact: two tokens are adjacent in the encoding of a text exactly if every two
//! neighbours are adjacent in the encoding of their own concatenation, because no merge across their border is ever the
//! best one in either. So a stretch across the boundary is tokenized again, and if its first and last token are
//! unchanged, the result equals the encoding of the whole text. Unigram's best paths have no such rule, but two best
//! paths that meet are identical from there on. Vocabularies of whole words tokenize the whole word at the boundary
//! again; a word longer than any in the vocabulary is unknown wherever it ends.

use tokenizers::models::ModelWrapper;
use tokenizers::{OffsetReferential, OffsetType};

use super::sections::{AROUND, SECTION, Sides, around};
use super::{Engine, Tokens};
use crate::Result;
use crate::tokenizer::catch::catch_errors;

/// Tokens on each side of a boundary that are compared first, and the maximum on its left side, which may be all of the
/// text.
const FEW: usize = 16;
pub(super) const MANY: usize = 4096;
/// Characters on each side of a boundary that are first searched for the ends of a word; few words are longer.
const WORD: usize = 320;

/// Merge of two parts of a word: `kept` tokens of the first, then `between`, then the second without `skipped` tokens.
struct Joined {
    kept: usize,
    between: Vec<u32>,
    skipped: usize,
}

/// A pre-token across a boundary.
#[derive(Debug)]
struct Straddling {
    text: String,
    /// Whether both of its ends were seen.
    is_whole: bool,
}

impl Engine {
    /// Appends a section's tokens to the tokens of the text before `cut`, as if both had been one.
    pub(super) fn append(&self, out: &mut Tokens, section: Tokens, text: &str, cut: usize) -> Result<()> {
        let is_apart = cut == 0 || section.ids.is_empty() || out.ids.is_empty();
        if is_apart || self.straddling(text, cut, AROUND)?.is_none() {
            out.ids.extend_from_slice(&section.ids);
            // An empty section leaves the last word unchanged.
            out.last = if section.ids.is_empty() { out.last } else { section.last };
            return Ok(());
        }
        let is_one_word = section.first == section.ids.len();
        let (word, rest) = section.ids.split_at(section.first);
        let begin = out.ids.len() - out.last;
        let joined = match self.inner.get_model() {
            ModelWrapper::WordPiece(_) | ModelWrapper::WordLevel(_) => match self.whole_word(text, cut)? {
                Some(between) => Joined { kept: 0, between, skipped: word.len() },
                None => Joined { kept: out.last, between: Vec::new(), skipped: 0 },
            },
            ModelWrapper::BPE(_) | ModelWrapper::Unigram(_) => self.join(&out.ids[begin..], word)?,
        };
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

    /// The tokens of the word that a cut goes through, for vocabularies of whole words; `None` if a wider context shows
    /// that the cut is between words.
    fn whole_word(&self, text: &str, cut: usize) -> Result<Option<Vec<u32>>> {
        let mut reach = WORD;
        loop {
            let Some(word) = self.straddling(text, cut, reach)? else { return Ok(None) };
            if word.is_whole || reach >= SECTION || self.is_beyond_words(&word.text) {
                let tokens = catch_errors(&self.place, "tokenize a text", || self.tokenize_piece(&word.text))?;
                return Ok(Some(tokens.into_iter().map(|token| token.id).collect()));
            }
            reach *= 4;
        }
    }

    /// Whether a word is longer than any that the vocabulary can contain.
    fn is_beyond_words(&self, word: &str) -> bool {
        match self.inner.get_model() {
            ModelWrapper::WordPiece(model) => word.chars().nth(model.max_input_chars_per_word).is_some(),
            _ => false,
        }
    }

    /// The pre-token that a cut goes through, from `reach` characters before and after it.
    fn straddling(&self, text: &str, cut: usize, reach: usize) -> Result<Option<Straddling>> {
        let (from, to) = around(text, cut, reach);
        let sides = Sides { first: from == 0, last: to == text.len() };
        let (mut found, word_begin) = self.pre_token(&text[from..to], sides, cut - from)?;
        // A prefix space follows an added token, too.
        if let Some(begin) = word_begin.filter(|_| self.prefixed && found.is_some()) {
            found = self.pre_token(&text[from + begin..to], Sides { first: true, ..sides }, cut - from - begin)?.0;
        }
        Ok(found)
    }

    /// The pre-token that contains `at`, and the start of the last added token before it.
    fn pre_token(&self, part: &str, sides: Sides, at: usize) -> Result<(Option<Straddling>, Option<usize>)> {
        catch_errors(&self.place, "tokenize a text", || -> tokenizers::Result<_> {
            let pieces = self.cut(part, sides, |_| Ok(Vec::new()))?;
            let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
            // White space may be left out, so that nothing begins or ends at the cut.
            let Some(place) = splits.iter().position(|(_, offsets, _)| offsets.0 < at && at < offsets.1) else {
                return Ok((None, None));
            };
            // Nothing was tokenized yet: the tokens present are added tokens.
            let is_found = |tokens: &Option<Vec<_>>| tokens.as_ref().is_some_and(|tokens| !tokens.is_empty());
            let before = splits[..place].iter().rev().find(|(_, _, tokens)| is_found(tokens));
            let is_whole = (place > 0 || sides.first) && (place + 1 < splits.len() || sides.last);
            Ok((Some(Straddling { text: splits[place].0.to_owned(), is_whole }), before.map(|(_, at, _)| at.0)))
        })
    }

    /// The tokens of a word whose two parts were tokenized separately.
    fn join(&self, left: &[u32], right: &[u32]) -> Result<Joined> {
        let apart = Joined { kept: left.len(), between: Vec::new(), skipped: 0 };
        let unknown = self.unknown;
        if unknown.is_some() && left.last() == unknown.as_ref() && right.first() == unknown.as_ref() {
            return Ok(Joined { skipped: usize::from(self.is_fused()), ..apart });
        }
        // Bytes and what is unknown take part in nothing.
        let is_fixed = |id: &u32| Some(*id) == unknown || self.control(*id).is_some();
        // Only a bounded part of the left side: it may be as long as the text so far. The right part is in one section.
        let left_free = left.iter().rev().take(MANY + 1).take_while(|id| !is_fixed(id)).count();
        let right_free = right.iter().take_while(|id| !is_fixed(id)).count();
        if left_free == 0 || right_free == 0 {
            return Ok(apart);
        }
        // Each side grows by itself: in a run of one character the left one meets at once, the right one only at its
        // end.
        let (mut few_left, mut few_right) = (FEW, FEW);
        loop {
            let (l, r) = (few_left.min(left_free), few_right.min(right_free));
            let (kept, skipped) = (left.len() - l, r);
            let stretch = left[kept..].iter().chain(&right[..r]);
            let stretch: String = stretch.filter_map(|id| self.inner.id_to_token(*id)).collect();
            let tokens = catch_errors(&self.place, "tokenize a text", || self.tokenize_piece(&stretch))?;
            let between: Vec<u32> = tokens.into_iter().map(|token| token.id).collect();
            let meets_left = l == left_free || between.first() == Some(&left[kept]);
            let meets_right = r == right_free || between.last() == Some(&right[r - 1]);
            if (meets_left || few_left >= MANY) && meets_right {
                return Ok(Joined { kept, between, skipped });
            }
            few_left = if meets_left { few_left } else { MANY.min(4 * few_left) };
            few_right = if meets_right { few_right } else { 4 * few_right };
        }
    }
}
