//! Generate texts for prompts, or answer in a conversation.

model_center::program!(bmtrain_examples::generate::main, model_center::model::Registry::default());
