//! The CRC-64 of ECMA-182 with reflected bits, by which stores of Aliyun check contents.

/// The polynomial, its bits reversed.
const POLYNOMIAL: u64 = 0xc96c_5795_d787_0f42;

const TABLE: [u64; 256] = table();

const fn table() -> [u64; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut value, mut bit) = (byte as u64, 0);
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ POLYNOMIAL } else { value >> 1 };
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
}

/// A checksum of what was taken in so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct Crc64(u64);

impl Crc64 {
    pub(super) fn new() -> Self {
        Crc64(!0)
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = TABLE[usize::from(self.0 as u8 ^ byte)] ^ (self.0 >> 8);
        }
    }

    pub(super) fn value(self) -> u64 {
        !self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_of_the_standard_is_met() {
        let mut crc = Crc64::new();
        crc.update(b"1234");
        crc.update(b"56789");
        assert_eq!(crc.value(), 0x995d_c9bb_df19_39fa);
    }
}
