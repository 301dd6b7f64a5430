//! Match every parameter with a file's tensors before any data are read.

use std::collections::{HashMap, HashSet};

use super::ignored;
use super::pattern::glob;
use super::report::{Difference, MisShaped, Missing};
use super::{Alias, NameTable, ParamShape, TensorPart};
use crate::formats::safetensors::{TensorEntry, TensorSource};
use crate::{Error, Result};

/// Differences allowed between model and file. Nothing, by default. In all patterns `*` stands for any text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allow {
    /// Our parameters that the file need not have, such as a new classifier; they keep their initial values.
    pub missing: Vec<String>,
    /// The file's tensors that the model has no use for, such as the head it was pretrained with.
    pub unused: Vec<String>,
    /// Our parameters that keep their initial values whatever the file has, such as a classifier that begins anew. The
    /// file's tensors for them count as unused.
    pub fresh: Vec<String>,
    /// Further tensors of the file that the model has no use for, by patterns of the names that the file has. Unlike
    /// [`Allow::unused`], which old names match by their modern form too, each of these patterns must match a tensor,
    /// and none may match one that the model needs.
    pub ignored: Vec<String>,
    /// Tensors that the file need not have, by Hugging Face's names, each with the tensor that has its values then: an
    /// output projection that was tied to the embedding.
    pub copies: Vec<(String, String)>,
}

impl Allow {
    /// Whether the model may do without a tensor of the file.
    fn ignores(&self, name: &str) -> bool {
        self.unused.iter().chain(&self.ignored).any(|pattern| glob(pattern, name))
    }
}

/// Source of each parameter's values.
#[derive(Debug, Clone, Default)]
pub struct LoadPlan {
    pub(super) steps: Vec<Step>,
    /// Index of a parameter's step, by our name for it.
    pub(super) places: HashMap<String, usize>,
    pub(super) twins: Vec<Twin>,
    fresh: Vec<String>,
    unused: Vec<String>,
    left: Vec<String>,
}

/// One parameter and the file's tensors that make it up.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) ours: String,
    pub(super) elements: usize,
    /// Each piece carries the name that the file uses.
    pub(super) pieces: Vec<TensorPart>,
}

/// Two tensors of the file that have to be equal.
#[derive(Debug, Clone)]
pub(super) struct Twin {
    pub(super) name: String,
    pub(super) alias: String,
    pub(super) bytes: u64,
}

impl LoadPlan {
    /// Match `params` with the tensors of `source`; any [`Difference`] that `allow` does not name is an error.
    pub fn build(table: &NameTable, params: &[ParamShape], source: &dyn TensorSource, allow: &Allow) -> Result<Self> {
        let (plan, difference) = Self::compare(table, params, source, allow)?;
        if difference.is_empty() {
            return Ok(plan);
        }
        Err(Error::model(source.place(), difference.to_string(), difference.fix()))
    }

    /// Matches as far as possible and reports the differences. A plan with differences covers the rest of the
    /// parameters.
    pub fn compare(
        table: &NameTable,
        params: &[ParamShape],
        source: &dyn TensorSource,
        allow: &Allow,
    ) -> Result<(Self, Difference)> {
        let mut patterns = allow.missing.iter().chain(&allow.fresh);
        if let Some(pattern) = patterns.find(|pattern| !params.iter().any(|p| glob(pattern, &p.name))) {
            let reason = "no parameter of the model has a name like this";
            let fix = "correct or remove the pattern";
            return Err(Error::model(format!("parameters allowed to be missing or fresh, {pattern}"), reason, fix));
        }
        let entries = source.entries();
        let mut matching = Matching::new(table, &entries);
        let (steps, places, twins) = (Vec::new(), HashMap::new(), Vec::new());
        let mut plan = LoadPlan { steps, places, twins, fresh: Vec::new(), unused: Vec::new(), left: Vec::new() };
        for param in params {
            let pieces = table.pieces(&param.name, &param.shape, true)?;
            if allow.fresh.iter().any(|pattern| glob(pattern, &param.name)) {
                matching.skip(&mut plan, param, &pieces);
            } else {
                matching.place(&mut plan, param, pieces, allow)?;
            }
        }
        ignored::check(&allow.ignored, &source.place(), &entries, |name| {
            matching.used.contains(name) && !plan.unused.iter().any(|unused| unused == name)
        })?;
        for entry in &entries {
            let modern = table.modern(&entry.name);
            if matching.used.contains(entry.name.as_str()) {
                continue;
            } else if allow.ignored.iter().any(|pattern| glob(pattern, &entry.name)) {
                plan.left.push(entry.name.clone());
            } else if table.ignores(&modern) {
                continue;
            } else if allow.unused.iter().any(|p| glob(p, &entry.name) || glob(p, &modern)) {
                plan.unused.push(entry.name.clone());
            } else {
                matching.difference.unexpected.push(entry.name.clone());
            }
        }
        let (difference, used) = (&mut matching.difference, &matching.used);
        difference.ignorable = ignored::suggestions(&difference.unexpected, used.iter().copied());
        plan.places = plan.steps.iter().enumerate().map(|(at, step)| (step.ours.clone(), at)).collect();
        Ok((plan, matching.difference))
    }

