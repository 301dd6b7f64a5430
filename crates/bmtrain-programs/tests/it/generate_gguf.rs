//! The generate program with a GGUF file in place of a directory, its matrices dequantised and as stored.

use crate::fixture::Fixture;
use crate::fixture::program;

const WIDTH: usize = 32;

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// A key with a value of the type of this number.
fn key(name: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&text(name)[..], &kind.to_le_bytes(), value].concat()
}

fn array(name: &str, kind: u32, count: usize, values: &[u8]) -> Vec<u8> {
    key(name, 9, &[&kind.to_le_bytes()[..], &(count as u64).to_le_bytes(), values].concat())
}

/// A Llama of one block with all matrices in Q8_0 and a vocabulary of letters and two pairs of them.
fn llama() -> Vec<u8> {
    let letters = ('a'..='z').map(String::from);
    let pieces: Vec<String> =
        ["<unk>", "<s>", "</s>", "▁", "he", "ll"].map(String::from).into_iter().chain(letters).collect();
    let scores: Vec<u8> = (0..pieces.len()).flat_map(|i| (-(i as f32)).to_le_bytes()).collect();
    let types: Vec<u8> = (0..pieces.len()).flat_map(|i| [2i32, 3, 3, 1][i.min(3)].to_le_bytes()).collect();
    let tokens: Vec<u8> = pieces.iter().flat_map(|piece| text(piece)).collect();
    let template = "{% for message in messages %}{{ message['content'] }}{% endfor %}";
    let whole = |name: &str, value: usize| key(name, 4, &(value as u32).to_le_bytes());
    let keys = [
        key("general.architecture", 8, &text("llama")),
        whole("llama.block_count", 1),
        whole("llama.context_length", 64),
        whole("llama.embedding_length", WIDTH),
        whole("llama.feed_forward_length", 2 * WIDTH),
        whole("llama.attention.head_count", 2),
        key("llama.attention.layer_norm_rms_epsilon", 6, &1e-5f32.to_le_bytes()),
        key("tokenizer.ggml.model", 8, &text("llama")),
        array("tokenizer.ggml.tokens", 8, pieces.len(), &tokens),
        array("tokenizer.ggml.scores", 6, pieces.len(), &scores),
        array("tokenizer.ggml.token_type", 5, pieces.len(), &types),
        whole("tokenizer.ggml.bos_token_id", 1),
        whole("tokenizer.ggml.eos_token_id", 2),
        key("tokenizer.chat_template", 8, &text(template)),
    ];
    let tensors = [
        ("token_embd", [pieces.len(), WIDTH]),
        ("output_norm", [1, WIDTH]),
        ("blk.0.attn_norm", [1, WIDTH]),
        ("blk.0.ffn_norm", [1, WIDTH]),
        ("blk.0.attn_q", [WIDTH, WIDTH]),
        ("blk.0.attn_k", [WIDTH, WIDTH]),
        ("blk.0.attn_v", [WIDTH, WIDTH]),
        ("blk.0.attn_output", [WIDTH, WIDTH]),
        ("blk.0.ffn_gate", [2 * WIDTH, WIDTH]),
        ("blk.0.ffn_up", [2 * WIDTH, WIDTH]),
        ("blk.0.ffn_down", [WIDTH, 2 * WIDTH]),
    ];
    let counts = [tensors.len() as u64, keys.len() as u64].map(u64::to_le_bytes).concat();
    let mut bytes = [&b"GGUF"[..], &3u32.to_le_bytes(), &counts, &keys.concat()].concat();
    let (mut data, mut state) = (Vec::<u8>::new(), 5u64);
    for (name, [rows, columns]) in tensors {
        let is_vector = name.ends_with("norm");
        let (rank, kind) = if is_vector { (1u32, 0u32) } else { (2, 8) };
        bytes.extend([text(&format!("{name}.weight")), rank.to_le_bytes().into()].concat());
        [columns, rows].iter().take(rank as usize).for_each(|size| bytes.extend((*size as u64).to_le_bytes()));
        bytes.extend([&kind.to_le_bytes()[..], &(data.len() as u64).to_le_bytes()].concat());
        for _ in 0..rows * columns / 32 {
            match is_vector {
                true => data.extend([1.0f32; 32].map(f32::to_le_bytes).concat()),
                // A scale of 2^-9, and any elements.
                false => data.extend([0x00, 0x18].into_iter().chain((0..32).map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (state >> 56) as u8
                }))),
            }
        }
        data.resize(data.len().next_multiple_of(32), 0);
    }
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend(data);
    bytes
}

