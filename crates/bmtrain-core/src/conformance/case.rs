//! One row of the table: a name, its inputs and what is computed from them.

use crate::autograd::{Ctx, Var};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::shape::Shape;
use crate::tensor::Tensor;
use std::fmt;

/// Role of an input in differentiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Enters the tape; its gradient is a tensor.
    Variable,
    /// A parameter; its gradient is written into an f32 storage.
    Leaf,
    /// No gradient.
    Constant,
}

/// Values of an input.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Values {
    /// Normal numbers with this mean and deviation.
    Normal(f32, f32),
    /// Uniform numbers between two bounds.
    Uniform(f32, f32),
    /// i64 in `0..bound`; about every fifth is `special` if there is one.
    Ids {
        /// Upper bound.
        bound: i64,
        /// A value with a meaning of its own: padding, or an ignored target.
        special: Option<i64>,
    },
    /// u8, about two thirds ones; the first of every run of `open` is one, so that no row is empty; with `open` 0 rows
    /// may be.
    Mask {
        /// Length of a row.
        open: usize,
    },
}

/// One input of a case.
#[derive(Debug, Clone)]
pub struct Input {
    /// Its name in reports.
    pub name: &'static str,
    /// Its shape.
    pub shape: Shape,
    /// Its values.
    pub values: Values,
    /// Its part in differentiation.
    pub role: Role,
    /// A dtype of its own; otherwise floats have the type that is tested.
    pub dtype: Option<DType>,
}

/// An op: results from variables, recorded on the tape of the context.
pub type OpBody = Box<dyn Fn(&Ctx, &[Var]) -> Result<Vec<Var>> + Send + Sync>;
/// A kernel launched directly: results from tensors.
pub type KernelBody = Box<dyn Fn(&Device, &[Tensor]) -> Result<Vec<Tensor>> + Send + Sync>;
/// Expected results in plain host arithmetic; inputs and results as flat numbers.
pub type HostBody = Box<dyn Fn(&[Vec<f64>]) -> Vec<Vec<f64>> + Send + Sync>;

/// Computation of a case.
pub enum Body {
    /// A differentiable op.
    Op(OpBody),
    /// A kernel without gradient.
    Kernel(KernelBody),
}

/// One row of the table.
pub struct Case {
    /// Unique; the first part is the op or kernel, the rest its options.
    pub name: String,
    /// Inputs, in the order in which the body gets them.
    pub inputs: Vec<Input>,
    /// Dtypes worth testing.
    pub dtypes: Vec<DType>,
    /// Its computation.
    pub body: Body,
    /// An independent computation of the results.
    pub host: Option<HostBody>,
    /// Step of the finite differences, in units of the inputs.
    pub step: f32,
    /// Large enough to be divided among threads and to be worth timing; too large for finite differences.
    pub large: bool,
    /// The gradient is the derivative; not so where a part of it is left out on purpose.
    pub exact: bool,
    /// Inputs whose gradient is zero in exact arithmetic. What a device makes instead is a rounding of sums as large as
    /// the other results, so their norm is what it is measured against.
    pub vanishing: Vec<&'static str>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("name", &self.name).field("inputs", &self.inputs).finish_non_exhaustive()
    }
}

impl Case {
    /// A row for an op.
    pub fn op(
        name: impl Into<String>,
        body: impl Fn(&Ctx, &[Var]) -> Result<Vec<Var>> + Send + Sync + 'static,
    ) -> Self {
        Case::new(name.into(), Body::Op(Box::new(body)))
    }

    /// A row for an op with one result.
    pub fn one(name: impl Into<String>, body: impl Fn(&Ctx, &[Var]) -> Result<Var> + Send + Sync + 'static) -> Self {
        Case::op(name, move |cx, v| Ok(vec![body(cx, v)?]))
    }

