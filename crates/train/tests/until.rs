//! For runs that somebody stops.

use warpsmith_train::metrics::Numbers;
use warpsmith_train::recipes::Watch;

/// Stops after so many steps.
pub(crate) struct Until(pub(crate) u64);

impl Watch for Until {
    fn stepped(&mut self, _: u64, _: u64, _: &Numbers) {
        self.0 = self.0.saturating_sub(1);
    }

    fn wants_stop(&mut self) -> bool {
        self.0 == 0
    }
}
