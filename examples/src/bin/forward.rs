//! Run a model once on given inputs and write logits, hidden states and gradients: for people who port or check a
//! model.

model_center::program!(model_center::cli::forward, model_center::model::Registry::default());
