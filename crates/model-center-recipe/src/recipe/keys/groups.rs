//! Parameters that are trained, and those with a learning rate and a weight decay of their own: by patterns of their
//! names, and by depth.
//!
//! Defines [`ParamGroupSettings`] and [`param_groups`].

use super::train::TrainSettings;
use crate::recipe::engine::kinds::{Range, as_float, quote};
use crate::recipe::engine::layers::Value;
use crate::recipe::engine::reader::{Otherwise, Reader, Spec};
use crate::recipe::engine::schema::Shape;
use crate::{Error, Result};
use bmtrain_dist::optim::ParamGroup;
use bmtrain_dist::param::NamePatterns;
use bmtrain_dist::pipeline::ModelPart;
use bmtrain_dist::{Param, Parameters};

/// Settings that differ for some parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamGroupSettings {
    /// Patterns of their names; `*` stands for anything.
    pub params: Vec<String>,
    /// Factor of the learning rate.
    pub lr_factor: f64,
    /// Their weight decay; `None`: the weight decay of the run.
    pub weight_decay: Option<f32>,
}

impl Reader {
    pub(super) fn param_groups(&mut self, key: &'static str) -> Vec<ParamGroupSettings> {
        let group_shape = Shape::Table(&["params", "lr_factor", "weight_decay"], None);
        self.shape(key, Shape::List(group_shape.into()));
        let found = self.read(Spec {
            key,
            textual: false,
            wanted: "a list of tables with params, a list of patterns, and lr_factor or weight_decay".into(),
            example: "[{ params = [\"*.embeddings.*\"], lr_factor = 0.1, weight_decay = 0.0 }]".into(),
            otherwise: Otherwise::Absent("not set: all parameters alike"),
            read: &|value| match value {
                Value::Array(items) if !items.is_empty() => items.iter().map(group).collect(),
                _ => None,
            },
            render: &|groups: &Vec<ParamGroupSettings>| {
                format!("[{}]", groups.iter().map(render).collect::<Vec<_>>().join(", "))
            },
        });
        found.unwrap_or_default()
    }
}

impl TrainSettings {
    /// Names of the only parameters that are trained, but for those frozen; `None` for all.
    pub fn only_trained(&self) -> Option<NamePatterns> {
        (!self.only.is_empty()).then(|| NamePatterns::new(&self.only))
    }
}

fn group(value: &Value) -> Option<ParamGroupSettings> {
    let Value::Table(entries) = value else { return None };
    let (mut params, mut lr_factor, mut weight_decay) = (None, None, None);
    let number = |value: &Value| as_float(value).filter(|number| Range::AtLeast(0.0).holds_single(*number));
    for (name, value) in entries {
        match (name.as_str(), value) {
            ("params", Value::Array(items)) => params = items.iter().map(pattern).collect::<Option<Vec<_>>>(),
            ("lr_factor", value) => lr_factor = Some(number(value)?),
            ("weight_decay", value) => weight_decay = Some(number(value)? as f32),
            _ => return None,
        }
    }
    let params = params.filter(|params| !params.is_empty())?;
    (lr_factor.is_some() || weight_decay.is_some()).then_some(())?;
    Some(ParamGroupSettings { params, lr_factor: lr_factor.unwrap_or(1.0), weight_decay })
}

fn pattern(value: &Value) -> Option<String> {
    if let Value::Text(text) = value { Some(text.clone()) } else { None }
}

fn render(group: &ParamGroupSettings) -> String {
    let params = group.params.iter().map(|pattern| quote(pattern)).collect::<Vec<_>>().join(", ");
    let decay = group.weight_decay.map_or(String::new(), |decay| format!(", weight_decay = {decay:?}"));
    format!("{{ params = [{params}], lr_factor = {:?}{decay} }}", group.lr_factor)
}

