//! The key `data.class_weights`: a weight for each class by name, or weights that balance their counts.
//!
//! Defines [`ClassWeights`] and [`read_class_weights`], called by `sources.rs`. Names and counts of classes are in the
//! data, so the programs compare them once the data are read.

use super::engine::kinds::{Range, as_float, quote};
use super::engine::layers::Value;
use super::engine::reader::{Otherwise, Reader, Spec};
use super::engine::schema::Shape;

pub(super) const KEY: &str = "data.class_weights";
/// The largest weight of a class.
const LARGEST: f64 = 1e6;

/// Weight of each class in the training loss, which is the weighted mean over the samples of a step.
///
/// Source: `torch.nn.CrossEntropyLoss(weight=…)`; the balanced weights equal scikit-learn's.
#[derive(Debug, Clone, PartialEq)]
pub enum ClassWeights {
    /// Samples / (classes * samples of the class), of the training data.
    Balanced,
    /// By the names of the classes, sorted; each above 0.
    Given(Vec<(String, f32)>),
}

impl ClassWeights {
    /// The weight of each class, in the order of `classes`, each with its name and its samples of the training data.
    ///
    /// # Errors
    /// What is wrong and what mends it: a name of no class, a class without a weight or, for balanced ones, without
    /// samples.
    pub fn of(&self, classes: &[(&str, u64)]) -> std::result::Result<Vec<f32>, (String, String)> {
        let names = || classes.iter().map(|(name, _)| quote(name)).collect::<Vec<_>>().join(", ");
        match self {
            ClassWeights::Balanced => {
                let samples: u64 = classes.iter().map(|(_, count)| count).sum();
                let weight = |(name, count): &(&str, u64)| match count {
                    0 => {
                        let reason = format!("class {} has no sample, and so no balanced weight", quote(name));
                        Err((reason, "remove it from data.labels, or give the weights by name".to_owned()))
                    }
                    count => Ok((samples as f64 / (classes.len() as f64 * *count as f64)) as f32),
                };
                classes.iter().map(weight).collect()
            }
            ClassWeights::Given(given) => {
                if let Some((name, _)) = given.iter().find(|(name, _)| classes.iter().all(|(class, _)| class != name)) {
                    return Err((format!("there is no class {}", quote(name)), format!("the classes are {}", names())));
                }
                let weight = |(name, _): &(&str, u64)| {
                    let found = given.iter().find(|(other, _)| other == name).map(|(_, weight)| *weight);
                    found.ok_or_else(|| {
                        let reason = format!("class {} has no weight", quote(name));
                        (reason, format!("give one for each of {}", names()))
                    })
                };
                classes.iter().map(weight).collect()
            }
        }
    }
}

pub(super) fn read_class_weights(r: &mut Reader) -> Option<ClassWeights> {
    // Sums over the samples of a step stay finite in f32.
    let range = |weight: f64| Range::Above(0.0).holds_single(weight) && weight <= LARGEST;
    // Kept as it was written: the nearest single would be printed with digits that were not written.
    let weights = |value: &Value| match value {
        Value::Text(text) if text == "balanced" => Some(Vec::new()),
        Value::Table(entries) if !entries.is_empty() => {
            let weight = |(name, value): &(String, Value)| {
                Some((name.clone(), as_float(value).filter(|weight| range(*weight))?))
            };
            entries.iter().map(weight).collect()
        }
        _ => None,
    };
    let of_class = Shape::Number(Range::Above(0.0));
    r.shape(KEY, Shape::Either(vec![Shape::Choice(vec!["balanced".into()]), Shape::Table(&[], Some(of_class.into()))]));
    let given: Vec<(String, f64)> = r.read(Spec {
        key: KEY,
        textual: false,
        wanted: "\"balanced\", or a table with a number above 0 and at most 1e6 for each class".into(),
        example: "{ negative = 1.0, positive = 2.0 }".into(),
        otherwise: Otherwise::Absent("not set: all samples weigh the same"),
        read: &weights,
        render: &|weights: &Vec<(String, f64)>| match weights.as_slice() {
            [] => quote("balanced"),
            weights => {
                let all: Vec<String> = weights.iter().map(|(name, w)| format!("{} = {w:?}", quote(name))).collect();
                format!("{{ {} }}", all.join(", "))
            }
        },
    })?;
    Some(match given.is_empty() {
        true => ClassWeights::Balanced,
        false => ClassWeights::Given(given.into_iter().map(|(name, weight)| (name, weight as f32)).collect()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balanced_weights_give_every_class_the_same_sum() {
        // sklearn.utils.class_weight.compute_class_weight("balanced", classes=[0, 1, 2], y=[0] * 6 + [1] * 3 + [2])
        let weights = ClassWeights::Balanced.of(&[("a", 6), ("b", 3), ("c", 1)]).unwrap();
        assert_eq!(weights, [10.0f32 / 18.0, 10.0 / 9.0, 10.0 / 3.0]);
        let (reason, _) = ClassWeights::Balanced.of(&[("a", 6), ("b", 0)]).unwrap_err();
        assert_eq!(reason, "class \"b\" has no sample, and so no balanced weight");
    }

    #[test]
    fn given_weights_go_by_name_and_leave_no_class_out() {
        let given = ClassWeights::Given(vec![("no".into(), 1.0), ("yes".into(), 2.5)]);
        assert_eq!(given.of(&[("yes", 1), ("no", 0)]).unwrap(), [2.5, 1.0]);
        let (reason, fix) = given.of(&[("yes", 1), ("No", 3)]).unwrap_err();
        assert_eq!((reason.as_str(), fix.as_str()), ("there is no class \"no\"", "the classes are \"yes\", \"No\""));
        let (reason, _) = given.of(&[("yes", 1), ("no", 3), ("maybe", 1)]).unwrap_err();
        assert_eq!(reason, "class \"maybe\" has no weight");
    }
}
