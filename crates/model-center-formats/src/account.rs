//! Accounts of files that other tools wrote: each tensor, field or key is used, known to be without effect, or refused.
//!
//! Defines [`Account`]. A reader opens one with every name of its file, marks what it uses, and closes it: names that
//! are left make an error. See ADR 60.

use crate::formats::shortened;
use crate::{Error, Result};
use model_center_base::file::printable;
use std::collections::BTreeSet;

/// The names of a file that are not accounted for yet. It has to be closed: dropping an open one is a defect, which
/// debug builds report.
#[derive(Debug)]
#[must_use]
pub struct Account {
    place: String,
    what: &'static str,
    left: BTreeSet<String>,
    is_closed: bool,
}

impl Account {
    /// The account of a file; `what` is what its names are of, such as "tensor".
    pub fn open<N: Into<String>>(
        place: impl Into<String>,
        what: &'static str,
        names: impl IntoIterator<Item = N>,
    ) -> Self {
        let left = names.into_iter().map(Into::into).collect();
        Account { place: place.into(), what, left, is_closed: false }
    }

    /// Mark a name as used, or as known to be without effect. Returns whether the file has it.
    pub fn settle(&mut self, name: &str) -> bool {
        self.left.remove(name)
    }

    /// Give the account up, for an error that comes before it could be closed.
    pub fn give_up(mut self) {
        self.is_closed = true;
    }

    /// Close the account.
    ///
    /// # Errors
    /// [`Error::Model`] with the names that are left, `reason` and `fix`.
    pub fn close(mut self, reason: &str, fix: &str) -> Result<()> {
        self.is_closed = true;
        let left: Vec<String> = std::mem::take(&mut self.left).into_iter().collect();
        match left.as_slice() {
            [] => Ok(()),
            [one] => {
                let place = format!("{}, {} {}", self.place, self.what, printable(one, 200));
                Err(Error::model(place, reason, fix))
            }
            many => {
                let reason = format!("{} {}s: {reason}: {}", many.len(), self.what, shortened(many));
                Err(Error::model(self.place.clone(), reason, fix))
            }
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        debug_assert!(self.is_closed || std::thread::panicking(), "the account of {} was not closed", self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_refused_by_name() {
        let mut account = Account::open("a.safetensors", "tensor", ["x", "y", "z"]);
        assert!(account.settle("y") && !account.settle("y") && !account.settle("w"));
        let error = account.close("nothing reads it", "remove it").unwrap_err().to_string();
        assert!(error.contains("2 tensors: nothing reads it: x, z"), "{error}");
        let one = Account::open("a.json", "field", ["x"]).close("it is unknown", "remove it").unwrap_err().to_string();
        assert!(one.contains("a.json, field x"), "{one}");
        let mut all = Account::open("a.json", "field", ["x"]);
        all.settle("x");
        all.close("", "").unwrap();
    }

    #[test]
    #[should_panic(expected = "was not closed")]
    fn an_open_account_is_a_defect() {
        drop(Account::open("a.json", "field", ["x"]));
    }
}
