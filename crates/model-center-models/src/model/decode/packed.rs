//! Incremental decoding of sequences that share the passes of a decoder: each has a KV cache and a length of its own,
//! and joins or leaves between two passes. The tokens of a pass are packed into one row without padding.
//!
//! Defines [`PackedDecoding`], created by [`TextModel::packed_decoding`](crate::model::TextModel::packed_decoding).
//! Called by a server, whose requests come and go; a batch that begins and ends together has
//! [`Decoding`](crate::model::Decoding).

use crate::layer::{BlockCache, OwnCache, PositionsConfig, TokensRead, position::Rows};
use crate::model::batch::Sequences;
use crate::model::batch::checks::check_length;
use crate::model::head::Head;
use crate::model::transformer::modules::{Modules, StackBlock};
use crate::model::transformer::prefix;
use bmtrain_core::ops::{self, PackedKeyValues, PackedTokens};
use bmtrain_core::{Ctx, Device, Segment, Tensor, Var};
use bmtrain_dist::param::widen;
use model_center_base::batch::Batch;
use model_center_base::error::{Error, Result};

/// The logits that are read of the tokens of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitsRead {
    /// None: further tokens of a prompt follow.
    None,
    /// Logits of the token that follows the last one.
    Last,
    /// Logits of the token that follows each.
    All,
}

/// Further tokens of one sequence.
#[derive(Debug, Clone, Copy)]
pub struct SequenceTokens<'t> {
    /// The number of the sequence.
    pub sequence: usize,
    /// Token ids, at least one.
    pub tokens: &'t [u32],
    /// The logits to return.
    pub logits: LogitsRead,
}

/// Sequences that share the passes of a model.
pub trait PackedDecoding {
    /// Begins a sequence of `expected` tokens, whose KV cache is allocated with its first ones; returns its number.
    fn open(&mut self, expected: usize) -> usize;

    /// Begins a sequence with the tokens of another one; returns its number.
    ///
    /// # Errors
    /// A sequence that is not open; a failing device.
    fn copy(&mut self, sequence: usize, expected: usize) -> Result<usize>;

    /// Ends a sequence and frees its KV cache.
    fn close(&mut self, sequence: usize);

    /// Appends tokens to sequences, each at most once, and returns logits `[V]` in the order of the tokens they follow.
    ///
    /// Numerics: as one forward pass over each sequence alone, up to the summation order of matrix products of another
    /// height.
    ///
    /// # Errors
    /// A sequence that is not open; ids out of range; a sequence that becomes too long; a tape; a failing device, after
    /// which the sequences of the call are to be closed.
    fn extend(&mut self, tokens: &[SequenceTokens<'_>], cx: &mut Ctx) -> Result<Vec<Vec<f32>>>;

    /// Cached tokens of a sequence, virtual ones included.
    fn length(&self, sequence: usize) -> usize;

    /// The most tokens of a sequence.
    fn longest(&self) -> usize;

    /// Bytes of the keys and values of a token in all blocks; 0 before the first token.
    fn token_bytes(&self) -> usize;
}

/// The state of [`PackedDecoding`].
pub(in crate::model) struct Packed<'a, B: StackBlock> {
    model: &'a Modules<B>,
    caches: Vec<BlockCache>,
    /// The length of each sequence; `None` for a number that is free.
    lengths: Vec<Option<usize>>,
    /// The most tokens of a sequence, virtual ones included.
    longest: usize,
}

/// The tokens of one pass.
struct Pass<'t, 's> {
    parts: Vec<&'t SequenceTokens<'s>>,
    /// Virtual tokens before the first ones, if the only sequence begins with them.
    virtual_tokens: usize,
}

impl<'a, B: StackBlock> Packed<'a, B> {
    /// No sequence.
    ///
    /// # Errors
    /// An encoder-decoder; a model without a head for next-token prediction; several ranks.
    pub(in crate::model) fn new(model: &'a Modules<B>) -> Result<Self> {
        let spec = &model.spec;
        let refused = |reason: &str, fix: &str| Err(Error::model(spec.title, reason, fix));
        if !matches!(model.heads.kind(), Head::CausalLm { .. }) || spec.head.transform.is_some() {
            return refused("it has no language-modelling head", "use a decoder with the head lm");
        }
        if spec.is_encoder_decoder() {
            return refused("its sequences have an encoder's text each, and cannot be packed", "use a decoder");
        }
        let ranks = model.parameters.stages().ranks().size();
        if ranks > 1 || model.token_ranks.is_some() {
            return refused("packed sequences are on one rank", "open it on one rank");
        }
        let stack = spec.stacks.last();
        // Beyond this length the angles of all cached tokens would change with each further one.
        let steady = stack.and_then(|stack| stack.positions.steady_length()).unwrap_or(usize::MAX);
        let caches = (0..stack.map_or(0, |stack| stack.layers)).map(|_| BlockCache::packed()).collect();
        Ok(Packed { model, caches, lengths: Vec::new(), longest: spec.max_length.min(steady) })
    }

