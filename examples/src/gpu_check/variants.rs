//! What the options of the backend gain that are off by default, and how large the chunks of a head should be: each
//! variant beside the ordinary one, in the shapes of a model.

use super::Place;
use super::report::Report;
use bmtrain_core::conformance::{Case, Measurement, Sizes, bench, compare_bits};
use bmtrain_core::cuda::{CudaBackend, CudaOptions, ProductChoices};
use bmtrain_core::kernel::Activation;
use bmtrain_core::ops::{self, AttentionOptions, LinearCrossEntropy};
use bmtrain_core::{Backend, DType, Device};
use model_center::Result;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Beside the ordinary chunks of a language model's head.
const CHUNKS: [usize; 4] = [128 << 20, 256 << 20, 512 << 20, 1 << 30];

/// All of it; nothing is timed on an emulated device unless that is asked for.
pub fn variants(place: &Place, is_timed: bool, budget: Duration, report: &mut Report) -> Result<()> {
    let sizes = place.scale.sizes;
    let mut all = attention(place, is_timed, budget, report)?;
    if is_timed && !report.is_lost() {
        all.extend(products(place, budget, report)?);
        all.push(chunks(place, sizes, budget, report)?);
    }
    report.part("variants", json!({ "variants": all }));
    Ok(())
}

fn device(backend: Arc<CudaBackend>) -> Device {
    Device::new(backend as Arc<dyn Backend>)
}

/// The backward pass of attention with one band of rows a warp and with two: the same bits, and the time.
fn attention(place: &Place, is_timed: bool, budget: Duration, report: &mut Report) -> Result<Vec<Value>> {
    let (tokens, heads, lengths): (usize, usize, &[usize]) =
        if report.emulated { (140, 2, &[140]) } else { (16_384, 25, &[512, 1024, 4096]) };
    let open = |wide_queries, wide_keys| {
        place.opened_again(CudaOptions { wide_queries, wide_keys, ..place.options.clone() }).map(device)
    };
    let wide = [("queries", open(true, false)?), ("keys", open(false, true)?), ("both", open(true, true)?)];
    let mut all = Vec::new();
    for &length in lengths {
        let name = format!("attention backward, {} x {length}, heads of 64", tokens / length);
        let case = Case::one(name.clone(), move |cx, v| {
            let options = AttentionOptions { causal: true, ..AttentionOptions::new(heads, 64) };
            ops::attention_fused(cx, &v[0], &options)
        });
        let case = case.variable("qkv", [tokens / length, length, 3 * heads * 64]);
        let plain = place.device();
        for (passes, device) in &wide {
            let compared = compare_bits(&plain, device, &case, DType::BF16);
            if !compared.as_ref().is_ok_and(|check| check.passed()) {
                report.fail(format!("variants: {name}, wide {passes}: other bits: {compared:?}"));
                place.note_loss(&name, report);
            }
        }
        if !is_timed || report.is_lost() {
            continue;
        }
        let seconds = |device: &Device| bench(device, &case, DType::BF16, budget).map(|found| found.backward);
        let ordinary = seconds(&plain)?;
        let mut found = json!({ "variant": "wide attention", "case": name, "seconds": ordinary });
        let mut figure = format!("{:.3} ms", 1e3 * ordinary);
        for (passes, device) in &wide {
            let seconds = seconds(device)?;
            figure += &format!(", wide {passes} {:.2} times as fast", ordinary / seconds);
            found[format!("wide_{passes}_seconds")] = json!(seconds);
        }
        report.row(name, figure);
        all.push(found);
    }
    if !is_timed {
        report.row("wide attention", "the bits of the ordinary kernels, not timed");
    }
    Ok(all)
}

