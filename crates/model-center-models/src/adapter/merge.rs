//! The values of a model with its updates merged: `W + scale · b a`, with magnitudes rows of learned lengths; rows or
//! columns times learned factors.

use super::config::AdapterConfig;
use super::lora::LoraUpdate;
use super::plan::AdapterPlan;
use super::scaling::LearnedFactors;
use crate::{Error, Result};
use bmtrain_dist::Parameters;
use bmtrain_dist::param::WholeReader;
use model_center_formats::Fill;

impl AdapterPlan {
    /// Values of the model's parameters with the updates merged, from a `fill` that gives the model's and the updates'
    /// parameters: for a directory of the merged model. Numerics: f32; lengths of rows in f64.
    pub fn merged<'f>(&'f self, fill: Fill<'f>) -> impl FnMut(&str, &mut Vec<f32>) -> Result<()> + 'f {
        let mut parts: [Vec<f32>; 3] = Default::default();
        move |name: &str, values: &mut Vec<f32>| {
            fill(name, values)?;
            for update in self.updates_of(name) {
                for (part, name) in parts.iter_mut().zip(update.parameters()) {
                    part.clear();
                    fill(name, part)?;
                }
                let [a, b, magnitudes] = &parts;
                update.add(values, a, b);
                if update.magnitude.is_some() {
                    update.set_lengths(values, magnitudes);
                }
            }
            for factors in self.factors_of(name) {
                let [part, ..] = &mut parts;
                part.clear();
                fill(&factors.factors, part)?;
                factors.apply(name, values, part);
            }
            Ok(())
        }
    }

    /// Whether the adapter can be added to a model's weights.
    ///
    /// # Errors
    /// Virtual tokens, which are no part of them; bottlenecks, which are not linear.
    pub fn check_merge(&self) -> Result<()> {
        match self.config {
            AdapterConfig::Lora(_) | AdapterConfig::Ia3(_) => Ok(()),
            AdapterConfig::Bottleneck(_) => {
                let reason = "bottleneck adapters are not linear and cannot be merged with a model's weights";
                let fix = "use it beside the model: --adapter, or save.merged = false";
                Err(Error::argument("adapter.method", reason, fix))
            }
            AdapterConfig::Prompt(_) | AdapterConfig::Prefix(_) => {
                let reason = "virtual tokens are not part of a model's weights and cannot be merged with them";
                Err(Error::argument(
                    "adapter.method",
                    reason,
                    "use it beside the model: --adapter, or save.merged = false",
                ))
            }
        }
    }

    /// Take part in another rank's reading of the values of [`AdapterPlan::merged`].
    ///
    /// # Errors
    /// A lost rank.
    pub fn pass_merged(&self, parameters: &Parameters) -> Result<()> {
        let mut reader = WholeReader::of(parameters)?;
        for param in parameters.declared().iter().filter(|param| !param.spec().is_adapter) {
            reader.pass(param)?;
            let of_updates = self.updates_of(param.name()).flat_map(LoraUpdate::parameters);
            let merged = of_updates.chain(self.factors_of(param.name()).map(|factors| factors.factors.as_str()));
            for merged in merged.filter_map(|name| parameters.find_declared(name)) {
                reader.pass(merged)?;
            }
        }
        Ok(())
    }

    /// Take part in another rank's reading of the values of [`AdapterPlan::write`].
    ///
    /// # Errors
    /// A lost rank.
    pub fn pass(&self, parameters: &Parameters) -> Result<()> {
        let mut reader = WholeReader::of(parameters)?;
        let written = self.written().filter_map(|name| parameters.find_declared(name));
        Ok(written.into_iter().try_for_each(|param| reader.pass(param))?)
    }

    fn updates_of<'n>(&'n self, weight: &'n str) -> impl Iterator<Item = &'n LoraUpdate> {
        self.updates.iter().filter(move |update| update.weight == weight)
    }

    /// Factors of rows or columns of this parameter.
    fn factors_of<'n>(&'n self, name: &'n str) -> impl Iterator<Item = &'n LearnedFactors> {
        self.factors.iter().filter(move |factors| factors.multiplies(name))
    }
}

impl LoraUpdate {
    /// Set the lengths of the updated rows of a weight `[N, K]`. Rows of zeros are left.
    fn set_lengths(&self, weight: &mut [f32], magnitudes: &[f32]) {
        let columns = self.part.columns().max(1);
        for (row, magnitude) in weight.chunks_exact_mut(columns).skip(self.part.rows.start).zip(magnitudes) {
            let length = row.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
            if length > 0.0 {
                let factor = (f64::from(*magnitude) / length) as f32;
                row.iter_mut().for_each(|value| *value *= factor);
            }
        }
    }

    /// Add `scale · b a` to a weight `[N, K]`.
    fn add(&self, weight: &mut [f32], a: &[f32], b: &[f32]) {
        let columns = self.part.columns();
        if columns == 0 || self.rank == 0 {
            return;
        }
        let rows = weight.chunks_exact_mut(columns).skip(self.part.rows.start);
        for (row, b) in rows.zip(b.chunks_exact(self.rank)) {
            for (b, a) in b.iter().zip(a.chunks_exact(columns)) {
                let factor = self.scale * b;
                row.iter_mut().zip(a).for_each(|(value, a)| *value += factor * a);
            }
        }
    }
}
