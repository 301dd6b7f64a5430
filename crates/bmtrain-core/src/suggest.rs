//! The known name that a mistyped one is closest to, for errors that suggest it.

/// The number of single-letter insertions, deletions, replacements and neighbour swaps between two names, ignoring
/// case; `None` as soon as it exceeds `limit`.
pub fn edit_distance(a: &str, b: &str, limit: usize) -> Option<usize> {
    let a: Vec<char> = a.chars().flat_map(char::to_lowercase).collect();
    let b: Vec<char> = b.chars().flat_map(char::to_lowercase).collect();
    if a.len().abs_diff(b.len()) > limit {
        return None;
    }
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replace = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replace.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before_last[j - 2] + 1);
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last.last().copied().filter(|&d| d <= limit)
}

/// The `known` name closest to `name`, if it is close enough to be a typo: a third of its letters, at least one.
pub fn closest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (name.chars().count() / 3).max(1);
    known.into_iter().filter_map(|k| Some((edit_distance(name, k, limit)?, k))).min_by_key(|&(d, _)| d).map(|(_, k)| k)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits_and_swaps() {
        assert_eq!(edit_distance("epochs", "epochs", 3), Some(0));
        assert_eq!(edit_distance("epoch", "epochs", 3), Some(1));
        assert_eq!(edit_distance("ephocs", "epochs", 3), Some(2));
        assert_eq!(edit_distance("sede", "seed", 3), Some(1));
        assert_eq!(edit_distance("BoolQ", "boolq", 3), Some(0));
        assert_eq!(edit_distance("", "abc", 3), Some(3));
        assert_eq!(edit_distance("abc", "xyz", 2), None);
    }

    #[test]
    fn long_hostile_words_are_refused_without_work() {
        let name = "x".repeat(1 << 20);
        assert_eq!(closest(&name, ["lr"]), None);
    }
}
