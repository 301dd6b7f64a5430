//! Options of a server.

use super::tools::ToolForm;
use crate::{Error, Result};
use model_center_models::CrossEncoder;
use model_center_models::generate::{GenerationConfig, GenerationSetup};
use model_center_train::predict::Predictor;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest of the times: a year, which any clock can add.
const LONGEST_TIME: Duration = Duration::from_secs(366 * 24 * 3600);

/// Address and limits of a served model.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// The address.
    pub address: IpAddr,
    /// The port; 0 takes a free one.
    pub port: u16,
    /// The token that requests have to show; an address that is not a loopback address requires one.
    pub token: Option<String>,
    /// Names, beside `localhost` and addresses, by which browsers may ask a server without a token.
    pub names: Vec<String>,
    /// Bytes of the body of a request.
    pub body_bytes: usize,
    /// Connections at the same time.
    pub connections: usize,
    /// Requests that wait for the model; further ones are refused.
    pub queue: usize,
    /// New tokens of a sequence.
    pub new_tokens: usize,
    /// Sequences that share passes.
    pub sequences: usize,
    /// Tokens of a pass: one for each running sequence; the others are for prompts.
    pub step_tokens: usize,
    /// Tokens of the KV caches of all sequences, prompts and new tokens; `None` for what a quarter of the available
    /// memory holds.
    pub cached_tokens: Option<usize>,
    /// The time to send a request.
    pub read_timeout: Duration,
    /// The time of a request, from its arrival to its last token.
    pub timeout: Duration,
    /// The time that requests have left when the server is stopped.
    pub grace: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 8000,
            token: None,
            names: Vec::new(),
            body_bytes: 4 << 20,
            connections: 256,
            queue: 256,
            new_tokens: 4096,
            sequences: 64,
            step_tokens: 256,
            cached_tokens: None,
            read_timeout: Duration::from_secs(30),
            timeout: Duration::from_secs(600),
            grace: Duration::from_secs(30),
        }
    }
}

impl ServerOptions {
    /// Check the options.
    ///
    /// # Errors
    /// [`Error::Argument`] for a limit of 0, a time of more than a year, or an address that other machines reach
    /// without a token.
    pub fn validate(&self) -> Result<()> {
        let counts = [
            ("max_body", self.body_bytes),
            ("max_connections", self.connections),
            ("max_queue", self.queue),
            ("max_tokens", self.new_tokens),
            ("max_sequences", self.sequences),
            ("step_tokens", self.step_tokens),
            ("max_cached_tokens", self.cached_tokens.unwrap_or(1)),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return Err(Error::argument(*name, "nothing could be served with 0", "give 1 or more"));
        }
        let times = [("read_timeout", self.read_timeout), ("timeout", self.timeout)];
        if let Some((name, _)) = times.iter().find(|(_, time)| time.is_zero()) {
            return Err(Error::argument(*name, "no request could be served in 0 s", "give 1 or more"));
        }
        let times = [("read_timeout", self.read_timeout), ("timeout", self.timeout), ("grace", self.grace)];
        if let Some((name, _)) = times.iter().find(|(_, time)| *time > LONGEST_TIME) {
            let reason = format!("it is more than {} s", LONGEST_TIME.as_secs());
            return Err(Error::argument(*name, reason, "give fewer seconds"));
        }
        if self.step_tokens < self.sequences {
            let reason = format!("{} tokens of a pass, and {} sequences share one", self.step_tokens, self.sequences);
            return Err(Error::argument("step_tokens", reason, "give at least the number of sequences"));
        }
        match &self.token {
            Some(token) if token.is_empty() => {
                Err(Error::argument("token", "it is empty", "give a secret of some length"))
            }
            None if !self.address.is_loopback() => {
                let reason = format!("other machines reach {}, and no token is asked of them", self.address);
                Err(Error::argument("host", reason, "give a token, or serve on 127.0.0.1"))
            }
            _ => Ok(()),
        }
    }
}

/// A model by its name, with what connections need of it.
#[derive(Debug)]
pub struct ServedModel {
    /// The name in requests and responses.
    pub name: String,
    /// When it was made, in seconds since 1970: the time of its directory ([`ServedModel::time_of`]).
    pub created: u64,
    /// Kind of the model.
    pub kind: ServedKind,
}

impl ServedModel {
    /// The time of a directory or file in seconds since 1970; of one without a time that can be read, now.
    pub fn time_of(path: &Path) -> u64 {
        let modified = path.metadata().and_then(|metadata| metadata.modified());
        let time = modified.unwrap_or_else(|_| SystemTime::now());
        time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }
}

/// Kind of a served model.
#[derive(Debug)]
pub enum ServedKind {
    /// It continues texts.
    Decoder(Box<ServedDecoder>),
    /// It predicts, or embeds texts.
    Predictor(Box<ServedPredictor>),
}

/// A model that continues texts.
#[derive(Debug)]
pub struct ServedDecoder {
    /// Tokenizer and chat template.
    pub setup: GenerationSetup,
    /// The generation settings of its directory, for what requests do not state.
    pub config: GenerationConfig,
    /// The form of tool calls; `None` for the one of the chat template, if it is known.
    pub tool_form: Option<ToolForm>,
}

/// A model that predicts, or embeds texts.
#[derive(Debug)]
pub struct ServedPredictor {
    /// From an input to a prediction.
    pub predictor: Predictor,
    /// Token ids are below this.
    pub vocab_size: usize,
    /// From pairs to scores, of a model with one output; or why there are none.
    pub reranker: Option<Result<ServedReranker, String>>,
}

/// From a query and a document to their score.
#[derive(Debug)]
pub struct ServedReranker {
    /// From a pair to its logit: with the length that the directory states.
    pub predictor: Predictor,
    /// From the logit to the score.
    pub encoder: CrossEncoder,
}
