//! The optimizer of a recipe: its keys, and the optimizer that they make.
//!
//! Defines [`OptimizerSettings`]. Keys of another optimizer than the chosen one have no effect.

use super::train::TrainSettings;
use crate::recipe::engine::kinds::Range::{Above, AtLeast, Below};
use crate::recipe::engine::kinds::{name_of, quoted};
use crate::recipe::engine::reader::Reader;
use crate::recipe::engine::table::settings;
use crate::{Error, Result};
use bmtrain_core::kernel::UpdateRule;
use bmtrain_core::{DType, Shape};
use bmtrain_dist::Param;
use bmtrain_dist::optim::{
    Adafactor, AdafactorOptions, Adam, Adam8bit, Adam8bitOptions, AdamOffload, AdamOptions, DecayForm, Elementwise,
    ElementwiseOffload, ElementwiseOptions, KeptSpec, Muon, MuonOptions, MuonScale, Optimizer, ParamGroup, Rule,
};
use bmtrain_dist::param::Fusion;
use bmtrain_dist::pipeline::ModelPart;

/// Optimizer, with its numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OptimizerSettings {
    /// Adam or AdamW.
    Adam(AdamOptions),
    /// AdamW with moments in 8 bits.
    Adam8bit(Adam8bitOptions),
    /// Adafactor.
    Adafactor(AdafactorOptions),
    /// Another one that updates each element by itself.
    Elementwise(ElementwiseOptions),
    /// Muon for the matrices of blocks, AdamW for the rest, with one learning rate.
    Muon(MuonOptions, AdamOptions),
}

impl Default for OptimizerSettings {
    fn default() -> Self {
        OptimizerSettings::Adam(AdamOptions::default())
    }
}

/// Why an optimizer's state cannot be in the host's memory.
pub(super) const NOT_ON_HOST: &str =
    "the host updates each element by itself, and `train.optimizer` is one that does not";

impl OptimizerSettings {
    /// The optimizers over these groups; with `offload`, their state is in the host's memory.
    ///
    /// # Errors
    /// Numbers out of range; `offload` of an optimizer that [cannot be](OptimizerSettings::can_be_offloaded) there.
    pub fn make(self, groups: Vec<ParamGroup>, offload: bool) -> Result<Vec<Box<dyn Optimizer>>> {
        if offload && !self.can_be_offloaded() {
            return Err(Error::recipe("train.offload", NOT_ON_HOST, "set train.optimizer = \"adamw\""));
        }
        Ok(match self {
            OptimizerSettings::Adam(options) if offload => vec![Box::new(AdamOffload::new(groups, options)?)],
            OptimizerSettings::Adam(options) => vec![Box::new(Adam::new(groups, options)?)],
            OptimizerSettings::Adam8bit(options) => vec![Box::new(Adam8bit::new(groups, options)?)],
            OptimizerSettings::Adafactor(options) => vec![Box::new(Adafactor::new(groups, options)?)],
            OptimizerSettings::Elementwise(options) if offload => {
                vec![Box::new(ElementwiseOffload::new(groups, options)?)]
            }
            OptimizerSettings::Elementwise(options) => vec![Box::new(Elementwise::new(groups, options)?)],
            OptimizerSettings::Muon(options, rest) => {
                let (matrices, others) = groups.into_iter().map(divided).unzip();
                vec![Box::new(Muon::new(matrices, options)?), Box::new(Adam::new(others, rest)?)]
            }
        })
    }

    /// Whether its state can be in the host's memory.
    pub fn can_be_offloaded(self) -> bool {
        matches!(self, OptimizerSettings::Adam(_) | OptimizerSettings::Elementwise(_))
    }

