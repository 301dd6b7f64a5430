//! The subcommands of `bmtrain`: a table by what a user wants to do, its help, and the answer to an unknown name.

use bmtrain_programs::Error;
use bmtrain_programs::cli::environment::with_all;
use bmtrain_programs::cli::{self, program, terminal};
use clap::{Command, CommandFactory};
use model_center_base::error::ExitStatus;
use model_center_base::suggest::closest;
use model_center_models::Registry;
use std::ffi::OsString;
use std::process::ExitCode;

/// One program.
pub struct Subcommand {
    /// Its names; completions have the first.
    names: &'static [&'static str],
    /// The group that the help has it in.
    group: &'static str,
    /// Arguments that come before the user's.
    before: &'static [&'static str],
    program: Program,
}

/// A program, where this build has it.
enum Program {
    Built {
        command: fn() -> Command,
        main: fn() -> ExitCode,
    },
    /// It was built without this feature.
    #[allow(dead_code, reason = "a build with all features leaves none out")]
    LeftOut(&'static str),
}

impl Subcommand {
    const fn new(
        group: &'static str,
        names: &'static [&'static str],
        command: fn() -> Command,
        main: fn() -> ExitCode,
    ) -> Self {
        Subcommand { names, group, before: &[], program: Program::Built { command, main } }
    }

    /// Runs the program on these arguments; `name` is the argument that chose it.
    pub fn run(&self, name: Option<&str>, arguments: Vec<OsString>) -> ExitCode {
        match self.program {
            Program::Built { main, .. } => {
                program::enter(name, self.before, arguments);
                main()
            }
            Program::LeftOut(feature) => {
                let name = self.names[0];
                let reason = format!("this build has no {name}: it was built without the feature {feature}");
                let fix = format!("build it with --features {feature}, or with the default features");
                terminal::finish(Err(Error::argument(format!("bmtrain {name}"), reason, fix)))
            }
        }
    }
}

/// A row of a program that only builds with a feature have.
macro_rules! optional {
    ($feature:literal, $group:expr, $names:expr, $command:expr, $main:expr $(,)?) => {{
        #[cfg(feature = $feature)]
        let row = Subcommand::new($group, $names, $command, $main);
        #[cfg(not(feature = $feature))]
        let row = Subcommand { names: $names, group: $group, before: &[], program: Program::LeftOut($feature) };
        row
    }};
}

const TRAIN: &str = "Train";
const USE: &str = "Use a model";
const DATA: &str = "Prepare data";
const FILES: &str = "Models, checkpoints and settings of other systems";
const LOOK: &str = "Look at runs and at this machine";

/// The groups in the order of the help.
const GROUPS: [&str; 5] = [TRAIN, USE, DATA, FILES, LOOK];

