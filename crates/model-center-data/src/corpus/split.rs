//! Which documents train, validate and test.
//!
//! Defines [`SplitShares`], the rule of `--split 949,50,1`, and [`DocumentSet`], the documents of a part. Called by
//! programs; [`super::samples`] reads the documents of a set.

use std::ops::Range;

use bmtrain_core::philox::Key;

use crate::{Error, Result};
use bmtrain_dist::order::Permutation;

/// Shares of training, validation and test, which add up to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SplitShares([f64; 3]);

impl SplitShares {
    /// Reads `949,50,1`: up to three numbers between commas or slashes. If they add up to less than 1, what is missing
    /// is one more share; further shares are 0. `0.9` is 90 % training and 10 % validation.
    ///
    /// # Errors
    /// [`Error::Argument`] for anything else: more numbers, negative ones, none above 0.
    pub fn parse(text: &str) -> Result<SplitShares> {
        let wrong = |reason: String| {
            Err(Error::argument("split", reason, "write shares of training, validation and test, such as 949,50,1"))
        };
        let mut shares = Vec::new();
        for part in text.split([',', '/']).map(str::trim) {
            match part.parse::<f64>() {
                Ok(share) if share.is_finite() && share >= 0.0 => shares.push(share),
                _ => return wrong(format!("{:?} is not a share", model_center_base::file::printable(part, 40))),
            }
        }
        let sum: f64 = shares.iter().sum();
        if sum < 1.0 && shares.len() < 3 {
            shares.push(1.0 - sum);
        }
        if shares.len() > 3 {
            return wrong(format!("{} shares, and there are three parts", shares.len()));
        }
        shares.resize(3, 0.0);
        SplitShares([shares[0], shares[1], shares[2]]).normalized()
    }

    /// The shares when validation or test have files of their own: their share is 0, and the others grow in proportion.
    /// `949,50,1` with validation files is 949/950, 0, 1/950.
    ///
    /// # Errors
    /// [`Error::Argument`] if nothing is left.
    pub fn without(self, validation: bool, test: bool) -> Result<SplitShares> {
        let [train, valid, tested] = self.0;
        SplitShares([train, if validation { 0.0 } else { valid }, if test { 0.0 } else { tested }]).normalized()
    }

    fn normalized(self) -> Result<SplitShares> {
        let sum: f64 = self.0.iter().sum();
        if sum <= 0.0 || !sum.is_finite() {
            let fix = "give at least one part documents, such as 949,50,1";
            return Err(Error::argument("split", "all shares are 0", fix));
        }
        Ok(SplitShares(self.0.map(|share| share / sum)))
    }

    /// The shares, which add up to 1.
    pub fn shares(self) -> [f64; 3] {
        self.0
    }

    /// The numbers of the documents of each part, of `documents` in all: Megatron-LM's rule, consecutive ranges whose
    /// lengths are rounded half to even. A small part may get no documents.
    pub fn ranges(self, documents: u64) -> [Range<u64>; 3] {
        let mut bounds = [0_i64; 4];
        for (part, share) in self.0.into_iter().enumerate() {
            bounds[part + 1] = bounds[part] + (share * documents as f64).round_ties_even() as i64;
        }
        // Rounding leaves a few documents over, or takes some that are not there; all bounds move by the difference.
        let excess = bounds[3] - documents as i64;
        let bound = |at: usize| {
            if at == 0 { 0 } else { (bounds[at] - excess).clamp(0, documents as i64) as u64 }
        };
        [bound(0)..bound(1), bound(1)..bound(2), bound(2)..bound(3)]
    }
}

/// Documents of a corpus: consecutive ones, of the file's order or of a random one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentSet {
    range: Range<u64>,
    order: Option<Permutation>,
}

impl DocumentSet {
    /// Documents that follow each other in the file.
    pub fn range(range: Range<u64>) -> DocumentSet {
        DocumentSet { range, order: None }
    }

    /// The documents at the places `range` of a random order of all `documents`, which depends on the seed alone. The
    /// parts of one corpus with one seed share no document.
    pub fn permuted(range: Range<u64>, documents: u64, seed: u64) -> DocumentSet {
        let order = Permutation::new(Key::new(seed, "corpus split"), [0; 3], documents);
        DocumentSet { range: range.start.min(documents)..range.end.min(documents), order: Some(order) }
    }

