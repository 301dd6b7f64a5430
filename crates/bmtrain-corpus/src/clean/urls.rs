//! Documents with the URL of an earlier one.

use std::path::Path;

use super::fates::{Fate, Fates};
use super::sort::ExternalSort;
use crate::Result;
use model_center_base::stop_flag::StopFlag;
use model_center_data::corpus::positioned::PositionedFile;

/// Numbers of a record of the file: the hash of the URL, and the number of the document.
pub(super) const RECORD: u64 = 24;
const PIECE: usize = 1 << 12;

/// Marks all documents of a URL but the first one. `records` records are in the file `urls`. False if a stop was
/// requested before it was done; it may be done again.
pub(super) fn mark_same(
    urls: &Path,
    records: u64,
    sort: ExternalSort<3>,
    fates: &mut Fates,
    stop: &StopFlag,
) -> Result<bool> {
    let (file, mut sort, mut at) = (PositionedFile::open(urls)?, sort, 0);
    while at < records {
        if stop.is_requested() {
            return Ok(false);
        }
        let count = (records - at).min(PIECE as u64);
        let mut bytes = vec![0; (count * RECORD) as usize];
        file.read_at(at * RECORD, &mut bytes)?;
        for numbers in bytes.as_chunks::<8>().0.chunks_exact(3) {
            sort.push([0, 1, 2].map(|at| u64::from_le_bytes(numbers[at])))?;
        }
        at += count;
    }
    let (mut sorted, mut before) = (sort.finish()?, None);
    while let Some([high, low, number]) = sorted.advance()? {
        if before == Some((high, low)) {
            fates.change(number, Fate::SameUrl, 0)?;
        }
        before = Some((high, low));
    }
    Ok(true)
}
