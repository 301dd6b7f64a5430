//! Differences between a model and its file: new heads, ignored and optional tensors, other shapes.

use super::{BERT, check, export_all, load, ours, read_all, report, write_all};
use bmtrain_core::dtype::DType;
use model_center::formats::{
    Allow, LoadPlan, ParamShape, SafetensorsFile, SafetensorsWriter, StoredDtype, TensorEntry, Weights,
};

#[test]
fn a_new_head_must_be_named_and_an_old_one_left_by_name() {
    let pretrained = ours(1, &["pooler.dense.weight", "lm_head.decoder.bias"]);
    let classifier = ours(1, &["pooler.dense.weight", "cls_projection.weight"]);
    let dir = tempfile::tempdir().unwrap();
    export_all(&BERT, &pretrained, dir.path(), DType::F32, true, u64::MAX);
    let weights = Weights::open(dir.path()).unwrap();
    let text = report(&BERT, &classifier, &weights, &Allow::default());
    assert!(text.contains("1 missing, 1 unexpected"), "{text}");
    assert!(
        text.contains("classifier.weight (our cls_projection.weight)") && text.contains("cls.predictions.bias"),
        "{text}"
    );
    let allow = Allow { missing: vec!["cls_projection.*".into()], unused: vec!["cls.*".into()], ..Allow::default() };
    let plan = LoadPlan::build(&BERT, &classifier, &weights, &allow).unwrap();
    assert_eq!(plan.fresh(), ["cls_projection.weight"]);
    assert_eq!(plan.unused(), ["cls.predictions.bias"]);
    assert_eq!(plan.loaded(), classifier.len() - 1);
    let typo = Allow { missing: vec!["cls_projektion.*".into()], ..Allow::default() };
    assert!(report(&BERT, &classifier, &weights, &typo).contains("no parameter of the model has a name like this"));
}

#[test]
fn what_the_user_leaves_out_must_be_there_and_must_not_be_needed() {
    let params = ours(1, &["lm_head.decoder.bias"]);
    let dir = tempfile::tempdir().unwrap();
    export_all(&BERT, &params, dir.path(), DType::F32, true, u64::MAX);
    let mut tensors = read_all(&Weights::open(dir.path()).unwrap());
    for name in ["ner.weight", "ner.bias", "bert.adapter.weight", "cls.topic.weight"] {
        tensors.insert(name.into(), (vec![2], vec![1.0, 2.0]));
    }
    let file = write_all(&dir.path().join("heads.safetensors"), &tensors);
    let text = report(&BERT, &params, &file, &Allow::default());
    assert!(text.contains("0 missing, 4 unexpected"), "{text}");
    // What the error offers helps.
    let offered = ["bert.adapter.*", "cls.topic.*", "ner.*"].map(str::to_owned).to_vec();
    let options: Vec<String> = offered.iter().map(|pattern| format!("--leave '{pattern}'")).collect();
    assert!(text.contains(&options.join(" ")), "{text}");
    assert!(text.contains("model.leave = [\"bert.adapter.*\", \"cls.topic.*\", \"ner.*\"]"), "{text}");
    let leave = |patterns: &[String]| Allow { ignored: patterns.to_vec(), ..Allow::default() };
    let plan = LoadPlan::build(&BERT, &params, &file, &leave(&offered)).unwrap();
    assert_eq!(plan.left(), ["bert.adapter.weight", "cls.topic.weight", "ner.bias", "ner.weight"]);
    assert!(plan.unused().is_empty() && plan.passed_over(&file).is_empty());
    check(&params, &load(&BERT, &params, &file, &leave(&offered)));
    for (pattern, want) in [
        ("nerr.*", "the pattern \"nerr.*\" of tensors to leave out matches none"),
        ("cls.*", "matches cls.predictions.bias, which the model needs"),
        ("*", "which the model needs"),
    ] {
        let text = report(&BERT, &params, &file, &leave(&[pattern.to_owned()]));
        assert!(text.contains(want) && text.contains("model.leave"), "{text}");
    }
    // Where tensors are missing too, leaving others out would not help, and is not offered.
    tensors.remove("cls.predictions.bias");
    let file = write_all(&dir.path().join("heads.safetensors"), &tensors);
    assert!(!report(&BERT, &params, &file, &Allow::default()).contains("--leave"));
}

