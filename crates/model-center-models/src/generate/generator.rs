//! The generation loop: a model's logits to tokens, with a KV cache.
//!
//! [`Generator`] runs greedy decoding, sampling ([`super::rows`]) and beam search ([`super::search`]) over a batch of
//! prompts, on one rank or on several.

use super::options::{GenerateOptions, Generated, Method, OnText};
use super::rows::{DecodeRequest, Rows};
use super::search::BeamSearches;
use crate::model::{Batch, Decoding, DecodingOptions, TextModel};
use crate::{Error, Result};
use bmtrain_core::comm::{Communicator, Reduction, tensors};
use bmtrain_core::{Ctx, Segment, Tensor};
use bmtrain_dist::param::widen;
use model_center_formats::tokenizer::Tokenizer;
use std::sync::Arc;

/// A model with its generation options.
pub struct Generator<'a> {
    model: &'a dyn TextModel,
    tokenizer: Option<&'a dyn Tokenizer>,
    options: GenerateOptions,
    ranks: Option<Arc<dyn Communicator>>,
    may_continue: Option<&'a dyn Fn() -> Result<()>>,
}

impl<'a> Generator<'a> {
    /// Check the options for the model.
    pub fn new(
        model: &'a dyn TextModel,
        tokenizer: Option<&'a dyn Tokenizer>,
        options: GenerateOptions,
    ) -> Result<Self> {
        options.validate_for(model.info(), tokenizer.is_some())?;
        Ok(Generator { model, tokenizer, options, ranks: None, may_continue: None })
    }

    /// For a model whose parameters are sharded over ranks. Each rank has its own prompts, or none, and all ranks call
    /// [`Generator::generate`] the same number of times: every step is collective.
    #[must_use]
    pub fn on_ranks(self, ranks: Arc<dyn Communicator>) -> Self {
        Generator { ranks: (ranks.size() > 1).then_some(ranks), ..self }
    }

    /// Call `may_continue` before every token; an error ends the generation, on all ranks at the same token.
    #[must_use]
    pub fn with_check(self, may_continue: &'a dyn Fn() -> Result<()>) -> Self {
        Generator { may_continue: Some(may_continue), ..self }
    }

    /// The options.
    pub fn options(&self) -> &GenerateOptions {
        &self.options
    }

    /// Generate the sequences of each prompt, the best first. `first` is the index of the first prompt in the whole
    /// run, which selects its random numbers. `on_text` is called as text is generated; with beam search, at the end.
    ///
    /// Numerics: a sequence depends on the other prompts of the batch by rounding and dynamic scaling only, see
    /// [`Decoding::extend`].
    ///
    /// # Errors
    /// A prompt that is empty, has tokens outside the vocabulary, or leaves no room for a token; an error of `on_text`.
    pub fn generate(
        &self,
        prompts: &[Vec<u32>],
        first: u64,
        cx: &mut Ctx,
        on_text: OnText<'_>,
    ) -> Result<Vec<Vec<Generated>>> {
        let limits = self.limits(prompts)?;
        let decoder_prompt = self.decoder_prompt();
        let (options, tokenizer) = (&self.options, self.tokenizer);
        let request = DecodeRequest { options, tokenizer, prompts, decoder_prompt, limits: &limits, first };
        match options.method {
            Method::Beams(beams) => self.run(BeamSearches::new(request, beams)?, prompts, cx, on_text),
            Method::Greedy | Method::Sampling { .. } => self.run(Rows::new(request)?, prompts, cx, on_text),
        }
    }

    /// The first tokens of an encoder-decoder's decoder.
    fn decoder_prompt(&self) -> Option<Vec<u32>> {
        let of_model = || self.model.info().decoder_start_token.and_then(|token| u32::try_from(token).ok());
        let first = self.options.decoder_start_token.or_else(of_model);
        let tokens = first.into_iter().chain(self.options.prefix.iter().copied()).collect();
        self.model.info().generates_targets.then_some(tokens)
    }

    /// The most new tokens of each prompt.
    fn limits(&self, prompts: &[Vec<u32>]) -> Result<Vec<usize>> {
        let (longest, own) = (self.model.info().max_length, self.decoder_prompt());
        if own.as_ref().is_some_and(Vec::is_empty) {
            let reason = "the configuration has no start token for the decoder";
            return Err(Error::model("config.json, field decoder_start_token_id", reason, "add it"));
        }
        let limit = |(number, prompt): (usize, &Vec<u32>)| {
            let wrong = |reason: String, fix: &str| Err(Error::data(format!("prompt {number}"), reason, fix));
            if prompt.is_empty() {
                return wrong("it has no token".into(), "give at least one, such as the bos token");
            }
            if let Some(token) = prompt.iter().find(|token| **token as usize >= self.model.info().vocab_size) {
                let reason = format!("token {token}, and the model has {}", self.model.info().vocab_size);
                return wrong(reason, "use the tokenizer of the model");
            }
            let start = own.as_ref().map_or(prompt.len(), Vec::len);
            if let Some(most) = self.options.max_length.filter(|most| *most <= start) {
                let reason = format!("{start} tokens, and with the new ones there may be max_length = {most}");
                return wrong(reason, "shorten it, or give `max_new_tokens`");
            }
            let longest = self.options.max_length.map_or(longest, |most| most.min(longest));
            match longest.saturating_sub(start) {
                0 => {
                    let reason = format!("{start} tokens, and the model's longest sequence has {longest}");
                    wrong(reason, "shorten it, so that there is room for new tokens")
                }
                room => Ok(room.min(self.options.max_new_tokens)),
            }
        };
        prompts.iter().enumerate().map(limit).collect()
    }

