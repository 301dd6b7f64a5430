//! PyTorch's own files of weights, read without running anything that is in them, and written.
//!
//! - `reader`: [`PickleFile`], positioned reads of one tensor at a time.
//! - `archive`, `legacy`: the two containers, which locate storages.
//! - `machine`, over `opcode`, `globals` and `value`: the pickle as inert values.
//! - `state`: the dictionary of tensors and their views; `strided`: those that are not contiguous.
//! - `tree`: tensors and other values anywhere in a file, by path.
//! - `writer` over `archive_writer`: [`write_pickle`], the archive that `torch.load` opens.
//! - `input`: a stretch of a file, with bounds.
//! - `single`: one tensor that was saved by itself, in a stretch of a file.
//! - `plain`: [`PlainPickle`], values other than tensors, for datasets.
//!
//! A pickle is a program: the usual reader looks names up in the running process and calls them, so the author of the
//! file runs code on the reader's machine. Here nothing is looked up and nothing is called. A few names are
//! interpreted, all others stay text, and a call of any of those stops reading with its byte and name. What the file is
//! allowed
//! to decide is which bytes of itself are which tensor, and that is checked against its length.
//! Called by [`crate::formats::weights`] and by programs that read or write a single file.

mod archive;
mod archive_writer;
mod globals;
pub mod input;
mod legacy;
mod machine;
pub mod opcode;
mod plain;
mod reader;
mod single;
mod state;
mod strided;
mod tree;
mod value;
mod writer;

pub use plain::PlainPickle;
pub use reader::PickleFile;
pub(in crate::formats) use single::{read_elements, saved_tensor};
pub use tree::Scalar;
pub use value::{Id, Value};
pub use writer::write_pickle;
