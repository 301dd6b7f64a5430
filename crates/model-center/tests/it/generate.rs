//! Generation with tiny models: the sequences of transformers (`golden/generation.json`, made by
//! `scripts/golden/make_generation.py`), whatever the batch, on one rank and on two, and refused options.

mod beam;
mod config;
mod logits;
mod ranks;
mod sampling;
mod stream;

use bmtrain_core::{Ctx, DType, Device};
use bmtrain_dist::shard::Sharding;
use model_center::generate::{
    BeamOptions, FinishReason, GenerateOptions, Generated, Generator, Method, Patience, RepetitionPenalty, Sampling,
};
use model_center::model::{OpenOptions, Registry, TextModel};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The bound of scores, relative to those above one: sums of some ten logarithms in 32-bit floats, which a negative
/// length penalty makes larger.
const TOLERANCE: f64 = 1e-5;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn open(device: &Device, directory: &str, sharding: Sharding) -> Box<dyn TextModel> {
    Registry::default()
        .open(&golden().join(directory), &OpenOptions { sharding, ..OpenOptions::new(device) })
        .unwrap()
        .model
}

fn tokens(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u32).collect()
}

fn prompts(model: &Value) -> Vec<Vec<u32>> {
    model["prompts"].as_array().unwrap().iter().map(tokens).collect()
}

/// Settings as transformers calls them, for a model with one stack or two.
fn options(settings: &Value, data: &Value, golden: &Value, model: &dyn TextModel) -> GenerateOptions {
    let number = |name: &str, default: f64| settings[name].as_f64().unwrap_or(default);
    let token = |name: &str| settings[name].as_u64().map(|token| token as u32);
    let lists = [&settings["suppress_tokens"], &settings["bad_words_ids"][0]];
    let mut forbidden: Vec<u32> = lists.into_iter().filter(|list| list.is_array()).flat_map(tokens).collect();
    // transformers ignores end tokens in bad_words_ids.
    forbidden.retain(|token| settings["suppress_tokens"][0] == *token || !tokens(&golden["ends"]).contains(token));
    let method = match settings["num_beams"].as_u64() {
        None => Method::Greedy,
        Some(beams) => Method::Beams(BeamOptions {
            beams: beams as usize,
            length_penalty: number("length_penalty", 1.0) as f32,
            patience: match &settings["early_stopping"] {
                Value::Bool(true) => Patience::First,
                Value::String(_) => Patience::Never,
                _ => Patience::Likely,
            },
            best: number("num_return_sequences", 1.0) as usize,
            renormalizes: settings["renormalize_logits"] == true,
        }),
    };
    GenerateOptions {
        method,
        max_new_tokens: data["new_tokens"].as_u64().unwrap() as usize,
        min_new_tokens: number("min_new_tokens", 0.0) as usize,
        penalty: RepetitionPenalty { factor: number("repetition_penalty", 1.0) as f32, window: None },
        end_tokens: tokens(&golden["ends"]),
        no_repeat: settings["no_repeat_ngram_size"].as_u64().map(|size| size as usize),
        forbidden,
        // Rows of the others begin with a prompt.
        forced_bos: token("forced_bos_token_id").filter(|_| model.info().generates_targets),
        forced_eos: token("forced_eos_token_id"),
        ..GenerateOptions::default()
    }
}

fn generate(
    device: &Device,
    model: &dyn TextModel,
    options: GenerateOptions,
    prompts: &[Vec<u32>],
) -> Vec<Vec<Generated>> {
    let generator = Generator::new(model, None, options).unwrap();
    generator.generate(prompts, 0, &mut Ctx::inference(device), &mut |_| Ok(())).unwrap()
}

#[test]
fn texts_and_scores_are_those_of_transformers() {
    let data: Value = serde_json::from_slice(&std::fs::read(golden().join("generation.json")).unwrap()).unwrap();
    let device = Device::cpu(1).unwrap();
    let (mut texts, mut worst): (usize, f64) = (0, 0.0);
    for golden in data["models"].as_array().unwrap() {
        let model = open(&device, golden["folder"].as_str().unwrap(), Sharding::solo());
        for (name, settings) in data["settings"].as_object().unwrap() {
            // All prompts in one batch: what each of them gives alone is what it gives beside others.
            let ours = generate(&device, &*model, options(settings, &data, golden, &*model), &prompts(golden));
            let theirs = golden["texts"][name].as_array().unwrap();
            assert_eq!(ours.len(), theirs.len());
            for (ours, theirs) in ours.iter().zip(theirs) {
                let theirs = theirs.as_array().unwrap();
                let what = format!("{} {name}", golden["folder"]);
                assert_eq!(ours.len(), theirs.len(), "{what}");
                for (ours, theirs) in ours.iter().zip(theirs) {
                    assert_eq!(ours.tokens, tokens(&theirs["words"]), "{what}");
                    texts += 1;
                    assert_eq!(ours.score.is_some(), theirs["score"].is_number(), "{what}");
                    if let (Some(ours), Some(theirs)) = (ours.score, theirs["score"].as_f64()) {
                        let error = (f64::from(ours) - theirs).abs() / theirs.abs().max(1.0);
                        assert!(error <= TOLERANCE, "{what}: {ours} for {theirs}");
                        worst = worst.max(error);
                    }
                }
            }
        }
    }
    assert!(texts > 300, "{texts}");
    println!("figure: {texts} texts, scores {worst:.1e} apart");
}

