//! Requests and responses of HTTP/1.1, as far as a local page needs them: one request for a connection, no more than a
//! few kilobytes, and its whole response. `httparse` reads the head.

use std::io::Read;
use std::net::{Shutdown, TcpStream};

/// The longest head, and the longest body.
const MAX_HEAD: usize = 16 << 10;
const MAX_BODY: usize = 64 << 10;
const MAX_HEADERS: usize = 64;

/// A request.
#[derive(Debug, Clone, Default)]
pub(super) struct Request {
    pub(super) method: String,
    /// Without the query.
    pub(super) path: String,
    /// Names and values of the query, decoded.
    pub(super) query: Vec<(String, String)>,
    /// Lower-case names with their values.
    headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

/// A response.
#[derive(Debug)]
pub(super) struct Response {
    status: u16,
    content_type: &'static str,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Request {
    /// Reads a request; `None` if the connection was closed before one began. The error is the response to one that
    /// cannot be read.
    pub(super) fn read(stream: &mut impl Read) -> Result<Option<Request>, Response> {
        let mut bytes = Vec::new();
        let mut chunk = [0; 4096];
        loop {
            let read = match stream.read(&mut chunk) {
                Ok(0) | Err(_) if bytes.is_empty() => return Ok(None),
                Ok(0) | Err(_) => return Err(Response::text(400, "the request is cut off")),
                Ok(read) => read,
            };
            bytes.extend_from_slice(chunk.get(..read).unwrap_or_default());
            let Some((mut request, head)) = Request::parse(&bytes)? else {
                if bytes.len() > MAX_HEAD {
                    return Err(Response::text(431, "the head of the request is too long"));
                }
                continue;
            };
            let length = match request.header("content-length") {
                None => 0,
                Some(text) => {
                    text.parse().map_err(|_| Response::text(400, "the length of the body is not a number"))?
                }
            };
            if request.header("transfer-encoding").is_some() || length > MAX_BODY {
                return Err(Response::text(413, "the body of the request is too long, or in chunks"));
            }
            request.body = bytes.get(head..).unwrap_or_default().to_vec();
            request.body.truncate(length);
            let missing = length - request.body.len();
            let read = stream.take(missing as u64).read_to_end(&mut request.body);
            return match read {
                Ok(read) if read == missing => Ok(Some(request)),
                _ => Err(Response::text(400, "the body of the request is cut off")),
            };
        }
    }

    /// The head of a request, and its length; `None` if it is not complete.
    fn parse(bytes: &[u8]) -> Result<Option<(Request, usize)>, Response> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut parsed = httparse::Request::new(&mut headers);
        let head = match parsed.parse(bytes) {
            Ok(httparse::Status::Complete(head)) => head,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(Response::text(400, "this is not a request of HTTP/1.1")),
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
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(own, _)| own == name);
        let (_, value) = found.next()?;
        found.next().is_none().then_some(value)
    }

    /// A value of the query.
    pub(super) fn asked(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }
}

impl Response {
    /// With a body of a type.
    pub(super) fn new(content_type: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Response { status: 200, content_type, headers: Vec::new(), body: body.into() }
    }

    /// A line of text with a status.
    pub(super) fn text(status: u16, text: &str) -> Self {
        Response { status, ..Response::new("text/plain; charset=utf-8", format!("{text}\n")) }
    }

    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// The same without a body, where the browser has it already.
    pub(super) fn unless_known(self, request: &Request) -> Self {
        let tag = format!("\"{}\"", blake3::hash(&self.body).to_hex());
        if request.header("if-none-match") == Some(&tag) {
            return Response { status: 304, body: Vec::new(), ..self }.with("ETag", tag);
        }
        self.with("ETag", tag)
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let reason = match self.status {
            200 => "OK",
            304 => "Not Modified",
            400 => "Bad Request",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            409 => "Conflict",
            413 => "Content Too Large",
            431 => "Request Header Fields Too Large",
            _ => "Internal Server Error",
        };
        let mut head = format!(
            "HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\
             X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nCache-Control: no-cache\r\n\
             Cross-Origin-Resource-Policy: same-origin\r\n",
            self.status,
            self.content_type,
            self.body.len()
        );
        for (name, value) in &self.headers {
            // A line break would begin a header of its own.
            let value: String = value.chars().filter(|c| !c.is_control()).collect();
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        [head.as_bytes(), &self.body].concat()
    }
}

/// Ends a connection so that the response arrives although the browser sent more than was read.
pub(super) fn finish(stream: &mut TcpStream) {
    if stream.shutdown(Shutdown::Write).is_ok() {
        let mut rest = [0; 1024];
        // Not for ever: a few kilobytes at most.
        for _ in 0..16 {
            if !matches!(stream.read(&mut rest), Ok(read) if read > 0) {
                break;
            }
        }
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

    fn read(text: &str) -> Result<Option<Request>, u16> {
        Request::read(&mut text.as_bytes()).map_err(|response| response.status)
    }

    #[test]
    fn requests_are_read_with_query_and_body() {
        let request =
            read("POST /a?id=x%2Fy+z&n HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}more").unwrap().unwrap();
        assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/a"));
        assert_eq!((request.asked("id"), request.asked("n"), request.asked("m")), (Some("x/y z"), Some(""), None));
        assert_eq!((request.header("host"), request.body.as_slice()), (Some("h"), &b"{}"[..]));
        assert_eq!(decoded("%zz%2"), "%zz%2");
    }

    #[test]
    fn what_is_no_request_is_refused() {
        assert!(read("").unwrap().is_none());
        assert_eq!(read("GET / HTTP/1.1\r\nHost").unwrap_err(), 400);
        assert_eq!(read("hello\r\n\r\n").unwrap_err(), 400);
        assert_eq!(read(&format!("GET /{} HTTP/1.1", "x".repeat(20_000))).unwrap_err(), 431);
        assert_eq!(read("POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n").unwrap_err(), 413);
        assert_eq!(read("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap_err(), 413);
        assert_eq!(read("POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nab").unwrap_err(), 400);
    }

    #[test]
    fn a_response_is_known_by_its_content() {
        let tag = |response: Response| response.headers.into_iter().find(|(name, _)| *name == "ETag").unwrap().1;
        let first = tag(Response::new("text/plain", "a").unless_known(&Request::default()));
        let known = Request { headers: vec![("if-none-match".into(), first)], ..Request::default() };
        let again = Response::new("text/plain", "a").unless_known(&known);
        assert_eq!((again.status, again.body.len()), (304, 0));
        assert_eq!(Response::new("text/plain", "b").unless_known(&known).status, 200);
        let injected = String::from_utf8(Response::text(200, "").with("X", "a\r\nY: b").to_bytes()).unwrap();
        assert!(injected.contains("X: aY: b\r\n"), "{injected}");
    }
}
