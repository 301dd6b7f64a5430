//! Classes of a head in configuration files: `id2label`, `label2id`, `num_labels`, `problem_type` and `architectures`.

use serde_json::{Map, Value, json};

use super::ProblemType;
use super::fields::Fields;
use crate::Result;
use model_center_base::file::printable;

/// The classes that a file states.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ClassLabels {
    /// Outputs of the classification head, if the file is for a class that has one.
    pub(crate) outputs: Option<usize>,
    /// Names in the order of the outputs, empty if unknown.
    pub(crate) names: Vec<String>,
    /// Meaning of the labels, if the file states it.
    pub(crate) problem: Option<ProblemType>,
}

impl ClassLabels {
    /// Take the fields out. Of a model without a head for classes they mean nothing: those that make no sense are left
    /// out.
    ///
    /// # Errors
    /// Of a model with such a head, fields that contradict each other, unknown problem types, classes that are not
    /// numbered 0, 1, 2, …
    pub(crate) fn take(fields: &mut Fields) -> Result<Self> {
        let architectures = fields.take("architectures");
        let classifies = architectures.as_ref().and_then(Value::as_array).is_some_and(|names| {
            let classes =
                |name: &str| name.ends_with("ForSequenceClassification") || name.ends_with("ForTokenClassification");
            names.iter().filter_map(Value::as_str).any(classes)
        });
        let own = fields.take_size("cls_head")?;
        let (mut labels, count) = match Self::stated(fields) {
            Err(_) if !classifies && own.is_none() => {
                for name in ["problem_type", "id2label", "label2id", "num_labels"] {
                    fields.take(name);
                }
                Default::default()
            }
            stated => stated?,
        };
        let named = (!labels.names.is_empty()).then_some(labels.names.len());
        // Two is what transformers assumes of a classifier whose file does not state the number.
        let implied = classifies.then(|| count.or(named).unwrap_or(2));
        if let (Some(a), Some(b)) = (implied, own)
            && a != b
        {
            let reason = format!("cls_head is {b}, but the labels are {a}");
            return Err(fields.error("cls_head", &reason, "correct one of the two"));
        }
        labels.outputs = own.or(implied);
        Ok(labels)
    }

    /// Names and meaning of the labels, and the number of them that the file states.
    fn stated(fields: &mut Fields) -> Result<(Self, Option<usize>)> {
        let mut labels = ClassLabels::default();
        if let Some(name) = fields.take_text("problem_type")? {
            let fix = "use regression, single_label_classification or multi_label_classification";
            let wrong = || fields.error("problem_type", &format!("\"{}\" is unknown", printable(&name, 80)), fix);
            labels.problem = Some(ProblemType::from_name(&name).ok_or_else(wrong)?);
        }
        if let Some(names) = fields.take("id2label") {
            labels.names = label_names(&names).map_err(|reason| {
                fields.error("id2label", &reason, "number the classes 0, 1, 2, …, and give each a name of its own")
            })?;
        }
        if let Some(ids) = fields.take("label2id") {
            let agrees = ids.as_object().is_some_and(|ids| {
                let named = labels.names.iter().enumerate();
                labels.names.is_empty()
                    || named.into_iter().all(|(i, name)| ids.get(name).and_then(Value::as_u64) == Some(i as u64))
            });
            if !agrees {
                let reason = "label2id is not the inverse of id2label";
                return Err(fields.error("label2id", reason, "correct one of the two, or remove label2id"));
            }
        }
        let count = fields.take_size("num_labels")?;
        // Releases of transformers differ: 4 counts the names, 5 replaces them by default names of this number. Default
        // names are dropped; which number holds is for the weights to decide, see [`classes_are_assumed`].
        if count.is_some_and(|count| count != labels.names.len()) && are_default(&labels.names) {
            labels.names.clear();
        }
        if let Some(count) = count.filter(|&count| !labels.names.is_empty() && count != labels.names.len()) {
            let reason = format!("num_labels is {count}, but id2label names {} classes", labels.names.len());
            return Err(fields.error("num_labels", &reason, "correct one of the two"));
        }
        Ok((labels, count))
    }
}

/// Whether these are the names that transformers gives to classes without names of their own.
pub fn are_default(names: &[String]) -> bool {
    names.iter().enumerate().all(|(i, name)| *name == format!("LABEL_{i}"))
}

/// Whether a file leaves the number of classes open. Either it leaves it to the default of transformers, which is two:
/// it states no number, and names none or the two of the default, which old versions write into every file. Or the
/// number that it states contradicts its default names.
pub fn classes_are_assumed(fields: &Fields) -> bool {
    if fields.peek("cls_head").is_some() {
        return false;
    }
    let Some(names) = fields.peek("id2label").map(label_names) else { return fields.peek("num_labels").is_none() };
    let Some(names) = names.ok().filter(|names| are_default(names)) else { return false };
    match fields.peek("num_labels") {
        None => names.len() == 2,
        Some(count) => !names.is_empty() && count.as_u64() != Some(names.len() as u64),
    }
}

fn label_names(value: &Value) -> std::result::Result<Vec<String>, String> {
    let map = value.as_object().ok_or("this is not an object from number to name")?;
    let mut names = vec![None; map.len()];
    for (key, name) in map {
        let index = key.parse::<usize>().ok().filter(|i| *i < names.len() && i.to_string() == *key);
        let index = index.ok_or_else(|| format!("\"{}\" is not a number below {}", printable(key, 40), map.len()))?;
        names[index] =
            Some(name.as_str().ok_or_else(|| format!("the name of class {index} is not a string"))?.to_string());
    }
    let names: Vec<String> = names.into_iter().flatten().collect();
    let mut sorted: Vec<&String> = names.iter().collect();
    sorted.sort();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("two classes are named \"{}\"", printable(pair[0], 80))),
        None => Ok(names),
    }
}

/// Write names and problem type; nothing where there is none.
pub(crate) fn write(labels: &[String], problem: Option<ProblemType>, map: &mut Map<String, Value>) {
    if !labels.is_empty() {
        let names: Map<String, Value> =
            labels.iter().enumerate().map(|(i, name)| (i.to_string(), json!(name))).collect();
        let ids: Map<String, Value> = labels.iter().enumerate().map(|(i, name)| (name.clone(), json!(i))).collect();
        map.insert("id2label".to_string(), Value::Object(names));
        map.insert("label2id".to_string(), Value::Object(ids));
    }
    if let Some(problem) = problem {
        map.insert("problem_type".to_string(), json!(problem.name()));
    }
}

/// As [`write`], for `transformers`: it counts a head's outputs by its labels, so unnamed classes get the names that it
/// would give them.
pub(crate) fn write_counted(
    labels: &[String],
    outputs: Option<usize>,
    problem: Option<ProblemType>,
    map: &mut Map<String, Value>,
) {
    let unnamed: Vec<String>;
    let labels = match labels {
        [] => {
            unnamed = (0..outputs.unwrap_or(0)).map(|i| format!("LABEL_{i}")).collect();
            &unnamed
        }
        named => named,
    };
    write(labels, problem, map);
}