    /// The KV caches of all blocks.
    fn caches(&mut self) -> impl Iterator<Item = &mut PackedKeyValues> {
        self.caches.iter_mut().filter_map(|cache| match &mut cache.own {
            OwnCache::Packed(own) => Some(own),
            OwnCache::Batch(_) => None,
        })
    }

    /// A free number, from now on in use.
    fn number(&mut self, length: usize) -> usize {
        let free = self.lengths.iter().position(Option::is_none).unwrap_or(self.lengths.len());
        match self.lengths.get_mut(free) {
            Some(slot) => *slot = Some(length),
            None => self.lengths.push(Some(length)),
        }
        free
    }

    fn open_length(&self, sequence: usize) -> Result<usize> {
        let length = self.lengths.get(sequence).copied().flatten();
        length.ok_or_else(|| Error::argument("sequence", format!("{sequence} is not open"), "open it first"))
    }

    /// Virtual tokens before every sequence that are tokens of a pass.
    fn virtual_tokens(&self) -> usize {
        let prompt = self.model.prompt.as_ref().filter(|prompt| prompt.table(0).is_some());
        prompt.map_or(0, |prompt| prompt.tokens())
    }

    /// Keys of a sequence before its next tokens: of its prefix, or the cached ones.
    fn keys(&self, length: usize) -> usize {
        if length == 0 { self.model.spec.prefix } else { length }
    }

    /// The expected keys of a sequence of as many tokens.
    fn room(&self, expected: usize) -> usize {
        expected.saturating_add(self.virtual_tokens() + self.model.spec.prefix).min(self.longest)
    }

    fn check(&self, tokens: &[SequenceTokens<'_>]) -> Result<()> {
        let vocabulary = self.model.spec.vocab_size;
        for (index, part) in tokens.iter().enumerate() {
            let wrong =
                |reason: String, fix: &str| Err(Error::data(format!("sequence {}", part.sequence), reason, fix));
            let length = self.open_length(part.sequence)?;
            if part.tokens.is_empty() || tokens.iter().take(index).any(|other| other.sequence == part.sequence) {
                return wrong("it has no token, or comes twice".into(), "give its tokens once");
            }
            if let Some(id) = part.tokens.iter().find(|id| **id as usize >= vocabulary) {
                return wrong(format!("token {id}, and the model has {vocabulary}"), "use the model's own tokens");
            }
            let before = if length == 0 { self.virtual_tokens() + self.keys(0) } else { length };
            check_length(before + part.tokens.len(), self.longest)?;
        }
        Ok(())
    }

    /// The passes for these tokens: one, but for sequences that begin with virtual tokens, which have one each.
    fn passes<'t, 's>(&self, tokens: &'t [SequenceTokens<'s>]) -> Vec<Pass<'t, 's>> {
        let virtual_tokens = self.virtual_tokens();
        let begins = |part: &SequenceTokens<'_>| virtual_tokens > 0 && self.length(part.sequence) == 0;
        let mut passes: Vec<Pass<'t, 's>> = Vec::new();
        let mut joined: Vec<&SequenceTokens<'_>> = Vec::new();
        for part in tokens {
            match begins(part) {
                true => passes.push(Pass { parts: vec![part], virtual_tokens }),
                false => joined.push(part),
            }
        }
        if !joined.is_empty() {
            passes.push(Pass { parts: joined, virtual_tokens: 0 });
        }
        passes
    }

