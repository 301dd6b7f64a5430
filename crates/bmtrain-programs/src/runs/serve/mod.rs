//! A local page of runs: live while they train, bound to the loopback interface unless asked otherwise.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | [`Server`]: connections, one thread each |
//! | `guard.rs` | which hosts and which deletions are allowed |
//! | `routes.rs` | what each address gives |

mod guard;
mod routes;

use super::repository::Repository;
use crate::Result;
use crate::http::{Listener, Request, RequestLimits, Response, TimedStream, finish};
use guard::Guard;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Connections at the same time; of more, the newest is refused.
const MAX_CONNECTIONS: usize = 64;
/// The time of a connection to send its request, and to take its response.
const PATIENCE: Duration = Duration::from_secs(10);
/// Runs are looked at no more often than this.
const LOOK: Duration = Duration::from_millis(500);

/// Address and settings of a page that is served.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// The address.
    pub address: IpAddr,
    /// The port; 0 takes a free one.
    pub port: u16,
    /// Whether runs can be deleted.
    pub allow_delete: bool,
    /// Names, beside `localhost` and addresses, by which browsers may ask for the page.
    pub names: Vec<String>,
}

/// The server of a page.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    shared: Arc<Shared>,
}

/// State that connections share.
#[derive(Debug)]
struct Shared {
    guard: Guard,
    repository: Mutex<Looked>,
}

/// The runs, and when they were looked at.
#[derive(Debug)]
struct Looked {
    runs: Repository,
    last: Option<Instant>,
}

impl Server {
    /// Binds the address; runs below `root` are looked at when they are asked for.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] if the address cannot be bound.
    pub fn bind(root: &Path, options: &ServeOptions) -> Result<Server> {
        let listener = Listener::bind(options.address, options.port)?;
        let guard = Guard::new(options)?;
        let repository = Mutex::new(Looked { runs: Repository::new(root), last: None });
        Ok(Server { listener, shared: Arc::new(Shared { guard, repository }) })
    }

    /// The address that is listened on.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Looks at all runs; returns their number and for how many metrics were read.
    ///
    /// # Errors
    /// As [`Repository::refresh`].
    pub fn index(&self) -> Result<(usize, usize)> {
        let mut looked = self.shared.repository.lock().unwrap_or_else(PoisonError::into_inner);
        let read = looked.runs.refresh()?;
        looked.last = Some(Instant::now());
        Ok((looked.runs.runs().len(), read))
    }

    /// Serves until the process ends.
    pub fn run(&self) {
        let shared = Arc::clone(&self.shared);
        let answer: Arc<dyn Fn(TcpStream) + Send + Sync> = Arc::new(move |stream| answer(&shared, stream));
        self.listener.run(MAX_CONNECTIONS, &|| false, &answer, &drop);
    }
}

impl Shared {
    /// Result of `with` for the runs as they are now.
    fn runs<T>(&self, with: impl FnOnce(&Repository) -> T) -> Result<T> {
        let mut looked = self.repository.lock().unwrap_or_else(PoisonError::into_inner);
        if looked.last.is_none_or(|last| last.elapsed() >= LOOK) {
            looked.runs.refresh()?;
            looked.last = Some(Instant::now());
        }
        Ok(with(&looked.runs))
    }

    /// Looks again at the next request, however soon.
    fn forget_look(&self) {
        self.repository.lock().unwrap_or_else(PoisonError::into_inner).last = None;
    }
}

/// Reads a request, writes its response, and closes the connection.
fn answer(shared: &Shared, mut stream: TcpStream) {
    let mut timed = TimedStream::new(&stream, Instant::now() + PATIENCE);
    let mut method = String::new();
    let response = match Request::read(&mut timed, RequestLimits::default()) {
        Ok(Some(request)) => {
            method.clone_from(&request.method);
            match shared.guard.refuses(&request) {
                Some(refusal) => refusal,
                None => routes::answer(shared, &request),
            }
        }
        // The browser opened a connection in advance and closed it.
        Ok(None) => return,
        Err((status, reason)) => Response::text(status, reason),
    };
    let mut timed = TimedStream::new(&stream, Instant::now() + PATIENCE);
    let written = timed.write_all(&response.bytes_for(&method)).and_then(|()| timed.flush());
    if written.is_ok() {
        finish(&mut stream);
    }
}
