//! Bounds on the steps of a `tokenizer.json`: a small file must not make much of little.
//!
//! Defines [`check`], called by [`super::hf`] before the `tokenizers` crate sees the document, because that runs some
//! of the steps as it loads.

use serde_json::Value;

use crate::{Error, Result};

/// The most bytes that the changes before or after tokens may make of one; real files stay below a few hundred.
const MAX_GROWTH: u64 = 4096;
/// Steps that spell every byte as a character; what they spelled they would spell again.
const BYTE_STEPS: usize = 2;
/// The most tokens that are put around a text; real templates have a handful.
const MAX_CONTEXT: usize = 10_000;
/// Largest size of a character's compatible forms, for each of its bytes.
const FORMS: u64 = 16;
const FIX: &str = "this is not a model's tokenizer; download its files again";

/// Refuses documents whose steps multiply a text, or put much around it.
pub fn check(place: &str, document: &Value) -> Result<()> {
    let part = |key: &str| document.get(key).unwrap_or(&Value::Null);
    for (key, what) in [("normalizer", "normalizer"), ("pre_tokenizer", "pre-tokenizer"), ("decoder", "decoder")] {
        let growth = steps(part(key)).iter().fold(1, |growth: u64, step| growth.saturating_mul(growth_of(step)));
        if growth > MAX_GROWTH {
            let reason =
                format!("the steps of its {what} can make a text more than {MAX_GROWTH} times as long as it is");
            return Err(Error::model(place, reason, FIX));
        }
    }
    let before = [part("normalizer"), part("pre_tokenizer")].into_iter().flat_map(steps);
    let bytes = before.filter(|step| step["type"] == "ByteLevel").count();
    if bytes > BYTE_STEPS {
        let reason = format!("{bytes} steps of kind ByteLevel follow each other, the most are {BYTE_STEPS}");
        return Err(Error::model(place, reason, FIX));
    }
    check_template(place, part("post_processor"))
}

/// The steps of a part, nested sequences flattened.
fn steps(part: &Value) -> Vec<&Value> {
    let mut found = Vec::new();
    let mut open = vec![part];
    while let Some(part) = open.pop() {
        let keys = ["normalizers", "pretokenizers", "decoders", "processors"];
        let inner = keys.iter().filter_map(|key| part.get(*key).and_then(Value::as_array)).flatten();
        let from = open.len();
        open.extend(inner);
        if open.len() == from {
            found.push(part);
        }
    }
    found
}

/// The most bytes that a step makes of one, about.
fn growth_of(step: &Value) -> u64 {
    let length = |key: &str| step.get(key).and_then(Value::as_str).map_or(0, str::len) as u64;
    match step["type"].as_str().unwrap_or_default() {
        "Replace" => match (step["pattern"]["String"].as_str(), step["pattern"]["Regex"].as_str()) {
            (Some(text), _) if !text.is_empty() => length("content").div_ceil(text.len() as u64).max(1),
            (None, Some(pattern)) if !may_match_nothing(pattern) => length("content").max(1),
            // Put between all characters.
            _ => 1 + length("content"),
        },
        "Prepend" => 1 + length("prepend"),
        "ByteLevel" | "BertNormalizer" => 2,
        "NFKC" | "NFKD" | "Precompiled" => FORMS,
        _ => 1,
    }
}

/// Whether an expression may match between two characters. Plain characters, sets of them, and one or more of both do
/// not.
fn may_match_nothing(pattern: &str) -> bool {
    let mut characters = pattern.chars();
    while let Some(c) = characters.next() {
        let is_plain = match c {
            '\\' => characters.next().is_some_and(|c| "sSdDwWnrtpP.+-\\/|()[]{}*?^$".contains(c)),
            // A count from one on.
            '{' => characters.clone().next().is_some_and(|c| ('1'..='9').contains(&c)),
            '*' | '?' | '|' | '(' | '^' | '$' => false,
            _ => true,
        };
        if !is_plain {
            return true;
        }
    }
    pattern.is_empty()
}

/// Refuses templates of more tokens than are ever put around texts, or with a text more than once.
fn check_template(place: &str, processor: &Value) -> Result<()> {
    let mut count = 0;
    for step in steps(processor) {
        for key in ["single", "pair"] {
            let mut texts = [0; 2];
            for piece in step.get(key).and_then(Value::as_array).into_iter().flatten() {
                let name = piece["SpecialToken"]["id"].as_str().unwrap_or_default();
                let ids = step["special_tokens"][name]["ids"].as_array();
                count += ids.map_or(1, Vec::len).max(1);
                match piece["Sequence"]["id"].as_str() {
                    Some("A") => texts[0] += 1,
                    Some("B") => texts[1] += 1,
                    _ => {}
                }
            }
            if texts.iter().any(|times| *times > 1) {
                let reason = format!("\"{key}\" of its post-processor has a text more than once");
                let fix = "use a tokenizer.json whose template has one A and, for pairs, one B";
                return Err(Error::model(place, reason, fix));
            }
        }
    }
    if count > MAX_CONTEXT {
        let reason = format!("its post-processor puts {count} tokens around texts, more than {MAX_CONTEXT}");
        return Err(Error::model(place, reason, FIX));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_expressions_without_choices_match_something_for_sure() {
        for (pattern, nothing) in
            [(" {2,}", false), ("[a-z]+", false), (r"\s+", false), ("a*", true), ("a?", true), ("a|", true), ("", true)]
        {
            assert_eq!(may_match_nothing(pattern), nothing, "{pattern}");
        }
        for pattern in ["^", "$", r"\b", "(a{0})", "a{0,2}", "(?=a)"] {
            assert!(may_match_nothing(pattern), "{pattern}");
        }
    }
}
