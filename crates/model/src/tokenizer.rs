//! Text to tokens and back, from `tokenizer.json` or from GGUF metadata.

mod from_gguf;
mod splitting;
mod stream;
mod to_gguf;

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;

pub use self::stream::TextStream;
use crate::ModelError;
use crate::gguf::GgufFile;

/// Names models give to the token that ends a turn or a text; files do not always list all of theirs.
const ENDS: [&str; 5] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "</s>",
];

#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    ends: BTreeSet<u32>,
    beginning: Option<String>,
    end: Option<String>,
}

impl Tokenizer {
    /// From the `.gguf` file or the folder that also holds the weights.
    pub fn load(path: &Path) -> Result<Self, ModelError> {
        if path.is_dir() {
            return Self::from_folder(path);
        }
        let beside = path.with_file_name("tokenizer.json");
        match Self::from_gguf(&GgufFile::open(path)?) {
            // Some kinds of tokenizer cannot be rebuilt from the metadata.
            Err(ModelError::Tokenizer { .. }) if beside.is_file() => {
                Self::from_folder(path.parent().unwrap_or_else(|| Path::new(".")))
            }
            result => result,
        }
    }

    pub(crate) fn from_gguf(gguf: &GgufFile) -> Result<Self, ModelError> {
        let inner = from_gguf::build(gguf)?;
        let named = |key: &str| -> Result<Option<u32>, ModelError> {
            Ok(gguf
                .optional_count(&format!("tokenizer.ggml.{key}_token_id"))?
                .and_then(|id| u32::try_from(id).ok()))
        };
        let (beginning, end) = (named("bos")?, named("eos")?);
        let more = [end, named("eot")?, named("eom")?];
        Ok(Self::new(inner, beginning, end, more.into_iter().flatten()))
    }

    fn from_folder(folder: &Path) -> Result<Self, ModelError> {
        let path = folder.join("tokenizer.json");
        let unusable = |reason: String| ModelError::Tokenizer {
            origin: path.display().to_string(),
            reason,
        };
        let text = fs_err::read(&path).map_err(|error| unusable(error.to_string()))?;
        let inner = tokenizers::Tokenizer::from_bytes(&text)
            .map_err(|error| unusable(error.to_string()))?;
        let mut ends = BTreeSet::new();
        for name in ["generation_config.json", "config.json"] {
            let Ok(text) = fs_err::read_to_string(folder.join(name)) else {
                continue;
            };
            let file: EndFile =
                serde_json::from_str(&text).map_err(|error| ModelError::Broken {
                    path: folder.join(name),
                    reason: error.to_string(),
                })?;
            match file.eos_token_id {
                Some(OneOrMany::One(id)) => ends.extend([id]),
                Some(OneOrMany::Many(ids)) => ends.extend(ids),
                None => {}
            }
        }
        let special = read_special_tokens(folder)?;
        let id = |name: Option<NamedToken>| inner.token_to_id(&name?.content());
        let (beginning, end) = (id(special.bos_token), id(special.eos_token));
        Ok(Self::new(
            inner,
            beginning,
            end,
            ends.into_iter().chain(end),
        ))
    }

    fn new(
        inner: tokenizers::Tokenizer,
        beginning: Option<u32>,
        end: Option<u32>,
        ends: impl Iterator<Item = u32>,
    ) -> Self {
        let known = ENDS.iter().filter_map(|name| inner.token_to_id(name));
        Self {
            ends: ends.chain(known).collect(),
            beginning: beginning.and_then(|id| inner.id_to_token(id)),
            end: end.and_then(|id| inner.id_to_token(id)),
            inner,
        }
    }

    /// Tokens of a text as it stands. Special tokens written out in it become those tokens, which a
    /// rendered chat template relies on; none is added.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        let encoding = self
            .inner
            .encode_fast(text, false)
            .map_err(|error| unusable(&error))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of tokens, special tokens left out.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, ModelError> {
        self.inner
            .decode(tokens, true)
            .map_err(|error| unusable(&error))
    }

    /// Whether the model says with this token that it is done.
    pub fn is_end(&self, token: u32) -> bool {
        self.ends.contains(&token)
    }

    /// The text of the token that begins a text, as chat templates want it.
    pub fn beginning(&self) -> Option<&str> {
        self.beginning.as_deref()
    }

    pub fn end(&self) -> Option<&str> {
        self.end.as_deref()
    }

    /// The tokens that end a reply.
    pub(crate) fn ends(&self) -> &BTreeSet<u32> {
        &self.ends
    }

    /// As a `tokenizer.json`.
    pub(crate) fn to_json(&self) -> Result<String, ModelError> {
        self.inner
            .to_string(false)
            .map_err(|error| unusable(&error))
    }

    pub fn vocabulary(&self) -> usize {
        self.inner.get_vocab_size(true)
    }
}

fn unusable(error: &tokenizers::Error) -> ModelError {
    ModelError::Tokenizer {
        origin: "the loaded model".into(),
        reason: error.to_string(),
    }
}

#[derive(Deserialize)]
struct EndFile {
    eos_token_id: Option<OneOrMany>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(u32),
    Many(Vec<u32>),
}

/// What `tokenizer_config.json` says of the tokens that begin and end a text.
#[derive(Default, Deserialize)]
struct SpecialTokens {
    bos_token: Option<NamedToken>,
    eos_token: Option<NamedToken>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum NamedToken {
    Plain(String),
    Described { content: String },
}

impl NamedToken {
    fn content(self) -> String {
        match self {
            Self::Plain(content) | Self::Described { content } => content,
        }
    }
}

fn read_special_tokens(folder: &Path) -> Result<SpecialTokens, ModelError> {
    let path = folder.join("tokenizer_config.json");
    let Ok(text) = fs_err::read_to_string(&path) else {
        return Ok(SpecialTokens::default());
    };
    serde_json::from_str(&text).map_err(|error| ModelError::Broken {
        path,
        reason: error.to_string(),
    })
}
