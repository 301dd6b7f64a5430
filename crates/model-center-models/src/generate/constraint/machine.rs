//! The tokens that may follow a text, by the state that the text leads to.
//!
//! A state is a term ([`super::terms`]). Its steps and its mask are found when they are needed, and remembered up to a
//! size; then all but the terms of the grammar are forgotten, and found again.

use super::Progress;
use super::terms::{EMPTY, EPSILON, Term, Terms};
use super::vocabulary::TokenTexts;
use crate::{Error, Result};
use std::collections::HashMap;
use std::sync::Arc;

/// A step that was not taken yet.
const UNKNOWN: Term = Term(u32::MAX);
/// States with steps, of one KiB each.
const MAX_STATES: usize = 16_384;
/// Terms beside the grammar's, each part of alternatives counted.
const MAX_TERMS: usize = 4_000_000;
/// Bytes of masks.
const MAX_MASKS: usize = 32 << 20;
/// Steps of work that may be done at once, some tenths of a second, and that each further token adds. Masks of a large
/// vocabulary are some hundred thousand each.
const MAX_WORK: u64 = 20_000_000;
const WORK_OF_TOKEN: u64 = 2_000_000;
/// Texts whose last state is remembered.
const MAX_TEXTS: usize = 64;
/// Bytes beyond which a text that is gone through again leaves no states.
const LONG: usize = 4096;

/// A text and the state that it leads to.
struct Reached {
    tokens: Vec<u32>,
    state: Term,
    /// Whether its text is empty.
    is_first: bool,
}

/// The state of an automaton between two tokens.
pub(super) struct Machine {
    terms: Terms,
    start: Term,
    /// The number of terms of the grammar.
    own: usize,
    /// By term: the number of its steps, if it has some.
    rows: Vec<u32>,
    steps: Vec<[Term; 256]>,
    masks: HashMap<(Term, bool), Arc<[u64]>>,
    /// The texts that went on last, the latest last.
    reached: Vec<Reached>,
    /// The size of the grammar's terms.
    own_size: usize,
    /// Steps of work that are left, and the work when they were counted.
    allowed: u64,
    before: u64,
}

impl Machine {
    pub(super) fn new(terms: Terms, start: Term) -> Self {
        let (own, own_size, before) = (terms.len(), terms.size(), terms.work);
        let (rows, steps, masks, reached) = (Vec::new(), Vec::new(), HashMap::new(), Vec::new());
        Machine { terms, start, own, rows, steps, masks, reached, own_size, allowed: MAX_WORK, before }
    }

    /// Begins the work for a token.
    fn begin(&mut self) {
        let mask_bytes: usize = self.masks.values().map(|mask| mask.len() * 8).sum();
        if self.steps.len() > MAX_STATES || self.terms.size() > self.own_size + MAX_TERMS || mask_bytes > MAX_MASKS {
            self.terms.truncate(self.own);
            self.rows.clear();
            self.steps.clear();
            self.masks.clear();
            self.reached.clear();
        }
        let done = self.terms.work - self.before;
        self.allowed = (self.allowed.saturating_sub(done) + WORK_OF_TOKEN).min(MAX_WORK);
        self.before = self.terms.work;
    }

    fn check_work(&self) -> Result<()> {
        let is_large = self.steps.len() > 2 * MAX_STATES || self.terms.size() > self.own_size + 2 * MAX_TERMS;
        if self.terms.work - self.before > self.allowed || is_large {
            let reason = "the schema or the regular expression needs too much work for a token";
            return Err(Error::data("the constraint", reason, "simplify it, as by fewer alternatives or repetitions"));
        }
        Ok(())
    }

    fn step(&mut self, state: Term, byte: u8) -> Result<Term> {
        let at = state.0 as usize;
        if at >= self.rows.len() {
            self.rows.resize(at + 1, u32::MAX);
        }
        let row = self.rows.get(at).copied().unwrap_or(u32::MAX) as usize;
        if let Some(next) =
            self.steps.get(row).and_then(|steps| steps.get(usize::from(byte))).filter(|t| **t != UNKNOWN)
        {
            return Ok(*next);
        }
        let next = self.terms.derive(state, byte);
        self.check_work()?;
        let row = if row < self.steps.len() { row } else { self.steps.len() };
        if row == self.steps.len() {
            self.steps.push([UNKNOWN; 256]);
            if let Some(place) = self.rows.get_mut(at) {
                *place = row as u32;
            }
        }
        if let Some(place) = self.steps.get_mut(row).and_then(|steps| steps.get_mut(usize::from(byte))) {
            *place = next;
        }
        Ok(next)
    }

