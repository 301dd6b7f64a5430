//! From prompts to texts: the loop that asks a model for scores, chooses words and puts them behind the rows.
//!
//! Defines [`Generator`], its [`GenerateOptions`] and what it gives, [`Generated`]. Called by the generate program;
//! what a row is and when it ends is in [`super::rows`] and, for a search, in [`super::Beams`].

use super::beam::BeamOptions;
use super::rows::{Begun, Rows};
use super::sampling::Sampling;
use super::scores::Penalty;
use super::search::Searches;
use super::stream::check_stops;
use crate::model::{Batch, Decoding, DecodingOptions, TextModel};
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};
use bmtrain_core::comm::{Communicator, Reduction, tensors};
use bmtrain_core::{Ctx, Segment, Tensor};
use bmtrain_dist::param::widen;
use std::sync::Arc;

/// The most texts of a prompt, side by side: more would be a slip, and take the memory.
pub(super) const MOST_TEXTS: usize = 1024;

/// How the next word is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Method {
    /// The likeliest.
    Greedy,
    /// At random among those that are likely enough.
    Sampling {
        /// Which words are in the draw.
        sampling: Sampling,
        /// What the draws come from: equal seeds give equal texts, whichever prompts are beside a prompt.
        seed: u64,
        /// Texts of each prompt.
        texts: usize,
    },
    /// Several texts of each prompt side by side, for the likeliest of all.
    Beams(BeamOptions),
}

/// What decides about the words and when a text ends.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateOptions {
    /// How words are chosen.
    pub method: Method,
    /// The most words of a text; the model's longest row may end it earlier.
    pub max_new_tokens: usize,
    /// The fewest words in front of one that ends a text.
    pub min_new_tokens: usize,
    /// Makes words less likely that stand there already.
    pub penalty: Penalty,
    /// Whether the words of the prompt count for that as well; of a model with two stacks, those its decoder begins
    /// with.
    pub penalises_prompt: bool,
    /// Words that end a text.
    pub ends: Vec<u32>,
    /// Texts that end a text, which goes up to them.
    pub stops: Vec<String>,
    /// Words that never come.
    pub forbidden: Vec<u32>,
    /// So many words that stood one behind the other once do not come again. The prompt counts; of a model with two
    /// stacks, the decoder's row. `None` where they may.
    pub no_repeat: Option<usize>,
    /// The first word that the decoder behind an encoder writes, such as a language's. Behind a prefix it means
    /// nothing.
    pub forced_first: Option<u32>,
    /// The word that ends a text which reaches the most words, in the place of its last.
    pub forced_last: Option<u32>,
    /// What the decoder behind an encoder reads first; `None` for what the model's configuration says.
    pub first_word: Option<u32>,
    /// Words that the decoder behind an encoder reads behind its first, in front of what is generated.
    pub prefix: Vec<u32>,
    /// Whether a prompt is a context that is read from both sides, for a model that has such a thing.
    pub is_context: bool,
}

impl Default for GenerateOptions {
    /// Twenty words, the likeliest each time; nothing ends a text earlier.
    fn default() -> Self {
        GenerateOptions {
            method: Method::Greedy,
            max_new_tokens: 20,
            min_new_tokens: 0,
            penalty: Penalty::default(),
            penalises_prompt: true,
            ends: Vec::new(),
            stops: Vec::new(),
            forbidden: Vec::new(),
            no_repeat: None,
            forced_first: None,
            forced_last: None,
            first_word: None,
            prefix: Vec::new(),
            is_context: false,
        }
    }
}

impl GenerateOptions {
    /// Check the settings.
    ///
    /// # Errors
    /// A setting out of its range, or without effect.
    pub fn validate(&self) -> Result<()> {
        match self.method {
            Method::Greedy => {}
            Method::Sampling { sampling, texts, .. } => {
                sampling.validate()?;
                if texts == 0 || texts > MOST_TEXTS {
                    let reason = format!("{texts} texts of a prompt");
                    return Err(Error::argument("texts", reason, format!("give between 1 and {MOST_TEXTS}")));
                }
            }
            Method::Beams(options) => options.validate()?,
        }
        if self.max_new_tokens == 0 {
            return Err(Error::argument("max_new_tokens", "no word may be generated", "give 1 or more"));
        }
        if self.min_new_tokens > self.max_new_tokens {
            let reason = format!("{} words at least, and {} at most", self.min_new_tokens, self.max_new_tokens);
            return Err(Error::argument("min_new_tokens", reason, "give at most max_new_tokens"));
        }
        if self.min_new_tokens > 0 && self.ends.is_empty() {
            let reason = "no word ends a text, so that there is none to wait with";
            return Err(Error::argument("min_new_tokens", reason, "leave it out, or give words that end a text"));
        }
        if self.no_repeat == Some(0) {
            return Err(Error::argument("no_repeat", "rows of no word", "leave it out, or give 1 or more"));
        }
        self.penalty.validate()?;
        check_stops(&self.stops)
    }
}

