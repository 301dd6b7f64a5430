//! Integers that are stored as packed differences, as far as their number has to be known before they are decoded.
//!
//! Defines [`deltas`].

/// End of a list of packed differences; `None` if it is none, is cut off, or has more than `most` numbers.
///
/// The list begins with the size of a block, the number of miniblocks in one, the number of integers and the first of
/// them. A block has its least difference, the width of each miniblock in bits and the miniblocks.
///
/// Source: Parquet's encoding DELTA_BINARY_PACKED.
pub(super) fn deltas(bytes: &[u8], most: u64) -> Option<usize> {
    let mut at = 0;
    let block = varint(bytes, &mut at)?;
    let miniblocks = varint(bytes, &mut at)?;
    let count = varint(bytes, &mut at)?;
    varint(bytes, &mut at)?;
    if count > most || miniblocks == 0 || block % miniblocks != 0 || !(block / miniblocks).is_multiple_of(32) {
        return None;
    }
    let per_miniblock = block / miniblocks;
    let miniblocks = usize::try_from(miniblocks).ok()?;
    let mut left = count.saturating_sub(1);
    // A block of nothing would never end the list.
    if per_miniblock == 0 && left > 0 {
        return None;
    }
    while left > 0 {
        varint(bytes, &mut at)?;
        let widths = bytes.get(at..at.checked_add(miniblocks)?)?;
        let mut length = miniblocks as u64;
        for width in widths {
            // What miniblocks without integers have for a width counts nothing.
            if left == 0 {
                break;
            }
            length = length.checked_add(u64::from(*width).checked_mul(per_miniblock)? / 8)?;
            left = left.saturating_sub(per_miniblock);
        }
        at = usize::try_from(length).ok().and_then(|length| at.checked_add(length))?;
        // Writers may leave out what the last miniblock has beyond the last integer.
        if at > bytes.len() && left > 0 {
            return None;
        }
    }
    Some(at)
}

fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_end_where_their_last_miniblock_does() {
        // 128 in a block of 4 miniblocks; 34 integers, so that two miniblocks count, of 3 bits and 1 bit.
        let list = [&[0x80, 1, 4, 34, 0, 0, 3, 1, 7, 7][..], &[0; 16], b"rest"].concat();
        assert_eq!(deltas(&list, 34), Some(26));
        assert_eq!(deltas(&list, 33), None);
        assert_eq!(deltas(&list[..9], 34), None);
        assert_eq!(deltas(&[0x80, 1, 4, 1, 6], 1), Some(5), "one integer has no block");
        assert_eq!(deltas(&[0x80, 1, 0, 1, 6], 1), None);
        assert_eq!(deltas(&[0, 4, 9, 6], 9), None);
    }

    #[test]
    fn what_a_few_bytes_promise_is_bounded() {
        // 2^28 integers without a bit each.
        let list = [0x80, 0x80, 0x80, 0x80, 1, 1, 0x80, 0x80, 0x80, 0x80, 1, 0, 0, 0];
        assert_eq!(deltas(&list, 1 << 24), None);
        assert_eq!(deltas(&list, 1 << 28), Some(14));
    }
}
