//! Generation and export as commands of the programs here.

use super::{dtype, is_seq2seq, required};
use crate::import::flags::{Flags, check_set};
use crate::import::sheet::{NoteKind, Sheet};
use crate::{Error, Result};
use model_center_base::file::shell_word;

/// The commands that do what a generation does.
pub(super) fn generate(flags: &Flags, sheet: &mut Sheet) -> Result<Vec<String>> {
    is_seq2seq(flags, sheet)?;
    let name = required(flags, "--model-name")?;
    let (load, model) = (flags.text("--load-path")?, shell_word(name));
    let model = match load {
        Some(load) => {
            let why = "the directory `model` of a run has all that generation needs, its text formats among it";
            sheet.note(NoteKind::Unused, flags.shown("--model-name"), why);
            shell_word(&format!("{}/model", load.trim_end_matches('/')))
        }
        None => model,
    };
    for name in [
        "--training-inference-type",
        "--prompt-tuning-init",
        "--prompt-tuning-init-text",
        "--num-virtual-tokens",
        "--input-format",
        "--output-format",
        "--max-input-tokens",
        "--max-output-tokens",
    ] {
        if flags.is_given(name) {
            let why = "it is kept in the model's directory since training";
            sheet.note(NoteKind::Unused, flags.shown(name), why);
        }
    }
    for name in ["--data-class", "--data-config", "--data-sampling-proportion"] {
        if flags.is_given(name) {
            let why = "rows of the test files are read as they are: input, and fields that are kept";
            sheet.note(NoteKind::Differs, flags.shown(name), why);
        }
    }
    let Some(paths) = flags.values("--data-path") else {
        return Err(Error::argument("--data-path", "there is no data set", "give the directory with test/*.jsonl"));
    };
    paths.iter().try_for_each(|path| check_set("--data-path", path))?;
    let output = required(flags, "--output-file")?;
    let (batch, most) = (flags.whole("--batch-size", 8)?, flags.whole("--max-new-tokens", 20)?);
    let mut how = format!("--batch {} --max-new-tokens {}", batch.value, most.value);
    match flags.is_given("--do-sample") {
        true => how += " --sample",
        false => {
            for name in ["--temperature", "--top-k", "--top-p"] {
                if flags.is_given(name) {
                    let why = "without --do_sample no token is sampled, there as here";
                    sheet.note(NoteKind::Unused, flags.shown(name), why);
                }
            }
        }
    }
    for (name, ours) in [("--temperature", "--temperature"), ("--top-k", "--top-k"), ("--top-p", "--top-p")] {
        if let Some(found) = flags.maybe_number(name)?.filter(|_| flags.has("--do-sample")) {
            how += &format!(" {ours} {}", found.value);
        }
    }
    if let Some(seed) = flags.maybe_whole("--seed")? {
        match flags.has("--do-sample") {
            true => how += &format!(" --seed {}", seed.value),
            false => sheet.note(NoteKind::Unused, seed.from, "no token is sampled"),
        }
    }
    if let Some(dtype) = dtype(flags)? {
        how += &format!(" --dtype {dtype}");
    }
    let line = |path: &str, output: &str| {
        let (data, output) = (shell_word(path.trim_end_matches('/')), shell_word(output));
        format!("bmtrain generate {model} --data {data} --split test --output {output} {how}")
    };
    if let [path] = paths {
        return Ok(vec![line(path, output)]);
    }
    // There all texts are in one file.
    let outputs: Vec<String> = (0..paths.len()).map(|at| format!("{output}.{at}")).collect();
    let mut lines: Vec<String> = paths.iter().zip(&outputs).map(|(path, output)| line(path, output)).collect();
    let parts: Vec<String> = outputs.iter().map(|output| shell_word(output)).collect();
    lines.push(format!("cat {} > {}", parts.join(" "), shell_word(output)));
    Ok(lines)
}

/// The commands that do what an export does.
pub(super) fn export(flags: &Flags) -> Result<Vec<String>> {
    let (load, save) = (required(flags, "--load-path")?, required(flags, "--save-path")?);
    let dtype = dtype(flags)?.unwrap_or("f32");
    let mut lines = vec![format!("bmtrain ckpt export {} {} --dtype {dtype}", shell_word(load), shell_word(save))];
    lines.push("# A run ends with such a directory, `model`, by itself. A checkpoint that DeepSpeed wrote:".to_owned());
    lines.push(format!("# bmtrain convert {} {} --config MODEL", shell_word(load), shell_word(save)));
    Ok(lines)
}
