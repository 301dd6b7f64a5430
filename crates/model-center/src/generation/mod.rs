//! What generating text is made of besides a model: choosing the next word, keeping several texts side by side, showing text as it
//! comes.
//!
//! Defines [`Sampling`] and [`Penalty`], which choose by scores of the next word; [`Beams`], a search for the most probable text;
//! [`TextStream`], the text of words as they come. None of them knows a model: scores come in, words go out.

mod beam;
mod sampling;
mod scores;
mod stream;

pub use beam::{BeamOptions, Beams, Hypothesis, Patience};
pub use sampling::{Draw, Sampling};
pub use scores::{Penalty, forbid, largest, log_softmax};
pub use stream::{TextStream, check_stops};
