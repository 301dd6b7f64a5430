//! What the one-page recipes state of the workspace: what a block of one's own depends on, and where a kernel is. The
//! crates that the recipes describe are built and tested by scripts/package_check.sh, from outside the workspace.

use bmtrain_core::kernel::Kernel;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_path_buf()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn own_block_needs_no_model_and_no_crate_of_models() {
    let manifest = root().join("Cargo.toml");
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--format-version", "1", "--no-deps", "--offline", "--manifest-path"]).arg(manifest);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    // Of every kind: what tests or build scripts need counts too.
    let needs = |name: &str| -> Vec<&str> {
        let package = packages.iter().find(|package| package["name"] == name).unwrap();
        package["dependencies"].as_array().unwrap().iter().map(|other| other["name"].as_str().unwrap()).collect()
    };
    let ours: Vec<&str> = packages.iter().map(|package| package["name"].as_str().unwrap()).collect();
    let mut reached = vec!["bmtrain-dist"];
    let mut next = 0;
    while next < reached.len() {
        let new: Vec<&str> = needs(reached[next]).into_iter().filter(|name| ours.contains(name)).collect();
        reached.extend(new.into_iter().filter(|name| !reached.contains(name)).collect::<Vec<_>>());
        next += 1;
    }
    reached.sort_unstable();
    reached.dedup();
    // The emulator is for the core's tests and in no package.
    assert_eq!(reached, ["bmtrain-core", "bmtrain-dist", "bmtrain-kernels", "cuda-emulator"]);
    let user = read(&root().join("examples/tests/recipes/own_block/Cargo.toml"));
    let dependencies: Vec<&str> = user.split("[dependencies]\n").nth(1).unwrap().lines().collect();
    assert_eq!(dependencies, [r#"bmtrain-dist = { path = "../../../../crates/bmtrain-dist" }"#]);
}

/// The stem whose file of `kernel/` declares this name, and the structure of its arguments.
fn declaration(name: &str) -> (String, String) {
    let (constant, row) = (format!("const NAME: &'static str = \"{name}\";"), format!(", \"{name}\", |"));
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root().join("crates/bmtrain-core/src/kernel")).unwrap() {
        let path = entry.unwrap().path();
        let text = read(&path);
        let written_out = text.find(&constant).map(|at| text[..at].rsplit("impl Arguments for ").next().unwrap());
        let in_a_row = text.find(&row).map(|at| text[..at].rsplit(char::is_whitespace).next().unwrap());
        for structure in [written_out, in_a_row].into_iter().flatten() {
            let structure = structure.split('<').next().unwrap();
            found.push((path.file_stem().unwrap().to_str().unwrap().to_owned(), structure.to_owned()));
        }
    }
    assert_eq!(found.len(), 1, "{name} is declared by {found:?}");
    found.remove(0)
}

#[test]
fn every_kernel_has_arguments_a_line_in_the_table_an_arm_on_the_cpu_and_a_caller() {
    let core = root().join("crates/bmtrain-core/src");
    let (table, dispatch) = (read(&core.join("kernel/mod.rs")), read(&core.join("cpu/mod.rs")));
    let table = table.split("\nkernels! {").nth(1).unwrap().split("\n}").next().unwrap();
    let callers: String = ["crates/bmtrain-core/src", "crates/bmtrain-dist/src"]
        .map(|directory| sources(&root().join(directory)))
        .concat();
    assert!(Kernel::NAMES.len() >= 30, "{:?}", Kernel::NAMES);
    for name in Kernel::NAMES {
        let (stem, structure) = declaration(name);
        assert!(table.contains(&format!("\n    {structure},")), "{structure} has no line in the table");
        let arm = format!("Kernel::{structure}(a) => ");
        let module = dispatch.split(&arm).nth(1).and_then(|rest| rest.split("::").next());
        let module = module.unwrap_or_else(|| panic!("{structure} has no arm on the CPU"));
        assert_eq!(module, stem, "{structure} is of the stem {stem}");
        let file = core.join("cpu").join(format!("{module}.rs"));
        assert!(file.exists() || core.join("cpu").join(module).join("mod.rs").exists(), "{}", file.display());
        assert!(callers.contains(&format!("{structure} {{")), "no op and no optimizer launches {structure}");
    }
}

/// All sources below a directory that may launch kernels: not their declarations, backends or tests.
fn sources(directory: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            if !["kernel", "cpu", "cuda", "conformance", "wrap"].contains(&name) {
                text += &sources(&path);
            }
        } else if name.ends_with(".rs") && name != "tests.rs" {
            // An alias is a structure under another name.
            text += &read(&path).replace("AdamKernel {", "Adam {").replace("Adam8bitKernel {", "Adam8bit {");
        }
    }
    text
}
