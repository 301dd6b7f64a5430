//! The message `tf.train.Example` of Protocol Buffers: features by name.
//!
//! Example { 1: Features { 1: map entry { 1: name, 2: Feature } } }, and Feature { 1: list of bytes | 2: of floats | 3:
//! of integers }, the numbers packed or one by one. Defines [`Example`].

use model_center_base::file::{put_bytes, put_varint};

/// The values of a feature.
#[derive(Debug, Clone, PartialEq)]
pub enum Feature {
    /// Texts or other bytes.
    Bytes(Vec<Vec<u8>>),
    /// Numbers of 32 bits.
    Floats(Vec<f32>),
    /// Integers of 64 bits.
    Integers(Vec<i64>),
}

/// Features by name, in the order of the record.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Example {
    /// Names are unique after reading: of several, the last counts.
    pub features: Vec<(String, Feature)>,
}

/// A field of a message.
enum Field<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    Word(u32),
    Other,
}

impl Example {
    /// Reads a record; the error is the reason why it is none.
    pub fn read(record: &[u8]) -> Result<Example, String> {
        let mut example = Example::default();
        each_field(record, &mut |number, field| match (number, field) {
            (1, Field::Bytes(features)) => each_field(features, &mut |number, field| match (number, field) {
                (1, Field::Bytes(entry)) => example.read_entry(entry),
                _ => Ok(()),
            }),
            _ => Ok(()),
        })?;
        Ok(example)
    }

    fn read_entry(&mut self, entry: &[u8]) -> Result<(), String> {
        let (mut name, mut feature) = (String::new(), None);
        each_field(entry, &mut |number, field| {
            match (number, field) {
                (1, Field::Bytes(bytes)) => {
                    name = String::from_utf8(bytes.to_vec()).map_err(|_| "a name that is not UTF-8".to_owned())?;
                }
                (2, Field::Bytes(bytes)) => feature = read_feature(bytes)?.or(feature.take()),
                _ => {}
            }
            Ok(())
        })?;
        self.features.retain(|(known, _)| *known != name);
        // A feature without a list is one without values of any kind.
        self.features.push((name, feature.unwrap_or(Feature::Bytes(Vec::new()))));
        Ok(())
    }

    /// The feature of a name.
    pub fn get(&self, name: &str) -> Option<&Feature> {
        self.features.iter().find(|(known, _)| known == name).map(|(_, feature)| feature)
    }

    /// The integers of a feature; the error is the reason why there are none.
    pub fn integers(&self, name: &str) -> Result<&[i64], String> {
        match self.get(name) {
            Some(Feature::Integers(values)) => Ok(values),
            Some(Feature::Bytes(values)) if values.is_empty() => Ok(&[]),
            Some(_) => Err(format!("the feature {name:?} has no integers")),
            None => {
                let known: Vec<&str> = self.features.iter().map(|(name, _)| name.as_str()).collect();
                Err(format!("no feature {name:?}, but {}", model_center_base::file::printable(&known.join(", "), 200)))
            }
        }
    }

    /// The record.
    pub fn write(&self) -> Vec<u8> {
        let mut features = Vec::new();
        for (name, feature) in &self.features {
            let mut list = Vec::new();
            let kind = match feature {
                Feature::Bytes(values) => {
                    values.iter().for_each(|value| put_bytes(1, value, &mut list));
                    1
                }
                Feature::Floats(values) => {
                    let packed: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                    put_bytes(1, &packed, &mut list);
                    2
                }
                Feature::Integers(values) => {
                    let mut packed = Vec::new();
                    values.iter().for_each(|value| put_varint(value.cast_unsigned(), &mut packed));
                    put_bytes(1, &packed, &mut list);
                    3
                }
            };
            let (mut value, mut entry) = (Vec::new(), Vec::new());
            put_bytes(kind, &list, &mut value);
            put_bytes(1, name.as_bytes(), &mut entry);
            put_bytes(2, &value, &mut entry);
            put_bytes(1, &entry, &mut features);
        }
        let mut record = Vec::new();
        put_bytes(1, &features, &mut record);
        record
    }
}

/// The list of a feature, `None` if it has none.
fn read_feature(bytes: &[u8]) -> Result<Option<Feature>, String> {
    let mut feature = None;
    each_field(bytes, &mut |number, field| {
        let Field::Bytes(list) = field else { return Ok(()) };
        match number {
            1 => feature = Some(Feature::Bytes(read_bytes(list)?)),
            2 => feature = Some(Feature::Floats(read_floats(list)?)),
            3 => feature = Some(Feature::Integers(read_integers(list)?)),
            _ => {}
        }
        Ok(())
    })?;
    Ok(feature)
}

fn read_bytes(list: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let mut values = Vec::new();
    each_field(list, &mut |number, field| {
        if let (1, Field::Bytes(value)) = (number, field) {
            values.push(value.to_vec());
        }
        Ok(())
    })?;
    Ok(values)
}

fn read_floats(list: &[u8]) -> Result<Vec<f32>, String> {
    let mut values = Vec::new();
    each_field(list, &mut |number, field| {
        match (number, field) {
            (1, Field::Bytes(packed)) => {
                let (words, rest) = packed.as_chunks::<4>();
                if !rest.is_empty() {
                    return Err(format!("a list of floats of {} bytes", packed.len()));
                }
                values.extend(words.iter().map(|word| f32::from_le_bytes(*word)));
            }
            (1, Field::Word(word)) => values.push(f32::from_bits(word)),
            _ => {}
        }
        Ok(())
    })?;
    Ok(values)
}

fn read_integers(list: &[u8]) -> Result<Vec<i64>, String> {
    let mut values = Vec::new();
    each_field(list, &mut |number, field| {
        match (number, field) {
            (1, Field::Bytes(mut packed)) => {
                while !packed.is_empty() {
                    values.push(take_varint(&mut packed)?.cast_signed());
                }
            }
            (1, Field::Varint(value)) => values.push(value.cast_signed()),
            _ => {}
        }
        Ok(())
    })?;
    Ok(values)
}

/// Calls `each` with number and contents of each field.
fn each_field<'a>(
    mut message: &'a [u8],
    each: &mut dyn FnMut(u64, Field<'a>) -> Result<(), String>,
) -> Result<(), String> {
    while !message.is_empty() {
        let tag = take_varint(&mut message)?;
        let field = match tag & 7 {
            0 => Field::Varint(take_varint(&mut message)?),
            1 => {
                take(&mut message, 8)?;
                Field::Other
            }
            2 => {
                let length = take_varint(&mut message)?;
                Field::Bytes(take(&mut message, length)?)
            }
            5 => {
                let word = take(&mut message, 4)?;
                Field::Word(u32::from_le_bytes(std::array::from_fn(|at| word[at])))
            }
            other => return Err(format!("a field of the wire type {other}")),
        };
        each(tag >> 3, field)?;
    }
    Ok(())
}

fn take<'a>(message: &mut &'a [u8], length: u64) -> Result<&'a [u8], String> {
    let taken = usize::try_from(length).ok().and_then(|length| message.split_at_checked(length));
    let (taken, rest) = taken.ok_or_else(|| format!("a field of {length} bytes, and {} are left", message.len()))?;
    *message = rest;
    Ok(taken)
}

fn take_varint(message: &mut &[u8]) -> Result<u64, String> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let Some((byte, rest)) = message.split_first() else { return Err("a number that is cut off".into()) };
        *message = rest;
        value |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("a number of more than ten bytes".into())
}
