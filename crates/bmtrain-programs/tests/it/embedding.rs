//! Task `embedding` in the programs: pairs and triplets, on any layout of ranks and micro-batches, resumed.

use crate::fixture::program;
use crate::fixture::{Fixture, Outcome};
use crate::tensor::{SHORT, has_the_bits_of_one_rank, numbers, records, train};
use model_center::formats::{SafetensorsWriter, StoredDtype, TensorEntry};
use model_center::model::{DenseActivation, DenseSettings, Pooling, PoolingMode, SentenceEncoder};
use serde_json::{Value, json};

const SUBJECTS: [&str; 12] =
    ["film", "plot", "cast", "end", "man", "ball", "park", "sun", "rain", "bank", "money", "river"];
/// Elements of a hidden state of the fixture's BERT.
const HIDDEN: usize = 32;
const FRAMES: [[&str; 2]; 3] = [["the", "is good"], ["a", "was fine"], ["to", "and very poor"]];

/// Texts of a subject belong together, whatever surrounds it.
fn record(at: usize) -> Value {
    let text = |subject: usize, frame: usize| {
        let [before, after] = FRAMES[frame % FRAMES.len()];
        format!("{before} {} {after}", SUBJECTS[subject % SUBJECTS.len()])
    };
    // Of the last two subjects, which no anchor of the evaluation has.
    let other = 10 + (at + 1) % 2;
    json!({"anchor": text(at, at / 4), "positive": text(at, at / 4 + 1), "negative": text(other, at / 4)})
}

fn fixture() -> Fixture {
    let fixture = Fixture::new();
    let lines = |range: std::ops::Range<usize>| range.map(|at| format!("{}\n", record(at))).collect::<String>();
    fixture.write("train.jsonl", &lines(0..24));
    fixture.write("eval.jsonl", &lines(0..10));
    fixture.replace("recipe.toml", "\"classification\"", "\"embedding\"");
    fixture
}

fn run(fixture: &Fixture, dir: &str, ranks: usize, sets: &[&str]) -> Outcome {
    train(fixture, dir, ranks, &[&SHORT[..], sets].concat())
}

#[test]
fn texts_that_belong_together_are_found() {
    let fixture = fixture();
    for (dir, sets) in [("pairs", &[][..]), ("triplets", &["data.columns.negative=negative"])] {
        run(&fixture, dir, 1, &[&["train.steps=40", "train.lr=3e-3", "log.every=1"][..], sets].concat()).succeeded();
        let losses = numbers(&records(&fixture, dir, "step"), "loss");
        assert!(losses[39] < 0.5 * losses[0], "{dir}: {losses:?}");
        let evals = records(&fixture, dir, "eval");
        let metric = |at: usize, name: &str| evals[at]["metrics"][name].as_f64().unwrap();
        let last = evals.len() - 1;
        assert_eq!(evals[last]["samples"], 10);
        assert!(metric(last, "mean_reciprocal_rank") > metric(0, "mean_reciprocal_rank"), "{dir}: {evals:?}");
        assert!(metric(last, "recall_at_1") >= 0.8, "{dir}: {}", evals[last]);
        assert!(metric(last, "recall_at_10") >= metric(last, "recall_at_1"), "{dir}: {}", evals[last]);
        assert!(metric(last, "loss") < metric(0, "loss"), "{dir}: {}", evals[last]);
        let config: Value = serde_json::from_str(&fixture.read(&format!("{dir}/model/config.json"))).unwrap();
        assert_eq!(config["architectures"], json!(["BertModel"]));
        // As sentence-transformers and `serve` read it.
        let pooling = Pooling::to_train(&fixture.path(&format!("{dir}/model"))).unwrap();
        assert_eq!(pooling, Pooling { normalizes: true, size: Some(HIDDEN), ..Pooling::MEAN });
    }
}

#[test]
fn a_model_that_pools_its_first_token_is_trained_and_exported_so() {
    let fixture = fixture();
    let pooling = Pooling { mode: PoolingMode::First, size: Some(HIDDEN), ..Pooling::MEAN };
    pooling.write(&fixture.path("model"), HIDDEN).unwrap();
    run(&fixture, "first", 1, &["checkpoint.every=2 steps", "log.every=1"]).succeeded();
    std::fs::remove_file(fixture.path("model/modules.json")).unwrap();
    run(&fixture, "mean", 1, &["log.every=1"]).succeeded();
    let losses = |dir: &str| numbers(&records(&fixture, dir, "step"), "loss");
    assert_ne!(losses("first"), losses("mean"));
    // Of the run, not of what the directory of the base model has become.
    assert_eq!(Pooling::to_train(&fixture.path("first/model")).unwrap(), pooling);
    fixture.run(program("ckpt"), &["export", "first/checkpoints", "exported"]).succeeded();
    assert_eq!(Pooling::to_train(&fixture.path("exported")).unwrap(), pooling);
    for name in ["model.safetensors", "config.json"] {
        let [ours, exported] = ["first/model", "exported"].map(|dir| fixture.bytes(&format!("{dir}/{name}")));
        assert_eq!(ours, exported, "{name}");
    }
    // The model's embeddings are of the beginning of longer texts.
    Pooling { max_length: Some(3), ..pooling.clone() }.write(&fixture.path("model"), HIDDEN).unwrap();
    let error = fixture.finetune(&["--dry-run", "--set", "output.dir=short"]).refused();
    assert!(error.contains("set data.max_length = 3: max_seq_length"), "{error}");
    Pooling { mode: PoolingMode::Max, ..pooling }.write(&fixture.path("model"), HIDDEN).unwrap();
    let error = fixture.finetune(&["--set", "output.dir=largest"]).refused();
    assert!(error.contains("it asks for max, which is not trained"), "{error}");
}

