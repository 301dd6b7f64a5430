//! The first failure of the job that this process knows of, and how it is told to others.

use super::letter::{HEAD, SHORT};

/// Bytes of operation and reason together; a letter that tells it is a short one.
const TEXT: usize = 8 * (SHORT - HEAD - 3) / 2;

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Failure {
    /// The group it happened in.
    pub(super) group: u64,
    /// In which call; empty if in none.
    pub(super) operation: String,
    /// Which one.
    pub(super) sequence: u64,
    /// The exit code of the rank that gave up, for all ranks; zero if it has none.
    pub(super) code: u8,
    /// What happened.
    pub(super) reason: String,
    /// Whom it happened to, in the numbering of the job.
    pub(super) ranks: Vec<usize>,
}

impl Failure {
    /// Group, sequence, exit code and number of ranks, length of the operation; the ranks; both texts.
    pub(super) fn words(&self) -> Vec<u64> {
        let cut = |text: &str, most: usize| text[..text.floor_char_boundary(most)].to_owned();
        let operation = cut(&self.operation, TEXT / 4);
        let reason = cut(&self.reason, TEXT - operation.len());
        let ranks: Vec<u64> = self.ranks.iter().take(SHORT / 4).map(|rank| *rank as u64).collect();
        let lengths = (operation.len() as u64) << 32 | reason.len() as u64;
        let mut text = [operation.as_bytes(), reason.as_bytes()].concat();
        text.resize(text.len().next_multiple_of(8), 0);
        let text =
            text.chunks_exact(8).map(|eight| eight.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)));
        let counts = u64::from(self.code) << 32 | ranks.len() as u64;
        [self.group, self.sequence, counts, lengths].into_iter().chain(ranks).chain(text).collect()
    }

    /// What another rank told; whatever it is, it is shown and nothing else.
    pub(super) fn read(words: &[u64]) -> Self {
        let [group, sequence, counts, lengths, rest @ ..] = words else { return Failure::default() };
        let (ranks, text) = rest.split_at((*counts as u32 as usize).min(rest.len()));
        let text: Vec<u8> = text.iter().flat_map(|word| word.to_le_bytes()).collect();
        let operation = ((lengths >> 32) as usize).min(text.len());
        let reason = (*lengths as u32 as usize).min(text.len() - operation);
        let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(char::is_control, " ");
        Failure {
            group: *group,
            operation: shown(&text[..operation]),
            sequence: *sequence,
            code: (*counts >> 32) as u8,
            reason: shown(&text[operation..][..reason]),
            ranks: ranks.iter().map(|rank| *rank as usize).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_read_as_it_was_told_and_fits_a_short_letter() {
        for length in [0, 1, 7, 8, 9, 3000] {
            let (reason, ranks) = ("é".repeat(length), vec![3, 60]);
            let failure = Failure { group: 1, operation: "barrier".into(), sequence: 4, code: 75, reason, ranks };
            let words = failure.words();
            assert!(words.len() + HEAD <= SHORT, "{}", words.len());
            let read = Failure::read(&words);
            assert!(failure.reason.starts_with(&read.reason) && (length > 500 || read == failure), "{length}");
        }
        let many = Failure { ranks: (0..5000).collect(), reason: "x".repeat(9000), ..Failure::default() };
        assert!(many.words().len() + HEAD <= SHORT);
    }

    #[test]
    fn nonsense_is_shown_and_nothing_else() {
        assert_eq!(Failure::read(&[1, 2]), Failure::default());
        let read = Failure::read(&[0, 0, u64::MAX, u64::MAX, 5, 6]);
        assert_eq!((read.ranks.len(), read.operation.len()), (2, 0));
        assert!(Failure::read(&[0, 0, 0, u64::MAX, u64::MAX]).operation.len() >= 8);
    }
}
