//! Layers that adapters are on: names of none, factors, magnitudes, bottlenecks.

use super::{DETAILS, tensors};
use crate::goldens::adapters::GOLDENS;
use crate::goldens::directory;
use bmtrain_core::Device;
use bmtrain_dist::block::Recompute;
use model_center::adapter::{
    ADAPTER_WEIGHTS, Adapter, AdapterConfig, BottleneckConfig, BottleneckPlacement, Ia3Config, LoraConfig,
};
use model_center::formats::{SafetensorsFile, SafetensorsWriter, TensorEntry};
use model_center::model::{OpenOptions, Registry};

#[test]
fn names_of_no_layer_are_refused_with_what_was_meant() {
    let device = Device::cpu(1).unwrap();
    let refused = |targets: &[&str], trained: &[&str]| {
        let texts = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let config = LoraConfig { targets: texts(targets), trained: texts(trained), ..LoraConfig::default() };
        let options =
            OpenOptions { adapter: Some(Adapter::New(AdapterConfig::Lora(config))), ..OpenOptions::new(&device) };
        Registry::default().open(&directory("llama_a", "untied"), &options).err().unwrap().to_string()
    };
    let error = refused(&["q_porj"], &[]);
    assert!(error.contains("no linear layer of the model is named \"q_porj\""), "{error}");
    assert!(error.contains("did you mean \"q_proj\"?"), "{error}");
    let error = refused(&["lm_head"], &[]);
    assert!(error.contains("train it as a whole with adapter.trained"), "{error}");
    let error = refused(&["all-linear"], &["lm_haed"]);
    assert!(error.contains("no module of the model is named \"lm_haed\""), "{error}");
}

/// The layers that have factors where none are named, under PEFT's names; a name of one that has none.
#[test]
fn factors_of_no_named_layer_are_those_of_keys_values_and_feed_forwards() {
    let device = Device::cpu(1).unwrap();
    let new = |config| Adapter::New(AdapterConfig::Ia3(config));
    for golden in GOLDENS.iter().filter(|golden| golden.name.starts_with("ia3") && golden.name != "ia3_bert") {
        let opened = golden.open(&device, new(Ia3Config::default()), Recompute::Keep);
        let saved = golden.open_saved(&device);
        let [ours, theirs] = [&opened, &saved].map(|opened| opened.adapter.as_ref().unwrap().factors());
        assert_eq!(ours, theirs, "{}", golden.name);
    }
    let named = |targets: &[&str], feed_forward: &[&str]| {
        let texts = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let config = Ia3Config { targets: texts(targets), feed_forward: texts(feed_forward), ..Ia3Config::default() };
        let options = OpenOptions { adapter: Some(new(config)), ..OpenOptions::new(&device) };
        Registry::default().open(&directory("llama_a", "lm"), &options)
    };
    let opened = named(&["q_proj", "o_proj", "gate_proj"], &["o_proj"]).unwrap();
    let of_inputs = opened.adapter.as_ref().unwrap().factors().iter().filter(|factors| factors.of_inputs);
    assert!(of_inputs.clone().count() > 0 && of_inputs.into_iter().all(|factors| factors.module.ends_with("o_proj")));
    // Of a fused layer all modules have the same inputs.
    let error = named(&["gate_proj"], &["gate_proj"]).err().unwrap().to_string();
    assert!(error.contains("mlp.gate_proj is computed together with other modules"), "{error}");
    let error = named(&["q_proj"], &["down_proj"]).err().unwrap().to_string();
    assert!(error.contains("\"down_proj\" is none of the layers that have factors"), "{error}");
    let error = named(&["k_porj"], &[]).err().unwrap().to_string();
    assert!(error.contains("did you mean \"k_proj\"?"), "{error}");
}

