//! Builds the emulated driver with g++ and runs a test in a child process that finds it in place of the real one.
//!
//! The driver is opened once for the life of a process, from where the loader looks at start-up. So a test that needs one
//! starts this very test program again, with the loader's path set and the test's own name as filter, and there runs its body.

#![allow(dead_code)]

use bmtrain_kernels::{Header, UNITS};
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

/// The C++ files of the emulated driver, besides the kernels.
const DRIVER: [&str; 6] =
    ["fake_driver.cpp", "fake_device.cpp", "cuda_emulator.cpp", "tensor_core.cpp", "fiber.cpp", "numbers.cpp"];

/// Those of the emulated library of matrix products. It has number conversions of its own.
const BLAS: [&str; 4] = ["fake_blas.cpp", "fake_blas_checks.cpp", "fake_blas_product.cpp", "numbers.cpp"];

/// A driver library of today has more than this one.
const INCOMPLETE: &str = "extern \"C\" int cuInit(unsigned) { return 0; }\n";

/// Which library a child finds as its driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Driver {
    /// The emulated one, beside an emulated library of matrix products.
    Emulated,
    /// The same, and what its kernels do is watched.
    Checked(Checker),
    /// The same with a kernel in it that makes mistakes; see planted.cu.
    Planted(Checker),
    /// One that lacks nearly every function.
    Incomplete,
}

/// A sanitizer of g++ that emulated libraries are built with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Checker {
    /// Accesses of CUDA threads that nothing orders.
    Races,
    /// Accesses outside of what a thread may touch, or not aligned.
    Addresses,
}

impl Checker {
    /// What the checked files are compiled with; the emulator itself only learns of it.
    fn flags(self, of: Part) -> &'static [&'static str] {
        match (self, of) {
            (Checker::Races, Part::Emulator) => &["-DEMULATOR_THREADS_CHECKED", "-O2"],
            (Checker::Races, Part::Watched) => &["-DEMULATOR_THREADS_CHECKED", "-fsanitize=thread"],
            (Checker::Addresses, Part::Emulator) => &["-DEMULATOR_ADDRESSES_CHECKED", "-O2"],
            (Checker::Addresses, Part::Watched) => &[
                "-DEMULATOR_ADDRESSES_CHECKED",
                "-fsanitize=address,alignment,bounds",
                "-fno-sanitize-recover=all",
                "-fno-omit-frame-pointer",
            ],
        }
    }

    fn link(self) -> &'static [&'static str] {
        match self {
            Checker::Races => &["-fsanitize=thread"],
            Checker::Addresses => &["-fsanitize=address,alignment,bounds"],
        }
    }

    /// The library that has to be in a process before anything else, because the program itself is not instrumented.
    pub fn library(self) -> Option<PathBuf> {
        let name = match self {
            Checker::Races => "libtsan.so",
            Checker::Addresses => "libasan.so",
        };
        let found = Command::new("g++").arg(format!("-print-file-name={name}")).output().ok()?;
        let path = PathBuf::from(String::from_utf8(found.stdout).ok()?.trim());
        // What it does not find it prints as it was asked for.
        (path.is_absolute() && path.exists()).then_some(path)
    }

    /// How the library is told what matters here: the first report ends the process.
    fn options(self) -> (&'static str, &'static str) {
        match self {
            Checker::Races => {
                ("TSAN_OPTIONS", "halt_on_error=1 exitcode=66 ignore_noninstrumented_modules=1 report_signal_unsafe=0")
            }
            Checker::Addresses => ("ASAN_OPTIONS", "detect_leaks=0 detect_stack_use_after_return=0 exitcode=67"),
        }
    }
}

/// What a file is to a checker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Switches between threads, and must not be watched while it does.
    Emulator,
    Watched,
}

impl Part {
    fn of(file: &str) -> Self {
        if ["cuda_emulator.cpp", "fiber.cpp"].contains(&file) { Part::Emulator } else { Part::Watched }
    }
}

