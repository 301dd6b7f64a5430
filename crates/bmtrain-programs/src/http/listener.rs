//! Connections: a thread for each, up to a number, with a time limit for what is read.

use crate::{Error, Result};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time that a client may go on sending after its response.
const LINGER: Duration = Duration::from_secs(5);

/// A bound address.
#[derive(Debug)]
pub(crate) struct Listener {
    listener: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Binds an address; port 0 takes a free one.
    ///
    /// # Errors
    /// [`Error::Argument`] if the address cannot be bound.
    pub(crate) fn bind(address: IpAddr, port: u16) -> Result<Self> {
        let asked = SocketAddr::new(address, port);
        let refused = |e: io::Error| {
            let fix = "choose another port, or 0 for a free one";
            Error::argument("--port", format!("cannot listen on {asked}: {e}"), fix)
        };
        let listener = TcpListener::bind(asked).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        Ok(Listener { listener, address })
    }

    /// The address that is listened on.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Gives each connection to `answer` in a thread of its own, until `is_stopped` when a connection comes
    /// ([`Listener::wake`]). More connections than `most` at the same time go to `refuse`, which must not wait.
    pub(crate) fn run(
        &self,
        most: usize,
        is_stopped: &dyn Fn() -> bool,
        answer: &Arc<dyn Fn(TcpStream) + Send + Sync>,
        refuse: &dyn Fn(TcpStream),
    ) {
        // Each open connection holds one reference beside this one, also if its thread ends in a panic.
        let held = Arc::new(());
        for stream in self.listener.incoming() {
            if is_stopped() {
                return;
            }
            let Ok(stream) = stream else {
                // A connection that was reset, or too many open files: neither is for good.
                std::thread::sleep(Duration::from_millis(20));
                continue;
            };
            if Arc::strong_count(&held) > most {
                refuse(stream);
                continue;
            }
            let (answer, held) = (Arc::clone(answer), Arc::clone(&held));
            let work = move || {
                answer(stream);
                drop(held);
            };
            // Without a thread the connection is closed.
            let _ = std::thread::Builder::new().name("connection".to_owned()).spawn(work);
        }
    }

    /// Makes [`Listener::run`] look whether it is stopped.
    pub(crate) fn wake(&self) {
        let ip = match self.address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
            ip => ip,
        };
        let address = SocketAddr::new(ip, self.address.port());
        // Where it cannot be reached, the listener ends with the process.
        let _ = TcpStream::connect_timeout(&address, Duration::from_secs(1));
    }
}

/// Time after which a connection that waits for a client looks again whether it is still wanted.
const LOOK: Duration = Duration::from_millis(50);

/// A connection with a moment after which reading and writing fail.
#[derive(Debug)]
pub(crate) struct TimedStream<'s> {
    stream: &'s TcpStream,
    deadline: Instant,
    /// Reading fails soon after this is set.
    ended: Option<&'s AtomicBool>,
}

impl<'s> TimedStream<'s> {
    /// A connection with time until `deadline`.
    pub(crate) fn new(stream: &'s TcpStream, deadline: Instant) -> Self {
        TimedStream { stream, deadline, ended: None }
    }

    /// The same, and soon after `ended` is set reading fails.
    pub(crate) fn unless(self, ended: &'s AtomicBool) -> Self {
        TimedStream { ended: Some(ended), ..self }
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        match self.deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

impl Read for TimedStream<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            let left = self.left()?;
            let Some(ended) = self.ended else {
                self.stream.set_read_timeout(left)?;
                return self.stream.read(to);
            };
            if ended.load(Ordering::Acquire) {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            self.stream.set_read_timeout(left.map(|left| left.min(LOOK)))?;
            match self.stream.read(to) {
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
                read => return read,
            }
        }
    }
}

impl Write for TimedStream<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Whether the other end has closed a connection on which nothing more is read.
pub(crate) fn is_closed(stream: &TcpStream) -> bool {
    let peeked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    let restored = stream.set_nonblocking(false);
    match peeked {
        Ok(0) => true,
        Ok(_) => restored.is_err(),
        Err(error) => error.kind() != io::ErrorKind::WouldBlock || restored.is_err(),
    }
}

/// Ends a connection so that the response arrives although the client sent more than was read: a socket that is closed
/// with bytes unread resets the connection, which fails what the client still writes and may discard the response. What
/// comes is read and dropped until the client closes, for [`LINGER`] at most.
pub(crate) fn finish(stream: &mut TcpStream) {
    if stream.shutdown(Shutdown::Write).is_ok() {
        let mut rest = [0; 16 << 10];
        let mut timed = TimedStream::new(stream, Instant::now() + LINGER);
        while matches!(timed.read(&mut rest), Ok(read) if read > 0) {}
    }
}

