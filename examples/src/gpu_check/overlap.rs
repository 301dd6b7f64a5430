//! Whether copies to the device run while the device computes, from a trace of both lanes.

use super::Place;
use super::report::Report;
use bmtrain_core::cuda::Traced;
use bmtrain_core::kernel::{Batch, Epilogue, Gemm, Matrix, MatrixMut};
use bmtrain_core::{Backend as _, DType, Device, Lane, Segment, Storage, Tensor};
use model_center::Result;
use serde_json::json;

/// Copy to the device on the copy lane while products run on the compute lane.
pub fn overlap(place: &Place, report: &mut Report) -> Result<()> {
    let device = place.device();
    let size = place.scale.overlap_product;
    let tensor = || Tensor::full(&device, [size, size], DType::BF16, 0.01, Segment::Workspace);
    let (a, b, mut c) = (tensor()?, tensor()?, tensor()?);
    let host = vec![1_u8; place.scale.overlap_copy];
    let to = Storage::empty_on(&device, host.len(), DType::U8, Segment::Data, Lane::Copy)?;
    // Once without a trace: libraries are opened and page-locked memory is taken.
    product(&device, size, &a, &b, &mut c)?;
    place.backend.upload(&host, to.view_mut_on(0..host.len(), Lane::Copy)?, Lane::Copy)?;

    place.backend.trace_on()?;
    for _ in 0..COPIES {
        for _ in 0..PRODUCTS_FOR_A_COPY {
            product(&device, size, &a, &b, &mut c)?;
        }
        place.backend.upload(&host, to.view_mut_on(0..host.len(), Lane::Copy)?, Lane::Copy)?;
    }
    let trace = place.backend.take_trace()?;
    let of = |lane: Lane| {
        trace.iter().filter(move |traced| traced.lane == lane).map(|Traced { begin, end, .. }| (*begin, *end))
    };
    let (copies, products): (Vec<_>, Vec<_>) = (of(Lane::Copy).collect(), of(Lane::Compute).collect());
    let seconds = |spans: &[(f64, f64)]| spans.iter().map(|(begin, end)| end - begin).sum::<f64>();
    let hidden = shared(&copies, &products);
    let (copying, computing) = (seconds(&copies), seconds(&products));
    let share = if copying > 0.0 { hidden / copying } else { 0.0 };
    let bytes = COPIES * host.len();
    report.row(
        "overlap of copies and products",
        format!("{:.1} % of {:.2} ms of copying hidden behind products", 100.0 * share, 1e3 * copying),
    );
    let trace: Vec<_> = trace
        .iter()
        .map(|traced| json!([format!("{:?}", traced.lane), traced.name, traced.begin, traced.end]))
        .collect();
    let found = json!({
        "hidden_share": share, "copy_s": copying, "compute_s": computing, "bytes": bytes,
        "copy_bytes_per_s": bytes as f64 / copying, "trace": trace,
    });
    report.part("overlap", found);
    Ok(())
}

/// Uploads, each behind some products in the order of the host.
const COPIES: usize = 8;
const PRODUCTS_FOR_A_COPY: usize = 8;

fn product(device: &Device, size: usize, a: &Tensor, b: &Tensor, c: &mut Tensor) -> Result<()> {
    device.launch(Gemm {
        m: size,
        n: size,
        k: size,
        alpha: 1.0,
        a: Matrix::plain(a.view()?, size),
        b: Matrix::plain(b.view()?, size),
        beta: 0.0,
        c: MatrixMut { view: c.view_mut()?, ld: size, batch: [0, 0] },
        batch: Batch::ONE,
        epilogue: Epilogue::default(),
    })?;
    Ok(())
}

/// Seconds in which one of some spans and one of others run. Spans of one lane do not overlap each other.
fn shared(some: &[(f64, f64)], others: &[(f64, f64)]) -> f64 {
    let both = |a: &(f64, f64), b: &(f64, f64)| (a.1.min(b.1) - a.0.max(b.0)).max(0.0);
    some.iter().map(|a| others.iter().map(|b| both(a, b)).sum::<f64>()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_time_is_that_in_which_both_run() {
        assert_eq!(shared(&[(0.0, 1.0)], &[(1.0, 2.0)]), 0.0);
        assert_eq!(shared(&[(0.0, 4.0)], &[(1.0, 2.0), (3.0, 5.0)]), 2.0);
        assert_eq!(shared(&[(0.0, 1.0), (2.0, 3.0)], &[(0.5, 2.5)]), 1.0);
    }
}
