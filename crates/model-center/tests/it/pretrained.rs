//! From names to directories: layouts of the hub's cache, sound and hostile, ModelCenter's identifiers and its cache.

mod names;

use model_center::config::{BertConfig, Config};
use model_center::formats::pretrained::{ModelCaches, Pretrained};
use model_center::formats::{TensorSource, Weights};
use model_center::run::layout_error;
use model_center::tokenizer::{HfTokenizer, Tokenizer};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const OLD: &str = "1111111111111111111111111111111111111111";
const NEW: &str = "2222222222222222222222222222222222222222";

/// A hub cache and ModelCenter's in one directory.
struct Caches {
    directory: TempDir,
    places: ModelCaches,
}

impl Caches {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (hub, model_center) = (directory.path().join("hub"), directory.path().join("model_center"));
        let places = ModelCaches { hub: Some(hub), model_center: Some(model_center), offline: false };
        Caches { directory, places }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// A file of a snapshot, as a link to a blob.
    fn link(&self, model: &str, commit: &str, name: &str, text: &str) {
        self.write(&format!("hub/{model}/blobs/{commit}-{name}"), text);
        let directory = self.path(&format!("hub/{model}/snapshots/{commit}"));
        fs::create_dir_all(&directory).unwrap();
        symlink(format!("../../blobs/{commit}-{name}"), directory.join(name)).unwrap();
    }

    /// A complete model with `main` at this commit; what is in its files is not looked at.
    fn model(&self, model: &str, commit: &str) -> PathBuf {
        self.link(model, commit, "config.json", "{}");
        self.link(model, commit, "model.safetensors", "weights");
        self.write(&format!("hub/{model}/refs/main"), commit);
        self.snapshot(model, commit)
    }

    fn snapshot(&self, model: &str, commit: &str) -> PathBuf {
        self.path(&format!("hub/{model}/snapshots/{commit}"))
    }

    fn resolve(&self, name: &str, revision: Option<&str>) -> model_center::Result<PathBuf> {
        Pretrained::resolve(name, revision, &self.places)
    }

    fn refused(&self, name: &str, revision: Option<&str>) -> String {
        let text = layout_error(&self.resolve(name, revision).unwrap_err());
        assert!(text.starts_with("error[model]: ") && text.lines().count() == 3, "{text}");
        text
    }
}

#[test]
fn branches_tags_and_commits_lead_to_their_snapshots() {
    let caches = Caches::new();
    let old = caches.model("models--org--name", OLD);
    let new = caches.model("models--org--name", NEW);
    caches.write("hub/models--org--name/refs/v1.0", &format!("{OLD}\n"));
    caches.write("hub/models--org--name/refs/refs/pr/3", OLD);
    assert_eq!(caches.resolve("org/name", None).unwrap(), new);
    assert_eq!(caches.resolve("org/name", Some("main")).unwrap(), new);
    assert_eq!(caches.resolve("org/name", Some("v1.0")).unwrap(), old);
    assert_eq!(caches.resolve("org/name", Some("refs/pr/3")).unwrap(), old);
    assert_eq!(caches.resolve("org/name", Some(OLD)).unwrap(), old);
    // A name without an owner.
    let plain = caches.model("models--name", OLD);
    assert_eq!(caches.resolve("name", None).unwrap(), plain);
}

#[test]
fn a_missing_revision_is_told_from_a_missing_model() {
    let caches = Caches::new();
    caches.model("models--org--name", OLD);
    caches.write("hub/models--org--name/refs/gone", NEW);
    for revision in ["v2", "gone", NEW, "refs/pr", "main/x"] {
        let text = caches.refused("org/name", Some(revision));
        assert!(text.contains(&format!("nothing of its revision {revision}")), "{text}");
        assert!(text.contains(&format!("bmtrain fetch org/name --revision {revision}`")), "{text}");
    }
    let text = caches.refused("org/other", None);
    assert!(text.contains("hub/models--org--other"), "{text}");
    assert!(text.contains("bmtrain fetch org/other`"), "{text}");
    // The cache keeps nothing of revisions, so it is not looked into.
    assert!(!caches.refused("name", Some("v1")).contains("model_center"));
    assert!(caches.refused("name", None).contains("model_center/name"));
}

#[test]
fn a_directory_is_used_as_it_is_and_a_missing_one_is_reported() {
    let caches = Caches::new();
    let directory = caches.path("plain");
    fs::create_dir(&directory).unwrap();
    let name = directory.to_str().unwrap();
    assert_eq!(Pretrained::resolve(name, None, &ModelCaches::default()).unwrap(), directory);
    assert!(caches.refused(name, Some("main")).contains("\"main\" has no effect"));
    let missing = caches.path("missing");
    let slashes = ["./missing", "../missing", "a/b/c", "models/", "~/models", missing.to_str().unwrap()];
    for name in slashes {
        let text = caches.refused(name, None);
        assert!(text.contains("there is no such directory\n"), "{text}");
        assert!(!text.contains("fetch"), "{text}");
    }
    let file = caches.write("file", "x");
    assert!(caches.refused(file.to_str().unwrap(), None).contains("a file, not a directory"));
    symlink("nowhere", caches.path("link")).unwrap();
    assert!(caches.refused(caches.path("link").to_str().unwrap(), None).contains("leads nowhere"));
    // Without any cache, names are looked for as directories alone.
    let text = layout_error(&Pretrained::resolve("org/name", None, &ModelCaches::default()).unwrap_err());
    assert!(text.contains("no cache is known") && text.contains("bmtrain fetch org/name"), "{text}");
}