/// A feed-forward layer: with epilogues by the library or by kernels, with algorithms by the library's estimate or by
/// time.
fn products(place: &Place, budget: Duration, report: &mut Report) -> Result<Vec<Value>> {
    let Sizes { batch, length, hidden, inner, .. } = place.scale.sizes;
    let rows = batch * length;
    let name = format!("feed-forward layer with GELU, {rows} rows, {hidden} to {inner}");
    let case = Case::one(name.clone(), |cx, v| {
        ops::feed_forward(cx, &v[0], &v[1], Some(&v[2]), Activation::GeluTanh, &v[3], Some(&v[4]))
    });
    let case = case.variable("x", [rows, hidden]).leaf("up", [inner, hidden]).deviation(0.02).leaf("up_bias", [inner]);
    let case = case.leaf("down", [hidden, inner]).deviation(0.02).leaf("down_bias", [hidden]);
    let measured = |device: &Device| bench(device, &case, DType::BF16, budget);
    let ordinary = measured(&place.device())?;
    let options = &place.options;
    let by_kernels = place.opened_again(CudaOptions { kernel_epilogues: true, ..options.clone() })?;
    let by_kernels = measured(&device(by_kernels))?;
    // Without a cache, so that all are timed in this run.
    let timed = place.opened_again(CudaOptions { timed_products: true, cache: None, ..options.clone() })?;
    let by_time = measured(&device(Arc::clone(&timed)))?;
    let choices = timed.product_choices().unwrap_or_default();
    let mut all = Vec::new();
    for (what, found) in [("epilogues by kernels", by_kernels), ("algorithms by time", by_time)] {
        report.row(format!("{name}: {what}"), beside(ordinary, found));
        all.push(json!({
            "variant": what, "case": name, "forward": ordinary.forward, "backward": ordinary.backward,
            "variant_forward": found.forward, "variant_backward": found.backward,
        }));
    }
    let ProductChoices { timed, changed, first_seconds, chosen_seconds, .. } = choices;
    let figure = format!("{changed} of {timed}, {:.3} for {:.3} ms", 1e3 * chosen_seconds, 1e3 * first_seconds);
    report.row("  other algorithms than the library's first", figure);
    all.push(json!({
        "variant": "choices", "timed": timed, "changed": changed, "first_seconds": first_seconds,
        "chosen_seconds": chosen_seconds,
    }));
    Ok(all)
}

fn beside(ordinary: Measurement, found: Measurement) -> String {
    format!(
        "forward {:.3} ms, {:.2} times as fast; backward {:.3} ms, {:.2} times as fast",
        1e3 * ordinary.forward,
        ordinary.forward / found.forward,
        1e3 * ordinary.backward,
        ordinary.backward / found.backward
    )
}

/// A language model's head and loss, by the size of its chunks of logits.
fn chunks(place: &Place, sizes: Sizes, budget: Duration, report: &mut Report) -> Result<Value> {
    let Sizes { batch, length, hidden, vocabulary, .. } = sizes;
    let (rows, classes) = (batch * length, vocabulary.next_multiple_of(64));
    let mut found = Vec::new();
    for chunk_bytes in CHUNKS {
        let case = Case::one(format!("head in chunks of {} MiB", chunk_bytes >> 20), move |cx, v| {
            let options = LinearCrossEntropy { chunk_bytes, ..LinearCrossEntropy::default() };
            ops::linear_cross_entropy(cx, &v[0], &v[1], None, v[2].value(), &options)
        });
        let case = case.variable("hidden", [rows, hidden]).leaf("weight", [classes, hidden]).deviation(0.02);
        let case = case.ids("targets", [rows], classes as i64, None);
        let Measurement { forward, backward, .. } = bench(&place.device(), &case, DType::BF16, budget)?;
        report.row(format!("  {}, {rows} rows", case.name), format!("{:.3} ms", 1e3 * (forward + backward)));
        found.push(json!({ "chunk_bytes": chunk_bytes, "forward": forward, "backward": backward }));
    }
    Ok(json!({ "variant": "chunks", "rows": rows, "classes": classes, "hidden": hidden, "times": found }))
}
