//! The store's frames: twelve bytes of header, then at most 64 KiB. Every read and every write has a deadline.
//!
//! Header: magic, protocol version, operation, length of the body, all little-endian. The length is looked at before
//! memory is taken. Called by `server`, `client` and `handshake`.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Version of the protocol; both sides have to have the same.
pub(super) const VERSION: u16 = 2;

/// No body is longer.
pub(super) const MAX_FRAME: usize = 64 << 10;

const MAGIC: [u8; 4] = *b"BMTS";
const HEADER: usize = 12;

/// Subject of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    /// Client: who I am, and a nonce.
    Hello = 1,
    /// Server: a nonce, and proof that I know the token.
    Challenge = 2,
    /// Client: proof that I know it too.
    Proof = 3,
    /// Server: come in.
    Welcome = 4,
    /// Server: stay out, and why.
    Refused = 5,
    /// Client: store a value.
    Set = 16,
    /// Client: give me a value, if need be once it is there.
    Get = 17,
    /// Client: add to a counter and tell me the sum.
    Add = 18,
    /// Client: tell me when all ranks have come here.
    Barrier = 19,
    /// Client: my rank ends before it has joined, and why.
    Abandon = 20,
    /// Client: all have come; this connection is for the ranks' messages from now on.
    Release = 21,
    /// Server: it is done.
    Done = 32,
    /// Server: this is the value.
    Value = 33,
    /// Server: the time is over; at a barrier with the ranks that have not come.
    Late = 34,
    /// Server: these ranks are lost.
    Lost = 35,
    /// Server: I am going; at a barrier with the ranks that have not come.
    Closed = 36,
    /// Server: this cannot be done, and why.
    Bad = 37,
    /// Server: a rank has ended before all had come, with its exit code and reason.
    Ended = 38,
    /// Server: ranks do not fit together, and in what.
    Differs = 39,
}

impl Op {
    /// The message of a code.
    fn of(code: u16) -> Option<Op> {
        use Op::*;
        let all = [
            Hello, Challenge, Proof, Welcome, Refused, Set, Get, Add, Barrier, Abandon, Release, Done, Value, Late,
            Lost, Closed, Bad, Ended, Differs,
        ];
        all.into_iter().find(|op| *op as u16 == code)
    }
}

/// A frame that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub op: Op,
    pub body: Vec<u8>,
}

/// Why a frame could not be read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Broken {
    /// The deadline passed.
    Late,
    /// The other side has closed the connection.
    Closed,
    /// The bytes are not a frame of this protocol.
    Foreign,
    /// A frame of another version of the protocol.
    Version(u16),
    /// A body that is longer than allowed.
    TooLong(u32),
    /// The operating system refused.
    Failed(ErrorKind),
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Broken::Late => write!(f, "no answer in time"),
            Broken::Closed => write!(f, "the connection was closed"),
            Broken::Foreign => write!(f, "what answers there is no store"),
            Broken::Version(theirs) => write!(f, "protocol version {theirs} there, {VERSION} here"),
            Broken::TooLong(length) => write!(f, "a frame of {length} bytes"),
            Broken::Failed(kind) => write!(f, "{kind}"),
        }
    }
}

/// Send a frame. A body that is too long is the caller's mistake and not sent.
pub(super) fn write(stream: &TcpStream, op: Op, body: &[u8], deadline: Instant) -> Result<(), Broken> {
    if body.len() > MAX_FRAME {
        return Err(Broken::TooLong(u32::try_from(body.len()).unwrap_or(u32::MAX)));
    }
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((op as u16).to_le_bytes());
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(body);
    let (mut stream, mut rest) = (stream, bytes.as_slice());
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?)).map_err(|error| Broken::Failed(error.kind()))?;
        match stream.write(rest) {
            Ok(0) => return Err(Broken::Closed),
            Ok(written) => rest = &rest[written..],
            Err(error) => retry(error.kind())?,
        }
    }
    Ok(())
}

/// Read a frame whose body has at most `most` bytes.
pub(super) fn read(stream: &TcpStream, most: usize, deadline: Instant) -> Result<Frame, Broken> {
    let mut header = [0; HEADER];
    fill(stream, &mut header, deadline)?;
    let [a, b, c, d, version_low, version_high, op_low, op_high, length @ ..] = header;
    if [a, b, c, d] != MAGIC {
        return Err(Broken::Foreign);
    }
    let version = u16::from_le_bytes([version_low, version_high]);
    if version != VERSION {
        return Err(Broken::Version(version));
    }
    let code = u16::from_le_bytes([op_low, op_high]);
    let op = Op::of(code).ok_or(Broken::Foreign)?;
    let length = u32::from_le_bytes(length);
    if length as usize > most.min(MAX_FRAME) {
        return Err(Broken::TooLong(length));
    }
    let mut body = vec![0; length as usize];
    fill(stream, &mut body, deadline)?;
    Ok(Frame { op, body })
}

/// Whether anything has come, waiting at most `patience` for it; `Closed` if nothing ever will.
pub(super) fn has_come(stream: &TcpStream, patience: Duration) -> Result<bool, Broken> {
    stream.set_read_timeout(Some(patience)).map_err(|error| Broken::Failed(error.kind()))?;
    match stream.peek(&mut [0]) {
        Ok(0) => Err(Broken::Closed),
        Ok(_) => Ok(true),
        Err(error) => retry(error.kind()).map(|()| false),
    }
}

fn fill(mut stream: &TcpStream, buffer: &mut [u8], deadline: Instant) -> Result<(), Broken> {
    let mut filled = 0;
    while filled < buffer.len() {
        stream.set_read_timeout(Some(left(deadline)?)).map_err(|error| Broken::Failed(error.kind()))?;
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => return Err(Broken::Closed),
            Ok(count) => filled += count,
            Err(error) => retry(error.kind())?,
        }
    }
    Ok(())
}

/// Time left, never the zero that would mean to wait for ever.
fn left(deadline: Instant) -> Result<Duration, Broken> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(Broken::Late) } else { Ok(left) }
}

/// A time-out of one call does not end the wait: the deadline is looked at before the next.
fn retry(kind: ErrorKind) -> Result<(), Broken> {
    match kind {
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(()),
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => Err(Broken::Closed),
        other => Err(Broken::Failed(other)),
    }
}

/// Takes a body apart; `None` once it is shorter than it should be.
pub(super) struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    /// A length of two bytes and as many bytes of text.
    pub(super) fn text(&mut self) -> Option<&'a str> {
        let length = usize::from(self.bytes().map(u16::from_le_bytes)?);
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        std::str::from_utf8(text).ok()
    }

    /// Numbers of four bytes each, to the end.
    pub(super) fn numbers(self) -> Vec<usize> {
        self.0.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes) as usize).collect()
    }
}

/// The inverse of [`Fields::numbers`]; limited by the size of a frame.
pub(super) fn numbers(all: &[usize]) -> Vec<u8> {
    all.iter().take(MAX_FRAME / 4).flat_map(|&number| (number as u32).to_le_bytes()).collect()
}

/// Texts with their lengths; one that does not fit is empty.
pub(super) fn texts(all: &[String]) -> Vec<u8> {
    let mut body = Vec::new();
    let mut room = MAX_FRAME.saturating_sub(2 * all.len());
    for text in all {
        let fitting = if text.len() <= room { text.as_str() } else { "" };
        room -= fitting.len();
        body.extend((fitting.len() as u16).to_le_bytes());
        body.extend(fitting.as_bytes());
    }
    body
}
