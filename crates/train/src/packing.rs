//! A packed checkpoint: parameters in `bf16`, the optimizer's moments in 8 bits each.
//!
//! It takes four bytes a parameter instead of twelve. A moment keeps its sign, and its size to 4.4 % whatever that size is: a
//! step divides one moment by the root of the other, so their sizes matter and not how far they are from the largest. A run
//! resumes from it within a tolerance, not bit for bit.

use std::borrow::Cow;
use std::collections::BTreeMap;

use half::bf16;
use safetensors::{Dtype, SafeTensors, View};
use warpsmith_model::HostTensor;

use crate::network::OPTIMIZER;

/// Numbers that share a scale.
const BLOCK: usize = 256;
/// Codes in which a number doubles.
const STEPS: f32 = 8.0;

/// How a code is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// First moments: half of the codes are negative. What is 2¹⁶ times smaller than the largest is zero.
    Signed,
    /// Second moments: twice the range, as a square has. What is smaller still gets the smallest code and not zero, because
    /// the first moment is divided by its root.
    Squares,
}

/// The end of a packed tensor's name.
const KINDS: [(&str, Kind); 2] = [(".signed", Kind::Signed), (".squares", Kind::Squares)];
const SCALES: &str = ".scales";

/// A tensor as a packed file has it.
pub(crate) struct PackedTensor {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl View for &PackedTensor {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.bytes.as_slice().into()
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// One network's state, packed.
pub(crate) fn pack(state: &BTreeMap<String, HostTensor>) -> BTreeMap<String, PackedTensor> {
    let mut packed = BTreeMap::new();
    for (name, tensor) in state {
        let (numbers, shape) = (tensor.data(), tensor.shape().to_vec());
        if !name.starts_with(OPTIMIZER) {
            let numbers = numbers.iter().map(|number| bf16::from_f32(*number));
            let tensor = PackedTensor {
                dtype: Dtype::BF16,
                shape,
                bytes: numbers.flat_map(bf16::to_le_bytes).collect(),
            };
            packed.insert(name.clone(), tensor);
            continue;
        }
        let squares = numbers.iter().all(|one| *one >= 0.0);
        let (suffix, kind) = KINDS[usize::from(squares)];
        let (codes, scales) = encode(numbers, kind);
        let codes = PackedTensor {
            dtype: Dtype::U8,
            shape,
            bytes: codes,
        };
        packed.insert(format!("{name}{suffix}"), codes);
        let scales = PackedTensor {
            dtype: Dtype::F32,
            shape: vec![scales.len()],
            bytes: scales.iter().copied().flat_map(f32::to_le_bytes).collect(),
        };
        packed.insert(format!("{name}{SCALES}"), scales);
    }
    packed
}

/// The state of a packed file, in `f32` again. `None` where it is not what [`pack`] makes.
pub(crate) fn unpack(packed: &SafeTensors<'_>) -> Option<BTreeMap<String, HostTensor>> {
    let mut state = BTreeMap::new();
    for (name, tensor) in packed.iter() {
        let shape = tensor.shape().to_vec();
        if !name.starts_with(OPTIMIZER) {
            if tensor.dtype() != Dtype::BF16 {
                return None;
            }
            let numbers = tensor.data().as_chunks::<2>().0.iter();
            let numbers = numbers.map(|bytes| bf16::from_le_bytes(*bytes).to_f32());
            state.insert(name.to_owned(), HostTensor::new(shape, numbers.collect()));
            continue;
        }
        if name.ends_with(SCALES) {
            continue;
        }
        let named = |(suffix, kind)| Some((name.strip_suffix(suffix)?, kind));
        let (name, kind) = KINDS.into_iter().find_map(named)?;
        let scales = packed.tensor(&format!("{name}{SCALES}")).ok()?;
        if (tensor.dtype(), scales.dtype()) != (Dtype::U8, Dtype::F32) {
            return None;
        }
        let codes = tensor.data();
        let scales = scales.data().as_chunks::<4>().0.iter();
        let scales: Vec<f32> = scales.map(|bytes| f32::from_le_bytes(*bytes)).collect();
        if scales.len() != codes.len().div_ceil(BLOCK) {
            return None;
        }
        let numbers = decode(codes, &scales, kind);
        state.insert(name.to_owned(), HostTensor::new(shape, numbers));
    }
    Some(state)
}

impl Kind {
    /// The code of the largest.
    fn largest(self) -> f32 {
        match self {
            Self::Signed => 127.0,
            Self::Squares => 255.0,
        }
    }
}

/// A code for each number, and the largest size of each block.
fn encode(numbers: &[f32], kind: Kind) -> (Vec<u8>, Vec<f32>) {
    let mut codes = Vec::with_capacity(numbers.len());
    let mut scales = Vec::with_capacity(numbers.len().div_ceil(BLOCK));
    for block in numbers.chunks(BLOCK) {
        let scale = block.iter().fold(0.0_f32, |most, one| most.max(one.abs()));
        scales.push(scale);
        codes.extend(block.iter().map(|number| {
            if *number == 0.0 {
                return 0;
            }
            // In f64: the quotient of two f32 need not be one.
            let below = (f64::from(scale) / f64::from(number.abs())).log2() as f32;
            let size = (kind.largest() - STEPS * below).round();
            match (kind, size >= 1.0) {
                (Kind::Signed, false) => 0,
                (Kind::Squares, false) => 1,
                (_, true) if *number < 0.0 => size as u8 + 128,
                (_, true) => size as u8,
            }
        }));
    }
    (codes, scales)
}

fn decode(codes: &[u8], scales: &[f32], kind: Kind) -> Vec<f32> {
    let number = |code: u8, scale: f32| {
        let (size, sign) = match (kind, code) {
            (_, 0) => return 0.0,
            (Kind::Signed, 128..) => (code - 128, -1.0),
            _ => (code, 1.0),
        };
        sign * scale * ((f32::from(size) - kind.largest()) / STEPS).exp2()
    };
    let blocks = codes.chunks(BLOCK).zip(scales);
    blocks
        .flat_map(|(block, scale)| block.iter().map(|code| number(*code, *scale)))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn again(numbers: &[f32], kind: Kind) -> Vec<f32> {
        let (codes, scales) = encode(numbers, kind);
        assert_eq!(codes.len(), numbers.len());
        decode(&codes, &scales, kind)
    }

    proptest! {
        #[test]
        fn numbers_keep_their_sign_and_about_their_size(
            numbers in prop::collection::vec((-1.0_f32..1.0, -12..0_i32), 1..700),
        ) {
            let numbers: Vec<f32> = numbers.iter().map(|(one, by)| one * 2_f32.powi(*by)).collect();
            let squares: Vec<f32> = numbers.iter().map(|one| one * one).collect();
            for (numbers, kind, least) in [(numbers, Kind::Signed, 2e-5), (squares, Kind::Squares, 4e-10)] {
                let found = again(&numbers, kind);
                for (block, found) in numbers.chunks(BLOCK).zip(found.chunks(BLOCK)) {
                    let most = block.iter().fold(0.0_f32, |most, one| most.max(one.abs()));
                    for (number, found) in block.iter().zip(found) {
                        let allowed = (0.045 * number.abs()).max(most * least);
                        prop_assert!((number - found).abs() <= allowed, "{number} {found} of {most}");
                        prop_assert!(kind == Kind::Signed || *number == 0.0 || *found > 0.0);
                    }
                }
            }
        }
    }

    #[test]
    fn the_largest_is_exact_and_zero_stays_zero() {
        let signed = [0.0, -3.5, 0.0, 1.75, 1e-30];
        assert_eq!(again(&signed, Kind::Signed), [0.0, -3.5, 0.0, 1.75, 0.0]);
        assert_eq!(again(&[0.0; 3], Kind::Squares), [0.0; 3]);
        let tiny = again(&[4.0, 1e-38], Kind::Squares);
        assert_eq!(tiny[..1], [4.0]);
        assert!(tiny[1] > 0.0 && tiny[1] < 1e-8, "{tiny:?}");
    }

    #[test]
    fn a_state_comes_back_and_a_torn_one_is_none() {
        let tensor = |numbers: &[f32]| HostTensor::new([2, 3], numbers.to_vec());
        let state = BTreeMap::from([
            ("a".to_owned(), tensor(&[1.0, -0.5, 3.0, 0.25, 2.0, -8.0])),
            (
                "optimizer.first.a".to_owned(),
                tensor(&[0.5, -0.25, 0.0, 1.0, 2.0, -4.0]),
            ),
            (
                "optimizer.second.a".to_owned(),
                tensor(&[0.5, 0.25, 0.0, 1.0, 2.0, 4.0]),
            ),
        ]);
        let mut packed = pack(&state);
        let bytes: usize = packed
            .iter()
            .filter(|(name, _)| !name.ends_with(SCALES))
            .map(|(_, tensor)| tensor.bytes.len())
            .sum();
        assert_eq!(bytes, 4 * 6);
        let unpacked = |packed: &BTreeMap<String, PackedTensor>| {
            let file = safetensors::serialize(packed, None).unwrap();
            unpack(&SafeTensors::deserialize(&file).unwrap())
        };
        assert_eq!(unpacked(&packed).unwrap(), state);
        packed.remove("optimizer.first.a.scales");
        assert!(unpacked(&packed).is_none());
    }
}
