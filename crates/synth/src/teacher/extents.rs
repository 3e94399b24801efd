//! What numbers of an operator lead to the extents of its result, worked out in writing: a small model that has done the sum
//! does not guess the number.

use std::collections::BTreeMap;

use serde_json::Value;

/// The sums for the dimensions of space, each once; groups, or dimensions; `None` where the operator has none of these, or its
/// extents follow another rule.
pub(super) fn worked_out(
    op: &str,
    input: &[u64],
    weight: Option<&[u64]>,
    arguments: &BTreeMap<String, Value>,
    result: &[u64],
) -> Option<String> {
    if op == "group_norm" {
        let groups = arguments.get("num_groups")?.as_u64()?;
        let channels = *input.get(1)?;
        let each = channels.checked_div(groups)?;
        return Some(format!("{groups} groups: {channels} / {groups} = {each}"));
    }
    if ALONG.contains(&op) {
        return arguments.get("dim").and_then(dimensions);
    }
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
        let mut sum = Arithmetic::default();
        // Side by side there are as many windows as there is room for.
        let side_by_side = !transposed && step > 1 && step == taps && apart == 1;
        let reach = if side_by_side {
            0
        } else {
            let reach = sum.minus(taps, 1)?;
            sum.times(reach, apart)
        };
        let after = if transposed {
            let grown = sum.minus(length, 1)?;
            let grown = sum.times(grown, step);
            let borders = sum.times(border, 2);
            let grown = sum.plus(grown, reach);
            let grown = sum.minus(grown, borders)?;
            sum.plus(grown, output_padding[dim] + 1)
        } else {
            let borders = sum.times(border, 2);
            let wide = sum.plus(length, borders);
            let span = sum.minus(wide, reach)?;
            if side_by_side {
                sum.divided(span, step)
            } else if step == 1 {
                span
            } else {
                let span = sum.minus(span, 1)?;
                let steps = sum.divided(span, step);
                sum.plus(steps, 1)
            }
        };
        if after != found {
            return None;
        }
        sums.push(sum.written(found));
    }
    // Each by itself, where they are not all one: a shape has as many numbers.
    if sums.iter().all(|sum| *sum == sums[0]) {
        sums.truncate(1);
    }
    let named = [
        ("kernel", &kernel, true),
        ("stride", &stride, true),
        ("padding", &padding, true),
        ("output padding", &output_padding, transposed),
        ("dilation", &dilation, !op.starts_with("avg")),
    ];
    let named: Vec<String> = named
        .into_iter()
        .filter(|(_, _, is_said)| *is_said)
        .map(|(name, numbers, _)| format!("{name} {}", spelled(numbers)))
        .collect();
    Some(format!("{}: {}", named.join(", "), sums.join("; ")))
}

/// Operators along dimensions.
const ALONG: [&str; 16] = [
    "sum",
    "mean",
    "max",
    "min",
    "amax",
    "amin",
    "argmax",
    "argmin",
    "prod",
    "var",
    "std",
    "logsumexp",
    "softmax",
    "log_softmax",
    "cumsum",
    "cumprod",
];

/// `dim 1`, or `dim (2, 3)`.
fn dimensions(value: &Value) -> Option<String> {
    let many = |items: &Vec<Value>| {
        let dims: Option<Vec<String>> = items
            .iter()
            .map(|one| Some(one.as_i64()?.to_string()))
            .collect();
        Some(match &dims?[..] {
            [one] => one.clone(),
            several => format!("({})", several.join(", ")),
        })
    };
    let dims = match value {
        Value::Array(items) => many(items)?,
        one => one.as_i64()?.to_string(),
    };
    Some(format!("dim {dims}"))
}

/// One number for all dimensions, or each in brackets.
fn spelled(numbers: &[u64]) -> String {
    match numbers {
        [first, rest @ ..] if rest.iter().all(|other| other == first) => first.to_string(),
        _ => {
            let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
            format!("({})", numbers.join(", "))
        }
    }
}

/// A sum in single steps, each of two numbers: what is done at once, a small model gets wrong. What changes nothing is not written.
#[derive(Default)]
struct Arithmetic(Vec<String>);

impl Arithmetic {
    fn step(&mut self, text: &str, found: u64) -> u64 {
        self.0.push(format!("{text} = {found}"));
        found
    }

    fn plus(&mut self, left: u64, right: u64) -> u64 {
        match (left, right) {
            (0, other) | (other, 0) => other,
            _ => self.step(&format!("{left} + {right}"), left + right),
        }
    }

    /// `None` below zero.
    fn minus(&mut self, left: u64, right: u64) -> Option<u64> {
        let found = left.checked_sub(right)?;
        Some(match right {
            0 => left,
            _ => self.step(&format!("{left} - {right}"), found),
        })
    }

