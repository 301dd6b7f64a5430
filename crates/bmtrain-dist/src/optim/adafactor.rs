//! Adafactor: of the second moment of a matrix it keeps the means of rows and columns alone.
//!
//! [`AdafactorOptions`] is a [`WholeRule`] of [`DeviceOptimizer`]: gradients of a storage are gathered, and each rank
//! computes the steps of the parameters that it owns parts of. So the bits are the same however parameters are sharded.
//! The tensors of a fused parameter have means and a root mean square of their own.

use super::muon::{AMPLIFIED, at_most, descent, move_average, scalar};
use super::on_device::{
    DeviceOptimizer, DeviceRule, DirectionElements, Rule, StepElements, StepNumbers, WholeDirection, WholeRule,
};
use crate::error::{Error, Result};
use crate::param::{FusedTensor, Param};
use bmtrain_core::buffer::{View, ViewMut};
use bmtrain_core::exact::WORDS;
use bmtrain_core::kernel::{
    Dest, Fill, Gemm, GradNorm, Matrix, Multiply, NormOrder, ScaleBy, Update, UpdateRule, UpdateSettings,
};
use bmtrain_core::{DType, Device, Lane, Segment, Storage, Tensor};
use std::ops::Range;

/// Settings of [`Adafactor`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdafactorOptions {
    /// Added to the squares of gradients, transformers' `eps[0]`.
    pub epsilon: f64,
    /// The least norm per element that a parameter is scaled by, transformers' `eps[1]`.
    pub least_scale: f64,
    /// The most root mean square of a parameter's change, before the learning rate.
    pub clip_threshold: f64,
    /// At step t the averages of squares keep `1 - t^decay_rate`; below 0.
    pub decay_rate: f64,
    /// Multiply the learning rate by the root mean square of the parameter.
    pub scale_parameter: bool,
}

impl Default for AdafactorOptions {
    fn default() -> Self {
        AdafactorOptions {
            epsilon: 1e-30,
            least_scale: 1e-3,
            clip_threshold: 1.0,
            decay_rate: -0.8,
            scale_parameter: false,
        }
    }
}

/// With `g` the gradient of a matrix `[A, B]`, `s = g^2 + epsilon`, `b = 1 - t^decay_rate`: the averages
/// `r = b r + (1 - b) mean of the rows of s` and `c = b c + (1 - b) mean of the columns of s`,
/// `u = g / sqrt(r / mean(r) c)`; of a vector `v = b v + (1 - b) s`, `u = g / sqrt(v)`. Then with `RMS` the root mean
/// square `u = u / max(1, RMS(u) / clip_threshold)`, `a = lr`, scaled `a = lr max(least_scale, RMS(p))`, and
/// `p = p - a decay p - a u`.
///
/// Source: Shazeer and Stern (2018) as in fairseq and transformers, without its first moment (`beta1=None`); its
/// `relative_step` is [`ScheduleKind::RelativeStep`](super::ScheduleKind::RelativeStep).
pub type Adafactor = DeviceOptimizer<AdafactorOptions>;

/// Least root of an estimate: where a dead row crosses a dead column the estimate underflows to 0, and so is the
/// gradient.
const LEAST_ROOT: f64 = 2e-38;

const ROWS: &str = "row-average";
const COLUMNS: &str = "column-average";
const SQUARES: &str = "square-average";

impl Rule for AdafactorOptions {
    fn check(&self) -> Result<()> {
        let AdafactorOptions { epsilon, least_scale, clip_threshold, decay_rate, .. } = *self;
        let positive = [("epsilon", epsilon), ("least scale", least_scale), ("clip threshold", clip_threshold)];
        if let Some((name, value)) = positive.iter().find(|(_, value)| !(*value > 0.0 && value.is_finite())) {
            return Err(Error::setting("adafactor", format!("{name} {value} is not a number above 0")));
        }
        if !(-1.0..0.0).contains(&decay_rate) {
            return Err(Error::setting("adafactor", format!("decay rate {decay_rate} is not in [-1, 0)")));
        }
        Ok(())
    }

    fn check_param(&self, param: &Param) -> Result<()> {
        let dims = param.spec().shape.dims().len();
        if !(1..=2).contains(&dims) {
            let reason = format!("Adafactor updates matrices and vectors, and this has {dims} dimensions");
            return Err(Error::parameter(param.name(), format!("{reason}; give it to another optimizer")));
        }
        if param.local_shape() != param.spec().shape {
            let reason = "Adafactor averages whole rows and columns, and tensor-parallel ranks hold parts of them, or \
                          there is padding";
            return Err(Error::parameter(param.name(), reason));
        }
        Ok(())
    }

