//! Counts of decisions and what follows from them.
//!
//! Defines [`ClassCounts`] for accuracy, precision, recall, F1 and Matthews' coefficient, and [`Average`]. Counts
//! are integers, so merging over ranks is exact. Used through [`super::Evaluator`].

/// Over what a figure per class is averaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Average {
    /// The figure of one class alone (scikit-learn's `binary` for class 1).
    Class(usize),
    /// The plain mean over the classes that occur as label or prediction, as in scikit-learn.
    Macro,
    /// From the summed counts of all classes.
    Micro,
    /// The mean over the classes, each with the weight of its labels.
    Weighted,
}

/// How often each class was the label, the prediction, and both.
///
/// All figures here follow from these three counts per class, so no matrix of label against prediction is kept: it
/// would take 800 MB for the ten thousand classes a dataset may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassCounts {
    right: Vec<u64>,
    labelled: Vec<u64>,
    predicted: Vec<u64>,
}

impl ClassCounts {
    /// Empty counts for `classes` classes.
    pub fn new(classes: usize) -> ClassCounts {
        ClassCounts { right: vec![0; classes], labelled: vec![0; classes], predicted: vec![0; classes] }
    }

    /// The counts `[right, labelled, predicted]` of all classes, concatenated, to be summed over ranks element by
    /// element.
    pub fn to_vec(&self) -> Vec<u64> {
        [self.right.as_slice(), &self.labelled, &self.predicted].concat()
    }

    /// The inverse of [`ClassCounts::to_vec`]; `None` if the length is not a multiple of 3.
    pub fn from_slice(counts: &[u64]) -> Option<ClassCounts> {
        let classes = counts.len() / 3;
        (counts.len() == 3 * classes).then(|| ClassCounts {
            right: counts[..classes].to_vec(),
            labelled: counts[classes..2 * classes].to_vec(),
            predicted: counts[2 * classes..].to_vec(),
        })
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.right.len()
    }

    /// Counts one decision; classes out of range are a broken invariant and not counted.
    pub fn add(&mut self, label: usize, predicted: usize) {
        debug_assert!(label < self.classes() && predicted < self.classes());
        if label < self.classes() && predicted < self.classes() {
            self.right[label] += u64::from(label == predicted);
            self.labelled[label] += 1;
            self.predicted[predicted] += 1;
        }
    }

    /// Adds counts of as many classes.
    pub fn merge(&mut self, other: &ClassCounts) {
        debug_assert_eq!(self.classes(), other.classes());
        let add = |counts: &mut [u64], more: &[u64]| counts.iter_mut().zip(more).for_each(|(a, b)| *a += b);
        add(&mut self.right, &other.right);
        add(&mut self.labelled, &other.labelled);
        add(&mut self.predicted, &other.predicted);
    }

    /// Number of decisions.
    pub fn count(&self) -> u64 {
        self.labelled.iter().sum()
    }

    /// Share of right decisions, 0 without any.
    pub fn accuracy(&self) -> f64 {
        quotient(self.right.iter().sum(), self.count())
    }

    /// Right predictions of a class over all its predictions; `None` if there is no such class.
    pub fn precision(&self, average: Average) -> Option<f64> {
        self.average(average, |right, _, predicted| quotient(right, predicted))
    }

    /// Right predictions of a class over all its labels; `None` if there is no such class.
    pub fn recall(&self, average: Average) -> Option<f64> {
        self.average(average, |right, labelled, _| quotient(right, labelled))
    }

    /// Harmonic mean of precision and recall, per class before averaging; `None` if there is no such class.
    pub fn f1(&self, average: Average) -> Option<f64> {
        self.average(average, |right, labelled, predicted| quotient(2 * right, labelled + predicted))
    }

    /// Matthews' correlation coefficient for any number of classes, 0 where it has no defined value.
    ///
    /// Numerics: the numerator and both factors of the denominator are exact integers.
    /// Source: Gorodkin, "Comparing two K-category assignments by a K-category correlation coefficient", 2004.
    pub fn matthews(&self) -> f64 {
        let exact = |number: u64| i128::from(number);
        let total = exact(self.count());
        let right = exact(self.right.iter().sum());
        let (mut both, mut labels, mut predictions) = (0, 0, 0);
        for (labelled, predicted) in self.labelled.iter().zip(&self.predicted) {
            let (labelled, predicted) = (exact(*labelled), exact(*predicted));
            both += labelled * predicted;
            labels += labelled * labelled;
            predictions += predicted * predicted;
        }
        let (a, b) = (total * total - predictions, total * total - labels);
        if a == 0 || b == 0 {
            return 0.0;
        }
        (right * total - both) as f64 / ((a as f64).sqrt() * (b as f64).sqrt())
    }

    /// Averages `figure(right, labelled, predicted)`.
    fn average(&self, average: Average, figure: impl Fn(u64, u64, u64) -> f64) -> Option<f64> {
        let figure = |(right, labelled, predicted)| figure(right, labelled, predicted);
        let of = |class: usize| (self.right[class], self.labelled[class], self.predicted[class]);
        match average {
            Average::Class(class) => (class < self.classes()).then(|| figure(of(class))),
            Average::Weighted => {
                let weighted = |of: (u64, u64, u64)| of.1 as f64 * figure(of);
                let sum: f64 = (0..self.classes()).map(of).map(weighted).sum();
                Some(if self.count() == 0 { 0.0 } else { sum / self.count() as f64 })
            }
            Average::Micro => Some(figure((self.right.iter().sum(), self.count(), self.count()))),
            Average::Macro => {
                let occurring = (0..self.classes()).map(of).filter(|(_, labelled, predicted)| labelled + predicted > 0);
                let figures: Vec<f64> = occurring.map(figure).collect();
                Some(if figures.is_empty() { 0.0 } else { figures.iter().sum::<f64>() / figures.len() as f64 })
            }
        }
    }
}

/// A quotient of counts, 0 for 0 / 0.
fn quotient(numerator: u64, denominator: u64) -> f64 {
    if denominator == 0 { 0.0 } else { numerator as f64 / denominator as f64 }
}
