//! Times greedy decoding of a model directory, one text at a time with keys and values kept: the measurement behind the
//! claim of its speed. `scripts/torch_decode.py` does the same in PyTorch.

use anyhow::{Context, Result, bail};
use bmtrain_core::bench::Seconds;
use bmtrain_core::wrap::Profiled;
use bmtrain_core::{Backend, Ctx, Device, DeviceChoice};
use bmtrain_dist::param::widen;
use bmtrain_examples::profile::print_profile;
use clap::Parser;
use model_center::generate::largest;
use model_center::model::{Batch, DecodingOptions, OpenOptions, Registry, TextHead, TextModel};
use model_center::run::memory;
use model_center::tokenizer::AutoTokenizer;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Time greedy decoding of a model directory. A round makes one word behind the prompt, and then that many more: the
/// difference is what the further words took.
///
/// Example: decode_bench models/smollm2 --tokens 64 --threads 2
#[derive(Debug, Parser)]
struct Options {
    /// Model directory with tokenizer.json.
    directory: PathBuf,
    /// What stands in front.
    #[arg(long, default_value = "The sea was calm that morning, and the captain told us that")]
    prompt: String,
    /// Words of a round, at least 2; a word that ends texts does not end it.
    #[arg(long, default_value_t = 64)]
    tokens: usize,
    /// Rounds, after a short one that is not timed.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Where: cpu, cuda, cuda:1, or auto.
    #[arg(long, default_value = "cpu")]
    device: DeviceChoice,
    /// Print the time of each kernel in all rounds; slows them a little.
    #[arg(long)]
    profile: bool,
    /// One line of JSON instead of text, with the ids that were made.
    #[arg(long)]
    json: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    if options.tokens < 2 || options.rounds == 0 {
        bail!("--tokens must be 2 or more, --rounds 1 or more");
    }
    let backend = bmtrain_examples::device::open(options.device, (0, 1), options.threads, true)?.backend;
    let profiled = options.profile.then(|| Arc::new(Profiled::new(Arc::clone(&backend))));
    let device = Device::new(match &profiled {
        Some(profiled) => Arc::clone(profiled) as Arc<dyn Backend>,
        None => backend,
    });
    let tokenizer = AutoTokenizer::open(&options.directory)?;
    let open = OpenOptions { head: Some(TextHead::CausalLm), ..OpenOptions::new(&device) };
    let model = Registry::default().open(&options.directory, &open)?.model;
    tokenizer.require_rows(model.info().vocab_size)?;
    let words = tokenizer.tokenize(&[&options.prompt])?.pop().context("a prompt has words")?;
    let prompt: Vec<i64> =
        tokenizer.template(false).assemble(&words, &[], None)?.input_ids.into_iter().map(i64::from).collect();

    let run = |tokens: usize| decode(&*model, &device, &prompt, tokens);
    run(2)?;
    if let Some(profiled) = &profiled {
        profiled.reset();
    }
    let (mut firsts, mut rates, mut whole, mut made) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        let first = run(1)?.seconds;
        let all = run(options.tokens)?;
        firsts.push(first);
        rates.push((options.tokens - 1) as f64 / (all.seconds - first));
        whole.push(first + all.seconds);
        made = all.ids;
    }
    if let Some(profiled) = &profiled {
        print_profile(profiled, &whole);
    }
    let (rate, first) = (Seconds::new(rates).median(), Seconds::new(firsts).median());
    let peak = memory::peak_resident_bytes().context("/proc/self/status cannot be read")?;
    if options.json {
        let line = serde_json::json!({
            "threads": options.threads, "prompt_tokens": prompt.len(), "tokens": options.tokens,
            "tokens_per_s": rate, "first_s": first, "ids": made, "peak_rss_bytes": peak,
        });
        println!("{line}");
    } else {
        let text = tokenizer.decode(&made, false)?;
        println!(
            "{} tokens behind {}: {rate:.1} tokens/s, first {first:.3} s, peak {} MB\n{}{text}",
            options.tokens,
            prompt.len(),
            peak >> 20,
            options.prompt
        );
    }
    Ok(())
}

/// What a text came to.
struct Made {
    seconds: f64,
    ids: Vec<u32>,
}

/// So many words behind a prompt, each the most probable one.
fn decode(model: &dyn TextModel, device: &Device, prompt: &[i64], tokens: usize) -> Result<Made> {
    let expected = prompt.len().saturating_add(tokens);
    if expected > model.info().max_length {
        bail!(
            "--tokens {tokens} behind {} of the prompt, and rows have at most {}",
            prompt.len(),
            model.info().max_length
        );
    }
    let start = Instant::now();
    let mut cx = Ctx::inference(device);
    let mut decoding = model.decoding(DecodingOptions { source: None, expected }, &mut cx)?;
    let (mut ids, mut next) = (Vec::with_capacity(tokens), prompt.to_vec());
    loop {
        let batch = Batch { labels: None, ..Batch::next_tokens(next.len(), next, None) };
        let logits = decoding.extend(&batch, &mut cx)?; // [1, V]
        let best = largest(&widen(&logits)?).context("no score is a number")? as u32;
        ids.push(best);
        if ids.len() == tokens {
            return Ok(Made { seconds: start.elapsed().as_secs_f64(), ids });
        }
        next = vec![i64::from(best)];
    }
}
