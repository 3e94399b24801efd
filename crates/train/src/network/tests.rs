//! That every tensor is found again where it was laid.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use warpsmith_kernels::training::cpu::CpuTrainableModel;
use warpsmith_kernels::training::{
    ModelHead, ParameterLayout, TrainState, TrainableInit, TrainableModel as _,
};
use warpsmith_model::{Adapter, HostTensor, SafetensorsFile, Weights};

use super::tensors::{BaseValues, NamedTensors, model_shape, set_tensor};
use super::{FineTuning, OPTIMIZER, Trainable as _, TrainingModel};

fn model_tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests")
}

fn weights(family: &str) -> Weights {
    Weights::load(&model_tests().join("checkpoints").join(family)).unwrap()
}

const FAMILIES: [&str; 3] = ["llama", "qwen2", "qwen3"];

type Named = BTreeMap<String, HostTensor>;

/// A state without the optimizer's moments.
fn parameters(state: Named) -> Named {
    let all = state.into_iter();
    all.filter(|(name, _)| !name.starts_with(OPTIMIZER))
        .collect()
}

fn numbers(of: &HostTensor) -> Vec<f32> {
    of.data().to_vec()
}

fn same(found: &Named, expected: &Named, what: &str) {
    assert!(
        found.keys().eq(expected.keys()),
        "{what}: {:?}",
        found.keys()
    );
    for (name, tensor) in found {
        assert_eq!(tensor.shape(), expected[name].shape(), "{what}, {name}");
        assert_eq!(numbers(tensor), numbers(&expected[name]), "{what}, {name}");
    }
}

/// Tensors as they are in the model's own folder.
fn in_files(family: &str) -> Named {
    let folder = model_tests().join("checkpoints").join(family);
    let entries = std::fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let files = paths.filter(|path| path.extension().is_some_and(|it| it == "safetensors"));
    files
        .flat_map(|file| SafetensorsFile::read(&file).unwrap().tensors().unwrap())
        .collect()
}

fn actor_state(weights: &Weights) -> Named {
    let model = TrainingModel::on_cpu(weights, &FineTuning::Full, 1).unwrap();
    parameters(model.actor().unwrap().state().unwrap())
}

#[test]
fn all_of_a_model_lies_where_it_is_looked_for() {
    for family in FAMILIES {
        let weights = weights(family);
        let layout = ParameterLayout::new(model_shape(&weights).unwrap());
        let values = BaseValues::new(&weights, &layout);
        let mut all = Vec::new();
        for parameter in layout.parameters() {
            let some = values.parameter(parameter);
            assert_eq!(layout.range(parameter), all.len()..all.len() + some.len());
            all.extend(some);
        }
        assert_eq!(all, values.all(), "{family}");
        let init = TrainableInit::Full {
            layout: layout.clone(),
            weights: &all,
        };
        let model = CpuTrainableModel::<f32>::new(&init, ModelHead::LanguageModel);
        let tensors = NamedTensors::new(model.layout(), &weights, [].iter());
        let found = tensors.named(&all);
        let mut expected = in_files(family);
        if weights.output.is_none() {
            expected.remove("lm_head.weight");
        }
        same(&found, &expected, family);
        let count: usize = found.values().map(|tensor| tensor.data().len()).sum();
        assert_eq!(count, layout.len(), "{family}: nothing is left over");

        // Written into another model they make it this one.
        let mut other = weights.clone();
        for tensor in tensors.iter() {
            let zeros = tensor.read(&vec![0.0; all.len()]);
            set_tensor(&mut other, tensor.id, zeros);
        }
        assert!(
            numbers(&actor_state(&other)["model.norm.weight"])
                .iter()
                .all(|one| *one == 0.0)
        );
        for tensor in tensors.iter() {
            set_tensor(&mut other, tensor.id, tensor.read(&all));
        }
        same(&actor_state(&other), &expected, family);
    }
}

