//! Addresses on the web: who answers there, where a redirect may lead, and what of an address may be shown.

use model_center_base::file::printable;
use std::net::IpAddr;
use ureq::http::Uri;

/// Scheme, host and port of an address, with the user name before the host if it has one.
pub(super) fn origin(address: &str) -> &str {
    let host = address.find("://").map_or(0, |at| at + 3);
    let end = address[host..].find(['/', '?', '#']).map_or(address.len(), |at| host + at);
    &address[..end]
}

/// An address for messages: without its query, in which stores have keys of access, and without a user's password.
pub(super) fn shown(address: &str) -> String {
    let plain = address.split(['?', '#']).next().unwrap_or_default();
    let host = plain.find("://").map_or(0, |at| at + 3);
    let after_user = origin(plain).rfind('@').map_or(host, |at| at + 1);
    printable(&format!("{}{}", &plain[..host], &plain[after_user.max(host)..]), 300)
}

/// A part of a path, with all but plain characters escaped.
pub(super) fn escape(part: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~".contains(&b);
    part.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// The address that the redirect `to` leads to, seen from `from`; `endpoint` is the server that the user named. The
/// error follows the address in a message.
pub(super) fn redirected(from: &str, to: &str, endpoint: &str) -> Result<String, &'static str> {
    let is_absolute = ["https://", "http://"].iter().any(|scheme| to.starts_with(scheme));
    let next = match to {
        to if is_absolute => to.to_owned(),
        to if to.starts_with('/') && !to.starts_with("//") => format!("{}{to}", origin(from)),
        _ => return Err("which is not an address of the web"),
    };
    if from.starts_with("https://") && !next.starts_with("https://") {
        return Err("which is not encrypted");
    }
    let uri = next.parse::<Uri>().map_err(|_| "which is not an address of the web")?;
    let host = uri.host().filter(|host| !host.is_empty()).ok_or("which has no host")?;
    if is_absolute && origin(to).contains('@') {
        return Err("which has a user name in it");
    }
    match Reach::of(host) {
        Reach::World => Ok(next),
        Reach::Machine if endpoint.parse().ok().as_ref().and_then(Uri::host).map(Reach::of) == Some(Reach::Machine) => {
            Ok(next)
        }
        Reach::Machine => Err("which is this machine"),
        Reach::Never => Err("which is not a file server"),
    }
}

/// From where a host can be reached, as far as its name tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// From other machines.
    World,
    /// From this machine alone.
    Machine,
    /// Never a hub: services of a cloud's own network, and addresses of no single machine.
    Never,
}

impl Reach {
    fn of(host: &str) -> Self {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        if host == "localhost" || host.ends_with(".localhost") {
            return Reach::Machine;
        }
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&host);
        let Ok(address) = bare.parse::<IpAddr>() else {
            // Resolvers read `2130706433` and `0x7f.1` as addresses as well; no top-level domain begins with a digit.
            let last = host.rsplit('.').next().unwrap_or_default();
            return if last.starts_with(|c: char| c.is_ascii_digit()) { Reach::Never } else { Reach::World };
        };
        match address.to_canonical() {
            address if address.is_loopback() => Reach::Machine,
            address if address.is_unspecified() || address.is_multicast() => Reach::Never,
            IpAddr::V4(address) if address.is_link_local() || address.is_broadcast() => Reach::Never,
            IpAddr::V6(address) if address.is_unicast_link_local() => Reach::Never,
            _ => Reach::World,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart_and_put_together() {
        assert_eq!(origin("https://a.b:8/c?d"), "https://a.b:8");
        assert_eq!(origin("http://a"), "http://a");
        // What precedes an @ is a user, not a host.
        assert_ne!(origin("https://huggingface.co@evil.org/x"), origin("https://huggingface.co"));
        assert_ne!(origin("https://huggingface.co.evil.org/x"), origin("https://huggingface.co"));
        assert_eq!(escape("refs/pr 1#é"), "refs%2Fpr%201%23%C3%A9");
    }

    #[test]
    fn messages_show_neither_keys_nor_passwords() {
        assert_eq!(shown("https://a/b?key=secret"), "https://a/b");
        assert_eq!(shown("https://me:secret@a:8/b#secret"), "https://a:8/b");
        assert_eq!(shown("https://me:sec@ret@a"), "https://a");
        // After the host, an @ is a part of the path.
        assert_eq!(shown("https://a/b@c"), "https://a/b@c");
        assert_eq!(shown("https://a/\u{1b}[31m"), "https://a/\\u{1b}[31m");
    }

    #[test]
    fn redirects_lead_to_servers_of_the_web_alone() {
        let hub = "https://hub.org";
        let from = "https://hub.org/a/b";
        assert_eq!(redirected(from, "/c?d", hub).as_deref(), Ok("https://hub.org/c?d"));
        assert_eq!(redirected(from, "https://store.org/c", hub).as_deref(), Ok("https://store.org/c"));
        assert_eq!(redirected("http://hub.org/a", "http://10.0.0.7/c", hub).as_deref(), Ok("http://10.0.0.7/c"));
        for to in [
            "",
            "c",
            "//store.org/c",
            "file:///etc/passwd",
            "ftp://store.org/c",
            "data:,x",
            "HTTPS:/store.org",
            "http://store.org/c",
            "http://hub.org/c",
            "https://",
            "https:///c",
            "https://store.org\\c",
            "https://store .org/",
            "https://hub.org@store.org/c",
            "https://me:secret@store.org/c",
            "https://localhost/c",
            "https://a.localhost./c",
            "https://127.0.0.1:8000/c",
            "https://127.1/c",
            "https://2130706433/c",
            "https://0x7f000001/c",
            "https://[::1]/c",
            "https://[::ffff:127.0.0.1]/c",
            "https://169.254.169.254/latest/meta-data",
            "https://[fe80::1]/c",
            "https://0.0.0.0/c",
            "https://[::]/c",
            "https://224.0.0.1/c",
            "https://255.255.255.255/c",
        ] {
            assert!(redirected(from, to, hub).is_err(), "{to:?}");
        }
        // A server on this machine may name another one here, and no more than that.
        let here = "http://127.0.0.1:1";
        assert!(redirected("http://127.0.0.1:1/a", "http://localhost:2/c", here).is_ok());
        assert!(redirected("http://127.0.0.1:1/a", "http://169.254.169.254/c", here).is_err());
    }
}
