//! Requests that are accepted: by the host that they name, by the page they come from, by a secret.
//!
//! A page of another site can make a browser ask a local server. It cannot read the answers, unless its own name leads
//! to this address (DNS rebinding): then the `Host` header has that name. So a host must be an address, `localhost`, or
//! a name that was given at the start.

use super::Request;
use crate::{Error, Result};
use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::path::Path;

/// Why a request of a browser is not accepted from the page that made it, if it is not. `names` are accepted hosts
/// beside `localhost` and addresses.
pub(crate) fn foreign(request: &Request, names: &[String]) -> Option<&'static str> {
    let host = request.header("host");
    if !host.is_some_and(|host| is_own(host, names)) {
        return Some("this host is not served here; --name NAME allows it");
    }
    match request.header("origin") {
        // A proxy with TLS before this server has the same name.
        Some(origin) if !["http://", "https://"].iter().any(|scheme| origin.strip_prefix(scheme) == host) => {
            Some("requests of pages of other origins are refused")
        }
        _ if request.has_several("origin") => Some("requests of pages of other origins are refused"),
        _ => None,
    }
}

/// Whether a `Host` header, with or without a port, names this server.
fn is_own(host: &str, names: &[String]) -> bool {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').unwrap_or(("", "")),
        None => host.split_at(host.rfind(':').unwrap_or(host.len())),
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    if !(port.is_empty() || port.strip_prefix(':').is_some_and(is_port)) {
        return false;
    }
    let is_given = names.iter().any(|given| given.eq_ignore_ascii_case(name));
    is_given || name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// Whether two secrets are the same; hashes are compared, in constant time.
pub(crate) fn is_same_secret(one: &str, other: &str) -> bool {
    blake3::hash(one.as_bytes()) == blake3::hash(other.as_bytes())
}

/// A secret of 128 random bits.
///
/// # Errors
/// [`Error::File`] on a system without a source of random numbers.
pub(crate) fn random_token() -> Result<String> {
    let mut random = [0; 16];
    let path = Path::new("/dev/urandom");
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut random));
    read.map_err(|e| Error::file("read", path, e, "run on a system that has it"))?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::foreign;
    use crate::http::Request;

    #[test]
    fn hosts_and_origins_are_this_servers_with_and_without_tls() {
        let names = ["ai.example".to_owned()];
        let is_accepted = |host: &str, origin: &str| {
            let origin = if origin.is_empty() { String::new() } else { format!("Origin: {origin}\r\n") };
            let text = format!("GET / HTTP/1.1\r\nHost: {host}\r\n{origin}\r\n");
            foreign(&Request::of_text(&text).unwrap().unwrap(), &names).is_none()
        };
        for (host, origin) in [
            ("ai.example", ""),
            ("ai.example", "http://ai.example"),
            ("ai.example", "https://ai.example"),
            ("AI.example:8443", "https://AI.example:8443"),
            ("[::1]:80", "http://[::1]:80"),
            ("[::1]", ""),
            ("127.0.0.1:8000", ""),
        ] {
            assert!(is_accepted(host, origin), "{host} {origin}");
        }
        for (host, origin) in [
            ("[::1]evil.example", ""),
            ("[::1]:8a", ""),
            ("[::1", ""),
            ("localhost:80.evil.example", ""),
            ("evil.example", "https://evil.example"),
            ("ai.example", "https://evil.example"),
            ("ai.example", "https://ai.example:8443"),
            ("ai.example", "ftp://ai.example"),
            ("ai.example", "ai.example"),
            ("ai.example", "null"),
        ] {
            assert!(!is_accepted(host, origin), "{host} {origin}");
        }
    }
}
