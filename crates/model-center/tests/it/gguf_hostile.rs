//! Damaged and hostile GGUF files: refused with the reason, never a panic.

mod mutants;

use model_center::Error;
use model_center::formats::{GgufAsHuggingFace, GgufFile, TensorSource, gguf_to_directory};
use model_center::run::layout_error;
use model_center::tokenizer::gguf::tokenizer_files;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The parts of a file, which tests can falsify.
#[derive(Clone)]
struct Parts {
    magic: [u8; 4],
    version: u32,
    keys: Vec<Vec<u8>>,
    key_count: Option<u64>,
    tensors: Vec<Vec<u8>>,
    tensor_count: Option<u64>,
    data: Vec<u8>,
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

fn key(name: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&text(name)[..], &kind.to_le_bytes(), value].concat()
}

fn array(kind: u32, count: u64, values: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &count.to_le_bytes(), values].concat()
}

fn tensor(name: &str, dims: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let dims_bytes: Vec<u8> = dims.iter().flat_map(|d| d.to_le_bytes()).collect();
    let rank = (dims.len() as u32).to_le_bytes();
    [&text(name)[..], &rank, &dims_bytes, &kind.to_le_bytes(), &offset.to_le_bytes()].concat()
}

impl Parts {
    /// A right file: a few keys, one matrix of F32 and one of Q8_0.
    fn good() -> Self {
        let texts = array(8, 2, &[text("a"), text("")].concat());
        let nested = array(9, 1, &array(0, 3, &[1, 2, 3]));
        Parts {
            magic: *b"GGUF",
            version: 3,
            keys: vec![
                key("general.architecture", 8, &text("llama")),
                key("general.alignment", 4, &32u32.to_le_bytes()),
                key("tokenizer.ggml.tokens", 9, &texts),
                key("nested", 9, &nested),
                key("truth", 7, &[1]),
            ],
            key_count: None,
            tensors: vec![tensor("a", &[3, 2], 0, 0), tensor("b", &[32, 2], 8, 32)],
            tensor_count: None,
            data: vec![7; 32 + 68],
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let tensors = self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes();
        let keys = self.key_count.unwrap_or(self.keys.len() as u64).to_le_bytes();
        let mut bytes = [&self.magic[..], &self.version.to_le_bytes(), &tensors, &keys].concat();
        bytes.extend(self.keys.concat());
        bytes.extend(self.tensors.concat());
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(&self.data);
        bytes
    }
}

struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn write(&self, bytes: &[u8]) -> PathBuf {
        let path = self.dir.path().join("m.gguf");
        // Cutting an existing file to nothing makes some file systems wait for the disk each time.
        let _ = fs::remove_file(&path);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// The error of opening, which is one about the file's contents.
    fn refusal(&self, bytes: &[u8]) -> String {
        match GgufFile::open(&self.write(bytes)) {
            Err(error @ Error::Model { .. }) => layout_error(&error),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("the file was read"),
        }
    }
}

#[test]
fn contradictions_are_named() {
    let place = Place::new();
    type Change = Box<dyn Fn(&mut Parts)>;
    let keyed = |name: &'static str, kind: u32, value: Vec<u8>| -> Change {
        Box::new(move |parts| parts.keys.push(key(name, kind, &value)))
    };
    let alignment = |kind: u32, value: &[u8]| -> Change {
        let value = key("general.alignment", kind, value);
        Box::new(move |parts| parts.keys[1] = value.clone())
    };
    let first = |tensor: Vec<u8>| -> Change { Box::new(move |parts| parts.tensors[0] = tensor.clone()) };
    let depth = (0..9).fold(array(0, 0, &[]), |inner, _| array(9, 1, &inner));
    let cases: Vec<(&str, Change)> = vec![
        ("does not start with GGUF", Box::new(|parts| parts.magic = *b"GGML")),
        ("version 1; 2 and 3", Box::new(|parts| parts.version = 1)),
        ("claims version 4", Box::new(|parts| parts.version = 4)),
        ("big endian; little endian is read", Box::new(|parts| parts.version = 3u32.swap_bytes())),
        ("18446744073709551615 keys", Box::new(|parts| parts.key_count = Some(u64::MAX))),
        ("65000 keys are declared, and the file ends", Box::new(|parts| parts.key_count = Some(65_000))),
        ("18446744073709551615 tensors", Box::new(|parts| parts.tensor_count = Some(u64::MAX))),
        ("260000 tensors are declared, and the file ends", Box::new(|parts| parts.tensor_count = Some(260_000))),
        ("key truth\n", keyed("truth", 7, vec![0])),
        ("the key appears twice", keyed("truth", 7, vec![0])),
        ("a key is empty", keyed("", 7, vec![0])),
        ("a key is empty, too long or has control characters", keyed("a\u{1b}", 7, vec![0])),
        ("unknown type of value 13", keyed("x", 13, vec![0])),
        ("a truth value is 2", keyed("x", 7, vec![2])),
        ("18446744073709551615 bytes of text", keyed("x", 8, u64::MAX.to_le_bytes().to_vec())),
        ("is not UTF-8", keyed("x", 8, vec![1, 0, 0, 0, 0, 0, 0, 0, 0xff])),
        ("18446744073709551615 texts", keyed("x", 9, array(8, u64::MAX, &[]))),
        ("1000 texts are declared, and the file ends", keyed("x", 9, array(8, 1000, &[]))),
        ("2305843009213693952 numbers", keyed("x", 9, array(10, 1 << 61, &[]))),
        ("1000 truth values are declared", keyed("x", 9, array(7, 1000, &[]))),
        ("1000 arrays are declared", keyed("x", 9, array(9, 1000, &[]))),
        ("unknown type of value 14", keyed("x", 9, array(14, 0, &[]))),
        ("more than 8 deep", keyed("x", 9, depth)),
        ("alignment of 0 bytes", alignment(4, &[0; 4])),
        ("alignment of 24 bytes", alignment(4, &24u32.to_le_bytes())),
        ("alignment of 9223372036854775808 bytes", alignment(10, &(1u64 << 63).to_le_bytes())),
        ("the value is the text \"32\", expected a whole number", alignment(8, &text("32"))),
        ("the name appears twice", first(tensor("b", &[3, 2], 0, 0))),
        ("tensor name is empty", first(tensor("", &[3, 2], 0, 0))),
        ("tensor name is empty, too long or has control", first(tensor("a\n", &[3, 2], 0, 0))),
        ("5 dimensions are declared", first(tensor("a", &[1, 1, 1, 1, 1], 0, 0))),
        ("is too large for memory", first(tensor("a", &[1 << 62, 4], 0, 0))),
        ("is too large for memory", first(tensor("a", &[1 << 32, 1 << 32, 2], 0, 0))),
        ("has no elements", first(tensor("a", &[0, 2], 0, 0))),
        ("rows of 31 elements are no whole number of Q4_0 blocks", first(tensor("a", &[31], 2, 0))),
        ("rows of 128 elements are no whole number of Q6_K blocks", first(tensor("a", &[128, 2], 14, 0))),
        ("tensor a\n", first(tensor("a", &[256], 10, 0))),
        ("stored as Q2_K, which is not read; read are F32, F16, Q4_0", first(tensor("a", &[256], 10, 0))),
        ("stored as IQ4_XS, which is not read", first(tensor("a", &[256], 23, 0))),
        ("unknown type 99", first(tensor("a", &[256], 99, 0))),
        ("begins at 4, which is not a multiple of 32", first(tensor("a", &[3, 2], 0, 4))),
        ("its place in the file overflows", first(tensor("a", &[3, 2], 0, u64::MAX - 7))),
        ("the tensor ends at 18446744073709551608", first(tensor("a", &[3, 2], 0, u64::MAX - 31))),
        ("the tensor ends at 1048600, but 100 bytes", first(tensor("a", &[3, 2], 0, 1 << 20))),
        ("tensor b\n", first(tensor("a", &[9], 0, 0))),
        ("begins at 32, but the tensor before it ends at 36", first(tensor("a", &[9], 0, 0))),
    ];
    for (reason, change) in cases {
        let mut parts = Parts::good();
        change(&mut parts);
        let error = place.refusal(&parts.bytes());
        assert!(error.contains(reason) || format!("{error}\n").contains(reason), "expected {reason:?} in:\n{error}");
    }
}

