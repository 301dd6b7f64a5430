//! Questions to the server: which files a model has, what each is, and its bytes from a place on.
//!
//! Addresses follow Hugging Face's hub. [`ask`](super::ask) has the requests themselves,
//! [`transfer`](super::transfer) their time limits.

use super::address::{escape, origin, shown};
use super::ask::Question;
use super::transfer::{Answer, Line};
use super::{Request, ServerLayout};
use model_center_base::file::{check_name, printable};
use model_center_base::{Error, Result};
use model_center_formats::pretrained::name::is_commit;
use serde::Deserialize;
use std::path::Path;
use ureq::http::{Method, StatusCode, Uri};

/// The longest list of files. One of 10,000 files has about 1 MB.
const MAX_LISTING_BYTES: usize = 32 << 20;
/// The longest name of contents: git's and SHA-256's have 40 and 64 characters.
const MAX_ETAG_BYTES: usize = 128;
const NO_HUB: &str = "check that --endpoint is the address of a model hub";

pub(super) struct Hub<'a> {
    pub(super) line: Line,
    pub(super) request: &'a Request,
}

#[derive(Debug)]
pub(super) struct Listing {
    pub(super) commit: String,
    /// Names that stay inside a directory.
    pub(super) files: Vec<String>,
}

/// Facts about a file before it is fetched.
#[derive(Debug)]
pub(super) struct About {
    /// The server's name for its contents, fit for a file name.
    pub(super) etag: String,
    pub(super) size: u64,
    /// The CRC-64 of the contents, which stores of Aliyun give.
    pub(super) crc64: Option<u64>,
}

/// The hash by which a server names contents, as far as its length tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named {
    /// Large files of a hub.
    Sha256,
    /// Small files of a hub, as git names them; other servers take the hash of the bytes alone.
    Sha1,
    /// Contents that the server gives the CRC-64 of.
    Crc64,
    /// A name that tells nothing of the bytes.
    Opaque,
}

impl About {
    /// The hash by which the contents are checked, as text.
    pub(super) fn announced(&self) -> String {
        match (self.named(), self.crc64) {
            (Named::Crc64, Some(crc64)) => crc64.to_string(),
            _ => self.etag.clone(),
        }
    }

