//! Computed in a half type where the task says float32.

use warpsmith_schema::{Dtype, MutantKind::LowerPrecision, ValueSource};

use super::Collector;
use super::equivalence::AVERAGED_OUT;
use crate::simplify::{application, users};

/// Products of many terms. TF32 keeps as many bits as float16 and is a class of its own, so only bfloat16 is a mistake here.
const PRODUCTS: [&str; 16] = [
    "linear",
    "mm",
    "bmm",
    "matmul",
    "addmm",
    "baddbmm",
    "bilinear",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "einsum",
    "scaled_dot_product_attention",
    "cdist",
];
/// Their results are exact in any type, or they only move elements.
const EXACT: [&str; 26] = [
    "sign",
    "ceil",
    "floor",
    "round",
    "trunc",
    "heaviside",
    "reshape",
    "flatten",
    "expand",
    "permute",
    "transpose",
    "t",
    "movedim",
    "unsqueeze",
    "narrow",
    "select",
    "slice",
    "to",
    "full",
    "arange",
    "one_hot",
    "pad",
    "repeat",
    "channel_shuffle",
    "pixel_shuffle",
    "pixel_unshuffle",
];

pub(super) fn collect(found: &mut Collector<'_>, place: usize) {
    let Some(applied) = found.application(place) else {
        return;
    };
    let dtype = found.dtype(place);
    if !matches!(dtype, Dtype::Float32 | Dtype::Float16)
        || EXACT.contains(&applied.op)
        || applied.inputs.is_empty()
    {
        return;
    }
    let is_product = PRODUCTS.contains(&applied.op);
    let floats: Vec<usize> = applied
        .inputs
        .iter()
        .enumerate()
        .filter(|(_, input)| {
            input.is_some_and(|input| found.dtype(input) == dtype && !exact(found, input))
        })
        .map(|(number, _)| number)
        .take(if is_product { 2 } else { 1 })
        .collect();
    let picks = users(found.graph, place)
        .iter()
        .all(|reader| application(found.graph, *reader).is_some_and(|user| user.op == "sign"));
    let of_result = if picks {
        Some("only the sign is read")
    } else {
        (found.averages_out(place) && !is_product).then_some(AVERAGED_OUT)
    };
    let sums = !is_product
        && floats.iter().all(|number| {
            applied.inputs[*number].is_some_and(|of| found.sums_many(place, of, applied.op))
        });
    let reads = of_result.or(sums.then_some(AVERAGED_OUT));
    if !floats.is_empty() {
        found.add_unless(
            reads,
            (LowerPrecision, place, "operands rounded to bfloat16"),
            |editor| {
                let original = editor.original_value();
                let ValueSource::Applied { inputs, .. } = &original.from else {
                    return None;
                };
                let rounded: Vec<(usize, usize)> = floats
                    .iter()
                    .filter_map(|number| {
                        Some((*number, editor.rounded(inputs[*number]?, Dtype::Bfloat16)))
                    })
                    .collect();
                Some(editor.with_inputs(|inputs| {
                    for (number, made) in rounded {
                        inputs[number] = Some(made);
                    }
                }))
            },
        );
    }
    if !is_product && dtype == Dtype::Float32 {
        found.add_unless(
            of_result,
            (LowerPrecision, place, "its result rounded to float16"),
            |editor| {
                let original = editor.original();
                Some(editor.rounded(original, Dtype::Float16))
            },
        );
    }
}

fn exact(found: &Collector<'_>, place: usize) -> bool {
    match application(found.graph, place) {
        Some(made) => matches!(
            made.op,
            "sign"
                | "ceil"
                | "floor"
                | "round"
                | "trunc"
                | "heaviside"
                | "full"
                | "arange"
                | "one_hot"
        ),
        None => false,
    }
}
