//! Classifiers of any number of labels against transformers in 64-bit floats, and their figures against scikit-learn
//! (`scripts/golden/make_multi_label.py`).

use crate::goldens::{batch, check, directory, distance, f64s, follow_pytorch_by, norm};
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor, Var};
use bmtrain_dist::block::Recompute;
use bmtrain_dist::param::widen;
use model_center::data::{Batch, LabelSpace, Labels};
use model_center::formats::{SafetensorsFile, TensorSource};
use model_center::metrics::{Evaluator, LabelKind};
use model_center::model::{OpenOptions, OpenedModel, Registry};

/// The largest relative error of a gradient, as of adapters.
const GRADIENTS: f64 = 1e-4;

fn golden() -> SafetensorsFile {
    SafetensorsFile::open(&directory("multi_label", "golden.safetensors")).unwrap()
}

/// As its `config.json` states it, with `problem_type`.
fn open(device: &Device, recompute: Recompute) -> OpenedModel {
    let options = OpenOptions { recompute, ..OpenOptions::new(device) };
    Registry::default().open(&directory("multi_label", ""), &options).unwrap()
}

#[test]
fn loss_logits_and_every_gradient_equal_transformers() {
    let (device, file) = (Device::cpu(1).unwrap(), golden());
    let first = batch(&file, "batch.0.");
    for recompute in [Recompute::Keep, Recompute::Checkpoint] {
        let opened = open(&device, recompute);
        let mut cx = Ctx::gradients(&device);
        let output = opened.model.forward(&first, None, &mut cx).unwrap();
        let (logits, loss) = (output.logits.unwrap(), output.loss.unwrap());
        let values = |var: &Var| widen(var.value()).unwrap();
        check("logits", &values(&logits), &f64s(&file, "logits"));
        check("loss", &values(&loss), &f64s(&file, "loss"));
        let one = Tensor::full_in(&device, [1], DType::F32, 1.0, Segment::Activations).unwrap();
        cx.take_tape().unwrap().backward(&device, vec![(loss, one)], &[]).unwrap();
        let all = file.tensors().iter().filter(|entry| entry.name.starts_with("grad."));
        let largest = all.clone().map(|entry| norm(&f64s(&file, &entry.name))).fold(0.0, f64::max);
        let mut count = 0;
        for param in opened.model.parameters().iter() {
            let gradient = widen(&param.grad().unwrap().unwrap()).unwrap();
            for piece in opened.model.names().pieces(param.name(), param.spec().shape.dims(), true).unwrap() {
                let (ours, theirs) = (piece.of(&gradient).unwrap(), f64s(&file, &format!("grad.{}", piece.name)));
                // Biases of keys have no gradient but roundings.
                let error = distance(&ours, &theirs) / norm(&theirs).max(1e-3 * largest);
                assert!(error <= GRADIENTS, "grad {}: relative error {error:e}", piece.name);
                count += 1;
            }
        }
        assert_eq!(count, all.count(), "every gradient is compared");
    }
}

#[test]
fn thirty_adamw_steps_follow_transformers() {
    let (device, file) = (Device::cpu(1).unwrap(), golden());
    let opened = open(&device, Recompute::Keep);
    let batches: Vec<Batch> = (0..3).map(|number| batch(&file, &format!("batch.{number}."))).collect();
    let loss = |step: usize, cx: &mut Ctx| opened.model.loss(&batches[step % batches.len()], cx).unwrap().unwrap();
    follow_pytorch_by(("multi-label", ""), &*opened.model, &file, &device, &loss);
}

#[test]
fn figures_at_a_threshold_equal_scikit_learns() {
    let file = golden();
    let entry = file.entry("figures.logits").unwrap();
    let (samples, width) = (entry.shape[0], entry.shape[1]);
    let mut logits = vec![0.0; samples * width];
    file.read_f32("figures.logits", &mut logits).unwrap();
    let labels: Vec<f32> = file.read_i64("figures.labels").unwrap().iter().map(|label| *label as f32).collect();
    let space = LabelSpace::LabelSets((0..width).map(|label| label.to_string()).collect());
    for threshold in [0.5f32, 0.3] {
        // Over two ranks.
        let half = samples / 2;
        let part = |rows: std::ops::Range<usize>| {
            let mut evaluator = Evaluator::new(&space).with_threshold(threshold);
            let numbers: Vec<u32> = rows.clone().map(|row| row as u32).collect();
            let values = rows.start * width..rows.end * width;
            evaluator.add(&numbers, &logits[values.clone()], &Labels::Values(labels[values].to_vec())).unwrap();
            evaluator
        };
        let mut all = part(0..half);
        all.merge(&part(half..samples)).unwrap();
        let metrics = model_center::data::MULTI_LABEL_METRICS;
        let found: Vec<f64> = all.compute(metrics).unwrap().into_iter().map(|(_, value)| value).collect();
        let theirs = f64s(&file, &format!("figures.{threshold}"));
        for (metric, (ours, theirs)) in metrics.iter().zip(found.iter().zip(&theirs)) {
            assert!((ours - theirs).abs() < 1e-12, "{} at {threshold}: {ours} for {theirs}", metric.name());
        }
    }
    let names = LabelKind::LabelSets.metrics();
    assert_eq!(names[..2], ["accuracy", "precision_macro"]);
    assert!(names.contains(&"f1_weighted") && !names.contains(&"f1"), "{names:?}");
}

#[test]
fn labels_and_outputs_that_do_not_fit_are_named() {
    let device = Device::cpu(1).unwrap();
    let opened = open(&device, Recompute::Keep);
    let first = batch(&golden(), "batch.0.");
    let rows = first.rows;
    for (labels, expected) in [
        (Labels::Values(vec![0.0; 4 * rows - 1]), "are needed"),
        (Labels::Values([vec![2.0], vec![0.0; 4 * rows - 1]].concat()), "labels[0]: 2 is not from 0 to 1"),
        (Labels::Classes(vec![0; rows]), "multi_label_classification"),
    ] {
        let batch = Batch { labels: Some(labels), ..first.clone() };
        let error = opened.model.loss(&batch, &mut Ctx::inference(&device)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let mut evaluator = Evaluator::new(&LabelSpace::LabelSets(vec!["a".into(), "b".into()]));
    for (logits, labels, expected) in [
        (vec![0.0; 2], Labels::Classes(vec![0]), "classes as any number of labels"),
        (vec![0.0; 3], Labels::Values(vec![0.0; 2]), "3 outputs and 2 labels for 1 samples of 2 labels"),
        (vec![f32::NAN, 0.0], Labels::Values(vec![0.0; 2]), "not numbers"),
    ] {
        let error = evaluator.add(&[0], &logits, &labels).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert!(evaluator.merge(&Evaluator::new(&LabelSpace::Value)).is_err());
}
