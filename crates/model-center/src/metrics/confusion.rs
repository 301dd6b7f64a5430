//! Counts of decisions and what follows from them.
//!
//! Defines [`ConfusionMatrix`] for accuracy, precision, recall, F1 and Matthews' coefficient, and [`Average`]. Counts
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
}

/// How often each class was predicted for each label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfusionMatrix {
    classes: usize,
    /// Row = label, column = prediction.
    counts: Vec<u64>,
}

impl ConfusionMatrix {
    /// An empty matrix for so many classes.
    pub fn new(classes: usize) -> ConfusionMatrix {
        ConfusionMatrix { classes, counts: vec![0; classes * classes] }
    }

    /// A matrix from its counts, row by row (row = label); `None` if they are not `classes`² many.
    ///
    /// With [`ConfusionMatrix::counts`] this is how ranks exchange matrices.
    pub fn from_counts(classes: usize, counts: Vec<u64>) -> Option<ConfusionMatrix> {
        (classes.checked_mul(classes) == Some(counts.len())).then_some(ConfusionMatrix { classes, counts })
    }

    /// The counts, row by row (row = label).
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Counts one decision; classes out of range are a broken invariant and not counted.
    pub fn add(&mut self, label: usize, predicted: usize) {
        debug_assert!(label < self.classes && predicted < self.classes);
        if label < self.classes
            && let Some(count) = self.counts.get_mut(label * self.classes + predicted)
        {
            *count += 1;
        }
    }

    /// Adds the counts of a matrix of the same size.
    pub fn merge(&mut self, other: &ConfusionMatrix) {
        debug_assert_eq!(self.classes, other.classes);
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
    }

    /// Number of decisions.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Share of right decisions, 0 without any.
    pub fn accuracy(&self) -> f64 {
        quotient((0..self.classes).map(|class| self.right(class)).sum(), self.count())
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
        let right: i128 = (0..self.classes).map(|class| exact(self.right(class))).sum();
        let (mut both, mut labels, mut predictions) = (0, 0, 0);
        for class in 0..self.classes {
            let (labelled, predicted) = (exact(self.labelled(class)), exact(self.predicted(class)));
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

    fn right(&self, class: usize) -> u64 {
        self.counts[class * self.classes + class]
    }

    fn labelled(&self, class: usize) -> u64 {
        self.counts[class * self.classes..(class + 1) * self.classes].iter().sum()
    }

    fn predicted(&self, class: usize) -> u64 {
        (0..self.classes).map(|label| self.counts[label * self.classes + class]).sum()
    }

    /// Averages `figure(right, labelled, predicted)`.
    fn average(&self, average: Average, figure: impl Fn(u64, u64, u64) -> f64) -> Option<f64> {
        let of = |class: usize| (self.right(class), self.labelled(class), self.predicted(class));
        match average {
            Average::Class(class) if class >= self.classes => None,
            Average::Class(class) => {
                let (right, labelled, predicted) = of(class);
                Some(figure(right, labelled, predicted))
            }
            Average::Micro => {
                let right = (0..self.classes).map(|class| self.right(class)).sum();
                Some(figure(right, self.count(), self.count()))
            }
            Average::Macro => {
                let figures: Vec<f64> = (0..self.classes)
                    .map(of)
                    .filter(|(_, labelled, predicted)| labelled + predicted > 0)
                    .map(|(right, labelled, predicted)| figure(right, labelled, predicted))
                    .collect();
                Some(if figures.is_empty() { 0.0 } else { figures.iter().sum::<f64>() / figures.len() as f64 })
            }
        }
    }
}

/// A quotient of counts, 0 for 0 / 0.
fn quotient(numerator: u64, denominator: u64) -> f64 {
    if denominator == 0 { 0.0 } else { numerator as f64 / denominator as f64 }
}
