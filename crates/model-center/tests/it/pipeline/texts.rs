//! Generation over pipeline stages, each with the KV cache of its blocks: the texts and logits of one stage.

use super::{Build, KINDS, Rank, Run, TIED, on_mesh};
use bmtrain_core::Ctx;
use bmtrain_dist::block::BlockOptions;
use bmtrain_dist::param::widen;
use bmtrain_dist::pipeline::ScheduleKind;
use model_center::config::{Config, LlamaConfig, T5Config};
use model_center::data::Batch;
use model_center::generate::{BeamOptions, GenerateOptions, Generated, Generator, Method, Sampling};
use model_center::model::llama::Llama;
use model_center::model::t5::T5;
use model_center::model::{DecodingOptions, Head, TextModel};

/// Prompts of different lengths, so that some are padded.
const PROMPTS: [&[u32]; 3] = [&[5, 6, 7, 8, 9], &[12, 4], &[20, 21, 22]];

/// Tokens and bits of scores of all sequences.
type Texts = Vec<Vec<(Vec<u32>, Option<u32>)>>;

fn texts(model: &dyn TextModel, method: Method, cx: &mut Ctx) -> Texts {
    let options = GenerateOptions { max_new_tokens: 7, method, end_tokens: vec![9], ..GenerateOptions::default() };
    let prompts: Vec<Vec<u32>> = PROMPTS.iter().map(|prompt| prompt.to_vec()).collect();
    let generator = Generator::new(model, None, options).unwrap();
    let all = generator.generate(&prompts, 0, cx, &mut |_| Ok(())).unwrap();
    let text = |text: Generated| (text.tokens, text.score.map(f32::to_bits));
    all.into_iter().map(|texts| texts.into_iter().map(text).collect()).collect()
}

/// Texts of every method, and the bits of logits of tokens given one after the other and moved between rows.
fn decoded(rank: &Rank) -> (Vec<Texts>, Vec<Vec<u32>>) {
    let (model, mut cx) = (&*rank.model, Ctx::inference(&rank.device));
    let sampling = Sampling { temperature: 0.8, ..Sampling::default() };
    let methods = [
        Method::Greedy,
        Method::Sampling { sampling, seed: 3, texts: 2 },
        Method::Beams(BeamOptions { beams: 3, best: 2, ..BeamOptions::DEFAULT }),
    ];
    let texts = methods.into_iter().map(|method| texts(model, method, &mut cx)).collect();
    let tokens = |ids: Vec<i64>| Batch { labels: None, ..Batch::next_tokens(ids.len() / 2, ids, None) };
    let source = model.info().generates_targets.then(|| tokens(vec![5, 6, 7, 8, 9, 10]));
    let mut decoding = model.decoding(DecodingOptions { source: source.as_ref(), expected: 8 }, &mut cx).unwrap();
    let mut logits = Vec::new();
    for (ids, from) in [(vec![4, 5, 6, 7], [1, 0]), (vec![8, 9], [0, 0]), (vec![10, 11], [0, 1])] {
        let next = decoding.extend(&tokens(ids), &mut cx).unwrap();
        logits.push(widen(&next).unwrap().into_iter().map(f32::to_bits).collect());
        decoding.reorder(&from, &cx).unwrap();
    }
    (texts, logits)
}

fn check(run: &Run) {
    let alone = on_mesh(&Run { stages: 1, chunks: 1, kind: ScheduleKind::GPipe, ..run.clone() }, |rank| decoded(&rank));
    let staged = on_mesh(run, |rank| decoded(&rank));
    for rank in staged {
        assert!(rank == alone[0], "{run:?}");
    }
}

#[test]
fn texts_and_logits_over_two_stages_are_those_of_one_stage() {
    for golden in [
        ("gpt2_a", "lm"),
        ("llama_a", "untied"),
        ("gptj_a", "lm"),
        ("bloom_a", "lm"),
        ("opt_a", "lm"),
        ("mistral_a", "lm"),
        ("t5_a", "lm"),
        ("bart_a", "lm"),
        ("marian_a", "lm"),
        ("cpm_t5_b", "lm"),
    ] {
        check(&Run { golden, stages: 2, ..Run::default() });
    }
}

#[test]
fn texts_over_more_stages_and_chunks_are_those_of_one_stage() {
    let llama: Build = build!(Llama, LlamaConfig, Head::CausalLm { tied: false });
    let t5: Build = build!(T5, T5Config, TIED);
    for (golden, build) in [
        (("llama_a", "untied"), (llama, &[("num_hidden_layers", 4)][..])),
        // Position biases of both stacks cross edges.
        (("t5_a", "lm"), (t5, &[("num_layers", 3), ("num_decoder_layers", 4)][..])),
    ] {
        for stages in [3, 4] {
            check(&Run { golden, build: Some(build), stages, ..Run::default() });
        }
        for (kind, chunks) in KINDS.into_iter().filter(|(_, chunks)| *chunks > 1) {
            check(&Run { golden, build: Some(build), kind, chunks, stages: 2, ..Run::default() });
        }
    }
}

#[test]
fn stages_with_tensor_parallel_ranks_generate_the_texts_of_tensor_parallel_ranks_alone() {
    for golden in [("gpt2_a", "lm"), ("bloom_a", "lm")] {
        let run = Run { golden, tensor: 2, ..Run::default() };
        let expected = on_mesh(&run, |rank| decoded(&rank));
        let staged = on_mesh(&Run { stages: 2, ..run }, |rank| decoded(&rank));
        assert!(staged.iter().all(|rank| *rank == expected[0]), "{golden:?}");
    }
}
