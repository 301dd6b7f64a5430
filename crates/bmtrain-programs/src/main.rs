//! `bmtrain SUBCOMMAND`: every program of BMTrain in one binary. A link to it that has the name of a subcommand runs
//! that one.

mod subcommands;

use bmtrain_core::heap::EndingHeap;
use bmtrain_programs::cli::{self, program};
use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;
use subcommands::Subcommand;

#[global_allocator]
static HEAP: EndingHeap = cli::HEAP;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let own_name = arguments.next().unwrap_or_default();
    let linked = Path::new(&own_name).file_name().and_then(OsStr::to_str).and_then(subcommands::find);
    if let Some(linked) = linked {
        return linked.enter(None, &[]);
    }
    let first = arguments.next();
    let rest: Vec<_> = arguments.map(|argument| argument.to_string_lossy().into_owned()).collect();
    match first.as_ref().and_then(|name| name.to_str()) {
        None if first.is_none() => subcommands::misused(&subcommands::help()),
        Some("help") if !rest.is_empty() => match subcommands::find(&rest[0]) {
            Some(subcommand) => subcommand.enter(Some(&rest[0]), &["--help"]),
            None => subcommands::unknown(&rest[0]),
        },
        Some("help" | "--help" | "-h") => subcommands::printed(&subcommands::help()),
        Some("--version" | "-V") => subcommands::printed(concat!("bmtrain ", env!("CARGO_PKG_VERSION"), "\n")),
        Some("--completions" | "--man") => program::described(&subcommands::command()),
        name => {
            let name = name.unwrap_or_default();
            match subcommands::find(name) {
                Some(subcommand) => subcommand.enter(Some(name), &[]),
                None => subcommands::unknown(name),
            }
        }
    }
}

impl Subcommand {
    /// Runs the program on the arguments of this process, without the name that chose it, or on these.
    fn enter(&self, name: Option<&str>, instead: &[&str]) -> ExitCode {
        program::enter(name, self.before, instead);
        (self.run)()
    }
}
