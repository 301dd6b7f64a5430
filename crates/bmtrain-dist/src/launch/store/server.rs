//! The store's server, beside rank 0: a thread that lets clients in, and one for each of them.
//!
//! A client that has not proved to know the token has five seconds and small frames, and gives way to newer ones when
//! there are too many: all connections together are at most four for each rank. Once every rank has joined, the server
//! does not listen any more. Called by [`Store::open`](super::Store::open).

use super::StoreOptions;
use super::board::{Board, Gathered};
use super::frame::{self, Broken, Fields, LARGEST, Op, numbers};
use super::handshake::{Hello, Refusal, Side, nonce, proof};
use crate::error::Result;
use bmtrain_core::Error as CoreError;
use bmtrain_core::limits::Resource;
use std::collections::VecDeque;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Time for a member's frame, once its first byte is there.
const FRAME: Duration = Duration::from_secs(5);
/// How often an idle connection looks whether the server is closing; closing wakes it at once where it can.
const IDLE: Duration = Duration::from_secs(10);
/// How often a rank that waits is looked at, whether it is still there.
const LOOK: Duration = Duration::from_millis(200);
/// How often the door is looked at.
const DOOR: Duration = Duration::from_millis(2);
/// No request waits longer than this at the server.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);
/// What a thread of the server needs is little.
const STACK: usize = 256 << 10;

/// What a question is answered with.
type Answer = (Op, Vec<u8>);

/// Serves until it is dropped.
pub struct StoreServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    door: Option<JoinHandle<()>>,
}

struct Shared {
    options: StoreOptions,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    board: Board,
    /// Connections that have proved nothing yet, oldest first.
    strangers: VecDeque<(u64, Arc<TcpStream>)>,
    /// Connections of ranks.
    members: Vec<(u64, Arc<TcpStream>)>,
    threads: usize,
    closing: bool,
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
            strangers: VecDeque::new(),
            members: Vec::new(),
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

