//! CRC-32C, the checksum of the polynomial of Castagnoli, by tables for eight bytes at a time.

/// The polynomial, its bits in reverse.
const POLYNOMIAL: u32 = 0x82F6_3B78;
/// TensorFlow's addition to a rotated checksum.
const DELTA: u32 = 0xA282_EAD8;

/// Table t has the checksum of each byte followed by t zero bytes.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut sum = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            sum = sum >> 1 ^ if sum & 1 == 1 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        tables[0][byte] = sum;
        byte += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before: u32 = tables[table - 1][byte];
            tables[table][byte] = before >> 8 ^ tables[0][(before & 0xFF) as usize];
            byte += 1;
        }
        table += 1;
    }
    tables
}

/// The checksum of bytes.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut sum = u32::MAX;
    let (eights, rest) = bytes.as_chunks::<8>();
    for [a, b, c, d, e, f, g, h] in eights {
        let low = (u32::from_le_bytes([*a, *b, *c, *d]) ^ sum).to_le_bytes();
        let eight = [low[0], low[1], low[2], low[3], *e, *f, *g, *h];
        sum = eight.iter().zip(TABLES.iter().rev()).fold(0, |sum, (byte, table)| sum ^ table[usize::from(*byte)]);
    }
    for byte in rest {
        sum = sum >> 8 ^ TABLES[0][usize::from(sum as u8 ^ byte)];
    }
    !sum
}

/// The checksum as it is stored.
pub fn masked(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(DELTA)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of RFC 3720, B.4, and the check value of the catalogue of CRC algorithms.
    #[test]
    fn published_checksums_hold() {
        let rising: Vec<u8> = (0..32).collect();
        let falling: Vec<u8> = (0..32).rev().collect();
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFF; 32]), 0x62A8_AB43);
        assert_eq!(crc32c(&rising), 0x46DD_794E);
        assert_eq!(crc32c(&falling), 0x113F_DB5C);
        assert_eq!(crc32c(b""), 0);
    }
}
