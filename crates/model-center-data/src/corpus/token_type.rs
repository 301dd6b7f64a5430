//! How token ids are stored.
//!
//! Defines [`TokenType`], with the codes of Megatron-LM's index files.

use crate::{Error, Result};

/// The integer type of the stored ids; numbers are stored least significant byte first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenType {
    /// 1 byte, code 1.
    U8,
    /// 1 byte, signed, code 2.
    I8,
    /// 2 bytes, signed, code 3.
    I16,
    /// 4 bytes, signed, code 4.
    I32,
    /// 8 bytes, signed, code 5.
    I64,
    /// 2 bytes, code 8.
    U16,
}

impl TokenType {
    /// Every type.
    pub const ALL: [TokenType; 6] =
        [TokenType::U8, TokenType::I8, TokenType::I16, TokenType::I32, TokenType::I64, TokenType::U16];

    /// The type that Megatron-LM chooses for a vocabulary: 2 bytes below 65,500 tokens, else 4.
    pub fn for_vocabulary(tokens: usize) -> TokenType {
        if tokens < 65_500 { TokenType::U16 } else { TokenType::I32 }
    }

    /// The code in index files.
    pub const fn code(self) -> u8 {
        match self {
            TokenType::U8 => 1,
            TokenType::I8 => 2,
            TokenType::I16 => 3,
            TokenType::I32 => 4,
            TokenType::I64 => 5,
            TokenType::U16 => 8,
        }
    }

    /// The type of a code; `Err` is the reason why there is none.
    pub(super) fn of_code(code: u64) -> std::result::Result<TokenType, String> {
        if let Some(known) = TokenType::ALL.into_iter().find(|known| u64::from(known.code()) == code) {
            return Ok(known);
        }
        Err(match code {
            6 | 7 => format!("dtype code {code} is a floating-point type: the file has no token ids"),
            _ => format!("unknown dtype code {code}; known: 1 to 5 and 8"),
        })
    }

    /// Bytes of one id.
    pub const fn bytes(self) -> u64 {
        match self {
            TokenType::U8 | TokenType::I8 => 1,
            TokenType::I16 | TokenType::U16 => 2,
            TokenType::I32 => 4,
            TokenType::I64 => 8,
        }
    }

    /// The largest id that can be stored, and is one of ours.
    pub const fn max_id(self) -> u32 {
        match self {
            TokenType::U8 => u8::MAX as u32,
            TokenType::I8 => i8::MAX as u32,
            TokenType::I16 => i16::MAX as u32,
            TokenType::U16 => u16::MAX as u32,
            TokenType::I32 => i32::MAX as u32,
            TokenType::I64 => u32::MAX,
        }
    }

    /// The name in NumPy.
    pub const fn name(self) -> &'static str {
        match self {
            TokenType::U8 => "uint8",
            TokenType::I8 => "int8",
            TokenType::I16 => "int16",
            TokenType::I32 => "int32",
            TokenType::I64 => "int64",
            TokenType::U16 => "uint16",
        }
    }

    /// Appends the stored form of `ids`.
    ///
    /// # Errors
    /// [`Error::Argument`] for an id that the type cannot hold.
    pub fn encode(self, ids: &[u32], bytes: &mut Vec<u8>) -> Result<()> {
        if let Some(id) = ids.iter().find(|id| **id > self.max_id()) {
            let reason = format!("token id {id} does not fit {}, which ends at {}", self.name(), self.max_id());
            return Err(Error::argument("token type", reason, "store the ids as int32"));
        }
        fn each<const N: usize>(ids: &[u32], bytes: &mut Vec<u8>, stored: impl Fn(u32) -> [u8; N]) {
            let start = bytes.len();
            bytes.resize(start + N * ids.len(), 0);
            for (place, id) in bytes[start..].as_chunks_mut::<N>().0.iter_mut().zip(ids) {
                *place = stored(*id);
            }
        }
        match self {
            TokenType::U8 | TokenType::I8 => each(ids, bytes, |id| [id as u8]),
            TokenType::I16 | TokenType::U16 => each(ids, bytes, |id| (id as u16).to_le_bytes()),
            TokenType::I32 => each(ids, bytes, u32::to_le_bytes),
            TokenType::I64 => each(ids, bytes, |id| u64::from(id).to_le_bytes()),
        }
        Ok(())
    }

    /// Writes ids of their stored form; the index and value of the first that is not a token id as the error.
    pub(super) fn decode(self, bytes: &[u8], ids: &mut [u32]) -> std::result::Result<(), (usize, i64)> {
        fn each<const N: usize>(
            bytes: &[u8],
            ids: &mut [u32],
            value: impl Fn([u8; N]) -> i64,
        ) -> std::result::Result<(), (usize, i64)> {
            for (at, (stored, id)) in bytes.as_chunks::<N>().0.iter().zip(ids).enumerate() {
                let value = value(*stored);
                *id = u32::try_from(value).map_err(|_| (at, value))?;
            }
            Ok(())
        }
        match self {
            TokenType::U8 => each(bytes, ids, |[byte]| i64::from(byte)),
            TokenType::I8 => each(bytes, ids, |stored| i64::from(i8::from_le_bytes(stored))),
            TokenType::I16 => each(bytes, ids, |stored| i64::from(i16::from_le_bytes(stored))),
            TokenType::U16 => each(bytes, ids, |stored| i64::from(u16::from_le_bytes(stored))),
            TokenType::I32 => each(bytes, ids, |stored| i64::from(i32::from_le_bytes(stored))),
            TokenType::I64 => each(bytes, ids, i64::from_le_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_returns_the_ids_it_stored_and_refuses_larger_ones() {
        for stored in TokenType::ALL {
            assert_eq!(TokenType::of_code(u64::from(stored.code())), Ok(stored));
            let ids = [0, 1, 77, stored.max_id()];
            let mut bytes = Vec::new();
            stored.encode(&ids, &mut bytes).unwrap();
            assert_eq!(bytes.len() as u64, 4 * stored.bytes());
            let mut back = [9; 4];
            stored.decode(&bytes, &mut back).unwrap();
            assert_eq!(back, ids);
            if let Some(above) = stored.max_id().checked_add(1) {
                assert!(stored.encode(&[above], &mut bytes).is_err());
            }
        }
    }

    #[test]
    fn negative_values_and_floats_are_no_token_ids() {
        assert_eq!(TokenType::I16.decode(&[1, 0, 0xFF, 0xFF], &mut [0; 2]), Err((1, -1)));
        assert_eq!(TokenType::I64.decode(&[0, 0, 0, 0, 1, 0, 0, 0], &mut [0]), Err((0, 1 << 32)));
        assert!(TokenType::of_code(6).unwrap_err().contains("floating-point"));
        assert!(TokenType::of_code(9).unwrap_err().contains("unknown"));
    }

    #[test]
    fn vocabularies_choose_the_type_that_megatron_chooses() {
        assert_eq!(TokenType::for_vocabulary(65_499), TokenType::U16);
        assert_eq!(TokenType::for_vocabulary(65_500), TokenType::I32);
    }
}
