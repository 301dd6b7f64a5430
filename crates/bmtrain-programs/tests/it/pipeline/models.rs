//! Tiny models with enough blocks for every schedule: the golden ones, whose last block is repeated.

use crate::fixture::{Fixture, golden, vocabulary};
use model_center::formats::{SafetensorsFile, SafetensorsWriter, TensorEntry, TensorSource};
use serde_json::Value;

/// What is before the number of a block in names of tensors.
const STACKS: [&str; 4] = ["encoder.layer.", "h.", "layers.", "block."];

/// A golden directory, the fields of its configuration that count blocks, each with the number that it is to have, and
/// the task of a recipe.
pub struct Deep {
    pub golden: (&'static str, &'static str),
    counts: &'static [(&'static str, &'static str, usize)],
    pub task: &'static str,
    vocabulary: usize,
}

/// Embeddings that are tied to the head.
pub const GPT2: Deep =
    Deep { golden: ("gpt2_a", "lm"), counts: &[("", "n_layer", 4)], task: "language", vocabulary: 97 };
/// Embeddings that are not.
pub const LLAMA: Deep =
    Deep { golden: ("llama_a", "untied"), counts: &[("", "num_hidden_layers", 4)], task: "language", vocabulary: 59 };
/// An encoder-decoder, with position biases and an encoder's output that cross edges.
pub const T5: Deep = Deep {
    golden: ("t5_a", "lm"),
    counts: &[("encoder", "num_layers", 2), ("decoder", "num_decoder_layers", 3)],
    task: "seq2seq",
    vocabulary: 47,
};
/// A classifier.
pub const BERT: Deep = Deep {
    golden: ("bert_a", "nsp"),
    counts: &[("", "num_hidden_layers", 4)],
    task: "classification",
    vocabulary: 101,
};

impl Deep {
    /// A fixture that trains the model without evaluation.
    pub fn fixture(&self) -> Fixture {
        let fixture = self.evaluated();
        fixture.replace("recipe.toml", "eval = \"eval.jsonl\"\n", "");
        fixture
    }

    /// A fixture that trains and evaluates the model.
    pub fn evaluated(&self) -> Fixture {
        let fixture = Fixture::new();
        fixture.replace("recipe.toml", "\"classification\"", &format!("\"{}\"", self.task));
        fixture.write("model/vocab.txt", &vocabulary(self.vocabulary));
        if self.task == "seq2seq" {
            let record = |i: usize| {
                format!("{{\"text\": \"the film was {}\", \"target\": \"poor .\"}}\n", ["good", "bad"][i % 2])
            };
            for (file, count) in [("train.jsonl", 16), ("eval.jsonl", 8)] {
                fixture.write(file, &(0..count).map(record).collect::<String>());
            }
        }
        self.write(&fixture);
        fixture
    }

    fn write(&self, fixture: &Fixture) {
        let from = golden(self.golden.0, self.golden.1);
        let mut config: Value = serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
        let file = SafetensorsFile::open(&from.join("model.safetensors")).unwrap();
        let mut tensors: Vec<(String, TensorEntry)> =
            file.tensors().iter().map(|entry| (entry.name.clone(), entry.clone())).collect();
        for (stack, field, count) in self.counts {
            let blocks = config[*field].as_u64().unwrap() as usize;
            config[*field] = (*count).into();
            let last = file.tensors().iter().filter(|entry| entry.name.starts_with(stack));
            let last: Vec<_> =
                last.filter(|entry| block_of(&entry.name).is_some_and(|(_, b, _)| b + 1 == blocks)).collect();
            for number in blocks..*count {
                // Relative positions have one table for all blocks of a stack.
                for entry in last.iter().filter(|entry| !entry.name.contains("relative_attention_bias")) {
                    let (before, _, after) = block_of(&entry.name).unwrap();
                    let name = format!("{before}{number}{after}");
                    tensors.push((entry.name.clone(), TensorEntry { name, ..(*entry).clone() }));
                }
            }
        }
        fixture.write("model/config.json", &config.to_string());
        let entries: Vec<TensorEntry> = tensors.iter().map(|(_, entry)| entry.clone()).collect();
        let mut writer = SafetensorsWriter::create(&fixture.path("model/model.safetensors"), &entries).unwrap();
        for (from, entry) in &tensors {
            let mut values = vec![0.0; entry.elements().unwrap()];
            file.read_f32(from, &mut values).unwrap();
            writer.write_f32(&entry.name, &values).unwrap();
        }
        writer.finish().unwrap();
    }
}

/// A tensor's name before, the number of, and after its block.
fn block_of(name: &str) -> Option<(&str, usize, &str)> {
    let at = STACKS.iter().find_map(|stack| name.find(stack).map(|at| at + stack.len()))?;
    let (before, rest) = name.split_at(at);
    let digits = rest.find(|character: char| !character.is_ascii_digit())?;
    Some((before, rest[..digits].parse().ok()?, &rest[digits..]))
}
