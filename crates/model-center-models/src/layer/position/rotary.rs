//! Rotary positions: a table of angles on the device, [`RotaryAngles`].

use super::Rows;
use crate::layer::mask::Angles;
use bmtrain_core::{Ctx, Segment, Tensor};
use bmtrain_dist::Result;
use model_center_formats::rotary::RotaryConfig;
use std::cell::RefCell;

/// A table of angles that grows with the longest row seen.
#[derive(Debug)]
pub struct RotaryAngles {
    config: RotaryConfig,
    /// With the length that its angles are for.
    table: RefCell<Option<(usize, Tensor)>>,
}

impl RotaryAngles {
    /// Nothing is made yet.
    pub fn new(config: RotaryConfig) -> Self {
        RotaryAngles { config, table: RefCell::default() }
    }

    /// Their configuration.
    pub fn config(&self) -> &RotaryConfig {
        &self.config
    }

    /// The angles of these tokens. Where the angles depend on the length of a text, all documents packed into
    /// sequences have the angles of the longest one.
    pub fn of(&self, rows: Rows<'_>, cx: &Ctx) -> Result<Angles> {
        let (past, all) = (rows.past, rows.keys());
        if let Some(numbers) = rows.numbers {
            return Ok(Angles { table: self.table_for(rows.reach, cx)?, positions: Some(numbers.clone()) });
        }
        let table = self.table_for(all, cx)?; // [all or more, R]
        // Rows of the table from the first new token on.
        let table = if past == 0 { table } else { table.slice(past..all)? }; // [L or more, R]
        Ok(Angles { table, positions: None })
    }

    fn table_for(&self, length: usize, cx: &Ctx) -> Result<Tensor> {
        let mut kept = self.table.borrow_mut();
        // The angles themselves may depend on the length.
        let fits = |(made_for, table): &(usize, Tensor)| {
            self.config.scaling.is_same(*made_for, length) && table.shape().dims()[0] >= length
        };
        if let Some((_, table)) = kept.as_ref().filter(|kept| fits(kept)) {
            return Ok(table.clone());
        }
        // By powers of two: rows of slowly growing lengths make few tables.
        let rows = length.next_power_of_two().max(64);
        let values = self.config.table(rows, length);
        let table = Tensor::from_slice_in(cx.device(), [rows, self.config.dims], &values, Segment::Data)?;
        *kept = Some((length, table.clone()));
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model_center_formats::rotary::RotaryScaling;

    #[test]
    fn a_table_is_kept_for_shorter_rows() {
        const PLAIN: RotaryConfig = RotaryConfig { dims: 8, base: 10_000.0, scaling: RotaryScaling::None };
        let device = bmtrain_core::Device::cpu(1).unwrap();
        let (angles, cx) = (RotaryAngles::new(PLAIN), Ctx::inference(&device));
        let rows = |past, length| Rows { past, length, numbers: None, reach: past + length };
        let table = |rows| angles.of(rows, &cx).unwrap().table.shape().dims().to_vec();
        assert_eq!(table(rows(0, 5)), [64, 8]);
        assert_eq!(table(rows(60, 5)), [5, 8]);
        assert_eq!(table(rows(0, 3)), [128, 8]);
        // Documents of at most 7 tokens in a longer sequence.
        let (angles, numbers) =
            (RotaryAngles::new(PLAIN), Tensor::from_slice(&device, [1, 200], &[0i64; 200]).unwrap());
        let packed = angles.of(Rows { numbers: Some(&numbers), reach: 7, ..rows(0, 200) }, &cx).unwrap();
        assert_eq!(packed.table.shape().dims(), [64, 8]);
    }
}
