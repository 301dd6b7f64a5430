//! Matrix products: the kernel [`Gemm`] given to cuBLASLt.
//!
//! `lt` is the library, `work` a product that is to be computed, `plan_cache` the plans made so far, `candidates` the
//! ways to ask the library for a product, `product` such a question with its addresses, `epilogue` what is done beside
//! it, `fp8` what rounds factors to 8 bits, `folded` batches as the library takes them.
//! A product whose dtypes the library does not combine is made of factors widened to f32 in scratch memory, and one
//! whose epilogue it does not do gets it from a kernel; so no combination is unsupported.
//!
//! Numerics: sums are f32 in every case, and products of f32 factors are not made of shortened ones unless asked for.
//! What is written is rounded once, but for what a kernel reads as it was written, in the type of the copy that is kept
//! or of the result: the argument of an activation that it applies, a product that it multiplies by a derivative, and
//! one to which it adds a bias that the library refuses. So evaluation, which keeps no copy, computes what training
//! does.
#![allow(unsafe_code)]

mod candidates;
mod choice;
mod choice_file;
mod epilogue;
mod folded;
mod fp8;
mod lt;
mod plan_cache;
mod product;
mod scratch_layout;
mod work;

pub use choice::ProductChoices;
pub(super) use lt::version;

use super::CudaOptions;
use super::driver::{Context, failure};
use super::launch::{Launch, Out};
use super::reduce::{Partials, column_sum, sum_partials};
use super::scratch::Taken;
use crate::error::{Error, Result};
use crate::kernel::{Arguments as _, Batch, ColumnSum, Gemm};
use candidates::{Candidate, Destination, Factors, Way, candidates, with_residual};
use choice::Choices;
use epilogue::{Finish, Matrices};
use folded::Folded;
use fp8::Scales;
use lt::{Call, GemmPlan, Lt};
use plan_cache::PlanCache;
use product::Product;
use scratch_layout::ScratchLayout;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use work::{Factor, Sums, Work, is_vector};

/// The largest result, in bytes, that scratch memory takes while a product is timed that is added to what is there.
/// Larger ones are not timed.
const MAX_SCRATCH_BYTES: usize = 256 << 20;

#[derive(Debug)]
pub(super) struct Blas {
    options: CudaOptions,
    context: Arc<Context>,
    plans: Mutex<PlanCache>,
    choices: Choices,
    /// Products by the way they were made.
    made: [AtomicU64; Way::ALL.len()],
    /// Opened with the first product. Plans are dropped before it, wherever they are held.
    lt: OnceLock<Result<Arc<Lt>>>,
}

impl Blas {
    pub(super) fn new(context: &Arc<Context>, options: &CudaOptions) -> Self {
        Blas {
            options: options.clone(),
            context: Arc::clone(context),
            plans: Mutex::default(),
            choices: Choices::new(options),
            made: Default::default(),
            lt: OnceLock::new(),
        }
    }

    /// Number of products made in each way so far.
    pub(super) fn made(&self) -> Vec<(&'static str, u64)> {
        Way::ALL.map(|way| (way.name(), self.made[way as usize].load(Ordering::Relaxed))).into()
    }

    /// Algorithms chosen by time; `None` where the library's first algorithms are used.
    pub(super) fn choices(&self) -> Option<ProductChoices> {
        self.options.timed_products.then(|| self.choices.made())
    }

