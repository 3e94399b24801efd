//! The value trees of the protocol, as far as the supervisor must understand them: what a worker claims to have put into
//! the arena is checked here before anybody follows it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Where a tensor lies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TensorLocation {
    pub(crate) dtype: String,
    pub(crate) shape: Vec<i64>,
    #[serde(default)]
    pub(crate) stride: Vec<i64>,
    #[serde(default)]
    pub(crate) offset: u64,
    /// Of what the reference returns: its own elements share memory, as those of an `expand` or `unfold` do.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) overlaps: bool,
}

impl TensorLocation {
    pub(crate) fn item_bytes(&self) -> Option<u64> {
        Some(match self.dtype.as_str() {
            "float64" | "int64" | "uint64" | "complex64" => 8,
            "float32" | "int32" | "uint32" => 4,
            "float16" | "bfloat16" | "int16" | "uint16" => 2,
            "bool" | "int8" | "uint8" => 1,
            "complex128" => 16,
            _ => return None,
        })
    }

    pub(crate) fn count(&self) -> Option<u64> {
        self.shape.iter().try_fold(1_u64, |product, &size| {
            product.checked_mul(u64::try_from(size).ok()?)
        })
    }

    /// The byte range touched, if it is a sane place inside `limit` bytes.
    pub(crate) fn range(&self, limit: u64) -> Option<(u64, u64)> {
        if self.shape.len() > 16 || self.shape.len() != self.stride.len() {
            return None;
        }
        let item = self.item_bytes()?;
        if self.count()? == 0 {
            return Some((0, 0));
        }
        let mut last = 0_u64;
        for (&size, &step) in self.shape.iter().zip(&self.stride) {
            let reach = u64::try_from(size - 1)
                .ok()?
                .checked_mul(u64::try_from(step).ok()?)?;
            last = last.checked_add(reach)?;
        }
        let bytes = last.checked_add(1)?.checked_mul(item)?;
        let end = self.offset.checked_add(bytes)?;
        (end <= limit && self.offset.is_multiple_of(item)).then_some((self.offset, end))
    }

    /// Whether two elements may lie in one place. Steps that do not nest count as overlapping: no slice, transpose or
    /// window of memory that was written once has such.
    pub(crate) fn overlaps_itself(&self) -> bool {
        if self.count() == Some(0) {
            return false;
        }
        let dims = self.shape.iter().zip(&self.stride);
        let mut dims: Vec<(i64, i64)> = dims
            .filter(|(size, _)| **size > 1)
            .map(|(&size, &step)| (step, size))
            .collect();
        dims.sort_unstable();
        let mut reach = 0_i64;
        dims.into_iter().any(|(step, size)| {
            let apart = step > reach;
            reach = reach.saturating_add(step.saturating_mul(size - 1));
            !apart
        })
    }

    /// Whether logical order is memory order.
    pub(crate) fn contiguous(&self) -> bool {
        let mut step = 1;
        self.shape
            .iter()
            .zip(&self.stride)
            .rev()
            .all(|(&size, &stride)| {
                let fits = size == 1 || stride == step;
                step *= size;
                fits
            })
    }

    /// Offset in elements of logical (row-major) element `index`.
    pub(crate) fn element(&self, mut index: u64) -> u64 {
        let mut offset = 0;
        for (&size, &step) in self.shape.iter().zip(&self.stride).rev() {
            let size = size as u64;
            offset += (index % size) * step as u64;
            index /= size;
        }
        offset
    }
}

/// The tensors of a tree, in order.
pub(crate) fn tensors(tree: &Value) -> Vec<TensorLocation> {
    let mut found = Vec::new();
    walk(tree, &mut found);
    found
}

fn walk(tree: &Value, found: &mut Vec<TensorLocation>) {
    let Some(object) = tree.as_object() else {
        return;
    };
    if let Some(tensor) = object.get("tensor") {
        found.extend(TensorLocation::deserialize(tensor));
    }
    for key in ["list", "tuple"] {
        for item in object
            .get(key)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            walk(item, found);
        }
    }
    for pair in object
        .get("dict")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        if let Some(value) = pair.get(1) {
            walk(value, found);
        }
    }
}

/// The same tree with the entries of each dict in the order of another tree's: it says nothing of what a module computed. What is
/// not alike stays as it is.
pub(crate) fn in_order_of(want: &Value, mut got: Value) -> Value {
    for key in ["list", "tuple", "dict"] {
        let (Some(want), Some(got)) = (want.get(key), got.get_mut(key)) else {
            continue;
        };
        let (Some(want), Some(got)) = (want.as_array(), got.as_array_mut()) else {
            continue;
        };
        if want.len() != got.len() {
            continue;
        }
        for (at, want) in want.iter().enumerate() {
            let (want, got) = if key == "dict" {
                if let Some(place) = got[at..].iter().position(|pair| pair[0] == want[0]) {
                    got.swap(at, at + place);
                }
                let Some(value) = got[at].get_mut(1) else {
                    continue;
                };
                (&want[1], value)
            } else {
                (want, &mut got[at])
            };
            *got = in_order_of(want, got.take());
        }
    }
    got
}

