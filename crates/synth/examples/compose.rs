//! Composed tasks as JSON lines: `compose --count N --seed S [--size 0..5] [--ops 1..5]`.

use std::io::Write;

use serde_json::json;
use warpsmith_synth::{Composition, SeedCatalogue, TaskSize};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str, default: u64| {
        let at = arguments.iter().position(|argument| argument == name);
        let value = at.and_then(|at| arguments.get(at + 1));
        value.map_or(Ok(default), |value| value.parse())
    };
    let (count, seed) = (number("--count", 10)?, number("--seed", 1)?);
    let size = TaskSize::new(number("--size", 0)? as usize).ok_or("sizes are 0 to 5")?;
    let ops = number("--ops", 0)?;
    let seeds = SeedCatalogue::torch()?;
    let mut out = std::io::stdout().lock();
    let mut written = 0;
    for index in 0.. {
        if written == count {
            break;
        }
        let wanted = if ops == 0 { 1 + index % 5 } else { ops };
        let Some(made) = Composition::new(&seeds, seed, index, wanted as usize) else {
            continue;
        };
        let line = json!({
            "name": format!("{seed}-{index:06}-{}", made.ops().join("-")),
            "ops": made.seeds(),
            "code": made.code(size),
            "graph": made.graph(size),
        });
        writeln!(out, "{line}")?;
        written += 1;
    }
    Ok(())
}
