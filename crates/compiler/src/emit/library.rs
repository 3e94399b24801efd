//! Calls of matrix products and convolutions, as text.

use crate::knob::Knobs;
use crate::library::{Convolution, Epilogue, Gemm, Library, Operand};
use crate::scalar::Buffer;

/// On the processor: the one routine that is provided.
pub(crate) const GEMM: &str = "// Provided: row-major c = alpha op(a) op(b) + beta c, on all cores.
extern \"C\" void warpsmith_gemm(int transa, int transb, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
                               const float* b, int64_t ldb, float beta, float* c, int64_t ldc);";

type Names<'a> = &'a dyn Fn(Buffer) -> String;

pub(crate) fn gemm_on_cpu(gemm: &Gemm, name: Names<'_>) -> String {
    let Gemm {
        batch,
        m,
        n,
        k,
        a,
        b,
        out,
        ..
    } = *gemm;
    let place = |operand: Operand, size: i64| {
        let text = name(operand.buffer);
        if operand.batched && batch > 1 {
            format!("{text} + batch * {size}")
        } else {
            text
        }
    };
    let c = Operand {
        buffer: out,
        transposed: false,
        batched: true,
    };
    let call = format!(
        "warpsmith_gemm({}, {}, {m}, {n}, {k}, 1.0f, {}, {}, {}, {}, 0.0f, {}, {n});",
        i32::from(a.transposed),
        i32::from(b.transposed),
        place(a, m * k),
        if a.transposed { m } else { k },
        place(b, k * n),
        if b.transposed { k } else { n },
        place(c, m * n),
    );
    if batch == 1 {
        return format!("    {call}");
    }
    format!("    for (int64_t batch = 0; batch < {batch}; ++batch) {{\n        {call}\n    }}")
}

/// Numbers that stay in the second level of a cache.
const CACHED: i64 = 1 << 18;

/// For each image, and as many of its lines as fit into a cache, the windows as columns of a matrix, then a product.
pub(crate) fn convolution_on_cpu(conv: &Convolution, knobs: &mut Knobs, name: Names<'_>) -> String {
    let (channels, filters) = (conv.channels / conv.groups, conv.filters / conv.groups);
    let taps: i64 = conv.kernel.iter().product();
    let places: i64 = conv.output.iter().product();
    let pixels: i64 = conv.input.iter().product();
    let rows = channels * taps;
    // Of the first dimension, how many of the result's lines are made together.
    let line: i64 = conv.output[1..].iter().product();
    let together = if conv.output.len() == 1 {
        conv.output[0]
    } else {
        let usual = (CACHED / (rows * line)).clamp(1, conv.output[0]);
        let others = [usual * 4, usual / 4, usual * 2, usual / 2];
        let others = others.map(|lines| lines.clamp(1, conv.output[0]));
        knobs.choose("lines at once", usual, &others)
    };
    let mut lines = vec![
        format!("std::vector<float> columns({}LL);", rows * together * line),
        format!(
            "for (int64_t image = 0; image < {}; ++image) {{",
            conv.batch * conv.groups
        ),
    ];
    let group = if conv.groups > 1 {
        lines.push(format!(
            "    const int64_t group = image % {};",
            conv.groups
        ));
        format!(" + group * {}", filters * rows)
    } else {
        String::new()
    };
    lines.push(format!(
        "    const float* from = {} + image * {};",
        name(conv.x),
        channels * pixels
    ));
    let whole = together == conv.output[0];
    let (width, start) = if whole {
        (places.to_string(), String::new())
    } else {
        let height = conv.output[0];
        lines.push(format!(
            "    for (int64_t first = 0; first < {height}; first += {together}) {{"
        ));
        lines.push(format!(
            "    const int64_t last = std::min<int64_t>(first + {together}, {height}), width = (last - first) * {line};"
        ));
        ("width".to_owned(), format!(" + first * {line}"))
    };
    lines.push("#pragma omp parallel for schedule(static)".to_owned());
    lines.push(format!("    for (int64_t row = 0; row < {rows}; ++row) {{"));
    lines.push(format!(
        "        const float* plane = from + row / {taps} * {pixels};"
    ));
    lines.push(format!(
        "        float* to = columns.data() + row * {width};"
    ));
    let mut below = taps;
    for (dim, extent) in conv.kernel.iter().enumerate() {
        below /= extent;
        let tap = match (dim, below) {
            (_, 1) => format!("row % {extent}"),
            _ => format!("row / {below} % {extent}"),
        };
        lines.push(format!(
            "        const int64_t tap{dim} = {tap} * {} - {};",
            conv.dilation[dim], conv.padding[dim]
        ));
    }
    lines.extend(lines_of_columns(conv, whole));
    lines.push("    }".to_owned());
    lines.push(format!(
        "    warpsmith_gemm(0, 0, {filters}, {width}, {rows}, 1.0f, {}{group}, {rows}, columns.data(), {width}, 0.0f, {} + image * {}{start}, {places});",
        name(conv.weight),
        name(conv.out),
        filters * places
    ));
    if !whole {
        lines.push("    }".to_owned());
    }
    lines.push("}".to_owned());
    let indented: Vec<String> = lines
        .into_iter()
        .map(|line| {
            if line.starts_with('#') {
                line
            } else {
                format!("    {line}")
            }
        })
        .collect();
    indented.join("\n")
}

