//! One name for each operator, however a module spells it.

/// `nn.LeakyReLU`, `F.leaky_relu`, `torch.nn.functional.leaky_relu_` and `x.leaky_relu()` are all `leakyrelu`.
pub(super) fn canonical(name: &str) -> String {
    let mut key: String = name
        .chars()
        .filter(|letter| *letter != '_')
        .flat_map(char::to_lowercase)
        .collect();
    if key.starts_with("lazy") {
        key.drain(.."lazy".len());
    }
    if key.len() > "loss".len() && key.ends_with("loss") {
        key.truncate(key.len() - "loss".len());
    }
    // Only the modules have the number of dimensions in their names.
    for family in ["batchnorm", "instancenorm", "dropout", "softmax"] {
        if key
            .strip_prefix(family)
            .is_some_and(|rest| matches!(rest, "1d" | "2d" | "3d"))
        {
            return family.to_owned();
        }
    }
    if key.ends_with("pad1d") || key.ends_with("pad2d") || key.ends_with("pad3d") {
        return "pad".to_owned();
    }
    match ALIASES.iter().find(|(alias, _)| *alias == key) {
        Some((_, meant)) => (*meant).to_owned(),
        None => key,
    }
}

const ALIASES: [(&str, &str); 50] = [
    ("absolute", "abs"),
    ("alphadropout", "dropout"),
    ("amax", "max"),
    ("amin", "min"),
    ("arccos", "acos"),
    ("arcsin", "asin"),
    ("arctan", "atan"),
    ("argwhere", "nonzero"),
    ("bce", "binarycrossentropy"),
    ("bcewithlogits", "binarycrossentropywithlogits"),
    ("bmm", "matmul"),
    ("clampmax", "clamp"),
    ("clampmin", "clamp"),
    ("clip", "clamp"),
    ("concat", "cat"),
    ("concatenate", "cat"),
    ("divide", "div"),
    ("dot", "matmul"),
    ("expit", "sigmoid"),
    ("floordivide", "floordiv"),
    ("getitem", "index"),
    ("greater", "gt"),
    ("greaterequal", "ge"),
    ("less", "lt"),
    ("lessequal", "le"),
    ("logicaland", "and"),
    ("logicalnot", "not"),
    ("logicalor", "or"),
    ("mm", "matmul"),
    ("movedim", "permute"),
    ("moveaxis", "permute"),
    ("multiply", "mul"),
    ("mv", "matmul"),
    ("narrow", "index"),
    ("negative", "neg"),
    ("select", "index"),
    ("slice", "index"),
    ("subtract", "sub"),
    ("swapaxes", "permute"),
    ("swapdims", "permute"),
    ("swish", "silu"),
    ("syncbatchnorm", "batchnorm"),
    ("t", "permute"),
    ("transpose", "permute"),
    ("truedivide", "div"),
    ("upsample", "interpolate"),
    ("upsamplingbilinear2d", "interpolate"),
    ("upsamplingnearest2d", "interpolate"),
    ("vectornorm", "norm"),
    ("vdot", "matmul"),
];

/// Passes its first argument's numbers on: shape, dtype, device and layout are no computation.
pub(super) fn is_transparent(operator: &str) -> bool {
    matches!(
        operator,
        "view"
            | "viewas"
            | "reshape"
            | "reshapeas"
            | "flatten"
            | "unflatten"
            | "ravel"
            | "squeeze"
            | "unsqueeze"
            | "contiguous"
            | "expand"
            | "expandas"
            | "broadcastto"
            | "to"
            | "type"
            | "typeas"
            | "float"
            | "double"
            | "half"
            | "bfloat16"
            | "long"
            | "int"
            | "bool"
            | "cpu"
            | "cuda"
            | "clone"
            | "detach"
            | "requiresgrad"
            | "identity"
            | "checkpoint"
    )
}

