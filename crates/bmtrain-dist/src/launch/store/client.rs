//! A process's side of the store: finding it, proving to belong to the job, asking.
//!
//! Until the deadline every failure to reach the store is a reason to try again, for rank 0 may come late; what the
//! store itself answers is final. Called by the programs.

use super::board::{MAX_KEY, MAX_VALUE};
use super::frame::{self, Broken, Fields, Frame, MAX_FRAME, Op};
use super::handshake::{Hello, Refusal, Side, name, nonce, proof, text};
use super::refused;
use super::{StoreOptions, StoreServer};
use crate::error::{Error, Result};
use bmtrain_core::Error as CoreError;
use bmtrain_core::comm::tcp::TcpLinks;
use std::collections::HashMap;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(20);
/// Time for the first attempt to connect, twice as much for each further one. Short at first, for where other clients
/// crowd at the door a lost request is only repeated after a second.
const FIRST_ATTEMPT: Duration = Duration::from_millis(250);
/// Delay of an answer after the time asked for, before the store is given up.
const SLACK: Duration = Duration::from_secs(10);
/// Barrier at which ranks meet when they have come.
const ALL_RANKS: &str = "everybody is here";
/// Time for which rank 0 stays to tell the others why it ends.
const FAREWELL: Duration = Duration::from_secs(10);
/// Longest reason that a rank gives the others, in bytes.
const MAX_REASON: usize = 1024;

/// A connection to the store of this job; on rank 0 the store itself with it.
///
/// Rank 0 keeps it until the others need it no more: let the last call of every rank be a barrier.
#[derive(Debug)]
pub struct Store {
    // First, so that rank 0 closes its store before it leaves it and is not taken for one that was lost.
    server: Option<StoreServer>,
    stream: TcpStream,
    options: StoreOptions,
    barriers: HashMap<String, u64>,
    /// An answer was not understood or came too late, so that the next one would be taken for another's.
    broken: bool,
}

/// Why an attempt to come in failed.
enum Attempt {
    /// The store has refused.
    Final(Error),
    /// No answer counts yet.
    Again(String),
}

impl From<Broken> for Attempt {
    fn from(broken: Broken) -> Self {
        Attempt::Again(broken.to_string())
    }
}

impl Store {
    /// The largest value, in bytes.
    pub const MAX_VALUE: usize = MAX_VALUE;

    /// Come to the place where the ranks meet, on rank 0 after opening it, and wait until all have come.
    ///
    /// # Errors
    /// A port that is taken; no server by the deadline; another token, world, recipe or version of the protocol; a
    /// rank of this number already there. Ranks that have not come by the deadline are named.
    pub fn open(options: &StoreOptions) -> Result<Self> {
        let until = Instant::now() + options.deadline;
        let mut store = Store::enter(options)?;
        store.meet(ALL_RANKS, until.saturating_duration_since(Instant::now()))?;
        Ok(store)
    }

    /// Come to the place where the ranks meet, on rank 0 after opening it, without waiting for the others.
    ///
    /// # Errors
    /// As for [`Store::open`], but for ranks that do not come.
    pub fn enter(options: &StoreOptions) -> Result<Self> {
        let until = Instant::now() + options.deadline;
        let server = if options.rank == 0 { Some(StoreServer::start(options)?) } else { None };
        Store::connect_until(options, server, until)
    }

    /// Come to a store that is open, without waiting for the others.
    pub fn connect(options: &StoreOptions) -> Result<Self> {
        Store::connect_until(options, None, Instant::now() + options.deadline)
    }

    fn connect_until(options: &StoreOptions, server: Option<StoreServer>, until: Instant) -> Result<Self> {
        options.check()?;
        let mut options = options.clone();
        if let Some(server) = &server {
            // Port 0 is whichever was free, and an address for all is reached at this host's own.
            let address = server.address();
            options.port = address.port();
            if !address.ip().is_unspecified() {
                options.host = address.ip().to_string();
            }
        }
        let mut patience = FIRST_ATTEMPT;
        loop {
            match attempt(&options, patience, until) {
                Ok(stream) => {
                    let barriers = HashMap::new();
                    return Ok(Store { stream, server, options, barriers, broken: false });
                }
                Err(Attempt::Final(error)) => return Err(error),
                Err(Attempt::Again(reason)) if Instant::now() + PAUSE >= until => {
                    let reason = format!("rank 0 has no store there after {}: {reason}", seconds(options.deadline));
                    let fix = "look at rank 0's messages, and whether all ranks have the same MASTER_ADDR and port";
                    return Err(options.error_about(reason, fix, vec![0]));
                }
                Err(Attempt::Again(_)) => std::thread::sleep(PAUSE),
            }
            patience = patience.saturating_mul(2).min(options.handshake);
        }
    }

