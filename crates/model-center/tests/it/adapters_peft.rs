//! PEFT's directories that change the base model when they are opened, made by `scripts/golden/make_peft_options.py`,
//! and what of a directory is refused.

mod refusals;

use crate::goldens::{self, check, directory, f64s, inputs};
use bmtrain_core::{Ctx, DType, Device};
use bmtrain_dist::param::widen;
use model_center::adapter::{
    self, ADAPTER_CONFIG, ADAPTER_WEIGHTS, Adapter, AdapterConfig, LoraConfig, PeftDetails, base_and_adapter,
    base_model, is_adapter_directory,
};
use model_center::formats::{DirectoryLayout, ModelCaches, Pretrained, SafetensorsFile, TensorSource};
use model_center::model::{OpenOptions, OpenedModel, Registry, SaveOptions};
use model_center::tokenizer::{AutoTokenizer, ChatMessage};
use refusals::changed;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Each directory, its model, and whether it can be merged and trained on.
const CASES: [(&str, [&str; 2], bool, bool); 22] = [
    ("bias_only", ["qwen2_a", "lm"], true, false),
    ("bias_all", ["gpt2_a", "lm"], true, true),
    ("tied_embedding", ["llama_a", "lm"], true, true),
    ("tied_head", ["llama_a", "lm"], true, true),
    ("tied_both", ["llama_a", "lm"], true, true),
    ("tied_gpt2", ["gpt2_a", "lm"], true, true),
    ("ensured", ["llama_a", "lm"], true, true),
    ("suffix", ["llama_a", "lm"], true, true),
    ("pissa", ["llama_a", "lm"], true, true),
    ("pissa_gpt2", ["gpt2_a", "lm"], true, true),
    ("olora", ["llama_a", "lm"], true, true),
    ("grown", ["llama_a", "lm"], true, false),
    ("prompt_head", ["llama_a", "untied"], false, true),
    ("p_tuning", ["gpt2_a", "lm"], false, true),
    ("of_embedding", ["llama_a", "untied"], true, false),
    ("of_head", ["llama_a", "lm"], true, false),
    ("tokens", ["llama_a", "lm"], true, false),
    ("update_bias", ["qwen2_a", "lm"], true, false),
    ("patterns", ["llama_a", "lm"], true, true),
    ("ia3_embedding", ["llama_a", "lm"], true, true),
    ("ia3_head", ["llama_a", "lm"], true, true),
    ("ia3_both", ["llama_a", "lm"], true, true),
];

fn open(device: &Device, model: [&str; 2], adapter: Option<&Path>) -> model_center::Result<OpenedModel> {
    let adapter = adapter.map(|path| Adapter::Saved(path.to_owned()));
    Registry::default().open(&directory(model[0], model[1]), &OpenOptions { adapter, ..OpenOptions::new(device) })
}

/// Logits of the tokens from the first one on that is not padding.
fn logits(opened: &OpenedModel, model: [&str; 2], device: &Device) -> Vec<f32> {
    let batch = inputs(model[0], model[1]);
    let output = opened.model.forward(&batch, None, &mut Ctx::inference(device)).unwrap();
    widen(output.logits.unwrap().value()).unwrap()
}

fn defined<T: Copy>(values: &[T], model: [&str; 2]) -> Vec<T> {
    let batch = inputs(model[0], model[1]);
    let mut defined = goldens::from_the_first_token(&batch);
    if let Some(within) = goldens::within_the_window(model[0], model[1], &batch) {
        defined.iter_mut().zip(within).for_each(|(defined, within)| *defined &= within);
    }
    let rows = values.chunks(values.len() / defined.len()).zip(defined);
    rows.filter(|(_, defined)| *defined).flat_map(|(row, _)| row.to_vec()).collect()
}

fn expected(name: &str, model: [&str; 2]) -> Vec<f64> {
    let file = SafetensorsFile::open(&directory("adapters_peft", name).join("golden.safetensors")).unwrap();
    defined(&f64s(&file, "logits"), model)
}