#[test]
fn incomplete_snapshots_name_what_they_lack() {
    let caches = Caches::new();
    let snapshot = caches.snapshot("models--org--name", OLD);
    fs::create_dir_all(&snapshot).unwrap();
    caches.write("hub/models--org--name/refs/main", OLD);
    let text = caches.refused("org/name", None);
    assert!(text.contains("lacks config.json, weights"), "{text}");
    assert!(text.contains("bmtrain fetch org/name"), "{text}");

    caches.link("models--org--name", OLD, "config.json", "{}");
    let text = caches.refused("org/name", None);
    assert!(text.contains("lacks weights (model.safetensors"), "{text}");

    let map = r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
    caches.link("models--org--name", OLD, "model.safetensors.index.json", map);
    caches.link("models--org--name", OLD, "model-1.safetensors", "x");
    let text = caches.refused("org/name", None);
    assert!(text.contains("lacks model-2.safetensors\n"), "{text}");

    // A link whose blob is not there counts as missing.
    symlink("../../blobs/gone", snapshot.join("model-2.safetensors")).unwrap();
    let text = caches.refused("org/name", None);
    assert!(text.contains("lacks model-2.safetensors\n"), "{text}");
    fs::remove_file(snapshot.join("model-2.safetensors")).unwrap();
    caches.link("models--org--name", OLD, "model-2.safetensors", "x");
    assert_eq!(caches.resolve("org/name", None).unwrap(), snapshot);
}

#[test]
fn links_and_names_out_of_the_cache_are_refused() {
    let caches = Caches::new();
    caches.write("secret", "{}");
    let snapshot = caches.model("models--org--name", OLD);
    fs::remove_file(snapshot.join("config.json")).unwrap();
    symlink("../../../../secret", snapshot.join("config.json")).unwrap();
    let text = caches.refused("org/name", None);
    assert!(text.contains("a symbolic link to") && text.contains("outside the directory"), "{text}");

    // Into the neighbour's blobs.
    caches.model("models--org--other", OLD);
    fs::remove_file(snapshot.join("config.json")).unwrap();
    symlink(format!("../../../models--org--other/blobs/{OLD}-config.json"), snapshot.join("config.json")).unwrap();
    assert!(caches.refused("org/name", None).contains("outside the directory"));

    // An index that names a file elsewhere.
    let index = r#"{"weight_map": {"a": "../../../../secret"}}"#;
    let third = caches.snapshot("models--org--third", OLD);
    caches.link("models--org--third", OLD, "config.json", "{}");
    caches.link("models--org--third", OLD, "model.safetensors.index.json", index);
    caches.write("hub/models--org--third/refs/main", OLD);
    assert!(caches.refused("org/third", None).contains("leads out of the directory"));

    // A snapshot that is a link, even to another snapshot.
    caches.model("models--org--fourth", OLD);
    for target in [third.to_str().unwrap(), OLD] {
        symlink(target, caches.snapshot("models--org--fourth", NEW)).unwrap();
        assert!(caches.refused("org/fourth", Some(NEW)).contains("not a directory of the model's own cache"));
        fs::remove_file(caches.snapshot("models--org--fourth", NEW)).unwrap();
    }
}

#[test]
fn references_hold_commits_and_nothing_else() {
    let caches = Caches::new();
    caches.model("models--org--name", OLD);
    let reference = caches.path("hub/models--org--name/refs/main");
    for text in ["../../..", "../snapshots", "", "main", &OLD[1..], &format!("{OLD}/.."), "\u{1b}[31m"] {
        fs::write(&reference, text).unwrap();
        let message = caches.refused("org/name", None);
        assert!(message.contains("which is not a commit") && !message.contains('\u{1b}'), "{message}");
    }
    fs::write(&reference, "a".repeat(10_000)).unwrap();
    assert!(caches.refused("org/name", None).contains("more than 256 bytes"));
    // A reference that is a link to a file elsewhere, which holds a commit.
    fs::remove_file(&reference).unwrap();
    caches.write("commit", OLD);
    symlink("../../../commit", &reference).unwrap();
    assert!(caches.refused("org/name", None).contains("outside the directory"));
}

#[test]
fn a_real_model_is_read_through_the_links_of_a_cache() {
    let caches = Caches::new();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/bert_a/nsp");
    let (model, directory) = ("models--org--tiny", caches.snapshot("models--org--tiny", OLD));
    caches.link(model, OLD, "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ngood\n");
    for name in ["config.json", "model.safetensors"] {
        let blob = caches.path(&format!("hub/{model}/blobs/{name}"));
        fs::copy(golden.join(name), blob).unwrap();
        symlink(format!("../../blobs/{name}"), directory.join(name)).unwrap();
    }
    caches.write(&format!("hub/{model}/refs/main"), OLD);
    let found = caches.resolve("org/tiny", None).unwrap();
    assert_eq!(found, directory);
    BertConfig::from_pretrained(&found).unwrap();
    assert!(!Weights::open(&found).unwrap().entries().is_empty());
    assert_eq!(HfTokenizer::from_directory(&found).unwrap().vocab_size(), 6);
}