/// Run `body` in a process of its own that finds `driver`. `test` is the calling test's name.
///
/// Without g++, or without what it needs for a checker, it says that the test was skipped.
pub fn with_driver(test: &str, driver: Driver, settings: &[(&str, &str)], body: impl FnOnce()) {
    if let Some(child) = in_child(test, driver, settings, body) {
        assert!(child.passed, "in the child process:\n{}", child.said);
    }
}

/// How a child ended.
pub struct Child {
    /// It got through its body.
    pub passed: bool,
    /// What it printed, indented so that its own summary is not taken for one of this program.
    pub said: String,
}

/// As [`with_driver`], for a test to judge how the child ended. None in the child itself, and where the test is skipped.
pub fn in_child(test: &str, driver: Driver, settings: &[(&str, &str)], body: impl FnOnce()) -> Option<Child> {
    if env::var_os(MARKER).is_some_and(|name| name == test) {
        body();
        println!("{DONE}");
        return None;
    }
    let Some(folder) = folder_of(driver) else {
        skipped(test, "there is no g++ to build the CUDA emulator with");
        return None;
    };
    let mut path = folder.clone().into_os_string();
    if let Some(present) = env::var_os("LD_LIBRARY_PATH") {
        path.push(":");
        path.push(present);
    }
    let mut command = match driver {
        Driver::Checked(checker) | Driver::Planted(checker) => {
            let Some(mut command) = checked_command(checker) else {
                skipped(test, "g++ has no library of the sanitizer (Debian: libtsan2, libasan8)");
                return None;
            };
            command.arg(env::current_exe().unwrap());
            command
        }
        Driver::Emulated | Driver::Incomplete => Command::new(env::current_exe().unwrap()),
    };
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(MARKER, test).env("LD_LIBRARY_PATH", path).envs(settings.iter().copied());
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let said = out
        .lines()
        .chain(err.lines())
        .chain([output.status.to_string().as_str()])
        .fold(String::new(), |said, line| said + "    " + line + "\n");
    Some(Child { passed: output.status.success() && out.contains(DONE), said })
}

/// The start of a command line for a program that is not instrumented and opens libraries that are.
fn checked_command(checker: Checker) -> Option<Command> {
    let library = checker.library()?;
    // The race checker wants memory in certain places, which a kernel that scatters it widely does not keep to.
    let fixed = ["setarch", "-R"];
    let can_fix = Command::new(fixed[0]).args([fixed[1], "true"]).output().is_ok_and(|output| output.status.success());
    let mut command = Command::new(if can_fix { fixed[0] } else { "env" });
    if can_fix {
        command.args([fixed[1], "env"]);
    }
    let (name, options) = checker.options();
    command.arg(format!("LD_PRELOAD={}", library.display())).arg(format!("{name}={options}"));
    Some(command)
}

