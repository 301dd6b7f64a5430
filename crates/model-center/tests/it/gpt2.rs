//! GPT-2 from directories: both layouts of names, initial values, and the mistakes that are refused. The directories
//! are the golden ones.

use crate::goldens;

use bmtrain_core::{Ctx, Device};
use bmtrain_dist::Module;
use bmtrain_dist::block::{BlockOptions, Recompute};
use bmtrain_dist::param::BuilderOptions;
use goldens::directories::{changed, logits, open, opened, train};
use goldens::{directory, inputs};
use model_center::config::{Gpt2Config, ProblemType, TextConfig};
use model_center::model::gpt2::Gpt2;
use model_center::model::{Batch, Head, HeadInit, Labels, OpenMode, OpenOptions, TextHead, TextModel};
use serde_json::json;
use std::collections::BTreeMap;

#[test]
fn bare_names_and_stored_masks_are_the_same_model() {
    let device = Device::cpu(1).unwrap();
    for head in ["lm", "cls"] {
        let bare = changed(("gpt2_a", head), &[], |tensors| {
            let renamed = std::mem::take(tensors).into_iter();
            *tensors = renamed.map(|(name, values)| (name.replace("transformer.", ""), values)).collect();
            for block in 0..2 {
                tensors.insert(format!("h.{block}.attn.bias"), (vec![1, 1, 19, 19], vec![1.0; 19 * 19]));
                tensors.insert(format!("h.{block}.attn.masked_bias"), (vec![], vec![-1e4]));
            }
        });
        let batch = inputs("gpt2_a", head);
        assert_eq!(
            logits(&device, &*opened(&device, bare.path()), &batch),
            logits(&device, &*opened(&device, &directory("gpt2_a", head)), &batch),
            "{head}"
        );
    }
}

#[test]
fn a_stored_copy_of_the_tied_embedding_must_be_equal() {
    let device = Device::cpu(1).unwrap();
    let words = |tensors: &BTreeMap<String, (Vec<usize>, Vec<f32>)>| tensors["transformer.wte.weight"].clone();
    let twice = changed(("gpt2_a", "lm"), &[], |tensors| {
        tensors.insert("lm_head.weight".into(), words(tensors));
    });
    let batch = inputs("gpt2_a", "lm");
    let tied = opened(&device, twice.path());
    assert_eq!(logits(&device, &*tied, &batch), logits(&device, &*opened(&device, &directory("gpt2_a", "lm")), &batch));
    assert!(tied.parameters().get("lm_head.weight").is_none(), "tied embeddings are one parameter");
    let other = changed(("gpt2_a", "lm"), &[], |tensors| {
        let mut other = words(tensors);
        other.1[0] += 1.0;
        tensors.insert("lm_head.weight".into(), other);
    });
    let options = OpenOptions::new(&device);
    let error = open(other.path(), &options).err().unwrap();
    assert!(error.contains("lm_head.weight") && error.contains("not tied"), "{error}");
    // Without that head the matrix is of no use, whatever it holds.
    let base = OpenOptions { head: Some(TextHead::None), ..options };
    assert_eq!(open(other.path(), &base).unwrap().unused, ["lm_head.weight"]);
}

fn small() -> Gpt2Config {
    let text = TextConfig {
        vocab_size: 64,
        dim_model: 48,
        num_heads: 4,
        dim_head: 12,
        dim_ff: 96,
        num_layers: 8,
        position_size: 16,
        ..Gpt2Config::default().text
    };
    Gpt2Config { text, ..Gpt2Config::default() }
}

fn born(head: Head) -> Gpt2 {
    let device = Device::cpu(1).unwrap();
    Gpt2::new(&device, small(), head, BlockOptions::default(), BuilderOptions::default()).unwrap()
}

