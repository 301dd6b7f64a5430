//! The page of all settings, in Markdown, from the declarations of the keys.
//!
//! Defines [`settings_page`], which the `finetune` program prints and `docs/settings.md` holds.

use super::reader::Declared;
use super::table::table_of;

/// Every setting of a recipe: key, type and allowed values, default, meaning and first version.
pub(crate) fn settings_page(all: &[Declared]) -> String {
    let mut page = String::from(
        "# Settings\n\nEvery key of a recipe. `bmtrain finetune --list-settings` prints this page, `--print-config` \
         the values of one recipe\nwith their origins, and [recipes](recipes.md) shows how to write one. The table of \
         a key is the part before its last\ndot: `train.lr` is `lr` of `[train]`, or `--set train.lr=3e-5` on a \
         command line.\n",
    );
    let mut table = "";
    for Declared { row, wanted, default, .. } in all {
        if table_of(row.key) != table {
            table = table_of(row.key);
            page.push_str(&format!(
                "\n## {table}\n\n| key | type and values | default | meaning | since |\n|---|---|---|---|---|\n"
            ));
        }
        let cells = [&format!("`{}`", row.key), wanted, default, row.text(), row.since];
        let cells = cells.map(|cell| cell.replace('|', "\\|"));
        page.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    page
}
