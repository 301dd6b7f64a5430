//! Guard of the requests that are answered at all.
//!
//! Requests come from pages of this server; changes need a token besides, which only the page knows.

use super::ServeOptions;
use crate::Result;
use crate::http::{Request, Response, foreign, is_same_secret, random_token};

/// The header of the token.
pub(super) const TOKEN_HEADER: &str = "x-runs-token";

/// Hosts and changes that are allowed.
#[derive(Debug)]
pub(super) struct Guard {
    names: Vec<String>,
    pub(super) allow_delete: bool,
    pub(super) token: String,
}

impl Guard {
    pub(super) fn new(options: &ServeOptions) -> Result<Self> {
        Ok(Guard { names: options.names.clone(), allow_delete: options.allow_delete, token: random_token()? })
    }

    /// The response to a request that is refused.
    pub(super) fn refuses(&self, request: &Request) -> Option<Response> {
        if let Some(reason) = foreign(request, &self.names) {
            return Some(Response::text(403, reason));
        }
        match request.method.as_str() {
            "GET" | "HEAD" => None,
            "POST" if !self.allow_delete => Some(Response::text(403, "this page is read-only")),
            "POST" if request.header(TOKEN_HEADER).is_some_and(|token| is_same_secret(token, &self.token)) => None,
            "POST" => Some(Response::text(403, "the token of the page is missing or an old one: load the page again")),
            _ => Some(Response::text(405, "only GET, HEAD and POST are answered").with("Allow", "GET, HEAD, POST")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(allow_delete: bool) -> Guard {
        Guard { names: vec!["gpu7".into()], allow_delete, token: "secret".into() }
    }

    fn ask(method: &str, headers: &[&str]) -> Request {
        let text = format!("{method} / HTTP/1.1\r\n{}\r\n\r\n", headers.join("\r\n"));
        Request::of_text(&text).unwrap().unwrap()
    }

    #[test]
    fn hosts_of_other_names_are_refused() {
        for own in ["localhost:43800", "127.0.0.1:1", "[::1]:43800", "10.0.0.7", "GPU7:80", "localhost"] {
            assert!(guard(false).refuses(&ask("GET", &[&format!("Host: {own}")])).is_none(), "{own}");
        }
        for other in ["evil.example:43800", "localhost.evil.example", "127.0.0.1.evil.example", "", "[evil]:1"] {
            assert!(guard(false).refuses(&ask("GET", &[&format!("Host: {other}")])).is_some(), "{other}");
        }
        assert!(guard(false).refuses(&ask("GET", &["X: y"])).is_some());
        assert!(guard(false).refuses(&ask("GET", &["Host: localhost", "Host: localhost"])).is_some());
    }

    #[test]
    fn changes_take_a_token_and_no_other_origin() {
        let host = "Host: localhost:1";
        let token = "X-Runs-Token: secret";
        assert!(guard(true).refuses(&ask("POST", &[host, token])).is_none());
        assert!(guard(true).refuses(&ask("POST", &[host, token, "Origin: http://localhost:1"])).is_none());
        for wrong in [
            ask("POST", &[host]),
            ask("POST", &[host, "X-Runs-Token: other"]),
            ask("POST", &[host, token, "Origin: http://evil.example"]),
            ask("DELETE", &[host, token]),
        ] {
            assert!(guard(true).refuses(&wrong).is_some(), "{wrong:?}");
        }
        assert!(guard(false).refuses(&ask("POST", &[host, token])).is_some(), "read-only");
    }
}
