//! The store's server, beside rank 0: a thread that lets clients in, and one for each of them.
//!
//! A client that has not proved to know the token has five seconds and small frames, and gives way to newer ones when
//! there are too many: all connections together are at most four for each rank. Once every rank has joined, the server
//! does not listen any more. Called by [`Store::open`](super::Store::open).

use super::StoreOptions;
use super::answers::Next;
use super::board::{Board, Fault};
use super::frame::{self, Broken, Op};
use super::handshake::{self, Hello, Refusal, Side, nonce, proof, text};
use super::refused::{RefusedRanks, label};
use crate::error::Result;
use bmtrain_core::Error as CoreError;
use bmtrain_core::limits::Resource;
use std::collections::VecDeque;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Interval of the checks that a waiting rank is still there.
pub(super) const LOOK: Duration = Duration::from_millis(200);
/// Interval of the checks for new connections.
const DOOR: Duration = Duration::from_millis(2);
/// Stack of a thread of the server, which needs little.
const STACK: usize = 256 << 10;

/// Serves until it is dropped.
pub struct StoreServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    door: Option<JoinHandle<()>>,
}

pub(super) struct Shared {
    pub(super) options: StoreOptions,
    state: Mutex<State>,
    pub(super) changed: Condvar,
}

pub(super) struct State {
    pub(super) board: Board,
    /// Ranks whose processes were refused for their token, and that have not come since.
    pub(super) refused: RefusedRanks,
    /// Connections that have proved nothing yet, oldest first.
    unknown: VecDeque<(u64, Arc<TcpStream>)>,
    /// Connections of ranks.
    members: Vec<(u64, Arc<TcpStream>)>,
    /// Connections that are no longer the store's, with their ranks.
    released: Vec<(usize, TcpStream)>,
    threads: usize,
    pub(super) closing: bool,
}

impl StoreServer {
    /// Listen at `options.bind`, or at the address of `options.host` if that is not given. Port 0 takes a free one.
    pub fn start(options: &StoreOptions) -> Result<Self> {
        options.check()?;
        let listener = listen(options)?;
        let refuse = |error: std::io::Error| options.error(format!("cannot listen: {error}"), "try again");
        let address = listener.local_addr().map_err(refuse)?;
        listener.set_nonblocking(true).map_err(refuse)?;
        let state = State {
            board: Board::new(options.world),
            refused: RefusedRanks::default(),
            unknown: VecDeque::new(),
            members: Vec::new(),
            released: Vec::new(),
            threads: 0,
            closing: false,
        };
        let shared = Arc::new(Shared { options: options.clone(), state: Mutex::new(state), changed: Condvar::new() });
        let at_door = shared.clone();
        let door = Builder::new()
            .name("store door".to_owned())
            .stack_size(STACK)
            .spawn(move || at_door.keep_door(&listener))
            .map_err(|error| CoreError::refused("thread of the rendezvous store", Resource::Threads, error))?;
        Ok(StoreServer { shared, address, door: Some(door) })
    }

    /// Address at which it listens, with the port it has really taken.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The connections of all ranks but this one, once all have released theirs.
    ///
    /// # Errors
    /// Ranks that have left, or have not released theirs after `wait`.
    pub(super) fn take_released(&self, wait: Duration) -> Result<Vec<(usize, TcpStream)>> {
        let deadline = Instant::now() + wait;
        let mut state = self.shared.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let options = &self.shared.options;
            if state.released.len() + 1 >= options.world {
                return Ok(std::mem::take(&mut state.released));
            }
            let gone = state.board.gone();
            if !gone.is_empty() || left.is_zero() {
                let is_here = |rank: &usize| state.released.iter().any(|(other, _)| other == rank);
                let missing: Vec<usize> =
                    if gone.is_empty() { (1..options.world).filter(|rank| !is_here(rank)).collect() } else { gone };
                let who: Vec<String> = missing.iter().take(16).map(|rank| state.board.label(*rank)).collect();
                let reason = format!("{} left when all had come", who.join(", "));
                return Err(options.error_about(reason, "look at their messages: they ended or were killed", missing));
            }
            state = self.shared.wait(state, left.min(LOOK));
        }
    }

    /// Keep answering until all ranks have come and gone, but no longer than `wait`: they learn why the job ends.
    pub(super) fn linger(&self, wait: Duration) {
        let deadline = Instant::now() + wait;
        let mut state = self.shared.lock();
        while !(state.board.is_complete() && state.members.len() <= 1) && Instant::now() < deadline {
            state = self.shared.wait(state, LOOK);
        }
    }
}

impl std::fmt::Debug for StoreServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StoreServer({})", self.address)
    }
}

