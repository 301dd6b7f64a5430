//! Sums, norms, softmax, and the optimizer's step.

use super::*;

pub(super) fn time(bench: &mut Bench<'_>, dtype: DType) -> Result<()> {
    let sizes = bench.sizes();
    let (rows, columns, size) = (sizes.rows(), sizes.inner, dtype.size());
    let len = rows * columns;
    let (x, mut y) = (bench.tensor(len, dtype)?, bench.tensor(len, dtype)?);
    let mut sums = bench.tensor(columns, DType::F32)?;
    bench.moving("column_sum", dtype, size * len, |launch| {
        launch(ColumnSum { rows, columns, x: x.view()?, out: sums.dest(true)? }.into())
    })?;
    let mut words = Tensor::from_slice_in(bench.device, [WORDS], &[0i64; WORDS], Segment::Data)?;
    for (name, order) in [("grad_norm 2", NormOrder::Two), ("grad_norm inf", NormOrder::Infinity)] {
        bench.moving(name, dtype, size * len, |launch| {
            launch(GradNorm { order, xs: vec![x.view()?], out: words.dest(false)? }.into())
        })?;
    }
    let mut flag = Tensor::from_slice_in(bench.device, [1], &[0i32], Segment::Data)?;
    bench.moving("non_finite", dtype, size * len, |launch| {
        launch(NonFinite { x: x.view()?, flag: flag.view_mut()? }.into())
    })?;
    bench.moving("softmax", dtype, 2 * size * len, |launch| {
        launch(Softmax { rows, columns, log: false, x: x.view()?, y: y.view_mut()? }.into())
    })?;
    adam(bench, dtype)
}

fn adam(bench: &mut Bench<'_>, dtype: DType) -> Result<()> {
    let (device, len) = (bench.device, bench.sizes().parameters);
    let factor = Tensor::full_in(device, [1], DType::F32, 1.0, Segment::Data)?;
    let (mut parameter, grad) = (bench.tensor(len, dtype)?, bench.tensor(len, dtype)?);
    let mut master = bench.tensor(if dtype == DType::F32 { 0 } else { len }, DType::F32)?;
    let zeros = || Tensor::full_in(device, [len], DType::F32, 0.0, Segment::Optimizer);
    let (mut m, mut v) = (zeros()?, zeros()?);
    // Both moments and the master are read and written, the gradient is read, a 16-bit parameter only written.
    let bytes = if dtype == DType::F32 { 7 * 4 } else { 6 * 4 + 2 * dtype.size() };
    bench.moving("adam", dtype, bytes * len, |launch| {
        let kernel = Adam {
            runs: vec![AdamRun {
                parameter: parameter.view_mut()?,
                master: if dtype == DType::F32 { None } else { Some(master.view_mut()?) },
                m: m.view_mut()?,
                v: v.view_mut()?,
                grad: grad.view()?,
                settings: AdamSettings {
                    lr: 1e-4,
                    beta1: 0.9,
                    beta2: 0.999,
                    epsilon: 1e-8,
                    decay: 0.01,
                    decoupled: true,
                    maximize: false,
                    step: 10,
                },
            }],
            factor: factor.view()?,
        };
        launch(kernel.into())
    })
}