    /// Where it listens, with the port it has really taken.
    pub fn address(&self) -> SocketAddr {
        self.address
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
        for (_, stream) in state.strangers.iter() {
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
        None => {
            (options.host.as_str(), port).to_socket_addrs().and_then(|all| TcpListener::bind(&*all.collect::<Vec<_>>()))
        }
    };
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
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, patience: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Let connections in until every rank has come.
    fn keep_door(self: Arc<Self>, listener: &TcpListener) {
        let mut number = 0;
        loop {
            {
                let mut state = self.lock();
                if state.closing || state.board.is_complete() {
                    for (_, stream) in state.strangers.drain(..) {
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
            while state.strangers.len() >= most {
                if let Some((_, oldest)) = state.strangers.pop_front() {
                    let _ = oldest.shutdown(Shutdown::Both);
                }
            }
            state.strangers.push_back((number, stream.clone()));
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
            state.strangers.retain(|(other, _)| *other != number);
        }
    }

    /// One connection from its first byte to its last.
    fn attend(&self, number: u64, stream: &Arc<TcpStream>) {
        let rank = self.receive(number, stream);
        self.lock().strangers.retain(|(other, _)| *other != number);
        let Ok(rank) = rank else { return };
        while self.answer(rank, stream).is_ok() {}
        let mut state = self.lock();
        state.members.retain(|(other, _)| *other != number);
        // When the store closes, every connection ends, which is not an error of its rank.
        if !state.closing {
            state.board.depart(rank);
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
        let answer = frame::read(stream, 32, deadline)?;
        let theirs: [u8; 32] = answer.body.as_slice().try_into().map_err(|_| Broken::Foreign)?;
        // Hashes compare in constant time.
        if answer.op != Op::Proof
            || blake3::Hash::from_bytes(theirs) != proof(&options.token, Side::Client, &hello, &nonce)
        {
            return refuse(Refusal::Token);
        }
        if hello.world as usize != options.world {
            return refuse(Refusal::World(options.world as u32));
        }
        if hello.recipe != options.recipe {
            return refuse(Refusal::Recipe(options.recipe));
        }
        let rank = hello.rank as usize;
        if rank >= options.world {
            return refuse(Refusal::Rank);
        }
        let mut state = self.lock();
        // It may have had to give way in the meantime.
        let at = state.strangers.iter().position(|(other, _)| *other == number).ok_or(Broken::Closed)?;
        if !state.board.enter(rank) {
            drop(state);
            return refuse(Refusal::Taken);
        }
        state.strangers.remove(at);
        state.members.push((number, stream.clone()));
        drop(state);
        // A failure to send this is found at the first request.
        let _ = frame::write(stream, Op::Welcome, &[], deadline);
        Ok(rank)
    }

    /// Wait for a question and answer it. An error ends the connection.
    fn answer(&self, rank: usize, stream: &TcpStream) -> std::result::Result<(), Broken> {
        loop {
            // What has come may still be read after the other half of the connection was shut.
            let come = frame::has_come(stream, IDLE)?;
            if self.lock().closing {
                return Err(Broken::Closed);
            }
            if come {
                break;
            }
        }
        let question = frame::read(stream, LARGEST, Instant::now() + FRAME)?;
        let mut fields = Fields(&question.body);
        let key = fields.text().ok_or(Broken::Foreign)?;
        let (op, body) = match question.op {
            Op::Set => self.change(|board| board.set(key, fields.0).map(|()| (Op::Done, Vec::new()))),
            Op::Add => {
                let delta = fields.u64().ok_or(Broken::Foreign)? as i64;
                self.change(|board| board.add(key, delta).map(|sum| (Op::Value, sum.to_le_bytes().to_vec())))
            }
            Op::Get => self.get(key, fields.u64().ok_or(Broken::Foreign)?, stream)?,
            Op::Barrier => self.barrier(key, rank, fields.u64().ok_or(Broken::Foreign)?, stream)?,
            _ => return Err(Broken::Foreign),
        };
        frame::write(stream, op, &body, Instant::now() + FRAME)
    }

    /// Change what is stored, and wake those who wait for it.
    fn change(&self, change: impl FnOnce(&mut Board) -> std::result::Result<Answer, String>) -> Answer {
        let answer = change(&mut self.lock().board);
        self.changed.notify_all();
        answer.unwrap_or_else(|reason| (Op::Bad, reason.into_bytes()))
    }

    fn get(&self, key: &str, millis: u64, stream: &TcpStream) -> std::result::Result<Answer, Broken> {
        self.watch(millis, stream, |state, last| match state.board.get(key) {
            Some(value) => Some((Op::Value, value.to_vec())),
            None if state.closing => Some((Op::Closed, Vec::new())),
            None => last.then(|| (Op::Late, Vec::new())),
        })
    }

    fn barrier(&self, name: &str, rank: usize, millis: u64, stream: &TcpStream) -> std::result::Result<Answer, Broken> {
        let mut state = self.lock();
        if let Err(reason) = state.board.arrive(name, rank) {
            return Ok((Op::Bad, reason.into_bytes()));
        }
        if state.board.gathered(name) == Gathered::Complete {
            self.changed.notify_all();
        }
        drop(state);
        self.watch(millis, stream, |state, last| match state.board.gathered(name) {
            Gathered::Complete => {
                state.board.leave(name);
                Some((Op::Done, Vec::new()))
            }
            Gathered::Lost(ranks) => Some((Op::Lost, numbers(&ranks))),
            Gathered::Waiting if state.closing => Some((Op::Closed, numbers(&state.board.missing(name)))),
            Gathered::Waiting => last.then(|| (Op::Late, numbers(&state.board.missing(name)))),
        })
    }

    /// Look at the state whenever it changes, until `look` finds an answer; it has to when it is told that this is the
    /// last time. Ends early if the one who waits is gone.
    fn watch(
        &self,
        millis: u64,
        stream: &TcpStream,
        mut look: impl FnMut(&mut State, bool) -> Option<Answer>,
    ) -> std::result::Result<Answer, Broken> {
        let deadline = Instant::now() + Duration::from_millis(millis).min(LONGEST_WAIT);
        loop {
            let mut state = self.lock();
            let left = deadline.saturating_duration_since(Instant::now());
            if let Some(answer) = look(&mut state, left.is_zero()) {
                return Ok(answer);
            }
            let seen = Instant::now();
            drop(self.wait(state, left.min(LOOK)));
            if seen.elapsed() >= LOOK {
                // Nothing may come while an answer is due; what has come is the end, or breaks the protocol.
                match frame::has_come(stream, Duration::from_millis(1)) {
                    Ok(false) => {}
                    Ok(true) => return Err(Broken::Foreign),
                    Err(Broken::Closed) if self.lock().closing => {}
                    Err(broken) => return Err(broken),
                }
            }
        }
    }
}