    fn states(&self) -> Vec<&'static str> {
        Vec::new()
    }

    fn statistics(&self, tensors: &[FusedTensor]) -> Vec<(&'static str, Vec<usize>)> {
        let rows = tensors.iter().map(|tensor| tensor.rows.len()).sum();
        match (tensors.first().map(|tensor| tensor.shape.dims()), tensors.len()) {
            (Some([_, columns]), 1) => vec![(ROWS, vec![rows]), (COLUMNS, vec![*columns])],
            (Some([_, columns]), count) => vec![(ROWS, vec![rows]), (COLUMNS, vec![count, *columns])],
            _ => vec![(SQUARES, vec![rows])],
        }
    }

    fn records_delta(&self) -> bool {
        false
    }
}

impl DeviceRule for AdafactorOptions {
    fn launch(&self, device: &Device, elements: StepElements<'_>, numbers: StepNumbers) -> Result<()> {
        let StepElements { mut parameter, mut master, grad, factor, rate, .. } = elements;
        let (lr, decay) = (numbers.lr, f64::from(numbers.decay));
        let [first, second, third] = [None, None, None];
        let Some(rate) = rate else {
            let settings = descent(lr, decay);
            return Ok(device.launch(Update { parameter, master, first, second, third, grad, factor, settings })?);
        };
        if decay != 0.0 {
            // Decay has the scaled learning rate too: the parameter as its own gradient.
            let before = Storage::empty(device, grad.len(), DType::F32, Segment::Workspace)?;
            let values = master.as_ref().unwrap_or(&parameter).as_view();
            device.backend().copy(values, before.view_mut(0..before.len())?, Lane::Compute)?;
            let [first, second, third] = [None, None, None];
            device.launch(Update {
                parameter: parameter.reborrow(),
                master: master.as_mut().map(ViewMut::reborrow),
                first,
                second,
                third,
                grad: before.view(0..before.len())?,
                factor: rate,
                settings: descent(lr * decay, 0.0),
            })?;
        }
        let settings = descent(lr, 0.0);
        Ok(device.launch(Update { parameter, master, first, second, third, grad, factor: rate, settings })?)
    }

    fn of_whole(&self) -> Option<&dyn WholeRule> {
        Some(self)
    }
}

impl WholeRule for AdafactorOptions {
    fn measures_parameters(&self) -> bool {
        self.scale_parameter
    }

    fn direct(&self, elements: DirectionElements<'_>) -> Result<()> {
        let DirectionElements { grads, factor, range, direction, .. } = elements;
        let out = Dest { view: direction.view_mut(range.clone())?, add: false };
        let (factor, x) = (factor.view()?, Some(grads.view(range)?));
        Ok(direction.device().launch(ScaleBy { factor, divisor: None, x, out })?)
    }

    fn transform(&self, direction: WholeDirection<'_>) -> Result<Option<Tensor>> {
        let WholeDirection { storage, range, tensor, statistics, squares, one, step } = direction;
        let (device, len, rest) = (storage.device(), range.len(), (step as f64).powf(self.decay_rate));
        let estimate = Storage::empty(device, len, DType::F32, Segment::Workspace)?;
        let (value, all) = (self.epsilon as f32, || 0..len);
        device.launch(Fill { value, out: estimate.view_mut(all())? })?;
        let grad = || storage.view(range.clone());
        let out = Dest { view: estimate.view_mut(all())?, add: true };
        device.launch(Multiply { a: grad()?, b: Some(grad()?), out })?;
        let own = || tensor.rows.clone();
        match (tensor.shape.dims(), statistics.as_slice()) {
            (&[rows, columns], &[of_rows, of_columns]) => {
                let of_tensor = tensor.number * columns..(tensor.number + 1) * columns;
                factored(&estimate, [rows, columns], [(of_rows, own()), (of_columns, of_tensor)], (rest, one))?;
            }
            (_, &[averages]) => {
                move_average((averages, own()), rest, estimate.view(all())?, one)?;
                device.backend().copy(averages.view(own())?, estimate.view_mut(all())?, Lane::Compute)?;
            }
            _ => return Err(Error::setting("adafactor", "a step takes the averages of a matrix or a vector")),
        }
        let change = Storage::zeros(device, len, DType::F32, Segment::Workspace)?;
        divide_by_root((&change, all()), grad()?, &estimate, one)?;
        let words = Storage::zeros(device, WORDS, DType::I64, Segment::Workspace)?;
        let out = Dest { view: words.view_mut(0..WORDS)?, add: false };
        device.launch(GradNorm { order: NormOrder::Two, xs: vec![change.view(all())?], out })?;
        let root = (len as f64).sqrt();
        let factor = at_most(device, words.view(0..WORDS)?, self.clip_threshold * root)?;
        let (factor, amplified) = (factor.view()?, scalar(device, AMPLIFIED)?);
        let (divisor, x) = (Some(amplified.view()?), Some(change.view(all())?));
        let out = Dest { view: storage.view_mut(range.clone())?, add: false };
        device.launch(ScaleBy { factor, divisor, x, out })?;
        let Some(squares) = squares else { return Ok(None) };
        // The least scale over min(1, least scale / RMS) is the larger of the two.
        let share = at_most(device, squares, self.least_scale * root)?;
        let least = scalar(device, AMPLIFIED * self.least_scale as f32)?;
        let mut rate = scalar(device, 0.0)?;
        let (factor, divisor, x) = (least.view()?, Some(share.view()?), Some(one.view()?));
        device.launch(ScaleBy { factor, divisor, x, out: Dest { view: rate.view_mut()?, add: false } })?;
        Ok(Some(rate))
    }
}

