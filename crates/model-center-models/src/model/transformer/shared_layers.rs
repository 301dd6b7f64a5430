//! Blocks that share their parameters: the order in which they run, and the directory that has each of them.
//!
//! Called by [`super::build`], and by [`crate::model::Transformer`] to write itself.

use crate::model::architecture::{Spec, StackSpec};
use bmtrain_dist::Mesh;
use bmtrain_dist::param::Param;
use model_center_base::error::{Error, Result};
use model_center_formats::{Fill, ParamShape};
use std::collections::HashMap;

/// The recipe's key, for messages.
const KEY: &str = "model.unique_layers";

/// Whether two blocks of a stack compute the same with the same parameters.
pub(in crate::model) type AreAlike<'a> = &'a dyn Fn(usize, [usize; 2]) -> bool;

/// The block at each place of each stack; `None` where every block has its own parameters.
///
/// # Errors
/// Blocks that do not divide the places; a family whose blocks differ by place; several pipeline stages, which would
/// each need the same parameters.
pub(in crate::model) fn orders(are_alike: AreAlike<'_>, spec: &Spec, mesh: Mesh) -> Result<Vec<Option<Vec<usize>>>> {
    let Some(sharing) = spec.sharing else { return Ok(vec![None; spec.stacks.len()]) };
    if mesh.pipeline_size() > 1 {
        return Err(on_stages());
    }
    let order = |(index, stack): (usize, &StackSpec)| {
        let (unique, layers) = (sharing.unique, stack.layers);
        let order = sharing.order(layers).ok_or_else(|| {
            let reason = format!("{unique} blocks with parameters of their own do not divide {layers} layers");
            Error::argument(KEY, reason, "choose a divisor of model.layers")
        })?;
        let other = order.iter().enumerate().find(|(place, block)| !are_alike(index, [**block, *place]));
        match other {
            Some((place, block)) => {
                let title = spec.title;
                let reason = format!("layers {block} and {place} of this {title} compute differently");
                Err(Error::argument(KEY, reason, "remove it, or the options of the configuration that differ by layer"))
            }
            None => Ok(Some(order)),
        }
    };
    spec.stacks.iter().enumerate().map(order).collect()
}

/// The error for shared parameters over pipeline stages.
pub(in crate::model) fn on_stages() -> Error {
    let reason = "layers that share their parameters are on one pipeline stage";
    Error::argument("parallel.pipeline", reason, format!("set it to 1, or remove {KEY} where a recipe has it"))
}

fn order_of(spec: &Spec, stack: &StackSpec) -> Option<Vec<usize>> {
    spec.sharing?.order(stack.layers)
}

/// Stack, block and the rest of the name of a parameter in a block.
fn in_block<'a, 'n>(spec: &'a Spec, name: &'n str) -> Option<(&'a StackSpec, usize, &'n str)> {
    spec.stacks.iter().find_map(|stack| {
        let (block, rest) = name.strip_prefix(stack.name)?.strip_prefix(".layers.")?.split_once('.')?;
        Some((stack, block.parse().ok()?, rest))
    })
}

/// Values that are computed with more than once: of each shared parameter, its own for all places but one.
pub(in crate::model) fn repeated<'a>(spec: &Spec, parameters: impl Iterator<Item = &'a Param>) -> usize {
    let further = |param: &Param| {
        let (stack, block, _) = in_block(spec, param.name())?;
        let places = order_of(spec, stack)?.into_iter().filter(|own| *own == block).count();
        Some(places.saturating_sub(1) * param.spec().shape.elements())
    };
    parameters.filter_map(further).sum()
}

/// The parameters of a directory, in which every place of a stack has its own, unless the family's files share: the
/// copies of a shared one follow each other.
#[derive(Debug)]
pub(in crate::model) struct WrittenParams {
    shapes: Vec<ParamShape>,
    /// The parameter that each copy is of.
    shared: HashMap<String, String>,
}

impl WrittenParams {
    /// Shared layers of a model with these parameters.
    pub(in crate::model) fn of(spec: &Spec, own: Vec<ParamShape>) -> Self {
        let (mut shapes, mut shared) = (Vec::with_capacity(own.len()), HashMap::new());
        for param in own {
            let found = in_block(spec, &param.name);
            let Some((stack, block, rest, order)) = found
                .filter(|_| !spec.files_share)
                .and_then(|(stack, block, rest)| Some((stack, block, rest, order_of(spec, stack)?)))
            else {
                shapes.push(param);
                continue;
            };
            for (place, _) in order.iter().enumerate().filter(|(_, own)| **own == block) {
                let name = format!("{}.layers.{place}.{rest}", stack.name);
                shapes.push(ParamShape::new(&name, param.shape.clone()));
                shared.insert(name, param.name.clone());
            }
        }
        WrittenParams { shapes, shared }
    }

    /// Names and shapes.
    pub(in crate::model) fn shapes(&self) -> &[ParamShape] {
        &self.shapes
    }

    /// Values of these parameters in their order, from a `fill` for the model's parameters, which is called once for
    /// each. Memory: one shared parameter more.
    pub(in crate::model) fn filled<'a>(&'a self, fill: Fill<'a>) -> impl FnMut(&str, &mut Vec<f32>) -> Result<()> + 'a {
        let mut last: Option<(&str, Vec<f32>)> = None;
        move |name, values| {
            let Some(source) = self.shared.get(name) else {
                last = None;
                return fill(name, values);
            };
            if let Some((_, kept)) = last.as_ref().filter(|(known, _)| known == source) {
                values.clone_from(kept);
                return Ok(());
            }
            last = None;
            fill(source, values)?;
            last = Some((source.as_str(), values.clone()));
            Ok(())
        }
    }
}
