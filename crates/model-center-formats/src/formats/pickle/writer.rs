//! Write tensors as the archive that `torch.load` opens, also with `weights_only=True`.
//!
//! Defines [`write_pickle`]; called by programs that hand weights to what reads nothing but PyTorch's own files.

use std::collections::HashSet;
use std::path::Path;

use super::super::safetensors::{StoredDtype, TensorEntry, is_tensor_name};
use super::super::stored::{CHUNK, narrow, tensor_place};
use super::archive_writer::ArchiveWriter;
use super::opcode;
use crate::{Error, Result};
use model_center_base::file::AtomicFile;

/// Pairs that are put into a dictionary at a time, as the usual writer does.
const BATCH: usize = 1000;

/// Write `tensors` as a dictionary in their order, each with a storage of its own, in f32, f16 or bf16.
///
/// `fill` puts the values of the named tensor, row-major, into an empty vector; it is called once for each. The file
/// appears under its name when it is complete. Numerics: f16 and bf16 round to nearest, ties to even. Memory: one
/// tensor in single precision.
pub fn write_pickle(
    path: &Path,
    tensors: &[TensorEntry],
    mut fill: impl FnMut(&str, &mut Vec<f32>) -> Result<()>,
) -> Result<()> {
    let bad = |entry: &TensorEntry, reason: String| {
        let fix = "give every tensor one name, a type that holds its values and all of them";
        Error::model(tensor_place(path.display(), &entry.name), reason, fix)
    };
    let mut names = HashSet::new();
    for entry in tensors {
        if !is_tensor_name(&entry.name) || !names.insert(&entry.name) {
            let reason = "the name appears twice, is empty, too long or has control characters in it".into();
            return Err(bad(entry, reason));
        }
        if storage_class(entry.dtype).is_none() {
            return Err(bad(entry, format!("{:?} is not written, only F32, F16 and BF16 are", entry.dtype)));
        }
        if entry.bytes().is_none() || entry.shape.iter().any(|d| i64::try_from(*d).is_err()) {
            return Err(bad(entry, "the size overflows".into()));
        }
    }
    drop(names);
    let file = AtomicFile::create(path)?;
    let mut archive = ArchiveWriter::new(&file);
    archive.entry("data.pkl", &pickle_of(tensors))?;
    archive.entry("byteorder", b"little")?;
    let (mut values, mut bytes) = (Vec::new(), Vec::new());
    for (key, entry) in tensors.iter().enumerate() {
        values.clear();
        fill(&entry.name, &mut values)?;
        if entry.elements() != Some(values.len()) {
            return Err(bad(entry, format!("got {} values for shape {:?}", values.len(), entry.shape)));
        }
        let mut data = archive.begin(&format!("data/{key}"), entry.bytes().unwrap_or(0) as u64)?;
        for part in values.chunks(CHUNK) {
            narrow(entry.dtype, part, &mut bytes).map_err(|reason| bad(entry, reason))?;
            data.put(&bytes)?;
        }
        data.end()?;
    }
    archive.entry("version", b"3\n")?;
    archive.finish()?;
    file.commit()
}

fn storage_class(dtype: StoredDtype) -> Option<&'static str> {
    match dtype {
        StoredDtype::F32 => Some("FloatStorage"),
        StoredDtype::F16 => Some("HalfStorage"),
        StoredDtype::BF16 => Some("BFloat16Storage"),
        _ => None,
    }
}

/// The pickle of an ordered dictionary from names to tensors. Nothing is remembered: PyTorch reads it all the same.
pub(super) fn pickle_of(tensors: &[TensorEntry]) -> Vec<u8> {
    let mut out = vec![opcode::PROTO, 2];
    empty_dictionary(&mut out);
    for (batch, entries) in tensors.chunks(BATCH).enumerate() {
        out.push(opcode::MARK);
        for (i, entry) in entries.iter().enumerate() {
            text(&mut out, &entry.name);
            tensor(&mut out, entry, batch * BATCH + i);
        }
        out.push(opcode::SETITEMS);
    }
    out.push(opcode::STOP);
    out
}

/// A call of the constructor of tensors: storage, offset, size, stride, whether it wants a gradient, hooks.
fn tensor(out: &mut Vec<u8>, entry: &TensorEntry, key: usize) {
    global(out, "torch._utils", "_rebuild_tensor_v2");
    out.extend([opcode::MARK, opcode::MARK]);
    text(out, "storage");
    global(out, "torch", storage_class(entry.dtype).unwrap_or_default());
    text(out, &key.to_string());
    text(out, "cpu");
    integer(out, entry.elements().unwrap_or(0));
    out.extend([opcode::TUPLE, opcode::BINPERSID]);
    integer(out, 0);
    tuple(out, &entry.shape);
    let mut strides = vec![1; entry.shape.len()];
    for axis in (1..strides.len()).rev() {
        // Of an empty tensor no element is reached, and its other axes may be of any length.
        strides[axis - 1] = usize::saturating_mul(strides[axis], entry.shape[axis].max(1)).min(i64::MAX as usize);
    }
    tuple(out, &strides);
    out.push(opcode::NEWFALSE);
    empty_dictionary(out);
    out.extend([opcode::TUPLE, opcode::REDUCE]);
}

fn empty_dictionary(out: &mut Vec<u8>) {
    global(out, "collections", "OrderedDict");
    out.extend([opcode::EMPTY_TUPLE, opcode::REDUCE]);
}

fn global(out: &mut Vec<u8>, module: &str, name: &str) {
    out.push(opcode::GLOBAL);
    out.extend(format!("{module}\n{name}\n").as_bytes());
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.push(opcode::BINUNICODE);
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text.as_bytes());
}

fn tuple(out: &mut Vec<u8>, numbers: &[usize]) {
    out.push(opcode::MARK);
    for number in numbers {
        integer(out, *number);
    }
    out.push(opcode::TUPLE);
}

fn integer(out: &mut Vec<u8>, number: usize) {
    match i32::try_from(number) {
        Ok(number) => {
            out.push(opcode::BININT);
            out.extend(number.to_le_bytes());
        }
        Err(_) => {
            out.extend([opcode::LONG1, 8]);
            out.extend((number as u64).to_le_bytes());
        }
    }
}
