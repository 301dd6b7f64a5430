//! Builds the emulated driver with g++ and runs a test in a child process that finds it in place of the real one.
//!
//! The driver is opened once for the life of a process, from where the loader looks at start-up. So a test that needs one
//! starts this very test program again, with the loader's path set and the test's own name as filter, and there runs its body.

use bmtrain_kernels::SOURCES;
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
const DRIVER: [&str; 4] = ["fake_driver.cpp", "fake_device.cpp", "cuda_emulator.cpp", "fiber.cpp"];

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
    let files = [source, "cuda_emulator.cpp", "fiber.cpp"].map(|file| (file, read(file)));
    let program = build("program", &files, &[])?.join("program");
    let output = Command::new(program).output().unwrap();
    Some((String::from_utf8_lossy(&output.stdout).into_owned(), output.status.success()))
}

fn folder_of(driver: Driver) -> Option<&'static PathBuf> {
    static EMULATED: OnceLock<Option<PathBuf>> = OnceLock::new();
    static WITHOUT_FUNCTIONS: OnceLock<Option<PathBuf>> = OnceLock::new();
    let folder = match driver {
        Driver::Emulated => EMULATED.get_or_init(|| {
            let kernels = SOURCES.iter().map(|source| (source.file, source.text()));
            let files: Vec<_> = kernels.chain(DRIVER.map(|file| (file, read(file)))).collect();
            build("libcuda.so.1", &files, &["-shared", "-fPIC"])
        }),
        Driver::Incomplete => WITHOUT_FUNCTIONS
            .get_or_init(|| build("libcuda.so.1", &[("incomplete.cpp", INCOMPLETE.into())], &["-shared", "-fPIC"])),
    };
    folder.as_ref()
}

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join("emulator")
}

fn read(file: &str) -> String {
    fs::read_to_string(here().join(file)).unwrap()
}

/// Compile `files` into `target`, in a folder named after everything that goes in, unless it lies there already.
fn build(target: &str, files: &[(&str, String)], flags: &[&str]) -> Option<PathBuf> {
    Command::new("g++").arg("--version").output().ok().filter(|output| output.status.success())?;
    let headers = ["cuda_emulator.h", "fake_device.h", "fiber.h"].map(read);
    let mut hasher = DefaultHasher::new();
    (target, files, flags, &headers).hash(&mut hasher);
    let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let finished = place.join(format!("emulator-{:016x}", hasher.finish()));
    if finished.join(target).exists() {
        return Some(finished);
    }
    // Built aside and moved at the end: another process may be building the same.
    let folder = place.join(format!("emulator-building-{}-{:016x}", std::process::id(), hasher.finish()));
    fs::create_dir_all(&folder).unwrap();
    for (file, text) in files {
        fs::write(folder.join(file), text).unwrap();
    }
    let output = Command::new("g++")
        .args(["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-pthread", "-include", "cuda_emulator.h", "-I"])
        .arg(here())
        .args(flags)
        .args(["-x", "c++"])
        .args(files.iter().map(|(file, _)| folder.join(file)))
        .arg("-o")
        .arg(folder.join(target))
        .output()
        .unwrap();
    assert!(output.status.success(), "g++: {}", String::from_utf8_lossy(&output.stderr));
    if target == "libcuda.so.1" {
        // The first name under which the bindings look: a real driver elsewhere must not be found before this one.
        fs::copy(folder.join(target), folder.join("libcuda.so")).unwrap();
    }
    if fs::rename(&folder, &finished).is_err() {
        assert!(finished.join(target).exists(), "{} could not be moved into place", folder.display());
        fs::remove_dir_all(&folder).unwrap();
    }
    Some(finished)
}
