//! Commands of a stream, in a form in which they are recognised when they are given again.

use super::super::Function;
use super::super::stream::{Grid, Pattern};
use crate::error::Result;
use std::any::Any;
use std::ffi::c_void;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};

/// One piece of work for a stream.
#[derive(Debug, Clone, Copy)]
pub(in crate::cuda) enum Given<'a> {
    Kernel { function: Function, grid: Grid, arguments: &'a [u8] },
    Fill { to: u64, pattern: Pattern, count: usize },
    Copy { from: u64, to: u64, bytes: usize },
    Library(&'a dyn LibraryCall),
}

impl Given<'_> {
    /// A number that commands which match have in common.
    pub(super) fn kind(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        match *self {
            Given::Kernel { function, grid, .. } => (function.handle.addr(), grid).hash(&mut hasher),
            Given::Fill { to, count, .. } => (to, count).hash(&mut hasher),
            Given::Copy { from, to, bytes } => (from, to, bytes).hash(&mut hasher),
            Given::Library(call) => call.kind().hash(&mut hasher),
        }
        hasher.finish()
    }
}

/// A call of a library that queues work on a stream, with all that it needs.
pub(in crate::cuda) trait LibraryCall: Any + Debug + Send {
    /// Queue it; false, with nothing queued, if the library refuses it.
    ///
    /// # Safety
    /// The stream lives and its context is current. What the call reads and writes is valid until the stream has run
    /// it, and large enough.
    unsafe fn queue(&self, stream: *mut c_void) -> Result<bool>;

    /// A number that calls which are equal have in common.
    fn kind(&self) -> u64;

    /// Whether the other call would do the same, at the same addresses.
    fn equals(&self, other: &dyn LibraryCall) -> bool;

    fn to_owned(&self) -> Box<dyn LibraryCall>;
}

/// A [`Given`] that is kept.
#[derive(Debug)]
pub(in crate::cuda) enum Command {
    Kernel {
        function: Function,
        grid: Grid,
        /// As they were given last.
        arguments: Arguments,
        /// Whether the graph that this is part of has these arguments.
        is_captured: bool,
    },
    Fill {
        to: u64,
        pattern: Pattern,
        count: usize,
    },
    Copy {
        from: u64,
        to: u64,
        bytes: usize,
    },
    Library(Box<dyn LibraryCall>),
}

/// The bytes of a kernel's structure, aligned as its largest field.
#[derive(Debug)]
pub(in crate::cuda) struct Arguments {
    words: Box<[u64]>,
    bytes: usize,
}

impl Arguments {
    fn of(bytes: &[u8]) -> Self {
        let mut arguments =
            Arguments { words: vec![0; bytes.len().div_ceil(size_of::<u64>())].into(), bytes: bytes.len() };
        arguments.bytes_mut().copy_from_slice(bytes);
        arguments
    }

    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.bytes]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.bytes]
    }
}

impl Command {
    pub(super) fn of(given: &Given<'_>) -> Self {
        match *given {
            Given::Kernel { function, grid, arguments } => {
                Command::Kernel { function, grid, arguments: Arguments::of(arguments), is_captured: false }
            }
            Given::Fill { to, pattern, count } => Command::Fill { to, pattern, count },
            Given::Copy { from, to, bytes } => Command::Copy { from, to, bytes },
            Given::Library(call) => Command::Library(call.to_owned()),
        }
    }

    pub(super) fn given(&self) -> Given<'_> {
        match self {
            Command::Kernel { function, grid, arguments, .. } => {
                Given::Kernel { function: *function, grid: *grid, arguments: arguments.bytes() }
            }
            Command::Fill { to, pattern, count } => Given::Fill { to: *to, pattern: *pattern, count: *count },
            Command::Copy { from, to, bytes } => Given::Copy { from: *from, to: *to, bytes: *bytes },
            Command::Library(call) => Given::Library(&**call),
        }
    }

    /// Whether a graph that has this command can do what is given: all is equal, but for a kernel's arguments, which
    /// can be replaced.
    pub(super) fn matches(&self, given: &Given<'_>) -> bool {
        match (self.given(), given) {
            (Given::Kernel { function, grid, arguments }, Given::Kernel { function: f, grid: g, arguments: a }) => {
                (function, grid, arguments.len()) == (*f, *g, a.len())
            }
            (Given::Fill { to, pattern, count }, Given::Fill { to: t, pattern: p, count: c }) => {
                (to, pattern, count) == (*t, *p, *c)
            }
            (Given::Copy { from, to, bytes }, Given::Copy { from: f, to: t, bytes: b }) => {
                (from, to, bytes) == (*f, *t, *b)
            }
            (Given::Library(call), Given::Library(other)) => call.equals(*other),
            _ => false,
        }
    }

    /// Take over the arguments of what is given, which matches.
    pub(super) fn update(&mut self, given: &Given<'_>) {
        if let (Command::Kernel { arguments, is_captured, .. }, Given::Kernel { arguments: new, .. }) = (self, given)
            && arguments.bytes() != *new
        {
            arguments.bytes_mut().copy_from_slice(new);
            *is_captured = false;
        }
    }

    /// The graph has these arguments now.
    pub(super) fn set_captured(&mut self) {
        if let Command::Kernel { is_captured, .. } = self {
            *is_captured = true;
        }
    }

    /// Whether the graph has other arguments.
    pub(super) fn is_changed(&self) -> bool {
        matches!(self, Command::Kernel { is_captured: false, .. })
    }
}
