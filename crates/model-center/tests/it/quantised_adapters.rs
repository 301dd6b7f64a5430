//! Adapters beside a model in quantised blocks: the codes of bitsandbytes; logits, losses and gradients of the same
//! model dequantised, bit for bit; layouts of ranks.

mod ranks;

use bmtrain_core::autograd::Randomness;
use bmtrain_core::quantised::{Nf4, dequantise};
use bmtrain_core::{BlockFormat, Ctx, DType, Device, Segment, Tensor};
use bmtrain_dist::block::Recompute;
use bmtrain_dist::optim::{Adam, AdamOptions, Clip, ParamGroup};
use bmtrain_dist::param::widen;
use bmtrain_dist::{OptimManager, RankGroups};
use model_center::adapter::{Adapter, AdapterConfig, LoraConfig, PeftDetails};
use model_center::config::{ConfigOverrides, ConfigSource};
use model_center::data::Batch;
use model_center::formats::{DirectoryLayout, SafetensorsFile, SafetensorsWriter, TensorEntry, TensorSource};
use model_center::model::{OpenOptions, OpenedModel, Registry, SaveOptions, TextHead, WeightForm};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const TOKENS: usize = 61;
const LENGTH: usize = 12;
const DETAILS: PeftDetails<'_> = PeftDetails { base_model: "base", revision: None, dtype: DType::F32 };

const LLAMA: &str = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128,
    "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
    "max_position_embeddings": 32, "vocab_size": 61, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "initializer_range": 0.08, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": true}"#;
const GPT2: &str = r#"{"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 128, "n_head": 4,
    "n_layer": 2, "n_positions": 32, "vocab_size": 61, "activation_function": "gelu_new", "initializer_range": 0.08,
    "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "layer_norm_epsilon": 1e-5}"#;
const BLOOM: &str = r#"{"architectures": ["BloomForCausalLM"], "model_type": "bloom", "hidden_size": 128, "n_head": 4,
    "n_layer": 2, "vocab_size": 61, "initializer_range": 0.08, "attention_dropout": 0.0, "hidden_dropout": 0.0,
    "layer_norm_epsilon": 1e-5}"#;

/// A model with random weights, the same with the linear layers of its blocks quantised and dequantised, and an adapter
/// with random matrices.
struct Models {
    place: tempfile::TempDir,
}

impl Models {
    fn new(config: &str, targets: &[&str]) -> Self {
        Models::with(config, targets, false)
    }

    fn with(config: &str, targets: &[&str], dora: bool) -> Self {
        let (models, device) = (Models { place: tempfile::tempdir().unwrap() }, Device::cpu(1).unwrap());
        std::fs::create_dir_all(models.own()).unwrap();
        std::fs::create_dir_all(models.dequantised()).unwrap();
        std::fs::create_dir_all(models.adapter()).unwrap();
        let path = models.own().join("config.json");
        std::fs::write(&path, config).unwrap();
        let source = ConfigSource::open(&path, ConfigOverrides::default()).unwrap();
        let options = OpenOptions {
            from_config: true,
            config: Some(Arc::new(source)),
            head: Some(TextHead::CausalLm),
            seed: 7,
            ..OpenOptions::new(&device)
        };
        let random = Registry::default().open(&models.own(), &options).unwrap();
        let save = SaveOptions { dtype: DType::F32, companions: None, layout: DirectoryLayout::HuggingFace };
        random.model.save(&models.own(), &save).unwrap();
        dequantise_directory(&models.own(), &models.dequantised());
        let targets = targets.iter().map(|target| (*target).to_owned()).collect();
        let config = LoraConfig { rank: 4, alpha: 8.0, targets, dora, ..LoraConfig::default() };
        let adapter = Adapter::New(AdapterConfig::Lora(config));
        let options = OpenOptions { adapter: Some(adapter), ..OpenOptions::new(&device) };
        let opened = Registry::default().open(&models.own(), &options).unwrap();
        let parameters = opened.model.parameters();
        let mut seed = 0;
        let mut fill = |name: &str, values: &mut Vec<f32>| {
            seed += 1;
            let shape = parameters.get(name).unwrap().spec().shape;
            // Lengths of rows are about what random weights have.
            let about = if name.ends_with(".magnitude") { 0.9 } else { 0.0 };
            values
                .extend(Tensor::randn(&device, shape, seed)?.to_vec::<f32>()?.iter().map(|value| value * 0.1 + about));
            Ok(())
        };
        opened.adapter.as_ref().unwrap().write(&models.adapter(), &DETAILS, &mut fill).unwrap();
        models
    }

    fn own(&self) -> PathBuf {
        self.place.path().join("own")
    }

    fn dequantised(&self) -> PathBuf {
        self.place.path().join("dequantised")
    }

    fn adapter(&self) -> PathBuf {
        self.place.path().join("adapter")
    }

    fn options(&self, device: &Device, weights: WeightForm) -> OpenOptions {
        let adapter = Some(Adapter::Saved(self.adapter()));
        OpenOptions { adapter, weights, head: Some(TextHead::CausalLm), ..OpenOptions::new(device) }
    }

