//! Requests, read within limits.

use super::chunks;
use std::io::{self, Read, Write};

const MAX_HEADERS: usize = 64;

/// The longest request that is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestLimits {
    /// Bytes of the request line and the headers.
    pub(crate) head: usize,
    /// Bytes of the body.
    pub(crate) body: usize,
}

impl Default for RequestLimits {
    /// Limits of a page in a browser: 16 and 64 KiB.
    fn default() -> Self {
        RequestLimits { head: 16 << 10, body: 64 << 10 }
    }
}

/// A request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// Without the query.
    pub(crate) path: String,
    /// Names and values of the query, decoded.
    pub(crate) query: Vec<(String, String)>,
    /// Lower-case names with their values.
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    /// Reads a request; `None` if the connection was closed, or silent, before one began. The error is the status and
    /// the reason of a response to one that cannot be read.
    pub(crate) fn read(
        stream: &mut (impl Read + Write),
        limits: RequestLimits,
    ) -> Result<Option<Request>, (u16, &'static str)> {
        let mut bytes = Vec::new();
        let mut chunk = [0; 4096];
        loop {
            let read = match stream.read(&mut chunk) {
                Ok(0) | Err(_) if bytes.is_empty() => return Ok(None),
                Ok(0) => return Err((400, "the request is cut off")),
                Err(error) => return Err(cut_off(&error)),
                Ok(read) => read,
            };
            bytes.extend_from_slice(chunk.get(..read).unwrap_or_default());
            let Some((mut request, head)) = Request::parse(&bytes)? else {
                if bytes.len() > limits.head {
                    return Err((431, "the head of the request is too long"));
                }
                continue;
            };
            let length = request.body_length(limits)?;
            request.body = bytes.get(head..).unwrap_or_default().to_vec();
            let is_missing = length.is_none_or(|length| length > request.body.len());
            if is_missing && request.header("expect").is_some_and(|expect| expect.eq_ignore_ascii_case("100-continue"))
            {
                let sent = stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").and_then(|()| stream.flush());
                sent.map_err(|error| cut_off(&error))?;
            }
            let Some(length) = length else {
                request.body = chunks::read(stream, std::mem::take(&mut request.body), limits.body)?;
                return Ok(Some(request));
            };
            request.body.truncate(length);
            let missing = length - request.body.len();
            let read = stream.take(missing as u64).read_to_end(&mut request.body);
            return match read {
                Ok(read) if read == missing => Ok(Some(request)),
                Ok(_) => Err((400, "the body of the request is cut off")),
                Err(error) => Err(cut_off(&error)),
            };
        }
    }

    /// The length of the body that the head states; `None` for a body in chunks.
    fn body_length(&self, limits: RequestLimits) -> Result<Option<usize>, (u16, &'static str)> {
        if self.headers.iter().any(|(name, _)| name == "transfer-encoding") {
            // With both, a proxy and this server could see different requests.
            if self.headers.iter().any(|(name, _)| name == "content-length") {
                return Err((400, "the body has a length and comes in chunks"));
            }
            return match self.header("transfer-encoding") {
                Some(coding) if coding.eq_ignore_ascii_case("chunked") => Ok(None),
                _ => Err((501, "of the transfer codings only chunked is read")),
            };
        }
        if self.has_several("content-length") {
            return Err((400, "there are several lengths of the body"));
        }
        let Some(text) = self.header("content-length") else { return Ok(Some(0)) };
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number {
            return Err((400, "the length of the body is not a number"));
        }
        // A number that does not fit is too large.
        match text.parse().unwrap_or(usize::MAX) {
            length if length <= limits.body => Ok(Some(length)),
            _ => Err((413, "the body of the request is too long")),
        }
    }

    /// The head of a request, and its length; `None` if it is not complete.
    fn parse(bytes: &[u8]) -> Result<Option<(Request, usize)>, (u16, &'static str)> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut parsed = httparse::Request::new(&mut headers);
        let head = match parsed.parse(bytes) {
            Ok(httparse::Status::Complete(head)) => head,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err((400, "this is not a request of HTTP/1.1")),
        };
        let target = parsed.path.unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let query = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), decoded(value))
        });
        let text = |header: &httparse::Header<'_>| {
            (header.name.to_ascii_lowercase(), String::from_utf8_lossy(header.value).into_owned())
        };
        let request = Request {
            method: parsed.method.unwrap_or_default().to_owned(),
            path: path.to_owned(),
            query: query.collect(),
            headers: parsed.headers.iter().map(text).collect(),
            body: Vec::new(),
        };
        Ok(Some((request, head)))
    }

    /// A header's value, by its lower-case name; of several, none: they could contradict each other.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(own, _)| own == name);
        let (_, value) = found.next()?;
        found.next().is_none().then_some(value)
    }

    /// Whether there are several headers of this lower-case name.
    pub(crate) fn has_several(&self, name: &str) -> bool {
        self.headers.iter().filter(|(own, _)| own == name).count() > 1
    }

    /// Rest of the path after `prefix`, decoded.
    pub(crate) fn path_after(&self, prefix: &str) -> Option<String> {
        // A plus sign stands for itself in a path.
        self.path.strip_prefix(prefix).map(|rest| decoded(&rest.replace('+', "%2B")))
    }

    /// A value of the query.
    pub(crate) fn asked(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }
}

