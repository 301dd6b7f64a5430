//! Rows that go on by themselves, each by the likeliest word or by a draw.
//!
//! Defines [`Rows`]; called by [`super::Generator`].

use super::generator::{Chooser, Ending, GenerateOptions, Generated, Method, OnPiece, Piece};
use super::sampling::{Draw, Sampling};
use super::scores::{forbid, force, largest, repeating};
use super::stream::TextStream;
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};
use bmtrain_core::philox::Key;

/// What is given to begin with.
pub(super) struct Begun<'a> {
    pub(super) options: &'a GenerateOptions,
    pub(super) tokenizer: Option<&'a dyn Tokenizer>,
    pub(super) prompts: &'a [Vec<u32>],
    /// The most words of each prompt's text.
    pub(super) limits: &'a [usize],
    /// Number of the first prompt among all of a run.
    pub(super) first: u64,
}

impl Begun<'_> {
    /// Change the scores `[V]` of the word behind those in front of a text and those of the text, which has at most
    /// `limit` words.
    pub(super) fn change(&self, before: &[u32], words: &[u32], limit: usize, scores: &mut [f32]) {
        let options = self.options;
        if options.penalty.factor != 1.0 {
            let before = if options.penalises_prompt { before } else { &[] };
            let row: Vec<u32> = before.iter().chain(words).copied().collect();
            options.penalty.apply(&row, scores);
        }
        if let Some(size) = options.no_repeat {
            let row: Vec<u32> = before.iter().chain(words).copied().collect();
            forbid(&repeating(&row, size), scores);
        }
        forbid(&options.forbidden, scores);
        if words.len() < options.min_new_tokens {
            forbid(&options.ends, scores);
        }
        if let Some(word) = options.forced_first.filter(|_| words.is_empty() && options.prefix.is_empty()) {
            force(word, scores);
        }
        if let Some(word) = options.forced_last.filter(|_| words.len() + 1 == limit) {
            force(word, scores);
        }
    }
}

/// One text that goes on or has ended.
struct Row<'a> {
    prompt: usize,
    text: usize,
    words: Vec<u32>,
    stream: Option<TextStream<'a>>,
    shown: String,
    ending: Option<Ending>,
}

/// The texts of all prompts.
pub(super) struct Rows<'a> {
    begun: Begun<'a>,
    /// What the decoder behind an encoder reads in front of a text.
    own: Option<Vec<u32>>,
    draws: Option<(Sampling, Key)>,
    /// Those of a prompt side by side.
    rows: Vec<Row<'a>>,
    /// Which of them the model goes on with, in its order; before the first words, one for each prompt.
    going: Vec<usize>,
    has_begun: bool,
}

impl<'a> Rows<'a> {
    pub(super) fn new(begun: Begun<'a>, own: Option<Vec<u32>>) -> Result<Self> {
        let (draws, texts) = match begun.options.method {
            Method::Sampling { sampling, seed, texts } => (Some((sampling, Key::new(seed, "generation"))), texts),
            Method::Greedy | Method::Beams(_) => (None, 1),
        };
        let mut rows = Vec::new();
        for prompt in 0..begun.prompts.len() {
            for text in 0..texts {
                let stream = begun.tokenizer.map(|tokenizer| TextStream::new(tokenizer, &begun.options.stops));
                let stream = stream.transpose()?;
                rows.push(Row { prompt, text, words: Vec::new(), stream, shown: String::new(), ending: None });
            }
        }
        Ok(Rows { begun, own, draws, going: (0..rows.len()).collect(), rows, has_begun: false })
    }

    /// The next word of a row.
    fn next(&self, row: &Row<'_>, scores: &mut [f32]) -> Result<u32> {
        let prompt = &self.begun.prompts[row.prompt];
        let limit = self.begun.limits[row.prompt];
        self.begun.change(self.own.as_ref().unwrap_or(prompt), &row.words, limit, scores);
        let word = match self.draws {
            None => largest(scores).map(|word| word as u32),
            Some((sampling, key)) => {
                let texts = (self.rows.len() / self.begun.prompts.len().max(1)) as u64;
                let row_number = (self.begun.first + row.prompt as u64) * texts + row.text as u64;
                sampling.choose(scores, Draw { key, row: row_number, place: row.words.len() as u32 })
            }
        };
        word.ok_or_else(|| {
            let place = format!("prompt {}, word {}", self.begun.first + row.prompt as u64, row.words.len());
            let reason = "no word is possible: all scores are minus infinity or no numbers";
            Error::data(place, reason, "forbid fewer words, take 32-bit floats, or check the weights")
        })
    }
}

impl Row<'_> {
    /// Take a word.
    fn push(&mut self, word: u32, limit: usize, ends: &[u32], on_piece: OnPiece<'_>) -> Result<()> {
        self.words.push(word);
        if let Some(stream) = &mut self.stream {
            let piece = stream.push(word)?;
            let is_stopped = stream.is_stopped();
            self.show(&piece, on_piece)?;
            if is_stopped {
                self.ending = Some(Ending::Stop);
            }
        }
        if self.ending.is_none() && ends.contains(&word) {
            self.ending = Some(Ending::Word);
        }
        if self.ending.is_none() && self.words.len() >= limit {
            self.ending = Some(Ending::Length);
        }
        if self.ending.is_some()
            && let Some(stream) = self.stream.take()
        {
            let rest = stream.finish()?;
            self.show(&rest, on_piece)?;
        }
        Ok(())
    }

    fn show(&mut self, piece: &str, on_piece: OnPiece<'_>) -> Result<()> {
        if piece.is_empty() {
            return Ok(());
        }
        self.shown.push_str(piece);
        on_piece(Piece { prompt: self.prompt, text: self.text, piece })
    }
}

impl Chooser for Rows<'_> {
    fn choose(&mut self, mut scores: Vec<Vec<f32>>, on_piece: OnPiece<'_>) -> Result<Vec<(usize, u32)>> {
        let mut next = Vec::with_capacity(self.going.len());
        let mut going = Vec::with_capacity(self.going.len());
        for (place, &index) in self.going.iter().enumerate() {
            // The texts of a prompt begin with one row.
            let from = if self.has_begun { place } else { self.rows[index].prompt };
            let mut row_scores = match self.has_begun {
                true => std::mem::take(&mut scores[from]),
                false => scores[from].clone(),
            };
            let word = self.next(&self.rows[index], &mut row_scores)?;
            let limit = self.begun.limits[self.rows[index].prompt];
            self.rows[index].push(word, limit, &self.begun.options.ends, on_piece)?;
            if self.rows[index].ending.is_none() {
                going.push(index);
                next.push((from, word));
            }
        }
        (self.going, self.has_begun) = (going, true);
        Ok(next)
    }

    fn finish(self, _on_piece: OnPiece<'_>) -> Result<Vec<Vec<Generated>>> {
        let mut all: Vec<Vec<Generated>> = self.begun.prompts.iter().map(|_| Vec::new()).collect();
        for row in self.rows {
            let Row { words, shown: text, ending, .. } = row;
            all[row.prompt].push(Generated { words, text, score: None, ending: ending.unwrap_or(Ending::Length) });
        }
        Ok(all)
    }
}
