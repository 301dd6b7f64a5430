//! ModelCenter's identifiers of pretrained models, and what the hub calls the same models.
//!
//! Defines [`hub_names`], called by [`Pretrained`](super::Pretrained) and by the program that fetches models.

use super::name::RepoId;

/// Identifier, and its names on the hub: first the one to download, then older ones that a cache may use. Models
/// without any are in ModelCenter's own cache alone. Models of an [`UNAVAILABLE`] family are refused when named.
const ALIASES: &[(&str, &[&str])] = &[
    ("bert-base-cased", &["google-bert/bert-base-cased"]),
    ("bert-base-chinese", &["google-bert/bert-base-chinese"]),
    ("bert-base-multilingual-cased", &["google-bert/bert-base-multilingual-cased"]),
    ("bert-base-uncased", &["google-bert/bert-base-uncased"]),
    ("bert-large-cased", &["google-bert/bert-large-cased"]),
    ("bert-large-uncased", &["google-bert/bert-large-uncased"]),
    ("cpm1-large", &[]),
    ("cpm2-large", &[]),
    ("flan-t5-base", &["google/flan-t5-base"]),
    ("flan-t5-large", &["google/flan-t5-large"]),
    ("flan-t5-small", &["google/flan-t5-small"]),
    ("flan-t5-xl", &["google/flan-t5-xl"]),
    ("flan-t5-xxl", &["google/flan-t5-xxl"]),
    ("glm-10b-zh", &[]),
    ("gpt2", &["openai-community/gpt2"]),
    ("gpt2-base", &["openai-community/gpt2", "gpt2"]),
    ("gpt2-large", &["openai-community/gpt2-large"]),
    ("gpt2-medium", &["openai-community/gpt2-medium"]),
    ("gpt2-xl", &["openai-community/gpt2-xl"]),
    ("gptj-6b", &["EleutherAI/gpt-j-6b", "EleutherAI/gpt-j-6B"]),
    ("kv-plm", &[]),
    ("lawformer", &["thunlp/Lawformer"]),
    ("mengzi-t5-base", &["Langboat/mengzi-t5-base"]),
    ("mt5-base", &["google/mt5-base"]),
    ("mt5-large", &["google/mt5-large"]),
    ("mt5-small", &["google/mt5-small"]),
    ("mt5-xl", &["google/mt5-xl"]),
    ("mt5-xxl", &["google/mt5-xxl"]),
    ("opt-1.3b", &["facebook/opt-1.3b"]),
    ("opt-125m", &["facebook/opt-125m"]),
    ("opt-13b", &["facebook/opt-13b"]),
    ("opt-2.7b", &["facebook/opt-2.7b"]),
    ("opt-30b", &["facebook/opt-30b"]),
    ("opt-6.7b", &["facebook/opt-6.7b"]),
    ("opt-66b", &["facebook/opt-66b"]),
    ("roberta-base", &["FacebookAI/roberta-base"]),
    ("roberta-large", &["FacebookAI/roberta-large"]),
    ("t5-11b", &["google-t5/t5-11b"]),
    ("t5-3b", &["google-t5/t5-3b"]),
    ("t5-base", &["google-t5/t5-base"]),
    ("t5-large", &["google-t5/t5-large"]),
    ("t5-small", &["google-t5/t5-small"]),
    ("t5-v1_1-base", &["google/t5-v1_1-base"]),
    ("t5-v1_1-large", &["google/t5-v1_1-large"]),
    ("t5-v1_1-small", &["google/t5-v1_1-small"]),
    ("t5-v1_1-xl", &["google/t5-v1_1-xl"]),
    ("t5-v1_1-xxl", &["google/t5-v1_1-xxl"]),
    // Its documents and its tests write it differently.
    ("vit-base-patch16-224", &["google/vit-base-patch16-224"]),
    ("vit-base_patch16_224", &["google/vit-base-patch16-224"]),
    ("wenzhong-gpt2-3.5b", &["IDEA-CCNL/Wenzhong-GPT2-3.5B"]),
];

/// Models that ModelCenter's server has and the hub has not; the program `fetch` asks that server for them.
const ON_SERVER: [&str; 2] = ["cpm1-large", "cpm2-large"];

/// Whether the program `fetch` finds the model on ModelCenter's server.
pub(super) fn is_on_model_centers_server(name: &str) -> bool {
    ON_SERVER.contains(&name)
}

/// The hub's names of ModelCenter's model `name`, the one to download first; `None` if it is not an identifier of
/// ModelCenter's.
pub fn hub_names(name: &str) -> Option<Vec<RepoId>> {
    let (_, names) = ALIASES.iter().find(|(alias, _)| *alias == name)?;
    Some(names.iter().filter_map(|name| RepoId::parse(name).ok()).collect())
}

/// Whether this is the hub's name of one of ModelCenter's models.
pub(super) fn is_hub_name(name: &str) -> bool {
    ALIASES.iter().any(|(_, names)| names.contains(&name))
}

/// Prefixes of identifiers, and the family of the models.
const FAMILIES: &[(&str, &str)] = &[
    ("bert-", "bert"),
    ("cpm1-", "cpm1"),
    ("cpm2-", "cpm2"),
    ("flan-t5-", "t5"),
    ("glm-", "glm"),
    ("gpt2", "gpt2"),
    ("gptj-", "gptj"),
    ("kv-plm", "bert"),
    ("lawformer", "longformer"),
    ("mengzi-t5-", "t5"),
    ("mt5-", "mt5"),
    ("opt-", "opt"),
    ("roberta-", "roberta"),
    ("t5-", "t5"),
    ("vit-", "vit"),
    ("wenzhong-gpt2-", "gpt2"),
];

/// Families of identifiers that no registry line opens.
const UNAVAILABLE: [&str; 3] = ["glm", "longformer", "vit"];

/// The family of ModelCenter's model `name` if there is none of it here.
pub fn unavailable_family(name: &str) -> Option<&'static str> {
    family_of(name).filter(|family| UNAVAILABLE.contains(family))
}

/// The names that ModelCenter has for models of the hub.
pub fn aliases() -> impl Iterator<Item = &'static str> {
    ALIASES.iter().map(|&(alias, _)| alias)
}

/// The family of ModelCenter's model `name`, whose `config.json` does not name it; `None` if it is not an identifier of
/// ModelCenter's.
pub fn family_of(name: &str) -> Option<&'static str> {
    ALIASES.iter().find(|(alias, _)| *alias == name)?;
    FAMILIES.iter().find(|(beginning, _)| name.starts_with(beginning)).map(|(_, family)| *family)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_every_name_in_it_is_one_of_the_hub() {
        assert!(ALIASES.windows(2).all(|pair| pair[0].0 < pair[1].0));
        for (alias, names) in ALIASES {
            RepoId::parse(alias).unwrap();
            assert_eq!(hub_names(alias).unwrap().len(), names.len(), "{alias}");
            assert!(family_of(alias).is_some(), "{alias}");
        }
        assert_eq!((hub_names("own-model"), family_of("bert-of-mine")), (None, None));
    }
}
