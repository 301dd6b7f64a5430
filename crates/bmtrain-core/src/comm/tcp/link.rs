//! One connection between two processes: frames, written from a queue and read with a deadline.
//!
//! A frame is a number of `u64`s and a rank, four bytes each, and then the `u64`s, all little-endian. The rank is the
//! receiver of what goes to rank 0, and the sender of what comes from it. A frame without content is a sign of life.

use crate::comm::messages::message::{HEAD, SHORT};
use crate::comm::queue::lock;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes before the content of a frame.
const HEADER: usize = 8;
/// Longest content, in `u64`s.
const MAX_INTEGERS: usize = HEAD + if super::CHUNK / 8 > SHORT { super::CHUNK / 8 } else { SHORT };
/// Longest wait without a look at the job.
pub(super) const SLICE: Duration = Duration::from_millis(100);
/// Time between signs of life of a connection that has nothing else to send, unless the deadline is short.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);
/// Bytes that may wait for a receiver.
const BACKLOG: usize = 64 << 20;

/// A connection to a rank.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) rank: usize,
    stream: TcpStream,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Nothing comes after what is in the queue.
    is_closing: bool,
    has_written: bool,
    has_read: bool,
}

/// Result of a read.
#[derive(Debug, PartialEq)]
pub(super) enum Frame {
    /// A rank and the integers of a message.
    Message(usize, Vec<u64>),
    SignOfLife,
    /// The caller no longer wants to read.
    Unwanted,
}

/// Why a connection is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    /// The process at the other end has ended.
    Closed,
    /// It was silent, or read nothing, for this time.
    Silent(Duration),
    /// It sent something that is not from this program.
    Foreign,
    Failed(ErrorKind),
}

impl Link {
    pub(super) fn new(rank: usize, stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SLICE))?;
        stream.set_write_timeout(Some(SLICE))?;
        Ok(Link { rank, stream, queue: Mutex::default(), changed: Condvar::new() })
    }

    /// Queue a frame. False if the other end does not take what it is sent.
    pub(super) fn push(&self, rank: usize, words: &[u64]) -> bool {
        let frame = encoded(rank, words);
        let mut queue = lock(&self.queue);
        if queue.bytes + frame.len() > BACKLOG {
            return false;
        }
        queue.bytes += frame.len();
        queue.frames.push_back(frame);
        self.changed.notify_all();
        true
    }

    /// Write what is queued, and signs of life, until the connection is closed.
    pub(super) fn write(&self, deadline: Duration) -> Result<(), Lost> {
        let written = self.write_frames(deadline);
        let _ = self.stream.shutdown(Shutdown::Write);
        lock(&self.queue).has_written = true;
        self.changed.notify_all();
        written
    }

    fn write_frames(&self, deadline: Duration) -> Result<(), Lost> {
        let pause = SIGN_OF_LIFE.min(deadline / 4);
        loop {
            let mut queue = lock(&self.queue);
            if queue.frames.is_empty() && !queue.is_closing {
                queue = self.changed.wait_timeout(queue, pause).unwrap_or_else(PoisonError::into_inner).0;
            }
            let frame = match queue.frames.pop_front() {
                Some(frame) => frame,
                None if queue.is_closing => return Ok(()),
                None => encoded(0, &[]),
            };
            queue.bytes = queue.bytes.saturating_sub(frame.len());
            drop(queue);
            self.write_frame(&frame, deadline)?;
        }
    }

    fn write_frame(&self, frame: &[u8], deadline: Duration) -> Result<(), Lost> {
        let (mut rest, mut progress) = (frame, Instant::now());
        while !rest.is_empty() {
            match (&self.stream).write(rest) {
                Ok(0) => return Err(Lost::Closed),
                Ok(written) => (rest, progress) = (&rest[written..], Instant::now()),
                Err(error) => is_temporary(&error)?,
            }
            if progress.elapsed() > deadline {
                return Err(Lost::Silent(deadline));
            }
        }
        Ok(())
    }

    /// Read a frame, unless it is no longer wanted.
    ///
    /// # Errors
    /// Nothing came for the deadline; the other end is gone, or not of this program.
    pub(super) fn read(&self, deadline: Duration, is_wanted: impl Fn() -> bool) -> Result<Frame, Lost> {
        let mut header = [0; HEADER];
        if !self.fill(&mut header, deadline, &is_wanted)? {
            return Ok(Frame::Unwanted);
        }
        let [a, b, c, d, rank @ ..] = header;
        let (count, rank) = (u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes(rank) as usize);
        if count == 0 {
            return Ok(Frame::SignOfLife);
        }
        if !(HEAD..=MAX_INTEGERS).contains(&count) {
            return Err(Lost::Foreign);
        }
        let mut bytes = vec![0; 8 * count];
        if !self.fill(&mut bytes, deadline, &is_wanted)? {
            return Ok(Frame::Unwanted);
        }
        Ok(Frame::Message(rank, bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect()))
    }

    /// Fill a buffer; false if it is no longer wanted.
    fn fill(&self, buffer: &mut [u8], deadline: Duration, is_wanted: &impl Fn() -> bool) -> Result<bool, Lost> {
        let (mut filled, mut heard, mut is_silent) = (0, Instant::now(), false);
        while filled < buffer.len() {
            match (&self.stream).read(&mut buffer[filled..]) {
                Ok(0) => return Err(Lost::Closed),
                Ok(count) => (filled, heard, is_silent) = (filled + count, Instant::now(), false),
                Err(error) => {
                    is_temporary(&error)?;
                    if !is_wanted() {
                        return Ok(false);
                    }
                    // Twice: a process that was itself stopped finds the time over before it finds what has come.
                    if heard.elapsed() > deadline && is_silent {
                        return Err(Lost::Silent(deadline));
                    }
                    is_silent = heard.elapsed() > deadline;
                }
            }
        }
        Ok(true)
    }

    pub(super) fn has_read(&self) {
        lock(&self.queue).has_read = true;
        self.changed.notify_all();
    }

    /// Let the queue be the last that is written.
    pub(super) fn close(&self) {
        lock(&self.queue).is_closing = true;
        self.changed.notify_all();
    }

    /// Wait until both directions have ended, and end the connection at the latest at `until`.
    pub(super) fn end(&self, until: Instant) {
        let mut queue = lock(&self.queue);
        while !(queue.has_written && queue.has_read) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            queue = self.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(queue);
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

fn encoded(rank: usize, words: &[u64]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADER + 8 * words.len());
    frame.extend((words.len() as u32).to_le_bytes());
    frame.extend((rank as u32).to_le_bytes());
    words.iter().for_each(|word| frame.extend(word.to_le_bytes()));
    frame
}