#[test]
fn directories_that_change_the_base_model_have_pefts_logits_merged_and_not() {
    let device = Device::cpu(1).unwrap();
    for (name, model, can_merge, _) in CASES {
        let opened = open(&device, model, Some(&directory("adapters_peft", name))).unwrap();
        assert!(opened.initialized.is_empty(), "{name}: {:?}", opened.initialized);
        let theirs = expected(name, model);
        check(name, &defined(&logits(&opened, model, &device), model), &theirs);
        let plan = opened.adapter.as_ref().unwrap();
        assert_eq!(plan.check_merge().is_ok(), can_merge, "{name}");
        if can_merge {
            let out = tempfile::tempdir().unwrap();
            let options = SaveOptions { dtype: DType::F32, companions: None, layout: DirectoryLayout::HuggingFace };
            plan.save_merged(&*opened.model, out.path(), &options).unwrap();
            let merged = Registry::default().open(out.path(), &OpenOptions::new(&device)).unwrap();
            check(&format!("{name} merged"), &defined(&logits(&merged, model, &device), model), &theirs);
        }
    }
}

/// What is trained on and written again opens to the same logits.
#[test]
fn a_directory_that_is_written_again_computes_the_same() {
    let device = Device::cpu(1).unwrap();
    for (name, model, _, can_train) in CASES.into_iter().filter(|(.., can_train)| *can_train) {
        assert!(can_train);
        let opened = open(&device, model, Some(&directory("adapters_peft", name))).unwrap();
        let out = tempfile::tempdir().unwrap();
        let details = PeftDetails { base_model: "models/base", revision: None, dtype: DType::F32 };
        opened.adapter.as_ref().unwrap().save(&*opened.model, out.path(), &details, None).unwrap();
        let again = open(&device, model, Some(out.path())).unwrap();
        check(name, &defined(&logits(&again, model, &device), model), &expected(name, model));
    }
}

/// A directory of the first versions of PEFT has a pickle.
#[test]
fn a_pickle_is_read_where_there_is_no_other_file() {
    let device = Device::cpu(1).unwrap();
    let (out, from) = (tempfile::tempdir().unwrap(), directory("adapters_peft", "pickled"));
    for name in [ADAPTER_CONFIG, "adapter_model.bin"] {
        std::fs::copy(from.join(name), out.path().join(name)).unwrap();
    }
    let llama = ["llama_a", "lm"];
    let opened = open(&device, llama, Some(out.path())).unwrap();
    check("pickled", &defined(&logits(&opened, llama, &device), llama), &expected("pickled", llama));
}

/// A base model that is named by a relative path is found from the directory upwards.
#[test]
fn a_relative_base_model_is_looked_for_above_the_directory() {
    let out = tempfile::tempdir().unwrap();
    let adapter = out.path().join("runs/first/model");
    std::fs::create_dir_all(&adapter).unwrap();
    let base = out.path().join("bases/small");
    std::fs::create_dir_all(&base).unwrap();
    std::fs::write(base.join("config.json"), "{}").unwrap();
    let from = changed("pissa", &[("base_model_name_or_path", json!("bases/small"))], &[]);
    for name in [ADAPTER_CONFIG, ADAPTER_WEIGHTS] {
        std::fs::copy(from.path().join(name), adapter.join(name)).unwrap();
    }
    let found = base_model(&adapter).unwrap().map(PathBuf::from);
    assert_eq!(found, Some(base.canonicalize().unwrap()));
    // In place of a model it is the adapter of the model that it names, and no other one can be given with it.
    let model = adapter.display().to_string();
    let (named, saved) = base_and_adapter(&model, None, "--adapter").unwrap();
    assert_eq!((PathBuf::from(named), saved), (base.canonicalize().unwrap(), Some(Adapter::Saved(adapter.clone()))));
    let error = base_and_adapter(&model, Some(Adapter::Saved(adapter)), "--adapter").unwrap_err().to_string();
    assert!(error.contains("--adapter gives another one"), "{error}");
}

