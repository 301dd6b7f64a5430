//! Statistics of values inside a forward pass and of their gradients: [`TensorInspector`].

use super::moments::{Moments, gather_words};
use super::table::SummaryRow;
use crate::error::{Error, Result};
use bmtrain_core::autograd::Observer;
use bmtrain_core::comm::Communicator;
use bmtrain_core::shape::MAX_RANK;
use bmtrain_core::{Ctx, Device, Shape, Tensor};
use std::cell::RefCell;
use std::collections::HashMap;

/// Sees what a forward pass names with [`Ctx::observe`], from [`Ctx::set_observer`] on, in as many micro-batches as it
/// is given to. A row is a name with its path; a name that comes several times in one micro-batch has a row for each.
/// Blocks that run again for their gradients count once.
///
/// Rows sum up all steps until [`TensorInspector::clear`]. What tells repetitions and gradients apart is kept for the
/// latest step alone, so memory does not grow with the steps; a gradient that comes after a later step has begun is
/// left out.
#[derive(Debug, Default)]
pub struct TensorInspector {
    seen: RefCell<Seen>,
    keeps: bool,
}

#[derive(Debug, Default)]
struct Seen {
    rows: Vec<Row>,
    /// The latest step, once there was one.
    latest: Option<u32>,
    /// The row of each sighting since that step began.
    sightings: Vec<usize>,
    /// Number of earlier sightings.
    earlier: usize,
    /// By path and name, step and micro-batch; as far back as the sightings.
    places: HashMap<(String, u32, u32), Place>,
    kept: HashMap<String, Tensor>,
}

impl Seen {
    /// A later step forgets where values of earlier ones were seen. An earlier one does not, since what looks on beside
    /// the training, in inference, counts as step 0.
    fn at_step(&mut self, step: u32) {
        if self.latest.is_none_or(|latest| step > latest) {
            self.latest = Some(step);
            self.earlier += self.sightings.len();
            self.sightings.clear();
            self.places.clear();
        }
    }
}

#[derive(Debug, Default)]
struct Place {
    sightings: Vec<usize>,
    /// Number of them that have come again.
    replayed: usize,
}

#[derive(Debug)]
struct Row {
    name: String,
    extent: Extent,
    values: Moments,
    gradient: Moments,
}

/// Shapes of several tensors as one: their leading axes together, where all others are alike.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Extent {
    rank: usize,
    dims: [usize; MAX_RANK],
    is_mixed: bool,
}

impl TensorInspector {
    /// An inspector that keeps statistics and nothing else.
    pub fn new() -> Self {
        TensorInspector::default()
    }

    /// One that keeps the last tensor of each name as well, for [`TensorInspector::tensor`]. Their memory stays in use
    /// until then, and no op works in place on them.
    pub fn keeping() -> Self {
        TensorInspector { keeps: true, ..TensorInspector::default() }
    }

    /// The last tensor of this path and name, from an inspector that keeps them.
    pub fn tensor(&self, name: &str) -> Option<Tensor> {
        self.seen.borrow().kept.get(name).cloned()
    }

    /// Forget everything.
    pub fn clear(&self) {
        *self.seen.borrow_mut() = Seen::default();
    }

    /// Summary of the named tensors, over all ranks and all micro-batches, in the order in which each was named first.
    /// Gradients are divided by `gradient_scale`, what losses were multiplied by. All ranks have to call it and to have
    /// named the same.
    pub fn summary(&self, ranks: &dyn Communicator, device: &Device, gradient_scale: f32) -> Result<Vec<SummaryRow>> {
        let refused = |reason: String| Err(Error::setting("tensor inspector", reason));
        if !gradient_scale.is_finite() || gradient_scale <= 0.0 {
            return refused(format!("gradient scale {gradient_scale} must be above 0: it is the loss scale, or 1"));
        }
        let seen = self.seen.borrow();
        let names =
            blake3::hash(seen.rows.iter().map(|row| row.name.as_str()).collect::<Vec<_>>().join("\n").as_bytes());
        let fingerprint = names.as_bytes().iter().take(8).fold(0, |word, byte| word << 8 | i64::from(*byte));
        let own = [seen.rows.len() as i64, fingerprint];
        let all = gather_words(ranks, device, &own)?;
        if let Some(other) = all.iter().position(|words| *words != own) {
            let (here, there) = (own[0], all[other][0]);
            return refused(format!(
                "rank {} named {here} values and rank {other} {there}, or others: all ranks have to name the same",
                ranks.rank()
            ));
        }
        let moments: Vec<Moments> = seen.rows.iter().flat_map(|row| [row.values, row.gradient]).collect();
        let moments = Moments::over_ranks(ranks, device, &moments)?;
        let extents: Vec<i64> = seen.rows.iter().flat_map(|row| row.extent.words()).collect();
        let extents = gather_words(ranks, device, &extents)?;
        let row = |(number, (row, moments)): (usize, (&Row, &[Moments]))| {
            let of = |words: &Vec<i64>| words.chunks_exact(Extent::WORDS).nth(number).map(Extent::of_words);
            let extent = extents.iter().filter_map(of).reduce(Extent::join);
            SummaryRow {
                name: row.name.clone(),
                shape: extent.map_or_else(String::new, |extent| extent.to_string()),
                values: moments[0],
                gradient: (moments[1].count > 0).then(|| moments[1].divided_by(f64::from(gradient_scale))),
            }
        };
        Ok(seen.rows.iter().zip(moments.chunks_exact(2)).enumerate().map(row).collect())
    }
}