/// Loops over the lines of one tap's column: what lies beside the image is zero, the rest is copied as it lies.
fn lines_of_columns(conv: &Convolution, whole: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let mut indent = "        ".to_owned();
    let last = conv.kernel.len() - 1;
    let (mut place, mut inside) = (String::new(), Vec::new());
    for dim in 0..last {
        let (out, size) = (conv.output[dim], conv.input[dim]);
        let (from, to) = match dim {
            0 if !whole => ("first".to_owned(), "last".to_owned()),
            _ => ("0".to_owned(), out.to_string()),
        };
        lines.push(format!(
            "{indent}for (int64_t o{dim} = {from}; o{dim} < {to}; ++o{dim}) {{"
        ));
        indent.push_str("    ");
        lines.push(format!(
            "{indent}const int64_t i{dim} = o{dim} * {} + tap{dim};",
            conv.stride[dim]
        ));
        inside.push(format!("i{dim} >= 0 && i{dim} < {size}"));
        place = match dim {
            0 => "i0".to_owned(),
            _ => format!("({place}) * {size} + i{dim}").replace("(i0)", "i0"),
        };
    }
    let (out, size, stride) = (conv.output[last], conv.input[last], conv.stride[last]);
    let before = format!("(-tap{last} + {}) / {stride}", stride - 1).replace(" + 0) / 1", ")");
    let after =
        format!("({size} - tap{last} + {}) / {stride}", stride - 1).replace(" + 0) / 1", ")");
    let from = match last {
        0 => "plane".to_owned(),
        _ => format!("plane + ({place}) * {size}").replace("(i0)", "i0"),
    };
    let is_inside = match inside.join(" && ") {
        always if always.is_empty() => "true".to_owned(),
        some => some,
    };
    lines.extend(
        [
            format!("const bool inside = {is_inside};"),
            format!("const float* line = {from};"),
            format!("const int64_t begin = !inside ? {out} : std::min<int64_t>(tap{last} < 0 ? {before} : 0, {out});"),
            format!("const int64_t end = std::max<int64_t>(begin, std::min<int64_t>(tap{last} < {size} ? {after} : 0, {out}));"),
            "for (int64_t o = 0; o < begin; ++o) to[o] = 0.0f;".to_owned(),
            format!("for (int64_t o = begin; o < end; ++o) to[o] = line[o * {stride} + tap{last}];").replace("o * 1 +", "o +"),
            format!("for (int64_t o = end; o < {out}; ++o) to[o] = 0.0f;"),
            format!("to += {out};"),
        ]
        .map(|line| format!("{indent}{line}")),
    );
    for _ in 0..last {
        indent.truncate(indent.len() - 4);
        lines.push(format!("{indent}}}"));
    }
    lines
}

/// On a GPU the provided calls: shapes, what differs from their defaults, and the call itself. `variable` holds the shapes.
pub(crate) fn gemm_on_cuda(
    gemm: &Gemm,
    (variable, rows): (&str, &str),
    how: LibraryCall,
    name: Names<'_>,
) -> String {
    let Gemm {
        batch,
        n,
        k,
        a,
        b,
        out,
        epilogue,
        ..
    } = *gemm;
    let mut lines = vec![format!("WarpsmithGemm {variable}{{{rows}, {n}, {k}}};")];
    let mut set = |field: &str, value: &str| lines.push(format!("{variable}.{field} = {value};"));
    for (operand, letter) in [(a, 'a'), (b, 'b')] {
        if operand.transposed {
            set(&format!("transpose_{letter}"), "true");
        }
    }
    if batch > 1 {
        set("batch", &batch.to_string());
        for (operand, letter) in [(a, 'a'), (b, 'b')] {
            if !operand.batched {
                set(&format!("share_{letter}"), "true");
            }
        }
    }
    set_epilogue(&mut set, epilogue, how);
    let operands = [out, a.buffer, b.buffer].map(name);
    lines.push(call("warpsmith_gemm", &operands, epilogue, variable, name));
    lines.join("\n    ")
}

