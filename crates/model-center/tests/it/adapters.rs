//! LoRA, DoRA, IA³, prompt and prefix tuning against PEFT, and bottleneck adapters against PyTorch: adapters of tiny
//! models, made by `scripts/golden/make_adapters.py` and `make_bottleneck.py` in 64-bit floats.

mod layers;
mod virtual_tokens;

use crate::goldens::adapters::{GOLDENS, of_layers};
use crate::goldens::{batch, check, directory, distance, f64s, follow_pytorch, inputs, norm};
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor};
use bmtrain_dist::block::Recompute;
use bmtrain_dist::param::widen;
use model_center::adapter::{
    ADAPTER_WEIGHTS, Adapter, AdapterConfig, BottleneckConfig, Ia3Config, LoraConfig, PeftDetails, WeightedAdapter,
};
use model_center::data::Batch;
use model_center::formats::{DirectoryLayout, SafetensorsFile, TensorSource};
use model_center::model::{OpenOptions, Registry, SaveOptions};
use std::path::Path;

/// The largest relative error of a gradient: gradients of queries are small differences of a softmax's terms.
const GRADIENTS: f64 = 1e-4;

const DETAILS: PeftDetails<'_> = PeftDetails { base_model: "models/base", revision: None, dtype: DType::F32 };

fn tensors(path: &Path) -> Vec<(String, Vec<f32>)> {
    let file = SafetensorsFile::open(path).unwrap();
    let read = |name: &String| {
        let mut values = vec![0.0; file.entry(name).unwrap().elements().unwrap()];
        file.read_f32(name, &mut values).unwrap();
        values
    };
    let names: Vec<String> = file.tensors().iter().map(|entry| entry.name.clone()).collect();
    let mut tensors: Vec<_> = names.into_iter().map(|name| (name.clone(), read(&name))).collect();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    tensors
}