/// Some programs write the configuration of the model beside the adapter; with its weights too, the directory is
/// ambiguous.
#[test]
fn a_configuration_beside_an_adapter_makes_no_model_of_it_but_weights_do() {
    let out = tempfile::tempdir().unwrap();
    let (adapter, base) = (directory("adapters_peft", "pissa"), directory("llama_a", "lm"));
    for name in [ADAPTER_CONFIG, ADAPTER_WEIGHTS] {
        std::fs::copy(adapter.join(name), out.path().join(name)).unwrap();
    }
    std::fs::copy(base.join("config.json"), out.path().join("config.json")).unwrap();
    assert!(is_adapter_directory(out.path()));
    std::fs::copy(base.join("model.safetensors"), out.path().join("model.safetensors")).unwrap();
    assert!(!is_adapter_directory(out.path()));
    let name = out.path().display().to_string();
    let error = Pretrained::resolve(&name, None, &ModelCaches::default()).unwrap_err().to_string();
    assert!(error.contains("the weights of a model") && error.contains("adapter_config.json beside them"), "{error}");
}

#[test]
fn an_embedding_that_is_trained_beside_updates_of_a_tied_model_is_written_as_peft_opens_it() {
    let (device, out) = (Device::cpu(1).unwrap(), tempfile::tempdir().unwrap());
    let model = ["llama_a", "lm"];
    let new = |trained: &str| {
        let config =
            LoraConfig { targets: vec!["q_proj".into()], trained: vec![trained.to_owned()], ..LoraConfig::default() };
        let adapter = Some(Adapter::New(AdapterConfig::Lora(config)));
        Registry::default().open(&directory(model[0], model[1]), &OpenOptions { adapter, ..OpenOptions::new(&device) })
    };
    let opened = new("embed_tokens").unwrap();
    let details = PeftDetails { base_model: "models/base", revision: None, dtype: DType::F32 };
    opened.adapter.as_ref().unwrap().save(&*opened.model, out.path(), &details, None).unwrap();
    let config: Value =
        serde_json::from_str(&std::fs::read_to_string(out.path().join(ADAPTER_CONFIG)).unwrap()).unwrap();
    assert_eq!((&config["modules_to_save"], &config["ensure_weight_tying"]), (&json!(["embed_tokens"]), &json!(true)));
    // PEFT gives the output projection the tensor of its name.
    let file = SafetensorsFile::open(&out.path().join(ADAPTER_WEIGHTS)).unwrap();
    let values = |module: &str| {
        let entry = file.tensors().iter().find(|entry| entry.name.ends_with(&format!("{module}.weight"))).unwrap();
        let mut values = vec![0.0; entry.elements().unwrap()];
        file.read_f32(&entry.name, &mut values).unwrap();
        values
    };
    assert!(values("embed_tokens") == values("lm_head"));
    let again = open(&device, model, Some(out.path())).unwrap();
    assert!(logits(&again, model, &device) == logits(&opened, model, &device));
    // Of the projection alone PEFT would train a copy.
    let error = new("lm_head").err().unwrap().to_string();
    assert!(error.contains("lm_head") && error.contains("embed_tokens"), "{error}");
}

#[test]
fn the_tokenizer_and_the_template_of_an_adapter_come_before_the_base_models() {
    let temp = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = temp.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let (base, own, plain) = (temp.path().join("base"), temp.path().join("own"), temp.path().join("plain"));
    std::fs::create_dir(&plain).unwrap();
    write("base/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ngood\nbad\n");
    write("own/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nbad\ngood\n");
    write("own/chat_template.jinja", "own {{ messages[0].content }}");
    let (own, plain) = (Adapter::Saved(own), Adapter::Saved(plain));
    let good = |adapter: Option<&Adapter>| {
        let directory = adapter::tokenizer_directory(adapter, &base).unwrap();
        AutoTokenizer::open(directory).unwrap().id("good")
    };
    assert_eq!([Some(&own), Some(&plain), None].map(good), [Some(6), Some(5), Some(5)]);
    let rendered = |adapter: Option<&Adapter>| {
        let template = adapter::chat_template(adapter, &base, None).unwrap();
        template.map(|template| template.render(&[ChatMessage::new("user", "hi")], false).unwrap())
    };
    // The base has none.
    assert_eq!([Some(&own), Some(&plain), None].map(rendered), [Some("own hi".to_owned()), None, None]);
    write("base/chat_template.jinja", "base {{ messages[0].content }}");
    let of = |text: &str| Some(format!("{text} hi"));
    assert_eq!([Some(&own), Some(&plain), None].map(rendered), [of("own"), of("base"), of("base")]);
}
