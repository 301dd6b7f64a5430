//! Two tiny models of BLOOM against PyTorch in 64-bit floats: every hidden state, logit, loss and gradient of every
//! head, a training run, and directories there and back. The data are described in `golden/README.md` and made by
//! `scripts/golden/make_bloom.py`.

use crate::goldens;

use bmtrain_dist::block::Recompute;

decoder_tests! { models: ["bloom_a", "bloom_b"], heads: ["lm", "untied", "cls"], trained: "lm" }

#[test]
fn a_row_may_be_longer_than_what_the_model_was_trained_on() {
    let from = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/bloom_a/lm");
    let directory = tempfile::tempdir().unwrap();
    std::fs::copy(from.join("model.safetensors"), directory.path().join("model.safetensors")).unwrap();
    let config = std::fs::read_to_string(from.join("config.json")).unwrap();
    let config = config.replacen('{', "{\"seq_length\": 4,", 1);
    std::fs::write(directory.path().join("config.json"), config).unwrap();
    let device = bmtrain_core::Device::cpu(1).unwrap();
    let options = model_center::model::OpenOptions::new(&device);
    let model = model_center::model::Registry::default().open(directory.path(), &options).unwrap().model;
    let batch = model_center::model::Batch::next_tokens(9, (0..9).collect(), None);
    let loss = model.loss(&batch, &mut bmtrain_core::Ctx::inference(&device)).unwrap().unwrap();
    assert!(loss.value().item().unwrap().is_finite());
}