#[cfg(test)]
mod tests {
    use super::{Listener, TimedStream, finish, is_closed};
    use std::io::{Read, Write};
    use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpStream};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};
    use std::time::{Duration, Instant};

    #[test]
    fn connections_are_answered_in_threads_up_to_a_number_until_it_is_stopped() {
        let listener = Listener::bind(IpAddr::V4(Ipv4Addr::LOCALHOST), 0).unwrap();
        let (stopped, refused) = (AtomicBool::new(false), AtomicUsize::new(0));
        let (done, wait) = mpsc::channel::<()>();
        let wait = std::sync::Mutex::new(wait);
        let answer: Arc<dyn Fn(TcpStream) + Send + Sync> = Arc::new(move |mut stream: TcpStream| {
            stream.write_all(b"held").unwrap();
            let _ = wait.lock().unwrap().recv();
        });
        std::thread::scope(|scope| {
            let run = || {
                listener.run(1, &|| stopped.load(Ordering::Acquire), &answer, &|_| {
                    refused.fetch_add(1, Ordering::AcqRel);
                });
            };
            let running = scope.spawn(run);
            let mut first = TcpStream::connect(listener.address()).unwrap();
            first.read_exact(&mut [0; 4]).unwrap();
            let mut second = TcpStream::connect(listener.address()).unwrap();
            assert_eq!(second.read(&mut [0; 4]).unwrap(), 0, "it is closed");
            assert_eq!(refused.load(Ordering::Acquire), 1);
            assert!(!is_closed(&first));
            done.send(()).unwrap();
            assert_eq!(first.read(&mut [0; 4]).unwrap(), 0);
            assert!(is_closed(&first));
            stopped.store(true, Ordering::Release);
            listener.wake();
            running.join().unwrap();
        });
        assert!(Listener::bind(IpAddr::V4(Ipv4Addr::LOCALHOST), listener.address().port()).is_err());
    }

    #[test]
    fn reading_ends_at_the_deadline_however_slowly_bytes_come() {
        let listener = Listener::bind(IpAddr::V4(Ipv4Addr::LOCALHOST), 0).unwrap();
        let mut client = TcpStream::connect(listener.address()).unwrap();
        let (stream, _) = listener.listener.accept().unwrap();
        let began = Instant::now();
        let mut timed = TimedStream::new(&stream, began + Duration::from_millis(200));
        client.write_all(b"a").unwrap();
        assert_eq!(timed.read(&mut [0; 8]).unwrap(), 1);
        assert!(timed.read(&mut [0; 8]).is_err() && timed.read(&mut [0; 8]).is_err());
        assert!(began.elapsed() >= Duration::from_millis(200) && began.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn a_client_that_sends_more_than_was_read_gets_its_response_without_a_reset() {
        let listener = Listener::bind(IpAddr::V4(Ipv4Addr::LOCALHOST), 0).unwrap();
        let mut client = TcpStream::connect(listener.address()).unwrap();
        let (mut stream, _) = listener.listener.accept().unwrap();
        let server = std::thread::spawn(move || {
            stream.read_exact(&mut [0; 100]).unwrap();
            stream.write_all(b"refused").unwrap();
            finish(&mut stream);
        });
        // More than the buffers of both sockets hold.
        client.write_all(&vec![0; 16 << 20]).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut response = String::new();
        client.read_to_string(&mut response).unwrap();
        assert_eq!(response, "refused");
        server.join().unwrap();
    }

    #[test]
    fn reading_ends_when_the_server_does() {
        let listener = Listener::bind(IpAddr::V4(Ipv4Addr::LOCALHOST), 0).unwrap();
        let mut client = TcpStream::connect(listener.address()).unwrap();
        let (stream, _) = listener.listener.accept().unwrap();
        let ended = AtomicBool::new(false);
        let deadline = Instant::now() + Duration::from_secs(60);
        client.write_all(b"a").unwrap();
        let (read, was_read) = mpsc::channel();
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                let mut timed = TimedStream::new(&stream, deadline).unless(&ended);
                read.send(timed.read(&mut [0; 8]).unwrap()).unwrap();
                timed.read(&mut [0; 8]).unwrap_err().kind()
            });
            assert_eq!(was_read.recv().unwrap(), 1);
            ended.store(true, Ordering::Release);
            assert_eq!(reading.join().unwrap(), std::io::ErrorKind::ConnectionAborted);
        });
        assert!(Instant::now() < deadline);
    }
}
