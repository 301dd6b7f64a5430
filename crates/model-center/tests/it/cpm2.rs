//! CPM-2 beside its goldens: what its decoder reads, dtypes, ModelCenter's directories.

use crate::goldens;

use bmtrain_core::{Ctx, DType, Device};
use goldens::directories::{changed, check_model_center, logits, open, opened};
use goldens::{directory, inputs};
use model_center::model::{Batch, OpenOptions, TextHead};
use serde_json::json;

#[test]
fn without_a_decoder_start_token_its_decoder_needs_decoder_inputs() {
    let device = Device::cpu(1).unwrap();
    let (model, plain) = (opened(&device, &directory("cpm2_a", "lm")), inputs("cpm2_a", "lm"));
    let silent = Batch { decoder_input_ids: None, decoder_attention_mask: None, ..plain.clone() };
    let error = model.forward(&silent, None, &mut Ctx::inference(&device)).unwrap_err().to_string();
    assert!(error.contains("decoder_start_token_id") && error.contains("give decoder_input_ids"), "{error}");
    let with_first =
        changed(("cpm2_a", "lm"), &[("decoder_start_token_id", json!(7)), ("pad_token_id", json!(0))], |_| {});
    let with_first = opened(&device, with_first.path());
    with_first.forward(&silent, None, &mut Ctx::inference(&device)).unwrap();
    assert_eq!(logits(&device, &*model, &plain), logits(&device, &*with_first, &plain));
}

#[test]
fn it_opens_in_the_type_it_was_trained_in_and_with_its_own_heads_alone() {
    let device = Device::cpu(1).unwrap();
    let half = OpenOptions { dtype: DType::F16, ..OpenOptions::new(&device) };
    let model = open(&directory("cpm2_a", "lm"), &half).unwrap().model;
    let values = logits(&device, &*model, &inputs("cpm2_a", "lm"));
    assert!(values.iter().all(|value| value.is_finite()));
    let error = open(&directory("t5_a", "lm"), &half).err().unwrap();
    assert!(error.contains("T5 leave the range of f16"), "{error}");
    let bare = OpenOptions { head: Some(TextHead::None), ..OpenOptions::new(&device) };
    assert_eq!(open(&directory("cpm2_a", "lm"), &bare).unwrap().unused, ["output_projection.weight"]);
    let classes = OpenOptions { head: Some(TextHead::Classification { outputs: 2 }), ..OpenOptions::new(&device) };
    let error = open(&directory("cpm2_a", "lm"), &classes).err().unwrap();
    assert!(error.contains("CPM-2") && error.contains("lm or none"), "{error}");
}

#[test]
fn directories_in_the_layout_of_model_center_are_read_back() {
    check_model_center("cpm2_a", "lm");
}
