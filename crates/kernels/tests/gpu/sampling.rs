//! Tokens sampled on the device.

use rand::SeedableRng;
use rand::rngs::StdRng;
use warpsmith_kernels::{Buffer, Gpu, RowSample, RowSampling, SamplingScratch};

use crate::{gpu, numbers};

/// One token a row, and the counters after it.
struct Drawn {
    sampled: Vec<RowSample>,
    draws: Vec<u64>,
    positions: Vec<u32>,
}

impl Drawn {
    /// From draw 0 and position 5.
    fn new(gpu: &Gpu, logits: &Buffer<f32>, sampling: &[RowSampling]) -> Self {
        let rows = sampling.len();
        let mut tokens = gpu.zeros(rows).unwrap();
        let mut sampled = gpu.upload(&vec![RowSample::default(); rows]).unwrap();
        let mut draws = gpu.zeros(rows).unwrap();
        let mut positions = gpu.upload(&vec![5; rows]).unwrap();
        let vocabulary = logits.len() / rows;
        gpu.sample_tokens(
            &mut tokens,
            &mut sampled,
            logits,
            &gpu.upload(sampling).unwrap(),
            &mut draws,
            &mut positions,
            &mut SamplingScratch::new(gpu, rows, vocabulary).unwrap(),
            (rows, vocabulary),
        )
        .unwrap();
        let (tokens, sampled) = (
            gpu.read(&tokens, rows).unwrap(),
            gpu.read(&sampled, rows).unwrap(),
        );
        assert!(tokens.iter().eq(sampled.iter().map(|one| &one.token)));
        Self {
            sampled,
            draws: gpu.read(&draws, rows).unwrap(),
            positions: gpu.read(&positions, rows).unwrap(),
        }
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn tokens_come_as_often_as_they_should() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(6));
    let rows = 4096;
    // A large vocabulary with few tokens that matter, and a flat one whose nucleus is too large to be sorted.
    for (vocabulary, size, temperature, top_p) in [
        (1000, 6.0, 0.7, 0.9),
        (1000, 6.0, 1.0, 1.0),
        (50_000, 0.5, 1.0, 0.6),
        (151_936, 20.0, 1.3, 0.95),
    ] {
        let one = numbers(&mut random, vocabulary, size);
        let logits: Vec<f32> = one.iter().copied().cycle().take(vocabulary * 64).collect();
        let on_device = gpu.upload(&logits).unwrap();
        let mut found = vec![0u32; vocabulary];
        let expected = probabilities(&one, temperature, top_p);
        for batch in 0..rows / 64 {
            let sampling: Vec<RowSampling> = (0..64)
                .map(|row| RowSampling {
                    temperature,
                    top_p,
                    seed: (batch * 64 + row) as u64,
                })
                .collect();
            let drawn = Drawn::new(&gpu, &on_device, &sampling);
            let plain = probabilities(&one, 1.0, 1.0);
            for one in &drawn.sampled {
                let token = one.token as usize;
                found[token] += 1;
                assert!((f64::from(one.log_probability) - plain[token].ln()).abs() < 1e-3);
                assert!(expected[token] > 0.0, "a token outside the nucleus");
            }
            assert_eq!(drawn.draws, [1; 64]);
            assert_eq!(drawn.positions, [6; 64]);
        }
        // Half the summed difference between observed and expected frequencies; for as many draws from the right distribution it is
        // of this size.
        let distance: f64 = found
            .iter()
            .zip(&expected)
            .map(|(count, prob)| (f64::from(*count) / f64::from(rows as u32) - prob).abs())
            .sum::<f64>()
            / 2.0;
        let usual: f64 = expected
            .iter()
            .map(|prob| (prob * (1.0 - prob) / f64::from(rows as u32)).sqrt())
            .sum::<f64>()
            / 2.0;
        assert!(
            distance < 1.5 * usual + 0.01,
            "{vocabulary} {temperature} {top_p}: {distance} against {usual}"
        );
    }
    // Greedy: the first of equals.
    let mut logits = numbers(&mut random, 3000, 1.0);
    logits[1700] = 9.0;
    logits[2900] = 9.0;
    let on_device = gpu.upload(&logits).unwrap();
    let drawn = Drawn::new(&gpu, &on_device, &[RowSampling::GREEDY]);
    assert_eq!(drawn.sampled[0].token, 1700);
}

/// Each token's probability after temperature and top-p.
fn probabilities(logits: &[f32], temperature: f32, top_p: f32) -> Vec<f64> {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = logits
        .iter()
        .map(|one| f64::from((one - highest) / temperature).exp())
        .collect();
    let total: f64 = weights.iter().sum();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|left, right| {
        weights[*right]
            .total_cmp(&weights[*left])
            .then(left.cmp(right))
    });
    let (mut kept, mut sum) = (vec![0.0; logits.len()], 0.0);
    for token in order {
        if sum >= f64::from(top_p) * total && sum > 0.0 {
            break;
        }
        kept[token] = weights[token];
        sum += weights[token];
    }
    kept.iter().map(|weight| weight / sum).collect()
}
