//! A batch on the device.

use crate::error::{Error, Result};
use bmtrain_core::{Device, Segment, Tensor};

/// What the loss compares with.
#[derive(Debug, Clone)]
pub enum Labels {
    /// Class numbers i64: `[B]` for classes and sentences, `[B, L]` for words, -100 where nothing counts.
    Classes(Tensor),
    /// f32 `[B, outputs]`, for regression.
    Values(Tensor),
}

/// Ids and masks of B sequences of L tokens.
#[derive(Debug, Clone)]
pub struct BertBatch {
    /// i64 `[B, L]`.
    pub input_ids: Tensor,
    /// i64 `[B, L]`.
    pub token_type_ids: Tensor,
    /// i64 `[B, L]`.
    pub position_ids: Tensor,
    /// u8 `[B, L]`, 1 for tokens; `None` when nothing is padded.
    pub padding: Option<Tensor>,
    /// What the loss compares with.
    pub labels: Option<Labels>,
    /// i64 `[B]`, for pretraining.
    pub next_sentence: Option<Tensor>,
    /// Share of the target probability that is spread over all classes.
    pub label_smoothing: f32,
    /// Rows that belong to one sample of a multiple choice; 1 otherwise.
    pub choices: usize,
}

impl BertBatch {
    /// Bring ids and masks of `rows` sequences of `length` tokens onto a device, without labels.
    ///
    /// # Errors
    /// Lengths that are not `rows * length`, a mask of other numbers than 0 and 1, no memory left.
    pub fn upload(
        device: &Device,
        (rows, length): (usize, usize),
        input_ids: &[i64],
        attention_mask: Option<&[u8]>,
        token_type_ids: Option<&[i64]>,
    ) -> Result<Self> {
        let shape = [rows, length];
        let others =
            [("attention_mask", attention_mask.map(<[u8]>::len)), ("token_type_ids", token_type_ids.map(<[i64]>::len))];
        for (name, length) in others {
            if let Some(length) = length.filter(|&length| length != input_ids.len()) {
                let reason = format!("{name} has {length} values for {} input ids", input_ids.len());
                return Err(Error::data("batch", reason, "give one value for each token"));
            }
        }
        if attention_mask.is_some_and(|mask| mask.iter().any(|&value| value > 1)) {
            let reason = "attention_mask has values other than 0 and 1";
            return Err(Error::data("batch", reason, "use 1 for tokens and 0 for padding"));
        }
        let padding = attention_mask
            .filter(|mask| mask.contains(&0))
            .map(|mask| Tensor::from_slice(device, shape, mask, Segment::Data))
            .transpose()?;
        let zeros;
        let types = match token_type_ids {
            Some(types) => types,
            None => {
                zeros = vec![0i64; input_ids.len()];
                &zeros
            }
        };
        let positions: Vec<i64> = (0..rows).flat_map(|_| 0..length as i64).collect();
        Ok(BertBatch {
            input_ids: Tensor::from_slice(device, shape, input_ids, Segment::Data)?,
            token_type_ids: Tensor::from_slice(device, shape, types, Segment::Data)?,
            position_ids: Tensor::from_slice(device, shape, &positions, Segment::Data)?,
            padding,
            labels: None,
            next_sentence: None,
            label_smoothing: 0.0,
            choices: 1,
        })
    }

    /// Labels that are class numbers.
    pub fn class_labels(&self) -> Option<&Tensor> {
        match &self.labels {
            Some(Labels::Classes(targets)) => Some(targets),
            _ => None,
        }
    }
}