    /// Why tensor-parallel ranks cannot have it, if that is so.
    pub fn needs_whole_parameters(self) -> Option<&'static str> {
        match self {
            OptimizerSettings::Muon(..) => Some("Muon orthogonalises whole matrices"),
            OptimizerSettings::Adafactor(_) => Some("Adafactor averages whole rows and columns"),
            OptimizerSettings::Adam8bit(_) => Some("8-bit moments have blocks of the whole matrix"),
            OptimizerSettings::Adam(_) | OptimizerSettings::Elementwise(_) => None,
        }
    }

    /// The bytes that it keeps for each value of a large matrix of this dtype, and the tensors for each parameter, at
    /// most.
    pub fn kept(self, dtype: DType) -> (f64, usize) {
        let shape = Shape::from([1024, 1024]);
        let large = Fusion::default().tensors(&shape);
        let specs = match self {
            OptimizerSettings::Adam(options) => options.kept_specs(&large, dtype),
            OptimizerSettings::Adam8bit(options) => options.kept_specs(&large, dtype),
            OptimizerSettings::Adafactor(options) => options.kept_specs(&large, dtype),
            OptimizerSettings::Elementwise(options) => options.kept_specs(&large, dtype),
            OptimizerSettings::Muon(_, rest) => rest.kept_specs(&large, dtype),
        };
        let bytes = |spec: &KeptSpec| spec.form.dtype().size() * spec.form.shape(&shape).iter().product::<usize>();
        let bytes: usize = specs.iter().map(bytes).sum();
        (bytes as f64 / shape.elements() as f64, specs.len())
    }
}

/// The weight matrices of blocks, and what is left of a group: embeddings, tables of relative positions, heads, norms
/// and biases.
fn divided(ParamGroup { params, weight_decay, lr_factor }: ParamGroup) -> (ParamGroup, ParamGroup) {
    let is_matrix = |param: &Param| {
        let spec = param.spec();
        let is_of_block = matches!(param.part(), ModelPart::Block(_));
        spec.decay && !spec.is_table && spec.shape.dims().len() == 2 && is_of_block
    };
    let (matrices, others) = params.into_iter().partition(is_matrix);
    let group = |params| ParamGroup { params, weight_decay, lr_factor };
    (group(matrices), group(others))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    AdamW,
    Adam,
    Sgd,
    Adagrad,
    RmsProp,
    Adadelta,
    Adamax,
    NAdam,
    RAdam,
    Lion,
    Muon,
    Adafactor,
    Adam8bit,
}

const NAMES: [(&str, Name); 13] = [
    ("adamw", Name::AdamW),
    ("adam", Name::Adam),
    ("sgd", Name::Sgd),
    ("adagrad", Name::Adagrad),
    ("rmsprop", Name::RmsProp),
    ("adadelta", Name::Adadelta),
    ("adamax", Name::Adamax),
    ("nadam", Name::NAdam),
    ("radam", Name::RAdam),
    ("lion", Name::Lion),
    ("muon", Name::Muon),
    ("adafactor", Name::Adafactor),
    ("adamw-8bit", Name::Adam8bit),
];

/// The optimizers that decay parameters apart from the gradient by default.
const DECOUPLED: &[Name] = &[Name::AdamW, Name::Lion, Name::Muon, Name::Adafactor, Name::Adam8bit];

/// The optimizers with averages of Adam's kind.
const MOMENTS: &[&str] = &["adamw", "adam", "adamax", "nadam", "radam", "lion", "muon", "adamw-8bit"];

/// The optimizers that divide by a root.
const ROOTS: &[&str] =
    &["adamw", "adam", "adagrad", "rmsprop", "adadelta", "adamax", "nadam", "radam", "muon", "adafactor", "adamw-8bit"];

const SCALES: [(&str, MuonScale); 2] = [("match-adamw", MuonScale::MatchAdamW), ("original", MuonScale::Original)];

