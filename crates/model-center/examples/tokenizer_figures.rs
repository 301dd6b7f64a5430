//! Measures tokenizers on real vocabularies: ids against known ones, round trip, speed, memory. Called by
//! `scripts/claims/tokenizers.sh`.
//!
//! ```text
//! tokenizer_figures pairs DIRECTORY             ids by NAME.gguf of NAME.gguf.inp against NAME.gguf.out
//! tokenizer_figures text TOKENIZER FILE      MB/s, memory over the file's, whether decoding gives the file back
//! tokenizer_figures one TOKENIZER TEXT MIB   MB/s and memory for MIB MiB of one repeated text
//! ```
//!
//! Every figure is a line `NAME VALUE`; the exit status is 1 if ids are not those that are known.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use model_center::bmtrain_dist::inspect::process::{peak_resident_bytes, resident_bytes};
use model_center::tokenizer::{AutoTokenizer, Tokenizer};

/// The separator between the texts of a pair.
const BETWEEN: &str = "\n__ggml_vocab_test__\n";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["pairs", directory] => pairs(Path::new(directory)),
        ["text", tokenizer, file] => text(tokenizer, file),
        ["one", tokenizer, character, mib] => one(tokenizer, character, mib),
        _ => Err("usage: tokenizer_figures pairs DIRECTORY | text TOKENIZER FILE | one TOKENIZER TEXT MIB".into()),
    };
    done.unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::FAILURE
    })
}

fn pairs(directory: &Path) -> Result<ExitCode, Box<dyn Error>> {
    let files = std::fs::read_dir(directory)?.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let mut texts: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|ending| ending == "inp")).collect();
    texts.sort();
    let mut equal = 0;
    for path in &texts {
        let vocabulary = path.with_extension("");
        let name = vocabulary.file_stem().unwrap_or_default().to_string_lossy().replace("ggml-vocab-", "");
        match pair(&vocabulary, path) {
            Ok(None) => equal += 1,
            Ok(Some(difference)) => eprintln!("{name}: {difference}"),
            Err(error) => eprintln!("{name}: {error}"),
        }
    }
    println!("pairs {equal}/{}", texts.len());
    Ok(if equal == texts.len() && equal > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The first text whose ids are others than those that are known.
fn pair(vocabulary: &Path, texts: &Path) -> Result<Option<String>, Box<dyn Error>> {
    let tokenizer = AutoTokenizer::open(vocabulary)?;
    let texts_read = std::fs::read_to_string(texts)?;
    let known = std::fs::read_to_string(texts.with_extension("out"))?;
    let texts: Vec<&str> = texts_read.split(BETWEEN).collect();
    let known: Vec<&str> = known.lines().collect();
    // Some files have one more separator after the last text.
    if known.len() != texts.len() && known.len() + 1 != texts.len() {
        return Ok(Some(format!("{} lines of ids for {} texts", known.len(), texts.len())));
    }
    for (text, known) in texts.iter().zip(known) {
        let known: Vec<u32> = known.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let ids = tokenizer.tokenize(&[text])?.concat();
        if ids != known {
            return Ok(Some(format!("{text:?} is {ids:?}, known are {known:?}")));
        }
    }
    Ok(None)
}

fn text(tokenizer: &str, file: &str) -> Result<ExitCode, Box<dyn Error>> {
    let tokenizer = AutoTokenizer::open(tokenizer)?;
    let text = std::fs::read_to_string(file)?;
    let ids = measure(&tokenizer, &text)?;
    let decoded = tokenizer.decode(&ids, false)?;
    println!("trip {}", if decoded == text { "ok" } else { "lossy" });
    Ok(ExitCode::SUCCESS)
}

fn one(tokenizer: &str, word: &str, mib: &str) -> Result<ExitCode, Box<dyn Error>> {
    let tokenizer = AutoTokenizer::open(tokenizer)?;
    let text = word.repeat((mib.parse::<usize>()? << 20) / word.len().max(1));
    println!("tokens {}", measure(&tokenizer, &text)?.len());
    Ok(ExitCode::SUCCESS)
}

/// The ids of a text; prints its MB/s, and how much memory they took at most over the text's.
fn measure(tokenizer: &Arc<dyn Tokenizer>, text: &str) -> Result<Vec<u32>, Box<dyn Error>> {
    let before = resident_bytes().ok_or("the kernel does not report how much memory is in use")?;
    let started = Instant::now();
    let ids = tokenizer.tokenize(&[text])?.concat();
    let seconds = started.elapsed().as_secs_f64();
    let peak = peak_resident_bytes().ok_or("the kernel does not report how much memory was in use")?;
    println!("mbs {:.2}", text.len() as f64 / 1e6 / seconds);
    println!("memory {:.2}", peak.saturating_sub(before) as f64 / text.len() as f64);
    Ok(ids)
}
