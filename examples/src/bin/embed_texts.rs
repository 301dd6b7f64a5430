//! Prints the cosine similarity of two sentences by the mean of an encoder's hidden states.
//!
//! cargo run --release -p bmtrain-examples --bin embed_texts -- models/all-MiniLM-L6-v2 "a cat sleeps" "a dog rests"

use model_center::Error;
use model_center::contrastive::embeddings;
use model_center::model::PoolingMode;
use model_center::prelude::*;
use std::path::Path;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, first, second] = arguments.as_slice() else {
        return Err(Error::argument("arguments", "three are needed", "give MODEL SENTENCE SENTENCE"));
    };
    let device = Device::cpu(2)?;
    let tokenizer = AutoTokenizer::open(Path::new(model))?;
    let opened = Registry::default().open(Path::new(model), &OpenOptions::new(&device))?;
    let embed = |text: &str| -> Result<Vec<f32>> {
        let (front, back) = tokenizer.template(false).around_first();
        let ids = [front, tokenizer.tokenize(&[text])?.concat(), back].concat();
        let batch = Batch::new(ids.len(), ids.into_iter().map(i64::from).collect());
        let embedding = embeddings(&*opened.model, &batch, PoolingMode::Mean, &mut Ctx::inference(&device))?; // [1, D]
        Ok(embedding.value().to_vec()?)
    };
    let (a, b) = (embed(first)?, embed(second)?);
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
    println!("{:.4}", dot(&a, &b) / (dot(&a, &a) * dot(&b, &b)).sqrt());
    Ok(())
}
