//! A checkpoint small enough to travel: parameters in `bf16`, the optimiser's means in 8 bits each.
//!
//! Four bytes a parameter instead of twelve. A mean keeps its sign and its size to 4.4 %, whatever its size: an update is a
//! quotient of two of them, and what matters of both is how large they are, not how far from the largest. A run goes on from
//! it within a tolerance, not bit for bit.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor};

use crate::TrainError;
use crate::network::OPTIMIZER;

/// Numbers that share a scale.
const BLOCK: usize = 256;
/// Codes in which a number doubles.
const STEPS: f32 = 8.0;

/// How a code is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Means of gradients: half of the codes are negative. What is 2¹⁶ times smaller than the largest is zero.
    Signed,
    /// Means of squares: twice the range, as a square has. What is smaller still is taken for the smallest that has a code
    /// and not for zero, by which the other mean would be divided.
    Squares,
}

/// The end of a packed tensor's name.
const KINDS: [(&str, Kind); 2] = [(".signed", Kind::Signed), (".squares", Kind::Squares)];
const SCALES: &str = ".scales";

/// One network's state, packed.
pub fn pack(state: &BTreeMap<String, Tensor>) -> Result<BTreeMap<String, Tensor>, TrainError> {
    let mut packed = BTreeMap::new();
    for (name, tensor) in state {
        if !name.starts_with(OPTIMIZER) {
            packed.insert(name.clone(), tensor.to_dtype(DType::BF16)?);
            continue;
        }
        let numbers: Vec<f32> = tensor.flatten_all()?.to_vec1()?;
        let squares = numbers.iter().all(|one| *one >= 0.0);
        let (suffix, kind) = KINDS[usize::from(squares)];
        let (codes, scales) = encode(&numbers, kind);
        let codes = Tensor::from_vec(codes, tensor.dims(), &Device::Cpu)?;
        packed.insert(format!("{name}{suffix}"), codes);
        let blocks = scales.len();
        let scales = Tensor::from_vec(scales, blocks, &Device::Cpu)?;
        packed.insert(format!("{name}{SCALES}"), scales);
    }
    Ok(packed)
}

/// What was packed, in `f32` again. `None` where it is not what [`pack`] makes.
pub fn unpack(
    packed: &BTreeMap<String, Tensor>,
) -> Result<Option<BTreeMap<String, Tensor>>, TrainError> {
    let mut state = BTreeMap::new();
    for (name, tensor) in packed {
        if !name.starts_with(OPTIMIZER) {
            state.insert(name.clone(), tensor.to_dtype(DType::F32)?);
            continue;
        }
        if name.ends_with(SCALES) {
            continue;
        }
        let named = |(suffix, kind)| Some((name.strip_suffix(suffix)?, kind));
        let Some((name, kind)) = KINDS.into_iter().find_map(named) else {
            return Ok(None);
        };
        let codes: Vec<u8> = tensor.flatten_all()?.to_vec1()?;
        let scales = match packed.get(&format!("{name}{SCALES}")) {
            Some(scales) => scales.to_vec1::<f32>()?,
            None => return Ok(None),
        };
        if scales.len() != codes.len().div_ceil(BLOCK) {
            return Ok(None);
        }
        let numbers = decode(&codes, &scales, kind);
        let numbers = Tensor::from_vec(numbers, tensor.dims(), &Device::Cpu)?;
        state.insert(name.to_owned(), numbers);
    }
    Ok(Some(state))
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
        let tensor = |numbers: &[f32]| Tensor::from_slice(numbers, (2, 3), &Device::Cpu).unwrap();
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
        let packed = pack(&state).unwrap();
        let bytes: usize = packed
            .iter()
            .filter(|(name, _)| !name.ends_with(SCALES))
            .map(|(_, tensor)| tensor.elem_count() * tensor.dtype().size_in_bytes())
            .sum();
        assert_eq!(bytes, 4 * 6);
        let found = unpack(&packed).unwrap().unwrap();
        let values = |state: &BTreeMap<String, Tensor>| -> Vec<Vec<Vec<f32>>> {
            state.values().map(|one| one.to_vec2().unwrap()).collect()
        };
        assert_eq!(values(&found), values(&state));
        let mut torn = packed;
        torn.remove("optimizer.first.a.scales");
        assert!(unpack(&torn).unwrap().is_none());
    }
}