/// The groups of a model's parameters: parameters of equal weight decay and learning rate are together. Of several
/// patterns that match a parameter the first decides; factors of pattern and depth are multiplied.
///
/// # Errors
/// A pattern that no parameter has; patterns that freeze all parameters.
pub fn param_groups(train: &TrainSettings, parameters: &Parameters) -> Result<Vec<ParamGroup>> {
    for (key, patterns) in [("train.frozen", &train.frozen), ("train.only", &train.only)] {
        refuse_idle(key, &NamePatterns::new(patterns), parameters)?;
    }
    if !parameters.declared().iter().any(Param::is_trainable) {
        let keys: Vec<&str> = [(train.frozen.is_empty(), "train.frozen"), (train.only.is_empty(), "train.only")]
            .into_iter()
            .filter_map(|(is_empty, key)| (!is_empty).then_some(key))
            .collect();
        let fix = "leave out a pattern; train.inspect_every = 1 prints all names";
        return Err(Error::recipe(keys.join(" and "), "no parameter of the model is trained", fix));
    }
    let mut groups = match train.decay_norms_and_biases {
        true => ParamGroup::all(parameters, train.weight_decay),
        false => ParamGroup::by_decay(parameters, train.weight_decay),
    };
    if train.groups.is_empty() && train.layer_decay == 1.0 {
        return Ok(groups);
    }
    let patterns: Vec<NamePatterns> = train.groups.iter().map(|group| NamePatterns::new(&group.params)).collect();
    patterns.iter().try_for_each(|patterns| refuse_idle("train.groups", patterns, parameters))?;
    let depth = 1 + parameters.declared().iter().map(|param| depth_of(param, 0)).max().unwrap_or(0);
    let mut divided: Vec<ParamGroup> = Vec::new();
    for group in &mut groups {
        for param in std::mem::take(&mut group.params) {
            let own = patterns.iter().position(|patterns| patterns.matches(param.name()));
            let own = own.and_then(|at| train.groups.get(at));
            let below = depth - depth_of(&param, depth);
            let by_depth = train.layer_decay.powi(i32::try_from(below).unwrap_or(i32::MAX));
            let lr_factor = by_depth * own.map_or(1.0, |own| own.lr_factor);
            let weight_decay = own.and_then(|own| own.weight_decay).unwrap_or(group.weight_decay);
            let known = divided.iter_mut().find(|g| g.weight_decay == weight_decay && g.lr_factor == lr_factor);
            match known {
                Some(known) => known.params.push(param),
                None => divided.push(ParamGroup { params: vec![param], weight_decay, lr_factor }),
            }
        }
    }
    Ok(divided)
}

fn refuse_idle(key: &str, patterns: &NamePatterns, parameters: &Parameters) -> Result<()> {
    let Some(idle) = patterns.idle(parameters).first().copied() else { return Ok(()) };
    let reason = format!("no parameter of the model is called {}", quote(idle));
    let mut first: Vec<&str> = Vec::new();
    for param in parameters.declared() {
        let part = param.name().split('.').next().unwrap_or_default();
        if !first.contains(&part) {
            first.push(part);
        }
    }
    let example = parameters.declared().iter().find(|param| matches!(param.part(), ModelPart::Block(_)));
    let example = example.map_or_else(String::new, |param| format!(", such as {}", param.name()));
    let fix = format!("correct it: names begin with {}{example}; train.inspect_every = 1 prints all", first.join(", "));
    Err(Error::recipe(key, reason, fix))
}