    /// The state after some tokens, and whether their text is empty. A text goes on from where it was last.
    fn state(&mut self, texts: &TokenTexts, tokens: &[u32]) -> Result<(Term, bool)> {
        let known = self.reached.iter().rposition(|reached| tokens.starts_with(&reached.tokens));
        let mut reached = match known {
            Some(known) => self.reached.remove(known),
            None => Reached { tokens: Vec::new(), state: self.start, is_first: true },
        };
        let further = tokens.get(reached.tokens.len()..).unwrap_or_default();
        let is_long = further.len() > LONG;
        for token in further {
            let bytes = texts.bytes(*token, reached.is_first);
            for byte in bytes {
                reached.state = match is_long {
                    true => self.terms.derive(reached.state, *byte),
                    false => self.step(reached.state, *byte)?,
                };
            }
            reached.is_first &= bytes.is_empty();
        }
        self.check_work()?;
        reached.tokens.extend_from_slice(further);
        let found = (reached.state, reached.is_first);
        if self.reached.len() >= MAX_TEXTS {
            self.reached.remove(0);
        }
        self.reached.push(reached);
        Ok(found)
    }

    pub(super) fn progress(&mut self, texts: &TokenTexts, tokens: &[u32]) -> Result<Progress> {
        self.begin();
        let (state, _) = self.state(texts, tokens)?;
        Ok(match state {
            EPSILON => Progress::Final,
            state if self.terms.is_nullable(state) => Progress::Complete,
            _ => Progress::Open,
        })
    }

    pub(super) fn mask(
        &mut self,
        texts: &TokenTexts,
        tokens: &[u32],
        end_tokens: &[u32],
        logits: &mut [f32],
    ) -> Result<()> {
        self.begin();
        let (state, is_first) = self.state(texts, tokens)?;
        let mask = match self.masks.get(&(state, is_first)) {
            Some(known) => Arc::clone(known),
            None => {
                let mask: Arc<[u64]> = self.find_mask(texts, state, is_first)?.into();
                self.masks.insert((state, is_first), Arc::clone(&mask));
                mask
            }
        };
        let ends: Vec<(u32, f32)> =
            end_tokens.iter().filter_map(|token| Some((*token, *logits.get(*token as usize)?))).collect();
        let mut is_any = false;
        for (block, bits) in logits.chunks_mut(64).zip(mask.iter().copied().chain(std::iter::repeat(0))) {
            for (bit, logit) in block.iter_mut().enumerate() {
                match bits >> bit & 1 {
                    1 => is_any |= *logit > f32::NEG_INFINITY,
                    _ => *logit = f32::NEG_INFINITY,
                }
            }
        }
        let may_end = self.terms.is_nullable(state);
        for (token, logit) in ends {
            if let Some(place) = logits.get_mut(token as usize) {
                *place = if may_end { logit } else { f32::NEG_INFINITY };
            }
            is_any |= may_end && logit > f32::NEG_INFINITY;
        }
        if is_any {
            return Ok(());
        }
        let reason = "no token that other settings allow goes on with a text of this form";
        let fix = "allow characters that the vocabulary has, or leave out settings that forbid tokens";
        Err(Error::data("the constraint", reason, fix))
    }

    /// The tokens that may follow a state, as bits.
    fn find_mask(&mut self, texts: &TokenTexts, state: Term, is_first: bool) -> Result<Vec<u64>> {
        let mut mask = vec![0_u64; texts.len().div_ceil(64)];
        let nodes = texts.nodes();
        let loses_space = is_first && texts.loses_space();
        self.walk(texts, (0, nodes.len(), 0), (state, loses_space), &mut mask)?;
        if loses_space && let Some(at) = nodes.iter().position(|node| node.byte == b' ' && node.depth == 1) {
            let end = at + nodes.get(at).map_or(1, |node| node.size.max(1) as usize);
            self.walk(texts, (at + 1, end, 1), (state, true), &mut mask)?;
        }
        Ok(mask)
    }

    /// Goes through nodes from `first` to `end`, whose topmost are one below `depth`, from a state on. A first token
    /// that loses its space has no other one: decoders differ in what becomes of that.
    fn walk(
        &mut self,
        texts: &TokenTexts,
        (first, end, depth): (usize, usize, usize),
        (state, loses_space): (Term, bool),
        mask: &mut [u64],
    ) -> Result<()> {
        let nodes = texts.nodes();
        let (mut at, mut states) = (first, vec![state]);
        while let Some(node) = nodes.get(at).filter(|_| at < end) {
            self.terms.work += 1;
            states.truncate((node.depth as usize).saturating_sub(depth));
            let before = states.last().copied().unwrap_or(EMPTY);
            let next = self.step(before, node.byte)?;
            if next == EMPTY || (loses_space && node.byte == b' ') {
                at += node.size.max(1) as usize;
                continue;
            }
            for token in texts.tokens(node) {
                if let Some(bits) = mask.get_mut(*token as usize / 64) {
                    *bits |= 1 << (token % 64);
                }
            }
            states.push(next);
            at += 1;
        }
        self.check_work()
    }
}
