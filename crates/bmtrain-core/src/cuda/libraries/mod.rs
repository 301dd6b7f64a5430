//! NVIDIA's libraries beside the driver: where they are looked for, and how they are opened.
//!
//! A library is opened by its path and its functions are looked up one by one, so that the one that was found is the one that
//! is called, whatever else the process has loaded, and what is missing is an error in words and never a panic.
#![allow(unsafe_code)]

mod catalogue;

pub(in crate::cuda) use catalogue::{ALL, CUBLASLT, NVRTC, Wanted};

use super::CudaOptions;
use super::driver::failure;
use crate::error::Result;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};
use std::ffi::CStr;
use std::fs;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

/// A library that is open until the process ends: such libraries keep threads and handlers of their own.
#[derive(Debug)]
pub(in crate::cuda) struct Opened {
    library: ManuallyDrop<Library>,
    wanted: &'static Wanted,
    /// By its path, or by its bare name where the loader found it.
    path: PathBuf,
}

/// Where files are looked for, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// A folder.
    Folder(PathBuf),
    /// Wherever the system's loader looks.
    Loader,
}

/// Open a library: from the folders of the options, then a toolkit, the loader's own search, and the Python packages.
///
/// # Errors
/// It is nowhere, or lies there and cannot be loaded: where it was looked for, and how to get it.
pub(in crate::cuda) fn open(wanted: &'static Wanted, options: &CudaOptions) -> Result<Opened> {
    search(wanted, &places(options), driver_major()).map_err(|reason| failure(wanted.call, reason))
}

fn search(wanted: &'static Wanted, places: &[Place], major: Option<u32>) -> Result<Opened, String> {
    let files = wanted.files_for(major);
    let mut refused = Vec::new();
    for place in places {
        for file in &files {
            let path = match place {
                Place::Folder(folder) => folder.join(file),
                Place::Loader => PathBuf::from(file),
            };
            if matches!(place, Place::Folder(_)) && !path.is_file() {
                continue;
            }
            // SAFETY: opening a library runs its initialisers. The names are those of NVIDIA's libraries, and the folders the
            // caller's or the system's own; whoever names a folder answers for what lies in it.
            match unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) } {
                Ok(library) => return Ok(Opened { library: ManuallyDrop::new(library), wanted, path }),
                // Not to be found is no news there.
                Err(_) if *place == Place::Loader => {}
                Err(error) => refused.push(format!("{}: {error}", path.display())),
            }
        }
    }
    let looked: Vec<String> = places.iter().map(Place::describe).collect();
    let found =
        if refused.is_empty() { String::new() } else { format!("; found but not usable: {}", refused.join("; ")) };
    let (files, looked) = (files.join(" or "), looked.join(", "));
    Err(format!("{}, {files}, is not in {looked}{found}; {}", wanted.what, wanted.fix()))
}

/// The CUDA version of the driver, where there is one: libraries of a later major version do not work with it.
fn driver_major() -> Option<u32> {
    super::driver::cuda_version().map(|(major, _)| major)
}

impl Place {
    fn describe(&self) -> String {
        match self {
            Place::Folder(folder) => folder.display().to_string(),
            Place::Loader => "the system's library folders".into(),
        }
    }
}

fn places(options: &CudaOptions) -> Vec<Place> {
    let toolkits = options.toolkits.iter().flat_map(|toolkit| ["lib64", "lib"].map(|lib| toolkit.join(lib)));
    let before = options.libraries.iter().cloned().chain(toolkits).map(Place::Folder);
    let packages = options.packages.iter().flat_map(|packages| package_folders(packages)).map(Place::Folder);
    before.chain([Place::Loader]).chain(packages).collect()
}

