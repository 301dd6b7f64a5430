//! BART and Marian beyond their golden numbers: position tables, the bias of the logits, the places of dropout, the
//! names of embeddings, bare models.

use crate::goldens;

use bmtrain_core::autograd::Randomness;
use bmtrain_core::{Ctx, DType, Device, Tensor};
use bmtrain_dist::param::widen;
use goldens::directories::{F32, changed, logits, open, opened, relative_error, tensors};
use goldens::{directory, inputs};
use model_center::model::Sinusoids;
use model_center::model::{Batch, HeadInit, Labels, OpenOptions, TextHead, TextModel};
use serde_json::json;

fn device() -> Device {
    Device::cpu(1).unwrap()
}

/// What enters the blocks and what leaves each, of the encoder and then of the decoder.
fn states(model: &dyn TextModel, batch: &Batch, cx: &mut Ctx) -> Vec<Vec<f32>> {
    let mut seen = Vec::new();
    let mut observe = |_: usize, state: &Tensor| {
        seen.push(widen(state).unwrap());
        Ok(())
    };
    model.forward(batch, Some(&mut observe), cx).unwrap();
    seen
}

fn table(rows: usize, columns: usize, change: f32) -> (Vec<usize>, Vec<f32>) {
    let mut values: Vec<f32> = (0..rows).flat_map(|row| Sinusoids::row(row, columns)).collect();
    values[columns] += change;
    (vec![rows, columns], values)
}

#[test]
fn positions_that_a_marian_stores_must_be_those_that_are_computed() {
    let device = device();
    let with = |rows: usize, change: f32| {
        changed(("marian_a", "lm"), &[], |values| {
            for stack in ["encoder", "decoder"] {
                values.insert(format!("model.{stack}.embed_positions.weight"), table(rows, 15, change));
            }
        })
    };
    let (stored, batch) = (with(19, 0.001), inputs("marian_a", "lm"));
    let model = opened(&device, stored.path());
    assert!(
        logits(&device, &*model, &batch) == logits(&device, &*opened(&device, &directory("marian_a", "lm")), &batch)
    );
    let to = tempfile::tempdir().unwrap();
    model.save(to.path(), &F32).unwrap();
    assert!(tensors(to.path()).keys().all(|name| !name.contains("embed_positions")));
    for (rows, change, want) in [(19, 0.1, "row 1 has no sines and cosines of the position"), (18, 0.0, "[19, 15]")] {
        let error = open(with(rows, change).path(), &OpenOptions::new(&device)).err().unwrap();
        assert!(error.contains(want) && error.contains("model.decoder.embed_positions.weight"), "{error}");
    }
}

#[test]
fn a_bias_of_the_logits_that_is_not_stored_is_zero() {
    let (device, batch) = (device(), inputs("bart_a", "lm"));
    let mut bias = Vec::new();
    let without = changed(("bart_a", "lm"), &[], |values| {
        let (shape, values) = values.remove("final_logits_bias").unwrap();
        assert_eq!(shape, [1, 47]);
        bias = values;
    });
    let plain = open(without.path(), &OpenOptions::new(&device)).unwrap();
    assert_eq!(plain.initialized, ["logits_bias"]);
    let with = logits(&device, &*opened(&device, &directory("bart_a", "lm")), &batch);
    let without = logits(&device, &*plain.model, &batch);
    for (index, (with, without)) in with.iter().zip(&without).enumerate() {
        // Sums of a dozen terms, rounded once more.
        assert!((with - without - bias[index % 47]).abs() <= 1e-5, "{with} {without}");
    }
}

