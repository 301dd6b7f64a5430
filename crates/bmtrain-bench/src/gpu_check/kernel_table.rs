//! Where the time of a model's step goes on the device: kernels, the gaps between them, and matrix products by shape.
//!
//! [`Products`] notes the products that a step launches, [`KernelTable`] sorts the trace of the step. `models` calls
//! both.

use super::report::Report;
use bmtrain_core::backend::{Backend, Kernels};
use bmtrain_core::cuda::{CudaBackend, Traced};
use bmtrain_core::kernel::{Arguments, Gemm, Kernel};
use bmtrain_core::{DType, Lane};
use model_center_base::{Error, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A matrix product as it was launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Product {
    /// Rows and columns of the result, and the length of the sums.
    size: [usize; 3],
    /// Products of one launch.
    batches: usize,
    /// Dtypes of the left factor and of the result.
    dtypes: [DType; 2],
    /// How the backend made it, as [`CudaBackend::products`] calls it.
    way: &'static str,
}

impl Product {
    fn flops(&self) -> f64 {
        2.0 * self.batches as f64 * self.size.iter().map(|&count| count as f64).product::<f64>()
    }

    fn name(&self) -> String {
        let Product { size: [m, n, k], batches, dtypes: [from, to], way } = self;
        let batches = if *batches == 1 { String::new() } else { format!("{batches} of ") };
        format!("{batches}{m} x {n} x {k} {from} to {to}, {way}")
    }
}

/// A backend around the device's that notes matrix products while it is asked to.
#[derive(Debug)]
pub struct Products {
    inner: Arc<CudaBackend>,
    noted: Mutex<Option<Vec<Product>>>,
}

impl Products {
    /// Around this backend; nothing is noted yet.
    pub fn new(inner: Arc<CudaBackend>) -> Self {
        Products { inner, noted: Mutex::new(None) }
    }

    /// Note every product from now on, in the order of the launches of one thread.
    pub fn start(&self) {
        *self.noted() = Some(Vec::new());
    }

    /// Products noted since the start; from here on nothing is noted.
    pub fn take(&self) -> Vec<Product> {
        self.noted().take().unwrap_or_default()
    }

    fn noted(&self) -> MutexGuard<'_, Option<Vec<Product>>> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kernels for Products {
    fn launch(&self, kernel: Kernel<'_>, on: Lane) -> bmtrain_core::Result<()> {
        let product = match &kernel {
            Kernel::Gemm(Gemm { m, n, k, a, c, batch, .. }) if self.noted().is_some() => Product {
                size: [*m, *n, *k],
                batches: batch.outer * batch.inner,
                dtypes: [a.view.dtype(), c.view.dtype()],
                way: "not at all",
            },
            _ => return self.inner.launch(kernel, on),
        };
        let before = self.inner.products();
        self.inner.launch(kernel, on)?;
        let after = self.inner.products();
        let made = before.iter().zip(after).find(|((_, before), (_, after))| before != after);
        let product = made.map_or(product, |((way, _), _)| Product { way, ..product });
        if let Some(noted) = &mut *self.noted() {
            noted.push(product);
        }
        Ok(())
    }
}

impl Backend for Products {
    bmtrain_core::forward_to_inner!(name id memory upload download copy on_host mark wait sync provided);
}

/// Launches of one kind together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Total {
    launches: usize,
    /// On the device.
    seconds: f64,
    /// In which the lane was idle before them.
    gaps: f64,
}

impl Total {
    fn add(&mut self, seconds: f64, gap: f64) {
        *self = Total { launches: self.launches + 1, seconds: self.seconds + seconds, gaps: self.gaps + gap };
    }
}

