//! A server of a model in the form of OpenAI's API: completions, chats, embeddings, and predictions.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | [`ModelServer`]: from a bound address to the last response |
//! | `options.rs` | [`ServerOptions`], and [`ServedModel`] with what connections need of it |
//! | `connection.rs` | a connection: its request, who may ask, which address gives what |
//! | `api/` | requests and responses |
//! | `queue.rs`, `job.rs` | what connections ask of the model's thread |
//! | `engine.rs` | the model's thread for texts: sequences that join and leave passes |
//! | `prefill.rs` | prompts that are read in pieces between passes |
//! | `rows.rs` | the model's thread for embeddings and predictions |
//! | `constraints.rs` | the forms that requests ask texts to have |
//! | `tools/` | tool calls in models' messages |
//! | `metrics.rs` | counters in Prometheus' text format |
//!
//! The model is on the thread that calls [`ModelServer::run`]. Each connection has a thread, which tokenizes, gives a
//! job to the model's thread, and writes what comes back; one that is gone cancels its job.

mod api;
mod connection;
mod constraints;
mod engine;
mod job;
mod metrics;
mod options;
mod prefill;
mod queue;
mod rows;
mod tools;

pub use options::{ServedDecoder, ServedKind, ServedModel, ServedPredictor, ServedReranker, ServerOptions};
pub use tools::ToolForm;

use crate::http::{Listener, random_token};
use crate::{Error, Result};
use api::ApiError;
use bmtrain_core::{Ctx, Device};
use bmtrain_dist::inspect::process::available_bytes;
use constraints::Constraints;
use engine::Engine;
use job::Job;
use metrics::Metrics;
use model_center_base::stop_flag::StopFlag;
use model_center_models::{PackedDecoding, TextModel};
use model_center_train::plan::device::smallest_memory;
use queue::{Queue, Ticket};
use rows::RowEngine;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time between two looks of the model's thread for a request to stop while there is nothing to do.
const IDLE: Duration = Duration::from_millis(50);
/// The time for last responses after the last job.
const LAST_RESPONSES: Duration = Duration::from_secs(5);
/// The most tokens of KV caches by default.
const MAX_CACHED: usize = 1 << 20;

/// A server with a bound address.
#[derive(Debug)]
pub struct ModelServer {
    listener: Listener,
    options: ServerOptions,
}

/// State that connections and the model's thread share.
#[derive(Debug)]
struct Shared {
    model: ServedModel,
    options: ServerOptions,
    queue: Queue,
    metrics: Metrics,
    constraints: Constraints,
    jobs: Sender<Job>,
    /// Tokens of the longest sequence, or input.
    longest: usize,
    /// Tokens of all KV caches.
    cached_tokens: usize,
    /// New requests are refused.
    stopping: AtomicBool,
    /// There are no further responses.
    ended: AtomicBool,
    /// Prefix of ids and seeds.
    start: String,
    number: AtomicU64,
}

impl Shared {
    fn decoder(&self) -> Option<&ServedDecoder> {
        match &self.model.kind {
            ServedKind::Decoder(decoder) => Some(decoder),
            ServedKind::Predictor(_) => None,
        }
    }

    fn predictor(&self) -> Option<&ServedPredictor> {
        match &self.model.kind {
            ServedKind::Predictor(served) => Some(served),
            ServedKind::Decoder(_) => None,
        }
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// A place in the queue.
    fn enter(&self) -> Result<Ticket, ApiError> {
        match self.is_stopping() {
            true => Err(ApiError::stopping()),
            false => self.queue.enter().ok_or_else(|| ApiError::queue_is_full(self.queue.most())),
        }
    }

    fn submit(&self, job: Job) -> Result<(), ApiError> {
        self.jobs.send(job).map_err(|_| ApiError::stopping())
    }

    fn next_number(&self) -> u64 {
        self.number.fetch_add(1, Ordering::AcqRel)
    }

    /// An id that no other response of this server has.
    fn next_id(&self, kind: &str) -> String {
        format!("{kind}-{}-{}", self.start.get(..12).unwrap_or_default(), self.next_number())
    }

    /// The seed of a request that states none.
    fn next_seed(&self) -> u64 {
        let hash = blake3::hash(format!("{}-{}", self.start, self.next_number()).as_bytes());
        hash.as_bytes().iter().take(8).fold(0, |seed, byte| seed << 8 | u64::from(*byte))
    }

    /// Seconds since 1970.
    fn now(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }
}

/// The time that running requests have once a stop is asked for.
#[derive(Debug, Default)]
struct Grace(OnceLock<Instant>);

impl Grace {
    /// Looks at the flag; from its first request on, new requests are refused. Returns the end of the time.
    fn look(&self, stop: &StopFlag, shared: &Shared) -> Option<Instant> {
        if stop.is_requested() {
            shared.stopping.store(true, Ordering::Release);
            self.0.get_or_init(|| Instant::now() + shared.options.grace);
        }
        self.0.get().copied()
    }
}

impl ModelServer {
    /// Binds the address; connections wait until [`ModelServer::run`].
    ///
    /// # Errors
    /// [`Error::Argument`] for options out of range, or an address that cannot be bound.
    pub fn bind(options: ServerOptions) -> Result<ModelServer> {
        options.validate()?;
        Ok(ModelServer { listener: Listener::bind(options.address, options.port)?, options })
    }