    /// Prefill: the KV cache of all prompts, and the logits of their first new tokens.
    fn prefill(&self, prompts: &[Vec<u32>], cx: &mut Ctx) -> Result<(Box<dyn Decoding + 'a>, Tensor)> {
        let grown =
            |length: usize| length.saturating_add(self.options.max_new_tokens).min(self.model.info().max_length);
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let (source, tokens, expected) = match self.decoder_prompt() {
            None => (None, padded(prompts, longest, true), grown(longest)),
            Some(tokens) => {
                let starts = vec![tokens.clone(); prompts.len()];
                (Some(padded(prompts, longest, false)), padded(&starts, tokens.len(), true), grown(tokens.len()))
            }
        };
        // No more than is likely to be needed: some models have no longest sequence.
        let options = DecodingOptions { source: source.as_ref(), expected: expected.min(longest + 1024) };
        let mut decoding = self.model.decoding(options, cx)?;
        let context = match self.options.is_context {
            true => Some(tokens.attention_mask.clone().unwrap_or_else(|| vec![1; tokens.input_ids.len()])),
            false => None,
        };
        let logits = decoding.extend(&Batch { context, ..tokens }, cx)?; // [R, V]
        Ok((decoding, logits))
    }

    /// Decode until all rows of all ranks have ended.
    fn run<S: TokenChooser>(
        &self,
        mut rows: S,
        prompts: &[Vec<u32>],
        cx: &mut Ctx,
        on_text: OnText<'_>,
    ) -> Result<Vec<Vec<Generated>>> {
        if prompts.is_empty() && self.ranks.is_none() {
            return Ok(Vec::new());
        }
        let check = || self.may_continue.map_or(Ok(()), |may_continue| may_continue());
        if self.ranks.is_none() {
            check()?;
        }
        // A rank without prompts takes part in the collectives with an unused row.
        let idle = [vec![0]];
        let (mut decoding, mut logits) = self.prefill(if prompts.is_empty() { &idle } else { prompts }, cx)?;
        let mut is_idle = prompts.is_empty();
        loop {
            let checked = check();
            let (mut from, mut tokens) = (Vec::new(), Vec::new());
            if !is_idle {
                let vocabulary = logits.shape().last();
                let values = widen(&logits)?; // [R, V]
                drop(logits);
                let logits = values.chunks(vocabulary.max(1)).map(<[f32]>::to_vec).collect();
                (from, tokens) = rows.choose(logits, on_text)?.into_iter().unzip();
            }
            let own = match (&checked, tokens.is_empty()) {
                (Err(_), _) => Vote::Stop,
                (Ok(()), false) => Vote::Continue,
                (Ok(()), true) => Vote::Done,
            };
            match self.highest(own, cx)? {
                Vote::Continue => {}
                Vote::Done => return rows.finish(on_text),
                Vote::Stop => {
                    checked?;
                    return Err(Error::argument("this run", "another rank was asked to stop", "start it again"));
                }
            }
            if tokens.is_empty() {
                if !is_idle && self.decoder_prompt().is_none() {
                    // An empty cache: the ended rows may be as long as the model's longest sequence.
                    decoding = self.model.decoding(DecodingOptions::default(), cx)?;
                } else if !is_idle {
                    decoding.reorder(&[0], cx)?;
                }
                is_idle = true;
                tokens = vec![0];
            } else {
                decoding.reorder(&from, cx)?;
            }
            let tokens = tokens.iter().map(|&token: &u32| vec![token]).collect::<Vec<_>>();
            logits = decoding.extend(&padded(&tokens, 1, true), cx)?; // [R, V]
        }
    }

    /// The highest of all ranks' votes.
    fn highest(&self, own: Vote, cx: &Ctx) -> Result<Vote> {
        let Some(ranks) = &self.ranks else { return Ok(own) };
        let own = Tensor::from_slice_in(cx.device(), [1], &[f32::from(own as u8)], Segment::Data)?;
        let highest = tensors::all_reduce(&**ranks, own, Reduction::Max)?.to_vec::<f32>()?;
        let highest = highest.first().copied().unwrap_or(0.0);
        let votes = [Vote::Stop, Vote::Continue, Vote::Done];
        Ok(votes.into_iter().find(|vote| f32::from(*vote as u8) <= highest).unwrap_or(Vote::Done))
    }
}

/// A rank's vote after each token; the highest of all ranks decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Vote {
    /// All of its rows have ended.
    Done = 0,
    Continue = 1,
    /// The check asked for an end.
    Stop = 2,
}

/// Chooses the next tokens of a batch.
pub(super) trait TokenChooser {
    /// Choose by the logits `[V]` of each row. Returns for each new row the row that it extends, and its token.
    fn choose(&mut self, logits: Vec<Vec<f32>>, on_text: OnText<'_>) -> Result<Vec<(usize, u32)>>;

    /// The sequences of all prompts.
    fn finish(self, on_text: OnText<'_>) -> Result<Vec<Vec<Generated>>>;
}

/// A batch of token rows, padded to `length`.
fn padded(rows: &[Vec<u32>], length: usize, on_left: bool) -> Batch {
    let (mut ids, mut mask) = (Vec::with_capacity(rows.len() * length), Vec::with_capacity(rows.len() * length));
    for row in rows {
        let padding = length - row.len();
        let (before, after) = if on_left { (padding, 0) } else { (0, padding) };
        ids.resize(ids.len() + before, 0);
        ids.extend(row.iter().map(|&token| i64::from(token)));
        ids.resize(ids.len() + after, 0);
        mask.resize(mask.len() + before, 0);
        mask.resize(mask.len() + row.len(), 1);
        mask.resize(mask.len() + after, 0);
    }
    let mask = mask.contains(&0).then_some(mask);
    Batch { labels: None, ..Batch::next_tokens(length, ids, mask) }
}
