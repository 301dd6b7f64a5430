//! The name table both ways: BERT with fused projections, other layouts, and every difference reported.

mod differences;
mod finiteness;
mod layouts;

use bmtrain_core::dtype::DType;
use model_center::formats::{
    Alias, Allow, LoadPlan, NameTable, ParamShape, Rule, SafetensorsFile, SafetensorsWriter, StoredDtype, TensorEntry,
    TensorSource, Weights, export,
};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A BERT's names, cut down to what differs in kind.
static BERT: NameTable = NameTable {
    base_prefix: "bert.",
    rules: Cow::Borrowed(&[
        Rule::new("input_embedding.weight", "bert.embeddings.word_embeddings.weight"),
        Rule::new("embedding_norm.weight", "bert.embeddings.LayerNorm.weight"),
        Rule::new(
            "encoder.layers.{i}.attention.project_qkv.weight",
            "bert.encoder.layer.{i}.attention.self.{query|key|value}.weight",
        ),
        Rule::new(
            "encoder.layers.{i}.attention.project_qkv.bias",
            "bert.encoder.layer.{i}.attention.self.{query|key|value}.bias",
        ),
        Rule::new("encoder.layers.{i}.ffn.w_in.weight", "bert.encoder.layer.{i}.intermediate.dense.weight"),
        Rule::new("pooler.dense.weight", "bert.pooler.dense.weight").optional(),
        Rule::new("lm_head.decoder.bias", "cls.predictions.bias"),
        Rule::new("cls_projection.weight", "classifier.weight"),
    ]),
    aliases: Cow::Borrowed(&[
        Alias::new("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        Alias::new("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ]),
    ignored: Cow::Borrowed(&["bert.embeddings.position_ids"]),
    old_names: Cow::Borrowed(&[("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")]),
};

type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

fn ours(layers: usize, heads: &[&str]) -> Vec<ParamShape> {
    let mut params =
        vec![ParamShape::new("input_embedding.weight", [7, 4]), ParamShape::new("embedding_norm.weight", [4])];
    for i in 0..layers {
        params.push(ParamShape::new(format!("encoder.layers.{i}.attention.project_qkv.weight"), [12, 4]));
        params.push(ParamShape::new(format!("encoder.layers.{i}.attention.project_qkv.bias"), [12]));
        params.push(ParamShape::new(format!("encoder.layers.{i}.ffn.w_in.weight"), [6, 4]));
    }
    params.extend(heads.iter().map(|head| match *head {
        "lm_head.decoder.bias" => ParamShape::new(*head, [7]),
        "cls_projection.weight" => ParamShape::new(*head, [2, 4]),
        _ => ParamShape::new(*head, [4, 4]),
    }));
    params
}

/// Different values in every element of every parameter, exact in bf16.
fn value(param: &str, index: usize) -> f32 {
    let hash = param.bytes().fold(7u32, |h, b| h.wrapping_mul(31).wrapping_add(u32::from(b)));
    (((hash % 101) as usize + index) % 251) as f32 - 125.0
}

fn values(param: &ParamShape) -> Vec<f32> {
    (0..param.shape.iter().product()).map(|i| value(&param.name, i)).collect()
}

fn export_all(table: &NameTable, params: &[ParamShape], directory: &Path, dtype: DType, prefixed: bool, shard: u64) {
    export(table, params, directory, dtype, prefixed, shard, |name, out| {
        out.extend(values(params.iter().find(|p| p.name == name).unwrap()));
        Ok(())
    })
    .unwrap();
}

fn load(
    table: &NameTable,
    params: &[ParamShape],
    source: &dyn TensorSource,
    allow: &Allow,
) -> BTreeMap<String, Vec<f32>> {
    let plan = LoadPlan::build(table, params, source, allow).unwrap();
    let mut loaded = BTreeMap::new();
    plan.load(source, |name, values| {
        loaded.insert(name.to_string(), values.to_vec());
        Ok(())
    })
    .unwrap();
    loaded
}

fn read_all(source: &dyn TensorSource) -> Tensors {
    let read = |entry: &TensorEntry| {
        let mut values = vec![0.0; entry.elements().unwrap()];
        source.read_f32(&entry.name, &mut values).unwrap();
        (entry.name.clone(), (entry.shape.clone(), values))
    };
    source.entries().into_iter().map(read).collect()
}

fn write_all(path: &Path, tensors: &Tensors) -> SafetensorsFile {
    let entry = |(name, (shape, _)): (&String, &(Vec<usize>, Vec<f32>))| {
        TensorEntry::new(name.clone(), StoredDtype::F32, shape.clone())
    };
    let entries: Vec<TensorEntry> = tensors.iter().map(entry).collect();
    let mut writer = SafetensorsWriter::create(path, &entries).unwrap();
    for (name, (_, values)) in tensors {
        writer.write_f32(name, values).unwrap();
    }
    writer.finish().unwrap();
    SafetensorsFile::open(path).unwrap()
}

fn check(params: &[ParamShape], loaded: &BTreeMap<String, Vec<f32>>) {
    assert_eq!(loaded.len(), params.len());
    for param in params {
        assert_eq!(loaded[&param.name], values(param), "{}", param.name);
    }
}

fn report(table: &NameTable, params: &[ParamShape], source: &dyn TensorSource, allow: &Allow) -> String {
    LoadPlan::build(table, params, source, allow).unwrap_err().to_string()
}

#[test]
fn a_round_trip_keeps_every_bit_in_every_type_prefix_and_sharding() {
    let params = ours(3, &["pooler.dense.weight", "lm_head.decoder.bias"]);
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (prefixed, shard, files) in
            [(true, u64::MAX, 1), (false, u64::MAX, 1), (true, 300, usize::MAX), (false, 1, 25)]
        {
            let dir = tempfile::tempdir().unwrap();
            export_all(&BERT, &params, dir.path(), dtype, prefixed, shard);
            let weights = Weights::open(dir.path()).unwrap();
            match files {
                usize::MAX => assert!((2..25).contains(&weights.shards()), "{} shards", weights.shards()),
                exact => assert_eq!(weights.shards(), exact),
            }
            assert_eq!(weights.entries().iter().any(|e| e.name.starts_with("bert.")), prefixed);
            check(&params, &load(&BERT, &params, &weights, &Allow::default()));
        }
    }
}

