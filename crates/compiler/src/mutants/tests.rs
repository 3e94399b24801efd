use serde_json::{Value, json};
use warpsmith_schema::{Dtype, GraphValue, Mutant, MutantKind, Mutants, OpGraph, ValueSource};

use super::{GraphMutants, PER_KIND};

fn value(shape: &[u64], from: ValueSource) -> GraphValue {
    GraphValue {
        shape: shape.to_vec(),
        dtype: Dtype::Float32,
        from,
        line: None,
    }
}

fn input(shape: &[u64]) -> GraphValue {
    value(shape, ValueSource::Input { position: 0 })
}

fn state(name: &str, shape: &[u64]) -> GraphValue {
    value(shape, ValueSource::State { name: name.into() })
}

fn applied(op: &str, inputs: &[usize], arguments: Value, shape: &[u64]) -> GraphValue {
    let from = ValueSource::Applied {
        op: op.into(),
        inputs: inputs.iter().map(|input| Some(*input)).collect(),
        arguments: serde_json::from_value(arguments).unwrap(),
        result: 0,
    };
    value(shape, from)
}

fn graph(values: Vec<GraphValue>) -> OpGraph {
    let returns = vec![values.len() - 1];
    OpGraph {
        values,
        returns,
        nesting: None,
    }
}

fn of_kind(graph: &OpGraph, kind: MutantKind) -> Vec<Mutant> {
    let mut found = GraphMutants.of(graph);
    found.retain(|mutant| mutant.kind == kind);
    found
}

/// In order.
fn operators(graph: &OpGraph) -> Vec<&str> {
    let named = graph.values.iter().filter_map(|value| match &value.from {
        ValueSource::Applied { op, .. } => Some(op.as_str()),
        _ => None,
    });
    named.collect()
}

fn argument<'g>(graph: &'g OpGraph, op: &str, name: &str) -> Option<&'g Value> {
    graph.values.iter().find_map(|value| match &value.from {
        ValueSource::Applied {
            op: found,
            arguments,
            ..
        } if found == op => arguments.get(name),
        _ => None,
    })
}

fn inputs<'g>(graph: &'g OpGraph, op: &str) -> &'g [Option<usize>] {
    let found = graph.values.iter().find_map(|value| match &value.from {
        ValueSource::Applied {
            op: found, inputs, ..
        } if found == op => Some(inputs.as_slice()),
        _ => None,
    });
    found.unwrap()
}

/// `relu(layer_norm(linear(x)))`.
fn network() -> OpGraph {
    let norm = json!({"normalized_shape": [16], "eps": 1e-5});
    graph(vec![
        input(&[4, 8]),
        state("fc.weight", &[16, 8]),
        state("fc.bias", &[16]),
        state("norm.weight", &[16]),
        state("norm.bias", &[16]),
        applied("linear", &[0, 1, 2], json!({}), &[4, 16]),
        applied("layer_norm", &[5, 3, 4], norm, &[4, 16]),
        applied("relu", &[6], json!({"inplace": false}), &[4, 16]),
    ])
}

/// Every operand stands before its use, and is there.
fn assert_in_order(graph: &OpGraph) {
    for (place, value) in graph.values.iter().enumerate() {
        if let ValueSource::Applied { inputs, .. } = &value.from {
            assert!(
                inputs.iter().flatten().all(|input| *input < place),
                "{graph:?}"
            );
        }
    }
    assert!(
        graph
            .returns
            .iter()
            .all(|place| *place < graph.values.len())
    );
}

#[test]
fn every_mutant_differs_from_the_graph_in_what_it_returns_the_form_of() {
    let original = network();
    let found = GraphMutants.of(&original);
    assert_eq!(GraphMutants.of(&original), found);
    for mutant in &found {
        assert_in_order(&mutant.graph);
        assert!(
            mutant.graph != original || !mutant.stale.is_empty(),
            "{mutant:?}"
        );
        let form = |graph: &OpGraph| {
            let value = &graph.values[graph.returns[0]];
            (value.shape.clone(), value.dtype)
        };
        assert_eq!(form(&mutant.graph), form(&original), "{mutant:?}");
    }
    let kinds: std::collections::BTreeSet<MutantKind> =
        found.iter().map(|mutant| mutant.kind).collect();
    for kind in [
        MutantKind::OperatorDropped,
        MutantKind::BiasDropped,
        MutantKind::EpsilonChanged,
        MutantKind::OptionChanged,
        MutantKind::TailCut,
        MutantKind::AccumulationCut,
        MutantKind::Shifted,
        MutantKind::LowerPrecision,
        MutantKind::StateFolded,
    ] {
        assert!(kinds.contains(&kind), "{kind:?}");
    }
}

