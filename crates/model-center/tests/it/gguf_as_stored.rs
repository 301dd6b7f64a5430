//! Models of GGUF files whose matrices stay in their blocks: the logits, bit for bit, and the tokens of dequantised
//! weights, in the memory of the blocks; what cannot stay is dequantised, and reported.

use bmtrain_core::quantised::dequantise;
use bmtrain_core::{BlockFormat, Ctx, DType, Device, Segment, Tensor};
use bmtrain_dist::param::Param;
use model_center::adapter::{Adapter, AdapterConfig, LoraConfig};
use model_center::formats::gguf::GgmlType;
use model_center::generate::{BeamOptions, GenerateOptions, GenerationSetup, Generator, Method};
use model_center::model::{Batch, OpenOptions, OpenedModel, Registry, TextModel, WeightForm};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const WIDTH: usize = 256;
const FEED_FORWARD: usize = 512;
const TOKENS: usize = 53;
/// Query heads, key heads, length of a head.
const HEADS: [usize; 3] = [4, 2, 64];
const LAYERS: usize = 2;

/// The types of a file's matrices by the end of their names.
type Types = fn(&str) -> GgmlType;

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// Reproducible bytes.
struct Random(u64);

impl Random {
    fn byte(&mut self) -> u8 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 56) as u8
    }

    /// Elements of a type: of blocks every pattern of bits, with small scales.
    fn elements(&mut self, kind: GgmlType, count: usize) -> Vec<u8> {
        let Some(format) = kind.blocks() else {
            let value = |random: &mut Self| 0.5 + f32::from(random.byte()) / 256.0;
            return match kind {
                GgmlType::F32 => (0..count).flat_map(|_| value(self).to_le_bytes()).collect(),
                _ => (0..count).flat_map(|_| half::f16::from_f32(value(self) / 16.0).to_le_bytes()).collect(),
            };
        };
        let scales: &[usize] = match format {
            BlockFormat::Q4_0 | BlockFormat::Q5_0 | BlockFormat::Q8_0 => &[0],
            BlockFormat::Q6K => &[208],
            _ => &[0, 2],
        };
        // Scales of scales multiply up to 127; elements of 8 bits reach 128.
        let exponent = match format {
            BlockFormat::Q8_0 => 0x0c,
            BlockFormat::Q4K | BlockFormat::Q5K | BlockFormat::Q6K => 0x04,
            _ => 0x18,
        };
        let mut raw: Vec<u8> = (0..count / format.elements() * format.bytes()).map(|_| self.byte()).collect();
        for block in raw.chunks_exact_mut(format.bytes()) {
            scales.iter().for_each(|at| block[at + 1] = block[at + 1] & 0x83 | exponent);
        }
        raw
    }
}

/// A small Llama; `change` may damage its data, by name.
fn write(path: &Path, types: Types, tied: bool, change: &dyn Fn(&str, &mut Vec<u8>)) {
    let whole = |name: &str, value: usize| [text(name), 4u32.to_le_bytes().into(), (value as u32).to_le_bytes().into()];
    let real = |name: &str, value: f32| [text(name), 6u32.to_le_bytes().into(), value.to_le_bytes().into()];
    let keys = [
        [text("general.architecture"), 8u32.to_le_bytes().into(), text("llama")],
        whole("llama.block_count", LAYERS),
        whole("llama.context_length", 128),
        whole("llama.embedding_length", WIDTH),
        whole("llama.feed_forward_length", FEED_FORWARD),
        whole("llama.attention.head_count", HEADS[0]),
        whole("llama.attention.head_count_kv", HEADS[1]),
        whole("llama.attention.key_length", HEADS[2]),
        real("llama.attention.layer_norm_rms_epsilon", 1e-5),
    ];
    let mut tensors = vec![("token_embd.weight".to_owned(), vec![TOKENS, WIDTH])];
    tensors.push(("output_norm.weight".into(), vec![WIDTH]));
    if !tied {
        tensors.push(("output.weight".into(), vec![TOKENS, WIDTH]));
    }
    for layer in 0..LAYERS {
        let (queries, keys) = (HEADS[0] * HEADS[2], HEADS[1] * HEADS[2]);
        for (name, shape) in [
            ("attn_norm", vec![WIDTH]),
            ("ffn_norm", vec![WIDTH]),
            ("attn_q", vec![queries, WIDTH]),
            ("attn_k", vec![keys, WIDTH]),
            ("attn_v", vec![keys, WIDTH]),
            ("attn_output", vec![WIDTH, queries]),
            ("ffn_gate", vec![FEED_FORWARD, WIDTH]),
            ("ffn_up", vec![FEED_FORWARD, WIDTH]),
            ("ffn_down", vec![WIDTH, FEED_FORWARD]),
        ] {
            tensors.push((format!("blk.{layer}.{name}.weight"), shape));
        }
    }
    let (mut random, mut entries, mut data) = (Random(3), Vec::new(), Vec::<u8>::new());
    for (name, shape) in &tensors {
        let kind = if shape.len() == 1 { GgmlType::F32 } else { types(name) };
        data.resize(data.len().next_multiple_of(32), 0);
        entries.extend([text(name), (shape.len() as u32).to_le_bytes().into()].concat());
        entries.extend(shape.iter().rev().flat_map(|size| (*size as u64).to_le_bytes()));
        entries.extend([&number(kind).to_le_bytes()[..], &(data.len() as u64).to_le_bytes()].concat());
        let mut elements = random.elements(kind, shape.iter().product());
        change(name, &mut elements);
        data.extend(elements);
    }
    let counts = [tensors.len() as u64, keys.len() as u64];
    let mut bytes = [&b"GGUF"[..], &3u32.to_le_bytes(), &counts[0].to_le_bytes(), &counts[1].to_le_bytes()].concat();
    bytes.extend(keys.iter().flat_map(|key| key.concat()));
    bytes.extend(entries);
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend(data);
    std::fs::write(path, bytes).unwrap();
}

