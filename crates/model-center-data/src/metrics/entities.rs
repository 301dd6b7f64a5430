//! Named entities: spans of tokens with the same type, from tags such as `B-PER` and `I-PER`.
//!
//! Defines [`entities`] and [`EntityCounts`]. Source: the evaluation of CoNLL-2000 and 2003 as the package seqeval
//! computes it in its default mode: an entity is right if its type and both of its ends are.

use std::collections::BTreeMap;
use std::ops::Range;

/// An entity in a sequence of tags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entity {
    /// Its type, such as `PER`.
    pub kind: String,
    /// The tags it covers.
    pub tags: Range<usize>,
}

/// A tag's prefix and type. A tag without a prefix of one of the schemes has the prefix `I`, as in seqeval.
fn parts(tag: &str) -> (char, &str) {
    let mut letters = tag.chars();
    let prefix = letters.next().filter(|prefix| matches!(prefix, 'B' | 'I' | 'E' | 'S' | 'O'));
    match (prefix, letters.as_str().strip_prefix(['-', '_'])) {
        (Some('O'), None) if tag.len() == 1 => ('O', ""),
        (Some(prefix), Some(kind)) => (prefix, kind),
        _ => ('I', tag),
    }
}

/// The entities of a sequence of tags of the schemes IOB1, IOB2 and IOBES. An `I-X` after another type or after no
/// entity begins one.
pub fn entities<'t>(tags: impl IntoIterator<Item = &'t str>) -> Vec<Entity> {
    let (mut found, mut open): (Vec<Entity>, Option<(usize, &str)>) = (Vec::new(), None);
    let mut before = ('O', "");
    let mut count = 0;
    for (at, tag) in tags.into_iter().enumerate() {
        count = at + 1;
        let (prefix, kind) = parts(tag);
        let ends =
            matches!(before.0, 'E' | 'S') || matches!(prefix, 'B' | 'S' | 'O') || (before.0 != 'O' && kind != before.1);
        if ends && let Some((start, kind)) = open.take() {
            found.push(Entity { kind: kind.to_owned(), tags: start..at });
        }
        if open.is_none() && prefix != 'O' {
            open = Some((at, kind));
        }
        before = (prefix, kind);
    }
    if let Some((start, kind)) = open {
        found.push(Entity { kind: kind.to_owned(), tags: start..count });
    }
    found
}

/// Counts of right, predicted and labelled entities by type, and of right tags.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EntityCounts {
    kinds: BTreeMap<String, [u64; 3]>,
    right_tags: u64,
    tags: u64,
    sequences: u64,
}

impl EntityCounts {
    /// Adds a sequence: the tags that are right, and those that a model predicted, equally many.
    pub fn add(&mut self, labels: &[&str], predicted: &[&str]) {
        let (labelled, found) = (entities(labels.iter().copied()), entities(predicted.iter().copied()));
        let mut count = |entity: &Entity, at: usize| {
            self.kinds.entry(entity.kind.clone()).or_default()[at] += 1;
        };
        found.iter().filter(|entity| labelled.contains(entity)).for_each(|entity| count(entity, 0));
        found.iter().for_each(|entity| count(entity, 1));
        labelled.iter().for_each(|entity| count(entity, 2));
        self.right_tags += labels.iter().zip(predicted).filter(|(label, predicted)| label == predicted).count() as u64;
        self.tags += labels.len() as u64;
        self.sequences += 1;
    }

    /// Adds another rank's, of other sequences.
    pub fn merge(&mut self, other: &EntityCounts) {
        for (kind, counts) in &other.kinds {
            let own = self.kinds.entry(kind.clone()).or_default();
            own.iter_mut().zip(counts).for_each(|(own, more)| *own += more);
        }
        self.right_tags += other.right_tags;
        self.tags += other.tags;
        self.sequences += other.sequences;
    }

    /// Number of sequences.
    pub fn sequences(&self) -> u64 {
        self.sequences
    }

    /// Precision, recall and F1 of each type.
    pub fn by_kind(&self) -> impl Iterator<Item = (&str, [f64; 3])> {
        self.kinds.iter().map(|(kind, counts)| (kind.as_str(), figures(*counts)))
    }

    /// Precision, recall and F1 of all entities together; 0 where there is none.
    pub fn overall(&self) -> [f64; 3] {
        let sum = |at: usize| self.kinds.values().map(|counts| counts[at]).sum();
        figures([sum(0), sum(1), sum(2)])
    }

    /// Share of right tags; 0 without any.
    pub fn tag_accuracy(&self) -> f64 {
        if self.tags == 0 { 0.0 } else { self.right_tags as f64 / self.tags as f64 }
    }
}

fn figures([right, predicted, labelled]: [u64; 3]) -> [f64; 3] {
    let share = |all: u64| if all == 0 { 0.0 } else { right as f64 / all as f64 };
    let (precision, recall) = (share(predicted), share(labelled));
    let sum = precision + recall;
    [precision, recall, if sum == 0.0 { 0.0 } else { 2.0 * precision * recall / sum }]
}

#[cfg(test)]
mod tests {
    use super::{EntityCounts, entities};

    fn found(tags: &str) -> Vec<String> {
        let entities = entities(tags.split(' ')).into_iter();
        entities.map(|entity| format!("{} {}-{}", entity.kind, entity.tags.start, entity.tags.end)).collect()
    }

    #[test]
    fn entities_begin_and_end_by_the_rules_of_all_schemes() {
        assert_eq!(found("B-PER I-PER O B-LOC"), ["PER 0-2", "LOC 3-4"]);
        assert_eq!(found("B-PER B-PER I-LOC I-LOC"), ["PER 0-1", "PER 1-2", "LOC 2-4"]);
        assert_eq!(found("O I-PER I-PER E-PER S-LOC S-LOC O"), ["PER 1-4", "LOC 4-5", "LOC 5-6"]);
        assert_eq!(found("O O"), [] as [&str; 0]);
        assert_eq!(found("B-PER O I-PER"), ["PER 0-1", "PER 2-3"]);
    }

    #[test]
    fn an_entity_is_right_with_type_and_ends() {
        let mut counts = EntityCounts::default();
        counts.add(&["B-PER", "I-PER", "O"], &["B-PER", "I-PER", "O"]);
        let mut other = EntityCounts::default();
        other.add(&["B-LOC", "I-LOC", "O", "B-PER"], &["B-LOC", "O", "O", "B-LOC"]);
        counts.merge(&other);
        let [precision, recall, f1] = counts.overall();
        assert_eq!((precision, recall, f1), (1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0));
        assert_eq!((counts.tag_accuracy(), counts.sequences()), (5.0 / 7.0, 2));
        assert_eq!(counts.by_kind().map(|(kind, _)| kind.to_owned()).collect::<Vec<_>>(), ["LOC", "PER"]);
        assert_eq!(EntityCounts::default().overall(), [0.0; 3]);
    }
}
