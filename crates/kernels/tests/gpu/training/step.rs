//! Backward of matrix products, cross-entropy and AdamW.

use super::*;

/// `a[rows x inner] · b[inner x columns]`.
fn product(a: &[f64], b: &[f64], (rows, inner, columns): (usize, usize, usize)) -> Vec<f64> {
    let mut out = vec![0.0; rows * columns];
    for (a, out) in a.chunks_exact(inner).zip(out.chunks_exact_mut(columns)) {
        for (a, b) in a.iter().zip(b.chunks_exact(columns)) {
            for (to, b) in out.iter_mut().zip(b) {
                *to += a * b;
            }
        }
    }
    out
}

fn transposed(matrix: &[f64], rows: usize) -> Vec<f64> {
    let columns = matrix.len() / rows;
    let places = (0..columns).flat_map(|c| (0..rows).map(move |r| r * columns + c));
    places.map(|place| matrix[place]).collect()
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn linear_backward() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(15));
    for (rows, inputs, outputs) in [(40, 64, 96), (1000, 576, 960)] {
        let x = numbers(&mut random, rows * inputs, 1.0);
        let weight = numbers(&mut random, outputs * inputs, 1.0);
        let grads = numbers(&mut random, rows * outputs, 1.0);
        let before = numbers(&mut random, outputs * inputs, 1.0);
        let [left, matrix, back] =
            [&x, &weight, &grads].map(|from| gpu.upload(&to_bf16(from)).unwrap());
        let mut out = gpu.zeros::<bf16>(rows * inputs).unwrap();
        gpu.linear_bwd_input(&mut out, &back, &matrix, (rows, inputs))
            .unwrap();
        let expected = product(&exact(&grads), &exact(&weight), (rows, outputs, inputs));
        close(
            "gradient of the input",
            &to_f32(&gpu.read(&out, rows * inputs).unwrap()),
            &expected,
            ROUNDED,
        );
        let transposed = transposed(&exact(&grads), rows);
        let expected = product(&transposed, &exact(&x), (outputs, rows, inputs));
        let mut sums = gpu.upload(&before).unwrap();
        gpu.linear_bwd_weight(
            (&mut sums, WriteMode::Accumulate),
            &back,
            &left,
            (rows, inputs),
        )
        .unwrap();
        let accumulated: Vec<f64> = expected
            .iter()
            .zip(&before)
            .map(|(one, two)| one + f64::from(*two))
            .collect();
        close(
            "gradient of the weight, accumulated",
            &gpu.read(&sums, before.len()).unwrap(),
            &accumulated,
            1e-4,
        );
        gpu.linear_bwd_weight(
            (&mut sums, WriteMode::Overwrite),
            &back,
            &left,
            (rows, inputs),
        )
        .unwrap();
        close(
            "gradient of the weight",
            &gpu.read(&sums, before.len()).unwrap(),
            &expected,
            1e-4,
        );
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn cross_entropy_forward_and_backward() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(16));
    // One block, several, and more than they hold in shared memory.
    for vocabulary in [8, 1000, 49_152, 50_264, 151_936, 1_000_000] {
        let rows = 6;
        let mut logits = numbers(&mut random, rows * vocabulary, 6.0);
        // One that is nearly certain.
        logits[vocabulary + 3] = 60.0;
        let targets: Vec<u32> = (0..rows)
            .map(|row| {
                if row == 1 {
                    3
                } else {
                    random.random_range(0..vocabulary as u32)
                }
            })
            .collect();
        let upstream = [
            (-1.0, 0.0),
            (-0.5, 0.2),
            (0.0, 1.0),
            (0.0, 0.0),
            (0.3, -0.1),
            (-2e-4, 0.0),
        ]
        .map(|(logprob, entropy)| ScoreGrad { logprob, entropy });
        let (on_device, on_targets, on_upstream) = (
            gpu.upload(&logits).unwrap(),
            gpu.upload(&targets).unwrap(),
            gpu.upload(&upstream).unwrap(),
        );
        let mut d_logits = gpu.upload(&vec![bf16::NAN; rows * vocabulary]).unwrap();
        for is_backward in [false, true] {
            let (mut logprobs, mut entropies) = (
                gpu.zeros::<f32>(rows).unwrap(),
                gpu.zeros::<f32>(rows).unwrap(),
            );
            let mut cross_entropy = CrossEntropyRows {
                logprobs: logprobs.as_view_mut(),
                entropies: entropies.as_view_mut(),
                logits: &on_device,
                targets: on_targets.as_view(),
                vocabulary,
            };
            let backward = is_backward.then(|| (&mut d_logits, on_upstream.as_view()));
            gpu.cross_entropy_fused(&mut cross_entropy, backward)
                .unwrap();
            let (logprobs, entropies) = (
                gpu.read(&logprobs, rows).unwrap(),
                gpu.read(&entropies, rows).unwrap(),
            );
            for row in 0..rows {
                if is_backward && upstream[row] == ScoreGrad::default() {
                    continue;
                }
                let row_logits = exact(&logits[row * vocabulary..][..vocabulary]);
                let stats = cpu::LogitStats::new(&row_logits);
                let logprob = stats.logprob(&row_logits, targets[row] as usize);
                let entropy = stats.entropy;
                assert!(
                    (f64::from(logprobs[row]) - logprob).abs() < 1e-4,
                    "{vocabulary} {row}: {} {logprob}",
                    logprobs[row]
                );
                assert!(
                    (f64::from(entropies[row]) - entropy).abs() < 1e-4,
                    "{vocabulary} {row}: {} {entropy}",
                    entropies[row]
                );
            }
        }
        let found = to_f32(&gpu.read(&d_logits, rows * vocabulary).unwrap());
        for (row, upstream) in upstream.iter().enumerate() {
            let place = row * vocabulary..(row + 1) * vocabulary;
            let by = [f64::from(upstream.logprob), f64::from(upstream.entropy)];
            let mut expected = exact(&logits[place.clone()]);
            let stats = cpu::LogitStats::new(&expected);
            stats.backward(&mut expected, targets[row] as usize, by);
            if *upstream == ScoreGrad::default() || row == 1 {
                assert!(found[place].iter().all(|one| one.abs() < 1e-6));
            } else {
                close(
                    &format!("gradient of logits, {vocabulary} {row}"),
                    &found[place],
                    &expected,
                    ROUNDED,
                );
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn steps_are_those_of_adamw() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(18));
    let (count, decay_start) = (1_000_004, 4000);
    let weights = numbers(&mut random, count, 1.0);
    let mut parameters = DeviceParameters::new(&gpu, &weights, decay_start).unwrap();
    let mut expected = exact(&weights);
    let (mut first, mut second) = (vec![0.0f64; count], vec![0.0f64; count]);
    // As single precision has them: 1 - beta of the rounded value differs by 1.3e-5 of itself.
    let (beta1, beta2) = (f64::from(0.9f32), f64::from(0.999f32));
    for step in 1..=3 {
        let step_settings = AdamWStep {
            adamw: AdamW {
                beta1,
                beta2,
                epsilon: 1e-8,
                weight_decay: 0.1,
                // Clipped at the second step only.
                max_grad_norm: if step == 2 { 1.0 } else { 1e6 },
            },
            learning_rate: 1e-2,
            step,
        };
        let gradient = numbers(&mut random, count, 0.5);
        let norm = exact(&gradient)
            .iter()
            .map(|one| one * one)
            .sum::<f64>()
            .sqrt();
        let clip = step_settings.clip_factor(norm);
        for i in 0..count {
            let grad = f64::from(gradient[i]) * clip;
            first[i] = beta1 * first[i] + (1.0 - beta1) * grad;
            second[i] = beta2 * second[i] + (1.0 - beta2) * grad * grad;
            let (mean, square) = (
                first[i] / (1.0 - beta1.powi(step as i32)),
                second[i] / (1.0 - beta2.powi(step as i32)),
            );
            let decay = if i < decay_start { 0.0 } else { 1e-2 * 0.1 };
            expected[i] = expected[i] * (1.0 - decay) - 1e-2 * mean / (square.sqrt() + 1e-8);
        }
        gpu.write(&mut parameters.grad, &gradient).unwrap();
        gpu.write_adamw_step(&mut parameters, step_settings)
            .unwrap();
        gpu.adamw_fused(&mut parameters).unwrap();
        let found = f64::from(parameters.grad_norm(&gpu).unwrap());
        assert!((found / norm - 1.0).abs() < 1e-4, "{found} {norm}");
        close(
            &format!("weights at step {step}"),
            &gpu.read(&parameters.weights, count).unwrap(),
            &expected,
            1e-5,
        );
        close(
            "first moment",
            &gpu.read(&parameters.first_moment, count).unwrap(),
            &first,
            1e-5,
        );
        close(
            "second moment",
            &gpu.read(&parameters.second_moment, count).unwrap(),
            &second,
            1e-5,
        );
        close(
            "weights in bfloat16",
            &to_f32(&gpu.read(&parameters.weights_bf16, count).unwrap()),
            &expected,
            ROUNDED,
        );
    }
    // A gradient that is not finite changes nothing.
    let before: Vec<f32> = gpu.read(&parameters.weights, count).unwrap();
    let mut gradient = vec![0.0f32; count];
    gradient[count - 1] = f32::NAN;
    gpu.write(&mut parameters.grad, &gradient).unwrap();
    gpu.adamw_fused(&mut parameters).unwrap();
    assert!(!parameters.grad_norm(&gpu).unwrap().is_finite());
    let after: Buffer<f32> = parameters.weights;
    assert_eq!(gpu.read(&after, count).unwrap(), before);
}
