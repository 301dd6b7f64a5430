//! The records of BERT's pretraining, as its `create_pretraining_data` writes them.
//!
//! Defines [`BertRecord`]: with S positions and P predictions, `input_ids`, `input_mask` and `segment_ids` of S
//! integers, `masked_lm_positions` and `masked_lm_ids` of P integers, `masked_lm_weights` of P floats, and
//! `next_sentence_labels` of one integer. Unused positions and predictions are zeros at the ends.

use super::example::{Example, Feature};

/// A pair of segments with masked tokens.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BertRecord {
    /// Token ids, some of them masked.
    pub input_ids: Vec<u32>,
    /// Whether a position is used.
    pub input_mask: Vec<bool>,
    /// 0 for the first segment, 1 for the second.
    pub segment_ids: Vec<u32>,
    /// Positions that are predicted.
    pub masked_lm_positions: Vec<u32>,
    /// The token ids there.
    pub masked_lm_ids: Vec<u32>,
    /// 1 for a prediction, 0 for an unused one.
    pub masked_lm_weights: Vec<f32>,
    /// 1 if the second segment is from another document.
    pub next_sentence_label: u32,
}

/// The feature that only these records have.
pub(super) const POSITIONS: &str = "masked_lm_positions";

impl BertRecord {
    /// Reads the features; the error is the reason why they are no such record.
    pub fn read(example: &Example) -> Result<BertRecord, String> {
        let ids = |name: &str| {
            let values = example.integers(name)?.iter();
            let id = |value: &i64| u32::try_from(*value).map_err(|_| format!("{value} in the feature {name:?}"));
            values.map(id).collect::<Result<Vec<u32>, String>>()
        };
        let weights = match example.get("masked_lm_weights") {
            Some(Feature::Floats(weights)) => weights.clone(),
            _ => return Err("no feature \"masked_lm_weights\" with floats".into()),
        };
        let labels = ids("next_sentence_labels")?;
        let [next_sentence_label] = labels[..] else {
            return Err(format!("{} values in the feature \"next_sentence_labels\"", labels.len()));
        };
        let record = BertRecord {
            input_ids: ids("input_ids")?,
            input_mask: ids("input_mask")?.into_iter().map(|used| used != 0).collect(),
            segment_ids: ids("segment_ids")?,
            masked_lm_positions: ids(POSITIONS)?,
            masked_lm_ids: ids("masked_lm_ids")?,
            masked_lm_weights: weights,
            next_sentence_label,
        };
        let positions = [record.input_ids.len(), record.input_mask.len(), record.segment_ids.len()];
        let predictions =
            [record.masked_lm_positions.len(), record.masked_lm_ids.len(), record.masked_lm_weights.len()];
        if positions != [positions[0]; 3] || predictions != [predictions[0]; 3] {
            return Err(format!("features of {positions:?} positions and {predictions:?} predictions"));
        }
        if let Some(position) = record.masked_lm_positions.iter().find(|at| **at as usize >= positions[0].max(1)) {
            return Err(format!("position {position} is predicted, and there are {}", positions[0]));
        }
        Ok(record)
    }

    /// The features.
    pub fn example(&self) -> Example {
        let integers = |ids: &[u32]| Feature::Integers(ids.iter().map(|id| i64::from(*id)).collect());
        let mask = Feature::Integers(self.input_mask.iter().map(|used| i64::from(*used)).collect());
        let features = [
            ("input_ids", integers(&self.input_ids)),
            ("input_mask", mask),
            ("segment_ids", integers(&self.segment_ids)),
            (POSITIONS, integers(&self.masked_lm_positions)),
            ("masked_lm_ids", integers(&self.masked_lm_ids)),
            ("masked_lm_weights", Feature::Floats(self.masked_lm_weights.clone())),
            ("next_sentence_labels", integers(&[self.next_sentence_label])),
        ];
        Example { features: features.into_iter().map(|(name, feature)| (name.to_owned(), feature)).collect() }
    }

    /// The tokens before masking, without unused positions.
    pub fn restored(&self) -> Vec<u32> {
        let mut ids = self.input_ids.clone();
        let predictions = self.masked_lm_positions.iter().zip(&self.masked_lm_ids).zip(&self.masked_lm_weights);
        for ((position, id), weight) in predictions {
            if let (true, Some(masked)) = (*weight > 0.0, ids.get_mut(*position as usize)) {
                *masked = *id;
            }
        }
        ids.into_iter().zip(&self.input_mask).filter(|(_, used)| **used).map(|(id, _)| id).collect()
    }
}