#[test]
fn dropout_follows_the_embeddings_and_is_in_the_feed_forward_layers() {
    let (device, batch) = (device(), inputs("marian_b", "lm"));
    let share = |fields: &[(&str, serde_json::Value)], step: u32| {
        let model = opened(&device, changed(("marian_b", "lm"), fields, |_| {}).path());
        let states = states(&*model, &batch, &mut Ctx::training(&device, Randomness { seed: 5, step, micro_batch: 0 }));
        (states[0].iter().filter(|value| **value == 0.0).count() as f32 / states[0].len() as f32, states)
    };
    // Of 880 values one half, give or take five deviations.
    assert!((share(&[("dropout", json!(0.5))], 0).0 - 0.5).abs() < 0.09);
    let (plain, between) = (share(&[], 0), share(&[("activation_dropout", json!(0.5))], 0));
    assert_eq!((plain.0, between.0), (0.0, 0.0));
    assert!(plain.1[0] == between.1[0] && plain.1[1] != between.1[1]);
    assert!(between.1[1] != share(&[("activation_dropout", json!(0.5))], 1).1[1]);
}

#[test]
fn the_token_embedding_is_found_under_any_of_its_names() {
    let (device, batch) = (device(), inputs("bart_b", "lm"));
    let expected = logits(&device, &*opened(&device, &directory("bart_b", "lm")), &batch);
    for name in ["model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"] {
        let renamed = changed(("bart_b", "lm"), &[], |values| {
            let words = values.remove("model.shared.weight").unwrap();
            values.insert(name.to_owned(), words);
        });
        assert!(expected == logits(&device, &*opened(&device, renamed.path()), &batch), "{name}");
    }
    let own_head = changed(("bart_b", "lm"), &[], |values| {
        let mut words = values["model.shared.weight"].clone();
        words.1[0] += 1.0;
        values.insert("lm_head.weight".to_owned(), words);
    });
    let error = open(own_head.path(), &OpenOptions::new(&device)).err().unwrap();
    assert!(error.contains("lm_head.weight"), "{error}");
}

#[test]
fn the_bare_model_has_states_alone_and_is_written_as_one() {
    let device = device();
    for (family, class) in [("bart_a", "BartModel"), ("marian_a", "MarianModel")] {
        let batch = inputs(family, "lm");
        let options = OpenOptions { head: Some(TextHead::None), ..OpenOptions::new(&device) };
        let bare = open(&directory(family, "lm"), &options).unwrap();
        assert_eq!(bare.unused, ["final_logits_bias"]);
        let seen = |model: &dyn TextModel| states(model, &batch, &mut Ctx::inference(&device));
        let ours = seen(&*bare.model);
        assert!(ours == seen(&*opened(&device, &directory(family, "lm"))), "{family}");
        let to = tempfile::tempdir().unwrap();
        bare.model.save(to.path(), &F32).unwrap();
        let config = std::fs::read_to_string(to.path().join("config.json")).unwrap();
        let names = tensors(to.path());
        assert!(config.contains(class) && names.contains_key("shared.weight"), "{:?}", names.keys());
        assert!(!names.contains_key("final_logits_bias"));
        assert!(seen(&*opened(&device, to.path())) == ours);
        // The head comes with a bias of zeros.
        let words = OpenOptions { head: Some(TextHead::CausalLm), ..OpenOptions::new(&device) };
        assert_eq!(open(to.path(), &words).unwrap().initialized, ["logits_bias"]);
    }
}

#[test]
fn tables_that_rows_are_looked_up_in_multiply_nothing() {
    let device = device();
    let count = |model: &str| {
        let model = opened(&device, &directory(model, "lm"));
        model.parameters().count() - model.matmul_parameters()
    };
    assert_eq!((count("bart_a"), count("marian_a")), (2 * 19 * 18, 0));
}

#[test]
fn half_precision_stays_near() {
    let device = device();
    for model in ["bart_a", "marian_a"] {
        let batch = inputs(model, "lm");
        let expected = logits(&device, &*opened(&device, &directory(model, "lm")), &batch);
        for dtype in [DType::BF16, DType::F16] {
            let narrow =
                open(&directory(model, "lm"), &OpenOptions { dtype, ..OpenOptions::new(&device) }).unwrap().model;
            let ours = logits(&device, &*narrow, &batch);
            let error = relative_error(&ours, &expected);
            // Eight or eleven bits of precision, a dozen roundings one after another.
            assert!(error > 0.0 && error < 0.05, "{model} {dtype}: {error}");
        }
    }
}

