//! Checkpoint folders: `config.json` to a [`crate::model::Shape`], safetensors to
//! [`crate::model::Weights`].
