//! Destination of a response: waiting for the model as long as the client waits, whole responses, and events.

use super::ApiError;
use crate::http::{Response, TimedStream, is_closed};
use crate::serve::job::Cancelled;
use std::io::Write;
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Time between two looks at a client while the model works.
const LOOK: Duration = Duration::from_millis(100);
/// The time that a client has to take a piece of a response.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a piece.
const PIECE: usize = 64 << 10;

/// Why a request has no response.
#[derive(Debug)]
pub(in crate::serve) enum Ended {
    /// It has this one.
    Failed(ApiError),
    /// The client is gone.
    Gone,
}

impl From<ApiError> for Ended {
    fn from(error: ApiError) -> Self {
        Ended::Failed(error)
    }
}

/// A response of a connection.
#[derive(Debug)]
pub(in crate::serve) struct Reply<'s> {
    stream: &'s TcpStream,
    deadline: Instant,
    /// The method of the request.
    method: &'s str,
    looked: Instant,
    /// Whether events were written.
    pub(in crate::serve) is_streaming: bool,
    cancelled: Cancelled,
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        // Without effect on a job that has ended.
        self.cancelled.set();
    }
}

impl<'s> Reply<'s> {
    pub(in crate::serve) fn new(stream: &'s TcpStream, deadline: Instant, method: &'s str) -> Self {
        Reply { stream, deadline, method, looked: Instant::now(), is_streaming: false, cancelled: Cancelled::default() }
    }

    /// Set when the response is no longer wanted.
    pub(in crate::serve) fn cancelled(&self) -> Cancelled {
        self.cancelled.clone()
    }

    /// The next value, as long as the client waits and the request has time.
    pub(super) fn wait<T>(&mut self, values: &Receiver<T>) -> Result<T, Ended> {
        loop {
            if self.looked.elapsed() >= LOOK {
                self.looked = Instant::now();
                if is_closed(self.stream) {
                    return Err(Ended::Gone);
                }
            }
            if Instant::now() >= self.deadline {
                return Err(ApiError::timed_out().into());
            }
            match values.recv_timeout(LOOK) {
                Ok(value) => return Ok(value),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(ApiError::stopping().into()),
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        bytes.chunks(PIECE).try_for_each(|piece| {
            let mut timed = TimedStream::new(self.stream, Instant::now() + PATIENCE);
            timed.write_all(piece).and_then(|()| timed.flush()).map_err(|_| Ended::Gone)
        })
    }

    /// Writes a whole response.
    pub(in crate::serve) fn send(&mut self, response: &Response) -> Result<(), Ended> {
        self.write(&response.bytes_for(self.method))
    }

    /// Writes an event; the first begins the response.
    pub(in crate::serve) fn event(&mut self, data: &str) -> Result<(), Ended> {
        if !self.is_streaming {
            self.is_streaming = true;
            self.write(&Response::new("text/event-stream", "").stream_head())?;
        }
        self.write(format!("data: {data}\n\n").as_bytes())
    }
}
