//! Predict with a fine-tuned model: classes, numbers, entities, answers, embeddings; metrics where labels are known.

model_center::program!(model_center::cli::predict, model_center::model::Registry::default());
