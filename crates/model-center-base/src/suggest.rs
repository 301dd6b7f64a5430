//! "Did you mean": the known name closest to a mistyped one, the choice that another name stands for.
//!
//! Used by the reader for unknown keys and values, and by programs for options.

pub use bmtrain_core::suggest::{closest, edit_distance};

/// Other names of choices, which no number of edits leads to. A name may stand for different choices of different
/// settings.
const SYNONYMS: [(&str, &str); 17] = [
    ("gpu", "cuda"),
    ("nvidia", "cuda"),
    ("bfloat16", "bf16"),
    ("float16", "f16"),
    ("fp16", "f16"),
    ("half", "f16"),
    ("float32", "f32"),
    ("fp32", "f32"),
    ("float", "f32"),
    ("u8", "uint8"),
    ("u16", "uint16"),
    ("i32", "int32"),
    ("i64", "int64"),
    ("none", "never"),
    ("no", "never"),
    ("off", "never"),
    ("0", "never"),
];

/// The choice that a wrong value most likely stands for.
pub fn choice<'a>(value: &str, choices: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    let mut meant = SYNONYMS.iter().filter(|(other, _)| value.eq_ignore_ascii_case(other));
    let known = meant.find_map(|(_, choice)| choices.clone().find(|known| known == choice));
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
        assert_eq!(choice("u16", ["uint8", "uint16"].into_iter()), Some("uint16"));
        assert_eq!(choice("off", ["never"].into_iter()), Some("never"));
        assert_eq!(choice("off", ["f32", "bf16"].into_iter()), None);
        assert_eq!(choice("atuo", ["auto", "cpu"].into_iter()), Some("auto"));
    }
}
