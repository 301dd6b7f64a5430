//! Calls into libraries that process untrusted files.
//!
//! Defines [`catch_errors`], through which every call goes that can meet the contents of a file or a text.

use std::fmt::Display;

use bmtrain_core::panics::catch;

use crate::{Error, Result};

/// Runs a call into a library; its errors and panics become errors of this crate. A program that called
/// [`bmtrain_core::panics::silence_caught`] shows the panics in these errors alone.
pub(super) fn catch_errors<T, E: Display>(place: &str, action: &str, call: impl FnOnce() -> Result<T, E>) -> Result<T> {
    const FIX: &str = "check the tokenizer files; fetch them again if they may be damaged";
    match catch(call) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(Error::model(place, format!("the tokenizer cannot {action}: {error}"), FIX)),
        Err(panic) => {
            Err(Error::model(place, format!("the tokenizer library failed while asked to {action}: {panic}"), FIX))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_the_library_becomes_an_error_with_its_message() {
        let error =
            catch_errors::<(), String>("dir/tokenizer.json", "tokenize a text", || panic!("index {} out of range", 7));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("dir/tokenizer.json") && error.contains("index 7 out of range"), "{error}");
        let error = catch_errors::<(), String>("place", "load", || panic!("plain")).unwrap_err().to_string();
        assert!(error.contains("plain"), "{error}");
    }
}