settings! {
    #[derive(Debug, Clone, Copy)]
    pub(super) struct OptimizerKeys in "train" (r) {
        /// The optimizer, `docs/optimizers.md`. `adamw` and `adam` differ in the default of `train.decoupled` alone.
        optimizer: Name = choice(&NAMES, Name::AdamW), "0.2", later("\"adamw\"");
        /// Decoupled weight decay, as in AdamW; otherwise it is added to the gradient.
        decoupled: bool = flag(DECOUPLED.contains(&optimizer)), "0.1",
            default("`true` of `adamw`, `adamw-8bit`, `lion`, `muon` and `adafactor`, `false` of others");
        /// Decay rates of the first and second moments, of Adam and of `adamax`, `nadam`, `radam` and `lion`.
        betas: [f64; 2] = pair([0.9, if optimizer == Name::Lion { 0.99 } else { 0.999 }], Below(0.0, 1.0)), "0.1",
            default("`[0.9, 0.999]`, of `lion` `[0.9, 0.99]`"), uses(MOMENTS);
        /// Added to the root of Adam's second moment, and to what others divide by.
        eps: f64 = number_in_single(default_epsilon(optimizer), Above(0.0)), "0.1", uses(ROOTS),
            default("`1e-8`, of `adagrad` `1e-10`, of `adadelta` `1e-6`, of `adafactor` `1e-30`");
        /// Momentum of `sgd`, `rmsprop` and `muon`.
        momentum: f64 = float(if optimizer == Name::Muon { 0.95 } else { 0.0 }, Below(0.0, 1.0)), "0.2",
            default("`0.0`, of `muon` `0.95`"), uses(&["sgd", "rmsprop", "muon"]);
        /// Dampening of momentum, as in `torch.optim.SGD`.
        dampening: f64 = float(0.0, AtLeast(0.0)), "0.2", uses(&["sgd"]);
        /// Nesterov's momentum, of `sgd` and `muon`.
        nesterov: bool = flag(optimizer == Name::Muon), "0.2",
            default("`false`, of `muon` `true`"), uses(&["sgd", "muon"]);
        /// Decay rate of the averages of squared gradients, of `rmsprop` (PyTorch's alpha) and `adadelta`.
        rho: f64 = float(if optimizer == Name::Adadelta { 0.9 } else { 0.99 }, Below(0.0, 1.0)), "0.2",
            default("`0.99`, of `adadelta` `0.9`"), uses(&["rmsprop", "adadelta"]);
        /// Divide by the deviation of the gradients, of `rmsprop`.
        centered: bool = flag(false), "0.2", uses(&["rmsprop"]);
        /// Decay of Adagrad's learning rate: by 1 / (1 + steps × this).
        adagrad_decay: f64 = float(0.0, AtLeast(0.0)), "0.2", uses(&["adagrad"]);
        /// What Adagrad's sums of squares begin with.
        adagrad_start: f32 = single(0.0, AtLeast(0.0)), "0.2", uses(&["adagrad"]);
        /// How fast the momentum of `nadam` grows to its first beta.
        momentum_decay: f64 = float(4e-3, AtLeast(0.0)), "0.2", uses(&["nadam"]);
        /// Scale of `muon`'s update: `match-adamw` makes it as large as AdamW's, `original` is the paper's.
        muon_scale: MuonScale = choice(&SCALES, MuonScale::MatchAdamW), "0.2", uses(&["muon"]);
        /// Multiply the learning rate of `adafactor` by the root mean square of the parameter.
        scale_parameter: bool = flag(AdafactorOptions::default().scale_parameter), "0.2", uses(&["adafactor"]);
        /// Root mean square above which the change of a parameter by `adafactor` is scaled down to it.
        clip_threshold: f64 = float(AdafactorOptions::default().clip_threshold, Above(0.0)), "0.2",
            uses(&["adafactor"]);
        /// At step t the averages of `adafactor` keep 1 - t^this of what they were.
        decay_rate: f64 = float(AdafactorOptions::default().decay_rate, Below(-1.0, 0.0)), "0.2", uses(&["adafactor"]);
    }
}

fn default_epsilon(optimizer: Name) -> f64 {
    match optimizer {
        Name::Adagrad => 1e-10,
        Name::Adadelta => 1e-6,
        Name::Adafactor => 1e-30,
        _ => 1e-8,
    }
}

