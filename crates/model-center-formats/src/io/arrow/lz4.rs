//! Frames of LZ4, which Feather's buffers are packed in by default.
//!
//! Defines [`unpack`]. Checksums are not compared: Arrow's writers leave them out.

/// Why a frame cannot be unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Damaged;

const MAGIC: [u8; 4] = [0x04, 0x22, 0x4D, 0x18];

/// Bytes that are taken one after another.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Damaged> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Damaged)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Damaged> {
        self.take(N)?.first_chunk().copied().ok_or(Damaged)
    }

    fn byte(&mut self) -> Result<u8, Damaged> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// A length that goes on in further bytes where four bits do not suffice.
    fn length(&mut self, bits: u8) -> Result<usize, Damaged> {
        let mut length = usize::from(bits);
        let mut more = bits == 15;
        while more {
            let byte = self.byte()?;
            length = length.checked_add(usize::from(byte)).ok_or(Damaged)?;
            more = byte == 255;
        }
        Ok(length)
    }
}

/// The `length` bytes that a frame holds.
pub(super) fn unpack(frame: &[u8], length: usize) -> Result<Vec<u8>, Damaged> {
    let mut input = Input(frame);
    if input.array()? != MAGIC {
        return Err(Damaged);
    }
    let [flags, _] = input.array()?;
    let has = |bit: u8| flags >> bit & 1 == 1;
    if flags >> 6 != 1 {
        return Err(Damaged);
    }
    // The size of the content, the number of a dictionary, and a checksum of this header.
    input.take(if has(3) { 8 } else { 0 } + if has(0) { 4 } else { 0 } + 1)?;
    let mut out = Vec::new();
    loop {
        let size = u32::from_le_bytes(input.array()?);
        if size == 0 {
            return if out.len() == length { Ok(out) } else { Err(Damaged) };
        }
        let block = input.take((size & 0x7FFF_FFFF) as usize)?;
        match size >> 31 {
            1 if block.len() <= length - out.len() => out.extend_from_slice(block),
            1 => return Err(Damaged),
            _ => unpack_block(&mut Input(block), &mut out, length)?,
        }
        if has(4) {
            input.take(4)?;
        }
    }
}

/// Literal bytes, and repetitions of what was unpacked before.
fn unpack_block(input: &mut Input<'_>, out: &mut Vec<u8>, most: usize) -> Result<(), Damaged> {
    loop {
        let token = input.byte()?;
        let count = input.length(token >> 4)?;
        let literal = input.take(count)?;
        if count > most - out.len() {
            return Err(Damaged);
        }
        out.extend_from_slice(literal);
        if input.0.is_empty() {
            return Ok(());
        }
        let back = usize::from(u16::from_le_bytes(input.array()?));
        let count = input.length(token & 15)?.checked_add(4).ok_or(Damaged)?;
        let start = out.len().checked_sub(back).filter(|_| back > 0).ok_or(Damaged)?;
        if count > most - out.len() {
            return Err(Damaged);
        }
        // What is copied may reach into itself.
        for at in start..start + count {
            out.push(*out.get(at).ok_or(Damaged)?);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(blocks: &[(u32, &[u8])]) -> Vec<u8> {
        let mut bytes = [&MAGIC[..], &[0x60, 0x40, 0x82]].concat();
        for (flag, block) in blocks {
            bytes.extend((block.len() as u32 | flag << 31).to_le_bytes());
            bytes.extend(*block);
        }
        bytes.extend([0; 4]);
        bytes
    }

    #[test]
    fn literals_and_repetitions_are_unpacked_within_bounds() {
        // "ab", then 19 bytes from two before, then "c".
        let packed = [0x2F, b'a', b'b', 2, 0, 0, 0x10, b'c'];
        assert_eq!(unpack(&frame(&[(0, &packed)]), 22), Ok([b"ab".repeat(10), b"ac".to_vec()].concat()));
        assert_eq!(unpack(&frame(&[(1, b"xyz"), (0, &packed)]), 25).map(|out| out.len()), Ok(25));
        let long = [&[0xF0, 255, 5][..], &[b'q'; 275]].concat();
        assert_eq!(unpack(&frame(&[(0, &long)]), 275), Ok(vec![b'q'; 275]));
        // Another length than stated, a repetition of what is not there, and every cut.
        for length in [21, 23] {
            assert_eq!(unpack(&frame(&[(0, &packed)]), length), Err(Damaged));
        }
        assert_eq!(unpack(&frame(&[(0, &[0x10, b'a', 2, 0, 0x10, b'c'])]), 6), Err(Damaged));
        let whole = frame(&[(0, &packed)]);
        for end in 0..whole.len() {
            assert_eq!(unpack(&whole[..end], 22), Err(Damaged), "{end}");
        }
    }
}
