//! The position-wise feed-forward layer.

use bmtrain_core::kernel::Activation;
use bmtrain_core::{Ctx, Var, ops};
use bmtrain_dist::Builder;
use bmtrain_dist::Result;
use bmtrain_dist::nn::linear::{Cut, Linear, LinearOptions};
use bmtrain_dist::param::Init;

/// What a [`FeedForward`] is made of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FeedForwardConfig {
    /// D, length of the input and of the output.
    pub dim_model: usize,
    /// F, length in between.
    pub dim_ff: usize,
    /// Function in between.
    pub activation: Activation,
    /// Whether the two maps have a bias.
    pub bias: bool,
    /// Initial weights of the first map.
    pub init: Init,
    /// Initial weights of the second map, whose outputs are added up along the depth of the model.
    pub out_init: Init,
}

/// `w_out(activation(w_in(x)))`.
#[derive(Debug, Clone)]
pub struct FeedForward {
    activation: Activation,
    w_in: Linear,
    w_out: Linear,
}

impl FeedForward {
    /// Declare the two maps under the builder's name.
    ///
    /// # Errors
    /// No memory left.
    pub fn new(builder: &Builder, config: FeedForwardConfig) -> Result<Self> {
        let FeedForwardConfig { dim_model, dim_ff, activation, bias, init, out_init } = config;
        let w_in = LinearOptions::new(dim_model, dim_ff, bias, init).cut(Cut::Columns);
        let w_out = LinearOptions::new(dim_ff, dim_model, bias, out_init).cut(Cut::Rows);
        Ok(FeedForward {
            activation,
            w_in: Linear::new(&builder.at("w_in"), w_in)?,
            w_out: Linear::new(&builder.at("w_out"), w_out)?,
        })
    }

    /// `x [.., D]` to `[.., D]`. One op: only the input and what enters the activation are kept for the way back.
    ///
    /// # Errors
    /// Shapes that do not fit; a failing device.
    pub fn forward(&self, x: &Var, cx: &mut Ctx) -> Result<Var> {
        let (w_in, b_in) = self.w_in.vars(cx)?;
        let (w_out, b_out) = self.w_out.vars(cx)?;
        Ok(ops::feed_forward(cx, x, &w_in, b_in.as_ref(), self.activation, &w_out, b_out.as_ref())?)
    }
}
