//! The kinds of training that recipes are made for.

use crate::import::Sheet;
use crate::{Error, Result};
use model_center_base::file::printable;
use model_center_base::suggest::closest;
use model_center_recipe::key;

/// Kind of data that a preset reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataKind {
    /// Texts with a class or a number.
    Labelled,
    /// Conversations, prompts with completions, or texts.
    Conversations,
    /// Pairs of completions, a better and a worse one.
    Pairs,
    /// Pairs of texts that belong together.
    Matches,
    /// Token files.
    Tokens,
}

/// Parameters that are trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trained {
    /// The whole model.
    Whole,
    /// Low-rank updates; the model is frozen.
    LowRank {
        /// Rows of an update's first matrix.
        rank: usize,
        /// Whether the frozen model is held in 4 bits.
        quantized: bool,
    },
}

impl Trained {
    /// Whether it is computed on processors alone.
    pub(super) fn needs_cpu(self) -> bool {
        matches!(self, Trained::LowRank { quantized: true, .. })
    }

    /// The lines of `[adapter]`.
    pub(super) fn write(self, sheet: &mut Sheet) {
        let Trained::LowRank { rank, quantized } = self else { return };
        let rank = rank as u64;
        sheet.text(key!(adapter.method), "lora", "the model is frozen, and updates of its linear layers are trained");
        sheet.whole(key!(adapter.rank), rank, "larger ranks learn more and take more memory");
        sheet.whole(key!(adapter.alpha), 2 * rank, "twice the rank is usual");
        if quantized {
            let why = "the matrices of the frozen model take 4.5 bits a value; products are slower";
            sheet.text(key!(adapter.quantize), "nf4", why);
        }
    }
}

/// A kind of training that a recipe is made for. One more is one more line of [`PRESETS`].
#[derive(Debug, Clone, Copy)]
pub struct Preset {
    /// Its name on the command line.
    pub name: &'static str,
    /// Sentence about the training.
    pub doc: &'static str,
    /// The data it reads.
    pub data: DataKind,
    /// The model where none is named.
    pub model: &'static str,
    /// Parameters that are trained.
    pub trained: Trained,
    /// Samples of a step, where so large a batch fits and the data have it.
    pub batch: usize,
    /// Passes over the training data; 0 where the number of steps decides.
    pub epochs: u32,
    /// The learning rate of a number of parameters.
    pub lr: fn(f64) -> f64,
    /// Source of the learning rate.
    pub lr_reason: &'static str,
    /// Further lines: key, TOML value, reason.
    pub lines: &'static [(&'static str, &'static str, &'static str)],
}

/// The rank of updates.
const RANK: usize = 16;
const TO_ZERO: &str = "falls to 0 at the end of the run";
const AS_GPT3: &str = "as GPT-3";

const CLASSIFY: Preset = Preset {
    name: "classify",
    doc: "a classifier of texts or pairs of texts, or a regression",
    data: DataKind::Labelled,
    model: "google-bert/bert-base-uncased",
    trained: Trained::Whole,
    batch: 32,
    epochs: 3,
    lr: whole_model_rate,
    lr_reason: "usual for a pretrained model of this size; larger models take less",
    lines: &[(key!(train.schedule), "\"linear\"", TO_ZERO), (key!(train.warmup), "0.06", "the first 6 % of the steps")],
};

const SFT: Preset = Preset {
    name: "sft",
    doc: "supervised fine-tuning of a whole language model on conversations, instructions or texts",
    data: DataKind::Conversations,
    model: "HuggingFaceTB/SmolLM2-135M-Instruct",
    batch: 16,
    epochs: 2,
    lines: &[(key!(train.schedule), "\"cosine\"", TO_ZERO), (key!(train.warmup), "0.03", "the first 3 % of the steps")],
    ..CLASSIFY
};

const LORA: Preset = Preset {
    name: "lora",
    doc: "the same with low-rank updates of a frozen model, which takes far less memory",
    trained: Trained::LowRank { rank: RANK, quantized: false },
    lr: |_| 2e-4,
    lr_reason: "updates that begin at 0 take about ten times the learning rate of a whole model",
    ..SFT
};

