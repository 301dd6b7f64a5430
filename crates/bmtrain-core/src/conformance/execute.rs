//! One run of a case on a device: inputs up, results and gradients down.

use super::case::{Body, Case, Role};
use super::values::{self, Host};
use crate::autograd::{Ctx, GradSink, SinkTarget, Tape, Var};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::pool::Segment;
use crate::tensor::{Storage, Tensor};
use std::cell::Cell;
use std::rc::Rc;

#[derive(Debug, Clone)]
pub(super) struct NamedValues {
    pub(super) name: String,
    pub(super) values: Vec<f32>,
}

#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) outputs: Vec<NamedValues>,
    pub(super) dtypes: Vec<DType>,
    /// One for each input; `None` where none was asked for.
    pub(super) gradients: Vec<Option<NamedValues>>,
}

impl Run {
    pub(super) fn parts(&self) -> impl Iterator<Item = &NamedValues> {
        self.outputs.iter().chain(self.gradients.iter().flatten())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gradients {
    None,
    /// Into destinations that hold nothing: leaves are filled with NaN to show reads.
    Fresh,
    /// On top of [`present`].
    Accumulated,
}

/// Values of an input's gradient before it is added to.
pub(super) fn present(case: &Case, input: usize, dtype: DType) -> Vec<f32> {
    values::normals(&case.name, &format!("present {input}"), case.inputs[input].shape.elements(), dtype)
}

/// Seed on which output `index` is projected.
pub(super) fn projection(case: &Case, index: usize, len: usize, dtype: DType) -> Vec<f32> {
    values::normals(&case.name, &format!("projection {index}"), len, dtype)
}

pub(super) struct Bound<'c> {
    case: &'c Case,
    device: Device,
    dtype: DType,
    tensors: Vec<Tensor>,
}

#[derive(Debug)]
struct Sink {
    storage: Storage,
    holds: Cell<bool>,
}

impl GradSink for Sink {
    fn target(&self) -> Result<SinkTarget> {
        Ok(SinkTarget {
            storage: self.storage.clone(),
            start: 0,
            len: self.storage.len(),
            add: self.holds.replace(true),
        })
    }
}

/// A forward pass that waits to be walked back.
pub(super) struct Recorded {
    cx: Ctx,
    vars: Vec<Var>,
    sinks: Vec<Option<Rc<Sink>>>,
    pub(super) outputs: Vec<Var>,
}

impl<'c> Bound<'c> {
    pub(super) fn new(device: &Device, case: &'c Case, dtype: DType, hosts: &[Host]) -> Result<Self> {
        let upload = |(input, host): (&super::Input, &Host)| {
            values::upload(device, input.shape, host, input.dtype.unwrap_or(dtype))
        };
        let tensors = case.inputs.iter().zip(hosts).map(upload).collect::<Result<_>>()?;
        Ok(Bound { case, device: device.clone(), dtype, tensors })
    }

    pub(super) fn sync(&self) -> Result<()> {
        self.device.sync()
    }

    /// Results without anything recorded.
    pub(super) fn infer(&self) -> Result<Vec<Tensor>> {
        match &self.case.body {
            Body::Kernel(body) => body(&self.device, &self.tensors),
            Body::Op(body) => {
                let vars: Vec<Var> = self.tensors.iter().cloned().map(Var::constant).collect();
                let outputs = body(&Ctx::inference(&self.device), &vars)?;
                Ok(outputs.into_iter().map(Var::into_value).collect())
            }
        }
    }

    pub(super) fn record(&self, gradients: Gradients) -> Result<Option<Recorded>> {
        let Body::Op(body) = &self.case.body else { return Ok(None) };
        let cx = Ctx::gradients(&self.device);
        let tape = tape_of(&cx)?;
        let (mut vars, mut sinks) = (Vec::new(), Vec::new());
        for (index, (input, tensor)) in self.case.inputs.iter().zip(&self.tensors).enumerate() {
            let sink = match input.role {
                Role::Leaf => Some(self.sink(index, gradients)?),
                Role::Variable | Role::Constant => None,
            };
            vars.push(match (input.role, &sink) {
                (Role::Variable, _) => tape.input(tensor.clone()),
                (_, Some(sink)) => Var::leaf(tensor.clone(), Rc::clone(sink) as Rc<dyn GradSink>),
                (_, None) => Var::constant(tensor.clone()),
            });
            sinks.push(sink);
        }
        let outputs = body(&cx, &vars)?;
        Ok(Some(Recorded { cx, vars, sinks, outputs }))
    }

