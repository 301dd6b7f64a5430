//! T5 beyond its golden numbers: its decoder's inputs and mask, tied and untied heads of directories, and what is
//! refused.

use crate::goldens;

use bmtrain_core::autograd::Randomness;
use bmtrain_core::{Ctx, DType, Device};
use bmtrain_dist::param::widen;
use goldens::directories::{F32, changed, logits, open, opened, relative_error, tensors};
use goldens::{directory, inputs};
use model_center::config::{T5Config, TextConfig};
use model_center::model::architecture::{BlockPlace, ModelFamily};
use model_center::model::{Batch, Labels, OpenOptions, TextHead, TextModel};
use serde_json::json;

fn device() -> Device {
    Device::cpu(1).unwrap()
}

fn labels(batch: &Batch) -> &[i64] {
    let Some(labels) = batch.labels.as_ref().and_then(Labels::ids) else { panic!("the labels are not tokens") };
    labels
}

/// The batch of `t5_a` with explicit decoder inputs: the configuration starts with token 3 and pads with 0.
fn spelled_out(batch: &Batch) -> Batch {
    let length = labels(batch).len() / batch.rows;
    let read =
        |row: &[i64]| std::iter::once(3).chain(row[..length - 1].iter().map(|&id| id.max(0))).collect::<Vec<_>>();
    Batch { decoder_input_ids: Some(labels(batch).chunks(length).flat_map(read).collect()), ..batch.clone() }
}

#[test]
fn the_decoder_reads_the_labels_moved_by_one() {
    let (device, batch) = (device(), inputs("t5_a", "lm"));
    let model = opened(&device, &directory("t5_a", "lm"));
    assert!(batch.decoder_input_ids.is_none() && labels(&batch).contains(&-100));
    assert_eq!(logits(&device, &*model, &batch), logits(&device, &*model, &spelled_out(&batch)));
}

#[test]
fn a_later_token_changes_nothing_before_it_and_padding_nothing_at_all() {
    let device = device();
    let model = opened(&device, &directory("t5_a", "lm"));
    let batch = Batch { labels: None, ..spelled_out(&inputs("t5_a", "lm")) };
    let with = |change: &dyn Fn(&mut Batch)| {
        let mut other = batch.clone();
        change(&mut other);
        logits(&device, &*model, &other)
    };
    let (words, length) = (47, batch.decoder_input_ids.as_ref().unwrap().len() / batch.rows);
    let before = with(&|_| {});
    // Token 4 of the first row.
    let after = with(&|batch| batch.decoder_input_ids.as_mut().unwrap()[4] += 1);
    for position in 0..length * batch.rows {
        let at = position * words..(position + 1) * words;
        let is_same = position < 4 || position >= length;
        assert_eq!(before[at.clone()] == after[at], is_same, "position {position}");
    }
    // The second row has seven tokens.
    assert_eq!(batch.attention_mask.as_ref().unwrap()[batch.length + 7], 0);
    assert!(before == with(&|batch| batch.input_ids[batch.length + 7] = 9));
    let seen = with(&|batch| batch.input_ids[batch.length] += 1);
    let row = length * words;
    assert!(
        before[..row] == seen[..row] && before[row..2 * row] != seen[row..2 * row],
        "the decoder sees its own encoder row"
    );
}

#[test]
fn dropout_goes_with_the_step() {
    let (device, batch) = (device(), inputs("t5_b", "lm"));
    let rates = |hidden: f32, attention: f32| OpenOptions {
        hidden_dropout: Some(hidden),
        attention_dropout: Some(attention),
        ..OpenOptions::new(&device)
    };
    let loss = |options: &OpenOptions, step: u32| {
        let model = open(&directory("t5_b", "lm"), options).unwrap().model;
        let mut cx = Ctx::training(&device, Randomness { seed: 5, step, micro_batch: 0 });
        model.loss(&batch, &mut cx).unwrap().unwrap().value().item().unwrap()
    };
    let plain = loss(&rates(0.0, 0.0), 0);
    for options in [rates(0.2, 0.0), rates(0.0, 0.2)] {
        assert!(loss(&options, 0) != plain && loss(&options, 0) != loss(&options, 1));
        assert_eq!(loss(&options, 1), loss(&options, 1));
    }
}