    pub(super) fn named(&self) -> Named {
        match self.etag.len() {
            64 if self.etag.bytes().all(|b| b.is_ascii_hexdigit()) => Named::Sha256,
            40 if self.etag.bytes().all(|b| b.is_ascii_hexdigit()) => Named::Sha1,
            _ if self.crc64.is_some() => Named::Crc64,
            _ => Named::Opaque,
        }
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

impl<'a> Hub<'a> {
    pub(super) fn new(request: &'a Request) -> Result<Self> {
        let place = || shown(&request.endpoint);
        let wrong = |reason: &str| Err(Error::argument(place(), reason, "give e.g. --endpoint https://huggingface.co"));
        let Ok(uri) = request.endpoint.parse::<Uri>() else { return wrong("the server's address is none") };
        let (Some(scheme), Some(host)) = (uri.scheme_str(), uri.host()) else {
            return wrong("the server's address lacks https:// or a host");
        };
        if !["http", "https"].contains(&scheme) || uri.query().is_some() {
            return wrong("the server's address is not of the web");
        }
        if request.token.is_some() && scheme == "http" {
            if !["localhost", "127.0.0.1", "[::1]"].contains(&host) {
                return wrong("HF_TOKEN would be sent unencrypted");
            }
            // A proxy is another machine, and reads what it passes on.
            if request.proxy.as_ref().is_some_and(|proxy| !proxy.is_no_proxy(&uri)) {
                let fix = "name this machine in NO_PROXY";
                return Err(Error::argument(place(), "HF_TOKEN would be sent to a proxy unencrypted", fix));
            }
        }
        let is_token = |token: &String| token.bytes().all(|b| b.is_ascii_graphic());
        if !request.token.as_ref().is_none_or(is_token) {
            let reason = "HF_TOKEN has characters that no token has";
            return Err(Error::argument("HF_TOKEN", reason, "copy it again from the hub's page of settings"));
        }
        let line = Line::new(request.proxy.clone(), request.roots.clone(), request.patience);
        Ok(Self { line, request })
    }

    pub(super) fn listing(&self) -> Result<Listing> {
        let address = format!(
            "{}/api/models/{}/revision/{}",
            self.request.endpoint,
            self.request.id,
            escape(self.request.revision.as_str())
        );
        let question = Question { method: Method::GET, address: &address, start: None };
        self.patiently(|| {
            let text = self.ask(&question, &|answer, _| answer.status().is_success())?.text(MAX_LISTING_BYTES)?;
            self.read_listing(&text, &address).map_err(Trouble::Lasting)
        })
    }

    fn read_listing(&self, text: &[u8], address: &str) -> Result<Listing> {
        let wrong = |reason: String| Error::model(shown(address), reason, NO_HUB);
        if text.len() > MAX_LISTING_BYTES {
            return Err(wrong("the list of files is longer than any model's".into()));
        }
        let raw: RawListing = serde_json::from_slice(text)
            .map_err(|e| wrong(format!("the answer is not a list of files: {}", printable(&e.to_string(), 200))))?;
        if !is_commit(&raw.sha) || (self.request.revision.is_commit() && raw.sha != self.request.revision.as_str()) {
            return Err(wrong(format!("the server names the commit {}", printable(&raw.sha, 60))));
        }
        let files: Vec<String> = raw.siblings.into_iter().map(|file| file.rfilename).collect();
        // Files that are never fetched may have any name.
        let files = files.into_iter().filter(|name| check_name(Path::new(self.request.id.as_str()), name).is_ok());
        Ok(Listing { commit: raw.sha, files: files.collect() })
    }

    fn file_address(&self, commit: &str, name: &str) -> String {
        let path: Vec<String> = name.split('/').map(escape).collect();
        if self.request.layout == ServerLayout::ModelCenter {
            return format!("{}/model_center/{}/{}", self.request.endpoint, self.request.id, path.join("/"));
        }
        format!("{}/{}/resolve/{commit}/{}", self.request.endpoint, self.request.id, path.join("/"))
    }

    /// Facts about a file, without its bytes; refused if it has more than `limit`.
    pub(super) fn about(&self, commit: &str, name: &str, limit: u64) -> Result<About> {
        let about = self.about_if_there(commit, name, limit, false)?;
        about.ok_or_else(|| Error::model(shown(&self.file_address(commit, name)), "there is no such file", NO_HUB))
    }

    /// The same; `None` where the server has no such file and `may_lack`.
    pub(super) fn about_if_there(&self, commit: &str, name: &str, limit: u64, may_lack: bool) -> Result<Option<About>> {
        let address = self.file_address(commit, name);
        let question = Question { method: Method::HEAD, address: &address, start: None };
        let about = self.patiently(|| {
            // The hub describes a file where it redirects to a store on another host, which knows it under other names.
            let describes = |answer: &Answer<'_>, leaves: bool| {
                let lacks = may_lack && answer.status() == StatusCode::NOT_FOUND;
                lacks || answer.status().is_success() || (leaves && answer.header("x-linked-etag").is_some())
            };
            let answer = self.ask(&question, &describes)?;
            if answer.status() == StatusCode::NOT_FOUND {
                return Ok(None);
            }
            let wrong = |reason: String| Err(Trouble::Lasting(Error::model(shown(&address), reason, NO_HUB)));
            let etag = etag(&answer).unwrap_or_default();
            let is_name = etag.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
            if etag.is_empty() || etag.len() > MAX_ETAG_BYTES || !is_name {
                return wrong(format!(
                    "the server names the contents \"{}\", which is not a name",
                    printable(etag, 80)
                ));
            }
            let own_size = || answer.header("content-length").filter(|_| answer.status().is_success());
            let Some(size) = answer.header("x-linked-size").or_else(own_size) else {
                // A download without an announced end could go on until the disk is full.
                return wrong("the server does not announce the size of the file".into());
            };
            match size.parse() {
                Ok(size) => {
                    let crc64 = answer.header("x-oss-hash-crc64ecma").and_then(|text| text.parse().ok());
                    Ok(Some(About { etag: etag.to_owned(), size, crc64 }))
                }
                Err(_) => wrong(format!("the server announces \"{}\" bytes", printable(size, 60))),
            }
        })?;
        let Some(about) = about else { return Ok(None) };
        if about.size > limit {
            let reason = format!("the server announces {} bytes, more than the {limit} of any such file", about.size);
            return Err(Error::model(shown(&address), reason, NO_HUB));
        }
        Ok(Some(about))
    }

    /// The bytes of a file from `start` on, and where they really begin: a server may not know how to begin later.
    pub(super) fn bytes(
        &self,
        commit: &str,
        name: &str,
        about: &About,
        start: u64,
    ) -> Result<(u64, Answer<'_>), Trouble> {
        let address = self.file_address(commit, name);
        let arrived = |answer: &Answer<'_>, _| {
            answer.status().is_success() || answer.status() == StatusCode::RANGE_NOT_SATISFIABLE
        };
        let mut question = Question { method: Method::GET, address: &address, start: (start > 0).then_some(start) };
        let mut answer = self.ask(&question, &arrived)?;
        if answer.status() == StatusCode::RANGE_NOT_SATISFIABLE {
            question.start = None;
            answer = self.ask(&question, &|answer, _| answer.status().is_success())?;
        }
        let begin = if answer.status() == StatusCode::PARTIAL_CONTENT { start } else { 0 };
        let range = answer.header("content-range").unwrap_or_default();
        if answer.status() == StatusCode::PARTIAL_CONTENT && !continues(range, start, about.size) {
            return Err(Trouble::Passing(format!(
                "the server sends \"{}\" where bytes from {start} on of {} were asked for",
                printable(range, 60),
                about.size
            )));
        }
        // Where the name is a hash, the bytes themselves are compared with it; a store has names of its own.
        let now = etag(&answer).filter(|now| about.named() == Named::Opaque && *now != about.etag);
        if let Some(now) = now.filter(|_| answer.origin() == origin(&self.request.endpoint)) {
            let reason = format!("the server announced contents {} and sends {}", about.etag, printable(now, 80));
            return Err(Trouble::Passing(reason));
        }
        Ok((begin, answer))
    }
}

