//! Bring a model from one program's files into another's.

model_center::program!(bmtrain_examples::convert::main, model_center::model::Registry::default());