#[test]
fn initial_values_are_those_of_gpt2() {
    let model = born(Head::CausalLm { tied: true });
    let deviation = |name: &str| {
        let values = model.parameters().get(name).unwrap().read().unwrap();
        (values.iter().map(|value| value * value).sum::<f32>() / values.len() as f32).sqrt()
    };
    // Eight blocks add up sixteen times: a quarter of 0.02.
    for (name, expected) in [
        ("input_embedding.weight", 0.02),
        ("position_embedding.weight", 0.02),
        ("decoder.layers.7.attention.project_qkv.weight", 0.02),
        ("decoder.layers.7.attention.attention_out.weight", 0.005),
        ("decoder.layers.0.ffn.w_in.weight", 0.02),
        ("decoder.layers.0.ffn.w_out.weight", 0.005),
        ("decoder.layers.3.attention.project_qkv.bias", 0.0),
        ("decoder.layers.3.ffn_norm.weight", 1.0),
        ("decoder.output_norm.weight", 1.0),
        ("decoder.output_norm.bias", 0.0),
    ] {
        let got = deviation(name);
        // 768 and more samples: five standard errors of their deviation.
        assert!((got - expected).abs() <= 0.13 * expected, "{name}: {got} for {expected}");
    }
}

#[test]
fn a_model_from_a_configuration_learns_a_text_by_heart() {
    let device = Device::cpu(1).unwrap();
    let options = BuilderOptions { seed: 5, ..BuilderOptions::default() };
    let text = TextConfig { num_layers: 2, dropout_p: 0.05, ..small().text };
    let config = Gpt2Config { text, ..small() };
    let head = Head::CausalLm { tied: true };
    let blocks = BlockOptions::from(Recompute::Checkpoint);
    let model = Gpt2::new(&device, config, head, blocks, options).unwrap();
    let ids = (0..32).map(|at| (at * at * 7 + 3 * at) % 64).collect();
    let mask = (0..32).map(|at| u8::from(at < 28)).collect();
    let losses = train(&device, &model, &Batch::next_tokens(16, ids, Some(mask)), 1, 120);
    assert!((losses[0] - 64f32.ln()).abs() < 0.1, "{} when all tokens are equally likely", losses[0]);
    assert!(losses[119] < 0.5, "{}", losses[119]);
}

#[test]
fn the_embedding_counts_as_matmul_parameters_where_it_is_the_head() {
    let looked_up = |head| {
        let model = born(head);
        model.parameters().count() - model.matmul_parameters()
    };
    let (words, positions) = (64 * 48, 16 * 48);
    assert_eq!(looked_up(Head::CausalLm { tied: true }), positions);
    assert_eq!(looked_up(Head::CausalLm { tied: false }), words + positions);
    assert_eq!(looked_up(Head::Classifier { outputs: 2 }), words + positions);
}

fn rows(ids: &[i64], labels: Option<Labels>) -> Batch {
    Batch { labels, ..Batch::new(ids.len() / 2, ids.to_vec()) }
}

#[test]
fn a_later_token_changes_nothing_before_it() {
    let device = Device::cpu(1).unwrap();
    let model = opened(&device, &directory("gpt2_a", "lm"));
    let (first, second) = (rows(&[5, 6, 7, 8, 9, 10, 11, 12], None), rows(&[5, 6, 7, 80, 9, 10, 81, 82], None));
    let (first, second) = (logits(&device, &*model, &first), logits(&device, &*model, &second));
    let at = |position: usize| position * 97..(position + 1) * 97;
    for (position, same) in [true, true, true, false, true, true, false, false].into_iter().enumerate() {
        assert_eq!(first[at(position)] == second[at(position)], same, "position {position}");
    }
}

#[test]
fn types_that_a_loader_gives_are_passed_over() {
    let device = Device::cpu(1).unwrap();
    let model = opened(&device, &directory("gpt2_a", "lm"));
    let plain = rows(&[5, 6, 7, 8], None);
    let typed = Batch { token_type_ids: Some(vec![0, 1, 0, 1]), ..plain.clone() };
    assert!(!model.info().has_token_types);
    assert_eq!(logits(&device, &*model, &plain), logits(&device, &*model, &typed));
}