    /// The model in blocks, and the dequantised one.
    fn pair(&self, options: impl Fn(OpenOptions) -> OpenOptions, device: &Device) -> [OpenedModel; 2] {
        let open = |directory: &Path, weights| {
            Registry::default().open(directory, &options(self.options(device, weights))).unwrap()
        };
        [open(&self.own(), WeightForm::Nf4), open(&self.dequantised(), WeightForm::Dequantised)]
    }
}

/// Matrices of the linear layers of blocks, by the names of their tensors.
fn is_linear(name: &str) -> bool {
    let ends = ["proj.weight", "c_attn.weight", "c_fc.weight", "query_key_value.weight", "dense.weight"];
    let further = ["dense_h_to_4h.weight", "dense_4h_to_h.weight"];
    ends.iter().chain(&further).any(|end| name.ends_with(end))
}

/// Values of a tensor `[rows, columns]` after quantisation, of GPT-2's in the order `[outputs, inputs]`.
fn quantised(values: &[f32], [rows, columns]: [usize; 2], is_transposed: bool) -> Vec<f32> {
    let swapped = |values: &[f32], rows: usize, columns: usize| {
        (0..values.len()).map(|at| values[at % rows * columns + at / rows]).collect::<Vec<f32>>()
    };
    let ours = if is_transposed { swapped(values, rows, columns) } else { values.to_vec() };
    let mut out = vec![0.0; ours.len()];
    dequantise(BlockFormat::NF4, &Nf4::quantise(&ours).blocks(), &mut out);
    if is_transposed { swapped(&out, columns, rows) } else { out }
}

fn dequantise_directory(from: &Path, to: &Path) {
    std::fs::copy(from.join("config.json"), to.join("config.json")).unwrap();
    let file = SafetensorsFile::open(&from.join("model.safetensors")).unwrap();
    let entries: Vec<TensorEntry> = file.tensors().to_vec();
    let mut writer = SafetensorsWriter::create(&to.join("model.safetensors"), &entries).unwrap();
    let mut count = 0;
    for entry in &entries {
        let mut values = vec![0.0; entry.elements().unwrap()];
        file.read_f32(&entry.name, &mut values).unwrap();
        if let (true, &[rows, columns]) = (is_linear(&entry.name), entry.shape.as_slice()) {
            values = quantised(&values, [rows, columns], entry.name.contains(".c_"));
            count += 1;
        }
        writer.write_f32(&entry.name, &values).unwrap();
    }
    writer.finish().unwrap();
    assert!(count > 0);
}

fn batch(number: usize) -> Batch {
    let ids = (0..3 * LENGTH).map(|at| ((at * 17 + at * at * 5 + 11 * number) % TOKENS) as i64).collect();
    Batch::next_tokens(LENGTH, ids, None)
}