/// The end of a slice of time is not the end of a connection.
fn is_temporary(error: &io::Error) -> Result<(), Lost> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(()),
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => Err(Lost::Closed),
        kind => Err(Lost::Failed(kind)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const SOON: Duration = Duration::from_secs(20);

    /// A link, and the other end of its connection.
    fn link() -> (Link, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Link::new(3, listener.accept().unwrap().0).unwrap(), other)
    }

    #[test]
    fn frames_are_read_as_they_were_written() {
        let (link, mut other) = link();
        let words: Vec<u64> = (0..HEAD as u64 + 9).map(|word| word << 40 | 7).collect();
        other.write_all(&encoded(5, &words)).unwrap();
        other.write_all(&encoded(0, &[])).unwrap();
        assert_eq!(link.read(SOON, || true), Ok(Frame::Message(5, words)));
        assert_eq!(link.read(SOON, || true), Ok(Frame::SignOfLife));
        assert_eq!(link.read(SOON, || false), Ok(Frame::Unwanted));
        drop(other);
        assert_eq!(link.read(SOON, || true), Err(Lost::Closed));
    }

    #[test]
    fn lengths_that_no_message_has_are_refused_before_memory_is_taken() {
        for count in [1, HEAD as u32 - 1, MAX_INTEGERS as u32 + 1, u32::MAX] {
            let (link, mut other) = link();
            other.write_all(&[count.to_le_bytes(), [0; 4]].concat()).unwrap();
            assert_eq!(link.read(SOON, || true), Err(Lost::Foreign), "{count}");
        }
    }

    #[test]
    fn an_end_that_is_silent_or_trickles_is_lost_at_the_deadline() {
        let deadline = Duration::from_millis(300);
        let (link, mut other) = link();
        let begin = Instant::now();
        other.write_all(&[9, 0, 0]).unwrap();
        assert_eq!(link.read(deadline, || true), Err(Lost::Silent(deadline)));
        assert!(begin.elapsed() >= deadline && begin.elapsed() < SOON);
    }

    #[test]
    fn an_end_that_reads_nothing_is_lost_at_the_deadline_and_takes_bounded_memory() {
        let deadline = Duration::from_millis(300);
        let (link, _other) = link();
        let words = vec![1; MAX_INTEGERS];
        let pushed = (0..10_000).take_while(|_| link.push(0, &words)).count();
        assert!(pushed * MAX_INTEGERS * 8 <= BACKLOG && pushed > 900, "{pushed}");
        assert_eq!(link.write(deadline), Err(Lost::Silent(deadline)));
    }

    #[test]
    fn a_connection_without_messages_shows_signs_of_life_and_closes_after_its_last_frame() {
        let (link, mut other) = link();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| link.write(Duration::from_millis(400)));
            let mut sign = [1; HEADER];
            other.read_exact(&mut sign).unwrap();
            assert_eq!(sign, [0; HEADER]);
            assert!(link.push(2, &[8; HEAD]));
            link.close();
            assert_eq!(writer.join().unwrap(), Ok(()));
            let mut rest = Vec::new();
            other.read_to_end(&mut rest).unwrap();
            assert!(rest.ends_with(&encoded(2, &[8; HEAD])) && rest.len() % HEADER == 0, "{rest:?}");
        });
    }
}