/// Adds what has no effect without weight decay.
pub(crate) fn check(r: &mut Reader, train: &TrainSettings) {
    if train.weight_decay == 0.0 {
        for key in ["train.decay_norms_and_biases", "train.decoupled"] {
            let fix = "remove it, or set train.weight_decay";
            r.without_effect(key, "train.weight_decay", "train.weight_decay is 0", fix);
        }
    }
}

/// Reads the keys.
pub(super) fn read(r: &mut Reader) -> OptimizerSettings {
    let keys = OptimizerKeys::read(r);
    let (name, is_decoupled, [beta1, beta2], epsilon) = (keys.optimizer, keys.decoupled, keys.betas, keys.eps);
    let OptimizerKeys { momentum, dampening, nesterov, rho, centered, momentum_decay, .. } = keys;
    r.refuse_others(&OptimizerKeys::TABLE, ("train.optimizer", name_of(&NAMES, &name)), |optimizers| {
        (format!("it belongs to train.optimizer = {}", quoted(optimizers, ", ")), "remove it".to_owned())
    });
    if name == Name::Sgd && momentum == 0.0 {
        for key in ["train.dampening", "train.nesterov"] {
            r.without_effect(key, "train.momentum", "train.momentum is 0", "set train.momentum, or remove it");
        }
    }
    let is_accelerated = name == Name::Sgd && nesterov && momentum > 0.0;
    if is_accelerated && dampening > 0.0 {
        let reason = "Nesterov's momentum has no dampening";
        r.contradiction(&["train.nesterov", "train.dampening"], reason, "remove one of the two");
    }
    if matches!(name, Name::Muon | Name::Adafactor) && !is_decoupled {
        let reason = "this optimizer decays apart from the gradient";
        r.contradiction(&["train.decoupled", "train.optimizer"], reason, "remove train.decoupled");
    }
    let decay_form = if is_decoupled { DecayForm::Decoupled } else { DecayForm::Coupled };
    let adam = AdamOptions {
        beta1: beta1 as f32,
        beta2: beta2 as f32,
        epsilon: epsilon as f32,
        decay_form,
        ..AdamOptions::default()
    };
    let rule = match name {
        Name::AdamW | Name::Adam => return OptimizerSettings::Adam(adam),
        Name::Adam8bit => return OptimizerSettings::Adam8bit(Adam8bitOptions { adam }),
        Name::Adafactor => {
            let OptimizerKeys { scale_parameter, clip_threshold, decay_rate, .. } = keys;
            let defaults = AdafactorOptions::default();
            let options = AdafactorOptions { epsilon, scale_parameter, clip_threshold, decay_rate, ..defaults };
            return OptimizerSettings::Adafactor(options);
        }
        Name::Muon => {
            let (momentum, scale) = (momentum as f32, keys.muon_scale);
            return OptimizerSettings::Muon(MuonOptions { momentum, nesterov, scale, ..MuonOptions::default() }, adam);
        }
        Name::Sgd => UpdateRule::Sgd { momentum, dampening, nesterov: is_accelerated },
        Name::Adagrad => UpdateRule::Adagrad { lr_decay: keys.adagrad_decay, epsilon },
        Name::RmsProp => UpdateRule::RmsProp { rho, epsilon, momentum, centered },
        Name::Adadelta => UpdateRule::Adadelta { rho, epsilon },
        Name::Adamax => UpdateRule::Adamax { beta1, beta2, epsilon },
        Name::NAdam => UpdateRule::NAdam { beta1, beta2, epsilon, momentum_decay },
        Name::RAdam => UpdateRule::RAdam { beta1, beta2, epsilon },
        Name::Lion => UpdateRule::Lion { beta1, beta2 },
    };
    let initial = if name == Name::Adagrad { keys.adagrad_start } else { 0.0 };
    OptimizerSettings::Elementwise(ElementwiseOptions { decay_form, initial, ..ElementwiseOptions::new(rule) })
}