fn logits(opened: &OpenedModel, device: &Device) -> Vec<f32> {
    let batch = Batch { labels: None, ..batch(0) };
    let output = opened.model.forward(&batch, None, &mut Ctx::inference(device)).unwrap();
    widen(output.logits.unwrap().value()).unwrap()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The loss of a batch and the gradients of what is trained, by name.
fn gradients(opened: &OpenedModel, device: &Device) -> (u32, Vec<(String, Vec<u32>)>) {
    let mut cx = Ctx::gradients(device);
    let loss = opened.model.loss(&batch(1), &mut cx).unwrap().unwrap();
    let value = loss.value().item().unwrap().to_bits();
    let one = Tensor::full_in(device, [1], DType::F32, 1.0, Segment::Activations).unwrap();
    cx.take_tape().unwrap().backward(device, vec![(loss, one)], &[]).unwrap();
    let of = |name: &str| {
        let gradient = opened.model.parameters().get(name).unwrap().grad().unwrap().unwrap();
        (name.to_owned(), bits(&widen(&gradient).unwrap()))
    };
    (value, opened.adapter.as_ref().unwrap().written().map(of).collect())
}

/// Losses of a few steps of AdamW on this rank of the groups.
fn losses(opened: &OpenedModel, device: &Device, groups: &RankGroups) -> Vec<f32> {
    let mut optim = OptimManager::new(device, Clip { max_norm: 1.0, ..Clip::default() }).unwrap();
    let params = ParamGroup::by_decay(opened.model.parameters(), 0.01);
    optim.add(Box::new(Adam::new(params, AdamOptions::default()).unwrap()), 1e-2);
    let step = |step: u32| {
        let mut sum = 0.0;
        for micro_batch in (0..2).filter(|number| number % groups.mesh().data_size() == groups.mesh().data_rank()) {
            let mut cx = Ctx::training(device, Randomness { seed: 3, step, micro_batch: micro_batch as u32 });
            let loss = opened.model.loss(&batch(micro_batch), &mut cx).unwrap().unwrap();
            optim.backward(&loss, 0.5, &mut cx).unwrap();
            sum += loss.value().item().unwrap();
        }
        optim.step().unwrap();
        sum
    };
    (0..4).map(step).collect()
}

#[test]
fn codes_and_scales_equal_those_of_bitsandbytes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/nf4/nf4.safetensors");
    let file = SafetensorsFile::open(&path).unwrap();
    let f32s = |name: String| {
        let mut values = vec![0.0; file.entry(&name).unwrap().elements().unwrap()];
        file.read_f32(&name, &mut values).unwrap();
        values
    };
    let u8s = |name: String| {
        let mut values = vec![0; file.entry(&name).unwrap().elements().unwrap()];
        file.read_raw_at(&name, 0, &mut values).unwrap();
        values
    };
    let mut same_means = 0;
    for name in ["normal", "heavy", "bf16", "zeros", "equal", "wide"] {
        let values = f32s(format!("{name}.values"));
        let ours = Nf4::quantise(&values);
        assert_eq!(ours.codes, u8s(format!("{name}.codes")), "{name}");
        let (offset, scale_codes) = (f32s(format!("{name}.offset"))[0], u8s(format!("{name}.scale_codes")));
        if ours.offset.to_bits() != offset.to_bits() {
            // PyTorch's sum is rounded in between: its mean is the next number, and few scales are on other sides.
            assert!((ours.offset - offset).abs() <= f32::EPSILON * offset, "{name}: {} for {offset}", ours.offset);
            let others = ours.scale_codes.iter().zip(&scale_codes).filter(|(a, b)| a != b);
            assert!(others.clone().all(|(a, b)| a.abs_diff(*b) == 1) && others.count() <= 1, "{name}");
            continue;
        }
        same_means += 1;
        assert_eq!(ours.scale_codes, scale_codes, "{name}");
        assert_eq!(bits(&ours.scales), bits(&f32s(format!("{name}.scales"))), "{name}");
        let mut out = vec![0.0; values.len()];
        dequantise(BlockFormat::NF4, &ours.blocks(), &mut out);
        assert_eq!(bits(&out), bits(&f32s(format!("{name}.dequantised"))), "{name}");
    }
    assert_eq!(same_means, 5);
}

#[test]
fn logits_losses_and_gradients_equal_those_beside_the_dequantised_model_bit_for_bit() {
    let device = Device::cpu(2).unwrap();
    for (name, config, targets, dora) in [
        ("llama", LLAMA, &["all-linear"][..], false),
        ("llama, attention alone", LLAMA, &["q_proj", "v_proj"], false),
        ("gpt2", GPT2, &["all-linear"], false),
        ("gpt2, attention alone", GPT2, &["c_attn"], false),
        ("bloom", BLOOM, &["all-linear"], false),
        ("llama, DoRA", LLAMA, &["q_proj", "down_proj"], true),
        ("bloom, DoRA", BLOOM, &["all-linear"], true),
    ] {
        let models = Models::with(config, targets, dora);
        for recompute in [Recompute::Keep, Recompute::Checkpoint] {
            let what = format!("{name}, {recompute:?}");
            let [blocks, wide] = models.pair(|options| OpenOptions { recompute, ..options }, &device);
            let held = blocks.model.parameters().iter().filter(|param| param.block_format().is_some());
            assert_eq!(held.count(), 8, "{what}");
            assert!(blocks.notes[0].contains("are quantised (8 NF4)"), "{:?}", blocks.notes);
            assert_eq!(bits(&logits(&blocks, &device)), bits(&logits(&wide, &device)), "{what}");
            assert_eq!(gradients(&blocks, &device), gradients(&wide, &device), "{what}");
            let groups = RankGroups::solo();
            let [ours, expected] = [&blocks, &wide].map(|opened| losses(opened, &device, &groups));
            assert!(expected[3] < expected[0], "{what}: {expected:?}");
            assert_eq!(bits(&ours), bits(&expected), "{what}");
        }
    }
}

#[test]
fn quantisation_moves_logits_and_is_the_same_again() {
    let (models, device) = (Models::new(LLAMA, &["all-linear"]), Device::cpu(1).unwrap());
    let open = |weights| Registry::default().open(&models.own(), &models.options(&device, weights)).unwrap();
    let [wide, blocks, again] = [WeightForm::Dequantised, WeightForm::Nf4, WeightForm::Nf4].map(open);
    let [wide, blocks, again] = [&wide, &blocks, &again].map(|opened| logits(opened, &device));
    assert_eq!(bits(&blocks), bits(&again));
    let moved = wide.iter().zip(&blocks).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(moved > 1e-3, "{moved}");
}

#[test]
fn a_model_without_whole_blocks_is_refused() {
    let device = Device::cpu(1).unwrap();
    let options = OpenOptions { weights: WeightForm::Nf4, ..OpenOptions::new(&device) };
    let error = Registry::default().open(&crate::goldens::directory("llama_a", "lm"), &options).err().unwrap();
    assert!(error.to_string().contains("rows of 20 values, not whole blocks of 64"), "{error}");
}
