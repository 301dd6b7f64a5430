//! The subcommands of `bmtrain`: a table by what a user wants to do, its help, and the answer to an unknown name.

use bmtrain_programs::Error;
use bmtrain_programs::cli::{self, terminal};
#[cfg(any(feature = "corpus", feature = "hub", feature = "import", feature = "tools"))]
use bmtrain_programs::{Result, cli::limits, cli::program};
#[cfg(any(feature = "corpus", feature = "hub", feature = "import", feature = "tools"))]
use clap::Parser;
use clap::{Command, CommandFactory};
use model_center_base::error::ExitStatus;
use model_center_base::suggest::closest;
use model_center_models::Registry;
use std::process::ExitCode;

/// One program.
pub struct Subcommand {
    /// Its names; completions have the first.
    names: &'static [&'static str],
    /// The group that the help has it in.
    group: &'static str,
    /// Its command line.
    command: fn() -> Command,
    /// Arguments that come before the user's.
    pub before: &'static [&'static str],
    /// Its `main`.
    pub run: fn() -> ExitCode,
}

const TRAIN: &str = "Train";
const USE: &str = "Use a model";
const DATA: &str = "Prepare data";
const FILES: &str = "Models, checkpoints and settings of other systems";
const LOOK: &str = "Look at runs and at this machine";

/// The groups in the order of the help.
const GROUPS: [&str; 5] = [TRAIN, USE, DATA, FILES, LOOK];

/// A program over the families of the registry.
macro_rules! over_models {
    ($group:ident, $names:expr, $options:ty, $main:path) => {
        Subcommand {
            names: &$names,
            group: $group,
            command: <$options as CommandFactory>::command,
            before: &[],
            run: || $main(Registry::default()),
        }
    };
}

/// A program without families.
#[cfg(any(feature = "corpus", feature = "hub", feature = "import", feature = "tools"))]
macro_rules! tool {
    ($group:ident, $names:expr, $options:ty, $run:path) => {
        Subcommand {
            names: &$names,
            group: $group,
            command: <$options as CommandFactory>::command,
            before: &[],
            run: || run_tool::<$options>($run),
        }
    };
}

/// Every program of this build.
const SUBCOMMANDS: &[Subcommand] = &[
    #[cfg(feature = "import")]
    over_models!(TRAIN, ["init"], cli::init::Options, cli::init),
    over_models!(TRAIN, ["finetune", "train"], cli::finetune::Options, finetune),
    over_models!(TRAIN, ["pretrain"], cli::pretrain::Options, cli::pretrain),
    over_models!(TRAIN, ["plan"], cli::plan::Options, cli::plan),
    over_models!(USE, ["generate"], cli::generate::Options, cli::generate),
    Subcommand {
        names: &["chat"],
        group: USE,
        command: || {
            cli::generate::Options::command().about("Talk with a model in the terminal, as `generate --chat` does")
        },
        before: &["--chat"],
        run: || cli::generate(Registry::default()),
    },
    over_models!(USE, ["predict"], cli::predict::Options, cli::predict),
    #[cfg(feature = "serve")]
    over_models!(USE, ["serve"], cli::serve::Options, cli::serve),
    over_models!(USE, ["evaluate"], cli::evaluate::Options, cli::evaluate),
    over_models!(USE, ["forward"], cli::forward::Options, cli::forward),
    over_models!(DATA, ["data"], cli::data::Options, cli::data),
    #[cfg(feature = "corpus")]
    tool!(DATA, ["corpus"], bmtrain_programs::corpus::Options, bmtrain_programs::corpus::run),
    #[cfg(feature = "tools")]
    tool!(DATA, ["tokenizer"], bmtrain_programs::tokenizer::Options, bmtrain_programs::tokenizer::run),
    #[cfg(feature = "hub")]
    tool!(FILES, ["fetch"], bmtrain_programs::fetch::Options, bmtrain_programs::fetch::run),
    #[cfg(feature = "tools")]
    over_models!(FILES, ["convert"], bmtrain_programs::convert::Options, bmtrain_programs::convert::main),
    #[cfg(feature = "tools")]
    over_models!(FILES, ["ckpt"], bmtrain_programs::ckpt::Options, bmtrain_programs::ckpt::main),
    #[cfg(feature = "import")]
    tool!(FILES, ["import"], bmtrain_programs::import::Options, bmtrain_programs::import::run),
    #[cfg(feature = "runs")]
    Subcommand { names: &["runs"], group: LOOK, command: cli::runs::Options::command, before: &[], run: cli::runs },
    #[cfg(feature = "tools")]
    tool!(LOOK, ["doctor"], bmtrain_programs::doctor::Options, bmtrain_programs::doctor::run),
    #[cfg(feature = "tools")]
    tool!(LOOK, ["simulate"], bmtrain_programs::simulate::Options, bmtrain_programs::simulate::run),
    #[cfg(feature = "tools")]
    tool!(LOOK, ["bench"], bmtrain_programs::bench::Options, bmtrain_programs::bench::run),
    #[cfg(feature = "tools")]
    Subcommand {
        names: &["decode-bench", "decode_bench"],
        group: LOOK,
        command: bmtrain_programs::bench::decode::Options::command,
        before: &[],
        run: decode_bench,
    },
];

