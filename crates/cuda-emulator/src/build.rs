//! Compiles and links the emulated CUDA libraries, once for each set of inputs.

use super::Checker;
use bmtrain_kernels::UNITS;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::{env, fs};

/// Role of a file for a checker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Switches between threads, and must not be watched while it does.
    Emulator,
    Watched,
}

impl Part {
    pub(super) fn of(file: &str) -> Self {
        if ["cuda_emulator.cpp", "fiber.cpp"].contains(&file) { Part::Emulator } else { Part::Watched }
    }
}

/// The directory of the C++ sources.
fn native() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/native"))
}

/// Directory of built libraries: `tmp` in cargo's target directory, beside `debug/deps/TEST_PROGRAM`.
fn target_tmp() -> PathBuf {
    env::current_exe().unwrap().ancestors().nth(3).unwrap().join("tmp")
}

pub(super) fn read(file: &str) -> String {
    fs::read_to_string(native().join(file)).unwrap()
}

/// Compiler options of every file. Nothing is contracted, so that an operation that the sources want rounded by itself
/// is.
const FLAGS: [&str; 13] = [
    "-std=c++17",
    "-O1",
    "-g",
    "-Wall",
    "-Wextra",
    "-Wno-unknown-pragmas",
    "-ffp-contract=off",
    "-fPIC",
    "-pthread",
    "-include",
    "cuda_emulator.h",
    "-include",
    "tensor_core.h",
];

/// All headers: each may be part of any object.
fn read_headers() -> Vec<String> {
    let names = fs::read_dir(native()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut headers: Vec<String> = names.filter(|name| name.ends_with(".h")).collect();
    headers.sort();
    headers.iter().map(|name| read(name)).collect()
}

/// A library or program, and what goes in.
pub(super) struct Target<'a> {
    pub(super) name: &'static str,
    pub(super) files: &'a [(String, String)],
    pub(super) flags: &'static [&'static str],
}

/// Compile and link targets, in a directory named by a hash of all inputs. What exists there already is not built
/// again, neither the whole nor a file that did not change.
pub(super) fn build(targets: &[Target<'_>], checker: Option<Checker>) -> Option<PathBuf> {
    Command::new("g++").arg("--version").output().ok().filter(|output| output.status.success())?;
    // Tests of this process build one after another; other processes write to names of their own.
    static BUILDING: Mutex<()> = Mutex::new(());
    let _building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let headers = read_headers();
    let objects: Vec<_> = targets.iter().map(|target| compile(target.files, &headers, checker)).collect();
    let names: Vec<_> = targets.iter().map(|target| (target.name, target.flags)).collect();
    let place = target_tmp();
    let finished = place.join(format!("emulator-{:016x}", hash(&(&names, &objects, checker))));
    if targets.iter().all(|target| finished.join(target.name).exists()) {
        return Some(finished);
    }
    // Built aside and moved at the end: another process may be building the same.
    let directory = place.join(format!("emulator-building-{}-{:016x}", std::process::id(), hash(&(&names, &objects))));
    fs::create_dir_all(&directory).unwrap();
    for (target, objects) in targets.iter().zip(&objects) {
        let made = directory.join(target.name);
        let mut command = Command::new("g++");
        command.arg("-pthread").args(checker.map_or(&[][..], Checker::link));
        let output = command.args(objects).args(target.flags).arg("-o").arg(&made).output().unwrap();
        assert!(output.status.success(), "g++: {}", String::from_utf8_lossy(&output.stderr));
        if let Some((first_name, _)) = target.name.split_once(".so.") {
            // The first name under which the bindings look: a real library elsewhere must not be found before this one.
            fs::copy(&made, directory.join(format!("{first_name}.so"))).unwrap();
        }
    }
    // In place of compiled kernels: the emulated driver has its own and does not look at these.
    for unit in UNITS {
        fs::write(directory.join(format!("{}.cubin", unit.name)), "emulated").unwrap();
    }
    if fs::rename(&directory, &finished).is_err() {
        assert!(finished.join(targets[0].name).exists(), "{} could not be moved into place", directory.display());
        fs::remove_dir_all(&directory).unwrap();
    }
    Some(finished)
}

fn hash(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// An object for each file, two at a time: the test machines have two cores.
fn compile(files: &[(String, String)], headers: &[String], checker: Option<Checker>) -> Vec<PathBuf> {
    let place = target_tmp().join("emulator-objects");
    fs::create_dir_all(&place).unwrap();
    let flags = |name: &str| checker.map_or(&[][..], |checker| checker.flags(Part::of(name)));
    let object = |(name, text): &(String, String)| {
        place.join(format!("{name}-{:016x}.o", hash(&(text, headers, FLAGS, flags(name)))))
    };
    let missing: Vec<_> = files.iter().filter(|file| !object(file).exists()).collect();
    for pair in missing.chunks(2) {
        let started: Vec<_> = pair
            .iter()
            .map(|file| {
                let object = object(file);
                let aside = object.with_extension(format!("{}.part", std::process::id()));
                let source = object.with_extension(format!("{}.cpp", std::process::id()));
                fs::write(&source, &file.1).unwrap();
                let mut command = Command::new("g++");
                command
                    .args(FLAGS)
                    .args(flags(&file.0))
                    .arg("-I")
                    .arg(native())
                    .arg("-c")
                    .arg(&source)
                    .arg("-o")
                    .arg(&aside);
                let child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
                (child, object, aside, source)
            })
            .collect();
        for (child, object, aside, source) in started {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "g++: {}", String::from_utf8_lossy(&output.stderr));
            fs::rename(aside, object).unwrap();
            fs::remove_file(source).unwrap();
        }
    }
    files.iter().map(object).collect()
}
