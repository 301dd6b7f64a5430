//! NVIDIA's run-time compiler: its functions, and one program made with it.
#![allow(unsafe_code)]

use super::super::CudaOptions;
use super::super::driver::failure;
use super::super::libraries::{NVRTC, Opened, load_for_others, open};
use crate::error::{Error, Result};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::ptr;

/// Return value of the compiler's functions: 0 for success. A plain number, because a newer compiler has more of them.
type Status = c_int;
type Program = *mut c_void;
type Text = *const c_char;
type Size = unsafe extern "C" fn(Program, *mut usize) -> Status;
type Content = unsafe extern "C" fn(Program, *mut c_char) -> Status;

#[derive(Debug)]
pub(in crate::cuda) struct Nvrtc {
    version: (u32, u32),
    /// Compute capabilities it knows, e.g. 90, in rising order.
    known: Vec<u32>,
    path: PathBuf,
    create: unsafe extern "C" fn(*mut Program, Text, Text, c_int, *const Text, *const Text) -> Status,
    compile: unsafe extern "C" fn(Program, c_int, *const Text) -> Status,
    destroy: unsafe extern "C" fn(*mut Program) -> Status,
    words: unsafe extern "C" fn(Status) -> Text,
    log: (Size, Content),
    cubin: (Size, Content),
    ptx: (Size, Content),
    // The functions are of this library.
    library: Opened,
}

/// Compiled form of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cuda) enum Image {
    /// Machine code of one architecture.
    Cubin,
    /// Text that the driver compiles for what it runs on.
    Ptx,
}

impl Nvrtc {
    pub(in crate::cuda) fn open(options: &CudaOptions) -> Result<Self> {
        type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status;
        type Count = unsafe extern "C" fn(*mut c_int) -> Status;
        let library = open(&NVRTC, options)?;
        // SAFETY: each function has the type of its field, by the interface that all versions from 11.1 on
        // share.
        let nvrtc = unsafe {
            let get_version: Version = library.function(c"nvrtcVersion")?;
            let count: Count = library.function(c"nvrtcGetNumSupportedArchs")?;
            let list: Count = library.function(c"nvrtcGetSupportedArchs")?;
            Nvrtc {
                version: version(get_version)?,
                known: known(count, list)?,
                path: library.path_of(get_version as usize),
                create: library.function(c"nvrtcCreateProgram")?,
                compile: library.function(c"nvrtcCompileProgram")?,
                destroy: library.function(c"nvrtcDestroyProgram")?,
                words: library.function(c"nvrtcGetErrorString")?,
                log: (library.function(c"nvrtcGetProgramLogSize")?, library.function(c"nvrtcGetProgramLog")?),
                cubin: (library.function(c"nvrtcGetCUBINSize")?, library.function(c"nvrtcGetCUBIN")?),
                ptx: (library.function(c"nvrtcGetPTXSize")?, library.function(c"nvrtcGetPTX")?),
                library,
            }
        };
        // The compiler opens its other half when it compiles, and version 13.0 looks for it only where the loader does.
        let (major, minor) = nvrtc.version;
        load_for_others(&nvrtc.path.with_file_name(format!("libnvrtc-builtins.so.{major}.{minor}")));
        Ok(nvrtc)
    }

    /// Major and minor.
    pub(in crate::cuda) fn version(&self) -> (u32, u32) {
        self.version
    }

    pub(in crate::cuda) fn library(&self) -> &Opened {
        &self.library
    }

    pub(in crate::cuda) fn path(&self) -> &PathBuf {
        &self.path
    }

    /// Compute capabilities it compiles for, e.g. 90, in rising order.
    pub(in crate::cuda) fn known(&self) -> &[u32] {
        &self.known
    }

