//! A batch on the device.

use crate::error::Result;
use crate::model::labels::{Labels, check_count, upload_padding};
use bmtrain_core::{Device, Segment, Tensor};

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
    /// Whether logits are asked for; otherwise a head may leave them out where it makes the loss without them.
    pub wants_logits: bool,
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
        let padding = upload_padding(device, shape, input_ids.len(), attention_mask)?;
        if let Some(types) = token_type_ids {
            check_count("token_type_ids", types.len(), input_ids.len())?;
        }
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
            wants_logits: true,
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