/// The files as PEFT has them, with numbers in one form.
fn config(directory: &Path) -> serde_json::Value {
    let text = std::fs::read_to_string(directory.join("adapter_config.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn logits_losses_and_every_gradient_equal_those_of_peft() {
    let device = Device::cpu(1).unwrap();
    for golden in &GOLDENS {
        for recompute in [Recompute::Keep, Recompute::Checkpoint, Recompute::Attention] {
            let opened = golden.open(&device, Adapter::Saved(golden.directory()), recompute);
            assert!(opened.initialized.is_empty(), "{}: {:?}", golden.name, opened.initialized);
            let file = SafetensorsFile::open(&golden.directory().join("golden.safetensors")).unwrap();
            let ours: Vec<f64> = golden.logits(&opened, &device).iter().map(|value| f64::from(*value)).collect();
            let ours: Vec<f32> = golden.defined_at(&ours).iter().map(|value| *value as f32).collect();
            check(&format!("{} logits", golden.name), &ours, &golden.defined_at(&f64s(&file, "logits")));
            let mut cx = Ctx::gradients(&device);
            let loss = opened.model.loss(&inputs(golden.model.0, golden.model.1), &mut cx).unwrap().unwrap();
            check(&format!("{} loss", golden.name), &widen(loss.value()).unwrap(), &f64s(&file, "loss"));
            let one = Tensor::full_in(&device, [1], DType::F32, 1.0, Segment::Activations).unwrap();
            cx.take_tape().unwrap().backward(&device, vec![(loss, one)], &[]).unwrap();
            // Written as values are, they have PEFT's names and order.
            let written = tempfile::tempdir().unwrap();
            let parameters = opened.model.parameters();
            let mut gradients = |name: &str, values: &mut Vec<f32>| {
                *values = widen(&parameters.get(name).unwrap().grad().unwrap().unwrap()).unwrap();
                Ok(())
            };
            let plan = opened.adapter.as_ref().unwrap();
            plan.write(written.path(), &DETAILS, &mut gradients).unwrap();
            let written = tensors(&written.path().join(ADAPTER_WEIGHTS));
            assert_eq!(written.len(), file.tensors().iter().filter(|t| t.name.starts_with("grad.")).count());
            for (name, values) in written {
                let theirs = f64s(&file, &format!("grad.{name}"));
                let error = distance(&values, &theirs) / norm(&theirs);
                assert!(error <= GRADIENTS, "{} {recompute:?} grad {name}: relative error {error:e}", golden.name);
            }
            let trained = plan.written().collect::<Vec<_>>();
            for param in parameters.iter().filter(|param| !trained.contains(&param.name())) {
                assert!(!param.is_trainable() && param.grad().unwrap().is_none(), "{}", param.name());
            }
        }
    }
}

#[test]
fn thirty_adamw_steps_follow_peft() {
    let device = Device::cpu(1).unwrap();
    for golden in &GOLDENS {
        let (model, head) = golden.model;
        let opened = golden.open_saved(&device);
        let file = SafetensorsFile::open(&golden.directory().join("training.safetensors")).unwrap();
        let inputs = SafetensorsFile::open(&directory(model, head).join("training.safetensors")).unwrap();
        let batches: Vec<Batch> = (0..4).map(|number| batch(&inputs, &format!("batch.{number}."))).collect();
        follow_pytorch((golden.name, head), &*opened.model, &file, &batches, &device);
    }
}

#[test]
fn a_saved_adapter_has_pefts_tensors_and_settings_and_opens_with_the_same_bits() {
    let device = Device::cpu(1).unwrap();
    for golden in &GOLDENS {
        let opened = golden.open_saved(&device);
        let out = tempfile::tempdir().unwrap();
        let plan = opened.adapter.as_ref().unwrap();
        plan.save(&*opened.model, out.path(), &DETAILS, None).unwrap();
        let weights = |directory: &Path| tensors(&directory.join(ADAPTER_WEIGHTS));
        assert_eq!(weights(out.path()), weights(&golden.directory()), "{}", golden.name);
        let (ours, theirs) = (config(out.path()), config(&golden.directory()));
        let of_lora =
            ["peft_type", "task_type", "r", "use_rslora", "use_dora", "fan_in_fan_out", "modules_to_save", "bias"];
        let of_prompt = ["num_virtual_tokens", "num_transformer_submodules", "token_dim", "prompt_tuning_init"];
        let of_prefix = ["num_attention_heads", "num_layers", "encoder_hidden_size", "prefix_projection"];
        let of_bottleneck = ["bottleneck_size", "activation"];
        let of_prefix = of_prefix.into_iter().filter(|_| golden.name.starts_with("prefix"));
        for field in of_lora.into_iter().chain(of_prompt).chain(of_prefix).chain(of_bottleneck) {
            let (ours, theirs) = (&ours[field], &theirs[field]);
            assert_eq!(ours, theirs, "{} {field}", golden.name);
        }
        let again = golden.open(&device, Adapter::Saved(out.path().to_owned()), Recompute::Keep);
        assert_eq!(golden.logits(&again, &device), golden.logits(&opened, &device), "{}", golden.name);
        let again = again.adapter.unwrap();
        assert_eq!((again.updates(), again.factors()), (plan.updates(), plan.factors()), "{}", golden.name);
        assert_eq!(again.bottlenecks(), plan.bottlenecks(), "{}", golden.name);
    }
}

#[test]
fn a_merged_model_computes_what_model_and_adapter_do() {
    let device = Device::cpu(1).unwrap();
    for golden in of_layers() {
        let opened = golden.open_saved(&device);
        let out = tempfile::tempdir().unwrap();
        let options = SaveOptions { dtype: DType::F32, companions: None, layout: DirectoryLayout::HuggingFace };
        opened.adapter.as_ref().unwrap().save_merged(&*opened.model, out.path(), &options).unwrap();
        let merged = Registry::default().open(out.path(), &OpenOptions::new(&device)).unwrap();
        let (merged, apart) = (golden.logits(&merged, &device), golden.logits(&opened, &device));
        let wide =
            |values: &[f32]| golden.defined_at(&values.iter().map(|value| f64::from(*value)).collect::<Vec<_>>());
        let narrow: Vec<f32> = wide(&merged).iter().map(|value| *value as f32).collect();
        check(&format!("{} merged", golden.name), &narrow, &wide(&apart));
        // What is compared is not the model without the adapter.
        let base = Registry::default().open(&directory(golden.model.0, golden.model.1), &OpenOptions::new(&device));
        let base = golden.logits(&base.unwrap(), &device);
        let moved = base.iter().zip(&apart).map(|(base, apart)| (base - apart).abs()).fold(0.0, f32::max);
        assert!(moved > 0.01, "{}: the adapter moves logits by {moved} at most", golden.name);
    }
}

#[test]
fn new_updates_change_nothing_until_they_are_trained() {
    let device = Device::cpu(1).unwrap();
    let lora = LoraConfig { rank: 2, ..LoraConfig::default() };
    let configs = [
        AdapterConfig::Lora(lora.clone()),
        AdapterConfig::Lora(LoraConfig { dora: true, ..lora }),
        AdapterConfig::Ia3(Ia3Config::default()),
        AdapterConfig::Bottleneck(BottleneckConfig { size: 3, ..BottleneckConfig::default() }),
    ];
    for (golden, config) in of_layers().flat_map(|golden| configs.iter().map(move |config| (golden, config))) {
        let opened = golden.open(&device, Adapter::New(config.clone()), Recompute::Keep);
        let options = OpenOptions { head: Some(golden.head), ..OpenOptions::new(&device) };
        let base = Registry::default().open(&directory(golden.model.0, golden.model.1), &options).unwrap();
        let (with, without) = (golden.logits(&opened, &device), golden.logits(&base, &device));
        let scale = without.iter().fold(0f32, |most, value| most.max(value.abs()));
        let moved = with.iter().zip(&without).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // Layers that a fused op computed round at other places.
        assert!(moved <= 1e-5 * scale, "{} {config:?}: {moved} of {scale}", golden.name);
        let plan = opened.adapter.unwrap();
        let trained = opened.model.parameters().iter().filter(|param| param.is_trainable());
        assert_eq!(trained.map(|param| param.spec().shape.elements()).sum::<usize>(), plan.values());
    }
}

/// Without a head in the options it is the directory's own.
#[test]
fn a_new_adapter_is_of_the_head_that_the_directory_has() {
    let device = Device::cpu(1).unwrap();
    for (model, name, task, trains_head) in [
        ("bert_a", "cls", "SEQ_CLS", true),
        ("bert_a", "qa", "QUESTION_ANS", true),
        ("llama_a", "lm", "CAUSAL_LM", false),
    ] {
        let adapter = Some(Adapter::New(AdapterConfig::Lora(LoraConfig::default())));
        let options = OpenOptions { adapter, ..OpenOptions::new(&device) };
        let opened = Registry::default().open(&directory(model, name), &options).unwrap();
        let plan = opened.adapter.as_ref().unwrap();
        assert_eq!(plan.trained().count() > 0, trains_head, "{model}/{name}");
        let out = tempfile::tempdir().unwrap();
        plan.save(&*opened.model, out.path(), &DETAILS, None).unwrap();
        assert_eq!(config(out.path())["task_type"], task, "{model}/{name}");
    }
}

/// Two adapters of other ranks, alphas and layers: PEFT's logits, the merged model's, and what cannot be combined.
#[test]
fn several_adapters_add_up_with_their_weights() {
    let device = Device::cpu(1).unwrap();
    let llama = &GOLDENS[0];
    let several = |adapters: &[(&str, f32)]| {
        let weighted =
            |(name, weight): &(&str, f32)| WeightedAdapter { path: directory("adapters", name), weight: *weight };
        let adapter = Some(Adapter::Several(adapters.iter().map(weighted).collect()));
        let options = OpenOptions { adapter, head: Some(llama.head), ..OpenOptions::new(&device) };
        Registry::default().open(&directory(llama.model.0, llama.model.1), &options)
    };
    let opened = several(&[("llama", 0.75), ("combined_llama", -0.5)]).unwrap();
    assert!(opened.initialized.is_empty(), "{:?}", opened.initialized);
    let plan = opened.adapter.as_ref().unwrap();
    assert!(plan.describe().starts_with("0.75 x LoRA of rank 4 on "), "{}", plan.describe());
    let wide = |values: &[f32]| values.iter().map(|value| f64::from(*value)).collect::<Vec<_>>();
    let narrow =
        |values: &[f32]| -> Vec<f32> { llama.defined_at(&wide(values)).iter().map(|value| *value as f32).collect() };
    let file = SafetensorsFile::open(&directory("adapters", "combined_llama").join("golden.safetensors")).unwrap();
    let logits = llama.logits(&opened, &device);
    check("two adapters", &narrow(&logits), &llama.defined_at(&f64s(&file, "logits")));
    let out = tempfile::tempdir().unwrap();
    let options = SaveOptions { dtype: DType::F32, companions: None, layout: DirectoryLayout::HuggingFace };
    plan.save_merged(&*opened.model, out.path(), &options).unwrap();
    let merged = Registry::default().open(out.path(), &OpenOptions::new(&device)).unwrap();
    check("merged", &narrow(&llama.logits(&merged, &device)), &llama.defined_at(&wide(&logits)));
    // A weight of one and a weight of zero are the adapter alone.
    let [alone, one] = [llama.open_saved(&device), several(&[("llama", 1.0), ("combined_llama", 0.0)]).unwrap()];
    let [alone, one] = [&alone, &one].map(|opened| llama.logits(opened, &device));
    check("one of two", &narrow(&one), &llama.defined_at(&wide(&alone)));
    let error = plan.save(&*opened.model, out.path(), &DETAILS, None).unwrap_err().to_string();
    assert!(error.contains("not written as one"), "{error}");
    let error = plan.check_training().unwrap_err().to_string();
    assert!(error.contains("can be used but not trained on"), "{error}");
    for other in ["dora_llama", "ia3_llama", "prompt_llama", "prefix_llama", "bottleneck_llama"] {
        let error = several(&[("llama", 1.0), (other, 1.0)]).err().unwrap().to_string();
        assert!(error.contains("where all of them are LoRA's"), "{error}");
    }
}
