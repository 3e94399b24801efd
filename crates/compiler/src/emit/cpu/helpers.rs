//! What a file has before its kernels.

use std::collections::BTreeSet;

use super::mathematics::{BITS, NO_TRAPS};
use crate::emit::Helper;
use crate::emit::functions::vectorised_declaration;

/// The upper half of a float. Stores round to the nearest, to even between two.
pub(crate) const BFLOAT16: &str = "struct bfloat16 {
    uint16_t bits;
    operator float() const { return __builtin_bit_cast(float, uint32_t(bits) << 16); }
    bfloat16& operator=(float value) {
        const uint32_t whole = __builtin_bit_cast(uint32_t, value);
        bits = value == value ? uint16_t((whole + 0x7fff + (whole >> 16 & 1)) >> 16) : uint16_t(0x7fc0);
        return *this;
    }
};";

pub(crate) const HALF: &str = "using half = _Float16;";

/// Headers, what is provided, and the functions that kernels call.
pub(crate) fn preamble(
    helpers: &BTreeSet<Helper>,
    uses_std_vector: bool,
    provided: Option<&str>,
) -> String {
    let declared = helpers.iter().filter_map(|helper| match helper {
        Helper::Vectorised(name) => vectorised_declaration(name),
        _ => None,
    });
    let declared: Vec<String> = declared.collect();
    let own = helpers.iter().filter_map(|helper| match helper {
        Helper::Simd(function) => Some(function.text()),
        _ => None,
    });
    let own: Vec<&str> = own.collect();
    let mut headers = vec!["cmath", "cstdint", "cstdlib"];
    if !own.is_empty() {
        headers.push("cstring");
    }
    if uses_std_vector {
        headers.extend(["algorithm", "vector"]);
    }
    let headers: Vec<String> = headers
        .iter()
        .map(|name| format!("#include <{name}>"))
        .collect();
    let mut parts = vec![headers.join("\n")];
    parts.extend(provided.map(str::to_owned));
    if !declared.is_empty() {
        let told = "// The C library has these in vectors too; the compiler must be told.";
        parts.push(format!("{told}\n{}", declared.join("\n")));
    }
    if !own.is_empty() {
        parts.insert(0, NO_TRAPS.to_owned());
        parts.push(format!("{BITS}\n{}", own.join("\n")));
    }
    parts.join("\n\n")
}
