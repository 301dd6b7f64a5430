//! User-defined prompts: a text with the columns of any JSONL, CSV or TSV file in it, and a label word for each label.
//!
//! Defines [`Template`], which a recipe writes as `data.template`, and [`TemplateTask`]. Called by the finetune
//! program.

use std::fmt;
use std::path::Path;

use super::columns::{LabelReader, LabelSpec};
use super::prompts::{LabelWords, Prompt, read_prompts};
use super::{SplitSource, Task};
use crate::data::{dataset::Dataset, read::ReadOptions};
use crate::metrics::LabelKind;
use crate::{Error, Result};
use model_center_base::batch::{Label, VerbalizerPosition};
use model_center_formats::io::record::{Format, Record};

/// The name that stands for the answer.
const ANSWER: &str = "answer";

/// A text with columns in braces: `{text} Was it good? {answer}.` Two braces escape one. The default is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Template {
    written: String,
    before: Vec<TemplatePart>,
    after: Vec<TemplatePart>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplatePart {
    Text(String),
    Column(String),
}

impl Template {
    /// Parses a template. The answer is at `{answer}`, else after the text; a space before it belongs to the label
    /// words.
    ///
    /// Errors: an unclosed brace, an empty name in braces, no column, two answers.
    pub fn parse(written: &str) -> std::result::Result<Template, String> {
        let (mut before, mut after): (Vec<TemplatePart>, Option<Vec<TemplatePart>>) = (Vec::new(), None);
        let (mut rest, mut text) = (written, String::new());
        while let Some(at) = rest.find(['{', '}']) {
            let (plain, from) = rest.split_at(at);
            text.push_str(plain);
            if let Some(behind) = from.strip_prefix("{{").or(from.strip_prefix("}}")) {
                text.push_str(&from[..1]);
                rest = behind;
                continue;
            }
            let Some((name, behind)) = from.strip_prefix('{').and_then(|inside| inside.split_once('}')) else {
                return Err(format!("a brace at {:?} has no other", shown(from)));
            };
            let part = std::mem::take(&mut text);
            let is_behind = after.is_some();
            let parts = after.as_mut().unwrap_or(&mut before);
            parts.extend((!part.is_empty()).then_some(TemplatePart::Text(part)));
            match name.trim() {
                "" => return Err("braces have no name of a column in them".to_owned()),
                ANSWER if is_behind => return Err("it has two places for the answer".to_owned()),
                ANSWER => after = Some(Vec::new()),
                name if name.contains('{') => return Err(format!("a brace at {:?} has no other", shown(from))),
                name => parts.push(TemplatePart::Column(name.to_owned())),
            }
            rest = behind;
        }
        text.push_str(rest);
        after.as_mut().unwrap_or(&mut before).extend((!text.is_empty()).then_some(TemplatePart::Text(text)));
        if let Some(TemplatePart::Text(last)) = before.last_mut() {
            last.truncate(last.trim_end().len());
        }
        if !before.iter().chain(after.iter().flatten()).any(|part| matches!(part, TemplatePart::Column(_))) {
            return Err("it names no column".to_owned());
        }
        Ok(Template { written: written.to_owned(), before, after: after.unwrap_or_default() })
    }

    /// The columns that it names.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.before.iter().chain(&self.after).filter_map(|part| match part {
            TemplatePart::Column(name) => Some(name.as_str()),
            TemplatePart::Text(_) => None,
        })
    }

    fn fill(&self, record: &Record<'_>) -> Result<[String; 2]> {
        let side = |parts: &[TemplatePart]| {
            let texts = parts.iter().map(|part| match part {
                TemplatePart::Text(text) => Ok(text.clone()),
                TemplatePart::Column(name) => Ok(record.scalar(name)?.spelled().into_owned()),
            });
            texts.collect::<Result<String>>()
        };
        Ok([side(&self.before)?, side(&self.after)?])
    }
}

fn shown(text: &str) -> String {
    text.chars().take(20).collect()
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

impl TryFrom<String> for Template {
    type Error = String;

    fn try_from(written: String) -> std::result::Result<Self, String> {
        Template::parse(&written)
    }
}

impl From<Template> for String {
    fn from(template: Template) -> String {
        template.written
    }
}

/// A user-defined task whose answers are label words.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemplateTask {
    /// The prompt.
    pub template: Template,
    /// Column of the label.
    pub label: String,
    /// Names of the labels.
    pub labels: Vec<String>,
    /// The label word of each label, in their order, with the space that separates it from the prompt.
    pub words: Vec<String>,
    /// The format of files; `None` derives it from the file name.
    #[serde(default)]
    pub format: Option<Format>,
}

