//! Writing a GGUF file, version 3.

use std::io::{self, Write};

use super::read::{ALIGNMENT, MAGIC};
use super::value::GgufValue;
use crate::quantized::GgmlTensor;

const VERSION: u32 = 3;

/// Writes a whole file: metadata and tensors in the order given.
pub fn write<'a>(
    file: &mut impl Write,
    metadata: impl ExactSizeIterator<Item = (&'a str, &'a GgufValue)>,
    tensors: &[(String, GgmlTensor)],
) -> io::Result<()> {
    let mut head = Vec::new();
    head.extend(MAGIC);
    head.extend(VERSION.to_le_bytes());
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        push_text(&mut head, key);
        head.extend((value.value_type() as u32).to_le_bytes());
        push_value(&mut head, value)?;
    }
    let mut offset = 0;
    for (name, tensor) in tensors {
        push_text(&mut head, name);
        head.extend((tensor.shape().len() as u32).to_le_bytes());
        for size in tensor.shape().iter().rev() {
            head.extend((*size as u64).to_le_bytes());
        }
        head.extend(tensor.ggml_type().id().to_le_bytes());
        head.extend(u64::to_le_bytes(offset));
        offset += (tensor.bytes().len() as u64).next_multiple_of(ALIGNMENT);
    }
    write_padded(file, &head)?;
    for (_, tensor) in tensors {
        write_padded(file, tensor.bytes())?;
    }
    Ok(())
}

fn write_padded(file: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    file.write_all(bytes)?;
    let length = bytes.len() as u64;
    let padding = length.next_multiple_of(ALIGNMENT) - length;
    file.write_all(&[0; ALIGNMENT as usize][..padding as usize])
}

fn push_text(head: &mut Vec<u8>, text: &str) {
    head.extend((text.len() as u64).to_le_bytes());
    head.extend(text.as_bytes());
}

fn push_value(head: &mut Vec<u8>, value: &GgufValue) -> io::Result<()> {
    match value {
        GgufValue::U8(number) => head.push(*number),
        GgufValue::I8(number) => head.extend(number.to_le_bytes()),
        GgufValue::U16(number) => head.extend(number.to_le_bytes()),
        GgufValue::I16(number) => head.extend(number.to_le_bytes()),
        GgufValue::U32(number) => head.extend(number.to_le_bytes()),
        GgufValue::I32(number) => head.extend(number.to_le_bytes()),
        GgufValue::F32(number) => head.extend(number.to_le_bytes()),
        GgufValue::U64(number) => head.extend(number.to_le_bytes()),
        GgufValue::I64(number) => head.extend(number.to_le_bytes()),
        GgufValue::F64(number) => head.extend(number.to_le_bytes()),
        GgufValue::Bool(flag) => head.push(u8::from(*flag)),
        GgufValue::String(text) => push_text(head, text),
        GgufValue::Array(values) => {
            // What an empty array is an array of, nobody asks.
            let kind = values
                .first()
                .map_or(super::value::ValueType::U32, GgufValue::value_type);
            if values.iter().any(|value| value.value_type() != kind) {
                let reason = "an array holds values of several kinds";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
            }
            head.extend((kind as u32).to_le_bytes());
            head.extend((values.len() as u64).to_le_bytes());
            for value in values {
                push_value(head, value)?;
            }
        }
    }
    Ok(())
}
