//! One short text that stands for all that training has come to: equal texts mean equal bits.

use super::{OptimManager, ParamState};
use crate::error::Result;

/// Hashes of a run's state, 64 hexadecimal digits each. They do not depend on the order of parameter groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprint {
    /// Names, number types and values of the parameters.
    pub weights: String,
    /// Step counts, moments and masters of every optimizer, places in the schedules.
    pub optimizer: String,
}

impl OptimManager {
    /// What the parameters, the optimizers and the schedules hold now. Waits for the device; copies one parameter at a time
    /// to the host.
    ///
    /// # Errors
    /// Parameters without values; a failing device.
    pub fn fingerprint(&self) -> Result<Fingerprint> {
        let mut weights = Vec::new();
        for param in self.params() {
            let mut hash = named(param.name());
            hash.update(param.place()?.0.dtype().name().as_bytes());
            add_values(&mut hash, &param.read()?);
            weights.push(hash.finalize());
        }
        let mut states = Vec::new();
        for (number, (optimizer, scheduler)) in self.parts().enumerate() {
            let mut hash = blake3::Hasher::new();
            hash.update(&(number as u64).to_le_bytes());
            hash.update(&scheduler.map_or(0, |scheduler| scheduler.iteration()).to_le_bytes());
            states.push(hash.finalize());
            optimizer.visit_state(&mut |state| {
                states.push(of_state(&state));
                Ok(())
            })?;
        }
        Ok(Fingerprint { weights: all(weights), optimizer: all(states) })
    }
}

fn of_state(state: &ParamState) -> blake3::Hash {
    let mut hash = named(&state.name);
    hash.update(&state.steps.to_le_bytes());
    for (name, values) in &state.tensors {
        hash.update(name.as_bytes());
        add_values(&mut hash, values);
    }
    hash.finalize()
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
    hash.update(&(values.len() as u64).to_le_bytes());
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
