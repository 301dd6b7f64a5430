//! GPT-2 from folders and back: both layouts of names, what a trained model leaves behind, ranks that share it, initial
//! values, and the mistakes that are refused. The folders are the golden ones.
#![allow(clippy::unwrap_used)]

mod goldens;

use bmtrain_core::autograd::Randomness;
use bmtrain_core::comm::Communicator;
use bmtrain_core::comm::host::{HostGroup, HostOptions};
use bmtrain_core::kernel::NormOrder;
use bmtrain_core::{Ctx, DType, Device};
use bmtrain_dist::block::{BlockOptions, Recompute};
use bmtrain_dist::optim::{Adam, AdamOptions, Clip, ParamGroup};
use bmtrain_dist::param::{BuilderOptions, WholeReader, widen};
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use bmtrain_dist::{Model, OptimManager};
use goldens::{folder, inputs};
use model_center::config::{Gpt2Config, ProblemType};
use model_center::hf::{SafetensorsFile, SafetensorsWriter, StoredDtype, TensorEntry, TensorSource};
use model_center::model::decoder::DecoderHead;
use model_center::model::gpt2::Gpt2;
use model_center::model::{
    HeadValues, OpenOptions, OpenedModel, Registry, SaveOptions, TextBatch, TextHead, TextLabels, TextModel,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

const F32: SaveOptions<'static> = SaveOptions { dtype: DType::F32, companions: None };

fn open(folder: &Path, options: &OpenOptions) -> Result<OpenedModel, String> {
    Registry::default().open(folder, options).map_err(|error| error.to_string())
}

fn opened(device: &Device, folder: &Path) -> Box<dyn TextModel> {
    open(folder, &OpenOptions::new(device)).unwrap().model
}

fn logits(device: &Device, model: &dyn TextModel, batch: &TextBatch) -> Vec<f32> {
    let scores = model.score(batch, None, &mut Ctx::inference(device)).unwrap();
    widen(scores.logits.unwrap().value()).unwrap()
}

/// Steps of training, with the dropout of the configuration.
fn train(device: &Device, model: &dyn TextModel, batch: &TextBatch, ranks: usize, steps: u32) -> Vec<f32> {
    let mut optim = OptimManager::new(device, Clip { order: NormOrder::Two, max_norm: 1.0 }).unwrap();
    let groups = ParamGroup::by_decay(model.parameters(), 0.01);
    optim.add(Box::new(Adam::new(groups, AdamOptions::default()).unwrap()), 1e-3);
    let step = |step: u32| {
        let mut cx = Ctx::training(device, Randomness { seed: 3, step, micro_batch: 0 });
        let loss = model.loss(batch, &mut cx).unwrap().unwrap();
        optim.backward_last(&loss, 1.0 / ranks as f32, &mut cx).unwrap();
        optim.step().unwrap();
        loss.value().item().unwrap()
    };
    (0..steps).map(step).collect()
}

/// All tensors of a file as they are stored.
fn tensors(folder: &Path) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let file = SafetensorsFile::open(&folder.join("model.safetensors")).unwrap();
    let read = |entry: &TensorEntry| {
        let mut values = vec![0.0; entry.shape.iter().product()];
        file.read_f32(&entry.name, &mut values).unwrap();
        (entry.name.clone(), (entry.shape.clone(), values))
    };
    file.tensors().iter().map(read).collect()
}

fn write(path: &Path, tensors: &BTreeMap<String, (Vec<usize>, Vec<f32>)>) {
    let entry = |(name, (shape, _)): (&String, &(Vec<usize>, Vec<f32>))| {
        TensorEntry::new(name.clone(), StoredDtype::F32, shape.clone())
    };
    let entries: Vec<TensorEntry> = tensors.iter().map(entry).collect();
    let mut writer = SafetensorsWriter::create(path, &entries).unwrap();
    for (name, (_, values)) in tensors {
        writer.write_f32(name, values).unwrap();
    }
    writer.finish().unwrap();
}

