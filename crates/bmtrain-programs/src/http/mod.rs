//! HTTP/1.1 as far as local servers need it: one request for a connection, of a bounded size, and its response, whole
//! or as a stream of events. `httparse` reads heads.
//!
//! | file | what |
//! |---|---|
//! | `request.rs` | [`Request`]: reading one, within limits |
//! | `chunks.rs` | bodies in chunks |
//! | `response.rs` | [`Response`]: a whole one, and the head of a stream |
//! | `listener.rs` | [`Listener`]: connections, one thread each |
//! | `access.rs` | hosts, origins and tokens that are accepted |
//!
//! Used by the page of runs and by the server of models.

mod access;
mod chunks;
mod listener;
mod request;
mod response;

pub(crate) use access::{foreign, is_same_secret, random_token};
pub(crate) use listener::{Listener, TimedStream, finish, is_closed};
pub(crate) use request::{Request, RequestLimits};
pub(crate) use response::Response;
