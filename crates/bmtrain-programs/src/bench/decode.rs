//! Benchmark of greedy decoding with a KV cache, one sequence at a time. `scripts/torch_decode.py` measures PyTorch,
//! `scripts/claims/llama_decode.py` llama.cpp.

use crate::cli::opened::{Form, Stored};
use crate::profile::TimedDevice;
use anyhow::{Context, Result, bail};
use bmtrain_core::bench::{Rounds, measure};
use bmtrain_core::{Ctx, Device, DeviceChoice};
use bmtrain_dist::inspect::process as memory;
use clap::Parser;
use model_center_formats::tokenizer::AutoTokenizer;
use model_center_models::generate::{GenerateOptions, GenerationSetup, Generator};
use model_center_models::{OpenOptions, Registry, TextModel};
use std::path::PathBuf;
use std::time::Instant;

/// Time greedy decoding of a model directory or a GGUF file. A round generates one token, and then --tokens: the first
/// is the time of the prompt, and the time of the further tokens is the difference.
///
/// Example: bmtrain decode-bench models/smollm2 --tokens 64 --threads 2
#[derive(Debug, Parser)]
pub struct Options {
    /// Model directory with its tokenizer, or a GGUF file.
    pub directory: PathBuf,
    /// Prompt.
    #[arg(long, default_value = "The sea was calm that morning, and the captain told us that")]
    pub prompt: String,
    /// Use only this many tokens of the prompt, its first.
    #[arg(long, value_name = "N")]
    pub prompt_tokens: Option<usize>,
    /// Dtype of the weights in memory and of what is computed with them.
    #[arg(long, value_enum, default_value = "f32")]
    pub dtype: Stored,
    /// How matrices that a GGUF file stores in quantised blocks are held in memory.
    #[arg(long, value_enum, default_value = "dequantised")]
    pub weights: Form,
    /// Tokens of a round, at least 2; end tokens are ignored.
    #[arg(long, default_value_t = 64)]
    pub tokens: usize,
    /// Rounds, after a short warm-up.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Threads.
    #[arg(long, default_value_t = 2)]
    pub threads: usize,
    /// Device: cpu, cuda, cuda:1, or auto.
    #[arg(long, default_value = "cpu")]
    pub device: DeviceChoice,
    /// Print the time of each kernel in all rounds; slows them a little.
    #[arg(long)]
    pub profile: bool,
    /// Print one line of JSON with the generated ids instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Measure and print.
pub fn run(options: &Options) -> Result<()> {
    if options.tokens < 2 || options.rounds == 0 {
        bail!("--tokens must be 2 or more, --rounds 1 or more");
    }
    let timed = TimedDevice::open(options.device, (0, 1), options.threads, options.profile)?;
    let device = &timed.device;
    let tokenizer = AutoTokenizer::open(&options.directory)?;
    let dtype = options.dtype.dtype();
    let open = OpenOptions {
        dtype,
        keep_dtype: false,
        weights: options.weights.option(),
        ..GenerationSetup::open_options(device)
    };
    let model = GenerationSetup::open_model(&options.directory, Registry::default(), &open)?.model;
    tokenizer.require_rows(model.info().vocab_size)?;
    let tokens = tokenizer.tokenize(&[&options.prompt])?.pop().context("the prompt has no tokens")?;
    let mut prompt = tokenizer.template(false).assemble(&tokens, &[], None)?.input_ids;
    if let Some(count) = options.prompt_tokens {
        if count == 0 || count > prompt.len() {
            bail!("--prompt-tokens {count} of a prompt of {}: use a number from 1 to that", prompt.len());
        }
        prompt.truncate(count);
    }

    let run = |tokens: usize| decode(&*model, device, &prompt, tokens);
    run(2)?;
    timed.reset_profile();
    let mut made = Vec::new();
    let [firsts, rates, whole] = measure(Rounds::exactly(0, options.rounds), || {
        let (first, (all, tokens)) = (run(1)?.0, run(options.tokens)?);
        made = tokens;
        Ok::<_, anyhow::Error>([first, (options.tokens - 1) as f64 / (all - first), first + all])
    })?;
    timed.print_profile(&whole);
    let (rate, first) = (rates.median(), firsts.median());
    let prompt_rate = prompt.len() as f64 / first;
    let peak = memory::peak_resident_bytes().context("/proc/self/status cannot be read")?;
    let form = if options.weights == Form::AsStored { "as-stored" } else { "dequantised" };
    if options.json {
        let line = serde_json::json!({
            "device": device.backend().name(), "threads": options.threads, "dtype": dtype.to_string(),
            "weights": form,
            "prompt_tokens": prompt.len(), "tokens": options.tokens,
            "prompt_tokens_per_s": prompt_rate, "tokens_per_s": rate, "first_s": first,
            "prompt_ids": prompt, "ids": made, "peak_rss_bytes": peak,
        });
        println!("{line}");
    } else {
        let text = tokenizer.decode(&[prompt.as_slice(), &made].concat(), false)?;
        println!(
            "{} tokens after {} in {dtype}, weights {form}: {rate:.1} tokens/s, prompt {prompt_rate:.1} tokens/s, \
             first {first:.3} s, peak {} MB\n{text}",
            options.tokens,
            prompt.len(),
            peak >> 20,
        );
    }
    Ok(())
}

/// The seconds and tokens of greedy decoding without end tokens.
fn decode(model: &dyn TextModel, device: &Device, prompt: &[u32], tokens: usize) -> Result<(f64, Vec<u32>)> {
    let most = model.info().max_length;
    if prompt.len().saturating_add(tokens) > most {
        bail!("--tokens {tokens} after {} of the prompt, and the model takes {most} at most", prompt.len());
    }
    let start = Instant::now();
    let options = GenerateOptions { max_new_tokens: tokens, ..GenerateOptions::default() };
    let generator = Generator::new(model, None, options)?;
    let texts = generator.generate(&[prompt.to_vec()], 0, &mut Ctx::inference(device), &mut |_| Ok(()))?;
    let text = texts.into_iter().flatten().next().context("no tokens were generated")?;
    Ok((start.elapsed().as_secs_f64(), text.tokens))
}
