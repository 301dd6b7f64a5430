//! NVIDIA's libraries beside the driver: where they are looked for, and how they are opened.
//!
//! A library is opened by its path and its functions are looked up one by one, so that the one that was found is the
//! one that is called, whatever else the process has loaded, and what is missing is an error and never a
//! panic.
#![allow(unsafe_code)]

mod catalogue;

pub(in crate::cuda) use catalogue::{ALL, CUBLASLT, NVRTC, Wanted};

use catalogue::NCCL;

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
    /// Files that come before it in the order of places and were passed over, because they belong to a later version of
    /// CUDA than the driver's.
    rather_than: Vec<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum SearchPath {
    Directory(PathBuf),
    Loader,
}

/// Open a library: from the directories of the options, then a toolkit, the loader's own search, and the Python
/// packages. One that belongs to a later major version of CUDA than the driver's is taken only where there is no other
/// in any of these.
///
/// # Errors
/// It is not found, or it cannot be loaded: where it was looked for, and how to get it.
pub(in crate::cuda) fn open(wanted: &'static Wanted, options: &CudaOptions) -> Result<Opened> {
    search(wanted, &places(options), driver_major()).map_err(|reason| failure(wanted.call, reason))
}

/// Every path under which NCCL may be opened, in the order of [`open`]: files that are there, and bare names for the
/// system's loader. For [`NcclOptions::libraries`](crate::comm::nccl::NcclOptions).
pub fn nccl_paths(options: &CudaOptions) -> Vec<PathBuf> {
    let files = NCCL.files_for(driver_major()).concat();
    places(options).iter().flat_map(|place| place.paths(&files)).collect()
}

fn search(wanted: &'static Wanted, places: &[SearchPath], major: Option<u32>) -> Result<Opened, String> {
    let [fitting, others] = wanted.files_for(major);
    let mut refused = Vec::new();
    let tried = [&fitting, &others].into_iter().flat_map(|files| places.iter().map(move |place| (place, files)));
    for (place, files) in tried {
        for path in place.paths(files) {
            // SAFETY: opening a library runs its initialisers. The names belong to NVIDIA's libraries, and the
            // directories the caller's or the system's own; a caller that names a directory vouches for its contents.
            match unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) } {
                Ok(library) => {
                    let before = places.iter().take_while(|earlier| *earlier != place).chain([place]);
                    let directories =
                        before.filter(|place| matches!(place, SearchPath::Directory(_)) && *files == fitting);
                    let rather_than = directories.flat_map(|place| place.paths(&others)).collect();
                    return Ok(Opened { library: ManuallyDrop::new(library), wanted, path, rather_than });
                }
                // Not found there is expected.
                Err(_) if *place == SearchPath::Loader => {}
                Err(error) => refused.push(format!("{}: {error}", path.display())),
            }
        }
    }
    let looked: Vec<String> = places.iter().map(SearchPath::describe).collect();
    let found =
        if refused.is_empty() { String::new() } else { format!("; found but not usable: {}", refused.join("; ")) };
    let (files, looked) = ([fitting, others].concat().join(" or "), looked.join(", "));
    Err(format!("{}, {files}, is not in {looked}{found}; {}", wanted.what, wanted.fix()))
}

/// The CUDA version of the driver, where there is one: libraries of a later major version do not work with it.
fn driver_major() -> Option<u32> {
    super::driver::cuda_version().map(|(major, _)| major)
}

impl SearchPath {
    /// Paths at which these files can be opened here: those that are there, and bare names for the loader to find.
    fn paths(&self, files: &[&str]) -> Vec<PathBuf> {
        match self {
            SearchPath::Directory(directory) => {
                files.iter().map(|file| directory.join(file)).filter(|path| path.is_file()).collect()
            }
            SearchPath::Loader => files.iter().map(PathBuf::from).collect(),
        }
    }

    fn describe(&self) -> String {
        match self {
            SearchPath::Directory(directory) => directory.display().to_string(),
            SearchPath::Loader => "the system's library directories".into(),
        }
    }
}

fn places(options: &CudaOptions) -> Vec<SearchPath> {
    let toolkits = options.toolkits.iter().flat_map(|toolkit| ["lib64", "lib"].map(|lib| toolkit.join(lib)));
    let before = options.libraries.iter().cloned().chain(toolkits).map(SearchPath::Directory);
    let packages =
        options.packages.iter().flat_map(|packages| package_directories(packages)).map(SearchPath::Directory);
    before.chain([SearchPath::Loader]).chain(packages).collect()
}

/// The directories in which NVIDIA's Python packages keep their libraries: `nvidia/PACKAGE/lib`, in the order of their
/// names.
fn package_directories(packages: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(packages.join("nvidia")) else { return Vec::new() };
    let mut directories: Vec<PathBuf> = entries.flatten().map(|entry| entry.path().join("lib")).collect();
    directories.retain(|directory| directory.is_dir());
    // The newest first: cu13 before cu12.
    directories.sort_unstable_by(|a, b| b.cmp(a));
    directories
}

