//! Einstein sums: operand after operand, by a product of matrices where an index is summed.

use super::matrix::product;
use super::reduce::dropped;
use super::{NotCovered, OperatorCall};
use crate::plan::{Plan, ReduceOp};
use crate::tensor::Tensor;

pub(super) fn rule(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Option<Tensor>, NotCovered> {
    match call.op {
        "einsum" => einsum(plan, call).map(Some),
        _ => Ok(None),
    }
}

/// A tensor and the letter of each of its dimensions.
#[derive(Clone)]
struct Term {
    letters: Vec<char>,
    tensor: Tensor,
}

impl Term {
    fn extent(&self, letter: char) -> i64 {
        let place = self.letters.iter().position(|own| *own == letter);
        place.map_or(1, |place| self.tensor.shape[place])
    }

    /// Without the letters that nobody needs.
    fn summed(self, plan: &mut Plan, needed: impl Fn(char) -> bool) -> Self {
        let places = 0..self.letters.len();
        let over: Vec<usize> = places
            .filter(|place| !needed(self.letters[*place]))
            .collect();
        if over.is_empty() {
            return self;
        }
        let sum = plan.reduce_dims(&self.tensor, &over, ReduceOp::Sum, "sum");
        Self {
            tensor: dropped(&sum, &over),
            letters: self
                .letters
                .into_iter()
                .filter(|one| needed(*one))
                .collect(),
        }
    }

    /// With its dimensions in this order; of letters that it has not one element.
    fn ordered(&self, letters: &[char]) -> Tensor {
        let own = letters.iter();
        let own = own.filter_map(|letter| self.letters.iter().position(|one| one == letter));
        let own: Vec<usize> = own.collect();
        let shape: Vec<i64> = letters.iter().map(|letter| self.extent(*letter)).collect();
        self.tensor.permuted(&own).reshaped(&shape)
    }
}

fn einsum(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
    let equation = call.text("equation", "")?.replace(' ', "");
    let (operands, result) = match equation.split_once("->") {
        Some((operands, result)) => (operands.to_owned(), result.chars().collect()),
        None => (equation.clone(), implicit(&equation)),
    };
    let parts: Vec<&str> = operands.split(',').collect();
    if parts.len() != call.inputs.len() {
        return Err(call.refuse("another number of operands"));
    }
    let mut terms = Vec::new();
    for (place, part) in parts.iter().enumerate() {
        let letters: Vec<char> = part.chars().collect();
        let tensor = call.input(place)?.to_float();
        let repeats = letters.iter().enumerate();
        let mut repeats = repeats.filter(|(at, letter)| letters[..*at].contains(letter));
        if letters.len() != tensor.rank() || repeats.next().is_some() {
            return Err(call.refuse("an ellipsis or a diagonal"));
        }
        terms.push(Term { letters, tensor });
    }
    let mut left = terms.remove(0);
    while !terms.is_empty() {
        let right = terms.remove(0);
        let later = |letter: char| {
            result.contains(&letter) || terms.iter().any(|term| term.letters.contains(&letter))
        };
        left = combined(plan, call, left, right, &later)?;
    }
    let left = left.summed(plan, |letter| result.contains(&letter));
    Ok(left.ordered(&result))
}

/// Letters that occur once, in the order of the alphabet.
fn implicit(equation: &str) -> Vec<char> {
    let mut letters: Vec<char> = equation
        .chars()
        .filter(|letter| letter.is_alphabetic() && equation.matches(*letter).count() == 1)
        .collect();
    letters.sort_unstable();
    letters
}

fn combined(
    plan: &mut Plan,
    call: &OperatorCall<'_>,
    a: Term,
    b: Term,
    later: &dyn Fn(char) -> bool,
) -> Result<Term, NotCovered> {
    let (of_a, of_b) = (a.letters.clone(), b.letters.clone());
    let a = a.summed(plan, |letter| later(letter) || of_b.contains(&letter));
    let b = b.summed(plan, |letter| later(letter) || of_a.contains(&letter));
    let select = |letters: &[char], wanted: &dyn Fn(char) -> bool| -> Vec<char> {
        letters.iter().copied().filter(|one| wanted(*one)).collect()
    };
    let shared = |letter: char| a.letters.contains(&letter) && b.letters.contains(&letter);
    let batch = select(&a.letters, &|one| shared(one) && later(one));
    let summed = select(&a.letters, &|one| shared(one) && !later(one));
    let (rows, columns) = (
        select(&a.letters, &|one| !shared(one)),
        select(&b.letters, &|one| !shared(one)),
    );
    let letters: Vec<char> = [&batch[..], &rows, &columns].concat();
    if summed.is_empty() {
        let pair = [a.ordered(&letters), b.ordered(&letters)];
        let tensor = call.float_map(&pair, "product", |arena, x| arena.mul(x[0], x[1]))?;
        return Ok(Term { letters, tensor });
    }
    if rows.is_empty() && columns.is_empty() {
        // A row each: a product of matrices would have one element.
        let all: Vec<char> = [&batch[..], &summed].concat();
        let pair = [a.ordered(&all), b.ordered(&all)];
        let products = call.float_map(&pair, "product", |arena, x| arena.mul(x[0], x[1]))?;
        let over: Vec<usize> = (batch.len()..all.len()).collect();
        let sum = plan.reduce_dims(&products, &over, ReduceOp::Sum, "dot");
        return Ok(Term {
            tensor: dropped(&sum, &over),
            letters,
        });
    }
    let shape: Vec<i64> = letters
        .iter()
        .map(|letter| a.extent(*letter).max(b.extent(*letter)))
        .collect();
    let size = |term: &Term, of: &[char]| of.iter().map(|one| term.extent(*one)).product::<i64>();
    let sheets = size(&a, &batch);
    let left = a
        .ordered(&[&batch[..], &rows, &summed].concat())
        .reshaped(&[sheets, size(&a, &rows), size(&a, &summed)]);
    let right = b
        .ordered(&[&batch[..], &summed, &columns].concat())
        .reshaped(&[sheets, size(&b, &summed), size(&b, &columns)]);
    let tensor = product(plan, call, &left, &right)?.reshaped(&shape);
    Ok(Term { letters, tensor })
}
