//! LoRA, DoRA, IA³, prompt and prefix tuning against PEFT, and bottleneck adapters against PyTorch: adapters of tiny
//! models, made by `scripts/golden/make_adapters.py` and `make_bottleneck.py` in 64-bit floats.

use crate::goldens::{self, batch, check, directory, distance, f64s, follow_pytorch, inputs, norm};
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor};
use bmtrain_dist::block::Recompute;
use bmtrain_dist::param::widen;
use model_center::adapter::{
    ADAPTER_WEIGHTS, Adapter, AdapterConfig, BottleneckConfig, BottleneckPlacement, Ia3Config, LoraConfig, PeftDetails,
    PrefixConfig, WeightedAdapter,
};
use model_center::data::{Batch, Labels, VerbalizerBatch};
use model_center::formats::{DirectoryLayout, SafetensorsFile, SafetensorsWriter, TensorEntry, TensorSource};
use model_center::model::{OpenOptions, OpenedModel, Registry, SaveOptions, TextHead};
use std::path::{Path, PathBuf};

/// The largest relative error of a gradient: gradients of queries are small differences of a softmax's terms.
const GRADIENTS: f64 = 1e-4;

/// A golden adapter: its directory, the model and the head it is of, and which tokens have defined states.
struct Golden {
    name: &'static str,
    model: (&'static str, &'static str),
    head: TextHead,
    defined: fn(&Batch) -> Vec<bool>,
}

const fn golden(name: &'static str, model: (&'static str, &'static str), head: TextHead) -> Golden {
    let defined = match head {
        TextHead::CausalLm => goldens::from_the_first_token,
        _ => goldens::everywhere,
    };
    Golden { name, model, head, defined }
}

static GOLDENS: [Golden; 27] = [
    golden("llama", ("llama_a", "lm"), TextHead::CausalLm),
    golden("gpt2", ("gpt2_a", "lm"), TextHead::CausalLm),
    golden("bloom", ("bloom_a", "lm"), TextHead::CausalLm),
    golden("bert", ("bert_a", "cls"), TextHead::Classification { outputs: 2 }),
    of_t5("t5"),
    golden("prompt_llama", ("llama_a", "lm"), TextHead::CausalLm),
    golden("prompt_gpt2", ("gpt2_a", "lm"), TextHead::CausalLm),
    of_t5("prompt_t5"),
    of_t5("prompt_t5_both"),
    golden("dora_llama", ("llama_a", "lm"), TextHead::CausalLm),
    golden("dora_gpt2", ("gpt2_a", "lm"), TextHead::CausalLm),
    golden("dora_bloom", ("bloom_a", "lm"), TextHead::CausalLm),
    golden("dora_bert", ("bert_a", "cls"), TextHead::Classification { outputs: 2 }),
    golden("ia3_llama", ("llama_a", "lm"), TextHead::CausalLm),
    golden("ia3_gpt2", ("gpt2_a", "lm"), TextHead::CausalLm),
    golden("ia3_bloom", ("bloom_a", "lm"), TextHead::CausalLm),
    golden("ia3_bert", ("bert_a", "cls"), TextHead::Classification { outputs: 2 }),
    of_t5("ia3_t5"),
    golden("prefix_llama", ("llama_a", "lm"), TextHead::CausalLm),
    golden("prefix_gpt2", ("gpt2_a", "lm"), TextHead::CausalLm),
    golden("prefix_bloom", ("bloom_a", "lm"), TextHead::CausalLm),
    golden("prefix_qwen3", ("qwen3_b", "lm"), TextHead::CausalLm),
    golden("prefix_opt", ("opt_a", "lm"), TextHead::CausalLm),
    golden("bottleneck_llama", ("llama_a", "lm"), TextHead::CausalLm),
    golden("bottleneck_gpt2", ("gpt2_a", "lm"), TextHead::CausalLm),
    golden("bottleneck_bert", ("bert_a", "cls"), TextHead::Classification { outputs: 2 }),
    of_t5("bottleneck_t5"),
];

const fn of_t5(name: &'static str) -> Golden {
    let defined = goldens::from_the_first_decoder_token;
    Golden { name, model: ("t5_b", "lm"), head: TextHead::CausalLm, defined }
}

/// The goldens of methods that can be merged.
fn of_layers() -> impl Iterator<Item = &'static Golden> {
    GOLDENS.iter().filter(|golden| !golden.has_virtual_tokens() && !golden.name.starts_with("bottleneck"))
}

const DETAILS: PeftDetails<'_> = PeftDetails { base_model: "models/base", revision: None, dtype: DType::F32 };

impl Golden {
    fn has_virtual_tokens(&self) -> bool {
        ["prompt", "prefix"].iter().any(|method| self.name.starts_with(method))
    }

    fn directory(&self) -> PathBuf {
        directory("adapters", self.name)
    }

    fn open(&self, device: &Device, adapter: Adapter, recompute: Recompute) -> OpenedModel {
        let options =
            OpenOptions { adapter: Some(adapter), head: Some(self.head), recompute, ..OpenOptions::new(device) };
        Registry::default().open(&directory(self.model.0, self.model.1), &options).unwrap()
    }

    fn open_saved(&self, device: &Device) -> OpenedModel {
        self.open(device, Adapter::Saved(self.directory()), Recompute::Keep)
    }

    fn logits(&self, opened: &OpenedModel, device: &Device) -> Vec<f32> {
        let batch = inputs(self.model.0, self.model.1);
        let output = opened.model.forward(&batch, None, &mut Ctx::inference(device)).unwrap();
        widen(output.logits.unwrap().value()).unwrap()
    }

