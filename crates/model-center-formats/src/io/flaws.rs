//! Records that are left out.

use std::path::Path;

use crate::{Error, Result};

/// Treatment of records that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnBadRecord {
    /// Stop at the first one.
    #[default]
    Error,
    /// Leave them out, but stop if they are more than this share of all records, 0 to 1.
    Skip {
        /// The largest accepted share; [`OnBadRecord::SKIP_SHARE`] by default.
        max_share: f64,
    },
}

impl OnBadRecord {
    /// The share of bad records that skipping accepts unless told otherwise: 0.1 %.
    pub const SKIP_SHARE: f64 = 0.001;
}

/// Number of flaws of skipped records that the report quotes.
const QUOTED_FLAWS: usize = 3;

/// Place and reason of a record's flaw; the fix is stated once for all of them.
fn in_one_line(flaw: &Error) -> String {
    match flaw {
        Error::Data { place, reason, .. } => format!("{place}: {reason}"),
        other => other.to_string().lines().map(str::trim).collect::<Vec<_>>().join(", "),
    }
}

/// Flaws of records that were left out.
#[derive(Debug, Default)]
pub struct Flaws {
    /// Number of records.
    pub count: u64,
    /// The first few.
    pub first: Vec<String>,
}

impl Flaws {
    /// Leave a record out, if that is accepted.
    pub fn add(&mut self, policy: OnBadRecord, flaw: Error) -> Result<()> {
        if policy == OnBadRecord::Error {
            return Err(flaw);
        }
        self.count += 1;
        if self.first.len() < QUOTED_FLAWS {
            self.first.push(in_one_line(&flaw));
        }
        Ok(())
    }

    /// Whether not more records than accepted were left out.
    pub fn check(&self, path: &Path, policy: OnBadRecord, records: u64) -> Result<()> {
        let Flaws { count, first } = self;
        match policy {
            OnBadRecord::Skip { max_share } if *count as f64 > max_share * records as f64 => Err(Error::data(
                path.display().to_string(),
                format!(
                    "{count} of {records} records are unusable, more than the accepted {} %. The first: {}",
                    max_share * 100.0,
                    first.join("; ")
                ),
                "correct the records, or raise data.bad_record_limit",
            )),
            OnBadRecord::Skip { .. } | OnBadRecord::Error => Ok(()),
        }
    }
}