/// The number of a type in the format.
fn number(kind: GgmlType) -> u32 {
    match kind {
        GgmlType::F32 => 0,
        GgmlType::F16 => 1,
        GgmlType::Blocks(BlockFormat::Q4_0) => 2,
        GgmlType::Blocks(BlockFormat::Q4_1) => 3,
        GgmlType::Blocks(BlockFormat::Q5_0) => 6,
        GgmlType::Blocks(BlockFormat::Q5_1) => 7,
        GgmlType::Blocks(BlockFormat::Q8_0) => 8,
        GgmlType::Blocks(BlockFormat::Q4K) => 12,
        GgmlType::Blocks(BlockFormat::Q5K) => 13,
        GgmlType::BF16 => 30,
        GgmlType::Blocks(BlockFormat::Q6K) => 14,
        GgmlType::Blocks(BlockFormat::NF4) => unreachable!("no type of the format"),
    }
}

struct Fixture {
    directory: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        Fixture { directory: tempfile::tempdir().unwrap() }
    }

    fn file(&self, types: Types, tied: bool) -> PathBuf {
        let path = self.directory.path().join("model.gguf");
        write(&path, types, tied, &|_, _| ());
        path
    }
}

fn open(device: &Device, path: &Path, weights: WeightForm) -> model_center::Result<OpenedModel> {
    let options = OpenOptions { weights, ..GenerationSetup::open_options(device) };
    Registry::default().open(path, &options)
}

fn ids(length: usize) -> Vec<i64> {
    (0..length).map(|place| ((place * 17 + place * place * 5) % TOKENS) as i64).collect()
}

/// The bits of the logits of one sequence.
fn logits(model: &dyn TextModel, device: &Device, length: usize) -> Vec<u32> {
    let batch = Batch { labels: None, ..Batch::next_tokens(length, ids(length), None) };
    let output = model.forward(&batch, None, &mut Ctx::inference(device)).unwrap();
    let logits: Vec<f32> = output.logits.unwrap().value().to_vec().unwrap();
    assert!(logits.iter().all(|value| value.is_finite()));
    assert!(logits.iter().any(|value| value.abs() > 1e-3), "{:?}", &logits[..8]);
    logits.into_iter().map(f32::to_bits).collect()
}

fn generate(model: &dyn TextModel, device: &Device, method: Method) -> Vec<Vec<u32>> {
    let options = GenerateOptions { max_new_tokens: 12, method, ..GenerateOptions::default() };
    let prompts = [5, 20].map(|length| ids(length).into_iter().map(|id| id as u32).collect::<Vec<_>>());
    let generator = Generator::new(model, None, options).unwrap();
    let texts = generator.generate(&prompts, 0, &mut Ctx::inference(device), &mut |_| Ok(())).unwrap();
    texts.into_iter().flatten().map(|text| text.tokens).collect()
}

/// One of every format, tied and untied.
const FILES: [(Types, bool); 8] = [
    (|_| GgmlType::Blocks(BlockFormat::Q4_0), false),
    (|_| GgmlType::Blocks(BlockFormat::Q4_1), true),
    (|_| GgmlType::Blocks(BlockFormat::Q5_0), true),
    (|_| GgmlType::Blocks(BlockFormat::Q5_1), false),
    (|_| GgmlType::Blocks(BlockFormat::Q8_0), true),
    (|_| GgmlType::Blocks(BlockFormat::Q4K), false),
    (|_| GgmlType::Blocks(BlockFormat::Q5K), true),
    (|_| GgmlType::Blocks(BlockFormat::Q6K), true),
];