/// Attributes and methods of a tensor that give no tensor.
pub(super) fn is_metadata(name: &str) -> bool {
    matches!(
        name,
        "shape"
            | "size"
            | "dim"
            | "ndim"
            | "ndimension"
            | "numel"
            | "nelement"
            | "device"
            | "dtype"
            | "stride"
            | "layout"
            | "is_cuda"
            | "is_contiguous"
            | "is_floating_point"
            | "requires_grad"
            | "training"
            | "item"
            | "tolist"
            | "element_size"
            | "get_device"
            | "data_ptr"
    )
}

/// Moves numbers without computing: it is in the graph but does not count as an operator.
pub(super) fn is_movement(operator: &str) -> bool {
    matches!(operator, "permute" | "index" | "part")
}

/// Has weights of its own as a module, and gets them as operands in its functional form.
pub(super) fn has_weights(operator: &str) -> bool {
    operator.starts_with("conv")
        || operator.ends_with("norm") && operator != "norm"
        || operator.starts_with("embedding")
        || matches!(
            operator,
            "linear" | "bilinear" | "prelu" | "lstm" | "gru" | "rnn" | "multiheadattention"
        )
}

/// A constant among its arguments is an operand, not a setting.
pub(super) fn is_arithmetic(operator: &str) -> bool {
    is_commutative(operator)
        || matches!(
            operator,
            "sub"
                | "div"
                | "pow"
                | "floordiv"
                | "remainder"
                | "where"
                | "choice"
                | "lt"
                | "le"
                | "gt"
                | "ge"
        )
}

pub(super) fn is_commutative(operator: &str) -> bool {
    matches!(
        operator,
        "add" | "mul" | "maximum" | "minimum" | "and" | "or" | "xor" | "eq" | "ne" | "choice"
    )
}

/// Makes a tensor from constants alone; which ones does not count.
pub(super) fn is_filling(operator: &str) -> bool {
    matches!(
        operator,
        "zeros"
            | "ones"
            | "full"
            | "empty"
            | "tensor"
            | "astensor"
            | "rand"
            | "randn"
            | "randint"
            | "randperm"
            | "normal"
            | "floattensor"
            | "longtensor"
            | "inttensor"
            | "booltensor"
            | "zeroslike"
            | "oneslike"
            | "fulllike"
            | "emptylike"
            | "randlike"
            | "randnlike"
            | "newzeros"
            | "newones"
            | "newfull"
            | "newempty"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_operator() {
        for (meant, spellings) in [
            ("relu", &["ReLU", "relu", "relu_"] as &[_]),
            ("leakyrelu", &["LeakyReLU", "leaky_relu"]),
            (
                "batchnorm",
                &[
                    "BatchNorm2d",
                    "batch_norm",
                    "BatchNorm3d",
                    "LazyBatchNorm1d",
                ],
            ),
            ("crossentropy", &["CrossEntropyLoss", "cross_entropy"]),
            ("mse", &["MSELoss", "mse_loss"]),
            (
                "binarycrossentropywithlogits",
                &["BCEWithLogitsLoss", "binary_cross_entropy_with_logits"],
            ),
            ("conv2d", &["Conv2d", "conv2d", "LazyConv2d"]),
            ("convtranspose3d", &["ConvTranspose3d", "conv_transpose3d"]),
            ("maxpool2d", &["MaxPool2d", "max_pool2d"]),
            ("matmul", &["mm", "bmm", "matmul"]),
            ("clamp", &["clip", "clamp_", "clamp_min"]),
            ("dropout", &["Dropout", "dropout", "Dropout2d", "dropout3d"]),
            ("pad", &["pad", "ZeroPad2d", "ReflectionPad3d"]),
        ] {
            for spelling in spellings {
                assert_eq!(canonical(spelling), meant);
            }
        }
        assert_ne!(canonical("max_pool2d"), canonical("max_pool1d"));
        assert_eq!(canonical("loss"), "loss");
    }
}
