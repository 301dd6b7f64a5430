//! The values of a model with its updates added: `W + scale · b a`.

use super::config::AdapterConfig;
use super::plan::{AdapterPlan, LoraUpdate};
use crate::model::Fill;
use crate::{Error, Result};
use bmtrain_dist::Parameters;
use bmtrain_dist::param::WholeReader;

impl AdapterPlan {
    /// Values of the model's parameters with the updates added, from a `fill` that gives the model's and the updates'
    /// parameters: for a directory of the merged model. Numerics: f32.
    pub fn merged<'f>(&'f self, fill: Fill<'f>) -> impl FnMut(&str, &mut Vec<f32>) -> Result<()> + 'f {
        let mut matrices = (Vec::new(), Vec::new());
        move |name: &str, values: &mut Vec<f32>| {
            fill(name, values)?;
            for update in self.updates_of(name) {
                let (a, b) = &mut matrices;
                a.clear();
                b.clear();
                fill(&update.a, a)?;
                fill(&update.b, b)?;
                update.add(values, a, b);
            }
            Ok(())
        }
    }

    /// Whether the adapter can be added to a model's weights.
    ///
    /// # Errors
    /// Virtual tokens, which are no part of them.
    pub fn check_merge(&self) -> Result<()> {
        match self.config {
            AdapterConfig::Lora(_) => Ok(()),
            AdapterConfig::Prompt(_) => {
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
            let matrices = self.updates_of(param.name()).flat_map(|update| [&update.a, &update.b]);
            for matrix in matrices.filter_map(|name| parameters.find_declared(name)) {
                reader.pass(matrix)?;
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
}

impl LoraUpdate {
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