/// What ended a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// One of the words that end texts, which is the last of its words.
    Word,
    /// One of the texts that end texts.
    Stop,
    /// It reached the most words, or the model its longest row.
    Length,
}

/// A text that was generated.
#[derive(Debug, Clone, PartialEq)]
pub struct Generated {
    /// Its words; of a text that a stop ended, up to the word that brought it.
    pub words: Vec<u32>,
    /// What they say, without special words and up to a stop; nothing without a tokenizer.
    pub text: String,
    /// Of a search: the sum of its words' logarithms of probabilities, divided by their number to the power of the
    /// length penalty.
    pub score: Option<f32>,
    /// What ended it.
    pub ending: Ending,
}

/// What is told while texts come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Number of the prompt among those of the call.
    pub prompt: usize,
    /// Number of the text among those of the prompt.
    pub text: usize,
    /// Text that is certain now; never a part of a character, or of a stop.
    pub piece: &'a str,
}

/// Called with every piece; an error ends the generation with it.
pub type OnPiece<'a> = &'a mut dyn FnMut(Piece<'_>) -> Result<()>;

/// A model with the settings that it generates by.
pub struct Generator<'a> {
    model: &'a dyn TextModel,
    tokenizer: Option<&'a dyn Tokenizer>,
    options: GenerateOptions,
    ranks: Option<Arc<dyn Communicator>>,
    may_go_on: Option<&'a dyn Fn() -> Result<()>>,
}

impl<'a> Generator<'a> {
    /// Settings are checked here.
    ///
    /// # Errors
    /// Those of [`GenerateOptions::validate`]; stops without a tokenizer; words that the model does not have.
    pub fn new(
        model: &'a dyn TextModel,
        tokenizer: Option<&'a dyn Tokenizer>,
        options: GenerateOptions,
    ) -> Result<Self> {
        options.validate()?;
        if tokenizer.is_none() && !options.stops.is_empty() {
            let reason = "they are texts, and there is no tokenizer to read words with";
            return Err(Error::argument("stop", reason, "give words that end a text instead"));
        }
        if !options.prefix.is_empty() && !model.info().generates_targets {
            let reason = "it is for the decoder behind an encoder, and this model has none";
            return Err(Error::argument("prefix", reason, "put it behind the prompt"));
        }
        let decoders = [("forced_first", options.forced_first), ("first_word", options.first_word)];
        if let Some((name, _)) = decoders.iter().find(|(_, word)| word.is_some() && !model.info().generates_targets) {
            let reason = "it is for the decoder behind an encoder, and this model has none";
            return Err(Error::argument(*name, reason, "leave it out"));
        }
        let single = |word: Option<u32>| word.into_iter().collect::<Vec<_>>();
        let words = [
            ("ends", options.ends.clone()),
            ("forbidden", options.forbidden.clone()),
            ("prefix", options.prefix.clone()),
            ("forced_first", single(options.forced_first)),
            ("forced_last", single(options.forced_last)),
            ("first_word", single(options.first_word)),
        ];
        for (name, words) in words {
            if let Some(word) = words.iter().find(|word| **word as usize >= model.info().vocab_size) {
                let reason = format!("word {word}, and the model has {}", model.info().vocab_size);
                return Err(Error::argument(name, reason, "give words of the model's vocabulary"));
            }
        }
        Ok(Generator { model, tokenizer, options, ranks: None, may_go_on: None })
    }

    /// For a model whose values are cut over ranks: each of them has prompts of its own, which may be none, and all of
    /// them call [`Generator::generate`] as often as the others. Each step is taken by all together.
    #[must_use]
    pub fn on_ranks(self, ranks: Arc<dyn Communicator>) -> Self {
        Generator { ranks: (ranks.size() > 1).then_some(ranks), ..self }
    }

    /// Ask before every word whether to go on; an error ends the generation with it, on all ranks at the same word.
    #[must_use]
    pub fn asking(self, may_go_on: &'a dyn Fn() -> Result<()>) -> Self {
        Generator { may_go_on: Some(may_go_on), ..self }
    }

