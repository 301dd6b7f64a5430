//! `bmtrain SUBCOMMAND`: every program of BMTrain in one binary. A link to it that has the name of a subcommand runs
//! that one.

mod subcommands;

use bmtrain_core::heap::EndingHeap;
use bmtrain_programs::cli::{self, program};
use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;
use subcommands::{find, help, printed, unknown};

#[global_allocator]
static HEAP: EndingHeap = cli::HEAP;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let own_name = arguments.next().unwrap_or_default();
    if let Some(linked) = Path::new(&own_name).file_name().and_then(OsStr::to_str).and_then(find) {
        return linked.run(None, arguments.collect());
    }
    let Some(first) = arguments.next() else { return subcommands::misused(&help()) };
    let first = first.to_string_lossy();
    match &*first {
        "help" | "--help" | "-h" => match arguments.next() {
            None => printed(&help()),
            Some(name) => {
                let name = name.to_string_lossy();
                find(&name).map_or_else(|| unknown(&name), |found| found.run(Some(&name), vec!["--help".into()]))
            }
        },
        "--version" | "-V" => printed(concat!("bmtrain ", env!("CARGO_PKG_VERSION"), "\n")),
        "--completions" | "--man" => program::described(&subcommands::command()),
        name => find(name).map_or_else(|| unknown(name), |found| found.run(Some(name), arguments.collect())),
    }
}
