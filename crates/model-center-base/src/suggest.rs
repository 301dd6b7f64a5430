//! "Did you mean": the known name closest to a mistyped one.
//!
//! Used by the reader for unknown keys and values.

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

/// Other names of choices, which no number of edits leads to.
const SYNONYMS: [(&str, &str); 9] = [
    ("gpu", "cuda"),
    ("nvidia", "cuda"),
    ("bfloat16", "bf16"),
    ("float16", "f16"),
    ("fp16", "f16"),
    ("half", "f16"),
    ("float32", "f32"),
    ("fp32", "f32"),
    ("float", "f32"),
];

/// The choice that a wrong value most likely stands for.
pub fn choice<'a>(value: &str, choices: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    let meant = SYNONYMS.iter().find(|(other, _)| value.eq_ignore_ascii_case(other));
    let known = meant.and_then(|(_, choice)| choices.clone().find(|known| known == choice));
    known.or_else(|| closest(value, choices))
}

/// The known path that an unknown `path` most likely stands for.
///
/// In this order: a typo in the same table, the same name in another table, a typo in the whole path.
pub fn path<'a>(path: &str, known: &[&'a str]) -> Option<&'a str> {
    let (table, name) = path.rsplit_once('.').unwrap_or(("", path));
    let lower = name.to_lowercase().replace('-', "_");
    let siblings = known.iter().filter_map(|k| {
        let (t, w) = k.rsplit_once('.').unwrap_or(("", k));
        (t == table).then_some((w, *k))
    });
    let near = closest(&lower, siblings.clone().map(|(w, _)| w));
    if let Some(found) = near.and_then(|w| siblings.clone().find(|(s, _)| *s == w)) {
        return Some(found.1);
    }
    let same_name = known.iter().copied().find(|k| k.rsplit('.').next() == Some(lower.as_str()));
    same_name.or_else(|| closest(path, known.iter().copied()))
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
    fn suggestions_prefer_the_same_table() {
        let known = ["train.lr", "train.steps", "train.seed", "eval.every", "log.every"];
        assert_eq!(path("train.sede", &known), Some("train.seed"));
        assert_eq!(path("train.every", &known), Some("eval.every"));
        assert_eq!(path("trian.lr", &known), Some("train.lr"));
        assert_eq!(path("train.flux_capacitor", &known), None);
    }

    #[test]
    fn other_names_of_choices_are_known_where_there_is_such_a_choice() {
        assert_eq!(choice("GPU", ["auto", "cpu", "cuda"].into_iter()), Some("cuda"));
        assert_eq!(choice("gpu", ["auto", "cpu"].into_iter()), Some("cpu"));
        assert_eq!(choice("bfloat16", ["f32", "f16", "bf16"].into_iter()), Some("bf16"));
        assert_eq!(choice("float32", ["f32", "f16", "bf16"].into_iter()), Some("f32"));
        assert_eq!(choice("atuo", ["auto", "cpu"].into_iter()), Some("auto"));
    }

    #[test]
    fn long_hostile_words_are_refused_without_work() {
        let name = "x".repeat(1 << 20);
        assert_eq!(closest(&name, ["lr"]), None);
    }
}
