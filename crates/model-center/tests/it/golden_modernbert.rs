//! Two tiny ModernBERTs against PyTorch in 64-bit floats: every hidden state, logit, loss and gradient of every head, a
//! training run, and directories there and back. The data are described in `golden/README.md` and made by
//! `scripts/golden/make_modernbert.py`.

use crate::goldens;

use bmtrain_core::Device;
use bmtrain_dist::block::Recompute;
use model_center::model::{HeadInit, OpenMode, OpenOptions, Registry, TextHead};

family_tests! {
    models: ["modernbert_a", "modernbert_b"],
    heads: ["cls", "mlm", "tokens"],
    trained: "cls",
    defined: goldens::everywhere,
}

#[test]
fn answer_spans_equal_those_of_pytorch() {
    goldens::check_untrained("modernbert_a", "qa", goldens::everywhere);
}

/// Names of the parameters that are initialized when the directory of a masked-token head is opened with another head.
fn initialized(values: HeadInit, head: TextHead) -> (Vec<String>, Vec<String>) {
    let device = Device::cpu(1).unwrap();
    let options = OpenOptions { head: Some(head), head_values: values, ..OpenOptions::new(&device) };
    let opened = Registry::default().open(&goldens::directory("modernbert_a", "mlm"), &options).unwrap();
    let (mut initialized, unused) = (opened.initialized, opened.unused);
    initialized.sort();
    (initialized, unused)
}

#[test]
fn a_new_classifier_begins_with_the_transform_of_masked_tokens() {
    for values in [HeadInit::DirectoryOrRandom, HeadInit::Random] {
        for (head, name) in [
            (TextHead::Classification { outputs: 3 }, "cls_projection"),
            (TextHead::TokenClassification { outputs: 3 }, "token_projection"),
            (TextHead::QuestionAnswering, "span_projection"),
        ] {
            let (initialized, unused) = initialized(values, head);
            assert_eq!(initialized, [format!("{name}.bias"), format!("{name}.weight")]);
            assert_eq!(unused, ["decoder.bias"]);
        }
    }
}

#[test]
fn a_classifier_that_names_no_class_is_told_by_its_tensors() {
    for (head, want) in [("cls", TextHead::Classification { outputs: 2 }), ("mlm", TextHead::MaskedLm)] {
        let golden = goldens::directory("modernbert_a", head);
        let directory = tempfile::tempdir().unwrap();
        let config = std::fs::read_to_string(golden.join("config.json")).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
        config.as_object_mut().unwrap().shift_remove("architectures").unwrap();
        std::fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
        let weights = "model.safetensors";
        std::fs::copy(golden.join(weights), directory.path().join(weights)).unwrap();
        let device = Device::cpu(1).unwrap();
        let options = OpenOptions { mode: OpenMode::Check, ..OpenOptions::new(&device) };
        let opened = Registry::default().open(directory.path(), &options).unwrap();
        assert_eq!(opened.model.info().head, want);
    }
}