/// Whether two trees have the same containers, keys, dtypes and shapes; the first difference in words otherwise.
pub(crate) fn same_structure(want: &Value, got: &Value) -> Result<(), String> {
    if let (Some(want), Some(got)) = (want.get("tensor"), got.get("tensor")) {
        for key in ["dtype", "shape"] {
            if want[key] != got[key] {
                return Err(format!("{key} {} instead of {}", got[key], want[key]));
            }
        }
        return Ok(());
    }
    for key in ["list", "tuple", "dict"] {
        let (Some(want), Some(got)) = (want.get(key), got.get(key)) else {
            continue;
        };
        let (want, got) = (want.as_array(), got.as_array());
        let (Some(want), Some(got)) = (want, got) else {
            return Err("a malformed container".to_owned());
        };
        if want.len() != got.len() {
            return Err(format!("{} items instead of {}", got.len(), want.len()));
        }
        for (want, got) in want.iter().zip(got) {
            if key == "dict" {
                if want[0] != got[0] {
                    return Err(format!("key {} instead of {}", got[0], want[0]));
                }
                same_structure(&want[1], &got[1])?;
            } else {
                same_structure(want, got)?;
            }
        }
        return Ok(());
    }
    if kind(want) == kind(got) {
        Ok(())
    } else {
        Err(format!("{} instead of {}", kind(got), kind(want)))
    }
}

fn kind(tree: &Value) -> &'static str {
    match tree {
        Value::Null => "None",
        Value::Bool(_) => "a bool",
        Value::Number(_) => "an int",
        Value::String(_) => "a string",
        Value::Array(_) => "a malformed value",
        Value::Object(object) => match object.keys().next().map(String::as_str) {
            Some("tensor") => "a tensor",
            Some("list") => "a list",
            Some("tuple") => "a tuple",
            Some("dict") => "a dict",
            Some("float") => "a float",
            _ => "a malformed value",
        },
    }
}

/// Whether tensors of different owners overlap, counting only those with elements.
pub(crate) fn overlap(
    places: &[TensorLocation],
    limit: u64,
    owner: impl Fn(usize) -> usize,
) -> bool {
    let mut ranges: Vec<(u64, u64, usize)> = places
        .iter()
        .enumerate()
        .filter_map(|(place, tensor)| Some((tensor.range(limit)?, owner(place))))
        .filter(|((start, end), _)| end > start)
        .map(|((start, end), owner)| (start, end, owner))
        .collect();
    ranges.sort_unstable();
    // How far each owner reaches of those that lie before, and the furthest of the others.
    let (mut furthest, mut next): ((u64, usize), (u64, usize)) = ((0, usize::MAX), (0, usize::MAX));
    for (start, end, owner) in ranges {
        let others = if furthest.1 == owner { next } else { furthest };
        if start < others.0 {
            return true;
        }
        if end > furthest.0 {
            if furthest.1 != owner {
                next = furthest;
            }
            furthest = (end, owner);
        } else if furthest.1 != owner && end > next.0 {
            next = (end, owner);
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dict_may_come_in_any_order() {
        use serde_json::json;
        let tree = |order: [&str; 2], inner: [u8; 2]| {
            let dict: Vec<Value> = order
                .iter()
                .map(|key| json!([key, { "dict": inner.map(|key| json!([key, key])) }]))
                .collect();
            json!({ "tuple": [1, { "dict": dict }] })
        };
        let want = tree(["a", "b"], [1, 2]);
        for got in [
            tree(["b", "a"], [2, 1]),
            tree(["a", "b"], [2, 1]),
            want.clone(),
        ] {
            assert_eq!(in_order_of(&want, got), want);
        }
        for odd in [
            json!(null),
            json!({ "dict": 3 }),
            json!({ "tuple": [1, { "dict": [7, []] }] }),
            tree(["a", "c"], [1, 2]),
        ] {
            assert!(same_structure(&want, &in_order_of(&want, odd)).is_err());
        }
    }

    #[test]
    fn elements_that_share_memory_are_found() {
        let overlaps = |shape: &[i64], stride: &[i64]| {
            TensorLocation {
                dtype: "float32".to_owned(),
                shape: shape.to_vec(),
                stride: stride.to_vec(),
                offset: 0,
                overlaps: false,
            }
            .overlaps_itself()
        };
        for (shape, stride) in [
            (&[16, 961, 64][..], &[1024, 1, 1][..]), // sliding windows
            (&[4, 8], &[0, 1]),                      // expanded
            (&[4, 8], &[4, 1]),                      // rows that reach into the next
            (&[4, 8], &[7, 1]),                      // by one element
            (&[2, i64::MAX], &[1, 1]),
        ] {
            assert!(overlaps(shape, stride), "{shape:?} {stride:?}");
        }
        for (shape, stride) in [
            (&[4, 8][..], &[8, 1][..]),
            (&[4, 8], &[1, 4]),        // transposed
            (&[4, 8], &[16, 2]),       // every second column
            (&[2, 3, 4], &[24, 4, 1]), // a part of a padded buffer
            (&[1, 8, 1], &[0, 1, 0]),  // sizes of one step nowhere
            (&[0, 8], &[0, 0]),        // no elements
            (&[8], &[9]),              // a diagonal
            (&[], &[]),
        ] {
            assert!(!overlaps(shape, stride), "{shape:?} {stride:?}");
        }
    }

    #[test]
    fn what_one_call_shares_with_itself_hides_nothing_of_the_others() {
        let place = |offset: u64| TensorLocation {
            dtype: "float32".to_owned(),
            shape: vec![16],
            stride: vec![1],
            offset,
            overlaps: false,
        };
        let by_two = |place: usize| place / 2;
        // Two outputs of the first call are one.
        let apart = [place(0), place(0), place(256), place(512)];
        assert!(!overlap(&apart, 1024, by_two));
        let shared = [
            place(0),
            place(0),
            place(256),
            place(512),
            place(540),
            place(768),
        ];
        assert!(overlap(&shared, 1024, by_two));
        let inside = [place(0), place(256), place(32), place(512)];
        assert!(overlap(&inside, 1024, by_two));
    }
}