    fn plans(&self) -> MutexGuard<'_, PlanCache> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn gemm(&self, launch: &Launch<'_>, a: Gemm<'_>) -> Result<()> {
        let mut work = Work::of(&a);
        let Work { m, k, .. } = work;
        if work.batch.outer == 0 || work.batch.inner == 0 {
            return Ok(());
        }
        if let Some(residual) = work.residual {
            if self.first_of(with_residual(&work), launch, &work)?.is_some() {
                return Ok(());
            }
            // It becomes the old content.
            let from = Matrices { numbers: residual, ..work.c };
            // SAFETY: `check` saw that both hold as many elements and do not overlap; the memory stays valid until the
            // lane has run the copy, because the pool gives it out in lane order.
            unsafe { Finish::copying(m, work.n, Batch::ONE, from, work.c).queue(launch) }?;
            work = Work { beta: 1.0, residual: None, ..work };
        }
        let sums_are_made = self.multiply(launch, &work)?;
        match a.epilogue.sums_of_a {
            Some(out) if !sums_are_made => {
                column_sum(launch, ColumnSum { rows: k, columns: m, x: a.a.view.part(0, k * m)?, out })
            }
            _ => Ok(()),
        }
    }

    /// Queue a product without the sums beside it, unless the library makes them: then true.
    fn multiply(&self, launch: &Launch<'_>, work: &Work) -> Result<bool> {
        if work.m == 0 || work.n == 0 {
            return Ok(false);
        }
        if work.k == 0 {
            let finish = work.finish(None, work.beta, true);
            // SAFETY: `check` saw that c, bias and copy are as large as the sizes declare and overlap nothing. The
            // memory stays valid until the lane has run the kernel, because the pool gives it out in lane order.
            return unsafe { finish.queue(launch) }.map(|()| false);
        }
        let is_wanted = |candidate: &Candidate| !(self.options.kernel_epilogues && candidate.fused.is_a_kernels_too());
        if let Some(made) = self.first_of(candidates(work).filter(is_wanted), launch, work)? {
            return Ok(made.fused.sums);
        }
        let Work { m, n, k, a, b, c, .. } = *work;
        let types = [a.stored, b.stored, c].map(|matrices| matrices.numbers.dtype.name());
        Err(failure(
            "multiply",
            format!("cuBLASLt has no algorithm for a product {m} x {n} x {k} of {}", types.join(", ")),
        ))
    }

    /// Queue a product as the first of `candidates` that the library does; none, with nothing written, if it does none.
    fn first_of(
        &self,
        candidates: impl IntoIterator<Item = Candidate>,
        launch: &Launch<'_>,
        work: &Work,
    ) -> Result<Option<Candidate>> {
        let lt = self.lt.get_or_init(|| Lt::open(&self.context, &self.options).map(Arc::new));
        let lt = lt.as_ref().map_err(Clone::clone)?;
        for candidate in candidates {
            if self.queue(launch, lt, work, candidate)? {
                self.made[candidate.way(work) as usize].fetch_add(1, Ordering::Relaxed);
                return Ok(Some(candidate));
            }
        }
        Ok(None)
    }

    /// Use a plan's first algorithm, without a look at the others.
    fn keep_first(&self, plan: &Mutex<GemmPlan>) -> Result<()> {
        let others = std::mem::take(&mut plan.lock().unwrap_or_else(PoisonError::into_inner).others);
        // Its kernels are loaded with the first product.
        if others.is_empty() { Ok(()) } else { self.context.drain() }
    }

    /// Queue a product as `candidate` does it. Returns false, and writes no result, if the library cannot.
    fn queue(&self, launch: &Launch<'_>, lt: &Arc<Lt>, work: &Work, candidate: Candidate) -> Result<bool> {
        let (factors, c) = (candidate.factors(work), candidate.result(work));
        let (mut operands, fused) = ([factors[0].stored, factors[1].stored, c], candidate.fused);
        let mut layout = ScratchLayout::of(work, candidate, &operands[2]);
        let folded = Folded::of(operands.map(|matrices| matrices.batch), work.batch);
        let problem = work.problem(candidate, &factors, c, &folded);
        let Some(plan) = self.plans().of((&self.context, lt), &problem, &self.options)? else { return Ok(false) };
        let residual = work.residual.filter(|_| fused.residual);
        let beta = match residual {
            Some(_) => 1.0,
            None if candidate.into == Destination::Result => work.beta,
            None => 0.0,
        };
        // Products that are timed leave the old content as it is.
        let keeps = residual.is_none() && beta != 0.0;
        let aside = if keeps { problem.result_elements() * c.numbers.dtype.size() } else { 0 };
        if aside > MAX_SCRATCH_BYTES {
            self.keep_first(&plan)?;
        }
        let (workspace, is_to_be_timed) = {
            let plan = plan.lock().unwrap_or_else(PoisonError::into_inner);
            (layout.add(plan.workspace()), !plan.others.is_empty())
        };
        let aside = (keeps && is_to_be_timed).then(|| layout.add(aside));
        let scratch = match (layout.bytes > 0).then(|| launch.scratch.take(layout.bytes)).transpose() {
            Err(Error::OutOfMemory { .. }) if is_to_be_timed => {
                // Less will do without times.
                self.keep_first(&plan)?;
                return self.queue(launch, lt, work, candidate);
            }
            taken => taken?,
        };
        let start = scratch.as_ref().map_or(0, Taken::address);
        let at = |offset: usize| start + offset as u64;

        let bias = work.fill_scratch(launch, candidate, &layout, start, &mut operands)?;
        let beside = work.fused_addresses(candidate, bias, layout.sums.map(at));
        let scales = layout.scales.map(|offset| Scales::at(at(offset)));
        let scales = scales.filter(|_| candidate.factors == Factors::Rounded);
        let call = Call { alpha: work.alpha, beta, a: 0, b: 0, c: 0, d: 0, workspace: at(workspace) };
        let scales = scales.map(|scales| [scales.inverse(0), scales.inverse(1)]);
        let mut product = Product { plan, lt: Arc::clone(lt), fused, beside, scales, call };
        for entry in 0..folded.steps {
            let [b, a, c] = [1, 0, 2].map(|index: usize| {
                let Matrices { numbers, .. } = operands[index];
                numbers.address + (entry * folded.step[index] * numbers.dtype.size()) as u64
            });
            let (d, c) = (c, residual.map_or(c, |residual| residual.address));
            product.call = Call { a: b, b: a, c, d, ..call };
            if is_to_be_timed && entry == 0 {
                let d = aside.map_or(d, at);
                let timed = Product { call: Call { d, ..product.call }, ..product.clone() };
                // SAFETY: as below; the result, the copy and the sums are overwritten by the product that follows, and
                // old content is read alone.
                unsafe { self.choices.choose(launch, (&problem, self.options.tf32), &timed) }?;
            }
            // SAFETY: `check` saw that the matrices of every entry are inside their views, that no two of c share an
            // element and that c, copy and sums overlap nothing; the plan was made for these layouts and alignments;
            // scratch memory was taken for the rest. The memory stays valid until the lane has run the product, because
            // the pool reuses it in lane order.
            if unsafe { launch.stream.call(&product) }? {
                continue;
            }
            if entry > 0 {
                let reason = format!("entry {entry} of {} was refused after others were queued", folded.steps);
                return Err(failure("cublasLtMatmul", reason));
            }
            // What was queued before it wrote to scratch memory alone.
            self.plans().refuse(&problem);
            return Ok(false);
        }
        if let (Some(_), Some(Sums { out: first, .. })) = (layout.sums, work.sums) {
            let (address, columns) = (beside.vector, work.m);
            let sums = Partials { address, groups: 1, columns, stride: columns, first, second: Out::NONE };
            // SAFETY: the product leaves one f32 sum for each row there; `check` saw that the destination holds as
            // many.
            unsafe { sum_partials(launch, Gemm::NAME, sums) }?;
        }
        work.queue_finish(launch, candidate, operands[2])?;
        Ok(true)
    }
}