    fn sink(&self, index: usize, gradients: Gradients) -> Result<Rc<Sink>> {
        let input = &self.case.inputs[index];
        let storage = Storage::zeros(&self.device, input.shape.elements(), DType::F32, Segment::Gradients)?;
        let before = match gradients {
            Gradients::Accumulated => present(self.case, index, input.dtype.unwrap_or(self.dtype)),
            Gradients::Fresh | Gradients::None => vec![f32::NAN; storage.len()],
        };
        let to = storage.view_mut(0..storage.len())?;
        self.device.backend().upload(bytemuck::cast_slice(&before), to, crate::backend::Lane::Compute)?;
        Ok(Rc::new(Sink { storage, holds: Cell::new(gradients == Gradients::Accumulated) }))
    }

    /// The tensors that seed the backward pass: projections of the outputs.
    pub(super) fn seeds(&self, outputs: &[Var]) -> Result<Vec<Tensor>> {
        let seed = |(index, output): (usize, &Var)| {
            let values = projection(self.case, index, output.shape().elements(), output.dtype());
            values::upload(&self.device, output.shape(), &Host::Floats(values), output.dtype())
        };
        outputs.iter().enumerate().map(seed).collect()
    }

    /// Runs the backward pass; returns the gradients of variables; gradients of leaves are in their sinks.
    pub(super) fn walk(&self, recorded: Recorded, seeds: Vec<Tensor>, accumulate: bool) -> Result<Vec<Option<Tensor>>> {
        let Recorded { cx, vars, sinks, outputs } = recorded;
        let tape = tape_of(&cx)?.clone();
        let mut pairs: Vec<(Var, Tensor)> = outputs.into_iter().zip(seeds).collect();
        if accumulate {
            for (index, input) in self.case.inputs.iter().enumerate().filter(|(_, input)| input.role == Role::Variable)
            {
                let dtype = input.dtype.unwrap_or(self.dtype);
                let values = Host::Floats(present(self.case, index, dtype));
                pairs.push((vars[index].clone(), values::upload(&self.device, input.shape, &values, dtype)?));
            }
        }
        let wanted: Vec<&Var> = vars.iter().collect();
        let grads = tape.backward(&self.device, pairs, &wanted)?;
        let of_leaf = |sink: &Option<Rc<Sink>>| match sink {
            Some(sink) if sink.holds.get() => Ok(Some(sink.storage.tensor(0, [sink.storage.len()])?)),
            _ => Ok(None),
        };
        grads.into_iter().zip(&sinks).map(|(grad, sink)| Ok(grad.or(of_leaf(sink)?))).collect()
    }

    pub(super) fn run(&self, gradients: Gradients) -> Result<Run> {
        let recorded = if gradients == Gradients::None { None } else { self.record(gradients)? };
        let Some(recorded) = recorded else {
            let outputs = self.infer()?;
            let dtypes = outputs.iter().map(Tensor::dtype).collect();
            return Ok(Run { outputs: parts(&outputs)?, dtypes, gradients: vec![None; self.case.inputs.len()] });
        };
        let values: Vec<Tensor> = recorded.outputs.iter().map(|output| output.value().clone()).collect();
        let (outputs, dtypes) = (parts(&values)?, values.iter().map(Tensor::dtype).collect());
        drop(values);
        let seeds = self.seeds(&recorded.outputs)?;
        let grads = self.walk(recorded, seeds, gradients == Gradients::Accumulated)?;
        let named = |(grad, input): (Option<Tensor>, &super::Input)| {
            grad.map(|grad| Ok(NamedValues { name: format!("d{}", input.name), values: values::download(&grad)? }))
                .transpose()
        };
        let gradients = grads.into_iter().zip(&self.case.inputs).map(named).collect::<Result<_>>()?;
        Ok(Run { outputs, dtypes, gradients })
    }
}

fn tape_of(cx: &Ctx) -> Result<&Tape> {
    cx.tape().ok_or_else(|| Error::argument("conformance", "a context that records has no tape"))
}

fn parts(outputs: &[Tensor]) -> Result<Vec<NamedValues>> {
    let part = |(index, output): (usize, &Tensor)| {
        Ok(NamedValues { name: format!("output {index}"), values: values::download(output)? })
    };
    outputs.iter().enumerate().map(part).collect()
}
