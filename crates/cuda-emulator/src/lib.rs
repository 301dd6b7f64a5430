//! A CUDA driver, cuBLASLt and NCCL emulated on the CPU, for the tests of this workspace: see docs/emulator.md.
//!
//! The libraries are built with g++ from `native/`. A process opens its driver once, from where the loader looks at
//! start-up, so [`with_driver`] starts the test program again with the loader's path set and the test's own name as
//! filter, and runs the test's body there.
#![allow(clippy::unwrap_used)]

mod build;
pub mod declared;
pub mod launches;
pub mod stems;

use bmtrain_kernels::UNITS;
use build::{Part, Target, build, read};
use std::env;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// Names, in a child, the test it was started for.
const MARKER: &str = "BMTRAIN_EMULATED_TEST";

/// Set by scripts/test.sh where kernels, launch code and emulator are as when all tests of the [`LEDGER`] passed.
const UNCHANGED: &str = "BMTRAIN_EMULATED_KERNELS_UNCHANGED";

/// The test modules whose outcome depends on nothing else; see scripts/emulated_hash.sh.
const LEDGER: [&str; 9] = [
    "cuda_conformance",
    "cuda_edges",
    "cuda_bits",
    "cuda_vocabulary",
    "cuda_large",
    "cuda_probe",
    "cuda_emulated",
    "cuda_sanitized",
    "cuda_warpgroups",
];

/// Whether the running test is left out because nothing that its module tests has changed; prints a line if so.
///
/// The test harness names each test's thread after the test, `cuda_edges::some_test`.
fn is_unchanged() -> bool {
    let thread = std::thread::current();
    let module = thread.name().and_then(|name| name.split("::").next()).unwrap_or_default();
    let unchanged = env::var_os(UNCHANGED).is_some() && LEDGER.contains(&module);
    if unchanged {
        // The same line for all tests, which scripts/test.sh shows once.
        skipped(
            "emulated kernels",
            "unchanged since kernels/emulated.txt was written; scripts/test.sh --all runs them",
        );
    }
    unchanged
}

/// Line that a child prints when it got through its body, so that a filter that matched nothing is not a success.
const DONE: &str = "the body has run";

/// The C++ files of the emulated driver, besides the kernels.
pub const DRIVER: [&str; 12] = [
    "fake_declared.cpp",
    "fake_driver.cpp",
    "fake_device.cpp",
    "fake_memory.cpp",
    "fake_hooks.cpp",
    "fake_graph.cpp",
    "fake_tensor_map.cpp",
    "cuda_emulator.cpp",
    "tensor_core.cpp",
    "warpgroup.cpp",
    "fiber.cpp",
    "numbers.cpp",
];

/// Sources of the emulated cuBLASLt. It has number conversions of its own.
const BLAS: [&str; 4] = ["fake_blas.cpp", "fake_blas_checks.cpp", "fake_blas_product.cpp", "numbers.cpp"];

/// Sources of the emulated NCCL.
const NCCL: [&str; 3] = ["fake_nccl.cpp", "fake_nccl_steps.cpp", "numbers.cpp"];

/// A driver library of today has more than this one.
const INCOMPLETE: &str = "extern \"C\" int cuInit(unsigned) { return 0; }\n";

/// Library that a child finds as its driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Driver {
    /// The emulated driver, beside emulated cuBLASLt and NCCL.
    Emulated,
    /// The same, and what its kernels do is watched.
    Checked(Checker),
    /// The emulated driver with a kernel in it that makes mistakes; see planted.cu.
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
    /// Compiler options of the checked files; the emulator itself only learns of it.
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

    /// Options of the checker's library: the first report ends the process.
    fn options(self) -> (&'static str, &'static str) {
        match self {
            Checker::Races => {
                ("TSAN_OPTIONS", "halt_on_error=1 exitcode=66 ignore_noninstrumented_modules=1 report_signal_unsafe=0")
            }
            Checker::Addresses => ("ASAN_OPTIONS", "detect_leaks=0 detect_stack_use_after_return=0 exitcode=67"),
        }
    }
}

/// Run `body` in a process of its own that finds `driver`. `test` is the calling test's name.
///
/// Without g++, or without what it needs for a checker, it reports that the test was skipped.
pub fn with_driver(test: &str, driver: Driver, settings: &[(&str, &str)], body: impl FnOnce()) {
    if let Some(child) = in_child(test, driver, settings, body) {
        assert!(child.passed, "in the child process:\n{}", child.text);
        child.text.lines().map(str::trim).filter(|line| line.starts_with(TOLD)).for_each(|line| println!("{line}"));
    }
}

/// Beginning of a child's lines that are shown when it passes.
pub const TOLD: &str = "emulated: ";

/// Result of a child.
pub struct Child {
    /// It got through its body.
    pub passed: bool,
    /// Its output, indented so that its own summary is not taken for one of this program.
    pub text: String,
}