#[test]
fn of_one_kind_there_are_few() {
    let mut values = vec![input(&[4, 8])];
    for place in 0..40 {
        values.push(applied("sin", &[place], json!({}), &[4, 8]));
    }
    let found = of_kind(&graph(values), MutantKind::OperatorDropped);
    assert_eq!(found.len(), PER_KIND);
    assert!(found.last().unwrap().place > 30);
}

#[test]
fn what_no_result_needs_is_not_touched() {
    let mut dead = network();
    dead.values.push(applied("exp", &[0], json!({}), &[4, 8]));
    assert!(
        GraphMutants
            .of(&dead)
            .iter()
            .all(|mutant| mutant.place != 8)
    );
}

#[test]
fn a_bias_is_dropped() {
    let found = of_kind(&network(), MutantKind::BiasDropped);
    let first = &found[0];
    assert_eq!(first.what, "`linear`: without its bias");
    assert_eq!(inputs(&first.graph, "linear"), [Some(0), Some(1), None]);
}

#[test]
fn an_epsilon_is_zero_or_ten_times_as_large() {
    let found = of_kind(&network(), MutantKind::EpsilonChanged);
    let eps: Vec<f64> = found
        .iter()
        .map(|mutant| {
            argument(&mutant.graph, "layer_norm", "eps")
                .unwrap()
                .as_f64()
                .unwrap()
        })
        .collect();
    assert!(eps[0].abs() < 1e-12);
    assert!((eps[1] - 1e-4).abs() < 1e-12);
}

#[test]
fn terms_are_dropped_one_by_one() {
    let sum = graph(vec![
        input(&[4, 8]),
        state("scale", &[8]),
        applied("mul", &[0, 1], json!({}), &[4, 8]),
    ]);
    let found = of_kind(&sum, MutantKind::TermDropped);
    let returned: Vec<&GraphValue> = found
        .iter()
        .map(|mutant| &mutant.graph.values[mutant.graph.returns[0]])
        .collect();
    // The input as it is; the vector in the form of the result.
    assert_eq!(returned[0].from, ValueSource::Input { position: 0 });
    assert_eq!(operators(&found[1].graph), ["expand"]);
    assert_eq!(returned[1].shape, [4, 8]);
}

#[test]
fn the_tail_of_each_side_is_cut() {
    let relu = graph(vec![
        input(&[4, 8192]),
        applied("relu", &[0], json!({}), &[4, 8192]),
    ]);
    let found = of_kind(&relu, MutantKind::TailCut);
    let pads: Vec<&Value> = found
        .iter()
        .map(|mutant| argument(&mutant.graph, "pad", "pad").unwrap())
        .collect();
    assert_eq!(pads, [&json!([0, 2]), &json!([0, 0, 0, 1])]);
    assert_eq!(operators(&found[0].graph), ["relu", "narrow", "pad"]);
}

#[test]
fn a_tail_that_a_pool_does_not_reach_is_no_loss() {
    let pool = |extent: u64| {
        let window = json!({"kernel_size": [2], "stride": [2], "padding": [0], "dilation": [1], "ceil_mode": false});
        graph(vec![
            input(&[1, 1, extent]),
            applied("exp", &[0], json!({}), &[1, 1, extent]),
            applied("max_pool1d", &[1], window, &[1, 1, extent / 2]),
        ])
    };
    let equivalent = |graph: &OpGraph| {
        let found = of_kind(graph, MutantKind::TailCut);
        found
            .iter()
            .find(|mutant| mutant.place == 1)
            .unwrap()
            .equivalent
            .is_some()
    };
    assert!(equivalent(&pool(9)));
    assert!(!equivalent(&pool(8)));
}

