//! Writes the text of every unit, as compilers get it, to `UNIT.cu` in a folder: `cargo run -p bmtrain-kernels --example texts
//! FOLDER`.

use bmtrain_kernels::UNITS;
use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, fs};

fn main() -> ExitCode {
    let Some(folder) = env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("error: no folder\n  reason: the texts have to go somewhere\n  fix: name one: texts FOLDER");
        return ExitCode::FAILURE;
    };
    let written = fs::create_dir_all(&folder).and_then(|()| {
        UNITS.iter().try_for_each(|unit| fs::write(folder.join(format!("{}.cu", unit.name)), unit.text()))
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}\n  reason: {error}\n  fix: name a folder that can be written", folder.display());
            ExitCode::FAILURE
        }
    }
}
