//! Look at checkpoints, check them, write them again in other files, and export them as model directories.

model_center::program!(bmtrain_examples::ckpt::main, model_center::model::Registry::default());