const QLORA: Preset = Preset {
    name: "qlora",
    doc: "the same beside a frozen model in 4 bits, on processors",
    trained: Trained::LowRank { rank: RANK, quantized: true },
    ..LORA
};

const DPO: Preset = Preset {
    name: "dpo",
    doc: "preferences: of two completions of a prompt the better one, by DPO with low-rank updates",
    data: DataKind::Pairs,
    batch: 32,
    epochs: 1,
    lr: |_| 2e-5,
    lr_reason: "preferences take a tenth of the learning rate of other updates",
    lines: &[
        (key!(preference.loss), "\"dpo\"", "\"ipo\" is bounded, \"simpo\" has no reference model"),
        (key!(preference.beta), "0.1", "usual; larger values stay nearer to the model that training begins with"),
        (key!(train.schedule), "\"linear\"", TO_ZERO),
        (key!(train.warmup), "0.1", "the first 10 % of the steps"),
    ],
    ..LORA
};

const EMBED: Preset = Preset {
    name: "embed",
    doc: "embeddings: texts that belong together get near ones, by a contrastive loss",
    data: DataKind::Matches,
    model: "sentence-transformers/all-MiniLM-L6-v2",
    batch: 128,
    epochs: 1,
    lr: |_| 2e-5,
    lr_reason: "usual for a model that has embeddings already; up to ten times as much for a base model",
    lines: &[
        (key!(embedding.temperature), "0.05", "usual; lower values weigh the nearest wrong texts more"),
        (key!(train.schedule), "\"linear\"", TO_ZERO),
        (key!(train.warmup), "0.1", "the first 10 % of the steps"),
    ],
    ..CLASSIFY
};

const PRETRAIN: Preset = Preset {
    name: "pretrain",
    doc: "a decoder from random initialization on token files",
    data: DataKind::Tokens,
    model: "openai-community/gpt2",
    trained: Trained::Whole,
    batch: 64,
    epochs: 0,
    lr: pretraining_rate,
    lr_reason: "GPT-3's for models of this size",
    lines: &[
        (key!(train.schedule), "\"cosine\"", AS_GPT3),
        (key!(train.final_lr_ratio), "0.1", "as GPT-3: a tenth of the learning rate at the end"),
        (key!(train.warmup), "0.01", "the first 1 % of the steps"),
        (key!(train.weight_decay), "0.1", AS_GPT3),
        (key!(train.betas), "[0.9, 0.95]", AS_GPT3),
    ],
};

/// The presets by name.
pub const PRESETS: &[Preset] = &[CLASSIFY, SFT, LORA, QLORA, DPO, EMBED, PRETRAIN];

/// The preset of a name.
///
/// # Errors
/// An unknown name, with the closest one.
pub fn preset(name: &str) -> Result<&'static Preset> {
    let found = PRESETS.iter().find(|preset| preset.name == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
        let fix = match closest(name, names.iter().copied()) {
            Some(near) => format!("did you mean {near}? presets: {}", names.join(", ")),
            None => format!("choose one of {}", names.join(", ")),
        };
        Error::argument("--preset", format!("unknown preset \"{}\"", printable(name, 60)), fix)
    })
}

/// Learning rates of whole pretrained models, by parameters.
fn whole_model_rate(parameters: f64) -> f64 {
    match parameters {
        p if p < 5e6 => 5e-4,
        p if p < 5e7 => 5e-5,
        p if p < 1e9 => 2e-5,
        _ => 1e-5,
    }
}

/// Learning rates of pretraining, by parameters: table 2.1 of the GPT-3 paper.
fn pretraining_rate(parameters: f64) -> f64 {
    match parameters {
        p if p < 2e8 => 6e-4,
        p if p < 5e8 => 3e-4,
        p if p < 1e9 => 2.5e-4,
        p if p < 2e9 => 2e-4,
        p if p < 4e9 => 1.6e-4,
        _ => 1.2e-4,
    }
}