#[test]
fn ranks_with_zero_3_and_a_resumed_run_have_the_bits_of_one_rank() {
    has_the_bits_of_one_rank(&fixture(), "alone", &["3"], &[]);
}

/// Elements of an embedding after a module `Dense`.
const EMBEDDED: usize = 6;

/// The fixture whose model has a module `Dense` after its pooling.
fn with_dense() -> Fixture {
    let fixture = fixture();
    let settings = DenseSettings { inputs: HIDDEN, outputs: EMBEDDED, bias: true, activation: DenseActivation::Tanh };
    let pooling = Pooling { normalizes: true, size: Some(EMBEDDED), dense: vec![settings], ..Pooling::MEAN };
    pooling.write(&fixture.path("model"), HIDDEN).unwrap();
    let config = json!({"in_features": HIDDEN, "out_features": EMBEDDED, "bias": true,
        "activation_function": "torch.nn.modules.activation.Tanh"});
    fixture.write("model/2_Dense/config.json", &config.to_string());
    let shapes: [(&str, &[usize]); 2] = [("linear.weight", &[EMBEDDED, HIDDEN]), ("linear.bias", &[EMBEDDED])];
    let entries = shapes.map(|(name, shape)| TensorEntry::new(name, StoredDtype::F32, shape));
    let path = fixture.path("model/2_Dense/model.safetensors");
    let mut writer = SafetensorsWriter::create(&path, &entries).unwrap();
    for (name, shape) in shapes {
        let values: Vec<f32> =
            (0..shape.iter().product()).map(|at: usize| ((at * 7 % 11) as f32 - 5.0) / 9.0).collect();
        writer.write_f32(name, &values).unwrap();
    }
    writer.finish().unwrap();
    fixture
}

#[test]
fn dense_modules_are_trained_checkpointed_and_exported() {
    let fixture = with_dense();
    let sets = ["train.steps=40", "train.lr=3e-3", "log.every=1", "checkpoint.every=20 steps"];
    run(&fixture, "dense", 1, &sets).succeeded();
    let losses = numbers(&records(&fixture, "dense", "step"), "loss");
    assert!(losses[39] < 0.8 * losses[0], "{losses:?}");
    let pooling = Pooling::to_train(&fixture.path("dense/model")).unwrap();
    assert_eq!(pooling, Pooling::to_train(&fixture.path("model")).unwrap());
    assert_eq!(SentenceEncoder::from_directory(&fixture.path("dense/model")).unwrap().size, Some(EMBEDDED));
    let weights = "2_Dense/model.safetensors";
    assert_ne!(fixture.bytes(&format!("model/{weights}")), fixture.bytes(&format!("dense/model/{weights}")));
    fixture.run(program("ckpt"), &["export", "dense/checkpoints", "exported"]).succeeded();
    for name in [weights, "2_Dense/config.json", "model.safetensors", "modules.json"] {
        let [ours, exported] = ["dense/model", "exported"].map(|dir| fixture.bytes(&format!("{dir}/{name}")));
        assert_eq!(ours, exported, "{name}");
    }
    // Beside an adapter they are frozen, and as they were.
    let adapter = ["adapter.method=lora", "adapter.rank=2"];
    run(&fixture, "lora", 1, &adapter).succeeded();
    assert_eq!(fixture.bytes(&format!("model/{weights}")), fixture.bytes(&format!("lora/model/{weights}")));
}

#[test]
fn dense_modules_on_ranks_with_zero_3_have_the_bits_of_one_rank() {
    has_the_bits_of_one_rank(&with_dense(), "alone", &["3"], &[]);
}

#[test]
fn micro_batches_tensor_parallel_ranks_and_recomputation_change_roundings_alone() {
    let fixture = fixture();
    let sets = ["model.hidden_dropout=0", "model.attention_dropout=0", "log.every=1", "checkpoint.minutes=0"];
    // All samples of a step in one micro-batch.
    run(&fixture, "alone", 1, &[&sets[..], &["train.micro_batch_size=8"]].concat()).succeeded();
    let expected = records(&fixture, "alone", "step");
    for (dir, ranks, more) in [
        ("small", 1, &["train.micro_batch_size=1"][..]),
        ("ranks", 4, &["parallel.zero=2"]),
        ("tensor", 2, &["parallel.tensor=2", "train.gradient_sum=fast"]),
        ("blocks", 1, &["train.recompute=blocks"]),
    ] {
        run(&fixture, dir, ranks, &[&sets[..], more].concat()).succeeded();
        let steps = records(&fixture, dir, "step");
        for name in ["loss", "grad_norm"] {
            for (ours, expected) in numbers(&steps, name).iter().zip(numbers(&expected, name)) {
                assert!((ours - expected).abs() <= 1e-4 * expected.abs().max(1e-2), "{dir}: {name} {ours} {expected}");
            }
        }
    }
}

#[test]
fn an_empty_text_is_named() {
    let fixture = fixture();
    fixture.write("train.jsonl", "{\"anchor\": \"the film\", \"positive\": \" \"}\n");
    let error = fixture.finetune(&[]).refused();
    assert!(error.contains("train.jsonl:1") && error.contains("\"positive\" is empty"), "{error}");
}