    /// The packed row of a pass, and what each cache has to know of it.
    fn row(&self, pass: &Pass<'_, '_>, cx: &mut Ctx) -> Result<(Sequences, Vec<PackedTokens>)> {
        let model = self.model;
        let stack = model.spec.stacks.last();
        let (mut ids, mut positions, mut reach, mut packed) = (Vec::new(), Vec::new(), 0, Vec::new());
        for part in &pass.parts {
            let past = self.keys(self.length(part.sequence));
            let length = pass.virtual_tokens + part.tokens.len();
            ids.extend(part.tokens.iter().map(|&id| i64::from(id)));
            positions.extend((past..past + length).map(|position| position as i64));
            reach = reach.max(past + length);
            let rows = Rows { past, length, numbers: None, reach: past + length };
            let bias = match model.stacks.last() {
                Some(stack) => stack.positions.packed_bias(rows, cx)?,
                None => None,
            };
            packed.push(PackedTokens { slot: part.sequence, tokens: length, bias });
        }
        let device = cx.device().clone();
        let mut input = Batch { labels: None, ..Batch::next_tokens(ids.len(), ids, None) };
        let prompt = model.prompt.as_ref().filter(|_| pass.virtual_tokens > 0);
        if let Some(prompt) = prompt {
            input = prompt.first(&input, &model.spec);
        }
        let upload = |values: &[i64]| Tensor::from_slice_in(&device, [1, values.len()], values, Segment::Data);
        let table = stack.and_then(|stack| stack.added.table());
        let of_table = |first: usize| positions.iter().map(|position| position + first as i64).collect::<Vec<_>>();
        let rotates = stack.is_some_and(|stack| matches!(stack.positions, PositionsConfig::Rotary(_)));
        let begins = pass.parts.iter().any(|part| self.length(part.sequence) == 0);
        let sequences = Sequences {
            ids: upload(&input.input_ids)?,
            position_ids: table.map(|table| upload(&of_table(table.first))).transpose()?,
            reach,
            token_type_ids: None,
            padding: None,
            numbers: rotates.then(|| upload(&positions)).transpose()?,
            visible: None,
            documents: None,
            tokens: None,
            reads: TokensRead::All,
            prefix: if begins { prefix::rows(&device, [1, model.spec.prefix])? } else { None },
            prompt: None,
        };
        let sequences = match prompt {
            Some(prompt) => prompt.attach(0, sequences, &input.input_ids, &device)?,
            None => sequences,
        };
        Ok((sequences, packed))
    }

    /// Runs a pass; returns the logits that are read, in order.
    fn run(&mut self, pass: &Pass<'_, '_>, cx: &mut Ctx) -> Result<Vec<Vec<f32>>> {
        let model = self.model;
        let (sequences, packed) = self.row(pass, cx)?;
        self.caches().for_each(|cache| cache.begin(packed.clone()));
        drop(packed);
        let decoded = model.run_staged_stack(0, (&sequences, None), Some(&mut self.caches), cx)?;
        let (mut read, mut first) = (Vec::new(), 0);
        for part in &pass.parts {
            let own = first + pass.virtual_tokens;
            first = own + part.tokens.len();
            match part.logits {
                LogitsRead::None => {}
                LogitsRead::Last => read.push(first as i64 - 1),
                LogitsRead::All => read.extend((own..first).map(|row| row as i64)),
            }
            if let Some(Some(length)) = self.lengths.get_mut(part.sequence) {
                let before = if *length == 0 { model.spec.prefix } else { *length };
                *length = before + pass.virtual_tokens + part.tokens.len();
            }
        }
        match decoded.hidden {
            Some(hidden) if !read.is_empty() => self.logits(&hidden, &read, cx),
            _ => Ok(Vec::new()),
        }
    }