#[test]
fn dropout_is_on_embeddings_after_the_final_norms_and_in_the_feed_forward_layers() {
    let (device, batch) = (device(), inputs("t5_a", "lm"));
    let options = OpenOptions { hidden_dropout: Some(0.5), ..OpenOptions::new(&device) };
    let model = open(&directory("t5_a", "lm"), &options).unwrap().model;
    let mut zeros = Vec::new();
    let mut observe = |_: usize, state: &bmtrain_core::Tensor| {
        let values = widen(state).unwrap();
        zeros.push(values.iter().filter(|value| **value == 0.0).count() as f32 / values.len() as f32);
        Ok(())
    };
    let mut cx = Ctx::training(&device, Randomness { seed: 5, step: 0, micro_batch: 0 });
    model.forward(&batch, Some(&mut observe), &mut cx).unwrap();
    // Embeddings, the encoder's two blocks with the norm after the second, the decoder's single block with its norm. Of
    // 792 and 504 values one half, within four standard deviations.
    for (share, is_dropped) in zeros.iter().zip([true, false, true, true]) {
        assert!(if is_dropped { (share - 0.5).abs() < 0.09 } else { *share < 0.3 }, "{zeros:?}");
    }
    assert_eq!(zeros.len(), 4);
    let text = TextConfig { dropout_p: 0.5, ..T5Config::default().text };
    let config = T5Config { text, ..T5Config::default() };
    assert_eq!([0, 1].map(|stack| config.block(BlockPlace { stack, layer: 0 }).ffn.dropout), [0.5, 0.5]);
}

/// `t5_b` as transformers 5 writes it: the configuration declares every head tied, and the weights have their own.
#[test]
fn a_head_that_is_stored_is_a_head_of_its_own() {
    let (device, batch) = (device(), inputs("t5_b", "lm"));
    let expected = logits(&device, &*opened(&device, &directory("t5_b", "lm")), &batch);
    let declared_tied = changed(("t5_b", "lm"), &[("tie_word_embeddings", json!(true))], |_| {});
    assert!(expected == logits(&device, &*opened(&device, declared_tied.path()), &batch));
    let without = changed(("t5_b", "lm"), &[("tie_word_embeddings", json!(true))], |values| {
        values.remove("lm_head.weight").unwrap();
    });
    let tied = opened(&device, without.path());
    assert!(tied.parameters().iter().all(|param| !param.name().starts_with("lm_head")));
    assert!(expected != logits(&device, &*tied, &batch));
    let said_untied = changed(("t5_b", "lm"), &[], |values| {
        values.remove("lm_head.weight").unwrap();
    });
    let error = open(said_untied.path(), &OpenOptions::new(&device)).err().unwrap();
    assert!(error.contains("lm_head.weight"), "{error}");
}

#[test]
fn the_token_embedding_is_found_under_any_of_its_names() {
    let (device, batch) = (device(), inputs("t5_a", "lm"));
    let expected = logits(&device, &*opened(&device, &directory("t5_a", "lm")), &batch);
    for name in ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"] {
        let renamed = changed(("t5_a", "lm"), &[], |values| {
            let words = values.remove("shared.weight").unwrap();
            values.insert(name.to_owned(), words);
        });
        assert!(expected == logits(&device, &*opened(&device, renamed.path()), &batch), "{name}");
    }
    let differing = changed(("t5_a", "lm"), &[], |values| {
        let mut words = values["shared.weight"].clone();
        words.1[0] += 1.0;
        values.insert("decoder.embed_tokens.weight".to_owned(), words);
    });
    let error = open(differing.path(), &OpenOptions::new(&device)).err().unwrap();
    assert!(error.contains("decoder.embed_tokens.weight"), "{error}");
}

#[test]
fn the_bare_model_has_states_alone_and_is_written_as_one() {
    let (device, batch) = (device(), inputs("t5_b", "lm"));
    let options = OpenOptions { head: Some(TextHead::None), ..OpenOptions::new(&device) };
    let bare = open(&directory("t5_b", "lm"), &options).unwrap();
    assert_eq!(bare.unused, ["lm_head.weight"]);
    let states = |model: &dyn TextModel| {
        let mut seen = Vec::new();
        let mut observe = |_: usize, state: &bmtrain_core::Tensor| {
            seen.push(widen(state).unwrap());
            Ok(())
        };
        let scores = model.forward(&batch, Some(&mut observe), &mut Ctx::inference(&device)).unwrap();
        (seen, scores.logits.is_some(), scores.loss.is_some())
    };
    let whole = opened(&device, &directory("t5_b", "lm"));
    let (theirs, ours) = (states(&*whole), states(&*bare.model));
    assert!(theirs.0 == ours.0 && theirs.0.len() == 1 + 1 + 2);
    assert_eq!(((theirs.1, theirs.2), (ours.1, ours.2)), ((true, true), (false, false)));
    let to = tempfile::tempdir().unwrap();
    bare.model.save(to.path(), &F32).unwrap();
    let config = std::fs::read_to_string(to.path().join("config.json")).unwrap();
    assert!(config.contains("\"T5Model\"") && !tensors(to.path()).contains_key("lm_head.weight"));
    assert!(states(&*opened(&device, to.path())).0 == ours.0);
}