    /// Number of documents.
    pub fn len(&self) -> u64 {
        self.range.end.saturating_sub(self.range.start)
    }

    /// Whether there are no documents.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number in the file of document `at` of the set, which it has.
    pub fn at(&self, at: u64) -> u64 {
        let place = self.range.start + at;
        self.order.and_then(|order| order.at(place)).unwrap_or(place)
    }

    /// The smallest range of the file with all documents of the set.
    pub(super) fn span(&self) -> Range<u64> {
        self.order.map_or(self.range.clone(), |order| 0..order.len())
    }

    /// Description that tells this set from others of the same file.
    pub(crate) fn describe(&self) -> String {
        let Range { start, end } = self.range;
        match self.order {
            None => format!("documents {start} to {end}"),
            Some(order) => format!("documents {start} to {end} of the order {order:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn shares(text: &str) -> [f64; 3] {
        SplitShares::parse(text).unwrap().shares()
    }

    #[test]
    fn shares_are_completed_and_normalized() {
        assert_eq!(shares("949,50,1"), [0.949, 0.05, 0.001]);
        assert_eq!(shares("969, 30, 1"), [0.969, 0.03, 0.001]);
        assert_eq!(shares("100/0/0"), [1.0, 0.0, 0.0]);
        assert_eq!(shares("0.75"), [0.75, 0.25, 0.0]);
        assert_eq!(shares("0.5,0.25"), [0.5, 0.25, 0.25]);
        assert_eq!(shares("7"), [1.0, 0.0, 0.0]);
        for wrong in ["", "a", "1,2,3,4", "-1,2", "0,0,0", "NaN", "1,inf", "1,,2"] {
            assert!(SplitShares::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn parts_with_files_of_their_own_leave_their_share_to_the_others() {
        let split = SplitShares::parse("949,50,1").unwrap();
        let [train, valid, test] = split.without(true, false).unwrap().shares();
        assert!((train - 949.0 / 950.0).abs() < 1e-15 && valid == 0.0 && (test - 1.0 / 950.0).abs() < 1e-15);
        assert_eq!(split.without(true, true).unwrap().shares(), [1.0, 0.0, 0.0]);
        assert!(SplitShares::parse("0,1,0").unwrap().without(true, false).is_err());
    }

    #[test]
    fn ranges_follow_each_other_and_cover_all_documents() {
        for text in ["949,50,1", "969, 30, 1", "1,1,1", "0,1,0", "1,0,1", "0.3,0.3"] {
            let split = SplitShares::parse(text).unwrap();
            for documents in (0..200).chain([1000, 12_345, 1 << 40]) {
                let [train, valid, test] = split.ranges(documents);
                assert_eq!((train.start, train.end, valid.end), (0, valid.start, test.start), "{text} {documents}");
                assert_eq!(test.end, documents, "{text} {documents}");
                assert!(train.start <= train.end && valid.start <= valid.end && test.start <= test.end);
            }
        }
        assert_eq!(SplitShares::parse("949,50,1").unwrap().ranges(1000), [0..949, 949..999, 999..1000]);
        // Halves are rounded to even numbers: 2.5 to 2 and 2.5 to 2; the document left over is the first part's.
        assert_eq!(SplitShares::parse("1,1").unwrap().ranges(5), [0..3, 3..5, 5..5]);
    }

    #[test]
    fn parts_of_a_random_order_share_no_document() {
        let ranges = SplitShares::parse("8,1,1").unwrap().ranges(1000);
        let mut seen = HashSet::new();
        let mut sets = Vec::new();
        for range in ranges {
            let set = DocumentSet::permuted(range, 1000, 7);
            sets.push((0..set.len()).map(|at| set.at(at)).collect::<Vec<_>>());
            assert!(sets[sets.len() - 1].iter().all(|document| seen.insert(*document)));
        }
        assert_eq!(seen.len(), 1000);
        assert!(sets[1] != (800..900).collect::<Vec<_>>());
        let other = DocumentSet::permuted(0..800, 1000, 8);
        assert!((0..800).any(|at| other.at(at) != sets[0][at as usize]));
    }
}