#[test]
fn a_gguf_file_generates_as_the_directory_made_of_it_and_as_stored_as_dequantised() {
    let fixture = Fixture::new();
    fixture.write_bytes("llama.gguf", &llama());
    fixture.convert(&["llama.gguf", "made", "--dtype", "f32"]).succeeded();
    let program = program("generate");
    let methods: [&[&str]; 3] = [
        &["--prompt", "hello world", "--greedy"],
        &["--prompt", "the sea", "--sample", "--seed", "3", "--texts", "2"],
        &["--chat", "--prompt", "hello", "--beams", "3"],
    ];
    for method in methods {
        let run = |model: &str, further: &[&str]| {
            let end = ["--max-new-tokens", "8", "--device", "cpu", "--json"];
            fixture.run(program, &[&[model][..], method, &end, further].concat()).succeeded()
        };
        let dequantised = run("llama.gguf", &[]);
        assert!(dequantised.stdout.contains("generated"), "{}", dequantised.stdout);
        assert!(!dequantised.stderr.contains("held as stored"), "{}", dequantised.stderr);
        assert_eq!(dequantised.stdout, run("made", &[]).stdout);
        let stored = run("llama.gguf", &["--weights", "as-stored"]);
        assert_eq!(stored.stdout, dequantised.stdout);
        assert_eq!(
            stored.stderr.matches("5 of 5 matrices are held as stored (5 Q8_0)").count(),
            1,
            "{}",
            stored.stderr
        );
        assert_eq!(run("llama.gguf", &["--weights", "as-stored", "--ranks", "2"]).stdout, stored.stdout);
    }
}

/// A directory with `llama.gguf`, and texts of its letters for training and evaluation.
pub fn fixture() -> Fixture {
    let fixture = Fixture::new();
    fixture.write_bytes("llama.gguf", &llama());
    for (file, count) in [("train.jsonl", 16), ("eval.jsonl", 4)] {
        let line = |at: usize| format!("{{\"text\": \"hello shell {} bell\"}}\n", ["he", "fell", "well"][at % 3]);
        fixture.write(file, &(0..count).map(line).collect::<String>());
    }
    fixture
}

/// A recipe trains beside the blocks of a file, and the adapter is used beside the same file.
#[test]
fn a_recipe_trains_beside_a_gguf_file_as_it_is() {
    let fixture = Fixture::new();
    fixture.write_bytes("llama.gguf", &llama());
    fixture.write("texts.jsonl", &"{\"text\": \"hello shell hello bell\"}\n".repeat(4));
    let keys = ["model.path=llama.gguf", "data.task=language", "data.train=texts.jsonl", "train.steps=2"];
    let more = ["data.max_length=16", "train.batch_size=2", "train.lr=0.05", "device.name=cpu", "output.dir=run"];
    let adapter = ["adapter.method=lora", "adapter.rank=2", "adapter.quantize=as-stored"];
    let all = [&keys[..], &more, &adapter].concat();
    let dry = fixture.finetune(&[&all[..], &["--dry-run"]].concat()).succeeded();
    assert!(dry.stdout.contains("held as stored") || dry.stderr.contains("held as stored"), "{}", dry.stdout);
    fixture.finetune(&all).succeeded();
    let prompt = ["--prompt", "hello", "--greedy", "--max-new-tokens", "8", "--device", "cpu", "--json"];
    let run = |further: &[&str]| {
        let base = ["llama.gguf", "--weights", "as-stored"];
        fixture.run(program("generate"), &[&base, &prompt[..], further].concat()).succeeded().stdout
    };
    assert_ne!(run(&["--adapter", "run/model"]), run(&[]));
    // The directory has the file's tokenizer.
    assert!(fixture.path("run/model/tokenizer.json").is_file());
    let whole = fixture.finetune(&[&keys[..], &more].concat()).refused();
    assert!(whole.contains("GGUF") && whole.contains("convert FILE.gguf DIR"), "{whole}");
}
