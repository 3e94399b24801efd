//! Event files read back, by another way than they are written: a table for the checksum, any protobuf field skipped.

use std::path::Path;

pub(crate) struct Read {
    pub(crate) version: String,
    pub(crate) wall_time_s: Option<f64>,
    /// Tag, step, value.
    pub(crate) scalars: Vec<(String, u64, f32)>,
}

enum Value<'a> {
    Varint(u64),
    Double(f64),
    Float(f32),
    Bytes(&'a [u8]),
}

pub(crate) fn read(folder: &Path) -> Read {
    let mut files = fs_err::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let file = files.next().unwrap();
    assert!(file.to_str().unwrap().contains("tfevents"));
    assert!(files.next().is_none());
    let mut found = Read {
        version: String::new(),
        wall_time_s: None,
        scalars: Vec::new(),
    };
    for record in records(&fs_err::read(file).unwrap()) {
        let mut step = 0;
        for (number, value) in fields(record) {
            match (number, value) {
                (1, Value::Double(seconds)) => found.wall_time_s = Some(seconds),
                (2, Value::Varint(number)) => step = number,
                (3, Value::Bytes(text)) => {
                    found.version = String::from_utf8(text.to_vec()).unwrap();
                }
                (5, Value::Bytes(summary)) => found.scalars.extend(scalars(summary, step)),
                (number, _) => panic!("field {number} is not expected"),
            }
        }
    }
    found
}

fn scalars(summary: &[u8], step: u64) -> Vec<(String, u64, f32)> {
    let values = fields(summary).into_iter().map(|(_, value)| {
        let Value::Bytes(value) = value else {
            panic!("not a value")
        };
        let (mut tag, mut number) = (String::new(), f32::NAN);
        for field in fields(value) {
            match field {
                (1, Value::Bytes(text)) => tag = String::from_utf8(text.to_vec()).unwrap(),
                (2, Value::Float(found)) => number = found,
                (other, _) => panic!("field {other} is not expected"),
            }
        }
        (tag, step, number)
    });
    values.collect()
}

fn records(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        assert_eq!(
            u32::from_le_bytes(bytes[8..12].try_into().unwrap()),
            masked(&bytes[..8])
        );
        let content = &bytes[12..12 + length];
        let after = 12 + length;
        assert_eq!(
            u32::from_le_bytes(bytes[after..after + 4].try_into().unwrap()),
            masked(content)
        );
        found.push(content);
        bytes = &bytes[after + 4..];
    }
    found
}

fn masked(bytes: &[u8]) -> u32 {
    let table: Vec<u32> = (0..256_u32)
        .map(|byte| {
            (0..8).fold(byte, |sum, _| {
                if sum & 1 == 1 {
                    (sum >> 1) ^ 0x82f6_3b78
                } else {
                    sum >> 1
                }
            })
        })
        .collect();
    let sum = bytes.iter().fold(u32::MAX, |sum, byte| {
        (sum >> 8) ^ table[((sum ^ u32::from(*byte)) & 255) as usize]
    });
    let sum = !sum;
    sum.rotate_right(15).wrapping_add(0xa282_ead8)
}

fn fields(mut bytes: &[u8]) -> Vec<(u64, Value<'_>)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = match key & 7 {
            0 => Value::Varint(varint(&mut bytes)),
            1 => Value::Double(f64::from_le_bytes(take(&mut bytes, 8).try_into().unwrap())),
            2 => {
                let length = varint(&mut bytes) as usize;
                Value::Bytes(take(&mut bytes, length))
            }
            5 => Value::Float(f32::from_le_bytes(take(&mut bytes, 4).try_into().unwrap())),
            kind => panic!("a field of kind {kind}"),
        };
        found.push((key >> 3, value));
    }
    found
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(length);
    *bytes = rest;
    taken
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let byte = take(bytes, 1)[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}