/// Sampling of two texts of each prompt.
fn sampled(seed: u64) -> GenerateOptions {
    let sampling = Sampling { temperature: 1.3, top_k: Some(20), top_p: 0.9, min_p: 0.01 };
    let method = Method::Sampling { sampling, seed, texts: 2 };
    GenerateOptions { method, max_new_tokens: 6, end_tokens: vec![9, 10], ..GenerateOptions::default() }
}

#[test]
fn samples_depend_on_the_seed_and_the_prompt_alone() {
    let device = Device::cpu(1).unwrap();
    for directory in ["gpt2_a/lm", "llama_a/lm", "t5_a/lm"] {
        let model = open(&device, directory, Sharding::solo());
        let prompts = [vec![5, 6, 7], vec![20, 8], vec![11, 12, 13, 14], vec![5, 6, 7]];
        let together = generate(&device, &*model, sampled(3), &prompts);
        assert_eq!(together, generate(&device, &*model, sampled(3), &prompts));
        assert_ne!(together, generate(&device, &*model, sampled(4), &prompts));
        assert!(
            together.iter().any(|texts| texts[0].tokens != texts[1].tokens),
            "the texts of a prompt are sampled independently"
        );
        assert_ne!(together[0], together[3], "and the texts of equal prompts");
        let generator = Generator::new(&*model, None, sampled(3)).unwrap();
        for (number, prompt) in prompts.iter().enumerate() {
            let prompt = std::slice::from_ref(prompt);
            let alone = generator.generate(prompt, number as u64, &mut Ctx::inference(&device), &mut |_| Ok(()));
            assert_eq!(alone.unwrap()[0], together[number], "{directory}, prompt {number}");
        }
    }
}

#[test]
fn texts_end_by_words_and_by_length_and_forbidden_words_never_come() {
    let device = Device::cpu(1).unwrap();
    let model = open(&device, "gpt2_a/lm", Sharding::solo());
    let plain = GenerateOptions { max_new_tokens: 8, ..GenerateOptions::default() };
    let prompts = [vec![5, 6, 7]];
    let free = generate(&device, &*model, plain.clone(), &prompts)[0][0].clone();
    assert_eq!((free.tokens.len(), free.finish_reason, free.score), (8, FinishReason::Length, None));
    let end = free.tokens[3];
    let first = free.tokens.iter().position(|token| *token == end).unwrap();
    let ended =
        generate(&device, &*model, GenerateOptions { end_tokens: vec![end], ..plain.clone() }, &prompts)[0][0].clone();
    assert_eq!((&ended.tokens[..], ended.finish_reason), (&free.tokens[..=first], FinishReason::EndToken));
    let later = GenerateOptions { end_tokens: vec![end], min_new_tokens: first + 1, ..plain.clone() };
    let later = generate(&device, &*model, later, &prompts)[0][0].clone();
    assert!(later.tokens.len() > first + 1 && later.tokens[..first] == free.tokens[..first]);
    let forbidden = GenerateOptions { forbidden: vec![free.tokens[0], end], ..plain.clone() };
    let other = generate(&device, &*model, forbidden, &prompts)[0][0].clone();
    assert!(!other.tokens.contains(&free.tokens[0]) && !other.tokens.contains(&end));
    // The model's longest row, 19, ends a text too.
    let long = GenerateOptions { max_new_tokens: 100, ..plain };
    let cut = generate(&device, &*model, long, &[vec![5; 12], vec![6; 3]]);
    assert_eq!((cut[0][0].tokens.len(), cut[1][0].tokens.len()), (7, 16));
    assert!(cut.iter().all(|texts| texts[0].finish_reason == FinishReason::Length));
}

