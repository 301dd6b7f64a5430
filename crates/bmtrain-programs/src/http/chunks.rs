//! Bodies in chunks (RFC 9112, section 7.1), within limits.

use super::request::cut_off;
use std::io::Read;

/// Bytes of a line that states a chunk's size, with its extensions.
const MAX_LINE: usize = 1024;
/// Bytes of the fields after the last chunk, which are not used.
const MAX_TRAILERS: usize = 16 << 10;

/// The status and the reason of a response to a body that cannot be read.
type Refusal = (u16, &'static str);

const CUT_OFF: Refusal = (400, "the body of the request is cut off");
const MALFORMED: Refusal = (400, "the chunks of the body are malformed");

/// Bytes that were received and not used yet, and the stream of further ones.
struct Received<'s, S> {
    stream: &'s mut S,
    bytes: Vec<u8>,
    /// The start of what was not used.
    start: usize,
}

impl<S: Read> Received<'_, S> {
    fn rest(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    /// Receives more.
    fn receive(&mut self) -> Result<(), Refusal> {
        self.bytes.drain(..self.start);
        self.start = 0;
        let mut chunk = [0; 4096];
        match self.stream.read(&mut chunk) {
            Ok(0) => Err(CUT_OFF),
            Ok(read) => {
                self.bytes.extend_from_slice(chunk.get(..read).unwrap_or_default());
                Ok(())
            }
            Err(error) => Err(cut_off(&error)),
        }
    }

    /// The size of the next chunk.
    fn size(&mut self) -> Result<u64, Refusal> {
        loop {
            match httparse::parse_chunk_size(self.rest()) {
                Ok(httparse::Status::Complete((line, size))) => {
                    self.start += line;
                    return Ok(size);
                }
                Ok(httparse::Status::Partial) if self.rest().len() < MAX_LINE => self.receive()?,
                Ok(httparse::Status::Partial) | Err(_) => return Err(MALFORMED),
            }
        }
    }

    /// Appends this number of bytes, and passes over the line end after them.
    fn chunk(&mut self, size: usize, body: &mut Vec<u8>) -> Result<(), Refusal> {
        let mut missing = size;
        while missing > 0 {
            if self.rest().is_empty() {
                self.receive()?;
            }
            let taken = missing.min(self.rest().len());
            body.extend_from_slice(self.rest().get(..taken).unwrap_or_default());
            self.start += taken;
            missing -= taken;
        }
        while self.rest().len() < 2 {
            self.receive()?;
        }
        let is_ended = self.rest().starts_with(b"\r\n");
        self.start += 2;
        if is_ended { Ok(()) } else { Err(MALFORMED) }
    }

    /// Passes over the fields after the last chunk, up to an empty line.
    fn trailers(&mut self) -> Result<(), Refusal> {
        let mut passed = 0;
        loop {
            match self.rest().windows(2).position(|two| two == b"\r\n") {
                Some(0) => return Ok(()),
                Some(length) => {
                    self.start += length + 2;
                    passed += length + 2;
                }
                None => self.receive()?,
            }
            if passed + self.rest().len() > MAX_TRAILERS {
                return Err((431, "the fields after the body are too long"));
            }
        }
    }
}

/// A body in chunks of at most `most` bytes together; `bytes` came after the head.
pub(super) fn read(stream: &mut impl Read, bytes: Vec<u8>, most: usize) -> Result<Vec<u8>, Refusal> {
    let mut received = Received { stream, bytes, start: 0 };
    let mut body = Vec::new();
    loop {
        let size = received.size()?;
        let size = usize::try_from(size).ok().filter(|size| *size <= most - body.len());
        let size = size.ok_or((413, "the body of the request is too long"))?;
        if size == 0 {
            received.trailers()?;
            return Ok(body);
        }
        received.chunk(size, &mut body)?;
    }
}

#[cfg(test)]
mod tests {
    use super::read;
    use std::io::Read;

    /// A stream of a byte at a time.
    struct Slow<'t>(&'t [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
            let Some((first, rest)) = self.0.split_first() else { return Ok(0) };
            to[0] = *first;
            self.0 = rest;
            Ok(1)
        }
    }

    #[test]
    fn chunks_are_joined_however_they_arrive() {
        let text = b"5;name=value\r\nhello\r\nA\r\n, world...\r\n0\r\nTrailer: x\r\n\r\n";
        for early in [0, 3, 16, 22, text.len()] {
            let body = read(&mut Slow(&text[early..]), text[..early].to_vec(), 15);
            assert_eq!(body.unwrap(), b"hello, world...", "{early}");
        }
        assert_eq!(read(&mut Slow(b""), b"0\r\n\r\n".to_vec(), 0).unwrap(), b"");
    }

    #[test]
    fn chunks_beyond_the_limit_and_malformed_ones_are_refused() {
        let long = format!("1\r\na\r\n0\r\n{}", "A: b\r\n".repeat(5000));
        for (text, status) in [
            ("5\r\nhello\r\n5\r\nworld\r\n0\r\n\r\n", 413),
            ("ffffffffffffffff\r\n", 413),
            ("fffffffffffffffff\r\n", 400),
            ("5\r\nhello", 400),
            ("5\r\nhelloXX0\r\n\r\n", 400),
            ("x\r\n", 400),
            ("-1\r\n", 400),
            ("5\r\nhello\r\n0\r\n", 400),
            (&"0".repeat(3000), 400),
            (&long, 431),
        ] {
            assert_eq!(read(&mut Slow(text.as_bytes()), Vec::new(), 9).unwrap_err().0, status, "{text:.40}");
        }
    }
}
