//! Whether copies to the device run while the device computes, from traces of both lanes.
//!
//! Products alone, copies alone, and both together: what the third takes less than the first two is time in which both
//! ran. That the spans of two lanes overlap would not show it, because a copy that has to wait for the products begins
//! in time too.

use super::Place;
use super::report::Report;
use bmtrain_core::cuda::Traced;
use bmtrain_core::kernel::{Batch, Epilogue, Gemm, Matrix, MatrixMut};
use bmtrain_core::{Backend as _, DType, Device, Lane, Segment, Storage, Tensor};
use model_center_base::Result;
use serde_json::json;

/// Copy to the device on the copy lane while products run on the compute lane.
pub fn overlap(place: &Place, report: &mut Report) -> Result<()> {
    let device = place.device();
    let size = place.scale.overlap_product;
    let tensor = || Tensor::full_in(&device, [size, size], DType::BF16, 0.01, Segment::Workspace);
    let (a, b, mut c) = (tensor()?, tensor()?, tensor()?);
    let host = vec![1_u8; place.scale.overlap_copy];
    let to = Storage::empty_on(&device, host.len(), DType::U8, Segment::Data, Lane::Copy)?;
    let mut compute = || (0..PRODUCTS).try_for_each(|_| product(&device, size, &a, &b, &mut c));
    let copy = || Ok(place.backend.upload(&host, to.view_mut_on(0..host.len(), Lane::Copy)?, Lane::Copy)?);
    // Once without a trace: libraries are opened and page-locked memory is taken.
    compute()?;
    copy()?;
    let products = traced(place, &mut || (0..COPIES).try_for_each(|_| compute()))?;
    let copies = traced(place, &mut || (0..COPIES).try_for_each(|_| copy()))?;
    let both = traced(place, &mut || (0..COPIES).try_for_each(|_| compute().and_then(|()| copy())))?;
    let [computing, copying, together] = [&products, &copies, &both].map(|trace| length(trace));
    let (share, bytes) = (hidden(computing, copying, together), COPIES * host.len());
    report.row(
        "overlap of copies and products",
        format!(
            "{:.1} % of copying hidden: {:.2} ms of products, {:.2} ms of copies, {:.2} ms together",
            100.0 * share,
            1e3 * computing,
            1e3 * copying,
            1e3 * together
        ),
    );
    let trace: Vec<_> = both
        .iter()
        .map(|traced| json!([format!("{:?}", traced.lane), traced.name, traced.begin, traced.end]))
        .collect();
    let found = json!({
        "hidden_share": share, "copies_s": copying, "products_s": computing, "together_s": together, "bytes": bytes,
        "copy_bytes_per_s": bytes as f64 / copying, "trace": trace,
    });
    report.part("overlap", found);
    Ok(())
}

/// Run with a trace.
fn traced(place: &Place, run: &mut dyn FnMut() -> Result<()>) -> Result<Vec<Traced>> {
    place.backend.trace_on()?;
    run()?;
    Ok(place.backend.take_trace()?)
}

/// Seconds from the first beginning to the last end.
fn length(trace: &[Traced]) -> f64 {
    let begin = trace.iter().map(|traced| traced.begin).fold(f64::INFINITY, f64::min);
    let end = trace.iter().map(|traced| traced.end).fold(f64::NEG_INFINITY, f64::max);
    (end - begin).max(0.0)
}

/// The share of the copies' time that together with the products is not added to theirs.
fn hidden(computing: f64, copying: f64, together: f64) -> f64 {
    if copying > 0.0 { ((computing + copying - together) / copying).clamp(0.0, 1.0) } else { 0.0 }
}

/// Uploads, and products before each in the order of the host.
const COPIES: usize = 8;
const PRODUCTS: usize = 8;

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
        fp8: None,
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_is_what_is_not_added() {
        assert_eq!(hidden(4.0, 2.0, 6.0), 0.0, "one after the other");
        assert_eq!(hidden(4.0, 2.0, 4.0), 1.0, "all of it during the products");
        assert_eq!(hidden(4.0, 2.0, 5.0), 0.5);
        assert_eq!(hidden(4.0, 2.0, 7.0), 0.0, "never less than nothing");
    }

    #[test]
    fn a_trace_lasts_from_its_first_beginning_to_its_last_end() {
        let at = |begin, end| Traced { lane: Lane::Copy, name: "upload", begin, end };
        assert_eq!(length(&[at(1.0, 5.0), at(0.5, 2.0)]), 4.5);
        assert_eq!(length(&[]), 0.0);
    }
}
