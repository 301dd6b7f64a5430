//! Generating text.
//!
//! Defines [`Generator`], the loop from prompts to texts by [`GenerateOptions`], and what it is made of: [`Sampling`]
//! and [`Penalty`], which choose by scores of the next word; [`Beams`], a search for the most probable text;
//! [`TextStream`], the text of words as they come. [`GenerationDefaults`] is what a model's directory says about all of
//! this. These know no model: scores come in, words go out. What a model keeps of a row is in
//! [`crate::model::decoding`].

mod beam;
mod defaults;
mod generator;
mod pipeline;
mod rows;
mod sampling;
mod scores;
mod search;
mod stream;

pub use beam::{BeamOptions, Beams, Hypothesis, Patience};
pub use defaults::{GenerationDefaults, Stated};
pub use generator::{Ending, GenerateOptions, Generated, Generator, Method, OnPiece, Piece};
pub use pipeline::TextGenerator;
pub use sampling::{Draw, Sampling};
pub use scores::{Penalty, forbid, force, largest, log_softmax, repeating};
pub use stream::{TextStream, check_stops};
