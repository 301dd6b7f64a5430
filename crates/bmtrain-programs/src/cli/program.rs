//! A program from its command line to its exit code, around the families of a registry.
//!
//! Defines [`main`], which the programs share, and [`parse`], the command line of those without families. All of them
//! print shell completions and a manual page of themselves.

use crate::cli::environment::with_environment;
use crate::cli::{limits, terminal};
use crate::{Error, Result};
use clap::error::{ContextKind, ContextValue};
use clap::{Command, Parser, ValueEnum};
use clap_complete::Shell;
use model_center_base::error::ExitStatus;
use model_center_base::suggest::choice;
use model_center_models::Registry;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::sync::OnceLock;

/// The program that this process runs, where one binary has several.
static ENTERED: OnceLock<Entered> = OnceLock::new();

struct Entered {
    /// Name in its usage.
    shown: OsString,
    /// The first argument of another process of it.
    name: OsString,
    before: &'static [&'static str],
    given: Vec<OsString>,
}

/// Chooses one program of a binary that has several, before its `main`: `name` is the argument that names it, `None`
/// where the binary's own name does, and `before` comes before the arguments that the user gave.
pub fn enter(name: Option<&str>, before: &'static [&'static str], given: Vec<OsString>) {
    let (shown, name) = match name {
        Some(name) => (format!("bmtrain {name}").into(), name.into()),
        None => {
            let binary = std::env::args_os().next().unwrap_or_default();
            let name = Path::new(&binary).file_name().unwrap_or_default().to_owned();
            (binary, name)
        }
    };
    let _ = ENTERED.set(Entered { shown, name, before, given });
}

/// The arguments that the user gave this program.
fn given() -> Vec<OsString> {
    ENTERED.get().map_or_else(|| std::env::args_os().skip(1).collect(), |entered| entered.given.clone())
}

/// The command line of this program: its name, then all of its arguments.
fn arguments() -> Vec<OsString> {
    let Some(Entered { shown, before, given, .. }) = ENTERED.get() else { return std::env::args_os().collect() };
    std::iter::once(shown.clone()).chain(before.iter().map(Into::into)).chain(given.iter().cloned()).collect()
}

/// This program with the arguments that it has, for another process of it.
///
/// # Errors
/// The system's, if it does not tell where the program is.
pub fn again() -> std::io::Result<process::Command> {
    let mut command = process::Command::new(std::env::current_exe()?);
    command.args(ENTERED.get().map(|entered| &entered.name)).args(given());
    Ok(command)
}

/// Reads the command line of a program without families, and runs it.
pub fn tool<O: Parser, E: Into<anyhow::Error>>(run: fn(&O) -> Result<ExitStatus, E>) -> ExitCode {
    limits::prepare();
    let options = parse::<O>();
    terminal::start_logging();
    terminal::finish(run(&options))
}

