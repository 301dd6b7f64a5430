//! The name table both ways: BERT with fused projections, other layouts, and every difference reported.

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
fn parts_may_be_of_unequal_size_and_matrices_transposed() {
    let table = NameTable {
        base_prefix: "",
        rules: Cow::Owned(vec![
            Rule::new("qkv.weight", "{q|k|v}.weight").rows(vec![8, 2, 2]),
            Rule::new("c_attn.weight", "h.attn.weight").transposed(),
            Rule::owned("both.weight".into(), "{a|b}.t".into()).rows(vec![50, 20]).transposed(),
        ]),
        aliases: Cow::Borrowed(&[]),
        ignored: Cow::Borrowed(&[]),
        old_names: Cow::Borrowed(&[]),
    };
    let params = [
        ParamShape::new("qkv.weight", [12, 3]),
        ParamShape::new("c_attn.weight", [45, 67]),
        ParamShape::new("both.weight", [70, 33]),
    ];
    let dir = tempfile::tempdir().unwrap();
    export_all(&table, &params, dir.path(), DType::F32, true, u64::MAX);
    let weights = Weights::open(dir.path()).unwrap();
    let tensors = read_all(&weights);
    assert_eq!((&tensors["q.weight"].0, &tensors["k.weight"].0), (&vec![8, 3], &vec![2, 3]));
    let (shape, theirs) = &tensors["h.attn.weight"];
    assert_eq!(*shape, [67, 45]);
    for (r, c) in [(0, 0), (44, 66), (13, 40), (40, 13)] {
        assert_eq!(theirs[c * 45 + r], value("c_attn.weight", r * 67 + c));
    }
    assert_eq!((&tensors["a.t"].0, &tensors["b.t"].0), (&vec![33, 50], &vec![33, 20]));
    check(&params, &load(&table, &params, &weights, &Allow::default()));
}

#[test]
fn parts_of_one_tensor_may_be_interleaved() {
    let parts = |groups| Rule::new("qkv.{i}", "h.{i}.fused").rows(vec![8, 4, 4]).interleaved(groups);
    let table = |rule| NameTable {
        base_prefix: "",
        rules: Cow::Owned(vec![rule]),
        aliases: Cow::Borrowed(&[]),
        ignored: Cow::Borrowed(&[]),
        old_names: Cow::Borrowed(&[]),
    };
    let interleaved = table(parts(2));
    // A matrix and a bias.
    let params = [ParamShape::new("qkv.0", [16, 3]), ParamShape::new("qkv.1", [16])];
    let dir = tempfile::tempdir().unwrap();
    export_all(&interleaved, &params, dir.path(), DType::F32, true, u64::MAX);
    let weights = Weights::open(dir.path()).unwrap();
    let tensors = read_all(&weights);
    assert_eq!((&tensors["h.0.fused"].0, &tensors["h.1.fused"].0), (&vec![16, 3], &vec![16]));
    // Half of the queries, of the keys, of the values; then the other halves.
    let rows = [0, 1, 2, 3, 8, 9, 12, 13, 4, 5, 6, 7, 10, 11, 14, 15];
    for (theirs, ours) in rows.into_iter().enumerate() {
        assert_eq!(tensors["h.1.fused"].1[theirs], value("qkv.1", ours));
        for column in 0..3 {
            assert_eq!(tensors["h.0.fused"].1[3 * theirs + column], value("qkv.0", 3 * ours + column));
        }
    }
    check(&params, &load(&interleaved, &params, &weights, &Allow::default()));

    for rule in [
        parts(3),
        parts(0),
        parts(2).transposed(),
        parts(2).rows(vec![8, 4, 2]),
        parts(2).rows(vec![usize::MAX - 1, 18]),
        Rule::new("qkv.{i}", "h.{i}.{q|k}").rows(vec![8, 8]).interleaved(2),
    ] {
        let error = table(rule).pieces("qkv.0", &[16, 3], true).unwrap_err().to_string();
        assert!(error.contains("cannot be interleaved"), "{error}");
    }
}

