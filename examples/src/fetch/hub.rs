//! What is asked of the server: which files a model has, what each is, and its bytes from a place on.
//!
//! Addresses are those of Hugging Face's hub. Redirects are followed here rather than by the client, because the token is for
//! the server that the user named and for no other.

use super::Request;
use crate::terminal;
use model_center::file::{check_name, printable};
use model_center::hf::pretrained::{RepoId, Revision, name::is_commit};
use model_center::{Error, Result};
use serde::Deserialize;
use std::io::Read;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;
use ureq::http::{Response, StatusCode, Uri};
use ureq::tls::TlsConfig;
use ureq::{Agent, Body};

/// Redirects of one request.
const MOST_REDIRECTS: usize = 10;
/// Attempts in a row that bring nothing.
const MOST_ATTEMPTS: u32 = 5;
/// The longest wait for a connection, for an answer to begin, and for its next bytes.
const CONNECT: Duration = Duration::from_secs(30);
const SILENCE: Duration = Duration::from_secs(60);
/// The longest list of files. One of 10,000 files has about 1 MB.
const LISTING_LIMIT: u64 = 32 << 20;
/// The longest name of contents: those of git and SHA-256 have 40 and 64 characters.
const ETAG_LIMIT: usize = 128;

/// A server, for one model.
pub(super) struct Hub {
    agent: Agent,
    endpoint: String,
    id: RepoId,
    revision: Revision,
    token: Option<String>,
    pause: Duration,
}

/// What a revision of a model consists of.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) commit: String,
    /// Names, none of which leads out of a folder.
    pub(super) files: Vec<String>,
}

/// What is known of a file before it is fetched.
#[derive(Debug)]
pub(super) struct About {
    /// The server's name for its contents, fit for a file name.
    pub(super) etag: String,
    /// Bytes, if the server says.
    pub(super) size: Option<u64>,
}

impl About {
    /// The contents' SHA-256, where the server names them by it: for large files.
    pub(super) fn sha256(&self) -> Option<&str> {
        let is_hash = self.etag.len() == 64 && self.etag.bytes().all(|b| b.is_ascii_hexdigit());
        is_hash.then_some(self.etag.as_str())
    }
}

/// Why a request brought nothing.
pub(super) enum Trouble {
    /// It may go better next time.
    Passing(String),
    /// It will not.
    Lasting(Error),
}

#[derive(Deserialize)]
struct RawListing {
    sha: String,
    siblings: Vec<RawFile>,
}

#[derive(Deserialize)]
struct RawFile {
    rfilename: String,
}

