//! Sequences that share the passes of a decoder have the logits of each alone, also when others join and leave.

use crate::cached_decoding::{TOLERANCE, directories, furthest, open, row, whole};
use bmtrain_core::{Ctx, Device};
use bmtrain_dist::shard::Sharding;
use model_center::adapter::{Adapter, AdapterConfig, PrefixConfig, PromptConfig};
use model_center::model::{LogitsRead, OpenOptions, Registry, SequenceTokens, TextModel};
use std::path::Path;

/// A sequence with the logits of all of its positions, `[L, V]`.
struct Known {
    ids: Vec<u32>,
    logits: Vec<f32>,
}

fn known(model: &dyn TextModel, lengths: &[usize], device: &Device) -> Vec<Known> {
    let of = |(index, &length): (usize, &usize)| {
        let ids = row(model, index, length);
        let logits = whole(model, None, index, &ids, device);
        Known { ids: ids.into_iter().map(|id| id as u32).collect(), logits }
    };
    lengths.iter().enumerate().map(of).collect()
}

/// Prompts in pieces beside single tokens; the second sequence leaves and the third takes its place.
const PASSES: [&[(usize, usize)]; 5] =
    [&[(0, 3)], &[(1, 3), (0, 1)], &[(0, 1), (1, 1)], &[(2, 5), (0, 1)], &[(0, 1), (2, 1)]];

/// Runs passes with further tokens of some sequences, by index, after virtual tokens; returns the largest difference of
/// logits.
fn worst(model: &dyn TextModel, known: &[Known], before: usize, device: &Device) -> f32 {
    let mut cx = Ctx::inference(device);
    let mut decoding = model.packed_decoding().unwrap();
    let mut open: Vec<Option<usize>> = vec![None; known.len()];
    let mut read = vec![0; known.len()];
    let mut worst: f32 = 0.0;
    for pass in PASSES {
        for (index, _) in pass {
            let length = known[*index].ids.len();
            open[*index].get_or_insert_with(|| decoding.open(length));
        }
        let part = |(index, tokens): &(usize, usize)| SequenceTokens {
            sequence: open[*index].unwrap(),
            tokens: &known[*index].ids[read[*index]..read[*index] + tokens],
            logits: LogitsRead::All,
        };
        let parts: Vec<SequenceTokens<'_>> = pass.iter().map(part).collect();
        let mut logits = decoding.extend(&parts, &mut cx).unwrap().into_iter();
        for (index, tokens) in pass {
            for _ in 0..*tokens {
                let (ours, at) = (logits.next().unwrap(), read[*index] * model.info().vocab_size);
                worst = worst.max(furthest(&ours, &known[*index].logits[at..at + ours.len()]));
                read[*index] += 1;
            }
            if read[*index] == known[*index].ids.len() {
                decoding.close(open[*index].take().unwrap());
            } else {
                assert_eq!(decoding.length(open[*index].unwrap()), before + read[*index]);
            }
        }
        assert!(logits.next().is_none());
    }
    assert_eq!(open, vec![None; known.len()], "every sequence was read to its end");
    worst
}

#[test]
fn sequences_that_share_passes_have_the_logits_of_each_alone() {
    let device = Device::cpu(1).unwrap();
    let mut models = 0;
    for directory in directories() {
        let model = open(&device, &directory, Sharding::solo());
        if model.info().generates_targets {
            let refused = model.packed_decoding().err().unwrap().to_string();
            assert!(refused.contains("use a decoder"), "{refused}");
            continue;
        }
        let known = known(&*model, &[7, 4, 6], &device);
        let error = worst(&*model, &known, 0, &device);
        assert!(error <= TOLERANCE, "{}: {error}", directory.display());
        models += 1;
    }
    assert!(models >= 12, "{models}");
}

#[test]
fn virtual_tokens_precede_each_sequence() {
    let device = Device::cpu(1).unwrap();
    for model in ["llama_a", "gpt2_a", "bloom_a"] {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(model).join("lm");
        let prompt = AdapterConfig::Prompt(PromptConfig { tokens: 3, ..PromptConfig::default() });
        for config in [prompt, AdapterConfig::Prefix(PrefixConfig { tokens: 3 })] {
            let adapter = Some(Adapter::New(config.clone()));
            let options = OpenOptions { adapter, ..OpenOptions::new(&device) };
            let model = Registry::default().open(&directory, &options).unwrap().model;
            let known = known(&*model, &[7, 4, 6], &device);
            let error = worst(&*model, &known, 3, &device);
            assert!(error <= TOLERANCE, "{} {config:?}: {error}", directory.display());
        }
    }
}

#[test]
fn a_copied_sequence_continues_by_itself_and_what_was_not_opened_is_refused() {
    let device = Device::cpu(1).unwrap();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/llama_a/lm");
    let model = open(&device, &directory, Sharding::solo());
    let mut cx = Ctx::inference(&device);
    let mut decoding = model.packed_decoding().unwrap();
    let first = decoding.open(8);
    let part =
        |sequence: usize, tokens: &'static [u32], logits: LogitsRead| SequenceTokens { sequence, tokens, logits };
    let none = decoding.extend(&[part(first, &[5, 6, 7], LogitsRead::None)], &mut cx).unwrap();
    assert!(none.is_empty() && decoding.token_bytes() > 0);
    let second = decoding.copy(first, 8).unwrap();
    assert_eq!(decoding.length(second), 3);
    let both = [part(first, &[8], LogitsRead::Last), part(second, &[9], LogitsRead::Last)];
    let logits = decoding.extend(&both, &mut cx).unwrap();
    for (ours, ids) in logits.iter().zip([[5, 6, 7, 8], [5, 6, 7, 9]]) {
        let theirs = whole(&*model, None, 0, &ids, &device);
        assert!(furthest(ours, &theirs[theirs.len() - ours.len()..]) <= TOLERANCE);
    }
    decoding.close(first);
    assert_eq!(decoding.open(4), first, "numbers are used again");
    let too_large = &[100_000][..];
    let refused = [
        vec![part(9, &[5], LogitsRead::Last)],
        vec![part(second, &[], LogitsRead::Last)],
        vec![part(second, too_large, LogitsRead::Last)],
        vec![part(second, &[5], LogitsRead::Last), part(second, &[5], LogitsRead::Last)],
    ];
    for tokens in refused {
        assert!(decoding.extend(&tokens, &mut cx).is_err());
    }
    assert_eq!(decoding.length(second), 4, "refused tokens change nothing");
    let long = vec![5; decoding.longest()];
    let error = decoding.extend(&[SequenceTokens { tokens: &long, ..both[1] }], &mut cx).unwrap_err().to_string();
    assert!(error.contains(&decoding.longest().to_string()), "{error}");
}