/// The name of the contents, without the quotes and the mark of weak comparison.
fn etag<'a>(answer: &'a Answer<'_>) -> Option<&'a str> {
    let etag = answer.header("x-linked-etag").or_else(|| answer.header("etag"))?;
    Some(etag.trim_start_matches("W/").trim_matches('"'))
}

/// Whether a Content-Range begins at `start` of a file of `size` bytes.
fn continues(range: &str, start: u64, size: u64) -> bool {
    let parts = range.strip_prefix("bytes ").and_then(|rest| rest.split_once('/'));
    let Some((bytes, whole)) = parts else { return false };
    let begin = bytes.split_once('-').and_then(|(begin, _)| begin.parse().ok());
    begin == Some(start) && (whole == "*" || whole.parse() == Ok(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_taken_only_where_it_continues_the_same_file() {
        assert!(continues("bytes 5-9/10", 5, 10) && continues("bytes 5-9/*", 5, 10));
        for range in ["", "bytes", "bytes 5", "bytes 5-9", "bytes 4-9/10", "bytes 5-9/11", "bytes */10", "items 5-9/10"]
        {
            assert!(!continues(range, 5, 10), "{range}");
        }
    }

    #[test]
    fn hashes_are_told_from_other_names_by_their_form() {
        let named = |etag: &str| About { etag: etag.to_owned(), size: 0, crc64: None }.named();
        assert_eq!(named(&"0aF".repeat(22)[..64]), Named::Sha256);
        assert_eq!(named(&"0aF".repeat(22)[..40]), Named::Sha1);
        assert_eq!(named(&"g".repeat(64)), Named::Opaque);
        assert_eq!(named("d41d8cd98f00b204e9800998ecf8427e"), Named::Opaque);
    }
}
