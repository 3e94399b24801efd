//! What can be known without a GPU: that every tensor is found again where it was laid.

use std::path::{Path, PathBuf};

use warpsmith_kernels::AT_ONCE;
use warpsmith_kernels::training::State;

use super::*;
use crate::network::cpu::{CpuActor, CpuCritic};
use crate::network::{FIRST, OPTIMIZER};

fn model_tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests")
}

fn weights(family: &str) -> Weights {
    Weights::load(&model_tests().join("checkpoints").join(family)).unwrap()
}

const FAMILIES: [&str; 3] = ["llama", "qwen2", "qwen3"];

type Named = BTreeMap<String, Tensor>;

/// What the processor calls what learns, and its numbers.
fn own(state: Named) -> Named {
    let all = state.into_iter();
    all.filter(|(name, _)| !name.starts_with(OPTIMIZER))
        .collect()
}

fn same(found: &Named, expected: &Named, what: &str) {
    assert!(
        found.keys().eq(expected.keys()),
        "{what}: {:?}",
        found.keys()
    );
    for (name, tensor) in found {
        let numbers = |of: &Tensor| of.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(tensor.dims(), expected[name].dims(), "{what}, {name}");
        assert_eq!(numbers(tensor), numbers(&expected[name]), "{what}, {name}");
    }
}

#[test]
fn all_of_a_model_lies_where_it_is_looked_for() {
    for family in FAMILIES {
        let weights = weights(family);
        let layout = Layout::new(numbers::shape(&weights).unwrap());
        let mut all = Vec::new();
        for parameter in layout.parameters() {
            let some = numbers::of(&weights, layout.shape(), parameter);
            assert_eq!(layout.place(parameter), all.len()..all.len() + some.len());
            all.extend(some);
        }
        let slots = Slots::everything(&weights, &layout, 0);
        let processor = CpuActor::new(&weights, &Learns::Everything, 1).unwrap();
        let expected = own(processor.state().unwrap());
        let found = slots.named(&all).unwrap();
        same(&found, &expected, family);
        let count: usize = found.values().map(Tensor::elem_count).sum();
        assert_eq!(count, layout.count(), "{family}: nothing is left over");

        // Written into another model they make it this one.
        let mut other = weights.clone();
        for slot in &slots.0 {
            let zeros = slot.read(&vec![0.0; all.len()]).unwrap();
            write(&mut other, slot.of, to_host(&zeros).unwrap());
        }
        for slot in &slots.0 {
            write(
                &mut other,
                slot.of,
                to_host(&slot.read(&all).unwrap()).unwrap(),
            );
        }
        let again = CpuActor::new(&other, &Learns::Everything, 1).unwrap();
        same(&own(again.state().unwrap()), &expected, family);
    }
}

#[test]
fn low_rank_matrices_lie_where_they_are_looked_for() {
    for family in FAMILIES {
        let weights = weights(family);
        let shape = numbers::shape(&weights).unwrap();
        let adapter = Adapter::load(&model_tests().join("adapters").join(family)).unwrap();
        let learns = Learns::Adapter(adapter.clone());
        let (settings, pairs) = beginning::adapter(&weights, &learns, 1).unwrap();
        let rank = settings.unwrap().rank;
        let parts = pairs.keys().map(|place| slots::of(place.projection));
        let low_rank = LowRank {
            rank,
            scale: adapter.settings().scale(),
            beside: parts.collect(),
        };
        let factors = Factors::new(shape.clone(), &low_rank);
        let numbers = numbers::of_adapter(&pairs, &factors, (&shape, rank));
        // Behind a critic's head.
        let front = value_head(&shape);
        let mut all = vec![0.0; front];
        all[AT_ONCE * shape.hidden] = 0.5;
        all.extend(numbers);
        let slots = Slots::adapter(pairs.keys(), &factors, (&shape, rank, front));
        let slots = slots.and(Slots::value_head(&shape));
        let processor = CpuCritic::new(&weights, &learns, 0.5, 1).unwrap();
        let expected = own(processor.state().unwrap());
        same(&slots.named(&all).unwrap(), &expected, family);

        // A state goes out by name and comes back to its place; what lies beside blocks is nobody's.
        let state = State {
            first: all.iter().map(|one| one * 2.0).collect(),
            second: all.iter().map(|one| one * one).collect(),
            weights: all.clone(),
        };
        let named = slots.state(&state).unwrap();
        assert_eq!(named.len(), 3 * expected.len());
        let nothing = || vec![0.0; all.len()];
        let mut back = State {
            weights: nothing(),
            first: nothing(),
            second: nothing(),
        };
        slots.restore(&named, &mut back).unwrap();
        assert!(back == state, "{family}");
        let mut less = named;
        less.remove(&format!("{FIRST}value_head.bias"));
        assert!(slots.restore(&less, &mut back).is_err());
    }
}

#[test]
fn a_bias_that_kernels_have_no_way_for_is_refused() {
    let mut weights = weights("qwen2");
    let hidden = weights.config.hidden;
    weights.layers[0].down.bias = Some(vec![0.0; hidden]);
    let error = numbers::shape(&weights).unwrap_err();
    assert!(error.to_string().contains("down_proj.bias"), "{error}");
}
