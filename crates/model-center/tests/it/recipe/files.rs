//! Recipe files: untrusted and unreadable ones, the files they name, and the examples.

use super::*;

#[test]
fn hostile_recipes_are_refused_in_bounded_time() {
    let began = std::time::Instant::now();
    let half = 1 << 19;
    let hostile = [
        "[".repeat(half),
        format!("a = {}", "[".repeat(half)),
        format!("a = {}", "{a = ".repeat(half / 5)),
        format!("{} = 1", "a.".repeat(half / 2) + "a"),
        format!("[{}a]", "a.".repeat(half / 2)),
        (0..60_000).map(|i| format!("k{i} = 1\n")).collect(),
        (0..30_000).map(|i| format!("[t{i}]\nk = 1\n")).collect(),
        (0..30_000).map(|i| format!("[train.t{i}]\nk = 1\n")).collect(),
        format!("{} = 1", "k".repeat(half)),
        format!("[train]\nlr = \"{}\"", "v".repeat(half)),
        format!("[data]\nlabels = [{}]", "1,".repeat(half / 2)),
        (0..100_000).map(|i| format!("a{i}=1,")).fold("x={".to_owned(), |s, k| s + &k) + "b=1}",
        "\"\\u0000\\u001b[31m\" = 1".to_owned(),
        "\u{1b}[31m = 1".to_owned(),
    ];
    for text in &hostile {
        let found = mistakes(text, &[]);
        assert!(!found.is_empty() && found.len() < 100, "{}", found.len());
        let printed = list(&found);
        assert!(printed.len() < 20_000, "{} bytes for {:?}", printed.len(), &text[..text.len().min(40)]);
        assert!(printed.chars().all(|c| c == '\n' || !c.is_control()), "{printed:?}");
    }
    // Takes about a second; a quadratic search for any of them takes minutes.
    assert!(began.elapsed().as_secs() < 60, "{:?}", began.elapsed());
}

#[test]
fn unreadable_recipes_are_refused_with_their_name() {
    let dir = tempfile::tempdir().unwrap();
    let first = |path: &Path| Recipe::read(Some(path), &[]).unwrap_err().remove(0).to_string();
    let path = dir.path().join("absent.toml");
    let expected = format!(
        "error[recipe]: cannot read the recipe: No such file or directory (os error 2)\n  --> {}\n  fix: check the \
            path",
        path.display()
    );
    assert_eq!(first(&path), expected);
    assert!(first(dir.path()).contains("the recipe is not a plain file"));
    let path = dir.path().join("latin1.toml");
    std::fs::write(&path, b"[model]\npath = \"caf\xe9\"\n").unwrap();
    assert!(first(&path).contains("latin1.toml:2:12\n"), "{}", first(&path));
    let path = dir.path().join("huge.toml");
    std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    assert!(first(&path).contains("the recipe is larger than 1048576 bytes"));
    let path = dir.path().join("marked.toml");
    std::fs::write(&path, format!("\u{feff}{LEAST}").replace('\n', "\r\n")).unwrap();
    assert_eq!(Recipe::load(Some(&path), &[]).unwrap().train.epochs, Some(3.0));
}

#[test]
fn preflight_lists_every_file_that_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let sets = [
        format!("model.path={}", at("m")),
        format!("data.train={}", at("t.jsonl")),
        format!("data.eval={}", at("e.jsonl")),
    ];
    let resolved = Recipe::load_text("r.toml", LEAST, &sets).unwrap();
    let found = preflight(&resolved, &ModelCaches::default());
    let reasons: Vec<&str> = found.iter().map(|m| m.reason.as_str()).collect();
    assert_eq!(
        reasons,
        [
            format!("`model.path`: {}: there is no such directory", at("m")),
            format!("`data.train`: cannot open {}: No such file or directory (os error 2)", at("t.jsonl")),
            format!("`data.eval`: cannot open {}: No such file or directory (os error 2)", at("e.jsonl")),
        ]
    );
    std::fs::create_dir(at("m")).unwrap();
    std::fs::write(at("m") + "/config.json", "{}").unwrap();
    std::fs::write(at("t.jsonl"), "{}\n").unwrap();
    std::fs::write(at("e.jsonl"), "").unwrap();
    let found = preflight(&resolved, &ModelCaches::default());
    assert_eq!(found.len(), 1, "{}", list(&found));
    assert_eq!(found[0].reason, format!("`data.eval`: {} is empty", at("e.jsonl")));
    std::fs::write(at("e.jsonl"), "{}\n").unwrap();
    assert_eq!(preflight(&resolved, &ModelCaches::default()), []);
}

#[test]
fn the_example_recipes_load() {
    // In a packaged crate there are no examples beside it.
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/recipes");
    let Ok(files) = std::fs::read_dir(directory) else { return };
    let mut names = Vec::new();
    for file in files {
        let path = file.unwrap().path();
        let resolved = Recipe::load(Some(&path), &[]).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(*load(&resolved.to_toml(), &[]), *resolved, "{}", path.display());
        names.push(path.file_name().unwrap().to_string_lossy().into_owned());
    }
    for expected in ["boolq_bert.toml", "classify_jsonl.toml", "quickstart.toml"] {
        assert!(names.iter().any(|name| name == expected), "{names:?}");
    }
}