/// A golden file with further keys.
fn with_keys(name: &str, keys: &[Vec<u8>]) -> Vec<u8> {
    let golden = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/gguf").join(name)).unwrap();
    let file = GgufFile::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/gguf").join(name)).unwrap();
    let stored: Vec<_> = file.entries().into_iter().map(|entry| entry.name.clone()).collect();
    // The list of tensors begins with the first name, after its length.
    let first = |name: &String| golden.windows(8 + name.len()).position(|bytes| bytes == text(name)).unwrap();
    let list = stored.iter().map(first).min().unwrap();
    let word = |at: usize| u64::from_le_bytes(golden[at..at + 8].try_into().unwrap());
    let end = stored.iter().map(|name| first(name) + 8 + name.len()).max().unwrap();
    let rank = u32::from_le_bytes(golden[end..end + 4].try_into().unwrap()) as usize;
    let end = end + 4 + 8 * rank + 4 + 8;
    let count = (word(16) + keys.len() as u64).to_le_bytes();
    let mut out = [&golden[..16], &count, &golden[24..list], &keys.concat(), &golden[list..end]].concat();
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(&golden[end.next_multiple_of(32)..]);
    out
}

#[test]
fn what_another_computation_needs_is_refused_or_reported() {
    let place = Place::new();
    let refusal = |keys: &[Vec<u8>]| {
        let file = GgufFile::open(&place.write(&with_keys("llama.gguf", keys))).unwrap();
        GgufAsHuggingFace::new(file).map(drop).unwrap_err().to_string()
    };
    let error = refusal(&[key("llama.attention.causal", 7, &[0])]);
    assert!(error.contains("key llama.attention.causal") && error.contains("is not causal"), "{error}");
    let causal = place.write(&with_keys("llama.gguf", &[key("llama.attention.causal", 7, &[1])]));
    assert!(GgufAsHuggingFace::new(GgufFile::open(&causal).unwrap()).is_ok());
    // The base is in the file already; its value follows its name and type.
    let mut bytes = with_keys("llama.gguf", &[]);
    let name = b"llama.rope.freq_base";
    let at = bytes.windows(name.len()).position(|part| part == name).unwrap() + name.len() + 4;
    bytes[at..at + 4].copy_from_slice(&1f32.to_le_bytes());
    let error =
        GgufAsHuggingFace::new(GgufFile::open(&place.write(&bytes)).unwrap()).map(drop).unwrap_err().to_string();
    assert!(error.contains("llama.rope.freq_base") && error.contains("must be above 1"), "{error}");
    // A Mistral is a Llama here; its window is in no key.
    let named = place.write(&with_keys("llama.gguf", &[key("general.basename", 8, &text("Mistral-7B"))]));
    let report = gguf_to_directory(&named, &place.dir.path().join("out"), bmtrain_core::DType::F32).unwrap();
    assert!(report.to_string().contains("skipped sliding window: the file does not declare"), "{report}");
}

