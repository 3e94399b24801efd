//! Logs on stderr, for operators: off unless asked for by `-v`, `-vv` or `WARPSMITH_LOG`.

use std::env;
use std::io;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::prelude::*;

use crate::failure::Stop;

/// Overrides `-v`: a level, or levels by crate, such as `warpsmith_judge=debug,warpsmith_machine=info`.
const VARIABLE: &str = "WARPSMITH_LOG";

/// Our crates share this beginning; what libraries log is shown only if the variable asks for it.
const OURS: &str = "warpsmith";

/// Installs the subscriber of this process. `verbosity` is how often `-v` was given.
pub(crate) fn install(verbosity: u8) -> Result<(), Stop> {
    let filter = match env::var(VARIABLE) {
        Ok(text) if !text.is_empty() => text.parse::<Targets>().map_err(|error| {
            Stop::config(
                "log_filter",
                format!("`{VARIABLE}` is not a filter: {error}"),
                Some("give a level such as `debug`, or `warpsmith_judge=debug`".to_owned()),
            )
        })?,
        _ => Targets::new().with_target(OURS, level(verbosity)),
    };
    let lines = fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(false)
        .with_timer(fmt::time::uptime())
        .with_filter(filter);
    tracing_subscriber::registry().with(lines).init();
    Ok(())
}

fn level(verbosity: u8) -> LevelFilter {
    match verbosity {
        0 => LevelFilter::OFF,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_v_shows_one_level_more() {
        let levels = [0, 1, 2, 3].map(level);
        assert!(levels.is_sorted());
        assert_eq!(levels[0], LevelFilter::OFF);
    }
}