    /// Parameters that the file does not have and that keep their initial values, as was allowed.
    pub fn fresh(&self) -> &[String] {
        &self.fresh
    }

    /// Tensors of the file that are ignored, as allowed.
    pub fn unused(&self) -> &[String] {
        &self.unused
    }

    /// Tensors of the file that are left out because a pattern of [`Allow::ignored`] names them.
    pub fn left(&self) -> &[String] {
        &self.left
    }

    /// Tensors of the file that hold nothing for the model, such as position ids: neither read nor counted as unused.
    pub fn passed_over(&self, source: &dyn TensorSource) -> Vec<String> {
        let pieces = self.steps.iter().flat_map(|step| &step.pieces).map(|piece| piece.name.as_str());
        let twins = self.twins.iter().map(|twin| twin.alias.as_str());
        let others = self.unused.iter().chain(&self.left).map(String::as_str);
        let known: HashSet<&str> = pieces.chain(twins).chain(others).collect();
        let names = source.entries().into_iter().map(|entry| &entry.name);
        names.filter(|name| !known.contains(name.as_str())).cloned().collect()
    }

    /// Every parameter that will be loaded, with the file's tensors that make it up; each carries the name that the
    /// file uses.
    pub fn sources(&self) -> impl Iterator<Item = (&str, &[TensorPart])> {
        self.steps.iter().map(|step| (step.ours.as_str(), &step.pieces[..]))
    }

    /// Tensors that the file holds a second time under another name: the name that is read, and the other one.
    pub fn tied(&self) -> impl Iterator<Item = (&str, &str)> {
        self.twins.iter().map(|twin| (twin.name.as_str(), twin.alias.as_str()))
    }

    /// Number of parameters that will be loaded.
    pub fn loaded(&self) -> usize {
        self.steps.len()
    }
}

struct Matching<'a> {
    table: &'a NameTable,
    /// By what they are second names for.
    aliases: HashMap<&'a str, Vec<&'a Alias>>,
    /// By modern name.
    tensors: HashMap<String, &'a TensorEntry>,
    used: HashSet<&'a str>,
    difference: Difference,
}

