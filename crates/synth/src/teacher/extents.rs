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
        let window = WindowSum {
            length: *input.get(first + dim)?,
            kernel: kernel[dim],
            stride: stride[dim],
            padding: padding[dim],
            dilation: dilation[dim],
            output_padding: output_padding[dim],
        };
        let (sum, after) = if transposed {
            window.grown()?
        } else {
            window.shrunk()?
        };
        if after != *result.get(first + dim)? {
            return None;
        }
        sums.push(sum);
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

/// What is said otherwise, or decides nothing when a module runs.
const SAID_ELSEWHERE: [&str; 8] = [
    "dim",
    "dim0",
    "dim1",
    "dims",
    "num_groups",
    "groups",
    "momentum",
    "dropout_p",
];

/// Numbers and words that an operator is given or has by default, by name: `negative_slope 0.01`. A default stands in no text that a
/// model could read it from.
pub(super) fn settings(op: &str, arguments: &BTreeMap<String, Value>) -> Option<String> {
    if op.starts_with("conv") || op.contains("pool") {
        return None;
    }
    let said = |(name, value): (&String, &Value)| {
        let changes_nothing = (name == "alpha" && ["add", "sub"].contains(&op) && *value == 1)
            || (name == "approximate" && value == "none")
            || SAID_ELSEWHERE.contains(&name.as_str());
        match value {
            _ if changes_nothing => None,
            Value::Number(number) => Some(format!("{name} {number}")),
            Value::String(word) => Some(format!("{name} {word}")),
            _ => None,
        }
    };
    let all: Vec<String> = arguments.iter().filter_map(said).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

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

/// The numbers of a window along one dimension.
struct WindowSum {
    length: u64,
    kernel: u64,
    stride: u64,
    padding: u64,
    dilation: u64,
    output_padding: u64,
}

/// Each sum has the same steps with the same names, also where a step changes nothing: a small model that may leave steps out does not
/// know when it has done them all.
impl WindowSum {
    /// Of a convolution or a pool.
    fn shrunk(&self) -> Option<(String, u64)> {
        let &Self {
            length,
            kernel,
            stride,
            padding,
            dilation,
            ..
        } = self;
        let reach = dilation * (kernel - 1) + 1;
        let padded = length + 2 * padding;
        let left = padded.checked_sub(reach)?;
        let steps = left / stride;
        let text = format!(
            "reach {dilation} * ({kernel} - 1) + 1 = {reach}, padded {length} + 2 * {padding} = {padded}, left {padded} - {reach} = {left}, \
             steps {left} / {stride} = {steps}, extent {steps} + 1 = {}",
            steps + 1
        );
        Some((text, steps + 1))
    }

    /// Of a transposed convolution.
    fn grown(&self) -> Option<(String, u64)> {
        let &Self {
            length,
            kernel,
            stride,
            padding,
            dilation,
            output_padding,
        } = self;
        let spread = (length - 1) * stride;
        let reach = dilation * (kernel - 1) + 1;
        let whole = spread + reach;
        let cropped = whole.checked_sub(2 * padding)?;
        let text = format!(
            "spread ({length} - 1) * {stride} = {spread}, reach {dilation} * ({kernel} - 1) + 1 = {reach}, whole {spread} + {reach} = {whole}, \
             cropped {whole} - 2 * {padding} = {cropped}, extent {cropped} + {output_padding} = {}",
            cropped + output_padding
        );
        Some((text, cropped + output_padding))
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
        let expected = "kernel (5, 9), stride (1, 2), padding (2, 4), dilation (2, 3): \
                        reach 2 * (5 - 1) + 1 = 9, padded 512 + 2 * 2 = 516, left 516 - 9 = 507, steps 507 / 1 = 507, extent 507 + 1 = 508; \
                        reach 3 * (9 - 1) + 1 = 25, padded 512 + 2 * 4 = 520, left 520 - 25 = 495, steps 495 / 2 = 247, extent 247 + 1 = 248";
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
                "kernel 3, stride 2, padding 1, output padding 1, dilation 1: spread (64 - 1) * 2 = 126, reach 1 * (3 - 1) + 1 = 3, \
                 whole 126 + 3 = 129, cropped 129 - 2 * 1 = 127, extent 127 + 1 = 128"
            )
        );
        let pool =
            arguments(&json!({ "kernel_size": [2, 2], "stride": [2, 2], "padding": [0, 0] }));
        let said = worked_out("max_pool2d", &[1, 3, 65, 65], None, &pool, &[1, 3, 32, 32]);
        assert_eq!(
            said.as_deref(),
            Some(
                "kernel 2, stride 2, padding 0, dilation 1: reach 1 * (2 - 1) + 1 = 2, padded 65 + 2 * 0 = 65, left 65 - 2 = 63, \
                 steps 63 / 2 = 31, extent 31 + 1 = 32"
            )
        );
        let pool =
            arguments(&json!({ "kernel_size": [3, 3], "stride": [2, 2], "padding": [1, 1] }));
        let said = worked_out("max_pool2d", &[1, 3, 65, 65], None, &pool, &[1, 3, 33, 33]);
        assert_eq!(
            said.as_deref(),
            Some(
                "kernel 3, stride 2, padding 1, dilation 1: reach 1 * (3 - 1) + 1 = 3, padded 65 + 2 * 1 = 67, left 67 - 3 = 64, \
                 steps 64 / 2 = 32, extent 32 + 1 = 33"
            )
        );
    }

    #[test]
    fn numbers_that_no_text_holds_are_said() {
        let slope = arguments(&json!({ "negative_slope": 0.01 }));
        assert_eq!(
            settings("leaky_relu", &slope).as_deref(),
            Some("negative_slope 0.01")
        );
        let limits = arguments(&json!({ "min_val": -1.0, "max_val": 1.0 }));
        assert_eq!(
            settings("hardtanh", &limits).as_deref(),
            Some("max_val 1.0, min_val -1.0")
        );
        for (op, nothing) in [
            ("add", json!({ "alpha": 1 })),
            ("sum", json!({ "dim": [1], "keepdim": true, "dtype": null })),
            ("gelu", json!({ "approximate": "none" })),
            ("conv2d", json!({ "stride": [2, 2] })),
        ] {
            assert_eq!(settings(op, &arguments(&nothing)), None, "{op}");
        }
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
