use std::path::PathBuf;

use super::Projection;

/// Why an adapter could not be read, written or stacked.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    #[error("there is no adapter in `{folder}`: it has no `{file}`")]
    Missing { folder: PathBuf, file: &'static str },
    #[error("failed to read `{path}`")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("`{path}` is not an adapter we can read: {reason}")]
    Broken { path: PathBuf, reason: String },
    #[error("the adapter `{path}` has `{option}` set to {value}, which is not supported")]
    Unsupported {
        path: PathBuf,
        option: String,
        value: String,
    },
    #[error("the adapter has a tensor `{tensor}`, which belongs to nothing that can be adapted")]
    UnknownTensor { tensor: String },
    #[error("the adapter's settings name the module `{module}`, and it has no tensors for it")]
    NoTensors { module: String },
    #[error("the adapter has only one of the two tensors of `{module}`: `{missing}` is missing")]
    HalfPair {
        module: String,
        missing: &'static str,
    },
    #[error(
        "`lora_A` and `lora_B` of `{module}` have shapes {a:?} and {b:?}, not those of rank {rank}"
    )]
    Rank {
        module: String,
        a: Vec<usize>,
        b: Vec<usize>,
        rank: usize,
    },
    #[error("the adapter changes `{module}`, and the model has only {layers} layers")]
    NoSuchModule { module: String, layers: usize },
    #[error(
        "the adapter is made for a `{module}` of shape {found:?}, and the model's is {expected:?}"
    )]
    Shape {
        module: String,
        found: [usize; 2],
        expected: [usize; 2],
    },
    #[error("failed to write `{path}`: {reason}")]
    Write { path: PathBuf, reason: String },
}

impl AdapterError {
    /// What the user can do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::Missing { folder, file } if folder.join("adapter_model.bin").is_file() => format!(
                "only safetensors are read: load it with PEFT and save it again, so that `{file}` is written"
            ),
            Self::Missing { .. } => {
                "give the folder that PEFT's `save_pretrained` wrote, with `adapter_config.json` and `adapter_model.safetensors`".into()
            }
            Self::Read { .. } => "check that the file is there and may be read".into(),
            Self::Broken { .. } | Self::NoTensors { .. } | Self::HalfPair { .. } => {
                "the adapter was not written to the end: save or copy it again".into()
            }
            Self::Unsupported { option, .. } => format!(
                "train the adapter without `{option}`, or merge it with PEFT's `merge_and_unload` and use the merged model"
            ),
            Self::UnknownTensor { .. } => {
                let names: Vec<&str> = Projection::ALL.iter().map(|one| one.name()).collect();
                format!(
                    "train it with `target_modules` among {}, or merge it with PEFT's `merge_and_unload` and use the merged model",
                    names.join(", ")
                )
            }
            Self::Rank { .. } => {
                "`adapter_config.json` and `adapter_model.safetensors` are of different adapters: copy both from the same place".into()
            }
            Self::NoSuchModule { .. } | Self::Shape { .. } => {
                "use the base model it was trained on, which `adapter_config.json` names in `base_model_name_or_path`".into()
            }
            Self::Write { .. } => "check that the folder may be written and the disk has room".into(),
        }
    }
}