/// `out = x / sqrt(squares)`, of zeros.
fn divide_by_root((out, range): (&Storage, Range<usize>), x: View<'_>, squares: &Storage, one: &Tensor) -> Result<()> {
    // The step of RMSprop at which the average of squares keeps all of itself.
    let rule = UpdateRule::RmsProp { rho: 1.0, epsilon: LEAST_ROOT, momentum: 0.0, centered: false };
    let settings = UpdateSettings { rule, lr: -1.0, decay: 0.0, decoupled: true, maximize: false, step: 1 };
    let (parameter, second) = (out.view_mut(range.clone())?, Some(squares.view_mut(range)?));
    let [master, first, third] = [None, None, None];
    let factor = one.view()?;
    Ok(out.device().launch(Update { parameter, master, first, second, third, grad: x, factor, settings })?)
}

/// Move the averages of rows and columns by squares `[A, B]`, and replace these by the estimate `r / mean(r) c`.
fn factored(
    squares: &Storage,
    [rows, columns]: [usize; 2],
    [(row_averages, of_rows), (column_averages, of_columns)]: [(&Storage, Range<usize>); 2],
    (rest, one): (f64, &Tensor),
) -> Result<()> {
    let device = squares.device();
    let filled = |len: usize| -> Result<Storage> {
        let storage = Storage::empty(device, len, DType::F32, Segment::Workspace)?;
        device.launch(Fill { value: 1.0, out: storage.view_mut(0..len)? })?;
        Ok(storage)
    };
    let (ones, means) = (filled(rows.max(columns))?, filled(rows.max(columns))?);
    let ones = |len: usize, ld: usize| -> Result<_> { Ok(Matrix::plain(ones.view(0..len)?, ld)) };
    let matrix = || -> Result<_> { Ok(Matrix::plain(squares.view(0..rows * columns)?, columns)) };
    let into = |len: usize| -> Result<_> { Ok(Dest { view: means.view_mut(0..len)?, add: false }) };
    let sums = Gemm::single([rows, 1, columns], matrix()?, ones(columns, 1)?, into(rows)?);
    device.launch(Gemm { alpha: 1.0 / columns as f32, ..sums })?;
    move_average((row_averages, of_rows.clone()), rest, means.view(0..rows)?, one)?;
    let sums = Gemm::single([1, columns, rows], ones(rows, rows)?, matrix()?, into(columns)?);
    device.launch(Gemm { alpha: 1.0 / rows as f32, ..sums })?;
    move_average((column_averages, of_columns.clone()), rest, means.view(0..columns)?, one)?;
    let mut mean = scalar(device, 0.0)?;
    let averages = Matrix::plain(row_averages.view(of_rows.clone())?, rows);
    let out = Dest { view: mean.view_mut()?, add: false };
    let of_averages = Gemm::single([1, 1, rows], averages, ones(rows, 1)?, out);
    device.launch(Gemm { alpha: 1.0 / rows as f32, ..of_averages })?;
    let (factor, divisor) = (scalar(device, 1.0)?, Some(mean.view()?));
    let x = Some(row_averages.view(of_rows)?);
    device.launch(ScaleBy { factor: factor.view()?, divisor, x, out: into(rows)? })?;
    let shares = Matrix::plain(means.view(0..rows)?, 1);
    let averages = Matrix::plain(column_averages.view(of_columns)?, columns);
    let out = Dest { view: squares.view_mut(0..rows * columns)?, add: false };
    Ok(device.launch(Gemm::single([rows, columns, 1], shares, averages, out))?)
}
