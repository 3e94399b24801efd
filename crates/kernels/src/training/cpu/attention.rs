//! Causal attention of packed sequences over themselves, forward and backward.
//!
//! Scores exist for a block of queries of one head at a time, against the keys that these queries see. The backward pass recomputes
//! them from the log-sum-exp of each row.

use rayon::prelude::*;

use super::gemm::{Matrix, Scaling, gemm_single};
use super::real::Real;
use crate::training::layout::AttentionShape;

/// Queries whose scores exist at the same time.
const QUERY_BLOCK: usize = 128;

/// One KV head of one sequence: what is computed independently of the rest.
#[derive(Clone, Copy)]
struct Task {
    /// The sequence's first row.
    begin: usize,
    length: usize,
    kv_head: usize,
}

fn tasks(shape: AttentionShape, lengths: &[usize]) -> Vec<Task> {
    let mut all = Vec::new();
    let mut begin = 0;
    for &length in lengths {
        all.extend((0..shape.kv_heads).map(|kv_head| Task {
            begin,
            length,
            kv_head,
        }));
        begin += length;
    }
    all
}

impl Task {
    /// The query heads that share the KV head.
    fn heads(self, shape: AttentionShape) -> impl Iterator<Item = usize> {
        let group = shape.heads / shape.kv_heads;
        self.kv_head * group..(self.kv_head + 1) * group
    }

    /// The sequence's rows of one head of a matrix whose rows have this width, from column `offset` on.
    fn head<T>(self, data: &[T], width: usize, offset: usize, dim: usize) -> Matrix<'_, T> {
        let rows = &data[self.begin * width + offset..];
        Matrix::strided(rows, [self.length, dim], width)
    }
}

/// Outputs `[row][head][dim]`, and the log of each row's sum over exp(score), `[head][row]`.
pub fn attention<T: Real>(qkv: &[T], shape: AttentionShape, lengths: &[usize]) -> (Vec<T>, Vec<T>) {
    let rows: usize = lengths.iter().sum();
    let (width, dim) = (shape.qkv_width(), shape.head_dim);
    let out_width = shape.heads * dim;
    let scale = T::from_f64(shape.scale());
    let tasks = tasks(shape, lengths);
    let parts: Vec<Vec<(Vec<T>, Vec<T>)>> = tasks
        .par_iter()
        .map(|task| {
            let (key, value) = kv_offsets(shape, task.kv_head);
            let keys = task.head(qkv, width, key, dim);
            let values = task.head(qkv, width, value, dim);
            let heads = task.heads(shape).map(|head| {
                let queries = task.head(qkv, width, head * dim, dim);
                let mut out = vec![T::ZERO; task.length * dim];
                let mut lse = vec![T::ZERO; task.length];
                for first in (0..task.length).step_by(QUERY_BLOCK) {
                    let end = task.length.min(first + QUERY_BLOCK);
                    let mut probs = vec![T::ZERO; (end - first) * end];
                    let visible = keys.rows(0, end);
                    let block = queries.rows(first, end);
                    gemm_single(&mut probs, end, Scaling::times(scale), block, visible.t());
                    for (row, probs) in probs.chunks_exact_mut(end).enumerate() {
                        lse[first + row] = softmax(probs, first + row + 1);
                    }
                    gemm_single(
                        &mut out[first * dim..end * dim],
                        dim,
                        Scaling::OVERWRITE,
                        Matrix::new(&probs, end),
                        values.rows(0, end),
                    );
                }
                (out, lse)
            });
            heads.collect()
        })
        .collect();
    let mut out = vec![T::ZERO; rows * out_width];
    let mut lse = vec![T::ZERO; shape.heads * rows];
    for (task, heads) in tasks.iter().zip(parts) {
        for (head, (head_out, head_lse)) in task.heads(shape).zip(heads) {
            scatter(&mut out, out_width, task.begin, head * dim, &head_out, dim);
            lse[head * rows + task.begin..][..task.length].copy_from_slice(&head_lse);
        }
    }
    (out, lse)
}

/// What the forward pass computed.
pub struct AttentionOutput<'a, T> {
    pub out: &'a [T],
    pub lse: &'a [T],
}

