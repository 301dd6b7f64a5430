//! Two tiny ELECTRAs against PyTorch in 64-bit floats: every hidden state, logit, loss and gradient of every head, a
//! training run, and directories there and back. The data are described in `golden/README.md` and made by
//! `scripts/golden/make_electra.py`.

use crate::goldens;

use bmtrain_core::{Ctx, Device, Tensor};
use bmtrain_dist::block::Recompute;
use bmtrain_dist::param::widen;
use model_center::formats::SafetensorsFile;
use model_center::model::{HeadInit, OpenOptions, Registry, TextHead};

family_tests! {
    models: ["electra_a", "electra_b"],
    heads: ["cls", "mlm", "tokens", "qa"],
    trained: "cls",
    defined: goldens::everywhere,
}

const DISCRIMINATOR: &str = "discriminator/replaced";

#[test]
fn a_discriminator_opens_without_its_head_and_as_a_new_classifier() {
    let directory = goldens::directory("electra_a", DISCRIMINATOR);
    let device = Device::cpu(1).unwrap();
    let opened = Registry::default().open(&directory, &OpenOptions::new(&device)).unwrap();
    assert_eq!(opened.model.info().head, TextHead::None);
    assert!(opened.initialized.is_empty(), "{:?}", opened.initialized);
    assert_eq!(opened.unused.len(), 4);
    assert!(opened.unused.iter().all(|name| name.starts_with("discriminator_predictions.")), "{:?}", opened.unused);
    let golden = SafetensorsFile::open(&directory.join("golden.safetensors")).unwrap();
    let mut states: Vec<Tensor> = Vec::new();
    let mut observe = |_: usize, state: &Tensor| {
        states.push(state.clone());
        Ok(())
    };
    let mut batch = goldens::inputs("electra_a", DISCRIMINATOR);
    batch.labels = None;
    let output = opened.model.forward(&batch, Some(&mut observe), &mut Ctx::inference(&device)).unwrap();
    assert!(output.logits.is_none() && output.extra.is_empty(), "there is no pooler");
    for (index, state) in states.iter().enumerate() {
        let name = format!("hidden.{index}");
        goldens::check(&name, &widen(state).unwrap(), &goldens::f64s(&golden, &name));
    }
    let classes = TextHead::Classification { outputs: 3 };
    let head_values = HeadInit::DirectoryOrRandom;
    let options = OpenOptions { head: Some(classes), head_values, ..OpenOptions::new(&device) };
    let opened = Registry::default().open(&directory, &options).unwrap();
    let new = ["cls_dense.bias", "cls_dense.weight", "cls_projection.bias", "cls_projection.weight"];
    let mut initialized = opened.initialized;
    initialized.sort();
    assert_eq!(initialized, new);
}
