//! Tensors of a file that the user asks to leave out, by patterns in which `*` stands for any text.
//!
//! Defines [`check`] and [`suggestions`], called by [`LoadPlan`](super::LoadPlan), and [`shortened`], called by
//! programs that list tensors.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::pattern::glob;
use crate::formats::safetensors::TensorEntry;
use crate::{Error, Result};
use model_center_base::file::printable;

/// Names in one line; the rest is counted.
const SHOWN: usize = 8;

/// Patterns that are suggested at most.
const SUGGESTED: usize = 8;

/// A list of names for one line: the first eight and the number of the others.
pub fn shortened(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| printable(name, 120)).collect();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Whether every pattern has an effect and spares what the model needs.
pub fn check(
    patterns: &[String],
    place: &str,
    entries: &[&TensorEntry],
    is_needed: impl Fn(&str) -> bool,
) -> Result<()> {
    for pattern in patterns {
        let mut matched = entries.iter().map(|entry| entry.name.as_str()).filter(|name| glob(pattern, name)).peekable();
        let what = format!("the pattern \"{}\" of tensors to leave out", printable(pattern, 120));
        if matched.peek().is_none() {
            let names: Vec<String> = entries.iter().map(|entry| entry.name.clone()).collect();
            let fix = format!("correct or remove it (--leave, model.leave); the tensors are {}", shortened(&names));
            return Err(Error::model(place, format!("{what} matches none"), fix));
        }
        if let Some(name) = matched.find(|name| is_needed(name)) {
            let reason = format!("{what} matches {}, which the model needs", printable(name, 200));
            let fix = "narrow the pattern (--leave, model.leave), or choose another head";
            return Err(Error::model(place, reason, fix));
        }
    }
    Ok(())
}

/// Patterns that match all `unexpected` tensors and none of the `used` ones; empty if that takes more than a few.
pub(super) fn suggestions<'n>(unexpected: &[String], used: impl Iterator<Item = &'n str>) -> Vec<String> {
    let used: BTreeSet<&str> = used.collect();
    let is_free = |prefix: &str| {
        let mut from = used.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        from.next().is_none_or(|name| !name.starts_with(prefix))
    };
    let mut patterns: Vec<String> = Vec::new();
    for name in unexpected.iter().filter(|name| !name.contains('*')) {
        if patterns.iter().any(|pattern| glob(pattern, name)) {
            continue;
        }
        if patterns.len() == SUGGESTED {
            return Vec::new();
        }
        let prefix = name.match_indices('.').map(|(at, _)| &name[..=at]).find(|prefix| is_free(prefix));
        patterns.push(prefix.map_or_else(|| name.clone(), |prefix| format!("{prefix}*")));
    }
    patterns
}

/// The patterns as they are given to a program and in a recipe; `None` without any.
pub(super) fn as_options(patterns: &[String]) -> Option<String> {
    if patterns.is_empty() {
        return None;
    }
    let join = |quote: char, each: &str, between: &str| {
        let quoted = patterns.iter().map(|pattern| format!("{each}{quote}{}{quote}", printable(pattern, 120)));
        quoted.collect::<Vec<_>>().join(between)
    };
    Some(format!("{} (in a recipe: model.leave = [{}])", join('\'', "--leave ", " "), join('"', "", ", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(unexpected: &[&str], used: &[&str]) -> Vec<String> {
        let names: Vec<String> = unexpected.iter().map(|name| (*name).to_owned()).collect();
        suggestions(&names, used.iter().copied())
    }

    #[test]
    fn patterns_name_what_is_unexpected_and_spare_what_is_used() {
        let used = ["bert.encoder.layer.0.w", "bert.pooler.w", "cls.predictions.bias"];
        assert_eq!(patterns(&["ner.bias", "ner.weight", "topic.w"], &used), ["ner.*", "topic.*"]);
        assert_eq!(
            patterns(&["bert.adapter.a", "bert.adapter.b", "cls.extra"], &used),
            ["bert.adapter.*", "cls.extra"]
        );
        assert_eq!(patterns(&["bert.pooler.w.scale", "scale"], &used), ["bert.pooler.w.*", "scale"]);
        let many: Vec<String> = (0..40).map(|i| format!("head{i}.w")).collect();
        assert!(suggestions(&many, used.into_iter()).is_empty());
        assert_eq!(as_options(&[]), None);
    }

    #[test]
    fn a_long_list_is_cut_and_counted() {
        let names: Vec<String> = (0..10).map(|i| format!("t{i}")).collect();
        assert_eq!(shortened(&names), "t0, t1, t2, t3, t4, t5, t6, t7 and 2 more");
        assert_eq!(shortened(&names[..2]), "t0, t1");
    }
}