/// Read the command line, whose help lists the families, and run the program.
pub fn main<O: Parser>(
    registry: Registry<'static>,
    run: impl FnOnce(&O, Registry<'static>) -> Result<ExitStatus>,
) -> ExitCode {
    main_or(registry, |_| None, run, |_| {})
}

/// [`main`] that writes a trace of the run where one is asked for, and calls `misused` before it ends because of a
/// command line that cannot be read or a trace that cannot be written.
pub fn main_or<O: Parser>(
    registry: Registry<'static>,
    trace: impl FnOnce(&O) -> Option<PathBuf>,
    run: impl FnOnce(&O, Registry<'static>) -> Result<ExitStatus>,
    misused: impl Fn(&str),
) -> ExitCode {
    limits::prepare();
    let command = with_environment(O::command().after_help(families(registry)));
    if let Some(ended) = describe(&command, &given()) {
        return terminal::finish(ended);
    }
    let matches = command.try_get_matches_from(arguments()).unwrap_or_else(|error| {
        let error = with_suggestion(error);
        if error.use_stderr() {
            misused(&error.to_string());
        }
        error.exit()
    });
    // What the matches lack they were just checked for.
    let options = O::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    // The trace is complete when it is dropped.
    let tracing = terminal::start_tracing(trace(&options).as_deref());
    if let Err(error) = &tracing {
        misused(&error.to_string());
    }
    terminal::finish(tracing.and_then(|_trace| run(&options, registry)))
}

/// The options of a program without families, which ends here if the command line is wrong, or asks for help or for a
/// description.
pub fn parse<O: Parser>() -> O {
    let command = with_environment(O::command());
    if let Some(ended) = describe(&command, &given()) {
        process::exit(terminal::status(ended).code().into());
    }
    let read = command.try_get_matches_from(arguments()).and_then(|matches| O::from_arg_matches(&matches));
    read.unwrap_or_else(|error| with_suggestion(error).exit())
}

/// The error with the choice that a wrong value stands for, by the same names as in a recipe: bf16 for bfloat16.
fn with_suggestion(mut error: clap::Error) -> clap::Error {
    let meant = match (error.get(ContextKind::InvalidValue), error.get(ContextKind::ValidValue)) {
        (Some(ContextValue::String(value)), Some(ContextValue::Strings(choices))) => {
            choice(value, choices.iter().map(String::as_str)).map(str::to_owned)
        }
        _ => None,
    };
    if let Some(meant) = meant {
        error.insert(ContextKind::SuggestedValue, ContextValue::String(meant));
    }
    error
}

/// Prints the completions or the manual page of a binary that has several programs, which its arguments ask for.
pub fn described(command: &Command) -> ExitCode {
    terminal::finish(describe(command, &given()).unwrap_or(Ok(ExitStatus::Done)))
}

/// Prints completions or the manual page of a program if that is all its arguments ask for: `--completions SHELL`,
/// `--man`. Every program has them, and none has them among its own options.
fn describe(command: &Command, arguments: &[OsString]) -> Option<anyhow::Result<ExitStatus>> {
    let words: Vec<&str> = arguments.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let text = match words.as_slice() {
        ["--completions", rest @ ..] => match rest.first().and_then(|shell| Shell::from_str(shell, true).ok()) {
            Some(shell) if rest.len() == 1 => Ok(completions(command, shell)),
            _ => {
                let shells: Vec<String> = Shell::value_variants().iter().map(ToString::to_string).collect();
                let fix = format!("write one of {}", shells.join(", "));
                Err(Error::argument("--completions", "it takes the name of a shell", fix).into())
            }
        },
        ["--man"] => manual(command),
        _ => return None,
    };
    Some(text.and_then(|text| terminal::print_bytes(&text).map(|_| ExitStatus::Done).map_err(Into::into)))
}

/// A script that completes the options of a program.
fn completions(command: &Command, shell: Shell) -> Vec<u8> {
    let mut text = Vec::new();
    let name = command.get_name().to_owned();
    clap_complete::generate(shell, &mut command.clone(), name, &mut text);
    text
}

/// The manual page of a program, of section 1, with its subcommands.
fn manual(command: &Command) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut text)?;
    // One page has all: the subcommands' pages follow as sections of their own.
    for part in command.get_subcommands().filter(|part| !part.is_hide_set() && part.get_name() != "help") {
        let name = format!("{} {}", command.get_name(), part.get_name());
        let part = part.clone().bin_name(name.clone()).display_name(name);
        let man = clap_mangen::Man::new(part);
        man.render_name_section(&mut text)?;
        man.render_synopsis_section(&mut text)?;
        man.render_description_section(&mut text)?;
        man.render_options_section(&mut text)?;
    }
    Ok(text)
}

/// The families by the names that `config.json` has for them, and the further tasks.
fn families(registry: Registry<'_>) -> String {
    let lines = registry.entries().map(|entry| format!("\n  {:<10} {}", entry.model_type, entry.doc));
    let tasks = registry.tasks.iter().map(|task| format!("\n  {:<10} {}", task.name(), task.doc())).collect::<String>();
    let tasks = if tasks.is_empty() { tasks } else { format!("\n\nFurther tasks (data.task):{tasks}") };
    format!("Families of models:{}{tasks}", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn asked(words: &[&str]) -> Option<anyhow::Result<ExitStatus>> {
        describe(&crate::cli::finetune::Options::command(), &words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn every_shell_completes_the_options_and_the_manual_has_them() {
        let command = crate::cli::data::Options::command();
        for shell in Shell::value_variants() {
            let text = String::from_utf8(completions(&command, *shell)).unwrap();
            assert!(text.contains("preview") && text.contains("recipe"), "{shell}: {text}");
        }
        let text = String::from_utf8(manual(&command).unwrap()).unwrap();
        assert!(text.starts_with(".ie") || text.contains(".TH data 1"), "{text}");
        assert!(text.contains("data preview") && text.contains("\\-\\-recipe"), "{text}");
    }

    #[test]
    fn other_arguments_are_the_programs_own_and_an_unknown_shell_is_refused() {
        assert!(asked(&["--recipe", "a.toml"]).is_none() && asked(&[]).is_none());
        let error = asked(&["--completions", "tcsh"]).unwrap().unwrap_err().to_string();
        assert!(error.contains("bash") && error.contains("fish"), "{error}");
        assert!(asked(&["--completions"]).unwrap().is_err());
    }
}