    /// The logits of some rows of `hidden [1, T, D]`.
    fn logits(&self, hidden: &Var, rows: &[i64], cx: &mut Ctx) -> Result<Vec<Vec<f32>>> {
        let [_, length, width] = hidden.dims("packed")?;
        let device: Device = cx.device().clone();
        let read = Tensor::from_slice_in(&device, [rows.len()], rows, Segment::Data)?;
        let hidden = ops::embedding(cx, &read, &hidden.reshape([length, width])?, None)?; // [P, D]
        let hidden = hidden.reshape([1, rows.len(), width])?; // [1, P, D]
        let missing =
            || Error::model(self.model.spec.title, "its head gives no logits", "open the directory with the head lm");
        let logits = self.model.lm_logits(&hidden, cx)?.ok_or_else(missing)?; // [1, P, V]
        let vocabulary = logits.shape().last().max(1);
        Ok(widen(logits.value())?.chunks(vocabulary).map(<[f32]>::to_vec).collect())
    }
}

impl<B: StackBlock> PackedDecoding for Packed<'_, B> {
    fn open(&mut self, expected: usize) -> usize {
        let (number, expected) = (self.number(0), self.room(expected));
        self.caches().for_each(|cache| cache.open(number, expected));
        number
    }

    fn copy(&mut self, sequence: usize, expected: usize) -> Result<usize> {
        let length = self.open_length(sequence)?;
        let (number, expected) = (self.number(length), self.room(expected));
        let failed = self.caches().find_map(|cache| cache.copy(sequence, number, expected).err());
        if let Some(error) = failed {
            self.close(number);
            return Err(error.into());
        }
        Ok(number)
    }

    fn close(&mut self, sequence: usize) {
        if let Some(length) = self.lengths.get_mut(sequence) {
            *length = None;
        }
        self.caches().for_each(|cache| cache.close(sequence));
    }

    fn extend(&mut self, tokens: &[SequenceTokens<'_>], cx: &mut Ctx) -> Result<Vec<Vec<f32>>> {
        self.check(tokens)?;
        let mut by_sequence = Vec::with_capacity(tokens.len());
        for pass in self.passes(tokens) {
            let mut logits = self.run(&pass, cx)?.into_iter();
            for part in &pass.parts {
                let count = match part.logits {
                    LogitsRead::None => 0,
                    LogitsRead::Last => 1,
                    LogitsRead::All => part.tokens.len(),
                };
                by_sequence.push((part.sequence, logits.by_ref().take(count).collect::<Vec<_>>()));
            }
        }
        // In the order of the call.
        let order = |sequence: &usize| tokens.iter().position(|part| part.sequence == *sequence);
        by_sequence.sort_by_key(|(sequence, _)| order(sequence));
        Ok(by_sequence.into_iter().flat_map(|(_, logits)| logits).collect())
    }

    fn length(&self, sequence: usize) -> usize {
        self.lengths.get(sequence).copied().flatten().unwrap_or(0)
    }

    fn longest(&self) -> usize {
        self.longest.saturating_sub(self.virtual_tokens() + self.model.spec.prefix)
    }

    fn token_bytes(&self) -> usize {
        let bytes = |cache: &BlockCache| match &cache.own {
            OwnCache::Packed(own) => own.token_bytes().unwrap_or(0),
            OwnCache::Batch(_) => 0,
        };
        self.caches.iter().map(bytes).sum()
    }
}