#[test]
fn lora_matrices_lie_where_they_are_looked_for() {
    for family in FAMILIES {
        let weights = weights(family);
        let adapter = Adapter::load(&model_tests().join("adapters").join(family)).unwrap();
        let fine_tuning = FineTuning::Lora(adapter.clone());
        // Behind a critic's head.
        let model = TrainingModel::on_cpu(&weights, &fine_tuning, 1).unwrap();
        let mut critic = model.critic(0.5).unwrap();
        let named = parameters(critic.state().unwrap());
        assert_eq!(named.len(), 2 * adapter.factors().len() + 2, "{family}");
        for (place, pair) in adapter.factors() {
            let tensor = |matrix: &str| numbers(&named[&format!("{place}.{matrix}.weight")]);
            assert_eq!(tensor("lora_A"), numbers(&pair.a), "{family}, {place}");
            assert_eq!(tensor("lora_B"), numbers(&pair.b), "{family}, {place}");
        }
        assert_eq!(numbers(&named["value_head.bias"]), [0.5]);
        let hidden = weights.config.hidden;
        assert_eq!(numbers(&named["value_head.weight"]), vec![0.0; hidden]);

        // A state goes out by name and comes back to its place.
        let mut state = critic.state().unwrap();
        assert_eq!(state.len(), 3 * named.len());
        for (index, tensor) in state.values_mut().enumerate() {
            let numbers = tensor.data_mut().iter_mut();
            numbers.for_each(|number| *number += index as f32 + 0.25);
        }
        critic.restore(&state).unwrap();
        same(&critic.state().unwrap(), &state, family);
        let mut less = state.clone();
        less.remove("optimizer.first.value_head.bias");
        assert!(critic.restore(&less).is_err());
        same(&critic.state().unwrap(), &state, family);
    }
}

#[test]
fn padding_of_a_state_stays_as_it_is() {
    let weights = weights("llama");
    let layout = ParameterLayout::new(model_shape(&weights).unwrap());
    let all = BaseValues::new(&weights, &layout).all();
    let init = TrainableInit::Full {
        layout,
        weights: &all,
    };
    let head = ModelHead::Value { initial: 0.25 };
    let model = CpuTrainableModel::<f32>::new(&init, head);
    let tensors = NamedTensors::new(model.layout(), &weights, [].iter());
    let state = model.state().unwrap();
    let named = tensors.state(&state);
    let ones = || vec![1.0; model.layout().len()];
    let mut back = TrainState {
        weights: ones(),
        first_moment: ones(),
        second_moment: ones(),
    };
    tensors.restore(&named, &mut back).unwrap();
    let pairs = back.weights.iter().zip(&state.weights);
    let padding = pairs
        .filter(|(one, other)| one.to_bits() != other.to_bits())
        .count();
    // Rows and elements of the value head beyond the first, and the LM head, which a critic does not use.
    let (hidden, vocabulary) = (weights.config.hidden, weights.config.vocabulary);
    assert_eq!(padding, 7 * hidden + 7 + vocabulary * hidden);
}

#[test]
fn a_bias_that_the_gpu_kernels_lack_is_refused_there_and_trains_on_the_cpu() {
    let mut weights = weights("qwen2");
    let hidden = weights.config.hidden;
    for layer in &mut weights.layers {
        layer.down.bias = Some(vec![0.25; hidden]);
    }
    let error = super::model::check_biases(&weights).unwrap_err();
    assert!(error.to_string().contains("down_proj.bias"), "{error}");
    // One projection of a fused parameter alone is refused everywhere.
    let mut partly = weights.clone();
    partly.layers[0].key.bias = None;
    let error = model_shape(&partly).unwrap_err();
    assert!(error.to_string().contains("k_proj.bias"), "{error}");
    let state = actor_state(&weights);
    let bias = numbers(&state["model.layers.0.mlp.down_proj.bias"]);
    assert_eq!(bias, vec![0.25; hidden]);
}