#[test]
fn what_a_family_cannot_compute_is_refused() {
    let place = Place::new();
    let whole = |value: u32| value.to_le_bytes().to_vec();
    let real = |value: f32| value.to_le_bytes().to_vec();
    for (file, name, kind, value, reason) in [
        ("gemma3", "gemma3.final_logit_softcapping", 6, real(30.0), "computes something that its family here does not"),
        ("gemma3", "gemma3.attn_logit_softcapping", 6, real(50.0), "computes something that its family here does not"),
        ("glm4", "glm4.rope.dimension_sections", 9, array(5, 2, &[whole(8), whole(8)].concat()), "computes something"),
        ("glm4", "glm4.nextn_predict_layers", 4, whole(1), "computes something"),
        ("granite", "granite.expert_count", 4, whole(8), "computes something"),
        ("granite", "granite.rope.scaling.finetuned", 7, vec![0], "the model has no positions"),
        ("smollm3", "smollm3.attention.sliding_window", 4, whole(4), "computes something"),
        ("olmo2", "olmo2.attention.scale", 6, real(0.5), "computes something"),
        ("olmo2", "olmo2.rope.scaling.attn_factor", 6, real(1.5), "no counterpart in config.json"),
        ("olmo2", "olmo2.rope.scaling.alpha", 6, real(2.0), "computes something"),
        ("phi3", "phi3.rope.scaling.type", 8, text("yarn"), "beside scaling of another type"),
        ("phi3", "phi3.rope.scaling.factor", 6, real(2.0), "beside another factor"),
        ("gpt_neox", "gptneox.attention.head_count_kv", 4, whole(1), "as many heads of keys as of queries"),
        ("gpt_neox", "gptneox.attention.clamp_kqv", 6, real(8.0), "computes something"),
    ] {
        let bytes = with_keys(&format!("{file}.gguf"), &[key(name, kind, &value)]);
        let found = GgufFile::open(&place.write(&bytes)).unwrap();
        let error = GgufAsHuggingFace::new(found).map(drop).unwrap_err().to_string();
        assert!(error.contains(&format!("key {name}")) && error.contains(reason), "{name}: {error}");
    }
    // Zero is nothing, in a list too, and how a model was trained is not how it computes.
    for (file, name, kind, value) in [
        ("gemma3", "gemma3.final_logit_softcapping", 6, real(0.0)),
        ("glm4", "glm4.rope.dimension_sections", 9, array(5, 2, &[whole(0), whole(0)].concat())),
        ("olmo2", "olmo2.rope.scaling.finetuned", 7, vec![0]),
        ("olmo2", "olmo2.attention.sliding_window", 4, whole(0)),
        ("phi3", "phi3.rope.scaling.type", 8, text("longrope")),
    ] {
        let bytes = with_keys(&format!("{file}.gguf"), &[key(name, kind, &value)]);
        let read = GgufAsHuggingFace::new(GgufFile::open(&place.write(&bytes)).unwrap());
        assert!(read.is_ok(), "{name}: {}", read.unwrap_err());
    }
}

