//! Records divided into training and evaluation: by the hash of their text, so that equal texts are on one side and the
//! same records are chosen each time.

use super::StarterOptions;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

/// The share that is evaluated.
const SHARE: usize = 10;
/// More records tell no more about a model.
const MAX_RECORDS: usize = 2000;

/// Key by which a record is divided: the hash of its text, and its group. `None` for a record of no side.
pub(super) type Row = Option<([u8; 32], String)>;

/// A record with this text, in a group.
pub(super) fn row(text: &str, group: String) -> Row {
    Some((*blake3::hash(text.as_bytes()).as_bytes(), group))
}

/// Records by their side.
pub(super) struct Sides {
    pub(super) train: Vec<usize>,
    pub(super) eval: Vec<usize>,
}

/// A tenth of each group, of groups of at least five records one or more; where all groups are smaller, a tenth of all.
/// Of fewer than five records none is evaluated.
pub(super) fn divide(rows: &[Row]) -> Sides {
    let of_groups = by_groups(rows, |group| group);
    if of_groups.eval.is_empty() { by_groups(rows, |_| "") } else { of_groups }
}

fn by_groups(rows: &[Row], name: impl Fn(&str) -> &str) -> Sides {
    let mut groups: BTreeMap<&str, BTreeMap<[u8; 32], Vec<usize>>> = BTreeMap::new();
    for (at, row) in rows.iter().enumerate() {
        if let Some((hash, group)) = row {
            groups.entry(name(group)).or_default().entry(*hash).or_default().push(at);
        }
    }
    let counted = rows.iter().flatten().count();
    let mut eval = Vec::new();
    for texts in groups.values() {
        let count: usize = texts.values().map(Vec::len).sum();
        let wanted = (count / SHARE).min(MAX_RECORDS * count / counted.max(1)).max(usize::from(count >= 5));
        let mut taken = 0;
        for same in texts.values() {
            // One text that is most of a group stays in training.
            if taken < wanted && taken + same.len() <= (2 * wanted).max(count / 5) {
                taken += same.len();
                eval.extend(same);
            }
        }
    }
    eval.sort_unstable();
    let train = (0..rows.len()).filter(|at| rows[*at].is_some() && eval.binary_search(at).is_err()).collect();
    Sides { train, eval }
}

/// The paths of the two files, beside the recipe.
pub(super) fn paths(options: &StarterOptions) -> [PathBuf; 2] {
    let stem = options.out.file_stem().map_or_else(|| "recipe".into(), |stem| stem.to_string_lossy().into_owned());
    let directory = options.out.with_file_name(format!("{stem}_data"));
    ["train.jsonl", "eval.jsonl"].map(|name| directory.join(name))
}

/// Some records as JSON lines.
pub(super) fn lines(rows: &[Map<String, Value>], which: &[usize]) -> String {
    let mut text = String::new();
    for row in which.iter().filter_map(|at| rows.get(*at)) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}", Value::Object(row.clone()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_classes_that_are_all_small_a_tenth_is_evaluated_and_of_few_records_none() {
        let rows = |count: usize| -> Vec<Row> {
            (0..count).map(|at| row(&format!("text {at}"), format!("class {}", at % (count / 4).max(1)))).collect()
        };
        for (count, expected) in [(40, 4), (12, 1), (5, 1), (4, 0), (0, 0)] {
            let Sides { train, eval } = divide(&rows(count));
            assert_eq!((train.len(), eval.len()), (count - expected, expected), "{count} records");
        }
        // One text cannot be on both sides.
        let same = vec![row("text", String::new()); 20];
        assert_eq!(divide(&same).eval.len(), 0);
    }

    #[test]
    fn every_class_is_on_both_sides_and_equal_texts_are_on_one() {
        let row = |text: usize, group: &str| row(&format!("text {text}"), group.to_owned());
        let mut rows: Vec<Row> = (0..100).map(|at| row(at, "large")).collect();
        rows.extend((0..5).map(|at| row(1000 + at, "small")));
        rows.extend((0..30).map(|at| row(2000 + at % 10, "repeated")));
        rows.push(None);
        rows.extend((0..2).map(|at| row(3000 + at, "tiny")));
        let Sides { train, eval } = divide(&rows);
        assert_eq!(train.len() + eval.len(), rows.len() - 1);
        let count = |side: &[usize], name: &str| {
            side.iter().filter(|at| rows[**at].as_ref().is_some_and(|(_, group)| group == name)).count()
        };
        assert_eq!((count(&eval, "large"), count(&eval, "small"), count(&eval, "tiny")), (10, 1, 0));
        assert_eq!(count(&eval, "repeated"), 3);
        let texts = |side: &[usize]| -> Vec<[u8; 32]> {
            side.iter().filter_map(|at| rows[*at].as_ref().map(|(text, _)| *text)).collect()
        };
        assert!(texts(&eval).iter().all(|text| !texts(&train).contains(text)));
        // Chosen by hash: the same each time.
        assert_eq!(divide(&rows).eval, eval);
    }
}
