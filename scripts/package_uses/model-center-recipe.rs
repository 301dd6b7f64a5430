//! Depends on model-center-recipe alone: a recipe is read, and a wrong key is named with its line.

use model_center_recipe::Recipe;

const TEXT: &str = "[data]
task = \"classification\"
[data.columns]
text = \"title\"
label = \"topic\"
";

#[test]
fn a_recipe_is_read_and_an_unknown_key_is_named_with_its_line() {
    let changes =
        ["model.path=models/bert", "data.train=train.jsonl", "train.steps=100", "output.dir=run"].map(String::from);
    let recipe = Recipe::load_text("recipe.toml", TEXT, &changes).expect("a recipe");
    assert_eq!(recipe.train.steps, Some(100));
    let wrong = format!("{TEXT}[train]\nstepps = 3\n");
    let text = Recipe::load_text("recipe.toml", &wrong, &changes).expect_err("a mistake").to_string();
    assert!(text.contains("recipe.toml:7") && text.contains("train.steps"), "{text}");
}