#[test]
fn logits_and_tokens_are_those_of_dequantised_weights_for_every_format() {
    let fixture = Fixture::new();
    for (threads, (types, tied)) in [1, 2].into_iter().cycle().zip(FILES) {
        let device = Device::cpu(threads).unwrap();
        let path = fixture.file(types, tied);
        let [wide, stored] = [WeightForm::Dequantised, WeightForm::AsStored].map(|form| open(&device, &path, form));
        let (wide, stored) = (wide.unwrap(), stored.unwrap());
        assert!(wide.notes.is_empty());
        let (wide, stored) = (&*wide.model, &*stored.model);
        // Few rows, and more than are multiplied without packing.
        for length in [1, 9, 40] {
            // Equal bits: the same sums in the same order, over the same numbers.
            assert_eq!(logits(stored, &device, length), logits(wide, &device, length), "{} {length}", types("").name());
        }
        for method in [Method::Greedy, Method::Beams(BeamOptions { beams: 3, ..BeamOptions::default() })] {
            let tokens = generate(stored, &device, method);
            assert_eq!(tokens, generate(wide, &device, method), "{}", types("").name());
            assert!(tokens.iter().all(|text| text.len() == 12));
        }
    }
}

#[test]
fn matrices_take_the_memory_of_their_blocks() {
    let (fixture, device) = (Fixture::new(), Device::cpu(1).unwrap());
    let path = fixture.file(|_| GgmlType::Blocks(BlockFormat::Q4_1), true);
    let opened = open(&device, &path, WeightForm::AsStored).unwrap();
    assert_eq!(opened.notes, ["9 of 9 matrices are held as stored (9 Q4_1)"]);
    let mut elements = 0;
    for param in opened.model.parameters() {
        let value = param.value().unwrap();
        match param.block_format() {
            None => assert_eq!(param.spec().shape.dims().len(), 1, "{}", param.name()),
            Some(format) => {
                assert_eq!(value.bytes(), param.spec().shape.elements() / format.elements() * format.bytes());
                elements += param.spec().shape.elements();
                assert!(!param.is_trainable() && param.grad().unwrap().is_none());
                param.set_trainable(true);
                assert!(!param.is_trainable());
                let error = param.read().unwrap_err().to_string();
                assert!(error.contains("Q4_1 blocks") && error.contains("dequantised"), "{error}");
            }
        }
    }
    assert_eq!(opened.parameters, elements + (2 * LAYERS + 1) * WIDTH);
    // 20 bytes for 32 elements; the norms and rounding of chunks are a few kilobytes.
    let report = device.memory();
    let parameters = report.segments.iter().find(|(segment, _)| *segment == Segment::Parameters).unwrap().1;
    let blocks = elements / 32 * 20;
    assert!((blocks..blocks + (32 << 10)).contains(&parameters.peak), "{} of {blocks}", parameters.peak);
}

#[test]
fn mixed_parts_are_dequantised_and_reported_and_plain_matrices_stay_plain() {
    let (fixture, device) = (Fixture::new(), Device::cpu(2).unwrap());
    let types: Types = |name| match name {
        "blk.0.attn_v.weight" => GgmlType::Blocks(BlockFormat::Q6K),
        "blk.1.ffn_down.weight" => GgmlType::F16,
        "blk.1.ffn_up.weight" => GgmlType::F32,
        "token_embd.weight" => GgmlType::Blocks(BlockFormat::Q6K),
        _ => GgmlType::Blocks(BlockFormat::Q4K),
    };
    let path = fixture.file(types, true);
    let stored = open(&device, &path, WeightForm::AsStored).unwrap();
    assert_eq!(
        stored.notes,
        ["6 of 9 matrices are held as stored (5 Q4_K, 1 Q6_K); dequantised are 2: \
          decoder.layers.0.attention.project_qkv.weight (parts in Q4_K, Q4_K, Q6_K), decoder.layers.1.ffn.w_in.weight \
          (parts in Q4_K, plain floats); stored as plain floats are 1"]
    );
    let wide = open(&device, &path, WeightForm::Dequantised).unwrap();
    for length in [3, 33] {
        assert_eq!(logits(&*stored.model, &device, length), logits(&*wide.model, &device, length));
    }
}

#[test]
fn a_file_without_blocks_is_refused() {
    let (fixture, device) = (Fixture::new(), Device::cpu(1).unwrap());
    let path = fixture.file(|_| GgmlType::F32, true);
    let error = open(&device, &path, WeightForm::AsStored).err().unwrap().to_string();
    assert!(error.contains("no matrix is stored in quantised blocks"), "{error}");
    assert!(open(&device, &path, WeightForm::Dequantised).is_ok());
}