/// The response to a request that cannot be read to its end.
pub(super) fn cut_off(error: &io::Error) -> (u16, &'static str) {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => (408, "the request was not sent in time"),
        _ => (400, "the request is cut off"),
    }
}

/// A part of a query without its escapes.
fn decoded(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'+' => out.push(b' '),
            b'%' => {
                let digits = [bytes.next(), bytes.next()];
                let value = |digit: Option<u8>| digit.and_then(|digit| char::from(digit).to_digit(16));
                match (value(digits[0]), value(digits[1])) {
                    (Some(high), Some(low)) => out.push((high * 16 + low) as u8),
                    _ => out.extend([Some(b'%'), digits[0], digits[1]].into_iter().flatten()),
                }
            }
            byte => out.push(byte),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text as a connection; writes go nowhere.
    struct Text<'t>(&'t [u8]);

    impl Read for Text<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            self.0.read(to)
        }
    }

    impl Write for Text<'_> {
        fn write(&mut self, from: &[u8]) -> io::Result<usize> {
            Ok(from.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Request {
        pub(crate) fn of_text(text: &str) -> Result<Option<Request>, u16> {
            let limits = RequestLimits::default();
            Request::read(&mut Text(text.as_bytes()), limits).map_err(|(status, _)| status)
        }
    }

    #[test]
    fn requests_are_read_with_query_and_body() {
        let text = "POST /a?id=x%2Fy+z&n HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}more";
        let request = Request::of_text(text).unwrap().unwrap();
        assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/a"));
        assert_eq!((request.asked("id"), request.asked("n"), request.asked("m")), (Some("x/y z"), Some(""), None));
        assert_eq!((request.header("host"), request.body.as_slice()), (Some("h"), &b"{}"[..]));
        assert_eq!(decoded("%zz%2"), "%zz%2");
        let text = "POST /a/x%2Fy+z HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
        let request = Request::of_text(text).unwrap().unwrap();
        assert_eq!((request.path_after("/a/").as_deref(), request.path_after("/b/")), (Some("x/y+z"), None));
        assert_eq!(request.body, b"{}");
    }

    #[test]
    fn what_is_no_request_is_refused() {
        assert!(Request::of_text("").unwrap().is_none());
        let post = |headers: &str, body: &str| format!("POST / HTTP/1.1\r\n{headers}\r\n\r\n{body}");
        for (text, status) in [
            ("GET / HTTP/1.1\r\nHost".to_owned(), 400),
            ("hello\r\n\r\n".to_owned(), 400),
            (format!("GET /{} HTTP/1.1", "x".repeat(20_000)), 431),
            (format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(MAX_HEADERS + 1)), 400),
            (post("Content-Length: 99999999", ""), 413),
            (post("Content-Length: 99999999999999999999999999", ""), 413),
            (post("Content-Length: +1", "a"), 400),
            (post("Content-Length: 1\r\nContent-Length: 2", "ab"), 400),
            (post("Transfer-Encoding: chunked", ""), 400),
            (post("Transfer-Encoding: chunked", "2\r\n{}\r\n0\r\n"), 400),
            (post("Transfer-Encoding: chunked\r\nContent-Length: 12", "2\r\n{}\r\n0\r\n\r\n"), 400),
            (post("Transfer-Encoding: gzip, chunked", ""), 501),
            (post("Transfer-Encoding: chunked", "fffff\r\n"), 413),
            (post("Content-Length: 5", "ab"), 400),
        ] {
            assert_eq!(Request::of_text(&text).unwrap_err(), status, "{text}");
        }
    }

    #[test]
    fn a_client_that_waits_for_the_first_answer_gets_one() {
        struct Waiting {
            sent: usize,
            written: Vec<u8>,
        }
        impl Read for Waiting {
            fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
                let head = b"POST / HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n";
                let next: &[u8] = match self.sent {
                    0 => head,
                    _ if self.written.starts_with(b"HTTP/1.1 100 ") => b"ok",
                    _ => return Err(io::ErrorKind::TimedOut.into()),
                };
                self.sent += 1;
                to[..next.len()].copy_from_slice(next);
                Ok(next.len())
            }
        }
        impl Write for Waiting {
            fn write(&mut self, from: &[u8]) -> io::Result<usize> {
                self.written.extend_from_slice(from);
                Ok(from.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut stream = Waiting { sent: 0, written: Vec::new() };
        let request = Request::read(&mut stream, RequestLimits::default()).unwrap().unwrap();
        assert_eq!(request.body, b"ok");
    }
}
