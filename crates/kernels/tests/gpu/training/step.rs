//! Products back, scores and updates.

use super::*;

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn products_back() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(15));
    for (rows, inputs, outputs) in [(40, 64, 96), (1000, 576, 960)] {
        let x = numbers(&mut random, rows * inputs, 1.0);
        let weight = numbers(&mut random, outputs * inputs, 1.0);
        let slopes = numbers(&mut random, rows * outputs, 1.0);
        let before = numbers(&mut random, outputs * inputs, 1.0);
        let [left, matrix, back] =
            [&x, &weight, &slopes].map(|from| gpu.upload(&narrow(from)).unwrap());
        let mut out = gpu.zeros::<bf16>(rows * inputs).unwrap();
        gpu.linear_back_to_inputs(&mut out, &back, &matrix, (rows, inputs))
            .unwrap();
        let wanted = twin::back_to_inputs(&exact(&slopes), &exact(&weight), inputs);
        close(
            "slopes of inputs",
            &wide(&gpu.read(&out, rows * inputs).unwrap()),
            &wanted,
            ROUNDED,
        );
        let wanted = twin::back_to_weights(&exact(&slopes), &exact(&x), inputs);
        let mut sums = gpu.upload(&before).unwrap();
        gpu.linear_back_to_weights((&mut sums, Adding::OnTop), &back, &left, (rows, inputs))
            .unwrap();
        let on_top: Vec<f64> = wanted
            .iter()
            .zip(&before)
            .map(|(one, two)| one + f64::from(*two))
            .collect();
        close(
            "slopes of the matrix, on top",
            &gpu.read(&sums, before.len()).unwrap(),
            &on_top,
            1e-4,
        );
        gpu.linear_back_to_weights((&mut sums, Adding::Anew), &back, &left, (rows, inputs))
            .unwrap();
        close(
            "slopes of the matrix",
            &gpu.read(&sums, before.len()).unwrap(),
            &wanted,
            1e-4,
        );
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn tokens_are_scored() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(16));
    // One block, several, and more than they keep.
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
        let wanted = [
            (-1.0, 0.0),
            (-0.5, 0.2),
            (0.0, 1.0),
            (0.0, 0.0),
            (0.3, -0.1),
            (-2e-4, 0.0),
        ]
        .map(|(logprob, entropy)| Wanted { logprob, entropy });
        let (on_device, on_targets, on_wanted) = (
            gpu.upload(&logits).unwrap(),
            gpu.upload(&targets).unwrap(),
            gpu.upload(&wanted).unwrap(),
        );
        let mut slopes = gpu.upload(&vec![bf16::NAN; rows * vocabulary]).unwrap();
        for is_back in [false, true] {
            let (mut logprobs, mut entropies) = (
                gpu.zeros::<f32>(rows).unwrap(),
                gpu.zeros::<f32>(rows).unwrap(),
            );
            let mut scored = Scored {
                logprobs: logprobs.as_view_mut(),
                entropies: entropies.as_view_mut(),
                logits: &on_device,
                targets: on_targets.as_view(),
                vocabulary,
            };
            let back = is_back.then(|| (&mut slopes, on_wanted.as_view()));
            gpu.training_score(&mut scored, back).unwrap();
            let (logprobs, entropies) = (
                gpu.read(&logprobs, rows).unwrap(),
                gpu.read(&entropies, rows).unwrap(),
            );
            for row in 0..rows {
                if is_back && wanted[row] == Wanted::default() {
                    continue;
                }
                let (logprob, entropy) = twin::score(
                    &exact(&logits[row * vocabulary..][..vocabulary]),
                    targets[row] as usize,
                );
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
        let seen = wide(&gpu.read(&slopes, rows * vocabulary).unwrap());
        for (row, wanted) in wanted.iter().enumerate() {
            let place = row * vocabulary..(row + 1) * vocabulary;
            let by = (f64::from(wanted.logprob), f64::from(wanted.entropy));
            let back = twin::score_back(&exact(&logits[place.clone()]), targets[row] as usize, by);
            if *wanted == Wanted::default() || row == 1 {
                assert!(seen[place].iter().all(|one| one.abs() < 1e-6));
            } else {
                close(
                    &format!("slopes of logits, {vocabulary} {row}"),
                    &seen[place],
                    &back,
                    ROUNDED,
                );
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn updates_are_those_of_adamw() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(18));
    let (count, decays_from) = (1_000_004, 4000);
    let weights = numbers(&mut random, count, 1.0);
    let mut parameters = Parameters::new(&gpu, &weights, decays_from).unwrap();
    let mut wanted = exact(&weights);
    let (mut first, mut second) = (vec![0.0f64; count], vec![0.0f64; count]);
    // As single precision has them: what is left of one differs from that of 0.999 by 1.3e-5 of itself.
    let (beta1, beta2) = (f64::from(0.9f32), f64::from(0.999f32));
    for step in 1..=3 {
        let settings = AdamW {
            rate: 1e-2,
            beta1,
            beta2,
            epsilon: 1e-8,
            weight_decay: 0.1,
            // Shortened at the second step only.
            longest: if step == 2 { 1.0 } else { 1e6 },
            step,
        };
        let gradient = numbers(&mut random, count, 0.5);
        let length = exact(&gradient)
            .iter()
            .map(|one| one * one)
            .sum::<f64>()
            .sqrt();
        let shorten = (settings.longest / (length + 1e-6)).min(1.0);
        for i in 0..count {
            let slope = f64::from(gradient[i]) * shorten;
            first[i] = beta1 * first[i] + (1.0 - beta1) * slope;
            second[i] = beta2 * second[i] + (1.0 - beta2) * slope * slope;
            let (mean, square) = (
                first[i] / (1.0 - beta1.powi(step as i32)),
                second[i] / (1.0 - beta2.powi(step as i32)),
            );
            let decay = if i < decays_from { 0.0 } else { 1e-2 * 0.1 };
            wanted[i] = wanted[i] * (1.0 - decay) - 1e-2 * mean / (square.sqrt() + 1e-8);
        }
        gpu.write(&mut parameters.gradient, &gradient).unwrap();
        gpu.set_adamw(&mut parameters, settings).unwrap();
        gpu.training_update(&mut parameters).unwrap();
        let seen = f64::from(parameters.gradient_length(&gpu).unwrap());
        assert!((seen / length - 1.0).abs() < 1e-4, "{seen} {length}");
        close(
            &format!("weights at step {step}"),
            &gpu.read(&parameters.weights, count).unwrap(),
            &wanted,
            1e-5,
        );
        close(
            "first means",
            &gpu.read(&parameters.first, count).unwrap(),
            &first,
            1e-5,
        );
        close(
            "second means",
            &gpu.read(&parameters.second, count).unwrap(),
            &second,
            1e-5,
        );
        close(
            "narrow weights",
            &wide(&gpu.read(&parameters.narrow, count).unwrap()),
            &wanted,
            ROUNDED,
        );
    }
    // A gradient that is not finite changes nothing.
    let before: Vec<f32> = gpu.read(&parameters.weights, count).unwrap();
    let mut gradient = vec![0.0f32; count];
    gradient[count - 1] = f32::NAN;
    gpu.write(&mut parameters.gradient, &gradient).unwrap();
    gpu.training_update(&mut parameters).unwrap();
    assert!(!parameters.gradient_length(&gpu).unwrap().is_finite());
    let after: Buffer<f32> = parameters.weights;
    assert_eq!(gpu.read(&after, count).unwrap(), before);
}