impl Observer for TensorInspector {
    fn value(&self, cx: &Ctx, name: &str, value: &Tensor) -> bmtrain_core::Result<usize> {
        let mut seen = self.seen.borrow_mut();
        let seen = &mut *seen;
        let site = cx.site().as_str();
        let name = if site.is_empty() { name.to_owned() } else { format!("{site}.{name}") };
        let address = cx.randomness();
        seen.at_step(address.step);
        let place = seen.places.entry((name.clone(), address.step, address.micro_batch)).or_default();
        if cx.is_replay()
            && let Some(sighting) = place.sightings.get(place.replayed)
        {
            place.replayed += 1;
            return Ok(*sighting);
        }
        let moments = Moments::of_tensor(value)?;
        let title = match place.sightings.len() {
            0 => name.clone(),
            more => format!("{name}#{}", more + 1),
        };
        place.sightings.push(seen.earlier + seen.sightings.len());
        if self.keeps {
            seen.kept.insert(title.clone(), value.clone());
        }
        let extent = Extent::of(value.shape());
        let row = match seen.rows.iter().position(|row| row.name == title) {
            Some(number) => {
                let row = &mut seen.rows[number];
                (row.values, row.extent) = (row.values.merge(moments), row.extent.join(extent));
                number
            }
            None => {
                seen.rows.push(Row { name: title, extent, values: moments, gradient: Moments::NONE });
                seen.rows.len() - 1
            }
        };
        seen.sightings.push(row);
        Ok(seen.earlier + seen.sightings.len() - 1)
    }

    fn gradient(&self, number: usize, gradient: &Tensor) -> bmtrain_core::Result<()> {
        let moments = Moments::of_tensor(gradient)?;
        let mut seen = self.seen.borrow_mut();
        let seen = &mut *seen;
        let row = number.checked_sub(seen.earlier).and_then(|number| seen.sightings.get(number));
        if let Some(row) = row.and_then(|row| seen.rows.get_mut(*row)) {
            row.gradient = row.gradient.merge(moments);
        }
        Ok(())
    }
}

impl Extent {
    const WORDS: usize = 2 + MAX_RANK;

    fn of(shape: Shape) -> Self {
        let mut dims = [1; MAX_RANK];
        dims.iter_mut().zip(shape.dims()).for_each(|(to, dim)| *to = *dim);
        // A number counts as a row of one.
        Extent { rank: shape.rank().max(1), dims, is_mixed: false }
    }

    fn join(self, other: Extent) -> Extent {
        let is_mixed = self.is_mixed || other.is_mixed || self.rank != other.rank || self.dims[1..] != other.dims[1..];
        let mut dims = self.dims;
        dims[0] += other.dims[0];
        Extent { dims, is_mixed, ..self }
    }

    fn words(&self) -> [i64; Self::WORDS] {
        let mut words = [0; Self::WORDS];
        words[..2].copy_from_slice(&[self.rank as i64, i64::from(self.is_mixed)]);
        words[2..].iter_mut().zip(self.dims).for_each(|(word, dim)| *word = dim as i64);
        words
    }

    fn of_words(words: &[i64]) -> Extent {
        let mut dims = [1; MAX_RANK];
        dims.iter_mut().zip(words.iter().skip(2)).for_each(|(dim, word)| *dim = *word as usize);
        let rank = words.first().map_or(1, |rank| (*rank as usize).min(MAX_RANK));
        Extent { rank, dims, is_mixed: words.get(1).is_some_and(|mixed| *mixed != 0) }
    }
}

impl std::fmt::Display for Extent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.is_mixed {
            true => f.write_str("mixed"),
            false => write!(f, "{:?}", &self.dims[..self.rank]),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use bmtrain_core::autograd::Randomness;
    use bmtrain_core::comm::Solo;
    use bmtrain_core::{DType, Segment};

    #[test]
    fn steps_add_to_the_rows_and_to_nothing_else() {
        let device = Device::cpu(1).unwrap();
        let inspector = TensorInspector::new();
        let ones = Tensor::full_in(&device, [2, 3], DType::F32, 1.0, Segment::Activations).unwrap();
        let mut last = None;
        for step in 0..50 {
            for micro_batch in 0..2 {
                let cx = Ctx::training(&device, Randomness { seed: 0, step, micro_batch });
                let number = inspector.value(&cx, "x", &ones).unwrap();
                assert!(last < Some(number), "a gradient cannot be taken for another step's");
                inspector.gradient(number, &ones).unwrap();
                last = Some(number);
            }
            // Beside the training, at what counts as step 0.
            inspector.value(&Ctx::inference(&device), "beside", &ones).unwrap();
            let seen = inspector.seen.borrow();
            assert!(seen.places.len() <= 3 && seen.sightings.len() <= 3, "step {step}");
        }
        inspector.gradient(0, &ones).unwrap();
        let rows = inspector.summary(&Solo, &device, 1.0).unwrap();
        let counts: Vec<_> = rows.iter().map(|row| (row.name.as_str(), row.values.count)).collect();
        assert_eq!(counts, [("x", 600), ("beside", 300)]);
        assert_eq!(rows[0].gradient.unwrap().count, 600, "the gradient of a step long past is left out");
    }
}
