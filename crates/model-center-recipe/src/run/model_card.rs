//! The `README.md` of a saved model: what it is, what it was trained on, how well it does, how to make it again.
//!
//! Defines [`ModelCard`] and [`CardData`]. The head between the two `---` lines is YAML in the form that the Hugging
//! Face hub reads; its strings are written as JSON strings, which YAML accepts whatever they hold. Called by the
//! training programs when a model is saved.

use std::fmt::Write;

/// The contents of a model card.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ModelCard {
    /// Title, from the model's family and the task. Not the output directory's name: two runs of one recipe shall write
    /// the same card.
    pub name: String,
    /// The model that was trained further, as a hub name such as `org/name`, see [`hub_name`]; `None` if only a local
    /// path is known, for which the hub has no use.
    ///
    /// [`hub_name`]: model_center_formats::directory::hub_name
    pub base_model: Option<String>,
    /// The license of the base model if it is known, as the hub's identifier, e.g. `apache-2.0`.
    pub license: Option<String>,
    /// Languages as two-letter codes.
    pub languages: Vec<String>,
    /// The task in recipes, e.g. `BoolQ`.
    pub task: String,
    /// The hub's name of the task, e.g. `text-classification`.
    pub pipeline_tag: String,
    /// Learnt from and judged by.
    pub data: CardData,
    /// Name and value of each metric, in the order they shall appear; measured on the evaluation data.
    pub results: Vec<(String, f64)>,
    /// Results before training, if measured.
    pub results_before: Vec<(String, f64)>,
    /// Optimizer steps done.
    pub steps: u64,
    /// The metric by which the weights are the best of the run, and the step after which they were; `None` of the last
    /// weights.
    pub best: Option<(String, u64)>,
    /// Passes over the data done.
    pub epochs: f64,
    /// The recipe, [`Resolved::hashed_toml`](crate::recipe::Resolved::hashed_toml).
    pub recipe: String,
    /// Its hash.
    pub recipe_hash: String,
    /// Name and version of the program.
    pub made_by: String,
    /// Whether the directory is PEFT's and not a whole model.
    pub is_adapter: bool,
}

/// The data a model was trained on.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CardData {
    /// A name people know it by.
    pub name: String,
    /// Samples learnt from.
    pub train_samples: u64,
    /// Fingerprint of what was learnt from.
    pub train_fingerprint: String,
    /// Samples evaluated on; 0 for none.
    pub eval_samples: u64,
    /// Fingerprint of what was evaluated on.
    pub eval_fingerprint: String,
    /// Names of the classes in the order of the outputs; empty where labels are no classes.
    pub classes: Vec<String>,
}

impl ModelCard {
    /// The text of the card. The bytes depend on nothing but the fields.
    pub fn render(&self) -> String {
        let mut out = String::from("---\n");
        self.head(&mut out);
        out.push_str("---\n\n");
        // Writing to a String cannot fail.
        let _ = self.body(&mut out);
        out
    }

    fn head(&self, out: &mut String) {
        let mut line = |text: String| {
            out.push_str(&text);
            out.push('\n');
        };
        if let Some(base) = &self.base_model {
            line(format!("base_model: {}", yaml(base)));
        }
        if let Some(license) = &self.license {
            line(format!("license: {}", yaml(license)));
        }
        if !self.languages.is_empty() {
            line("language:".into());
            self.languages.iter().for_each(|l| line(format!("- {}", yaml(l))));
        }
        line(format!("library_name: {}", if self.is_adapter { "peft" } else { "transformers" }));
        line(format!("pipeline_tag: {}", yaml(&self.pipeline_tag)));
        line("tags:\n- bmtrain-rs".into());
        let finite: Vec<&(String, f64)> = self.results.iter().filter(|(_, v)| v.is_finite()).collect();
        if finite.is_empty() {
            return;
        }
        line("metrics:".into());
        finite.iter().for_each(|(name, _)| line(format!("- {}", yaml(name))));
        line(format!("model-index:\n- name: {}\n  results:\n  - task:", yaml(&self.name)));
        line(format!("      type: {}", yaml(&self.pipeline_tag)));
        line(format!("    dataset:\n      name: {0}\n      type: {0}", yaml(&self.data.name)));
        line("    metrics:".into());
        finite.iter().for_each(|(name, v)| line(format!("    - type: {}\n      value: {v:?}", yaml(name))));
    }

    fn body(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "# {}\n", one_line(&self.name))?;
        let base = self.base_model.as_deref().unwrap_or("a local model");
        writeln!(
            out,
            "{} trained for the task {} by {}.\n",
            one_line(base),
            one_line(&self.task),
            one_line(&self.made_by)
        )?;
        if !self.results.is_empty() {
            let is_same = self.data.eval_fingerprint == self.data.train_fingerprint;
            let which =
                if is_same { ", which are those that it was trained on" } else { " the model was not trained on" };
            writeln!(out, "## Results\n\nOn {} samples{which}.\n", self.data.eval_samples)?;
            let has_before = !self.results_before.is_empty();
            writeln!(
                out,
                "{}",
                if has_before { "| metric | before | after |\n|---|---|---|" } else { "| metric | value |\n|---|---|" }
            )?;
            for (name, value) in &self.results {
                let before = self.results_before.iter().find(|(n, _)| n == name).map(|(_, v)| format!(" {v:.4} |"));
                let before = before.unwrap_or_else(|| if has_before { " |".into() } else { String::new() });
                writeln!(out, "| {} |{before} {value:.4} |", one_line(name))?;
            }
            writeln!(out)?;
        }
        writeln!(out, "## Data\n\n{}\n", one_line(&self.data.name))?;
        writeln!(out, "| | samples | fingerprint |\n|---|---|---|")?;
        writeln!(out, "| train | {} | `{}` |", self.data.train_samples, one_line(&self.data.train_fingerprint))?;
        if self.data.eval_samples > 0 {
            writeln!(out, "| evaluation | {} | `{}` |", self.data.eval_samples, one_line(&self.data.eval_fingerprint))?;
        }
        if !self.data.classes.is_empty() {
            let names = self.data.classes.iter().map(|name| serde_json::Value::from(one_line(name)).to_string());
            writeln!(out, "\nClasses, in the order of the outputs: {}", names.collect::<Vec<_>>().join(", "))?;
        }
        let kept = self.best.as_ref().map(|(metric, step)| {
            format!("; the weights are those after step {step}, the best by {}", one_line(metric))
        });
        writeln!(
            out,
            "\n## Training\n\n{} optimizer steps, {:?} epochs{}, recipe `{}`:\n",
            self.steps,
            self.epochs,
            kept.unwrap_or_default(),
            self.recipe_hash
        )?;
        let fence = fence(&self.recipe);
        writeln!(out, "{fence}toml\n{}\n{fence}", self.recipe.trim_end())
    }
}

/// A JSON string, which is also a YAML string.
fn yaml(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Text that cannot leave its line or table cell.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>().replace('|', "\\|").replace('`', "'")
}

/// A fence longer than any run of backquotes inside.
fn fence(text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    "`".repeat((longest + 1).max(3))
}