/// A golden folder with other tensors and other fields of its configuration.
fn changed(
    (model, head): (&str, &str),
    fields: &[(&str, Value)],
    change: impl FnOnce(&mut BTreeMap<String, (Vec<usize>, Vec<f32>)>),
) -> TempDir {
    let (golden, to) = (folder(model, head), tempfile::tempdir().unwrap());
    let mut values = tensors(&golden);
    change(&mut values);
    write(&to.path().join("model.safetensors"), &values);
    let text = std::fs::read_to_string(golden.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    for (name, value) in fields {
        config[name] = value.clone();
    }
    std::fs::write(to.path().join("config.json"), config.to_string()).unwrap();
    to
}

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
            logits(&device, &*opened(&device, &folder("gpt2_a", head)), &batch),
            "{head}"
        );
    }
}

#[test]
fn a_stored_copy_of_the_words_must_be_one() {
    let device = Device::cpu(1).unwrap();
    let words = |tensors: &BTreeMap<String, (Vec<usize>, Vec<f32>)>| tensors["transformer.wte.weight"].clone();
    let twice = changed(("gpt2_a", "lm"), &[], |tensors| {
        tensors.insert("lm_head.weight".into(), words(tensors));
    });
    let batch = inputs("gpt2_a", "lm");
    let tied = opened(&device, twice.path());
    assert_eq!(logits(&device, &*tied, &batch), logits(&device, &*opened(&device, &folder("gpt2_a", "lm")), &batch));
    assert!(tied.parameters().get("lm_head.weight").is_none(), "the words are one parameter");
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

/// Where trained folders go: for `scripts/claims/parity-gpt2.sh` a folder of its own, which transformers reads then.
fn exports() -> (Option<TempDir>, PathBuf) {
    match std::env::var_os("BMTRAIN_GPT2_EXPORTS") {
        Some(folder) => (None, PathBuf::from(folder)),
        None => {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().to_owned();
            (Some(folder), path)
        }
    }
}

#[test]
fn what_a_trained_model_leaves_behind_is_read_back_bit_for_bit() {
    let (_kept, exports) = exports();
    for model in ["gpt2_a", "gpt2_b"] {
        for head in ["lm", "untied", "cls"] {
            let (device, golden, batch) = (Device::cpu(1).unwrap(), folder(model, head), inputs(model, head));
            let trained = opened(&device, &golden);
            train(&device, &*trained, &batch, 1, 3);
            let to = exports.join(format!("{model}_{head}"));
            trained.check_save(&F32).unwrap();
            trained.save(&to, &F32).unwrap();
            let again = opened(&device, &to);
            for (a, b) in trained.parameters().iter().zip(again.parameters()) {
                assert_eq!(a.name(), b.name());
                let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
                assert_eq!(bits(a.read().unwrap()), bits(b.read().unwrap()), "{}", a.name());
            }
            let (before, after) = (tensors(&golden), tensors(&to));
            assert!(before.keys().eq(after.keys()), "{model} {head}: {:?}", after.keys());
            assert!(before.iter().all(|(name, (shape, values))| after[name].0 == *shape && after[name].1 != *values));
            let result = logits(&device, &*again, &batch);
            let entries = BTreeMap::from([("logits".to_owned(), (vec![result.len()], result))]);
            write(&to.join("ours.safetensors"), &entries);
            std::fs::copy(golden.join("inputs.safetensors"), to.join("inputs.safetensors")).unwrap();
            let field = |folder: &Path, name: &str| {
                let text = std::fs::read_to_string(folder.join("config.json")).unwrap();
                serde_json::from_str::<Value>(&text).unwrap().get(name).cloned().unwrap_or(Value::Null)
            };
            for name in ["architectures", "n_inner", "n_ctx", "eos_token_id", "tie_word_embeddings", "pad_token_id"] {
                assert_eq!(field(&golden, name), field(&to, name), "{model} {head} {name}");
            }
        }
    }
}

#[test]
fn two_ranks_with_zero_3_train_and_write_what_one_does() {
    for head in ["lm", "cls"] {
        let golden = folder("gpt2_b", head);
        let batch = inputs("gpt2_b", head);
        let written = tempfile::tempdir().unwrap();
        let device = Device::cpu(1).unwrap();
        let options = |device: &Device| OpenOptions {
            hidden_dropout: Some(0.1),
            attention_dropout: Some(0.1),
            recompute: Recompute::Checkpoint,
            ..OpenOptions::new(device)
        };
        let alone = open(&golden, &options(&device)).unwrap().model;
        let losses = train(&device, &*alone, &batch, 1, 4);
        assert!(losses[0] != losses[1] && losses.iter().all(|loss| loss.is_finite()), "{losses:?}");
        alone.save(&written.path().join("alone"), &F32).unwrap();
        let group = HostGroup::threads(2, HostOptions::default()).unwrap();
        std::thread::scope(|scope| {
            for rank in group {
                let (golden, batch, losses, to) = (&golden, &batch, &losses, written.path().join("shared"));
                let options = &options;
                scope.spawn(move || {
                    let (device, ranks) = (Device::cpu(1).unwrap(), Arc::new(rank));
                    let is_first = ranks.rank() == 0;
                    let sharding = Sharding { ranks, level: ZeroLevel::Three, sum: GradientSum::Fast, prefetch: true };
                    let options = OpenOptions { sharding, ..options(&device) };
                    let model = open(golden, &options).unwrap().model;
                    // Both ranks with the same rows: half of each gradient, twice.
                    assert_eq!(train(&device, &*model, batch, 2, 4), *losses);
                    match is_first {
                        true => model.save(&to, &F32).unwrap(),
                        false => {
                            let mut reader = WholeReader::default();
                            model.parameters().iter().try_for_each(|param| reader.pass(param)).unwrap();
                        }
                    }
                });
            }
        });
        let file = |name: &str| std::fs::read(written.path().join(name).join("model.safetensors")).unwrap();
        assert!(file("alone") == file("shared"), "{head}");
    }
}

fn small() -> Gpt2Config {
    Gpt2Config {
        vocab_size: 64,
        dim_model: 48,
        num_heads: 4,
        dim_head: 12,
        dim_ff: 96,
        num_layers: 8,
        position_size: 16,
        ..Gpt2Config::default()
    }
}

fn born(head: DecoderHead) -> Gpt2 {
    let device = Device::cpu(1).unwrap();
    Gpt2::new(&device, small(), head, BlockOptions::default(), BuilderOptions::default()).unwrap()
}

#[test]
fn initial_values_are_those_of_gpt2() {
    let model = born(DecoderHead::CausalLm { tied: true });
    let deviation = |name: &str| {
        let values = Model::parameters(&model).get(name).unwrap().read().unwrap();
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
        // 768 and more draws: five standard errors of their deviation.
        assert!((got - expected).abs() <= 0.13 * expected, "{name}: {got} for {expected}");
    }
}

#[test]
fn a_model_from_a_configuration_learns_a_text_by_heart() {
    let device = Device::cpu(1).unwrap();
    let options = BuilderOptions { seed: 5, ..BuilderOptions::default() };
    let config = Gpt2Config { num_layers: 2, dropout_p: 0.05, ..small() };
    let head = DecoderHead::CausalLm { tied: true };
    let blocks = BlockOptions { recompute: Recompute::Checkpoint };
    let model = Gpt2::new(&device, config, head, blocks, options).unwrap();
    let ids = (0..32).map(|at| (at * at * 7 + 3 * at) % 64).collect();
    let mask = (0..32).map(|at| u8::from(at < 28)).collect();
    let losses = train(&device, &model, &TextBatch::next_words(16, ids, Some(mask)), 1, 120);
    assert!((losses[0] - 64f32.ln()).abs() < 0.1, "{} when all words are equally likely", losses[0]);
    assert!(losses[119] < 0.5, "{}", losses[119]);
}

#[test]
fn the_words_multiply_where_they_are_the_head_and_are_looked_up_elsewhere() {
    let looked_up = |head| {
        let model = born(head);
        Model::parameters(&model).count() - model.multiplied_values()
    };
    let (words, positions) = (64 * 48, 16 * 48);
    assert_eq!(looked_up(DecoderHead::CausalLm { tied: true }), positions);
    assert_eq!(looked_up(DecoderHead::CausalLm { tied: false }), words + positions);
    assert_eq!(looked_up(DecoderHead::Classifier { outputs: 2 }), words + positions);
}

fn rows(ids: &[i64], labels: Option<TextLabels>) -> TextBatch {
    TextBatch {
        rows: 2,
        length: ids.len() / 2,
        input_ids: ids.to_vec(),
        attention_mask: None,
        token_type_ids: None,
        labels,
        next_sentence: None,
        choices: 1,
        label_smoothing: 0.0,
    }
}

#[test]
fn a_later_token_changes_nothing_before_it() {
    let device = Device::cpu(1).unwrap();
    let model = opened(&device, &folder("gpt2_a", "lm"));
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
    let model = opened(&device, &folder("gpt2_a", "lm"));
    let plain = rows(&[5, 6, 7, 8], None);
    let typed = TextBatch { token_type_ids: Some(vec![0, 1, 0, 1]), ..plain.clone() };
    assert!(!model.has_token_types());
    assert_eq!(logits(&device, &*model, &plain), logits(&device, &*model, &typed));
}

#[test]
fn a_language_model_becomes_a_classifier_with_a_new_head() {
    let options = OpenOptions {
        head: Some(TextHead::Classification { outputs: 2 }),
        head_values: HeadValues::FolderOrDrawn,
        labels: ["no", "yes"].map(String::from).to_vec(),
        problem: Some(ProblemType::SingleLabel),
        ..OpenOptions::new(&Device::cpu(1).unwrap())
    };
    let fresh = open(&folder("gpt2_a", "untied"), &options).unwrap();
    assert_eq!(
        (&fresh.drawn[..], &fresh.unused[..]),
        (&["cls_projection.weight".to_owned()][..], &["lm_head.weight".to_owned()][..])
    );
    assert_eq!(fresh.model.label_names(), ["no", "yes"]);
    let trained = open(&folder("gpt2_a", "cls"), &options).err().unwrap();
    assert!(trained.contains("a classifier with 3 outputs, and the data need 2"), "{trained}");
}

#[test]
fn what_a_decoder_has_not_is_refused_by_name() {
    let device = Device::cpu(1).unwrap();
    for head in [TextHead::MaskedLm, TextHead::NextSentence, TextHead::Pretraining] {
        let error = open(&folder("gpt2_a", "lm"), &OpenOptions { head: Some(head), ..OpenOptions::new(&device) });
        let error = error.err().unwrap();
        assert!(error.contains("GPT-2 is a decoder") && error.contains("fix: "), "{error}");
    }
    let encoder = OpenOptions { head: Some(TextHead::CausalLm), ..OpenOptions::new(&device) };
    let error = open(&folder("bert_a", "cls"), &encoder).err().unwrap();
    assert!(error.contains("for decoders, and BERT is an encoder"), "{error}");
    let model = opened(&device, &folder("gpt2_a", "lm"));
    let refused = |batch: TextBatch| model.score(&batch, None, &mut Ctx::inference(&device)).unwrap_err().to_string();
    let ids = [5, 6, 7, 8];
    for (batch, texts) in [
        (rows(&[5, 6, 97, 8], None), ["input_ids[1, 0]", "0 to 96"]),
        (rows(&[1; 40], None), ["20 tokens", "19 positions"]),
        (TextBatch { next_sentence: Some(vec![0, 1]), ..rows(&ids, None) }, ["next_sentence_label", "decoder"]),
        (rows(&ids, Some(TextLabels::Classes(vec![5, 6, 7, -1]))), ["labels[1, 1]", "write -100"]),
        (rows(&ids, Some(TextLabels::Values(vec![0.5, 1.0]))), ["numbers to predict", "i64"]),
        (TextBatch { attention_mask: Some(vec![1; 3]), ..rows(&ids, None) }, ["3 values", "4 input ids"]),
    ] {
        let error = refused(batch);
        assert!(texts.iter().all(|text| error.contains(text)), "{error}");
    }
}

#[test]
fn weights_of_another_shape_and_further_ones_are_named() {
    let options = OpenOptions { only_check: true, ..OpenOptions::new(&Device::cpu(1).unwrap()) };
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
    let error = open(tied.path(), &OpenOptions { only_check: false, ..options }).err().unwrap();
    assert!(error.contains("the model was not tied"), "{error}");
}