#[test]
fn a_fused_projection_is_query_key_value_in_this_order_on_their_side() {
    let params = ours(1, &[]);
    let dir = tempfile::tempdir().unwrap();
    export_all(&BERT, &params, dir.path(), DType::F32, true, u64::MAX);
    let tensors = read_all(&Weights::open(dir.path()).unwrap());
    let fused = values(&params[2]);
    for (i, part) in ["query", "key", "value"].into_iter().enumerate() {
        let (shape, values) = &tensors[&format!("bert.encoder.layer.0.attention.self.{part}.weight")];
        assert_eq!((shape.as_slice(), values.as_slice()), (&[4, 4][..], &fused[16 * i..16 * (i + 1)]));
        assert_eq!(tensors[&format!("bert.encoder.layer.0.attention.self.{part}.bias")].0, [4]);
    }
}

#[test]
fn old_names_position_ids_and_tied_copies_are_understood() {
    let params = ours(1, &["lm_head.decoder.bias"]);
    let dir = tempfile::tempdir().unwrap();
    export_all(&BERT, &params, dir.path(), DType::F32, true, u64::MAX);
    let mut tensors = read_all(&Weights::open(dir.path()).unwrap());
    let norm = tensors.remove("bert.embeddings.LayerNorm.weight").unwrap();
    tensors.insert("bert.embeddings.LayerNorm.gamma".into(), norm);
    tensors.insert("bert.embeddings.position_ids".into(), (vec![1, 2], vec![0.0, 1.0]));
    let words = tensors["bert.embeddings.word_embeddings.weight"].clone();
    tensors.insert("cls.predictions.decoder.weight".into(), words.clone());
    let path = dir.path().join("old.safetensors");
    check(&params, &load(&BERT, &params, &write_all(&path, &tensors), &Allow::default()));

    // The same file without the first of the two names.
    let mut alone = tensors.clone();
    alone.remove("bert.embeddings.word_embeddings.weight");
    check(&params, &load(&BERT, &params, &write_all(&path, &alone), &Allow::default()));

    // And with copies that are not copies.
    let mut untied = tensors.clone();
    untied.get_mut("cls.predictions.decoder.weight").unwrap().1[27] += 1.0;
    let file = write_all(&path, &untied);
    let plan = LoadPlan::build(&BERT, &params, &file, &Allow::default()).unwrap();
    let error = plan.load(&file, |_, _| panic!("nothing may be loaded")).unwrap_err().to_string();
    assert!(error.contains("the model was not tied"), "{error}");

    // A caller that ignores that head is not affected.
    let base = ours(1, &[]);
    let allow = Allow { unused: vec!["cls.*".into()], ..Allow::default() };
    check(&base, &load(&BERT, &base, &file, &allow));
    assert_eq!(LoadPlan::build(&BERT, &base, &file, &allow).unwrap().unused().len(), 2);

    untied.insert("cls.predictions.decoder.weight".into(), (vec![6, 4], vec![0.0; 24]));
    let text = report(&BERT, &params, &write_all(&path, &untied), &Allow::default());
    assert!(text.contains("equal to bert.embeddings.word_embeddings.weight, got [6, 4]"), "{text}");
}

#[test]
fn a_parameter_without_a_rule_and_a_shape_that_cannot_be_cut_are_mistakes_of_the_table() {
    assert!(BERT.pieces("unknown", &[4], true).unwrap_err().to_string().contains("no rule"));
    let odd = BERT.pieces("encoder.layers.0.attention.project_qkv.bias", &[13], true).unwrap_err().to_string();
    assert!(odd.contains("cannot be cut"), "{odd}");
    assert!(BERT.pieces("encoder.layers.01.ffn.w_in.weight", &[4], true).is_err());
}

#[test]
fn a_failed_export_leaves_the_directory_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let params = ours(1, &[]);
    export_all(&BERT, &params, dir.path(), DType::F32, true, u64::MAX);
    let before = fs::read(dir.path().join("model.safetensors")).unwrap();
    let failing = |fill: fn(&str, &mut Vec<f32>) -> model_center::Result<()>| {
        export(&BERT, &params, dir.path(), DType::F16, true, 100, fill).unwrap_err().to_string()
    };
    assert!(
        failing(|_, out| {
            out.push(1.0);
            Ok(())
        })
        .contains("got 1 values")
    );
    assert!(
        failing(|name, out| {
            out.resize(if name.contains("input") { 28 } else { 4 }, 1e6);
            Ok(())
        })
        .contains("f16")
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    assert_eq!(fs::read(dir.path().join("model.safetensors")).unwrap(), before);
}
