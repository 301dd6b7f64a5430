//! Serve a model in the form of OpenAI's API.

model_center::program!(model_center::cli::serve, model_center::model::Registry::default());