    /// The address that is listened on.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Serves a model until `stop` is requested: then new requests are refused, running ones have a time to end. Calls
    /// `ready` when requests are answered, with the tokens of all KV caches.
    ///
    /// # Errors
    /// A model that the server cannot use; a failing device.
    pub fn run(
        &self,
        mut served: ServedModel,
        (model, device): (&dyn TextModel, &Device),
        stop: &StopFlag,
        ready: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<()> {
        let (jobs, received) = channel();
        let mut cx = Ctx::inference(device);
        let decoding = match &mut served.kind {
            ServedKind::Predictor(_) => None,
            ServedKind::Decoder(decoder) => {
                // Beam search has no place among sequences that join and leave.
                decoder.config.num_beams = None;
                Some(model.packed_decoding()?)
            }
        };
        let (longest, cached_tokens, decoding) = match decoding {
            None => (model.info().max_length, 0, None),
            Some(mut decoding) => {
                let cached = cached_tokens(&mut *decoding, &self.options, &mut cx)?;
                (decoding.longest(), cached, Some(decoding))
            }
        };
        let shared = Arc::new(Shared {
            model: served,
            options: self.options.clone(),
            queue: Queue::new(self.options.queue),
            metrics: Metrics::default(),
            constraints: Constraints::default(),
            jobs,
            longest,
            cached_tokens,
            stopping: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            start: random_token()?,
            number: AtomicU64::new(0),
        });
        std::thread::scope(|scope| {
            let _ending = Ending { shared: &shared, listener: &self.listener };
            let of_connections = Arc::clone(&shared);
            let accept = move || {
                let answering = Arc::clone(&of_connections);
                let answer: Arc<dyn Fn(TcpStream) + Send + Sync> =
                    Arc::new(move |stream| connection::answer(&answering, stream));
                let is_ended = || of_connections.ended.load(Ordering::Acquire);
                self.listener.run(self.options.connections, &is_ended, &answer, &connection::refuse);
            };
            let accepting = std::thread::Builder::new().name("accept".to_owned()).spawn_scoped(scope, accept);
            let failed = |e| Error::file("start a thread of", std::path::Path::new("this process"), e, "end others");
            accepting.map_err(failed)?;
            let served = ready(cached_tokens).and_then(|()| match decoding {
                Some(decoding) => Engine::new(decoding, &mut cx, &shared).run(&received, stop),
                None => RowEngine::new((model, device), &shared).run(&received, stop),
            });
            end(&shared, received);
            served
        })
    }
}

/// Ends the thread that accepts connections when the model's thread ends, by a panic too.
struct Ending<'s> {
    shared: &'s Shared,
    listener: &'s Listener,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.ended.store(true, Ordering::Release);
        self.listener.wake();
    }
}

/// Waits for last responses; jobs that came too late are refused by the end of their channels.
fn end(shared: &Shared, received: Receiver<Job>) {
    shared.stopping.store(true, Ordering::Release);
    drop(received);
    let until = Instant::now() + LAST_RESPONSES;
    // Connections without a request are closed.
    while shared.metrics.answering.load(Ordering::Acquire) > 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether requests failed and the server goes on: with what they gave, or memory that was not there for them.
fn is_of_requests(error: &Error) -> bool {
    const NO_MEMORY: i32 = 5;
    matches!(error, Error::Data { .. } | Error::Argument { .. } | Error::Model { .. }) || error.exit_code() == NO_MEMORY
}

/// Jobs that have come; waits for one if there is nothing to do.
fn next_jobs(received: &Receiver<Job>, is_idle: bool) -> Vec<Job> {
    let mut jobs = Vec::new();
    if is_idle {
        match received.recv_timeout(IDLE) {
            Ok(job) => jobs.push(job),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return jobs,
        }
    }
    jobs.extend(received.try_iter());
    jobs
}

/// The tokens of all KV caches; by default what a quarter of the available memory holds, as measured by a first token.
fn cached_tokens(decoding: &mut dyn PackedDecoding, options: &ServerOptions, cx: &mut Ctx) -> Result<usize> {
    let sequence = decoding.open(1);
    let first =
        [model_center_models::SequenceTokens { sequence, tokens: &[0], logits: model_center_models::LogitsRead::Last }];
    let tried = decoding.extend(&first, cx);
    let bytes = decoding.token_bytes().max(1);
    decoding.close(sequence);
    tried?;
    if let Some(tokens) = options.cached_tokens {
        return Ok(tokens);
    }
    let device = cx.device();
    let available = match device.backend().memory_is_host() {
        true => available_bytes(),
        false => smallest_memory().map(|all| all.saturating_sub(device.memory().total.now as u64)),
    };
    let available = available.map_or(4 << 30, |bytes| bytes as usize);
    Ok((available / 4 / bytes).clamp(1, MAX_CACHED))
}