    /// Wait until every rank has come, and hand the connections over to a control plane
    /// ([`TcpRank`](bmtrain_core::comm::tcp::TcpRank)), with the names of the ranks' hosts. The store ends.
    ///
    /// # Errors
    /// Ranks that do not come within `wait`, have left, or do not fit together; a rank that abandoned the job, with its
    /// exit code. Rank 0 stays a moment to tell the others.
    pub fn into_links(mut self, wait: Duration) -> Result<TcpLinks> {
        if let Err(error) = self.meet(ALL_RANKS, wait) {
            // Ranks that come later are to learn the same.
            self.server.iter().for_each(|server| server.linger(FAREWELL));
            return Err(error);
        }
        let key = "connections";
        let answer = self.ask(Op::Release, key, &[], SLACK)?;
        let mut fields = Fields(self.answered(Op::Value, &answer, key)?);
        let hosts: Vec<String> =
            (0..self.options.world).map(|_| fields.text().unwrap_or_default().to_owned()).collect();
        let streams = match &self.server {
            Some(server) => server.take_released(SLACK)?,
            None => vec![(0, self.stream)],
        };
        Ok(TcpLinks { rank: self.options.rank, hosts, streams })
    }

    /// Tell the ranks that wait at a barrier, and those that are still to come to one, that this rank ends with an exit
    /// code. Rank 0 stays a moment, until the others have been told.
    pub fn abandon(mut self, code: u8, reason: &str) {
        let reason = &reason[..reason.floor_char_boundary(MAX_REASON)];
        // A rank that cannot be told finds out by the end of the connection.
        let told = self.ask(Op::Abandon, "end", &[&[code], reason.as_bytes()].concat(), Duration::ZERO);
        if let (Ok(_), Some(server)) = (told, &self.server) {
            server.linger(FAREWELL);
        }
    }

    /// Store a value under a key, in place of an older one.
    pub fn set(&mut self, key: &str, value: &[u8]) -> Result<()> {
        if value.len() > MAX_VALUE {
            let reason = format!("a value of {} bytes for {key}, where {MAX_VALUE} are the most", value.len());
            return Err(self.options.error(reason, "this is for ids; move tensors through a communicator"));
        }
        let answer = self.ask(Op::Set, key, value, Duration::ZERO)?;
        self.answered(Op::Done, &answer, key).map(drop)
    }

    /// The value of a key; if there is none yet, wait for it. An error names the key.
    pub fn get(&mut self, key: &str, wait: Duration) -> Result<Vec<u8>> {
        let answer = self.ask(Op::Get, key, &millis(wait).to_le_bytes(), wait)?;
        if answer.op == Op::Late {
            let reason = format!("no rank has set {key} within {}", seconds(wait));
            return Err(self.options.error(reason, "look at the messages of the rank that should have"));
        }
        self.answered(Op::Value, &answer, key).map(<[u8]>::to_vec)
    }

    /// Add to a counter, which starts at 0, and get the sum.
    pub fn add(&mut self, key: &str, delta: i64) -> Result<i64> {
        let answer = self.ask(Op::Add, key, &delta.to_le_bytes(), Duration::ZERO)?;
        let sum = self.answered(Op::Value, &answer, key)?.try_into();
        sum.map(i64::from_le_bytes).map_err(|_| self.lost(key, "an answer that is not a number"))
    }

    /// Wait until every rank has come here. All ranks go through barriers of one name in the same order. An error names
    /// the ranks that have not come after `wait` or have left the store.
    pub fn barrier(&mut self, name: &str, wait: Duration) -> Result<()> {
        let count = self.barriers.entry(name.to_owned()).or_default();
        *count += 1;
        let name = format!("{name} {count}");
        self.meet(&name, wait)
    }