    fn times(&mut self, left: u64, right: u64) -> u64 {
        match (left, right) {
            (0, _) | (_, 0) => 0,
            (1, other) | (other, 1) => other,
            _ => self.step(&format!("{left} * {right}"), left * right),
        }
    }

    /// Without the remainder.
    fn divided(&mut self, left: u64, right: u64) -> u64 {
        self.step(&format!("{left} / {right}"), left / right)
    }

    /// All steps; the number itself where there was nothing to do.
    fn written(self, found: u64) -> String {
        if self.0.is_empty() {
            return format!("{found} = {found}");
        }
        self.0.join(", ")
    }
}

/// `M = 1024 * 2 = 2048`, of a line of constants that are products; the other lines say nothing.
pub(super) fn multiplied(line: &str) -> Option<String> {
    let (name, product) = line.split('#').next()?.split_once('=')?;
    let (name, product) = (name.trim_end(), product.trim());
    let is_name = name.starts_with(char::is_alphabetic)
        && name
            .chars()
            .all(|letter| letter.is_alphanumeric() || letter == '_');
    let (left, right) = product.split_once(" * ")?;
    let (left, right): (u64, u64) = (left.parse().ok()?, right.parse().ok()?);
    let found = left.checked_mul(right).filter(|_| is_name)?;
    Some(format!("{name} = {left} * {right} = {found}"))
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
        let expected = "kernel (5, 9), stride (1, 2), padding (2, 4), dilation (2, 3): 5 - 1 = 4, 4 * 2 = 8, 2 * 2 = 4, 512 + 4 = 516, 516 - 8 = 508; \
                        9 - 1 = 8, 8 * 3 = 24, 4 * 2 = 8, 512 + 8 = 520, 520 - 24 = 496, 496 - 1 = 495, 495 / 2 = 247, 247 + 1 = 248";
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
            Some(
                "kernel 3, stride 2, padding 1, output padding 1, dilation 1: 3 - 1 = 2, 64 - 1 = 63, 63 * 2 = 126, 126 + 2 = 128, 128 - 2 = 126, 126 + 2 = 128"
            )
        );
        let pool =
            arguments(&json!({ "kernel_size": [2, 2], "stride": [2, 2], "padding": [0, 0] }));
        let said = worked_out("max_pool2d", &[1, 3, 65, 65], None, &pool, &[1, 3, 32, 32]);
        assert_eq!(
            said.as_deref(),
            Some("kernel 2, stride 2, padding 0, dilation 1: 65 / 2 = 32")
        );
        let pool =
            arguments(&json!({ "kernel_size": [3, 3], "stride": [2, 2], "padding": [1, 1] }));
        let said = worked_out("max_pool2d", &[1, 3, 65, 65], None, &pool, &[1, 3, 33, 33]);
        assert_eq!(
            said.as_deref(),
            Some(
                "kernel 3, stride 2, padding 1, dilation 1: 3 - 1 = 2, 65 + 2 = 67, 67 - 2 = 65, 65 - 1 = 64, 64 / 2 = 32, 32 + 1 = 33"
            )
        );
    }

    #[test]
    fn constants_that_are_products_are_multiplied() {
        assert_eq!(
            multiplied("K = 4096 * 2").as_deref(),
            Some("K = 4096 * 2 = 8192")
        );
        assert_eq!(
            multiplied("dim  = 4096 * 2  # long").as_deref(),
            Some("dim = 4096 * 2 = 8192")
        );
        for line in ["    x = 4 * 2", "K = 8192", "y = x * 2", "K = 2 * 2 * 2"] {
            assert_eq!(multiplied(line), None, "{line}");
        }
    }

    #[test]
    fn a_sum_that_would_be_wrong_is_not_said() {
        let ceil = arguments(&json!({ "kernel_size": 2, "stride": 2, "ceil_mode": true }));
        let said = worked_out("max_pool2d", &[1, 3, 65, 65], None, &ceil, &[1, 3, 33, 33]);
        assert_eq!(said, None);
        assert_eq!(worked_out("relu", &[4], None, &BTreeMap::new(), &[4]), None);
    }

    #[test]
    fn groups_and_dimensions_are_named() {
        let groups = arguments(&json!({ "num_groups": 16, "eps": 1e-5 }));
        let said = worked_out("group_norm", &[8, 512], Some(&[512]), &groups, &[8, 512]);
        assert_eq!(said.as_deref(), Some("16 groups: 512 / 16 = 32"));
        for (dim, expected) in [
            (json!(-1), "dim -1"),
            (json!([2, 3]), "dim (2, 3)"),
            (json!([1]), "dim 1"),
        ] {
            let along = arguments(&json!({ "dim": dim }));
            let said = worked_out("mean", &[8, 4, 2, 2], None, &along, &[8, 4]);
            assert_eq!(said.as_deref(), Some(expected));
        }
    }
}