impl TemplateTask {
    /// Reads a file for a model that answers at `place`.
    ///
    /// Errors: an invalid file or record, with its place; label words that are the same token, or whose number differs
    /// from the labels'; a template without a column that a decoder reads.
    pub fn read(&self, path: &Path, place: VerbalizerPosition, options: &ReadOptions<'_>) -> Result<Dataset> {
        let TemplateTask { template, label, labels, words, format } = self;
        if words.len() != labels.len() {
            let reason = format!("{} label words for {} labels", words.len(), labels.len());
            return Err(Error::argument("data.words", reason, "give one label word for each of data.labels"));
        }
        if place == VerbalizerPosition::Next
            && !template.before.iter().any(|part| matches!(part, TemplatePart::Column(_)))
        {
            let reason =
                format!("{:?} has no column before the answer, and a decoder reads no further", template.written);
            return Err(Error::argument("data.template", reason, "put {answer} after the columns"));
        }
        let format = format.map_or_else(|| Format::of(path), Ok)?;
        let spec = LabelSpec::Names(labels.clone());
        let mut reader = LabelReader::new(&spec)?;
        let verbalizer = LabelWords { names: labels, words, place, of: "data.words" };
        read_prompts(path, format, options, verbalizer, &mut |record, prompts| {
            let [before, after] = template.fill(record)?;
            if let Label::Class(class) = reader.label(record, label)? {
                prompts.push(Prompt { before, after, class, member: None });
            }
            Ok(())
        })
    }
}

impl Task for TemplateTask {
    fn name(&self) -> &'static str {
        "classification"
    }

    fn label_kind(&self) -> LabelKind {
        LabelKind::Classes
    }

    fn uses_label_words(&self) -> bool {
        true
    }

    fn read_split(&self, source: &SplitSource<'_>) -> Result<Dataset> {
        self.read(source.path, source.place()?, &source.options)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Template, TemplatePart};

    fn parts(written: &str) -> (Vec<TemplatePart>, Vec<TemplatePart>) {
        let Template { before, after, .. } = Template::parse(written).unwrap();
        (before, after)
    }

    #[test]
    fn columns_stand_in_braces_and_the_answer_parts_what_is_in_front_of_it_from_what_is_behind() {
        let (text, column) =
            (|text: &str| TemplatePart::Text(text.into()), |name: &str| TemplatePart::Column(name.into()));
        assert_eq!(parts("{text} Good?"), (vec![column("text"), text(" Good?")], vec![]));
        let both = parts("{{a}} {text} is {answer}, {b.c}");
        assert_eq!(both, (vec![text("{a} "), column("text"), text(" is")], vec![text(", "), column("b.c")]));
    }

    #[test]
    fn what_is_no_template_is_said_in_words() {
        for (written, reason) in [
            ("no column", "names no column"),
            ("{answer}.", "names no column"),
            ("{text", "has no other"),
            ("text}", "has no other"),
            ("{te{xt}", "has no other"),
            ("{text} {}", "no name of a column"),
            ("{text} {answer} {answer}", "two places"),
        ] {
            let error = Template::parse(written).unwrap_err();
            assert!(error.contains(reason), "{written}: {error}");
        }
    }

    #[test]
    fn every_text_of_braces_is_a_template_or_a_reason() {
        let signs = ['{', '}', 'a', ' '];
        let texts = (0..signs.len().pow(7)).map(|number| -> String {
            (0..7).map(|place| signs[number / signs.len().pow(place) % signs.len()]).collect()
        });
        let mut accepted = 0;
        for text in texts {
            match Template::parse(&text) {
                Ok(template) => {
                    accepted += 1;
                    assert_eq!(template.to_string(), text);
                    assert!(template.columns().all(|name| !name.is_empty() && !name.contains(['{', '}'])), "{text}");
                }
                Err(reason) => assert!(!reason.is_empty()),
            }
        }
        assert!(accepted > 100, "{accepted}");
    }
}