    /// The settings.
    pub fn options(&self) -> &GenerateOptions {
        &self.options
    }

    /// The texts of prompts, in their order; of each prompt as many as the method gives, the best first. `first` is the
    /// number of the first of them among all prompts of a run, by which random draws go. `on_piece` is told text as it
    /// comes, but for a search, whose texts are told at the end.
    ///
    /// Numerics: a text does not depend on the prompts beside its own, but for rounding and dynamic scaling, see
    /// [`Decoding::extend`].
    ///
    /// # Errors
    /// A prompt without a word, with one that the model does not have, or so long that none can follow; what `on_piece`
    /// returns; a failing device.
    pub fn generate(
        &self,
        prompts: &[Vec<u32>],
        first: u64,
        cx: &mut Ctx,
        on_piece: OnPiece<'_>,
    ) -> Result<Vec<Vec<Generated>>> {
        let limits = self.limits(prompts)?;
        let begun = Begun { options: &self.options, tokenizer: self.tokenizer, prompts, limits: &limits, first };
        match self.options.method {
            Method::Beams(beams) => self.run(Searches::new(begun, beams, self.own_words())?, prompts, cx, on_piece),
            Method::Greedy | Method::Sampling { .. } => {
                self.run(Rows::new(begun, self.own_words())?, prompts, cx, on_piece)
            }
        }
    }

    /// Words in front of what is generated in rows of a decoder behind an encoder.
    fn own_words(&self) -> Option<Vec<u32>> {
        let of_model = || self.model.info().decoder_start_token.and_then(|word| u32::try_from(word).ok());
        let first = self.options.first_word.or_else(of_model);
        let words = first.into_iter().chain(self.options.prefix.iter().copied()).collect();
        self.model.info().generates_targets.then_some(words)
    }

    /// The most words of each prompt's text.
    fn limits(&self, prompts: &[Vec<u32>]) -> Result<Vec<usize>> {
        let (longest, own) = (self.model.info().max_length, self.own_words());
        if own.as_ref().is_some_and(Vec::is_empty) {
            let reason = "the decoder reads a first word, and the configuration does not say which";
            return Err(Error::model("config.json, field decoder_start_token_id", reason, "add it"));
        }
        let limit = |(number, prompt): (usize, &Vec<u32>)| {
            let wrong = |reason: String, fix: &str| Err(Error::data(format!("prompt {number}"), reason, fix));
            if prompt.is_empty() {
                return wrong("it has no word".into(), "give at least one, such as the word that begins texts");
            }
            if let Some(word) = prompt.iter().find(|word| **word as usize >= self.model.info().vocab_size) {
                let reason = format!("word {word}, and the model has {}", self.model.info().vocab_size);
                return wrong(reason, "use the tokenizer of the model");
            }
            let begun = own.as_ref().map_or(prompt.len(), Vec::len);
            match longest.saturating_sub(begun) {
                0 => {
                    let reason = format!("{begun} words, and the longest row of the model has {longest}");
                    wrong(reason, "shorten it, so that there is room for what is generated")
                }
                room => Ok(room.min(self.options.max_new_tokens)),
            }
        };
        prompts.iter().enumerate().map(limit).collect()
    }

    /// Begin the rows of all prompts; the scores of their first words.
    fn begin(&self, prompts: &[Vec<u32>], cx: &mut Ctx) -> Result<(Box<dyn Decoding + 'a>, Tensor)> {
        let grown =
            |length: usize| length.saturating_add(self.options.max_new_tokens).min(self.model.info().max_length);
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let (source, words, expected) = match self.own_words() {
            None => (None, padded(prompts, longest, true), grown(longest)),
            Some(words) => {
                let begun = vec![words.clone(); prompts.len()];
                (Some(padded(prompts, longest, false)), padded(&begun, words.len(), true), grown(words.len()))
            }
        };
        // No more than is likely to be needed: the longest row of some models is as long as one likes.
        let options = DecodingOptions { source: source.as_ref(), expected: expected.min(longest + 1024) };
        let mut decoding = self.model.decoding(options, cx)?;
        let context = match self.options.is_context {
            true => Some(words.attention_mask.clone().unwrap_or_else(|| vec![1; words.input_ids.len()])),
            false => None,
        };
        let scores = decoding.extend(&Batch { context, ..words }, cx)?; // [R, V]
        Ok((decoding, scores))
    }

