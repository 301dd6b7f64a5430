//! Asking a server: requests, redirects, refusals, and when to try again.
//!
//! Redirects are followed here rather than by the client, because the token is for the server that the user named and
//! for no other.

use super::address::{origin, redirected, shown};
use super::hub::{Hub, Trouble};
use super::transfer::Answer;
use crate::cli::terminal;
use model_center_base::file::printable;
use model_center_base::{Error, Result};
use std::thread::sleep;
use ureq::http::{Method, Request};

const MAX_REDIRECTS: usize = 10;
/// Attempts in a row that bring nothing.
pub(super) const MAX_ATTEMPTS: u32 = 5;

pub(super) struct Question<'a> {
    pub(super) method: Method,
    pub(super) address: &'a str,
    /// The first byte that is asked for, where that is not the first of the file.
    pub(super) start: Option<u64>,
}

impl Hub<'_> {
    /// Send a request and follow redirects until an answer is wanted; `is_wanted` is also told whether it redirects to
    /// another server.
    pub(super) fn ask(
        &self,
        question: &Question<'_>,
        is_wanted: &dyn Fn(&Answer<'_>, bool) -> bool,
    ) -> Result<Answer<'_>, Trouble> {
        let mut at = question.address.to_owned();
        for _ in 0..MAX_REDIRECTS {
            let answer = self.send(&at, question)?;
            let next = match answer.status().is_redirection() {
                true => Some(self.next(&at, &answer).map_err(Trouble::Lasting)?),
                false => None,
            };
            let leaves = next.as_ref().is_some_and(|next| origin(next) != origin(&at));
            if is_wanted(&answer, leaves) {
                return not_encoded(&at, answer);
            }
            match next {
                Some(next) => at = next,
                None => return Err(self.refused(&at, &answer)),
            }
        }
        let reason = format!("the server redirects more than {MAX_REDIRECTS} times");
        Err(Trouble::Lasting(Error::model(shown(question.address), reason, "check --endpoint, or try again later")))
    }

    fn send(&self, address: &str, question: &Question<'_>) -> Result<Answer<'_>, Trouble> {
        let mut request = Request::builder().method(question.method.clone()).uri(address);
        if let Some(start) = question.start {
            request = request.header("Range", format!("bytes={start}-"));
        }
        if let Some(token) = self.request.token.as_ref().filter(|_| origin(address) == origin(&self.request.endpoint)) {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let request = request.body(()).map_err(|error| {
            let reason = format!("the address cannot be asked: {}", printable(&error.to_string(), 200));
            Trouble::Lasting(Error::model(shown(address), reason, "check --endpoint"))
        })?;
        self.line.send(request)
    }

    fn next(&self, from: &str, answer: &Answer<'_>) -> Result<String> {
        let to = answer.header("location").unwrap_or_default();
        redirected(from, to, &self.request.endpoint).map_err(|why| {
            let reason = format!("the server redirects to \"{}\", {why}: it is not followed", shown(to));
            Error::model(shown(from), reason, "check that --endpoint is the address of a model hub")
        })
    }

    /// The error for a status that is none of success.
    fn refused(&self, address: &str, answer: &Answer<'_>) -> Trouble {
        let (id, status) = (&self.request.id, answer.status().as_u16());
        let code = answer.header("x-error-code").unwrap_or_default();
        let has_token = self.request.token.is_some();
        let with_token = if has_token { "with this HF_TOKEN" } else { "without HF_TOKEN" };
        let endpoint = shown(&self.request.endpoint);
        let (reason, fix) = match status {
            // How long a server wants to be left alone is not asked: it may name any time.
            408 | 429 | 500..=599 => {
                return Trouble::Passing(format!("{}: status {status}", shown(origin(address))));
            }
            401 | 403 if code == "GatedRepo" => (
                format!("{id} is given only to those who accepted its terms, not {with_token}"),
                format!("accept them on {endpoint}/{id}, and set HF_TOKEN"),
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
                format!("{id} has no revision {}", self.request.revision),
                format!("choose one of {endpoint}/{id}/refs, or leave --revision out"),
            ),
            404 => (
                format!("the server has no {id} of revision {}, or not this file of it", self.request.revision),
                "check name, revision and --endpoint".to_owned(),
            ),
            _ => {
                (format!("the server answers with status {status}"), "check --endpoint, or try again later".to_owned())
            }
        };
        Trouble::Lasting(Error::model(shown(address), reason, fix))
    }

    /// Try again, after longer and longer pauses, while troubles are passing.
    pub(super) fn patiently<T>(&self, mut attempt: impl FnMut() -> Result<T, Trouble>) -> Result<T> {
        let mut failed = 0;
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(trouble) => self.rest(trouble, &mut failed)?,
            }
        }
    }

    /// Wait before another attempt; `failed` counts those in a row that brought nothing.
    pub(super) fn rest(&self, trouble: Trouble, failed: &mut u32) -> Result<()> {
        let reason = match trouble {
            Trouble::Lasting(error) => return Err(error),
            Trouble::Passing(reason) => reason,
        };
        *failed += 1;
        if *failed >= MAX_ATTEMPTS {
            let fix = "check the network and --endpoint; the same command continues the download";
            return Err(Error::model(
                shown(&self.request.endpoint),
                format!("{reason}, after {MAX_ATTEMPTS} attempts"),
                fix,
            ));
        }
        let pause = self.request.pause * (1 << (*failed - 1));
        terminal::note(&format!("{reason}; trying again in {} s", pause.as_secs()));
        sleep(pause);
        Ok(())
    }
}

/// The answer, unless its body is encoded: nothing else than plain bytes is asked for, and what little could expand to
/// is unknown.
fn not_encoded<'l>(address: &str, answer: Answer<'l>) -> Result<Answer<'l>, Trouble> {
    match answer.header("content-encoding").map(|encoding| printable(encoding, 60)) {
        Some(encoding) if !encoding.eq_ignore_ascii_case("identity") => {
            let reason = format!("the server sends contents encoded as \"{encoding}\", which was not asked for");
            Err(Trouble::Lasting(Error::model(shown(address), reason, "check --endpoint and the proxy")))
        }
        _ => Ok(answer),
    }
}
