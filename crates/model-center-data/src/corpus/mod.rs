//! Token files and the samples in them.
//!
//! ```text
//! token file ─▶ maps ─▶ Samples ─▶ CorpusMixture
//! ```
//!
//! A [`TokenFile`] holds the token ids of a corpus in Megatron-LM's format, `PREFIX.bin` and `PREFIX.idx`;
//! [`TokenFileWriter`] writes one. [`Samples`] cuts its documents into samples of a fixed number of tokens: which
//! tokens sample i has is a pure function of file, settings and i. [`SentenceGroups`] collects consecutive sentences
//! instead, and [`WeightedDocuments`] chooses documents by length. A [`CorpusMixture`] joins several corpora with
//! weights. Everything is read by position when it is asked for, so that memory does not grow with a corpus, and a file
//! that is cut off or replaced under a running process ends in an error. `docs/corpus.md` explains the format, and
//! `docs/adr/0028-corpora-are-read-by-position.md` these choices.
//!
//! Raw text becomes token files in `bmtrain-corpus`; its formats are read here ([`text`]) for evaluation, too. Nothing
//! here knows a model or a trainer. Called by [`crate::pretraining`] and `bmtrain-corpus`.

mod fingerprint;
mod groups;
mod index;
mod legacy;
mod maps;
mod mixture;
pub mod npy;
mod numpy_random;
pub mod positioned;
mod samples;
pub mod split;
pub mod spool;
pub mod text;
pub mod threads;
pub mod token_file;
pub mod token_type;
mod weighted;
pub mod writer;

pub use groups::{GroupOptions, SentenceGroup, SentenceGroups};
pub use maps::{SampleOrder, map_names};
pub use mixture::{CorpusMixture, MixtureWeight};
pub use samples::{SampleOptions, Samples};
pub use split::{DocumentSet, SplitShares};
pub use token_file::{IndexFormat, TokenFile};
pub use token_type::TokenType;
pub use weighted::{DocumentUnit, WeightedDocuments};
pub use writer::{TokenFileWriter, WriterPosition, index_path, token_path};
