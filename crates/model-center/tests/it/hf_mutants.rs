//! Damaged and hostile files: thousands of mutants of each kind, none may panic, hang or eat memory.

use crate::mutants;

use std::fs;
use std::time::Instant;

use model_center::config::rows::RowConfig;
use model_center::config::{BertConfig, Config};
use model_center::formats::{SafetensorsFile, TensorSource, Weights};
use mutants::{Random, replace};

/// Mutants of each kind of file.
const MUTANTS: u64 = 10_000;
/// Peak memory above the start's, for all mutants together.
const MEMORY_KIB: u64 = 64 * 1024;

fn peak_memory_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

const HEADER: &str = concat!(
    r#"{"__metadata__":{"format":"pt"},"#,
    r#""embedding.weight":{"dtype":"F32","shape":[5,3],"data_offsets":[0,60]},"#,
    r#""layer.0.weight":{"dtype":"BF16","shape":[2,3],"data_offsets":[60,72]},"#,
    r#""layer.0.bias":{"dtype":"F16","shape":[2],"data_offsets":[72,76]},"#,
    r#""scale":{"dtype":"F64","shape":[],"data_offsets":[76,84]},"#,
    r#""none":{"dtype":"F32","shape":[0,7],"data_offsets":[84,84]},"#,
    r#""position_ids":{"dtype":"I64","shape":[1,2],"data_offsets":[84,100]}}"#
);

fn file_of(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend((0..data).map(|i| i as u8));
    bytes
}

/// Text with a few tokens replaced, removed, doubled or swapped, or numbers changed: mostly still JSON.
fn mutate_text(text: &str, random: &mut Random) -> String {
    let mut text = text.to_string();
    for _ in 0..1 + random.below(3) {
        let tokens: Vec<(usize, &str)> = text.match_indices(|c: char| "{}[]:,\"".contains(c)).collect();
        let (at, token) = tokens.get(random.below(tokens.len())).copied().unwrap_or((0, ""));
        let end = at + token.len();
        let numbers = [
            "0",
            "1",
            "-1",
            "3",
            "59",
            "61",
            "84",
            "1e3",
            "18446744073709551615",
            "9223372036854775808",
            "4294967296",
            "1.5",
        ];
        let words = [
            "null",
            "true",
            "\"\"",
            "[]",
            "{}",
            "\"F32\"",
            "\"I64\"",
            "\"F4\"",
            "\"bert\"",
            "\"\\u0000\"",
            "\"../x\"",
            "[[[[",
        ];
        text = match random.below(7) {
            0 => format!("{}{}", &text[..at], &text[end..]),
            1 => format!("{}{token}{token}{}", &text[..at], &text[end..]),
            2 | 3 => replace_run(&text, at, random.pick(&numbers), |c| c.is_ascii_digit() || c == '.'),
            4 => replace_run(&text, at, random.pick(&words), |c| c.is_ascii_alphanumeric() || c == '"'),
            5 => {
                let (from, length) = (random.below(tokens.len()), random.below(60));
                let start = tokens.get(from).map_or(0, |t| t.0);
                let piece: String = text[start..].chars().take(length).collect();
                format!("{}{piece}{}", &text[..at], &text[at..])
            }
            _ => format!("{}{}", &text[..end], random.pick(&["", "}", "]}", "\u{1b}[31m"])),
        };
    }
    text
}

/// Replace the run of characters of one kind that follows `at`.
fn replace_run(text: &str, at: usize, with: &str, kind: impl Fn(char) -> bool + Copy) -> String {
    let Some(start) = text[at..].find(kind).map(|i| at + i) else { return text.to_string() };
    let end = text[start..].find(|c| !kind(c)).map_or(text.len(), |i| start + i);
    format!("{}{with}{}", &text[..start], &text[end..])
}

fn mutate_file(random: &mut Random) -> Vec<u8> {
    let mut bytes = match random.below(4) {
        0 => file_of(HEADER, 100),
        _ => file_of(&mutate_text(HEADER, random), [100, 99, 101, 0, 1000][random.below(5) * random.below(2)]),
    };
    match random.below(4) {
        0 => {
            for _ in 0..1 + random.below(4) {
                let at = random.below(bytes.len().min(8 + HEADER.len()));
                bytes[at] ^= 1 << random.below(8);
            }
        }
        1 => bytes.truncate(random.below(bytes.len() + 1)),
        2 => {
            let lie = [0, 1, 2, u64::MAX, 1 << 63, 100_000_001, 99_999_999, bytes.len() as u64, random.next() % 600];
            let lie = lie[random.below(lie.len())];
            if bytes.len() >= 8 {
                bytes[..8].copy_from_slice(&lie.to_le_bytes());
            }
        }
        _ => {}
    }
    bytes
}

