//! Heads of BERT from directories: whose labels a classifier takes over, which labels a head takes, and when there is a
//! loss. The directories are the golden ones with another `config.json`.

use bmtrain_core::{Ctx, Device};
use model_center::config::ProblemType;
use model_center::formats::{
    DirectoryLayout, SafetensorsFile, SafetensorsWriter, StoredDtype, TensorEntry, TensorSource,
};
use model_center::model::{
    Batch, ForwardOptions, HeadInit, Labels, LossSettings, ModelOutput, OpenMode, OpenOptions, OpenedModel, Registry,
    SaveOptions, TextHead,
};
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;

/// The golden directory of a head with fields of its configuration set.
fn directory(head: &str, fields: &[(&str, Value)]) -> TempDir {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/bert_a").join(head);
    let directory = tempfile::tempdir().unwrap();
    std::fs::copy(golden.join("model.safetensors"), directory.path().join("model.safetensors")).unwrap();
    let text = std::fs::read_to_string(golden.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    for (name, value) in fields {
        config[name] = value.clone();
    }
    std::fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    directory
}

/// Removes a field of a directory's configuration.
fn without(directory: &TempDir, field: &str) {
    let path = directory.path().join("config.json");
    let mut config: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert!(config.as_object_mut().unwrap().remove(field).is_some(), "{field}");
    std::fs::write(path, config.to_string()).unwrap();
}

/// Adds tensors of zeros to a directory's weights; existing tensors of the same names are replaced.
fn add(directory: &TempDir, tensors: &[(&str, &[usize])]) {
    let path = directory.path().join("model.safetensors");
    let file = SafetensorsFile::open(&path).unwrap();
    let is_new = |name: &str| tensors.iter().any(|(new, _)| *new == name);
    let mut all: Vec<(TensorEntry, Vec<f32>)> = Vec::new();
    for entry in file.tensors().iter().filter(|entry| !is_new(&entry.name)) {
        let mut values = vec![0.0; entry.elements().unwrap()];
        file.read_f32(&entry.name, &mut values).unwrap();
        all.push((entry.clone(), values));
    }
    for (name, shape) in tensors {
        all.push((TensorEntry::new(*name, StoredDtype::F32, *shape), vec![0.0; shape.iter().product()]));
    }
    let entries: Vec<TensorEntry> = all.iter().map(|(entry, _)| entry.clone()).collect();
    let new = path.with_extension("new");
    let mut writer = SafetensorsWriter::create(&new, &entries).unwrap();
    for (entry, values) in &all {
        writer.write_f32(&entry.name, values).unwrap();
    }
    writer.finish().unwrap();
    std::fs::rename(new, path).unwrap();
}

/// Opens a directory as it is, without values, as changed by `change`.
fn sketch(directory: &TempDir, change: impl FnOnce(&mut OpenOptions)) -> Result<OpenedModel, String> {
    let mut options = OpenOptions { mode: OpenMode::Check, ..OpenOptions::new(&Device::cpu(1).unwrap()) };
    change(&mut options);
    Registry::default().open(directory.path(), &options).map_err(|error| error.to_string())
}

fn has(opened: &OpenedModel, name: &str) -> bool {
    opened.model.parameters().get(name).is_some()
}

fn named(names: [&str; 2]) -> (&'static str, Value) {
    ("id2label", json!({"0": names[0], "1": names[1]}))
}

/// Opens a directory as a classifier of two classes, the way a training program does.
fn open(directory: &TempDir, labels: [&str; 2], head_values: HeadInit) -> Result<OpenedModel, String> {
    let options = OpenOptions {
        head: Some(TextHead::Classification { outputs: 2 }),
        head_values,
        labels: labels.map(String::from).to_vec(),
        problem: Some(ProblemType::SingleLabel),
        ..OpenOptions::new(&Device::cpu(1).unwrap())
    };
    Registry::default().open(directory.path(), &options).map_err(|error| error.to_string())
}

fn classifier(opened: &OpenedModel) -> Vec<f32> {
    opened.model.parameters().get("cls_projection.weight").unwrap().read().unwrap()
}

#[test]
fn a_classifier_is_taken_over_for_its_own_labels_in_its_own_order() {
    let trained = directory("cls", &[named(["yes", "no"])]);
    let kept = open(&trained, ["no", "yes"], HeadInit::DirectoryOrRandom).unwrap();
    assert_eq!((&kept.model.info().label_names[..], kept.initialized.len()), (&["yes", "no"].map(String::from)[..], 0));
    let error = open(&trained, ["no", "maybe"], HeadInit::DirectoryOrRandom).err().unwrap();
    for text in ["the labels yes, no", "the data have no, maybe", "fix: ", "model.head = \"new\""] {
        assert!(error.contains(text), "{error}");
    }
    // The default label names of transformers do not count as names.
    let unnamed = directory("cls", &[named(["LABEL_0", "LABEL_1"])]);
    let kept = open(&unnamed, ["no", "yes"], HeadInit::DirectoryOrRandom).unwrap();
    assert_eq!(kept.model.info().label_names, ["no", "yes"]);
    let numbers = directory("cls", &[("problem_type", json!("regression"))]);
    let error = open(&numbers, ["no", "yes"], HeadInit::DirectoryOrRandom).err().unwrap();
    assert!(error.contains("classifier is for regression, and the data are for single_label"), "{error}");
}

#[test]
fn a_new_classifier_is_initialized_whatever_the_directory_has() {
    let trained = directory("cls", &[named(["yes", "no"]), ("problem_type", json!("regression"))]);
    let old = open(&directory("cls", &[]), ["a", "b"], HeadInit::DirectoryOrRandom).unwrap();
    let new = open(&trained, ["no", "maybe"], HeadInit::Random).unwrap();
    assert_eq!(new.initialized, ["cls_projection.weight", "cls_projection.bias"]);
    assert_eq!(new.unused, ["classifier.weight", "classifier.bias"]);
    assert_eq!(new.model.info().label_names, ["no", "maybe"]);
    assert_ne!(classifier(&old), classifier(&new));
    let pooler = |opened: &OpenedModel| opened.model.parameters().get("pooler.dense.weight").unwrap().read().unwrap();
    assert_eq!(pooler(&old), pooler(&new), "the rest is the directory's");
    // A directory without a classifier gets one, and its own labels belong to something else.
    let base = directory("nsp", &[named(["yes", "no"])]);
    let fresh = open(&base, ["a", "b"], HeadInit::DirectoryOrRandom).unwrap();
    assert_eq!((fresh.initialized.len(), &fresh.model.info().label_names[..]), (2, &["a", "b"].map(String::from)[..]));
}

#[test]
fn dropout_that_is_no_probability_is_refused_wherever_it_comes_from() {
    let directory = directory("cls", &[]);
    let device = Device::cpu(1).unwrap();
    for (hidden_dropout, attention_dropout) in [(Some(1.0), None), (None, Some(1.0)), (Some(f32::NAN), None)] {
        let options = OpenOptions { hidden_dropout, attention_dropout, ..OpenOptions::new(&device) };
        let error = Registry::default().open(directory.path(), &options).err().unwrap().to_string();
        assert!(error.contains("not a dropout probability"), "{error}");
    }
}

#[test]
fn a_configuration_that_cannot_be_saved_is_known_before_there_are_weights() {
    let directory = directory("cls", &[("attn_scale", json!(false))]);
    let options = OpenOptions { mode: OpenMode::Check, ..OpenOptions::new(&Device::cpu(1).unwrap()) };
    let opened = Registry::default().open(directory.path(), &options).unwrap();
    let error = opened.model.check_save(&SaveOptions {
        dtype: bmtrain_core::DType::F32,
        companions: None,
        layout: DirectoryLayout::HuggingFace,
    });
    assert!(error.unwrap_err().to_string().contains("cannot be written as a Hugging Face directory"));
}

#[test]
fn embedding_tables_do_not_count_as_matmul_parameters() {
    let count = |head: &str| {
        let opened = Registry::default().open(directory(head, &[]).path(), &OpenOptions::new(&Device::cpu(1).unwrap()));
        let opened = opened.unwrap();
        opened.parameters - opened.model.matmul_parameters()
    };
    let (tokens, others) = (101 * 32, (24 + 2) * 32);
    assert_eq!(count("cls"), tokens + others);
    assert_eq!(count("mlm"), others, "the masked-language-modelling head multiplies by the token embedding");
}

const IDS: [i64; 8] = [2, 7, 9, 3, 2, 8, 6, 3];

fn score(directory: &TempDir, labels: Option<Labels>, next_sentence: Option<Vec<i64>>) -> Result<ModelOutput, String> {
    let device = Device::cpu(1).unwrap();
    let opened = Registry::default().open(directory.path(), &OpenOptions::new(&device)).unwrap();
    let batch = Batch { labels, next_sentence, ..Batch::new(4, IDS.to_vec()) };
    opened.model.forward(&batch, None, &mut Ctx::inference(&device)).map_err(|error| error.to_string())
}

#[test]
fn pretraining_has_a_loss_only_with_the_labels_of_both_heads() {
    let directory = directory("pretraining", &[]);
    let words = || Some(Labels::Classes(IDS.to_vec()));
    let loss = |labels, next| score(&directory, labels, next).unwrap().loss.map(|loss| loss.value().item().unwrap());
    assert_eq!(loss(words(), None), None);
    assert_eq!(loss(None, Some(vec![0, 1])), None);
    assert_eq!(loss(None, None), None);
    let both: f32 = loss(words(), Some(vec![0, 1])).unwrap();
    assert!(both > 0.0 && both.is_finite());
}

#[test]
fn a_regression_has_the_mean_squared_error_of_every_output() {
    let directory = directory("cls", &[("problem_type", json!("regression"))]);
    let labels = vec![0.5, -1.0, 2.0, 0.25];
    let scores = score(&directory, Some(Labels::Values(labels.clone())), None).unwrap();
    let logits = scores.logits.unwrap().value().to_vec::<f32>().unwrap();
    let expected: f32 = logits.iter().zip(&labels).map(|(a, b)| (a - b) * (a - b)).sum::<f32>() / 4.0;
    let loss = scores.loss.unwrap().value().item().unwrap();
    // Two orders of summing four squares.
    assert!((loss - expected).abs() <= 1e-6 * expected, "{loss} for {expected}");
}

#[test]
fn classes_weigh_in_the_mean_of_a_classifier_as_in_torch() {
    let device = Device::cpu(1).unwrap();
    let directory = directory("cls", &[]);
    let opened = Registry::default().open(directory.path(), &OpenOptions::new(&device)).unwrap();
    let scored = |weights: Option<Vec<f32>>, targets: [i64; 2]| {
        let mut batch = Batch::next_tokens(4, IDS.to_vec(), None);
        batch.labels = Some(Labels::Classes(targets.to_vec()));
        let loss = LossSettings { class_weights: weights.as_deref(), ..LossSettings::default() };
        let options = ForwardOptions { loss, ..ForwardOptions::default() };
        opened.model.forward_with(&batch, options, &mut Ctx::inference(&device)).map_err(|error| error.to_string())
    };
    for targets in [[0, 1], [1, 1], [1, 0]] {
        let scores = scored(Some(vec![0.5, 3.0]), targets).unwrap();
        let logits = scores.logits.unwrap().value().to_vec::<f32>().unwrap();
        // torch.nn.functional.cross_entropy: sum of w[t] * -log softmax(x)[t], over the sum of w[t].
        let (mut sum, mut weight) = (0.0f64, 0.0f64);
        for (row, target) in logits.chunks(2).zip(targets) {
            let all: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
            let class = [0.5, 3.0][target as usize];
            sum += class * (all.ln() - f64::from(row[target as usize]));
            weight += class;
        }
        let loss = f64::from(scores.loss.unwrap().value().item().unwrap());
        // Arithmetic in f32.
        assert!((loss - sum / weight).abs() < 1e-6, "{targets:?}: {loss} for {}", sum / weight);
    }
    for wrong in [vec![1.0], vec![1.0, 0.0], vec![1.0, f32::NAN], vec![1.0; 3]] {
        let error = scored(Some(wrong), [0, 1]).unwrap_err();
        assert!(error.contains("weights for 2 classes"), "{error}");
    }
}

#[test]
fn labels_of_another_kind_than_the_heads_are_refused() {
    let (classes, numbers) = (Labels::Classes(vec![0, 1]), Labels::Values(vec![0.5, 1.0]));
    let regression = directory("cls", &[("problem_type", json!("regression"))]);
    let several = directory("cls", &[("problem_type", json!("multi_label_classification"))]);
    let cases = [
        (&regression, classes.clone(), "class numbers, and this model predicts numbers"),
        (&regression, numbers.clone(), "labels has 2 values, and 4 are needed"),
        (&regression, Labels::Values(vec![0.0, 1.0, f32::NAN, 1.0]), "NaN is not finite"),
        (&directory("cls", &[]), numbers.clone(), "numbers to predict, and this model tells classes apart"),
        (&directory("mlm", &[]), numbers.clone(), "numbers to predict, and this model tells classes apart"),
        (&several, classes, "multi_label_classification"),
        (&several, numbers, "labels has 2 values, and 4 are needed"),
        (&several, Labels::Values(vec![0.0, 1.0, 1.5, 1.0]), "labels[2]: 1.5 is not from 0 to 1"),
    ];
    for (directory, labels, text) in cases {
        let error = score(directory, Some(labels), None).unwrap_err();
        assert!(error.contains(text) && error.contains("fix: "), "{error}");
    }
    assert!(score(&several, None, None).unwrap().logits.is_some());
}

/// Three heads that no family has, and one of transformers for another task.
const HEADS: [(&str, &[usize]); 6] = [
    ("topic_head.weight", &[7, 32]),
    ("topic_head.bias", &[7]),
    ("ner.out.weight", &[9, 32]),
    ("bert.adapter.weight", &[4, 32]),
    ("qa_outputs.weight", &[2, 32]),
    ("qa_outputs.bias", &[2]),
];

#[test]
fn a_head_is_reached_beside_others_that_are_left_out() {
    let several = directory("mlm", &[]);
    add(&several, &HEADS);
    let error = sketch(&several, |_| ()).err().unwrap();
    for text in ["0 missing, 4 unexpected", "--leave 'bert.adapter.*' --leave 'ner.*' --leave 'topic_head.*'"] {
        assert!(error.contains(text), "{error}");
    }
    let leave = ["bert.adapter.*", "ner.*", "topic_head.*"].map(str::to_owned).to_vec();
    let opened = sketch(&several, |options| options.ignored = leave.clone()).unwrap();
    assert!(has(&opened, "lm_head.dense.weight"));
    assert_eq!(opened.unused, ["qa_outputs.bias", "qa_outputs.weight"]);
    assert_eq!(opened.plan.left().len(), 4);
    let error = sketch(&several, |options| options.ignored = vec!["bert.*".into()]).err().unwrap();
    assert!(error.contains("which the model needs"), "{error}");
    // A pattern is for names as the file has them, not for what replaced old ones.
    let old = directory("mlm", &[]);
    add(&old, &[("topic.weight", &[7, 32]), ("topic.LayerNorm.gamma", &[32])]);
    let error = sketch(&old, |options| options.ignored = vec!["topic.*weight".into()]).err().unwrap();
    assert!(error.contains("1 unexpected") && error.contains("topic.LayerNorm.gamma"), "{error}");
}

#[test]
fn the_head_of_a_directory_that_names_no_class_is_the_one_its_weights_have() {
    for (head, parameter, note) in [
        ("mlm", Some("lm_head.dense.weight"), "the head is mlm"),
        ("nsp", Some("nsp_projection.weight"), "the head is nsp"),
        ("cls", Some("cls_projection.weight"), "the head is cls, with 2 classes by the rows of the classifier"),
    ] {
        let silent = directory(head, &[]);
        without(&silent, "architectures");
        let opened = sketch(&silent, |_| ()).unwrap();
        let heads = ["lm_head.dense.weight", "nsp_projection.weight", "cls_projection.weight"];
        for name in heads {
            assert_eq!(has(&opened, name), parameter == Some(name), "{head} {name}");
        }
        assert!(opened.initialized.is_empty() && opened.unused.is_empty(), "{head}");
        assert_eq!(opened.notes, [format!("config.json names no class; by its tensors {note}")]);
    }
    let both = directory("pretraining", &[]);
    without(&both, "architectures");
    let opened = sketch(&both, |_| ()).unwrap();
    assert!(has(&opened, "lm_head.dense.weight") && has(&opened, "nsp_projection.weight"));
    // Of several heads none is taken, unless it is asked for.
    add(&both, &[("classifier.weight", &[5, 32]), ("classifier.bias", &[5])]);
    let error = sketch(&both, |_| ()).err().unwrap();
    assert!(error.contains("several heads: mlm, nsp, cls") && error.contains("--head"), "{error}");
    let opened = sketch(&both, |options| options.head = Some(TextHead::MaskedLm)).unwrap();
    assert!(has(&opened, "lm_head.dense.weight") && !has(&opened, "cls_projection.weight"));
    assert!(opened.notes.is_empty(), "what is asked for is not inferred: {:?}", opened.notes);
    // A classifier that the weights do not have is a new one, whatever the labels in the file.
    let other = directory("mlm", &[named(["neg", "pos"])]);
    without(&other, "architectures");
    let opened = sketch(&other, |options| {
        options.head = Some(TextHead::Classification { outputs: 2 });
        options.head_values = HeadInit::DirectoryOrRandom;
        options.labels = vec!["a".into(), "b".into()];
    });
    let opened = opened.unwrap();
    assert!(opened.plan.fresh().iter().any(|name| name == "cls_projection.weight") && opened.notes.is_empty());
    assert_eq!(opened.model.info().label_names, ["a", "b"]);
    // A class that the weights do not have is an error.
    let lying = directory("mlm", &[("architectures", json!(["BertForSequenceClassification"]))]);
    assert!(sketch(&lying, |_| ()).err().unwrap().contains("classifier.weight"));
}

#[test]
fn classes_are_counted_as_transformers_counts_them() {
    let outputs = |fields: &[(&str, Value)], rows: usize| {
        let many = directory("cls", fields);
        add(&many, &[("classifier.weight", &[rows, 32]), ("classifier.bias", &[rows])]);
        sketch(&many, |_| ()).map(|opened| {
            let shape = opened.model.parameters().get("cls_projection.bias").unwrap().spec().shape;
            let is_inferred = rows != 2 && fields.iter().all(|(name, value)| *name != "num_labels" || *value != rows);
            let note = format!("there are {rows} classes by the rows of the classifier");
            let noted: Vec<bool> = opened.notes.iter().map(|text| text.ends_with(&note)).collect();
            assert_eq!(noted, vec![true; usize::from(is_inferred)], "{:?}", opened.notes);
            (shape.elements(), opened.model.info().label_names.len())
        })
    };
    let old = || ("id2label", json!({"0": "LABEL_0", "1": "LABEL_1"}));
    let inverse = || ("label2id", json!({"LABEL_0": 0, "LABEL_1": 1}));
    // Default names are ignored when their number differs from the other, whichever of the two fits the weights.
    let five: serde_json::Map<_, _> = (0..5).map(|i| (i.to_string(), json!(format!("LABEL_{i}")))).collect();
    assert_eq!(outputs(&[("id2label", Value::Object(five.clone())), ("num_labels", json!(2))], 5).unwrap(), (5, 0));
    assert!(outputs(&[("id2label", Value::Object(five))], 4).is_err());
    assert_eq!(outputs(&[old(), inverse(), ("num_labels", json!(50))], 50).unwrap(), (50, 0));
    assert_eq!(outputs(&[("num_labels", json!(50))], 50).unwrap(), (50, 0));
    // A default states nothing: the weights tell.
    assert_eq!(outputs(&[old(), inverse()], 50).unwrap(), (50, 0));
    assert_eq!(outputs(&[], 50).unwrap(), (50, 0));
    assert_eq!(outputs(&[old(), inverse()], 2).unwrap(), (2, 2));
    // What is stated and contradicts the weights is an error.
    for fields in [&[("num_labels", json!(3))][..], &[named(["yes", "no"])]] {
        let error = outputs(fields, 50).unwrap_err();
        assert!(error.contains("classifier.weight") && error.contains("[50, 32]"), "{error}");
    }
    let error = outputs(&[named(["yes", "no"]), ("num_labels", json!(50))], 50).unwrap_err();
    assert!(error.contains("num_labels is 50, but id2label names 2 classes"), "{error}");
}
