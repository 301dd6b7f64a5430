//! Opens a directory as a model of one of its families: this crate's, and those that other crates add.

use super::open_options::OpenOptions;
use super::{class_families, family_names};
use crate::adapter::AdapterPlan;
use crate::model::family::{MODELS, ModelEntry};
use crate::model::text_model::TextModel;
use bmtrain_core::quantised::BlockFormat;
use bmtrain_dist::Parameters;
use model_center_base::error::{Error, Result};
use model_center_base::file::printable;
use model_center_data::{DataClass, OwnData, Task};
use model_center_formats::config::{self, Fields, model_center};
use model_center_formats::{LoadPlan, ParamShape, Weights, pretrained::family_of};
use std::collections::HashMap;
use std::path::Path;

/// A model and a report on its directory.
pub struct OpenedModel {
    /// The model.
    pub model: Box<dyn TextModel>,
    /// Parameters that the directory lacks, which were initialized.
    pub initialized: Vec<String>,
    /// Tensors of the directory that belong to other heads, without the ones in [`OpenOptions::ignored`].
    pub unused: Vec<String>,
    /// Number of parameter values.
    pub parameters: usize,
    /// Which of the directory's tensors make up each parameter.
    pub plan: LoadPlan,
    /// Plan of the adapter, with [`OpenOptions::adapter`].
    pub adapter: Option<AdapterPlan>,
    /// The matrices that are held in quantised blocks, by our names, with [`OpenOptions::weights`].
    pub blocks: HashMap<String, BlockFormat>,
    /// Facts inferred from the weights because `config.json` does not state them, one sentence each: family, head and
    /// number of classes.
    pub notes: Vec<String>,
}

/// Families to search, this crate's and further ones, and tasks that recipes have besides this crate's.
#[derive(Debug, Clone, Copy)]
pub struct Registry<'a> {
    tables: &'a [&'a [ModelEntry]],
    /// The further tasks.
    pub tasks: &'static [&'static dyn Task],
    /// The further classes of data sets.
    pub classes: &'static [DataClass],
}

impl Default for Registry<'static> {
    fn default() -> Self {
        static TABLES: &[&[ModelEntry]] = &[MODELS];
        Registry { tables: TABLES, tasks: &[], classes: &[] }
    }
}

