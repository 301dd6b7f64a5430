//! NCCL's functions, opened at run time, with errors that explain every result.
//!
//! The bindings give the types only: they look for names under which NCCL is not installed by packages, and panic where
//! it is missing. Answers are read as numbers, because a newer library may have some that the bindings do not know.
#![allow(unsafe_code)]

use crate::cuda::nccl_version::Version;
use crate::error::{Error, Result};
use cudarc::nccl::sys::{ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclUniqueId};
use libloading::os::unix::{Library as Opened, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The oldest version that this crate calls: communicators are made and ended without blocking.
const OLDEST: Version = Version(21800);

/// `ncclSuccess`.
const SUCCESS: c_int = 0;
/// `ncclInProgress`: the call continues in the background.
const IN_PROGRESS: c_int = 7;

/// First field of an initialized `ncclConfig_t`.
const CONFIG_MAGIC: u32 = 0xcafe_beef;
/// A setting that is left to NCCL.
const UNSET: c_int = c_int::MIN;

/// The type of a stream in NCCL's interface.
pub(super) type Stream = *mut c_void;

macro_rules! functions {
    ($($name:ident($($argument:ty),*) -> $answer:ty;)*) => {
        /// The functions, by NCCL's own names.
        #[allow(non_snake_case)]
        #[derive(Debug)]
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> $answer,)*
        }

        impl Functions {
            fn of(library: &Opened) -> Result<Self, &'static str> {
                Ok(Functions {
                    $($name: {
                        // SAFETY: the signature is the one of NCCL's header since the oldest version that is accepted,
                        // but for enums that are returned, which C knows as integers.
                        let found = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                        *found.map_err(|_| stringify!($name))?
                    },)*
                })
            }
        }
    };
}

functions! {
    ncclGetVersion(*mut c_int) -> c_int;
    ncclGetUniqueId(*mut ncclUniqueId) -> c_int;
    ncclGetErrorString(c_int) -> *const c_char;
    ncclGetLastError(ncclComm_t) -> *const c_char;
    ncclCommInitRankConfig(*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut ncclConfig_t) -> c_int;
    ncclCommGetAsyncError(ncclComm_t, *mut c_int) -> c_int;
    ncclCommFinalize(ncclComm_t) -> c_int;
    ncclCommDestroy(ncclComm_t) -> c_int;
    ncclCommAbort(ncclComm_t) -> c_int;
    ncclGroupStart() -> c_int;
    ncclGroupEnd() -> c_int;
    ncclAllReduce(*const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, Stream) -> c_int;
    ncclReduce(*const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, c_int, ncclComm_t, Stream) -> c_int;
    ncclReduceScatter(*const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, Stream) -> c_int;
    ncclAllGather(*const c_void, *mut c_void, usize, ncclDataType_t, ncclComm_t, Stream) -> c_int;
    ncclBroadcast(*const c_void, *mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, Stream) -> c_int;
    ncclSend(*const c_void, usize, ncclDataType_t, c_int, ncclComm_t, Stream) -> c_int;
    ncclRecv(*mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, Stream) -> c_int;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    Done,
    UnderWay,
}

/// NCCL. It stays open for the life of the process: it has threads of its own.
#[derive(Debug)]
pub struct Library {
    pub(super) functions: Functions,
    path: PathBuf,
    version: Version,
}

pub(super) fn failure(call: &'static str, reason: impl Into<String>) -> Error {
    Error::Device { backend: "NCCL".into(), call, reason: reason.into() }
}

impl Library {
    /// Open the first of these that can be opened: paths, or bare names for the system to find.
    pub fn open(candidates: &[PathBuf]) -> Result<Arc<Self>> {
        let mut reasons: Vec<String> = Vec::new();
        for path in candidates {
            // SAFETY: opening a library runs its initialisers; the name is NCCL's, on whose good behaviour every later
            // call rests as well.
            match unsafe { Opened::open(Some(path), RTLD_NOW | RTLD_LOCAL) } {
                Ok(opened) => return Library::of(opened, path),
                Err(error) => reasons.push(describe(path, &error)),
            }
        }
        let tried = if reasons.is_empty() { "nothing was named".into() } else { reasons.join("; ") };
        let fix = "install NCCL (the package nvidia-nccl-cu13, or libnccl2), or name the directory it is in";
        Err(failure("open the library", format!("no NCCL library could be opened ({tried}); {fix}")))
    }

