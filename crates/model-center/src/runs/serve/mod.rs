//! A local page of runs: live while they train, bound to the loopback interface unless asked otherwise.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | [`Server`]: connections, one thread each |
//! | `http.rs` | requests and responses of HTTP/1.1, one of each for a connection |
//! | `guard.rs` | which hosts and which deletions are allowed |
//! | `routes.rs` | what each address gives |

mod guard;
mod http;
mod routes;

use super::repository::Repository;
use crate::{Error, Result};
use guard::Guard;
use http::Request;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Connections at the same time; of more, the newest is refused.
const MAX_CONNECTIONS: usize = 64;
/// How long a connection may be silent.
const SILENCE: Duration = Duration::from_secs(10);
/// Runs are looked at no more often than this.
const LOOK: Duration = Duration::from_millis(500);

/// Where and how a page is served.
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
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
}

/// What connections share.
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
    /// [`Error::Argument`] if the address cannot be bound.
    pub fn bind(root: &Path, options: &ServeOptions) -> Result<Server> {
        let asked = SocketAddr::new(options.address, options.port);
        let refused = |e: std::io::Error| {
            Error::argument(
                "--port",
                format!("cannot listen on {asked}: {e}"),
                "choose another port, or 0 for a free one",
            )
        };
        let listener = TcpListener::bind(asked).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let guard = Guard::new(options)?;
        let repository = Mutex::new(Looked { runs: Repository::new(root), last: None });
        Ok(Server { listener, address, shared: Arc::new(Shared { guard, repository }) })
    }

    /// The address that is listened on.
    pub fn address(&self) -> SocketAddr {
        self.address
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
    ///
    /// # Errors
    /// [`Error::Argument`] if no connection can be accepted any more.
    pub fn run(&self) -> Result<()> {
        for stream in self.listener.incoming() {
            let Ok(stream) = stream else {
                // A connection that was reset, or too many open files: neither is for good.
                std::thread::sleep(Duration::from_millis(20));
                continue;
            };
            // Each open connection holds one reference beside the server's, also if its thread ends in a panic.
            if Arc::strong_count(&self.shared) > MAX_CONNECTIONS {
                continue;
            }
            let shared = Arc::clone(&self.shared);
            // Without a thread the connection is closed.
            let _ = std::thread::Builder::new().name("page".to_owned()).spawn(move || answer(&shared, stream));
        }
        Ok(())
    }
}

impl Shared {
    /// What `with` makes of the runs as they are now.
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
    let timed = stream.set_read_timeout(Some(SILENCE)).and_then(|()| stream.set_write_timeout(Some(SILENCE)));
    if timed.is_err() {
        return;
    }
    let response = match Request::read(&mut stream) {
        Ok(Some(request)) => match shared.guard.refuses(&request) {
            Some(refusal) => refusal,
            None => routes::answer(shared, &request),
        },
        // The browser opened a connection in advance and closed it.
        Ok(None) => return,
        Err(refusal) => refusal,
    };
    let written = stream.write_all(&response.to_bytes()).and_then(|()| stream.flush());
    if written.is_ok() {
        http::finish(&mut stream);
    }
}
