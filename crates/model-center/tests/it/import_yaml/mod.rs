//! Configurations of axolotl and LLaMA-Factory as recipes. `axolotl` and `llama_factory` have their values, `methods`
//! what both have of updates, preferences and frozen parameters, `keys` every key, `refused` the mistakes.

mod axolotl;
mod keys;
mod llama_factory;
mod methods;
mod refused;

use crate::import::{expect, file};
use model_center::import::{self, ImportOptions, NoteKind, Sheet};
use model_center::recipe::{Recipe, list};

fn yaml(name: &str, text: &str, options: &ImportOptions) -> model_center::Result<Sheet> {
    match name.starts_with("axolotl") {
        true => import::axolotl(text, name, options),
        false => import::llama_factory(text, name, options),
    }
}

const FILES: [&str; 6] = [
    "axolotl_lora.yml",
    "axolotl_full.yml",
    "axolotl_completion.yml",
    "llama_factory_lora.yaml",
    "llama_factory_full.yaml",
    "llama_factory_pt.yaml",
];

fn of(name: &str) -> Sheet {
    yaml(name, &file(name), &ImportOptions::default()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

pub fn differs(sheet: &Sheet) -> String {
    let notes = sheet.notes().iter().filter(|note| note.kind == NoteKind::Differs);
    notes.map(|note| format!("{}: {}\n", note.what, note.why)).collect()
}

#[track_caller]
pub fn check_recipe(name: &str, sheet: &Sheet) {
    let text = sheet.to_toml();
    let is_setting = |line: &&str| line.contains(" = ") && !line.starts_with('#');
    assert!(text.lines().filter(is_setting).all(|line| line.contains(" # ")), "{text}");
    if let Err(mistakes) = Recipe::read_text(name, &text, &[]) {
        panic!("{}\n{text}", list(&mistakes));
    }
}

#[test]
fn every_configuration_is_a_recipe_that_has_every_key() {
    for name in FILES {
        let (sheet, text) = (of(name), file(name));
        check_recipe(name, &sheet);
        let recipe = sheet.to_toml();
        let keys = text.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
        for key in keys.map(|line| line.split(':').next().unwrap()) {
            assert!(recipe.contains(key), "{name}: {key} is not in\n{recipe}");
        }
    }
}
