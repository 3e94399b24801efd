//! The state is a constant: as a module starts with it, or as it was when it was loaded.

use serde_json::json;
use warpsmith_schema::{Mutant, MutantKind::StateFolded, ValueSource};

use super::Collector;
use crate::simplify::{application, users};

pub(super) fn collect(found: &mut Collector<'_>, place: usize) {
    let ValueSource::State { name } = &found.graph.values[place].from else {
        return;
    };
    let elements: u64 = found.shape(place).iter().product();
    found.found.push(Mutant {
        kind: StateFolded,
        place,
        what: format!("`{name}`: as it was when it was loaded"),
        graph: found.graph.clone(),
        stale: vec![name.clone()],
        equivalent: None,
    });
    let Some(initial) = initial(found, place).filter(|_| elements > 1) else {
        return;
    };
    let what = format!("{initial} everywhere");
    found.add(StateFolded, place, &what, |editor| {
        let value = editor.original_value();
        let arguments = json!({"size": value.shape, "fill_value": initial, "dtype": value.dtype});
        Some(editor.push("full", &[], arguments, (value.shape, value.dtype)))
    });
}

/// What a fresh module of a normalisation has there.
fn initial(found: &Collector<'_>, place: usize) -> Option<f64> {
    let readers = users(found.graph, place);
    let user = readers
        .iter()
        .find_map(|reader| application(found.graph, *reader))?;
    let operand = user.inputs.iter().position(|input| *input == Some(place))?;
    match (user.op, operand) {
        ("layer_norm" | "rms_norm" | "group_norm", 1) | ("batch_norm" | "instance_norm", 2 | 3) => {
            Some(1.0)
        }
        ("layer_norm" | "group_norm", 2) | ("batch_norm" | "instance_norm", 1 | 4) => Some(0.0),
        _ => None,
    }
}
