//! Directories in which the programs look for models that are named by the hub or ModelCenter, from the environment.

use model_center_formats::ModelCaches;
use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

/// Caches from this process's environment, by the rules of Hugging Face's libraries: `HF_HUB_CACHE`, else `HF_HOME`
/// with `hub` below it, else `huggingface/hub` in `XDG_CACHE_HOME` or in `HOME` with `.cache` below it;
/// `HF_HUB_OFFLINE`. ModelCenter's cache is `.cache/model_center` in `HOME`.
pub fn model_places() -> ModelCaches {
    places_of(&|name| env::var_os(name).filter(|value| !value.is_empty()))
}

/// Caches of any environment.
fn places_of(variable: &dyn Fn(&str) -> Option<OsString>) -> ModelCaches {
    let directory = |name| variable(name).map(PathBuf::from);
    let home_cache = directory("HOME").map(|home| home.join(".cache"));
    let cache = directory("XDG_CACHE_HOME").or_else(|| home_cache.clone());
    let hf_home = directory("HF_HOME").or_else(|| Some(cache?.join("huggingface")));
    let hub = directory("HF_HUB_CACHE").or_else(|| Some(hf_home?.join("hub")));
    let is_yes = |value: OsString| ["1", "on", "yes", "true"].iter().any(|yes| value.eq_ignore_ascii_case(yes));
    ModelCaches {
        hub,
        model_center: home_cache.map(|cache| cache.join("model_center")),
        offline: variable("HF_HUB_OFFLINE").is_some_and(is_yes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(variables: &[(&str, &str)]) -> Option<String> {
        let value = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into());
        places_of(&value).hub.map(|path| path.display().to_string())
    }

    #[test]
    fn the_more_special_variable_wins() {
        let all = [("HF_HUB_CACHE", "/a"), ("HF_HOME", "/b"), ("XDG_CACHE_HOME", "/c"), ("HOME", "/d")];
        let expected = ["/a", "/b/hub", "/c/huggingface/hub", "/d/.cache/huggingface/hub"];
        for (skipped, expected) in expected.iter().enumerate() {
            assert_eq!(hub(&all[skipped..]).as_deref(), Some(*expected));
        }
        assert_eq!(hub(&[]), None);
    }

    #[test]
    fn offline_is_read_as_the_libraries_read_it() {
        let offline = |text: &str| places_of(&|name| (name == "HF_HUB_OFFLINE").then(|| text.into())).offline;
        assert!(["1", "ON", "yes", "True"].into_iter().all(offline));
        assert!(!["0", "off", "no"].into_iter().any(offline));
        assert_eq!(places_of(&|_| None), ModelCaches::default());
    }
}
