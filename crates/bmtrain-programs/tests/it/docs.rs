//! The documentation agrees with the tree: paths exist, links resolve, shown code is the code of the files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_path_buf()
}

/// Every document: path from the root, text.
fn documents() -> Vec<(String, String)> {
    let mut paths = ["README.md", "README-ZH.md", "CHANGELOG.md", "CONTRIBUTING.md"].map(str::to_owned).to_vec();
    for directory in ["docs", "docs/adr"] {
        for entry in std::fs::read_dir(root().join(directory)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".md") {
                paths.push(format!("{directory}/{name}"));
            }
        }
    }
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), std::fs::read_to_string(root().join(path)).unwrap())).collect()
}

/// A fenced block: its info string and its lines.
struct Fenced {
    info: String,
    code: String,
}

/// The text outside fences, and the fenced blocks.
fn split(text: &str) -> (String, Vec<Fenced>) {
    let (mut prose, mut blocks, mut open) = (String::new(), Vec::new(), None::<Fenced>);
    for line in text.split_inclusive('\n') {
        match (&mut open, line.trim_end().strip_prefix("```")) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => block.code.push_str(line),
            (None, Some(info)) => open = Some(Fenced { info: info.to_owned(), code: String::new() }),
            (None, None) => prose.push_str(line),
        }
    }
    assert!(open.is_none(), "a fence is never closed");
    (prose, blocks)
}

/// Spans in backticks that name a file or directory of this repository.
fn paths(prose: &str) -> Vec<&str> {
    let tops = [".ci/", "crates/", "docs/", "examples/", "kernels/", "scripts/"];
    let spans = prose.split('`').skip(1).step_by(2);
    let words = spans.flat_map(str::split_whitespace).map(|word| word.trim_start_matches("./"));
    words
        .filter(|word| {
            let source = [".rs", ".md", ".toml", ".sh", ".py", ".cu"].iter().any(|ending| word.ends_with(ending));
            tops.iter().any(|top| word.starts_with(top))
                || (word.contains('/') && source && !word.starts_with(['~', '$', '/']))
        })
        .collect()
}

#[test]
fn every_path_in_backticks_exists() {
    let (mut missing, mut seen) = (Vec::new(), 0);
    for (document, text) in documents() {
        let (prose, _) = split(&text);
        for path in paths(&prose) {
            seen += 1;
            if !root().join(path).exists() {
                missing.push(format!("{document}: {path}"));
            }
        }
    }
    assert!(missing.is_empty(), "no such file:\n{}", missing.join("\n"));
    assert!(seen > 60, "only {seen} paths were found");
}

#[test]
fn every_link_leads_to_a_file() {
    let mut missing = Vec::new();
    for (document, text) in documents() {
        let (prose, _) = split(&text);
        for target in prose.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let place = root().join(&document).parent().unwrap().join(target.split('#').next().unwrap());
            if !target.starts_with("http") && !place.exists() {
                missing.push(format!("{document}: {target}"));
            }
        }
    }
    assert!(missing.is_empty(), "no such file:\n{}", missing.join("\n"));
}

/// Whether a block with this info string has code that a file must have too.
fn is_source(info: &str) -> bool {
    info.starts_with("rust") || info.starts_with("python")
}