/// Embeddings are at depth 0, the first block is at 1, and the head is at `head`.
fn depth_of(param: &Param, head: usize) -> usize {
    match param.part() {
        ModelPart::Embed | ModelPart::Tied => 0,
        ModelPart::Block(block) => block + 1,
        ModelPart::Head => head,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Recipe;
    use bmtrain_core::Device;
    use bmtrain_dist::Builder;
    use bmtrain_dist::param::{BuilderOptions, Init, Split};

    /// Name, weight decay and factor of the learning rate of every trained parameter of a model of two blocks.
    fn grouped(sets: &[&str]) -> Result<Vec<(String, f32, f64)>> {
        let least = ["model.path=m", "data.task=language", "data.train=t.jsonl", "train.steps=1", "output.dir=o"];
        let sets: Vec<String> = least.iter().chain(sets).map(|set| (*set).to_owned()).collect();
        let train = Recipe::load_text("r.toml", "", &sets).unwrap().train.clone();
        let (frozen, trained) = (NamePatterns::new(&train.frozen), train.only_trained());
        let options = BuilderOptions { frozen, trained, ..BuilderOptions::default() };
        let builder = Builder::new(&Device::cpu(1).unwrap(), options);
        let parts = [
            ("embed", ModelPart::Embed),
            ("blocks.0", ModelPart::Block(0)),
            ("blocks.1", ModelPart::Block(1)),
            ("head", ModelPart::Head),
        ];
        for (name, part) in parts {
            let declare = |b: &Builder| {
                b.param("weight", [2, 2], Init::ZEROS, Split::Replicated, true)?;
                b.param("bias", [2], Init::ZEROS, Split::Replicated, false)
            };
            let place = builder.at(name).part(part);
            match part {
                ModelPart::Block(_) => place.block(declare).unwrap(),
                _ => declare(&place).unwrap(),
            };
        }
        let groups = param_groups(&train, &builder.finish())?;
        let of = |group: &ParamGroup| {
            let (decay, factor) = (group.weight_decay, group.lr_factor);
            let trained = group.params.iter().filter(|param| param.is_trainable());
            trained.map(move |param| (param.name().to_owned(), decay, factor)).collect::<Vec<_>>()
        };
        let mut all: Vec<_> = groups.iter().flat_map(of).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(all)
    }

    #[test]
    fn patterns_and_depth_decide_the_rate_and_the_decay_of_a_parameter() {
        let plain = grouped(&["train.weight_decay=0.5"]).unwrap();
        let all = ["blocks.0.bias", "blocks.0.weight", "blocks.1.bias", "blocks.1.weight"];
        let rest = ["embed.bias", "embed.weight", "head.bias", "head.weight"];
        let names: Vec<&str> = all.into_iter().chain(rest).collect();
        let expect = |decays: [f32; 8], factors: [f64; 8]| -> Vec<(String, f32, f64)> {
            let values = names.iter().zip(decays).zip(factors);
            values.map(|((name, decay), factor)| ((*name).to_owned(), decay, factor)).collect()
        };
        let decays = [0.0, 0.5, 0.0, 0.5, 0.0, 0.5, 0.0, 0.5];
        assert_eq!(plain, expect(decays, [1.0; 8]));
        // The head is at depth 3, the blocks at 1 and 2, the embeddings at 0.
        let by_depth = [0.25, 0.25, 0.5, 0.5, 0.125, 0.125, 1.0, 1.0];
        assert_eq!(grouped(&["train.weight_decay=0.5", "train.layer_decay=0.5"]).unwrap(), expect(decays, by_depth));
        let groups = "train.groups=[{ params = [\"blocks.1.*\"], lr_factor = 3.0, weight_decay = 0.25 }, \
                      { params = [\"*.bias\", \"embed.*\"], lr_factor = 0.0 }]";
        let decays = [0.0, 0.5, 0.25, 0.25, 0.0, 0.5, 0.0, 0.5];
        let factors = [0.0, 1.0, 3.0, 3.0, 0.0, 0.0, 0.0, 1.0];
        assert_eq!(grouped(&["train.weight_decay=0.5", groups]).unwrap(), expect(decays, factors));
        let both = [0.0, 0.25, 1.5, 1.5, 0.0, 0.0, 0.0, 1.0];
        let sets = ["train.weight_decay=0.5", groups, "train.layer_decay=0.5"];
        assert_eq!(grouped(&sets).unwrap(), expect(decays, both));
    }

    #[test]
    fn a_pattern_without_a_parameter_is_named() {
        for (key, set) in [
            ("train.groups", "[{ params = [\"blocks.*\", \"hed.*\"], lr_factor = 2 }]"),
            ("train.frozen", "[\"hed.*\"]"),
            ("train.only", "[\"head.*\", \"hed.*\"]"),
        ] {
            let error = grouped(&[&format!("{key}={set}")]).unwrap_err().to_string();
            assert!(error.contains(key) && error.contains("no parameter of the model is called \"hed.*\""), "{error}");
        }
    }

    #[test]
    fn patterns_decide_what_is_trained() {
        let trained = |sets: &[&str]| {
            let groups = grouped(sets)?;
            Ok::<_, Error>(groups.into_iter().map(|(name, ..)| name).collect::<Vec<_>>())
        };
        assert_eq!(
            trained(&["train.only=[\"*.bias\"]", "train.frozen=[\"embed.*\"]"]).unwrap(),
            ["blocks.0.bias", "blocks.1.bias", "head.bias"]
        );
        let error = trained(&["train.only=[\"*.bias\"]", "train.frozen=[\"*\"]"]).unwrap_err().to_string();
        assert!(
            error.contains("no parameter of the model is trained") && error.contains("train.frozen and train.only"),
            "{error}"
        );
    }
}
