//! Generate texts for prompts, or answer in a conversation.

model_center::program!(model_center::cli::generate, model_center::model::Registry::default());