#[test]
fn damaged_blocks_are_refused_as_damaged_numbers_are() {
    let (fixture, device) = (Fixture::new(), Device::cpu(1).unwrap());
    let path = fixture.directory.path().join("nan.gguf");
    // The scale of the second block of row 5 is NaN: 32 elements, of another row in Hugging Face's order.
    let damage = |name: &str, data: &mut Vec<u8>| {
        if name.ends_with("0.attn_k.weight") {
            let at = (5 * WIDTH / 32 + 1) * 20;
            data[at..at + 2].copy_from_slice(&0x7e00u16.to_le_bytes());
        }
    };
    write(&path, |_| GgmlType::Blocks(BlockFormat::Q4_1), true, &damage);
    let errors = [WeightForm::Dequantised, WeightForm::AsStored]
        .map(|form| open(&device, &path, form).err().unwrap().to_string());
    assert_eq!(errors[0], errors[1]);
    assert!(errors[1].contains("layers.0.self_attn.k_proj.weight") && errors[1].contains("32 of 32768"), "{errors:?}");
    let whole = std::fs::read(fixture.file(|_| GgmlType::Blocks(BlockFormat::Q4_1), true)).unwrap();
    for length in [whole.len() - 33, whole.len() / 2, 100] {
        std::fs::write(&path, &whole[..length]).unwrap();
        assert!(open(&device, &path, WeightForm::AsStored).is_err(), "{length} bytes");
    }
}

#[test]
fn the_rows_of_query_heads_are_turned_as_whole_rows_of_blocks() {
    let (fixture, device) = (Fixture::new(), Device::cpu(1).unwrap());
    let path = fixture.file(|_| GgmlType::Blocks(BlockFormat::Q5_1), true);
    let [wide, stored] =
        [WeightForm::Dequantised, WeightForm::AsStored].map(|form| open(&device, &path, form).unwrap());
    let values: BTreeMap<String, Vec<f32>> =
        wide.model.parameters().iter().map(|param| (param.name().to_owned(), param.read().unwrap())).collect();
    for param in stored.model.parameters().iter() {
        let Some(format) = param.block_format() else { continue };
        let tensor = param.value().unwrap();
        let mut bytes = vec![0; tensor.bytes()];
        let backend = device.backend();
        backend.download(tensor.view().unwrap(), &mut bytes, bmtrain_core::Lane::Compute).unwrap();
        let mut decoded = vec![0.0; param.spec().shape.elements()];
        dequantise(format, &bytes, &mut decoded);
        assert_eq!(decoded, values[param.name()], "{}", param.name());
    }
}

#[test]
fn an_adapter_beside_blocks_has_the_gradients_of_one_beside_dequantised_weights() {
    let (fixture, device) = (Fixture::new(), Device::cpu(2).unwrap());
    // Queries and keys are in one format with values; the embedding, which is the head, has values in any case.
    let types: Types = |name| match name {
        "token_embd.weight" => GgmlType::Blocks(BlockFormat::Q6K),
        name if name.contains("ffn_down") => GgmlType::Blocks(BlockFormat::Q8_0),
        _ => GgmlType::Blocks(BlockFormat::Q4K),
    };
    let path = fixture.file(types, true);
    let gradients = |weights| {
        let config = LoraConfig { rank: 4, ..LoraConfig::default() };
        let adapter = Some(Adapter::New(AdapterConfig::Lora(config)));
        let options = OpenOptions { adapter, weights, ..GenerationSetup::open_options(&device) };
        let opened = Registry::default().open(&path, &options).unwrap();
        let parameters = opened.model.parameters();
        let held = parameters.iter().filter(|param| param.block_format().is_some()).count();
        assert_eq!(held, if weights == WeightForm::Dequantised { 0 } else { 4 * LAYERS });
        assert_eq!(parameters.get("input_embedding.weight").unwrap().block_format(), None);
        let mut cx = Ctx::gradients(&device);
        let loss = opened.model.loss(&Batch::next_tokens(20, ids(40), None), &mut cx).unwrap().unwrap();
        let value = loss.value().item().unwrap().to_bits();
        let one = Tensor::full_in(&device, [1], DType::F32, 1.0, Segment::Activations).unwrap();
        cx.take_tape().unwrap().backward(&device, vec![(loss, one)], &[]).unwrap();
        // The matrices `a` have none yet, as all `b` are zero.
        let trained = parameters.iter().filter(|param| param.is_trainable() && param.name().ends_with(".b"));
        let gradient = |param: &Param| param.grad().unwrap().unwrap().to_vec::<f32>().unwrap();
        let gradients: Vec<Vec<f32>> = trained.map(gradient).collect();
        assert!(gradients.iter().all(|values| values.iter().any(|value| *value != 0.0)));
        (value, gradients.concat().into_iter().map(f32::to_bits).collect::<Vec<_>>())
    };
    assert_eq!(gradients(WeightForm::LayersAsStored), gradients(WeightForm::Dequantised));
}