    fn meet(&mut self, name: &str, wait: Duration) -> Result<()> {
        let answer = self.ask(Op::Barrier, name, &millis(wait).to_le_bytes(), wait)?;
        let (what, fix) = match answer.op {
            Op::Ended | Op::Differs => return Err(self.cannot_start(&answer)),
            Op::Refused => return Err(self.was_refused(&answer, name)),
            Op::Late => (format!("did not come within {}", seconds(wait)), "look at their messages: did they start?"),
            Op::Lost => ("left".to_owned(), "look at their messages: they ended or were killed"),
            Op::Closed => {
                ("had not come when rank 0 closed the store".to_owned(), "look at rank 0's messages and theirs")
            }
            _ => return self.answered(Op::Done, &answer, name).map(drop),
        };
        let ranks = Fields(&answer.body).numbers();
        let reason = format!("{} of {} {what}", ranks_text(&ranks), self.options.world);
        Err(self.options.error_about(reason, fix, ranks))
    }

    /// Ranks that are waited for, whose processes rank 0 refused.
    fn was_refused(&self, answer: &Frame, key: &str) -> Error {
        let Some((ranks, names)) = refused::read(&answer.body) else {
            return self.lost(key, "an answer to another question");
        };
        let reason = format!("{names} was refused, because the token differs, and has not come since");
        let fix =
            "give all ranks the same BMTRAIN_JOB and BMTRAIN_TOKEN, and look for an earlier run that has not ended";
        self.options.error_about(reason, fix, ranks)
    }

    /// Why the job cannot start, as another rank reported it.
    fn cannot_start(&self, answer: &Frame) -> Error {
        let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(char::is_control, " ");
        let mut fields = Fields(&answer.body);
        match (answer.op, fields.u32(), fields.bytes()) {
            (Op::Ended, Some(rank), Some([code])) => {
                CoreError::RankEnded { rank: rank as usize, code, reason: shown(fields.0) }.into()
            }
            _ => {
                let fix = "give all processes the same program and settings, and each a rank of its own";
                Error::launch(format!("rendezvous at {}", self.options.place()), shown(&answer.body), fix)
            }
        }
    }

    /// Ask, and wait for the answer a little longer than it may take.
    fn ask(&mut self, op: Op, key: &str, rest: &[u8], wait: Duration) -> Result<Frame> {
        if key.is_empty() || key.len() > MAX_KEY {
            let reason = format!("a key of {} bytes, where 1 to {MAX_KEY} are allowed", key.len());
            return Err(self.options.error(reason, "use a shorter one"));
        }
        if self.broken {
            return Err(self.lost(key, "the connection broke before"));
        }
        let mut body = Vec::with_capacity(2 + key.len() + rest.len());
        body.extend((key.len() as u16).to_le_bytes());
        body.extend(key.as_bytes());
        body.extend(rest);
        let sent = frame::write(&self.stream, op, &body, Instant::now() + SLACK);
        let until = Instant::now().checked_add(wait.saturating_add(SLACK)).unwrap_or_else(far);
        let answer = sent.and_then(|()| frame::read(&self.stream, MAX_FRAME, until));
        answer.map_err(|broken| {
            self.broken = true;
            self.lost(key, &broken.to_string())
        })
    }

    /// The body of an answer of the kind that was expected.
    fn answered<'a>(&self, op: Op, answer: &'a Frame, key: &str) -> Result<&'a [u8]> {
        match answer.op {
            got if got == op => Ok(&answer.body),
            Op::Bad => {
                let reason = String::from_utf8_lossy(&answer.body).into_owned();
                Err(self.options.error(reason, format!("look at who uses {key}")))
            }
            Op::Closed => Err(self.lost(key, "rank 0 closed the store")),
            _ => Err(self.lost(key, "an answer to another question")),
        }
    }

    fn lost(&self, key: &str, reason: &str) -> Error {
        let reason = format!("rank 0's store is lost ({key}: {reason})");
        self.options.error_about(reason, "look at rank 0's messages", vec![0])
    }
}

