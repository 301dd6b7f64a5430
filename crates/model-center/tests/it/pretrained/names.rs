//! Names of models: the hub's, ModelCenter's, and paths with a slip.

use super::{Caches, NEW, OLD};

#[test]
fn a_path_is_not_proposed_as_a_name_of_the_hub() {
    let caches = Caches::new();
    const FETCH: &str = "bmtrain fetch ";
    // The last part is a model that the hub has; the path is not its name.
    let absolute = caches.path("models/gpt2");
    for name in
        ["models/bert-base-uncased", "./bert-base-uncased/", "../a/bert-base-uncased", absolute.to_str().unwrap()]
    {
        let text = caches.refused(name, None);
        let id = name.trim_end_matches('/').rsplit('/').next().unwrap();
        assert!(text.contains("correct the path, or create the directory"), "{text}");
        assert!(text.contains(&format!("write {id}, and fetch it with `{FETCH}{id}`")), "{text}");
        assert!(!text.contains(&format!("bmtrain fetch {name}")), "{text}");
    }
    // One that the hub does not have.
    for name in ["models/mine", "checkpoints/step-100", "models/cpm1-large"] {
        let text = caches.refused(name, None);
        assert!(text.contains("correct the path") && !text.contains("fetch --"), "{text}");
    }
    assert!(caches.refused("~/models/x", None).contains("only a shell expands `~`"));
    // An owner's directory exists here: it may be either. Tests run in the directory of the crate.
    let text = caches.refused("src/bert-of-mine", None);
    assert!(text.contains("correct the path; or, for the hub's model, fetch it with"), "{text}");
    // A name of the hub stays one.
    assert!(caches.refused("org/name", None).contains(&format!("fix: fetch it with `{FETCH}org/name`")));
    let known = "google-bert/bert-base-uncased";
    assert!(caches.refused(known, None).contains(&format!("fix: fetch it with `{FETCH}{known}`")));
    // A model of such a name in the cache is found.
    let cached = caches.model("models--models--mine", OLD);
    assert_eq!(caches.resolve("models/mine", None).unwrap(), cached);
}

#[test]
fn a_slip_in_one_part_of_a_path_is_answered_with_the_directory_beside_it() {
    let caches = Caches::new();
    caches.write("models/bert-tiny/config.json", "{}");
    caches.write("models/bert-file", "not a directory");
    let at = |name: &str| caches.path(name).display().to_string();
    let meant = format!("did you mean `{}`? ", at("models/bert-tiny"));
    for slip in ["models/bert-tiyn", "models/Bert_tiny", "modles/bert-tiny", "models/bert-tiny-"] {
        assert!(caches.refused(&at(slip), None).contains(&meant), "{slip}");
    }
    for other in ["models/llama", "modles/bert-tiyn", "elsewhere/bert-tiny"] {
        assert!(!caches.refused(&at(other), None).contains("did you mean"), "{other}");
    }
    // Relative to the directory of the crate.
    assert!(caches.refused("tets", None).contains("did you mean `tests`? fetch it with"));
    assert!(caches.refused("./tests/godlen", None).contains("did you mean `./tests/golden`? correct the path"));
}

#[test]
fn names_and_revisions_that_try_to_travel_are_refused() {
    let caches = Caches::new();
    caches.model("models--org--name", OLD);
    caches.write("hub/commit", OLD);
    for revision in ["../../commit", "..", "/etc/passwd", "a/../main", ".", "", "a\0b", "x;y", "$(id)"] {
        let text = caches.refused("org/name", Some(revision));
        assert!(text.contains("the revision "), "{text}");
    }
    for name in ["org/..", "or..g/name", "org/name.git", "org--name", "org/na me", "org/na\u{1b}me", "", "a\0b"] {
        let text = caches.refused(name, None);
        assert!(text.contains("no model of the hub is called so") && !text.contains('\u{1b}'), "{text}");
    }
    let long = "x".repeat(1 << 20);
    assert!(caches.refused(&long, None).len() < 1000);
}

#[test]
fn identifiers_of_model_center_find_the_hubs_models_and_its_own_cache() {
    let caches = Caches::new();
    let text = caches.refused("gptj-6b", None);
    assert!(text.contains("bmtrain fetch EleutherAI/gpt-j-6b`"), "{text}");
    assert!(text.contains("models--EleutherAI--gpt-j-6B"), "the older spelling is looked for too: {text}");
    let text = caches.refused("cpm1-large", None);
    // The hub has it not, and the program `fetch` knows the server that has.
    assert!(text.contains("bmtrain fetch cpm1-large`") && text.contains("model_center/cpm1-large"), "{text}");
    let text = caches.refused("kv-plm", None);
    assert!(!text.contains("fetch") && text.contains("put its config.json"), "{text}");

    caches.write("model_center/t5-v1_1-base/config.json", "{}");
    let text = caches.refused("t5-v1_1-base", None);
    assert!(text.contains("model_center/t5-v1_1-base is incomplete: it lacks weights"), "{text}");
    caches.write("model_center/t5-v1_1-base/pytorch_model.pt", "x");
    assert_eq!(caches.resolve("t5-v1_1-base", None).unwrap(), caches.path("model_center/t5-v1_1-base"));
    let of_hub = caches.model("models--google--t5-v1_1-base", OLD);
    assert_eq!(caches.resolve("t5-v1_1-base", None).unwrap(), of_hub);
    assert_eq!(caches.resolve("t5-v1_1-base", Some(OLD)).unwrap(), of_hub);

    // The old name's own directory comes first, unless it is only half there.
    let canonical = caches.model("models--google-bert--bert-base-uncased", OLD);
    caches.link("models--bert-base-uncased", NEW, "config.json", "{}");
    caches.write("hub/models--bert-base-uncased/refs/main", NEW);
    assert_eq!(caches.resolve("bert-base-uncased", None).unwrap(), canonical);
    let own = caches.model("models--gpt2", OLD);
    assert_eq!(caches.resolve("gpt2-base", None).unwrap(), own);
    assert_eq!(caches.resolve("gpt2", None).unwrap(), own);
}

#[test]
fn offline_only_changes_what_is_proposed() {
    let mut caches = Caches::new();
    let model = caches.model("models--org--name", OLD);
    caches.places.offline = true;
    assert_eq!(caches.resolve("org/name", None).unwrap(), model);
    let text = caches.refused("org/other", None);
    assert!(text.contains("HF_HUB_OFFLINE is set, unset it for `bmtrain fetch org/other`"), "{text}");
}
