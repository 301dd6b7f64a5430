//! Runs the families of `model-center` and this one on given inputs.

model_center::program!(model_center::cli::forward, model_center::model::Registry::new(own_model::TABLES));