impl Hub {
    pub(super) fn new(request: &Request) -> Result<Self> {
        let wrong = |reason: &str| {
            let fix = "give e.g. --endpoint https://huggingface.co";
            Err(Error::recipe(printable(&request.endpoint, 200), reason, fix))
        };
        let Ok(uri) = request.endpoint.parse::<Uri>() else { return wrong("the server's address is none") };
        let (Some(scheme), Some(host)) = (uri.scheme_str(), uri.host()) else {
            return wrong("the server's address lacks https:// or a host");
        };
        if !["http", "https"].contains(&scheme) || uri.query().is_some() {
            return wrong("the server's address is not of the web");
        }
        let is_here = ["localhost", "127.0.0.1", "[::1]"].contains(&host);
        if request.token.is_some() && scheme == "http" && !is_here {
            return wrong("HF_TOKEN would be sent unencrypted");
        }
        let is_token = |token: &String| token.bytes().all(|b| b.is_ascii_graphic());
        if !request.token.as_ref().is_none_or(is_token) {
            let reason = "HF_TOKEN has characters that no token has";
            return Err(Error::recipe("HF_TOKEN", reason, "copy it again from the hub's page of settings"));
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .accept_encoding("identity")
            .user_agent(concat!("bmtrain/", env!("CARGO_PKG_VERSION")))
            .proxy(request.proxy.clone())
            .tls_config(TlsConfig::builder().root_certs(request.roots.clone()).build())
            .timeout_resolve(Some(CONNECT))
            .timeout_connect(Some(CONNECT))
            .timeout_send_request(Some(SILENCE))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .timeout_per_write(Some(SILENCE));
        Ok(Self {
            agent: config.build().into(),
            endpoint: request.endpoint.clone(),
            id: request.id.clone(),
            revision: request.revision.clone(),
            token: request.token.clone(),
            pause: request.pause,
        })
    }

    /// The commit and the files of the revision.
    pub(super) fn listing(&self) -> Result<Listing> {
        let address = format!("{}/api/models/{}/revision/{}", self.endpoint, self.id, escape(self.revision.as_str()));
        self.patiently(|| {
            let response = self.ask(&address, "GET", None, &|response, _| response.status().is_success())?;
            let mut text = Vec::new();
            let reader = response.into_body().into_reader();
            reader.take(LISTING_LIMIT + 1).read_to_end(&mut text).map_err(|e| Trouble::Passing(e.to_string()))?;
            self.read_listing(&text, &address).map_err(Trouble::Lasting)
        })
    }

    fn read_listing(&self, text: &[u8], address: &str) -> Result<Listing> {
        let wrong =
            |reason: String| Error::model(address, reason, "check that --endpoint is the address of a model hub");
        if text.len() as u64 > LISTING_LIMIT {
            return Err(wrong("the list of files is longer than any model's".into()));
        }
        let raw: RawListing = serde_json::from_slice(text)
            .map_err(|e| wrong(format!("the answer is no list of files: {}", printable(&e.to_string(), 200))))?;
        if !is_commit(&raw.sha) || (self.revision.is_commit() && raw.sha != self.revision.as_str()) {
            return Err(wrong(format!("the server names the commit {}", printable(&raw.sha, 60))));
        }
        let files: Vec<String> = raw.siblings.into_iter().map(|file| file.rfilename).collect();
        // Files that nobody would fetch may be called as they like.
        let files = files.into_iter().filter(|name| check_name(Path::new(self.id.as_str()), name).is_ok());
        Ok(Listing { commit: raw.sha, files: files.collect() })
    }

    fn file_address(&self, commit: &str, name: &str) -> String {
        let path: Vec<String> = name.split('/').map(escape).collect();
        format!("{}/{}/resolve/{commit}/{}", self.endpoint, self.id, path.join("/"))
    }

    /// What a file is, without its bytes.
    pub(super) fn about(&self, commit: &str, name: &str) -> Result<About> {
        let address = self.file_address(commit, name);
        self.patiently(|| {
            // The hub describes a file where it sends on to a store of another host, which knows it under other names.
            let describes = |response: &Response<Body>, leaves: bool| {
                response.status().is_success() || (leaves && header(response, "x-linked-etag").is_some())
            };
            let response = self.ask(&address, "HEAD", None, &describes)?;
            let linked_size = header(&response, "x-linked-size");
            let own_size = || header(&response, "content-length").filter(|_| response.status().is_success());
            let size = linked_size.or_else(own_size).and_then(|text| text.parse().ok());
            let etag = header(&response, "x-linked-etag").or_else(|| header(&response, "etag")).unwrap_or_default();
            let etag = etag.trim_start_matches("W/").trim_matches('"');
            let is_name = etag.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
            if etag.is_empty() || etag.len() > ETAG_LIMIT || !is_name {
                let reason = format!("the server names the contents \"{}\", which is no name", printable(etag, 80));
                let fix = "check that --endpoint is the address of a model hub";
                return Err(Trouble::Lasting(Error::model(&address, reason, fix)));
            }
            Ok(About { etag: etag.to_owned(), size })
        })
    }

    /// The bytes of a file from `start` on, and where they really begin: a server may not know how to begin later.
    pub(super) fn bytes(&self, commit: &str, name: &str, start: u64) -> Result<(u64, impl Read + use<>), Trouble> {
        let address = self.file_address(commit, name);
        let arrived = |response: &Response<Body>, _| {
            response.status().is_success() || response.status() == StatusCode::RANGE_NOT_SATISFIABLE
        };
        let mut response = self.ask(&address, "GET", (start > 0).then_some(start), &arrived)?;
        if response.status() == StatusCode::RANGE_NOT_SATISFIABLE {
            response = self.ask(&address, "GET", None, &|response, _| response.status().is_success())?;
        }
        let begin = match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let range = header(&response, "content-range").unwrap_or_default();
                let begin = range.strip_prefix("bytes ").and_then(|rest| rest.split_once('-')?.0.parse::<u64>().ok());
                if begin != Some(start) {
                    let text = format!(
                        "the server sends \"{}\" where bytes from {start} on were asked for",
                        printable(range, 60)
                    );
                    return Err(Trouble::Passing(text));
                }
                start
            }
            _ => 0,
        };
        Ok((begin, response.into_body().into_reader()))
    }

    /// Send a request and follow redirects until a response is wanted; `is_wanted` is also told whether it sends to another host.
    fn ask(
        &self,
        address: &str,
        method: &str,
        start: Option<u64>,
        is_wanted: &dyn Fn(&Response<Body>, bool) -> bool,
    ) -> Result<Response<Body>, Trouble> {
        let mut at = address.to_owned();
        for _ in 0..MOST_REDIRECTS {
            let response = self.send(&at, method, start)?;
            let status = response.status();
            let next = match status.is_redirection() {
                true => Some(self.next(&at, &response).map_err(Trouble::Lasting)?),
                false => None,
            };
            let leaves = next.as_ref().is_some_and(|next| origin(next) != origin(&at));
            if is_wanted(&response, leaves) {
                return Ok(response);
            }
            match next {
                Some(next) => at = next,
                None => return Err(self.refused(&at, &response)),
            }
        }
        let reason = format!("the server redirects more than {MOST_REDIRECTS} times");
        Err(Trouble::Lasting(Error::model(address, reason, "check --endpoint, or try again later")))
    }

    fn send(&self, address: &str, method: &str, start: Option<u64>) -> Result<Response<Body>, Trouble> {
        let request = if method == "HEAD" { self.agent.head(address) } else { self.agent.get(address) };
        let request = match start {
            Some(start) => request.header("Range", format!("bytes={start}-")),
            None => request,
        };
        let is_ours = origin(address) == origin(&self.endpoint);
        let request = match self.token.as_ref().filter(|_| is_ours) {
            Some(token) => request.header("Authorization", format!("Bearer {token}")),
            None => request,
        };
        request.call().map_err(|error| match error {
            ureq::Error::Io(_)
            | ureq::Error::Timeout(_)
            | ureq::Error::HostNotFound
            | ureq::Error::ConnectionFailed => Trouble::Passing(format!("{}: {error}", origin(address))),
            other => {
                let reason = format!("the server cannot be spoken with: {}", printable(&other.to_string(), 200));
                Trouble::Lasting(Error::model(shown(address), reason, "check --endpoint and the network"))
            }
        })
    }

    /// Where a redirect leads.
    fn next(&self, from: &str, response: &Response<Body>) -> Result<String> {
        let to = header(response, "location").unwrap_or_default();
        let next = match to {
            to if to.starts_with("https://") || to.starts_with("http://") => to.to_owned(),
            to if to.starts_with('/') && !to.starts_with("//") => format!("{}{to}", origin(from)),
            _ => String::new(),
        };
        if next.is_empty() || (from.starts_with("https://") && !next.starts_with("https://")) {
            let reason = format!("the server redirects to \"{}\", which is not followed", printable(to, 120));
            return Err(Error::model(shown(from), reason, "check that --endpoint is the address of a model hub"));
        }
        Ok(next)
    }

    /// The error for a status that is none of success.
    fn refused(&self, address: &str, response: &Response<Body>) -> Trouble {
        let (id, status) = (&self.id, response.status().as_u16());
        let code = header(response, "x-error-code").unwrap_or_default();
        let has_token = self.token.is_some();
        let with_token = if has_token { "with this HF_TOKEN" } else { "without HF_TOKEN" };
        let (reason, fix) = match status {
            408 | 429 | 500..=599 => return Trouble::Passing(format!("{}: status {status}", origin(address))),
            401 | 403 if code == "GatedRepo" => (
                format!("{id} is given only to those who accepted its terms, not {with_token}"),
                format!("accept them on {}/{id}, and set HF_TOKEN", self.endpoint),
            ),
            401 if has_token => (
                format!("the server does not know {id}, or not this HF_TOKEN"),
                "check the name; make a new token on the hub's page of settings".to_owned(),
            ),
            401 => (
                format!("the server has no public model {id}"),
                "check the name; for a model of yours that is not public set HF_TOKEN".to_owned(),
            ),
            403 => (
                format!("the server does not give {id} {with_token}"),
                "set HF_TOKEN to a token that may read it".to_owned(),
            ),
            404 if code == "RevisionNotFound" => (
                format!("{id} has no revision {}", self.revision),
                format!("choose one of {}/{id}/refs, or leave --revision out", self.endpoint),
            ),
            404 => (
                format!("the server has no {id} of revision {}, or not this file of it", self.revision),
                "check name, revision and --endpoint".to_owned(),
            ),
            _ => {
                (format!("the server answers with status {status}"), "check --endpoint, or try again later".to_owned())
            }
        };
        Trouble::Lasting(Error::model(shown(address), reason, fix))
    }

    /// Try again, ever later, while troubles are passing.
    fn patiently<T>(&self, mut attempt: impl FnMut() -> Result<T, Trouble>) -> Result<T> {
        let mut failed = 0;
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(trouble) => self.rest(trouble, &mut failed)?,
            }
        }
    }

    /// Wait before another attempt; `failed` counts those in a row that brought nothing.
    ///
    /// # Errors
    /// There is no point in one.
    pub(super) fn rest(&self, trouble: Trouble, failed: &mut u32) -> Result<()> {
        let reason = match trouble {
            Trouble::Lasting(error) => return Err(error),
            Trouble::Passing(reason) => reason,
        };
        *failed += 1;
        if *failed >= MOST_ATTEMPTS {
            let fix = "check the network and --endpoint; the same command goes on where it was";
            return Err(Error::model(&self.endpoint, format!("{reason}, after {MOST_ATTEMPTS} attempts"), fix));
        }
        let pause = self.pause * (1 << (*failed - 1));
        terminal::note(&format!("{reason}; trying again in {} s", pause.as_secs()));
        sleep(pause);
        Ok(())
    }
}