#[test]
fn rows_are_no_longer_than_positions_and_other_heads_are_refused() {
    let device = device();
    let model = opened(&device, &directory("bart_b", "lm"));
    let batch = inputs("bart_b", "lm");
    let ids = vec![3; 11 * batch.rows];
    let long = Batch { length: 11, input_ids: ids, attention_mask: None, ..batch };
    let error = model.forward(&long, None, &mut Ctx::inference(&device)).err().unwrap().to_string();
    assert!(error.contains("11 tokens in a row, the model has 10 positions"), "{error}");
    let options = OpenOptions { head: Some(TextHead::MaskedLm), ..OpenOptions::new(&device) };
    let error = open(&directory("bart_b", "lm"), &options).err().unwrap();
    assert!(error.contains("BART") && error.contains("lm, cls or none"), "{error}");
    let classifier = OpenOptions { head: Some(TextHead::Classification { outputs: 2 }), ..OpenOptions::new(&device) };
    let error = open(&directory("marian_b", "lm"), &classifier).err().unwrap();
    assert!(error.contains("Marian") && error.contains("lm or none"), "{error}");
}

#[test]
fn a_classifier_reads_the_eos_token_and_takes_no_decoder_inputs() {
    let device = device();
    let (model, batch) = (opened(&device, &directory("bart_a", "cls")), inputs("bart_a", "cls"));
    assert_eq!(model.info().label_names, ["LABEL_0", "LABEL_1", "LABEL_2"]);
    let with = |change: &dyn Fn(&mut Batch)| {
        let mut other = batch.clone();
        change(&mut other);
        model.forward(&other, None, &mut Ctx::inference(&device)).map(|_| ()).map_err(|error| error.to_string())
    };
    with(&|_| {}).unwrap();
    let without = |batch: &mut Batch| batch.input_ids[..11].iter_mut().for_each(|id| *id = 7);
    for (change, want) in [
        (&without as &dyn Fn(&mut Batch), "input_ids, row 0"),
        (&|batch| batch.decoder_input_ids = Some(vec![3; 44]), "reads what its encoder does"),
        (&|batch| batch.decoder_attention_mask = Some(vec![1; 44]), "reads what its encoder does"),
        (&|batch| batch.choices = 2, "2 choices"),
        (&|batch| batch.labels = Some(Labels::Classes(vec![3; 4])), "labels[0]"),
        (&|batch| batch.labels = Some(Labels::Values(vec![0.5; 4])), "numbers to predict"),
    ] {
        let error = with(change).unwrap_err();
        assert!(error.contains(want) && error.contains("fix: "), "{error}");
    }
    let several = changed(("bart_a", "cls"), &[("eos_token_id", json!([2, 3]))], |_| {});
    let error = opened(&device, several.path()).forward(&batch, None, &mut Ctx::inference(&device)).err().unwrap();
    assert!(error.to_string().contains("eos_token_id"), "{error}");
}

#[test]
fn one_head_begins_where_another_was() {
    let device = device();
    let ask = |head, head_values| OpenOptions { head: Some(head), head_values, ..OpenOptions::new(&device) };
    let classes = TextHead::Classification { outputs: 4 };
    let fresh = open(&directory("bart_a", "lm"), &ask(classes, HeadInit::Random)).unwrap();
    let own = ["cls_dense.weight", "cls_dense.bias", "cls_projection.weight", "cls_projection.bias"];
    assert_eq!(
        (fresh.initialized, fresh.unused),
        (own.map(str::to_owned).to_vec(), vec!["final_logits_bias".to_owned()])
    );
    let words = open(&directory("bart_a", "cls"), &ask(TextHead::CausalLm, HeadInit::Directory)).unwrap();
    assert_eq!((words.initialized, words.unused.len()), (vec!["logits_bias".to_owned()], 4));
    let error = open(&directory("bart_a", "cls"), &ask(classes, HeadInit::Directory)).err().unwrap();
    assert!(error.contains("3 outputs, and the data need 4"), "{error}");
}
