//! Treatment of each field of a directory of sentence-transformers.
//!
//! Defines [`meaning`], which tells of every field that sentence-transformers 6.2 knows whether it is used, has no
//! effect here or is refused; `settings` reads the files so.

use model_center_formats::tokenizer::ConfigField;

use ConfigField::{Refused, Used, WithoutEffect};

/// Fields of the transformer's settings without effect on embeddings: how weights are fetched and computed with.
pub(super) const NEUTRAL: [&str; 4] = ["unpad_inputs", "cache_dir", "backend", "trust_remote_code"];
/// Fields of the prompts' file without effect: versions, and how embeddings are compared.
pub(super) const NEUTRAL_OF_PROMPTS: [&str; 3] = ["__version__", "similarity_fn_name", "requirements"];
/// Tables of arguments of the transformer's classes; arguments without effect are passed over.
pub(super) const ARGUMENTS: [&str; 6] =
    ["model_args", "model_kwargs", "tokenizer_args", "processor_kwargs", "config_args", "config_kwargs"];

const FETCHED: &str = "it tells how weights are fetched and computed with";
const OTHER_KIND: &str = "it is of another kind of model than dense sentence encoders";
const OTHER_INPUT: &str = "inputs would have to be made in another way";

/// By the owner, a file or the class of a module with a file of its own: its fields with what becomes of them.
const FIELDS: &[(&str, ConfigField, &[&str])] = &[
    ("modules.json", Used, &["path", "type"]),
    ("modules.json", WithoutEffect("the order of the list counts"), &["idx", "name"]),
    ("modules.json", Refused("no step takes arguments of calls"), &["kwargs"]),
    ("config_sentence_transformers.json", Used, &["default_prompt_name", "model_type", "prompts"]),
    ("config_sentence_transformers.json", WithoutEffect("it is of versions and comparisons"), &NEUTRAL_OF_PROMPTS),
    ("config_sentence_transformers.json", Refused("embeddings would be cut"), &["truncate_dim"]),
    (
        "config_sentence_transformers.json",
        Refused(OTHER_KIND),
        &[
            "activation_fn",
            "attend",
            "attend_to_expansion_tokens",
            "attend_to_mask_tokens",
            "do_query_expansion",
            "keep_in_fp32_modules",
            "length",
            "max_active_dims",
            "query_length",
            "skiplist_words",
            "strategy",
        ],
    ),
    (
        "Transformer",
        Used,
        &["do_lower_case", "max_seq_length", "modality_config", "module_output_name", "transformer_task"],
    ),
    ("Transformer", Used, &ARGUMENTS),
    ("Transformer", WithoutEffect(FETCHED), &NEUTRAL),
    (
        "Transformer",
        Refused(OTHER_INPUT),
        &["document_length", "processing_kwargs", "query_expansion", "query_length", "tokenizer_name_or_path"],
    ),
    (
        "Pooling",
        Used,
        &[
            "embedding_dimension",
            "include_prompt",
            "pooling_mode",
            "pooling_mode_cls_token",
            "pooling_mode_lasttoken",
            "pooling_mode_max_tokens",
            "pooling_mode_mean_sqrt_len_tokens",
            "pooling_mode_mean_tokens",
            "pooling_mode_weightedmean_tokens",
            "word_embedding_dimension",
        ],
    ),
    (
        "Dense",
        Used,
        &["activation_function", "bias", "in_features", "module_input_name", "module_output_name", "out_features"],
    ),
    ("Dense", Refused("its input would have to be added"), &["use_residual"]),
    ("Dense", Refused("the weights are in a file"), &["init_bias", "init_weight"]),
    ("Normalize", Used, &["module_input_name", "module_output_name"]),
    ("Dropout", WithoutEffect("nothing is dropped outside training"), &["dropout"]),
];

/// The other steps of sentence-transformers, which [`read`](super::settings::read) refuses by their class.
const OTHER_STEPS: [&str; 15] = [
    "BaseTokenPooling",
    "BoW",
    "CNN",
    "HierarchicalTokenPooling",
    "LSTM",
    "LayerNorm",
    "LogitScore",
    "MultiVectorMask",
    "Router",
    "SparseAutoEncoder",
    "SparseStaticEmbedding",
    "SpladePooling",
    "WeightedLayerPooling",
    "WordEmbeddings",
    "WordWeights",
];

/// Treatment of a field of a file, or of the file of a module by the name of its class; `None` for one that
/// sentence-transformers does not know.
pub fn meaning(owner: &str, field: &str) -> Option<ConfigField> {
    if OTHER_STEPS.contains(&owner) {
        return Some(Refused("the step is not supported"));
    }
    let found = FIELDS.iter().find(|(known, _, names)| *known == owner && names.contains(&field));
    found.map(|(_, meaning, _)| *meaning)
}
