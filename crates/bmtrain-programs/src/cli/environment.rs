//! The environment variables that programs read, as a section of their help.
//!
//! Which ones a command reads follows from its options, so that no command has a list of its own.

use bmtrain_core::cpu::{CpuOptions, InstructionSet};
use clap::Command;

/// Columns of a name and the space beside it.
const NAMES: usize = 25;

/// What a command does for which variables matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// It computes on a device.
    Device,
    /// It starts or joins ranks.
    Ranks,
    /// It looks for models by their names.
    Models,
    Any,
}

/// Names and meanings; each is a line of the help.
const VARIABLES: [(Use, &str, &str); 13] = [
    (Use::Device, CpuOptions::VARIABLE, "instruction set of the CPU; by default the fastest that it has"),
    (Use::Device, "BMTRAIN_CACHE", "where compiled kernels are kept; by default ~/.cache/bmtrain"),
    (Use::Device, "BMTRAIN_CUDA_LIB_DIR", "directories in which CUDA's libraries are looked for first"),
    (Use::Device, "BMTRAIN_CUDA_KERNELS", "a directory of kernels that were compiled elsewhere"),
    (Use::Device, "CUDA_VISIBLE_DEVICES", "CUDA devices that this process may use"),
    (Use::Ranks, "RANK, WORLD_SIZE, ...", "what launchers set for each rank: docs/launch.md"),
    (Use::Ranks, "BMTRAIN_JOB", "a name for the job, where the launcher gives none"),
    (Use::Ranks, "BMTRAIN_TOKEN", "a secret that every rank must have"),
    (Use::Ranks, "BMTRAIN_STORE_PORT", "the port at which ranks of several hosts meet"),
    (Use::Ranks, "BMTRAIN_STORE_BIND", "the address at which rank 0 listens for them"),
    (Use::Models, "HF_HOME, HF_HUB_CACHE", "where models are looked for that are named as on the hub"),
    (Use::Any, "NO_COLOR", "no colours on a terminal"),
    (Use::Any, "RUST_LOG", "log messages that are shown, such as info or debug; by default warn"),
];

/// The command and all below it, with the variables that each reads at the end of its long help.
pub fn with_environment(command: Command) -> Command {
    let section = section(|of| reads(&command, of));
    with_section(command, &section)
}

/// A command line of several programs with the variables of all of them.
pub fn with_all(command: Command) -> Command {
    with_section(command, &section(|_| true))
}

fn with_section(command: Command, section: &str) -> Command {
    let below: Vec<String> = command.get_subcommands().map(|part| part.get_name().to_owned()).collect();
    let command = below.into_iter().fold(command, |command, name| command.mut_subcommand(name, with_environment));
    let before = command.get_after_help().map(|text| format!("{text}\n\n")).unwrap_or_default();
    command.after_long_help(format!("{before}{section}"))
}

/// Whether a command uses variables in this way.
fn reads(command: &Command, of: Use) -> bool {
    let has = |option: &str| command.get_arguments().any(|argument| argument.get_id() == option);
    let name = command.get_name();
    match of {
        // The doctor reports all of them.
        _ if name == "doctor" => true,
        Use::Device => has("device") || ["decode-bench", "collectives"].contains(&name),
        // A plan is of any number of ranks, on one.
        Use::Ranks => has("ranks") && name != "plan",
        // `fetch` describes its own beside these.
        Use::Models => (has("model") || has("recipe")) && name != "fetch",
        Use::Any => true,
    }
}

fn section(reads: impl Fn(Use) -> bool) -> String {
    let sets = InstructionSet::ALL.map(InstructionSet::name).join(", ");
    let mut text = "Environment variables:".to_owned();
    for (_, name, meaning) in VARIABLES.iter().filter(|(of, ..)| reads(*of)) {
        text += &format!("\n  {name:<width$}{meaning}", width = NAMES - 2);
        if *name == CpuOptions::VARIABLE {
            text += &format!("\n{:NAMES$}({sets})", "");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;
    use clap::CommandFactory;

    fn help(command: Command) -> String {
        with_environment(command).render_long_help().to_string()
    }

    #[test]
    fn commands_that_compute_name_the_instruction_sets() {
        let sets = "(portable, neon, neon_bf16, avx2, avx512, avx512_bf16, amx)";
        for command in [
            cli::finetune::Options::command(),
            cli::pretrain::Options::command(),
            cli::generate::Options::command(),
            cli::predict::Options::command(),
            cli::forward::Options::command(),
        ] {
            let text = help(command);
            for part in ["BMTRAIN_CPU ", sets, "HF_HUB_CACHE", "RUST_LOG"] {
                assert!(text.contains(part), "no {part} in {text}");
            }
            assert_eq!(text.contains("--ranks"), text.contains("BMTRAIN_STORE_PORT"), "{text}");
        }
    }

    #[test]
    fn others_name_what_they_read_alone_and_subcommands_have_their_own() {
        let text = help(cli::plan::Options::command());
        assert!(
            text.contains("HF_HUB_CACHE") && !text.contains("BMTRAIN_CPU") && !text.contains("WORLD_SIZE"),
            "{text}"
        );
        let mut data = with_environment(cli::data::Options::command());
        let part = data.find_subcommand_mut("preview").unwrap().render_long_help().to_string();
        assert!(part.contains("HF_HUB_CACHE"), "{part}");
        assert!(!data.render_long_help().to_string().contains("HF_HUB_CACHE"));
    }

    #[test]
    fn what_follows_the_options_stays_and_lines_are_short() {
        let command = cli::finetune::Options::command().after_help("Families of models: bert");
        let text = help(command.clone());
        assert!(text.contains("Families of models: bert\n\nEnvironment variables:\n  BMTRAIN_CPU "), "{text}");
        // The short help is as it was.
        let short = with_environment(command).render_help().to_string();
        assert!(short.contains("Families of models: bert") && !short.contains("Environment"), "{short}");
        assert!(section(|_| true).lines().all(|line| line.len() <= 100));
    }
}
