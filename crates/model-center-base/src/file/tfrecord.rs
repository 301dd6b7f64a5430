//! Records of TensorFlow's files: the frame around each, and the fields of its messages.
//!
//! TFRecord files and the event files of TensorBoard have the same frame; `corpus::formats` describes it.

use super::crc32c::masked;
use std::io::Write;

/// Writes a record with its length and checksums.
pub fn write_framed(out: &mut dyn Write, record: &[u8]) -> std::io::Result<()> {
    let length = (record.len() as u64).to_le_bytes();
    [&length[..], &masked(&length).to_le_bytes(), record, &masked(record).to_le_bytes()]
        .iter()
        .try_for_each(|part| out.write_all(part))
}

/// Appends field `number` of a message, a byte string.
pub fn put_bytes(number: u64, bytes: &[u8], out: &mut Vec<u8>) {
    put_varint(number << 3 | 2, out);
    put_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Appends an integer in base 128, least significant digit first.
pub fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
