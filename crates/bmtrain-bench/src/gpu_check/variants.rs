//! Gains of the options of the backend that are off by default, and the size of a head's chunks: each variant beside
//! the ordinary one, in the shapes of a model.

use super::Place;
use super::options::without_options;
use super::report::Report;
use crate::speed::Sizes;
use bmtrain_core::conformance::{Case, Measurement, bench, compare_bits};
use bmtrain_core::cuda::{CudaBackend, CudaOptions, ProductChoices};
use bmtrain_core::kernel::Activation;
use bmtrain_core::ops::{self, AttentionOptions, LinearCrossEntropy};
use bmtrain_core::{Backend, DType, Device};
use model_center_base::Result;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Beside the ordinary chunks of a language model's head.
const CHUNKS: [usize; 4] = [128 << 20, 256 << 20, 512 << 20, 1 << 30];

/// All of it; nothing is timed on an emulated device unless that is asked for.
pub fn variants(place: &Place, is_timed: bool, budget: Duration, report: &mut Report) -> Result<()> {
    let (ordinary, mut all) = (place.ordinary()?, Vec::new());
    // What was found before an error is kept.
    let mut run = || {
        attention(place, (&ordinary, is_timed, budget), &mut all, report)?;
        if is_timed && !report.is_lost() {
            products(place, (&ordinary, budget), &mut all, report)?;
            all.push(chunks((&ordinary, place.scale.sizes, budget), report)?);
        }
        Ok(())
    };
    let done = run();
    report.part("variants", json!({ "variants": all }));
    done
}

fn device(backend: Arc<CudaBackend>) -> Device {
    Device::new(backend as Arc<dyn Backend>)
}

/// The backward pass of attention with one band of rows a warp and with two: the same bits, and the time.
fn attention(
    place: &Place,
    (ordinary, is_timed, budget): (&Device, bool, Duration),
    all: &mut Vec<Value>,
    report: &mut Report,
) -> Result<()> {
    let (tokens, heads, lengths): (usize, usize, &[usize]) =
        if report.emulated { (140, 2, &[140]) } else { (16_384, 25, &[512, 1024, 4096]) };
    let open = |wide_queries, wide_keys| -> Result<_> {
        let options = CudaOptions { wide_queries, wide_keys, ..without_options(&place.options) };
        let backend = place.opened_again(options)?;
        Ok((Arc::clone(&backend), device(backend)))
    };
    let wide = [("queries", open(true, false)?), ("keys", open(false, true)?), ("both", open(true, true)?)];
    for &length in lengths {
        let name = format!("attention backward, {} x {length}, heads of 64", tokens / length);
        let case = Case::one(name.clone(), move |cx, v| {
            let options = AttentionOptions { causal: true, ..AttentionOptions::new(heads, 64) };
            ops::attention_fused(cx, &v[0], &options)
        });
        let case = case.variable("qkv", [tokens / length, length, 3 * heads * 64]);
        for (passes, (backend, device)) in &wide {
            match compare_bits(ordinary, device, &case, DType::BF16) {
                Ok(check) if check.passed() => {}
                Ok(check) => report.fail(format!("variants: {name}, wide {passes}: other bits: {check:?}")),
                Err(error) => {
                    report.fail(format!("variants: {name}, wide {passes}: {error}"));
                    place.note_loss(&name, report);
                }
            }
            if report.is_lost() {
                return Ok(());
            }
            if !backend.loaded_units().contains(&"attention_mma_wide_64_bf16") {
                report.fail(format!("variants: {name}, wide {passes}: the wide kernels were not used"));
            }
        }
        if !is_timed {
            continue;
        }
        let seconds = |device: &Device| bench(device, &case, DType::BF16, budget).map(|found| found.backward);
        let least = seconds(ordinary)?;
        let mut found = json!({ "variant": "wide attention", "case": name, "seconds": least });
        let mut figure = format!("{:.3} ms", 1e3 * least);
        for (passes, (_, device)) in &wide {
            let seconds = seconds(device)?;
            figure += &format!(", wide {passes} {:.2} times as fast", least / seconds);
            found[format!("wide_{passes}_seconds")] = json!(seconds);
        }
        report.row(name, figure);
        all.push(found);
    }
    if !is_timed {
        report.row("wide attention", "compared with the ordinary kernels, not timed");
    }
    Ok(())
}

/// A feed-forward layer: with epilogues by the library or by kernels, with algorithms by the library's estimate or by
/// time.
fn products(
    place: &Place,
    (ordinary, budget): (&Device, Duration),
    all: &mut Vec<Value>,
    report: &mut Report,
) -> Result<()> {
    let Sizes { batch, length, hidden, inner, .. } = place.scale.sizes;
    let rows = batch * length;
    let name = format!("feed-forward layer with GELU, {rows} rows, {hidden} to {inner}");
    let case = Case::one(name.clone(), |cx, v| {
        ops::feed_forward(cx, &v[0], &v[1], Some(&v[2]), Activation::GeluTanh, &v[3], Some(&v[4]))
    });
    let case = case.variable("x", [rows, hidden]).leaf("up", [inner, hidden]).deviation(0.02).leaf("up_bias", [inner]);
    let case = case.leaf("down", [hidden, inner]).deviation(0.02).leaf("down_bias", [hidden]);
    let measured = |device: &Device| bench(device, &case, DType::BF16, budget);
    let ordinary = measured(ordinary)?;
    let options = without_options(&place.options);
    let by_kernels = place.opened_again(CudaOptions { kernel_epilogues: true, ..options.clone() })?;
    let by_kernels = measured(&device(by_kernels))?;
    // Without a cache, so that all are timed in this run.
    let timed = place.opened_again(CudaOptions { timed_products: true, cache: None, ..options })?;
    let by_time = measured(&device(Arc::clone(&timed)))?;
    let choices = timed.product_choices().unwrap_or_default();
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
    Ok(())
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
fn chunks((ordinary, sizes, budget): (&Device, Sizes, Duration), report: &mut Report) -> Result<Value> {
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
        let Measurement { forward, backward, .. } = bench(ordinary, &case, DType::BF16, budget)?;
        report.row(format!("  {}, {rows} rows", case.name), format!("{:.3} ms", 1e3 * (forward + backward)));
        found.push(json!({ "chunk_bytes": chunk_bytes, "forward": forward, "backward": backward }));
    }
    Ok(json!({ "variant": "chunks", "rows": rows, "classes": classes, "hidden": hidden, "times": found }))
}