    /// Of the defined tokens.
    fn defined_at(&self, values: &[f64]) -> Vec<f64> {
        let defined = (self.defined)(&inputs(self.model.0, self.model.1));
        let columns = values.len() / defined.len();
        if matches!(self.head, TextHead::Classification { .. }) {
            return values.to_vec();
        }
        let rows = values.chunks(columns).zip(defined);
        rows.filter(|(_, defined)| *defined).flat_map(|(row, _)| row.to_vec()).collect()
    }
}

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

/// Positions of label words are in sequences that virtual tokens made longer.
#[test]
fn label_words_after_virtual_tokens_are_read_where_each_sequence_has_them() {
    let device = Device::cpu(1).unwrap();
    for golden in GOLDENS.iter().filter(|golden| golden.has_virtual_tokens()) {
        let opened = golden.open_saved(&device);
        let has_encoder = opened.model.info().generates_targets;
        let texts = [[5i64, 6, 7, 8], [9, 10, 11, 12]];
        let of = |texts: &[[i64; 4]]| {
            // The decoder's last token, or the third of a decoder alone.
            let (length, at) = if has_encoder { (2, 1) } else { (4, 2) };
            let positions = (0..texts.len()).map(|row| (row * length + at) as i64).collect();
            let batch = Batch {
                decoder_input_ids: has_encoder.then(|| texts.iter().flat_map(|text| [0, text[1]]).collect()),
                labels: Some(Labels::Classes(vec![1; texts.len()])),
                verbalizer: Some(VerbalizerBatch { label_words: vec![3, 20, 14], positions }),
                ..Batch::new(4, texts.concat())
            };
            let output = opened.model.forward(&batch, None, &mut Ctx::inference(&device)).unwrap();
            widen(output.logits.unwrap().value()).unwrap()
        };
        let (both, first, second) = (of(&texts), of(&texts[..1]), of(&texts[1..]));
        let apart = [first, second].concat();
        assert_eq!(both.len(), 6, "{}", golden.name);
        for (both, apart) in both.iter().zip(&apart) {
            assert!((both - apart).abs() <= 1e-5, "{}: {both} for {apart}", golden.name);
        }
        assert!(apart[..3] != apart[3..], "{}: the texts differ", golden.name);
    }
}

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

/// The keys and values that PEFT computed from smaller embeddings are in the directory.
#[test]
fn keys_and_values_that_were_projected_have_pefts_logits() {
    let (device, llama) = (Device::cpu(1).unwrap(), &GOLDENS[0]);
    let projected = directory("adapters", "prefix_projected");
    let opened = llama.open(&device, Adapter::Saved(projected.clone()), Recompute::Keep);
    assert!(opened.initialized.is_empty(), "{:?}", opened.initialized);
    let file = SafetensorsFile::open(&projected.join("golden.safetensors")).unwrap();
    let wide: Vec<f64> = llama.logits(&opened, &device).iter().map(|value| f64::from(*value)).collect();
    let ours: Vec<f32> = llama.defined_at(&wide).iter().map(|value| *value as f32).collect();
    check("projected", &ours, &llama.defined_at(&f64s(&file, "logits")));
}

/// Packed documents, lengths, models that are no decoders, a directory of another model.
#[test]
fn keys_and_values_of_virtual_tokens_are_refused_where_they_make_no_sense() {
    let device = Device::cpu(1).unwrap();
    let prefix = |tokens| Adapter::New(AdapterConfig::Prefix(PrefixConfig { tokens }));
    let open = |model: &str, name: &str, head, adapter| {
        let options = OpenOptions { adapter: Some(adapter), head, ..OpenOptions::new(&device) };
        Registry::default().open(&directory(model, name), &options)
    };
    for (model, name, head) in [
        ("t5_b", "lm", Some(TextHead::CausalLm)),
        ("bert_a", "cls", Some(TextHead::Classification { outputs: 2 })),
        ("bert_a", "mlm", None),
        ("gpt2_a", "cls", Some(TextHead::Classification { outputs: 3 })),
    ] {
        let error = open(model, name, head, prefix(2)).err().unwrap().to_string();
        assert!(error.contains("prefix tuning is for decoders with a language-modelling head"), "{model}: {error}");
    }
    let error = open("cpm1_a", "lm", None, prefix(2)).err().unwrap().to_string();
    assert!(error.contains("contexts and spans, which virtual tokens are no part of"), "{error}");
    let error = open("mistral_a", "lm", None, prefix(2)).err().unwrap().to_string();
    assert!(error.contains("prefix tuning has no place in a sliding window"), "{error}");
    let of_llama = Adapter::Saved(directory("adapters", "prefix_llama"));
    let error = open("gpt2_a", "lm", None, of_llama).err().unwrap().to_string();
    assert!(error.contains("prompt_embeddings") && error.contains("[3, 80]"), "{error}");

    let opened = open("gpt2_a", "lm", None, prefix(3)).unwrap();
    assert_eq!(opened.model.info().max_length, 16);
    let plan = opened.adapter.as_ref().unwrap();
    assert_eq!(plan.describe(), "keys and values of 3 virtual tokens before a sequence, in 2 layers");
    assert_eq!(plan.values(), 2 * 3 * 2 * 20);
    let error = plan.check_merge().unwrap_err().to_string();
    assert!(error.contains("cannot be merged"), "{error}");
    let loss = |batch: &Batch| opened.model.loss(batch, &mut Ctx::inference(&device)).err().unwrap().to_string();
    let error = loss(&Batch::next_tokens(17, vec![5; 17], None));
    assert!(error.contains("20 tokens in a row, the model has 19 positions"), "{error}");
    let packed = Batch { document_starts: Some(vec![0, 0, 2, 2]), ..Batch::next_tokens(4, vec![5; 4], None) };
    let error = loss(&packed);
    assert!(error.contains("virtual tokens precede a sequence"), "{error}");
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
