//! Settings of `tokenizer_config.json` that win over `tokenizer.json`.
//!
//! Defines [`apply`], called where a `tokenizer.json` is read. Transformers' classes for a family build the normalizer
//! and the pre-tokenizer anew from the vocabulary and these settings; the class for any `tokenizer.json` does not.

use serde_json::{Map, Value};

use super::files::Settings;
use crate::{Error, Result};

/// The classes of transformers 5.23 that take `add_prefix_space` for byte-level pairs.
const BYTE_LEVEL: [&str; 15] = [
    "bart",
    "blenderbot",
    "cohere",
    "deberta",
    "gpt2",
    "gptneox",
    "layoutlmv3",
    "led",
    "luke",
    "markuplm",
    "mvp",
    "qwen2",
    "qwen35",
    "roberta",
    "whisper",
];
/// Those that take it for pieces with a marker of spaces.
const PIECES: [&str; 12] = [
    "albert",
    "barthez",
    "bigbird",
    "camembert",
    "codellama",
    "debertav2",
    "layoutxlm",
    "llama",
    "rembert",
    "xglm",
    "xlmroberta",
    "xlnet",
];

/// Model types with a class of another name in transformers 5.23, by that class.
const OF_FAMILIES: [(&[&str], &str); 8] = [
    (&["yoso"], "albert"),
    (&["cohere2", "ayavision"], "cohere"),
    (
        &["blip2", "codegen", "dbrx", "emu3", "gptj", "gptneo", "instructblip", "jais2", "opt", "phi", "starcoder2"],
        "gpt2",
    ),
    (&["falconmamba", "mamba", "mamba2", "mpt", "olmo", "olmoe", "rwkv", "xlstm"], "gptneox"),
    (&["idefics", "idefics2"], "llama"),
    (
        &[
            "internvl",
            "ovis2",
            "qwen25omni",
            "qwen25vl",
            "qwen2audio",
            "qwen2moe",
            "qwen2vl",
            "qwen3",
            "qwen3moe",
            "qwen3next",
            "qwen3omnimoe",
            "qwen3vl",
            "qwen3vlmoe",
        ],
        "qwen2",
    ),
    (&["qwen35moe", "qwen35moetext", "qwen35text"], "qwen35"),
    (&["data2vectext", "ibert", "lilt", "longformer", "mega", "mra", "robertaprelayernorm"], "roberta"),
];

/// Applies what the class of the tokenizer applies.
///
/// # Errors
/// [`Error::Model`] for `add_prefix_space` that contradicts how a `tokenizer.json` of pieces treats the first word, and
/// for `do_lower_case` and `keep_accents` that contradict its normalizer.
pub(super) fn apply(place: &str, document: &mut Value, settings: &Settings) -> Result<()> {
    apply_to_bert(document, &settings.config);
    check_case(place, document, settings)?;
    let Some(wanted) = settings.flag("add_prefix_space") else { return Ok(()) };
    let class = class_of(settings);
    if BYTE_LEVEL.contains(&class.as_str()) {
        steps_of(document.get_mut("pre_tokenizer"), "pretokenizers").into_iter().for_each(|step| {
            if is_type(step, "ByteLevel") {
                step.insert("add_prefix_space".into(), wanted.into());
            }
        });
    }
    if !PIECES.contains(&class.as_str()) {
        return Ok(());
    }
    let normalizers = steps_of(document.get_mut("normalizer"), "normalizers");
    let mut prepends = normalizers.into_iter().any(|step| is_type(step, "Prepend"));
    let mut has_marker = prepends;
    for step in steps_of(document.get_mut("pre_tokenizer"), "pretokenizers") {
        if is_type(step, "Metaspace") {
            has_marker = true;
            let scheme = step.get("prepend_scheme").and_then(Value::as_str);
            let old = step.get("add_prefix_space").and_then(Value::as_bool).unwrap_or(true);
            prepends |= scheme.map_or(old, |scheme| scheme != "never");
        }
    }
    if has_marker && prepends != wanted {
        let does = if prepends { "puts a space" } else { "puts no space" };
        let reason = format!(
            "tokenizer_config.json has add_prefix_space = {wanted}, and tokenizer.json {does} before the first word"
        );
        let fix = "remove add_prefix_space, or save the tokenizer again with it, so that both agree";
        return Err(Error::model(place, reason, fix));
    }
    Ok(())
}

/// Refuses settings with which a class would build another normalizer than `tokenizer.json` has.
fn check_case(place: &str, document: &mut Value, settings: &Settings) -> Result<()> {
    let class = class_of(settings);
    let lowers = ["albert", "debertav2", "rembert", "xlnet"].contains(&class.as_str());
    let strips = ["albert", "rembert"].contains(&class.as_str());
    let steps = steps_of(document.get_mut("normalizer"), "normalizers");
    let has = |name: &str| steps.iter().any(|step| is_type(step, name));
    for (applies, setting, step, is_negated) in
        [(lowers, "do_lower_case", "Lowercase", false), (strips, "keep_accents", "StripAccents", true)]
    {
        let Some(wanted) = settings.flag(setting).filter(|_| applies) else { continue };
        if (wanted != is_negated) != has(step) {
            let does = if has(step) { "has" } else { "has no" };
            let reason = format!(
                "tokenizer_config.json has {setting} = {wanted}, and the normalizer of tokenizer.json {does} {step}"
            );
            let fix = format!("remove {setting}, or save the tokenizer again with it, so that both agree");
            return Err(Error::model(place, reason, fix));
        }
    }
    Ok(())
}

/// The family of the class, such as `gpt2` of `GPT2TokenizerFast`; without a class the model's family. Empty for the
/// class that takes any `tokenizer.json`.
fn class_of(settings: &Settings) -> String {
    let class = settings.config.get("tokenizer_class").and_then(Value::as_str);
    let name = class.map_or(settings.family.as_str(), |class| {
        class.trim_end_matches("Fast").strip_suffix("Tokenizer").unwrap_or_default()
    });
    let name = name.to_ascii_lowercase().replace(['-', '_'], "");
    match OF_FAMILIES.iter().find(|(families, _)| class.is_none() && families.contains(&name.as_str())) {
        Some((_, class)) => (*class).to_owned(),
        None => name,
    }
}

fn is_type(step: &Map<String, Value>, name: &str) -> bool {
    step.get("type").and_then(Value::as_str) == Some(name)
}

/// A part of the document, or the parts of a sequence of them.
fn steps_of<'a>(part: Option<&'a mut Value>, list: &str) -> Vec<&'a mut Map<String, Value>> {
    let Some(part) = part.and_then(Value::as_object_mut) else { return Vec::new() };
    match part.contains_key(list) {
        true => match part.get_mut(list).and_then(Value::as_array_mut) {
            Some(steps) => steps.iter_mut().filter_map(Value::as_object_mut).collect(),
            None => Vec::new(),
        },
        false => vec![part],
    }
}

/// Explicit settings override a stored BERT normalizer's.
fn apply_to_bert(document: &mut Value, config: &Map<String, Value>) {
    let Some(normalizer) = document.get_mut("normalizer").and_then(Value::as_object_mut) else { return };
    if !is_type(normalizer, "BertNormalizer") {
        return;
    }
    for (from, to) in [
        ("do_lower_case", "lowercase"),
        ("strip_accents", "strip_accents"),
        ("tokenize_chinese_chars", "handle_chinese_chars"),
    ] {
        if let Some(value @ Value::Bool(_)) = config.get(from) {
            normalizer.insert(to.into(), value.clone());
        }
    }
}