#[test]
fn a_vocabulary_of_too_many_tokens_or_merges_is_refused() {
    // Each would be some hundred bytes of JSON, and is a dozen in the file.
    let place = Place::new();
    let base =
        |kind: &str| vec![key("tokenizer.ggml.model", 8, &text(kind)), key("tokenizer.ggml.pre", 8, &text("gpt-2"))];
    let reason = |keys: Vec<Vec<u8>>| {
        let parts = Parts { keys, tensors: vec![], data: vec![], ..Parts::good() };
        let file = GgufFile::open(&place.write(&parts.bytes())).unwrap();
        tokenizer_files(file.metadata(), 100).unwrap_err().to_string()
    };
    let list = |name: &str, words: &[String]| {
        let all: Vec<u8> = words.iter().flat_map(|word| text(word)).collect();
        key(name, 9, &array(8, words.len() as u64, &all))
    };
    let types =
        |count: usize| key("tokenizer.ggml.token_type", 9, &array(5, count as u64, &1i32.to_le_bytes().repeat(count)));
    let many: Vec<String> = (0..1_048_577).map(|i| format!("{i:x}")).collect();
    let error = reason([base("gpt2"), vec![list("tokenizer.ggml.tokens", &many)]].concat());
    assert!(error.contains("1048577 tokens are more than"), "{error}");

    let few = [list("tokenizer.ggml.tokens", &["a".into(), "b".into(), "ab".into()]), types(3)];
    let merges = list("tokenizer.ggml.merges", &vec!["a b".to_string(); 1_048_577]);
    let error = reason([base("gpt2"), few.to_vec(), vec![merges]].concat());
    assert!(error.contains("1048577 merges are more than"), "{error}");

    // Every piece can be made in as many ways as it has letters.
    let runs: Vec<String> = (1..100).map(|length| "a".repeat(length)).collect();
    let scores = key("tokenizer.ggml.scores", 9, &array(6, 99, &[0; 4 * 99]));
    let error = reason([base("llama"), vec![list("tokenizer.ggml.tokens", &runs), types(99), scores]].concat());
    assert!(error.contains("more than 4 ways each"), "{error}");
}

#[test]
fn a_tensor_of_many_pieces_is_read_in_its_order() {
    // Blocks of scale 1 and smallest value 0, so that the values are the nibbles.
    let (rows, row_blocks) = (5u64, 1027u64);
    let block = |i: u64| {
        let nibbles = (0..16).map(|j| (i.wrapping_mul(2_654_435_761) >> j) as u8);
        [0x00, 0x3c, 0, 0].into_iter().chain(nibbles).collect::<Vec<u8>>()
    };
    let blocks: Vec<Vec<u8>> = (0..rows * row_blocks).map(block).collect();
    let tensors = vec![tensor("a", &[row_blocks * 32, rows], 3, 0)];
    let parts = Parts { tensors, data: blocks.concat(), ..Parts::good() };
    let file = GgufFile::open(&Place::new().write(&parts.bytes())).unwrap();
    let halves = |block: &[u8], shift: u32| -> Vec<f32> {
        block[4..].iter().map(move |byte| f32::from(byte >> shift & 15)).collect()
    };
    let expected: Vec<f32> = blocks.iter().flat_map(|block| [halves(block, 0), halves(block, 4)].concat()).collect();
    let mut values = vec![0.0; expected.len()];
    file.read_f32("a", &mut values).unwrap();
    assert!(values == expected);
    let mut raw = vec![0; 600_000];
    file.read_raw_at("a", 3, &mut raw).unwrap();
    let bytes: Vec<u8> = expected.iter().flat_map(|value| value.to_le_bytes()).skip(3).take(raw.len()).collect();
    assert!(raw == bytes);
}
