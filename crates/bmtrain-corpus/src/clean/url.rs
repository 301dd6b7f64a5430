//! Refused URLs: the rules of openwebtext's list, before a page is looked at.
//!
//! Defines [`UrlRules`] and [`UrlVerdict`]; called by [`super::screen`]. The rules are asked in the order of the
//! verdicts, so that their counts add up.

use std::collections::HashSet;

/// The site names that are blocked by default.
const SITES: &str = include_str!("blocked_sites.txt");
const ENDINGS: &str = include_str!("blocked_endings.txt");
/// A URL of this number of characters or fewer is too short.
const SHORT: usize = 8;
/// Second levels under which countries register names, as in `bbc.co.uk`.
const SECOND_LEVELS: [&str; 16] =
    ["ac", "asn", "co", "com", "edu", "go", "gob", "gov", "id", "mil", "ne", "net", "nom", "or", "org", "sch"];

/// Verdict of the rules on a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UrlVerdict {
    Kept,
    Site,
    Ending,
    Short,
    Malformed,
}

/// The rules, with the sites that are blocked.
#[derive(Debug, Clone)]
pub(super) struct UrlRules {
    sites: HashSet<String>,
}

impl UrlRules {
    /// With the sites of a list: names between white space, `#` begins a comment. By default the list of openwebtext.
    pub(super) fn new(sites: Option<&str>) -> UrlRules {
        UrlRules { sites: names(sites.unwrap_or(SITES)).map(str::to_lowercase).collect() }
    }

    pub(super) fn assess(&self, url: &str) -> UrlVerdict {
        let path = url.split('?').next().unwrap_or_default().to_lowercase();
        if site(url).is_some_and(|site| self.sites.contains(&site)) {
            UrlVerdict::Site
        } else if names(ENDINGS).any(|ending| path.ends_with(ending)) {
            UrlVerdict::Ending
        } else if url.chars().nth(SHORT).is_none() {
            UrlVerdict::Short
        } else if !is_well_formed(url) {
            UrlVerdict::Malformed
        } else {
            UrlVerdict::Kept
        }
    }
}

fn names(list: &str) -> impl Iterator<Item = &str> {
    list.lines().map(|line| line.split('#').next().unwrap_or_default()).flat_map(str::split_whitespace)
}

/// The host of a URL, without user and port.
fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    host.split(':').next().unwrap_or_default().trim_end_matches('.')
}

/// The name that is registered under a public suffix: `example` of `www.example.co.uk`. The suffix is the last label,
/// and the one before it where countries register names under such.
fn site(url: &str) -> Option<String> {
    let host = host(url).to_lowercase();
    let mut labels = host.rsplit('.');
    let (last, mut name) = (labels.next()?, labels.next()?);
    if last.len() == 2 && SECOND_LEVELS.contains(&name) {
        name = labels.next().unwrap_or(name);
    }
    Some(name.to_owned())
}

/// Whether a URL is `http` or `https`, has a host with a dot or an IPv4 address, perhaps a port, and no white space.
fn is_well_formed(url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else { return false };
    if !["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) || rest.contains(char::is_whitespace) {
        return false;
    }
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let (host, port) = authority.split_once(':').unwrap_or((authority, "0"));
    if port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return false;
    }
    let labels: Vec<&str> = host.strip_suffix('.').unwrap_or(host).split('.').collect();
    let is_number = |label: &&str| (1..=3).contains(&label.len()) && label.bytes().all(|byte| byte.is_ascii_digit());
    if labels.len() == 4 && !host.ends_with('.') && labels.iter().all(is_number) {
        return true;
    }
    let is_name = |label: &str| label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let Some((last, names)) = labels.split_last() else { return false };
    let are_labels = names
        .iter()
        .all(|name| (1..=63).contains(&name.len()) && is_name(name) && !name.starts_with('-') && !name.ends_with('-'));
    !names.is_empty() && are_labels && last.len() >= 2 && is_name(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_has_its_verdict() {
        let rules = UrlRules::new(None);
        for (url, verdict) in [
            ("http://example.com/a/b?c=d", UrlVerdict::Kept),
            ("https://WWW.Example.co.uk", UrlVerdict::Kept),
            ("http://10.0.0.1:8080/x", UrlVerdict::Kept),
            ("http://notyoutube.com/a", UrlVerdict::Kept),
            ("http://youtube.example.com/a", UrlVerdict::Kept),
            ("https://m.youtube.com/watch", UrlVerdict::Site),
            ("https://youtu.be/x", UrlVerdict::Site),
            ("http://www.amazon.co.uk/x", UrlVerdict::Site),
            ("http://user@i.imgur.com:80/x", UrlVerdict::Site),
            // `.7z` and `.ai` are two endings; the list of the scripts lacks the comma between them.
            ("http://example.com/a.7z", UrlVerdict::Ending),
            ("http://example.com/a.AI?b", UrlVerdict::Ending),
            ("http://example.com/a.PDF?page=1", UrlVerdict::Ending),
            ("http://example.com/a?b.pdf", UrlVerdict::Kept),
            ("http://a", UrlVerdict::Short),
            ("ftp://example.com/a", UrlVerdict::Malformed),
            ("http://localhost/page", UrlVerdict::Malformed),
            ("http://-example.com/page", UrlVerdict::Malformed),
            ("http://example.com:port/", UrlVerdict::Malformed),
            ("http://example.com/a b", UrlVerdict::Malformed),
            ("http://example.c", UrlVerdict::Malformed),
            ("example.com/page", UrlVerdict::Malformed),
        ] {
            assert_eq!(rules.assess(url), verdict, "{url}");
        }
        let own = UrlRules::new(Some("# mine\nexample  other # two\n"));
        assert_eq!(own.assess("http://example.com/a"), UrlVerdict::Site);
        assert_eq!(own.assess("http://www.youtube.com/a"), UrlVerdict::Kept);
    }
}
