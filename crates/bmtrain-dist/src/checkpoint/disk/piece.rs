//! Pieces of logical tensors, and the record of a file that holds some.
//!
//! A caller makes pieces; a [`ShardWriter`](super::ShardWriter) turns them into a file and its record; the manifest
//! lists the records.

use super::fault::{printable, request};
use super::hash::ContentHash;
use super::name::is_file_name;
use crate::error::Result;
use bmtrain_core::DType;
use serde::{Deserialize, Serialize};

/// More dimensions than any real tensor has.
const MAX_RANK: usize = 16;
/// Longer than any real name of a parameter, in bytes.
const MAX_NAME: usize = 1024;
/// The fewest bytes before the data of a safetensors file: the length of the header.
const FIRST_OFFSET: u64 = 8;

/// The dtypes that are stored.
pub(super) const STORED: [DType; 6] = [DType::F32, DType::F16, DType::BF16, DType::I64, DType::I32, DType::U8];

/// The role of a logical tensor in training.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Kind {
    /// A parameter as the model computes with it.
    Parameter,
    /// The single-precision master of a parameter.
    Master,
    /// First moment of Adam.
    MomentM,
    /// Second moment of Adam.
    MomentV,
    /// Anything else, by a label of at most 32 lower-case letters, digits and hyphens.
    Other(String),
}

impl From<Kind> for String {
    fn from(kind: Kind) -> String {
        match kind {
            Kind::Parameter => "parameter".into(),
            Kind::Master => "master".into(),
            Kind::MomentM => "moment-m".into(),
            Kind::MomentV => "moment-v".into(),
            Kind::Other(label) => format!("other-{label}"),
        }
    }
}

impl TryFrom<String> for Kind {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Ok(match text.as_str() {
            "parameter" => Kind::Parameter,
            "master" => Kind::Master,
            "moment-m" => Kind::MomentM,
            "moment-v" => Kind::MomentV,
            other => match other.strip_prefix("other-") {
                Some(label) if is_label(label) => Kind::Other(label.into()),
                _ => return Err(format!("unknown kind of tensor {:?}", printable(other, 40))),
            },
        })
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from(self.clone()))
    }
}

fn is_label(label: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=32).contains(&label.len()) && label.bytes().all(plain)
}

/// Elements of a logical tensor: one run, or several of one length at equal distances, as a rank has of a matrix whose
/// columns are split. All counts are elements of the tensor, flattened row by row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PieceSpec {
    /// Full name of the parameter or other tensor.
    pub name: String,
    /// Its role.
    pub kind: Kind,
    /// Dtype.
    #[serde(with = "dtype_name")]
    pub dtype: DType,
    /// Shape of the whole tensor; empty for a scalar.
    pub shape: Vec<u64>,
    /// First element of the piece.
    pub start: u64,
    /// Number of elements of a run. Zero only where the whole tensor has none.
    pub length: u64,
    /// Number of runs.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub runs: u64,
    /// Elements from the beginning of a run to the beginning of the next: the length of a row of the tensor, within
    /// which each run is. Zero for a piece of one run.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stride: u64,
}