    /// Ask the model and choose, until all rows of all ranks have ended.
    fn run<S: Chooser>(
        &self,
        mut rows: S,
        prompts: &[Vec<u32>],
        cx: &mut Ctx,
        on_piece: OnPiece<'_>,
    ) -> Result<Vec<Vec<Generated>>> {
        if prompts.is_empty() && self.ranks.is_none() {
            return Ok(Vec::new());
        }
        let asked = || self.may_go_on.map_or(Ok(()), |may_go_on| may_go_on());
        if self.ranks.is_none() {
            asked()?;
        }
        // A rank without prompts goes along with the others, with a row that nobody reads.
        let idle = [vec![0]];
        let (mut decoding, mut scores) = self.begin(if prompts.is_empty() { &idle } else { prompts }, cx)?;
        let mut is_idle = prompts.is_empty();
        loop {
            let asked = asked();
            let (mut from, mut words) = (Vec::new(), Vec::new());
            if !is_idle {
                let vocabulary = scores.shape().last();
                let values = widen(&scores)?; // [R, V]
                drop(scores);
                let scores = values.chunks(vocabulary.max(1)).map(<[f32]>::to_vec).collect();
                (from, words) = rows.choose(scores, on_piece)?.into_iter().unzip();
            }
            let own = match (&asked, words.is_empty()) {
                (Err(_), _) => Vote::Stop,
                (Ok(()), false) => Vote::GoOn,
                (Ok(()), true) => Vote::Done,
            };
            match self.highest(own, cx)? {
                Vote::GoOn => {}
                Vote::Done => return rows.finish(on_piece),
                Vote::Stop => {
                    asked?;
                    return Err(Error::argument("this run", "another rank was asked to stop", "start it again"));
                }
            }
            if words.is_empty() {
                if !is_idle && self.own_words().is_none() {
                    // From the beginning: rows that have ended may be as long as the model can read.
                    decoding = self.model.decoding(DecodingOptions::default(), cx)?;
                } else if !is_idle {
                    decoding.reorder(&[0], cx)?;
                }
                is_idle = true;
                words = vec![0];
            } else {
                decoding.reorder(&from, cx)?;
            }
            let words = words.iter().map(|&word: &u32| vec![word]).collect::<Vec<_>>();
            scores = decoding.extend(&padded(&words, 1, true), cx)?; // [R, V]
        }
    }

    /// The highest of all ranks' votes.
    fn highest(&self, own: Vote, cx: &Ctx) -> Result<Vote> {
        let Some(ranks) = &self.ranks else { return Ok(own) };
        let own = Tensor::from_slice_in(cx.device(), [1], &[f32::from(own as u8)], Segment::Data)?;
        let highest = tensors::all_reduce(&**ranks, own, Reduction::Max)?.to_vec::<f32>()?;
        let highest = highest.first().copied().unwrap_or(0.0);
        let votes = [Vote::Stop, Vote::GoOn, Vote::Done];
        Ok(votes.into_iter().find(|vote| f32::from(*vote as u8) <= highest).unwrap_or(Vote::Done))
    }
}

/// What a rank says behind each word; the highest of all holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Vote {
    /// All of its texts have ended.
    Done = 0,
    GoOn = 1,
    /// Somebody asks for an end.
    Stop = 2,
}

/// What chooses the next words of rows.
pub(super) trait Chooser {
    /// Take the scores `[V]` of each row; of each row that goes on the row that it goes on from, and its next word.
    fn choose(&mut self, scores: Vec<Vec<f32>>, on_piece: OnPiece<'_>) -> Result<Vec<(usize, u32)>>;

    /// The texts of all prompts.
    fn finish(self, on_piece: OnPiece<'_>) -> Result<Vec<Vec<Generated>>>;
}

/// Rows of words as a batch, padded to a length.
fn padded(rows: &[Vec<u32>], length: usize, on_the_left: bool) -> Batch {
    let (mut ids, mut mask) = (Vec::with_capacity(rows.len() * length), Vec::with_capacity(rows.len() * length));
    for row in rows {
        let padding = length - row.len();
        let (before, behind) = if on_the_left { (padding, 0) } else { (0, padding) };
        ids.resize(ids.len() + before, 0);
        ids.extend(row.iter().map(|&word| i64::from(word)));
        ids.resize(ids.len() + behind, 0);
        mask.resize(mask.len() + before, 0);
        mask.resize(mask.len() + row.len(), 1);
        mask.resize(mask.len() + behind, 0);
    }
    let mask = mask.contains(&0).then_some(mask);
    Batch { labels: None, ..Batch::next_tokens(length, ids, mask) }
}
