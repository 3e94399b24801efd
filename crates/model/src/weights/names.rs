//! What each part of the network is called in the two kinds of file.

/// A tensor of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightName {
    Embedding,
    FinalNorm,
    Output,
    Layer(usize, LayerWeight),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerWeight {
    AttentionNorm,
    Query,
    Key,
    Value,
    AttentionOutput,
    QueryNorm,
    KeyNorm,
    FeedForwardNorm,
    Gate,
    Up,
    Down,
}

impl WeightName {
    /// Without the `.weight` or `.bias` at the end.
    pub(crate) fn in_gguf(self) -> String {
        use LayerWeight as L;
        match self {
            Self::Embedding => "token_embd".into(),
            Self::FinalNorm => "output_norm".into(),
            Self::Output => "output".into(),
            Self::Layer(layer, part) => {
                let name = match part {
                    L::AttentionNorm => "attn_norm",
                    L::Query => "attn_q",
                    L::Key => "attn_k",
                    L::Value => "attn_v",
                    L::AttentionOutput => "attn_output",
                    L::QueryNorm => "attn_q_norm",
                    L::KeyNorm => "attn_k_norm",
                    L::FeedForwardNorm => "ffn_norm",
                    L::Gate => "ffn_gate",
                    L::Up => "ffn_up",
                    L::Down => "ffn_down",
                };
                format!("blk.{layer}.{name}")
            }
        }
    }

    /// As transformers calls it, without the `.weight` or `.bias` at the end.
    pub fn in_safetensors(self) -> String {
        use LayerWeight as L;
        match self {
            Self::Embedding => "model.embed_tokens".into(),
            Self::FinalNorm => "model.norm".into(),
            Self::Output => "lm_head".into(),
            Self::Layer(layer, part) => {
                let name = match part {
                    L::AttentionNorm => "input_layernorm",
                    L::Query => "self_attn.q_proj",
                    L::Key => "self_attn.k_proj",
                    L::Value => "self_attn.v_proj",
                    L::AttentionOutput => "self_attn.o_proj",
                    L::QueryNorm => "self_attn.q_norm",
                    L::KeyNorm => "self_attn.k_norm",
                    L::FeedForwardNorm => "post_attention_layernorm",
                    L::Gate => "mlp.gate_proj",
                    L::Up => "mlp.up_proj",
                    L::Down => "mlp.down_proj",
                };
                format!("model.layers.{layer}.{name}")
            }
        }
    }
}