/// As [`with_driver`], for a test to judge how the child ended. None in the child itself, and where the test is
/// skipped.
pub fn in_child(test: &str, driver: Driver, settings: &[(&str, &str)], body: impl FnOnce()) -> Option<Child> {
    if env::var_os(MARKER).is_some_and(|name| name == test) {
        body();
        println!("{DONE}");
        return None;
    }
    if is_unchanged() {
        return None;
    }
    let Some(directory) = directory_of(driver) else {
        skipped(test, "there is no g++ to build the CUDA emulator with");
        return None;
    };
    let mut path = directory.clone().into_os_string();
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
    command.args(["--exact", &full_name(test), "--nocapture", "--test-threads=1"]);
    command.env(MARKER, test).env("LD_LIBRARY_PATH", path).envs(settings.iter().copied());
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let text = out
        .lines()
        .chain(err.lines())
        .chain([output.status.to_string().as_str()])
        .fold(String::new(), |text, line| text + "    " + line + "\n");
    Some(Child { passed: output.status.success() && out.contains(DONE), text })
}

/// The name of a test with its modules, as `--exact` takes it.
pub fn full_name(test: &str) -> String {
    static NAMES: OnceLock<String> = OnceLock::new();
    let names = NAMES.get_or_init(|| {
        let listed = Command::new(std::env::current_exe().unwrap()).arg("--list").output().unwrap();
        String::from_utf8(listed.stdout).unwrap()
    });
    let mut names = names.lines().filter_map(|line| line.strip_suffix(": test"));
    let found = names.find(|name| name.strip_suffix(test).is_some_and(|rest| rest.is_empty() || rest.ends_with("::")));
    found.unwrap_or_else(|| panic!("there is no test {test}")).to_owned()
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

/// Report that a test was skipped and why, past the test harness, which hides what passing tests print.
pub fn skipped(test: &str, why: &str) {
    let line = format!("\nSKIPPED {test}: {why}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Build and run a C++ program from these files; what it printed, and whether it reported success. None without g++,
/// and success for what is left out because nothing has changed.
pub fn run_program(files: &[&str]) -> Option<(String, bool)> {
    run_texts(files.iter().map(|file| ((*file).to_owned(), read(file))).collect())
}

/// Runs a program that is appended to the source of a unit, whose structures and kernels it uses.
pub fn run_program_with(unit: &str, source: &str) -> Option<(String, bool)> {
    run_program_changed(unit, ("", ""), source)
}

/// Runs a program with a mistake in the unit: the first `change.0` of its text is `change.1`.
pub fn run_program_changed(unit: &str, change: (&str, &str), source: &str) -> Option<(String, bool)> {
    let unit = bmtrain_kernels::Unit::named(unit).unwrap().text();
    assert!(unit.contains(change.0), "the unit has no {:?}", change.0);
    let unit = unit.replacen(change.0, change.1, 1);
    let text = format!("{unit}\n#line 1 \"{source}\"\n{}", read(source));
    let emulator = ["cuda_emulator.cpp", "tensor_core.cpp", "warpgroup.cpp", "fiber.cpp", "numbers.cpp"]
        .map(|file| (file.to_owned(), read(file)));
    run_texts([(source.to_owned(), text)].into_iter().chain(emulator).collect())
}

fn run_texts(files: Vec<(String, String)>) -> Option<(String, bool)> {
    if is_unchanged() {
        return Some((String::new(), true));
    }
    let program =
        build(&[Target { name: "program", files: &files, flags: &["-rdynamic", "-ldl"] }], None)?.join("program");
    let output = Command::new(program).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    Some((text.into_owned(), output.status.success()))
}

/// Build a driver, if it is not there: for a test that tells how long the rest takes.
pub fn prepare(driver: Driver) {
    directory_of(driver);
}

/// The directory of the libraries that a child finds; none without g++.
pub fn directory_of(driver: Driver) -> Option<&'static PathBuf> {
    static DIRECTORIES: [OnceLock<Option<PathBuf>>; 6] = [const { OnceLock::new() }; 6];
    let place = match driver {
        Driver::Emulated => 0,
        Driver::Incomplete => 1,
        Driver::Checked(checker) => 2 + checker as usize,
        Driver::Planted(checker) => 4 + checker as usize,
    };
    DIRECTORIES[place].get_or_init(|| build_driver(driver)).as_ref()
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
    let nccl = NCCL.map(|file| (file.to_owned(), read(file)));
    let nccl = Target { name: "libnccl.so.2", files: &nccl, flags: &["-shared", "-fPIC", "-ldl", "-lrt"] };
    let driver = Target { name: "libcuda.so.1", files: &driver, flags: LIBRARY };
    let blas = Target { name: "libcublasLt.so.13", files: &blas, flags: &["-shared", "-fPIC", "-ldl"] };
    build(&[driver, blas, nccl], checker)
}

/// The directory of the emulated driver, in a child that runs on it: the one in the loader's path that holds it.
pub fn compiled_kernels() -> PathBuf {
    let path = env::var_os("LD_LIBRARY_PATH").unwrap();
    env::split_paths(&path).next().unwrap()
}
