//! The family of a directory whose `config.json` does not name it, by its class or by the names of its tensors.

use crate::model::family::FAMILIES;
use model_center_base::error::{Error, Result};
use model_center_base::file::printable;
use model_center_formats::names::shortened;
use model_center_formats::{TensorSource, Weights};
use std::collections::HashSet;
use std::path::Path;

/// Parameter names by which a family's weights differ from other families'.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Signature {
    /// The prefix of all names in files of models with a head; bare models have none.
    pub prefix: &'static str,
    /// Names that the weights have, in lists that families share.
    pub has: &'static [&'static [&'static str]],
    /// Names that the weights must lack, to exclude another family that has all of the above.
    pub lacks: &'static [&'static str],
}

impl Signature {
    /// Whether weights with these names are of the family. A name that ends in a dot is a prefix.
    fn fits(&self, names: &HashSet<&str>) -> bool {
        let is_there = |name: &str| {
            if name.ends_with('.') {
                return names.iter().any(|known| known.starts_with(name));
            }
            names.contains(name) || names.contains(format!("{}{name}", self.prefix).as_str())
        };
        self.has.iter().copied().flatten().all(|name| is_there(name)) && !self.lacks.iter().any(|name| is_there(name))
    }
}

/// The family, among the `known` ones, whose names match the weights of this directory; if several match, the one that
/// `class`, which `config.json` names, belongs to. A class of none of them may have the same names and another
/// computation, so that nothing is inferred.
///
/// # Errors
/// None, several, or a class of another family: with the candidates and how to name one.
pub(in crate::model) fn family_of(
    place: &str,
    directory: &Path,
    class: Option<&str>,
    known: &[&'static str],
) -> Result<&'static str> {
    // Weights that cannot be opened are an error of opening the model, which follows.
    let weights = Weights::open(directory).ok();
    let entries = weights.as_ref().map(TensorSource::entries).unwrap_or_default();
    let names: HashSet<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    let mut fitting: Vec<(&'static str, &'static str)> = FAMILIES
        .iter()
        .filter(|family| family.signatures.iter().any(|signature| signature.fits(&names)))
        .map(|family| (family.entry.model_type, family.class_prefix))
        .collect();
    fitting.retain(|(family, _)| known.contains(family));
    let of_class: Vec<_> = fitting.iter().filter(|(_, prefix)| is_class_of(class, prefix)).copied().collect();
    match class.filter(|class| names_a_model(class)) {
        _ if !of_class.is_empty() => fitting = of_class,
        Some(class) if !fitting.is_empty() => return Err(unknown_class(place, class, &fitting)),
        _ => {}
    }
    let silent = "config.json does not state the family (model_type)";
    let (reason, families) = match fitting[..] {
        [(family, _)] => return Ok(family),
        [] if entries.is_empty() => (silent.to_owned(), known.join(", ")),
        [] => {
            let names: Vec<String> = entries.iter().map(|entry| entry.name.clone()).collect();
            let reason = format!("{silent}, and its tensors have the names of none: {}", shortened(&names));
            (reason, known.join(", "))
        }
        _ => {
            let families = listed(&fitting);
            (format!("{silent}; by the names of its tensors it can be {families}"), families)
        }
    };
    let fix = format!("name the family with --family or model.family: one of {}", printable(&families, 300));
    Err(Error::model(place, reason, fix))
}

/// The error for a class that belongs to none of the families whose names match.
fn unknown_class(place: &str, class: &str, fitting: &[(&'static str, &'static str)]) -> Error {
    let is_of_another =
        FAMILIES.iter().filter(|f| !f.signatures.is_empty()).any(|f| is_class_of(Some(class), f.class_prefix));
    let what = if is_of_another { "a class of another family," } else { "unknown class" };
    let families = listed(fitting);
    Error::model(
        format!("{place}, field architectures"),
        format!("{what} \"{}\"; its tensors have the names of {families}", printable(class, 80)),
        "name the family with --family or model.family if the model computes as that family does",
    )
}

fn listed(families: &[(&'static str, &'static str)]) -> String {
    families.iter().map(|(family, _)| *family).collect::<Vec<_>>().join(", ")
}

/// Whether a class name has the form of a transformers class: `…Model`, as in `GPT2LMHeadModel`, or `…For…`.
fn names_a_model(class: &str) -> bool {
    let is_for = |(at, _): (usize, &str)| at > 0 && class[at + 3..].starts_with(|c: char| c.is_ascii_uppercase());
    class.strip_suffix("Model").is_some_and(|stem| !stem.is_empty()) || class.match_indices("For").any(is_for)
}

/// Whether a class such as `BertForMaskedLM` begins with a family's `prefix`, followed by an uppercase letter.
fn is_class_of(class: Option<&str>, prefix: &str) -> bool {
    let rest = class.and_then(|class| {
        class.get(..prefix.len()).filter(|begin| begin.eq_ignore_ascii_case(prefix)).and(class.get(prefix.len()..))
    });
    rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
}
