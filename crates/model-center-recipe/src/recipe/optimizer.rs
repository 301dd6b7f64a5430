//! The optimizer of a recipe: its keys, and the optimizer that they make.
//!
//! Defines [`OptimizerSettings`]; read by `keys.rs`. Keys of another optimizer than the chosen one have no effect.

use super::kinds::Range;
use super::reader::Reader;
use crate::Result;
use bmtrain_core::kernel::UpdateRule;
use bmtrain_core::{DType, Shape};
use bmtrain_dist::Param;
use bmtrain_dist::optim::{
    Adafactor, AdafactorOptions, Adam, Adam8bit, Adam8bitOptions, AdamOffload, AdamOptions, DecayForm, Elementwise,
    ElementwiseOffload, ElementwiseOptions, KeptSpec, Muon, MuonOptions, MuonScale, Optimizer, ParamGroup, Rule,
};
use bmtrain_dist::param::Fusion;
use bmtrain_dist::pipeline::ModelPart;

/// Which optimizer, with its numbers.
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

impl OptimizerSettings {
    /// The optimizers over these groups; with `offload`, for those that can be, with their state in the host's memory.
    ///
    /// # Errors
    /// Numbers out of range.
    pub fn make(self, groups: Vec<ParamGroup>, offload: bool) -> Result<Vec<Box<dyn Optimizer>>> {
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
const MOMENTS: &[Name] =
    &[Name::AdamW, Name::Adam, Name::Adamax, Name::NAdam, Name::RAdam, Name::Lion, Name::Muon, Name::Adam8bit];

/// The optimizers that divide by a root.
const ROOTS: &[Name] = &[
    Name::AdamW,
    Name::Adam,
    Name::Adagrad,
    Name::RmsProp,
    Name::Adadelta,
    Name::Adamax,
    Name::NAdam,
    Name::RAdam,
    Name::Muon,
    Name::Adafactor,
    Name::Adam8bit,
];

/// The optimizers that each key is for.
const USES: [(&str, &[Name]); 14] = [
    ("train.betas", MOMENTS),
    ("train.eps", ROOTS),
    ("train.momentum", &[Name::Sgd, Name::RmsProp, Name::Muon]),
    ("train.dampening", &[Name::Sgd]),
    ("train.nesterov", &[Name::Sgd, Name::Muon]),
    ("train.rho", &[Name::RmsProp, Name::Adadelta]),
    ("train.centered", &[Name::RmsProp]),
    ("train.adagrad_decay", &[Name::Adagrad]),
    ("train.adagrad_start", &[Name::Adagrad]),
    ("train.momentum_decay", &[Name::NAdam]),
    ("train.muon_scale", &[Name::Muon]),
    ("train.scale_parameter", &[Name::Adafactor]),
    ("train.clip_threshold", &[Name::Adafactor]),
    ("train.decay_rate", &[Name::Adafactor]),
];

/// Reads the keys.
pub(super) fn read(r: &mut Reader) -> OptimizerSettings {
    let name = r.choice("train.optimizer", &NAMES, Name::AdamW);
    let is_decoupled = r.flag("train.decoupled", DECOUPLED.contains(&name));
    let beta2 = if name == Name::Lion { 0.99 } else { 0.999 };
    let [beta1, beta2] = r.pair("train.betas", [0.9, beta2], Range::Below(0.0, 1.0));
    let epsilon = match name {
        Name::Adagrad => 1e-10,
        Name::Adadelta => 1e-6,
        Name::Adafactor => 1e-30,
        _ => 1e-8,
    };
    let epsilon = r.number_in_single("train.eps", epsilon, Range::Above(0.0));
    let is_muon = name == Name::Muon;
    let momentum = r.float("train.momentum", if is_muon { 0.95 } else { 0.0 }, Range::Below(0.0, 1.0));
    let dampening = r.float("train.dampening", 0.0, Range::AtLeast(0.0));
    let nesterov = r.flag("train.nesterov", is_muon);
    let rho = r.float("train.rho", if name == Name::Adadelta { 0.9 } else { 0.99 }, Range::Below(0.0, 1.0));
    let centered = r.flag("train.centered", false);
    let lr_decay = r.float("train.adagrad_decay", 0.0, Range::AtLeast(0.0));
    let initial = r.single("train.adagrad_start", 0.0, Range::AtLeast(0.0));
    let momentum_decay = r.float("train.momentum_decay", 4e-3, Range::AtLeast(0.0));
    let scales = [("match-adamw", MuonScale::MatchAdamW), ("original", MuonScale::Original)];
    let scale = r.choice("train.muon_scale", &scales, MuonScale::MatchAdamW);
    let adafactor = AdafactorOptions::default();
    let adafactor = AdafactorOptions {
        epsilon,
        scale_parameter: r.flag("train.scale_parameter", adafactor.scale_parameter),
        clip_threshold: r.float("train.clip_threshold", adafactor.clip_threshold, Range::Above(0.0)),
        decay_rate: r.float("train.decay_rate", adafactor.decay_rate, Range::Below(-1.0, 0.0)),
        ..adafactor
    };
    for (key, users) in USES.iter().filter(|(_, users)| !users.contains(&name)) {
        let users: Vec<&str> = NAMES.iter().filter(|(_, name)| users.contains(name)).map(|(name, _)| *name).collect();
        let why = format!("it belongs to train.optimizer = \"{}\"", users.join("\", \""));
        r.without_effect(key, "train.optimizer", &why, "remove it");
    }
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
        Name::Adafactor => return OptimizerSettings::Adafactor(adafactor),
        Name::Muon => {
            let momentum = momentum as f32;
            return OptimizerSettings::Muon(MuonOptions { momentum, nesterov, scale, ..MuonOptions::default() }, adam);
        }
        Name::Sgd => UpdateRule::Sgd { momentum, dampening, nesterov: is_accelerated },
        Name::Adagrad => UpdateRule::Adagrad { lr_decay, epsilon },
        Name::RmsProp => UpdateRule::RmsProp { rho, epsilon, momentum, centered },
        Name::Adadelta => UpdateRule::Adadelta { rho, epsilon },
        Name::Adamax => UpdateRule::Adamax { beta1, beta2, epsilon },
        Name::NAdam => UpdateRule::NAdam { beta1, beta2, epsilon, momentum_decay },
        Name::RAdam => UpdateRule::RAdam { beta1, beta2, epsilon },
        Name::Lion => UpdateRule::Lion { beta1, beta2 },
    };
    let initial = if name == Name::Adagrad { initial } else { 0.0 };
    OptimizerSettings::Elementwise(ElementwiseOptions { decay_form, initial, ..ElementwiseOptions::new(rule) })
}
