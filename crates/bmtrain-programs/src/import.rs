//! The import program: a command or a configuration of another system in, a recipe out.
//!
//! [`model_center_import::import`] translates. Nothing of a script is run.

use crate::cli::places::model_places;
use crate::cli::terminal;
use clap::{Args, Parser, Subcommand};
use model_center_base::file::{read_text, shell_word, write_atomic};
use model_center_base::{Error, Result};
use model_center_formats::KnownDirectory;
use model_center_import::import::{self, Commands, ImportOptions, Note, NoteKind, Sheet, Translated};
use model_center_recipe::run::ExitStatus;
use std::path::{Path, PathBuf};

/// The longest script or configuration.
const MAX_TEXT_BYTES: u64 = 1 << 20;

/// Make a recipe of a command of Megatron-LM, CPM-Pretrain, ModelCenter or Distributed finetuning, or of a
/// configuration of DeepSpeed, axolotl or LLaMA-Factory. Each line of it tells what it was made from, and what has no
/// line is named with the reason.
///
/// Example: bmtrain import megatron pretrain_gpt2.sh --out recipe.toml
#[derive(Debug, Parser)]
#[command(name = "import", version)]
pub struct Options {
    /// System of the settings.
    #[command(subcommand)]
    pub system: System,
    /// Ranks of the run, where the settings do not tell; checks the batch equation.
    #[arg(long, global = true, value_name = "N")]
    pub ranks: Option<u64>,
    /// Set a key of the recipe; may be repeated.
    #[arg(long = "set", global = true, value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Pass over a flag or key that is refused or unknown; may be repeated.
    #[arg(long, global = true, value_name = "NAME")]
    pub leave: Vec<String>,
    /// Write the recipe to this file, which must not exist yet; by default to standard output.
    #[arg(long, global = true, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// Whose settings.
#[derive(Debug, Subcommand)]
pub enum System {
    /// A command of Megatron-LM, from its list of arguments of 2019 to version 2.
    Megatron(Command),
    /// A command of CPM-Pretrain, whose shell variables count too.
    Cpm(Command),
    /// A command of one of ModelCenter's examples.
    Modelcenter(Command),
    /// A command of "Distributed finetuning": src.train becomes a recipe, src.generate and src.ds_to_hf commands.
    DistributedFinetuning(Command),
    /// A configuration file of DeepSpeed.
    Deepspeed(Configuration),
    /// A configuration file of axolotl.
    Axolotl(YamlFile),
    /// A configuration file of LLaMA-Factory.
    LlamaFactory(YamlFile),
}

/// A command.
#[derive(Debug, Args)]
pub struct Command {
    /// A script, the text of a command in quotes, or - for standard input.
    #[arg(value_name = "COMMAND", required_unless_present = "words", allow_hyphen_values = true)]
    pub command: Option<String>,
    /// The command as words of its own.
    #[arg(last = true, value_name = "WORD")]
    pub words: Vec<String>,
}

/// A configuration.
#[derive(Debug, Args)]
pub struct Configuration {
    /// The JSON file.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The command of Megatron-LM that it belongs to: a script, or its text in quotes.
    #[arg(long, value_name = "COMMAND", allow_hyphen_values = true)]
    pub flags: Option<String>,
}

/// A configuration in YAML.
#[derive(Debug, Args)]
pub struct YamlFile {
    /// The YAML file.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// Run the program.
pub fn run(options: &Options) -> Result<ExitStatus> {
    if let Some(out) = options.out.as_ref().filter(|out| out.symlink_metadata().is_ok()) {
        let reason = format!("{} exists, and nothing is overwritten", out.display());
        return Err(Error::argument("--out", reason, "name another file"));
    }
    let asked = ImportOptions {
        ranks: options.ranks,
        leave: options.leave.clone(),
        sets: options.sets.clone(),
        places: model_places(),
    };
    let sheet = match &options.system {
        System::Megatron(command) => import::megatron(&text(command)?, &asked)?,
        System::Cpm(command) => import::cpm(&text(command)?, &asked)?,
        System::Modelcenter(command) => import::model_center(&text(command)?, &asked)?,
        System::DistributedFinetuning(command) => match import::distributed_finetuning(&text(command)?, &asked)? {
            Translated::Recipe(sheet) => sheet,
            Translated::Commands(commands) => return write_commands(&commands, options.out.as_deref()),
        },
        System::Axolotl(yaml) => import::axolotl(&settings(&yaml.file)?, &place(yaml), &asked)?,
        System::LlamaFactory(yaml) => import::llama_factory(&settings(&yaml.file)?, &place(yaml), &asked)?,
        System::Deepspeed(configuration) => {
            let flags = configuration.flags.as_deref().map(script_or_text).transpose()?;
            let json = settings(&configuration.file)?;
            import::deepspeed(&json, &configuration.file.display().to_string(), flags.as_deref(), &asked)?
        }
    };
    write(&sheet, options.out.as_deref())?;
    Ok(ExitStatus::Done)
}

fn place(yaml: &YamlFile) -> String {
    yaml.file.display().to_string()
}

fn warn(notes: &[Note]) {
    for note in notes.iter().filter(|note| note.kind == NoteKind::Differs) {
        terminal::note(&format!("warning: {}: {}", note.what, note.why));
    }
}

/// The commands to their file, and what differs to the terminal.
fn write_commands(commands: &Commands, out: Option<&Path>) -> Result<ExitStatus> {
    warn(commands.notes());
    let script = commands.to_string();
    match out {
        None => terminal::print(script.trim_end())?,
        Some(out) => {
            write_atomic(out, script.as_bytes())?;
            terminal::print(&format!("{}: {} commands", out.display(), commands.lines.len()))?;
        }
    }
    Ok(ExitStatus::Done)
}

/// The recipe to its file, and what differs to the terminal.
fn write(sheet: &Sheet, out: Option<&Path>) -> Result<()> {
    let recipe = sheet.to_toml();
    warn(sheet.notes());
    let Some(out) = out else { return terminal::print(recipe.trim_end()) };
    write_atomic(out, recipe.as_bytes())?;
    let unused = sheet.notes().iter().filter(|note| note.kind == NoteKind::Unused).count();
    terminal::print(&format!("{}: {} settings; without meaning here: {unused}", out.display(), sheet.lines().len()))
}

fn text(command: &Command) -> Result<String> {
    if command.words.is_empty() {
        return script_or_text(command.command.as_deref().unwrap_or_default());
    }
    // Words that a shell has already split stay whole.
    Ok(command.words.iter().map(|word| shell_word(word)).collect::<Vec<_>>().join(" "))
}

/// The contents of a file, or the text itself if there is no such file.
fn script_or_text(given: &str) -> Result<String> {
    if given == "-" {
        // One byte more, so that a longer text is refused rather than cut.
        let limited = std::io::Read::take(std::io::stdin().lock(), MAX_TEXT_BYTES + 1);
        let text = std::io::read_to_string(limited);
        return text.map_err(|e| Error::file("read", "-", e, "give the script's file instead"));
    }
    let path = Path::new(given);
    let is_text = given.contains(['\n', ' ', '=']) || given.starts_with('-');
    if is_text && !path.is_file() {
        return Ok(given.to_owned());
    }
    settings(path)
}

/// The contents of a file, or the error for a directory that holds something else.
fn settings(path: &Path) -> Result<String> {
    KnownDirectory::of(path).map_or_else(|| read_text(path, MAX_TEXT_BYTES), |known| Err(known.no_settings()))
}