impl Opened {
    /// Look up a function.
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

    /// Files that were found before it and passed over, because they belong to a later version of CUDA than the
    /// driver's.
    pub(in crate::cuda) fn rather_than(&self) -> &[PathBuf] {
        &self.rather_than
    }

    /// Path of the library: by a function of it in the process's list of mappings where the loader found it.
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

/// Load a library that another one will ask for by its bare name. Some versions of NVIDIA's libraries look for their
/// own parts only where the loader looks, and not beside themselves.
pub(in crate::cuda) fn load_for_others(path: &Path) -> bool {
    // SAFETY: as in `search`; the file is beside the library that needs it.
    let opened = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
    // Open until the process ends, like the one that needs it.
    opened.map(ManuallyDrop::new).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_come_first_then_toolkits_the_loader_and_packages() {
        let root = tempfile::tempdir().unwrap();
        for directory in ["nvidia/cu12/lib", "nvidia/cu13/lib", "nvidia/only_headers/include"] {
            fs::create_dir_all(root.path().join(directory)).unwrap();
        }
        let options = CudaOptions {
            libraries: vec!["/given".into()],
            toolkits: vec!["/toolkit".into()],
            packages: vec![root.path().into(), "/nowhere".into()],
            ..CudaOptions::default()
        };
        let directory = |path: PathBuf| SearchPath::Directory(path);
        let expected = [
            directory("/given".into()),
            directory("/toolkit/lib64".into()),
            directory("/toolkit/lib".into()),
            SearchPath::Loader,
            directory(root.path().join("nvidia/cu13/lib")),
            directory(root.path().join("nvidia/cu12/lib")),
        ];
        assert_eq!(places(&options), expected);
    }

    #[test]
    fn what_is_missing_says_where_it_was_looked_for_and_how_to_get_it() {
        let root = tempfile::tempdir().unwrap();
        let error = search(&NVRTC, &[SearchPath::Directory(root.path().into())], None).unwrap_err();
        for part in ["NVRTC", "libnvrtc.so.13 or libnvrtc.so.12", &root.path().display().to_string(), "pip install"] {
            assert!(error.contains(part), "{error} lacks {part:?}");
        }
    }

    #[test]
    fn a_library_that_fits_the_driver_is_taken_before_a_later_one_in_an_earlier_place() {
        let root = tempfile::tempdir().unwrap();
        // Any library will do, such as one that this program has: it is opened, and nothing of it called.
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let any =
            maps.lines().find(|line| line.contains("/libc.so")).and_then(|line| line.find('/').map(|at| &line[at..]));
        let any = any.unwrap();
        let [first, second] = ["first", "second"].map(|name| root.path().join(name));
        for (directory, file) in [(&first, "libnvrtc.so.13"), (&second, "libnvrtc.so.13"), (&second, "libnvrtc.so.12")]
        {
            fs::create_dir_all(directory).unwrap();
            std::os::unix::fs::symlink(any, directory.join(file)).unwrap();
        }
        let places = [&first, &second].map(|directory| SearchPath::Directory(directory.clone()));
        let found = |places: &[SearchPath], major| {
            let opened = search(&NVRTC, places, major).unwrap();
            (opened.path, opened.rather_than)
        };
        let [newest, other] = [&first, &second].map(|directory| directory.join("libnvrtc.so.13"));
        assert_eq!(found(&places, Some(12)), (second.join("libnvrtc.so.12"), vec![newest.clone(), other]));
        for major in [None, Some(13)] {
            assert_eq!(found(&places, major), (newest.clone(), vec![]));
        }
        // Better than none.
        assert_eq!(found(&places[..1], Some(12)), (newest, vec![]));
    }

    #[test]
    fn nccl_is_looked_for_in_directories_before_the_systems_own() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("libnccl.so.2"), "").unwrap();
        let options = CudaOptions { libraries: vec!["/nowhere".into(), root.path().into()], ..CudaOptions::default() };
        let expected = [root.path().join("libnccl.so.2"), "libnccl.so.2".into(), "libnccl.so".into()];
        assert_eq!(nccl_paths(&options), expected);
    }

    #[test]
    fn a_file_that_is_no_library_is_named_and_passed_over() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("libnvrtc.so.13"), "no library").unwrap();
        let error = search(&NVRTC, &[SearchPath::Directory(root.path().into())], None).unwrap_err();
        assert!(error.contains("found but not usable") && error.contains("libnvrtc.so.13:"), "{error}");
    }

    #[test]
    fn the_file_behind_an_address_is_found() {
        let here = the_file_behind_an_address_is_found as *const () as usize;
        assert_eq!(mapped_at(here).unwrap(), std::env::current_exe().unwrap());
        assert_eq!(mapped_at(1), None);
    }
}
