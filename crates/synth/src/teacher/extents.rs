//! How long a dimension is after a convolution or a pool, worked out in writing: a small model that has done the sum does not
//! guess the number.

use std::collections::BTreeMap;

use serde_json::Value;

/// The sums for the dimensions of space, each once; `None` where the operator has no window, or its extents follow another rule.
pub(super) fn worked_out(
    op: &str,
    input: &[u64],
    weight: Option<&[u64]>,
    arguments: &BTreeMap<String, Value>,
    result: &[u64],
) -> Option<String> {
    let transposed = op.starts_with("conv_transpose");
    let kernel = if op.starts_with("conv") {
        weight?.get(2..)?.to_vec()
    } else if op.starts_with("max_pool") || op.starts_with("avg_pool") {
        numbers(arguments.get("kernel_size"), result.len().checked_sub(2)?)
    } else {
        return None;
    };
    let space = kernel.len();
    if space == 0 {
        return None;
    }
    let first = result.len().checked_sub(space).filter(|first| *first > 0)?;
    let all = |name: &str, usual: u64| {
        let given = numbers(arguments.get(name), space);
        if given.len() == space {
            given
        } else {
            vec![usual; space]
        }
    };
    let stride = match numbers(arguments.get("stride"), space) {
        given if given.len() == space => given,
        _ if op.starts_with("conv") => vec![1; space],
        _ => kernel.clone(),
    };
    let (padding, dilation) = (all("padding", 0), all("dilation", 1));
    let output_padding = all("output_padding", 0);
    let mut sums: Vec<String> = Vec::new();
    for dim in 0..space {
        let (length, found) = (*input.get(first + dim)?, *result.get(first + dim)?);
        let (taps, step) = (kernel[dim], stride[dim]);
        let (border, apart) = (padding[dim], dilation[dim]);
        let sum = if transposed {
            let more = output_padding[dim];
            let grown = (length - 1) * step + apart * (taps - 1) + more + 1;
            let after = grown.checked_sub(2 * border)?;
            (after == found).then(|| {
                format!(
                    "({length} - 1) * {step} - 2 * {border} + {apart} * ({taps} - 1) + {more} + 1 = {after}"
                )
            })?
        } else {
            let span = (length + 2 * border).checked_sub(apart * (taps - 1) + 1)?;
            let after = span / step + 1;
            (after == found).then(|| {
                let span_sum =
                    format!("{length} + 2 * {border} - {apart} * ({taps} - 1) - 1 = {span}");
                format!("{span_sum}, {span} / {step} + 1 = {after}")
            })?
        };
        if !sums.contains(&sum) {
            sums.push(sum);
        }
    }
    Some(sums.join("; "))
}

/// One number for each dimension, however they are given.
fn numbers(value: Option<&Value>, space: usize) -> Vec<u64> {
    match value {
        Some(Value::Array(items)) => {
            let items: Vec<u64> = items.iter().filter_map(Value::as_u64).collect();
            match items[..] {
                [one] if space > 1 => vec![one; space],
                _ => items,
            }
        }
        Some(number) => number
            .as_u64()
            .map_or_else(Vec::new, |one| vec![one; space]),
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn arguments(value: &Value) -> BTreeMap<String, Value> {
        serde_json::from_value(value.clone()).unwrap()
    }

    #[test]
    fn sums_are_those_of_pytorch() {
        let plain = arguments(&json!({ "stride": [1, 2], "padding": [2, 4], "dilation": [2, 3] }));
        let said = worked_out(
            "conv2d",
            &[8, 32, 512, 512],
            Some(&[64, 32, 5, 9]),
            &plain,
            &[8, 64, 508, 248],
        );
        let expected = "512 + 2 * 2 - 2 * (5 - 1) - 1 = 507, 507 / 1 + 1 = 508; \
                        512 + 2 * 4 - 3 * (9 - 1) - 1 = 495, 495 / 2 + 1 = 248";
        assert_eq!(said.as_deref(), Some(expected));
        let grown = arguments(
            &json!({ "stride": [2], "padding": [1], "output_padding": [1], "dilation": [1] }),
        );
        let said = worked_out(
            "conv_transpose1d",
            &[1, 8, 64],
            Some(&[8, 4, 3]),
            &grown,
            &[1, 4, 128],
        );
        assert_eq!(
            said.as_deref(),
            Some("(64 - 1) * 2 - 2 * 1 + 1 * (3 - 1) + 1 + 1 = 128")
        );
        let pool =
            arguments(&json!({ "kernel_size": [2, 2], "stride": [2, 2], "padding": [0, 0] }));
        let said = worked_out("max_pool2d", &[1, 3, 65, 65], None, &pool, &[1, 3, 32, 32]);
        assert_eq!(
            said.as_deref(),
            Some("65 + 2 * 0 - 1 * (2 - 1) - 1 = 63, 63 / 2 + 1 = 32")
        );
    }

    #[test]
    fn a_sum_that_would_be_wrong_is_not_said() {
        let ceil = arguments(&json!({ "kernel_size": 2, "stride": 2, "ceil_mode": true }));
        let said = worked_out("max_pool2d", &[1, 3, 65, 65], None, &ceil, &[1, 3, 33, 33]);
        assert_eq!(said, None);
        assert_eq!(worked_out("relu", &[4], None, &BTreeMap::new(), &[4]), None);
    }
}
