//! How fast kernels are, as shares of what a copy and a large matrix product reach on the same device in the same run.

use super::Place;
use super::report::Report;
use crate::speed::{Figure, Wanted, copy_bandwidth, product_rate, speed};
use bmtrain_core::DType;
use model_center_base::Result;
use serde_json::json;
use std::time::Duration;

/// Share of the copy's bandwidth that a kernel which only moves memory is to reach.
const MOVING: f64 = 0.85;

/// Ceilings of the figures.
#[derive(Debug, Clone, Copy)]
pub struct Ceilings {
    /// Bytes per second of a copy within the device, read and written.
    pub bandwidth: f64,
    /// Operations per second of a large product in bf16.
    pub products: f64,
}

impl Ceilings {
    /// Measure them.
    pub fn measure(place: &Place, budget: Duration, report: &mut Report) -> Result<Self> {
        let (bytes, size) = (place.scale.copy_bytes, place.scale.product);
        // A long enough look: a device that has rested needs a while to get to its clock.
        let budget = 4 * budget;
        let bandwidth = copy_bandwidth(&place.device(), bytes, budget)?;
        let products = product_rate(&place.device(), DType::BF16, [size; 3], budget)?;
        report.row(format!("copy of {} MiB", bytes >> 20), format!("{:.0} GB/s", bandwidth / 1e9));
        report.row(format!("bf16 product of {size}^3"), format!("{:.1} TFLOP/s", products / 1e12));
        let found = json!({
            "copy_bytes": bytes, "copy_bytes_per_s": bandwidth, "product_size": size, "product_dtype": "bf16",
            "product_flops_per_s": products,
        });
        report.part("baselines", found);
        Ok(Ceilings { bandwidth, products })
    }
}

/// Every kernel at the sizes of a real model.
pub fn kernels(place: &Place, ceilings: Ceilings, budget: Duration, report: &mut Report) -> Result<()> {
    let mut all = Vec::new();
    for dtype in [DType::BF16, DType::F32] {
        let wanted = Wanted { sizes: place.scale.sizes, dtypes: vec![dtype], part_of_name: String::new(), budget };
        let mut figures = Vec::new();
        let told = speed(&place.device(), &wanted, &mut |figure: Figure| {
            report.say(&describe(&figure, ceilings));
            figures.push(figure);
        });
        if let Err(error) = told {
            report.fail(format!("kernels {dtype}: after {} of them: {error}", figures.len()));
            place.note_loss("kernels", report);
        }
        let moving: Vec<&Figure> = figures.iter().filter(|figure| figure.flops == 0).collect();
        let short: Vec<&&Figure> = moving.iter().filter(|figure| share(figure, ceilings) < MOVING).collect();
        let figure = format!("{} of {} at 85 % of the copy", moving.len() - short.len(), moving.len());
        report.held(
            format!("memory-bound kernels, {dtype}"),
            figure,
            ("all of them", short.is_empty() && !moving.is_empty()),
        );
        for figure in short {
            report.row(format!("  {} {dtype}", figure.name), rate(figure, ceilings));
        }
        for figure in figures.iter().filter(|figure| figure.flops > 0) {
            report.row(format!("{} {dtype}", figure.name), rate(figure, ceilings));
        }
        all.extend(figures);
        if report.is_lost() {
            break;
        }
    }
    let figure = |figure: &Figure| {
        json!({
            "kernel": figure.name, "dtype": figure.dtype.to_string(), "seconds": figure.seconds, "bytes": figure.bytes,
            "flops": figure.flops, "bytes_per_s": figure.bandwidth(), "flops_per_s": figure.rate(),
            "share": share(figure, ceilings),
        })
    };
    report.part("kernels", json!({ "figures": all.iter().map(figure).collect::<Vec<_>>() }));
    Ok(())
}

/// Share of the ceiling that a figure is compared with.
fn share(figure: &Figure, ceilings: Ceilings) -> f64 {
    if figure.flops > 0 { figure.rate() / ceilings.products } else { figure.bandwidth() / ceilings.bandwidth }
}

fn rate(figure: &Figure, ceilings: Ceilings) -> String {
    let share = 100.0 * share(figure, ceilings);
    if figure.flops > 0 {
        format!("{:.1} TFLOP/s, {share:.0} % of the bf16 product", figure.rate() / 1e12)
    } else {
        format!("{:.0} GB/s, {share:.0} % of the copy", figure.bandwidth() / 1e9)
    }
}

fn describe(figure: &Figure, ceilings: Ceilings) -> String {
    format!("{:<32} {:<5} {:>9.1} us  {}", figure.name, figure.dtype, 1e6 * figure.seconds, rate(figure, ceilings))
}