/// A header's text.
fn header<'r>(response: &'r Response<Body>, name: &str) -> Option<&'r str> {
    response.headers().get(name).and_then(|value| value.to_str().ok())
}

/// Scheme, host and port of an address.
fn origin(address: &str) -> &str {
    let host = address.find("://").map_or(0, |at| at + 3);
    let end = address[host..].find(['/', '?', '#']).map_or(address.len(), |at| host + at);
    &address[..end]
}

/// An address for messages: without its query, in which stores have keys of access.
fn shown(address: &str) -> String {
    printable(address.split(['?', '#']).next().unwrap_or_default(), 300)
}

/// A part of a path, with all but plain characters escaped.
fn escape(part: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~".contains(&b);
    part.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart_and_put_together() {
        assert_eq!(origin("https://a.b:8/c?d"), "https://a.b:8");
        assert_eq!(origin("http://a"), "http://a");
        // Whoever stands before an @ is no host.
        assert_ne!(origin("https://huggingface.co@evil.org/x"), origin("https://huggingface.co"));
        assert_ne!(origin("https://huggingface.co.evil.org/x"), origin("https://huggingface.co"));
        assert_eq!(escape("refs/pr 1#é"), "refs%2Fpr%201%23%C3%A9");
        assert_eq!(shown("https://a/b?key=secret"), "https://a/b");
    }
}
