//! Writes the text of every unit, as compilers get it, to `UNIT.cu` in a directory:
//! `cargo run -p bmtrain-kernels --example texts DIRECTORY`.

use bmtrain_kernels::UNITS;
use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, fs};

fn main() -> ExitCode {
    let Some(directory) = env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("error: no directory\n  reason: the texts have to go somewhere\n  fix: name one: texts DIRECTORY");
        return ExitCode::FAILURE;
    };
    let written = fs::create_dir_all(&directory).and_then(|()| {
        UNITS.iter().try_for_each(|unit| fs::write(directory.join(format!("{}.cu", unit.name)), unit.text()))
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}\n  reason: {error}\n  fix: name a directory that can be written", directory.display());
            ExitCode::FAILURE
        }
    }
}