#[test]
fn a_new_head_ignores_the_files_head_whatever_its_shape() {
    let old = ours(1, &["pooler.dense.weight", "cls_projection.weight"]);
    let dir = tempfile::tempdir().unwrap();
    export_all(&BERT, &old, dir.path(), DType::F32, true, u64::MAX);
    let weights = Weights::open(dir.path()).unwrap();
    let mut new = old.clone();
    new.last_mut().unwrap().shape = vec![9, 4];
    let allow = Allow { fresh: vec!["cls_projection.*".into()], ..Allow::default() };
    for params in [&old, &new] {
        let plan = LoadPlan::build(&BERT, params, &weights, &allow).unwrap();
        assert_eq!(
            (plan.fresh(), plan.unused()),
            (&["cls_projection.weight".into()][..], &["classifier.weight".into()][..])
        );
        assert_eq!(plan.loaded(), params.len() - 1);
    }
    let typo = Allow { fresh: vec!["cls_projektion.*".into()], ..Allow::default() };
    assert!(report(&BERT, &new, &weights, &typo).contains("no parameter of the model has a name like this"));
}

#[test]
fn an_optional_tensor_may_be_absent_and_a_part_of_a_fused_one_may_not() {
    let params = ours(1, &["pooler.dense.weight"]);
    let dir = tempfile::tempdir().unwrap();
    export_all(&BERT, &params[..5], dir.path(), DType::F32, false, u64::MAX);
    let weights = Weights::open(dir.path()).unwrap();
    assert_eq!(LoadPlan::build(&BERT, &params, &weights, &Allow::default()).unwrap().fresh(), ["pooler.dense.weight"]);
    let mut tensors = read_all(&weights);
    tensors.remove("encoder.layer.0.attention.self.key.bias");
    let file = write_all(&dir.path().join("x.safetensors"), &tensors);
    let allow = Allow { missing: vec!["*".into()], unused: vec!["*".into()], ..Allow::default() };
    let text = report(&BERT, &params, &file, &allow);
    assert!(
        text.contains("bert.encoder.layer.0.attention.self.key.bias or encoder.layer.0.attention.self.key.bias"),
        "{text}"
    );
}

#[test]
fn weights_of_another_size_are_reported_on_one_screen() {
    let dir = tempfile::tempdir().unwrap();
    let params = ours(12, &[]);
    export_all(&BERT, &params, dir.path(), DType::F32, true, u64::MAX);
    let weights = Weights::open(dir.path()).unwrap();
    let mut wider = ours(13, &[]);
    for param in &mut wider {
        param.shape.iter_mut().filter(|d| **d == 4).for_each(|d| *d = 8);
    }
    let text = report(&BERT, &wider, &weights, &Allow::default());
    assert!(
        text.contains(
            "bert.embeddings.word_embeddings.weight (our input_embedding.weight): expected [7, 8], got [7, 4]"
        ),
        "{text}"
    );
    assert!(text.contains("more") && text.contains("fix:") && text.contains("config.json"), "{text}");
    assert!(text.lines().count() < 30, "{text}");
}

#[test]
fn integers_and_two_names_for_one_tensor_are_no_weights() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    let params = [ParamShape::new("embedding_norm.weight", [4])];
    let entries = [TensorEntry::new("embeddings.LayerNorm.weight", StoredDtype::I64, [4])];
    let mut writer = SafetensorsWriter::create(&path, &entries).unwrap();
    writer.write_raw("embeddings.LayerNorm.weight", &[0; 32]).unwrap();
    writer.finish().unwrap();
    let text = report(&BERT, &params, &SafetensorsFile::open(&path).unwrap(), &Allow::default());
    assert!(text.contains("expected [4] of a float type, got [4] of I64"), "{text}");
    let norm = (vec![4], vec![1.0; 4]);
    for other in ["embeddings.LayerNorm.weight", "bert.embeddings.LayerNorm.gamma"] {
        let tensors =
            [("bert.embeddings.LayerNorm.weight".to_string(), norm.clone()), (other.to_string(), norm.clone())];
        let text = report(&BERT, &params, &write_all(&path, &tensors.into()), &Allow::default());
        assert!(text.contains("two names for one tensor") && text.contains(other), "{text}");
    }
}
