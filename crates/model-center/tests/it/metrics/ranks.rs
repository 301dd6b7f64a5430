//! Metrics over several ranks, equal to the metrics of one.

use super::counts_of;
use model_center::data::{LabelSpace, Labels};
use model_center::metrics::{ClassCounts, Evaluator, LabelKind, Metric, OrderedSum};

/// Deals samples to ranks in several ways; every figure must have the same bits as on one rank.
#[test]
fn merging_ranks_gives_the_same_bits_as_one_rank() {
    let samples: Vec<u32> = (0..97).collect();
    let random = |at: u32, salt: u32| (at.wrapping_mul(2_654_435_761).wrapping_add(salt) >> 8) as f32 / 65536.0;
    let classes = LabelSpace::Classes(["a", "b", "c"].map(String::from).to_vec());
    for labels in [classes, LabelSpace::Value, LabelSpace::Choices(4)] {
        let outputs = labels.classes().unwrap_or(1) as u32;
        let add = |evaluator: &mut Evaluator, part: &[u32]| {
            let logits: Vec<f32> =
                part.iter().flat_map(|at| (0..outputs).map(move |output| random(*at, output * 77))).collect();
            let truth = match labels {
                LabelSpace::Value => Labels::Values(part.iter().map(|at| random(*at, 5)).collect()),
                _ => Labels::Classes(part.iter().map(|at| i64::from(at % outputs)).collect()),
            };
            evaluator.add(part, &logits, &truth).unwrap();
        };
        let is_defined =
            |metric: &Metric| metric.kind() == LabelKind::of(&labels) && metric.check_classes(labels.classes()).is_ok();
        let metrics: Vec<Metric> = Metric::all().filter(is_defined).collect();
        let bits = |evaluator: &Evaluator| -> Vec<u64> {
            evaluator.compute(&metrics).unwrap().iter().map(|(_, figure)| figure.to_bits()).collect()
        };
        let mut alone = Evaluator::new(&labels);
        add(&mut alone, &samples);
        for ranks in [2, 3, 7] {
            let mut merged = Evaluator::new(&labels);
            for rank in (0..ranks).rev() {
                let mut evaluator = Evaluator::new(&labels);
                let part: Vec<u32> = samples.iter().copied().filter(|at| at % ranks == rank).collect();
                part.chunks(4).for_each(|chunk| add(&mut evaluator, chunk));
                merged.merge(&evaluator).unwrap();
            }
            assert_eq!(merged.count(), 97);
            assert_eq!(bits(&merged), bits(&alone), "{labels:?} over {ranks} ranks");
        }
    }
}

#[test]
fn counts_travel_between_ranks() {
    let counts = counts_of(3, &[(0, 1), (2, 2), (1, 1)]);
    assert_eq!(ClassCounts::from_slice(&counts.to_vec()), Some(counts));
    assert_eq!(ClassCounts::from_slice(&[0; 8]), None);
}

#[test]
fn a_mean_does_not_depend_on_who_added_when() {
    let terms: Vec<(u64, f64, f64)> = (0..50).map(|at| (at, 1.0 / (at as f64 + 3.0), 1.0 + (at % 3) as f64)).collect();
    let sum_of = |order: &mut dyn Iterator<Item = &(u64, f64, f64)>| {
        let mut sum = OrderedSum::default();
        order.for_each(|(index, value, weight)| sum.add(*index, *value, *weight));
        sum
    };
    let forward = sum_of(&mut terms.iter());
    let mut merged = sum_of(&mut terms.iter().rev().step_by(2));
    merged.merge(&sum_of(&mut terms.iter().rev().skip(1).step_by(2)));
    assert_eq!(forward.mean().to_bits(), merged.mean().to_bits());
    let direct = terms.iter().map(|term| term.1).sum::<f64>() / terms.iter().map(|term| term.2).sum::<f64>();
    assert_eq!(forward.mean(), direct);
    assert_eq!(OrderedSum::default().mean(), 0.0);
}

#[test]
fn language_models_are_evaluated_by_mean_loss_however_ranks_share_batches() {
    let words = || Evaluator::new(&LabelSpace::NextTokens);
    let batches: Vec<(u64, f32, u64, u64)> = (0..9).map(|at| (at, 1.0 / (at as f32 + 0.3), 2, 1 + at % 4)).collect();
    let add = |evaluator: &mut Evaluator, part: &[(u64, f32, u64, u64)]| {
        for (index, loss, samples, weight) in part {
            evaluator.add_loss(*index, *loss, *samples, *weight).unwrap();
        }
    };
    let (mut all, mut first, mut second) = (words(), words(), words());
    add(&mut all, &batches);
    add(&mut first, &batches[5..]);
    add(&mut second, &batches[..5]);
    first.merge(&second).unwrap();
    let sum: f64 = batches.iter().map(|(_, loss, _, weight)| f64::from(*loss) * *weight as f64).sum();
    let expected = (sum / batches.iter().map(|(.., weight)| *weight as f64).sum::<f64>()).exp();
    assert_eq!(all.compute(&[Metric::Perplexity]).unwrap(), [(Metric::Perplexity, expected)]);
    let of = |evaluator: &Evaluator| evaluator.compute(&[Metric::Perplexity]).unwrap();
    assert_eq!(of(&first), of(&all));
    assert_eq!((first.count(), all.count()), (18, 18));
    let error = all.compute(&[Metric::Accuracy]).unwrap_err().to_string();
    assert!(error.contains("does not judge labels that are tokens") && error.contains("use perplexity"), "{error}");
    let error = all.add_loss(9, f32::NAN, 1, 1).unwrap_err().to_string();
    assert!(error.contains("evaluation, batch 9"), "{error}");
    assert!(all.merge(&Evaluator::new(&LabelSpace::Value)).is_err());
}