/// The programs that a build may lack, with the feature that has each.
const OPTIONAL: &[(&str, &str)] = &[
    ("init", "import"),
    ("serve", "serve"),
    ("corpus", "corpus"),
    ("tokenizer", "tools"),
    ("fetch", "hub"),
    ("convert", "tools"),
    ("ckpt", "tools"),
    ("import", "import"),
    ("runs", "runs"),
    ("doctor", "tools"),
    ("simulate", "tools"),
    ("bench", "tools"),
    ("decode-bench", "tools"),
];

fn finetune(registry: Registry<'static>) -> ExitCode {
    cli::finetune::main_with(registry, model_center_train::train::finetune_on)
}

#[cfg(feature = "tools")]
fn decode_bench() -> ExitCode {
    match bmtrain_programs::bench::decode::run(&program::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::note(&format!("Error: {error:?}"));
            ExitCode::FAILURE
        }
    }
}

#[cfg(any(feature = "corpus", feature = "hub", feature = "import", feature = "tools"))]
fn run_tool<O: Parser>(run: fn(&O) -> Result<ExitStatus>) -> ExitCode {
    limits::prepare();
    let options = program::parse::<O>();
    terminal::start_logging();
    terminal::finish(run(&options))
}

/// The program of this name.
pub fn find(name: &str) -> Option<&'static Subcommand> {
    SUBCOMMANDS.iter().find(|subcommand| subcommand.names.contains(&name))
}

/// The whole command line, for completions and the manual page.
pub fn command() -> Command {
    let subcommands = SUBCOMMANDS.iter().map(|subcommand| {
        let command = (subcommand.command)().name(subcommand.names[0]);
        command.visible_aliases(subcommand.names[1..].iter().copied())
    });
    Command::new("bmtrain")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Trains, evaluates and serves transformers with few resources")
        .subcommand_required(true)
        .subcommands(subcommands)
}

/// The help: programs by group, with the beginning of each one's own.
pub fn help() -> String {
    let mut text = String::from(
        "Trains, evaluates and serves transformers with few resources.\n\nUsage: bmtrain SUBCOMMAND [OPTIONS]\n",
    );
    for group in GROUPS {
        let mut lines = String::new();
        for subcommand in SUBCOMMANDS.iter().filter(|subcommand| subcommand.group == group) {
            let about = (subcommand.command)().get_about().map(ToString::to_string).unwrap_or_default();
            let about = about.split(". ").next().unwrap_or_default().split(": ").next().unwrap_or_default();
            let names = subcommand.names.iter().filter(|name| !name.contains('_')).copied();
            lines += &format!("  {:<16} {}\n", names.collect::<Vec<_>>().join(", "), about.trim_end_matches('.'));
        }
        if !lines.is_empty() {
            text += &format!("\n{group}:\n{lines}");
        }
    }
    text + "\n`bmtrain SUBCOMMAND --help` describes one of them; `--completions SHELL` and `--man` are for the shell.\n"
}

/// Prints a text and ends well.
pub fn printed(text: &str) -> ExitCode {
    terminal::finish(terminal::print_bytes(text.as_bytes()).map(|_| ExitStatus::Done))
}

/// The help on standard error, for a command line without a subcommand.
pub fn misused(help: &str) -> ExitCode {
    terminal::note(help.trim_end());
    ExitCode::from(2)
}

/// The error for a name that no program of this build has.
pub fn unknown(name: &str) -> ExitCode {
    let error = match OPTIONAL.iter().find(|(optional, _)| *optional == name) {
        Some((_, feature)) => Error::argument(
            format!("bmtrain {name}"),
            format!("this build has no {name}: it was built without the feature {feature}"),
            format!("build it with --features {feature}, or with the default features"),
        ),
        None => {
            let names = SUBCOMMANDS.iter().flat_map(|subcommand| subcommand.names.iter().copied());
            let fix = match closest(name, names) {
                Some(near) => format!("write bmtrain {near}, or see bmtrain help"),
                None => "see bmtrain help".to_owned(),
            };
            Error::argument(format!("bmtrain {name}"), "there is no such subcommand", fix)
        }
    };
    terminal::finish(Err(error))
}