pub(crate) fn convolution_on_cuda(
    conv: &Convolution,
    variable: &str,
    how: LibraryCall,
    name: Names<'_>,
) -> String {
    let list = |values: &[i64]| {
        let values: Vec<String> = values.iter().map(ToString::to_string).collect();
        format!("{{{}}}", values.join(", "))
    };
    let mut lines = vec![format!(
        "WarpsmithConv {variable}{{{}, {}, {}, {}, {}}};",
        conv.batch,
        conv.channels,
        conv.filters,
        list(&conv.input),
        list(&conv.kernel),
    )];
    let mut set = |field: &str, value: &str| lines.push(format!("{variable}.{field} = {value};"));
    let fields = [
        ("stride", conv.stride.clone(), 1),
        ("padding", conv.padding.clone(), 0),
        ("dilation", conv.dilation.clone(), 1),
        ("output_padding", conv.output_padding(), 0),
    ];
    for (field, values, usual) in fields {
        if values.iter().any(|value| *value != usual) {
            set(field, &list(&values));
        }
    }
    if conv.groups > 1 {
        set("groups", &conv.groups.to_string());
    }
    if conv.transposed {
        set("transposed", "true");
    }
    set_epilogue(&mut set, conv.epilogue, how);
    let operands = [conv.out, conv.x, conv.weight].map(name);
    lines.push(call(
        "warpsmith_conv",
        &operands,
        conv.epilogue,
        variable,
        name,
    ));
    lines.join("\n    ")
}

/// How a product takes its operands on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProductPrecision {
    Float32,
    /// Rounded to TF32.
    Tf32,
    /// As the sum of two TF32 numbers each, for tensor cores: about as exact as float32.
    TwoParts,
}

/// Multiplications and additions from which on operands in two parts can be faster: below, the library's float32 always is.
const MANY: i64 = 1 << 31;
/// Below these there is nothing to try.
const FEW: i64 = 1 << 26;

/// What may differ between calls for the same product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LibraryCall {
    pub(crate) precision: ProductPrecision,
    /// Which of the library's proposals, its first being 0.
    pub(crate) algorithm: i64,
}

/// The first proposal, unless another was found to be faster.
pub(crate) fn algorithm(library: &Library, knobs: &mut Knobs) -> i64 {
    let operations = match library {
        Library::Gemm(gemm) => gemm.operations(),
        Library::Convolution(conv) => conv.operations(),
    };
    let others: &[i64] = if operations >= FEW { &[1, 2, 3] } else { &[] };
    knobs.choose("proposal of the library", 0, others)
}

impl ProductPrecision {
    /// In single precision, the faster of both ways as far as that is known.
    pub(crate) fn exact(library: &Library, knobs: &mut Knobs) -> Self {
        let (operations, has_parts) = match library {
            Library::Gemm(gemm) => (gemm.operations(), true),
            Library::Convolution(conv) => (conv.operations(), conv.groups == 1),
        };
        let may_be_either = has_parts && operations >= FEW;
        if may_be_either && knobs.whether("operands in two parts", operations >= MANY) {
            Self::TwoParts
        } else {
            Self::Float32
        }
    }
}

fn set_epilogue(set: &mut impl FnMut(&str, &str), epilogue: Epilogue, how: LibraryCall) {
    if epilogue.relu {
        set("activation", "WARPSMITH_RELU");
    }
    match how.precision {
        ProductPrecision::Float32 => {}
        ProductPrecision::Tf32 => set("precision", "WARPSMITH_TF32"),
        ProductPrecision::TwoParts => set("precision", "WARPSMITH_3XTF32"),
    }
    if how.algorithm > 0 {
        set("algorithm", &how.algorithm.to_string());
    }
}

fn call(
    function: &str,
    operands: &[String; 3],
    epilogue: Epilogue,
    variable: &str,
    name: Names<'_>,
) -> String {
    let bias = epilogue.bias.map_or_else(|| "nullptr".to_owned(), name);
    format!(
        "if (const int status = {function}({}, {bias}, {variable}, stream)) return status;",
        operands.join(", ")
    )
}
