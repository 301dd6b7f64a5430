//! The locations of NVIDIA's libraries and of the kernel cache, from the environment, as options of the CUDA backend.

use bmtrain_core::cuda::CudaOptions;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Options of the backend from this process's environment: `BMTRAIN_CUDA_LIB_DIR` (directories of libraries),
/// `CUDA_HOME` and `CUDA_PATH` (a toolkit), the active Python (`VIRTUAL_ENV`, `CONDA_PREFIX`, or the first `python3` on
/// the `PATH`), in which pip installs NVIDIA's packages, and `BMTRAIN_CACHE` or `HOME` for what is kept.
/// `BMTRAIN_CUDA_KERNELS` names a directory of kernels compiled elsewhere.
///
/// Switches are `1` to turn something on: `BMTRAIN_CUDA_GRAPHS` to replay repeated launches as CUDA graphs,
/// `BMTRAIN_CUDA_TIMED_PRODUCTS` to choose algorithms of matrix products by time, `BMTRAIN_CUDA_KERNEL_EPILOGUES` to
/// leave epilogues of products to kernels, `BMTRAIN_CUDA_WARPGROUP_ATTENTION`, `BMTRAIN_CUDA_WIDE_QUERIES` and
/// `BMTRAIN_CUDA_WIDE_KEYS` for other kernels of attention. A value other than 0 and 1 is warned of, and counts as 0.
pub fn cuda_options() -> CudaOptions {
    options_of(&|name| env::var_os(name).filter(|value| !value.is_empty()))
}

/// Options from any environment.
fn options_of(variable: &dyn Fn(&str) -> Option<OsString>) -> CudaOptions {
    let directories = |name| variable(name).iter().flat_map(env::split_paths).collect::<Vec<PathBuf>>();
    let directory = |name| variable(name).map(PathBuf::from);
    let mut prefixes: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(directory).collect();
    prefixes.extend(directories("PATH").iter().find_map(|bin| prefix_of(bin)));
    let mut packages: Vec<PathBuf> = prefixes.iter().flat_map(|prefix| packages_of(prefix)).collect();
    let mut seen = Vec::new();
    packages.retain(|package| {
        let is_new = !seen.contains(package);
        seen.push(package.clone());
        is_new
    });
    let cache = directory("BMTRAIN_CACHE").or_else(|| Some(directory("HOME")?.join(".cache/bmtrain")));
    let switch = |name| variable(name).is_some_and(|value| is_on(name, &value));
    CudaOptions {
        compiled: directory("BMTRAIN_CUDA_KERNELS"),
        libraries: directories("BMTRAIN_CUDA_LIB_DIR"),
        toolkits: ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(directory).collect(),
        packages,
        cache: cache.map(|cache| cache.join("kernels")),
        graphs: switch("BMTRAIN_CUDA_GRAPHS"),
        timed_products: switch("BMTRAIN_CUDA_TIMED_PRODUCTS"),
        kernel_epilogues: switch("BMTRAIN_CUDA_KERNEL_EPILOGUES"),
        warpgroup_attention: switch("BMTRAIN_CUDA_WARPGROUP_ATTENTION"),
        wide_queries: switch("BMTRAIN_CUDA_WIDE_QUERIES"),
        wide_keys: switch("BMTRAIN_CUDA_WIDE_KEYS"),
        ..CudaOptions::default()
    }
}

/// Whether a switch is 1.
fn is_on(name: &str, value: &OsStr) -> bool {
    if value != "0" && value != "1" {
        tracing::warn!(name, ?value, "is neither 0 nor 1, and counts as 0: set it to 1, or unset it");
    }
    value == "1"
}

/// Prefix of the Python of a directory of programs: links of a virtual environment are not followed.
fn prefix_of(bin: &Path) -> Option<PathBuf> {
    bin.join("python3").exists().then(|| bin.parent().map(Path::to_owned))?
}

/// The directories of packages of an installed Python.
fn packages_of(prefix: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(prefix.join("lib")) else { return Vec::new() };
    let pythons = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"));
    let directories =
        pythons.flat_map(|python| ["site-packages", "dist-packages"].map(|name| python.path().join(name)));
    let mut directories: Vec<PathBuf> = directories.filter(|directory| directory.join("nvidia").is_dir()).collect();
    directories.sort_unstable_by(|a, b| b.cmp(a));
    directories
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn options(variables: &[(&str, OsString)]) -> CudaOptions {
        let variables: HashMap<&str, OsString> = variables.iter().cloned().collect();
        options_of(&|name| variables.get(name).cloned())
    }

    #[test]
    fn the_environment_names_libraries_toolkits_and_the_cache() {
        let found = options(&[
            ("BMTRAIN_CUDA_LIB_DIR", "/a:/b".into()),
            ("CUDA_HOME", "/toolkit".into()),
            ("HOME", "/home/someone".into()),
        ]);
        assert_eq!(found.libraries, [PathBuf::from("/a"), "/b".into()]);
        assert_eq!(found.toolkits, [PathBuf::from("/toolkit")]);
        assert_eq!(found.cache, Some("/home/someone/.cache/bmtrain/kernels".into()));
        assert_eq!(options(&[("BMTRAIN_CACHE", "/cache".into())]).cache, Some("/cache/kernels".into()));
        let switches = |options: &CudaOptions| {
            let CudaOptions { graphs, timed_products, kernel_epilogues, warpgroup_attention, .. } = *options;
            let CudaOptions { wide_queries, wide_keys, .. } = *options;
            [graphs, timed_products, kernel_epilogues, warpgroup_attention, wide_queries, wide_keys]
        };
        assert_eq!(switches(&found), [false; 6]);
        let names =
            ["GRAPHS", "TIMED_PRODUCTS", "KERNEL_EPILOGUES", "WARPGROUP_ATTENTION", "WIDE_QUERIES", "WIDE_KEYS"];
        for (index, name) in names.iter().enumerate() {
            let with = |value: &str| switches(&options(&[(&format!("BMTRAIN_CUDA_{name}"), value.into())]));
            let alone: [bool; 6] = std::array::from_fn(|other| other == index);
            assert_eq!([with("1"), with("0"), with("yes")], [alone, [false; 6], [false; 6]], "{name}");
        }
        let none = options(&[]);
        assert!(
            none.libraries.is_empty() && none.toolkits.is_empty() && none.packages.is_empty() && none.cache.is_none()
        );
    }

    #[test]
    fn packages_of_the_active_python_are_found_once() {
        let root = tempfile::tempdir().unwrap();
        let packages = root.path().join("lib/python3.11/site-packages");
        fs::create_dir_all(packages.join("nvidia/cu13/lib")).unwrap();
        fs::create_dir_all(root.path().join("lib/python3.9/site-packages")).unwrap();
        fs::create_dir_all(root.path().join("bin")).unwrap();
        fs::write(root.path().join("bin/python3"), "").unwrap();
        let by_path = options(&[("PATH", env::join_paths([Path::new("/nowhere"), &root.path().join("bin")]).unwrap())]);
        assert_eq!(by_path.packages, std::slice::from_ref(&packages));
        let path = root.path().join("bin").into_os_string();
        let both = options(&[("VIRTUAL_ENV", root.path().into()), ("PATH", path)]);
        assert_eq!(both.packages, [packages]);
    }
}
