//! The page of all settings, in Markdown, from the declarations of the keys.
//!
//! Defines [`settings_page`], which the `finetune` program prints and `docs/settings.md` holds.

use super::keys;
use super::layers::{Origin, Tree};
use super::meanings::meaning;
use super::reader::{Declared, Reader};
use super::resolved::sort_by_table;
use model_center_data::OwnData;

/// Descriptions of defaults that depend on another setting.
const DEPENDENT: &[(&str, &str)] = &[
    ("data.objective", "`\"classifier\"`, for tasks without that form `\"verbalizer\"`, for `pretrain` `\"causal\"`"),
    ("eval.every", "`\"1 epoch\"`, for `pretrain` `\"1000 steps\"`"),
    ("preference.beta", "`0.1`, of `simpo` `2.0`"),
    ("train.micro_batch_size", "`train.batch_size` / data ranks"),
    ("train.decoupled", "`true` of `adamw`, `adamw-8bit`, `lion`, `muon` and `adafactor`, `false` of others"),
    ("train.betas", "`[0.9, 0.999]`, of `lion` `[0.9, 0.99]`"),
    ("train.eps", "`1e-8`, of `adagrad` `1e-10`, of `adadelta` `1e-6`, of `adafactor` `1e-30`"),
    ("train.momentum", "`0.0`, of `muon` `0.95`"),
    ("train.nesterov", "`false`, of `muon` `true`"),
    ("train.rho", "`0.99`, of `adadelta` `0.9`"),
    ("save.which", "`\"best\"` with `data.eval`, else `\"last\"`"),
];

/// What holds where a key is not set, in Markdown: of a default that depends on other keys, how it depends on them.
pub(super) fn default_of(declared: &Declared) -> &str {
    DEPENDENT.iter().find(|(key, _)| *key == declared.key).map_or(declared.default.as_str(), |(_, text)| text)
}

/// Every setting of a recipe: key, type and allowed values, default, meaning and first version; `own` is what a program
/// adds.
pub fn settings_page(own: impl Into<OwnData>) -> String {
    let mut page = String::from(
        "# Settings\n\nEvery key of a recipe. `bmtrain finetune --list-settings` prints this page, `--print-config` \
         the values of one recipe\nwith their origins, and [recipes](recipes.md) shows how to write one. The table of \
         a key is the part before its last\ndot: `train.lr` is `lr` of `[train]`, or `--set train.lr=3e-5` on a \
         command line.\n",
    );
    let mut table = "";
    for declared in declared(own.into()) {
        let (key, wanted, default) = (declared.key, &declared.wanted, default_of(&declared));
        let of = key.rsplit_once('.').map_or("", |(table, _)| table);
        if of != table {
            table = of;
            page.push_str(&format!(
                "\n## {table}\n\n| key | type and values | default | meaning | since |\n|---|---|---|---|---|\n"
            ));
        }
        let (text, since) = meaning(key).map_or(("", ""), |meaning| (meaning.text, meaning.since));
        let cells = [&format!("`{key}`"), wanted.as_str(), default, text, since].map(|cell| cell.replace('|', "\\|"));
        page.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    page
}

/// The declarations of all keys, by table, read from an empty recipe.
pub(super) fn declared(own: OwnData) -> Vec<Declared> {
    let mut reader = Reader::new(Tree::new(Origin::Default), "", own);
    keys::read(&mut reader);
    let mut declared = reader.into_declared();
    sort_by_table(&mut declared, |declared| declared.key);
    declared
}

#[cfg(test)]
mod tests {
    use super::super::meanings::MEANINGS;
    use super::*;

    #[test]
    fn every_key_has_one_meaning_and_every_meaning_a_key() {
        let declared = declared(OwnData::default());
        for Declared { key, .. } in &declared {
            let count = MEANINGS.iter().filter(|meaning| meaning.key == *key).count();
            assert_eq!(count, 1, "{key}: describe it in meanings.rs");
        }
        for meaning in MEANINGS {
            assert!(declared.iter().any(|declared| declared.key == meaning.key), "unknown key {}", meaning.key);
            assert!(meaning.text.ends_with('.') && !meaning.since.is_empty(), "{}", meaning.key);
        }
        for (key, _) in DEPENDENT {
            assert!(declared.iter().any(|declared| declared.key == *key), "unknown key {key}");
        }
    }
}