/// Every program; those that this build leaves out name their feature.
const SUBCOMMANDS: &[Subcommand] = &[
    optional!("import", TRAIN, &["init"], cli::init::Options::command, || cli::init(Registry::default())),
    Subcommand::new(TRAIN, &["finetune", "train"], cli::finetune::Options::command, || finetune(Registry::default())),
    Subcommand::new(TRAIN, &["pretrain"], cli::pretrain::Options::command, || cli::pretrain(Registry::default())),
    Subcommand::new(TRAIN, &["plan"], cli::plan::Options::command, || cli::plan(Registry::default())),
    Subcommand::new(USE, &["generate"], cli::generate::Options::command, || cli::generate(Registry::default())),
    Subcommand {
        before: &["--chat"],
        ..Subcommand::new(
            USE,
            &["chat"],
            || cli::generate::Options::command().about("Talk with a model in the terminal, as `generate --chat` does"),
            || cli::generate(Registry::default()),
        )
    },
    Subcommand::new(USE, &["predict"], cli::predict::Options::command, || cli::predict(Registry::default())),
    optional!("serve", USE, &["serve"], cli::serve::Options::command, || cli::serve(Registry::default())),
    Subcommand::new(USE, &["evaluate"], cli::evaluate::Options::command, || cli::evaluate(Registry::default())),
    Subcommand::new(USE, &["forward"], cli::forward::Options::command, || cli::forward(Registry::default())),
    Subcommand::new(DATA, &["data"], cli::data::Options::command, || cli::data(Registry::default())),
    optional!("corpus", DATA, &["corpus"], bmtrain_programs::corpus::Options::command, || {
        program::tool(bmtrain_programs::corpus::run)
    }),
    optional!("tools", DATA, &["tokenizer"], bmtrain_programs::tokenizer::Options::command, || {
        program::tool(bmtrain_programs::tokenizer::run)
    }),
    optional!("hub", FILES, &["fetch"], bmtrain_programs::fetch::Options::command, || {
        program::tool(bmtrain_programs::fetch::run)
    }),
    optional!("tools", FILES, &["convert"], bmtrain_programs::convert::Options::command, || {
        bmtrain_programs::convert::main(Registry::default())
    }),
    optional!("tools", FILES, &["ckpt"], bmtrain_programs::ckpt::Options::command, || {
        bmtrain_programs::ckpt::main(Registry::default())
    }),
    optional!("import", FILES, &["import"], bmtrain_programs::import::Options::command, || {
        program::tool(bmtrain_programs::import::run)
    }),
    optional!("runs", LOOK, &["runs"], cli::runs::Options::command, cli::runs),
    optional!("tools", LOOK, &["doctor"], bmtrain_programs::doctor::Options::command, || {
        program::tool(bmtrain_programs::doctor::run)
    }),
    optional!("tools", LOOK, &["simulate"], bmtrain_programs::simulate::Options::command, || {
        program::tool(bmtrain_programs::simulate::run)
    }),
    optional!("tools", LOOK, &["bench"], bmtrain_programs::bench::Options::command, || {
        program::tool(bmtrain_programs::bench::run)
    }),
    optional!(
        "tools",
        LOOK,
        &["decode-bench", "decode_bench"],
        bmtrain_programs::bench::decode::Options::command,
        || program::tool(|options| bmtrain_programs::bench::decode::run(options).map(|()| ExitStatus::Done))
    ),
];

fn finetune(registry: Registry<'static>) -> ExitCode {
    cli::finetune::main_with(registry, model_center_train::train::finetune_on)
}

/// The program of this name.
pub fn find(name: &str) -> Option<&'static Subcommand> {
    SUBCOMMANDS.iter().find(|subcommand| subcommand.names.contains(&name))
}

/// The programs of this build with their command lines.
fn built() -> impl Iterator<Item = (&'static Subcommand, Command)> {
    SUBCOMMANDS.iter().filter_map(|subcommand| match subcommand.program {
        Program::Built { command, .. } => Some((subcommand, command())),
        Program::LeftOut(_) => None,
    })
}

/// The whole command line, for completions and the manual page.
pub fn command() -> Command {
    let subcommands = built().map(|(subcommand, command)| {
        command.name(subcommand.names[0]).visible_aliases(subcommand.names[1..].iter().copied())
    });
    let command = Command::new("bmtrain")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Trains, evaluates and serves transformers with few resources")
        .subcommand_required(true)
        .subcommands(subcommands);
    with_all(command)
}

/// The help: programs by group, with the beginning of each one's own.
pub fn help() -> String {
    let mut text = String::from(
        "Trains, evaluates and serves transformers with few resources.\n\nUsage: bmtrain SUBCOMMAND [OPTIONS]\n",
    );
    for group in GROUPS {
        let mut lines = String::new();
        for (subcommand, command) in built().filter(|(subcommand, _)| subcommand.group == group) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let about = about.split(". ").next().unwrap_or_default().split(": ").next().unwrap_or_default();
            let names = subcommand.names.iter().filter(|name| !name.contains('_')).copied();
            lines += &format!("  {:<16} {}\n", names.collect::<Vec<_>>().join(", "), about.trim_end_matches('.'));
        }
        if !lines.is_empty() {
            text += &format!("\n{group}:\n{lines}");
        }
    }
    text + "\n`bmtrain SUBCOMMAND --help` describes one of them and names the environment variables that it reads; \
            `--completions\nSHELL` and `--man` are for the shell.\n"
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

/// The error for a name that no program has.
pub fn unknown(name: &str) -> ExitCode {
    let names = SUBCOMMANDS.iter().flat_map(|subcommand| subcommand.names.iter().copied());
    let fix = match closest(name, names) {
        Some(near) => format!("write bmtrain {near}, or see bmtrain help"),
        None => "see bmtrain help".to_owned(),
    };
    terminal::finish(Err(Error::argument(format!("bmtrain {name}"), "there is no such subcommand", fix)))
}
