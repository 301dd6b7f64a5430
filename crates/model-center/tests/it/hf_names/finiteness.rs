//! Values that are not finite, refused by name.

use super::{BERT, Tensors, check, export_all, load, ours, read_all, write_all};
use bmtrain_core::dtype::DType;
use model_center::formats::{
    Allow, LoadPlan, ParamShape, SafetensorsFile, SafetensorsWriter, StoredDtype, TensorEntry,
};

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