#[test]
fn a_language_model_becomes_a_classifier_with_a_new_head() {
    let options = OpenOptions {
        head: Some(TextHead::Classification { outputs: 2 }),
        head_values: HeadInit::DirectoryOrRandom,
        labels: ["no", "yes"].map(String::from).to_vec(),
        problem: Some(ProblemType::SingleLabel),
        ..OpenOptions::new(&Device::cpu(1).unwrap())
    };
    let fresh = open(&directory("gpt2_a", "untied"), &options).unwrap();
    assert_eq!(
        (&fresh.initialized[..], &fresh.unused[..]),
        (&["cls_projection.weight".to_owned()][..], &["lm_head.weight".to_owned()][..])
    );
    assert_eq!(fresh.model.info().label_names, ["no", "yes"]);
    let trained = open(&directory("gpt2_a", "cls"), &options).err().unwrap();
    assert!(trained.contains("a classifier with 3 outputs, and the data need 2"), "{trained}");
}

#[test]
fn what_a_decoder_has_not_is_refused_by_name() {
    let device = Device::cpu(1).unwrap();
    for head in [TextHead::MaskedLm, TextHead::NextSentence, TextHead::Pretraining] {
        let error = open(&directory("gpt2_a", "lm"), &OpenOptions { head: Some(head), ..OpenOptions::new(&device) });
        let error = error.err().unwrap();
        assert!(error.contains("GPT-2 is a decoder") && error.contains("fix: "), "{error}");
    }
    let encoder = OpenOptions { head: Some(TextHead::CausalLm), ..OpenOptions::new(&device) };
    let error = open(&directory("bert_a", "cls"), &encoder).err().unwrap();
    assert!(error.contains("for decoders, and BERT is an encoder"), "{error}");
    let model = opened(&device, &directory("gpt2_a", "lm"));
    let refused = |batch: Batch| model.forward(&batch, None, &mut Ctx::inference(&device)).unwrap_err().to_string();
    let ids = [5, 6, 7, 8];
    for (batch, texts) in [
        (rows(&[5, 6, 97, 8], None), ["input_ids[1, 0]", "0 to 96"]),
        (rows(&[1; 40], None), ["20 tokens", "19 positions"]),
        (Batch { next_sentence: Some(vec![0, 1]), ..rows(&ids, None) }, ["next_sentence_label", "decoder"]),
        (rows(&ids, Some(Labels::Classes(vec![5, 6, 7, -1]))), ["labels[1, 1]", "write -100"]),
        (rows(&ids, Some(Labels::Values(vec![0.5, 1.0]))), ["numbers to predict", "i64"]),
        (Batch { attention_mask: Some(vec![1; 3]), ..rows(&ids, None) }, ["3 values", "4 input ids"]),
    ] {
        let error = refused(batch);
        assert!(texts.iter().all(|text| error.contains(text)), "{error}");
    }
}

#[test]
fn weights_of_another_shape_and_further_ones_are_named() {
    let options = OpenOptions { mode: OpenMode::Check, ..OpenOptions::new(&Device::cpu(1).unwrap()) };
    // The layout of every other family: [out, in].
    let turned = changed(("gpt2_a", "lm"), &[], |tensors| {
        let weight = tensors.get_mut("transformer.h.1.attn.c_attn.weight").unwrap();
        weight.0.reverse();
    });
    let error = open(turned.path(), &options).err().unwrap();
    assert!(error.contains("h.1.attn.c_attn.weight") && error.contains("expected [20, 60], got [60, 20]"), "{error}");
    let further = changed(("gpt2_a", "lm"), &[], |tensors| {
        tensors.insert("transformer.h.2.ln_1.weight".into(), (vec![20], vec![1.0; 20]));
    });
    let error = open(further.path(), &options).err().unwrap();
    assert!(error.contains("unexpected") && error.contains("h.2.ln_1.weight"), "{error}");
    let untied = changed(("gpt2_a", "lm"), &[("tie_word_embeddings", json!(false))], |_| {});
    let error = open(untied.path(), &options).err().unwrap();
    assert!(error.contains("missing") && error.contains("lm_head.weight"), "{error}");
    let tied = changed(("gpt2_a", "untied"), &[("tie_word_embeddings", json!(true))], |_| {});
    let error = open(tied.path(), &OpenOptions { mode: OpenMode::Load, ..options }).err().unwrap();
    assert!(error.contains("the model was not tied"), "{error}");
}
