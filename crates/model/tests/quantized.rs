//! Dequantisation against llama.cpp's Python package, on the blocks that `make_quantized.py` made.
#![cfg(feature = "local")]

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use warpsmith_model::HostTensor;
use warpsmith_model::quantized::{GgmlTensor, GgmlType};

#[derive(Deserialize)]
struct Expected {
    blocks: String,
    numbers: String,
}

fn from_hex(digits: &str) -> Vec<u8> {
    let bytes = digits.as_bytes().as_chunks::<2>().0.iter();
    bytes
        .map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap())
        .collect()
}

#[test]
fn dequantised_numbers_equal_llama_cpps_to_the_last_bit() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/quantized/blocks.json");
    let expected: BTreeMap<String, Expected> =
        serde_json::from_str(&fs_err::read_to_string(path).unwrap()).unwrap();
    let types = [
        ("Q4_0", GgmlType::Q4_0),
        ("Q4_1", GgmlType::Q4_1),
        ("Q5_0", GgmlType::Q5_0),
        ("Q5_1", GgmlType::Q5_1),
        ("Q8_0", GgmlType::Q8_0),
        ("Q2_K", GgmlType::Q2K),
        ("Q3_K", GgmlType::Q3K),
        ("Q4_K", GgmlType::Q4K),
        ("Q5_K", GgmlType::Q5K),
        ("Q6_K", GgmlType::Q6K),
        ("F16", GgmlType::F16),
        ("BF16", GgmlType::Bf16),
    ];
    assert_eq!(expected.len(), types.len());
    for (name, ggml_type) in types {
        let Expected { blocks, numbers } = &expected[name];
        let blocks = from_hex(blocks);
        let count = blocks.len() / ggml_type.block_bytes() * ggml_type.block_len();
        let found = GgmlTensor::new(ggml_type, vec![count], blocks).dequantize();
        let found: Vec<u8> = found
            .data()
            .iter()
            .flat_map(|one| one.to_le_bytes())
            .collect();
        assert!(found == from_hex(numbers), "{name}");
    }
}

#[test]
fn eight_bits_are_a_scale_and_whole_multiples_of_it() {
    let numbers: Vec<f32> = (0..64).map(|one| (one as f32 - 20.0) * 0.37).collect();
    let tensor = HostTensor::new([2, 32], numbers);
    let again = GgmlTensor::q8_0(&tensor).dequantize();
    assert_eq!(again.shape(), tensor.shape());
    for (row, largest) in [(0, 20.0 * 0.37), (1, 43.0 * 0.37)] {
        for (found, expected) in again.row(row).iter().zip(tensor.row(row)) {
            // Half a step, and the rounding of the scale to a half float.
            let limit = largest / 127.0 * 0.5 + largest / 2000.0;
            assert!((found - expected).abs() <= limit, "{found} {expected}");
        }
    }
}
