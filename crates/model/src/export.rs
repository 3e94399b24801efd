//! Weights as files that others read.

use std::collections::HashMap;
use std::path::Path;

use candle_core::Tensor;

/// One safetensors file, or in words why there is none.
pub(crate) fn write_safetensors<'a>(
    tensors: impl Iterator<Item = (String, &'a Tensor)>,
    path: &Path,
) -> Result<(), String> {
    // transformers refuses a file that does not say for whom it is.
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize_to_file(tensors, Some(format), path).map_err(|error| error.to_string())
}
