//! Pretrains a decoder on a token file (`bmtrain corpus build`), from its `config.json` and random initialization.
//!
//! cargo run --release -p bmtrain-examples --bin pretrain -- models/gpt2 data/openwebtext 1000 pretrained

use model_center::Error;
use model_center::bmtrain_core::autograd::Randomness;
use model_center::corpus::{DocumentSet, MixtureWeight, SampleOptions, SampleOrder, TokenFile};
use model_center::directory::DirectoryLayout;
use model_center::prelude::*;
use model_center::pretraining::{CausalLm, CausalOptions, CorpusPart, PretrainingSamples, RowOptions, RowSampler};
use std::path::Path;
use std::sync::Arc;

const BATCH: u64 = 4;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let wrong = || Error::argument("arguments", "four are needed", "give MODEL TOKENS STEPS OUT");
    let [model, tokens, steps, out] = arguments.as_slice() else { return Err(wrong()) };
    let steps: u32 = steps.parse().map_err(|_| wrong())?;
    let device = Device::cpu(2)?;
    let open = OpenOptions { from_config: true, seed: 42, ..OpenOptions::new(&device) };
    let model = Registry::default().open(Path::new(model), &open)?.model;

    // All documents of the file, packed to the positions of the model, in a new order in each epoch.
    let file = Arc::new(TokenFile::open(tokens)?);
    let documents = DocumentSet::range(0..file.sequences());
    let corpus = CorpusPart { file, documents, weight: MixtureWeight::Number(1.0) };
    let samples = SampleOptions {
        sequence_length: model.info().max_length as u64,
        samples: u64::from(steps) * BATCH,
        seed: 42,
        order: SampleOrder::Addressed,
        part: "train".to_owned(),
        cache: None,
        threads: 0,
    };
    let vocabulary = model.info().vocab_size as u32;
    let rows = RowOptions { samples, sampler: RowSampler::Packed, eod: None, vocabulary };
    let samples = CausalLm::open(&[corpus], &rows, CausalOptions::default())?;

    let mut optim = OptimManager::new(&device, Clip::default())?;
    let groups = ParamGroup::by_decay(model.parameters(), 0.01);
    optim.add(Box::new(Adam::new(groups, AdamOptions::default())?), 3e-4);
    for step in 0..steps {
        let first = u64::from(step) * BATCH;
        let batch = samples.batch(&(first..first + BATCH).collect::<Vec<_>>())?;
        let mut cx = Ctx::training(&device, Randomness { seed: 42, step, micro_batch: 0 });
        let Some(loss) = model.loss(&batch, &mut cx)? else { continue };
        optim.backward(&loss, 1.0, &mut cx)?;
        optim.step()?;
        println!("step {step} loss {:.4}", loss.value().item()?);
    }
    let (dtype, layout) = (DType::F32, DirectoryLayout::HuggingFace);
    model.save(Path::new(out), &SaveOptions { dtype, companions: None, layout })
}
