//! Targets out of range in the cross-entropy of a shard, on an emulated driver.
#![cfg(feature = "cuda")]

use bmtrain_core::cuda::{CudaBackend, CudaOptions};
use bmtrain_core::kernel::{
    Criterion, CrossEntropyBackward, CrossEntropyInPlace, CrossEntropyLoss, CrossEntropyStatistics, LossTotals,
    ShardClasses,
};
use bmtrain_core::{DType, Device, Error, Segment, Tensor};
use cuda_emulator::{Driver, with_driver};
use std::sync::Arc;

const ROWS: usize = 4;
const COLUMNS: usize = 24;
const CLASSES: usize = 20;

#[test]
fn targets_outside_the_classes_are_reported_and_leave_the_other_rows_right() {
    with_driver(
        "targets_outside_the_classes_are_reported_and_leave_the_other_rows_right",
        Driver::Emulated,
        &[],
        || {
            let options = CudaOptions { compiled: Some(cuda_emulator::compiled_kernels()), ..CudaOptions::default() };
            let backend = CudaBackend::open(0, &options).unwrap();
            let device = Device::new(Arc::new(backend));
            for bad in [-1, CLASSES as i64, i64::MAX, i64::MIN] {
                let targets = Tensor::from_slice_in(&device, [ROWS], &[3, -100, bad, 19], Segment::Data).unwrap();
                let full = |len: usize, value| {
                    Tensor::full_in(&device, [len], DType::F32, value, Segment::Activations).unwrap()
                };
                let (logits, mut statistics) = (full(ROWS * COLUMNS, 0.5), full(ROWS * 4, 9.0));
                let classes = ShardClasses::all(CLASSES);
                let criterion = Criterion {
                    classes,
                    targets: targets.view().unwrap(),
                    ignore_index: -100,
                    smoothing: 0.1,
                    weights: None,
                    soft_cap: None,
                };
                device
                    .launch(CrossEntropyStatistics {
                        rows: ROWS,
                        columns: COLUMNS,
                        logits: logits.view().unwrap(),
                        criterion,
                        statistics: statistics.view_mut().unwrap(),
                    })
                    .unwrap();
                let error = device.sync().unwrap_err();
                assert_eq!(
                    error,
                    Error::Index { op: "cross_entropy_statistics", position: 2, index: bad, bound: CLASSES }
                );

                let (mut losses, mut dlogits) = (full(ROWS, 9.0), full(ROWS * COLUMNS, 0.5));
                let (of_rows, in_place) = (losses.view_mut().unwrap(), dlogits.view_mut().unwrap());
                let (rows, columns) = (ROWS, COLUMNS);
                device
                    .launch(CrossEntropyInPlace { rows, columns, criterion, losses: of_rows, dlogits: in_place })
                    .unwrap();
                let error = device.sync().unwrap_err();
                assert_eq!(
                    error,
                    Error::Index { op: "cross_entropy_in_place", position: 2, index: bad, bound: CLASSES }
                );
                let (losses, dlogits) = (losses.to_vec::<f32>().unwrap(), dlogits.to_vec::<f32>().unwrap());
                assert!(losses[0] > 0.0 && losses[1] == 0.0 && losses[2] == 0.0 && losses[3] > 0.0, "{losses:?}");
                let counted = dlogits.chunks(COLUMNS).map(|row| row.iter().any(|x| *x != 0.0));
                assert_eq!(counted.collect::<Vec<_>>(), [true, false, false, true]);

                let (mut losses, mut lse) = (full(ROWS, 9.0), full(ROWS, 9.0));
                device
                    .launch(CrossEntropyLoss {
                        rows: ROWS,
                        shards: 1,
                        statistics: statistics.view().unwrap(),
                        criterion,
                        losses: losses.view_mut().unwrap(),
                        lse: lse.view_mut().unwrap(),
                    })
                    .unwrap();
                let each = (CLASSES as f32).ln();
                let close = losses
                    .to_vec::<f32>()
                    .unwrap()
                    .iter()
                    .zip([each, 0.0, 0.0, each])
                    .all(|(a, b)| (a - b).abs() < 1e-5);
                assert!(close, "{losses:?}");

                let (mut dlogits, one) = (full(ROWS * COLUMNS, 9.0), full(1, 1.0));
                device
                    .launch(CrossEntropyBackward {
                        rows: ROWS,
                        columns: COLUMNS,
                        logits: Some(logits.view().unwrap()),
                        criterion,
                        lse: lse.view().unwrap(),
                        dloss: one.view().unwrap(),
                        divisor: None,
                        fused: false,
                        dlogits: dlogits.view_mut().unwrap(),
                    })
                    .unwrap();
                let error = device.sync().unwrap_err();
                assert_eq!(
                    error,
                    Error::Index { op: "cross_entropy_backward", position: 2, index: bad, bound: CLASSES }
                );
                let dlogits = dlogits.to_vec::<f32>().unwrap();
                for (row, counted) in [true, false, false, true].into_iter().enumerate() {
                    let row = &dlogits[row * COLUMNS..(row + 1) * COLUMNS];
                    assert!(row[..CLASSES].iter().all(|x| (*x != 0.0) == counted), "{row:?}");
                    assert!(row[CLASSES..].iter().all(|x| *x == 0.0), "{row:?}");
                }

                let (weights, mut totals) = (full(CLASSES, 2.0), full(3, 9.0));
                device
                    .launch(LossTotals {
                        losses: losses.view().unwrap(),
                        targets: targets.view().unwrap(),
                        ignore_index: -100,
                        class_weights: Some(weights.view().unwrap()),
                        totals: totals.view_mut().unwrap(),
                    })
                    .unwrap();
                let error = totals.to_vec::<f32>().unwrap_err();
                assert_eq!(error, Error::Index { op: "loss_totals", position: 2, index: bad, bound: CLASSES });
                assert_eq!(totals.to_vec::<f32>().unwrap()[1], 4.0);
            }
        },
    );
}
