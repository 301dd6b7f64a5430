//! The words of a corpus and their counts.
//!
//! Defines [`Corpus`], read by [`super::train`]. Memory grows with the number of distinct words, not of texts.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use serde_json::Map;
use tokenizers::{
    NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Tokenizer,
};

use super::{TrainOptions, VocabularyKind, document};
use crate::io::texts::{TextLayout, read_texts};
use crate::tokenizer::{
    catch::catch_errors,
    document::{BpeOptions, bpe},
};
use crate::{Error, Result};

/// Longer words are cut, so that one line without a space cannot take quadratic time.
const MAX_WORD_CHARACTERS: usize = 256;
/// Largest count that the trainers can hold: they add up occurrences of pairs in 32 bits.
const MAX_COUNT: u64 = i32::MAX as u64 / 2;

pub(super) struct Corpus {
    /// In the order of their spellings, each with its number of occurrences.
    pub(super) words: BTreeMap<String, u64>,
    pub(super) texts: u64,
    /// Evictions of words; a word that occurs again may be evicted again.
    pub(super) dropped: u64,
    /// By how much counts were divided; 1 but for very large corpora.
    pub(super) divided: u64,
}

impl Corpus {
    /// Reads files and cuts their texts as the tokenizer will.
    pub(super) fn read(files: &[PathBuf], source: &TextLayout, options: &TrainOptions) -> Result<Corpus> {
        let cutter = Cutter::new(options)?;
        let mut counts: HashMap<String, u64> = HashMap::new();
        let (mut texts, mut dropped, mut least) = (0, 0, 1);
        for file in files {
            texts += read_texts(file, source, options.max_line_bytes, &mut |text| {
                cutter.cut(text, &mut |word| match counts.get_mut(word) {
                    Some(count) => *count += 1,
                    None => {
                        counts.insert(word.to_owned(), 1);
                    }
                })?;
                // The evicted words depend on the texts alone, so that the same texts leave the same words.
                while counts.len() > options.max_words.max(1) {
                    let before = counts.len();
                    counts.retain(|_, count| *count > least);
                    dropped += (before - counts.len()) as u64;
                    least += 1;
                }
                Ok(())
            })?;
        }
        if counts.is_empty() {
            let place = files.first().map_or("files".to_owned(), |file| file.display().to_string());
            let reason = format!("there is no word in {texts} texts of {} files", files.len());
            return Err(Error::data(place, reason, "give files with text; of JSONL name the column"));
        }
        let mut corpus = Corpus { words: counts.into_iter().collect(), texts, dropped, divided: 1 };
        corpus.divide();
        Ok(corpus)
    }

    /// Keeps the sums of the trainers within what they can count.
    fn divide(&mut self) {
        let total: u64 = self.words.iter().map(|(word, count)| count.saturating_mul(word.len() as u64)).sum();
        self.divided = total.div_ceil(MAX_COUNT).max(1);
        if self.divided > 1 {
            self.words.values_mut().for_each(|count| *count = (*count / self.divided).max(1));
        }
    }

    /// Every character and how often it is there, the most frequent first, then in the order of their numbers.
    pub(super) fn characters(&self) -> Vec<(char, u64)> {
        let mut counts: BTreeMap<char, u64> = BTreeMap::new();
        for (word, count) in &self.words {
            for c in word.chars() {
                *counts.entry(c).or_default() += count;
            }
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        counts
    }
}

/// Cuts texts by the normalizer and the pre-tokenizer of the document that training ends in.
struct Cutter {
    tokenizer: Tokenizer,
    /// Texts of characters are counted whole; a cut anywhere changes nothing.
    by_character: bool,
}

impl Cutter {
    fn new(options: &TrainOptions) -> Result<Cutter> {
        let document = document::tokenizer(options, &[], bpe(Map::new(), Vec::new(), BpeOptions::default()));
        let tokenizer = catch_errors("training", "set up", || Tokenizer::from_bytes(document.to_string()))?;
        Ok(Cutter { tokenizer, by_character: options.kind == VocabularyKind::Characters })
    }

    fn cut(&self, text: &str, each: &mut dyn FnMut(&str)) -> Result<()> {
        catch_errors("training", "cut a text", || {
            let mut normalized = NormalizedString::from(text);
            if let Some(normalizer) = self.tokenizer.get_normalizer() {
                normalizer.normalize(&mut normalized)?;
            }
            if self.by_character {
                for (at, c) in normalized.get().char_indices() {
                    each(&normalized.get()[at..at + c.len_utf8()]);
                }
                return Ok(());
            }
            let mut pieces = PreTokenizedString::from(normalized);
            if let Some(pre_tokenizer) = self.tokenizer.get_pre_tokenizer() {
                pre_tokenizer.pre_tokenize(&mut pieces)?;
            }
            for (piece, _, _) in pieces.get_splits(OffsetReferential::Original, OffsetType::None) {
                let mut rest = piece;
                while let Some((end, _)) = rest.char_indices().nth(MAX_WORD_CHARACTERS) {
                    each(&rest[..end]);
                    rest = &rest[end..];
                }
                if !rest.is_empty() {
                    each(rest);
                }
            }
            Ok::<(), tokenizers::Error>(())
        })
    }
}
