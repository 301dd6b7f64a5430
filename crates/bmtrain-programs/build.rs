//! Asks the linker for a smaller binary: one of several functions with the same machine code, which generic code makes
//! many of, and relocations in the packed form.
//!
//! Only rustc's own lld is asked, and only in release builds: it is what rustc links with on this target unless it was
//! told otherwise, and other linkers may not know the options.

use std::path::Path;
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-gnu";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let is_default = variable("RUSTC_LINKER").is_empty() && !variable("CARGO_ENCODED_RUSTFLAGS").contains("link");
    if variable("TARGET") != TARGET || variable("HOST") != TARGET || variable("PROFILE") != "release" || !is_default {
        return;
    }
    // A rustc of a distribution may come without it.
    let root = printed(&variable("RUSTC"), &["--print", "sysroot"]);
    if !Path::new(root.trim()).join("lib/rustlib").join(TARGET).join("bin/gcc-ld/ld.lld").exists() {
        return;
    }
    println!("cargo:rustc-link-arg-bins=-Wl,--icf=all");
    // The loader knows packed relocations since glibc 2.36; the binary is for the glibc that it is linked with.
    let version = printed("getconf", &["GNU_LIBC_VERSION"]);
    let minor = version.trim().strip_prefix("glibc 2.").and_then(|minor| minor.parse::<u32>().ok());
    if minor.is_some_and(|minor| minor >= 36) {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// The output of a command; nothing where it cannot be run.
fn printed(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or_else(|_| String::new(), |output| String::from_utf8_lossy(&output.stdout).into_owned())
}
