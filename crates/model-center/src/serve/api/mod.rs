//! Requests and responses in the form of OpenAI's API.
//!
//! | file | what |
//! |---|---|
//! | `error.rs` | [`ApiError`]: the object of an error, with its status |
//! | `fields.rs` | the fields of a request |
//! | `generation.rs` | what completions and chats have in common: settings, limits, the job of the engine |
//! | `completions.rs` | `/v1/completions` |
//! | `chat.rs` | `/v1/chat/completions` |
//! | `embeddings.rs` | `/v1/embeddings` |
//! | `tokens.rs` | the text of a token, and log probabilities as objects |
//! | `reply.rs` | [`Reply`]: where a response goes, whole or as events |

mod chat;
mod completions;
mod embeddings;
mod error;
mod fields;
mod generation;
mod reply;
mod tokens;

pub(super) use chat::chat;
pub(super) use completions::completions;
pub(super) use embeddings::embeddings;
pub(super) use error::ApiError;
pub(super) use reply::{Ended, Reply};