/// Magnitudes have to be there for every updated module and for no other, and only with `use_dora`.
#[test]
fn magnitudes_that_do_not_fit_the_configuration_are_refused() {
    let device = Device::cpu(1).unwrap();
    // Of the tensors of a module the magnitude alone is there.
    let bare = "model.layers.0.self_attn.q_proj.lora_";
    for (from, to, left_out, reason) in [
        ("dora_llama", "llama", None, "lora_magnitude_vector is missing, and use_dora is set"),
        ("llama", "dora_llama", None, "there is a lora_magnitude_vector, and use_dora is not set"),
        ("dora_llama", "dora_llama", Some(bare), "there is a lora_magnitude_vector without lora_A and lora_B"),
    ] {
        let (out, weights) = (tempfile::tempdir().unwrap(), directory("adapters", to).join(ADAPTER_WEIGHTS));
        let config = "adapter_config.json";
        std::fs::copy(directory("adapters", from).join(config), out.path().join(config)).unwrap();
        let is_left_out = |name: &str| left_out.is_some_and(|end| name.contains(end)) && name.ends_with(".weight");
        let file = SafetensorsFile::open(&weights).unwrap();
        let kept: Vec<TensorEntry> = file.tensors().iter().filter(|entry| !is_left_out(&entry.name)).cloned().collect();
        assert_eq!(kept.len() < file.tensors().len(), left_out.is_some());
        let mut writer = SafetensorsWriter::create(&out.path().join(ADAPTER_WEIGHTS), &kept).unwrap();
        for (name, values) in tensors(&weights).iter().filter(|(name, _)| !is_left_out(name)) {
            writer.write_f32(name, values).unwrap();
        }
        writer.finish().unwrap();
        let adapter = Some(Adapter::Saved(out.path().to_owned()));
        let options = OpenOptions { adapter, ..OpenOptions::new(&device) };
        let error = Registry::default().open(&directory("llama_a", "lm"), &options).err().unwrap().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

/// After which layers bottlenecks are where none are named, and what has none.
#[test]
fn bottlenecks_follow_attention_and_feed_forward() {
    let device = Device::cpu(1).unwrap();
    let open = |model: &str, name: &str, config: BottleneckConfig| {
        let adapter = Some(Adapter::New(AdapterConfig::Bottleneck(BottleneckConfig { size: 2, ..config })));
        Registry::default().open(&directory(model, name), &OpenOptions { adapter, ..OpenOptions::new(&device) })
    };
    let modules = |model: &str, name: &str, placement: BottleneckPlacement| {
        let opened = open(model, name, BottleneckConfig { placement, ..BottleneckConfig::default() }).unwrap();
        let plan = opened.adapter.unwrap();
        let ends = |module: &String| module.rsplit('.').take(3).collect::<Vec<_>>().join(" ");
        let mut modules: Vec<String> = plan.bottlenecks().iter().map(|one| ends(&one.module)).collect();
        modules.sort();
        modules.dedup();
        modules
    };
    let (both, attention, feed_forward) =
        (BottleneckPlacement::Both, BottleneckPlacement::Attention, BottleneckPlacement::FeedForward);
    assert_eq!(modules("llama_a", "lm", attention), ["o_proj self_attn 0", "o_proj self_attn 1"]);
    assert_eq!(modules("llama_a", "lm", feed_forward), ["down_proj mlp 0", "down_proj mlp 1"]);
    assert_eq!(modules("llama_a", "lm", both).len(), 4);
    assert_eq!(modules("bert_a", "mlm", attention), ["dense output attention"]);
    assert_eq!(modules("t5_b", "lm", attention), ["o EncDecAttention 1", "o SelfAttention 0"]);
    for target in ["q_proj", "up_proj"] {
        let targets = vec![target.to_owned()];
        let error = open("llama_a", "lm", BottleneckConfig { targets, ..BottleneckConfig::default() });
        let error = error.err().unwrap().to_string();
        assert!(error.contains("does not end an attention or a feed-forward"), "{error}");
    }
    let opened = open("llama_a", "lm", BottleneckConfig::default()).unwrap();
    let plan = opened.adapter.as_ref().unwrap();
    assert_eq!(plan.describe(), "bottlenecks of 2 values on 2 down_proj, 2 o_proj");
    let error = plan.check_merge().unwrap_err().to_string();
    assert!(error.contains("not linear"), "{error}");
    // Of the tensors of a module one is missing.
    let out = tempfile::tempdir().unwrap();
    plan.save(&*opened.model, out.path(), &DETAILS, None).unwrap();
    let weights = out.path().join(ADAPTER_WEIGHTS);
    let (all, kept) = (tensors(&weights), SafetensorsFile::open(&weights).unwrap().tensors()[1..].to_vec());
    let mut writer = SafetensorsWriter::create(&weights, &kept).unwrap();
    for (name, values) in all.iter().filter(|(name, _)| kept.iter().any(|entry| entry.name == *name)) {
        writer.write_f32(name, values).unwrap();
    }
    writer.finish().unwrap();
    let adapter = Some(Adapter::Saved(out.path().to_owned()));
    let options = OpenOptions { adapter, ..OpenOptions::new(&device) };
    let error = Registry::default().open(&directory("llama_a", "lm"), &options).err().unwrap().to_string();
    assert!(error.contains("weights and biases of down and up are not all there"), "{error}");
}