#[test]
fn a_tied_head_multiplies_by_the_token_embedding() {
    let device = device();
    let count = |model: &str| {
        let model = opened(&device, &directory(model, "lm"));
        model.parameters().count() - model.matmul_parameters()
    };
    assert_eq!((count("t5_a"), count("t5_b")), (0, 39 * 20));
}

#[test]
fn half_precision_stays_near() {
    let (device, batch) = (device(), inputs("t5_a", "lm"));
    let narrow =
        open(&directory("t5_a", "lm"), &OpenOptions { dtype: DType::BF16, ..OpenOptions::new(&device) }).unwrap();
    let (ours, whole) = (logits(&device, &*narrow.model, &batch), opened(&device, &directory("t5_a", "lm")));
    let expected = logits(&device, &*whole, &batch);
    let error = relative_error(&ours, &expected);
    // Eight bits of precision, a dozen roundings one after another.
    assert!(error > 0.0 && error < 0.05, "{error}");
}

#[test]
fn inputs_that_an_encoder_decoder_does_not_take_are_refused_by_name() {
    let device = device();
    let model = opened(&device, &directory("t5_a", "lm"));
    let plain = inputs("t5_a", "lm");
    let score = |model: &dyn TextModel, batch: &Batch| {
        model.forward(batch, None, &mut Ctx::inference(&device)).map(|_| ()).map_err(|error| error.to_string())
    };
    score(&*model, &plain).unwrap();
    let count = labels(&plain).len();
    let words = |labels: Vec<i64>| Some(Labels::Classes(labels));
    for (batch, texts) in [
        (Batch { labels: None, ..plain.clone() }, ["decoder_input_ids", "nothing to read"]),
        (Batch { labels: words(vec![1; count - 1]), ..plain.clone() }, ["labels", "27 values for 4 rows"]),
        (Batch { labels: words(Vec::new()), ..plain.clone() }, ["labels", "0 values for 4 rows"]),
        (Batch { labels: words(vec![47; count]), ..plain.clone() }, ["labels[0, 0]", "0 to 46"]),
        (Batch { labels: Some(Labels::Values(vec![0.5; 4])), ..plain.clone() }, ["labels", "numbers to predict"]),
        (Batch { decoder_input_ids: Some(vec![-100; count]), ..plain.clone() }, ["decoder_input_ids[0, 0]", "-100"]),
        (Batch { decoder_input_ids: Some(vec![1; 4]), ..plain.clone() }, ["labels", "4 are needed"]),
        (Batch { decoder_attention_mask: Some(vec![1; 3]), ..plain.clone() }, ["decoder_attention_mask", "3 values"]),
        (
            Batch { decoder_attention_mask: Some(vec![2; count]), ..plain.clone() },
            ["decoder_attention_mask", "other than 0 and 1"],
        ),
        (Batch { attention_mask: Some(vec![1; 3]), ..plain.clone() }, ["attention_mask", "3 values"]),
        (Batch { next_sentence: Some(vec![0; 4]), ..plain.clone() }, ["next_sentence_label", "decoder"]),
        (Batch { choices: 2, ..plain.clone() }, ["2 choices", "predicts tokens"]),
    ] {
        let error = score(&*model, &batch).unwrap_err();
        assert!(texts.iter().all(|text| error.contains(text)), "{error}");
    }
    for (other, head) in [("bert_a", "mlm"), ("gpt2_a", "lm")] {
        let batch = Batch { decoder_input_ids: Some(vec![1; 4]), ..inputs(other, head) };
        let error = score(&*opened(&device, &directory(other, head)), &batch).unwrap_err();
        assert!(error.contains("decoder_input_ids") && error.contains("one stack"), "{error}");
    }
    for head in [TextHead::MaskedLm, TextHead::Classification { outputs: 2 }] {
        let options = OpenOptions { head: Some(head), ..OpenOptions::new(&device) };
        let error = open(&directory("t5_a", "lm"), &options).err().unwrap();
        assert!(error.contains("T5") && error.contains("lm or none"), "{error}");
    }
    let silent = changed(("t5_a", "lm"), &[("decoder_start_token_id", json!(null))], |_| {});
    let silent = opened(&device, silent.path());
    assert!(score(&*silent, &plain).unwrap_err().contains("decoder_start_token_id"));
    score(&*silent, &spelled_out(&plain)).unwrap();
}
