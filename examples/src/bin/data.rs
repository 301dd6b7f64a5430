//! Look at the samples that a recipe trains on.

model_center::program!(model_center::cli::data, model_center::model::Registry::default());