/// Say that a test was skipped and why, past the test harness, which hides what passing tests print.
pub fn skipped(test: &str, why: &str) {
    let line = format!("\nSKIPPED {test}: {why}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Build and run a C++ program from these files, the first of which finds the words of `headers` in front; what it printed, and
/// whether it reported success. None without g++.
pub fn run_program(files: &[&str], headers: &[Header]) -> Option<(String, bool)> {
    let words: String =
        headers.iter().map(|header| format!("#line 1 \"{}\"\n{}\n#line 1\n", header.file, header.code)).collect();
    let mut files: Vec<_> = files.iter().map(|file| ((*file).to_owned(), read(file))).collect();
    files[0].1.insert_str(0, &words);
    let program =
        build(&[Target { name: "program", files: &files, flags: &["-rdynamic", "-ldl"] }], None)?.join("program");
    let output = Command::new(program).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    Some((said.into_owned(), output.status.success()))
}

fn folder_of(driver: Driver) -> Option<&'static PathBuf> {
    static FOLDERS: [OnceLock<Option<PathBuf>>; 6] = [const { OnceLock::new() }; 6];
    let place = match driver {
        Driver::Emulated => 0,
        Driver::Incomplete => 1,
        Driver::Checked(checker) => 2 + checker as usize,
        Driver::Planted(checker) => 4 + checker as usize,
    };
    FOLDERS[place].get_or_init(|| build_driver(driver)).as_ref()
}

fn build_driver(driver: Driver) -> Option<PathBuf> {
    const LIBRARY: &[&str] = &["-shared", "-fPIC"];
    if driver == Driver::Incomplete {
        let files = [("incomplete.cpp".into(), INCOMPLETE.into())];
        return build(&[Target { name: "libcuda.so.1", files: &files, flags: LIBRARY }], None);
    }
    let checker = match driver {
        Driver::Checked(checker) | Driver::Planted(checker) => Some(checker),
        Driver::Emulated | Driver::Incomplete => None,
    };
    let text = |unit: &bmtrain_kernels::Unit| {
        let planted = matches!(driver, Driver::Planted(_)) && unit.name == "norm";
        unit.text() + &if planted { format!("\n#line 1 \"planted.cu\"\n{}", read("planted.cu")) } else { String::new() }
    };
    let kernels = UNITS.iter().map(|unit| (format!("{}.cu", unit.name), text(unit)));
    let driver: Vec<_> = kernels.chain(DRIVER.map(|file| (file.to_owned(), read(file)))).collect();
    let blas = BLAS.map(|file| (file.to_owned(), read(file)));
    let driver = Target { name: "libcuda.so.1", files: &driver, flags: LIBRARY };
    let blas = Target { name: "libcublasLt.so.13", files: &blas, flags: &["-shared", "-fPIC", "-ldl"] };
    build(&[driver, blas], checker)
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

/// A library or program, and what goes in.
struct Target<'a> {
    name: &'static str,
    files: &'a [(String, String)],
    flags: &'static [&'static str],
}

/// Compile and link targets, in a folder named after everything that goes in. What lies there already is not made again,
/// neither the whole nor a file that did not change.
fn build(targets: &[Target<'_>], checker: Option<Checker>) -> Option<PathBuf> {
    Command::new("g++").arg("--version").output().ok().filter(|output| output.status.success())?;
    let headers =
        ["cuda_emulator.h", "fake_blas.h", "fake_device.h", "fiber.h", "sanitizer.h", "tensor_core.h"].map(read);
    let objects: Vec<_> = targets.iter().map(|target| compile(target.files, &headers, checker)).collect();
    let names: Vec<_> = targets.iter().map(|target| (target.name, target.flags)).collect();
    let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let finished = place.join(format!("emulator-{:016x}", hash(&(&names, &objects, checker))));
    if targets.iter().all(|target| finished.join(target.name).exists()) {
        return Some(finished);
    }
    // Built aside and moved at the end: another process may be building the same.
    let folder = place.join(format!("emulator-building-{}-{:016x}", std::process::id(), hash(&(&names, &objects))));
    fs::create_dir_all(&folder).unwrap();
    for (target, objects) in targets.iter().zip(&objects) {
        let made = folder.join(target.name);
        let mut command = Command::new("g++");
        command.arg("-pthread").args(checker.map_or(&[][..], Checker::link));
        let output = command.args(objects).args(target.flags).arg("-o").arg(&made).output().unwrap();
        assert!(output.status.success(), "g++: {}", String::from_utf8_lossy(&output.stderr));
        if let Some((first_name, _)) = target.name.split_once(".so.") {
            // The first name under which the bindings look: a real library elsewhere must not be found before this one.
            fs::copy(&made, folder.join(format!("{first_name}.so"))).unwrap();
        }
    }
    // What stands in for compiled kernels: the emulated driver has its own and does not look at these.
    for unit in UNITS {
        fs::write(folder.join(format!("{}.cubin", unit.name)), "emulated").unwrap();
    }
    if fs::rename(&folder, &finished).is_err() {
        assert!(finished.join(targets[0].name).exists(), "{} could not be moved into place", folder.display());
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
fn compile(files: &[(String, String)], headers: &[String], checker: Option<Checker>) -> Vec<PathBuf> {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulator-objects");
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
                    .arg(here())
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

/// The folder of the emulated driver, in a child that runs on it: that of the loader's path which holds it.
pub fn compiled_kernels() -> PathBuf {
    let path = env::var_os("LD_LIBRARY_PATH").unwrap();
    env::split_paths(&path).next().unwrap()
}
