//! Input of a classifier of sequences, where a configuration file states it.

use serde_json::Value;

use super::Fields;
use crate::Result;
use model_center_base::file::printable;

/// Hidden states that a classifier of sequences reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenPooling {
    /// The one of the first token.
    First,
    /// The mean over all tokens but padding.
    Mean,
}

impl TokenPooling {
    /// Its name in files.
    pub const fn name(self) -> &'static str {
        match self {
            TokenPooling::First => "cls",
            TokenPooling::Mean => "mean",
        }
    }

    /// Take the field out.
    ///
    /// # Errors
    /// Another name.
    pub(super) fn take(fields: &mut Fields, name: &str) -> Result<Option<Self>> {
        let Some(given) = fields.take(name) else { return Ok(None) };
        let known = [TokenPooling::First, TokenPooling::Mean];
        let pooling = known.into_iter().find(|known| given.as_str() == Some(known.name()));
        let refuse = |given: &Value| {
            let reason = format!("{} is not a pooling of tokens", printable(&given.to_string(), 40));
            fields.error(name, &reason, "give cls or mean")
        };
        pooling.map(Some).ok_or_else(|| refuse(&given))
    }
}
