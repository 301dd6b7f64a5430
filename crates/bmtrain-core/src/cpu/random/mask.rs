//! Dropout masks: many blocks of the generator at once, as vector code.

use crate::kernel::Dropout;
use crate::simd::vectorised;

/// Blocks made at once; 64 random numbers.
const BLOCKS: usize = 16;
const WORDS: usize = 4 * BLOCKS;

/// Write the multiplier (0 or `dropout.scale`) of the elements from `first_element` of the unsharded tensor on.
///
/// [`Dropout::row`] gives the address of a row's first element. Any start and length; long runs are fastest, about a
/// nanosecond for each element or less.
pub(in crate::cpu) fn dropout_multipliers(dropout: &Dropout, first_element: u64, out: &mut [f32]) {
    multipliers(dropout, first_element, out);
}

vectorised! {
    fn multipliers<I>(dropout: &Dropout, first_element: u64, out: &mut [f32]) {
        let (mut block, skip) = (first_element / 4, (first_element % 4) as usize);
        let mut out = out;
        // The first numbers may belong to elements before the first one.
        if skip > 0 {
            let mut words = [0.0; WORDS];
            some_blocks(dropout, block, &mut words);
            let len = out.len().min(WORDS - skip);
            let (head, rest) = std::mem::take(&mut out).split_at_mut(len);
            head.copy_from_slice(&words[skip..skip + len]);
            (out, block) = (rest, block.wrapping_add(BLOCKS as u64));
        }
        // After a skip the rest starts on a whole block again.
        let mut chunks = out.chunks_exact_mut(WORDS);
        for chunk in &mut chunks {
            if let Ok(chunk) = chunk.try_into() {
                some_blocks(dropout, block, chunk);
            }
            block = block.wrapping_add(BLOCKS as u64);
        }
        let rest = chunks.into_remainder();
        if !rest.is_empty() {
            let mut words = [0.0; WORDS];
            some_blocks(dropout, block, &mut words);
            rest.copy_from_slice(&words[..rest.len()]);
        }
    }
}

/// [`philox::block`](crate::philox::block) for [`BLOCKS`] counters, compared with the threshold.
///
/// The four numbers of a block are kept in 64-bit lanes with only the low half in use: that is the form in which
/// vector units multiply 32-bit numbers into 64 bits, so no lane is ever moved until the end.
#[inline(always)]
fn some_blocks(dropout: &Dropout, first_block: u64, out: &mut [f32; WORDS]) {
    const LOW: u64 = 0xffff_ffff;
    let mut c0 = [0u64; BLOCKS];
    let mut c1 = [0u64; BLOCKS];
    let mut c2 = [u64::from(dropout.step); BLOCKS];
    let mut c3 = [u64::from(dropout.micro_batch); BLOCKS];
    for i in 0..BLOCKS {
        let block = first_block.wrapping_add(i as u64);
        (c0[i], c1[i]) = (block, block >> 32);
    }
    let [mut k0, mut k1] = dropout.key.0;
    for _ in 0..10 {
        let (a, b) = (u64::from(k0), u64::from(k1));
        for i in 0..BLOCKS {
            let p0 = (c0[i] & LOW) * 0xd251_1f53;
            let p1 = (c2[i] & LOW) * 0xcd9e_8d57;
            (c0[i], c1[i], c2[i], c3[i]) = ((p1 >> 32) ^ c1[i] ^ a, p1, (p0 >> 32) ^ c3[i] ^ b, p0);
        }
        k0 = k0.wrapping_add(0x9e37_79b9);
        k1 = k1.wrapping_add(0xbb67_ae85);
    }
    // The upper halves hold what was multiplied over; two numbers to a lane, in their order in memory.
    let mut words = [0u64; 2 * BLOCKS];
    for i in 0..BLOCKS {
        words[2 * i] = (c0[i] & LOW) | (c1[i] << 32);
        words[2 * i + 1] = (c2[i] & LOW) | (c3[i] << 32);
    }
    for (pair, word) in out.chunks_exact_mut(2).zip(words) {
        pair[0] = if (word as u32) < dropout.threshold { 0.0 } else { dropout.scale };
        pair[1] = if ((word >> 32) as u32) < dropout.threshold { 0.0 } else { dropout.scale };
    }
}