#[test]
fn rows_of_query_and_key_heads_may_be_in_pairs() {
    let rule = |head| Rule::new("qkv.{i}", "h.{i}.{q|k|v}").rows(vec![16, 8, 8]).paired(head);
    let table = |rule| NameTable { rules: Cow::Owned(vec![rule]), ..NameTable::default() };
    let params = [ParamShape::new("qkv.0", [32, 3]), ParamShape::new("qkv.1", [32])];
    let dir = tempfile::tempdir().unwrap();
    export_all(&table(rule(8)), &params, dir.path(), DType::F32, true, u64::MAX);
    let weights = Weights::open(dir.path()).unwrap();
    let tensors = read_all(&weights);
    // Two heads of queries, one of keys; values are as they are.
    let pairs = [0, 4, 1, 5, 2, 6, 3, 7];
    let second = pairs.map(|row| row + 8);
    let of_keys = pairs.map(|row| row + 16);
    let values: Vec<usize> = (24..32).collect();
    for (name, rows) in [("q", [pairs, second].concat()), ("k", of_keys.to_vec()), ("v", values)] {
        for (theirs, ours) in rows.into_iter().enumerate() {
            assert_eq!(tensors[&format!("h.1.{name}")].1[theirs], value("qkv.1", ours), "{name}");
            for column in 0..3 {
                let found = tensors[&format!("h.0.{name}")].1[3 * theirs + column];
                assert_eq!(found, value("qkv.0", 3 * ours + column), "{name}");
            }
        }
    }
    check(&params, &load(&table(rule(8)), &params, &weights, &Allow::default()));
    for head in [0, 3, 6] {
        let error = table(rule(head)).pieces("qkv.0", &[32, 3], true).unwrap_err().to_string();
        assert!(error.contains("have no heads of"), "{error}");
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
fn values_that_are_not_finite_are_named_with_tensor_count_and_first_index() {
    let dir = tempfile::tempdir().unwrap();
    let params = ours(1, &["cls_projection.weight"]);
    export_all(&BERT, &params, dir.path(), DType::F32, true, 1 << 20);
    let sound = read_all(&SafetensorsFile::open(&dir.path().join("model.safetensors")).unwrap());
    let path = dir.path().join("damaged.safetensors");
    let refused = |tensors: &Tensors| {
        let file = write_all(&path, tensors);
        let plan = LoadPlan::build(&BERT, &params, &file, &Allow::default()).unwrap();
        let whole = plan.load(&file, |_, _| Ok(())).unwrap_err();
        // A rank that reads a part with such a value reports all of its tensor; one that reads another part nothing.
        let part = plan.load_parts(&file, |_, read| read(3, &mut [0.0])).unwrap_err();
        assert_eq!((whole.exit_code(), part.to_string()), (3, whole.to_string()));
        let name = params[2].name.as_str();
        plan.load_parts(&file, |ours, read| if ours == name { read(0, &mut [0.0]) } else { Ok(()) }).unwrap();
        whole.to_string()
    };
    let mut damaged = sound.clone();
    for (at, value) in [(3, f32::NAN), (6, f32::INFINITY)] {
        damaged.get_mut("bert.embeddings.word_embeddings.weight").unwrap().1[at] = value;
    }
    let error = refused(&damaged);
    assert!(error.contains("damaged.safetensors, tensor bert.embeddings.word_embeddings.weight"), "{error}");
    assert!(error.contains("2 of 28 values are not finite, the first is NaN at [0, 3]"), "{error}");
    // In a part of a parameter that is several tensors, and in a second tensor.
    let mut damaged = sound.clone();
    damaged.get_mut("bert.encoder.layer.0.attention.self.query.weight").unwrap().1[3] = f32::NEG_INFINITY;
    damaged.get_mut("classifier.weight").unwrap().1[3] = f32::NAN;
    let error = refused(&damaged);
    assert!(error.contains("1 of 16 values is not finite: -inf at [0, 3]"), "{error}");
    assert!(error.contains("1 further tensor has such values: classifier.weight"), "{error}");
    // What the model does not use is not looked at.
    let mut masked = sound.clone();
    masked.insert("bert.embeddings.position_ids".into(), (vec![2], vec![f32::NEG_INFINITY, f32::NAN]));
    masked.insert("cls.old.mask".into(), (vec![1], vec![f32::NEG_INFINITY]));
    let allow = Allow { unused: vec!["cls.*".into()], ..Allow::default() };
    check(&params, &load(&BERT, &params, &write_all(&path, &masked), &allow));
}

#[test]
fn infinities_of_half_precision_are_not_finite_either() {
    let dir = tempfile::tempdir().unwrap();
    let params = [ParamShape::new("embedding_norm.weight", [4])];
    for (dtype, infinity) in [(StoredDtype::F16, 0x7c00u16), (StoredDtype::BF16, 0xff80)] {
        let path = dir.path().join(dtype.to_string());
        let name = "bert.embeddings.LayerNorm.weight";
        let mut writer = SafetensorsWriter::create(&path, &[TensorEntry::new(name, dtype, [4])]).unwrap();
        let bytes: Vec<u8> = [0u16, 0x3c00, infinity, 1].iter().flat_map(|bits| bits.to_le_bytes()).collect();
        writer.write_raw(name, &bytes).unwrap();
        writer.finish().unwrap();
        let file = SafetensorsFile::open(&path).unwrap();
        let plan = LoadPlan::build(&BERT, &params, &file, &Allow::default()).unwrap();
        let error = plan.load(&file, |_, _| Ok(())).unwrap_err().to_string();
        assert!(error.contains("1 of 4 values is not finite: ") && error.contains("inf at [2]"), "{error}");
    }
}

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