impl<'a> Matching<'a> {
    fn new(table: &'a NameTable, entries: &[&'a TensorEntry]) -> Self {
        let (mut tensors, mut difference) = (HashMap::new(), Difference::default());
        let mut used = HashSet::new();
        let mut aliases: HashMap<&str, Vec<&Alias>> = HashMap::new();
        for alias in table.aliases.iter() {
            aliases.entry(alias.of()).or_default().push(alias);
        }
        for entry in entries {
            if let Some(other) = tensors.insert(table.modern(&entry.name).into_owned(), *entry) {
                difference.ambiguous.push((other.name.clone(), entry.name.clone()));
                used.extend([other.name.as_str(), entry.name.as_str()]);
            }
        }
        Self { table, aliases, tensors, used, difference }
    }

    /// The file's tensor of this name, with or without prefix.
    fn find(&mut self, name: &str) -> Option<&'a TensorEntry> {
        let full = self.tensors.get(name).copied();
        let bare = self.table.without_prefix(name).and_then(|bare| self.tensors.get(bare)).copied();
        if let (Some(a), Some(b)) = (full, bare)
            && self.used.insert(b.name.as_str())
        {
            self.difference.ambiguous.push((a.name.clone(), b.name.clone()));
        }
        full.or(bare)
    }

    /// Leave the tensors of one parameter where they are.
    fn skip(&mut self, plan: &mut LoadPlan, param: &ParamShape, pieces: &[TensorPart]) {
        plan.fresh.push(param.name.clone());
        for piece in pieces {
            if let Some(entry) = self.find(&piece.name)
                && self.used.insert(&entry.name)
            {
                plan.unused.push(entry.name.clone());
            }
        }
    }

    /// Find the tensors of one parameter, and put it into the plan or the report.
    fn place(
        &mut self,
        plan: &mut LoadPlan,
        param: &ParamShape,
        mut pieces: Vec<TensorPart>,
        allow: &Allow,
    ) -> Result<()> {
        let mut absent = Vec::new();
        let mut fits = true;
        let parts = pieces.len();
        for piece in &mut pieces {
            let aliases = self.aliases.get(piece.name.as_str()).cloned().unwrap_or_default();
            let mut found = self.find(&piece.name);
            for alias in &aliases {
                let Some(second) = self.find(&alias.name) else { continue };
                // An ignored head may have had a matrix of its own, and so may one that is absent.
                let is_left = allow.ignores(&second.name);
                if found.is_some() && (is_left || self.table.ignores(&second.name)) {
                    continue;
                }
                self.used.insert(&second.name);
                match found {
                    None => found = Some(second),
                    Some(first) if first.dtype == second.dtype && first.shape == second.shape => {
                        let bytes = first.bytes().unwrap_or(0) as u64;
                        plan.twins.push(Twin { name: first.name.clone(), alias: second.name.clone(), bytes });
                    }
                    Some(first) => {
                        self.mis_shaped(param, second, format!("{:?}, equal to {}", first.shape, first.name))
                    }
                }
            }
            if found.is_none() {
                let copy = allow.copies.iter().find(|(name, _)| *name == piece.name);
                found = copy.and_then(|(_, of)| self.find(of));
            }
            let Some(entry) = found else {
                let bare = self.table.without_prefix(&piece.name);
                let others = bare.into_iter().chain(aliases.iter().map(|alias| &*alias.name)).map(str::to_string);
                absent.push(Missing {
                    ours: param.name.clone(),
                    theirs: std::iter::once(piece.name.clone()).chain(others).collect(),
                });
                continue;
            };
            self.used.insert(&entry.name);
            if entry.shape != piece.shape || !entry.is_float() {
                fits = false;
                let kind = if entry.is_float() { "" } else { " of a float type" };
                self.mis_shaped(param, entry, format!("{:?}{kind}", piece.shape));
            }
            piece.name.clone_from(&entry.name);
        }
        let may_miss =
            self.table.optional(&param.name) || allow.missing.iter().any(|pattern| glob(pattern, &param.name));
        // A fused parameter with one part of three is never right.
        if absent.len() == parts && may_miss {
            plan.fresh.push(param.name.clone());
        } else if !absent.is_empty() {
            self.difference.missing.extend(absent);
        } else if fits {
            let elements = param.shape.iter().product();
            plan.steps.push(Step { ours: param.name.clone(), elements, pieces });
        }
        Ok(())
    }

    fn mis_shaped(&mut self, param: &ParamShape, entry: &TensorEntry, expected: String) {
        let got = if entry.is_float() {
            format!("{:?}", entry.shape)
        } else {
            format!("{:?} of {:?}", entry.shape, entry.dtype)
        };
        self.difference.mis_shaped.push(MisShaped {
            ours: param.name.clone(),
            theirs: entry.name.clone(),
            expected,
            got,
        });
    }
}