/// The folders in which NVIDIA's Python packages keep their libraries: `nvidia/PACKAGE/lib`, in the order of their names.
fn package_folders(packages: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(packages.join("nvidia")) else { return Vec::new() };
    let mut folders: Vec<PathBuf> = entries.flatten().map(|entry| entry.path().join("lib")).collect();
    folders.retain(|folder| folder.is_dir());
    // The newest first: cu13 before cu12.
    folders.sort_unstable_by(|a, b| b.cmp(a));
    folders
}

impl Opened {
    /// Look up a function.
    ///
    /// # Errors
    /// The library has none of that name.
    ///
    /// # Safety
    /// `F` is the type of that function, a pointer.
    pub(in crate::cuda) unsafe fn function<F: Copy>(&self, name: &CStr) -> Result<F> {
        // SAFETY: promised by the caller; the library is never closed.
        let found = unsafe { self.library.get::<F>(name) };
        found.map(|symbol| *symbol).map_err(|_| {
            let (path, name) = (self.path.display(), name.to_string_lossy());
            let reason =
                format!("{path} has no function {name}: it is older than this program needs; {}", self.wanted.fix());
            failure(self.wanted.call, reason)
        })
    }

    /// Where the library lies: of a function of it, by the process's own list of mappings where the loader found it.
    pub(in crate::cuda) fn path_of(&self, function: usize) -> PathBuf {
        if self.path.components().count() > 1 {
            return self.path.clone();
        }
        mapped_at(function).unwrap_or_else(|| self.path.clone())
    }
}

/// The file that is mapped at an address of this process.
fn mapped_at(address: usize) -> Option<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let path = &rest[rest.find('/')?..];
        (number(start)?..number(end)?).contains(&address).then(|| PathBuf::from(path))
    })
}

/// Load a library that another one will ask for by its bare name. Some versions of NVIDIA's libraries look for their own parts
/// only where the loader looks, and not beside themselves.
pub(in crate::cuda) fn load_for_others(path: &Path) -> bool {
    // SAFETY: as in `search`; the file lies beside the library that needs it.
    let opened = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
    // Open until the process ends, like the one that needs it.
    opened.map(ManuallyDrop::new).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_first_then_toolkits_the_loader_and_packages() {
        let root = tempfile::tempdir().unwrap();
        for folder in ["nvidia/cu12/lib", "nvidia/cu13/lib", "nvidia/only_headers/include"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        let options = CudaOptions {
            libraries: vec!["/given".into()],
            toolkits: vec!["/toolkit".into()],
            packages: vec![root.path().into(), "/nowhere".into()],
            ..CudaOptions::default()
        };
        let folder = |path: PathBuf| Place::Folder(path);
        let expected = [
            folder("/given".into()),
            folder("/toolkit/lib64".into()),
            folder("/toolkit/lib".into()),
            Place::Loader,
            folder(root.path().join("nvidia/cu13/lib")),
            folder(root.path().join("nvidia/cu12/lib")),
        ];
        assert_eq!(places(&options), expected);
    }

    #[test]
    fn what_is_missing_says_where_it_was_looked_for_and_how_to_get_it() {
        let root = tempfile::tempdir().unwrap();
        let error = search(&NVRTC, &[Place::Folder(root.path().into())], None).unwrap_err();
        for words in ["NVRTC", "libnvrtc.so.13 or libnvrtc.so.12", &root.path().display().to_string(), "pip install"] {
            assert!(error.contains(words), "{words} is not in: {error}");
        }
    }

    #[test]
    fn a_file_that_is_no_library_is_named_and_passed_over() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("libnvrtc.so.13"), "no library").unwrap();
        let error = search(&NVRTC, &[Place::Folder(root.path().into())], None).unwrap_err();
        assert!(error.contains("found but not usable") && error.contains("libnvrtc.so.13:"), "{error}");
    }

    #[test]
    fn the_file_behind_an_address_is_found() {
        let here = the_file_behind_an_address_is_found as *const () as usize;
        assert_eq!(mapped_at(here).unwrap(), std::env::current_exe().unwrap());
        assert_eq!(mapped_at(1), None);
    }
}