/// One try to come in.
fn attempt(options: &StoreOptions, patience: Duration, until: Instant) -> std::result::Result<TcpStream, Attempt> {
    let stream = connect(options, patience.min(until.saturating_duration_since(Instant::now())))
        .map_err(|error| Attempt::Again(error.to_string()))?;
    let deadline = until.min(Instant::now() + options.handshake);
    let failed = |error: std::io::Error| Attempt::Again(error.to_string());
    stream.set_nodelay(true).map_err(failed)?;
    let (rank, world) = (options.rank as u32, options.world as u32);
    let (version, host) = (name(&options.version), name(&options.own_host));
    let hello = Hello { rank, world, recipe: options.recipe, version, host, nonce: nonce() };
    frame::write(&stream, Op::Hello, &hello.to_bytes(), deadline)?;
    let challenge = read(&stream, options, deadline)?;
    let mut fields = Fields(&challenge.body);
    let (Op::Challenge, Some(theirs), Some(mac)) = (challenge.op, fields.bytes(), fields.bytes()) else {
        return Err(Broken::Foreign.into());
    };
    // Hashes compare in constant time.
    if blake3::Hash::from_bytes(mac) != proof(&options.token, Side::Server, &hello, &theirs) {
        return Err(Attempt::Final(refused(options, Refusal::Token)));
    }
    let ours = proof(&options.token, Side::Client, &hello, &theirs);
    frame::write(&stream, Op::Proof, ours.as_bytes(), deadline)?;
    let answer = read(&stream, options, deadline)?;
    match (answer.op, Refusal::from_bytes(&answer.body)) {
        (Op::Welcome, _) => Ok(stream),
        (Op::Refused, Some(refusal)) => Err(Attempt::Final(refused(options, refusal))),
        _ => Err(Broken::Foreign.into()),
    }
}

fn read(stream: &TcpStream, options: &StoreOptions, deadline: Instant) -> std::result::Result<Frame, Attempt> {
    frame::read(stream, MAX_FRAME, deadline).map_err(|broken| match broken {
        Broken::Version(_) => {
            let reason = format!("rank 0 runs another version of this program: {broken}");
            Attempt::Final(options.error_about(reason, "install the same version everywhere", vec![0]))
        }
        other => other.into(),
    })
}

/// The first of the host's addresses that answers.
fn connect(options: &StoreOptions, patience: Duration) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "the host has no address");
    for address in (options.host.as_str(), options.port).to_socket_addrs()? {
        // A time of zero is refused.
        match TcpStream::connect_timeout(&address, patience.max(Duration::from_millis(1))) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Error of this rank after a refusal.
fn refused(options: &StoreOptions, refusal: Refusal) -> Error {
    let rank = options.rank;
    let (reason, fix) = match refusal {
        Refusal::Token => {
            // That job may be an earlier one which is about to end.
            let reason = "the token differs: the store there is another job's";
            let fix = "look for a run that has not ended, and give all ranks the same BMTRAIN_JOB and BMTRAIN_TOKEN";
            return options.error_about(reason, fix, vec![rank]);
        }
        Refusal::World(world) => (
            format!("the world differs: rank 0 counts {world} ranks, rank {rank} counts {}", options.world),
            "start all ranks with the same number of ranks",
        ),
        Refusal::Recipe(recipe) => (
            format!("the recipe differs: {} on rank 0, {} on rank {rank}", short(&recipe), short(&options.recipe)),
            "start all ranks with the same recipe and the same settings",
        ),
        Refusal::Version(version) => (
            format!("the version differs: {} on rank 0, {} on rank {rank}", text(&version), options.version),
            "install the same version everywhere",
        ),
        Refusal::Rank => (
            format!("rank {rank} is outside the {} ranks of this job", options.world),
            "ranks count from 0; look at the launcher's variables",
        ),
        Refusal::Taken => (
            format!("a rank {rank} has been here already"),
            "two processes have the same rank, or one was started again: start the whole job again",
        ),
    };
    Error::launch(format!("rendezvous at {}", options.place()), reason, fix)
}

impl StoreOptions {
    pub(super) fn error_about(&self, reason: impl Into<String>, fix: impl Into<String>, ranks: Vec<usize>) -> Error {
        Error::Rendezvous { place: self.place(), reason: reason.into(), fix: fix.into(), ranks }
    }
}

/// `rank 3`, `ranks 3 and 5`, `ranks 0, 1, 2 and 9 others`.
fn ranks_text(ranks: &[usize]) -> String {
    let list = |ranks: &[usize]| ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    match ranks {
        [one] => format!("rank {one}"),
        [first @ .., last] if ranks.len() <= 16 => format!("ranks {} and {last}", list(first)),
        many => format!("ranks {} and {} others", list(&many[..many.len().min(15)]), many.len().saturating_sub(15)),
    }
}

fn seconds(duration: Duration) -> String {
    format!("{:.3} s", duration.as_secs_f64()).replace(".000 s", " s")
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The first bytes of a hash, enough to compare by eye.
fn short(hash: &[u8; 32]) -> String {
    blake3::Hash::from_bytes(*hash).to_hex()[..8].to_owned()
}

/// Ten years: later than any run.
fn far() -> Instant {
    Instant::now() + Duration::from_secs(10 * 365 * 24 * 3600)
}
