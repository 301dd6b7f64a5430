//! One request and its answer, within bounds of time: ureq's limits hold for single reads, these for the whole.
//!
//! Defines [`Line`] and [`Answer`], called by [`super::hub`]. A request runs in a thread of its own, so that a server
//! that sends a byte now and then, in a header, in the framing of a body or in a record of TLS, is noticed in each of
//! them.

use super::address::{origin, shown};
use super::hub::Trouble;
use model_center_base::Error;
use model_center_base::file::printable;
use std::cell::RefCell;
use std::io::{self, ErrorKind, Read};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};
use ureq::config::Config;
use ureq::http::response::Parts;
use ureq::http::{Request, StatusCode};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Proxy};

/// The least that a body brings in each period of waiting, unless it ends before: 1 kB a second in a minute.
pub(super) const LEAST: u64 = 64 << 10;
/// Bytes read at once, and how many such pieces are read ahead.
const PIECE: usize = 128 << 10;
const PIECES_AHEAD: usize = 4;
const MAX_HEADER_BYTES: usize = 64 << 10;

pub(super) struct Line {
    agent: RefCell<Agent>,
    config: Config,
    /// The longest wait for a connection and an answer, and for [`LEAST`] bytes of it.
    patience: Duration,
}

impl Line {
    pub(super) fn new(proxy: Option<Proxy>, roots: RootCerts, patience: Duration) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_response_header_size(MAX_HEADER_BYTES)
            .accept_encoding("identity")
            .user_agent(concat!("bmtrain/", env!("CARGO_PKG_VERSION")))
            .proxy(proxy)
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .timeout_resolve(Some(patience / 2))
            .timeout_connect(Some(patience / 2))
            .timeout_send_request(Some(patience))
            .timeout_recv_response(Some(patience))
            .timeout_per_read(Some(patience))
            .timeout_per_write(Some(patience))
            .build();
        Self { agent: RefCell::new(config.new_agent()), config, patience }
    }

    /// Send a request, and wait for the headers of the answer.
    pub(super) fn send(&self, request: Request<()>) -> Result<Answer<'_>, Trouble> {
        let address = request.uri().to_string();
        let agent = self.agent.borrow().clone();
        let (to_head, head) = sync_channel(1);
        let (to_pieces, pieces) = sync_channel(PIECES_AHEAD);
        let transfer = move || run(&agent, request, &to_head, &to_pieces);
        thread::Builder::new().name("fetch".to_owned()).spawn(transfer).map_err(|error| {
            let fix = "end other programs, or raise the limit of processes";
            Trouble::Lasting(Error::file("start a thread", "fetch", error, fix))
        })?;
        match head.recv_timeout(2 * self.patience) {
            Ok(Ok(parts)) => {
                Ok(Answer { line: self, from: address, parts, pieces, waited: Duration::ZERO, arrived: 0 })
            }
            Ok(Err(error)) => Err(trouble(&address, &error)),
            Err(why) => {
                self.cut_off();
                let what = match why {
                    RecvTimeoutError::Timeout => "the answer does not begin",
                    RecvTimeoutError::Disconnected => "the answer cannot be read",
                };
                Err(Trouble::Passing(format!("{}: {what}", shown(&address))))
            }
        }
    }

    /// Close all connections; the threads that wait at one end.
    fn cut_off(&self) {
        self.agent.replace(self.config.new_agent()).shutdown();
    }
}

pub(super) struct Answer<'l> {
    line: &'l Line,
    from: String,
    parts: Parts,
    pieces: Receiver<io::Result<Vec<u8>>>,
    /// Time spent waiting since [`LEAST`] bytes were last complete, and bytes that arrived in it.
    waited: Duration,
    arrived: u64,
}

impl Answer<'_> {
    pub(super) fn origin(&self) -> &str {
        origin(&self.from)
    }

    pub(super) fn status(&self) -> StatusCode {
        self.parts.status
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.parts.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The next bytes of the body; `None` at its end. The error is printable.
    pub(super) fn piece(&mut self) -> Result<Option<Vec<u8>>, String> {
        let since = Instant::now();
        let piece = self.pieces.recv_timeout(self.line.patience.saturating_sub(self.waited));
        // Time in which the disk was waited for does not count.
        self.waited += since.elapsed();
        match piece {
            Ok(Ok(bytes)) if bytes.is_empty() => Ok(None),
            Ok(Ok(bytes)) => {
                self.arrived += bytes.len() as u64;
                if self.arrived >= LEAST {
                    (self.waited, self.arrived) = (Duration::ZERO, 0);
                }
                Ok(Some(bytes))
            }
            Ok(Err(error)) => Err(printable(&error.to_string(), 200)),
            Err(RecvTimeoutError::Disconnected) => Err("the answer cannot be read".to_owned()),
            Err(RecvTimeoutError::Timeout) => {
                self.line.cut_off();
                let seconds = self.line.patience.as_secs_f64();
                Err(format!("the server sent only {} bytes in {seconds:.0} s", self.arrived))
            }
        }
    }

    /// The whole body, if it has at most `limit` bytes; else the first `limit` and one.
    pub(super) fn text(mut self, limit: usize) -> Result<Vec<u8>, Trouble> {
        let (mut text, begin) = (Vec::new(), Instant::now());
        while let Some(bytes) = self.piece().map_err(Trouble::Passing)? {
            text.extend_from_slice(&bytes);
            if text.len() > limit {
                text.truncate(limit + 1);
                break;
            }
            // A text is not worth the time that the slowest rate allows for one of this length.
            if begin.elapsed() > 5 * self.line.patience {
                self.line.cut_off();
                return Err(Trouble::Passing("the server sends the text too slowly".to_owned()));
            }
        }
        Ok(text)
    }
}

/// Loop of a request's thread: ends with the answer, or when the other side has seen enough.
fn run(
    agent: &Agent,
    request: Request<()>,
    head: &SyncSender<Result<Parts, ureq::Error>>,
    pieces: &SyncSender<io::Result<Vec<u8>>>,
) {
    let (parts, body) = match agent.run(request) {
        Ok(response) => response.into_parts(),
        Err(error) => {
            let _ = head.send(Err(error));
            return;
        }
    };
    if head.send(Ok(parts)).is_err() {
        return;
    }
    let mut reader = body.into_reader();
    let mut buffer = vec![0; PIECE];
    loop {
        let piece = match reader.read(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read.map(|length| buffer[..length].to_vec()),
        };
        let is_last = piece.as_ref().map_or(true, Vec::is_empty);
        if pieces.send(piece).is_err() || is_last {
            return;
        }
    }
}

/// Consequence of a client's error for the next attempt.
fn trouble(address: &str, error: &ureq::Error) -> Trouble {
    let address = shown(address);
    let text = printable(&error.to_string(), 200);
    let lasting = |reason: String, fix: &str| Trouble::Lasting(Error::model(&address, reason, fix));
    match error {
        ureq::Error::Io(_) if text.contains("certificate") => {
            let fix = "check --endpoint and this machine's clock; SSL_CERT_FILE names further certificates to trust";
            lasting(format!("the server does not prove who it is: {text}"), fix)
        }
        ureq::Error::Io(cause) if cause.kind() == ErrorKind::InvalidData => {
            lasting(format!("the server does not speak TLS as it should: {text}"), "check --endpoint and the proxy")
        }
        ureq::Error::Io(_) | ureq::Error::Timeout(_) | ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => {
            Trouble::Passing(format!("{address}: {text}"))
        }
        _ => lasting(format!("the server's answer cannot be used: {text}"), "check --endpoint and the network"),
    }
}