    /// A row for a kernel that is launched directly.
    pub fn kernel(
        name: impl Into<String>,
        body: impl Fn(&Device, &[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
    ) -> Self {
        Case::new(name.into(), Body::Kernel(Box::new(body)))
    }

    fn new(name: String, body: Body) -> Self {
        let dtypes = vec![DType::F32, DType::BF16, DType::F16];
        // A fourth-order stencil: the truncation error is about step^4 / 30 of the fifth derivative, 3e-10 for
        // functions of unit scale, and rounding enters as 6e-8 / step = 6e-6. A smaller step would lose to rounding.
        Case {
            name,
            inputs: Vec::new(),
            dtypes,
            body,
            host: None,
            step: 1e-2,
            large: false,
            exact: true,
            vanishing: Vec::new(),
        }
    }

    /// Beginning of its name: the op or kernel, such as `softmax`.
    pub fn stem(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }

    /// Another input. The builders after it change it.
    pub fn input(mut self, name: &'static str, shape: impl Into<Shape>, role: Role, values: Values) -> Self {
        self.inputs.push(Input { name, shape: shape.into(), values, role, dtype: None });
        self
    }

    /// Unit normal numbers that enter the tape.
    pub fn variable(self, name: &'static str, shape: impl Into<Shape>) -> Self {
        self.input(name, shape, Role::Variable, Values::Normal(0.0, 1.0))
    }

    /// A parameter of unit normal numbers.
    pub fn leaf(self, name: &'static str, shape: impl Into<Shape>) -> Self {
        self.input(name, shape, Role::Leaf, Values::Normal(0.0, 1.0))
    }

    /// Unit normal numbers without gradient.
    pub fn constant(self, name: &'static str, shape: impl Into<Shape>) -> Self {
        self.input(name, shape, Role::Constant, Values::Normal(0.0, 1.0))
    }

    /// Class numbers or table rows.
    pub fn ids(self, name: &'static str, shape: impl Into<Shape>, bound: i64, special: Option<i64>) -> Self {
        self.input(name, shape, Role::Constant, Values::Ids { bound, special })
    }

    /// A mask whose rows of `open` elements each show something.
    pub fn mask(self, name: &'static str, shape: impl Into<Shape>, open: usize) -> Self {
        self.input(name, shape, Role::Constant, Values::Mask { open })
    }

    /// The last input holds this.
    pub fn holding(mut self, values: Values) -> Self {
        if let Some(input) = self.inputs.last_mut() {
            input.values = values;
        }
        self
    }

    /// The last input is normal with this deviation.
    pub fn deviation(self, deviation: f32) -> Self {
        self.holding(Values::Normal(0.0, deviation))
    }

    /// The last input has this dtype, whatever is tested.
    pub fn of(mut self, dtype: DType) -> Self {
        if let Some(input) = self.inputs.last_mut() {
            input.dtype = Some(dtype);
        }
        self
    }

    /// Only these dtypes are tested.
    pub fn dtypes(mut self, dtypes: &[DType]) -> Self {
        self.dtypes = dtypes.to_vec();
        self
    }

    /// An independent computation.
    pub fn expecting(mut self, host: impl Fn(&[Vec<f64>]) -> Vec<Vec<f64>> + Send + Sync + 'static) -> Self {
        self.host = Some(Box::new(host));
        self
    }

    /// Another step for the finite differences: small for functions with kinks.
    pub fn step(mut self, step: f32) -> Self {
        self.step = step;
        self
    }

    /// For threads and timing, not for finite differences.
    pub fn large(mut self) -> Self {
        self.large = true;
        self.name.push_str("/large");
        self
    }

    /// The gradient leaves something out on purpose, so that finite differences do not apply.
    pub fn inexact(mut self) -> Self {
        self.exact = false;
        self
    }

    /// The gradients of these inputs are zero in exact arithmetic.
    pub fn vanishing(mut self, inputs: &[&'static str]) -> Self {
        self.vanishing = inputs.to_vec();
        self
    }

    /// Whether finite differences can test this row.
    pub fn is_differentiable(&self) -> bool {
        let wanted = self.inputs.iter().any(|input| input.role != Role::Constant);
        matches!(self.body, Body::Op(_)) && wanted && self.exact && !self.large
    }
}
