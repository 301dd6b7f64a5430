//! Generates text with the families of `model-center` and this one.

model_center::program!(model_center::cli::generate, model_center::model::Registry::new(own_model::TABLES));