impl Drop for StoreServer {
    /// Waiting clients get the answer that the store is closed; all threads have a second to end.
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(1);
        let mut state = self.shared.lock();
        state.closing = true;
        for (_, stream) in state.unknown.iter() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // Answers still go out; what is read next is the end.
        for (_, stream) in &state.members {
            let _ = stream.shutdown(Shutdown::Read);
        }
        self.shared.changed.notify_all();
        while state.threads > 0 && Instant::now() < deadline {
            state = self.shared.wait(state, Duration::from_millis(50));
        }
        drop(state);
        while self.door.as_ref().is_some_and(|door| !door.is_finished()) && Instant::now() < deadline {
            std::thread::sleep(DOOR);
        }
    }
}

fn listen(options: &StoreOptions) -> Result<TcpListener> {
    let port = options.port;
    let listener = match options.bind {
        Some(address) => TcpListener::bind((address, port)),
        None => (options.host.as_str(), port).to_socket_addrs().and_then(|all| {
            let all: Vec<SocketAddr> = all.collect();
            // Some systems give the host's own name an address of its loopback, where no other host comes.
            let outside: Vec<SocketAddr> = all.iter().copied().filter(|address| !address.ip().is_loopback()).collect();
            TcpListener::bind(if outside.is_empty() { &*all } else { &*outside })
        }),
    };
    if let (None, Ok(address)) = (options.bind, listener.as_ref().map(TcpListener::local_addr))
        && address.is_ok_and(|address| address.ip().is_loopback())
    {
        let reason = "on rank 0's host this is an address of its loopback, which no other host can reach";
        let fix = "set MASTER_ADDR to the host's address on the network, or BMTRAIN_STORE_BIND=0.0.0.0 on rank 0";
        return Err(options.error(reason, fix));
    }
    listener.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => options
            .error(format!("port {port} is taken"), "set BMTRAIN_STORE_PORT to a free one, the same for all ranks"),
        std::io::ErrorKind::AddrNotAvailable => {
            let fix = "set BMTRAIN_STORE_BIND to an address of rank 0's host, 0.0.0.0 for all of them";
            options.error("this address is not one of this host", fix)
        }
        _ => options.error(format!("cannot listen: {error}"), "look at address and port"),
    })
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wait<'a>(&self, state: MutexGuard<'a, State>, patience: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Let connections in until every rank has come.
    fn keep_door(self: Arc<Self>, listener: &TcpListener) {
        let mut number = 0;
        loop {
            {
                let mut state = self.lock();
                if state.closing || state.board.is_complete() {
                    for (_, stream) in state.unknown.drain(..) {
                        let _ = stream.shutdown(Shutdown::Both);
                    }
                    return;
                }
            }
            match listener.accept() {
                Ok((stream, _)) => {
                    number += 1;
                    self.admit(number, stream);
                }
                // No client, or it is gone again, or there are no more descriptors: look again in a moment.
                Err(_) => std::thread::sleep(DOOR),
            }
        }
    }

    /// Give a connection a thread; the oldest unauthenticated one gives way if there are too many.
    fn admit(self: &Arc<Self>, number: u64, stream: TcpStream) {
        if stream.set_nonblocking(false).and_then(|()| stream.set_nodelay(true)).is_err() {
            return;
        }
        let stream = Arc::new(stream);
        {
            let mut state = self.lock();
            let most = (4 * self.options.world).saturating_sub(state.members.len()).max(1);
            while state.unknown.len() >= most {
                if let Some((_, oldest)) = state.unknown.pop_front() {
                    let _ = oldest.shutdown(Shutdown::Both);
                }
            }
            state.unknown.push_back((number, stream.clone()));
            state.threads += 1;
        }
        let shared = self.clone();
        let body = move || {
            shared.attend(number, &stream);
            let mut state = shared.lock();
            state.threads -= 1;
            shared.changed.notify_all();
        };
        if Builder::new().name("store".to_owned()).stack_size(STACK).spawn(body).is_err() {
            let mut state = self.lock();
            state.threads -= 1;
            state.unknown.retain(|(other, _)| *other != number);
        }
    }

    /// One connection from its first byte to its last.
    fn attend(&self, number: u64, stream: &Arc<TcpStream>) {
        let rank = self.receive(number, stream);
        self.lock().unknown.retain(|(other, _)| *other != number);
        let Ok(rank) = rank else { return };
        let is_released = loop {
            match self.answer(rank, stream) {
                Ok(Next::Question) => {}
                Ok(Next::Release) => break true,
                Err(_) => break false,
            }
        };
        let mut state = self.lock();
        state.members.retain(|(other, _)| *other != number);
        match stream.try_clone() {
            Ok(stream) if is_released && rank != 0 => state.released.push((rank, stream)),
            Ok(_) if is_released => {}
            // When the store closes, every connection ends, which is not an error of its rank.
            _ if state.closing => {}
            _ => state.board.depart(rank),
        }
        self.changed.notify_all();
    }

    /// The handshake. Its rank, once a client is let in.
    fn receive(&self, number: u64, stream: &Arc<TcpStream>) -> std::result::Result<usize, Broken> {
        let deadline = Instant::now() + self.options.handshake;
        let refuse = |refusal: Refusal| {
            frame::write(stream, Op::Refused, &refusal.to_bytes(), deadline)?;
            Err(Broken::Closed)
        };
        let first = match frame::read(stream, Hello::SIZE, deadline) {
            // The header of any answer tells the other side which version this is.
            Err(Broken::Version(_)) => return refuse(Refusal::Token),
            other => other?,
        };
        let hello = Hello::from_frame(&first)?;
        let (options, nonce) = (&self.options, nonce());
        let ours = proof(&options.token, Side::Server, &hello, &nonce);
        frame::write(stream, Op::Challenge, &[nonce, *ours.as_bytes()].concat(), deadline)?;
        let answer = frame::read(stream, 32, deadline).inspect_err(|broken| {
            // A process with another token tells this store nothing more.
            if *broken == Broken::Closed {
                self.note_refusal(&hello);
            }
        })?;
        let theirs: [u8; 32] = answer.body.as_slice().try_into().map_err(|_| Broken::Foreign)?;
        // Hashes compare in constant time.
        if answer.op != Op::Proof
            || blake3::Hash::from_bytes(theirs) != proof(&options.token, Side::Client, &hello, &nonce)
        {
            self.note_refusal(&hello);
            return refuse(Refusal::Token);
        }
        if let Some((refusal, reason)) = self.difference(&hello) {
            self.fail(Fault::Differs(reason));
            return refuse(refusal);
        }
        let rank = hello.rank as usize;
        let mut state = self.lock();
        // It may have had to give way in the meantime.
        let at = state.unknown.iter().position(|(other, _)| *other == number).ok_or(Broken::Closed)?;
        if !state.board.enter(rank, text(&hello.host)) {
            let both = format!("two processes are {}, one of them on {}", state.board.label(rank), text(&hello.host));
            drop(state);
            self.fail(Fault::Differs(both));
            return refuse(Refusal::Taken);
        }
        state.refused.remove(rank);
        state.unknown.remove(at);
        state.members.push((number, stream.clone()));
        drop(state);
        // A failure to send this is found at the first request.
        let _ = frame::write(stream, Op::Welcome, &[], deadline);
        Ok(rank)
    }

    /// A process with another token: an earlier run's, or one of this run with another BMTRAIN_TOKEN.
    fn note_refusal(&self, hello: &Hello) {
        let (rank, host) = (hello.rank as usize, text(&hello.host));
        let mut state = self.lock();
        let is_expected = rank < self.options.world && !state.board.has_seen(rank) && !state.closing;
        if !is_expected || !state.refused.add(rank, host.clone(), Instant::now()) {
            return;
        }
        drop(state);
        let reason = "its BMTRAIN_JOB or BMTRAIN_TOKEN differs from this run's";
        tracing::warn!("a process that calls itself {} was refused: {reason}", label(rank, &host));
        self.changed.notify_all();
    }

    /// In what a process of this job differs from this one, for itself and for the others.
    fn difference(&self, hello: &Hello) -> Option<(Refusal, String)> {
        let options = &self.options;
        let own = label(0, &options.own_host);
        let other = label(hello.rank as usize, &text(&hello.host));
        let version = handshake::name(&options.version);
        Some(if hello.version != version {
            let theirs = text(&hello.version);
            (Refusal::Version(version), format!("{own} is version {}, {other} version {theirs}", options.version))
        } else if hello.world as usize != options.world {
            let reason = format!("{own} counts {} ranks, {other} counts {}", options.world, hello.world);
            (Refusal::World(options.world as u32), reason)
        } else if hello.recipe != options.recipe {
            (Refusal::Recipe(options.recipe), format!("{own} and {other} have different recipes"))
        } else if hello.rank as usize >= options.world {
            (Refusal::Rank, format!("{other} is outside the {} ranks of this job", options.world))
        } else {
            return None;
        })
    }

    /// The job cannot start: every rank that waits is told.
    pub(super) fn fail(&self, fault: Fault) {
        self.lock().board.fail(fault);
        self.changed.notify_all();
    }
}
