//! Which requests are answered at all.
//!
//! A page of another site can make a browser ask this server. It cannot read the answers, unless its own name leads to
//! this address (DNS rebinding): then the `Host` header has that name. So a host must be an address, `localhost`, or a
//! name that was given at the start. Changes need a token besides, which only the page knows.

use super::ServeOptions;
use super::http::{Request, Response};
use crate::{Error, Result};
use std::fs::File;
use std::io::Read;
use std::net::IpAddr;

/// The header of the token.
pub(super) const TOKEN_HEADER: &str = "x-runs-token";

/// Which hosts and which changes are allowed.
#[derive(Debug)]
pub(super) struct Guard {
    names: Vec<String>,
    pub(super) allow_delete: bool,
    pub(super) token: String,
}

impl Guard {
    pub(super) fn new(options: &ServeOptions) -> Result<Self> {
        let mut random = [0; 16];
        let path = std::path::Path::new("/dev/urandom");
        let read = File::open(path).and_then(|mut file| file.read_exact(&mut random));
        read.map_err(|e| Error::file("read", path, e, "run on a system that has it"))?;
        let token = random.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Guard { names: options.names.clone(), allow_delete: options.allow_delete, token })
    }

    /// The response to a request that is refused.
    pub(super) fn refuses(&self, request: &Request) -> Option<Response> {
        let host = request.header("host");
        if !host.is_some_and(|host| self.is_own(host)) {
            let text = "this host is not served here; runs serve --name NAME allows it";
            return Some(Response::text(403, text));
        }
        if let Some(origin) = request.header("origin")
            && origin.strip_prefix("http://") != host
        {
            return Some(Response::text(403, "requests of pages of other origins are refused"));
        }
        match request.method.as_str() {
            "GET" => None,
            "POST" if !self.allow_delete => Some(Response::text(403, "this page is read-only")),
            "POST" if request.header(TOKEN_HEADER).is_some_and(|token| self.is_token(token)) => None,
            "POST" => Some(Response::text(403, "the token of the page is missing or an old one: load the page again")),
            _ => Some(Response::text(405, "only GET and POST are answered").with("Allow", "GET, POST")),
        }
    }

    /// Whether a `Host` header, with or without a port, names this server.
    fn is_own(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split_once(']').map_or("", |(address, _)| address),
            None => host.rsplit_once(':').map_or(host, |(name, _)| name),
        };
        let is_given = self.names.iter().any(|given| given.eq_ignore_ascii_case(name));
        is_given || name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
    }

    /// Hashes are compared in constant time.
    fn is_token(&self, token: &str) -> bool {
        blake3::hash(token.as_bytes()) == blake3::hash(self.token.as_bytes())
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
        Request::read(&mut text.as_bytes()).unwrap().unwrap()
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
