//! One short text that stands for all that training has come to: equal texts mean equal bits, on any number of
//! data-parallel and tensor-parallel ranks.

use super::{OptimManager, StateStretch};
use crate::control::ControlGroup;
use crate::error::Result;
use crate::param::WholeReader;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Hashes of a run's state, 64 hexadecimal digits each. They do not depend on the order of parameter groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprint {
    /// Names, dtypes and values of the parameters.
    pub weights: String,
    /// Step counts, moments and masters of every optimizer, places in the schedules.
    pub optimizer: String,
}

impl OptimManager {
    /// Fingerprint of the parameters, the optimizers and the schedules, on all ranks, which have to call it together:
    /// of all pipeline stages, and over data-parallel and tensor-parallel ranks. Waits for the device; copies a stretch
    /// of a few megabytes at a time to the host, of tensor-parallel ranks a full tensor.
    pub fn fingerprint(&self) -> Result<Fingerprint> {
        let (mut weights, mut reader) = (Vec::new(), WholeReader::default());
        for param in self.params() {
            let (flat, mut hash) = (param.place()?.0, named(param.name()));
            hash.update(flat.dtype().name().as_bytes());
            hash.update(&(param.spec().shape.elements() as u64).to_le_bytes());
            match param.is_divided()? {
                false => param.read_stretches(&mut |values| add_values(&mut hash, values))?,
                true => add_values(&mut hash, &reader.read(param)?),
            }
            weights.push(hash.finalize());
        }
        let mut states = Vec::new();
        for (number, (optimizer, scheduler)) in self.parts().enumerate() {
            let mut hash = blake3::Hasher::new();
            hash.update(&(number as u64).to_le_bytes());
            hash.update(&scheduler.map_or(0, |scheduler| scheduler.iteration()).to_le_bytes());
            states.push(hash.finalize());
            let mut of_params = BTreeMap::new();
            optimizer.visit_stretches(&mut |stretch| {
                add_stretch(&mut of_params, &stretch);
                Ok(())
            })?;
            states.extend(of_params.into_values().map(|hash| hash.finalize()));
        }
        Ok(Fingerprint { weights: all(self.of_stages(weights)?), optimizer: all(self.of_stages(states)?) })
    }

    /// The hashes of all pipeline stages; what two of them hold comes once.
    fn of_stages(&self, hashes: Vec<blake3::Hash>) -> Result<Vec<blake3::Hash>> {
        let flats = self.flats()?;
        let Some(ranks) = flats.iter().map(|flat| flat.stage_ranks()).find(|ranks| ranks.size() > 1) else {
            return Ok(hashes);
        };
        let own: Vec<String> = hashes.iter().map(|hash| hash.to_hex().to_string()).collect();
        let texts = ControlGroup::new(Arc::clone(ranks), &self.device).gather_texts(&own.join(" "))?;
        let mut all: Vec<blake3::Hash> =
            texts.iter().flat_map(|text| text.split(' ')).filter_map(|hex| blake3::Hash::from_hex(hex).ok()).collect();
        all.sort_unstable_by_key(|hash| *hash.as_bytes());
        all.dedup();
        Ok(all)
    }
}

/// Goes on with the hash of a parameter's state: name, steps, and of each tensor its name, length and values.
fn add_stretch(of_params: &mut BTreeMap<String, blake3::Hasher>, stretch: &StateStretch<'_>) {
    let StateStretch { param, steps, tensor, len, start, values } = *stretch;
    let hash = of_params.entry(param.to_owned()).or_insert_with(|| {
        let mut hash = named(param);
        hash.update(&steps.to_le_bytes());
        hash
    });
    if start == 0 {
        hash.update(tensor.as_bytes());
        hash.update(&(len as u64).to_le_bytes());
    }
    add_values(hash, values);
}

/// A hash that begins with a name and its length, so that no two beginnings agree by accident.
fn named(name: &str) -> blake3::Hasher {
    let mut hash = blake3::Hasher::new();
    hash.update(&(name.len() as u64).to_le_bytes());
    hash.update(name.as_bytes());
    hash
}

/// Values as little-endian bits on every machine.
fn add_values(hash: &mut blake3::Hasher, values: &[f32]) {
    if cfg!(target_endian = "little") {
        hash.update(bytemuck::cast_slice(values));
    } else {
        values.iter().for_each(|value| {
            hash.update(&value.to_le_bytes());
        });
    }
}

fn all(mut hashes: Vec<blake3::Hash>) -> String {
    hashes.sort_unstable_by_key(|hash| *hash.as_bytes());
    let mut hash = blake3::Hasher::new();
    hashes.iter().for_each(|part| {
        hash.update(part.as_bytes());
    });
    hash.finalize().to_hex().to_string()
}
