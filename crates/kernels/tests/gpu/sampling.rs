//! Tokens chosen on the device.

use rand::SeedableRng;
use rand::rngs::StdRng;
use warpsmith_kernels::{Buffer, Choice, Chosen, Gpu, Parts};

use crate::{gpu, numbers};

/// One token a choice, and where the rows stand after it.
struct Drawn {
    chosen: Vec<Chosen>,
    steps: Vec<u64>,
    positions: Vec<u32>,
}

impl Drawn {
    /// From step 0 and position 5.
    fn new(gpu: &Gpu, logits: &Buffer<f32>, choices: &[Choice]) -> Self {
        let rows = choices.len();
        let mut tokens = gpu.zeros(rows).unwrap();
        let mut chosen = gpu.upload(&vec![Chosen::default(); rows]).unwrap();
        let mut steps = gpu.zeros(rows).unwrap();
        let mut positions = gpu.upload(&vec![5; rows]).unwrap();
        let vocabulary = logits.len() / rows;
        gpu.sample(
            &mut tokens,
            &mut chosen,
            logits,
            &gpu.upload(choices).unwrap(),
            &mut steps,
            &mut positions,
            &mut Parts::new(gpu, rows, vocabulary).unwrap(),
            (rows, vocabulary),
        )
        .unwrap();
        let (tokens, chosen) = (
            gpu.read(&tokens, rows).unwrap(),
            gpu.read(&chosen, rows).unwrap(),
        );
        assert!(tokens.iter().eq(chosen.iter().map(|one| &one.token)));
        Self {
            chosen,
            steps: gpu.read(&steps, rows).unwrap(),
            positions: gpu.read(&positions, rows).unwrap(),
        }
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn tokens_come_as_often_as_they_should() {
    let (gpu, mut random) = (gpu(), StdRng::seed_from_u64(6));
    let rows = 4096;
    // A large vocabulary with few tokens that matter, and a flat one that does not fit into what is sorted.
    for (vocabulary, size, temperature, top_p) in [
        (1000, 6.0, 0.7, 0.9),
        (1000, 6.0, 1.0, 1.0),
        (50_000, 0.5, 1.0, 0.6),
        (151_936, 20.0, 1.3, 0.95),
    ] {
        let one = numbers(&mut random, vocabulary, size);
        let logits: Vec<f32> = one.iter().copied().cycle().take(vocabulary * 64).collect();
        let on_device = gpu.upload(&logits).unwrap();
        let mut seen = vec![0u32; vocabulary];
        let expected = shares(&one, temperature, top_p);
        for batch in 0..rows / 64 {
            let choices: Vec<Choice> = (0..64)
                .map(|row| Choice {
                    temperature,
                    top_p,
                    seed: (batch * 64 + row) as u64,
                })
                .collect();
            let drawn = Drawn::new(&gpu, &on_device, &choices);
            let plain = shares(&one, 1.0, 1.0);
            for one in &drawn.chosen {
                let token = one.token as usize;
                seen[token] += 1;
                assert!((f64::from(one.log_probability) - plain[token].ln()).abs() < 1e-3);
                assert!(expected[token] > 0.0, "a token that top-p leaves out");
            }
            assert_eq!(drawn.steps, [1; 64]);
            assert_eq!(drawn.positions, [6; 64]);
        }
        // Half the summed difference between what came and what should have; for as many draws from the right one it is
        // of this size.
        let distance: f64 = seen
            .iter()
            .zip(&expected)
            .map(|(count, share)| (f64::from(*count) / f64::from(rows as u32) - share).abs())
            .sum::<f64>()
            / 2.0;
        let usual: f64 = expected
            .iter()
            .map(|share| (share * (1.0 - share) / f64::from(rows as u32)).sqrt())
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
    let drawn = Drawn::new(&gpu, &on_device, &[Choice::GREEDY]);
    assert_eq!(drawn.chosen[0].token, 1700);
}

/// What each token's share is after temperature and top-p.
fn shares(logits: &[f32], temperature: f32, top_p: f32) -> Vec<f64> {
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
