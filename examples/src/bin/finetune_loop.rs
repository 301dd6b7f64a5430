//! Fine-tunes a language model on the lines of a text file, with a training loop of one's own.
//!
//! cargo run --release -p bmtrain-examples --bin finetune_loop -- models/gpt2 lines.txt tuned

use model_center::Error;
use model_center::bmtrain_core::autograd::Randomness;
use model_center::directory::DirectoryLayout;
use model_center::prelude::*;
use std::path::Path;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, texts, out] = arguments.as_slice() else {
        return Err(Error::argument("arguments", "three are needed", "give MODEL TEXTS OUT"));
    };
    let device = Device::cpu(2)?;
    let tokenizer = AutoTokenizer::open(Path::new(model))?;
    let opened = Registry::default().open(Path::new(model), &OpenOptions::new(&device))?;

    let mut optim = OptimManager::new(&device, Clip::default())?;
    let groups = ParamGroup::by_decay(opened.model.parameters(), 0.01);
    optim.add(Box::new(Adam::new(groups, AdamOptions::default())?), 1e-4);

    let texts = std::fs::read_to_string(texts).map_err(|error| Error::file("read", texts, error, "check the path"))?;
    for (step, line) in (0u32..).zip(texts.lines().filter(|line| !line.trim().is_empty())) {
        let ids = tokenizer.tokenize(&[line])?.concat();
        // One sequence; the labels are its tokens, and the model shifts them.
        let batch = Batch::next_tokens(ids.len(), ids.into_iter().map(i64::from).collect(), None);
        let mut cx = Ctx::training(&device, Randomness { seed: 42, step, micro_batch: 0 });
        let Some(loss) = opened.model.loss(&batch, &mut cx)? else { continue };
        optim.backward(&loss, 1.0, &mut cx)?;
        optim.step()?;
        println!("step {step} loss {:.4}", loss.value().item()?);
    }
    let (dtype, companions, layout) = (DType::F32, Some(Path::new(model)), DirectoryLayout::HuggingFace);
    opened.model.save(Path::new(out), &SaveOptions { dtype, companions, layout })
}
