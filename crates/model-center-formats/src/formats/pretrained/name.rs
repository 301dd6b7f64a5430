//! Names of models and of their revisions as the hub writes them, checked before they become part of a path or an
//! address.
//!
//! Defines [`RepoId`] and [`Revision`]; called by [`Pretrained`](super::Pretrained) and by the program that fetches
//! models.

use std::fmt;

const MAX_PARTS: usize = 96;
const MAX_REVISION: usize = 200;
const COMMIT_DIGITS: usize = 40;

/// A model's name on the hub: `org/name`, or `name` alone for the oldest ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepoId(String);

impl RepoId {
    /// Check a name by the hub's rules: one or two parts of at most 96 letters, digits, `-`, `_` and `.`, without `--`
    /// and `..`, that neither begin nor end with `-` or `.`.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let parts: Vec<&str> = text.split('/').collect();
        if parts.len() > 2 {
            return Err("has more than one `/`");
        }
        for part in &parts {
            if part.is_empty() || part.len() > MAX_PARTS {
                return Err("has a part that is empty or longer than 96 letters");
            }
            if !part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) {
                return Err("has characters other than letters, digits, `-`, `_`, `.` and one `/`");
            }
            if part.starts_with(['-', '.']) || part.ends_with(['-', '.']) {
                return Err("has a part that begins or ends with `-` or `.`");
            }
            // `--` stands for `/` in names of directories of the cache.
            if part.contains("--") || part.contains("..") {
                return Err("has `--` or `..` in it");
            }
        }
        if text.ends_with(".git") {
            return Err("ends in `.git`, which belongs to addresses");
        }
        Ok(Self(text.to_owned()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The model's directory in a cache: `models--org--name`.
    pub fn directory_name(&self) -> String {
        format!("models--{}", self.0.replace('/', "--"))
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A branch, a tag or a whole commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision(String);

impl Default for Revision {
    /// The branch that the hub shows.
    fn default() -> Self {
        Self("main".to_owned())
    }
}

impl Revision {
    /// Checks a revision: parts of letters, digits and `._-+@#=,` between single `/`, without a leading dot, a `.lock`
    /// suffix, `..` or a leading `-`. These are git's rules without shell metacharacters.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if text.is_empty() || text.len() > MAX_REVISION {
            return Err("is empty or longer than 200 letters");
        }
        if !text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-/+@#=,".contains(&b)) {
            return Err("has characters other than letters, digits and `._-/+@#=,`");
        }
        if text.contains("..") || text.starts_with('-') {
            return Err("has `..` in it or begins with `-`");
        }
        if text.split('/').any(|part| part.is_empty() || part.starts_with('.') || part.ends_with(".lock")) {
            return Err("has a part that is empty, begins with a dot or ends in `.lock`");
        }
        Ok(Self(text.to_owned()))
    }

    /// The revision.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is a whole commit, 40 hexadecimal digits, rather than a name for one.
    pub fn is_commit(&self) -> bool {
        is_commit(&self.0)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a text is a whole commit: 40 hexadecimal digits, small letters.
pub fn is_commit(text: &str) -> bool {
    text.len() == COMMIT_DIGITS && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_hub_are_accepted_and_tricks_are_not() {
        for name in ["gpt2", "google-bert/bert-base-uncased", "a/b.c_d-1", "_x/y_", "google/t5-v1_1-base"] {
            assert_eq!(RepoId::parse(name).unwrap().as_str(), name);
        }
        let long = "x".repeat(97);
        let refused = [
            "",
            "/",
            "a/",
            "/a",
            "a/b/c",
            "..",
            "a/..",
            "../a",
            "a/.b",
            "-a",
            "a-",
            "a--b",
            "a..b",
            "a b",
            "a\0",
            "a\n",
            "ä",
            "a\\b",
            "a/b.git",
            "a:b",
            "~/a",
            "a%2fb",
            long.as_str(),
        ];
        for name in refused {
            assert!(RepoId::parse(name).is_err(), "{name:?}");
        }
        assert_eq!(RepoId::parse("org/name").unwrap().directory_name(), "models--org--name");
    }

    #[test]
    fn revisions_are_git_names_that_cannot_leave_the_directory() {
        for name in ["main", "v1.0", "refs/pr/1", "feature/x#1", &"a".repeat(40)] {
            assert_eq!(Revision::parse(name).unwrap().as_str(), name);
        }
        for name in [
            "", "../main", "a/../b", "/etc", "a//b", "a/", ".hidden", "a/.b", "-r", "a.lock", "a b", "$x", "a\0", "a;b",
        ] {
            assert!(Revision::parse(name).is_err(), "{name:?}");
        }
        assert!(Revision::parse(&"0f".repeat(20)).unwrap().is_commit());
        assert!(!Revision::parse(&"0F".repeat(20)).unwrap().is_commit());
        assert!(!Revision::parse("main").unwrap().is_commit());
    }
}