    pub(in crate::cuda) fn compile(
        &self,
        name: &str,
        text: &str,
        options: &[String],
        image: Image,
    ) -> Result<Compiled> {
        let ended = |text: &str| CString::new(text).map_err(|_| broken(name, "a zero byte in a source or an option"));
        let (source, file) = (ended(text)?, ended(name)?);
        let options = options.iter().map(|option| ended(option)).collect::<Result<Vec<CString>>>()?;
        let options: Vec<Text> = options.iter().map(|option| option.as_ptr()).collect();
        let count = c_int::try_from(options.len()).map_err(|_| broken(name, "too many options"))?;
        let mut program = Open { program: ptr::null_mut(), destroy: self.destroy };
        let (no_headers, no_names) = (ptr::null(), ptr::null());
        // SAFETY: texts end with zero bytes and are copied by the call.
        let made =
            unsafe { (self.create)(&mut program.program, source.as_ptr(), file.as_ptr(), 0, no_headers, no_names) };
        self.answer(name, made)?;
        // SAFETY: the program was created; `count` options are passed, each ended by a zero byte.
        let status = unsafe { (self.compile)(program.program, count, options.as_ptr()) };
        let log = self.content(name, &program, self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_owned();
        if status != 0 {
            return Err(broken(name, format!("{}: {log}", self.say(status))));
        }
        let of = if image == Image::Cubin { self.cubin } else { self.ptx };
        Ok(Compiled { image: self.content(name, &program, of)?, log })
    }

    fn content(&self, name: &str, program: &Open, (size, content): (Size, Content)) -> Result<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: the program lives; one number is written.
        self.answer(name, unsafe { size(program.program, &mut bytes) })?;
        let mut buffer = vec![0u8; bytes];
        // SAFETY: the program lives; the buffer is as long as the compiler asked for.
        self.answer(name, unsafe { content(program.program, buffer.as_mut_ptr().cast()) })?;
        Ok(buffer)
    }

    fn answer(&self, name: &str, status: Status) -> Result<()> {
        if status == 0 { Ok(()) } else { Err(broken(name, self.say(status))) }
    }

    fn say(&self, status: Status) -> String {
        // SAFETY: takes any number and returns a text that lives as long as the library, or null.
        let words = unsafe { (self.words)(status) };
        if words.is_null() {
            return format!("error {status}");
        }
        // SAFETY: as above; the text ends with a zero byte.
        unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
    }
}

#[derive(Debug)]
pub(in crate::cuda) struct Compiled {
    pub(in crate::cuda) image: Vec<u8>,
    pub(in crate::cuda) log: String,
}

struct Open {
    program: Program,
    destroy: unsafe extern "C" fn(*mut Program) -> Status,
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: made by the compiler and destroyed once. Nothing can be done about a failure, and nothing is
            // lost.
            let _ = unsafe { (self.destroy)(&mut self.program) };
        }
    }
}

fn broken(name: &str, reason: impl AsRef<str>) -> Error {
    failure("compile kernels", format!("{name}: {}", reason.as_ref()))
}

fn version(get: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status) -> Result<(u32, u32)> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: two numbers are written.
    let status = unsafe { get(&mut major, &mut minor) };
    match (u32::try_from(major), u32::try_from(minor)) {
        (Ok(major), Ok(minor)) if status == 0 => Ok((major, minor)),
        _ => Err(failure("open NVRTC", format!("it does not report its version (error {status})"))),
    }
}

fn known(
    count: unsafe extern "C" fn(*mut c_int) -> Status,
    list: unsafe extern "C" fn(*mut c_int) -> Status,
) -> Result<Vec<u32>> {
    let mut many = 0;
    // SAFETY: one number is written.
    let counted = unsafe { count(&mut many) };
    let mut known = vec![0; usize::try_from(many).unwrap_or(0)];
    // SAFETY: as many numbers are written as were counted.
    let listed = unsafe { list(known.as_mut_ptr()) };
    if counted != 0 || listed != 0 || known.is_empty() {
        return Err(failure("open NVRTC", "it does not report its architectures"));
    }
    let mut known: Vec<u32> = known.into_iter().filter_map(|arch| u32::try_from(arch).ok()).collect();
    known.sort_unstable();
    Ok(known)
}
