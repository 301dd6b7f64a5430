//! Responses.

use super::Request;

/// A response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(super) status: u16,
    content_type: &'static str,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Vec<u8>,
}

impl Response {
    /// With a body of a type.
    pub(crate) fn new(content_type: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Response { status: 200, content_type, headers: Vec::new(), body: body.into() }
    }

    /// A line of text with a status.
    pub(crate) fn text(status: u16, text: &str) -> Self {
        Response::new("text/plain; charset=utf-8", format!("{text}\n")).status(status)
    }

    /// Response with a status.
    pub(crate) fn status(self, status: u16) -> Self {
        Response { status, ..self }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Response without a body, where the browser has it already.
    pub(crate) fn unless_known(self, request: &Request) -> Self {
        let tag = format!("\"{}\"", blake3::hash(&self.body).to_hex());
        if request.header("if-none-match") == Some(&tag) {
            return Response { status: 304, body: Vec::new(), ..self }.with("ETag", tag);
        }
        self.with("ETag", tag)
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        [self.head(Some(self.body.len())).as_bytes(), &self.body].concat()
    }

    /// The response to a request of `method`: HEAD has no body.
    pub(crate) fn bytes_for(&self, method: &str) -> Vec<u8> {
        match method {
            "HEAD" => self.head(Some(self.body.len())).into_bytes(),
            _ => self.to_bytes(),
        }
    }

    /// The head of a response whose body follows in pieces, to the end of the connection.
    pub(crate) fn stream_head(&self) -> Vec<u8> {
        self.head(None).into_bytes()
    }

    /// The status of the response.
    pub(crate) fn code(&self) -> u16 {
        self.status
    }

    fn head(&self, length: Option<usize>) -> String {
        let mut head = format!("HTTP/1.1 {} {}\r\nContent-Type: {}\r\n", self.status, self.reason(), self.content_type);
        if let Some(length) = length {
            head.push_str(&format!("Content-Length: {length}\r\n"));
        }
        head.push_str(
            "Connection: close\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
             Cache-Control: no-cache\r\nCross-Origin-Resource-Policy: same-origin\r\n",
        );
        for (name, value) in &self.headers {
            // A line break would begin a header of its own.
            let value: String = value.chars().filter(|c| !c.is_control()).collect();
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        head
    }

    fn reason(&self) -> &'static str {
        match self.status {
            200 => "OK",
            304 => "Not Modified",
            400 => "Bad Request",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            408 => "Request Timeout",
            409 => "Conflict",
            413 => "Content Too Large",
            429 => "Too Many Requests",
            431 => "Request Header Fields Too Large",
            501 => "Not Implemented",
            503 => "Service Unavailable",
            504 => "Gateway Timeout",
            _ => "Internal Server Error",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Request, Response};

    #[test]
    fn a_response_is_known_by_its_content() {
        let tag = |response: Response| response.headers.into_iter().find(|(name, _)| *name == "ETag").unwrap().1;
        let first = tag(Response::new("text/plain", "a").unless_known(&Request::default()));
        let text = format!("GET / HTTP/1.1\r\nIf-None-Match: {first}\r\n\r\n");
        let known = Request::of_text(&text).unwrap().unwrap();
        let again = Response::new("text/plain", "a").unless_known(&known);
        assert_eq!((again.status, again.body.len()), (304, 0));
        assert_eq!(Response::new("text/plain", "b").unless_known(&known).status, 200);
    }

    #[test]
    fn headers_have_no_line_breaks_and_streams_no_length() {
        let response = Response::new("text/plain", "abc").with("X-Name", "a\r\nX-Other: b");
        let whole = String::from_utf8(response.to_bytes()).unwrap();
        assert!(
            whole.contains("\r\nX-Name: aX-Other: b\r\n") && whole.contains("\r\nContent-Length: 3\r\n"),
            "{whole}"
        );
        assert!(whole.starts_with("HTTP/1.1 200 OK\r\n") && whole.ends_with("\r\n\r\nabc"), "{whole}");
        let head = String::from_utf8(response.bytes_for("HEAD")).unwrap();
        assert_eq!(whole.strip_prefix(&head), Some("abc"));
        let head = String::from_utf8(response.status(503).stream_head()).unwrap();
        assert!(head.starts_with("HTTP/1.1 503 Service Unavailable\r\n") && !head.contains("Content-Length"), "{head}");
    }
}
