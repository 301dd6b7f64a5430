//! The first failure of a group or job, and its encoding as `u64`s for the other ranks.

/// The exit code of a rank that lost another one: a restart can succeed, so it does not end all ranks.
const LOST_RANK: u8 = 6;
/// Integers before the ranks and the text.
const HEAD: usize = 4;

#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Failure {
    /// The group it happened in.
    pub(crate) group: u64,
    /// The operation that failed; empty outside of any.
    pub(crate) operation: String,
    pub(crate) sequence: u64,
    /// The exit code of the rank that gave up, for all ranks; zero if it has none.
    pub(crate) code: u8,
    pub(crate) reason: String,
    /// The ranks concerned, numbered among all ranks.
    pub(crate) ranks: Vec<usize>,
}

impl Failure {
    /// Whether it has an exit code that holds for all ranks.
    pub(crate) fn has_exit_code(&self) -> bool {
        !matches!(self.code, 0 | LOST_RANK)
    }

    /// At most `most` integers: group, sequence, exit code and number of ranks, lengths of the texts; the ranks;
    /// operation and reason, cut if they are too long.
    pub(crate) fn words(&self, most: usize) -> Vec<u64> {
        let ranks: Vec<u64> = self.ranks.iter().take(most / 4).map(|rank| *rank as u64).collect();
        let room = 8 * (most - HEAD - ranks.len());
        let cut = |text: &str, most: usize| text[..text.floor_char_boundary(most)].to_owned();
        let operation = cut(&self.operation, room / 4);
        let reason = cut(&self.reason, room - operation.len());
        let lengths = (operation.len() as u64) << 32 | reason.len() as u64;
        let mut text = [operation.as_bytes(), reason.as_bytes()].concat();
        text.resize(text.len().next_multiple_of(8), 0);
        let text =
            text.chunks_exact(8).map(|eight| eight.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)));
        let counts = u64::from(self.code) << 32 | ranks.len() as u64;
        [self.group, self.sequence, counts, lengths].into_iter().chain(ranks).chain(text).collect()
    }

    /// A failure that another rank reported. Its contents are not trusted: they are shown and used for nothing else.
    pub(crate) fn read(words: &[u64]) -> Self {
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
    fn failure_round_trips_and_fits_its_words() {
        let most = 191;
        for length in [0, 1, 7, 8, 9, 3000] {
            let (reason, ranks) = ("é".repeat(length), vec![3, 60]);
            let failure = Failure { group: 1, operation: "barrier".into(), sequence: 4, code: 75, reason, ranks };
            let words = failure.words(most);
            assert!(words.len() <= most, "{}", words.len());
            let read = Failure::read(&words);
            assert!(failure.reason.starts_with(&read.reason) && (length > 500 || read == failure), "{length}");
        }
        let many = Failure { ranks: (0..5000).collect(), reason: "x".repeat(9000), ..Failure::default() };
        assert!(many.words(most).len() <= most);
    }

    #[test]
    fn malformed_failure_is_shown_and_nothing_else() {
        assert_eq!(Failure::read(&[1, 2]), Failure::default());
        let read = Failure::read(&[0, 0, u64::MAX, u64::MAX, 5, 6]);
        assert_eq!((read.ranks.len(), read.operation.len()), (2, 0));
        assert!(Failure::read(&[0, 0, 0, u64::MAX, u64::MAX]).operation.len() >= 8);
    }
}
