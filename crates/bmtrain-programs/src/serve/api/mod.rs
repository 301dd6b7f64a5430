//! Requests and responses in the form of OpenAI's API.
//!
//! | file | what |
//! |---|---|
//! | `error.rs` | [`ApiError`]: the object of an error, with its status |
//! | `fields.rs` | the fields of a request |
//! | `generation.rs` | what completions and chats have in common: settings, limits, the job of the engine |
//! | `format.rs` | the form that texts have to have |
//! | `messages.rs`, `tools.rs` | conversations, and the tools of a request |
//! | `settings.rs` | the settings of generation |
//! | `completions.rs` | `/v1/completions` |
//! | `chat.rs` | `/v1/chat/completions` |
//! | `embeddings.rs` | `/v1/embeddings` |
//! | `predictions.rs` | `/v1/predict`, `/classify` |
//! | `rerank.rs` | `/v1/rerank` |
//! | `tokens.rs` | the text of a token, and log probabilities as objects |
//! | `reply.rs` | [`Reply`]: where a response goes, whole or as events |

mod chat;
mod completions;
mod embeddings;
mod error;
mod fields;
mod format;
mod generation;
mod messages;
mod predictions;
mod reply;
mod rerank;
mod settings;
mod tokens;
mod tools;

pub(super) use chat::chat;
pub(super) use completions::completions;
pub(super) use embeddings::embeddings;
pub(super) use error::ApiError;
pub(super) use predictions::{classify, predict};
pub(super) use reply::{Ended, Reply};
pub(super) use rerank::rerank;