fn one() -> u64 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_one(number: &u64) -> bool {
    *number == 1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl PieceSpec {
    /// The piece that is the whole of a tensor. A shape whose product overflows is refused when it is written.
    pub fn whole(name: impl Into<String>, kind: Kind, dtype: DType, shape: &[u64]) -> Self {
        let length = product(shape).unwrap_or(u64::MAX);
        PieceSpec { name: name.into(), kind, dtype, shape: shape.to_vec(), start: 0, length, runs: 1, stride: 0 }
    }

    /// Another run of this tensor.
    pub fn part(&self, start: u64, length: u64) -> Self {
        PieceSpec { start, length, runs: 1, stride: 0, ..self.clone() }
    }

    /// A piece of this tensor of `runs` runs that begin `stride` elements apart.
    pub fn strided(&self, start: u64, length: u64, runs: u64, stride: u64) -> Self {
        PieceSpec { start, length, runs, stride, ..self.clone() }
    }

    /// Elements of the whole tensor; `None` if the shape's product overflows.
    pub fn elements(&self) -> Option<u64> {
        product(&self.shape)
    }

    /// Elements of the piece; `None` if that overflows.
    pub fn count(&self) -> Option<u64> {
        self.length.checked_mul(self.runs)
    }

    /// Bytes of the piece; `None` if that overflows.
    pub fn bytes(&self) -> Option<u64> {
        self.count()?.checked_mul(self.dtype.size() as u64)
    }

    /// Refuse an impossible piece. What passes has no overflow in it anywhere.
    pub(super) fn check(&self) -> Result<(), String> {
        let name = printable(&self.name, 200);
        if self.name.is_empty() || self.name.len() > MAX_NAME || self.name.chars().any(char::is_control) {
            return Err(format!("tensor {name:?}: its name is empty, longer than {MAX_NAME} bytes or not printable"));
        }
        if matches!(&self.kind, Kind::Other(label) if !is_label(label)) {
            return Err(format!("tensor {name}: the label of its kind is not 1 to 32 of a-z, 0-9 and -"));
        }
        if self.shape.len() > MAX_RANK {
            return Err(format!("tensor {name}: {} dimensions, at most {MAX_RANK} are stored", self.shape.len()));
        }
        let size = self.dtype.size() as u64;
        let Some(elements) = self.elements().filter(|n| n.checked_mul(size).is_some()) else {
            return Err(format!("tensor {name}: shape {:?} is larger than any memory", self.shape));
        };
        let end = self.start.checked_add(self.length);
        if end.is_none_or(|end| end > elements) || (self.length == 0 && elements > 0) {
            let (start, length) = (self.start, self.length);
            return Err(format!("tensor {name}: {length} elements from {start} are no piece of {elements}"));
        }
        if !self.runs_fit(elements) {
            let PieceSpec { start, length, runs, stride, .. } = self;
            return Err(format!(
                "tensor {name}: {runs} runs of {length} elements, {stride} apart from {start} on, are no piece of \
                 {elements} elements"
            ));
        }
        Ok(())
    }

    /// Whether the runs are apart, in whole rows of the tensor. Each piece has one spelling: one run has no stride.
    fn runs_fit(&self, elements: u64) -> bool {
        let PieceSpec { start, length, runs, stride, .. } = *self;
        if runs == 1 || stride == 0 {
            return runs == 1 && stride == 0;
        }
        let is_in_row = (start % stride).checked_add(length).is_some_and(|end| end <= stride);
        let last = runs.checked_sub(1).and_then(|before| before.checked_mul(stride)?.checked_add(start));
        let is_inside = last.and_then(|last| last.checked_add(length)).is_some_and(|end| end <= elements);
        length < stride && elements.is_multiple_of(stride) && is_in_row && is_inside
    }
}

fn product(shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d))
}

/// A piece with its bytes: the elements in order, little endian.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorPiece<B = Vec<u8>> {
    /// The run of the tensor.
    pub spec: PieceSpec,
    /// Its elements.
    pub bytes: B,
}

/// The position of a piece in its file, and the hash of its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PieceRecord {
    /// The run of the tensor.
    #[serde(rename = "piece")]
    pub spec: PieceSpec,
    /// First byte in the file.
    pub offset: u64,
    /// Hash of the bytes.
    pub hash: ContentHash,
}

/// One written file: what a rank reports to the rank that commits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRecord {
    /// Its name in the checkpoint's directory.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// Hash of the whole file, as `b3sum` prints it.
    pub hash: ContentHash,
    /// Records of its pieces, in the order of the file.
    pub pieces: Vec<PieceRecord>,
}

impl FileRecord {
    /// The record as text, to be sent to another rank.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self)
            .map_err(|e| request(&self.name, e.to_string(), "report this as a mistake of the program"))
    }

    /// A record that another rank sent, checked.
    pub fn from_json(text: &[u8]) -> Result<Self> {
        let wrong = |reason| request("record of a file", reason, "run the same version of the program on every rank");
        let record: FileRecord = serde_json::from_slice(text).map_err(|e| wrong(printable(&e.to_string(), 300)))?;
        record.check().map_err(wrong)?;
        Ok(record)
    }

    /// Refuse an impossible file: a name that leaves the directory, pieces that overlap or leave the file.
    pub(super) fn check(&self) -> Result<(), String> {
        let name = printable(&self.name, 200);
        if !is_file_name(&self.name) {
            return Err(format!("file {name:?}: the name is not one plain file name"));
        }
        let mut end = FIRST_OFFSET;
        for piece in &self.pieces {
            piece.spec.check().map_err(|reason| format!("file {name}: {reason}"))?;
            let stop = piece.spec.bytes().and_then(|bytes| piece.offset.checked_add(bytes));
            end = stop.filter(|stop| piece.offset >= end && *stop <= self.bytes).ok_or_else(|| {
                let place = format!("tensor {} at byte {}", piece.spec.name, piece.offset);
                format!("file {name}: {place} overlaps another one or leaves the file of {} bytes", self.bytes)
            })?;
        }
        Ok(())
    }
}

/// Dtypes by the names that recipes use for them.
mod dtype_name {
    use bmtrain_core::DType;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(dtype: &DType, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(dtype.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DType, D::Error> {
        let name = String::deserialize(deserializer)?;
        let stored = super::STORED.into_iter().find(|dtype| dtype.name() == name);
        stored.ok_or_else(|| D::Error::custom("not a dtype that is stored"))
    }
}

#[cfg(test)]
mod tests;
