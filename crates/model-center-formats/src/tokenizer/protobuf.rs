//! The binary form of a SentencePiece model: protocol buffers, as far as that file needs them.
//!
//! Defines [`Fields`], an iterator over the fields of one message, and [`Field`]. Nothing is copied and no memory is
//! taken: every length is checked against the bytes that are there. Called by [`super::sentencepiece`].
//!
//! Source: the encoding as the documentation of Protocol Buffers describes it.

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Field<'a> {
    pub(super) number: u64,
    pub(super) value: Wire<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Wire<'a> {
    /// A whole number, a truth value or one of a list of names.
    Whole(u64),
    Eight([u8; 8]),
    /// Text, bytes or a message.
    Bytes(&'a [u8]),
    /// Four bytes, such as a number in single precision.
    Four([u8; 4]),
}

/// The fields of one message, in the order of the file; an item is an error once, and the last.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    rest: &'a [u8],
    length: usize,
}

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields { rest: bytes, length: bytes.len() }
    }

    /// A whole number of up to 64 bits, seven to a byte, the lowest first.
    fn whole(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            let bits = u64::from(byte & 0x7F);
            // The tenth byte has room for one bit.
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, length: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(usize::try_from(length).ok()?)?;
        self.rest = rest;
        Some(taken)
    }

    fn field(&mut self) -> Option<Field<'a>> {
        let key = self.whole()?;
        let value = match key & 7 {
            0 => Wire::Whole(self.whole()?),
            1 => Wire::Eight(self.take(8)?.try_into().ok()?),
            2 => {
                let length = self.whole()?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Four(self.take(4)?.try_into().ok()?),
            // Groups, which are no longer in use and not in this file.
            _ => return None,
        };
        // Numbers of fields begin with 1.
        (key >> 3 != 0).then_some(Field { number: key >> 3, value })
    }
}

impl<'a> Iterator for Fields<'a> {
    /// A field, or how far the message could be read.
    type Item = Result<Field<'a>, usize>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let at = self.length - self.rest.len();
        let field = self.field();
        if field.is_none() {
            self.rest = &[];
        }
        Some(field.ok_or(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(bytes: &[u8]) -> Result<Vec<Field<'_>>, usize> {
        Fields::new(bytes).collect()
    }

    #[test]
    fn every_kind_of_field_is_read() {
        let bytes = [0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x1D, 0, 0, 0x80, 0x3F, 0x21, 1, 2, 3, 4, 5, 6, 7, 8];
        let expected = [
            (1, Wire::Whole(150)),
            (2, Wire::Bytes(b"hi")),
            (3, Wire::Four(1f32.to_le_bytes())),
            (4, Wire::Eight([1, 2, 3, 4, 5, 6, 7, 8])),
        ];
        assert_eq!(fields(&bytes).unwrap(), expected.map(|(number, value)| Field { number, value }));
        let negative = [&[0x08][..], &[0xFF; 9], &[1]].concat();
        assert_eq!(fields(&negative).unwrap()[0].value, Wire::Whole(u64::MAX));
    }

    #[test]
    fn what_goes_past_the_end_is_an_error_with_its_place() {
        assert_eq!(fields(&[0x08, 1, 0x12, 3, b'h', b'i']), Err(2), "a length past the end");
        assert_eq!(fields(&[0x12, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1]), Err(0), "a huge length");
        assert_eq!(fields(&[0x08, 0x80]), Err(0), "half a number");
        assert_eq!(fields(&[&[0x08][..], &[0xFF; 10]].concat()), Err(0), "a number of more than 64 bits");
        assert_eq!(fields(&[0x1D, 0, 0]), Err(0), "half of four bytes");
        assert_eq!(fields(&[0x0B]), Err(0), "a group");
        assert_eq!(fields(&[0x00, 1]), Err(0), "field 0");
    }
}
