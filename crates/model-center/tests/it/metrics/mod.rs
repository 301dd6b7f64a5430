//! Metrics: hand-computed values, a table from scikit-learn and scipy, and exact merging over ranks.

mod answers;
mod golden;
mod ranks;

use model_center::data::{LabelSpace, Labels};
use model_center::metrics::{Average, ClassCounts, Evaluator, LabelSetCounts, Metric, ValuePairs, argmax};
use serde_json::Value;

/// Both sides are f64 and sum at most 60 terms; the last digits differ by the order of operations.
const TOLERANCE: f64 = 1e-12;

fn counts_of(classes: usize, decisions: &[(usize, usize)]) -> ClassCounts {
    let mut counts = ClassCounts::new(classes);
    decisions.iter().for_each(|(label, predicted)| counts.add(*label, *predicted));
    counts
}

fn pairs(decisions: &[(f32, f32)]) -> ValuePairs {
    let mut pairs = ValuePairs::default();
    decisions.iter().enumerate().for_each(|(at, (predicted, label))| pairs.add(at as u64, *predicted, *label));
    pairs
}

fn assert_close(value: f64, expected: f64, what: &str) {
    assert!((value - expected).abs() <= TOLERANCE, "{what}: {value}, not {expected}");
}

#[test]
fn two_classes_by_hand() {
    // 3 true positives, 1 false positive, 2 false negatives, 4 true negatives.
    let cells = [((1, 1), 3), ((0, 1), 1), ((1, 0), 2), ((0, 0), 4)];
    let decisions: Vec<_> = cells.iter().flat_map(|(decision, times)| vec![*decision; *times]).collect();
    let counts = counts_of(2, &decisions);
    assert_eq!(counts.to_vec(), [4, 3, 5, 5, 6, 4]);
    assert_close(counts.accuracy(), 0.7, "accuracy");
    assert_close(counts.precision(Average::Class(1)).unwrap(), 0.75, "precision");
    assert_close(counts.recall(Average::Class(1)).unwrap(), 0.6, "recall");
    assert_close(counts.f1(Average::Class(1)).unwrap(), 2.0 / 3.0, "f1");
    assert_close(counts.f1(Average::Class(0)).unwrap(), 8.0 / 11.0, "f1 of class 0");
    assert_close(counts.f1(Average::Macro).unwrap(), (2.0 / 3.0 + 8.0 / 11.0) / 2.0, "macro f1");
    assert_close(counts.f1(Average::Micro).unwrap(), 0.7, "micro f1");
    // (3·4 − 1·2) / sqrt(4·5·5·6)
    assert_close(counts.matthews(), 10.0 / 600_f64.sqrt(), "matthews");
    assert_eq!(counts.f1(Average::Class(2)), None);
}

/// Precision 3/4 and recall 3/5 of a class differ, so figures stored under each other's name would show.
#[test]
fn f1_and_recall_are_not_swapped() {
    let labels = LabelSpace::Classes(["contradiction", "entailment", "neutral"].map(String::from).to_vec());
    let mut evaluator = Evaluator::new(&labels);
    let answers: [(i64, usize); 6] = [(0, 0), (0, 0), (0, 1), (1, 1), (2, 2), (2, 0)];
    let logits: Vec<f32> = answers
        .iter()
        .flat_map(|(_, predicted)| (0..3).map(move |class| f32::from(u8::from(class == *predicted))))
        .collect();
    let truth = Labels::Classes(answers.iter().map(|(label, _)| *label).collect());
    evaluator.add(&[0, 1, 2, 3, 4, 5], &logits, &truth).unwrap();
    let figures = evaluator.compute(&[Metric::Accuracy, Metric::F1Macro, Metric::RecallMacro]).unwrap();
    let expected = [
        (Metric::Accuracy, 4.0 / 6.0),
        // F1 per class: 4/6, 2/3, 2/3.
        (Metric::F1Macro, 2.0 / 3.0),
        // Recall per class: 2/3, 1, 1/2.
        (Metric::RecallMacro, (2.0 / 3.0 + 1.0 + 0.5) / 3.0),
    ];
    for ((metric, figure), (expected_metric, expected)) in figures.iter().zip(expected) {
        assert_eq!(*metric, expected_metric);
        assert_close(*figure, expected, metric.name());
    }
}

#[test]
fn quotients_without_a_value_are_zero() {
    let never_predicted = counts_of(3, &[(1, 0), (1, 0), (0, 0)]);
    assert_eq!(never_predicted.precision(Average::Class(1)), Some(0.0));
    assert_eq!(never_predicted.recall(Average::Class(2)), Some(0.0));
    assert_eq!(never_predicted.matthews(), 0.0);
    // Class 2 never occurs, so it does not lower the mean: (2·1/4 + 0) / 2.
    assert_close(never_predicted.f1(Average::Macro).unwrap(), 0.25, "macro f1");
    let empty = ClassCounts::new(2);
    assert_eq!((empty.accuracy(), empty.matthews(), empty.f1(Average::Macro)), (0.0, 0.0, Some(0.0)));
    assert_eq!(pairs(&[]).pearson(), 0.0);
    assert_eq!(pairs(&[]).mean_squared_error(), 0.0);
    assert_eq!(pairs(&[(1.0, 2.0)]).spearman(), 0.0);
    // 0.1 has no exact mean in binary; the rounding must not look like a correlation.
    assert_eq!(pairs(&[(0.1, 1.0), (0.1, 2.0), (0.1, 4.0)]).pearson(), 0.0);
}

