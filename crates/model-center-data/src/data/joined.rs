//! Several data sets as one.
//!
//! Adds [`Dataset::mixed`] and [`Dataset::joined`], which supervised fine-tuning calls.

use super::{Dataset, EpochMixture};
use crate::{Error, Result};

impl Dataset {
    /// The samples of several data sets of one kind, one set after the other, in an order of epochs that mixes them by
    /// their proportions.
    ///
    /// Errors: as [`EpochMixture::new`] and for more samples than can be numbered.
    pub(super) fn mixed(parts: Vec<(Dataset, f64)>) -> Result<Dataset> {
        let sizes: Vec<u64> = parts.iter().map(|(part, _)| part.len() as u64).collect();
        let proportions: Vec<f64> = parts.iter().map(|(_, proportion)| *proportion).collect();
        let mixture = EpochMixture::new(&sizes, &proportions)?;
        let mut all = Dataset::joined(parts.into_iter().map(|(part, _)| part).collect())?;
        all.mixture = Some(mixture);
        all.seal();
        Ok(all)
    }

    /// The samples of several data sets of one kind without repetitions, one set after the other.
    ///
    /// Errors: none, or more samples than can be numbered.
    pub(super) fn joined(parts: Vec<Dataset>) -> Result<Dataset> {
        let mut parts = parts.into_iter();
        let mut all = parts.next().ok_or_else(|| Error::data("data.sets", "there is no data set", "name one"))?;
        for part in parts {
            let start = all.ids.len();
            all.ids.extend(part.ids);
            all.types.extend(part.types);
            all.learned.extend(part.learned);
            all.ends.extend(part.ends.into_iter().map(|end| start + end));
            all.targets.extend(part.targets);
            let report = &mut all.report;
            report.records += part.report.records;
            report.skipped += part.report.skipped;
            report.first_skipped.extend(part.report.first_skipped);
            report.rows += part.report.rows;
            report.truncated += part.report.truncated;
            report.removed_tokens += part.report.removed_tokens;
            report.tokens += part.report.tokens;
            report.longest = report.longest.max(part.report.longest);
            let unused = part.report.unused_columns.into_iter();
            let further: Vec<String> = unused.filter(|name| !report.unused_columns.contains(name)).collect();
            report.unused_columns.extend(further);
        }
        if u32::try_from(all.targets.len()).is_err() {
            let reason = "the data sets have more than 4 billion samples together";
            return Err(Error::data("data.sets", reason, "name fewer of them"));
        }
        all.seal();
        Ok(all)
    }
}
