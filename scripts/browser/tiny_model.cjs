// A chat model of random numbers as a folder, small enough to learn one reply by heart on two cores.
//   node tiny_model.cjs FOLDER
const fs = require("fs");
const path = require("path");

const [folder] = process.argv.slice(2);
const VOCABULARY = 705;
const HIDDEN = 64;
const FEED_FORWARD = 128;
const LAYERS = 2;
const HEADS = 4;
const KV_HEADS = 2;
const TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

fs.mkdirSync(folder, { recursive: true });
const write = (name, content) => fs.writeFileSync(path.join(folder, name), content);
fs.copyFileSync("crates/model/tests/tokens/tokenizer.json", path.join(folder, "tokenizer.json"));
write("tokenizer_config.json", JSON.stringify({ eos_token: "<|im_end|>", chat_template: TEMPLATE }));
write("config.json", JSON.stringify({
  architectures: ["LlamaForCausalLM"], model_type: "llama", hidden_act: "silu", vocab_size: VOCABULARY, hidden_size: HIDDEN,
  intermediate_size: FEED_FORWARD, num_hidden_layers: LAYERS, num_attention_heads: HEADS, num_key_value_heads: KV_HEADS,
  max_position_embeddings: 8192, rms_norm_eps: 1e-5, rope_theta: 10000, tie_word_embeddings: true, torch_dtype: "float32",
}));

// Always the same numbers.
let state = 5;
const random = () => ((state = (Math.imul(state, 1664525) + 1013904223) >>> 0) / 2 ** 31 - 1);
const tensors = { "model.norm.weight": [[HIDDEN], () => 1] };
const matrix = (name, rows, columns) => (tensors[`${name}.weight`] = [[rows, columns], () => random() / Math.sqrt(columns)]);
matrix("model.embed_tokens", VOCABULARY, HIDDEN);
const kv = (HIDDEN / HEADS) * KV_HEADS;
for (let layer = 0; layer < LAYERS; layer++) {
  const of = (name) => `model.layers.${layer}.${name}`;
  for (const [name, rows, columns] of [
    ["self_attn.q_proj", HIDDEN, HIDDEN], ["self_attn.k_proj", kv, HIDDEN], ["self_attn.v_proj", kv, HIDDEN], ["self_attn.o_proj", HIDDEN, HIDDEN],
    ["mlp.gate_proj", FEED_FORWARD, HIDDEN], ["mlp.up_proj", FEED_FORWARD, HIDDEN], ["mlp.down_proj", HIDDEN, FEED_FORWARD],
  ]) matrix(of(name), rows, columns);
  for (const name of ["input_layernorm", "post_attention_layernorm"]) tensors[`${of(name)}.weight`] = [[HIDDEN], () => 1];
}
const header = {};
const numbers = [];
for (const [name, [shape, number]] of Object.entries(tensors)) {
  const begins = numbers.length * 4;
  for (let n = shape.reduce((a, b) => a * b); n > 0; n--) numbers.push(number());
  header[name] = { dtype: "F32", shape, data_offsets: [begins, numbers.length * 4] };
}
const text = Buffer.from(JSON.stringify(header));
const length = Buffer.alloc(8);
length.writeBigUInt64LE(BigInt(text.length));
write("model.safetensors", Buffer.concat([length, text, Buffer.from(new Float32Array(numbers).buffer)]));
