//! Builds the emulated driver with g++ and runs a test in a child process that finds it in place of the real one.
//!
//! The driver is opened once for the life of a process, from where the loader looks at start-up. So a test that needs one
//! starts this very test program again, with the loader's path set and the test's own name as filter, and there runs its body.

#![allow(dead_code)]

use bmtrain_kernels::UNITS;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::{env, fs};

/// Names, in a child, the test it was started for.
const MARKER: &str = "BMTRAIN_EMULATED_TEST";

/// What a child prints when it got through its body, so that a filter that matched nothing is not a success.
const DONE: &str = "the body has run";

/// The C++ files of the emulated driver.
const DRIVER: [&str; 5] = ["fake_driver.cpp", "fake_device.cpp", "cuda_emulator.cpp", "tensor_core.cpp", "fiber.cpp"];

/// A driver library of today has more than this one.
const INCOMPLETE: &str = "extern \"C\" int cuInit(unsigned) { return 0; }\n";

/// Which library a child finds as its driver.
#[derive(Debug, Clone, Copy)]
pub enum Driver {
    /// The emulated one.
    Emulated,
    /// One that lacks nearly every function.
    Incomplete,
}

/// Run `body` in a process of its own that finds `driver`. `test` is the calling test's name.
///
/// Without g++ it says that the test was skipped.
pub fn with_driver(test: &str, driver: Driver, settings: &[(&str, &str)], body: impl FnOnce()) {
    if env::var_os(MARKER).is_some_and(|name| name == test) {
        body();
        println!("{DONE}");
        return;
    }
    let Some(folder) = folder_of(driver) else {
        skipped(test);
        return;
    };
    let mut path = folder.clone().into_os_string();
    if let Some(present) = env::var_os("LD_LIBRARY_PATH") {
        path.push(":");
        path.push(present);
    }
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(MARKER, test)
        .env("LD_LIBRARY_PATH", path)
        .envs(settings.iter().copied())
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let passed = output.status.success() && out.contains(DONE);
    // Indented, so that the child's own summary is not taken for one of this program.
    let said: String = out.lines().chain(err.lines()).map(|line| format!("    {line}\n")).collect();
    assert!(passed, "in the child process ({}):\n{said}", output.status);
}

/// Say that a test was skipped, past the test harness, which hides what passing tests print.
pub fn skipped(test: &str) {
    let line = format!("\nSKIPPED {test}: there is no g++ to build the CUDA emulator with\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Build and run a C++ program against the emulator; what it printed, and whether it reported success. None without g++.
pub fn run_program(source: &str) -> Option<(String, bool)> {
    let files = [source, "cuda_emulator.cpp", "fiber.cpp"].map(|file| (file.to_owned(), read(file)));
    let program = build("program", &files, &[])?.join("program");
    let output = Command::new(program).output().unwrap();
    Some((String::from_utf8_lossy(&output.stdout).into_owned(), output.status.success()))
}

fn folder_of(driver: Driver) -> Option<&'static PathBuf> {
    static EMULATED: OnceLock<Option<PathBuf>> = OnceLock::new();
    static WITHOUT_FUNCTIONS: OnceLock<Option<PathBuf>> = OnceLock::new();
    let folder = match driver {
        Driver::Emulated => EMULATED.get_or_init(|| {
            let kernels = UNITS.iter().map(|unit| (format!("{}.cu", unit.name), unit.text()));
            let files: Vec<_> = kernels.chain(DRIVER.map(|file| (file.to_owned(), read(file)))).collect();
            build("libcuda.so.1", &files, &["-shared", "-fPIC"])
        }),
        Driver::Incomplete => WITHOUT_FUNCTIONS.get_or_init(|| {
            build("libcuda.so.1", &[("incomplete.cpp".into(), INCOMPLETE.into())], &["-shared", "-fPIC"])
        }),
    };
    folder.as_ref()
}

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join("emulator")
}

fn read(file: &str) -> String {
    fs::read_to_string(here().join(file)).unwrap()
}

/// What every file is compiled with. Nothing is contracted, so that an operation that the sources want rounded by itself is.
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

/// Compile `files` and link them into `target`, in a folder named after everything that goes in. What lies there already is not
/// made again, neither the whole nor a file that did not change.
fn build(target: &str, files: &[(String, String)], flags: &[&str]) -> Option<PathBuf> {
    Command::new("g++").arg("--version").output().ok().filter(|output| output.status.success())?;
    let headers = ["cuda_emulator.h", "fake_device.h", "fiber.h", "tensor_core.h"].map(read);
    let objects = compile(files, &headers);
    let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let finished = place.join(format!("emulator-{:016x}", hash(&(target, &objects, flags))));
    if finished.join(target).exists() {
        return Some(finished);
    }
    // Built aside and moved at the end: another process may be building the same.
    let folder = place.join(format!("emulator-building-{}-{:016x}", std::process::id(), hash(&(target, &objects))));
    fs::create_dir_all(&folder).unwrap();
    let output =
        Command::new("g++").args(flags).arg("-pthread").args(&objects).arg("-o").arg(folder.join(target)).output();
    let output = output.unwrap();
    assert!(output.status.success(), "g++: {}", String::from_utf8_lossy(&output.stderr));
    if target == "libcuda.so.1" {
        // The first name under which the bindings look: a real driver elsewhere must not be found before this one.
        fs::copy(folder.join(target), folder.join("libcuda.so")).unwrap();
        // What stands in for compiled kernels: the emulated driver has its own and does not look at these.
        for unit in UNITS {
            fs::write(folder.join(format!("{}.cubin", unit.name)), "emulated").unwrap();
        }
    }
    if fs::rename(&folder, &finished).is_err() {
        assert!(finished.join(target).exists(), "{} could not be moved into place", folder.display());
        fs::remove_dir_all(&folder).unwrap();
    }
    Some(finished)
}

fn hash(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// An object for each file, two at a time: the test machines have two cores.
fn compile(files: &[(String, String)], headers: &[String]) -> Vec<PathBuf> {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulator-objects");
    fs::create_dir_all(&place).unwrap();
    let object =
        |(name, text): &(String, String)| place.join(format!("{name}-{:016x}.o", hash(&(text, headers, FLAGS))));
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
                command.args(FLAGS).arg("-I").arg(here()).arg("-c").arg(&source).arg("-o").arg(&aside);
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

/// The folder of the emulated driver, in a child that runs on it: that of the loader's path which holds it.
pub fn compiled_kernels() -> PathBuf {
    let path = env::var_os("LD_LIBRARY_PATH").unwrap();
    env::split_paths(&path).next().unwrap()
}
