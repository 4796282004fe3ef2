//! A safetensors file of any bytes, and the values of the tensors that it gives.
#![no_main]

use std::{path::Path, sync::Arc};

use calla_engine::{checkpoint::Tensors, model::Bytes};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let file = Bytes::new(Arc::new(bytes.to_vec()));
    let Ok(tensors) = Tensors::parse(Path::new("model.safetensors"), &file) else { return };
    for (name, tensor) in tensors.iter() {
        if let Some(size) = tensor.dtype.size_bytes() {
            assert_eq!(tensor.bytes.len(), size * tensor.shape.iter().product::<usize>(), "{name}");
        }
        let _ = tensor.to_f32();
    }
});