#[test]
fn models_in_16_bits_write_too() {
    let device = Device::cpu(1).unwrap();
    for (directory, dtype) in [("gpt2_a/lm", DType::BF16), ("gpt2_a/lm", DType::F16), ("t5_a/lm", DType::BF16)] {
        let options = OpenOptions { dtype, ..OpenOptions::new(&device) };
        let model = Registry::default().open(&golden().join(directory), &options).unwrap().model;
        let beams = Method::Beams(BeamOptions { beams: 2, ..BeamOptions::DEFAULT });
        for method in [Method::Greedy, beams] {
            let options = GenerateOptions { method, max_new_tokens: 5, ..GenerateOptions::default() };
            assert_eq!(
                generate(&device, &*model, options, &[vec![5, 6, 7]])[0][0].tokens.len(),
                5,
                "{directory} {dtype}"
            );
        }
    }
}

#[test]
fn what_cannot_be_generated_is_refused_with_its_reason() {
    let device = Device::cpu(1).unwrap();
    let (gpt2, t5) = (open(&device, "gpt2_a/lm", Sharding::solo()), open(&device, "t5_a/lm", Sharding::solo()));
    let settings = |options: GenerateOptions| Generator::new(&*gpt2, None, options).err().unwrap().to_string();
    let plain = GenerateOptions::default;
    for (options, reason) in [
        (GenerateOptions { max_new_tokens: 0, ..plain() }, "max_new_tokens"),
        (GenerateOptions { min_new_tokens: 30, end_tokens: vec![1], ..plain() }, "at most"),
        (GenerateOptions { min_new_tokens: 3, ..plain() }, "no token ends a text"),
        (GenerateOptions { stop_strings: vec!["x".into()], ..plain() }, "no tokenizer"),
        (GenerateOptions { forbidden: vec![97], ..plain() }, "token 97, and the model has 97"),
        (GenerateOptions { prefix: vec![5], ..plain() }, "this model has none"),
        (
            GenerateOptions {
                method: Method::Sampling { sampling: Sampling::default(), seed: 0, texts: usize::MAX },
                ..plain()
            },
            "between 1 and 1024",
        ),
        (GenerateOptions { forced_bos: Some(5), ..plain() }, "this model has none"),
        (GenerateOptions { decoder_start_token: Some(5), ..plain() }, "this model has none"),
        (GenerateOptions { forced_eos: Some(97), ..plain() }, "token 97, and the model has 97"),
        (GenerateOptions { no_repeat: Some(0), ..plain() }, "no_repeat"),
        (
            GenerateOptions {
                method: Method::Sampling { sampling: Sampling::default(), seed: 0, texts: 0 },
                ..plain()
            },
            "texts",
        ),
    ] {
        let error = settings(options);
        assert!(error.contains(reason), "{error}");
    }
    let prompt = |model: &dyn TextModel, prompt: Vec<u32>, options: GenerateOptions| {
        let generator = Generator::new(model, None, options).unwrap();
        let done = generator.generate(&[vec![4], prompt], 0, &mut Ctx::inference(&device), &mut |_| Ok(()));
        done.map(|_| ()).map_err(|error| error.to_string())
    };
    for (tokens, reason) in [(vec![], "no token"), (vec![97], "prompt 1"), (vec![4; 19], "shorten")] {
        let error = prompt(&*gpt2, tokens, plain()).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
    assert!(prompt(&*gpt2, vec![4], GenerateOptions { is_context: true, ..plain() }).is_err());
    assert!(prompt(&*t5, vec![4; 5], GenerateOptions { prefix: vec![7], ..plain() }).is_ok());
    // Tokens that are all forbidden leave none.
    let none = GenerateOptions { forbidden: (0..97).collect(), ..plain() };
    assert!(prompt(&*gpt2, vec![4], none.clone()).unwrap_err().contains("no token is possible"));
    let beams = BeamOptions { beams: 2, ..BeamOptions::DEFAULT };
    let none = GenerateOptions { method: Method::Beams(beams), ..none };
    assert!(prompt(&*gpt2, vec![4], none).unwrap_err().contains("no token is possible"));
    // The check ends the generation before the next token.
    let asked = std::cell::Cell::new(0);
    let may_continue = || {
        asked.set(asked.get() + 1);
        if asked.get() == 3 { Err(model_center::Error::data("x", "enough", "y")) } else { Ok(()) }
    };
    let generator = Generator::new(&*gpt2, None, plain()).unwrap().with_check(&may_continue);
    let ended = generator.generate(&[vec![4]], 0, &mut Ctx::inference(&device), &mut |_| Ok(()));
    assert!(ended.unwrap_err().to_string().contains("enough") && asked.get() == 3);
    // What stops the caller stops the generation.
    let tokenizer = None;
    let generator = Generator::new(&*gpt2, tokenizer, plain()).unwrap();
    assert!(generator.generate(&[], 0, &mut Ctx::inference(&device), &mut |_| Ok(())).unwrap().is_empty());
}
