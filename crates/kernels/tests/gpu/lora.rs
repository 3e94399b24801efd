//! LoRA beside a frozen model, against the CPU backend in `f64`.

use std::rc::Rc;

use rand::SeedableRng;
use rand::rngs::StdRng;
use warpsmith_kernels::training::cpu::CpuFrozenWeights;
use warpsmith_kernels::training::gpu::{BatchCapacity, FrozenWeights, GpuTrainableModel};
use warpsmith_kernels::training::{
    LoraLayout, LoraSpec, ModelHead, ParameterLayout, Projection, TrainableInit,
};

use crate::model::{
    CHECKPOINTING, adamw, batch, buffers, furthest, random_grads, random_weights, reference,
    relative_error, repeated_grads, shapes,
};
use crate::{gpu, numbers};

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn gradients_of_lora_matrices() {
    let mut random = StdRng::seed_from_u64(31);
    let targets = [
        Projection::ALL.to_vec(),
        vec![Projection::Query, Projection::Value, Projection::Up],
        vec![
            Projection::AttentionOutput,
            Projection::Gate,
            Projection::Down,
        ],
    ];
    for ((name, shape), targets) in shapes().into_iter().zip(targets) {
        let layout = ParameterLayout::new(shape.clone());
        let weights = random_weights(&mut random, &layout);
        // A rank that is padded.
        let spec = LoraSpec {
            rank: 5,
            scale: 0.7,
            targets,
        };
        let lora = LoraLayout::new(shape.clone(), &spec);
        // Rows of the matrices, by layer and projection; all else is padding.
        let mut start = vec![0.0f32; lora.len()];
        let mut is_parameter = vec![false; lora.len()];
        let mut matrices = Vec::new();
        for layer in 0..shape.layers {
            for &projection in &spec.targets {
                let a: Vec<_> = (0..spec.rank)
                    .map(|row| lora.a_row(layer, projection, row).unwrap())
                    .collect();
                let b: Vec<_> = (0..projection.rows(&shape))
                    .map(|row| lora.b_row(layer, projection, row).unwrap())
                    .map(|start| start..start + spec.rank)
                    .collect();
                for range in a.iter().chain(&b) {
                    let values = numbers(&mut random, range.len(), 0.1);
                    start[range.clone()].copy_from_slice(&values);
                    is_parameter[range.clone()].fill(true);
                }
                matrices.push((format!("A of {projection:?} in layer {layer}"), a));
                matrices.push((format!("B of {projection:?} in layer {layer}"), b));
            }
        }

        let batch = batch(&mut random, &[40, 1, 70, 30], shape.vocabulary);
        let grads = random_grads(&mut random, batch.loss_tokens());
        let values = |parameter| weights[layout.range(parameter)].to_vec();
        let base = CpuFrozenWeights::<f64>::new(layout.clone(), values);
        let init = TrainableInit::Lora {
            base: Rc::new(base),
            spec: &spec,
            weights: &start,
        };
        let (expected, expected_grad) = reference(&init, &batch, &grads);

        let mut first: Option<Vec<f32>> = None;
        for checkpointing in CHECKPOINTING {
            let what = format!("{name} {checkpointing:?}");
            let capacity = BatchCapacity {
                checkpointing,
                logits_chunk: 128,
                lora_widths: lora.widths(),
                ..BatchCapacity::new(&shape, 192, 128)
            };
            let buffers = buffers(&shape, capacity);
            let base = FrozenWeights::new(buffers.borrow().gpu(), layout.clone(), values).unwrap();
            let init = TrainableInit::Lora {
                base: Rc::new(base),
                spec: &spec,
                weights: &start,
            };
            let mut model =
                GpuTrainableModel::new(&buffers, &init, ModelHead::LanguageModel).unwrap();
            let scores = model.score(&batch).unwrap();
            let error = furthest(&scores.logprobs, &expected, 0);
            assert!(error < 0.1, "{what}: {error}");
            model.backward_scores(&grads).unwrap();
            let grad = model.grad().unwrap();
            let mut wrong = Vec::new();
            for (matrix, rows) in &matrices {
                let found: Vec<f32> = rows
                    .iter()
                    .flat_map(|row| &grad[row.clone()])
                    .copied()
                    .collect();
                let expected = rows.iter().flat_map(|row| &expected_grad[row.clone()]);
                let expected: Vec<f64> = expected.copied().collect();
                let error = relative_error(&found, &expected);
                if error.is_nan() || error > 0.05 {
                    wrong.push(format!("{matrix}: {error:.3}"));
                }
            }
            assert!(
                wrong.is_empty(),
                "{what}, off by a share of their norm:\n{}",
                wrong.join("\n")
            );
            // Checkpointing, and launching a CUDA graph instead of single kernels, change no bit.
            let only_parameters = |all: Vec<f32>| {
                let pairs = all.into_iter().zip(&is_parameter);
                pairs
                    .filter_map(|(one, is_parameter)| is_parameter.then_some(one))
                    .collect::<Vec<f32>>()
            };
            let grad = only_parameters(grad);
            let first = first.get_or_insert_with(|| grad.clone());
            assert!(*first == grad, "{what}");
            let grads_again = repeated_grads(&mut model, &batch, &grads);
            for (round, again) in grads_again.into_iter().enumerate() {
                assert!(*first == only_parameters(again), "{what}, round {round}");
            }
            // Padding stays zero.
            model.step(adamw(1)).unwrap();
            model.score_backward(&batch, &grads).unwrap();
            model.step(adamw(2)).unwrap();
            assert!(model.grad_norm().unwrap().is_finite());
            let state = model.state().unwrap();
            for (index, is_parameter) in is_parameter.iter().enumerate() {
                let values = [&state.weights, &state.first_moment, &state.second_moment];
                let values = values.map(|of| of[index]);
                assert!(
                    *is_parameter || values.iter().all(|one| one.to_bits() == 0),
                    "{what}: padding {index} is {values:?}"
                );
            }
            assert!(state.weights != start, "{what}: nothing was learnt");
        }
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn rows_are_scaled_in_some_columns() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(32));
    let (rows, width) = (37, 24);
    let start = numbers(&mut random, rows * width, 1.0);
    let scales: Vec<f32> = (0..rows).map(|row| (row % 3) as f32).collect();
    let mut matrix = gpu.upload(&start).unwrap();
    let on_device = gpu.upload(&scales).unwrap();
    gpu.scale_rows(&mut matrix, (width, 8..16), &on_device)
        .unwrap();
    let found = gpu.read(&matrix, rows * width).unwrap();
    for (place, (found, start)) in found.iter().zip(&start).enumerate() {
        let scale = if (8..16).contains(&(place % width)) {
            scales[place / width]
        } else {
            1.0
        };
        assert!((found - scale * start).abs() < 1e-6, "{place}");
    }
}
