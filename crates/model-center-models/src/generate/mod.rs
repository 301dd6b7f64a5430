//! Text generation.
//!
//! [`TextGenerator`] opens a model directory and generates in one call. [`Generator`] is the loop beneath it, for a
//! model that is open already: [`GenerateOptions`] select greedy decoding, [`Sampling`] or beam search ([`Beams`]),
//! the processing of logits ([`RepetitionPenalty`], [`suppress`]) and what ends a sequence; [`TextStream`] decodes
//! tokens as they are generated. [`GenerationSetup`] is the part of opening that needs no weights: tokenizer, chat
//! template, encoding of prompts, and [`GenerationSettings`], the options of a caller over the
//! directory's [`GenerationConfig`]. A [`Constraint`] makes texts be of a form: a regular expression, or JSON of a
//! schema.

mod beam;
mod config;
mod constraint;
mod generator;
mod logits;
mod options;
mod overrides;
mod pipeline;
mod prompts;
mod rows;
mod sampling;
mod search;
mod sequence;
mod settings;
mod setup;
mod stream;

// What `serve` needs beside the public names.
pub use {
    rows::no_possible_token,
    sampling::more_probable,
    sequence::{Sequence, TokenSampler},
    stream::BROKEN,
};

pub use beam::{BeamOptions, Beams, Hypothesis, Patience};
pub use config::{GenerationConfig, Setting};
pub use constraint::{Constraint, Grammar, TokenTexts};
pub use generator::Generator;
pub use logits::{
    RepetitionPenalty, TokenScore, argmax, force_token, log_softmax, repeated_ngrams, suppress, token_score,
};
pub use options::{FinishReason, GenerateOptions, Generated, Method, OnText, TextChunk};
pub use overrides::GenerationOverrides;
pub use pipeline::TextGenerator;
pub use prompts::{Prompt, PromptRow, RESULT_FIELDS, read_prompts, read_split};
pub use sampling::{RandomAddress, Sampling};
pub use settings::{GenerationSettings, token_id};
pub use setup::{CutSide, GenerationSetup, PROMPT, PromptLimit};
pub use stream::{TextStream, check_stop_strings};
