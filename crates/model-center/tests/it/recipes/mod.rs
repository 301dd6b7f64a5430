//! A short recipe and what is added to it, for the tests of recipes.

use model_center::recipe::{Mistake, Recipe, Resolved};

/// The smallest valid recipe.
pub const LEAST: &str = r#"[model]
path = "m"
[data]
task = "classification"
train = "t.jsonl"
eval = "e.jsonl"
[train]
epochs = 3
[output]
dir = "out"
"#;

/// The settings of a recipe, with `--set` of some.
pub fn load(text: &str, sets: &[&str]) -> Resolved {
    let sets: Vec<String> = sets.iter().map(ToString::to_string).collect();
    Recipe::load_text("r.toml", text, &sets).unwrap_or_else(|e| panic!("{e}"))
}

/// Everything that is wrong with a recipe.
pub fn mistakes(text: &str, sets: &[&str]) -> Vec<Mistake> {
    let sets: Vec<String> = sets.iter().map(ToString::to_string).collect();
    Recipe::read_text("r.toml", text, &sets).err().unwrap_or_default()
}

/// [`LEAST`] with lines at its end, the first of them on line 11.
pub fn with(lines: &str) -> String {
    format!("{LEAST}{lines}\n")
}

/// [`LEAST`] with lines added to `[train]`, the first of them on line 9.
pub fn with_train(lines: &str) -> String {
    LEAST.replace("epochs = 3\n", &format!("epochs = 3\n{lines}\n"))
}