/// One step by kernels and by products.
#[derive(Debug, PartialEq)]
pub struct KernelTable {
    /// Seconds of the traced step on the host's clock, the batch and the loss included.
    step: f64,
    /// The compute lane's, the longest first.
    compute: Vec<(&'static str, Total)>,
    /// Copies and kernels of other lanes, by lane.
    others: Vec<((Lane, &'static str), Total)>,
    /// The longest first; their seconds contain what a launch does beside the product.
    products: Vec<(Product, Total)>,
}

impl KernelTable {
    /// Sort a trace that took `step` seconds, with the products that were launched meanwhile, in their order.
    ///
    /// # Errors
    /// The trace has another number of products.
    pub fn new(step: f64, trace: &[Traced], products: &[Product]) -> Result<Self> {
        let (mut compute, mut others, mut sizes) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut launched = products.iter();
        let (mut idle_since, mut traced_products) = (0.0_f64, 0);
        for &Traced { lane, name, begin, end } in trace {
            let seconds = (end - begin).max(0.0);
            if lane != Lane::Compute {
                others.entry((lane as usize, name)).or_insert((lane, Total::default())).1.add(seconds, 0.0);
                continue;
            }
            let gap = (begin - idle_since).max(0.0);
            idle_since = idle_since.max(end);
            compute.entry(name).or_insert_with(Total::default).add(seconds, gap);
            if name == <Gemm<'_> as Arguments>::NAME {
                traced_products += 1;
                if let Some(product) = launched.next() {
                    sizes.entry(*product).or_insert_with(Total::default).add(seconds, gap);
                }
            }
        }
        if traced_products != products.len() {
            let reason = format!("it has {traced_products} products, and {} were launched", products.len());
            return Err(Error::data("the trace of a step", reason, "run one check at a time on the device"));
        }
        let others = others.into_iter().map(|((_, name), (lane, total))| ((lane, name), total)).collect();
        Ok(KernelTable { step, compute: longest_first(compute), others, products: longest_first(sizes) })
    }

    /// Print it: what takes a hundredth of the lane's time or more.
    pub fn tell(&self, report: &mut Report) {
        /// Lines of products.
        const PRODUCTS: usize = 8;
        let Total { launches, seconds, gaps } = self.whole();
        let lane = seconds + gaps;
        let share = |part: f64| if lane > 0.0 { 100.0 * part / lane } else { 0.0 };
        let figure = format!(
            "{:.2} ms of kernels in {launches} launches, {:.2} ms in gaps ({:.1} %); {:.1} ms with a trace",
            1e3 * seconds,
            1e3 * gaps,
            share(gaps),
            1e3 * self.step
        );
        report.row("  a step by kernel", figure);
        let line = |Total { launches, seconds, gaps }: Total| {
            format!(
                "{:.3} ms in {launches}, {:.1} %, {:.3} ms in gaps before",
                1e3 * seconds,
                share(seconds),
                1e3 * gaps
            )
        };
        let mut rest = Total::default();
        for &(name, total) in &self.compute {
            if share(total.seconds + total.gaps) >= 1.0 {
                report.row(format!("    {name}"), line(total));
            } else {
                rest = sum([rest, total]);
            }
        }
        if rest.launches > 0 {
            report.row("    others", line(rest));
        }
        for ((lane, name), Total { launches, seconds, .. }) in &self.others {
            report.row(format!("    {name}, lane {lane:?}"), format!("{:.3} ms in {launches}", 1e3 * seconds));
        }
        for (product, total) in self.products.iter().take(PRODUCTS) {
            let rate = product.flops() * total.launches as f64 / total.seconds.max(f64::MIN_POSITIVE);
            let figure = format!("{:.3} ms in {}, {:.1} TFLOP/s", 1e3 * total.seconds, total.launches, rate / 1e12);
            report.row(format!("    product {}", product.name()), figure);
        }
    }

    /// All of it.
    pub fn as_json(&self) -> Value {
        let Total { launches, seconds, gaps } = self.whole();
        let entry = |lane: Lane, name: &str, total: &Total| {
            json!({
                "kernel": name, "lane": format!("{lane:?}"), "launches": total.launches, "seconds": total.seconds,
                "gaps_before_s": total.gaps,
            })
        };
        let compute = self.compute.iter().map(|(name, total)| entry(Lane::Compute, name, total));
        let others = self.others.iter().map(|((lane, name), total)| entry(*lane, name, total));
        let product = |(product, total): &(Product, Total)| {
            let Product { size: [m, n, k], batches, dtypes: [from, to], way } = product;
            json!({
                "m": m, "n": n, "k": k, "batches": batches, "dtype": from.to_string(), "to": to.to_string(),
                "way": way, "launches": total.launches, "seconds": total.seconds, "flops_per_launch": product.flops(),
            })
        };
        json!({
            "traced_step_s": self.step, "launches": launches, "kernels_s": seconds, "gaps_s": gaps,
            "kernels": compute.chain(others).collect::<Vec<_>>(),
            "products": self.products.iter().map(product).collect::<Vec<_>>(),
        })
    }

    /// The compute lane's launches together.
    fn whole(&self) -> Total {
        sum(self.compute.iter().map(|(_, total)| *total))
    }
}

fn sum(totals: impl IntoIterator<Item = Total>) -> Total {
    totals.into_iter().fold(Total::default(), |whole, total| Total {
        launches: whole.launches + total.launches,
        seconds: whole.seconds + total.seconds,
        gaps: whole.gaps + total.gaps,
    })
}

fn longest_first<K: Ord>(totals: BTreeMap<K, Total>) -> Vec<(K, Total)> {
    let mut rows: Vec<_> = totals.into_iter().collect();
    rows.sort_by(|(_, one), (_, other)| other.seconds.total_cmp(&one.seconds));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Product = Product { size: [4, 3, 2], batches: 1, dtypes: [DType::BF16; 2], way: "by cuBLASLt alone" };

    fn at(lane: Lane, name: &'static str, begin: f64, end: f64) -> Traced {
        Traced { lane, name, begin, end }
    }

    #[test]
    fn kernels_and_gaps_together_are_the_time_of_the_lane() {
        let trace = [
            at(Lane::Compute, "norm", 1.0, 2.0),
            at(Lane::Copy, "upload", 1.5, 4.5),
            at(Lane::Compute, "gemm", 2.0, 6.0),
            at(Lane::Compute, "norm", 6.5, 7.0),
        ];
        let table = KernelTable::new(8.0, &trace, &[ONE]).unwrap();
        let total = |launches, seconds, gaps| Total { launches, seconds, gaps };
        assert_eq!(table.compute, [("gemm", total(1, 4.0, 0.0)), ("norm", total(2, 1.5, 1.5))]);
        assert_eq!(table.whole(), total(3, 5.5, 1.5));
        assert_eq!(table.others, [((Lane::Copy, "upload"), total(1, 3.0, 0.0))]);
        assert_eq!(table.products, [(ONE, total(1, 4.0, 0.0))]);
        assert_eq!(ONE.flops(), 48.0);
    }

    #[test]
    fn products_are_told_apart_by_shape_and_way() {
        let trace: Vec<_> = (0..3).map(|at_| at(Lane::Compute, "gemm", f64::from(at_), f64::from(at_ + 1))).collect();
        let other = Product { way: "of factors widened to f32", ..ONE };
        let table = KernelTable::new(3.0, &trace, &[ONE, other, ONE]).unwrap();
        let launches: Vec<_> = table.products.iter().map(|(product, total)| (*product, total.launches)).collect();
        assert_eq!(launches, [(ONE, 2), (other, 1)]);
    }

    #[test]
    fn a_trace_with_another_number_of_products_is_refused() {
        let error = KernelTable::new(1.0, &[], &[ONE]).unwrap_err().to_string();
        assert!(error.contains("0 products, and 1 were launched"), "{error}");
    }
}
