//! Depends on model-center-recipe alone: a wrong key is named with its line.

use model_center_recipe::Recipe;

#[test]
fn an_unknown_key_is_named_with_its_line() {
    let refused = Recipe::load_text("recipe.toml", "[train]\nstepps = 3\n", &[]).expect_err("a mistake");
    let text = refused.to_string();
    assert!(text.contains("recipe.toml:2") && text.contains("train.steps"), "{text}");
}