#[test]
fn shown_code_is_the_code_of_the_files() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for (document, text) in documents() {
        for Fenced { info, code } in split(&text).1.into_iter().filter(|block| is_source(&block.info)) {
            let Some(file) = info.split_whitespace().find_map(|word| word.strip_prefix("file=")) else {
                wrong.push(format!("{document}: code without the file it is from:\n{code}"));
                continue;
            };
            seen += 1;
            let source = std::fs::read_to_string(root().join(file)).unwrap_or_default();
            if code.trim().is_empty() || !source.contains(&code) {
                wrong.push(format!("{document}: not in {file}:\n{code}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen >= 15, "only {seen} blocks were found");
}

#[test]
fn decisions_are_numbered_and_say_context_decision_consequences_and_what_was_rejected() {
    let decisions: Vec<(String, String)> =
        documents().into_iter().filter(|(path, _)| path.starts_with("docs/adr/")).collect();
    for (index, (path, text)) in decisions.iter().enumerate() {
        let number = index + 1;
        assert!(path.starts_with(&format!("docs/adr/{number:04}-")), "{path} should be number {number}");
        assert!(text.starts_with(&format!("# {number}. ")), "{path}");
        let headings: Vec<&str> = text.lines().filter(|line| line.starts_with("## ")).collect();
        assert_eq!(headings, ["## Context", "## Decision", "## Consequences", "## Rejected"], "{path}");
        assert!(text.lines().count() <= 60, "{path} is longer than a page");
    }
    assert!(decisions.len() >= 9);
}

#[test]
fn claims_that_documents_name_are_listed_with_their_command() {
    let listed: BTreeSet<String> = std::fs::read_dir(root().join("scripts/claims"))
        .unwrap()
        .filter_map(|entry| Some(entry.unwrap().path().file_stem()?.to_str()?.to_owned()))
        .collect();
    for (document, text) in documents() {
        for rest in text.split("laim `").skip(1) {
            let id = rest.split('`').next().unwrap();
            assert!(listed.contains(id), "{document}: claim {id} has no script");
        }
    }
}

/// `ACCEPT_SETTINGS=1` writes the schema anew.
#[test]
fn the_schema_of_recipes_is_that_of_their_declarations() {
    let schema = model_center::recipe::recipe_schema(model_center::recipe::OwnData::default());
    let (path, text) = (root().join("docs/recipe.schema.json"), serde_json::to_string_pretty(&schema).unwrap() + "\n");
    if std::env::var_os("ACCEPT_SETTINGS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(there == text, "docs/recipe.schema.json is not as declared; write it anew with ACCEPT_SETTINGS=1");
    // Every recipe of the repository has keys of the schema alone.
    let mut seen = 0;
    for entry in std::fs::read_dir(root().join("examples/recipes")).unwrap() {
        let recipe = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let recipe: toml::Table = toml::from_str(&recipe).unwrap();
        for (table, keys) in &recipe {
            for key in keys.as_table().unwrap().keys() {
                seen += 1;
                let property = &schema["properties"][table]["properties"][key];
                assert!(property.is_object(), "{table}.{key} is not in the schema");
            }
        }
    }
    assert!(seen > 300, "only {seen} keys were found");
}

/// `ACCEPT_SETTINGS=1` writes the page anew.
#[test]
fn the_page_of_settings_is_that_of_their_declarations() {
    let (path, page) = (
        root().join("docs/settings.md"),
        model_center::recipe::settings_page(model_center::recipe::OwnData::default()),
    );
    if std::env::var_os("ACCEPT_SETTINGS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    let other = there.lines().zip(page.lines()).find(|(there, here)| there != here);
    assert!(there == page, "docs/settings.md is not as declared; write it anew with ACCEPT_SETTINGS=1: {other:?}");
    assert!(page.lines().filter(|line| line.starts_with("| `")).count() > 60, "{page}");
}

/// Every tool of the page has the version that a script installs, and everything that it was compared by is there.
#[test]
fn tools_have_the_versions_of_the_scripts_that_compare_them() {
    let page = std::fs::read_to_string(root().join("docs/compatibility-tools.md")).unwrap();
    let claims = std::fs::read_to_string(root().join("docs/claims.md")).unwrap();
    let mut scripts = String::new();
    for directory in ["scripts", "scripts/claims", "scripts/golden", "findings"] {
        for entry in std::fs::read_dir(root().join(directory)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|ending| ending == "sh" || ending == "py") {
                scripts += &std::fs::read_to_string(path).unwrap();
            }
        }
    }
    let (mut tools, mut compared) = (0, 0);
    for row in page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| tool |")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let (first, last) = (cells[0], cells[cells.len() - 1]);
        let words: Vec<&str> = first.split([' ', ',']).filter(|word| !word.is_empty()).collect();
        for pair in words.windows(2).filter(|pair| pair[0].starts_with('`')) {
            let (tool, version) = (pair[0].trim_matches('`'), pair[1]);
            let pins =
                [format!("{tool}=={version}"), format!("{tool}[api]=={version}"), format!("\"{tool}\": \"{version}\"")];
            assert!(pins.iter().any(|pin| scripts.contains(pin)), "no script installs {tool} {version}");
            tools += 1;
        }
        for name in last.split('`').skip(1).step_by(2) {
            let is_there = root().join(name).is_file() || claims.contains(&format!("\n| `{name}` |"));
            assert!(is_there, "{name} is neither a claim nor a file");
            compared += 1;
        }
    }
    assert!(tools >= 15 && compared >= 25, "{tools} tools, {compared} comparisons");
}
