//! Timing of repeated runs, for benchmarks: [`measure`] and the statistics of its [`Seconds`].

use std::time::{Duration, Instant};

/// The number of runs of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rounds {
    /// Runs before the measured ones.
    pub warm_up: usize,
    /// The least number of measured runs.
    pub least: usize,
    /// The largest number of measured runs.
    pub most: usize,
    /// No further run starts after this time, once there are `least`.
    pub budget: Duration,
}

impl Rounds {
    /// A fixed number of measured runs.
    pub fn exactly(warm_up: usize, count: usize) -> Self {
        Rounds { warm_up, least: count, most: count, budget: Duration::ZERO }
    }

    /// As many measured runs as start within a budget, at least `least`.
    pub fn within(warm_up: usize, least: usize, budget: Duration) -> Self {
        Rounds { warm_up, least, most: usize::MAX, budget }
    }
}

/// The seconds that a call takes.
pub fn seconds<E>(run: impl FnOnce() -> Result<(), E>) -> Result<f64, E> {
    let start = Instant::now();
    run()?;
    Ok(start.elapsed().as_secs_f64())
}

/// Calls `run`, which returns the seconds of each of its phases, and collects each phase.
pub fn measure<E, const N: usize>(
    rounds: Rounds,
    mut run: impl FnMut() -> Result<[f64; N], E>,
) -> Result<[Seconds; N], E> {
    for _ in 0..rounds.warm_up {
        run()?;
    }
    let (start, mut phases) = (Instant::now(), [const { Vec::new() }; N]);
    for round in 0..rounds.most {
        if round >= rounds.least && start.elapsed() >= rounds.budget {
            break;
        }
        for (phase, seconds) in phases.iter_mut().zip(run()?) {
            phase.push(seconds);
        }
    }
    Ok(phases.map(Seconds::new))
}

/// Times of repeated runs in ascending order. The statistics of no runs are 0.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seconds(Vec<f64>);

impl Seconds {
    /// From times in any order.
    pub fn new(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        Seconds(times)
    }

    /// The fastest run: other processes make runs longer, never shorter.
    pub fn best(&self) -> f64 {
        self.0.first().copied().unwrap_or(0.0)
    }

    /// The median; of an even number of runs the upper one.
    pub fn median(&self) -> f64 {
        self.0.get(self.0.len() / 2).copied().unwrap_or(0.0)
    }

    /// The slowest run.
    pub fn worst(&self) -> f64 {
        self.0.last().copied().unwrap_or(0.0)
    }

    /// All times, ascending.
    pub fn times(&self) -> &[f64] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_those_of_the_measured_runs() {
        let mut calls = 0.0;
        let run = || {
            calls += 1.0;
            Ok::<_, ()>([calls, -calls])
        };
        let [up, down] = measure(Rounds::exactly(2, 4), run).unwrap();
        assert_eq!((up.best(), up.median(), up.worst(), up.times().len()), (3.0, 5.0, 6.0, 4));
        assert_eq!((down.best(), down.median()), (-6.0, -4.0));
        assert_eq!(Seconds::default().median(), 0.0);
        let [once] =
            measure(Rounds::within(0, 1, Duration::ZERO), || seconds(|| Ok::<_, ()>(())).map(|s| [s])).unwrap();
        assert_eq!(once.times().len(), 1);
        assert_eq!(measure(Rounds::exactly(0, 1), || Err::<[f64; 1], _>(7)), Err(7));
    }
}