#[test]
fn a_product_ends_early() {
    let found = of_kind(&network(), MutantKind::AccumulationCut);
    let product = &found[0].graph;
    assert_eq!(
        found[0].what,
        "`linear`: without the last 1 along dimension 1"
    );
    assert_eq!(operators(product)[..3], ["narrow", "narrow", "linear"]);
    assert_eq!(argument(product, "narrow", "length"), Some(&json!(7)));
}

#[test]
fn a_softmax_overflows_where_its_operand_is_not_bounded() {
    let softmax = |before: &str| {
        graph(vec![
            input(&[4, 8]),
            applied(before, &[0], json!({}), &[4, 8]),
            applied("softmax", &[1], json!({"dim": -1, "dtype": null}), &[4, 8]),
        ])
    };
    let unstable = of_kind(&softmax("sin"), MutantKind::Unstable);
    assert!(unstable[0].equivalent.is_some());
    let unstable = of_kind(&softmax("neg"), MutantKind::Unstable);
    assert_eq!(unstable[0].equivalent, None);
    assert_eq!(operators(&unstable[0].graph), ["neg", "exp", "sum", "div"]);
}

#[test]
fn another_dimension_of_the_same_form_is_taken() {
    let sum = |shape: &[u64], left: &[u64]| {
        graph(vec![
            input(shape),
            applied(
                "sum",
                &[0],
                json!({"dim": [1], "keepdim": false, "dtype": null}),
                left,
            ),
        ])
    };
    assert_eq!(of_kind(&sum(&[4, 8], &[4]), MutantKind::AxisSwapped), []);
    let found = of_kind(&sum(&[8, 8], &[8]), MutantKind::AxisSwapped);
    assert_eq!(argument(&found[0].graph, "sum", "dim"), Some(&json!([0])));
}

#[test]
fn operands_change_places_where_order_matters() {
    let binary = |op: &str| {
        let mut values = vec![input(&[4]), state("other", &[4])];
        values.push(applied(op, &[0, 1], json!({}), &[4]));
        graph(values)
    };
    let found = of_kind(&binary("sub"), MutantKind::OperandsSwapped);
    assert_eq!(inputs(&found[0].graph, "sub"), [Some(1), Some(0)]);
    assert_eq!(of_kind(&binary("add"), MutantKind::OperandsSwapped), []);
}

#[test]
fn operands_go_through_a_half_type() {
    let found = of_kind(&network(), MutantKind::LowerPrecision);
    let product = &found[0].graph;
    assert_eq!(operators(product)[..5], ["to", "to", "to", "to", "linear"]);
    assert_eq!(argument(product, "to", "dtype"), Some(&json!("bfloat16")));
}

#[test]
fn state_is_what_it_was() {
    let found = of_kind(&network(), MutantKind::StateFolded);
    let stale: Vec<&[String]> = found
        .iter()
        .map(|mutant| mutant.stale.as_slice())
        .filter(|stale| !stale.is_empty())
        .collect();
    assert!(stale.contains(&["fc.weight".to_owned()].as_slice()));
    let folded = found
        .iter()
        .find(|mutant| mutant.what == "`norm.weight`: 1 everywhere")
        .unwrap();
    assert_eq!(
        argument(&folded.graph, "full", "fill_value"),
        Some(&json!(1.0))
    );
}

#[test]
fn a_shift_that_is_subtracted_again_is_no_mistake() {
    let mut values = network().values;
    values[6] = applied("softmax", &[5], json!({"dim": -1, "dtype": null}), &[4, 16]);
    // Along the dimension of the bias it is one.
    assert_eq!(
        of_kind(&graph(values.clone()), MutantKind::BiasDropped)[0].equivalent,
        None
    );
    values[6] = applied("softmax", &[5], json!({"dim": 0, "dtype": null}), &[4, 16]);
    assert!(
        of_kind(&graph(values), MutantKind::BiasDropped)[0]
            .equivalent
            .is_some()
    );
}