#[test]
fn numbers_by_hand() {
    let pairs = pairs(&[(1.0, 1.0), (2.0, 3.0), (4.0, 2.0)]);
    // Deviations (−4/3, −1/3, 5/3) and (−1, 1, 0): products sum to 1, squares to 42/9 and 2.
    assert_close(pairs.pearson(), 1.0 / (42.0 / 9.0 * 2.0_f64).sqrt(), "pearson");
    // Ranks (1, 2, 3) and (1, 3, 2): 1 − 6·2 / (3·8).
    assert_close(pairs.spearman(), 0.5, "spearman");
    assert_close(pairs.mean_squared_error(), 5.0 / 3.0, "mean squared error");
}

#[test]
fn ties_share_the_mean_of_their_ranks() {
    // Ranks (1.5, 1.5, 3, 4) and (1, 2.5, 2.5, 4): deviations (−1, −1, .5, 1.5) and (−1.5, 0, 0, 1.5).
    let tied = pairs(&[(0.0, 1.0), (-0.0, 2.0), (5.0, 2.0), (6.0, 9.0)]);
    assert_close(tied.spearman(), 3.75 / (4.5 * 4.5_f64).sqrt(), "spearman");
}

#[test]
fn the_table_of_scikit_learn_and_scipy_is_reproduced() {
    let table: Value = serde_json::from_str(include_str!("table.json")).unwrap();
    let numbers = |case: &Value, key: &str| -> Vec<f64> {
        case[key].as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
    };
    let mut compared = 0;
    let mut compare = |evaluator: &Evaluator, expected: &Value| {
        for (name, expected) in expected.as_object().unwrap() {
            let figures = evaluator.compute(&[Metric::parse(name).unwrap()]).unwrap();
            assert_close(figures[0].1, expected.as_f64().unwrap(), name);
            compared += 1;
        }
    };
    for case in table["classes"].as_array().unwrap() {
        let decisions: Vec<(usize, usize)> = numbers(case, "labels")
            .into_iter()
            .zip(numbers(case, "predicted"))
            .map(|(label, predicted)| (label as usize, predicted as usize))
            .collect();
        let classes = case["classes"].as_u64().unwrap() as usize;
        compare(&Evaluator::Classes(counts_of(classes, &decisions)), &case["expected"]);
    }
    for case in table["values"].as_array().unwrap() {
        let decisions: Vec<(f32, f32)> = numbers(case, "predicted")
            .into_iter()
            .zip(numbers(case, "labels"))
            .map(|(predicted, label)| (predicted as f32, label as f32))
            .collect();
        compare(&Evaluator::Values(pairs(&decisions)), &case["expected"]);
    }
    for case in table["sets"].as_array().unwrap() {
        let rows = |key: &str| -> Vec<Vec<f32>> { serde_json::from_value(case[key].clone()).unwrap() };
        let (labels, predicted) = (rows("labels"), rows("predicted"));
        let mut counts = LabelSetCounts::new(labels[0].len(), LabelSetCounts::THRESHOLD);
        labels.iter().zip(&predicted).for_each(|(labels, predicted)| {
            let logits: Vec<f32> = predicted.iter().map(|is_predicted| is_predicted * 2.0 - 1.0).collect();
            counts.add(&logits, labels);
        });
        compare(&Evaluator::LabelSets(counts), &case["expected"]);
    }
    // Of two classes three figures more.
    assert_eq!(compared, 9 * 11 + 3 * 3 + 6 * 3 + 3 * 10);
}

#[test]
fn a_figure_of_the_second_of_two_classes_is_refused_for_more_of_them() {
    let evaluator = Evaluator::Classes(counts_of(5, &[(0, 0), (1, 1), (4, 2)]));
    for metric in [Metric::Precision, Metric::Recall, Metric::F1] {
        let error = evaluator.compute(&[metric]).unwrap_err().to_string();
        let name = metric.name();
        assert!(error.contains("there are 5") && error.contains(&format!("use \"{name}_macro\"")), "{error}");
        assert!(metric.check_classes(Some(2)).is_ok() && metric.check_classes(None).is_ok());
    }
    assert!(evaluator.compute(&[Metric::F1Macro, Metric::F1Micro, Metric::F1Weighted]).is_ok());
}

