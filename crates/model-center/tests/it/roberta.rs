//! The differences between RoBERTa and BERT: positions that depend on the padding token, a classifier with a dense
//! layer of its own, heads it lacks.

use crate::goldens;

use bmtrain_core::{Ctx, Device};
use bmtrain_dist::param::widen;
use goldens::directories::{changed, open, opened};
use goldens::directory;
use model_center::model::{Batch, HeadInit, OpenOptions, OpenedModel, TextHead};
use serde_json::json;
use std::path::Path;

fn device() -> Device {
    Device::cpu(1).unwrap()
}

fn batch(length: usize, input_ids: Vec<i64>) -> Batch {
    Batch { labels: None, ..Batch::next_tokens(length, input_ids, None) }
}

/// The logits of the masked-language-modelling head.
fn logits(batch: &Batch) -> Result<Vec<f32>, String> {
    let device = device();
    let model = opened(&device, &directory("roberta_a", "mlm"));
    let scores = model.forward(batch, None, &mut Ctx::inference(&device)).map_err(|error| error.to_string())?;
    Ok(widen(scores.logits.unwrap().value()).unwrap())
}

fn with_head(directory: &Path, head: TextHead, head_values: HeadInit) -> Result<OpenedModel, String> {
    open(directory, &OpenOptions { head: Some(head), head_values, ..OpenOptions::new(&device()) })
}

#[test]
fn padding_in_front_of_a_row_moves_no_position() {
    let plain = logits(&batch(3, vec![5, 6, 7])).unwrap();
    let padded = Batch { attention_mask: Some(vec![0, 0, 1, 1, 1]), ..batch(5, vec![1, 1, 5, 6, 7]) };
    let padded = logits(&padded).unwrap();
    let behind = &padded[2 * 83..];
    // The same sums of three keys; products of other heights may round otherwise.
    let apart = plain.iter().zip(behind).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(plain.len() == behind.len() && apart < 1e-5, "{apart}");
}

#[test]
fn rows_are_limited_by_the_positions_after_the_padding_id() {
    let model = opened(&device(), &directory("roberta_a", "mlm"));
    assert_eq!(model.info().max_length, 17, "19 rows, two without a token");
    assert!(logits(&batch(17, vec![5; 17])).is_ok());
    let error = logits(&batch(18, vec![5; 18])).unwrap_err();
    assert!(error.contains("18 tokens in a row, the model has 17 positions"), "{error}");
}

#[test]
fn there_is_no_head_for_the_next_sentence() {
    for head in [TextHead::NextSentence, TextHead::Pretraining, TextHead::CausalLm] {
        let error = with_head(&directory("roberta_b", "mlm"), head, HeadInit::Random).err().unwrap();
        assert!(error.contains("XLM-RoBERTa") && error.contains("ask for mlm, cls, tokens, qa or none"), "{error}");
    }
}

#[test]
fn a_classifier_is_initialized_with_its_own_dense_layer_and_reads_no_pooler() {
    let mlm = directory("roberta_a", "mlm");
    let two = TextHead::Classification { outputs: 2 };
    assert!(with_head(&mlm, two, HeadInit::Directory).err().unwrap().contains("classifier.dense.weight"));
    let opened = with_head(&mlm, two, HeadInit::DirectoryOrRandom).unwrap();
    let own = ["cls_dense.weight", "cls_dense.bias", "cls_projection.weight", "cls_projection.bias"];
    assert_eq!(opened.initialized, own);
    assert!(opened.unused.iter().all(|name| name.starts_with("lm_head.")) && opened.unused.len() == 5);
    let again = with_head(&directory("roberta_a", "cls"), two, HeadInit::Random).unwrap();
    assert_eq!((again.initialized.len(), again.unused.len()), (4, 4));
    // Files of base models have a pooler.
    let based = changed(("roberta_a", "mlm"), &[], |tensors| {
        tensors.insert("roberta.pooler.dense.weight".into(), (vec![20, 20], vec![0.5; 400]));
        tensors.insert("roberta.pooler.dense.bias".into(), (vec![20], vec![0.5; 20]));
    });
    assert_eq!(with_head(based.path(), two, HeadInit::DirectoryOrRandom).unwrap().unused.len(), 7);
    let bare = with_head(based.path(), TextHead::None, HeadInit::Directory).unwrap();
    assert_eq!((bare.initialized.len(), bare.unused.len()), (0, 5));
    assert_eq!(bare.model.parameters().get("pooler.dense.bias").unwrap().read().unwrap(), [0.5; 20]);
}

#[test]
fn a_file_may_have_the_tied_head_under_its_own_names_if_it_is_the_same() {
    let with_twins = |difference: f32| {
        changed(("roberta_a", "mlm"), &[], |tensors| {
            let mut words = tensors["roberta.embeddings.word_embeddings.weight"].clone();
            words.1[3] += difference;
            tensors.insert("lm_head.decoder.weight".into(), words);
            let bias = tensors["lm_head.bias"].clone();
            tensors.insert("lm_head.decoder.bias".into(), bias);
        })
    };
    assert!(open(with_twins(0.0).path(), &OpenOptions::new(&device())).is_ok());
    assert!(open(with_twins(1.0).path(), &OpenOptions::new(&device())).is_err());
    let untied = changed(("roberta_a", "mlm"), &[("tie_word_embeddings", json!(false))], |_| {});
    let error = open(untied.path(), &OpenOptions::new(&device())).err().unwrap();
    assert!(error.contains("tie_word_embeddings is false"), "{error}");
}