/// Gradients of queries, keys and values, laid out as `qkv`.
pub fn attention_bwd<T: Real>(
    qkv: &[T],
    shape: AttentionShape,
    lengths: &[usize],
    forward: &AttentionOutput<'_, T>,
    d_out: &[T],
) -> Vec<T> {
    let rows: usize = lengths.iter().sum();
    let (width, dim) = (shape.qkv_width(), shape.head_dim);
    let out_width = shape.heads * dim;
    let scale = T::from_f64(shape.scale());
    let tasks = tasks(shape, lengths);
    let parts: Vec<TaskGrads<T>> = tasks
        .par_iter()
        .map(|task| {
            let (key, value) = kv_offsets(shape, task.kv_head);
            let keys = task.head(qkv, width, key, dim);
            let values = task.head(qkv, width, value, dim);
            let mut grads = TaskGrads {
                queries: Vec::new(),
                keys: vec![T::ZERO; task.length * dim],
                values: vec![T::ZERO; task.length * dim],
            };
            for head in task.heads(shape) {
                let queries = task.head(qkv, width, head * dim, dim);
                let d_outs = task.head(d_out, out_width, head * dim, dim);
                let lse = &forward.lse[head * rows + task.begin..][..task.length];
                let mut d_queries = vec![T::ZERO; task.length * dim];
                for first in (0..task.length).step_by(QUERY_BLOCK) {
                    let end = task.length.min(first + QUERY_BLOCK);
                    let (block, d_block) = (queries.rows(first, end), d_outs.rows(first, end));
                    let (keys, values) = (keys.rows(0, end), values.rows(0, end));
                    let mut probs = vec![T::ZERO; (end - first) * end];
                    gemm_single(&mut probs, end, Scaling::times(scale), block, keys.t());
                    let mut d_scores = vec![T::ZERO; (end - first) * end];
                    gemm_single(&mut d_scores, end, Scaling::OVERWRITE, d_block, values.t());
                    let both = probs
                        .chunks_exact_mut(end)
                        .zip(d_scores.chunks_exact_mut(end));
                    for (index, (probs, d_scores)) in both.enumerate() {
                        let row = first + index;
                        let place = (task.begin + row) * out_width + head * dim;
                        let delta = dot(&d_out[place..][..dim], &forward.out[place..][..dim]);
                        let (seen, masked) = probs.split_at_mut(row + 1);
                        for (prob, d_score) in seen.iter_mut().zip(&mut *d_scores) {
                            *prob = (*prob - lse[row]).exp();
                            *d_score = *prob * (*d_score - delta);
                        }
                        masked.fill(T::ZERO);
                        d_scores[row + 1..].fill(T::ZERO);
                    }
                    let (probs, d_scores) = (Matrix::new(&probs, end), Matrix::new(&d_scores, end));
                    let scaled = Scaling::times(scale);
                    let to = &mut d_queries[first * dim..end * dim];
                    gemm_single(to, dim, scaled, d_scores, keys);
                    let accumulate = Scaling {
                        alpha: scale,
                        beta: T::ONE,
                    };
                    gemm_single(&mut grads.keys, dim, accumulate, d_scores.t(), block);
                    let to = &mut grads.values;
                    gemm_single(to, dim, Scaling::ACCUMULATE, probs.t(), d_block);
                }
                grads.queries.push(d_queries);
            }
            grads
        })
        .collect();
    let mut d_qkv = vec![T::ZERO; rows * width];
    for (task, grads) in tasks.iter().zip(parts) {
        for (head, d_queries) in task.heads(shape).zip(&grads.queries) {
            scatter(&mut d_qkv, width, task.begin, head * dim, d_queries, dim);
        }
        let (key, value) = kv_offsets(shape, task.kv_head);
        scatter(&mut d_qkv, width, task.begin, key, &grads.keys, dim);
        scatter(&mut d_qkv, width, task.begin, value, &grads.values, dim);
    }
    d_qkv
}

struct TaskGrads<T> {
    /// Of each query head.
    queries: Vec<Vec<T>>,
    keys: Vec<T>,
    values: Vec<T>,
}

fn kv_offsets(shape: AttentionShape, kv_head: usize) -> (usize, usize) {
    shape.kv_offsets(kv_head * (shape.heads / shape.kv_heads))
}

/// Replaces the first `visible` scores by probabilities and the others by zeros. Gives the log-sum-exp of the scores.
fn softmax<T: Real>(scores: &mut [T], visible: usize) -> T {
    let (seen, masked) = scores.split_at_mut(visible);
    let mut max = seen[0];
    for score in &*seen {
        if *score > max {
            max = *score;
        }
    }
    let mut sum = T::ZERO;
    for score in &mut *seen {
        *score = (*score - max).exp();
        sum += *score;
    }
    let inverse = T::ONE / sum;
    for score in seen {
        *score *= inverse;
    }
    masked.fill(T::ZERO);
    max + T::from_f64(sum.to_f64().ln())
}

fn dot<T: Real>(a: &[T], b: &[T]) -> T {
    a.iter().zip(b).map(|(a, b)| *a * *b).sum()
}

/// Writes rows of `dim` columns as part of wider rows, from row `begin` and column `offset` on.
fn scatter<T: Copy>(
    to: &mut [T],
    width: usize,
    begin: usize,
    offset: usize,
    from: &[T],
    dim: usize,
) {
    for (row, from) in from.chunks_exact(dim).enumerate() {
        to[(begin + row) * width + offset..][..dim].copy_from_slice(from);
    }
}
