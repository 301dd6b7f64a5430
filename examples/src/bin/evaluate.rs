//! Evaluate a language model as published evaluations do.

model_center::program!(model_center::cli::evaluate, model_center::model::Registry::default());