impl<'a> Registry<'a> {
    /// Searches these tables, in order.
    pub fn new(tables: &'a [&'a [ModelEntry]]) -> Self {
        Registry { tables, tasks: &[], classes: &[] }
    }

    /// The same families, and these tasks as further values of `data.task`. A recipe that selects a name of two tasks
    /// is refused.
    #[must_use]
    pub fn with_tasks(self, tasks: &'static [&'static dyn Task]) -> Self {
        Registry { tasks, ..self }
    }

    /// The same families, and these classes for the data sets of task `sft`. Of two with one name the first counts,
    /// this crate's before these.
    #[must_use]
    pub fn with_classes(self, classes: &'static [DataClass]) -> Self {
        Registry { classes, ..self }
    }

    /// Tasks and classes of recipes besides this crate's.
    pub fn own_data(&self) -> OwnData {
        OwnData { tasks: self.tasks, classes: self.classes }
    }

    /// Every family.
    pub fn entries(&self) -> impl Iterator<Item = &'a ModelEntry> {
        self.tables.iter().flat_map(|table| table.iter())
    }

    /// The family of a directory.
    ///
    /// # Errors
    /// A directory without a readable `config.json`, or of no family in the registry.
    pub fn find(&self, directory: &Path) -> Result<&'a ModelEntry> {
        self.find_as(directory, None)
    }

    /// The family of a directory: the one that `config.json` names, else `family`, else the only one whose tensor names
    /// match the weights. ModelCenter's files name no family: there it is the one whose identifier is the directory's
    /// name, else the only one that has all their fields.
    ///
    /// # Errors
    /// No or an unreadable `config.json`; one that names another family than `family`; no candidate or several, with
    /// a list of them; a family that is not in the registry, with a list of the registered ones.
    pub fn find_as(&self, directory: &Path, family: Option<&str>) -> Result<&'a ModelEntry> {
        self.find_in(&config::directory_fields(directory)?, directory, family)
    }

    /// The family of a configuration; `directory` is where its weights are, if it has any.
    fn find_in(&self, fields: &Fields, directory: &Path, family: Option<&str>) -> Result<&'a ModelEntry> {
        let place = fields.place().to_owned();
        let name = match (fields.peek_text("model_type")?, family) {
            (Some(stated), Some(family)) if stated != family => {
                let reason = format!("it states \"{}\", and the family asked for is {family}", printable(stated, 80));
                return Err(Error::model(format!("{place}, field model_type"), reason, "leave the family out"));
            }
            (Some(name), _) | (None, Some(name)) => name,
            (None, None) => self.tell(fields, directory)?.0,
        };
        self.entries().find(|entry| entry.model_type == name).ok_or_else(|| {
            let reason = format!("unknown model family \"{}\"", printable(name, 80));
            Error::model(place, reason, format!("supported are: {}", self.known()))
        })
    }

    /// The family that a directory is opened as with these options.
    ///
    /// # Errors
    /// As [`Registry::find_as`].
    pub fn find_for(&self, directory: &Path, options: &OpenOptions) -> Result<&'a ModelEntry> {
        self.find_in(&options.fields(directory)?, directory, options.family.as_deref())
    }

    fn known(&self) -> String {
        self.entries().map(|entry| entry.model_type).collect::<Vec<_>>().join(", ")
    }

    /// The family of a file that does not name it, with a note if it was inferred from the weights.
    fn tell(&self, fields: &Fields, directory: &Path) -> Result<(&'static str, Option<String>)> {
        if !model_center::is_model_center(fields) {
            let class = fields.peek("architectures").and_then(|names| names.get(0)?.as_str().map(str::to_owned));
            let known: Vec<&str> = self.entries().map(|entry| entry.model_type).collect();
            let family = family_names::family_of(fields.place(), directory, class.as_deref(), &known)?;
            let note =
                format!("config.json has no model_type; by the names of its tensors the model is of family {family}");
            return Ok((family, Some(note)));
        }
        let named = directory.file_name().and_then(|name| name.to_str()).and_then(family_of);
        if let Some(family) = named.filter(|family| class_families::can_be(fields, family)) {
            return Ok((family, None));
        }
        let fitting = class_families::candidates(fields);
        match fitting[..] {
            [family] => Ok((family, None)),
            [] => {
                let reason = "no class of ModelCenter has all of these fields";
                let fix = "correct the file, or give the family with --family, or model.family of a recipe";
                Err(Error::model(fields.place(), reason, fix))
            }
            _ => {
                let reason =
                    format!("a file of ModelCenter does not name its family; this can be {}", fitting.join(", "));
                let fix = "give it with --family, or model.family of a recipe";
                Err(Error::model(fields.place(), reason, fix))
            }
        }
    }

    /// Open a directory.
    ///
    /// # Errors
    /// As [`Registry::find`], and the family's errors.
    pub fn open(&self, directory: &Path, options: &OpenOptions) -> Result<OpenedModel> {
        let entry = self.find_for(directory, options)?;
        let mut asked = OpenOptions { family: Some(entry.model_type.to_owned()), ..options.clone() };
        if options.keep_dtype && !options.from_config {
            asked.dtype = Weights::open(directory)?.dtype().unwrap_or(options.dtype);
        }
        let mut opened = (entry.open)(directory, &asked)?;
        if options.family.is_none() {
            let fields = options.fields(directory)?;
            if fields.peek("model_type").is_none() {
                // The family precedes what depends on it.
                opened.notes.splice(0..0, self.tell(&fields, directory)?.1);
            }
        }
        Ok(opened)
    }
}

/// The classes that a directory's `config.json` names.
///
/// # Errors
/// A directory without a readable `config.json`.
pub fn architectures(directory: &Path) -> Result<Vec<String>> {
    Ok(architectures_of(&config::directory_fields(directory)?))
}

/// The same of a configuration that was read.
pub(in crate::model) fn architectures_of(fields: &Fields) -> Vec<String> {
    let names = fields.peek("architectures").and_then(serde_json::Value::as_array);
    names.into_iter().flatten().filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

/// The error for a class in `config.json` with an unknown head.
pub fn unknown_class(place: &str, class: &str, known: &[&str]) -> Error {
    let reason = format!("unknown head of the class \"{}\"", printable(class, 80));
    let fix = format!("known are {}; or give the head to take, such as lm, mlm, cls or none", known.join(", "));
    Error::model(format!("{place}, field architectures"), reason, fix)
}

/// Whether a directory's `config.json` is ModelCenter's, which names no class.
///
/// # Errors
/// A directory without a readable `config.json`.
pub fn is_named_by_model_center(directory: &Path) -> Result<bool> {
    Ok(model_center::is_model_center(&config::directory_fields(directory)?))
}

/// Names and full shapes of a model's own parameters, without its adapters, for reading and writing weights.
pub fn param_shapes(parameters: &Parameters) -> Vec<ParamShape> {
    let own = parameters.declared().iter().filter(|param| !param.spec().is_adapter);
    own.map(|param| ParamShape::new(param.name(), param.spec().shape.dims())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model_center_formats::pretrained::{aliases::aliases, family_of, unavailable_family};

    #[test]
    fn families_of_aliases_without_a_line_are_those_that_are_refused() {
        let registry = Registry::default();
        for alias in aliases() {
            let family = family_of(alias);
            let is_there = registry.entries().any(|entry| Some(entry.model_type) == family);
            assert_eq!(unavailable_family(alias).is_none(), is_there, "{alias}");
        }
        assert!(aliases().count() > 30);
    }
}
