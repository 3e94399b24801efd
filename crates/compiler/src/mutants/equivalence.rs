//! Why a mistake cannot be seen, where the graph says so.

use super::{Collector, dims_of};
use crate::simplify::{application, users};

pub(super) const SHIFT_ABSORBED: &str =
    "what follows subtracts whatever is the same along the dimensions it normalises";
pub(super) const TAIL_UNREAD: &str = "what follows does not read the last elements";
pub(super) const OUT_OF_RANGE: &str = "the operand never reaches that far";
pub(super) const ORDER_ABSORBED: &str = "what follows sums over that dimension";

pub(super) const AVERAGED_OUT: &str =
    "the roundings of so many terms average out, and the answer is as exact as float32 asks";
pub(super) const BELOW_ROUNDING: &str =
    "it is added to differences, and moves a distance by less than float32 rounds it";

pub(super) const CUT_OFF: &str = "what follows makes zero of all that lies there";
pub(super) const POSITIVE: &str = "the sign is that of a value which is never negative";

/// Of so many terms the mean of bfloat16's roundings is below what a sum in float32 may err.
const AVERAGED: u64 = 1 << 16;

impl Collector<'_> {
    /// Whether all that reads `place` is indifferent to a term that does not vary along the dimensions where `varies` is false.
    pub(super) fn absorbs_shift(&self, place: usize, varies: &[bool]) -> bool {
        let readers = users(self.graph, place);
        !readers.is_empty()
            && readers
                .iter()
                .all(|reader| self.reader_absorbs(*reader, place, varies))
    }

    fn reader_absorbs(&self, reader: usize, place: usize, varies: &[bool]) -> bool {
        let Some(user) = (reader != usize::MAX)
            .then(|| application(self.graph, reader))
            .flatten()
        else {
            return false;
        };
        if user.inputs.first() != Some(&Some(place)) || user.inputs[1..].contains(&Some(place)) {
            return false;
        }
        let shape = self.shape(place);
        let rank = shape.len();
        match user.op {
            "softmax" | "log_softmax" | "softmin" | "var" | "std" => {
                dims_of(&user, "dim", rank).is_some_and(|dims| dims.iter().all(|dim| !varies[*dim]))
            }
            "layer_norm" => {
                let normalised = user
                    .arguments
                    .get("normalized_shape")
                    .and_then(|shape| shape.as_array())
                    .map_or(0, Vec::len);
                varies[rank.saturating_sub(normalised)..]
                    .iter()
                    .all(|varies| !varies)
            }
            // Statistics of each channel by itself.
            "instance_norm" => rank > 2 && varies[2..].iter().all(|varies| !varies),
            "group_norm" => {
                let groups = user
                    .arguments
                    .get("num_groups")
                    .and_then(serde_json::Value::as_u64);
                groups == shape.get(1).copied() && varies[2..].iter().all(|varies| !varies)
            }
            // It passes the term on.
            "add" | "sub" => self.same_form(reader, place) && self.absorbs_shift(reader, varies),
            _ => false,
        }
    }

    /// One, or zero where the value itself is zero.
    pub(super) fn is_positive_sign(&self, place: usize) -> bool {
        application(self.graph, place).is_some_and(|made| made.op == "sign")
            && self.ranges[place].low >= 0.0
    }

    /// Whether every result that `place` has a part in is a sum or mean of very many terms.
    pub(super) fn averages_out(&self, place: usize) -> bool {
        let readers = users(self.graph, place);
        !readers.is_empty()
            && readers.iter().all(|&reader| {
                let Some(user) = (reader != usize::MAX)
                    .then(|| application(self.graph, reader))
                    .flatten()
                else {
                    return false;
                };
                let passed_on = self.same_form(reader, place) && self.averages_out(reader);
                self.sums_many(reader, place, user.op) || passed_on
            })
    }

    /// Whether each element of a result is the sum or mean of very many of an operand.
    pub(super) fn sums_many(&self, result: usize, of: usize, op: &str) -> bool {
        let elements = |place: usize| self.shape(place).iter().product::<u64>().max(1);
        let sums = matches!(
            op,
            "sum"
                | "mean"
                | "nansum"
                | "nanmean"
                | "var"
                | "std"
                | "trapezoid"
                | "kl_div"
                | "cross_entropy"
        ) || op.ends_with("_loss")
            || op.starts_with("binary_cross_entropy");
        sums && elements(of) / elements(result) >= AVERAGED
    }

    /// Whether anything reads the last elements of a value along a dimension.
    pub(super) fn tail_is_read(&self, place: usize, dim: usize) -> bool {
        let readers = users(self.graph, place);
        readers
            .iter()
            .any(|reader| self.reader_reads_tail(*reader, place, dim))
    }

    fn reader_reads_tail(&self, reader: usize, place: usize, dim: usize) -> bool {
        let Some(user) = (reader != usize::MAX)
            .then(|| application(self.graph, reader))
            .flatten()
        else {
            return true;
        };
        if user.inputs.first() != Some(&Some(place)) {
            return true;
        }
        let rank = self.shape(place).len();
        let extent = self.shape(place)[dim] as i64;
        let number = |name: &str| user.arguments.get(name).and_then(serde_json::Value::as_i64);
        let along = dims_of(&user, "dim", rank).filter(|dims| dims.len() == 1);
        let this = along.is_some_and(|dims| dims[0] == dim);
        match user.op {
            "narrow" if this => number("start")
                .zip(number("length"))
                .is_none_or(|(start, length)| start + length >= extent),
            "select" if this => {
                number("index").is_none_or(|index| index == extent - 1 || index == -1)
            }
            "slice" if this => {
                let last = number("start").zip(number("length")).zip(number("step"));
                last.is_none_or(|((start, length), step)| start + (length - 1) * step >= extent - 1)
            }
            "max_pool1d" | "max_pool2d" | "max_pool3d" | "avg_pool1d" | "avg_pool2d"
            | "avg_pool3d" | "lp_pool1d" | "lp_pool2d" | "lp_pool3d" | "conv1d" | "conv2d"
            | "conv3d" => {
                let Some(space) = user
                    .op
                    .chars()
                    .rev()
                    .nth(1)
                    .and_then(|digit| digit.to_digit(10))
                else {
                    return true;
                };
                let first = rank - space as usize;
                if dim < first {
                    return true;
                }
                let of = |name: &str, default: i64| match user.arguments.get(name) {
                    Some(serde_json::Value::Array(list)) => list
                        .get(dim - first)
                        .and_then(serde_json::Value::as_i64)
                        .unwrap_or(default),
                    Some(one) => one.as_i64().unwrap_or(default),
                    None => default,
                };
                let kernel = if user.op.starts_with("conv") {
                    user.inputs
                        .get(1)
                        .copied()
                        .flatten()
                        .map_or(1, |weight| self.shape(weight)[2 + dim - first] as i64)
                } else {
                    of("kernel_size", 1)
                };
                let places = self.shape(reader)[dim] as i64;
                let last = (places - 1) * of("stride", kernel) + of("dilation", 1) * (kernel - 1)
                    - of("padding", 0);
                last >= extent - 1
            }
            _ => true,
        }
    }

    /// Whether elements are summed up in the end, by whatever path, so that nobody sees which was where.
    pub(super) fn order_is_lost(&self, place: usize) -> bool {
        let readers = users(self.graph, place);
        !readers.is_empty()
            && readers.iter().all(|&reader| {
                let Some(user) = (reader != usize::MAX)
                    .then(|| application(self.graph, reader))
                    .flatten()
                else {
                    return false;
                };
                match user.op {
                    "sum" | "mean" => {
                        self.shape(reader).iter().all(|extent| *extent == 1)
                            || self.order_is_lost(reader)
                    }
                    "neg" | "reshape" | "flatten" | "permute" | "transpose" | "t" | "unsqueeze" => {
                        self.order_is_lost(reader)
                    }
                    "mul" | "div" if user.inputs.len() == 1 => self.order_is_lost(reader),
                    _ => false,
                }
            })
    }

    /// Whether all that reads `place` sums over a dimension of it.
    pub(super) fn sums_over(&self, place: usize, dim: usize) -> bool {
        let rank = self.shape(place).len();
        let readers = users(self.graph, place);
        !readers.is_empty()
            && readers.iter().all(|reader| {
                (*reader != usize::MAX)
                    .then(|| application(self.graph, *reader))
                    .flatten()
                    .is_some_and(|user| {
                        matches!(user.op, "sum" | "mean" | "nansum" | "nanmean" | "trapezoid")
                            && dims_of(&user, "dim", rank).is_some_and(|dims| dims.contains(&dim))
                    })
            })
    }
}
