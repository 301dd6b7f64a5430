//! Trains a language model on completions with advantages by the loss of GRPO: an objective of one's own.
//!
//! cargo run --release -p bmtrain-examples --bin own_objective -- models/gpt2 completions.tsv tuned
//!
//! A line of the file is a prompt, a completion and its advantage, with tabs between them.

use model_center::batch::{IGNORED, Labels};
use model_center::bmtrain_core::{Segment, Tensor, Var, ops};
use model_center::directory::DirectoryLayout;
use model_center::model::HiddenOutputs;
use model_center::prelude::*;
use model_center::recipe::TrainSettings;
use model_center::tokenizer::Tokenizer;
use model_center::train::{Objective, ObjectiveLoss, Pass, StepTraining};
use std::path::Path;

/// How far a ratio of probabilities counts from 1.
const CLIP: f32 = 0.2;
const STEPS: u64 = 8;

/// The clipped surrogate of Shao et al. (2024), a mean over tokens, without a reference model.
#[derive(Debug)]
struct Grpo {
    /// Of each sample.
    advantages: Vec<f32>,
    /// Of the tokens of each sample, under the model that completed the prompts.
    old: Vec<Vec<f32>>,
}

/// The loss of log-probabilities, its gradient by them, and the share of tokens that are clipped.
pub(crate) fn surrogate(now: &[f32], old: &[f32], advantages: &[f32], counts: &[bool]) -> (f32, Vec<f32>, f32) {
    let tokens = counts.iter().filter(|counts| **counts).count().max(1) as f32;
    let (mut loss, mut clipped) = (0.0, 0.0);
    let mut gradient = vec![0.0; now.len()];
    let all = now.iter().zip(old).zip(advantages).zip(counts).zip(&mut gradient);
    for ((((now, old), advantage), _), gradient) in all.filter(|((_, counts), _)| **counts) {
        let ratio = (now - old).exp();
        let (free, bounded) = (ratio * advantage, ratio.clamp(1.0 - CLIP, 1.0 + CLIP) * advantage);
        loss -= free.min(bounded) / tokens;
        if free <= bounded {
            *gradient = -free / tokens;
        } else {
            clipped += 1.0 / tokens;
        }
    }
    (loss, gradient, clipped)
}

impl Objective for Grpo {
    fn loss(&self, pass: &Pass<'_>, cx: &mut Ctx) -> Result<ObjectiveLoss> {
        let hidden = pass.model.hidden(pass.batch, HiddenOutputs::LmOperands, cx)?;
        let log_probs = hidden.token_log_probs(cx)?; // [R, P + L]
        let (mut old, mut advantages) = (Vec::new(), Vec::new());
        for sample in &pass.batch.samples {
            let own = self.old.get(*sample as usize).zip(self.advantages.get(*sample as usize));
            let missing = || Error::data(format!("sample {sample}"), "it has no advantage", "give one for each sample");
            let (tokens, advantage) = own.ok_or_else(missing)?;
            old.extend_from_slice(tokens);
            advantages.resize(old.len(), *advantage);
        }
        let counts: Vec<bool> = hidden.targets.iter().map(|target| *target != IGNORED).collect();
        let now = log_probs.value().to_vec::<f32>()?;
        let (loss, gradient, clipped) = surrogate(&now, &old, &advantages, &counts);
        // A linear function of the log-probabilities that has this value and this gradient.
        let rest = loss - now.iter().zip(&gradient).map(|(now, slope)| now * slope).sum::<f32>();
        let constant = |values: &[f32], shape: Shape| {
            Tensor::from_slice_in(cx.device(), shape, values, Segment::Activations).map(Var::constant)
        };
        let slopes = constant(&gradient, log_probs.shape())?; // [R, P + L]
        let sum = ops::sum(cx, &ops::mul(cx, &log_probs, &slopes)?)?;
        let loss = ops::add(cx, &sum, &constant(&[rest], [1].into())?)?; // [1]
        Ok(ObjectiveLoss { loss, numbers: vec![constant(&[clipped], [1].into())?.into_value()] })
    }

    fn metrics(&self) -> &[&'static str] {
        &["clipped"]
    }
}

/// A batch of one sequence, whose labels are the tokens of the completion, and its advantage.
fn sample(line: &str, number: u32, tokenizer: &dyn Tokenizer) -> Result<(Batch, f32)> {
    let wrong = |reason| Error::data(format!("line {}", number + 1), reason, "write PROMPT<tab>COMPLETION<tab>NUMBER");
    let [prompt, completion, advantage] = line.split('\t').collect::<Vec<_>>()[..] else {
        return Err(wrong("it has not three columns"));
    };
    let advantage = advantage.trim().parse().map_err(|_| wrong("the advantage is not a number"))?;
    let prompt = tokenizer.tokenize(&[prompt])?.concat();
    let completion = tokenizer.tokenize(&[completion])?.concat();
    let ids: Vec<i64> = prompt.iter().chain(&completion).map(|id| i64::from(*id)).collect();
    let labels = ids.iter().enumerate().map(|(at, id)| if at < prompt.len() { IGNORED } else { *id }).collect();
    let labels = Labels::NextTokens(labels);
    Ok((Batch { labels: Some(labels), samples: vec![number], ..Batch::new(ids.len(), ids) }, advantage))
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, file, out] = arguments.as_slice() else {
        return Err(Error::argument("arguments", "three are needed", "give MODEL COMPLETIONS OUT"));
    };
    let (device, directory) = (Device::cpu(2)?, Path::new(model));
    let tokenizer = AutoTokenizer::open(directory)?;
    let opened = Registry::default().open(directory, &OpenOptions::new(&device))?;
    let text = std::fs::read_to_string(file).map_err(|error| Error::file("read", file, error, "check the path"))?;
    let samples = text.lines().zip(0..).map(|(line, number)| sample(line, number, &*tokenizer));
    let (batches, advantages): (Vec<_>, _) = samples.collect::<Result<Vec<_>>>()?.into_iter().unzip();
    let old = batches.iter().map(|batch| {
        let mut cx = Ctx::inference(&device);
        let hidden = opened.model.hidden(batch, HiddenOutputs::LmOperands, &mut cx)?;
        Ok(hidden.token_log_probs(&cx)?.value().to_vec::<f32>()?)
    });
    let objective = Box::new(Grpo { advantages, old: old.collect::<Result<_>>()? });
    let settings = TrainSettings { steps: Some(STEPS), lr: 1e-3, ..TrainSettings::default() };
    let training = StepTraining::new(&*opened.model, &device, &settings)?.with_objective(objective)?;
    let mut trainer = training.of(opened.model)?;
    for step in 0..STEPS {
        let done = trainer.step(batches.clone())?;
        println!("step {step} loss {:.6} {:?}", done.loss, done.metrics);
    }
    let (dtype, companions, layout) = (DType::F32, Some(directory), DirectoryLayout::HuggingFace);
    trainer.model().save(Path::new(out), &SaveOptions { dtype, companions, layout })
}