#[test]
fn matthews_stays_exact_for_large_counts() {
    // 10^12 decisions: products of counts leave 64 bits.
    let (right, half) = (250_000_000_001, 500_000_000_000);
    let counts = ClassCounts::from_slice(&[right, right, half, half, half, half]).unwrap();
    assert_close(counts.matthews(), 4e-12, "matthews");
    assert!((counts.matthews() / 4e-12 - 1.0).abs() < 1e-9, "{}", counts.matthews());
}

#[test]
fn the_first_of_equal_outputs_is_predicted() {
    assert_eq!(argmax(&[1.0, 3.0, 3.0]), Some(1));
    assert_eq!(argmax(&[f32::NEG_INFINITY, f32::NEG_INFINITY]), Some(0));
    assert_eq!(argmax(&[-0.0, 0.0]), Some(0));
    assert_eq!(argmax(&[1.0, f32::NAN]), None);
    assert_eq!(argmax(&[]), None);
}

#[test]
fn wrong_inputs_are_errors_and_change_nothing() {
    let mut evaluator = Evaluator::new(&LabelSpace::Choices(2));
    for (samples, logits, labels, reason) in [
        (vec![0, 1], vec![0.0; 3], Labels::Classes(vec![0, 1]), "3 outputs"),
        (vec![0], vec![0.0; 2], Labels::Classes(vec![]), "0 labels"),
        (vec![0, 1], vec![0.0; 4], Labels::Classes(vec![0, 2]), "label 2 of sample 1"),
        (vec![0, 1], vec![0.0; 4], Labels::Classes(vec![0, -100]), "label -100 of sample 1"),
        (
            vec![0, 8],
            vec![0.0, 1.0, 1.0, f32::NAN],
            Labels::Classes(vec![0, 1]),
            "not numbers: [1.0, NaN]\n  --> evaluation, sample 8",
        ),
        (vec![0], vec![0.0; 2], Labels::Values(vec![1.0]), "numbers as labels"),
    ] {
        let error = evaluator.add(&samples, &logits, &labels).unwrap_err();
        let error = model_center::run::layout_error(&error);
        assert!(error.contains(reason), "{error}");
    }
    assert_eq!(evaluator.count(), 0);
    let mut values = Evaluator::new(&LabelSpace::Value);
    let error = values.add(&[3, 4], &[0.5, f32::NAN], &Labels::Values(vec![1.0, 2.0])).unwrap_err();
    let error = model_center::run::layout_error(&error);
    assert!(error.contains("not numbers: [NaN]\n  --> evaluation, sample 4"), "{error}");
    assert_eq!(values.count(), 0);
    assert!(evaluator.compute(&[Metric::Accuracy]).unwrap_err().to_string().contains("no sample"));
    assert!(evaluator.merge(&Evaluator::new(&LabelSpace::Value)).is_err());
    assert!(evaluator.merge(&Evaluator::new(&LabelSpace::Choices(3))).is_err());
    evaluator.add(&[0], &[0.0, 1.0], &Labels::Classes(vec![1])).unwrap();
    let error = evaluator.compute(&[Metric::Pearson]).unwrap_err().to_string();
    assert!(error.contains("\"pearson\" does not judge labels that are 2 classes") && error.contains("f1"), "{error}");
    let error = Metric::parse("acc").unwrap_err().to_string();
    assert!(error.contains("unknown metric \"acc\"") && error.contains("accuracy, precision"), "{error}");
}

#[test]
fn default_metrics_fit_their_labels_and_names_round_trip() {
    for labels in [
        LabelSpace::Value,
        LabelSpace::Choices(2),
        LabelSpace::Classes(vec![String::new(); 2]),
        LabelSpace::Classes(vec![String::new(); 5]),
    ] {
        let mut evaluator = Evaluator::new(&labels);
        let (logits, truth) = match labels.classes() {
            Some(classes) => (vec![0.0; classes], Labels::Classes(vec![0])),
            None => (vec![0.0], Labels::Values(vec![1.0])),
        };
        evaluator.add(&[0], &logits, &truth).unwrap();
        assert!(evaluator.compute(Metric::defaults(&labels)).is_ok());
    }
    for metric in Metric::all() {
        assert_eq!(Metric::parse(metric.name()).unwrap(), metric);
        assert_eq!(serde_json::to_value(metric).unwrap(), metric.name());
    }
}

#[test]
fn numbers_that_are_not_finite_show() {
    assert!(pairs(&[(f32::NAN, 1.0), (2.0, 2.0)]).pearson().is_nan());
    assert!(pairs(&[(f32::INFINITY, 1.0), (2.0, 2.0)]).spearman().is_nan());
    assert!(pairs(&[(f32::NAN, 1.0)]).mean_squared_error().is_nan());
    // A column of equal infinities is constant, and still nothing that can be judged.
    for infinite in [f32::INFINITY, f32::NEG_INFINITY] {
        let pairs = pairs(&[(infinite, 1.0), (infinite, 2.0)]);
        for figure in [pairs.pearson(), pairs.spearman(), pairs.mean_squared_error()] {
            assert!(figure.is_nan(), "{figure}");
        }
    }
}