    fn of(opened: Opened, path: &Path) -> Result<Arc<Self>> {
        let functions = Functions::of(&opened);
        // Its functions are called until the process ends.
        std::mem::forget(opened);
        let shown = path.display();
        let functions = functions.map_err(|missing| {
            let reason = format!(
                "{shown} has no function {missing}: it is not NCCL, or is older than {OLDEST}; install a newer one"
            );
            failure("open the library", reason)
        })?;
        let mut number = 0;
        // SAFETY: a place for an int.
        let status = unsafe { (functions.ncclGetVersion)(&raw mut number) };
        let version = Version(u32::try_from(number).unwrap_or(0));
        let library = Library { functions, path: path.to_path_buf(), version };
        library.answer("ncclGetVersion", status)?;
        if version < OLDEST {
            let reason = format!("{shown} is NCCL {version}; {OLDEST} is the oldest that will do, install a newer one");
            return Err(failure("open the library", reason));
        }
        Ok(Arc::new(library))
    }

    /// Version of the library.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The name or path under which it was found.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A new id: ranks that begin with the same one come together. Needs no device.
    pub fn unique_id(&self) -> Result<[u8; 128]> {
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: a place for an id.
        let status = unsafe { (self.functions.ncclGetUniqueId)(&raw mut id) };
        self.answer("ncclGetUniqueId", status)?;
        Ok(bytemuck::cast(id.internal))
    }

    /// An answer as a result of this crate; a call that goes on counts as done.
    pub(super) fn answer(&self, call: &'static str, status: c_int) -> Result<Progress> {
        match status {
            SUCCESS => Ok(Progress::Done),
            IN_PROGRESS => Ok(Progress::UnderWay),
            _ => Err(failure(call, self.words(status))),
        }
    }

    /// Text of a status, with the library's own account of it where it has one.
    fn words(&self, status: c_int) -> String {
        // SAFETY: the library answers every number with a text that stays. It is asked for its account of the last
        // failure of this thread or any: no communicator is needed for that.
        let (meaning, account) = unsafe {
            let text = |text: *const c_char| {
                let text = (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().trim().to_owned());
                text.filter(|text| !text.is_empty())
            };
            let account = (self.functions.ncclGetLastError)(std::ptr::null_mut());
            (text((self.functions.ncclGetErrorString)(status)), text(account))
        };
        let meaning = meaning.unwrap_or_else(|| format!("error {status}"));
        // The account is another program's text: it is shown in one line.
        account.map_or_else(|| meaning.clone(), |text| format!("{meaning}: {}", text.replace(char::is_control, " ")))
    }
}

/// Settings of a communicator whose calls do not block.
pub(super) fn config() -> ncclConfig_t {
    ncclConfig_t {
        size: size_of::<ncclConfig_t>(),
        magic: CONFIG_MAGIC,
        // These are the fields of this version; later ones are left to the library.
        version: OLDEST.0,
        blocking: 0,
        cgaClusterSize: UNSET,
        minCTAs: UNSET,
        maxCTAs: UNSET,
        netName: std::ptr::null(),
        splitShare: UNSET,
    }
}

/// Why a library could not be opened, without its name twice.
fn describe(path: &Path, error: &libloading::Error) -> String {
    let (path, text) = (path.display().to_string(), error.to_string());
    if text.contains(&path) { text } else { format!("{path}: {text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_missing_or_is_another_one_is_an_error() {
        let missing = Library::open(&["/no/such/directory/libnccl.so.2".into()]).unwrap_err().to_string();
        assert!(missing.contains("/no/such/directory/libnccl.so.2") && missing.contains("install NCCL"), "{missing}");
        assert!(!missing.contains('\n'), "{missing}");
        assert!(Library::open(&[]).unwrap_err().to_string().contains("nothing was named"));
        let file = std::env::current_exe().unwrap();
        assert!(Library::open(&[file]).is_err(), "a program is not a library");
        let other = Library::open(&["libc.so.6".into()]).unwrap_err().to_string();
        assert!(other.contains("libc.so.6 has no function ncclGetVersion"), "{other}");
    }
}