#[test]
fn ten_thousand_safetensors_mutants_are_refused_or_read_without_panic_or_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    let (before, started) = (peak_memory_kib(), Instant::now());
    let (mut accepted, mut refused) = (0, 0);
    for seed in 0..MUTANTS {
        let bytes = mutate_file(&mut Random(seed));
        replace(&path, &bytes);
        let Ok(file) = SafetensorsFile::open(&path) else {
            refused += 1;
            continue;
        };
        accepted += 1;
        // We are never more lenient than the format's reference implementation.
        let reference = safetensors::SafeTensors::deserialize(&bytes);
        let reference = reference.unwrap_or_else(|e| {
            panic!(
                "mutant {seed}: accepted here, but not by the \
            reference: {e}"
            )
        });
        assert_eq!(reference.len(), file.tensors().len(), "mutant {seed}");
        for entry in file.tensors() {
            let raw = file.read_raw(&entry.name).unwrap();
            assert_eq!(raw, reference.tensor(&entry.name).unwrap().data(), "mutant {seed}");
            let mut values = vec![0.0; entry.elements().unwrap()];
            assert_eq!(file.read_f32(&entry.name, &mut values).is_ok(), entry.is_float(), "mutant {seed}");
        }
    }
    // Mutants that are all refused early, or all accepted, would test nothing.
    assert!(accepted > MUTANTS / 50 && refused > MUTANTS / 2, "{accepted} accepted, {refused} refused");
    assert!(peak_memory_kib() - before < MEMORY_KIB, "{} KiB", peak_memory_kib() - before);
    // A generous bound for a loaded machine: it takes about a second.
    assert!(started.elapsed().as_secs() < 120);
}

#[test]
fn ten_thousand_index_mutants_are_refused_or_read_without_panic() {
    let dir = tempfile::tempdir().unwrap();
    let header = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    fs::write(dir.path().join("model-00001-of-00002.safetensors"), file_of(header, 1)).unwrap();
    fs::write(dir.path().join("model-00002-of-00002.safetensors"), file_of(&header.replace("\"a\"", "\"b\""), 1))
        .unwrap();
    let index = concat!(
        r#"{"metadata":{"total_size":2},"weight_map":{"a":"model-00001-of-00002.safetensors","#,
        r#""b":"model-00002-of-00002.safetensors"}}"#
    );
    let path = dir.path().join("model.safetensors.index.json");
    let mut accepted = 0;
    for seed in 0..MUTANTS {
        replace(&path, mutate_text(index, &mut Random(seed)).as_bytes());
        if let Ok(weights) = Weights::open(dir.path()) {
            let names: Vec<_> = weights.entries().into_iter().map(|entry| entry.name.clone()).collect();
            assert_eq!(names, ["a", "b"], "mutant {seed}");
            accepted += 1;
        }
    }
    assert!(accepted > 10 && accepted < MUTANTS / 2, "{accepted}");
}

#[test]
fn ten_thousand_config_mutants_are_refused_or_valid() {
    let config = concat!(
        r#"{"architectures":["BertForSequenceClassification"],"attention_probs_dropout_prob":0.1,"hidden_act":"gelu","#,
        r#""hidden_dropout_prob":0.1,"hidden_size":384,"id2label":{"0":"no","1":"yes"},"initializer_range":0.02,"#,
        r#""intermediate_size":1536,"label2id":{"no":0,"yes":1},"layer_norm_eps":1e-12,"max_position_embeddings":512,"#,
        r#""model_type":"bert","num_attention_heads":12,"num_hidden_layers":6,"pad_token_id":0,"#,
        r#""position_embedding_type":"absolute","type_vocab_size":2,"vocab_size":30522}"#
    );
    let mut accepted = 0;
    for seed in 0..MUTANTS {
        if let Ok(config) = BertConfig::from_json(&mutate_text(config, &mut Random(seed)), "config.json") {
            accepted += 1;
            assert!(
                config.validate("x").is_ok() && config.text.num_heads * config.text.dim_head == config.text.dim_model,
                "mutant {seed}"
            );
            let again = BertConfig::from_json(&config.to_json_string(), "x");
            assert_eq!(again.unwrap_or_else(|e| panic!("mutant {seed}: {e}")), config, "mutant {seed}");
        }
    }
    assert!(accepted > 100 && accepted < MUTANTS / 2, "{accepted}");
}
