//! Texts by words whose tokens are remembered, for the pre-tokenizer of GPT-2.
//!
//! Adds [`Engine::by_words`], called by [`super`]. That pre-tokenizer always splits a text at a single
//! space between two characters that are not white space: whatever it matches up to there ends there, and the match
//! that begins there looks at nothing before. So the tokens of a text are the tokens of its words, one after the
//! other, each with the space before it. Few words make up most of a text, and each thread remembers their tokens.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use tokenizers::PreTokenizerWrapper;
use tokenizers::models::ModelWrapper;
use tokenizers::parallelism::MaybeParallelRefIterator;

use super::{ALONE, Engine, batch_sizes};
use crate::Result;
use crate::tokenizer::threads::start_threads;

/// Longer words are not remembered.
const WORD: usize = 64;
/// A thread remembers this many words and then begins anew: some 10 MB.
const WORDS: usize = 1 << 16;
/// A longer text is shared among threads, in parts of about this many bytes.
const PART: usize = 1 << 16;

/// Memory of a thread for one tokenizer.
#[derive(Default)]
struct Memory {
    /// The tokenizer.
    identity: u64,
    words: HashMap<Box<str>, Range<u32>>,
    ids: Vec<u32>,
}

thread_local! {
    static MEMORY: RefCell<Memory> = RefCell::default();
}

/// Tells a tokenizer, and any change of it, from all others of the process.
pub(super) fn new_identity() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Engine {
    /// Whether texts can be taken by words: nothing precedes the pre-tokenizer of GPT-2, and the same word always has
    /// the same tokens.
    pub(super) fn is_by_words(&self) -> bool {
        let plain = match self.inner.get_pre_tokenizer() {
            Some(PreTokenizerWrapper::ByteLevel(level)) => level.use_regex && !level.add_prefix_space,
            _ => false,
        };
        let fixed = matches!(self.inner.get_model(), ModelWrapper::BPE(model) if model.dropout.is_none());
        plain && fixed && self.inner.get_normalizer().is_none() && self.whole.is_empty()
    }

    /// The ids of a text, by the words of tokenizer `identity`; more than `most` of the first ones of a longer text.
    pub(super) fn by_words(&self, text: &str, identity: u64, most: usize) -> Result<Vec<u32>> {
        if text.len() <= 2 * PART {
            return self.remembered(text, identity, most);
        }
        start_threads();
        let (mut parts, mut start) = (Vec::new(), 0);
        while start < text.len() {
            let end = word_end(text, (start + PART).min(text.len()));
            parts.push(&text[start..end]);
            start = end;
        }
        let (mut ids, mut left) = (Vec::new(), parts.as_slice());
        let mut batches = if most == usize::MAX { None } else { Some(batch_sizes(most)) };
        while !left.is_empty() && ids.len() <= most {
            let size = batches.as_mut().and_then(Iterator::next).unwrap_or(left.len()).min(left.len());
            let (batch, rest) = left.split_at(size);
            let batch = batch.maybe_par_iter().map(|part| self.remembered(part, identity, most));
            ids.extend(batch.collect::<Result<Vec<_>>>()?.concat());
            left = rest;
        }
        Ok(ids)
    }

    fn remembered(&self, text: &str, identity: u64, most: usize) -> Result<Vec<u32>> {
        // Taken out, as a thread that waits for the sections of a long word may take up another text.
        let mut memory = MEMORY.take();
        let mut ids = Vec::with_capacity(text.len() / 4);
        let added = memory.add(self, text, identity, (&mut ids, most));
        MEMORY.set(memory);
        added.map(|()| ids)
    }
}

impl Memory {
    /// Adds the ids of a text; more than `most` of the first ones of a longer text.
    fn add(&mut self, engine: &Engine, text: &str, identity: u64, (ids, most): (&mut Vec<u32>, usize)) -> Result<()> {
        if self.identity != identity {
            *self = Memory { identity, ..Memory::default() };
        }
        let mut start = 0;
        while start < text.len() && ids.len() <= most {
            let end = word_end(text, start + 1);
            let word = &text[start..end];
            start = end;
            if let Some(known) = self.words.get(word) {
                ids.extend_from_slice(&self.ids[known.start as usize..known.end as usize]);
                continue;
            }
            if word.len() > WORD {
                ids.append(&mut engine.ids_of_sections(word, most.saturating_sub(ids.len()))?);
                continue;
            }
            let tokens = engine.tokens(word, ALONE)?.ids;
            if self.words.len() == WORDS {
                self.words.clear();
                self.ids.clear();
            }
            let first = self.ids.len() as u32;
            self.ids.extend_from_slice(&tokens);
            self.words.insert(word.into(), first..self.ids.len() as u32);
            ids.extend_from_slice(&tokens);
        }
        Ok(())
    }
}

/// End of a word, at `from` or after it: at a single space between characters that are not white space.
fn word_end(text: &str, from: usize) -> usize {
    let bytes = text.as_bytes();
    let mut at = from;
    while let Some(found) = bytes.get(at..).and_then(|rest| rest.iter().position(|byte| *byte == b' ')) {
        at += found;
        let before = text[..at].chars().next_back();
        let after = text[at + 1..].chars().next();
        if [before, after].iter().all(|side| side.is_some_and(|c| !c.is_whitespace())) {
            return at;
        }
        at += 1;
    }
    text.len()
}
